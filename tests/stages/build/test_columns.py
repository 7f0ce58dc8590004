"""Columns for transformers in Parquet: rebuilt place by place from the ids and the row index alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokmill as mill
from mill import small_corpus
from tokmill.errors import RecipeError
from tokmill.loader import Batches, open_dataset
from written import load_manifest, read_row_index

LAYOUTS = {
    "concat": {"length": 48, "tail": "pad"},
    "document": {"length": 48},
    "best_fit": {"length": 48, "mix_domains": True},
    "pad": {"length": 32},
    "indexed": {},
}
THEIRS = {
    "huggingface": {"input_ids": pa.int32(), "labels": pa.int32(), "attention_mask": pa.int8()},
    "huggingface_documents": {"input_ids": pa.int32(), "labels": pa.int32(), "position_ids": pa.int32()},
}


def build_of(layout: str, columns: str) -> dict[str, Any]:
    pack = {"layout": layout, **LAYOUTS[layout]}
    asked = {} if columns == "ids" else {"columns": columns}
    return {"name": f"{layout}-{columns}", "format": "parquet", "rows_per_shard": 7, "pack": pack, **asked}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builds = [build_of(layout, columns) for layout in LAYOUTS for columns in ("ids", *THEIRS)]
    return mill.run(small_corpus(tmp_path_factory.mktemp("columns"), builds=builds), workers=1).out


def table_of(split: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(split.glob("shard_*.parquet"))])


def expected(ids: list[int], docs: list[Any], columns: str) -> dict[str, list[int]]:
    """One row; a document that is cut in the middle of its row is still one."""
    owner: list[Any] = [None] * len(ids)
    for span in docs:
        owner[span.start : span.end] = [(span.source, span.doc_id)] * (span.end - span.start)
    labels, mask, positions = [], [], []
    for place, id in enumerate(ids):
        is_id, goes_on = owner[place] is not None, place > 0 and owner[place] == owner[place - 1]
        positions.append(positions[-1] + 1 if goes_on else 0)
        is_learnt = is_id and (columns == "huggingface" or place == 0 or goes_on)
        labels.append(id if is_learnt else -100)
        mask.append(int(is_id))
    return {"input_ids": ids, "labels": labels, "attention_mask": mask, "position_ids": positions}


@pytest.mark.parametrize("columns", THEIRS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_place_of_every_column_is_what_the_row_index_says(
    finished: Path, layout: str, columns: str
) -> None:
    plain = table_of(finished / f"build/{layout}-ids/train").column("input_ids").to_pylist()
    split = finished / f"build/{layout}-{columns}/train"
    table, index = table_of(split), list(read_row_index(split / "index.jsonl.zst"))
    lists = {name: table.schema.field(name).type.value_type for name in THEIRS[columns]}
    assert lists == THEIRS[columns]
    assert set(table.column_names) - set(lists) == ({"doc_id"} if layout == "indexed" else set())
    rows = table.select(list(lists)).to_pylist()
    assert [row["input_ids"] for row in rows] == plain
    assert len(rows) == len(index) > 3
    for row, origin in zip(rows, index, strict=True):
        wanted = expected(row["input_ids"], origin.docs, columns)
        assert row == {name: wanted[name] for name in lists}
    assert json.loads((split / "meta.json").read_text())["columns"] == columns


@pytest.mark.parametrize("layout", LAYOUTS)
def test_our_loader_reads_the_ids_of_a_build_with_columns(finished: Path, layout: str) -> None:
    plain = open_dataset(finished / f"build/{layout}-ids", "train")
    for columns in THEIRS:
        ds = open_dataset(finished / f"build/{layout}-{columns}", "train", verify="hashes")
        assert [one["ids"].tolist() for one in ds] == [one["ids"].tolist() for one in plain]


def test_columns_and_batches_of_our_loader_say_the_same(finished: Path) -> None:
    """Rows of one document each, and streams that EOS cuts."""
    for layout in ("concat", "pad"):
        for columns, mask, targets in (
            ("huggingface", "tokens", "stream"),
            ("huggingface_documents", "documents", "documents"),
        ):
            build = finished / f"build/{layout}-{columns}"
            ds = open_dataset(build, "train")
            how = {"mask": mask, "targets": targets, "length": ds.facts.seq_len, "shuffle": "none"}
            (batch,) = Batches(ds, len(ds), names="huggingface", **how)
            table = table_of(build / "train")
            assert list(batch) == list(THEIRS[columns]) == table.column_names
            for name, array in batch.items():
                assert array.tolist() == table.column(name).to_pylist(), name


@pytest.mark.parametrize("columns", THEIRS)
def test_datasets_loads_the_columns(finished: Path, columns: str, tmp_path: Path) -> None:
    load_dataset = pytest.importorskip("datasets", reason="the extra `hub`").load_dataset
    split = finished / f"build/best_fit-{columns}/train"
    files = sorted(map(str, split.glob("*.parquet")))
    loaded = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))
    assert loaded.column_names == list(THEIRS[columns])
    assert loaded[:] == table_of(split).to_pydict()


def test_a_build_without_columns_is_what_it_was(finished: Path, tmp_path: Path) -> None:
    """Not a key in the recipe's dump, the step's options or the description."""
    loaded = [
        mill.load_recipe(small_corpus(tmp_path / name, builds=[{**build_of("pad", "ids"), **more}]))
        for name, more in (("without", {}), ("with", {"columns": "ids"}))
    ]
    assert loaded[0].model_dump() == loaded[1].model_dump()
    assert "columns" not in loaded[0].model_dump()["builds"][0]
    build = finished / "build/pad-ids"
    assert "columns" not in load_manifest(build).config
    assert "columns" not in json.loads((build / "train/meta.json").read_text())
    assert table_of(build / "train").column_names == ["input_ids"]


def test_other_columns_are_another_build_and_all_are_proven(finished: Path) -> None:
    assert mill.verify(finished).problems == []
    digests = {
        columns: json.loads((finished / f"build/pad-{columns}/train/meta.json").read_text())["shards"]
        for columns in ("ids", *THEIRS)
    }
    contents = [[shard["content_sha256"] for shard in shards] for shards in digests.values()]
    assert all(len(set(some)) == 3 for some in zip(*contents, strict=True))


def test_a_changed_label_is_damage(finished: Path, tmp_path: Path) -> None:
    """The digest of the content covers every column, not the ids alone."""
    copy = tmp_path / "pad-huggingface"
    shutil.copytree(finished / "build/pad-huggingface", copy)
    shard = copy / "train/shard_00000.parquet"
    table = pq.read_table(shard)
    labels = table.column("labels").to_pylist()
    labels[2][3] += 1
    place = table.column_names.index("labels")
    pq.write_table(table.set_column(place, "labels", pa.array(labels, pa.list_(pa.int32()))), shard)
    assert "train/shard_00000.parquet" in [problem.where for problem in mill.verify(copy).problems]


def test_the_croissant_of_the_run_names_the_columns(finished: Path) -> None:
    mill.report(finished, cards=True)
    told = json.loads((finished / "croissant.json").read_text())
    fields = {one["name"]: [field["name"] for field in one["field"]] for one in told["recordSet"]}
    assert fields["pad-huggingface-train"] == list(THEIRS["huggingface"])
    assert fields["pad-ids-train"] == ["input_ids"]


@pytest.mark.parametrize("form", ["memmap", "npy", "megatron"])
def test_columns_of_a_format_that_has_none_are_refused(form: str, tmp_path: Path) -> None:
    build = {"name": "rows", "format": form, "columns": "huggingface"}
    message = rf"builds\[0\]\.columns: {form} has ids alone; `columns: huggingface` is for parquet"
    with pytest.raises(RecipeError, match=message):
        mill.load_recipe(small_corpus(tmp_path, builds=[build]))


def test_labels_at_padding_are_not_learnt_and_all_else_is(finished: Path) -> None:
    """Counted from the description, which knows nothing of columns."""
    for layout in ("concat", "document", "best_fit", "pad"):
        split = finished / f"build/{layout}-huggingface/train"
        counts = json.loads((split / "meta.json").read_text())["counts"]
        labels = np.concatenate(table_of(split).column("labels").to_numpy())
        assert (int((labels == -100).sum()), int((labels != -100).sum())) == (
            counts["padding"],
            counts["written"],
        )
