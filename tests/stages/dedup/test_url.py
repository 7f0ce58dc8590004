"""Documents of one page through whole runs: one survivor for each page, by the policy, however the corpus is
cut and worked on; recounted with a dictionary over the written files."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import tokmill, write_recipe
from plain import urls as plain_urls
from written import Json, load_manifest, load_table, load_tables

SPELLINGS = [
    "http://example.com/{n}",
    "https://www.example.com/{n}/",
    "https://EXAMPLE.com:443/a/../{n}?utm_source=feed#top",
    "example.com/%{n:02x}",
]


def corpus(count: int = 160) -> list[Json]:
    """Pages of several crawls: the same URLs in other spellings, texts of other lengths and days.
    Some have no URL, or none that can be read, and one text stands twice under URLs of its own."""
    chance = random.Random(3)
    found = []
    for number in range(count):
        page = chance.choice("abcdefghijklmnopqrstuvwxyz")
        spelling = chance.choice(SPELLINGS)
        url = spelling.format(n=ord(page)) if "%" in spelling else spelling.format(n=page)
        words = " ".join(
            chance.choices(["mill", "wheel", "river", "stone", "grain"], k=chance.randint(8, 60))
        )
        record = {
            "id": f"d{number}",
            "text": f"{number} {words}",
            "url": chance.choice([url, url, url, url, None, "no url", 7]),
            "created_at": f"20{chance.randint(10, 24)}-01-01",
        }
        found.append(record)
    found.append({"id": "twice", "text": found[0]["text"].upper(), "url": "http://other.org/"})
    return found


RECORDS = corpus()


def page_of(record: Json) -> str | None:
    return plain_urls.normalize_url(record["url"]) if isinstance(record["url"], str) else None


def expected_drops(records: list[Json], best: Any = None) -> dict[str, str]:
    """doc_id -> doc_id of the survivor: of each page the first, or the one of the least `best`."""
    survivors: dict[str, Json] = {}
    for record in sorted(records, key=best or (lambda record: 0)):
        if (page := page_of(record)) is not None:
            survivors.setdefault(page, record)
    of = {record["id"]: survivors[page] for record in records if (page := page_of(record)) is not None}
    return {doc_id: kept["id"] for doc_id, kept in of.items() if kept["id"] != doc_id}


def run_url(
    directory: Path, dedup: Json, parts: int = 1, sources: list[Json] | None = None, **options: Any
) -> Path:
    directory.mkdir(parents=True)
    size = -(-len(RECORDS) // parts)
    for part in range(parts):
        lines = [json.dumps(record) for record in RECORDS[part * size : (part + 1) * size]]
        (directory / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n")
    fields = {"id": "id", "created_at": "created_at", "meta": ["url"]}
    default = [{"name": "all", "files": "part-*.jsonl", "fields": fields}]
    named = [{**source, "fields": fields} for source in sources] if sources else default
    recipe = write_recipe(
        directory, sources=named, tokenizer=None, builds=None, filters=None, dedup={"exact": False, **dedup}
    )
    return mill.run(recipe, **{"workers": 1, **options}).out


def outcomes(out: Path, reason: str = "url_dup") -> dict[str, str]:
    """doc_id -> doc_id of the survivor of what was dropped for the reason."""
    names, found = {}, {}
    for path in sorted(out.glob("ingest/*/documents-*.parquet")):
        key = path.stem.removeprefix("documents-")
        names[f"{path.parent.name}/{key}"] = load_table(path, ["doc_id"]).column("doc_id").to_pylist()
    for path in sorted(out.glob("dedup/ledger-*.parquet")):
        for row in load_table(path).to_pylist():
            if row["reason"] == reason:
                assert row["similarity"] is None, "nobody compared the texts"
                found[row["doc_id"]] = names[row["match_shard"]][row["match_row"]]
    return found


@pytest.mark.usefixtures("forked_workers")
def test_of_every_page_one_stays_for_any_cut_and_any_workers(tmp_path: Path) -> None:
    expected = expected_drops(RECORDS)
    assert 40 < len(expected) < 140
    one = run_url(tmp_path / "one", {"url": True})
    cut = run_url(tmp_path / "cut", {"url": True}, parts=5)
    three = run_url(tmp_path / "three", {"url": True}, parts=5, workers=3)
    for out in (one, cut, three):
        assert outcomes(out) == expected
        assert mill.verify(out).ok
    assert load_manifest(cut).identity == load_manifest(three).identity
    assert load_manifest(cut / "dedup").digest == load_manifest(three / "dedup").digest


def test_the_counts_of_manifest_and_report_are_those_of_the_written_files(tmp_path: Path) -> None:
    out = run_url(tmp_path / "run", {"url": True})
    metas = [row for table in load_tables(out / "ingest/all", "documents") for row in table.to_pylist()]
    pages = Counter(page_of({"url": None, **json.loads(row["meta"] or "{}")}) for row in metas)
    without = pages.pop(None)
    copies = sum(count - 1 for count in pages.values())
    counts = load_manifest(out / "dedup").counts
    assert counts["dropped"] == {"url_dup": copies}
    assert counts["in"] == len(RECORDS)
    assert counts["kept"] == len(pages) + without
    kept = [row["kept"] for table in load_tables(out / "dedup", "verdicts") for row in table.to_pylist()]
    assert sum(kept) == counts["kept"]
    figures = json.loads(Path(mill.report(out).as_json()["figures"]).read_bytes())
    drops = {drop["reason"]: drop["by_source"] for drop in figures["drops"]}
    assert drops == {"url_dup": {"all": copies}}
    assert f"dedup: drop {copies} url_dup" in tokmill("why", out, "--reason", "url_dup").stdout
    gone = next(iter(outcomes(out).items()))
    told = tokmill("why", out, gone[0]).stdout
    assert "url_dup" in told
    assert gone[1] in told


@pytest.mark.parametrize(
    ("keep", "best"),
    [
        ("longest", lambda record: -len(record["text"])),
        ("newest", lambda record: -int(record.get("created_at", "0")[:4])),
    ],
)
def test_who_stays_follows_the_policy(tmp_path: Path, keep: str, best: Any) -> None:
    out = run_url(tmp_path / "run", {"url": True, "keep": keep})
    assert outcomes(out) == expected_drops(RECORDS, best)
    assert outcomes(out) != expected_drops(RECORDS)


def test_sources_are_kept_apart_have_priority_or_lose_nothing_as_for_other_copies(tmp_path: Path) -> None:
    sources = [{"name": "a", "files": "part-0.jsonl"}, {"name": "b", "files": "part-1.jsonl"}]
    size = -(-len(RECORDS) // 2)
    first, second = RECORDS[:size], RECORDS[size:]
    apart = run_url(tmp_path / "apart", {"url": True, "scope": "per-source"}, 2, sources)
    assert outcomes(apart) == {**expected_drops(first), **expected_drops(second)}
    later = run_url(tmp_path / "later", {"url": True, "priority": ["b"]}, 2, sources)
    assert outcomes(later) == expected_drops([*second, *first])
    whole = run_url(tmp_path / "whole", {"url": True, "reference": ["b"]}, 2, sources)
    assert outcomes(whole) == {
        doc_id: kept
        for doc_id, kept in expected_drops([*second, *first]).items()
        if doc_id in {record["id"] for record in first}
    }


def test_pages_come_before_texts_and_documents_without_a_url_are_still_compared(tmp_path: Path) -> None:
    out = run_url(tmp_path / "run", {"url": True, "exact": "folded"})
    assert outcomes(out) == expected_drops(RECORDS)
    counts = load_manifest(out / "dedup").counts
    assert counts["dropped"] == {"url_dup": len(expected_drops(RECORDS)), "exact_dup": 1}


def test_another_key_and_a_key_that_nobody_has(tmp_path: Path) -> None:
    same = run_url(tmp_path / "same", {"url": {"field": "url"}})
    assert outcomes(same) == expected_drops(RECORDS)
    none = run_url(tmp_path / "none", {"url": {"field": "canonical_url"}})
    assert outcomes(none) == {}
    off = run_url(tmp_path / "off", {"url": False, "exact": True})
    assert "url" not in load_manifest(off / "dedup").config


@pytest.mark.slow_faults
def test_a_cluster_gives_the_same_digest(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    local = run_url(tmp_path / "local", {"url": True}, parts=3)
    ray = run_url(tmp_path / "ray", {"url": True}, parts=3, engine="ray", workers=2)
    assert load_manifest(local).identity == load_manifest(ray).identity
