"""Near duplicates through whole runs: the verdicts of the library,
however the corpus is cut and worked on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokmill as mill
from mill import SHARED, tokmill, write_recipe
from tokmill.errors import DedupLimit
from written import ZstdFile, load_manifest, load_table

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]


def corpus(seed: int = 5, count: int = 150) -> list[dict[str, Any]]:
    """Texts of 60 to 900 words; a third are edited copies of earlier ones, some with a date."""
    chance = random.Random(seed)
    texts: list[list[str]] = []
    for _ in range(count):
        if texts and chance.random() < 0.35:
            words = list(chance.choice(texts))
            for _ in range(chance.randint(0, len(words) // 15)):
                words[chance.randrange(len(words))] = chance.choice(WORDS)
        else:
            words = chance.choices(WORDS, k=chance.randint(60, 900))
        texts.append(words)
    return [
        {"id": f"d{n}", "text": " ".join(words), "created_at": f"20{chance.randint(10, 24)}-01-01"}
        for n, words in enumerate(texts)
    ]


RECORDS = corpus()


def run_dedup(
    directory: Path, dedup: dict[str, Any], parts: int = 1, workers: int = 1, **sections: Any
) -> Path:
    directory.mkdir(parents=True)
    size = -(-len(RECORDS) // parts)
    for part in range(parts):
        lines = [json.dumps(record) for record in RECORDS[part * size : (part + 1) * size]]
        (directory / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n")
    sources = [{"name": "all", "files": "part-*.jsonl"}]
    recipe = write_recipe(
        directory,
        **{"sources": sources, "tokenizer": None, "builds": None, "filters": None, **sections},
        dedup=dedup,
    )
    return mill.run(recipe, workers=workers).out


def outcomes(out: Path) -> dict[str, tuple[str, str]]:
    """doc_id -> (reason, doc_id of the survivor) of what was dropped."""
    names, found = {}, {}
    for path in sorted(out.glob("ingest/*/documents-*.parquet")):
        key = path.stem.removeprefix("documents-")
        names[f"{path.parent.name}/{key}"] = load_table(path, ["doc_id"]).column("doc_id").to_pylist()
    for path in sorted(out.glob("dedup/ledger-*.parquet")):
        for row in load_table(path).to_pylist():
            found[row["doc_id"]] = (row["reason"], names[row["match_shard"]][row["match_row"]])
    return found


@pytest.mark.usefixtures("forked_workers")
def test_a_run_gives_the_verdicts_of_the_library_for_any_cut_and_any_workers(tmp_path: Path) -> None:
    expected = mill.near_duplicates([record["text"] for record in RECORDS])
    dropped = {
        f"d{row}": ("near_dup", f"d{int(expected.survivor[row])}")
        for row in np.flatnonzero(~expected.kept).tolist()
    }
    assert len(dropped) > 20
    outs = [
        run_dedup(tmp_path / "one", {"exact": False, "near": {}}),
        run_dedup(tmp_path / "cut", {"exact": False, "near": {}, "partitions": 7}, parts=5, workers=2),
    ]
    for out in outs:
        assert outcomes(out) == dropped
        assert mill.verify(out).ok
        verdicts = [load_table(path) for path in sorted(out.glob("dedup/verdicts-*.parquet"))]
        kept = np.concatenate([np.asarray(table.column("kept")) for table in verdicts])
        assert int(kept.sum()) == len(RECORDS) - len(dropped)
    clusters = load_table(outs[0] / "dedup/clusters.parquet")
    assert clusters.equals(
        load_table(outs[1] / "dedup/clusters.parquet")
        .set_column(2, clusters.schema.field(2), clusters.column("shard"))
        .set_column(3, clusters.schema.field(3), clusters.column("row"))
        .set_column(5, clusters.schema.field(5), clusters.column("survivor_shard"))
        .set_column(6, clusters.schema.field(6), clusters.column("survivor_row"))
    )


@pytest.fixture
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a task looks at together: a few rows, so that the 150 documents are many pieces."""
    for name, rows in (
        ("dedup.exact.HASHES_AT_ONCE", 20),
        ("dedup.near.BANDS_AT_ONCE", 100),
        ("dedup.near.PAIRS_AT_ONCE", 15),
        ("dedup.survivors.AT_ONCE", 7),
        ("dedup.survivors._MAPPED_BYTES", 10_000),
        ("external.appended._GROUP_ROWS", 16),
    ):
        monkeypatch.setattr(f"tokmill.stages.{name}", rows)


@pytest.mark.parametrize(
    "dedup",
    [
        {"near": {}},
        {"near": {"policy": "report"}, "keep": "longest"},
        {"near": {"verify": "signature"}, "keep": "newest", "reference": ["new"]},
        {"exact": False, "near": {}, "scope": "per-source", "priority": ["new"]},
        {"near": {"bands": 1, "rows": 1, "threshold": "0.9"}},
    ],
)
def test_pieces_of_any_size_give_the_same_tables(
    tmp_path: Path, dedup: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    half = [{"name": "old", "files": "part-[01].jsonl"}, {"name": "new", "files": "part-[234].jsonl"}]
    whole = run_dedup(tmp_path / "whole", dedup, parts=5, sources=half)
    request.getfixturevalue("in_small_pieces")
    pieces = run_dedup(tmp_path / "pieces", dedup, parts=5, sources=half)
    # where near duplicates are dropped, copies of all ranges are resolved together
    assert len(list(pieces.glob("dedup/matches-*"))) == (8 if "policy" in dedup["near"] else 0)
    for pattern in ("matches", "near", "clusters", "verdicts-*", "ledger-*"):
        paths = sorted(whole.glob(f"dedup/{pattern}.parquet"))
        assert paths or pattern == "matches"
        for path in paths:
            table = load_table(path)
            assert table.num_rows or pattern == "near"
            assert load_table(pieces / "dedup" / path.name).equals(table)
    assert load_manifest(whole / "dedup").facts == load_manifest(pieces / "dedup").facts
    assert mill.verify(pieces).ok


@pytest.mark.parametrize("keep", ["longest", "newest"])
def test_the_policy_decides_who_survives(tmp_path: Path, keep: str) -> None:
    found = outcomes(run_dedup(tmp_path / keep, {"near": {}, "keep": keep}, parts=3))
    by_id = {record["id"]: record for record in RECORDS}
    assert len(found) > 20
    for dropped, (reason, survivor) in found.items():
        assert survivor not in found
        if keep == "newest":
            assert by_id[survivor]["created_at"] >= by_id[dropped]["created_at"]
        elif reason == "near_dup":
            assert len(by_id[survivor]["text"]) >= len(by_id[dropped]["text"])


def test_reference_sources_lose_nothing_and_priorities_go_first(tmp_path: Path) -> None:
    half = [{"name": "old", "files": "part-0.jsonl"}, {"name": "new", "files": "part-1.jsonl"}]
    out = run_dedup(tmp_path / "reference", {"near": {}, "reference": ["new"]}, parts=2, sources=half)
    found = outcomes(out)
    new = {record["id"] for record in RECORDS[len(RECORDS) // 2 :]}
    assert found
    assert not new & set(found)
    out = run_dedup(tmp_path / "priority", {"near": {}, "priority": ["new"]}, parts=2, sources=half)
    across = [(d, s) for d, (_, s) in outcomes(out).items() if (d in new) != (s in new)]
    assert across
    assert all(survivor in new for _, survivor in across)
    out = run_dedup(tmp_path / "apart", {"near": {}, "scope": "per-source"}, parts=2, sources=half)
    assert all((d in new) == (s in new) for d, (_, s) in outcomes(out).items())


def test_limits_stop_the_run_and_say_what_is_too_much(tmp_path: Path) -> None:
    with pytest.raises(DedupLimit, match=r"a cluster of \d+ near duplicates is larger than max_cluster 2"):
        run_dedup(tmp_path / "cluster", {"near": {}, "max_cluster": 2})
    with pytest.raises(DedupLimit, match=r"all loses \d+ of 150: more than max_source_loss 0.05"):
        run_dedup(tmp_path / "loss", {"near": {}, "max_source_loss": "0.05"})


def test_the_dedup_command_tells_every_decision(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in RECORDS[:80]))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(r) + "\n" for r in RECORDS[80:]))
    out = tmp_path / "out"
    command = [
        "dedup",
        "--input",
        tmp_path / "b.jsonl",
        "--reference",
        f"old={tmp_path / 'a.jsonl'}",
        "--json",
    ]
    done = tokmill(*command, "--mode", "exact+near", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    lines = ZstdFile(out / "decisions.jsonl.zst").read().decode().splitlines()
    decisions = [json.loads(line) for line in lines]
    assert [d["doc_id"] for d in decisions] == [r["id"] for r in RECORDS[80:]]
    kept = [d["doc_id"] for d in decisions if d["keep"]]
    text = ZstdFile(out / "deduped.jsonl.zst").read().decode()
    assert [json.loads(line)["doc_id"] for line in text.splitlines()] == kept
    dropped = [d for d in decisions if not d["keep"]]
    assert sum(report["drops"].values()) == len(dropped) > 5
    assert (report["docs_in"], report["docs"]) == (
        len(RECORDS) - 80,
        len(kept),
    )  # the reference is not counted
    for decision in dropped:
        assert decision["reason"] in ("exact_dup", "near_dup")
        assert decision["dup_of"] in {r["id"] for r in RECORDS}
        assert decision["distance"] == pytest.approx(1 - decision["score"])
    names = ["decisions.jsonl.zst", "deduped.jsonl.zst", "deduped.manifest.json"]
    assert sorted(path.name for path in out.iterdir()) == names


@pytest.mark.parametrize("near", [{}, {"policy": "report"}], ids=["dropped", "reported"])
def test_clusters_are_shown_with_what_their_members_do_not_share(
    tmp_path: Path, near: dict[str, str]
) -> None:
    out = run_dedup(tmp_path / "run", {"near": near})
    shown = tokmill("clusters", out, "--count", "2", "--diff")
    assert shown.returncode == 0, shown.stderr
    assert "difference" in shown.stdout
    found = json.loads(tokmill("clusters", out, "--json").stdout)["clusters"]
    assert found[0]["size"] >= found[-1]["size"] >= 2
    assert any(member["kept"] for member in found[0]["members"])


@pytest.mark.skipif(not (SHARED / "data/neardup").is_dir(), reason="the gold sets are not here")
@pytest.mark.parametrize("name", ["django_docs_versions", "wiki_controlled"])
def test_gold_pairs_end_with_one_survivor_and_nothing_unlike_is_dropped(tmp_path: Path, name: str) -> None:
    gold = SHARED / "data/neardup"
    source = [{"name": "gold", "files": str(gold / f"{name}.docs.jsonl")}]
    recipe = write_recipe(
        tmp_path, sources=source, dedup={"near": {}}, tokenizer=None, builds=None, filters=None
    )
    dropped = set(outcomes(mill.run(recipe, workers=1).out))
    rows = [line.split("\t")[:3] for line in (gold / f"{name}.pairs.tsv").read_text().splitlines()[1:]]
    pairs = [(a, b, float(jaccard)) for a, b, jaccard in rows]
    alike = [(a, b) for a, b, jaccard in pairs if jaccard >= 0.85]
    assert sum(a in dropped or b in dropped for a, b in alike) >= 0.98 * len(alike)
    likely = {
        doc for a, b, j in pairs if j >= 0.75 for doc, other in ((a, b), (b, a)) if other not in dropped
    }
    assert len(dropped & likely) >= 0.995 * len(dropped)
    assert dropped <= {doc for a, b, jaccard in pairs if jaccard >= 0.5 for doc in (a, b)}
