"""Any damage to any output is found by `verify`, all of it, and told by the name of the file.

Flipped bits, cut ends, bytes that were added, zeroed or exchanged, files that are gone, strange or in
another's place: in manifests, descriptions, row indices and ids of all five formats alike. What lies beside a
run (its report, cards) is made from it and no part of it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tokmill as mill
from faults.disk import checked_digest, open_scratch, whole_recipe
from mill import tokmill

QUICK, WHOLE, PARTS = 150, 1000, 4


class Run(NamedTuple):
    out: Path
    files: dict[str, bytes]

    def restore(self, *names: str) -> None:
        for name in names:
            (self.out / name).write_bytes(self.files[name])


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with open_scratch() as scratch:
        out = mill.run(whole_recipe(scratch / "corpus"), scratch / "out", workers=1).out
        checked_digest(out)
        paths = [path for path in sorted(out.rglob("*")) if path.is_file()]
        yield Run(out, {path.relative_to(out).as_posix(): path.read_bytes() for path in paths})


def flip(data: bytes, chance: random.Random) -> bytes:
    """One bit of one byte: the least that can happen."""
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def append(data: bytes, chance: random.Random) -> bytes:
    return data + chance.choice([b"\0", b"\n", b" ", data[-1:], data])


def blank(data: bytes, chance: random.Random) -> bytes:
    """A sector that was never written: zeros, or what lay there before."""
    start = chance.randrange(len(data))
    size = min(chance.choice([1, 16, 512]), len(data) - start)
    return data[:start] + chance.choice([b"\0", b"\xff"]) * size + data[start + size :]


def exchange(data: bytes, chance: random.Random) -> bytes:
    """Two stretches in each other's place: every count and every sum of bytes stays."""
    size = max(1, min(8, len(data) // 3))
    first = chance.randrange(len(data) - 2 * size + 1)
    second = chance.randrange(first + size, len(data) - size + 1)
    end = second + size
    return (
        data[:first]
        + data[second:end]
        + data[first + size : second]
        + data[first : first + size]
        + data[end:]
    )


CHANGES: list[Callable[[bytes, random.Random], bytes]] = [flip, cut, append, blank, exchange]


def told(run: Run, name: str) -> str:
    """What verify says of the file; nothing, if it does not find it."""
    report = mill.verify(run.out)
    own = [str(problem) for problem in report.problems if problem.where == name]
    beside = [str(problem) for problem in report.problems]
    return "; ".join(own or (beside if name.endswith("manifest.json") else []))


def unseen(run: Run, names: list[str], seed: int) -> tuple[list[str], Counter[str]]:
    """Damages that verify did not find, and how many there were of each kind."""
    found, done = [], Counter[str]()
    for number, name in enumerate(names):
        chance = random.Random(f"{seed} {number} {name}")
        change = CHANGES[chance.choices(range(len(CHANGES)), [5, 3, 1, 1, 1])[0]]
        before, after = run.files[name], run.files[name]
        while after == before:
            after = change(before, chance)
        (run.out / name).write_bytes(after)
        if not told(run, name):
            found.append(f"{change.__name__} of {name}")
        run.restore(name)
        done[change.__name__] += 1
    return found, done


def victims(run: Run, count: int) -> list[str]:
    """Every file in turn, whatever its size, so that a small one is hit as often as a large one."""
    names = [name for name, data in run.files.items() if len(data) > 3]
    random.Random(5).shuffle(names)
    return [names[number % len(names)] for number in range(count)]


def test_every_kind_of_output_is_among_what_is_damaged(run: Run) -> None:
    ends = (
        "input_ids.mmap", "tokens.bin", "tokens.idx", "shard_00000.npy", "shard_00000.parquet",
        "part-00000.npz", "index.jsonl.zst", "places.npy", "meta.json", "ENCODE.meta.json", "manifest.json",
        "ATTRIBUTION.md", "tokenizer.json", "documents-00000-000.parquet", "clusters.parquet",
        "labels-00000.parquet",
    )  # fmt: skip
    chosen = victims(run, QUICK)
    assert [end for end in ends if not any(name.endswith(end) for name in chosen)] == []


def test_some_damage_to_every_file_is_found(run: Run) -> None:
    found, done = unseen(run, victims(run, QUICK), seed=1)
    assert found == []
    assert sum(done.values()) == QUICK
    assert mill.verify(run.out).ok, "and once it is mended, all is well"


@pytest.mark.slow_faults
@pytest.mark.parametrize("part", range(PARTS))
def test_a_thousand_damages_are_a_thousand_found(run: Run, part: int) -> None:
    found, done = unseen(run, victims(run, WHOLE)[part::PARTS], seed=100 + part)
    assert found == []
    assert sum(done.values()) == WHOLE // PARTS


def test_a_file_that_is_gone_is_missed(run: Run) -> None:
    missed = []
    for name in run.files:
        (run.out / name).unlink()
        if mill.verify(run.out).ok:
            missed.append(name)
        run.restore(name)
    assert missed == []


def test_two_files_in_each_others_place_are_found(run: Run) -> None:
    chance, missed = random.Random(3), []
    for _ in range(40):
        one, other = chance.sample(list(run.files), 2)
        if run.files[one] == run.files[other]:
            continue
        (run.out / one).write_bytes(run.files[other])
        (run.out / other).write_bytes(run.files[one])
        if not told(run, one) or not told(run, other):
            missed.append(f"{one} and {other}")
        run.restore(one, other)
    assert missed == []


@pytest.mark.parametrize(
    "name",
    [
        "documents.parquet",
        "build/rows/train/input_ids.mmap.bak",
        "ingest/problems/documents-00009-000.parquet",
        "tokens/train/new/tokens-00000.bin",
        "dedup/receipts/00000.json",
        "split/manifest.stale.json",
        "clean/.tmp-1-0-marks.parquet",
    ],
)
def test_a_file_that_nobody_wrote_is_found(run: Run, name: str) -> None:
    path = run.out / name
    is_new = not path.parent.exists()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"from elsewhere")
    try:
        assert told(run, name)
    finally:
        path.unlink()
        if is_new:
            path.parent.rmdir()
    assert mill.verify(run.out).ok


def test_a_whole_step_of_another_run_is_found(run: Run) -> None:
    """Sealed, complete and sound in itself, only not the one that the rest was made from."""
    with open_scratch() as scratch:
        other = mill.run(
            whole_recipe(scratch / "corpus", seed=8), scratch / "out", workers=1, until="split"
        ).out
        strangers = [path for path in sorted((other / "split").rglob("*")) if path.is_file()]
        names = [path.relative_to(other).as_posix() for path in strangers]
        for path, name in zip(strangers, names, strict=True):
            (run.out / name).write_bytes(path.read_bytes())
        assert not mill.verify(run.out).ok
        run.restore(*names)
    assert mill.verify(run.out).ok


def test_damage_ends_the_command_with_status_1(run: Run) -> None:
    (run.out / "build/mega/train/tokens.bin").write_bytes(
        flip(run.files["build/mega/train/tokens.bin"], random.Random(1))
    )
    done = tokmill("verify", run.out)
    run.restore("build/mega/train/tokens.bin")
    assert done.returncode == 1
    assert "build/mega/train/tokens.bin" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
