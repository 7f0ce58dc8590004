"""-v, -q and --log-file: the same for every verb, before it or after it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from subprocess import CompletedProcess

import click
import pytest

from forked import MAIN, run_forked
from mill import small_corpus, tokmill
from tokmill.cli import main

SECRETS = {"HF_TOKEN": "hf_0123456789abcdefghij", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG"}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return small_corpus(tmp_path, tokenizer=None, builds=None)


def verbs() -> list[tuple[list[str], click.Command]]:
    context, found = click.Context(main), []
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        found.append(([name], command))
        if isinstance(command, click.Group):
            found += [([name, below], command.commands[below]) for below in command.commands]
    return found


def test_every_verb_takes_all_three() -> None:
    for path, command in verbs():
        spelled = [opt for param in command.params for opt in param.opts]
        assert {"--verbose", "-v", "--quiet", "-q", "--log-file"} <= set(spelled), path
        assert len(spelled) == len(set(spelled)), path


def test_quiet_says_nothing_but_results_and_errors(recipe: Path) -> None:
    loud = tokmill("run", recipe, "--out", recipe.parent / "loud", "--json")
    assert "ingest/notes" in loud.stderr
    for place, words in (("before", ["-q", "run", recipe]), ("after", ["run", recipe, "--quiet"])):
        done = tokmill(*words, "--out", recipe.parent / place, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["ran"] == json.loads(loud.stdout)["ran"]
    missing = tokmill("run", recipe, "-q", "--until", "nowhere")
    assert missing.returncode == 1
    assert "no step is called nowhere" in missing.stderr


def test_verbose_says_more_and_the_bytes_are_the_same(recipe: Path) -> None:
    digests = set()
    said = {}
    for name, more in (("plain", []), ("verbose", ["-v"]), ("quiet", ["-q"])):
        out = recipe.parent / name
        said[name] = tokmill("run", recipe, "--out", out, *more).stderr
        digests.add(json.loads(tokmill("verify", out, "--json").stdout)["digest"])
    assert len(digests) == 1
    assert "ingest/notes: 1 of 1 task" in said["verbose"]
    assert " task" not in said["plain"]


def test_the_log_file_has_what_was_said_with_times_however_little_was_shown(recipe: Path) -> None:
    log = recipe.parent / "logs/run.log"
    quiet = tokmill("run", recipe, "-q", "--log-file", log)
    assert quiet.returncode == 0, quiet.stderr
    lines = log.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  \S", line) for line in lines)
    told = [line.partition("Z  ")[2] for line in lines]
    assert told[0] == f"tokmill run {recipe} -q --log-file {log}"
    assert [line.split()[1] for line in told if line.startswith("✓")] == [
        *("ingest/problems", "clean/problems", "ingest/notes", "clean/notes", "dedup", "split")
    ]
    assert re.fullmatch(r"ended after [0-9.]+ s", told[-1])
    again = tokmill("--log-file", log, "run", recipe)
    assert "nothing to do" in again.stdout
    assert "nothing to do" in log.read_text(), "results are written down too"
    assert log.read_text().startswith("\n".join(lines)), "a log is appended to"


def test_no_secret_of_the_environment_or_of_a_url_is_in_the_log(recipe: Path) -> None:
    log = recipe.parent / "run.log"
    url = f"s3://ann:opensesame@bucket/{SECRETS['HF_TOKEN']}"
    failed = tokmill("verify", url, "--log-file", log, env=SECRETS)
    assert failed.returncode != 0
    tokmill("peek", SECRETS["AWS_SECRET_ACCESS_KEY"], "--log-file", log, env=SECRETS)
    written = log.read_text()
    assert "tokmill verify s3://***@bucket/***" in written
    assert not [secret for secret in (*SECRETS.values(), "opensesame") if secret in written]


def test_a_log_file_that_cannot_be_written_is_a_usage_error(recipe: Path) -> None:
    refused = tokmill("run", recipe, "--log-file", recipe / "run.log")
    assert refused.returncode == 2
    assert "--log-file" in refused.stderr


def test_a_warning_before_a_run_begins_is_said_once_and_written_down(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The mill turns all day. " * 50)
    (tmp_path / "mixture.yaml").write_text("datasets: [{name: a, files: a.txt, weight: 3}]")
    words = ["tokenizer", "train", "--manifest", tmp_path / "mixture.yaml", "--model", "byte_bpe"]
    words += ["--vocab-size", "300", "--out", tmp_path / "tok"]
    told = "datasets: weights add up to 3, not to 1"
    log = tmp_path / "run.log"
    assert tokmill("--log-file", log, *words).stderr.count(told) == 1
    assert log.read_text().count(told) == 1
    assert tokmill("-q", "--log-file", log, *words).stderr == ""
    assert log.read_text().count(told) == 2


def test_a_hook_that_fails_with_a_secret_in_its_message_shows_it_nowhere(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(
        "import os\n\n\ndef up(texts):\n    raise ValueError('login failed: ' + os.environ['HF_TOKEN'])\n"
    )
    recipe = small_corpus(tmp_path, tokenizer=None, builds=None, transforms=["hooks.py:up"])
    done = tokmill("run", recipe, "--out", tmp_path / "out", env=SECRETS)
    assert done.returncode == 1
    assert "login failed: ***" in done.stderr
    told = tokmill("run", recipe, "--out", tmp_path / "out", "--json", env=SECRETS)
    assert "login failed: ***" in told.stdout
    said = [done.stdout, done.stderr, told.stdout, told.stderr, tokmill("status", tmp_path / "out").stdout]
    said += [path.read_text(errors="replace") for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [text for text in said if SECRETS["HF_TOKEN"] in text]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_every_verb_of_a_run_works_on_a_stream_without_its_signs(recipe: Path, encoding: str) -> None:
    streams = f"import sys; [one.reconfigure(encoding={encoding!r}) for one in (sys.stdout, sys.stderr)]; "
    (recipe.parent / "notes.txt").write_text("Ça tourne aussi en français.\n\nIt turns all day, €.\n")
    out = recipe.parent / "out"

    def said(*words: str | Path) -> CompletedProcess[str]:
        return run_forked(list(map(str, words)), {**os.environ, "TOKMILL_WORKERS": "1"}, code=streams + MAIN)

    done = said("run", recipe, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "+ ingest/problems" in done.stderr
    assert " -> " in done.stdout
    for words in (["verify", out], ["status", out], ["plan", recipe], ["report", out]):
        found = said(*words)
        assert found.returncode == 0, (words, found.stderr)
        assert "\N{REPLACEMENT CHARACTER}" not in found.stdout
    assert json.loads(said("verify", out, "--json").stdout)["ok"] is True


def test_a_store_that_cannot_be_reached_is_an_error_of_storage() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "something", "AWS_REGION": "x"}
    nobody = {**keys, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true"}
    done = tokmill("verify", "s3://bucket/run", env=nobody)
    assert done.returncode == 1
    assert done.stderr.startswith("StorageError s3://bucket/run"), done.stderr
