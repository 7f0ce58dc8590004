"""`tokmill doctor`."""

from __future__ import annotations

import json
from importlib import metadata

import pytest
from click.testing import CliRunner

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


def test_an_extra_is_either_a_version_or_the_command_that_installs_it(
    report: dict[str, dict[str, dict[str, str]]],
) -> None:
    for extra, state in report["sections"]["extras"].items():
        assert state[0].isdigit() or state == f"not installed (pip install 'tokmill[{extra}]')"


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
