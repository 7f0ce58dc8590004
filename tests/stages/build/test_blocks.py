"""Builds in blocks: what is bounded by a block is, but for where blocks begin, what one block would be."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import tokmill as mill
from mill import small_corpus, write_problems
from tokmill import load_recipe
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.step import Made, Task
from tokmill.audit.opened import open_run
from tokmill.errors import ManifestDamaged
from tokmill.formats.index import find_places
from tokmill.pipeline.plan import plan_steps
from tokmill.stages.build import blocks, mixing
from tokmill.stages.build.blocks import Blocks
from tokmill.stages.build.cutting import perform_build
from tokmill.stages.build.documents import open_chunks
from tokmill.stages.build.stage import conduct
from written import read_row_index

LAYOUTS = {
    "concat": {"name": "concat", "format": "memmap", "pack": {"layout": "concat", "length": 70}},
    "padded": {"name": "padded", "format": "npy", "pack": {"layout": "concat", "length": 64, "tail": "pad"}},
    "long": {"name": "long", "format": "memmap", "pack": {"layout": "concat", "length": 40_000}},
    "apart": {
        "name": "apart",
        "format": "memmap",
        "pack": {"layout": "concat", "length": 64, "mix_domains": False},
    },
    "best_fit": {"name": "best_fit", "format": "memmap", "pack": {"layout": "best_fit", "length": 256}},
    "document": {"name": "document", "format": "parquet", "pack": {"layout": "document", "length": 256}},
    "pad": {"name": "pad", "format": "npy", "pack": {"layout": "pad", "length": 50}},
    "mega": {"name": "mega", "format": "megatron"},
    "cache": {"name": "cache", "format": "token_cache"},
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    """The build of the training split in every layout, of a corpus in several shards."""
    recipe = small_corpus(
        tmp_path_factory.mktemp("blocks"),
        problems=6000,
        shards={"megabytes": 1},
        builds=list(LAYOUTS.values()),
    )
    out = mill.run(recipe, workers=1, until="tokens").out
    upstream = open_run(out)
    assert len(upstream["ingest/problems"].manifest.entries("documents")) > 2
    found = {}
    for step in plan_steps(load_recipe(recipe), recipe.parent, out):
        if step.kind == "build":
            found[step.name.removeprefix("build/")] = next(conduct(step, upstream))[0]
    return found


@pytest.fixture(scope="module")
def mixed_tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    """The same of a mixture, whose turns are in parts of 700; and a build of one source of it."""
    some = {"name": "some", "format": "memmap", "sources": ["problems"]}
    even = {"name": "even", "format": "memmap", "pack": {"layout": "concat", "length": 64}}
    recipe = json.loads(
        small_corpus(tmp_path_factory.mktemp("mixed"), problems=3000, shards={"megabytes": 1}).read_text()
    )
    (tmp_path_factory.getbasetemp() / "essays.txt").write_text(
        "".join(f"Note {number}: {'the mill turns ' * (1 + number % 5)}.\n\n" for number in range(900))
    )
    recipe["sources"][1]["files"] = str(tmp_path_factory.getbasetemp() / "essays.txt")
    recipe |= {"mixture": {"order": "shuffle"}, "dedup": {"exact": False}}
    found = {}
    for balance, builds in (("none", [*LAYOUTS.values(), some]), ("smallest", [even])):
        home = tmp_path_factory.mktemp(balance)
        recipe["mixture"]["balance"], recipe["builds"] = balance, builds
        recipe["sources"][0]["files"] = str(home / "problems.jsonl")
        write_problems(home / "problems.jsonl", 3000)
        path = home / "recipe.yaml"
        path.write_text(json.dumps(recipe))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mixing, "_PART_TURNS", 700)
            out = mill.run(path, workers=1, until="mixture").out
        upstream = open_run(out)
        assert len(upstream["mixture"].manifest.entries("turns")) > 3
        for step in plan_steps(load_recipe(path), path.parent, out):
            if step.kind == "build":
                found[step.name.removeprefix("build/")] = next(conduct(step, upstream))[0]
    return found


def build(task: Task, directory: Path, block_documents: int) -> Made:
    moved = Task(**{**{f: getattr(task, f) for f in task.__struct_fields__}, "directory": str(directory)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK_DOCUMENTS", block_documents)
        return perform_build(moved)


def contents(made: Made) -> dict[str, str]:
    return {entry.path: entry.content_sha256 for entry in made.files}


@pytest.mark.parametrize("layout", ["concat", "padded", "long", "apart", "pad", "mega", "cache"])
def test_blocks_do_not_show_where_rows_follow_the_documents(
    tasks: dict[str, Task], tmp_path: Path, layout: str
) -> None:
    whole, cut = (build(tasks[layout], tmp_path / str(size), size) for size in (1 << 30, 1))
    assert contents(whole) == contents(cut)
    assert whole.counts == cut.counts


@pytest.mark.parametrize(
    "layout", ["concat", "padded", "long", "apart", "pad", "mega", "cache", "some", "even"]
)
def test_blocks_of_a_mixture_do_not_show_either(
    mixed_tasks: dict[str, Task], tmp_path: Path, layout: str
) -> None:
    whole, cut = (build(mixed_tasks[layout], tmp_path / str(size), size) for size in (1 << 30, 1))
    assert contents(whole) == contents(cut)
    assert whole.counts == cut.counts
    assert whole.counts["rows"] > 10 or layout == "long"
    if layout == "even":
        domains: dict[str, int] = {}
        for row in read_row_index(tmp_path / "1/train/index.jsonl.zst"):
            (source,) = {span.source for span in row.docs}
            domains[source] = domains.get(source, 0) + 1
        assert domains["problems"] == domains["notes"] > 10


@pytest.mark.parametrize("layout", ["concat", "apart", "best_fit", "pad"])
def test_a_block_holds_its_own_documents_and_little_more(mixed_tasks: dict[str, Task], layout: str) -> None:
    task = mixed_tasks[layout]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK_DOCUMENTS", 700)
        held = [len(block.documents) for block in Blocks(task.options, open_chunks(task))]
    assert len(held) > 3
    assert max(held) <= 700 + 2 * task.options.pack.length


def test_a_mixture_without_turns_for_builds_is_refused(mixed_tasks: dict[str, Task]) -> None:
    """An order alone is what an earlier version wrote; to build in the order of the corpus would be wrong."""
    (order,) = [item for item in mixed_tasks["concat"].inputs if item.role == "order"]
    out = Path(order.path).parents[1]
    upstream = dict(open_run(out))
    old = upstream["mixture"]
    only = [entry for entry in old.manifest.files if entry.table != "turns"]
    upstream["mixture"] = Artifact(old.directory, msgspec.structs.replace(old.manifest, files=only, tasks=[]))
    (step, *_) = [
        step
        for step in plan_steps(load_recipe(out.parents[1] / "recipe.yaml"), out.parents[1], out)
        if step.kind == "build"
    ]
    with pytest.raises(ManifestDamaged, match="an earlier version made it"):
        next(conduct(step, upstream))


@pytest.mark.parametrize("layout", ["best_fit", "document"])
def test_rows_are_fitted_within_blocks_and_nothing_is_lost(
    tasks: dict[str, Task], tmp_path: Path, layout: str
) -> None:
    whole, cut = (build(tasks[layout], tmp_path / str(size), size) for size in (1 << 30, 1))
    assert cut.counts["tokens"]["written"] == whole.counts["tokens"]["written"]
    assert cut.counts["sources"] == whole.counts["sources"]
    assert cut.counts["tokens"]["padding"] < 1.2 * whole.counts["tokens"]["padding"] + 6 * 256
    documents: list[tuple[str, int]] = []
    for row in read_row_index(tmp_path / "1/train/index.jsonl.zst"):
        documents += [(span.doc_id, span.offset) for span in row.docs]
    assert len(documents) == len(set(documents)) >= cut.counts["kept"]


@pytest.mark.parametrize("layout", ["concat", "best_fit", "long"])
def test_places_say_where_each_document_is(tasks: dict[str, Task], tmp_path: Path, layout: str) -> None:
    made = build(tasks[layout], tmp_path, 1)
    (entry,) = [entry for entry in made.files if entry.table == "places"]
    lines = list(read_row_index(tmp_path / "train/index.jsonl.zst"))
    meetings: dict[str, list[tuple[int, int, int, int]]] = {}
    for line in lines:
        for span in line.docs:
            meetings.setdefault(span.doc_id, []).append((line.row, span.start, span.end, span.offset))
    names = doc_ids(tasks[layout])
    assert len(names) == made.counts["in"]
    for number in [0, 1, len(names) // 2, len(names) - 2, *range(2500, 2520)]:
        found = find_places(tmp_path / entry.path, entry.rows, number)
        expected = sorted(meetings.get(names[number], []), key=lambda place: place[3])
        columns = zip(found.row, found.start, found.end, found.offset, strict=True)
        assert [tuple(map(int, place)) for place in columns] == expected


def doc_ids(task: Task) -> list[str]:
    from tokmill.storage.tables import load_table

    return [name for path in task.paths("lengths") for name in load_table(path).column("doc_id").to_pylist()]
