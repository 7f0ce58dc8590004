"""A process of ours loads of numba what our kernels need, and the same kernels give the same numbers."""

from __future__ import annotations

import json
import subprocess
import sys

_CODE = """
import json, sys
from tokmill.kernels.lean import spare_libraries
from tokmill.kernels.warm import kernels_of

if {is_lean}:
    spare_libraries()
kernels_of(["hashing"])[0].first_call()
loaded = [name for name in ("scipy.linalg", "awkward") if name in sys.modules]
import scipy.linalg
print(json.dumps([loaded, float(scipy.linalg.norm([3.0, 4.0]))]))
"""


def _run(is_lean: bool) -> tuple[list[str], float]:
    code = _CODE.format(is_lean=is_lean)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, norm = json.loads(done.stdout)
    return loaded, norm


def test_libraries_of_other_kernels_are_not_loaded_and_can_be() -> None:
    loaded, norm = _run(is_lean=True)
    assert loaded == []
    assert norm == 5.0


def test_a_process_of_others_has_them() -> None:
    loaded, _ = _run(is_lean=False)
    assert loaded, "numba loads none of them any more: the module is of no use"
