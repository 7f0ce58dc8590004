"""Where PyTorch is not installed, the rest works and says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tokmill
from mill import small_corpus

# an import of it fails as if it were not there
_NONE = "import sys; sys.modules['torch'] = None; import tokmill"


def said(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{_NONE}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_check_learns_with_numpy_and_ablate_names_the_extra(tmp_path: Path) -> None:
    tokmill.run(small_corpus(tmp_path), tmp_path / "out", workers=1)
    build = str(tmp_path / "out/build/rows")
    told = said(
        f"found = tokmill.check({build!r}, train=True)\n"
        "assert found.ok\n"
        "print([one.detail for one in found.findings if one.check == 'overfit'])"
    )
    assert told.count("by a model in NumPy: PyTorch is not installed") == 2
    told = said(
        "from tokmill.errors import MissingExtra\n"
        f"try: tokmill.ablate([{build!r}, {build!r}], out={str(tmp_path / 'ablation')!r})\n"
        "except MissingExtra as error: print(error)"
    )
    assert "PyTorch is not installed" in told
    assert "pip install '.[torch]'" in told
