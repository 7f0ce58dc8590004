from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import tokmill.kernels
from tokmill.kernels import jit as warm

# ids are narrowed to one of two dtypes
SIGNATURES = {"_end_sequences": 2}
FOLDER = Path(tokmill.kernels.__path__[0])


def declared_kernels() -> set[tuple[str, str]]:
    """(module, function) of each function under @kernel(…), from the source: nothing can hide from it."""
    return {
        (path.stem, node.name)
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(mark).startswith(("kernel(", "raw_kernel(")) for mark in node.decorator_list)
    }


def test_every_kernel_is_found_and_has_one_signature_after_its_first_call() -> None:
    warm.compile_kernels(lambda _: None)
    found = warm.kernels_of()
    assert sorted((kernel.__module__.rsplit(".", 1)[1], kernel.__name__) for kernel in found) == sorted(
        declared_kernels()
    )
    assert {kernel.__name__: len(kernel.signatures) for kernel in found} == {
        name: SIGNATURES.get(name, 1) for _, name in declared_kernels()
    }


COMPILE = """
import json
from tokmill.kernels import jit as warm
said = []
result = warm.compile_kernels(said.append, {"wordstats"})
print(json.dumps([result.count, result.compiled, said]))
"""

ENSURE = """
import json
from tokmill.kernels import jit as warm
said = []
warm.ensure_compiled(said.append, {"wordstats"})
print(json.dumps([[len(kernel.signatures) for kernel in warm.kernels_of({"wordstats"})], said]))
"""


def told(script: str, cache: Path, **environment: str) -> list[Any]:
    """The three kernels of one module: compiling all of them would take most of the suite's time."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache), **environment},
        check=True,
        capture_output=True,
    )
    answer: list[Any] = json.loads(done.stdout)
    return answer


def test_what_is_compiled_is_not_even_loaded_by_who_does_not_call_it(tmp_path: Path) -> None:
    assert told(ENSURE, tmp_path)[1][0] == "compiling 3 kernels, once per machine …"
    assert told(ENSURE, tmp_path) == [[0, 0, 0], []]
    loaded, said = told(ENSURE, tmp_path, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert (loaded, said[0]) == ([1, 1, 1], "compiling 3 kernels, once per machine …"), (
        "it is another machine"
    )


def test_compiling_is_announced_and_loading_from_the_cache_is_not(tmp_path: Path) -> None:
    count, compiled, said = told(COMPILE, tmp_path)
    assert (count, compiled) == (3, 3)
    assert isinstance(said, list)
    first, last = said
    assert first == "compiling 3 kernels, once per machine …"
    assert last.startswith("compiled 3 kernels in ")
    assert told(COMPILE, tmp_path) == [3, 0, []]
