"""Documents that earlier corpora have: who goes, recounted with Python sets; what is told of it; one content
for any workers and any cut; an edit as a fresh run; and what is refused."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tokmill as mill
from mill import SHARED, tokmill
from plain.near import folded, shingle_set
from tokmill.errors import InputError, TokmillError
from written import Json, load_manifest, load_tables

VOCABULARY = [f"w{n}" for n in range(4000)]


def prose(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(VOCABULARY, k=words))


def earlier_texts() -> list[str]:
    draw = random.Random(1)
    return [prose(draw, draw.randint(40, 400)) for _ in range(300)]


def later_texts() -> list[str]:
    """Copies in capitals, copies with some words changed (from none to a third of the n-grams), new ones, and
    one without words."""
    draw, before = random.Random(2), earlier_texts()
    found = []
    for number in range(240):
        words = draw.choice(before).split()
        if number % 4 == 0:
            found.append("  ".join(words).upper())
        elif number % 4 == 3:
            found.append(prose(draw, draw.randint(40, 400)))
        else:
            for _ in range(draw.randint(1, max(len(words) // 30, 1))):
                words[draw.randrange(len(words))] = f"new{draw.randrange(10**6)}"
            found.append(" ".join(words))
    return [*found, "— ! —"]


def write(directory: Path, name: str, texts: list[str], parts: int, dedup: Json, **sections: Any) -> Path:
    folder = directory / name
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(texts) // parts)
    for part in range(parts):
        numbers = range(part * size, min((part + 1) * size, len(texts)))
        lines = [json.dumps({"id": f"{name}{n}", "text": texts[n]}) for n in numbers]
        (folder / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n")
    recipe = {
        "name": name,
        "sources": [{"name": name, "files": f"{name}/part-*.jsonl", "fields": {"id": "id"}}],
        "dedup": dedup,
        "split": {"valid_fraction": "0.1"},
        **sections,
    }
    path = directory / f"{name}.yaml"
    path.write_text(json.dumps(recipe))
    return path


def run_over(
    directory: Path,
    reference: list[str],
    *,
    name: str = "new",
    parts: int = 3,
    dedup: Json | None = None,
    **options: Any,
) -> Path:
    """The later texts, into a run of this name below `directory`."""
    section = {"near": {"threshold": "0.8"}, "reference": reference, **(dedup or {})}
    recipe = write(directory, "new", later_texts(), parts, section)
    return mill.run(recipe, directory / "out" / name, **{"workers": 1, **options}).out


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a finished run `out/old`, indexes `old.index` and `named.index` of it."""
    directory = tmp_path_factory.mktemp("corpus")
    recipe = write(directory, "old", earlier_texts(), 2, {"near": {"threshold": "0.8"}})
    out = mill.run(recipe, directory / "out/old", workers=1).out
    mill.index(out, out=directory / "old.index", workers=1)
    mill.index(out, out=directory / "named.index", ids=True, workers=1)
    return directory


def likeness(texts: list[str], before: list[str], n: int = 5) -> list[dict[int, float]]:
    """Of each text: the Jaccard similarity with every earlier one that it shares an n-gram with, by sets."""
    sets = [shingle_set(text, n) for text in before]
    having: dict[tuple[str, ...], list[int]] = {}
    for number, grams in enumerate(sets):
        for gram in grams:
            having.setdefault(gram, []).append(number)
    found = []
    for text in texts:
        grams = shingle_set(text, n)
        # in both: counted gram by gram, since most pairs share a phrase of a template and no more
        both = Counter(itertools.chain.from_iterable(having.get(gram, ()) for gram in grams))
        found.append(
            {number: in_both / (len(grams) + len(sets[number]) - in_both) for number, in_both in both.items()}
        )
    return found


def is_equal(one: str, other: str) -> bool:
    return " ".join(folded(one).split()) == " ".join(folded(other).split())


class Gone(NamedTuple):
    reason: str
    similarity: float
    detail: str


def gone(out: Path) -> dict[str, Gone]:
    rows = [row for table in load_tables(out / "dedup", "ledger") for row in table.to_pylist()]
    return {
        row["doc_id"]: Gone(row["reason"], row["similarity"], row["detail"])
        for row in rows
        if row["reason"].startswith("reference_")
    }


def expected_gone(threshold: float = 0.8) -> dict[str, tuple[str, float, int]]:
    """By sets: reason, similarity, and an earlier text that it is of."""
    before, texts = earlier_texts(), later_texts()
    found = {}
    for number, (text, others) in enumerate(zip(texts, likeness(texts, before), strict=True)):
        if not others:
            continue
        best = max(others.values())
        earlier = next(n for n in sorted(others) if others[n] == best)
        if is_equal(text, before[earlier]):
            found[f"new{number}"] = ("reference_exact_dup", 1.0, earlier)
        elif best >= threshold:
            found[f"new{number}"] = ("reference_near_dup", best, earlier)
    return found


def test_a_run_as_reference_takes_what_sets_of_n_grams_say(corpus: Path) -> None:
    """Of texts at the threshold bands find 96 %: who is missing is just above it, and nobody is too many."""
    found, expected = gone(run_over(corpus, ["out/old"])), expected_gone()
    assert sum(reason == "reference_exact_dup" for reason, _, _ in expected.values()) == 60
    assert sum(reason == "reference_near_dup" for reason, _, _ in expected.values()) > 60
    missing = {name: expected[name] for name in expected.keys() - found.keys()}
    assert len(missing) <= 4
    assert all(similarity < 0.85 for _, similarity, _ in missing.values())
    assert found.keys() <= expected.keys()
    for name, told in found.items():
        reason, similarity, earlier = expected[name]
        assert told == (reason, pytest.approx(similarity), f"old: old old{earlier}")


def test_an_index_decides_as_its_texts_would_but_near_the_threshold(corpus: Path) -> None:
    found, expected = gone(run_over(corpus, ["./named.index"])), expected_gone(0.0)
    exact = {name for name, (reason, _, _) in expected.items() if reason == "reference_exact_dup"}
    assert {name for name, told in found.items() if told.reason == "reference_exact_dup"} == exact
    error = float(load_manifest(corpus / "named.index").facts["standard_error"])
    assert error == pytest.approx(0.0265, abs=1e-4)
    for name, (reason, similarity, earlier) in expected.items():
        if reason == "reference_near_dup" and abs(similarity - 0.8) > 4 * error:
            assert (name in found) == (similarity > 0.8)
        if name in found:
            note = "" if reason == "reference_exact_dup" else " (estimated)"
            assert found[name].detail == f"old: old old{earlier}{note}"
            assert abs(found[name].similarity - similarity) < 5 * error


def test_an_index_without_ids_tells_the_hash(corpus: Path) -> None:
    found = gone(run_over(corpus, ["./old.index"]))
    named = gone(run_over(corpus, ["./named.index"], name="named"))
    assert found.keys() == named.keys()
    hashes = {
        document["doc_id"]: f"{mark['exact_high']:016x}{mark['exact_low']:016x}"
        for documents, marks in zip(
            load_tables(corpus / "out/old/ingest/old", "documents"),
            load_tables(corpus / "out/old/clean/old", "marks"),
            strict=True,
        )
        for document, mark in zip(documents.to_pylist(), marks.to_pylist(), strict=True)
    }
    for name, told in found.items():
        doc_id, _, note = named[name].detail.removeprefix("old: old ").partition(" ")
        assert told.detail == f"old: {hashes[doc_id]}{' ' + note if note else ''}"


def test_counts_reports_and_answers_are_those_of_the_files(corpus: Path, tmp_path: Path) -> None:
    out = run_over(corpus, ["out/old"], name="told")
    found = gone(out)
    by_reason = {
        reason: sum(told.reason == reason for told in found.values())
        for reason in sorted({t.reason for t in found.values()})
    }
    counts = load_manifest(out / "dedup").counts
    own = {reason: count for reason, count in counts["dropped"].items() if reason.startswith("reference_")}
    assert own == by_reason
    assert counts["in"] == counts["kept"] + sum(counts["dropped"].values()) == len(later_texts())
    verdicts = [row for table in load_tables(out / "dedup", "verdicts") for row in table.to_pylist()]
    assert sum((row["reason"] or "").startswith("reference_") for row in verdicts) == len(found)
    figures = json.loads(Path(mill.report(out).as_json()["figures"]).read_bytes())
    drops = {drop["reason"]: drop["by_source"]["new"] for drop in figures["drops"]}
    assert drops.items() >= by_reason.items()
    (corpus_told,) = figures["earlier"]["corpora"]
    assert figures["earlier"]["dropped"] == len(found)
    equal, similar = (by_reason[f"reference_{kind}_dup"] for kind in ("exact", "near"))
    assert (corpus_told["name"], corpus_told["equal"], corpus_told["similar"]) == ("old", equal, similar)
    page = Path(mill.report(out).as_json()["page"]).read_text("utf-8")
    assert f"Earlier corpora <small>{len(found)} dropped" in page
    name = next(name for name, told in found.items() if told.reason == "reference_near_dup")
    told = tokmill("why", out, name).stdout
    assert found[name].detail in told
    assert "reference_near_dup" in told
    assert mill.verify(out).ok
    with pytest.raises(InputError, match="went because earlier corpora have similar ones"):
        mill.whatif(out, ["dedup.near.threshold=0.9"])


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("reference", [["./named.index"], ["out/old"], ["out/old", "./other.index"]])
def test_content_is_one_for_any_workers_and_any_cut(
    corpus: Path, reference: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (corpus / "other.index").exists():
        others = [text for n, text in enumerate(later_texts()) if n % 4 == 3][:20]
        out = mill.run(write(corpus, "other", others, 1, {}), corpus / "out/other", workers=1).out
        mill.index(out, out=corpus / "other.index", ids=True, workers=1)
    made = {workers: run_over(corpus, reference, name=f"w{workers}", workers=workers) for workers in (1, 3)}
    one, three = (load_manifest(out / "dedup") for out in made.values())
    assert one.digest == three.digest
    monkeypatch.setattr("tokmill.stages.indexes.stage.ENTRIES_AT_ONCE", 50)
    monkeypatch.setattr("tokmill.stages.indexes.stage.BANDS_AT_ONCE", 400)
    monkeypatch.setattr("tokmill.stages.indexes.files._PAIRS_AT_ONCE", 7)
    cut = run_over(corpus, reference, name="cut", parts=7)
    assert gone(cut) == gone(made[1])
    for out in made.values():
        shutil.rmtree(out)


def test_documents_that_go_take_no_others_with_them(tmp_path: Path) -> None:
    """Of two near copies the first is in the earlier corpus, and the second is not near to what is there:
    it stays, though among themselves the first would have been kept."""
    draw = random.Random(9)
    base = draw.choices(VOCABULARY, k=400)
    changed = list(base)
    for at in range(0, 60, 10):
        changed[at] = f"x{at}"
    further = list(changed)
    for at in range(200, 260, 10):
        further[at] = f"y{at}"
    before, first, second = (" ".join(words) for words in (base, changed, further))
    (ratio,) = likeness([second], [before])[0].values()
    assert ratio < 0.8 < likeness([second], [first])[0][0]
    recipe = write(tmp_path, "old", [before], 1, {})
    mill.run(recipe, tmp_path / "out/old", workers=1)
    recipe = write(tmp_path, "new", [first, second], 1, {"near": {}, "reference": ["out/old"]})
    out = mill.run(recipe, tmp_path / "out/new", workers=1).out
    assert load_manifest(out / "dedup").counts["dropped"] == {"reference_near_dup": 1}
    alone = write(tmp_path, "new", [first, second], 1, {"near": {}})
    assert load_manifest(mill.run(alone, tmp_path / "out/alone", workers=1).out / "dedup").counts[
        "dropped"
    ] == {"near_dup": 1}


def test_sources_that_are_a_reference_lose_nothing_to_a_corpus_either(tmp_path: Path) -> None:
    recipe = write(tmp_path, "old", earlier_texts()[:20], 1, {})
    mill.run(recipe, tmp_path / "out/old", workers=1)
    write(tmp_path, "new", earlier_texts()[:30], 1, {})
    sources = [{"name": n, "files": "new/*.jsonl", "fields": {"id": "id"}} for n in ("safe", "open")]
    both = write(tmp_path, "both", [""], 1, {"reference": ["safe", "out/old"]}, sources=sources)
    out = mill.run(both, tmp_path / "out/both", workers=1).out
    assert load_manifest(out / "dedup").counts["dropped"] == {"reference_exact_dup": 20, "exact_dup": 10}
    rows = [row for table in load_tables(out / "dedup", "ledger") for row in table.to_pylist()]
    assert {row["source"] for row in rows} == {"open"}


def test_exact_alone_reads_no_text(tmp_path: Path, corpus: Path) -> None:
    out = run_over(corpus, ["./old.index"], name="exact", dedup={"near": None})
    assert {told.reason for told in gone(out).values()} == {"reference_exact_dup"}
    assert len(gone(out)) == 60
    out = run_over(corpus, ["./old.index"], name="nearly", dedup={"exact": False})
    assert {told.reason for told in gone(out).values()} == {"reference_near_dup"}
    assert gone(out).keys() >= {f"new{n}" for n in range(0, 240, 4)}


def test_a_changed_corpus_makes_deduplication_again_and_an_edit_looks_up_what_is_new(tmp_path: Path) -> None:
    mill.run(write(tmp_path, "old", earlier_texts()[:100], 1, {}), tmp_path / "out/old", workers=1)
    mill.index(tmp_path / "out/old", out=tmp_path / "index", workers=1)
    out = run_over(tmp_path, ["./index"])
    before = load_manifest(out / "dedup")
    assert mill.run(tmp_path / "new.yaml", out, workers=1).ran == []
    # another file: the others are not looked up again
    extra = tmp_path / "new/part-9.jsonl"
    extra.write_text(json.dumps({"id": "last", "text": earlier_texts()[3]}) + "\n")
    mill.run(tmp_path / "new.yaml", out, workers=1)
    after = load_manifest(out / "dedup")
    assert gone(out)["last"].reason == "reference_exact_dup"
    tasks = [
        {task["key"]: task["fingerprint"] for task in m.tasks if task["key"].startswith("e")}
        for m in (before, after)
    ]
    assert tasks[0].items() < tasks[1].items()
    assert_as_fresh(tmp_path, out)
    # the corpus grows: deduplication and what follows, and nothing before it
    mill.run(write(tmp_path, "old", earlier_texts(), 1, {}), tmp_path / "out/old", workers=1)
    mill.index(tmp_path / "out/old", out=tmp_path / "index", replace=True, workers=1)
    assert mill.run(tmp_path / "new.yaml", out, workers=1).ran[0] == "dedup"
    assert_as_fresh(tmp_path, out)


@pytest.mark.parametrize("reference", ["out/old", "./index"])
def test_another_threshold_is_as_a_fresh_run(tmp_path: Path, reference: str) -> None:
    """With other bands the files of an index that the step makes for itself have other sizes, and the same
    names."""
    mill.run(write(tmp_path, "old", earlier_texts(), 1, {}), tmp_path / "out/old", workers=1)
    mill.index(tmp_path / "out/old", out=tmp_path / "index", threshold="0.6", workers=1)
    counts = []
    for threshold in ("0.8", "0.65", "0.95"):
        out = run_over(tmp_path, [reference], dedup={"near": {"threshold": threshold}})
        assert_as_fresh(tmp_path, out)
        counts.append(len(gone(out)))
    assert counts[2] < counts[0] < counts[1]


def assert_as_fresh(directory: Path, out: Path) -> None:
    fresh = mill.run(directory / "new.yaml", directory / "fresh", workers=1).out
    for step in ("dedup", "split"):
        assert load_manifest(fresh / step).digest == load_manifest(out / step).digest
    shutil.rmtree(fresh)


def test_recipes_without_a_corpus_keep_their_fingerprints(tmp_path: Path) -> None:
    out = mill.run(write(tmp_path, "old", ["one text"], 1, {"near": {}}), tmp_path / "out", workers=1).out
    assert "earlier" not in load_manifest(out / "dedup").config
    assert load_manifest(out / "dedup").config["reference"] == []


def test_a_takedown_brings_nothing_back_that_an_earlier_corpus_has(tmp_path: Path) -> None:
    mill.run(write(tmp_path, "old", earlier_texts()[:100], 1, {}), tmp_path / "out/old", workers=1)
    mill.index(tmp_path / "out/old", out=tmp_path / "index", workers=1)
    out = run_over(tmp_path, ["./index", "out/old"])
    before = gone(out)
    kept = next(f"new{n}" for n in range(240) if f"new{n}" not in before)
    mill.forget(out, doc_id=[kept], workers=1)
    assert gone(out) == before
    assert mill.verify(out).ok
    recipe = tmp_path / "new.yaml"
    assert mill.run(recipe, out, workers=1).ran == [], "and the recipe is up to date"
    moved = shutil.move(out, tmp_path / "elsewhere/deep/new")
    with pytest.raises(InputError, match=r"corpora of dedup\.reference") as refused:
        mill.forget(moved, doc_id=[next(iter(before))], workers=1)
    assert "--base" in refused.value.next
    mill.index(tmp_path / "out/old", out=tmp_path / "index", splits=["train"], replace=True, workers=1)
    with pytest.raises(InputError, match="not the corpus that the run was made with"):
        mill.forget(moved, doc_id=[next(iter(before))], base=tmp_path, workers=1)


# --- what is refused ---


def refused(directory: Path, reference: list[str], dedup: Json | None = None, out: str = "refused") -> Any:
    with pytest.raises(TokmillError) as caught:
        run_over(directory, reference, name=out, dedup=dedup)
    assert not (directory / "out/refused").exists(), "something was written"
    return caught.value


def test_bad_references_are_told_before_anything_is_written(corpus: Path, tmp_path: Path) -> None:
    assert "no source is called gone; if it is a directory, write ./gone" in str(refused(corpus, ["gone"]))
    assert "./gone is no directory" in refused(corpus, ["./gone"]).what
    assert "neither a finished run nor an index" in refused(corpus, ["old/"]).what
    assert "is at a URL" in refused(corpus, ["s3://bucket/index"]).what
    assert "neither a finished run nor an index" in refused(corpus, ["out/old/dedup"]).what
    assert "once more" in refused(corpus, ["out/old", "./out/old"]).what
    error = refused(corpus, ["./old.index"], {"near": {"threshold": "0.7"}})
    assert "finds similarities from 0.8 on" in error.what
    assert "--threshold 0.7" in error.next
    assert "of word 5-grams" in refused(corpus, ["./old.index"], {"near": {"ngram": 8}}).what
    neither = {"exact": False, "near": None}
    assert "`exact` and `near`" in str(refused(corpus, ["./old.index"], neither))


def test_the_run_itself_is_no_reference(tmp_path: Path) -> None:
    out = run_over(tmp_path, [])
    before = load_manifest(out).digest
    with pytest.raises(InputError, match="is the run itself"):
        run_over(tmp_path, ["out/new"])
    assert load_manifest(out).digest == before


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("truncated", "not as long as it was written"),
        ("missing", "a file is missing"),
        ("version", "is an index of version 99"),
        ("form", "in another normal form"),
        ("edited", "its digest does not match"),
    ],
)
def test_a_damaged_or_foreign_index_is_refused(corpus: Path, tmp_path: Path, damage: str, said: str) -> None:
    index = corpus / f"{damage}.index"
    shutil.copytree(corpus / "old.index", index)
    path = index / "bands-00000.bin"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-8])
    elif damage == "missing":
        path.unlink()
    elif damage == "edited":
        manifest = index / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"ngram": 5', '"ngram": 6'))
    else:
        reseal(index, {"version": {"version": 99}, "form": {"hash_normalization": "other-9"}}[damage])
    assert said in refused(corpus, [f"./{damage}.index"]).what


def reseal(index: Path, config: Json) -> None:
    """As another version would have written it."""
    from tokmill.artifacts.manifest import build_manifest, load_manifest, write_manifest

    manifest = load_manifest(index)
    body = {
        name: getattr(manifest, name)
        for name in ("kind", "step", "inputs", "counts", "facts", "experiment_id")
    }
    other = build_manifest(
        **body,
        config={**manifest.config, **config},
        receipts=manifest.receipts(),
        environment=manifest.environment,
    )
    write_manifest(index, other)


def test_an_unfinished_run_is_refused(corpus: Path) -> None:
    shutil.copytree(corpus / "out/old", corpus / "out/short")
    (corpus / "out/short/manifest.json").unlink()
    assert "neither a finished run nor an index" in refused(corpus, ["out/short"]).what
    shutil.copytree(corpus / "out/old", corpus / "out/holed")
    next((corpus / "out/holed/ingest/old").glob("documents-*")).unlink()
    assert "a file is missing" in refused(corpus, ["out/holed"]).what


# --- real texts ---


@pytest.mark.skipif(not (SHARED / "data/neardup").is_dir(), reason="needs the shared corpora")
@pytest.mark.parametrize("name", ["wiki_controlled", "django_docs_versions"])
def test_of_real_copies_an_index_finds_what_exact_comparison_finds(name: str, tmp_path: Path) -> None:
    """Half of the documents are the earlier corpus; who should go is recounted with sets of n-grams. Half of
    `wiki_controlled` was made to lie right at the threshold, where an estimate is as good as a coin."""
    lines = (SHARED / f"data/neardup/{name}.docs.jsonl").read_text("utf-8").splitlines()
    documents = [json.loads(line) for line in lines]
    before, after = documents[::2], documents[1::2]
    for part, records in (("old", before), ("new", after)):
        (tmp_path / f"{part}.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    source = {"fields": {"id": "id"}}
    whole: Json = {"dedup": {"exact": False}, "split": {"valid_fraction": 0}}
    old = {"name": "old", "sources": [{**source, "name": "old", "files": "old.jsonl"}], **whole}
    (tmp_path / "old.yaml").write_text(json.dumps(old))
    mill.run(tmp_path / "old.yaml", tmp_path / "out/old", workers=1)
    mill.index(tmp_path / "out/old", out=tmp_path / "old.index", ids=True, workers=1)
    found = {}
    for mode, reference in (("exact", "out/old"), ("index", "./old.index")):
        dedup = {"exact": False, "near": {"threshold": "0.8"}, "reference": [reference]}
        new = {
            **whole,
            "name": "new",
            "sources": [{**source, "name": "new", "files": "new.jsonl"}],
            "dedup": dedup,
        }
        (tmp_path / "new.yaml").write_text(json.dumps(new))
        out = mill.run(tmp_path / "new.yaml", tmp_path / mode, workers=1).out
        found[mode] = gone(out)
    similar = likeness([record["text"] for record in after], [record["text"] for record in before])
    best = {
        record["id"]: max(others.values(), default=0.0) for record, others in zip(after, similar, strict=True)
    }
    true = {name for name, similarity in best.items() if similarity >= 0.8}
    assert len(true) > 200
    assert found["exact"].keys() <= true
    assert len(found["exact"]) >= 0.99 * len(true)
    right = found["index"].keys() & true
    assert len(right) >= 0.94 * len(true), "recall"
    assert len(right) >= 0.94 * len(found["index"]), "precision"
    wrong = found["index"].keys() ^ true
    far = [name for name in wrong if abs(best[name] - 0.8) > 0.05]
    assert len(far) <= 0.002 * len(after)
