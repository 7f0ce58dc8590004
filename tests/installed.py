"""What `make dist` has made, tried where nothing of the checkout is:
`python tests/installed.py DIST`, by the Python that has it.

    wheel, sdist ─ every file of the checkout that belongs there is in them
    tokmill      ─ an example recipe, its small files, checked and run to tokens, proven, read by the loader;
                 a pipe; help

Exit status 0, or the first thing that is wrong.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
_MADE = {"__pycache__", ".nbi", ".nbc"}


def files_below(folder: Path) -> set[str]:
    """Of the checkout, without what Python and numba put there."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not _MADE & {path.suffix, path.parent.name}
    }


def check_files(dist: Path) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    package, recipes = files_below(CHECKOUT / "src/tokmill"), files_below(CHECKOUT / "recipes")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = {f"tokmill/{name}" for name in package} | {f"tokmill/recipes/{name}" for name in recipes}
    assert wanted <= names, f"not in the wheel: {sorted(wanted - names)}"
    others = {name for name in names - wanted if ".dist-info/" not in name}
    assert not others, f"in the wheel and not in the checkout: {sorted(others)}"
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {f"src/tokmill/{name}" for name in package} | {f"recipes/{name}" for name in recipes}
    wanted |= {"pyproject.toml", "README.md", "LICENSE", "constraints.txt", "Makefile"}
    assert wanted <= packed, f"not in the sdist: {sorted(wanted - packed)}"


def run(where: str, *words: str, given: str | None = None) -> str:
    command = [str(Path(sys.executable).with_name("tokmill")), *words]
    done = subprocess.run(command, cwd=where, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


def try_it(where: str) -> None:
    """In an empty directory."""
    home = importlib.util.find_spec("tokmill")
    assert home is not None, "it is not installed"
    assert Path(str(home.origin)).is_relative_to(sys.prefix), f"not what was installed: {home.origin}"
    tokmill = functools.partial(run, where)
    assert version("tokmill") in tokmill("--version")
    tokmill("recipe", "init", "--like", "web-mixture", "--offline")
    tokmill("recipe", "check", "web-mixture.yaml")
    made = json.loads(tokmill("run", "web-mixture.yaml", "--out", "out", "--json"))
    assert json.loads(tokmill("verify", "out", "--json"))["ok"]
    tokmill("report", "out")
    for build in (name for name in made["steps"] if name.startswith("build/")):
        assert tokmill("peek", f"out/{build}").strip()
    lines = [json.dumps({"id": str(n), "text": f"line {n % 3} of a pipe, in a few words"}) for n in range(9)]
    kept = tokmill("dedup", "-", "--mode", "exact", given="\n".join(lines) + "\n").splitlines()
    assert [json.loads(line)["doc_id"] for line in kept] == ["0", "1", "2"]
    assert "0.8" in tokmill("help", "dedup.near.threshold")
    assert "## `dedup.near`" in tokmill("recipe", "schema", "--markdown")


if __name__ == "__main__":
    check_files(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as directory:
        try_it(directory)
    print("the wheel is whole, and works by itself")
