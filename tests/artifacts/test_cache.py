"""What is kept beside a run: found again as it was written, or not at all; bounded; of nothing that was
forgotten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

import tokmill as mill
from cleaned import prose, write_documents
from mill import write_recipe
from tokmill.artifacts.cache import allot, load_columns, save_columns

ROOM = 1 << 30


def make_run(home: Path, documents: int = 30, **sections: Any) -> Path:
    for seed, name in enumerate(("one", "two")):
        records = [{"id": f"{name}{n}", "text": prose(n + 500 * seed, 60)} for n in range(documents)]
        write_documents(home / f"{name}.jsonl", records)
    sections.setdefault("dedup", {"near": {}, "window": {"words": 20}})
    sources = [{"name": name, "files": f"{name}.jsonl"} for name in ("one", "two")]
    return write_recipe(home, sources=sources, **sections)


def files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@given(
    numbers=arrays(np.uint32, st.tuples(st.integers(0, 9), st.integers(1, 5))),
    hashes=arrays(np.uint64, st.integers(0, 9)),
)
def test_columns_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, numbers: Any, hashes: Any
) -> None:
    path = tmp_path_factory.mktemp("columns") / "entry"
    save_columns(path, {"numbers": numbers, "hashes": hashes}, ROOM, ["a", "b"])
    found = load_columns(path)
    assert found is not None
    assert found.names == ["a", "b"]
    for name, column in (("numbers", numbers), ("hashes", hashes)):
        assert found.columns[name].dtype == column.dtype
        np.testing.assert_array_equal(found.columns[name], column)


def test_an_entry_with_any_byte_changed_or_cut_off_is_none(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    save_columns(path, {"numbers": np.arange(40, dtype=np.uint32)}, ROOM)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at])
        assert load_columns(path) is None
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert load_columns(path) is None
    path.unlink()
    assert load_columns(path) is None


def test_what_does_not_fit_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    save_columns(path, {"numbers": np.random.default_rng(1).integers(0, 1 << 60, 1000)}, 4000)
    assert not path.exists()


def test_shards_with_the_longest_documents_are_kept_first(tmp_path: Path) -> None:
    assert allot(tmp_path, "t", [10_000, 10_000, 10_000], [3000, 1000, 4000]) == [3000, 1000, 0]
    assert allot(tmp_path, "t", [10_000], [1000], reserved=0.1) == [0]


def test_a_cache_takes_at_most_15_per_cent_of_the_text(tmp_path: Path) -> None:
    """Of short documents too, whose signatures are longer than they are. Files of tokens have a second name
    there, and a note for each shard, which has the size of an entry in a manifest and is not counted."""
    texts = [{"id": str(n), "text": prose(n, 1)} for n in range(400)]
    write_documents(tmp_path / "short.jsonl", texts)
    recipe = make_run(tmp_path)
    asked = json.loads(recipe.read_text())
    asked["sources"].append({"name": "short", "files": "short.jsonl"})
    recipe.write_text(json.dumps(asked))
    out = mill.run(recipe, tmp_path / "out", workers=1).out
    beside = files_below(tmp_path / "out.cache")
    assert beside
    own = sum(path.stat().st_size for path in beside if path.stat().st_nlink == 1)
    notes = sum(path.stat().st_size for path in beside if path.name == "note.json")
    lines = [line for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    text_bytes = sum(len(json.loads(line)["text"].encode()) for line in lines)
    assert own - notes <= 0.15 * text_bytes
    assert mill.status(out).cache_bytes == own


def test_a_lean_run_keeps_nothing_and_is_the_same(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    whole = mill.run(recipe, tmp_path / "whole", workers=1).out
    lean = mill.run(recipe, tmp_path / "lean", workers=1, lean=True).out
    assert files_below(tmp_path / "whole.cache")
    assert not (tmp_path / "lean.cache").exists()
    assert mill.verify(whole).digest == mill.verify(lean).digest
    mill.run(recipe, whole, workers=1, lean=True)
    assert not (tmp_path / "whole.cache").exists()


def test_what_is_kept_of_a_shard_goes_with_a_document_that_is_forgotten(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    out = mill.run(recipe, workers=1).out
    cache = out.with_name(f"{out.name}.cache")
    before = {path.relative_to(cache).parts[1] for path in files_below(cache / "dedup")}
    aside = shutil.copytree(cache, tmp_path / "aside")
    mill.forget(out, doc_id="one3", source="one", base=tmp_path, workers=1)
    after = {path.relative_to(cache).parts[1] for path in files_below(cache / "dedup")}
    assert before & after, "of the other source all stays"
    assert before - after, "and of the one that had the document nothing does"
    assert mill.verify(out).ok
    shutil.copytree(aside, cache, dirs_exist_ok=True)
    told = [problem.what for problem in mill.verify(out).problems]
    assert told
    assert set(told) == {"is of a shard that the run no longer has"}


def test_gc_frees_the_cache(tmp_path: Path) -> None:
    out = mill.run(make_run(tmp_path), workers=1).out
    cache = out.with_name(f"{out.name}.cache")
    (found,) = mill.gc(out).found
    assert (found.path, found.bytes) == (str(cache), mill.status(out).cache_bytes)
    mill.gc(out, delete=True)
    assert not cache.exists()
    assert mill.verify(out).ok


def test_what_is_kept_for_a_step_goes_with_that_step_and_with_no_build_or_source(tmp_path: Path) -> None:
    builds = [{"name": name, "format": "memmap"} for name in ("rows", "tokens", "d")]
    out = mill.run(make_run(tmp_path, documents=5, builds=builds), workers=1).out
    cache = out.with_name(f"{out.name}.cache")
    before = files_below(cache)
    assert {path.relative_to(cache).parts[0] for path in before} == {"tokens", "dedup"}
    mill.run(make_run(tmp_path, documents=5, builds=builds[:1]), workers=1)
    assert not (out / "build/tokens").exists()
    assert files_below(cache) == before
    mill.run(make_run(tmp_path, documents=5, builds=builds[:1], dedup={"exact": False}), workers=1)
    assert {path.relative_to(cache).parts[0] for path in files_below(cache)} == {"tokens"}
