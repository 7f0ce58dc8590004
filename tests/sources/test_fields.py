"""Every record is asked for every field that matters: where a field first occurs decides nothing.

What a run took is read back with pyarrow and compared with a slow twin that looks at one record at a time.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill as mill
from mill import tokmill
from tokmill.errors import InputError
from written import ZstdFile, load_manifest, load_tables

Record = dict[str, Any]
FORMATS = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")
LONG = "A sentence that fills the first mebibyte of a file, word by word. " * 200


def write_records(path: Path, records: Sequence[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    if path.name.endswith(".parquet"):
        names = list(dict.fromkeys(key for record in records for key in record))
        pq.write_table(
            pa.table({name: [record.get(name) for record in records] for name in names or ["nothing"]}), path
        )
    elif path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines))
    elif path.name.endswith(".zst"):
        with ZstdFile(path, "w") as file:
            file.write(lines)
    else:
        path.write_bytes(lines)
    return path


def recipe_of(directory: Path, source: Record, **sections: Any) -> Path:
    sections = {"sources": [{"name": "some", "files": "data/*", **source}], **sections}
    path = directory / "recipe.yaml"
    path.write_text(json.dumps({"name": "fields", **sections}))  # JSON is YAML
    return path


def documents_of(out: Path) -> list[Record]:
    """What was kept, by a reader that is not ours."""
    rows: list[Record] = []
    for path in sorted(out.glob("ingest/some/documents-*.parquet")):
        table = pq.read_table(path)
        marks = pq.read_table(out / "clean/some" / path.name.replace("documents-", "marks-"))
        kept = marks.column("kept").to_pylist()
        rows += [row for row, is_in in zip(table.to_pylist(), kept, strict=True) if is_in]
    return rows


def milled(directory: Path, source: Record, **sections: Any) -> list[Record]:
    recipe = recipe_of(directory, source, **sections)
    return documents_of(mill.run(recipe, directory / "out", workers=1, until="clean").out)


# -- a licence policy is not passed by absence -----------------------------------------------------


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids=["licence last", "licence first"])
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("key", ["license", "license_tag"])
def test_a_licence_that_only_one_file_has_is_judged_whatever_the_order_of_files(
    tmp_path: Path, order: tuple[str, str], suffix: str, key: str
) -> None:
    plain, licensed = order
    write_records(tmp_path / f"data/{plain}.{suffix}", [{"text": f"free {n}"} for n in range(5)])
    write_records(
        tmp_path / f"data/{licensed}.{suffix}",
        [{"text": f"not for sale {n}", key: "CC-BY-NC-4.0"} for n in range(5)],
    )
    kept = milled(tmp_path, {"license": "MIT"}, license={"allow": ["MIT"], "unknown": "drop"})
    assert sorted(row["text"] for row in kept) == [f"free {n}" for n in range(5)]
    assert "CC-BY-NC" not in (tmp_path / "out/ATTRIBUTION.md").read_text()
    assert load_manifest(tmp_path / "out/clean/some").counts["dropped"] == {"license_not_allowed": 5}


def test_a_licence_after_the_first_mebibyte_is_judged(tmp_path: Path) -> None:
    free = [{"text": f"{n} {LONG}"} for n in range(150)]
    assert sum(len(record["text"]) for record in free) > 1 << 20
    write_records(tmp_path / "data/a.jsonl", [*free, {"text": "not for sale", "license": "CC-BY-NC-4.0"}])
    kept = milled(tmp_path, {"license": "MIT"}, license={"allow": ["MIT"], "unknown": "drop"})
    assert len(kept) == 150
    assert "not for sale" not in {row["text"] for row in kept}


def test_a_filter_on_a_field_that_comes_late_is_on_from_the_first_record(tmp_path: Path) -> None:
    long = [{"text": f"{n} {LONG}"} for n in range(150)]
    late = [{"text": "an English one", "language": "en"}, {"text": "ein deutscher", "language": "de"}]
    write_records(tmp_path / "data/a.jsonl", [*long, *late])
    kept = milled(tmp_path, {"where": {"language": "en"}})
    assert [row["text"] for row in kept] == ["an English one"]
    manifest = load_manifest(tmp_path / "out/ingest/some")
    assert manifest.counts["dropped"] == {"other_language": 151}
    assert manifest.facts["presence"] == {"records": 152, "where.language": 2}


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_record_that_a_filter_left_out_is_found_where_the_ledger_says(tmp_path: Path, suffix: str) -> None:
    records = [{"text": f"ü {n}", "id": str(n), "kind": "ab"[n % 2], "size": str(n % 3)} for n in range(9)]
    path = (
        write_records(tmp_path / f"data/a.{suffix}", records) if suffix != "csv" else tmp_path / "data/a.csv"
    )
    if suffix == "csv":
        path.parent.mkdir()
        rows = [",".join(record.values()) for record in records]
        path.write_text("\n".join(["text,id,kind,size", *rows, ""]), encoding="utf-8")
    milled(tmp_path, {"where": {"kind": "a", "size": "0"}, "fields": {"id": "id"}})
    directory = tmp_path / "out/ingest/some"
    ledger = [row for table in load_tables(directory, "ledger") for row in table.to_pylist()]
    others = [record["id"] for record in records if (record["kind"], record["size"]) != ("a", "0")]
    assert sorted(row["doc_id"] for row in ledger) == others
    for row in ledger:
        if suffix == "parquet":
            assert records[row["offset"]]["id"] == row["doc_id"]
        else:
            line = path.read_bytes()[row["offset"] :].split(b"\n")[0].decode()
            assert (json.loads(line)["id"] if suffix == "jsonl" else line.split(",")[1]) == row["doc_id"]


# -- the twin --------------------------------------------------------------------------------------


def first_of(record: Record, *keys: str) -> Any:
    return next((record[key] for key in keys if record.get(key) is not None), None)


def expected_of(records: Sequence[Record], where: Record, members: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """(text, id if there is one, licence, date, meta) of every record that is to be taken."""
    taken: Counter[tuple[Any, ...]] = Counter()
    for record in records:
        text = first_of(record, "text", "content")
        if text is None or any(record.get(key) != value for key, value in where.items()):
            continue
        meta = dict(record["meta"]) if record.get("meta") is not None else None
        if members:
            named = {key: record[key] for key in members if record.get(key) is not None}
            meta = {**(meta or {}), **named}
        taken[
            (
                text,
                first_of(record, "id", "doc_id"),
                first_of(record, "license", "license_tag") or "CC0-1.0",
                record.get("created_at"),
                json.dumps(meta, sort_keys=True),
            )
        ] += 1
    return taken


DERIVED = re.compile(r"[0-9a-f]{32}")


def actual_of(rows: Sequence[Record]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            row["text"],
            None if DERIVED.fullmatch(row["doc_id"]) else row["doc_id"],
            row["license_tag"],
            row["created_at"],
            json.dumps(json.loads(row["meta"] or "null"), sort_keys=True),
        )
        for row in rows
    )


def optional(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([None, *values])


RECORDS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "text": optional("one", "two", "drei"),
            "content": st.sampled_from(["vier", "cinq"]),
            "id": optional("x", "y"),
            "doc_id": st.sampled_from(["d", "e"]),
            "license": optional("MIT", "GPL-3.0"),
            "license_tag": st.sampled_from(["Apache-2.0", "CC-BY-NC-4.0"]),
            "created_at": optional("2024-01-02", "2023"),
            "meta": optional({"k": 1}, {"k": "v", "lang": "other", "deep": {"a": [1, None]}}, {}),
            "lang": optional("en", "de"),
        },
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=30)
@given(RECORDS, st.data(), st.sampled_from(["jsonl", "jsonl.gz", "jsonl.zst"]), st.booleans(), st.booleans())
def test_what_is_taken_does_not_depend_on_the_order_of_files_and_records(
    records: list[Record], data: st.DataObject, suffix: str, filters: bool, names_members: bool
) -> None:
    records = [{"text": "anchor", "lang": "en"}, *records]  # what is named is somewhere
    where = {"lang": "en"} if filters else {}
    members = ["lang"] if names_members else []
    source = {
        "where": where,
        "fields": {"meta": members},
        "license": "CC0-1.0",
        "max_bad_fraction": 1,
    }
    expected = expected_of(records, where, members)
    for _ in range(2):
        shuffled = data.draw(st.permutations(records))
        cut = data.draw(st.integers(0, len(records)))
        directory = Path(tempfile.mkdtemp())
        try:
            for name, part in (("a", shuffled[:cut]), ("b", shuffled[cut:])):
                if part:
                    write_records(directory / f"data/{name}.{suffix}", part)
            assert actual_of(milled(directory, source)) == expected
        finally:
            shutil.rmtree(directory)


def without_nested(record: Record) -> Record:
    """A Parquet column has one type: `meta` as tokmill writes it, a string."""
    return {**record, "meta": json.dumps(record["meta"])} if record.get("meta") is not None else record


@settings(deadline=None, max_examples=25)
@given(RECORDS, st.data(), st.booleans())
def test_columns_that_only_some_parquet_files_have_are_asked_of_every_file(
    records: list[Record], data: st.DataObject, filters: bool
) -> None:
    records = [{"text": "anchor", "lang": "en"}, *records]
    where = {"lang": "en"} if filters else {}
    source = {"where": where, "license": "CC0-1.0", "max_bad_fraction": 1}
    shuffled = data.draw(st.permutations(records))
    cut = data.draw(st.integers(0, len(records)))
    directory = Path(tempfile.mkdtemp())
    try:
        for name, part in (("a", shuffled[:cut]), ("b", shuffled[cut:])):
            if part:
                write_records(directory / f"data/{name}.parquet", [without_nested(record) for record in part])
        assert actual_of(milled(directory, source)) == expected_of(records, where, [])
    finally:
        shutil.rmtree(directory)


def test_an_alternative_may_be_anything_in_a_record_that_does_not_need_it(tmp_path: Path) -> None:
    records = [
        {"text": "a", "content": {"html": "<p>a</p>"}, "id": "1", "doc_id": [1]},
        {"text": "e", "license": "MIT", "license_tag": {"spdx": "MIT"}, "doc_id": "5"},
        {"text": None, "content": "b", "doc_id": 2},
        {"text": None, "content": {"html": "c"}},
        {"content": "d", "doc_id": [3]},
        {"text": "f", "license_tag": {"spdx": "CC-BY-NC-4.0"}},
    ]
    write_records(tmp_path / "data/a.jsonl", records)
    kept = milled(tmp_path, {"max_bad_fraction": 1})
    assert [(row["text"], row["doc_id"]) for row in kept] == [("a", "1"), ("e", "5"), ("b", "2")]
    ledger = pq.read_table(next((tmp_path / "out/ingest/some").glob("ledger-*.parquet"))).to_pylist()
    assert [(row["reason"], row["detail"].rpartition(" - at ")[2]) for row in ledger] == [
        ("wrong_type", "`$.content`"),
        ("wrong_type", "`$.doc_id`"),
        ("wrong_type", "`$.license_tag`"),
    ]


# -- what the recipe names -------------------------------------------------------------------------

RECORD = {"text": "a text", "identifier": "7", "license": "MIT", "date": "2024", "language": "en"}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("source", "label", "key", "near"),
    [
        ({"where": {"langauge": "en"}}, "where.langauge", "langauge", "language"),
        ({"fields": {"id": "identifer"}}, "fields.id", "identifer", "identifier"),
        ({"fields": {"license": "licence"}}, "fields.license", "licence", "license"),
        ({"fields": {"created_at": "dates"}}, "fields.created_at", "dates", "date"),
        ({"fields": {"meta": ["date", "langage"]}}, "fields.meta.langage", "langage", "language"),
        ({"fields": {"language": "languages"}}, "fields.language", "languages", "language"),
    ],
    ids=["where", "id", "license", "created_at", "meta", "language"],
)
def test_a_named_field_that_no_record_has_is_an_error_with_the_nearest_name(
    tmp_path: Path, suffix: str, source: Record, label: str, key: str, near: str
) -> None:
    write_records(tmp_path / f"data/a.{suffix}", [RECORD])
    done = tokmill("run", recipe_of(tmp_path, source), "--until", "clean")
    assert done.returncode == 1
    assert f"`{label}` names the field `{key}`, and no record has it" in done.stderr
    assert f"did you mean `{near}`?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_named_field_that_no_record_has_is_an_error_where_the_first_records_do_not_tell(
    tmp_path: Path,
) -> None:
    write_records(tmp_path / "data/a.jsonl", [{**RECORD, "text": f"{n} {LONG}"} for n in range(150)])
    with pytest.raises(InputError, match="no record has it") as caught:
        milled(tmp_path, {"where": {"langauge": "en"}})
    assert "did you mean `language`?" in caught.value.next


def test_a_named_field_that_only_some_records_have_is_counted_and_told(tmp_path: Path) -> None:
    write_records(tmp_path / "data/a.jsonl", [{"text": f"n {n}"} for n in range(7)])
    write_records(tmp_path / "data/b.jsonl", [{"text": f"y {n}", "rights": "MIT"} for n in range(3)])
    recipe = recipe_of(tmp_path, {"license": "CC0-1.0", "fields": {"license": "rights"}})
    done = tokmill("run", recipe, "--until", "clean", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "rights" in line]
    assert told == ["! source some: 7 of 10 records have no `rights`, which `fields.license` names"]
    assert load_manifest(tmp_path / "out/ingest/some").facts["presence"] == {
        "records": 10,
        "fields.license": 3,
    }


def test_a_blank_string_is_no_id_no_licence_and_no_date(tmp_path: Path) -> None:
    blanks: list[Record] = [{}, *({"id": v, "license": v, "created_at": v} for v in (None, "", " \t"))]
    records = [{"text": "same", **blank} for blank in blanks]
    write_records(tmp_path / "data/a.jsonl", records)
    write_records(tmp_path / "data/b.parquet", records[1:])
    write_records(tmp_path / "data/c.jsonl", [{**record, "license": [""]} for record in records])
    (tmp_path / "data/d.csv").write_text('text,id,license,created_at\nsame,,,\nsame,"","",""\nsame, , , \n')
    with tarfile.open(tmp_path / "data/e.tar", "w") as archive:
        for number, blank in enumerate(blanks):
            for end, data in (("txt", b"same"), ("json", json.dumps(blank).encode())):
                member = tarfile.TarInfo(f"{number}.{end}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    named = {"files": "data/[abcd]*", "license": "MIT", "fields": {"license": "license"}}
    samples = {"name": "samples", "files": "data/e.tar", "license": "MIT", "webdataset": {"meta": "json"}}
    out = tmp_path / "out"
    mill.run(recipe_of(tmp_path, {}, sources=[{"name": "some", **named}, samples]), out, until="clean")
    rows = {name: load_tables(out / "ingest" / name, "documents") for name in ("some", "samples")}
    found = [row for tables in rows.values() for table in tables for row in table.to_pylist()]
    assert len(found) == 4 + 3 + 4 + 3 + 4
    assert {(row["license_tag"], row["created_at"]) for row in found} == {("MIT", None)}
    (id,) = {row["doc_id"] for row in found[:14]}
    assert re.fullmatch("[0-9a-f]{32}", id)
    assert [row["doc_id"] for row in found[14:]] == ["0", "1", "2", "3"]
    manifest = load_manifest(out / "ingest/some")
    assert manifest.counts["absent"] == {"license_tag": 0, "created_at": 14}
    assert manifest.facts["presence"] == {"records": 14, "fields.license": 0}


def test_a_field_that_every_record_has_is_not_talked_about(tmp_path: Path) -> None:
    write_records(tmp_path / "data/a.jsonl", [RECORD])
    source = {"fields": {"id": "identifier", "meta": ["date"]}, "where": {"language": "en"}}
    done = tokmill("run", recipe_of(tmp_path, source), "--until", "clean")
    assert done.returncode == 0
    assert "records have no" not in done.stderr


def test_a_limit_that_ends_before_the_field_occurs_is_told_and_no_error(tmp_path: Path) -> None:
    records = [{"text": f"{n} {LONG}"} for n in range(900)]  # more than is read at a time
    write_records(tmp_path / "data/a.jsonl", [*records, {"text": "last", "rights": "MIT"}])
    source = {"limit": {"docs": 3}, "fields": {"license": "rights"}}
    done = tokmill("run", recipe_of(tmp_path, source), "--until", "clean", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "records have no `rights`" in done.stderr
    presence = load_manifest(tmp_path / "out/ingest/some").facts["presence"]
    assert presence["fields.license"] == 0 < presence["records"]


def test_a_sample_counts_every_record_that_it_looked_at(tmp_path: Path) -> None:
    write_records(tmp_path / "data/a.jsonl", [{"text": f"{n}", "rights": "MIT"} for n in range(20)])
    write_records(tmp_path / "data/b.jsonl", [{"text": f"more {n}"} for n in range(30)])
    source = {"sample": {"method": "reservoir", "k": 4}, "fields": {"license": "rights"}}
    assert len(milled(tmp_path, source)) == 4
    presence = load_manifest(tmp_path / "out/ingest/some").facts["presence"]
    assert presence == {"records": 50, "fields.license": 20}


def test_the_text_may_be_in_another_file_than_the_first(tmp_path: Path) -> None:
    write_records(tmp_path / "data/a.jsonl", [{"kind": "header", "made": "2024"}])
    write_records(tmp_path / "data/b.jsonl", [{"content": f"text {n}"} for n in range(200)])
    assert len(milled(tmp_path, {})) == 200


# -- what rests on a field is never off in silence -------------------------------------------------


def test_a_language_that_no_field_says_is_told(tmp_path: Path) -> None:
    write_records(tmp_path / "data/a.jsonl", [{"text": "ein deutscher Satz", "lang": "de"}])
    recipe = recipe_of(tmp_path, {}, language={"method": "field", "keep": ["en"]})
    for _ in "ab":  # the second time all is up to date
        done = tokmill("run", recipe, "--until", "clean", "--json")
        assert done.returncode == 0, done.stderr
        (warning,) = json.loads(done.stdout)["warnings"]
        assert warning["what"] == (
            "the language of some is not known, and all of it is kept beside en; say with `fields.language` "
            "which field holds it"
        )


def test_records_that_do_not_say_their_language_are_left_out_and_told(tmp_path: Path) -> None:
    records = [{"text": "one"}, {"text": "two", "lang": "en"}, {"text": "drei", "lang": "de"}]
    write_records(tmp_path / "data/a.jsonl", records)
    source = {"fields": {"language": "lang"}}
    recipe = recipe_of(tmp_path, source, language={"method": "field", "keep": ["en"]})
    done = tokmill("run", recipe, "--until", "clean", "--out", tmp_path / "out")
    assert "1 of 3 records have no `lang`, which `fields.language` names" in done.stderr
    assert [row["text"] for row in documents_of(tmp_path / "out")] == ["two"]


@pytest.mark.parametrize(("unknown", "outcome"), [("train", "they train"), ("drop", "they are dropped")])
def test_documents_that_a_split_by_field_cannot_place_are_told(
    tmp_path: Path, unknown: str, outcome: str
) -> None:
    records = [{"text": f"text {n}", "fold": ["train", "dev", "other"][n % 3]} for n in range(9)]
    write_records(tmp_path / "data/a.jsonl", [*records, {"text": "no fold"}])
    split = {"method": "field", "field": "fold", "values": {"train": ["train"], "valid": ["dev"]}}
    recipe = recipe_of(tmp_path, {"fields": {"meta": ["fold"]}}, split={**split, "unknown": unknown})
    done = tokmill("run", recipe, "--until", "split")
    assert done.returncode == 0, done.stderr
    told = f"split: 4 of 10 documents have no value of `fold` that a split wants (1 none at all): {outcome}"
    assert told in done.stderr


def test_keeping_the_newest_tells_how_many_have_no_date(tmp_path: Path) -> None:
    records = [
        {"text": "same"},
        {"text": "same", "created_at": "2023"},
        {"text": "same", "created_at": "2024"},
    ]
    write_records(tmp_path / "data/a.jsonl", records)
    recipe = recipe_of(tmp_path, {}, dedup={"exact": True, "keep": "newest"})
    done = tokmill("run", recipe, "--until", "dedup", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "1 of 3 documents have no `created_at` and come last in `keep: newest` (1 of some)" in done.stderr
    verdicts = pq.read_table(next((tmp_path / "out/dedup").glob("verdicts-*.parquet")))
    assert verdicts.column("kept").to_pylist() == [False, False, True]


def test_keeping_the_newest_of_documents_without_any_date_is_an_error(tmp_path: Path) -> None:
    write_records(tmp_path / "data/a.jsonl", [{"text": "same", "date": "2024"}, {"text": "same"}])
    recipe = recipe_of(tmp_path, {}, dedup={"exact": True, "keep": "newest"})
    done = tokmill("run", recipe, "--until", "dedup")
    assert done.returncode == 1
    assert "none of 2 documents has a date" in done.stderr
    assert "fields: {created_at: …}" in done.stderr


def test_a_weight_that_no_record_has_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    write_records(tmp_path / "data/a.jsonl", [{"text": f"{n}", "weight": n} for n in range(5)])
    source = {"fields": {"meta": ["wieght"]}, "sample": {"method": "weighted", "k": 2, "weight": "wieght"}}
    done = tokmill("run", recipe_of(tmp_path, source), "--until", "clean")
    assert done.returncode == 1
    assert "did you mean `weight`?" in done.stderr


@pytest.mark.parametrize("key", ["license", "created_at", "meta"])
def test_a_field_that_a_format_does_not_read_is_refused_by_the_recipe(tmp_path: Path, key: str) -> None:
    write_records(tmp_path / "data/a.jsonl", [{"text": "a", "title": "b", "id": "1"}])
    fields = {key: ["x"] if key == "meta" else "x"}
    done = tokmill("run", recipe_of(tmp_path, {"wikipedia": {}, "fields": fields}))
    assert done.returncode == 1
    assert f"fields.{key}" in done.stderr
    assert "is for files of records, not for `wikipedia`" in done.stderr


def test_pairs_are_asked_for_their_licence_and_date_record_by_record(tmp_path: Path) -> None:
    pairs = [
        {"src_text": "the mill", "tgt_text": "le moulin"},
        {
            "src_text": "a river",
            "tgt_text": "une rivière",
            "license_tag": "CC-BY-NC-4.0",
            "created_at": "2024",
        },
        {"pair.en": "spelled so", "pair": {"en": "not this", "fr": "écrit ainsi"}},
    ]
    write_records(tmp_path / "data/a.jsonl", pairs[:2])
    kept = milled(tmp_path, {"parallel": {}, "license": "MIT"})
    assert [(row["license_tag"], row["created_at"]) for row in kept] == [
        ("MIT", None),
        ("CC-BY-NC-4.0", "2024"),
    ]
    shutil.rmtree(tmp_path / "data")
    write_records(tmp_path / "data/a.jsonl", [{"pair": {"en": "in it", "fr": "dedans"}}, pairs[2]])
    kept = milled(tmp_path, {"parallel": {"source_key": "pair.en", "target_key": "pair.fr"}})
    assert [row["text"] for row in kept] == ["in it\ndedans", "spelled so\nécrit ainsi"]


def test_a_benchmark_item_without_the_named_fields_is_an_error_and_not_passed_over(tmp_path: Path) -> None:
    write_records(tmp_path / "data/a.jsonl", [{"text": "a text"}])
    items = [{"question": "What turns all day long by the river?"}, {"prompt": "Another one."}]
    write_records(tmp_path / "bench.jsonl", items)
    against = {"files": "bench.jsonl", "fields": ["question"]}
    done = tokmill("run", recipe_of(tmp_path, {}, dedup={"against": against}), "--until", "dedup")
    assert done.returncode == 1
    assert "item 2 of the benchmark has no `question`" in done.stderr
    against = {"files": "bench.jsonl", "fields": ["question", "prompt", "anwser"]}
    done = tokmill("run", recipe_of(tmp_path, {}, dedup={"against": against}), "--until", "dedup")
    assert "no item of the benchmarks has the field `anwser`" in done.stderr


def test_plain_text_beside_records_is_their_text_and_never_a_null(tmp_path: Path) -> None:
    write_records(tmp_path / "data/a.jsonl", [{"body": "from a record", "rights": "MIT"}])
    (tmp_path / "data/b.txt").write_text("from a file")
    kept = milled(tmp_path, {"fields": {"text": "body", "license": "rights"}, "license": "CC0-1.0"})
    assert [(row["text"], row["license_tag"]) for row in kept] == [
        ("from a record", "MIT"),
        ("from a file", "CC0-1.0"),
    ]
    kept = milled(tmp_path, {"template": "{body} ({rights})", "max_bad_fraction": 1})
    assert [row["text"] for row in kept] == ["from a record (MIT)"]
    ledger = pq.read_table(next((tmp_path / "out/ingest/some").glob("ledger-*.parquet"))).to_pylist()
    assert [(row["reason"], row["detail"]) for row in ledger] == [("missing_field", "no field `body`")]
