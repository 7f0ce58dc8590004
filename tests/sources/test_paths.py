"""Paths into records, and lists where a text or a licence is expected: of lines, of columns and of Arrow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sources.ingested import Ingested, ingest
from tokmill import Source
from tokmill.clean.license_policy import judge_licenses, make_policy
from tokmill.errors import InputError

RECORDS: list[dict[str, Any]] = [
    {
        "n": n,
        "messages": [{"role": "user", "content": f"why {n}?"}, {"role": "assistant", "content": f"so {n}"}],
        "info": {
            "source": {"id": f"d{n}", "lang": "en" if n % 2 else "fr", "license": "MIT"},
            "score": n / 2,
        },
    }
    for n in range(6)
]
KINDS = ("jsonl", "json", "parquet", "arrow")


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif path.suffix == ".json":
        path.write_text(json.dumps(records, indent=1))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        table = pa.Table.from_pylist(records)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return path


def read(base: Path, kind: str, records: list[dict[str, Any]], **section: Any) -> Ingested:
    write(base / f"a.{kind}", records)
    return ingest(base, f"a.{kind}", **section)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_where_and_meta_follow_paths(tmp_path, kind):
    found = read(
        tmp_path,
        kind,
        RECORDS,
        fields={
            "text": "messages[0].content",
            "id": "info.source.id",
            "license": "info.source.license",
            "meta": ["info.score", "messages[-1].role"],
        },
        where={"info.source.lang": "en"},
    )
    assert found.bad == []
    assert [
        (row["text"], row["doc_id"], row["license_tag"], json.loads(row["meta"])) for row in found.documents
    ] == [
        (f"why {n}?", f"d{n}", "MIT", {"info.score": n / 2, "messages[-1].role": "assistant"})
        for n in (1, 3, 5)
    ]
    assert [drop.reason for drop in found.dropped] == ["other_info.source.lang"] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_follows_paths(tmp_path, kind):
    found = read(
        tmp_path, kind, RECORDS, template="{n}. {messages[0].content} {messages[-1].content} {info.score}"
    )
    assert [row["text"] for row in found.documents] == [f"{n}. why {n}? so {n} {n / 2}" for n in range(6)]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_path_into_columns_gives_what_it_gives_in_lines(tmp_path, kind):
    schema = pa.schema(
        [
            (
                "info",
                pa.struct(
                    [("b.c", pa.string()), ("b", pa.struct([("c", pa.string())])), ("n", pa.float64())]
                ),
            ),
            ("list", pa.list_(pa.struct([("t", pa.string())]))),
        ]
    )
    records: list[dict[str, Any]] = [
        {"info": {"b.c": "half", "b": {"c": "steps"}, "n": 1.0}, "list": [{"t": "x"}]},
        {"info": {"b.c": None, "b": {"c": "steps"}, "n": 2.5}, "list": []},
        {"info": None, "list": None},
    ]
    table = pa.Table.from_pylist(records, schema)
    if kind == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_table(table)
    write(tmp_path / "b.jsonl", records)
    for text in ("info.b.c", "info.b", "info.n", "list[0].t"):
        section: dict[str, Any] = {"fields": {"text": text, "meta": ["info.n", "list[0].t", "info"]}}
        columns, lines = ingest(tmp_path, f"a.{kind}", **section), ingest(tmp_path, "b.jsonl", **section)
        assert [(row["text"], json.loads(row["meta"])) for row in columns.documents] == [
            (row["text"], json.loads(row["meta"])) for row in lines.documents
        ]
        assert [bad.reason for bad in columns.bad] == [bad.reason for bad in lines.bad]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_at_a_path_is_held_to_the_size_of_a_record(tmp_path, kind):
    records = [{"info": {"t": "a" * size}} for size in (10, 5000)]
    found = read(tmp_path, kind, records, fields={"text": "info.t"}, max_record_bytes=1024)
    assert [len(row["text"]) for row in found.documents] == [10]
    assert [bad.reason for bad in found.bad] == ["too_large"]


def test_a_key_that_is_spelled_like_a_path_is_itself_and_so_is_one_within(tmp_path):
    records = [{"a.b.c": "whole"}, {"a": {"b.c": "half"}}, {"a": {"b": {"c": "steps"}}}]
    found = read(tmp_path, "jsonl", records, fields={"text": "a.b.c"})
    assert [row["text"] for row in found.documents] == ["whole", "half", "steps"]


def test_a_record_whose_path_leads_nowhere_is_bad_where_it_lies(tmp_path):
    records: list[dict[str, Any]] = [
        {"m": [{"c": "a"}]}, {"m": []}, {"m": [{}]}, {"m": [{"c": None}]}, {"m": {"c": "a"}},
        {"m": [["c"]]}, {"m": [{"c": 3}]}, {},
    ]  # fmt: skip
    found = read(tmp_path, "jsonl", records, fields={"text": "m[0].c"})
    assert [row["text"] for row in found.documents] == ["a"]
    assert [(bad.reason, bad.detail) for bad in found.bad] == [
        *[("missing_field", "no text at `m[0].c`")] * 3,
        ("wrong_type", "`m[0].c`: an object where [0] needs a list"),
        ("wrong_type", "`m[0].c`: a list where `c` needs an object"),
        ("wrong_type", "`m[0].c`: Expected `str`, got `int`"),
        ("missing_field", "no text at `m[0].c`"),
    ]
    sizes = [len(json.dumps(record)) + 1 for record in records]
    assert [bad.offset for bad in found.bad] == [sum(sizes[:n]) for n in range(1, 8)]


def test_an_optional_path_that_leads_nowhere_is_no_value(tmp_path):
    records = [{"text": "a", "info": {"id": 7}}, {"text": "b", "info": {}}, {"text": "c"}]
    found = read(tmp_path, "jsonl", records, fields={"id": "info.id"})
    assert [len(row["doc_id"]) for row in found.documents] == [1, 32, 32]


def test_a_path_that_no_record_has_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"`info\.source\.url`, and no record has it"):
        read(tmp_path, "jsonl", RECORDS, fields={"text": "messages[0].content", "id": "info.source.url"})
    with pytest.raises(InputError, match="the first records have no field `mesages"):
        read(tmp_path, "jsonl", RECORDS, fields={"text": "mesages[0].content"})


@pytest.mark.parametrize(
    "template", ["{0.a}", "{0[1]}", "{a.__class__}", "{a[b]}", "{a[0].__x__}", "{a!r}", "{a:>5}"]
)
def test_what_looks_like_an_attribute_is_refused(template):
    with pytest.raises(ValueError, match="must be a field name"):
        Source(name="s", files=["a.jsonl"], template=template)


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_texts_is_one_text_with_a_line_for_each(tmp_path, kind):
    records = [{"text": ["one", "two é"]}, {"text": ["three"]}, {"text": []}]
    found = read(tmp_path, kind, records)
    assert [row["text"] for row in found.documents] == ["one\ntwo é", "three", ""]


def test_lists_and_strings_may_be_mixed_and_lists_of_anything_else_are_bad(tmp_path):
    records = [
        {"text": "a"},
        {"text": ["b", "c"]},
        {"text": ["d", 1]},
        {"text": [["e"]]},
        {"text": ["f", None]},
    ]
    found = read(tmp_path, "jsonl", records)
    assert [row["text"] for row in found.documents] == ["a", "b\nc"]
    assert [bad.reason for bad in found.bad] == ["wrong_type", "wrong_type", "missing_field"]


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_list_of_licences_all_must_be_allowed(tmp_path, kind):
    lists = [
        ["MIT"],
        ["MIT", "GPL-3.0-only"],
        ["MIT OR GPL-3.0-only", "Apache-2.0"],
        ["MIT", "who knows"],
        [],
    ]
    found = read(tmp_path, kind, [{"text": "a", "license": licenses} for licenses in lists])
    tags = [row["license_tag"] for row in found.documents]
    assert tags == [
        "MIT",
        "MIT AND GPL-3.0-only",
        "(MIT OR GPL-3.0-only) AND Apache-2.0",
        "MIT AND who knows",
        None,
    ]
    judged = judge_licenses(pa.array(tags), make_policy(allow=["MIT", "Apache-2.0"]))
    assert judged.reason.to_pylist() == [
        None, "license_not_allowed", None, "license_unknown", "license_unknown",
    ]  # fmt: skip
