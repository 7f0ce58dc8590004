"""What a run is looked at with, where its ids and texts were written by somebody who means no good, and its
ids are long: nothing reaches the terminal as a command, and what goes into a pipe is whole."""

from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path

import pytest

import tokmill as mill
from cleaned import prose
from mill import tokmill, write_recipe

_EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e[bold]x"


def id_of(number: int) -> str:
    """Equal up to their last letters, as addresses of one site are."""
    return f"<https://a-site.example/{'of-many-words-' * 6}\x1b[31m{number:03}>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hostile")
    texts = [prose(number, 6) + _EVIL for number in range(30)]
    texts[1] = f"{texts[0]} Once more.{_EVIL}"
    texts[2] = _EVIL
    lines = [json.dumps({"id": id_of(number), "text": text}) for number, text in enumerate(texts)]
    (directory / "web.jsonl").write_text("\n".join(lines) + "\n")
    recipe = write_recipe(
        directory,
        sources=[{"name": "web", "domain": "web", "files": "web.jsonl", "fields": {"id": "id"}}],
        filters=[{"measure": "words", "min": 20, "reason": "too_few_words_to_be_a_page"}],
        dedup={"near": {"threshold": "0.7"}},
        builds=[{"name": "rows", "format": "memmap"}],
    )
    return mill.run(recipe, directory / "run", workers=1).out


@pytest.mark.parametrize(
    "verb",
    [
        ("why", "RUN", id_of(0)),
        ("why", "RUN", "--reason", "all"),
        ("trace", "RUN", "--doc-id", id_of(0)),
        ("peek", "RUN/build/rows"),
        ("clusters", "RUN", "--diff"),
        ("documents", "RUN"),
        ("report", "RUN"),
        ("review", "RUN"),
        ("whatif", "RUN", "--set", "words.min=1"),
        ("seen", "RUN/build/rows", "--step", "2", "--batch-size", "2", "--batch", "1", "--doc-id", id_of(0)),
        ("forget", "RUN", "--doc-id", id_of(0), "--dry-run"),
    ],
    ids=lambda verb: verb[0],
)
def test_no_document_controls_the_terminal_of_who_looks_at_it(verb: tuple[str, ...], run: Path) -> None:
    shown = tokmill(*(word.replace("RUN", str(run)) for word in verb))
    assert shown.returncode == 0, shown.stderr
    said = shown.stdout + shown.stderr
    assert len(said) > 100
    assert {c for c in said if unicodedata.category(c) in ("Cc", "Cf")} <= {"\n"}


def test_a_table_in_a_pipe_has_every_id_and_every_reason_as_they_are(run: Path) -> None:
    columns = ("--columns", "doc_id,source,domain,verdict,reason,chars,words,tokens")
    asked = ("documents", run, *columns)
    rows = [dict(zip(columns[1].split(","), row, strict=True)) for row in table_of(asked)]
    shown = tokmill(*asked, env={"COLUMNS": "40", "FORCE_COLOR": ""}).stdout.splitlines()
    assert len(rows) == 30
    for row, line in zip(rows, shown[1:], strict=False):
        assert [row["doc_id"].replace("\x1b", "\ufffd"), "web", "web"] == line.split()[:3]
        assert row["reason"] is None or row["reason"] in line.split()
    assert "too_few_words_to_be_a_page" in "".join(shown)


def table_of(asked: tuple[str | Path, ...]) -> list[list[str | None]]:
    rows: list[list[str | None]] = json.loads(tokmill(*asked, "--json").stdout)["rows"]
    return rows


@pytest.mark.parametrize(
    "verb", [("why",), ("clusters",), ("review",), ("ablate",), ("forget", "--source", "a")]
)
def test_a_run_at_an_address_is_to_be_downloaded_first(verb: tuple[str, ...]) -> None:
    name, *options = verb
    refused = tokmill(name, *options, "s3://bucket/run")
    assert refused.returncode == 2
    assert f"`{name}` works on a directory of this machine" in refused.stderr
    assert "tokmill fetch URL DIRECTORY" in refused.stderr


def test_an_id_may_be_an_address(run: Path) -> None:
    for words in (("why", run), ("forget", run, "--dry-run", "--doc-id"), ("trace", run, "--doc-id")):
        shown = tokmill(*words, "s3://bucket/page.html")
        found_none = "not in the run now" if words[0] == "forget" else "no document"
        assert found_none in shown.stdout + shown.stderr


def test_only_what_a_command_writes_is_to_be_written_again(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run.previous").mkdir()
    for path in (tmp_path / "run").glob("report.*"):  # of other tests
        path.unlink()
    (tmp_path / "run" / "report.html").write_text("<title>run · tokmill report</title>")
    shown = tokmill("forget", tmp_path / "run", "--doc-id", id_of(9))
    assert [line for line in shown.stdout.splitlines() if "removed" in line] == [
        "  removed report.html: it may quote them; write it again",
        "  removed ../run.previous: it may quote them",
    ]
