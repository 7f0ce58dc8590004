"""Jobs and tasks of a run on Slurm, for who looks from elsewhere: <out>/.slurm/now.json.

    driver ─ every two seconds ─> now.json ─ `tokmill status`, on any machine that sees the directory

It is what the driver knows; nobody asks Slurm for it.
"""

from __future__ import annotations

import collections
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

DIRECTORY, LOGS, NOW = ".slurm", "logs", "now.json"
# Of a driver that writes it every two seconds, on a clock that may be a little ahead.
_FRESH_SECONDS = 60.0


class AtWork(msgspec.Struct, frozen=True):
    task: str
    job: str
    node: str
    log: str
    seconds: float


class SlurmState(msgspec.Struct, frozen=True, kw_only=True):
    jobs: dict[str, int]  # by state
    reasons: list[str]  # why jobs are pending, as squeue has it
    tasks_done: int
    at_work: list[AtWork]
    logs: str
    written_at: float


def write_state(home: Path, *, jobs: Sequence[tuple[str, str]], done: int, at_work: Sequence[AtWork]) -> None:
    state = SlurmState(
        jobs=dict(sorted(collections.Counter(state.lower() for state, _ in jobs).items())),
        reasons=sorted(
            {reason for state, reason in jobs if state == "PENDING" and reason not in ("", "None")}
        ),
        tasks_done=done,
        at_work=list(at_work),
        logs=str(home / LOGS),
        written_at=time.time(),
    )
    temp = home / f".tmp-{os.getpid()}-{NOW}"
    with contextlib.suppress(OSError):  # nobody's work depends on it
        temp.write_bytes(msgspec.json.encode(state))
        temp.replace(home / NOW)


def load_state(directory: Path) -> SlurmState | None:
    """Of a run that is at work in `directory`, if it is on Slurm."""
    try:
        state = msgspec.json.decode((directory / DIRECTORY / NOW).read_bytes(), type=SlurmState)
    except (OSError, msgspec.MsgspecError):
        return None
    return state if time.time() - state.written_at < _FRESH_SECONDS else None
