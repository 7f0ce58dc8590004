"""A sample that is drawn once: exact sizes, the same bytes anywhere, and never a silent second draw."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tokmill
from mill import SHARED
from tokmill.errors import EmptyGlob, InputError, ManifestDamaged, RecipeError
from tokmill.stages.sampling import bottom_k, draws


def materialize(files: Any, out: str | Path, **options: Any) -> Path:
    return tokmill.materialize_sample(files, out=out, **options).path


MANIFEST_NAME, META_NAME = "manifest.jsonl", "MANIFEST.meta.json"
TATOEBA = SHARED / "data" / "fr_en" / "tatoeba_even.tsv"
SIZES = {"train": 6, "valid": 2, "test": 2}


def write_corpus(path: Path, records: list[dict[str, Any] | str]) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def numbered(count: int) -> list[dict[str, Any] | str]:
    return [{"id": f"d{n}", "text": f"sentence number {n}"} for n in range(count)]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def meta_of(path: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((path.parent / META_NAME).read_bytes())
    return meta


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl", numbered(30))


def chi_square(observed: np.ndarray, share: float, trials: int) -> float:
    """Of how often each of n was among those drawn, each time a fixed number: n - 1 degrees of freedom."""
    expected, n = trials * share, len(observed)
    return float(((observed - expected) ** 2 / expected).sum()) * (n - 1) / n / (1 - share)


# -- the exercise: 120 sentence pairs --------------------------------------------------------------


@pytest.mark.skipif(not TATOEBA.is_file(), reason="the shared test data is not here")
def test_120_pairs_fall_into_96_12_and_12_and_the_bytes_repeat(tmp_path: Path) -> None:
    def draw(out: str, seed: int) -> Path:
        splits = {"train": 96, "valid": 12, "test": 12}
        return materialize(
            TATOEBA,
            tmp_path / out,
            k=120,
            seed=seed,
            splits=splits,
            parallel={},
            dataset="tatoeba",
            revision="r1",
        )

    path = draw("a", 7)
    assert path == tmp_path / "a" / MANIFEST_NAME
    rows = rows_of(path)
    assert Counter(row["split"] for row in rows) == {"train": 96, "valid": 12, "test": 12}
    assert len({row["uid"] for row in rows}) == 120
    assert list(rows[0]) == [
        "uid",
        "src_text",
        "tgt_text",
        "split",
        "dataset",
        "revision",
        "seed",
        "k",
        "filters",
    ]
    assert {(row["dataset"], row["revision"], row["seed"], row["k"]) for row in rows} == {
        ("tatoeba", "r1", 7, 120)
    }
    assert rows[0]["filters"] == {"min_chars": 2, "max_chars": 256}

    lines = TATOEBA.read_text(encoding="utf-8").split("\n")
    pairs = [tuple(side.strip() for side in line.split("\t")[:2]) for line in lines if line]
    places = [pairs.index((row["src_text"], row["tgt_text"])) for row in rows]
    assert places == sorted(places)  # source order
    joined = unicodedata.normalize("NFKC", f"{rows[0]['src_text']}\n{rows[0]['tgt_text']}")
    assert rows[0]["uid"] == hashlib.sha256(joined.encode()).hexdigest()[:32]

    meta = meta_of(path)
    counts = meta["counts"]
    lost = sum(counts["dropped"].values()) + sum(counts["quarantined"].values()) + counts["duplicates"]
    assert counts["read"] == len(pairs) == counts["available"] + lost
    assert counts["taken"] == 120
    assert meta["scanned"] == {"documents": len(pairs), "is_complete": True}
    assert meta["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()

    assert draw("b", 7).read_bytes() == path.read_bytes()
    assert draw("c", 8).read_bytes() != path.read_bytes()


# -- what may be drawn -----------------------------------------------------------------------------


def test_everything_read_is_accounted_for(tmp_path: Path) -> None:
    records: list[dict[str, Any] | str] = [{"text": f"keep me {n}", "lang": "en"} for n in range(10)]
    records += [
        {"text": "KEEP  me 3", "lang": "en"},  # the same after folding
        {"text": "ｋeep me 4", "lang": "en"},
        {"text": "reste ici", "lang": "fr"},
        {"text": "tiny", "lang": "en"},
        {"text": "x" * 50, "lang": "en"},
        {"text": " \n", "lang": "en"},
        "{broken",
    ]
    path = materialize(
        write_corpus(tmp_path / "c.jsonl", records),
        tmp_path / "out",
        k=10,
        seed=1,
        splits=SIZES,
        where={"lang": "en"},
        min_chars=5,
        max_chars=20,
    )
    assert [row["text"] for row in rows_of(path)] == [f"keep me {n}" for n in range(10)]  # the first survives
    meta = meta_of(path)
    assert meta["counts"] == {
        "read": 17,
        "dropped": {"empty": 1, "other_lang": 1, "too_few_chars": 1, "too_many_chars": 1},
        "quarantined": {"invalid_json": 1},
        "duplicates": 2,
        "available": 10,
        "taken": 10,
    }
    assert meta["filters"]["where"] == {"lang": "en"}


def test_a_filter_on_a_field_that_no_record_has_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    records = [{"text": f"Sentence number {n}", "language": "en"} for n in range(12)]
    path = write_corpus(tmp_path / "c.jsonl", records)
    with pytest.raises(
        InputError, match=r"`where.langauge` names the field `langauge`, and no record"
    ) as caught:
        materialize(path, tmp_path / "out", k=10, seed=1, splits=SIZES, where={"langauge": "en"})
    assert "did you mean `language`?" in caught.value.next
    assert not (tmp_path / "out").exists()


def test_a_filter_on_a_field_that_comes_late_leaves_out_the_records_before_it(tmp_path: Path) -> None:
    records = [{"text": f"Sentence number {n}"} for n in range(12)]
    tagged = [{"text": f"Tagged number {n}", "language": "en"} for n in range(10)]
    path = write_corpus(tmp_path / "c.jsonl", [*records, *tagged])
    drawn = materialize(path, tmp_path / "out", k=10, seed=1, splits=SIZES, where={"language": "en"})
    assert sorted(row["text"] for row in rows_of(drawn)) == sorted(record["text"] for record in tagged)
    assert meta_of(drawn)["counts"]["dropped"] == {"other_language": 12}


def test_duplicates_do_not_change_who_is_drawn(tmp_path: Path, corpus: Path) -> None:
    twice = write_corpus(tmp_path / "twice.jsonl", numbered(30) + numbered(30))
    once = materialize(corpus, tmp_path / "once", k=10, seed=3, splits=SIZES)
    again = materialize(twice, tmp_path / "again", k=10, seed=3, splits=SIZES)
    assert again.read_bytes() == once.read_bytes()
    assert meta_of(again)["counts"]["duplicates"] == 30
    kept = materialize(twice, tmp_path / "kept", k=60, seed=3, splits={"all": 60}, keep_duplicates=True)
    assert len(rows_of(kept)) == 60
    assert len({row["uid"] for row in rows_of(kept)}) == 30


def test_too_few_documents_say_how_many_there_are(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", [*numbered(9), {"text": "Sentence  number 1"}])
    with pytest.raises(InputError, match=r"but 9 documents can be drawn from: 10 read, less 1 exact_dup"):
        materialize(path, tmp_path / "out", k=10, seed=1, splits=SIZES)
    assert not (tmp_path / "out").exists()


def test_files_that_are_not_there_and_files_without_records(tmp_path: Path) -> None:
    with pytest.raises(EmptyGlob):
        materialize(tmp_path / "no*.jsonl", tmp_path / "out", k=10, seed=1, splits=SIZES)
    with pytest.raises(InputError, match="but 0 documents can be drawn from: 0 read"):
        materialize(write_corpus(tmp_path / "c.jsonl", []), tmp_path / "out", k=10, seed=1, splits=SIZES)


def test_globs_lists_other_fields_and_templates(tmp_path: Path) -> None:
    records = [{"q": f"question {n}", "a": f"answer {n}"} for n in range(10)]
    first = write_corpus(tmp_path / "part[1].jsonl", list(records[:5]))
    second = write_corpus(tmp_path / "part[2].jsonl", list(records[5:]))
    by_list = materialize([first, second], tmp_path / "a", k=10, seed=1, splits=SIZES, text="q")
    by_glob = materialize(str(tmp_path / "part*.jsonl"), tmp_path / "b", k=10, seed=1, splits=SIZES, text="q")
    assert by_list.read_bytes() == by_glob.read_bytes()
    assert [row["text"] for row in rows_of(by_list)] == [f"question {n}" for n in range(10)]
    filled = materialize([first, second], tmp_path / "c", k=10, seed=1, splits=SIZES, template="{q}? {a}!")
    assert rows_of(filled)[9]["text"] == "question 9? answer 9!"


# -- what is asked for -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"splits": {"train": 6, "valid": 2}}, "train 6 [+] valid 2 is 8, but k is 10"),
        ({"splits": {}}, "nothing is 0, but k is 10"),
        ({"splits": {"train": 12, "valid": -2}}, "splits.valid: should not be negative"),
        ({"k": 0, "splits": {}}, "k: should be at least 1"),
        ({"seed": -1}, "seed: should be from 0"),
        ({"min_chars": 9, "max_chars": 3}, "min_chars: 9 is above max_chars 3"),
        ({"parallel": {}, "where": {"lang": "en"}}, "`where` is for single texts"),
        ({"parallel": {}, "text": "q"}, "`text` is for single texts"),
        ({"parallel": {"sourcekey": "q"}}, "parallel.sourcekey: Extra inputs"),
        ({"text": "q", "template": "{q}"}, "keep one"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    tmp_path: Path, corpus: Path, changes: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"k": 10, "seed": 1, "splits": SIZES}
    with pytest.raises(RecipeError, match=message):
        materialize(corpus, tmp_path / "out", **{**arguments, **changes})
    assert not (tmp_path / "out").exists()


# -- a sample that is there ------------------------------------------------------------------------


def test_a_sample_that_is_there_is_returned_untouched(tmp_path: Path, corpus: Path) -> None:
    path = materialize(corpus, tmp_path / "out", k=10, seed=1, splits=SIZES)
    before = [(file.name, file.stat().st_ino, file.read_bytes()) for file in sorted(path.parent.iterdir())]
    assert [name for name, _, _ in before] == [META_NAME, MANIFEST_NAME]
    in_other_order = dict(reversed(SIZES.items()))
    assert materialize(str(corpus), str(tmp_path / "out"), k=10, seed=1, splits=in_other_order) == path
    after = [(file.name, file.stat().st_ino, file.read_bytes()) for file in sorted(path.parent.iterdir())]
    assert after == before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"k": 11, "splits": {"train": 7, "valid": 2, "test": 2}}, "`k` changed 10 → 11"),
        ({"seed": 2}, "`seed` changed 1 → 2"),
        ({"splits": {"train": 5, "valid": 3, "test": 2}}, "`splits.train` changed 6 → 5"),
        ({"min_chars": 3}, "`filters.min_chars` added: 3"),
        ({"dataset": "other"}, "`dataset` changed"),
        ({"revision": "other"}, "`revision` changed"),
        ({"keep_duplicates": True}, "`dedup` changed true → false"),
        ({"template": "{text}"}, "`template` added"),
    ],
)
def test_other_parameters_are_refused_by_name_and_drawn_when_asked(
    tmp_path: Path, corpus: Path, changes: dict[str, Any], field: str
) -> None:
    arguments: dict[str, Any] = {"k": 10, "seed": 1, "splits": SIZES}
    path = materialize(corpus, tmp_path / "out", **arguments)
    before = path.read_bytes()
    with pytest.raises(RecipeError) as refused:
        materialize(corpus, tmp_path / "out", **{**arguments, **changes})
    assert field in str(refused.value)
    assert "`resample=True`" in str(refused.value)
    assert path.read_bytes() == before
    materialize(corpus, tmp_path / "out", **{**arguments, **changes}, resample=True)
    fresh = materialize(corpus, tmp_path / "fresh", **{**arguments, **changes})
    assert path.read_bytes() == fresh.read_bytes()
    assert materialize(corpus, tmp_path / "out", **{**arguments, **changes}) == path


def test_changed_inputs_are_refused(tmp_path: Path, corpus: Path) -> None:
    path = materialize(corpus, tmp_path / "out", k=10, seed=1, splits=SIZES)
    write_corpus(corpus, numbered(31))
    with pytest.raises(RecipeError, match=r"`inputs.corpus.jsonl.sha256` changed"):
        materialize(corpus, tmp_path / "out", k=10, seed=1, splits=SIZES)
    materialize(corpus, tmp_path / "out", k=10, seed=1, splits=SIZES, resample=True)
    assert meta_of(path)["counts"]["read"] == 31


def test_an_edited_or_missing_half_is_an_error_until_it_is_drawn_again(tmp_path: Path, corpus: Path) -> None:
    def draw(**more: Any) -> Path:
        return materialize(corpus, tmp_path / "out", k=10, seed=1, splits=SIZES, **more)

    path = draw()
    good, meta = path.read_bytes(), path.with_name(META_NAME)
    path.write_bytes(good.replace(b"train", b"valid", 1))
    with pytest.raises(ManifestDamaged, match="it was edited"):
        draw()
    assert draw(resample=True).read_bytes() == good
    path.unlink()
    with pytest.raises(ManifestDamaged, match="is gone"):
        draw()
    draw(resample=True)
    for broken in (b"{", b"[]"):
        meta.write_bytes(broken)
        with pytest.raises(ManifestDamaged, match="is not"):
            draw()
    meta.write_bytes(b"{}")
    with pytest.raises(ManifestDamaged, match="it was edited"):
        draw()


def test_a_kill_between_the_two_files_is_made_good(tmp_path: Path, corpus: Path) -> None:
    path = materialize(corpus, tmp_path / "out", k=10, seed=1, splits=SIZES)
    good, meta = path.read_bytes(), path.with_name(META_NAME)
    meta.unlink()
    materialize(corpus, tmp_path / "out", k=10, seed=1, splits=SIZES)
    assert meta.is_file()
    meta.unlink()
    with pytest.raises(ManifestDamaged, match="not what these parameters give"):
        materialize(corpus, tmp_path / "out", k=10, seed=2, splits=SIZES)
    assert path.read_bytes() == good


# -- chance ----------------------------------------------------------------------------------------


def test_every_document_is_in_every_split_equally_often_over_seeds(tmp_path: Path, corpus: Path) -> None:
    seeds = 400
    ids, texts = zip(*((record["id"], record["text"]) for record in numbered(30)), strict=True)  # type: ignore[index]
    table = pa.table({"doc_id": pa.array(ids), "text": pa.array(texts, pa.large_string())})
    place = {text: row for row, text in enumerate(texts)}
    by_document = {name: np.zeros(30) for name in SIZES}
    by_rank = {name: np.zeros(10) for name in SIZES}  # of the draw that chose the ten
    for seed in range(seeds):
        path = materialize(corpus, tmp_path / "out", k=10, seed=seed, splits=SIZES, resample=True)
        rows = rows_of(path)
        drawn = draws(table, seed)
        taken = bottom_k(drawn, 10)
        assert [place[row["text"]] for row in rows] == taken.tolist()
        ranks = np.argsort(np.argsort(drawn[taken]))
        for row, document, rank in zip(rows, taken, ranks, strict=True):
            by_document[row["split"]][document] += 1
            by_rank[row["split"]][rank] += 1
    for name, size in SIZES.items():
        # 0.9999 intervals of chi-square with 29 and 9 degrees of freedom
        assert 8 < chi_square(by_document[name], size / 30, seeds) < 69
        assert 0.5 < chi_square(by_rank[name], size / 10, seeds) < 36


def test_a_weighted_draw_takes_documents_by_their_weight(tmp_path: Path) -> None:
    """One of three, with weights 1, 2 and 7: how often each is drawn over seeds,
    and a weight of zero never."""
    weights = {"light": 1, "middle": 2, "heavy": 7, "nothing": 0}
    path = write_corpus(tmp_path / "c.jsonl", [{"text": t, "w": w} for t, w in weights.items()])
    drawn: Counter[str] = Counter()
    for seed in range(1000):
        options: dict[str, Any] = {
            "splits": {"train": 1},
            "method": "weighted",
            "weight": "w",
            "resample": True,
        }
        (row,) = rows_of(materialize(path, tmp_path / "out", k=1, seed=seed, **options))
        drawn[row["text"]] += 1
    assert set(drawn) == {"light", "middle", "heavy"}
    deviation = sum((drawn[t] - 100 * w) ** 2 / (100 * w) for t, w in weights.items() if w)
    assert deviation < 18.4  # chi-square with two degrees of freedom, 0.9999


def test_a_weighted_draw_of_pairs_carries_the_weight_and_writes_the_sides_alone(tmp_path: Path) -> None:
    records = [{"src_text": f"le {n}", "tgt_text": f"the {n}", "w": n % 2} for n in range(20)]
    path = write_corpus(tmp_path / "c.jsonl", list(records))
    options: dict[str, Any] = {"splits": SIZES, "parallel": {}, "method": "weighted", "weight": "w"}
    made = materialize(path, tmp_path / "out", k=10, seed=3, **options)
    assert [row["src_text"] for row in rows_of(made)] == [f"le {n}" for n in range(1, 20, 2)]
    assert "w" not in rows_of(made)[0]
    assert (meta_of(made)["method"], meta_of(made)["weight"]) == ("weighted", "w")


@pytest.mark.parametrize("options", [{"method": "weighted"}, {"weight": "w"}])
def test_a_method_and_its_weight_go_together(tmp_path: Path, corpus: Path, options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="give method `weighted`"):
        materialize(corpus, tmp_path / "out", k=10, seed=1, splits=SIZES, **options)


def test_a_corpus_of_copies_is_drawn_from_as_if_they_were_not_there(tmp_path: Path) -> None:
    """So many that those with the smallest draws are copies of one text:
    the files are read once more for the others."""
    others = numbered(12)
    alone = write_corpus(tmp_path / "alone.jsonl", [{"id": "first", "text": "the same again"}, *others])
    copies: list[dict[str, Any] | str] = [{"id": f"copy {n}", "text": "The  same again"} for n in range(6000)]
    many = write_corpus(
        tmp_path / "many.jsonl",
        [{"id": "first", "text": "the same again"}, *copies[:3000], *others, *copies[3000:]],
    )
    options: dict[str, Any] = {"k": 10, "splits": SIZES}
    for seed in range(3):
        one = materialize(alone, tmp_path / f"alone-{seed}", seed=seed, **options)
        other = materialize(many, tmp_path / f"many-{seed}", seed=seed, **options)
        assert other.read_bytes() == one.read_bytes()
        assert meta_of(other)["counts"] == {**meta_of(one)["counts"], "read": 6013, "duplicates": 6000}


def test_a_large_corpus_gives_the_k_smallest_draws_of_all(tmp_path: Path) -> None:
    """Far more documents than are held at hand, in several files; against a sort of all of them."""
    records = numbered(9000)
    files = [write_corpus(tmp_path / f"{n}.jsonl", records[n * 3000 : n * 3000 + 3000]) for n in range(3)]
    path = materialize(files, tmp_path / "out", k=10, seed=5, splits=SIZES)
    ids, texts = zip(*((record["id"], record["text"]) for record in records), strict=True)  # type: ignore[index]
    table = pa.table({"doc_id": pa.array(ids), "text": pa.array(texts, pa.large_string())})
    drawn = draws(table, 5).tolist()
    ranked = sorted(sorted(range(9000), key=drawn.__getitem__)[:10])
    assert [row["text"] for row in rows_of(path)] == [texts[row] for row in ranked]
