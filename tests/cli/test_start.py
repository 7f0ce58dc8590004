"""Starting the program: what is loaded, what help says, what a wrong word brings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tokmill import read_verbs
from tokmill.cli import GROUPS, RENAMED, main

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
    assert sorted(main.list_commands(context)) == sorted(read_verbs())
    for name in read_verbs():
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
    for name, verb in read_verbs().items():
        assert f"{name} {verb.summary}" in shown


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


@pytest.mark.parametrize("verb", list(RENAMED))
def test_an_option_that_was_renamed_still_has_its_old_name_and_the_help_shows_the_new_one(verb: str) -> None:
    context = click.Context(main)
    top = main.get_command(context, verb)
    assert top is not None
    inner = list(top.commands.values()) if isinstance(top, click.Group) else [top]
    known = {spelled for command in inner for param in command.params for spelled in param.opts}
    for old, new in RENAMED[verb].items():
        if not new:  # what was given with it stands by itself now
            assert old not in known
            _, _, words = main.resolve_command(context, [verb, old, "a", f"{old}=b=c", "--", old])
            assert words == ["a", "b=c", "--", old]
            continue
        assert (old in known, new in known) == (False, True), old
        _, _, words = main.resolve_command(context, [verb, old, "a", f"{old}=b=c", "--", old])
        assert words == [new, "a", f"{new}=b=c", "--", old]


def test_an_old_name_gives_what_the_new_one_gives(tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "one two three"}\n{"text": "one two three"}\n')
    results = []
    for option in ("--keep", "--near-selection"):
        out = tmp_path / option
        words = [
            "dedup",
            str(texts),
            "--mode",
            "exact",
            option,
            "longest",
            "--workers",
            "1",
            "--out",
            str(out),
        ]
        assert CliRunner().invoke(main, words).exit_code == 0
        results.append((out / "deduped.manifest.json").read_bytes())
    assert b'"keep":"longest"' in results[0].replace(b" ", b"")
    assert results[0] == results[1]


def test_the_verbs_are_in_groups_and_each_is_in_one() -> None:
    shown = CliRunner().invoke(main, ["--help"]).stdout
    places = [shown.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    assert sum(map(len, GROUPS.values())) == len(read_verbs())
