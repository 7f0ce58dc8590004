"""What builds hold, however their turns lie in files: against the rows that were written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tokmill as mill
from mill import small_corpus
from tokmill.audit.opened import open_run
from tokmill.stages.build import mixing
from tokmill.stages.build.contents import load_contents
from tokmill.stages.external import appended
from written import load_table, read_row_index

BUILDS = {"rows": ["problems", "notes"], "some": ["notes"]}


@pytest.mark.parametrize("mixed", [True, False])
def test_turns_in_parts_that_no_other_file_shares_are_counted_as_they_are_in_rows(
    tmp_path: Path, mixed: bool
) -> None:
    asked = {
        "weights": {"math": "0.5", "prose": "0.5"},
        "tokens": 30_000,
        "exhausted": "repeat",
        "max_epochs": 60,
    }
    recipe = small_corpus(
        tmp_path,
        problems=200,
        dedup={"exact": False},
        mixture=asked if mixed else None,
        builds=[
            {"name": "rows", "format": "memmap"},
            {"name": "some", "format": "npy", "sources": BUILDS["some"]},
        ],
    )
    notes = [f"Note {number}: {'the mill turns ' * (1 + number % 9)}." for number in range(40)]
    (tmp_path / "notes.txt").write_text("\n\n".join(notes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "_PART_TURNS", 70)
        out = mill.run(recipe, workers=1).out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appended, "_GROUP_ROWS", 33)
        contents = load_contents(open_run(out))
    if mixed:
        assert len(sorted((out / "mixture").glob("turns-train-*.parquet"))) > 3
        order = load_table(out / "mixture/order-train.parquet")
        assert Counter(order.column("shard").to_pylist())[1] > 3 * 40, "notes repeat"
    in_any: set[tuple[str, str]] = set()
    for build, sources in BUILDS.items():
        for split in ("train", "valid"):
            docs: dict[str, set[str]] = {source: set() for source in sources}
            tokens: Counter[str] = Counter()
            for row in read_row_index(out / "build" / build / split / "index.jsonl.zst"):
                for span in row.docs:
                    docs[span.source].add(span.doc_id)
                    tokens[span.source] += span.end - span.start
            found = contents.totals("source", build=build, split=split)
            assert {name: (one.docs, one.tokens) for name, one in found.items() if one.tokens} == {
                name: (len(ids), tokens[name]) for name, ids in docs.items() if ids
            }
            in_any |= {(source, doc_id) for source, ids in docs.items() for doc_id in ids}
    assert sum(one.new_docs for one in contents.held) == len(in_any)
    for number, source in enumerate(("problems", "notes")):
        (path,) = (out / "ingest" / source).glob("documents-*.parquet")
        ids = load_table(path, ["doc_id"]).column("doc_id").to_pylist()
        is_built = contents.is_built(number, len(ids)).tolist()
        assert {doc_id for doc_id, is_in in zip(ids, is_built, strict=True) if is_in} == {
            doc_id for name, doc_id in in_any if name == source
        }
