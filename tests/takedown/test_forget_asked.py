"""What a takedown is asked for: what is told of it before and after, and what is refused before anything is
done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import tokmill as mill
from cleaned import rows_of, write_documents
from takedown.marked import (
    BUILDS,
    files_with,
    ids,
    make_corpus,
    make_recipe,
    needles,
    small_run,
    text_of,
    traced_documents,
    tree,
)
from tokmill.cli import main
from tokmill.errors import InputError, StorageError
from tokmill.takedown.forgetting import Forgetting


def test_a_dry_run_says_what_is_affected_and_changes_nothing(run: Path) -> None:
    before = tree(run)
    told = mill.forget(run, **ids("w3", "nobody"), batch_size=4, dry_run=True)
    assert tree(run) == before
    assert not told.is_done
    assert (told.affected["documents"], told.affected["not_found"]) == (1, 1)
    assert told.affected["sources"] == {"web": {"documents": 1, "shards": ["web/00000-000"]}}
    (traced,) = traced_documents(run, "w3")
    assert traced.tokens is not None
    assert told.affected["tokens"] == {traced.tokens["split"]: traced.tokens["tokens"]}
    for build, place in zip(told.affected["builds"], traced.builds, strict=True):
        (turn,) = place["turns"]
        rows = [row["row"] for row in turn["rows"]] if "rows" in turn else [turn["sequence"]]
        assert (build["build"], build["rows"], build["first_row"]) == (place["build"], len(rows), rows[0])
        assert build["steps"] == len({row // 4 for row in rows})
        assert build["tokens"] == traced.tokens["tokens"] - turn.get("cut_tokens", 0)


def test_documents_of_builds_are_counted_once_however_often_they_are_repeated(tmp_path: Path) -> None:
    mixture = {
        "weights": {"web": "0.5", "prose": "0.5"},
        "exhausted": "repeat",
        "tokens": 30000,
        "max_epochs": 9,
    }
    out, _ = small_run(tmp_path, mixture=mixture, split={"valid_fraction": "0.01"})
    names = ("b0", "b1", "b2", "w3")
    tokens = (out / "build/rows/train/input_ids.mmap").read_bytes()
    copies = {name: max(tokens.count(needle) for needle in needles(name)) for name in names}
    assert max(copies.values()) > 1, "a document must be repeated, or this proves nothing"
    (told,) = mill.forget(out, **ids(*names), dry_run=True).affected["builds"]
    assert told["documents"] == len(names)
    assert told["turns"] >= sum(copies.values())


def test_the_command_says_what_is_affected_and_proves_it_done(run: Path, tmp_path: Path) -> None:
    listed = tmp_path / "takedown.txt"
    listed.write_text('w3\n{"source": "books", "doc_id": "b1"}\n\n')
    dry = CliRunner().invoke(
        main, ["forget", str(run), "--doc-ids", str(listed), "--batch-size", "2", "--dry-run"]
    )
    assert dry.exit_code == 0, dry.output
    assert "selected: 2 documents" in dry.stdout
    assert "nothing was changed" in dry.stdout
    done = CliRunner().invoke(
        main, ["forget", str(run), "--doc-ids", str(listed), "--workers", "1", "--json"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["ok"], told["is_done"], told["affected"]["documents"]) == (True, True, 2)
    assert set(told) == {"ok", *Forgetting._fields}
    assert CliRunner().invoke(main, ["verify", str(run)]).exit_code == 0
    shown = CliRunner().invoke(main, ["trace", str(run), "--doc-id", "w3"])
    assert "forgotten" in shown.stdout
    listed.write_text("")
    assert "lists no id" in CliRunner().invoke(main, ["forget", str(run), "--doc-ids", str(listed)]).stderr
    assert "needs --doc-id, --doc-ids" in CliRunner().invoke(main, ["forget", str(run)]).stderr


@pytest.mark.parametrize("line", ["w5", '{"source": "web", "doc_id": "w5"}'])
def test_a_list_may_begin_with_a_byte_order_mark(run: Path, tmp_path: Path, line: str) -> None:
    """As spreadsheets write them. The mark is no part of the first id."""
    (tmp_path / "ids.txt").write_bytes(b"\xef\xbb\xbf" + line.encode() + b"\r\nw4\r\n")
    foreseen = mill.forget(run, doc_ids=tmp_path / "ids.txt", dry_run=True).affected
    assert (foreseen["documents"], foreseen["not_found"]) == (2, 0)


def test_ids_can_be_typed_one_by_one_and_beside_a_file(run: Path, pristine: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("w5\n")
    asked = ["--doc-id", "w3", "--doc-id", "short", "--doc-ids", str(tmp_path / "ids.txt")]
    command = ["forget", str(run), *asked, "--workers", "1"]
    foreseen = CliRunner().invoke(main, [*command, "--dry-run"])
    assert foreseen.stdout.startswith("selected: 3 documents\n  web: 3 documents in 2 shards\n")
    assert foreseen.stdout.endswith("nothing was changed\n")
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    for name in ("w3", "short", "w5"):
        assert files_with(pristine, name)
        assert files_with(run, name) == set()
    assert mill.forget(run, doc_id="w3", workers=1).affected["already"] == 1
    of_another = ["forget", str(run), "--doc-id", "w4", "--source", "books", "--dry-run"]
    told = CliRunner().invoke(main, of_another).stdout
    assert told.startswith("selected: 0 documents\n  not in the run now, and left out from now on: 1 id\n")


@pytest.mark.parametrize("asked", [[], ["--doc-id", "w3", "--license", "MIT"]])
def test_nothing_or_ids_beside_a_licence_are_refused(run: Path, asked: list[str]) -> None:
    before = tree(run)
    refused = CliRunner().invoke(main, ["forget", str(run), *asked])
    assert refused.exit_code == 1
    assert "needs --doc-id, --doc-ids, --source or --license, and no ids beside --license" in refused.stderr
    assert tree(run) == before


@pytest.mark.parametrize("source", [None, "web"])
def test_a_list_without_an_id_is_not_everything(run: Path, source: str | None) -> None:
    before = tree(run)
    with pytest.raises(InputError, match="lists no id"):
        mill.forget(run, doc_ids=[], source=source, workers=1)
    assert tree(run) == before


def test_what_cannot_be_forgotten_is_an_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no document of the run is meant"):
        mill.forget(run, license="GLP-3.0", workers=1)
    with pytest.raises(InputError, match="no source is called webb"):
        mill.forget(run, source="webb", workers=1)
    with pytest.raises(InputError, match="no source is called webb"):
        mill.forget(run, **ids("w3", source="webb"), workers=1)
    (run / "manifest.json").unlink()
    with pytest.raises(StorageError, match="not the directory of a finished run"):
        mill.forget(run, **ids("w3"), workers=1)
    with pytest.raises(StorageError, match="not the directory of a finished run"):
        mill.forget(tmp_path / "nowhere", **ids("w3"), workers=1)
    assert not (tmp_path / "nowhere").exists()


def test_a_domain_that_would_lose_all_and_has_a_share_is_refused_before_anything_is_done(
    tmp_path: Path,
) -> None:
    make_corpus(tmp_path)
    mixture = {"weights": {"web": "0.5", "prose": "0.5"}}
    recipe = make_recipe(tmp_path, mixture=mixture, builds=BUILDS[:1])
    out = mill.run(recipe, workers=1).out
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="no document of the domain web would be left") as raised:
        mill.forget(out, source="web", workers=1)
    assert "renormalize" in (raised.value.next or "")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    make_recipe(tmp_path, mixture={**mixture, "exhausted": "renormalize", "tokens": 900}, builds=BUILDS[:1])
    mill.run(recipe, workers=1)
    mill.forget(out, source="web", workers=1)
    assert mill.verify(out).problems == []


HELD_OUT = {"method": "field", "field": "split", "values": {"train": ["train"], "valid": ["valid"]}}


@pytest.mark.parametrize(
    ("stays", "split"),
    [
        ({"text": "too short"}, None),  # cleaning dropped it
        ({"text": text_of("kept", 7)}, None),  # a copy of one that is not taken, in another domain
        ({"text": text_of("own", 8), "split": "valid"}, HELD_OUT),
    ],
)
def test_a_domain_of_which_nothing_to_train_on_would_be_left_is_refused_too(
    tmp_path: Path, stays: dict[str, str], split: dict[str, object] | None
) -> None:
    def write(name: str, records: list[dict[str, str]]) -> None:
        write_documents(tmp_path / f"{name}.jsonl", ({"split": "train", **one} for one in records))

    write("a-other", [{"id": "kept", "text": text_of("kept", 7)}])
    write("b-taken", [{"id": f"t{n}", "text": text_of(f"t{n}", 20 + n)} for n in range(6)])
    write("c-stays", [{"id": "stays", **stays}])
    sources = [
        {"name": name, "domain": name[0], "files": f"{name}.jsonl", "fields": {"id": "id", "meta": ["split"]}}
        for name in ("a-other", "b-taken", "c-stays")
    ]
    sources[2]["domain"] = "b"
    mixture = {"weights": {"a": "0.01", "b": "0.99"}}
    asked = {"sources": sources, "mixture": mixture, "split": split, "dedup": {"exact": True}}
    recipe = make_recipe(tmp_path, **asked, builds=BUILDS[:1])
    out = mill.run(recipe, workers=1).out
    before = tree(out)
    with pytest.raises(InputError, match="no document of the domain b would be left"):
        mill.forget(out, source="b-taken", workers=1)
    assert tree(out) == before


def test_a_domain_that_a_copy_of_what_is_taken_comes_back_to_is_not_refused(tmp_path: Path) -> None:
    taken = {"id": "first", "text": text_of("first", 7)}
    write_documents(tmp_path / "a.jsonl", [{"id": f"a{n}", "text": text_of(f"a{n}", n)} for n in range(4)])
    write_documents(tmp_path / "b.jsonl", [taken])
    write_documents(tmp_path / "c.jsonl", [{**taken, "id": "second"}])
    sources = [
        {"name": name, "domain": domain, "files": f"{name}.jsonl", "fields": {"id": "id"}}
        for name, domain in (("a", "a"), ("b", "b"), ("c", "b"))
    ]
    mixture = {"weights": {"a": "0.5", "b": "0.5"}}
    asked = {"sources": sources, "mixture": mixture, "split": None, "dedup": {"exact": True}}
    out = mill.run(make_recipe(tmp_path, **asked, builds=BUILDS[:1]), workers=1).out
    mill.forget(out, source="b", workers=1)
    assert mill.verify(out).problems == []
    assert files_with(out, "first") >= {"ingest/c/documents-00000-000.parquet"}
    (came_back,) = traced_documents(out, "second")
    assert came_back.outcome.startswith("kept, ")


SPELLINGS = ("GPL-3.0", "GPLv3", "gpl-3.0-only", "GNU GPL v3")
OTHERS = ("GPL-3.0-or-later", "GPL-2.0", "MIT", "made up")


@pytest.mark.parametrize("until", ["ingest", None])
@pytest.mark.parametrize("asked", ["GPL-3.0", "GNU GPL v3"])
def test_a_licence_means_every_document_of_it_however_either_is_spelled(
    tmp_path: Path, asked: str, until: str | None
) -> None:
    records = [
        {"id": tag, "text": text_of(tag, n), "license": tag} for n, tag in enumerate(SPELLINGS + OTHERS)
    ]
    write_documents(tmp_path / "web.jsonl", records)
    sections = {"sources": [{"name": "web", "domain": "web", "files": "web.jsonl"}], "dedup": {"exact": True}}
    recipe = make_recipe(tmp_path, **sections, builds=BUILDS[:1])
    out = mill.run(recipe, workers=1, until=until).out
    assert mill.forget(out, license=asked, workers=1).affected["documents"] == len(SPELLINGS)
    left = [row["doc_id"] for row in rows_of(out, "ingest/web", "documents")]
    assert left == list(OTHERS)
    before = tree(out)
    for again in SPELLINGS:
        assert mill.forget(out, license=again, workers=1).ran == ()
    with pytest.raises(InputError, match="no document of the run is meant"):
        mill.forget(out, license="AGPL-3.0", workers=1)
    assert tree(out) == before


def test_what_no_table_of_licences_knows_is_meant_as_it_is_spelled(tmp_path: Path) -> None:
    records = [
        {"id": tag, "text": text_of(tag, n), "license": tag} for n, tag in enumerate(("Made Up", "made up 2"))
    ]
    write_documents(tmp_path / "web.jsonl", records)
    sections = {"sources": [{"name": "web", "domain": "web", "files": "web.jsonl"}], "dedup": {"exact": True}}
    out = mill.run(make_recipe(tmp_path, **sections, builds=BUILDS[:1]), workers=1).out
    mill.forget(out, license="made up", workers=1)
    assert [row["doc_id"] for row in rows_of(out, "ingest/web", "documents")] == ["made up 2"]
