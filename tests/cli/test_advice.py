"""Advice in the words of the command that meets it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tokmill.cli import main
from tokmill.cli.console import fit_advice


def command(*options: str) -> click.Command:
    return click.Command("made", params=[click.Option([option]) for option in options])


def test_a_key_becomes_the_option_that_the_command_has_for_it() -> None:
    told = fit_advice(
        "set `dtype: int32`, or a lower `near.threshold`", command("--out", "--dtype", "--threshold")
    )
    assert told == "set `--dtype int32`, or a lower `--threshold`"


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("fields: {text: …}", "--text …"),
        ("fields.text", "--text"),
        ("fields: {id: …}", "--id-field …"),
        ("tokenizer.sha256", "--tokenizer-sha256"),
        ("tokenizer: {sha256: abc}", "--tokenizer-sha256 abc"),
    ],
)
def test_a_key_of_a_section_becomes_the_option_that_holds_it(key: str, option: str) -> None:
    made = command("--out", "--text", "--id-field", "--sha256", "--tokenizer-sha256")
    assert fit_advice(f"set `{key}`", made) == f"set `{option}`"


def test_a_key_without_an_option_is_said_to_be_one_of_recipes() -> None:
    told = fit_advice("raise `normalize.max_nul_fraction` if they are right", command("--out"))
    assert told.startswith(
        "raise `normalize.max_nul_fraction` if they are right (`normalize.max_nul_fraction` in a recipe"
    )


@pytest.mark.parametrize("options", [("--doc-id",), ("--out", "--workers")])
def test_a_command_that_reads_a_run_or_a_recipe_is_told_the_key(options: tuple[str, ...]) -> None:
    reading = command(*options)
    reading.params.append(click.Argument(["recipe"]))
    assert fit_advice("set `dedup: {near: {}}`", reading) == "set `dedup: {near: {}}`"


def test_options_that_the_command_lacks_are_left_out() -> None:
    said = "wait for it to end (`--wait` does), or choose another `--out`"
    assert fit_advice(said, command("--out")) == "wait for it to end, or choose another `--out`"
    assert fit_advice(said, command("--out", "--wait")) == said
    assert fit_advice(said, command("--json")) == "wait for it to end"


def test_nul_bytes_met_by_normalize_are_told_in_words_that_can_be_typed(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "a\x00" * 5000}) + "\n")
    done = CliRunner().invoke(
        main, ["normalize", str(tmp_path / "texts.jsonl"), "--out", str(tmp_path / "out"), "--json"]
    )
    assert done.exit_code == 1, done.output
    advice = json.loads(done.stdout)["error"]["next"]
    assert "`tokmill recipe init`" in advice or "`--max-nul-fraction" in advice


def test_a_switch_is_told_by_the_name_that_turns_it_so() -> None:
    switch = click.Command(
        "made", params=[click.Option(["--out"]), click.Option(["--hard-limit/--no-hard-limit"])]
    )
    assert fit_advice("set `hard_limit: false`", switch) == "set `--no-hard-limit`"
    assert fit_advice("set `hard_limit: true`", switch) == "set `--hard-limit`"
