"""A whole run: the same bytes for any number of workers, no work twice, and numbers that add up."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

import tokmill as mill
from mill import SHARED, small_corpus, tokmill, write_recipe
from written import (
    MegatronFile,
    MemmapRows,
    began,
    decoder_of,
    leave_note,
    load_manifest,
    load_table,
    read_row_index,
)

FORMATS = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")

GOLDEN_PROBLEMS = Path(__file__).with_name("golden_problems.jsonl")  # 60 of them, whatever the demo generates
# Changing this means changing output bytes: raise FORMAT_VERSION and say so in CHANGELOG.md.
GOLDEN = "41e0dce297bccb183e17f0946118086def825d22338ce5b2f9731162ec189980"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = small_corpus(tmp_path_factory.mktemp("finished"))
    shutil.copy(GOLDEN_PROBLEMS, recipe.parent / "problems.jsonl")
    return mill.run(recipe, workers=1).out


@pytest.mark.usefixtures("forked_workers")
def test_content_is_the_same_for_one_two_and_three_workers(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path, problems=9000, shards={"megabytes": 1}, dedup={"partitions": 3})
    digests = {mill.verify(mill.run(recipe, tmp_path / f"w{n}", workers=n).out).digest for n in (1, 2, 3)}
    assert len(digests) == 1
    shards = load_manifest(tmp_path / "w1/ingest/problems").entries("documents")
    assert len(shards) > 2, "the file must have been cut for this test to mean anything"


def test_a_tiny_recipe_has_golden_content(finished: Path) -> None:
    assert mill.verify(finished).digest == GOLDEN


def test_running_again_does_nothing_and_says_so(finished: Path) -> None:
    again = tokmill("run", finished.parent.parent / "recipe.yaml", "--json")
    report = json.loads(again.stdout)
    assert (report["ran"], again.returncode) == ([], 0)
    assert "nothing to do" in tokmill("run", finished.parent.parent / "recipe.yaml").stdout


def test_every_document_is_accounted_for(finished: Path) -> None:
    counts = load_manifest(finished).counts
    assert counts["ingest/problems"]["in"] == 60
    assert counts["clean/notes"]["dropped"] == {"too_short": 1}
    assert counts["clean/notes"]["edited"] == {"newlines_to_lf": 2, "nul_stripped": 1, "unicode_nfc": 1}
    assert counts["dedup"]["dropped"] == {"exact_dup": 2}
    assert counts["split"]["train"] + counts["split"]["valid"] == counts["dedup"]["kept"] == 60 + 5 - 2
    tokens = counts["build/rows"]["tokens"]
    assert tokens["in"] == tokens["written"] + tokens["tail_dropped"]
    assert tokens["in"] == sum(counts["tokens"]["tokens"].values()) == counts["build/mega"]["tokens"]["in"]


def test_the_ledger_says_which_survivor_a_duplicate_matched(finished: Path) -> None:
    dedup = load_manifest(finished / "dedup")
    (entry,) = dedup.entries("ledger")
    rows = load_table(finished / "dedup" / entry.path).to_pylist()
    assert [(row["row"], row["match_shard"], row["match_row"]) for row in rows] == [
        (2, "notes/00000-000", 0),
        (3, "notes/00000-000", 0),
    ]
    assert {row["reason"] for row in rows} == {"exact_dup"}


def test_megatron_sequences_decode_to_the_cleaned_documents(finished: Path) -> None:
    decode = decoder_of(finished)
    eos = load_manifest(finished / "tokenizer").facts["eos_id"]
    texts = []
    for split in ("train", "valid"):
        sequences = MegatronFile(finished / "build/mega" / split / "tokens")
        for number in range(len(sequences)):
            ids = sequences.sequence(number)
            assert ids[-1] == eos
            assert eos not in ids[:-1]
            texts.append(decode(ids[:-1]))
    assert "The mill stands by the river.\nIt turns all day." in texts
    assert "Ça tourne aussi en français\u2028sans se couper." in texts
    assert "A NUL hides here, café too." in texts
    assert len(texts) == 63


def test_rows_are_the_documents_one_after_the_other_and_the_index_says_which(finished: Path) -> None:
    for split in ("train", "valid"):
        rows = MemmapRows(finished / "build/rows" / split)
        sequences = MegatronFile(finished / "build/mega" / split / "tokens")
        stream = np.concatenate([sequences.sequence(i) for i in range(len(sequences))])
        assert np.array_equal(rows.ids.reshape(-1), stream[: rows.ids.size])
        assert rows.meta["tokenizer_sha256"] == load_manifest(finished / "tokenizer").files[0].sha256
        tokenizer_path = finished / "build/rows" / split / rows.meta["tokenizer_path"]
        assert tokenizer_path.resolve() == (finished / "tokenizer/tokenizer.json").resolve()
        lines = list(read_row_index(finished / "build/rows" / split / "index.jsonl.zst"))
        assert [line.row for line in lines] == list(range(len(rows)))
        for line in lines:
            assert [span.start for span in line.docs] == [0, *(span.end for span in line.docs[:-1])]
            assert line.docs[-1].end == rows.meta["seq_len"]


def test_a_padded_tail_keeps_every_token(tmp_path: Path) -> None:
    out = mill.run(small_corpus(tmp_path, pack={"length": 64, "tail": "pad"}), workers=1).out
    for split in ("train", "valid"):
        rows, sequences = (
            MemmapRows(out / "build/rows" / split),
            MegatronFile(out / "build/mega" / split / "tokens"),
        )
        padding = rows.meta["counts"]["padding"]
        assert rows.ids.size - padding == sum(sequences.lengths)
        assert (rows.ids.reshape(-1)[rows.ids.size - padding :] == rows.meta["pad_id"]).all()


def test_a_changed_recipe_rebuilds_what_depends_on_the_change_and_names_the_field(tmp_path: Path) -> None:
    small_corpus(tmp_path)
    mill.run(tmp_path / "recipe.yaml", workers=1)
    recipe = small_corpus(tmp_path, split={"valid_fraction": "0.2"})
    steps = {s["step"]: s for s in json.loads(tokmill("plan", recipe, "--json").stdout)["steps"]}
    assert [name for name, step in steps.items() if step["current"]] == [
        "ingest/problems",
        "clean/problems",
        "ingest/notes",
        "clean/notes",
        "dedup",
    ]
    assert steps["split"]["reasons"] == ["`split.valid_fraction` changed 0.1 → 0.2"]
    result = mill.run(recipe, workers=1)
    assert result.ran == ["split", "tokenizer", "tokens", "build/rows", "build/mega"]
    assert mill.verify(result.out).ok


def test_touching_a_file_without_changing_it_rebuilds_nothing(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path)
    mill.run(recipe, workers=1)
    small_corpus(tmp_path)
    assert mill.run(recipe, workers=1).ran == []


def test_an_input_that_changed_is_ingested_again_and_nothing_beside_it(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path)
    mill.run(recipe, workers=1, until="clean")
    with (tmp_path / "notes.txt").open("ab") as notes:
        notes.write(b"\n\nOne paragraph more for the mill.\n")
    assert mill.run(recipe, workers=1, until="clean").ran == ["ingest/notes", "clean/notes"]


def test_a_step_rebuilt_to_the_same_content_rebuilds_nothing_after_it(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path)
    out = mill.run(recipe, workers=1).out
    (out / "clean/notes/manifest.json").unlink()
    assert mill.run(recipe, workers=1).ran == ["clean/notes"]
    assert mill.verify(out).ok


def test_a_source_that_leaves_the_recipe_leaves_the_output(tmp_path: Path) -> None:
    out = mill.run(small_corpus(tmp_path), workers=1, until="clean").out
    recipe = small_corpus(tmp_path, sources=[{"name": "notes", "files": "notes.txt", "unit": "paragraph"}])
    mill.run(recipe, workers=1, until="clean")
    assert not (out / "ingest/problems").exists()
    assert mill.verify(out).ok


def test_scaffolding_of_a_run_killed_while_it_swept_is_removed_by_the_next(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path)
    out = mill.run(recipe, workers=1).out
    (out / "clean/notes/receipts").mkdir()
    (out / "clean/notes/receipts/00000-000.json").write_bytes(b"{}")
    (out / "clean/notes/marks-00009-000.parquet").write_bytes(b"of an earlier run")
    assert mill.run(recipe, workers=1).ran == []
    assert mill.verify(out).ok


def test_a_finished_run_that_is_run_again_keeps_what_others_put_there(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path)
    out = mill.run(recipe, workers=1).out
    (out / "build/rows/notes.md").write_text("mine")
    mill.run(recipe, workers=1)
    assert (out / "build/rows/notes.md").read_text() == "mine"


def test_one_corpus_has_one_digest_in_any_format_and_any_number_of_files(tmp_path: Path) -> None:
    folder = SHARED / "data/formats"
    if not folder.exists():
        pytest.skip("needs ../shared/data")
    lines = (folder / "docs300.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(0, len(lines), 50):
        (tmp_path / f"part-{number:03d}.jsonl").write_bytes(b"".join(lines[number : number + 50]))
    digests, contents = set(), set()
    for index, files in enumerate([*(str(folder / f"docs300.{s}") for s in FORMATS), "part-*.jsonl"]):
        recipe = write_recipe(
            tmp_path, sources=[{"name": "docs", "files": files}], tokenizer=None, builds=None
        )
        out = mill.run(recipe, tmp_path / f"out{index}", workers=1, until="clean").out
        manifest = load_manifest(out / "ingest/docs")
        digests.add(manifest.facts["corpus_digest"])
        if index < len(FORMATS):
            contents.add(mill.verify(out).digest)
    assert len(digests) == 1
    assert len(contents) == 1


def test_until_stops_there_and_a_later_run_goes_on(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path)
    assert mill.run(recipe, workers=1, until="dedup").ran[-1] == "dedup"
    assert mill.verify(tmp_path / "out/small").ok
    assert mill.run(recipe, workers=1).ran[0] == "split"


def test_a_recipe_without_tokenizer_ends_at_the_split(tmp_path: Path) -> None:
    result = mill.run(small_corpus(tmp_path, tokenizer=None, builds=None), workers=1)
    assert result.ran[-1] == "split"


def test_per_source_scope_keeps_duplicates_of_other_sources(tmp_path: Path) -> None:
    twice = [
        {"name": "one", "files": "notes.txt", "unit": "paragraph"},
        {"name": "two", "files": "notes.txt", "unit": "paragraph"},
    ]
    kept = {}
    for scope in ("global", "per-source"):
        recipe = small_corpus(tmp_path / scope, sources=twice, dedup={"exact": "folded", "scope": scope})
        kept[scope] = mill.run(recipe, workers=1, until="dedup").artifacts["dedup"].manifest.counts["kept"]
    assert kept == {"global": 3, "per-source": 6}


def test_two_runs_in_one_directory_do_not_mix(tmp_path: Path) -> None:
    recipe, parent = small_corpus(tmp_path), os.getppid()
    leave_note(tmp_path / "out/small", parent, socket.gethostname(), began(parent))
    refused = tokmill("run", recipe)
    assert refused.returncode == 1
    assert "RunLocked" in refused.stderr


def test_the_output_can_be_moved_and_copied(finished: Path, tmp_path: Path) -> None:
    import shutil

    moved = shutil.copytree(finished, tmp_path / "elsewhere")
    assert mill.verify(moved).ok
    assert mill.verify(moved).digest == mill.verify(finished).digest
    home = str(finished.parents[2])
    assert not [p for p in moved.rglob("*.json") if home in p.read_text()]
