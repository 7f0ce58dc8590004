"""A corpus that is being replaced, killed at any moment:
no manifest ever vouches for a shard that is not there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.disk import Call, Disk, Ended, Mode, open_disk
from mill import tokmill, write_problems


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    with open_disk(problems=20) as found:
        yield found


def run(disk: Disk, root: Path, arguments: list[str], mode: Mode = Mode.RECORD, at: int = 0) -> Ended:
    """As the disk runs its recipe, another command below another root."""
    disk._log.unlink(missing_ok=True)
    asked = {"arguments": arguments, "said": str(disk._said), "root": str(root), "log": str(disk._log)}
    assert disk._server.stdin is not None
    print(json.dumps({**asked, "mode": int(mode), "at": at}), file=disk._server.stdin, flush=True)
    status = disk._answer()
    calls = [Call(*line.split("\t")) for line in disk._log.read_text().splitlines()]
    return Ended(status, disk._said.read_text("utf-8", "replace"), calls)


def files_below(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def untrue(root: Path) -> list[str]:
    """Shards that a container lists and that are not there as it says; read without the mill."""
    found = []
    for path in sorted((root / "manifests").glob("texts_*.json")):
        for shard in json.loads(path.read_bytes())["shards"]:
            place = root / shard["path"]
            data = place.read_bytes() if place.is_file() else b""
            if hashlib.sha256(data).hexdigest() != shard["sha256"]:
                found.append(shard["path"])
    return found


def test_a_replacement_that_is_killed_never_leaves_a_manifest_of_what_is_not_there(
    disk: Disk,
) -> None:
    scratch = disk.out.parent
    write_problems(scratch / "problems.jsonl", 3500)
    root, before = scratch / "root", scratch / "former"
    words = ["materialize", "files", str(scratch / "problems.jsonl"), "--name", "texts", "--workers", "1"]
    words += ["--template", "{question} {answer}"]
    made = tokmill(*words, "--out", before, "--shard-megabytes", "1")
    assert made.returncode == 0, made.stderr
    other = [*words, "--out", str(root), "--shard-megabytes", "64", "--replace"]

    def restore() -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(before, root)

    restore()
    whole = run(disk, root, other)
    assert whole.status == 0, whole.said
    expected = files_below(root)
    assert untrue(root) == []
    # from the first shard that gets its name to the end; what comes before works beside it, as any run does
    moments = [
        number
        for number, call in enumerate(whole.calls, 1)
        if call.kind in ("rename", "unlink", "rmdir", "mkdir", "fsync")
        if any(f"/{name}/" in f"{call.path} {call.target}" for name in ("corpora", "manifests"))
    ]
    assert len(moments) > 8
    for at in moments[:: max(1, len(moments) // 12)]:
        restore()
        killed = run(disk, root, other, Mode.KILL, at)
        where = f"killed before {whole.calls[at - 1]}"
        assert killed.status == -9, where
        assert untrue(root) == [], where
        again = run(disk, root, other)
        assert again.status == 0, f"{where}: {again.said}"
        assert files_below(root) == expected, where
