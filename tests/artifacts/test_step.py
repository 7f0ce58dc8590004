"""The life of an artifact directory: what a rebuild may keep, and what must not stay behind."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from tokmill.artifacts.directory import (
    Artifact,
    Evidence,
    begin,
    finish,
    has_all_files,
    open_artifact,
    sweep,
    usable_receipts,
)
from tokmill.artifacts.manifest import (
    MANIFEST,
    STALE_MANIFEST,
    Manifest,
    Receipt,
    build_manifest,
    file_entry,
    sum_counts,
    write_receipt,
)
from tokmill.artifacts.step import Task, TaskOptions
from tokmill.errors import ManifestDamaged, StorageError
from tokmill.storage.disk import TEMP_PREFIX, commit_bytes


def perform(directory: Path, key: str, content: str = "") -> Receipt:
    """A task: one file in a subdirectory of its own, then its receipt."""
    path = f"train/part-{key}.bin"
    written = commit_bytes(directory / path, (content or f"content of {key}").encode())
    entry = file_entry(path, "rows", written, rows=1)
    receipt = Receipt(key=key, fingerprint=f"fingerprint {key} {content}", files=[entry], counts={"in": 1})
    write_receipt(directory, receipt)
    return receipt


def conclude(directory: Path, receipts: list[Receipt]) -> Artifact:
    manifest: Manifest = build_manifest(
        kind="build",
        step="build/rows",
        config={},
        inputs={},
        receipts=receipts,
        counts=sum_counts(receipts),
        facts={},
        experiment_id="",
        environment={},
    )
    artifact = finish(directory, manifest)
    sweep(artifact)
    return artifact


def listing(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "out" / "build" / "rows"


@pytest.fixture
def artifact(directory: Path) -> Artifact:
    """A finished artifact of three tasks."""
    begin(directory)
    return conclude(directory, [perform(directory, key) for key in "abc"])


def fingerprints(artifact: Artifact) -> list[str]:
    return [receipt.fingerprint for receipt in artifact.manifest.receipts()]


def test_an_artifact_exists_from_its_manifest_on(directory: Path) -> None:
    assert open_artifact(directory) is None
    begin(directory)
    receipts = [perform(directory, key) for key in "ab"]
    assert open_artifact(directory) is None
    made = conclude(directory, receipts)
    assert open_artifact(directory) == made
    assert listing(directory) == [MANIFEST, "train", "train/part-a.bin", "train/part-b.bin"]
    assert has_all_files(made)


def test_a_killed_step_keeps_the_tasks_that_were_done(directory: Path) -> None:
    begin(directory)
    done = perform(directory, "a")
    begin(directory)  # the next run
    wanted = [done.fingerprint, "fingerprint b "]
    assert usable_receipts(directory, wanted) == {done.fingerprint: done}
    artifact = conclude(directory, [done, perform(directory, "b")])
    assert [path for path in listing(directory) if "receipts" in path] == []
    assert has_all_files(artifact)


def test_a_rebuild_reuses_the_receipts_of_the_artifact_it_replaces(artifact: Artifact) -> None:
    begin(artifact.directory)
    assert open_artifact(artifact.directory) is None
    assert (artifact.directory / STALE_MANIFEST).is_file()
    found = usable_receipts(artifact.directory, fingerprints(artifact)[:2])
    assert list(found.values()) == artifact.manifest.receipts()[:2]


def test_a_rebuild_that_is_killed_again_and_again_still_knows_the_first_artifact(artifact: Artifact) -> None:
    for _ in range(3):
        begin(artifact.directory)
    assert list(usable_receipts(artifact.directory, fingerprints(artifact))) == fingerprints(artifact)


def test_a_receipt_that_nobody_asks_for_is_not_used(artifact: Artifact) -> None:
    begin(artifact.directory)
    assert usable_receipts(artifact.directory, ["another fingerprint"]) == {}


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "remove", "directory"])
def test_a_receipt_does_not_hold_when_its_file_is_not_what_was_written(
    artifact: Artifact, damage: str
) -> None:
    path = artifact.path(artifact.manifest.files[1])
    data = path.read_bytes()
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage != "remove":
        path.write_bytes({"flip": data[:-1] + b"?", "cut": data[:-1], "grow": data + b"?"}[damage])
    begin(artifact.directory)
    first, _, last = fingerprints(artifact)
    assert list(usable_receipts(artifact.directory, fingerprints(artifact))) == [first, last]


def test_a_file_that_nobody_wrote_to_after_the_manifest_is_not_read_unless_all_is_verified(
    artifact: Artifact,
) -> None:
    path = artifact.path(artifact.manifest.files[1])
    before = (artifact.directory / MANIFEST).stat().st_mtime_ns - 10**9
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    begin(artifact.directory)
    first, second, last = fingerprints(artifact)
    assert list(usable_receipts(artifact.directory, fingerprints(artifact))) == [first, last]
    os.utime(path, ns=(before, before))  # as a disk damages it
    assert list(usable_receipts(artifact.directory, fingerprints(artifact))) == [first, second, last]
    assert list(usable_receipts(artifact.directory, fingerprints(artifact), verify=True)) == [first, last]


def test_of_what_this_run_wrote_in_the_pass_of_another_step_only_the_size_is_looked_at(
    directory: Path,
) -> None:
    begin(directory)
    former = perform(directory, "a")
    begin(directory)  # the run
    before = {former.fingerprint}
    latter = [perform(directory, key) for key in "bc"]
    for receipt in (former, latter[0]):
        path = directory / receipt.files[0].path
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    (directory / latter[1].files[0].path).write_bytes(b"")
    wanted = [receipt.fingerprint for receipt in (former, *latter)]
    assert list(Evidence(directory, before=before).usable(wanted)) == [latter[0].fingerprint]
    assert list(Evidence(directory).usable(wanted)) == [], "where nobody says what was there before"


def test_the_quick_look_sees_missing_files_and_other_sizes(artifact: Artifact) -> None:
    path = artifact.path(artifact.manifest.files[0])
    path.write_bytes(path.read_bytes() + b"?")
    assert not has_all_files(artifact)
    path.unlink()
    assert not has_all_files(artifact)


def test_an_edited_stale_manifest_vouches_for_nothing(artifact: Artifact) -> None:
    begin(artifact.directory)
    stale = artifact.directory / STALE_MANIFEST
    body = json.loads(stale.read_bytes())
    body["tasks"][0]["fingerprint"] = "wanted"
    stale.write_text(json.dumps(body, indent=1) + "\n")
    assert usable_receipts(artifact.directory, ["wanted", *fingerprints(artifact)]) == {}


def test_an_edited_manifest_is_an_error_and_not_a_missing_artifact(artifact: Artifact) -> None:
    path = artifact.directory / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"kind": "build"', b'"kind": "fraud"'))
    with pytest.raises(ManifestDamaged):
        open_artifact(artifact.directory)


def test_leftovers_of_killed_writers_are_removed_before_the_rebuild(artifact: Artifact) -> None:
    leftovers = [
        artifact.directory / f"{TEMP_PREFIX}1-0-0-x",
        artifact.directory / "train" / f"{TEMP_PREFIX}1-0-1-y",
        artifact.directory / f"{TEMP_PREFIX}1-0-2-drawers" / "hashes-00000",
        artifact.directory / f"{TEMP_PREFIX}1-0-2-drawers" / f"{TEMP_PREFIX}1-0-3-z" / "z",
    ]
    for path in leftovers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half a file")
    (artifact.directory / f"{TEMP_PREFIX}1-0-4-empty").mkdir()
    begin(artifact.directory)
    assert list(artifact.directory.rglob(f"{TEMP_PREFIX}*")) == []
    assert len(usable_receipts(artifact.directory, fingerprints(artifact))) == 3


def test_finishing_removes_files_of_no_task_and_directories_that_are_left_empty(artifact: Artifact) -> None:
    begin(artifact.directory)
    (artifact.directory / "valid/deep").mkdir(parents=True)
    (artifact.directory / "valid/deep/part-z.bin").write_bytes(b"of a split that is no more")
    (artifact.directory / "notes.txt").write_text("mine")
    receipts = list(usable_receipts(artifact.directory, fingerprints(artifact)[:1]).values())
    conclude(artifact.directory, receipts)
    assert listing(artifact.directory) == [MANIFEST, "notes.txt", "train", "train/part-a.bin"]


def test_sweeping_finishes_what_a_kill_after_the_manifest_left_undone(artifact: Artifact) -> None:
    before = listing(artifact.directory)
    write_receipt(artifact.directory, artifact.manifest.receipts()[0])
    (artifact.directory / STALE_MANIFEST).write_text("{}")
    sweep(artifact)
    assert listing(artifact.directory) == before
    assert open_artifact(artifact.directory) == artifact


def test_a_task_that_is_done_anew_replaces_the_file_of_the_old_one(artifact: Artifact) -> None:
    begin(artifact.directory)
    old = fingerprints(artifact)
    anew = perform(artifact.directory, "a", "other content")
    found = usable_receipts(artifact.directory, [anew.fingerprint, *old])
    assert set(found) == {anew.fingerprint, *old[1:]}, "the old receipt speaks of bytes that are gone"


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError) as caught:
        begin(tmp_path / "file" / "artifact")
    assert caught.value.next


class SpelledOptions(TaskOptions, frozen=True):
    table: str = "matches"


def test_options_that_went_through_another_process_have_the_same_fingerprint(tmp_path: Path) -> None:
    """A string that equals the default is not the same object there, and msgspec would write it."""
    here = Task(
        function="f", key="k", options=SpelledOptions(table="matches"), inputs=[], directory=str(tmp_path)
    )
    there = pickle.loads(pickle.dumps(here))  # noqa: S301 - as a pool hands it over
    assert there.options.table is not SpelledOptions.__struct_defaults__[0]
    assert there.fingerprint == here.fingerprint
