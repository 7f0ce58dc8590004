"""Starting the program: what is loaded, what help says, what a wrong word brings."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tokmill.cli import _VERBS, main

HEAVY = (
    "numba",
    "numpy",
    "pyarrow",
    "pydantic",
    "rich",
    "yaml",
    "msgspec",
    "tokenizers",
    "tiktoken",
    "sentencepiece",
)


def modules_after(code: str) -> set[str]:
    """The packages that a fresh process has loaded when `code` is done."""
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return {name.split(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_saying_what_it_can_do_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"from tokmill.cli import main\ntry:\n  main({arguments})\nexcept SystemExit: pass"
    loaded = modules_after(code)
    assert "click" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_importing_the_package_does_nothing() -> None:
    assert modules_after("import tokmill").isdisjoint({*HEAVY, "click"})


def commands() -> list[list[str]]:
    """Every verb, and every verb below a verb."""
    found = []
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        found.append([name])
        if isinstance(command, click.Group):
            found += [[name, below] for below in command.list_commands(click.Context(command))]
    return found


def test_the_table_of_verbs_and_the_commands_agree() -> None:
    context = click.Context(main)
    assert main.list_commands(context) == list(_VERBS)
    for name in _VERBS:
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_the_help_of_every_command_has_a_description_and_an_example_of_itself(command: list[str]) -> None:
    shown = CliRunner().invoke(main, [*command, "--help"])
    assert shown.exit_code == 0
    text = " ".join(shown.stdout.split())
    assert f"Example: tokmill {' '.join(command)}" in text
    assert CliRunner().invoke(main, [*command, "-h"]).stdout == shown.stdout


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_that_does_something_speaks_json(command: list[str]) -> None:
    shown = CliRunner().invoke(main, [*command, "--help"]).stdout
    assert ("--json" in shown) == ("Commands:" not in shown)


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_option_says_what_it_is_for(command: list[str]) -> None:
    found: click.Command | None = main
    for name in command:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), name)
    assert found is not None
    silent = [
        option.opts[0] for option in found.params if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


def test_the_help_lists_every_verb_with_its_summary() -> None:
    shown = " ".join(CliRunner().invoke(main, ["--help"]).stdout.split())
    for name, (_, summary) in _VERBS.items():
        assert f"{name} {summary}" in shown


@pytest.mark.parametrize(
    ("word", "meant"),
    [("rnu", "run"), ("verfy", "verify"), ("plann", "plan"), ("recipes", "recipe"), ("doc", "doctor")],
)
def test_an_unknown_verb_brings_the_one_that_was_probably_meant(word: str, meant: str) -> None:
    shown = CliRunner().invoke(main, [word])
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert f"No such command `{word}`. Did you mean `{meant}`?" in shown.stderr


def test_an_unknown_verb_like_no_other_is_refused_without_a_guess() -> None:
    shown = CliRunner().invoke(main, ["xyzzy"])
    assert shown.exit_code == 2
    assert "No such command `xyzzy`." in shown.stderr
    assert "Did you mean" not in shown.stderr
