"""A dataset is what Grain wants of a source: a length, items, a stable repr, and it travels to workers.
Of the formats that other loaders read too, built by a run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import tokmill
from mill import small_corpus
from tokmill.loader import Dataset, open_dataset
from written import MegatronFile

LENGTH = 64
ROWS = ("memmap", "arrow", "levanter")
DOCUMENTS = ("arrow", "levanter")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builds = [{"name": f"rows-{name}", "format": name} for name in ROWS]
    builds[1]["rows_per_shard"] = 7
    builds += [
        {"name": f"documents-{name}", "format": name, "pack": {"layout": "indexed"}} for name in DOCUMENTS
    ]
    builds.append({"name": "mega", "format": "megatron"})
    recipe = small_corpus(tmp_path_factory.mktemp("grain"), pack={"length": LENGTH}, builds=builds)
    return Path(tokmill.run(recipe, workers=1).out)


def expected(run: Path, kind: str) -> list[list[int]]:
    if kind == "rows":
        return np.fromfile(run / "build/rows-memmap/train/input_ids.mmap", "<i4").reshape(-1, LENGTH).tolist()
    mega = MegatronFile(run / "build/mega/train/tokens")
    return [mega.sequence(number).tolist() for number in range(len(mega))]


def examples(dataset: Dataset) -> list[list[int]]:
    return [dataset[np.int64(row)]["ids"].tolist() for row in range(len(dataset))]


KINDS = [*(("rows", name) for name in ROWS), *(("documents", name) for name in DOCUMENTS)]


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_the_same_tokens_come_from_every_format_here_and_where_it_is_sent(kind, name, run):
    dataset = open_dataset(run / "build" / f"{kind}-{name}", "train", verify="hashes")
    sent = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert examples(dataset) == examples(sent) == expected(run, kind)
    assert len(dataset) > 10
    assert repr(sent) == repr(dataset)
    assert " at 0x" not in repr(dataset)


def test_names_of_documents_come_with_them(run):
    dataset = open_dataset(run / "build/documents-arrow", "train")
    names = [dataset[row]["doc_id"] for row in range(len(dataset))]
    assert len(set(names)) == len(names) > 10
    assert all(type(name) is str for name in names)


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_grain_reads_and_shuffles_it(kind, name, run):
    grain = pytest.importorskip("grain")
    dataset = open_dataset(run / "build" / f"{kind}-{name}", "train")
    assert isinstance(dataset, grain.sources.RandomAccessDataSource)
    source = grain.MapDataset.source(dataset)
    assert [source[row]["ids"].tolist() for row in range(len(source))] == expected(run, kind)
    shuffled = [one["ids"].tolist() for one in source.seed(1).shuffle()]
    assert sorted(shuffled) == sorted(expected(run, kind))


def test_verify_finds_nothing_wrong_and_then_the_file_that_is_cut(run):
    assert tokmill.verify(run).problems == []
    listed = json.loads((run / "build/rows-arrow/train/state.json").read_bytes())["_data_files"]
    assert len(listed) > 2
    cut = [
        run / "build/rows-arrow/train" / listed[1]["filename"],
        run / "build/rows-levanter/train/input_ids/data/c/0",
        run / "build/documents-levanter/train/shard_ledger.json",
    ]
    for path in cut:
        whole = path.read_bytes()
        path.write_bytes(whole[:-5])
        assert any(path.name in str(problem) for problem in tokmill.verify(run).problems), path
        path.write_bytes(whole)
