"""Repeated passages and benchmark items through whole runs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import tokmill as mill
from duplicates.passages_in_memory import apply_policy
from mill import SHARED, write_recipe
from tokmill.duplicates.window import WindowOptions
from written import load_manifest, load_table

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]


def sentences(chance: random.Random, words: int) -> str:
    found = chance.choices(WORDS, k=words)
    return " ".join(
        word.capitalize() if n % 12 == 0 else f"{word}." if n % 12 == 11 or n == words - 1 else word
        for n, word in enumerate(found)
    )


def corpus(seed: int = 3) -> list[dict[str, Any]]:
    """Documents of 100 to 400 words; some carry one of three passages of 90 words."""
    chance = random.Random(seed)
    passages = [sentences(chance, 96) for _ in range(3)]
    found = []
    for n in range(60):
        text = sentences(chance, chance.randint(100, 400))
        if chance.random() < 0.4:
            text += "\n" + chance.choice(passages) + "\n" + sentences(chance, chance.randint(12, 120))
        found.append({"id": f"d{n}", "text": text})
    found.append({"id": "copy", "text": passages[0] + "\n" + sentences(chance, 12)})
    return found


RECORDS = corpus()


def run_window(directory: Path, window: dict[str, Any], parts: int = 1, workers: int = 1) -> Path:
    directory.mkdir(parents=True)
    size = -(-len(RECORDS) // parts)
    for part in range(parts):
        lines = [json.dumps(record) for record in RECORDS[part * size : (part + 1) * size]]
        (directory / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n")
    recipe = write_recipe(
        directory,
        sources=[{"name": "all", "files": "part-*.jsonl"}],
        dedup={"window": window, "partitions": 3},
        filters=None,
        normalize=None,
        builds=None,
    )
    return mill.run(recipe, workers=workers).out


def outcome(out: Path) -> tuple[set[str], dict[str, str]]:
    """Who was dropped, and the texts of those that were trimmed."""
    ids = [
        doc_id
        for path in sorted(out.glob("ingest/all/documents-*.parquet"))
        for doc_id in load_table(path, ["doc_id"]).column("doc_id").to_pylist()
    ]
    rows = [
        row for path in sorted(out.glob("dedup/verdicts-*.parquet")) for row in load_table(path).to_pylist()
    ]
    dropped = {doc_id for doc_id, row in zip(ids, rows, strict=True) if not row["kept"]}
    trimmed = {}
    for path in sorted(out.glob("dedup/trims-*.parquet")):
        number = int(path.stem.removeprefix("trims-"))
        shard = sorted(out.glob("ingest/all/documents-*.parquet"))[number]
        names = load_table(shard, ["doc_id"]).column("doc_id").to_pylist()
        trimmed.update({names[row["row"]]: row["text"] for row in load_table(path).to_pylist()})
    return dropped, trimmed


@pytest.mark.usefixtures("forked_workers")
def test_trimming_does_what_the_library_does_for_any_cut(tmp_path: Path) -> None:
    import pyarrow as pa

    texts = pa.array([record["text"] for record in RECORDS], pa.large_string())
    expected = apply_policy(texts, WindowOptions(policy="trim"))
    ids = [record["id"] for record in RECORDS]
    dropped = {doc_id for doc_id, gone in zip(ids, expected.is_dropped.tolist(), strict=True) if gone}
    changed = {
        doc_id: after
        for doc_id, before, after in zip(ids, texts.to_pylist(), expected.texts.to_pylist(), strict=True)
        if before != after and doc_id not in dropped
    }
    assert dropped == {"copy"}
    assert len(changed) > 10
    one = run_window(tmp_path / "one", {"policy": "trim"})
    cut = run_window(tmp_path / "cut", {"policy": "trim"}, parts=4, workers=2)
    for out in (one, cut):
        assert outcome(out) == (dropped, changed)
        assert mill.verify(out).ok
    facts = load_manifest(one / "dedup").facts["window"]
    assert facts["bytes_cut"] == sum(
        len(record["text"].encode()) - len(changed[record["id"]].encode())
        for record in RECORDS
        if record["id"] in changed
    )
    # what is tokenized is the trimmed text
    rows = [
        r for path in sorted(one.glob("tokens/*/*/lengths-*.parquet")) for r in load_table(path).to_pylist()
    ]
    tokens = {row["doc_id"]: row["tokens"] for row in rows}
    tokenizer = Tokenizer.from_file(str(one / "tokenizer/tokenizer.json"))
    totals = load_manifest(one / "tokens").counts["licenses"]["all"]["unknown"]
    left = [changed.get(record["id"], record["text"]) for record in RECORDS if record["id"] not in dropped]
    assert (totals["docs"], totals["chars"]) == (len(left), sum(map(len, left)))
    for doc_id in list(changed)[:5]:
        assert tokens[doc_id] == len(tokenizer.encode(changed[doc_id]).ids) + 1


def test_a_report_changes_nothing_and_a_drop_names_the_earlier_document(tmp_path: Path) -> None:
    report = run_window(tmp_path / "report", {"policy": "report"})
    assert outcome(report) == (set(), {})
    facts = load_manifest(report / "dedup").facts["window"]
    assert facts["documents"] > 10
    spans = [row for path in report.glob("dedup/spans-*.parquet") for row in load_table(path).to_pylist()]
    assert len(spans) == facts["passages"]
    assert all(span["words"] >= 50 and span["first_document"] != span["document"] for span in spans)
    dropped, _ = outcome(run_window(tmp_path / "drop", {"policy": "drop", "max_share": "0.4"}))
    assert "copy" in dropped
    ledger = load_table(next((tmp_path / "drop/out/small/dedup").glob("ledger-*.parquet"))).to_pylist()
    (row,) = [line for line in ledger if line["doc_id"] == "copy"]
    assert row["reason"] == "window_dup"
    assert row["similarity"] > 0.8
    assert row["match_shard"] == "all/00000-000"


@pytest.mark.parametrize("policy", ["report", "drop", "trim"])
def test_pieces_of_any_size_give_the_same_tables(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a task looks at together is a few rows, so that 61 documents are many pieces."""
    window = {"policy": policy, "max_share": "0.2"} if policy == "drop" else {"policy": policy}
    whole = run_window(tmp_path / "whole", window, parts=4)
    for name, rows in (
        ("dedup.window.MARKS_AT_ONCE", 30),
        ("dedup.window.AT_ONCE", 4),
        ("external.appended._GROUP_ROWS", 3),
    ):
        monkeypatch.setattr(f"tokmill.stages.{name}", rows)
    pieces = run_window(tmp_path / "pieces", window, parts=4)
    for pattern in ("window-*", "counted-*", "spans-*", "verdicts-*", "trims-*"):
        for path in sorted(whole.glob(f"dedup/{pattern}.parquet")):
            assert load_table(pieces / "dedup" / path.name).equals(load_table(path))
    assert outcome(pieces) == outcome(whole)
    assert load_manifest(whole / "dedup").facts == load_manifest(pieces / "dedup").facts
    assert load_manifest(whole / "dedup").identity == load_manifest(pieces / "dedup").identity


@pytest.mark.parametrize("policy", ["drop", "trim"])
def test_a_reference_loses_neither_documents_nor_text(tmp_path: Path, policy: str) -> None:
    """Two books of the reference share a passage, and so do two documents that are compared with them."""
    chance = random.Random(11)
    passage = sentences(chance, 96)

    def records(kind: str) -> list[dict[str, str]]:
        texts = [sentences(chance, 60), sentences(chance, 12), sentences(chance, 300)]
        return [{"id": f"{kind}{n}", "text": f"{text}\n{passage}\n"} for n, text in enumerate(texts)]

    said = {name: records(name) for name in ("web", "wiki")}
    for name, own in said.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in own))
    recipe = write_recipe(
        tmp_path,
        sources=[{"name": name, "files": f"{name}.jsonl"} for name in said],
        dedup={"window": {"policy": policy, "min_words": 20}, "reference": ["wiki"]},
        **dict.fromkeys(("filters", "normalize", "split", "tokenizer", "builds", "pack")),
    )
    out = mill.run(recipe, workers=1).out
    verdicts, trims = (
        {
            number: load_table(path).to_pylist() if path.is_file() else []
            for number, path in enumerate(out / f"dedup/{name}-{n:05d}.parquet" for n in range(2))
        }
        for name in ("verdicts", "trims")
    )
    assert [row["kept"] for row in verdicts[1]] == [True, True, True], "wiki"
    assert trims[1] == []
    dropped = [row["survivor_shard"] for row in verdicts[0] if not row["kept"]]
    assert dropped == (["wiki/00000-000"] * 2 if policy == "drop" else ["wiki/00000-000"])
    if policy == "trim":
        left = [text["text"].split("\n")[0] for text in said["web"]]
        assert [(row["row"], row["text"].strip()) for row in trims[0]] == [(0, left[0]), (2, left[2])]
    assert mill.verify(out).ok


GSM8K = SHARED / "data/math/gsm8k/test.jsonl"


@pytest.mark.skipif(not GSM8K.is_file(), reason="the benchmark is not here")
def test_planted_benchmark_items_are_found_with_item_and_place(tmp_path: Path) -> None:
    items = [json.loads(line)["question"] for line in GSM8K.read_text().splitlines()]
    chance = random.Random(1)
    planted = {5: 17, 9: 400, 30: 1000}
    records = []
    for n in range(40):
        text = sentences(chance, 200)
        if n in planted:
            text = f"{text}\n{items[planted[n]].upper()}\n{sentences(chance, 50)}"
        records.append({"id": f"d{n}", "text": text})
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    against = {"files": str(GSM8K), "fields": ["question"]}
    for policy in ("report", "drop"):
        recipe = write_recipe(
            tmp_path,
            name=policy,
            sources=[{"name": "web", "files": "web.jsonl"}],
            dedup={"against": {**against, "policy": policy}},
            filters=None,
            tokenizer=None,
            builds=None,
        )
        out = mill.run(recipe, workers=1).out
        assert mill.verify(out).ok
        hits = load_table(next(out.glob("dedup/contamination-*.parquet"))).to_pylist()
        assert {(hit["row"], hit["item"]) for hit in hits} == {
            (row, f"test.jsonl:{item + 1}") for row, item in planted.items()
        }
        for hit in hits:
            text = records[hit["row"]]["text"].encode()[hit["start"] : hit["end"]].decode()
            assert text.split()[0] == items[planted[hit["row"]]].upper().split()[0]
            assert hit["share"] == 1.0
        counts = load_manifest(out / "dedup").counts
        assert counts["dropped"] == ({"contaminated": 3} if policy == "drop" else {})
