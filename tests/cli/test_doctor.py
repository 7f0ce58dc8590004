"""`tokmill doctor`."""

from __future__ import annotations

import ast
import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

import tokmill.kernels
from tokmill.cli import main


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, dict[str, str]]]:
    shown = CliRunner().invoke(main, ["doctor", "--json"])
    assert shown.exit_code == 0
    found: dict[str, dict[str, dict[str, str]]] = json.loads(shown.stdout)
    return found


def test_every_codec_gives_back_what_it_was_given(report: dict[str, dict[str, dict[str, str]]]) -> None:
    assert report["ok"] is True
    assert report["sections"]["codec self-test"] == dict.fromkeys(
        [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"], "ok"
    )


def test_versions_are_those_that_are_installed(report: dict[str, dict[str, dict[str, str]]]) -> None:
    versions = report["sections"]["versions"]
    for name in ("tokmill", "numpy", "pyarrow", "numba"):
        assert versions[name] == metadata.version(name)
    assert "missing" not in versions.values()


def test_kernels_are_compiled_ahead_when_asked(report: dict[str, dict[str, dict[str, str]]]) -> None:
    shown = CliRunner().invoke(main, ["doctor", "--warm", "--json"])
    assert shown.exit_code == 0
    folder = Path(tokmill.kernels.__path__[0])
    declared = sum(
        ast.unparse(mark).startswith(("kernel(", "raw_kernel("))
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for mark in node.decorator_list
    )
    kernels = json.loads(shown.stdout)["sections"]["kernels"]
    assert kernels["compiled"] == f"{declared} of {declared} kernels"
    assert list(Path(kernels["cache"]).glob("*.nbi"))


def test_every_extra_is_either_a_version_or_the_command_that_installs_it(
    report: dict[str, dict[str, dict[str, str]]],
) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = set(project["optional-dependencies"]) - {"test", "docs", "dev"}
    extras = report["sections"]["extras"]
    assert set(extras) == declared
    for extra, state in extras.items():
        assert state[0].isdigit() or state.startswith(f"not installed (pip install '.[{extra}]'")


def test_what_is_shown_to_people_is_what_is_in_the_report(
    report: dict[str, dict[str, dict[str, str]]],
) -> None:
    shown = CliRunner().invoke(main, ["doctor"])
    assert shown.exit_code == 0
    for title in ("versions", "extras", "codec self-test"):
        assert title in shown.stdout
        for name, value in report["sections"][title].items():
            assert f"{name} {value}" in " ".join(shown.stdout.split())
    assert "all self-tests passed" in shown.stdout
