"""One JSON array of objects, read as lines are; against Python's own parser."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill
from sources.ingested import ingest
from tokmill.errors import CorruptFile
from tokmill.kernels.jsonarray import ArrayLines
from tokmill.storage import blocks, codecs
from tokmill.storage.records import Kind, Wanted
from written import load_manifest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('"\\[]{},: \n\té\u2028x', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab[,", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
STYLES = st.sampled_from(
    [{}, {"indent": 1}, {"indent": 4}, {"separators": (" , ", " : ")}, {"separators": (",", ":")}]
)


def read(path: Path, limit: int = 1 << 16) -> tuple[list[Any], list[Any]]:
    wanted = [Wanted("v", "v", Kind.JSON, False)]
    batches = list(codecs.read_batches(path, wanted, unit="document", max_record_bytes=limit))
    values = [value for batch in batches for value in batch.table.column("v").to_pylist()]
    return [None if value is None else json.loads(value) for value in values], [
        (bad.offset, bad.reason) for batch in batches for bad in batch.bad
    ]


@settings(deadline=None, max_examples=200)
@given(st.lists(VALUES, max_size=6), STYLES, st.booleans(), st.sampled_from([1, 3, 50, 1 << 20]))
def test_every_element_comes_back_however_it_is_laid_out_and_cut(
    tmp_path_factory, values, style, ascii, block
):
    path = tmp_path_factory.mktemp("array") / "a.json"
    path.write_text(json.dumps([{"v": value} for value in values], ensure_ascii=ascii, **style), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block)
        patch.setattr(blocks, "_SNIFFED_BYTES", block)
        assert read(path) == (values, [])


@settings(deadline=None, max_examples=300)
@given(st.text('[]{},:"\\ \na1', max_size=30), st.integers(0, 30))
def test_whatever_lies_there_keeps_its_length_and_does_not_depend_on_the_cut(text, cut):
    data = text.encode()
    whole, parts = ArrayLines(), ArrayLines()
    spelled = whole.spell(data)
    assert len(spelled) == len(data)
    assert parts.spell(data[:cut]) + parts.spell(data[cut:]) == spelled
    assert parts.awaits == whole.awaits


@settings(deadline=None, max_examples=500)
@given(st.text('[]{},"\\ \n1', max_size=12))
def test_an_array_that_python_refuses_is_refused_or_has_a_bad_record(tmp_path_factory, inside):
    path = tmp_path_factory.mktemp("odd") / "a.json"
    path.write_text(f"[{inside}]", "utf-8")
    try:
        expected = json.loads(f"[{inside}]")
    except ValueError:
        expected = None
    try:
        found, bad = read(path)
    except CorruptFile:
        assert expected is None
        return
    if expected is None:
        assert bad
    else:
        assert len(found) + len(bad) == len(expected)
        assert len(found) == sum(isinstance(value, dict) for value in expected)


def test_a_bad_element_is_quarantined_where_it_lies_and_the_others_are_read(tmp_path):
    lines = [
        '{"text": "a"}',
        '{"text": "b\n"}',
        "7",
        '{"text": NaN}',
        '{"text": "c", "text": "d"}',
        '{"text": "e"}',
    ]
    data = "[\n" + ",\n".join(lines) + "\n]\n"
    (tmp_path / "a.json").write_text(data)
    found = ingest(tmp_path, "a.json")
    assert [row["text"] for row in found.documents] == ["a", "e"]
    assert [(bad.offset, bad.reason) for bad in found.bad] == [
        (data.index(lines[1]), "invalid_json"),
        (data.index(lines[2]), "wrong_type"),
        (data.index(lines[3]), "invalid_json"),
        (data.index(lines[4]), "duplicate_key"),
    ]


def test_an_element_larger_than_is_read_is_quarantined_and_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)
    array = [{"v": 1}, {"v": "x" * 70_000}, {"v": [2] * 50}]
    (tmp_path / "a.json").write_text(json.dumps(array, indent=2))
    found, bad = read(tmp_path / "a.json")
    assert found == [1, [2] * 50]
    assert [reason for _, reason in bad] == ["too_large"]


@pytest.mark.parametrize("data", [b'[{"text": "a"}', b'[{"text": "a"},', b"[", b'[{"text": "a'])
def test_an_array_that_does_not_end_is_an_error_not_a_short_file(tmp_path, data):
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(CorruptFile, match="does not end"):
        read(tmp_path / "a.json")


def test_something_after_the_array_is_an_error(tmp_path):
    (tmp_path / "a.json").write_bytes(b'[{"text": "a"}]\n[{"text": "b"}]')
    with pytest.raises(CorruptFile, match="more after the end"):
        read(tmp_path / "a.json")


@pytest.mark.usefixtures("forked_workers")
def test_lines_in_a_json_file_are_lines_and_are_split_among_workers(tmp_path):
    rows = [{"text": f"text {n} " * 30, "id": str(n)} for n in range(3000)]
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.json").write_text(json.dumps(rows))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(json.dumps(rows, indent=1).encode()))
    assert (
        len(codecs.split_file(tmp_path / "a.json", (tmp_path / "a.json").stat().st_size, "line", 65536)) > 5
    )
    digests = set()
    for name in ("a.json", "b.json", "c.json.gz"):
        for workers in (1, 3):
            recipe = {
                "name": "r",
                "shards": {"megabytes": 1},
                "sources": [{"name": "s", "files": str(tmp_path / name)}],
            }
            tokmill.run(recipe, tmp_path / f"{name}-{workers}", workers=workers, until="ingest/s")
            manifest = load_manifest(tmp_path / f"{name}-{workers}/ingest/s")
            assert manifest.counts["kept"] == 3000
            digests.add(manifest.facts["corpus_digest"])
    assert len(digests) == 1


def test_a_byte_order_mark_before_an_array_is_no_part_of_it(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf \n[{"text": "a"}]')
    assert [row["text"] for row in ingest(tmp_path, "a.json").documents] == ["a"]
