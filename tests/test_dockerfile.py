"""The Dockerfile, read and followed without a container engine:
what it copies is enough to run the demonstration."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


class Instruction(NamedTuple):
    word: str
    rest: str


def stages() -> list[list[Instruction]]:
    """Every FROM begins one."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").split("\n")
    told = [
        Instruction(*line.split(maxsplit=1)) for line in lines if line.strip() and not line.startswith("#")
    ]
    starts = [index for index, instruction in enumerate(told) if instruction.word == "FROM"]
    assert starts[0] == 0
    return [told[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def told(stage: list[Instruction], word: str) -> list[str]:
    return [instruction.rest for instruction in stage if instruction.word == word]


def is_sent(path: PurePosixPath) -> bool:
    """Whether .dockerignore lets a file go to the builder:
    of the patterns that match it, the last decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().split("\n"):
        pattern = line.removeprefix("!").removeprefix("**/")
        if not line or line.startswith("#"):
            continue
        names = [path, *path.parents][:-1]
        anywhere = "**/" in line
        if any(fnmatch.fnmatch(name.name if anywhere else str(name), pattern) for name in names):
            sent = line.startswith("!")
    return sent


def context() -> list[Path]:
    skipped = {".git", ".venv", ".hypothesis", ".mypy_cache", ".ruff_cache"}
    return [
        path
        for top in sorted(ROOT.iterdir())
        if top.name not in skipped
        for path in ([top] if top.is_file() else sorted(top.rglob("*")))
        if path.is_file() and is_sent(PurePosixPath(path.relative_to(ROOT)))
    ]


def copied(directory: Path) -> Path:
    """What COPY brings into the directory in which the wheel is built."""
    (where,) = told(stages()[0], "WORKDIR")
    source = directory / where.lstrip("/")
    sent = context()
    for rest in told(stages()[0], "COPY"):
        *names, target = shlex.split(rest)
        for name in names:
            below = [path for path in sent if path.relative_to(ROOT).is_relative_to(name)]
            assert below, f"COPY {name}: the builder does not have it"
            for path in below:
                is_file = (ROOT / name).is_file()
                place = source / target / (name if is_file else path.relative_to(ROOT / name))
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, place)
    return source


def test_it_has_two_stages_and_the_last_one_is_not_root_and_holds_no_source() -> None:
    build, final = stages()
    assert told(build, "FROM")[0].endswith(" AS build")
    assert all(
        ":" in told(stage, "FROM")[0] and ":latest" not in told(stage, "FROM")[0] for stage in (build, final)
    )
    assert [rest.split()[0] for rest in told(final, "COPY")] == ["--from=build"]
    assert told(final, "USER") not in ([], ["root"], ["0"])
    words = [instruction.word for instruction in final]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert not any(instruction.word == "ADD" for stage in stages() for instruction in stage)


def test_all_that_pip_installs_is_pinned_by_the_constraints() -> None:
    (build, _) = stages()
    installs = [rest for stage in stages() for rest in told(stage, "RUN") if "pip install" in rest]
    assert installs
    assert "PIP_CONSTRAINT=/source/constraints.txt" in told(build, "ENV")[0].split()
    assert [i.word for i in build].index("ENV") < [i.word for i in build].index("RUN")
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().split("\n")}
    extras = {
        name
        for install in installs
        for found in re.findall(r"\[(.+?)\]", install)
        for name in found.split(",")
    }
    assert "hub" in extras, "a recipe that reads the hub runs in the image"
    optional = [one for extra in extras for one in PROJECT["project"]["optional-dependencies"][extra]]
    needed = [name.split(">")[0].lower() for name in (*PROJECT["project"]["dependencies"], *optional)]
    assert not [
        name for name in needed if name.replace("_", "-") not in {p.replace("_", "-") for p in pinned}
    ]


def test_the_builder_is_sent_what_the_wheel_is_made_of_and_little_else() -> None:
    sent = context()
    tops = {path.relative_to(ROOT).parts[0] for path in sent}
    assert tops == {"pyproject.toml", "README.md", "LICENSE", "constraints.txt", "recipes", "src"}
    assert not [path for path in sent if "__pycache__" in path.parts or path.suffix in (".nbi", ".nbc")]
    assert sum(path.stat().st_size for path in sent) < 8_000_000


def test_what_is_copied_is_all_that_the_build_of_the_wheel_names(tmp_path: Path) -> None:
    source = copied(tmp_path)
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    named = [PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml"]
    for name in [*named, *wheel["packages"], *wheel["force-include"]]:
        assert (source / name).exists(), name
    tracked = subprocess.run(
        ["git", "ls-files", "src", "recipes"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode == 0:  # in a checkout: nothing of the package stays behind
        assert [name for name in tracked.stdout.split("\n") if name and not (source / name).is_file()] == []


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """What `pip install .` of the copied files puts into site-packages:
    the packages, and what is included by force."""
    source, site = copied(tmp_path), tmp_path / "site-packages"
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in wheel["packages"]:
        shutil.copytree(source / package, site / Path(package).name)
    for name, place in wheel["force-include"].items():
        shutil.copytree(source / name, site / place)
    shutil.rmtree(source)
    kernels = ROOT / "src/tokmill/kernels/__pycache__"
    if kernels.is_dir():  # of the same sources: to compile them again would take most of a minute
        shutil.copytree(kernels, site / "tokmill/kernels/__pycache__")
    return site


def test_the_steps_in_a_clean_directory_run_the_demonstration(installed: Path, tmp_path: Path) -> None:
    final = stages()[-1]
    entry, command = (json.loads(told(final, word)[0]) for word in ("ENTRYPOINT", "CMD"))
    module, _, function = PROJECT["project"]["scripts"][entry[0]].partition(":")
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(installed),
        "TOKMILL_WORKERS": "1",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = f"import {module} as m; assert m.__file__.startswith({str(installed)!r}); m.{function}()"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    proven = run("verify", "demo/out", "--json")
    assert json.loads(proven.stdout)["problems"] == []
    like = run("recipe", "init", "--like", "healing", "recipe.yaml")
    assert like.returncode == 0, like.stderr
