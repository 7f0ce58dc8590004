"""Texts, scores and documents that a model has seen: against rows that are decoded, tables and a replay."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import tokmill as mill
from mill import small_corpus
from tokmill.cli import main
from tokmill.errors import InputError
from tokmill.loader import Batches, open_dataset
from written import decoder_of, read_row_index

BUILDS = [
    {"name": "concat", "format": "memmap", "pack": {"layout": "concat", "length": 24}},
    {"name": "mega", "format": "megatron"},
]
HOOKS = '''
def vowels(columns):
    """The share of vowels."""
    return [sum(letter in "aeiou" for letter in text) / len(text) for text in columns["text"]]
'''
SEED, BATCH, STEP = 3, 4, 7


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("seen")
    (directory / "hooks.py").write_text(HOOKS)
    scores = [{"name": "open", "hook": "hooks.py:vowels", "percentile": "corpus"}]
    recipe = small_corpus(directory, builds=BUILDS, scores=scores, redact=["email"])
    return mill.run(recipe, workers=1).out


def rows_of_steps(build: Path, steps: int) -> list[list[int]]:
    """Of each step, by the loader itself; one epoch after another."""
    dataset = open_dataset(build, "train")
    known = {tuple(np.asarray(dataset[row]["ids"]).tolist()): row for row in range(len(dataset))}
    batches, found = Batches(dataset, BATCH, SEED), list[list[int]]()
    while len(found) < steps:
        for batch in batches:
            lengths = np.asarray(batch["lengths"]).tolist()
            pairs = zip(np.asarray(batch["tokens"]).tolist(), lengths, strict=True)
            found.append([known[tuple(ids[:length])] for ids, length in pairs])
    return found[:steps]


def test_a_text_is_told_in_the_steps_whose_rows_have_it(run: Path) -> None:
    """Of rows that are documents: those whose decoded ids hold the words."""
    build, words = run / "build" / "mega", "How many"
    dataset, decode = open_dataset(build, "train"), decoder_of(run)
    having = {row for row in range(len(dataset)) if words in decode(dataset[row]["ids"])}
    assert 3 < len(having) < len(dataset)
    steps = -(-len(dataset) // BATCH)
    told = mill.seen(build, step=STEP, batch_size=BATCH, seed=SEED, text=words).meetings
    assert told is not None
    expected = {
        (number, row)
        for number, rows in enumerate(rows_of_steps(build, 2 * steps))
        for row in rows
        if row in having
    }
    assert {(one.step, one.row) for one in told} == expected
    assert all(one.is_seen == (one.step < STEP) for one in told if one.step is not None)
    for one in told:
        ids = np.asarray(dataset[one.row]["ids"])
        assert words in decode(ids[one.columns[0] : one.columns[1]])


def test_of_a_document_in_several_rows_only_those_with_the_words_met_them(run: Path) -> None:
    build, decode = run / "build" / "concat", decoder_of(run)
    dataset = open_dataset(build, "train")
    rows_by_document: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for row, spans in read_row_index(build / "train" / "index.jsonl.zst"):
        for span in spans:
            own = rows_by_document.setdefault((span.source, span.doc_id), [])
            own.append((row, span.start, span.end))
    (source, doc_id), rows = next(item for item in rows_by_document.items() if len(item[1]) >= 3)
    row, start, end = rows[1]
    words = decode(np.asarray(dataset[row]["ids"])[start:end]).strip()
    met = mill.seen(build, step=0, batch_size=BATCH, seed=SEED, text=words, source=source).meetings
    assert met is not None
    assert {one.row for one in met if one.doc_id == doc_id} == {row}
    whole = mill.seen(build, step=0, batch_size=BATCH, seed=SEED, doc_id=doc_id, source=source).meetings
    assert whole is not None
    assert {one.row for one in whole} == {row for row, _, _ in rows}


def test_what_edits_took_out_was_never_met(run: Path) -> None:
    build = run / "build" / "mega"
    received = "\n".join(
        text
        for path in sorted((run / "ingest").rglob("documents-*.parquet"))
        for text in pq.read_table(path).column("text").to_pylist()
    )
    assert "\r\n" in received
    assert mill.seen(build, step=0, batch_size=1, text="\r\n").meetings == []
    with pytest.raises(InputError, match="is empty"):
        mill.seen(build, step=0, batch_size=1, text="")
    with pytest.raises(InputError, match="beside a text"):
        mill.seen(build, step=0, batch_size=1, text="x", doc_id="y")


def test_a_search_reads_no_table_once_per_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem is edited and holds the words; the number of readings does not depend on that."""
    (tmp_path / "hooks.py").write_text(
        'def louder(columns):\n    return [f"{text} How many!" for text in columns["text"]]\n'
    )
    recipe = small_corpus(
        tmp_path, transforms=["hooks.py:louder"],
        mixture={"weights": {"math": 0.99, "prose": 0.01}}, builds=BUILDS[1:],
    )  # fmt: skip
    build = mill.run(recipe, workers=1).out / "build" / "mega"
    opened: list[str] = []
    reader = pq.ParquetFile

    def counted(path: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(str(path))
        return reader(path, *arguments, **options)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    met = mill.seen(build, step=0, batch_size=BATCH, text="How many!").meetings
    assert met is not None
    assert len({one.doc_id for one in met}) > 40
    assert max(Counter(opened).values()) <= 4


def scores_of(run: Path, column: str) -> dict[tuple[str, str], float]:
    found = {}
    number = 0
    for directory in sorted((run / "ingest").iterdir(), key=lambda path: path.name != "problems"):
        for path in sorted(directory.glob("documents-*.parquet")):
            key = path.name.removeprefix("documents-").removesuffix(".parquet")
            table = (
                run / f"scores/percentiles-{number:05d}.parquet"
                if column.endswith(".percentile")
                else run / f"clean/{directory.name}/measures-{key}.parquet"
            )
            ids, values = pq.read_table(path).column("doc_id"), pq.read_table(table).column(column)
            for doc_id, value in zip(ids.to_pylist(), values.to_pylist(), strict=True):
                found[directory.name, doc_id] = value
            number += 1
    return found


@pytest.mark.parametrize("column", ["score.open", "score.open.percentile"])
def test_tenths_of_a_score_hold_the_documents_between_their_bounds(run: Path, column: str) -> None:
    build, values = run / "build" / "mega", scores_of(run, column)
    index = read_documents(build)
    steps = rows_of_steps(build, STEP)
    told = mill.seen(build, step=STEP, batch_size=BATCH, seed=SEED, by=column)
    assert len(told.groups) > 5
    seen: Counter[str] = Counter()
    documents: Counter[str] = Counter()
    for row, (key, tokens) in enumerate(index):
        value = np.float32(values[key])
        (name,) = [one.name for one in told.groups if lies_in(value, one.name, column)]
        documents[name] += 1
        seen[name] += tokens * sum(rows.count(row) for rows in steps)
    assert {one.name: one.seen for one in told.groups} == {name: seen[name] for name in documents}
    assert {one.name: one.whole + one.partly + one.unseen for one in told.groups} == dict(documents)


def lies_in(value: Any, name: str, column: str) -> bool:
    """The names are spelled to six digits."""
    words, is_percentile = name.split(" "), column.endswith(".percentile")
    low = -np.inf if words[0] == "below" else float(words[1] if words[0] == "from" else words[0])
    high = np.inf if words[0] == "from" else float(words[-1])
    if is_percentile and high == 100:
        high = np.inf
    return bool(low - 1e-6 <= value < high - 1e-6 * (high < 1))


def read_documents(build: Path) -> list[tuple[tuple[str, str], int]]:
    """Of rows that are one document each: whose, and how many tokens."""
    index = read_row_index(build / "train" / "index.jsonl.zst")
    return [((span.source, span.doc_id), span.end - span.start) for _, (span,) in index]


def test_the_table_has_every_document_as_often_as_it_was_seen(run: Path, tmp_path: Path) -> None:
    build, out = run / "build" / "mega", tmp_path / "seen.parquet"
    arguments = ["--step", str(STEP), "--batch-size", str(BATCH), "--seed", str(SEED), "--out", str(out)]
    done = CliRunner().invoke(main, ["seen", str(build), *arguments, "--json"])
    assert done.exit_code == 0, done.output
    told, table = json.loads(done.stdout), pq.read_table(out).to_pylist()
    assert told["out"] == str(out)
    often = Counter(row for rows in rows_of_steps(build, STEP) for row in rows)
    index = read_documents(build)
    assert {(one["source"], one["doc_id"]): (one["passes"], one["tokens"]) for one in table} == {
        key: (often[row], tokens * often[row]) for row, (key, tokens) in enumerate(index)
    }
    assert not any(one["is_partly"] for one in table)
    assert sum(one["tokens"] for one in table) == told["total"]["seen"]


def test_a_score_that_is_not_there_is_told_with_those_that_are(run: Path) -> None:
    build = run / "build" / "mega"
    with pytest.raises(InputError, match=r"no score\.closed"):
        mill.seen(build, step=0, batch_size=1, by="score.closed")
    with pytest.raises(InputError, match="not told apart by 'colour'"):
        mill.seen(build, step=0, batch_size=1, by="colour")
