"""When a kernel is compiled again, and when its cached code serves."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import tokmill.kernels

FOLDER = Path(tokmill.kernels.__path__[0])

KERNEL = """
from tokmill.kernels.jit import raw_kernel
{imports}

@raw_kernel(lambda: None)
def value(number):
    return {value}
"""
# `user` and `other` are kernels; only one of them has the step, and the step has the constant
MODULES = {
    "constants": "TEN = 10\n",
    "shared": """
from tokmill.kernels.constants import TEN
from tokmill.kernels.jit import raw_step

@raw_step
def step(number):
    return number + TEN
""",
    "user": KERNEL.format(imports="from tokmill.kernels.shared import step", value="step(number)"),
    "other": KERNEL.format(imports="", value="number"),
}

CALL = """
import json
from tokmill.kernels import other, user
print(json.dumps({
    module.__name__.rpartition(".")[2]: [int(module.value(1)), sum(module.value.stats.cache_misses.values())]
    for module in (user, other)
}))
"""


def make_package(root: Path) -> Path:
    """A package of these modules and of what makes kernels of them; its folder of kernels."""
    folder = root / "tokmill/kernels"
    folder.mkdir(parents=True)
    (root / "tokmill/__init__.py").touch()
    (folder / "__init__.py").touch()
    for name in ("compiler.py", "instructions.py", "jit.py"):
        shutil.copy(FOLDER / name, folder / name)
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
    return folder


def call(path: Path, **environment: str) -> dict[str, list[int]]:
    """By kernel: what it gives for 1, and how often it was compiled."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CACHE")}
    done = subprocess.run(
        [sys.executable, "-c", CALL],
        # bytecode is stale by the second and the size of its source: too coarse here
        env={**kept, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        check=True,
        capture_output=True,
    )
    answer: dict[str, list[int]] = json.loads(done.stdout)
    return answer


def replace(path: Path, old: str, new: str) -> None:
    source = path.read_text()
    assert old in source
    path.write_text(source.replace(old, new))


def test_a_changed_step_or_constant_compiles_the_kernels_that_have_it_and_no_other(tmp_path: Path) -> None:
    folder = make_package(tmp_path)
    assert call(tmp_path) == {"user": [11, 1], "other": [1, 1]}
    assert call(tmp_path) == {"user": [11, 0], "other": [1, 0]}
    replace(folder / "shared.py", "number + TEN", "number - TEN")
    assert call(tmp_path) == {"user": [-9, 1], "other": [1, 0]}
    replace(folder / "constants.py", "10", "20")
    assert call(tmp_path) == {"user": [-19, 1], "other": [1, 0]}
    replace(folder / "jit.py", '"nogil": True', '"nogil": False')
    assert call(tmp_path) == {"user": [-19, 1], "other": [1, 1]}, "how kernels are compiled has changed"
    for name in ("compiler.py", "instructions.py"):
        (folder / name).write_text((folder / name).read_text() + "\n")
        assert call(tmp_path) == {"user": [-19, 1], "other": [1, 1]}, name


def test_a_file_of_another_time_with_the_same_text_is_not_compiled_again(tmp_path: Path) -> None:
    folder = make_package(tmp_path)
    call(tmp_path)
    for path in folder.glob("*.py"):
        os.utime(path, (1, 1))
    assert call(tmp_path) == {"user": [11, 0], "other": [1, 0]}


def test_a_kernel_that_is_in_the_cache_loads_nothing_of_the_compiler(tmp_path: Path) -> None:
    make_package(tmp_path)
    loaded = 'import sys\nprint(json.dumps(["numba.np.linalg" in sys.modules, "awkward" in sys.modules]))'
    answers = [
        subprocess.run(
            [sys.executable, "-c", CALL + loaded],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            check=True,
            capture_output=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert json.loads(answers[0][1])[0], "it was compiled: this is what is loaded for it"
    assert json.loads(answers[1][0]) == {"user": [11, 0], "other": [1, 0]}
    assert json.loads(answers[1][1]) == [False, False]


def test_a_module_of_kernels_loads_no_numba_before_one_is_called(tmp_path: Path) -> None:
    make_package(tmp_path)
    code = """
import json, sys
from tokmill.kernels import user
seen = ["numba" in sys.modules]
user.value(1)
print(json.dumps([*seen, "numba" in sys.modules]))
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    assert json.loads(done.stdout) == [False, True]


def test_where_the_package_cannot_be_written_the_cache_of_the_user_serves(tmp_path: Path) -> None:
    folder = make_package(tmp_path / "package")
    (folder / "__pycache__").touch()  # a file where the cache would be: so even root cannot write it
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home/.cache")}
    assert call(tmp_path / "package", **home) == {"user": [11, 1], "other": [1, 1]}
    assert call(tmp_path / "package", **home) == {"user": [11, 0], "other": [1, 0]}
    replace(folder / "shared.py", "number + TEN", "number - TEN")
    assert call(tmp_path / "package", **home) == {"user": [-9, 1], "other": [1, 0]}
    nowhere = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull}
    for _ in range(2):
        assert call(tmp_path / "package", **nowhere) == {"user": [-9, 1], "other": [1, 1]}, (
            "compiled each time"
        )


def test_in_a_zip_the_stamp_is_of_what_is_packed(tmp_path: Path) -> None:
    folder = make_package(tmp_path / "package")
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home/.cache")}
    (tmp_path / "home").mkdir()

    def pack() -> Path:
        with zipfile.ZipFile(tmp_path / "tokmill.zip", "w") as archive:
            for path in sorted((tmp_path / "package").rglob("*.py")):
                archive.write(path, path.relative_to(tmp_path / "package"))
        return tmp_path / "tokmill.zip"

    assert call(pack(), **home) == {"user": [11, 1], "other": [1, 1]}
    assert call(pack(), **home) == {"user": [11, 0], "other": [1, 0]}
    replace(folder / "shared.py", "number + TEN", "number - TEN")
    assert call(pack(), **home) == {"user": [-9, 1], "other": [1, 0]}


def test_kernels_import_in_the_one_form_that_the_stamp_follows() -> None:
    for path in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(path.read_text())
        top = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("tokmill") for alias in node.names), path.name
            elif isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("tokmill")):
                is_followed = id(node) in top and node.level == 0 and str(node.module).count(".") == 2
                is_followed |= path.stem == "jit" and node.module == "tokmill.kernels.compiler"  # in its own
                assert is_followed, f"{path.name}:{node.lineno} {ast.unparse(node)}"
