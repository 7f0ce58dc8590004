"""What a run may ask of Slurm, as the user writes it: `--slurm partition=long --slurm tokens.mem=8G`.

    key = value              for all jobs
    stage.key = value        for jobs that do tasks of that stage alone: they have a pool of their own

Documents are cleaned in the pass that reads them: such a task is of ingest, or of clean where that alone has
a pool.

Defaults work where the site has some: partition, account and time are then its own. A job has one process
(`cpus`), and the memory that a shard needs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokmill.errors import RecipeError

SlurmSettings = Mapping[str, object] | Sequence[str]  # {"partition": "long"} or ["partition=long"]

# A job that ends while the next step is planned is asked for again, and waits in the queue again.
IDLE_SECONDS = 60
# The process that has the mailbox and the one that forks workers, beside those that do the work. Measured:
# 70 MB of their own, and 140 that all share.
PILOT_BYTES = 250_000_000
_MIB = 1 << 20
_WHERE = "--slurm"

# Those that sbatch has, by the same names.
_PASSED = ("partition", "account", "qos", "time", "constraint", "nodelist", "exclude", "reservation", "nice")
_OWN = {
    "mem": "of a job, as sbatch has it; none: no limit is asked for",
    "cpus": "processes of a job, one task each",
    "idle": "seconds without a task after which a job ends",
    "array": "jobs of one array at most",
    "setup": "shell commands before the job begins",
    "python": "of the nodes",
    "extra": "further options of sbatch",
}
_WHOLE = ("cpus", "idle", "array")


@dataclass(frozen=True)
class Pool:
    """Jobs that are alike."""

    passed: tuple[tuple[str, str], ...] = ()
    mem: str | None = None
    cpus: int = 1
    idle: int = IDLE_SECONDS
    array: int | None = None
    setup: str = ""
    python: str = ""
    extra: str = ""

    def arguments(self, worker_bytes: int, excluded: Collection[str] = ()) -> list[str]:
        """For sbatch. `worker_bytes`: what one process may take. `excluded`: nodes, besides the user's."""
        found = [f"--{key}={value}" for key, value in self.passed]
        found.append(f"--cpus-per-task={self.cpus}")
        if self.mem is None:
            found.append(f"--mem={-(-(self.cpus * worker_bytes + PILOT_BYTES) // _MIB)}M")
        elif self.mem != "none":
            found.append(f"--mem={self.mem}")
        found += shlex.split(self.extra)
        return _excluding(found, excluded) if excluded else found


def _excluding(arguments: Sequence[str], excluded: Collection[str]) -> list[str]:
    """These nodes too: of several --exclude sbatch takes the last one."""
    found: list[str] = []
    own, left = "", iter(arguments)
    for argument in left:
        if argument in ("-x", "--exclude"):
            own = next(left, "")
        elif argument.startswith(("-x", "--exclude=")):
            own = argument.removeprefix("-x").removeprefix("--exclude=")
        else:
            found.append(argument)
    if "/" in own:  # a file with their names, for sbatch
        own = ",".join(Path(own).read_text(encoding="utf-8").replace(",", " ").split())
    return [*found, f"--exclude={','.join([*([own] if own else []), *sorted(excluded)])}"]


class Pools:
    """By stage: what its jobs ask for."""

    def __init__(self, common: Pool, stages: Mapping[str, Pool]) -> None:
        self.common = common
        self.stages = stages

    def of(self, *names: str) -> Pool:
        """Of the first of these that has one of its own."""
        return next((self.stages[name] for name in names if name in self.stages), self.common)

    def all(self) -> list[Pool]:
        return [self.common, *self.stages.values()]


def parse_slurm(settings: SlurmSettings) -> Pools:
    common, stages = Pool(), dict[str, list[tuple[str, str]]]()
    for name, value in _pairs(settings):
        stage, _, key = name.rpartition(".")
        if stage:
            stages.setdefault(stage, []).append((key, value))
        else:
            common = _set(common, key, value)
    found: dict[str, Pool] = {}
    for stage, pairs in stages.items():
        pool = common
        for key, value in pairs:
            pool = _set(pool, key, value)
        found[stage] = pool
    return Pools(common, found)


def _pairs(settings: SlurmSettings) -> list[tuple[str, str]]:
    if isinstance(settings, Mapping):
        return [(str(key), str(value)) for key, value in settings.items()]
    found = []
    for written in settings:
        key, equals, value = written.partition("=")
        if not equals:
            raise RecipeError(
                f"{written} is not a key and a value",
                where=_WHERE,
                next="for example `tokmill run --slurm partition=long`",
            )
        found.append((key.strip(), value.strip()))
    return found


def _with(pool: Pool, key: str, value: Any) -> Pool:
    return replace(pool, **{key: value})


def _set(pool: Pool, key: str, value: str) -> Pool:
    if "\n" in value and key != "setup":
        raise RecipeError(f"{key} has several lines", where=_WHERE, next="give one")
    if key in _PASSED:
        return replace(pool, passed=(*(pair for pair in pool.passed if pair[0] != key), (key, value)))
    if key in _WHOLE:
        if not re.fullmatch(r"[1-9][0-9]{0,8}", value):
            raise RecipeError(
                f"{value} is not a number of {key}",
                where=f"{_WHERE} {key}",
                next="give a whole number from 1 on",
            )
        return _with(pool, key, int(value))
    if key in _OWN:
        return _with(pool, key, value)
    known = ", ".join(sorted((*_PASSED, *_OWN)))
    raise RecipeError(
        f"there is no option {key}",
        where=_WHERE,
        next=f"one of {known}; others of sbatch as `--slurm extra=--licenses=x`",
    )
