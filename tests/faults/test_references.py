"""Indexes and runs that are compared with them, disturbed: killed at commits, and edited again and again.

index ─ killed before call n ─ index ─> files of an index that was never disturbed
run ─ killed in deduplication ─ run ─> the digest of one that was never disturbed
edit, of the run or of what it is compared with ─ run ─> manifests of a fresh run
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from faults.disk import Call, Disk, Ended, Mode, checked_digest, open_scratch, whole_recipe
from faults.test_growing import Corpus, differences, steps_of, text_of
from mill import small_corpus

QUICK = 4


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    """A recipe that names a run and an index of half of it."""
    with open_scratch() as scratch:
        template = "Problem: {question}\n\nSolution: {answer}"
        source = {"name": "problems", "files": "problems.jsonl", "template": template}
        older = small_corpus(
            scratch / "older", problems=20, sources=[source], tokenizer=None, builds=None, pack=None
        )
        mill.run(older, scratch / "old", workers=1)
        mill.index(scratch / "old", out=scratch / "old.index", splits=["train"], ids=True, workers=1)
        dedup = {"near": {}, "partitions": 2, "reference": ["../old.index", "../old"]}
        recipe = whole_recipe(scratch / "corpus", dedup=dedup)
        found = Disk(recipe, scratch)
        try:
            yield found
        finally:
            found.close()


def command(disk: Disk, root: Path, arguments: list[str], mode: Mode = Mode.RECORD, at: int = 0) -> Ended:
    """As the disk runs its recipe, another command below another root."""
    disk._log.unlink(missing_ok=True)
    asked = {"arguments": arguments, "said": str(disk._said), "root": str(root), "log": str(disk._log)}
    assert disk._server.stdin is not None
    print(json.dumps({**asked, "mode": int(mode), "at": at}), file=disk._server.stdin, flush=True)
    status = disk._answer()
    calls = [Call(*line.split("\t")) for line in disk._log.read_text().splitlines()]
    return Ended(status, disk._said.read_text("utf-8", "replace"), calls)


def boundaries(calls: list[Call], folder: str) -> list[int]:
    """Numbers of calls after which what is on disk has another meaning."""
    return [
        number
        for number, call in enumerate(calls, 1)
        if call.kind in ("rename", "unlink", "rmdir") and folder in call.path and "journal" not in call.path
    ]


def some(numbers: list[int], count: int, seed: str) -> list[int]:
    return sorted(random.Random(seed).sample(numbers, min(count, len(numbers))))


def files_below(root: Path) -> dict[str, str]:
    """By content; of a manifest what it vouches for, as it says when it was made."""
    return {
        path.relative_to(root).as_posix(): json.loads(path.read_bytes())["digest"]
        if path.name == "manifest.json"
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_an_index_that_is_killed_goes_on_and_has_no_name_until_it_is_whole(disk: Disk) -> None:
    scratch = disk.out.parent
    root = scratch / "made"
    arguments = ["index", str(scratch / "old"), "--out", str(root), "--ids", "--workers", "1"]
    whole = command(disk, root, arguments)
    assert whole.status == 0, whole.said
    expected = files_below(root)
    numbers = boundaries(whole.calls, "/made/")
    assert len(numbers) > 10
    for at in some(numbers, QUICK, "index"):
        shutil.rmtree(root)
        killed = command(disk, root, arguments, Mode.KILL, at)
        assert killed.status == -9, killed.said
        if (root / "manifest.json").is_file():
            assert mill.verify(root).problems == [] or (root / ".work").exists()
            assert files_below(root).items() >= expected.items()
        again = command(disk, root, arguments)
        assert again.status == 0, again.said
        assert files_below(root) == expected, f"killed before call {at}: {whole.calls[at - 1]}"


def test_a_run_that_is_killed_while_it_looks_up_ends_with_the_same_content(disk: Disk) -> None:
    dropped = json.loads((disk.out / "dedup/manifest.json").read_bytes())["counts"]["dropped"]
    assert dropped["reference_exact_dup"] > 5
    numbers = boundaries(disk.calls, "/dedup/")
    for at in some(numbers, QUICK, "run"):
        disk.clear()
        assert disk.run(Mode.KILL, at).status == -9
        again = disk.run()
        assert again.status == 0, again.said
        assert checked_digest(disk.out) == disk.digest, f"killed before call {at}: {disk.calls[at - 1]}"


class Compared(Corpus):
    """With a corpus that it is compared with, in one of the ways there are."""

    def __init__(self, home: Path, seed: int) -> None:
        super().__init__(home, seed)
        self.dedup["scope"] = "global"  # which a split by cluster needs
        self.grown = 0
        self.change_reference()

    def change_reference(self) -> None:
        """Another run, an index of it, both, or none."""
        self.grown += 1
        name = f"earlier{self.grown}"
        texts = [text_of(self.draw.randrange(80)) for _ in range(12)]
        data = [{"id": f"{name}-{n}", "text": text} for n, text in enumerate(texts)]
        recipe: dict[str, Any] = {"name": name, "sources": [{"name": "e", "data": data}]}
        mill.run(recipe, self.home / name, workers=1)
        out = self.home / f"{name}.index"
        mill.index(self.home / name, out=out, ids=self.draw.random() < 0.5, threshold="0.7", workers=1)
        ways = [[f"./{name}.index"], [f"./{name}"], [f"./{name}", "./earlier1.index"], []]
        self.dedup["reference"] = self.draw.choice(ways if self.grown > 1 else ways[:2])

    def move_threshold(self) -> None:
        self.dedup["near"] = {"threshold": self.draw.choice(["0.7", "0.8", "0.95"])}


EDITS = [
    *(Compared.change_reference, Compared.add_source, Compared.drop_source, Compared.reorder),
    *(Compared.add_file, Compared.change_record, Compared.remove_record, Compared.move_threshold),
]


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow_faults) for seed in (2, 3))]
)
def test_after_every_edit_the_run_is_that_of_a_fresh_one(tmp_path: Path, seed: int) -> None:
    corpus = Compared(tmp_path, seed)
    mill.run(corpus.write(), tmp_path / "out", workers=1)
    gone = 0
    for step in range(4):
        edit = corpus.draw.choice(EDITS)
        edit(corpus)
        recipe = corpus.write()
        mill.run(recipe, tmp_path / "out", workers=1, lean=step == 2 or None)
        fresh = tmp_path / f"fresh{step}"
        mill.run(recipe, fresh, workers=1)
        assert differences(steps_of(fresh), steps_of(tmp_path / "out")) == [], edit.__name__
        dropped = steps_of(fresh)["dedup"]["counts"]["dropped"]
        gone += sum(count for reason, count in dropped.items() if reason.startswith("reference_"))
        shutil.rmtree(fresh)
    assert gone > 0
