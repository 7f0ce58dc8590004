"""What damaged files once made readers do, each as the least that does it: refused now, by a TokmillError."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokmill
from faults.readers import source
from tokmill.errors import TokmillError
from tokmill.formats.index import RowSpans, read_row_index, write_row_index
from tokmill.formats.memmap import MemmapRows
from tokmill.formats.npy import NpyRows
from tokmill.formats.parquet import load_shards
from tokmill.formats.token_cache import TokenCache
from tokmill.loader import open_dataset
from tokmill.storage.tables import load_table
from tokmill.tokenizers.load import load_tokenizer
from written import write_shards


@pytest.mark.parametrize("content", [b'{"seq_len": "\xff"}', b'{"seq_len":' * 100_000])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("meta.json", MemmapRows),
        ("meta.json", NpyRows),
        ("meta.json", load_shards),
        ("ENCODE.meta.json", lambda directory: TokenCache(directory)),
    ],
    ids=["memmap", "npy", "parquet", "token_cache"],
)
def test_a_description_that_is_no_utf8_or_too_deep_is_refused(
    tmp_path: Path, name: str, content: bytes, read: Callable[[Path], object]
) -> None:
    (tmp_path / "input_ids.mmap").write_bytes(b"\0" * 16)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokmillError):
        read(tmp_path)


@pytest.mark.parametrize("key", ["eos_id", "pad_id", "vocab_size"])
@pytest.mark.parametrize("value", [1 << 40, -1, "0", 1.5, True])
def test_an_id_that_cannot_be_one_is_refused_before_a_batch_is_made(
    tmp_path: Path, key: str, value: object
) -> None:
    facts = {"eos_id": 0, "pad_id": 0, "vocab_size": 9, key: value}
    write_shards(tmp_path, np.ones((4, 8)), 4, facts)
    with pytest.raises(TokmillError, match=key):
        open_dataset(tmp_path)


def test_a_saved_dataset_that_names_a_file_no_system_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text("{}")
    for name in ("x" * 300, "é" * 128, "/".join(["x" * 200] * 30)):
        (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(TokmillError, match="no file of this directory"):
            source()(tmp_path)


def test_a_tokenizer_whose_name_is_too_long_for_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokmillError, match="too long"):
        load_tokenizer(tmp_path / ("x" * 300))


@pytest.mark.parametrize("key", ["bos_token", "chat_template"])
def test_half_a_character_in_the_configuration_of_a_tokenizer_is_refused(tmp_path: Path, key: str) -> None:
    pytest.importorskip("jinja2")
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}')
    config = {"chat_template": "{{ messages[0].content }}", key: "\ud800"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokmillError, match="half of a surrogate pair"):
        source(chat={"template": str(tmp_path)})(tmp_path / "a.jsonl")


def test_a_template_where_its_path_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}')
    with pytest.raises(TokmillError, match="the path of one is needed"):
        source(chat={"template": "{% for m in messages %}" + "x" * 300})(tmp_path / "a.jsonl")


def test_an_index_whose_table_has_lost_its_frames_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.jsonl.zst"
    numbers = np.arange(3)
    spans = RowSpans(numbers, numbers, 0 * numbers, 0 * numbers + 4, 0 * numbers)
    write_row_index(path, spans, ["a", "b", "c"], ["s"] * 3)
    assert len(list(read_row_index(path))) == 3
    data = path.read_bytes()
    path.write_bytes(data[:-9] + b"\0\0\0\0" + data[-5:])  # a table of no frames
    with pytest.raises(TokmillError, match="other frames than it has"):
        list(read_row_index(path))


def test_an_index_of_no_rows_is_read(tmp_path: Path) -> None:
    write_row_index(tmp_path / "index.jsonl.zst", [], [], [])
    assert list(read_row_index(tmp_path / "index.jsonl.zst")) == []


def test_a_working_shard_with_a_column_whose_name_is_no_utf8_is_refused(tmp_path: Path) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"abcd": [1, 2]}), sink, store_schema=False)
    (tmp_path / "a.parquet").write_bytes(sink.getvalue().replace(b"abcd", b"\xff\xfe\xfd\xfc"))
    with pytest.raises(TokmillError):
        load_table(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "section"),
    [
        ("Posts.xml", '<?xml version="1.0" encoding="null8"?>\n<posts></posts>', "stackexchange"),
        ("dump.xml", '<?xml version="1.0" encoding="null8"?>\n<mediawiki></mediawiki>', "wikipedia"),
    ],
)
def test_an_encoding_that_nobody_knows_is_refused(
    tmp_path: Path, name: str, content: str, section: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TokmillError):
        source(**{section: {}})(tmp_path / name)


@pytest.mark.parametrize(
    "dataset",
    [{"name": "a", "files": "a.jsonl", "template": "{q} a}"}, {"name": "a", "dataset": "../../a b"}],
    ids=["template", "name of a dataset"],
)
def test_a_mistake_in_a_mixture_is_told_with_its_line(tmp_path: Path, dataset: dict[str, str]) -> None:
    path = tmp_path / "mixture.yaml"
    path.write_text(json.dumps({"datasets": [dataset]}))
    with pytest.raises(TokmillError, match="line 1: "):
        tokmill.tokenizer_train(manifest=path, out=tmp_path / "tok")


def test_a_note_beside_a_lock_that_is_no_utf8_is_no_holder(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b'{"pid": 1, "host": "\xff"}')
    recipe = {"name": "r", "sources": [{"name": "s", "data": [{"text": "x"}]}]}
    assert tokmill.run(recipe, tmp_path, workers=1, until="ingest").ran == ["ingest/s"]
    assert not (tmp_path / ".lock").exists()
