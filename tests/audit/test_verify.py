"""`verify` finds every kind of damage, in every file of every artifact."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tokmill as mill
from mill import small_corpus, tokmill
from written import MANIFEST, Json, file_sha256, rewrite_manifest


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mill.run(small_corpus(tmp_path_factory.mktemp("pristine")), workers=1).out


@pytest.fixture
def copy(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "copy")


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def flip_first_byte(path: Path) -> None:
    flip(path, 0)


def flip_last_byte(path: Path) -> None:
    flip(path, -1)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def cut_one_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def add_one_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


DAMAGES = [flip_first_byte, flip_last_byte, cut_one_byte, empty, add_one_byte, Path.unlink]


def test_a_finished_run_is_proven(pristine: Path) -> None:
    report = mill.verify(pristine)
    assert report.problems == []
    assert report.artifacts == 10
    # manifests, and ATTRIBUTION.md, which belongs to the run as a whole
    assert report.files == len(files_of(pristine)) - report.artifacts - 2


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_every_damage_to_every_file_is_found_and_named(
    pristine: Path, copy: Path, damage: Callable[[Path], None]
) -> None:
    for path in files_of(copy):
        if damage is not Path.unlink and not path.stat().st_size and damage is not add_one_byte:
            continue  # an empty file has no byte to flip or cut
        original = path.read_bytes()
        damage(path)
        report = mill.verify(copy)
        name = path.relative_to(copy).as_posix()
        assert not report.ok, f"{damage.__name__} of {name} went unnoticed"
        if path != copy / MANIFEST:
            assert any(problem.where == name for problem in report.problems), report.problems
        path.write_bytes(original)
    assert mill.verify(copy).ok


def test_what_other_commands_write_into_a_run_is_no_fault_of_it(copy: Path) -> None:
    """And a takedown takes all of it, because it may quote documents."""
    before, files = mill.verify(copy), set(files_of(copy))
    mill.report(copy, cards=True)
    for format, name in (("markdown", "review.md"), ("json", "review.json")):
        told = tokmill("review", copy, "--format", format, "--out", copy / name)
        assert told.returncode == 0, told.stderr
    added = {path.name for path in set(files_of(copy)) - files}
    assert added >= {"report.html", "report.json", "review.md", "review.json", "DATACARD.md"}
    found = mill.verify(copy)
    assert (found.problems, found.digest) == ([], before.digest)
    done = mill.forget(copy, doc_id="problem-00003", workers=1)
    assert set(done.removed) == added
    assert not added & {path.name for path in copy.iterdir()}


@pytest.mark.parametrize(
    "name", ["stray.txt", "clean/problems/marks-99999-000.parquet", "build/rows/.hidden"]
)
def test_an_extra_file_is_found(copy: Path, name: str) -> None:
    (copy / name).write_bytes(b"?")
    assert [problem.where for problem in mill.verify(copy).problems] == [name]


@pytest.mark.parametrize("pattern", ["manifest.json", "split/manifest.json", "**/*.parquet", "**/*.npy"])
def test_a_named_pipe_in_the_place_of_a_file_is_found_and_nothing_waits_for_it(
    copy: Path, pattern: str
) -> None:
    path = sorted(copy.glob(pattern))[0]
    path.unlink()
    os.mkfifo(path)
    done = tokmill("verify", copy)
    assert done.returncode == 1, done.stdout
    assert str(path.relative_to(copy)) in done.stdout + done.stderr


def test_an_extra_artifact_is_found(copy: Path) -> None:
    shutil.copytree(copy / "build/rows", copy / "build/more")
    assert "build/more" in [problem.where for problem in mill.verify(copy).problems]


def test_an_edit_of_a_manifest_that_mends_its_own_digests_is_still_found(copy: Path) -> None:
    """Whoever recomputes digest and seal of one manifest is caught by the manifest of the run."""
    for path in sorted(copy.rglob(MANIFEST)):
        if path == copy / MANIFEST:
            continue
        original = path.read_bytes()
        rewrite_manifest(path.parent, lambda body: body["config"].update(zz_edited=True))
        report = mill.verify(copy)
        assert [p.where for p in report.problems] == [path.relative_to(copy).as_posix()]
        path.write_bytes(original)


def test_an_artifact_from_another_run_is_found(copy: Path, tmp_path: Path) -> None:
    other = mill.run(small_corpus(tmp_path / "other", problems=61), workers=1).out
    shutil.rmtree(copy / "split")
    shutil.copytree(other / "split", copy / "split")
    problems = mill.verify(copy).problems
    assert any("another split" in problem.what for problem in problems)


def test_one_artifact_can_be_verified_alone(pristine: Path, copy: Path) -> None:
    assert mill.verify(pristine / "build/rows").ok
    flip_last_byte(copy / "build/rows/train/input_ids.mmap")
    assert [p.where for p in mill.verify(copy / "build/rows").problems] == ["train/input_ids.mmap"]


def list_anew(directory: Path, path: Path) -> None:
    """As one who wrote the wrong bytes from the start would: the manifest has their digest."""
    digest = file_sha256(path)
    name = path.relative_to(directory).as_posix()

    def change(body: Json) -> None:
        for entry in body["files"]:
            if entry["path"] == name:
                entry |= {"sha256": digest, "content_sha256": digest}

    rewrite_manifest(directory, change)


@pytest.mark.parametrize(
    ("artifact", "pattern", "byte"),
    [
        ("tokens", "train/*/*.idx", -1),  # the number of sequences, once more at the end
        ("build/mega", "train/tokens.idx", -1),
        ("build/rows", "train/meta.json", b'"n_seqs": '),
    ],
)
def test_files_that_were_written_wrong_are_found_by_reading_them(
    copy: Path, artifact: str, pattern: str, byte: int | bytes
) -> None:
    """Their digests are right: only their reader sees that they do not belong together."""
    directory = copy / artifact
    path = min(directory.glob(pattern))
    at = byte if isinstance(byte, int) else path.read_bytes().index(byte) + len(byte)
    flip(path, at)
    list_anew(directory, path)
    (problem,) = mill.verify(directory).problems
    assert (directory / problem.where).parent == path.parent
    assert "sha256" not in problem.what


def test_a_directory_without_artifacts_is_not_ok(tmp_path: Path) -> None:
    (problem,) = mill.verify(tmp_path).problems
    assert "nothing here lists files that could be proven" in problem.what


@pytest.mark.usefixtures("forked_workers")
def test_the_digest_is_of_content_and_of_nothing_else(pristine: Path, tmp_path: Path) -> None:
    again = mill.run(small_corpus(tmp_path), tmp_path / "somewhere", workers=2).out
    assert mill.verify(again).digest == mill.verify(pristine).digest
    other = mill.run(small_corpus(tmp_path / "b", pack={"length": 65}), workers=2).out
    assert mill.verify(other).digest != mill.verify(pristine).digest


def test_a_directory_that_is_no_run_has_no_digest_and_is_told_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = tokmill("verify", tmp_path / "empty")
    assert done.returncode == 1
    assert "digest" not in done.stdout
    assert "next: name the directory of a run" in done.stdout


def test_check_of_a_run_names_its_builds(pristine: Path) -> None:
    done = tokmill("check", pristine)
    assert done.returncode == 1
    assert f"give one of {pristine / 'build/mega'}, {pristine / 'build/rows'}" in done.stdout


def test_an_id_behind_the_directory_of_forget_is_told_its_option(pristine: Path) -> None:
    done = tokmill("forget", pristine, "problem-1")
    assert done.returncode == 2
    assert "--doc-id ID" in done.stderr
