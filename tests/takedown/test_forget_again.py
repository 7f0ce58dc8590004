"""After a takedown: another one, the recipe run again, sources that are renamed or gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import tokmill as mill
from cleaned import rows_of, write_documents
from mill import write_recipe
from takedown.marked import (
    BOOKS,
    BUILDS,
    SITE,
    contents,
    files_with,
    ids,
    make_corpus,
    make_recipe,
    small_run,
    text_of,
    traced_documents,
    tree,
)
from tokmill.cli import main
from written import load_manifest


def test_running_the_recipe_again_never_brings_them_back(pristine: Path, tmp_path: Path) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path)
    out = shutil.copytree(pristine, tmp_path / "out/small")
    assert mill.run(recipe, out, workers=1).ran == []
    mill.forget(out, **ids("w3", "b2"), workers=1)
    assert mill.run(recipe, out, workers=1).ran == []
    digests = {path: data for path, data in tree(out / "build/mega").items() if path.endswith(".bin")}
    for source in ("web", "books"):
        shutil.rmtree(out / "ingest" / source)  # they are read anew
    mill.run(recipe, out, workers=1)
    assert mill.verify(out).problems == []
    assert files_with(out, "w3") == files_with(out, "b2") == set()
    assert {path: data for path, data in tree(out / "build/mega").items() if path.endswith(".bin")} == digests
    facts = load_manifest(out).facts
    assert facts["forgotten"][0]["ids"] == 2


def test_a_second_takedown_adds_to_the_first(run: Path) -> None:
    first = load_manifest(run).digest
    mill.forget(run, **ids("w3"), workers=1)
    second = load_manifest(run).digest
    mill.forget(run, **ids("w4", "w3"), workers=1)
    assert load_manifest(run).facts["forgotten"] == sorted(
        [
            {"parent": first, "reason": "forgotten", "ids": 1},
            {"parent": second, "reason": "forgotten", "ids": 1},
        ],
        key=lambda removal: str(removal["parent"]),
    )
    assert files_with(run, "w3") == files_with(run, "w4") == set()
    assert mill.verify(run).problems == []
    counts = load_manifest(run / "ingest/web").counts
    assert counts["dropped"] == {"forgotten": 2}
    before = tree(run)
    again = mill.forget(run, **ids("w3"), workers=1)
    assert (again.is_done, again.ran, again.affected["already"]) == (True, (), 1)
    assert tree(run) == before


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        (["--license", "GPL-3.0"], ["--license", "GLP-3.0"]),
        (["--source", "books"], ["--source", "books", "--license", "BSD"]),
        (["--source", "web", "--license", "mit"], ["--source", "books", "--license", "Apache-2.0"]),
    ],
)
def test_a_takedown_that_is_done_says_so_and_one_that_never_was_is_an_error(
    run: Path, arguments: list[str], others: list[str]
) -> None:
    def command(*options: str) -> Any:
        return CliRunner().invoke(main, ["forget", str(run), *options, "--workers", "1"])

    assert command(*arguments).exit_code == 0
    before = tree(run)
    for again in (arguments, [option.upper() if option == "mit" else option for option in arguments]):
        done = command(*again)
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (
            0,
            "nothing to do: they are forgotten already",
        )
        assert "nothing to do" in command(*again, "--dry-run").stdout
        told = json.loads(command(*again, "--json").stdout)
        assert (told["is_done"], told["ran"]) == (True, [])
    assert tree(run) == before
    never = command(*others)
    assert never.exit_code == 1
    assert "no document of the run is meant" in never.stderr
    assert tree(run) == before


def test_a_licence_that_comes_in_again_is_forgotten_again(pristine: Path, tmp_path: Path) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path)
    out = shutil.copytree(pristine, tmp_path / "out/small")
    mill.forget(out, license="GPL-3.0", workers=1)
    records = [{"id": f"n{n}", "text": text_of(f"n{n}", 300 + n), "license": "GPL-3.0"} for n in range(3)]
    write_documents(tmp_path / "web-c.jsonl", records)
    mill.run(recipe, out, workers=1)
    assert files_with(out, "n1")
    done = mill.forget(out, license="gpl-3.0", workers=1)
    assert done.affected["documents"] == 3
    assert files_with(out, "n1") == set()
    assert mill.verify(out).problems == []


def test_an_id_is_forgotten_already_only_in_the_source_it_was_forgotten_in(run: Path) -> None:
    mill.forget(run, **ids("b0", source="books"), workers=1)
    foreseen = mill.forget(run, **ids("b0", source="web"), dry_run=True)
    assert (foreseen.is_done, foreseen.affected["not_found"], foreseen.affected["already"]) == (False, 1, 0)
    for asked, counts in (
        ([("books", "w3"), ("web", "w3")], (1, 1, 0)),
        ([("books", "b0"), ("web", "b0"), (None, "b0"), ("more", "m1")], (1, 1, 2)),
        ([(None, "w3"), ("web", "w3"), (None, "nobody")], (1, 1, 0)),
    ):
        told = mill.forget(run, doc_ids=asked, dry_run=True).affected
        assert (told["documents"], told["not_found"], told["already"]) == counts
    assert mill.forget(run, **ids("b0"), dry_run=True).is_done


def test_a_source_that_is_renamed_brings_nothing_back(tmp_path: Path) -> None:
    out, recipe = small_run(tmp_path)
    mill.forget(out, **ids("w3", "short"), workers=1)
    settings: dict[str, Any] = {"dedup": {"exact": True}, "builds": BUILDS[:1]}
    make_recipe(tmp_path, sources=[SITE, BOOKS], **settings)
    foreseen = list(mill.plan(recipe).steps)
    assert pq.read_table(out / "forgotten.parquet").column("source").to_pylist() == ["web", "web"]
    told = CliRunner().invoke(main, ["run", str(recipe), "--workers", "1"])
    assert told.exit_code == 0
    assert "site: 2 ids that were forgotten in web, which is no source any more, are left out" in told.stderr
    assert mill.plan(recipe).steps == {name: [] for name in foreseen}
    read = {row["doc_id"] for row in rows_of(out, "ingest/site", "documents")}
    assert read == {f"w{n}" for n in range(12)} - {"w3"} | {"edited", "first", "second", "quoting"}
    assert files_with(out, "w3") == files_with(out, "short") == set()
    assert mill.verify(out).problems == []
    assert {one.outcome for one in traced_documents(out, "w3")} == {"forgotten"}
    # again, from the sources, and under the old name: of one that was taken down under the new name too
    assert mill.run(recipe, workers=1).ran == []
    mill.forget(out, **ids("w5", source="site"), workers=1)
    make_recipe(tmp_path, sources=[BOOKS, {**SITE, "name": "web"}], **settings)
    shutil.rmtree(out / "ingest/site")
    mill.run(recipe, workers=1)
    assert files_with(out, "w3") == files_with(out, "w5") == set()
    assert mill.verify(out).problems == []
    assert mill.run(recipe, workers=1).ran == []


def test_a_source_that_goes_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    """Whoever really dropped it makes nothing again, and loses no document of a source that was there."""
    out, recipe = small_run(tmp_path)
    mill.forget(out, **ids("b3"), workers=1)
    web, more = {**SITE, "name": "web"}, {**BOOKS, "name": "more", "files": "more.jsonl"}
    make_recipe(tmp_path, sources=[web, more], dedup={"exact": True}, builds=BUILDS[:1])
    before = pq.read_table(out / "forgotten.parquet")
    done = mill.run(recipe, workers=1)
    assert [name for name in done.ran if name.startswith(("ingest/", "clean/"))] == []
    assert pq.read_table(out / "forgotten.parquet").equals(before)
    assert mill.verify(out).problems == []


def test_the_same_id_in_a_source_that_was_there_is_another_document(tmp_path: Path) -> None:
    """Ids that are numbers are in every source: when one goes, the others lose nothing."""
    out, recipe = small_run(tmp_path)
    mill.forget(out, **ids("b3"), workers=1)
    more = [json.loads(line) for line in (tmp_path / "more.jsonl").read_text().splitlines()]
    other = {
        **more[0],
        "id": "b3",
        "text": "Another text, which nobody asked to be taken down, of other words.",
    }
    write_documents(tmp_path / "more.jsonl", [*more, other])
    web, rest = {**SITE, "name": "web"}, {**BOOKS, "name": "more", "files": "more.jsonl"}
    make_recipe(tmp_path, sources=[web, rest], dedup={"exact": True}, builds=BUILDS[:1])
    mill.run(recipe, workers=1)
    assert mill.verify(out).problems == []
    assert any(b"nobody asked" in data for path, data in contents(out) if path.startswith("ingest/more"))


SECRET = "the one text that was taken down"


def small_source(directory: Path, **source: Any) -> Path:
    (directory / "x").mkdir(exist_ok=True)
    (directory / "x/2.txt").write_text(SECRET)
    (directory / "x/1.txt").write_text("a text that stays where it is")
    rows = [{"name": name, "key": f"k{name}", "body": text} for name, text in (("a", SECRET), ("b", "stays"))]
    write_documents(directory / "x.jsonl", rows)
    sections = dict.fromkeys(("tokenizer", "mixture", "pack", "builds"))
    split = {"valid_fraction": 0}
    return write_recipe(directory, sources=[{"name": "notes", **source}], split=split, **sections)


def is_anywhere(run: Path) -> bool:
    return any(SECRET.encode() in data for _, data in contents(run))


def test_a_pattern_at_the_end_brings_nothing_back(tmp_path: Path) -> None:
    out = mill.run(small_source(tmp_path, files=["x/*.txt"]), workers=1).out
    mill.forget(out, **ids("2.txt"), workers=1)
    (tmp_path / "y").mkdir()
    (tmp_path / "y/2.txt").write_text("of another folder")
    again = mill.run(small_source(tmp_path, files=["x/*.txt", "y/*.txt"]), workers=1)
    assert {row["doc_id"] for row in rows_of(out, "ingest/notes", "documents")} == {"1.txt", "y/2.txt"}
    assert not is_anywhere(out)
    assert (again.warnings, mill.verify(out).warnings) == ([], [])


@pytest.mark.parametrize(
    ("before", "after", "doc_id"),
    [
        ({"files": ["x/*.txt"]}, {"files": ["*/*.txt"]}, "2.txt"),
        (
            {"fields": {"text": "body", "id": "name"}},
            {"fields": {"text": "body", "id": "key"}},
            "a",
        ),
        ({"template": "{body}"}, {"template": "{body}!"}, None),
    ],
)
def test_ids_that_change_are_told_where_what_was_taken_down_may_be_back(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], doc_id: str | None
) -> None:
    files = {"files": "x.jsonl"}
    out = mill.run(small_source(tmp_path, **{**files, **before}), workers=1).out
    if doc_id is None:
        (doc_id,) = [r["doc_id"] for r in rows_of(out, "ingest/notes", "documents") if r["text"] == SECRET]
    mill.forget(out, **ids(doc_id), workers=1)
    assert not is_anywhere(out)
    assert mill.verify(out).warnings == []
    again = mill.run(small_source(tmp_path, **{**files, **after}), workers=1)
    assert is_anywhere(out)
    (told,) = again.warnings
    assert told[0] == "ingest/notes"
    assert told[1].startswith("1 id that was taken down is not in notes any more")
    facts = mill.report(out, out=tmp_path / "r.html").facts
    assert facts["warnings"] == [{"where": told[0], "what": told[1]}]
    proven = mill.verify(out)
    assert (proven.problems, [(one.where, one.what) for one in proven.warnings]) == ([], [told])
    assert told[1] in " ".join(CliRunner().invoke(main, ["verify", str(out)]).stdout.split())
    # known under its new id too, it is out; that the list has an id that is nowhere stays true
    (back,) = [r["doc_id"] for r in rows_of(out, "ingest/notes", "documents") if SECRET in r["text"]]
    mill.forget(out, **ids(back), workers=1)
    assert not is_anywhere(out)
    assert [(one.where, one.what) for one in mill.verify(out).warnings] == [told]


def test_of_a_source_that_is_not_read_to_its_end_nothing_is_told(tmp_path: Path) -> None:
    out = mill.run(small_source(tmp_path, files="x/*.txt"), workers=1).out
    mill.forget(out, **ids("2.txt"), workers=1)
    for part in ({"limit": {"docs": 1}}, {"sample": {"method": "hash", "fraction": "0.01"}}):
        again = mill.run(small_source(tmp_path, files="x/*.txt", **part), workers=1)
        assert again.warnings == []
