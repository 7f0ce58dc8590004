"""Slurm as its commands have it: sbatch, squeue, scancel, scontrol. Nothing here knows what a task is.

    submit ─ sbatch, a job array ─> its number; Refused, or Unreachable where it may be asked again
    Watch  ─ squeue, in a thread ─> Seen: every job of this run, and when Slurm was asked
    cancel ─ scancel, by the name of an array or by the number of a job

Jobs are known by their names, not by what sbatch printed: a controller that goes away in the middle may have
taken a job that nobody has heard of.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tokmill.errors import EngineError

COMMAND_SECONDS = 120.0
DEFAULT_ARRAY = 1001
# What a controller says that is away, starts, or has too much to do.
_PASSING = (
    "Unable to contact slurm controller",
    "Unable to contact the controller",
    "Socket timed out",
    "temporarily unable",
    "standby mode",
    "Connection refused",
    "Connection timed out",
    "Connection reset",
    "Transport endpoint",
    "Zero Bytes",
    "Unexpected message received",
    "Resource temporarily unavailable",
    "Munge",
    "Protocol authentication error",
)
# Fewer jobs at once may be taken where so many are not.
_TOO_MANY = ("array specification", "Limit", "limit", "policy")
# States of a job that is over.
OVER = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
        *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    )
)
FORGOTTEN = "FORGOTTEN"  # Slurm does not know it any more


class Unreachable(Exception):
    """No answer from the controller: it may be asked again."""


class Refused(Exception):
    """Slurm's answer is no."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.is_too_many = any(mark in why for mark in _TOO_MANY)


class Listed(NamedTuple):
    """As squeue has it."""

    number: str  # 123_4
    state: str
    reason: str
    nodes: str
    seconds_left: float | None  # None: no limit, or it does not run yet


class Seen(NamedTuple):
    asked_at: float  # monotonic
    jobs: dict[tuple[str, int], Listed]  # by name and index


def require_slurm() -> str:
    """Its version."""
    missing = [name for name in ("sbatch", "squeue", "scancel", "scontrol") if shutil.which(name) is None]
    if missing:
        raise EngineError(
            f"Slurm's {', '.join(missing)} cannot be found on this machine",
            where="--engine slurm",
            next="run on a login node, or load the site's module of Slurm (`which sbatch`)",
        )
    try:
        return _run(["sbatch", "--version"]).split()[-1]
    except (Unreachable, Refused, OSError) as error:
        raise EngineError(
            f"no Slurm answers on this machine ({error})",
            where="--engine slurm",
            next="run on a login node, or set `SLURM_CONF` to the cluster's configuration",
        ) from error


def prefix_of(place: Path | str) -> str:
    """How the names of all jobs of a directory, or of a URL, begin, whoever has submitted them."""
    whole = place if isinstance(place, str) else place.resolve()
    return f"tokmill-{hashlib.sha256(os.fsencode(whole)).hexdigest()[:10]}-"


def max_array_size() -> int:
    try:
        found = re.search(r"^MaxArraySize\s*=\s*([0-9]+)", _run(["scontrol", "show", "config"]), re.M)
    except (Unreachable, Refused):
        found = None
    return max(int(found[1]), 1) if found else DEFAULT_ARRAY


def submit(script: str, arguments: list[str]) -> str:
    """The number of the array."""
    return _run(["sbatch", "--parsable", *arguments], script).strip().partition(";")[0]


def cancel(*, names: list[str] = [], numbers: list[str] = []) -> None:  # noqa: B006 (they are only read)
    if names:
        _run(["scancel", "--quiet", f"--user={_user()}", f"--name={','.join(names)}"])
    if numbers:
        _run(["scancel", "--quiet", *numbers])


def find_jobs(prefix: str) -> Seen:
    """Those that are over too, for as long as Slurm remembers them."""
    asked_at = time.monotonic()
    said = _run(
        [
            "squeue",
            "--noheader",
            "--all",
            "--array",
            "--states=all",
            f"--user={_user()}",
            "--format=%i|%j|%T|%r|%N|%L",
        ]
    )
    found: dict[tuple[str, int], Listed] = {}
    for line in said.splitlines():
        number, name, state, reason, nodes, left = [*line.split("|"), *[""] * 6][:6]
        _, is_array, index = number.rpartition("_")
        if name.startswith(prefix) and is_array and index.isdecimal():
            found[name, int(index)] = Listed(number, state, reason, nodes, _seconds(left))
    return Seen(asked_at, found)


class Watch:
    """Asks for the jobs in a thread: a controller that hangs does not keep replies waiting."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="squeue")
        self._asked: Future[Seen] | None = None

    def ask(self) -> None:
        if self._asked is None:
            self._asked = self._thread.submit(find_jobs, self._prefix)

    def answer(self) -> Seen | None:
        """If there is one to what was asked. Raises Unreachable, and Refused."""
        if self._asked is None or not self._asked.done():
            return None
        answered, self._asked = self._asked, None
        return answered.result()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def _run(command: list[str], given: str = "") -> str:
    # A driver that is itself a job has variables of that job, which sbatch would take for wishes.
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in kept
    }
    if "PYTHONPATH" in environment:  # a job has another current directory
        paths = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths if path)
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (subprocess.TimeoutExpired, BlockingIOError) as error:
        raise Unreachable(f"{command[0]}: {error}") from error
    if done.returncode == 0:
        return done.stdout
    why = " ".join(done.stderr.split()) or f"{command[0]} ended with status {done.returncode}"
    if command[0] != "sbatch" or any(mark in why for mark in _PASSING):
        raise Unreachable(why)
    raise Refused(why)


def _user() -> str:
    return str(os.getuid())


def _seconds(written: str) -> float | None:
    """1-02:03:04 or 02:03; UNLIMITED, INVALID and the like are none."""
    found = re.fullmatch(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)", written)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
