"""Processes of torch.distributed, killed in the middle and resumed as twice as many: the same tokens."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loader.builds import documents, write_build
from tokmill.loader import Batches, open_dataset

pytest.importorskip("torch", reason="the extra `torch`")

RANK = Path(__file__).with_name("distributed_rank.py")
SEQ_LEN, BATCH_SIZE, EPOCHS = 16, 3, 2
SAVED_AT, KILLED_AT = 4, 6  # what comes between was trained on for nothing, and comes again


@contextlib.contextmanager
def ranks(count: int, build: Path, place: Path, stop_at: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Real processes that talk over the loopback; none is left."""
    command = [sys.executable, str(RANK), str(build), str(place)]
    command += [str(number) for number in (BATCH_SIZE, EPOCHS, stop_at)]
    started = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def steps_of(place: Path, count: int) -> list[list[dict]]:
    """For each step what every rank wrote down, in the order of ranks."""
    logs = [(place / f"rank-{rank}-of-{count}.jsonl").read_text() for rank in range(count)]
    lines = [[json.loads(line) for line in log.splitlines()] for log in logs]
    return [list(step) for step in zip(*lines, strict=True)]


def rows_of(steps: list[list[dict]]) -> list[list[int]]:
    return [row for step in steps for rank in step for row in rank["rows"]]


def test_two_ranks_killed_and_resumed_as_four_read_what_one_reading_reads(tmp_path):
    build, place = write_build(tmp_path / "rows", "memmap", {"train": documents(75)}), tmp_path / "place"
    place.mkdir()
    with ranks(2, build, place, KILLED_AT) as two:
        for process in two:
            assert process.stdout.readline() == "waiting\n"
        for process in two:
            process.kill()  # SIGKILL: nothing is tidied up
        assert [process.wait() for process in two] == [-9, -9]
    before = steps_of(place, 2)
    assert [step[0]["step"] for step in before] == list(range(1, KILLED_AT + 1))
    assert all(rank["state"] == step[0]["state"] for step in before for rank in step)
    with ranks(4, build, place, 0) as four:
        assert [process.wait() for process in four] == [0, 0, 0, 0]
    after = steps_of(place, 4)
    stream = rows_of(before[:SAVED_AT]) + rows_of(after)

    # by NumPy alone: in either epoch every row of the file once, and so every token
    file = np.fromfile(build / "train/input_ids.mmap", "<u2").reshape(-1, SEQ_LEN)
    assert len(np.unique(file, axis=0)) == len(file) > 2 * KILLED_AT * BATCH_SIZE, "rows can be told apart"
    epochs = np.array(stream).reshape(EPOCHS, len(file), SEQ_LEN)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == sorted(file.tolist())
        assert epoch.tolist() != file.tolist()
    assert (
        np.bincount(np.array(stream).reshape(-1)).tolist()
        == (EPOCHS * np.bincount(file.reshape(-1))).tolist()
    )

    # and in the order of one process that was never interrupted
    alone = Batches(open_dataset(build), 1, seed=11, length=SEQ_LEN)
    whole = [batch["tokens"][0].tolist() for _ in range(EPOCHS) for batch in alone]
    assert stream == whole
    # the ranks did go on from the saved state, not from the killed one or the beginning
    assert rows_of(after)[:6] == rows_of(before[SAVED_AT : SAVED_AT + 1])
