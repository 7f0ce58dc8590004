"""Kernels are compiled before work starts: by other processes, counted, and once per version."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tokmill.kernels
from tokmill.kernels import warm

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
    loaded = warm.load_kernels()
    assert sorted((kernel.__module__.rsplit(".", 1)[1], kernel.__name__) for kernel in loaded) == sorted(
        declared_kernels()
    )
    assert {kernel.__name__: len(kernel.signatures) for kernel in loaded} == {
        name: SIGNATURES.get(name, 1) for _, name in declared_kernels()
    }


# The package with two kernels in one module and one in another:
# all of ours would take most of the suite's time.
KERNEL = """
@raw_kernel(lambda: {name}(1))
def {name}(number):
    return number + {added}
"""
MODULES = {"hashing": {"one": "1", "two": "2"}, "words": {"three": "3"}}

ENSURE = """
import json, sys
from tokmill.kernels import warm
if "alone" in sys.argv:
    sys.executable = "/nowhere/python"
counts = []
compiled = warm.ensure_compiled(lambda *count: counts.append(count), 2)
loaded = sum(len(kernel.signatures) for kernel in warm.kernels_of())
misses = [sum(kernel.stats.cache_misses.values()) for kernel in warm.load_kernels()]
print(json.dumps([compiled, counts, loaded, misses]))
"""
ALL = [3, [[0, 3], [1, 3], [2, 3], [3, 3]], 0, [0, 0, 0]]
NONE = [0, [], 0, [0, 0, 0]]


def write_kernels(folder: Path, modules: dict[str, dict[str, str]] = MODULES) -> None:
    for module, kernels in modules.items():
        parts = [KERNEL.format(name=name, added=added) for name, added in kernels.items()]
        (folder / f"{module}.py").write_text(
            "from tokmill.kernels.jit import raw_kernel\n" + "\n".join(parts)
        )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package/tokmill/kernels"
    folder.mkdir(parents=True)
    for name in ("tokmill/__init__.py", "tokmill/kernels/__init__.py"):
        (tmp_path / "package" / name).touch()
    for name in ("compiler.py", "instructions.py", "jit.py", "warm.py"):
        shutil.copy(FOLDER / name, folder / name)
    write_kernels(folder)
    return tmp_path / "package"


def ensure(package: Path, *arguments: str, **environment: str) -> list[Any]:
    """How many were not there, what was counted, how many this process has loaded,
    which it then had to compile itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    kept |= {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ENSURE, *arguments],
        env={**kept, "NUMBA_CACHE_DIR": str(package / "cache"), **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: list[Any] = json.loads(done.stdout)
    return answer


def test_all_are_compiled_by_others_and_counted_and_then_not_even_loaded(package: Path) -> None:
    assert ensure(package) == ALL
    assert ensure(package) == NONE


def test_a_version_compiles_what_it_has_changed(package: Path) -> None:
    ensure(package)
    write_kernels(package / "tokmill/kernels", {**MODULES, "words": {"three": "4"}})
    assert ensure(package) == [1, [[0, 1], [1, 1]], 0, [0, 0, 0]]
    assert ensure(package) == NONE


def test_two_kinds_of_machine_share_a_cache_and_each_compiles_once(package: Path) -> None:
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert ensure(package) == ALL
    assert ensure(package, **other) == ALL
    assert ensure(package) == NONE
    assert ensure(package, **other) == NONE


def test_where_no_process_can_be_started_this_one_compiles(package: Path) -> None:
    compiled, counts, _, _ = ensure(package, "alone")
    assert (compiled, counts) == (3, [[0, 3]])
    assert ensure(package) == NONE


def test_a_kernel_that_cannot_be_compiled_says_so_here_and_the_others_stay_compiled(package: Path) -> None:
    write_kernels(package / "tokmill/kernels", {**MODULES, "words": {"three": "'three'"}})
    with pytest.raises(RuntimeError, match="No implementation of function"):
        ensure(package)
    write_kernels(package / "tokmill/kernels")
    assert ensure(package)[3] == [0, 0, 0]


def test_where_nothing_can_be_kept_nothing_is_compiled_ahead(package: Path) -> None:
    (
        package / "tokmill/kernels/__pycache__"
    ).touch()  # a file where the cache would be: so even root cannot write it
    nowhere = {"NUMBA_CACHE_DIR": "", "HOME": os.devnull, "XDG_CACHE_HOME": os.devnull}
    compiled, counts, loaded, _ = ensure(package, **nowhere)
    assert (compiled, counts, loaded) == (0, [], 0)
