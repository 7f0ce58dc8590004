"""A corpus that is there is not replaced unasked: a selection, committed somewhere, may name its shards."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import zstandard

from mill import tokmill, write_problems
from written import began, leave_note

TEMPLATE = "{question} {answer}"


def materialize(directory: Path, *more: str | Path) -> tuple[dict[str, Any], Any]:
    """Of problems.jsonl, in shards of a megabyte: what was printed as JSON, and the process."""
    done = tokmill(
        *("materialize", "files", directory / "problems.jsonl", "--name", "org/problems"),
        *("--template", TEMPLATE, "--out", directory / "root", "--shard-megabytes", "1", "--json", *more),
    )
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout), done


def files_below(root: Path) -> dict[str, str]:
    """Every file of a root with the sha256 of its bytes."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def texts_in(root: Path, manifest: Path) -> list[str]:
    """The texts of the listed shards, whose bytes must be the listed ones."""
    texts = []
    for shard in json.loads(manifest.read_bytes())["shards"]:
        data = (root / shard["path"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == shard["sha256"]
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            texts += [json.loads(line)["text"] for line in reader.readall().splitlines()]
    return texts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    write_problems(directory / "problems.jsonl", 5000)
    report, done = materialize(directory)
    assert done.returncode == 0, done.stdout
    assert report["invariants"]["shards"] > 1
    return directory


@pytest.fixture
def corpus(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "shelf")
    return tmp_path / "shelf"


def manifest_in(corpus: Path) -> Path:
    (path,) = (corpus / "root/manifests").glob("org--problems_*.json")
    return path


def select(corpus: Path, *more: str) -> Path:
    target = corpus / "root/manifests/chosen.json"
    done = tokmill("select", manifest_in(corpus), "--shard", "*-00000.*", "--out", target, *more)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("option", [("--unicode", "NFC"), ("--shard-megabytes", "2")])
def test_other_options_are_refused_and_every_byte_stays(corpus: Path, option: tuple[str, str]) -> None:
    chosen = select(corpus)
    before, texts = files_below(corpus / "root"), texts_in(corpus / "root", chosen)
    report, done = materialize(corpus, *option)
    assert done.returncode == 1
    fault = report["error"]
    assert f"changed none → {option[1]}" in fault["what"] or f"changed 1 → {option[1]}" in fault["what"]
    assert "manifests/chosen.json" in fault["what"]  # whose shards they are too
    for way in ("--name", "--out", "--replace"):
        assert way in fault["next"]
        assert way in tokmill("materialize", "files", "--help").stdout
        assert way in tokmill("materialize", "hub", "--help").stdout
    assert files_below(corpus / "root") == before
    assert texts_in(corpus / "root", chosen) == texts


def test_the_same_options_change_nothing_even_where_the_manifest_has_another_name(corpus: Path) -> None:
    before = files_below(corpus / "root")
    assert materialize(corpus)[1].returncode == 0
    assert files_below(corpus / "root") == before
    renamed = manifest_in(corpus).rename(corpus / "root/manifests/notebook.json")
    before = files_below(corpus / "root")
    report, done = materialize(corpus)
    assert (done.returncode, Path(report["manifest"])) == (0, renamed)
    assert files_below(corpus / "root") == before
    report, done = materialize(corpus, "--unicode", "NFKC")
    assert done.returncode == 1
    assert report["error"]["where"] == str(renamed)


def test_another_name_keeps_both(corpus: Path) -> None:
    before = files_below(corpus / "root")
    report, done = materialize(corpus, "--name", "org/problems-nfc", "--unicode", "NFC")
    assert done.returncode == 0, report
    after = files_below(corpus / "root")
    assert before.items() <= after.items()
    with (corpus / "problems.jsonl").open() as lines:
        expected = [TEMPLATE.format(**json.loads(line)) for line in lines]
    assert texts_in(corpus / "root", Path(report["manifest"])) == expected


def test_replace_says_what_went_and_who_named_it(corpus: Path) -> None:
    chosen = select(corpus)
    before = files_below(corpus / "root")
    report, done = materialize(corpus, "--shard-megabytes", "4096", "--replace")
    assert done.returncode == 0, done.stdout
    after = files_below(corpus / "root")
    shards = {name for name in before if name.startswith("corpora/")}
    assert set(report["replaced"]["shards"]) == {name for name in shards if after.get(name) != before[name]}
    assert report["replaced"]["manifests"] == [chosen.relative_to(corpus / "root").as_posix()]
    assert "select again: manifests/chosen.json" in done.stderr
    assert {name for name in after if name.startswith("corpora/")} == {s["path"] for s in report["shards"]}
    assert len(texts_in(corpus / "root", Path(report["manifest"]))) == 5000


def test_shards_whose_manifest_was_moved_away_are_not_overwritten(corpus: Path) -> None:
    committed = Path(shutil.move(manifest_in(corpus), corpus / "committed.json"))
    before = files_below(corpus / "root")
    report, done = materialize(corpus, "--unicode", "NFC", "--shard-megabytes", "2")
    assert done.returncode == 1
    assert "no manifest beside corpora/ describes it" in report["error"]["what"]
    assert files_below(corpus / "root") == before
    report, done = materialize(corpus)  # the same again: only its manifest is missing
    assert done.returncode == 0
    assert Path(report["manifest"]).read_bytes() == committed.read_bytes()


def test_a_shard_that_is_gone_or_damaged_is_put_back_and_the_others_are_not_touched(corpus: Path) -> None:
    before = files_below(corpus / "root")
    first, second = sorted((corpus / "root/corpora").rglob("*.zst"))[:2]
    first.unlink()
    kept = second.stat().st_ino
    assert materialize(corpus)[1].returncode == 0
    assert files_below(corpus / "root") == before
    assert second.stat().st_ino == kept


def test_a_second_command_on_the_same_corpus_is_refused_while_the_first_works(corpus: Path) -> None:
    before = files_below(corpus / "root")
    parent = os.getppid()
    leave_note(corpus / "root/.materialize-org--problems", parent, socket.gethostname(), began(parent))
    report, done = materialize(corpus, "--unicode", "NFC", "--replace")
    assert done.returncode == 1
    assert report["error"]["kind"] == "RunLocked"
    assert "--wait" not in report["error"]["next"]
    shutil.rmtree(corpus / "root/.materialize-org--problems")
    assert files_below(corpus / "root") == before


def test_a_replacement_that_was_killed_halfway_is_finished_by_the_same_command(corpus: Path) -> None:
    manifest_in(corpus).unlink()  # as it is when shards are being moved
    first = min((corpus / "root/corpora").rglob("*.zst"))
    first.write_bytes(b"of the other one")
    report, done = materialize(corpus)
    assert done.returncode == 1
    assert report["error"]["where"] == str(first)
    report, done = materialize(corpus, "--replace")
    assert done.returncode == 0
    assert len(texts_in(corpus / "root", Path(report["manifest"]))) == 5000


def test_a_selection_is_replaced_only_when_asked_and_a_container_never(corpus: Path) -> None:
    path = manifest_in(corpus)
    chosen = select(corpus)
    before = chosen.read_bytes()
    assert select(corpus).read_bytes() == before
    other = ("select", path, "--shard", "*-00001.*", "--out")
    refused = tokmill(*other, chosen)
    assert refused.returncode == 1
    assert "another selection of this name" in refused.stderr
    assert chosen.read_bytes() == before
    assert tokmill(*other, chosen, "--replace").returncode == 0
    assert chosen.read_bytes() != before
    whole = path.read_bytes()
    assert "is not a selection" in tokmill(*other, path, "--replace").stderr
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "record", [{"text": "hello there", "language": "en"}, {"text": "", "language": "de"}]
)
def test_a_filter_that_nothing_passes_is_an_error_that_says_what_was_found(
    tmp_path: Path, record: dict[str, str]
) -> None:
    (tmp_path / "some.jsonl").write_text(json.dumps(record) + "\n")
    done = tokmill(
        *("materialize", "files", tmp_path / "some.jsonl", "--name", "some", "--out", tmp_path / "root"),
        *("--where", "language=de"),
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "no document is left to write: 1 record read, 1 " in done.stderr
    assert "loosen `--where`" in done.stderr
    assert not list((tmp_path / "root").iterdir())


@pytest.mark.parametrize("name", ["..", ".", "a b", "../../x"])
def test_a_name_that_is_no_directory_of_its_own_is_refused(tmp_path: Path, name: str) -> None:
    done = tokmill("materialize", "hub", "org/texts", "--name", name, "--out", tmp_path / "a/b/root")
    assert (done.returncode, "cannot be the name of a directory" in done.stderr) == (1, True)
    assert not (tmp_path / "a").exists()


def test_a_request_that_is_refused_does_not_take_the_work_of_one_that_was_killed(corpus: Path) -> None:
    work = corpus / "root/.materialize-org--problems/run"
    work.mkdir(parents=True)
    assert materialize(corpus, "--unicode", "NFC")[1].returncode == 1
    assert (work / "ingest").is_dir()


def test_a_pattern_that_matches_the_shards_of_the_same_corpus_leaves_them_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": f"n{n}", "text": f"Mill {n} grinds {n * n} sacks."}) for n in range(20)]
    (tmp_path / "notes.jsonl").write_text("\n".join(lines))
    given = ("materialize", "files", "**/*.jsonl*", "--name", "notes", "--out", ".", "--json")
    results = [tokmill(*given) for _ in range(3)]
    assert [done.returncode for done in results] == [0, 0, 0], results[-1].stderr
    assert len({json.loads(done.stdout)["manifest"] for done in results}) == 1
    assert "wrote itself" in results[-1].stderr
