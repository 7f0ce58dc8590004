from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sources.ingested import Bad, ingest, ingest_source
from tokmill import Source
from tokmill.errors import EmptyGlob, InputError
from tokmill.schema import DOCUMENTS
from tokmill.sources.readers import Chunks, list_source, read_documents, resolve_reading
from written import file_sha256

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def write_lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records), encoding="utf-8"
    )
    return path


def load(base: Path, files: str | list[str] = "*.jsonl", **settings: Any) -> tuple[pa.Table, list[Bad]]:
    """Every document of a source, and what could not become one."""
    found = ingest(base, files, **settings)
    assert found.dropped == []
    return found.table, found.bad


def read_in_chunks(base: Path, target_bytes: int) -> pa.Table:
    """By the reader alone, in pieces of any size."""
    source = Source(name="s", files=["*.jsonl"])
    files = list_source(source, base)
    reading = resolve_reading(source, files, Path())
    batches = [
        batch
        for file, span in Chunks(files, reading, target_bytes)
        for batch in read_documents(file.path, file.name, span, reading)
    ]
    assert not any(batch.bad for batch in batches)
    return pa.concat_tables([DOCUMENTS.empty_table(), *(batch.documents for batch in batches)])


def load_one(base: Path, record: Any, **settings: Any) -> dict[str, Any]:
    write_lines(base / "a.jsonl", record)
    table, bad = load(base, **settings)
    assert bad == []
    (row,) = table.to_pylist()
    return row


# -- which files -----------------------------------------------------------------------------------


def texts_in_order(base: Path, files: str | list[str]) -> list[str]:
    return load(base, files)[0]["text"].to_pylist()


def test_patterns_keep_their_order_and_files_are_sorted_within_each(tmp_path):
    for name in ("b/2.jsonl", "b/1.jsonl", "a/3.jsonl"):
        write_lines(tmp_path / name, {"text": name})
    assert texts_in_order(tmp_path, ["b/*.jsonl", "a/*.jsonl"]) == ["b/1.jsonl", "b/2.jsonl", "a/3.jsonl"]


def test_a_file_that_two_patterns_match_is_read_once(tmp_path):
    write_lines(tmp_path / "data" / "a.jsonl", {"text": "a"})
    write_lines(tmp_path / "data" / "b.jsonl", {"text": "b"})
    (tmp_path / "data" / "link.jsonl").symlink_to("a.jsonl")
    files = ["data/b.jsonl", "data/*.jsonl", "./data/../data/a.jsonl", f"{tmp_path}/data/*"]
    assert texts_in_order(tmp_path, files) == ["b", "a"]


def test_of_equal_names_in_two_directories_the_later_shows_as_much_of_its_path_as_tells_them_apart(tmp_path):
    names = ("x/en/a.jsonl", "x/fr/a.jsonl", "y/fr/a.jsonl", "y/fr/b.jsonl")
    for name in names:
        write_lines(tmp_path / name, {"text": name})
    digests = {name: file_sha256(tmp_path / name) for name in names}
    two = ingest(tmp_path, ["x/en/*.jsonl", "x/fr/*.jsonl"])
    assert two.inputs == {
        "a.jsonl": digests["x/en/a.jsonl"],
        "fr/a.jsonl": digests["x/fr/a.jsonl"],
    }
    three = ingest(tmp_path, ["x/en/*.jsonl", "x/fr/*.jsonl", "y/fr/*.jsonl"])
    shown = ("a.jsonl", "fr/a.jsonl", "y/fr/a.jsonl", "b.jsonl")
    assert three.inputs == {
        **{short: digests[name] for short, name in zip(shown, names, strict=True)},
        "order of files": ", ".join(shown),  # not that of the names
    }
    assert three.table["text"].to_pylist() == [*names]


def test_a_pattern_at_the_end_renames_no_file_and_links_say_nothing_of_where_they_lead(tmp_path, monkeypatch):
    """Of texts, whose ids are the names of their files."""
    for target in ("m1/deep", "m2/deep", "z/a"):
        (tmp_path / target).mkdir(parents=True)
        (tmp_path / target / "a.txt").write_text(f"text of {target}")
    for name, target in (("first", "m1/deep"), ("second", "m2/deep")):
        (tmp_path / name).symlink_to(tmp_path / target)
    (tmp_path / "a").symlink_to(tmp_path / "m3")
    (tmp_path / "m3").mkdir()
    (tmp_path / "m3/a.txt").write_text("text of m3")
    monkeypatch.chdir(tmp_path)
    patterns = ["first/*.txt", "second/*.txt", "z/*/a.txt", "./a/a.txt"]
    found: list[tuple[str, str]] = []
    for count in range(1, 5):
        before = found
        found = [(row["doc_id"], row["text"]) for row in ingest_source(files=patterns[:count]).documents]
        assert found[:-1] == before
    # `a/a.txt` is taken as well
    assert found == [
        ("a.txt", "text of m1/deep"),
        ("second/a.txt", "text of m2/deep"),
        ("a/a.txt", "text of z/a"),
        ("./a/a.txt", "text of m3"),
    ]


def test_a_pattern_that_matches_nothing_is_an_error_even_beside_one_that_does(tmp_path):
    write_lines(tmp_path / "a.jsonl", {"text": "a"})
    with pytest.raises(EmptyGlob) as caught:
        load(tmp_path, ["*.jsonl", "*.parquet"])
    assert caught.value.where.endswith(f"sources[0].files[1]: {tmp_path}/*.parquet")


def test_a_file_of_an_unknown_format_is_an_error_and_not_passed_over(tmp_path):
    write_lines(tmp_path / "a.jsonl", {"text": "a"})
    (tmp_path / "b.xlsx").write_text("a,b\n")
    with pytest.raises(InputError, match=r"no reader for the suffix \.xlsx") as caught:
        load(tmp_path, "*")
    assert caught.value.where.endswith(f"sources[0].files: {tmp_path / 'b.xlsx'}")


# -- which fields ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "settings", "expected"),
    [
        ({"text": "t", "content": "c"}, {}, "t"),
        ({"body": "b", "content": "c"}, {}, "c"),
        ({"body": "b", "text": "t"}, {"fields": {"text": "body"}}, "b"),
        ({"q": "Q", "a": "A"}, {"template": "{q} -> {a}"}, "Q -> A"),
    ],
    ids=["text first", "then content", "named", "template"],
)
def test_the_text_comes_from(tmp_path, record, settings, expected):
    assert load_one(tmp_path, record, **settings)["text"] == expected


@pytest.mark.parametrize(
    ("record", "settings", "expected"),
    [
        ({"id": "i", "doc_id": "d"}, {}, "i"),
        ({"doc_id": "d", "url": "u"}, {}, "d"),
        ({"id": "i", "url": "u"}, {"fields": {"id": "url"}}, "u"),
        ({"id": 7}, {}, "7"),
        ({"id": 123456789012345678901234567890}, {}, "123456789012345678901234567890"),
        ({"id": 1.5}, {}, "1.5"),
        ({"id": True}, {}, "true"),
    ],
    ids=["id first", "then doc_id", "named", "int", "large int", "float", "bool"],
)
def test_the_id_comes_from(tmp_path, record, settings, expected):
    assert load_one(tmp_path, {"text": "t", **record}, **settings)["doc_id"] == expected


@pytest.mark.parametrize(
    ("record", "settings", "expected"),
    [
        ({"license": "MIT", "license_tag": "X"}, {}, "MIT"),
        ({"license_tag": "MIT"}, {}, "MIT"),
        ({"rights": "MIT", "license": "X"}, {"fields": {"license": "rights"}}, "MIT"),
        ({}, {"license": "CC0-1.0"}, "CC0-1.0"),
        ({"license": "MIT"}, {"license": "CC0-1.0"}, "MIT"),
        ({"license": None}, {"license": "CC0-1.0"}, "CC0-1.0"),
        ({}, {}, None),
    ],
    ids=[
        "license first",
        "then license_tag",
        "named",
        "the source's",
        "its own wins",
        "null is none",
        "none",
    ],
)
def test_the_license_comes_from(tmp_path, record, settings, expected):
    assert load_one(tmp_path, {"text": "t", **record}, **settings)["license_tag"] == expected


def test_each_document_of_a_source_keeps_its_own_license(tmp_path):
    write_lines(
        tmp_path / "a.jsonl", {"text": "a", "license": "MIT"}, {"text": "b"}, {"text": "c", "license": None}
    )
    table, _ = load(tmp_path, license="CC0-1.0")
    assert table["license_tag"].to_pylist() == ["MIT", "CC0-1.0", "CC0-1.0"]


@pytest.mark.parametrize(
    ("record", "settings", "expected"),
    [
        ({"created_at": "2024-01-02"}, {}, "2024-01-02"),
        ({"date": "2024"}, {}, None),
        ({"date": 2024}, {"fields": {"created_at": "date"}}, "2024"),
    ],
    ids=["created_at", "not date", "named"],
)
def test_the_date_comes_from(tmp_path, record, settings, expected):
    assert load_one(tmp_path, {"text": "t", **record}, **settings)["created_at"] == expected


def test_source_and_domain_are_on_every_document(tmp_path):
    row = load_one(tmp_path, {"text": "t", "source": "theirs", "domain": "theirs"}, domain="web")
    assert (row["source"], row["domain"]) == ("s", "web")


def test_meta_is_an_object_of_the_named_fields_in_recipe_order(tmp_path):
    records = [
        {"text": "a", "z": {"k": [1, "é"]}, "a b": 'say "x"', "other": 1},
        {"text": "b", "a b": None, "z": 0},
        {"text": "c"},
    ]
    write_lines(tmp_path / "a.jsonl", *records)
    table, bad = load(tmp_path, fields={"meta": ["z", "a b"]})
    assert bad == []
    kept = [json.loads(meta) for meta in table["meta"].to_pylist()]
    assert kept == [{"z": {"k": [1, "é"]}, "a b": 'say "x"'}, {"z": 0}, {}]
    assert list(kept[0]) == ["z", "a b"]


@pytest.mark.parametrize(
    ("record", "named", "expected"),
    [
        ({"meta": {"k": 1}}, [], {"k": 1}),
        ({"k": 1}, [], None),
        ({"meta": None}, [], None),
        ({"meta": {"k": 1}, "lang": "en"}, ["lang"], {"k": 1, "lang": "en"}),
        ({"meta": {"lang": "fr", "k": 1}, "lang": "en"}, ["lang"], {"lang": "en", "k": 1}),
        ({"meta": {"lang": "fr"}}, ["lang"], {"lang": "fr"}),
        ({"meta": {"k": 1}}, ["meta"], {"meta": {"k": 1}}),
        ({"meta": '{"k": 1}'}, [], {"k": 1}),
        ({"meta": "web"}, [], {"meta": "web"}),
        ({"meta": [1, 2]}, [], {"meta": [1, 2]}),
        ({"meta": '{"k": 1, "k": 2}'}, [], {"meta": '{"k": 1, "k": 2}'}),
        ({"meta": '{\n "k": 1\n}'}, [], {"k": 1}),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_the_meta_of_a_record_is_its_own_object_and_what_the_recipe_adds(
    tmp_path, suffix, record, named, expected
):
    record = {"text": "t", **record}
    if suffix == "jsonl":
        write_lines(tmp_path / "a.jsonl", record)
    else:
        pq.write_table(pa.Table.from_pylist([record]), tmp_path / "a.parquet")
    table, bad = load(tmp_path, f"a.{suffix}", fields={"meta": named})
    assert bad == []
    (meta,) = table["meta"].to_pylist()
    assert (meta if meta is None else json.loads(meta)) == expected
    assert "\n" not in (meta or "")


def test_a_field_may_serve_more_than_once(tmp_path):
    row = load_one(
        tmp_path,
        {"id": 7, "question": "Why?", "license": "MIT"},
        template="{id}. {question} ({id})",
        fields={"meta": ["id", "license", "question", "id"]},
    )
    assert row["text"] == "7. Why? (7)"
    assert row["doc_id"] == "7"
    assert row["license_tag"] == "MIT"
    assert json.loads(row["meta"]) == {"id": 7, "license": "MIT", "question": "Why?"}


def test_a_file_without_any_record_says_nothing_about_the_fields(tmp_path):
    (tmp_path / "0.jsonl").write_text("\n")
    write_lines(tmp_path / "1.jsonl", {"content": "a", "id": "x", "license": "MIT"})
    table, bad = load(tmp_path)
    assert bad == []
    assert [(row["text"], row["doc_id"], row["license_tag"]) for row in table.to_pylist()] == [
        ("a", "x", "MIT")
    ]


def test_files_without_any_record_settle_on_the_usual_fields(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    assert read_in_chunks(tmp_path, 1 << 30).num_rows == 0
    with pytest.raises(InputError, match="the file is empty"):  # and so a run has nothing to do
        load(tmp_path)


@pytest.mark.parametrize(
    ("record", "settings", "what", "hint"),
    [
        ({"txt": "a", "id": 1}, {}, "no field `text`; they have id, txt", "did you mean `txt`?"),
        ({"body": "a"}, {}, "no field `text`; they have body", "set `fields"),
        (
            {"title": "a", "text": "b"},
            {"fields": {"text": "titel"}},
            "no field `titel`; they have text, title",
            "did you mean `title`?",
        ),
        (
            {"question": "a", "answer": "b"},
            {"template": "{question} {anwser}"},
            "no field `anwser`; they have answer, question",
            "did you mean `answer`?",
        ),
    ],
    ids=["near", "not near", "named", "template"],
)
def test_a_field_that_is_not_there_is_an_error_with_what_is(tmp_path, record, settings, what, hint):
    path = write_lines(tmp_path / "a.jsonl", record)
    with pytest.raises(InputError) as caught:
        load(tmp_path, **settings)
    assert what in caught.value.what
    assert "source `s`" in caught.value.what
    assert caught.value.where.endswith(f": {path}")
    assert hint in caught.value.next


def test_a_record_without_the_field_is_bad_where_the_first_had_it(tmp_path):
    write_lines(tmp_path / "a.jsonl", {"q": "Q", "a": "A"}, {"q": "Q"}, {"q": "R", "a": "B"})
    table, bad = load(tmp_path, template="{q}{a}")
    assert table["text"].to_pylist() == ["QA", "RB"]
    assert [(record.offset, record.reason) for record in bad] == [(21, "missing_field")]


@pytest.mark.parametrize(
    ("template", "record", "expected"),
    [
        ("{a}", {"a": "x"}, "x"),
        ("{{{a}}} {{}} }}", {"a": "x"}, "{x} {} }"),
        ("{a}{b}{a}", {"a": "x", "b": ""}, "xx"),
        ("a {n} {f} {t}", {"n": 3, "f": 2.50, "t": True}, "a 3 2.5 true"),
        ("{n}", {"n": 10**30}, "1" + "0" * 30),
        ("{the key}\n", {"the key": "é\u2028{a}"}, "é\u2028{a}\n"),
        ("{ä}", {"ä": "x"}, "x"),
    ],
    ids=["one", "braces", "twice", "numbers", "large", "braces in a value", "letters"],
)
def test_a_template_is_filled(tmp_path, template, record, expected):
    assert load_one(tmp_path, record, template=template)["text"] == expected


def test_a_template_is_filled_alike_from_every_format(tmp_path):
    records = [{"q": f"q {n}", "n": n, "f": n / 4} for n in range(5)]
    write_lines(tmp_path / "a.jsonl", *records)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    settings = {"template": "{q}: {n} ({f})"}
    from_lines, _ = load(tmp_path, "a.jsonl", **settings)
    from_columns, _ = load(tmp_path, "a.parquet", **settings)
    assert from_lines["text"].to_pylist() == [f"q {n}: {n} ({n / 4})" for n in range(5)]
    assert from_columns.equals(from_lines)


def test_a_template_over_a_null_is_bad_in_every_format(tmp_path):
    records = [{"q": "a", "n": 1}, {"q": "b", "n": None}]
    write_lines(tmp_path / "a.jsonl", *records)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        table, bad = load(tmp_path, name, template="{q}{n}")
        assert table["text"].to_pylist() == ["a1"]
        assert len(bad) == 1


# -- ids of documents that have none ---------------------------------------------------------------


def test_a_derived_id_is_that_of_the_text_and_of_nothing_else(tmp_path):
    for name in ("1/a.jsonl", "2/b.jsonl"):
        write_lines(
            tmp_path / name, {"text": "same", "n": name}, {"text": f"only in {name}"}, {"text": "same"}
        )
    table, _ = load(tmp_path, "*/*.jsonl")
    ids = table["doc_id"].to_pylist()
    assert ids[0] == ids[2] == ids[3] == ids[5]
    assert len(set(ids)) == 3
    other, _ = load(tmp_path, "2/b.jsonl", domain="web", license="MIT")
    assert other["doc_id"].to_pylist() == ids[3:]


def derived_ids(base: Path, *texts: str) -> list[str]:
    """Of records that have a text and nothing else."""
    write_lines(base / "derived.jsonl", *({"text": text} for text in texts))
    return load(base, "derived.jsonl")[0]["doc_id"].to_pylist()


def test_derived_ids_are_these_forever(tmp_path):
    assert derived_ids(tmp_path, "", "a", "é") == GOLDEN_IDS


GOLDEN_IDS = [
    "5a944f847be006275cc4fc84d9bf1672",
    "797ec76d08c8c4432c16ef055d6ec06c",
    "3750d27ba48f8788add9833ebc9b120d",
]


def test_ids_are_equal_where_texts_are(tmp_path):
    pieces = ["a", "b", " ", "\n", "\0", "é", "e\u0301", "\u2028", "漢", "🙂"]
    texts = ["".join(some) for size in range(4) for some in itertools.product(pieces, repeat=size)]
    texts += [*reversed(texts)]
    ids = derived_ids(tmp_path, *texts)
    first = {text: row for row, text in reversed([*enumerate(texts)])}
    assert all(len(id) == 32 and set(id) <= set("0123456789abcdef") for id in ids)
    earliest = {id: row for row, id in reversed([*enumerate(ids)])}
    assert [earliest[id] for id in ids] == [first[text] for text in texts]


def test_a_record_without_an_id_among_others_gets_a_derived_one(tmp_path):
    write_lines(tmp_path / "a.jsonl", {"text": "a", "id": "x"}, {"text": "b"}, {"text": "c", "id": None})
    table, _ = load(tmp_path)
    assert table["doc_id"].to_pylist() == ["x", *derived_ids(tmp_path, "b", "c")]


def test_a_plain_text_document_is_called_after_its_file(tmp_path):
    for name in ("data/x/a.txt", "data/b.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}\n")
    table, _ = load(tmp_path, ["data/**/*.txt", "data/*.md"])
    assert [(row["doc_id"], row["text"]) for row in table.to_pylist()] == [
        ("x/a.txt", "text of data/x/a.txt\n"),
        ("b.md", "text of data/b.md\n"),
    ]


def test_paragraphs_of_a_text_have_ids_of_their_own(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\none\n")
    table, _ = load(tmp_path, "a.txt", unit="paragraph", license="MIT")
    ids = table["doc_id"].to_pylist()
    assert ids == derived_ids(tmp_path, "one", "two", "one")
    assert table["license_tag"].to_pylist() == ["MIT"] * 3


# -- one content, many forms -----------------------------------------------------------------------


def test_the_documents_do_not_depend_on_chunks(tmp_path):
    write_lines(tmp_path / "a.jsonl", *({"text": f"text {n} " * (n % 9), "id": n} for n in range(200)))
    whole, _ = load(tmp_path)
    assert whole.num_rows == 200
    for target_bytes in (100, 1000, 10_000):
        assert read_in_chunks(tmp_path, target_bytes).equals(whole)


@pytest.mark.skipif(not (DATA / "formats").is_dir(), reason="the shared test data is not here")
def test_real_documents_have_one_digest_in_every_format():
    raw = [
        json.loads(line) for line in (DATA / "formats" / "docs300.jsonl").read_bytes().split(b"\n") if line
    ]
    found = [
        ingest(DATA, f"formats/docs300.{suffix}", domain="web")
        for suffix in ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")
    ]
    table = found[0].table
    assert table.num_rows == len(raw)
    assert all(other.bad == [] and other.table.equals(table) for other in found)
    assert len({other.corpus_digest for other in found}) == 1
    assert [(row["doc_id"], row["text"], row["license_tag"]) for row in table.to_pylist()] == [
        (record["id"], record["text"], record["license"]) for record in raw
    ]


def test_bad_records_of_every_format_are_counted_beside_the_documents(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text":"a"}\n{"text":1}\n{"text":"\xff"}\n'))
    pq.write_table(pa.table({"text": ["b", None]}), tmp_path / "b.parquet")
    (tmp_path / "c.txt").write_bytes(b"\xff")
    table, bad = load(tmp_path, "*")
    assert table["text"].to_pylist() == ["a", "b"]
    assert [(record.offset, record.reason) for record in bad] == [
        (13, "wrong_type"),
        (24, "invalid_utf8"),
        (1, "missing_field"),
        (0, "invalid_utf8"),
    ]
