"""Survivors of copies: whatever methods are asked for together, a dropped document names one that is kept and
that it is like; decided again, document by document, in plain Python."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import tokmill, write_recipe
from written import Json, load_manifest, load_table, load_tables

THRESHOLD = 0.8
# every pair with one of 112 positions in common is compared: none is left to chance
NEAR = {"threshold": THRESHOLD, "bands": 112, "rows": 1}
NO_OTHER_STEPS = dict.fromkeys(("filters", "normalize", "split", "tokenizer", "builds", "pack"))


def prose(chance: random.Random, words: int) -> str:
    return " ".join("".join(chance.choices("abcdefghijklm", k=6)) for _ in range(words))


def record(doc_id: str, text: str, url: str | None = None, **more: Any) -> Json:
    return {"id": doc_id, "text": text, "url": url, **more}


def corpus(seed: int, count: int = 70) -> list[Json]:
    """Copies of a few texts: as they are, with some words of their own, with a passage of another one; each
    under one of a few URLs, or none."""
    chance = random.Random(seed)
    bases = [prose(chance, 160) for _ in range(7)]
    records = []
    for number in range(count):
        words = chance.choice(bases).split()
        kind = chance.choice(["equal", "equal", "similar", "similar", "passage", "case"])
        if kind == "similar":  # from a Jaccard similarity of 0.94 down to 0.6
            for at in chance.sample(range(0, 160, 5), k=chance.choice([1, 2, 3, 8])):
                words[at] = prose(chance, 1)
        elif kind == "passage":
            words = [*words[: chance.choice([90, 110])], *prose(chance, 60).split()]
        elif kind == "case":
            words[0] = words[0].upper()
        url = chance.choice([None, *(f"http://example.com/{page}" for page in range(12))])
        own = {"source": chance.choice(["one", "two"]), "created_at": f"20{chance.randint(10, 24)}-01-01"}
        records.append(record(f"d{number}", " ".join(words), url, **own))
    return records


def run_dedup(directory: Path, records: list[Json], dedup: Json, **options: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    fields = {"id": "id", "created_at": "created_at", "meta": ["url"]}
    if not any("created_at" in one for one in records):
        del fields["created_at"]
    names = list(dict.fromkeys(one.get("source", "all") for one in records))
    sources = []
    for name in names:
        own = [one for one in records if one.get("source", "all") == name]
        lines = [json.dumps({key: value for key, value in one.items() if key != "source"}) for one in own]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        sources.append({"name": name, "files": f"{name}.jsonl", "fields": fields})
    recipe = write_recipe(directory, sources=sources, dedup=dedup, **NO_OTHER_STEPS)
    return mill.run(recipe, **{"workers": 1, **options}).out


def in_order(records: list[Json]) -> list[Json]:
    names = list(dict.fromkeys(one.get("source", "all") for one in records))
    return sorted(records, key=lambda one: names.index(one.get("source", "all")))


def told(out: Path) -> dict[str, Json]:
    """What the ledger says of each dropped document, with the id of its survivor."""
    names = {}
    for path in sorted(out.glob("ingest/*/documents-*.parquet")):
        key = path.stem.removeprefix("documents-")
        names[f"{path.parent.name}/{key}"] = load_table(path, ["doc_id"]).column("doc_id").to_pylist()
    rows = [row for part in load_tables(out / "dedup", "ledger") for row in part.to_pylist()]
    return {
        row["doc_id"]: {
            **row,
            "survivor": names[row["match_shard"]][row["match_row"]] if row["match_shard"] else None,
        }
        for row in rows
        if row["verdict"] == "drop"
    }


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[at : at + 5]) for at in range(len(words) - 4)}


def jaccard(one: str, other: str) -> float:
    left, right = shingles(one), shingles(other)
    return len(left & right) / len(left | right)


def share_of_passages(text: str, others: list[str]) -> float:
    """Share of the words that lie in 50 words that another text has too."""
    words = text.lower().split()
    known = {tuple(w[at : at + 50]) for w in (o.lower().split() for o in others) for at in range(len(w) - 49)}
    covered = {
        at + n for at in range(len(words) - 49) if tuple(words[at : at + 50]) in known for n in range(50)
    }
    return len(covered) / len(words)


def walk(records: list[Json], dedup: Json) -> dict[str, str]:
    """doc_id -> reason: documents in keep order, each dropped if one that is kept is like it."""
    newest = dedup.get("keep") == "newest"
    order = sorted(records, key=lambda one: -int(one["created_at"][:4])) if newest else records
    order = sorted(order, key=lambda one: one.get("source") not in dedup.get("reference", []))
    kept: list[Json] = []
    dropped: dict[str, str] = {}
    reason_of_text: dict[tuple[str, str], str] = {}
    for one in order:
        scope = one["source"] if dedup.get("scope") == "per-source" else ""
        others = [other for other in kept if not scope or other["source"] == scope]
        reason = None
        if dedup.get("url") and one["url"] and any(other["url"] == one["url"] for other in others):
            reason = "url_dup"
        elif dedup.get("exact", True) and (scope, one["text"]) in reason_of_text:
            reason = reason_of_text[scope, one["text"]]
        elif dedup.get("near") and any(jaccard(one["text"], o["text"]) >= THRESHOLD for o in others):
            reason = "near_dup"
        if reason is None or one.get("source") in dedup.get("reference", []):
            kept.append(one)
            reason_of_text.setdefault((scope, one["text"]), "exact_dup")
        else:
            dropped[one["id"]] = reason
            if reason == "near_dup":
                reason_of_text.setdefault((scope, one["text"]), "near_dup")
    return dropped


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "dedup",
    [
        {"url": True},
        {"url": True, "near": NEAR},
        {"near": NEAR},
        {"url": True, "near": NEAR, "keep": "newest"},
        {"url": True, "near": NEAR, "reference": ["two"], "partitions": 7},
        {"url": True, "near": NEAR, "scope": "per-source"},
        {"url": True, "exact": False, "near": NEAR},
        {"url": True, "near": {**NEAR, "policy": "report"}},
    ],
)
def test_each_document_is_dropped_if_and_only_if_a_kept_one_is_like_it(
    tmp_path: Path, dedup: Json, seed: int
) -> None:
    records = in_order(corpus(seed))
    out = run_dedup(tmp_path, records, dedup)
    found = told(out)
    drops = dedup if dedup.get("near", {}).get("policy") != "report" else {**dedup, "near": None}
    assert {doc_id: row["reason"] for doc_id, row in found.items()} == walk(records, drops)
    assert found
    check_survivors(records, found)


def check_survivors(records: list[Json], found: dict[str, Json]) -> None:
    """Every survivor is kept, and like the document that was dropped for it as the ledger says."""
    by_id = {one["id"]: one for one in records}
    kept = [one["text"] for one in records if one["id"] not in found]
    for doc_id, row in found.items():
        one, other = by_id[doc_id], by_id[row["survivor"]]
        assert row["survivor"] not in found, (doc_id, row)
        if row["reason"] == "url_dup":
            assert one["url"] == other["url"]
            assert row["similarity"] is None
        elif row["reason"] == "exact_dup":
            assert (one["text"], row["similarity"]) == (other["text"], 1.0)
        elif row["reason"] == "near_dup":
            assert jaccard(one["text"], other["text"]) >= THRESHOLD
            assert row["similarity"] == pytest.approx(jaccard(one["text"], other["text"]), abs=0.12)
        else:
            assert row["reason"] == "window_dup"
            assert share_of_passages(one["text"], kept) >= row["similarity"] > 0.5
            assert share_of_passages(one["text"], [other["text"]]) > 0


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize(
    "dedup",
    [
        {"window": {"policy": "drop"}},
        {"near": NEAR, "window": {"policy": "drop"}},
        {"url": True, "near": NEAR, "window": {"policy": "drop"}, "keep": "newest"},
        {"url": True, "near": NEAR, "window": {"policy": "trim", "min_words": 100}},
    ],
)
def test_survivors_of_any_method_are_kept_where_passages_drop_documents_too(
    tmp_path: Path, dedup: Json, seed: int
) -> None:
    records = in_order(corpus(seed))
    found = told(run_dedup(tmp_path, records, dedup))
    assert {"exact_dup", *([] if "url" in dedup else ["window_dup"])} <= {r["reason"] for r in found.values()}
    if dedup["window"]["policy"] == "drop":
        check_survivors(records, found)
    assert all(row["survivor"] not in found for row in found.values())
    kept = {one["text"] for one in records if one["id"] not in found}
    of_text: dict[str, set[str]] = {}
    for one in records:
        if one["id"] in found and one["text"] not in kept and found[one["id"]]["reason"] != "url_dup":
            of_text.setdefault(one["text"], set()).add(found[one["id"]]["survivor"])
    assert all(len(survivors) == 1 for survivors in of_text.values()), "equal texts, one outcome"


def test_a_page_is_not_lost_where_its_first_copy_is_a_near_duplicate(tmp_path: Path) -> None:
    chance = random.Random(5)
    text, another = prose(chance, 200), prose(chance, 200)
    records = [
        record("c", text, "http://example.com/1"),
        record("b", f"{text} more", "http://example.com/2"),
        record("a", another, "http://example.com/2"),
    ]
    for dedup in ({"url": True, "near": {}}, {"url": True, "exact": False, "near": {}}):
        found = told(run_dedup(tmp_path / f"{len(dedup)}", records, dedup))
        assert [(doc_id, row["reason"], row["survivor"]) for doc_id, row in found.items()] == [
            ("b", "near_dup", "c")
        ]


def test_a_text_is_not_lost_where_its_first_copy_is_nothing_but_templates_of_its_site(tmp_path: Path) -> None:
    chance = random.Random(6)
    lines = [prose(chance, 12) for _ in range(3)]
    page = "\n".join(lines)
    records = [record("bare", page, "http://site.org/bare"), record("away", page, "http://other.org/")]
    records += [record(f"p{n}", f"{page}\n{prose(chance, 50)}", f"http://site.org/{n}") for n in range(20)]
    found = told(run_dedup(tmp_path, records, {"templates": {"min_pages": 5, "min_host_pages": 5}}))
    assert {doc_id: row["reason"] for doc_id, row in found.items()} == {"bare": "only_site_template"}


def test_a_copy_of_a_near_duplicate_names_the_kept_document_with_its_similarity(tmp_path: Path) -> None:
    chance = random.Random(7)
    text = prose(chance, 150)
    changed = " ".join([*text.split()[:-3], prose(chance, 3)])
    records = [
        record("kept", text),
        record("near", changed),
        record("copy", changed),
        record("copy2", changed),
    ]
    out = run_dedup(tmp_path, records, {"near": {"verify": "exact"}})
    found = told(out)
    assert {doc_id: (row["reason"], row["survivor"]) for doc_id, row in found.items()} == dict.fromkeys(
        ("near", "copy", "copy2"), ("near_dup", "kept")
    )
    assert len({row["similarity"] for row in found.values()}) == 1
    why = tokmill("why", out, "copy").stdout
    assert "near_dup" in why
    assert "kept" in why
    assert mill.verify(out).ok


@pytest.mark.usefixtures("forked_workers")
def test_survivors_are_the_same_for_any_workers_and_partitions(tmp_path: Path) -> None:
    records = corpus(8)
    dedup = {"url": True, "near": NEAR, "window": {"policy": "drop"}}
    one = run_dedup(tmp_path / "one", records, dedup)
    three = run_dedup(tmp_path / "three", records, {**dedup, "partitions": 11}, workers=3)
    assert told(one) == told(three)
    assert load_manifest(one / "dedup").counts == load_manifest(three / "dedup").counts


def test_texts_are_equal_byte_by_byte_unless_the_folded_form_is_asked_for(tmp_path: Path) -> None:
    texts = {
        "program": "if x:\n    a = 1\n    b = 2",
        "indented": "if x:\n    a = 1\nb = 2",
        "cased": "if X:\n    a = 1\n    b = 2",
        "equal": "if x:\n    a = 1\n    b = 2",
        "composed": "caf\u00e9",
        "decomposed": "cafe\u0301",
    }
    records = [record(doc_id, text) for doc_id, text in texts.items()]
    strict = told(run_dedup(tmp_path / "strict", records, {"exact": True}))
    assert {doc_id: (row["survivor"], row["detail"]) for doc_id, row in strict.items()} == {
        "equal": ("program", None)
    }
    folded = told(run_dedup(tmp_path / "folded", records, {"exact": "folded"}))
    assert {doc_id: row["survivor"] for doc_id, row in folded.items()} == {
        **dict.fromkeys(("indented", "cased", "equal"), "program"),
        "decomposed": "composed",
    }
    assert all("folded" in row["detail"] for row in folded.values()), "the ledger tells by which form"
    assert {row["reason"] for row in folded.values()} == {"exact_dup"}


def test_the_form_is_that_of_the_cleaned_text(tmp_path: Path) -> None:
    """Where cleaning brings both into one form, they are equal."""
    records = [record("composed", "caf\u00e9 au lait"), record("decomposed", "cafe\u0301 au lait")]
    lines = [json.dumps(one) for one in records]
    (tmp_path / "all.jsonl").write_text("\n".join(lines), encoding="utf-8")
    sources = [{"name": "all", "files": "all.jsonl", "fields": {"id": "id"}}]
    sections = {**NO_OTHER_STEPS, "normalize": {"unicode": "NFC"}}
    out = mill.run(write_recipe(tmp_path, sources=sources, dedup={"exact": True}, **sections), workers=1).out
    assert set(told(out)) == {"decomposed"}


@pytest.mark.parametrize(("mode", "drops"), [("exact", {"exact_dup": 1}), ("folded", {"exact_dup": 2})])
def test_the_verb_asks_for_a_form_by_its_mode(tmp_path: Path, mode: str, drops: Json) -> None:
    lines = [json.dumps(record(n, text)) for n, text in zip("abc", ("Go", "Go", "go"), strict=True)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines), encoding="utf-8")
    done = tokmill("dedup", tmp_path / "all.jsonl", "--mode", mode, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out/deduped.manifest.json").read_text("utf-8"))["drops"] == drops
