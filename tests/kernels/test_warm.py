from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import tokmill.kernels
from tokmill.kernels import warm

COMPILED = {"kernel", "raw_kernel", "inlined", "raw_step"}
# ids are narrowed to one of two dtypes
SIGNATURES = {"_end_sequences": 2}
FOLDER = Path(tokmill.kernels.__path__[0])


def declared_kernels() -> set[tuple[str, str]]:
    """(module, function) of each function under @kernel, from the source: nothing can hide from it."""
    return {
        (path.stem, node.name)
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(mark, ast.Name) and mark.id in ("kernel", "raw_kernel") for mark in node.decorator_list
        )
    }


def test_every_kernel_is_in_the_list_and_has_one_signature_after_its_first_call() -> None:
    warm.compile_kernels(lambda _: None)
    listed = [(call.kernel.__module__.rsplit(".", 1)[1], call.kernel.__name__) for call in warm.first_calls()]
    assert sorted(listed) == sorted(declared_kernels())
    assert {call.kernel.__name__: len(call.kernel.signatures) for call in warm.first_calls()} == {
        name: SIGNATURES.get(name, 1) for _, name in declared_kernels()
    }


def test_kernels_call_only_functions_of_their_own_file() -> None:
    """numba's cache is keyed on the kernel's file: a step imported from another file could change unseen."""
    for name in {module for module, _ in declared_kernels()}:
        module = importlib.import_module(f"tokmill.kernels.{name}")
        tree = ast.parse(Path(str(module.__file__)).read_text())
        imported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tokmill")
            for alias in node.names
        }
        for function in tree.body:
            marks = {d.id for d in getattr(function, "decorator_list", []) if isinstance(d, ast.Name)}
            if isinstance(function, ast.FunctionDef) and marks & COMPILED:
                body = [node for statement in function.body for node in ast.walk(statement)]
                called = {
                    node.func.id
                    for node in body
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                }
                assert not called & imported, f"{name}.{function.name} calls {called & imported}"


COMPILE_TWO = """
import json
from tokmill.kernels import warm
calls = warm.first_calls()[:2]
warm.first_calls = lambda: calls
said = []
result = warm.compile_kernels(said.append)
print(json.dumps([result.count, result.compiled, said]))
"""

ENSURE_TWO = """
import json
from tokmill.kernels import warm
calls = warm.first_calls()[:2]
warm.first_calls = lambda: calls
said = []
warm.ensure_compiled(said.append, {call.kernel.__module__.rpartition(".")[2] for call in calls})
print(json.dumps([[len(call.kernel.signatures) for call in calls], said]))
"""


def told(script: str, cache: Path, **environment: str) -> list[Any]:
    """Only two kernels: compiling all of them would take most of the suite's time."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache), **environment},
        check=True,
        capture_output=True,
    )
    answer: list[Any] = json.loads(done.stdout)
    return answer


def test_what_is_compiled_is_not_even_loaded_by_who_does_not_call_it(tmp_path: Path) -> None:
    assert told(ENSURE_TWO, tmp_path)[1][0] == "compiling 2 kernels, once per machine …"
    assert told(ENSURE_TWO, tmp_path) == [[0, 0], []]
    loaded, said = told(ENSURE_TWO, tmp_path, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert (loaded, said[0]) == ([1, 1], "compiling 2 kernels, once per machine …"), "it is another machine"


def test_compiling_is_announced_and_loading_from_the_cache_is_not(tmp_path: Path) -> None:
    count, compiled, said = told(COMPILE_TWO, tmp_path)
    assert (count, compiled) == (2, 2)
    assert isinstance(said, list)
    first, last = said
    assert first == "compiling 2 kernels, once per machine …"
    assert last.startswith("compiled 2 kernels in ")
    assert told(COMPILE_TWO, tmp_path) == [2, 0, []]
