"""After a takedown nothing of the documents is in any file of the run,
and the rest is what it would have been."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokmill as mill
from cleaned import prose, rows_of, write_documents
from takedown.marked import (
    BUILDS,
    files_with,
    ids,
    make_corpus,
    make_recipe,
    marker,
    small_run,
    text_of,
    traced_documents,
    tree,
)
from tokmill.errors import InputError
from written import MegatronFile, load_manifest, load_table


def test_the_marker_of_a_document_is_found_everywhere_before(pristine: Path) -> None:
    """Otherwise not finding it afterwards would prove nothing."""
    found = files_with(pristine, "w3") | files_with(pristine, "w4") | files_with(pristine, "w5")
    kinds = {"/".join(path.split("/")[:2]) for path in found}
    assert kinds >= {"ingest/web", *(f"build/{build['name']}" for build in BUILDS)}
    assert any(path.startswith("tokens/") for path in found)
    assert any("examples-" in path for path in files_with(pristine, "short"))
    assert any("edits-" in path for path in files_with(pristine, "edited"))
    assert any("trims-" in path for path in files_with(pristine, "quoting")) or rows_of(
        pristine, "dedup", "trims"
    )


CASES = {
    "ids": (ids("w3", "short", "edited", "w5"), {"w3", "short", "edited", "w5"}),
    "source": ({"source": "books"}, {f"b{n}" for n in range(8)}),
    "license": ({"license": "gpl-3.0"}, {f"b{n}" for n in range(4)}),
    "license of a source": (
        {"source": "web", "license": "MIT"},
        {f"w{n}" for n in range(12)},
    ),
    "survivor": (ids("first"), {"first"}),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_them_is_in_any_file_and_the_rest_is_as_if_they_had_never_been(
    run: Path, tmp_path: Path, case: str
) -> None:
    selection, names = CASES[case]
    before = load_manifest(run)
    done = mill.forget(run, **selection, batch_size=4, workers=1)
    assert done.affected["documents"] == len(names)
    for name in sorted(names - {"first"}):
        assert files_with(run, name) == set()
    assert mill.verify(run).problems == []
    root = load_manifest(run)
    assert root.facts["forgotten"] == [{"parent": before.digest, "reason": "forgotten", "ids": len(names)}]
    for source in ("web", "books", "more"):
        old, new = (manifest.counts[f"ingest/{source}"] for manifest in (before, root))
        lost = old["kept"] - new["kept"]
        assert new["dropped"] == ({"forgotten": lost} if lost else {})
        assert new["in"] == old["in"] == new["kept"] + lost
    ledger = [row for source in ("web", "books") for row in rows_of(run, f"ingest/{source}", "ledger")]
    assert {(row["doc_id"], row["stage"], row["verdict"], row["reason"]) for row in ledger} == {
        (f"sha256:{hashlib.sha256(name.encode()).hexdigest()}", "ingest", "drop", "forgotten")
        for name in names
    }
    for name in names:
        (told,) = traced_documents(run, name)
        assert (told.outcome, told.history, told.builds) == ("forgotten", None, ())

    make_corpus(tmp_path, frozenset(names))
    if case == "source":
        (tmp_path / "books.jsonl").write_text('{"id": "nothing", "text": "-"}\n')  # a source needs a record
    fresh = mill.run(make_recipe(tmp_path), workers=1).out
    for build in BUILDS:
        for path in sorted((fresh / "build" / build["name"]).rglob("*")):
            if path.suffix in (".bin", ".idx", ".mmap", ".npy"):
                assert path.read_bytes() == (run / path.relative_to(fresh)).read_bytes(), path


def test_a_copy_of_a_forgotten_document_is_another_document_and_comes_back(run: Path) -> None:
    (before,) = traced_documents(run, "second")
    assert before.outcome == "dropped by dedup: near_dup"
    done = mill.forget(run, **ids("first"), workers=1)
    assert done.affected["copies"] == {
        "documents": 1,
        "examples": [{"source": "web", "doc_id": "second", "reason": "near_dup"}],
    }
    (after,) = traced_documents(run, "second")
    assert after.outcome.startswith("kept, ")


def test_tasks_of_other_shards_and_sources_keep_their_work(run: Path) -> None:
    before = {step: load_manifest(run / step) for step in ("ingest/web", "clean/web", "tokens")}
    done = mill.forget(run, **ids("w3"), workers=1)
    assert set(done.skipped) >= {"ingest/books", "clean/books", "ingest/more", "clean/more", "tokenizer"}
    kept = {}
    for step, manifest in before.items():
        old = {task["fingerprint"] for task in manifest.tasks}
        kept[step] = sum(task["fingerprint"] in old for task in load_manifest(run / step).tasks)
    assert kept["ingest/web"] == kept["clean/web"] == 1
    assert kept["tokens"] >= 2
    paths = [entry.path for entry in load_manifest(run / "ingest/web").entries("documents")]
    first, other = paths
    assert re.fullmatch(r"documents-00000-000\.[0-9a-f]{12}\.parquet", first)
    assert other == "documents-00001-000.parquet"


def test_tokens_are_those_of_the_documents_that_are_left(run: Path) -> None:
    mill.forget(run, **ids("w3", "b0"), workers=1)
    sequences = MegatronFile(run / "build/mega/train/tokens")
    texts = {
        row["doc_id"]: row["text"]
        for s in ("web", "books", "more")
        for row in rows_of(run, f"ingest/{s}", "documents")
    }
    assert "w3" not in texts
    lengths = [load_table(path) for path in sorted(run.glob("tokens/train/*/lengths-*.parquet"))]
    assert sum(table.num_rows for table in lengths) == len(sequences)
    assert not {"w3", "b0"} & {id for table in lengths for id in table.column("doc_id").to_pylist()}


@pytest.mark.parametrize("name", ["link", "directory"])
def test_nothing_of_them_is_beside_a_run_that_lies_behind_a_link(tmp_path: Path, name: str) -> None:
    """Neither in steps as they were before nor in what the next run need not compute again."""
    here, places = tmp_path / "here", {"link": tmp_path / "here/out/run", "directory": tmp_path / "disk/big"}
    make_corpus(here)
    for place in places.values():
        place.parent.mkdir()
    places["directory"].mkdir()
    places["link"].symlink_to(places["directory"])
    for fraction in ("0.25", "0.5"):
        recipe = make_recipe(here, builds=BUILDS[:1], split={"valid_fraction": fraction})
        mill.run(recipe, places["link"], workers=1, keep_previous=True)
    shard, *_ = load_manifest(places["link"] / "ingest/web").entries("documents")

    def beside() -> set[str]:
        """Tables of the cache are named after the shard that they are of."""
        found: set[str] = set()
        for parent in (here / "out", tmp_path / "disk"):
            found |= files_with(parent, "w3")
            found |= {path.name for path in parent.rglob(f"{shard.content_sha256[:16]}*")}
        return found

    assert len({Path(file).suffix for file in beside()}) > 2
    assert any(".previous/" in file for file in beside())
    mill.forget(places[name], **ids("w3"), workers=1)
    assert beside() == set()
    for place in places.values():
        assert mill.verify(place).problems == []
    assert [path.name for path in (here / "out").iterdir()] == ["run"]


def test_a_tokenizer_that_learned_from_them_learns_again(tmp_path: Path) -> None:
    word = marker("w3")
    make_corpus(tmp_path)
    records = [{"id": "w3", "text": f"{prose(3, 4)} " + f"{word} " * 60}]
    records += [{"id": f"w{n}", "text": text_of(f"w{n}", n)} for n in range(4, 12)]
    write_documents(tmp_path / "web-a.jsonl", records)
    recipe = make_recipe(
        tmp_path,
        dedup={"exact": True},
        split={"valid_fraction": "0.01"},
        tokenizer={"train": {"model": "byte_bpe", "vocab_size": 400}, "eos": "<|endoftext|>"},
        mixture={
            "weights": {"web": "0.5", "prose": "0.5"},
            "exhausted": "repeat",
            "tokens": 9000,
            "max_epochs": 9,
        },
        builds=BUILDS,
    )
    out = mill.run(recipe, workers=1).out
    model = out / "tokenizer/tokenizer.json"
    assert word[:8] in model.read_text(), "the tokenizer must have learned it, or this proves nothing"
    for path in sorted(tmp_path.glob("*.jsonl")):
        path.unlink()
    mill.forget(out, **ids("w3"), workers=1)
    assert word[:8] not in model.read_text()
    assert files_with(out, "w3") == set()
    assert mill.verify(out).problems == []


def test_samples_limits_and_fallbacks_stay_what_they_were(tmp_path: Path) -> None:
    """Nothing is drawn, or read on, in place of what went."""
    make_corpus(tmp_path)
    recipe = make_recipe(
        tmp_path,
        dedup={"exact": True},
        sources=[
            {
                "name": "web",
                "domain": "web",
                "files": "web-a.jsonl",
                "sample": {"method": "reservoir", "k": 5},
            },
            {
                "name": "books",
                "domain": "prose",
                "files": "books.jsonl",
                "limit": {"docs": 4},
                "fallback": "more",
            },
            {"name": "more", "domain": "prose", "files": "more.jsonl", "limit": {"docs": 6}},
        ],
        builds=BUILDS[:1],
    )
    out = mill.run(recipe, workers=1).out
    before = {
        name: [row["doc_id"] for row in rows_of(out, f"ingest/{name}", "documents")]
        for name in ("web", "books", "more")
    }
    gone = {before["web"][1], before["books"][2]}
    mill.forget(out, **ids(*sorted(gone)), workers=1)
    left = {name: [id for id in found if id not in gone] for name, found in before.items()}
    for _ in range(2):
        assert mill.verify(out).problems == []
        found = {
            name: [row["doc_id"] for row in rows_of(out, f"ingest/{name}", "documents")]
            for name in left
            if left[name]
        }
        assert found == {name: ids for name, ids in left.items() if ids}
        assert load_manifest(out / "ingest/web").counts["in"] == 12
        shutil.rmtree(out / "ingest")
        mill.run(recipe, out, workers=1)


def test_a_document_that_comes_back_by_another_way_is_found_by_verify(run: Path, pristine: Path) -> None:
    mill.forget(run, **ids("w3"), workers=1)
    listed = run / "forgotten.parquet"
    whole = pq.read_table(listed).to_pylist()
    more = {"source": "web", "id_sha256": hashlib.sha256(b"w4").hexdigest(), "parent": "?"}
    pq.write_table(pa.Table.from_pylist([*whole, more]), listed)
    assert not mill.verify(run).ok
    # and with every manifest made to agree, by the ids alone
    from tokmill.artifacts.directory import open_artifact
    from tokmill.audit.proofs import find_forgotten

    artifacts = {}
    for path in run.rglob("manifest.json"):
        artifact = open_artifact(path.parent)
        assert artifact is not None
        artifacts[path.parent.relative_to(run).as_posix()] = artifact
    found = {problem.where: problem.what for problem in find_forgotten(run, artifacts)}
    assert found.pop("ingest/web") == "was made with another list of what is forgotten"
    assert {where.rpartition("/")[2].partition("-")[0] for where in found} == {"documents", "ids", "lengths"}


def test_what_quotes_documents_goes_and_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    hook = "def shouting(columns):\n    import numpy as np\n    return np.zeros(len(columns['text']))\n"
    (tmp_path / "hooks.py").write_text(hook)
    (tmp_path / "bench.jsonl").write_text(
        '{"text": "a benchmark of its own with many words in it that nobody has"}\n'
    )
    recipe = make_recipe(
        tmp_path,
        filters=[{"measure": "hooks.py:shouting", "max": 1}],
        dedup={"exact": True, "against": {"files": ["bench.jsonl"], "fields": ["text"]}},
        builds=BUILDS[:1],
    )
    out = mill.run(recipe, workers=1).out
    moved = shutil.move(out, tmp_path / "elsewhere" / "deep" / "run")
    run = Path(moved)
    (run / "report.html").write_text(f"<title>small · tokmill report</title><p>{marker('w3')}</p>")
    before = tree(run)
    with pytest.raises(InputError, match="would have to be run again") as refused:
        mill.forget(run, **ids("w3"), workers=1)
    assert "--base" in refused.value.next
    assert tree(run) == before
    done = mill.forget(run, **ids("w3"), base=tmp_path, workers=1)
    assert done.removed == ("report.html",)
    assert files_with(run, "w3") == set()
    assert mill.verify(run).problems == []
    (tmp_path / "bench.jsonl").write_text('{"text": "another"}\n')
    with pytest.raises(InputError, match="is not the file that the run was made with"):
        mill.forget(run, **ids("w4"), base=tmp_path, workers=1)


def test_the_words_of_the_texts_before_are_no_longer_in_the_cache_of_the_explorer(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokmill.audit.places import open_places
    from tokmill.explorer.text_index import build_index

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = tmp_path / "cache/tokmill/explore"
    kept.mkdir(parents=True)
    (kept / "another.trigrams").write_bytes(b"of another run")
    build_index(open_places(run), lambda share: None, lambda: False)
    (ours,) = {path.name for path in kept.iterdir()} - {"another.trigrams"}
    mill.forget(run, **ids("w3"), dry_run=True)
    assert (kept / ours).is_file()
    done = mill.forget(run, **ids("w3"), workers=1)
    assert [path.name for path in kept.iterdir()] == ["another.trigrams"]
    assert done.removed == (str(kept / ours),)
    assert mill.verify(run).problems == []


def test_a_run_that_was_made_anew_only_in_part_is_proven_after_a_takedown(tmp_path: Path) -> None:
    out, recipe = small_run(tmp_path, dedup={"exact": True, "near": {"threshold": "0.7"}})
    make_recipe(tmp_path, dedup={"exact": True}, builds=BUILDS[:1])
    mill.run(recipe, workers=1, until="dedup")
    mill.forget(out, **ids("w3"), workers=1)
    assert mill.verify(out).problems == []
    assert files_with(out, "w3") == set()
    listed = {Path(entry.path).parent for entry in load_manifest(out).files if entry.table == "manifest"}
    assert {path.parent.relative_to(out) for path in out.rglob("manifest.json")} == {Path(), *listed}


def test_no_kind_of_step_stays_behind_when_the_recipe_no_longer_has_it(tmp_path: Path) -> None:
    from tokmill.artifacts.directory import begin
    from tokmill.pipeline.run_manifest import _remove_former
    from tokmill.stages.registry import STAGES

    kinds = [kind for kind in STAGES if kind != "index"]  # that is never in the directory of a run
    for kind in kinds:
        for directory in (tmp_path / kind, tmp_path / kind / "one"):
            begin(directory)
    _remove_former(tmp_path, [], sets_aside=False, say=lambda line: None)
    left = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("receipts")}
    assert {kind for kind in kinds if {kind, f"{kind}/one"} <= left} == set()


def test_keys_that_were_set_are_still_told_after_a_takedown(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path, dedup={"exact": True}, builds=BUILDS[:1])
    out = mill.run(recipe, workers=1, set={"split.valid_fraction": "0.3"}).out
    told = load_manifest(out).environment["set"]
    assert list(told) == ["split.valid_fraction"]
    mill.forget(out, **ids("w3"), workers=1)
    assert load_manifest(out).environment["set"] == told
