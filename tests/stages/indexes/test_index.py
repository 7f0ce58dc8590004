"""`tokmill index`: what is in its files, read by other code; one content for any workers; what is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tokmill as mill
from mill import tokmill
from tokmill.errors import InputError, RecipeError, StorageError, TokmillError
from written import Json, load_manifest, load_tables, read_row_index

SKETCH_BYTES = 64
BANDS = 8


def text_of(number: int) -> str:
    draw = random.Random(f"text {number}")
    return (
        " ".join(draw.choices(["mill", "wheel", "river", "stone", "grain", "flour"], k=30)) + f" end{number}"
    )


def run_of(directory: Path, texts: list[str], parts: int = 3, **sections: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    size = -(-len(texts) // parts)
    for part in range(parts):
        lines = [
            json.dumps({"id": f"d{n}", "text": texts[n]})
            for n in range(part * size, min((part + 1) * size, len(texts)))
        ]
        (directory / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n")
    recipe = {
        "name": "first",
        "sources": [{"name": "all", "files": "part-*.jsonl", "fields": {"id": "id"}}],
        "split": {"valid_fraction": "0.2"},
        **sections,
    }
    (directory / "recipe.yaml").write_text(json.dumps(recipe))
    return mill.run(directory / "recipe.yaml", directory / "out", workers=1).out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 documents of which 20 are copies and 10 have no words; not to be changed."""
    texts = [text_of(n % 180) for n in range(190)] + [f"— {'!' * n} —" for n in range(1, 11)]
    return run_of(tmp_path_factory.mktemp("run"), texts)


def kept_documents(run: Path) -> list[Json]:
    """From the files of the run: hash, id and split of all that have a split."""
    names = json.loads((run / "split/manifest.json").read_bytes())["facts"]["splits"]
    documents = [row for table in load_tables(run / "ingest/all", "documents") for row in table.to_pylist()]
    marks = [row for table in load_tables(run / "clean/all", "marks") for row in table.to_pylist()]
    labels = [row for table in load_tables(run / "split", "labels") for row in table.to_pylist()]
    return [
        {
            "hash": (mark["exact_high"], mark["exact_low"]),
            "id": document["doc_id"],
            "bytes": len(document["text"].encode()),
            "split": names[label["split"]],
            "has_words": any(c.isalnum() for c in document["text"]),
        }
        for document, mark, label in zip(documents, marks, labels, strict=True)
        if label["split"] < len(names)
    ]


def read_entries(directory: Path) -> list[tuple[int, int, bytes]]:
    """By the drawing in the docs, and no code of ours."""
    found = []
    for entry in load_manifest(directory).entries("entries"):
        data = (directory / entry.path).read_bytes()
        assert len(data) == entry.rows * (16 + SKETCH_BYTES)
        high, low = (np.frombuffer(data, "<u8", entry.rows, at * 8 * entry.rows) for at in (0, 1))
        sketches = [data[at : at + SKETCH_BYTES] for at in range(16 * entry.rows, len(data), SKETCH_BYTES)]
        found += list(zip(high.tolist(), low.tolist(), sketches, strict=True))
    return found


def read_bands(directory: Path) -> list[tuple[int, int]]:
    found = []
    for entry in load_manifest(directory).entries("bands"):
        data = (directory / entry.path).read_bytes()
        assert len(data) == 2 * (-(-entry.rows * 4 // 8) * 8)
        key = np.frombuffer(data, "<u4", entry.rows)
        document = np.frombuffer(data, "<u4", entry.rows, len(data) // 2)
        found += list(zip(key.tolist(), document.tolist(), strict=True))
    return found


def test_the_files_hold_every_kept_document_once_in_order(run: Path, tmp_path: Path) -> None:
    made = mill.index(run, out=tmp_path / "index", ids=True, workers=1)
    expected = kept_documents(run)
    assert len(expected) == 190
    entries = read_entries(tmp_path / "index")
    assert [entry[:2] for entry in entries] == sorted(document["hash"] for document in expected)
    ids = [row for table in load_tables(tmp_path / "index", "ids") for row in table.to_pylist()]
    assert {row["doc_id"]: entry[:2] for row, entry in zip(ids, entries, strict=True)} == {
        document["id"]: document["hash"] for document in expected
    }
    bands = read_bands(tmp_path / "index")
    assert bands == sorted(bands)
    counts = Counter(document for _, document in bands)
    has_words = {document["hash"]: document["has_words"] for document in expected}
    assert counts == {n: BANDS for n, entry in enumerate(entries) if has_words[entry[:2]]}
    told = made.as_json()
    assert told["documents"] == len(expected)
    assert told["splits"] == dict(sorted(Counter(document["split"] for document in expected).items()))
    assert told["text_bytes"] == sum(document["bytes"] for document in expected)
    files = [path for path in (tmp_path / "index").iterdir() if path.name != "manifest.json"]
    assert told["index_bytes"] == sum(path.stat().st_size for path in files)
    assert not (tmp_path / "index/.work").exists()
    assert mill.verify(tmp_path / "index").ok


@pytest.mark.usefixtures("forked_workers")
def test_content_is_one_for_any_workers_and_any_cut_into_files(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for workers in (1, 3):
        mill.index(run, out=tmp_path / f"{workers}", ids=True, workers=workers)
    assert load_manifest(tmp_path / "1").digest == load_manifest(tmp_path / "3").digest
    monkeypatch.setattr("tokmill.stages.indexes.stage.ENTRIES_AT_ONCE", 40)
    monkeypatch.setattr("tokmill.stages.indexes.stage.BANDS_AT_ONCE", 300)
    mill.index(run, out=tmp_path / "cut", ids=True, workers=1)
    manifest = load_manifest(tmp_path / "cut")
    assert len(manifest.entries("entries")) == 5
    assert len(manifest.entries("bands")) == 5
    assert read_entries(tmp_path / "cut") == read_entries(tmp_path / "1")
    whole, cut = (Counter(document for _, document in read_bands(tmp_path / name)) for name in ("1", "cut"))
    assert whole == cut


def test_of_some_splits_only(run: Path, tmp_path: Path) -> None:
    made = mill.index(run, out=tmp_path / "index", splits=["valid"], workers=1)
    expected = [document["hash"] for document in kept_documents(run) if document["split"] == "valid"]
    assert [entry[:2] for entry in read_entries(tmp_path / "index")] == sorted(expected)
    assert made.as_json()["splits"] == {"valid": len(expected)}
    with pytest.raises(InputError, match="no split called test"):
        mill.index(run, out=tmp_path / "other", splits=["test"], workers=1)


def test_of_a_mixture_the_documents_that_it_chose(tmp_path: Path) -> None:
    tokenizer = {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<eos>"}
    sections = {"tokenizer": tokenizer, "pack": {"length": 32}, "mixture": {"tokens": 2000}}
    sections["builds"] = [
        {"name": "rows", "format": "memmap"},
        {"name": "texts", "format": "parquet", "content": "text"},
    ]
    out = run_of(tmp_path / "run", [text_of(n) for n in range(150)], **sections)
    mill.index(out, out=tmp_path / "index", ids=True, workers=1)
    chosen = set()
    for path in sorted((out / "texts/texts").glob("*/*.parquet")):
        chosen |= set(pq.read_table(path).column("doc_id").to_pylist())
    assert 20 < len(chosen) < 140
    ids = [row["doc_id"] for table in load_tables(tmp_path / "index", "ids") for row in table.to_pylist()]
    assert sorted(ids) == sorted(chosen)


def run_of_stages(directory: Path) -> Path:
    """The second stage comes before the first in the alphabet, and has some of its documents again."""
    stages = [
        {"name": "main", "steps": 16},
        {"name": "anneal", "tokens": 1500, "length": 64, "where": [{"by": "score.even", "min": 0.5}]},
    ]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "hooks.py").write_text(
        "import numpy as np\n\n"
        "def even(columns):\n"
        "    return np.array([len(text) % 3 == 0 for text in columns['text'].to_pylist()], float)\n"
    )
    return run_of(
        directory,
        [text_of(n) for n in range(150)],
        scores=[{"name": "even", "hook": "hooks.py:even"}],
        tokenizer={"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<eos>"},
        pack={"length": 32},
        mixture={
            "held_out": "whole",
            "batch_tokens": 128,
            "exhausted": "repeat",
            "max_epochs": 9,
            "stages": stages,
        },
        builds=[{"name": "rows", "format": "memmap"}],
    )


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of_stages(tmp_path_factory.mktemp("staged"))


def in_builds(run: Path) -> dict[str, set[str]]:
    """By build of a stage: the documents of training that are in its rows."""
    return {
        path.parts[-3]: {span.doc_id for row in read_row_index(path) for span in row.docs}
        for path in sorted((run / "build").glob("*/train/index.jsonl.zst"))
    }


@pytest.mark.parametrize("turns_at_once", [4_000_000, 7])
def test_of_stages_the_documents_that_any_of_them_chose(
    staged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns_at_once: int
) -> None:
    monkeypatch.setattr("tokmill.stages.indexes.stage._TURNS_AT_ONCE", turns_at_once)
    made = mill.index(staged, out=tmp_path / "index", ids=True, workers=1)
    built = in_builds(staged)
    trained = set.union(*built.values())
    assert all(trained > one for one in built.values())
    kept = {
        split: {d["id"] for d in kept_documents(staged) if d["split"] == split}
        for split in ("train", "valid")
    }
    assert len(kept["train"] - trained) > 20
    ids = [row["doc_id"] for table in load_tables(tmp_path / "index", "ids") for row in table.to_pylist()]
    assert sorted(ids) == sorted(trained | kept["valid"])
    assert made.as_json()["splits"] == {"train": len(trained), "valid": len(kept["valid"])}


def test_a_run_of_stages_as_a_reference_takes_what_a_stage_chose_and_no_more(
    staged: Path, tmp_path: Path
) -> None:
    trained = set.union(*in_builds(staged).values())
    held_out = {d["id"] for d in kept_documents(staged) if d["split"] == "valid"}
    texts = [text_of(n) for n in range(150)]
    later = run_of(tmp_path / "later", texts, dedup={"exact": True, "reference": [str(staged)]})
    gone = {
        row["doc_id"]
        for table in load_tables(later / "dedup", "ledger")
        for row in table.to_pylist()
        if row["reason"] == "reference_exact_dup"
    }
    assert gone == trained | held_out
    assert len({d["id"] for d in kept_documents(later)}) == 150 - len(gone)


def test_a_finished_index_stays_and_another_one_is_refused(run: Path, tmp_path: Path) -> None:
    first = mill.index(run, out=tmp_path / "index", workers=1)
    again = mill.index(run, out=tmp_path / "index", workers=1)
    assert (first.is_new, again.is_new) == (True, False)
    with pytest.raises(InputError, match=r"other options.*`ids` changed false → true"):
        mill.index(run, out=tmp_path / "index", ids=True, workers=1)
    assert load_manifest(tmp_path / "index").digest == first.manifest.digest
    replaced = mill.index(run, out=tmp_path / "index", ids=True, replace=True, workers=1)
    assert replaced.is_new
    assert mill.verify(tmp_path / "index").ok


def test_what_cannot_be_indexed_is_told_before_anything_is_written(run: Path, tmp_path: Path) -> None:
    refused: list[tuple[type[TokmillError], Json]] = [
        (StorageError, {"directory": tmp_path}),
        (InputError, {"directory": run, "out": run / "index"}),
        (RecipeError, {"directory": run, "name": "a/b"}),
        (RecipeError, {"directory": run, "threshold": "1.5"}),
        (RecipeError, {"directory": run, "threshold": "much"}),
        (RecipeError, {"directory": run, "threshold": "nan"}),
        (RecipeError, {"directory": run, "ngram": 0}),
    ]
    for kind, options in refused:
        with pytest.raises(kind):
            mill.index(**{"out": tmp_path / "index", "workers": 1, **options})
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run, unfinished)
    (unfinished / "manifest.json").unlink()
    with pytest.raises(StorageError, match="not the directory of a finished run"):
        mill.index(unfinished, out=tmp_path / "index", workers=1)
    assert not (tmp_path / "index").exists()
    assert not (run / "index").exists()


def test_a_damaged_file_is_found(run: Path, tmp_path: Path) -> None:
    mill.index(run, out=tmp_path / "index", workers=1)
    path = tmp_path / "index/entries-00000.bin"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    assert [problem.where for problem in mill.verify(tmp_path / "index").problems] == ["entries-00000.bin"]


def test_the_command_tells_how_large_it_is(run: Path, tmp_path: Path) -> None:
    done = tokmill("index", run, "--out", tmp_path / "index", "--splits", "train", "--splits", "valid")
    assert done.returncode == 0, done.stderr
    size = sum(path.stat().st_size for path in (tmp_path / "index").glob("*.bin"))
    text = sum(document["bytes"] for document in kept_documents(run))
    assert f"{size / text:.1%} of the text" in done.stdout
    assert "190 documents" in done.stdout
    again = json.loads(tokmill("index", run, "--out", tmp_path / "index", "--json").stdout)
    assert again["is_new"] is False
    assert again["index_bytes"] == size


def test_an_index_of_nothing_finds_nothing(tmp_path: Path) -> None:
    out = run_of(tmp_path / "empty", [text_of(1)], parts=1, filters=[{"measure": "words", "min": 1000}])
    assert mill.index(out, out=tmp_path / "index", ids=True, workers=1).as_json()["documents"] == 0
    dedup = {"near": {}, "reference": [str(tmp_path / "index"), str(out)]}
    later = run_of(tmp_path / "later", [text_of(n) for n in range(5)], dedup=dedup)
    assert load_manifest(later / "dedup").counts["kept"] == 5
