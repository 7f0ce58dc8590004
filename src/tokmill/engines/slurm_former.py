"""The end of jobs that a killed driver left: nothing is to be written by them into a run that goes on, with
whichever engine."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tokmill.engines import slurm_jobs
from tokmill.engines.disk_spool import DiskSpool
from tokmill.engines.slurm_jobs import OVER, Refused, Unreachable
from tokmill.engines.slurm_state import DIRECTORY, LOGS, NOW
from tokmill.errors import EngineError

_OPENING_SECONDS = 60.0  # before there is anything to lose
_GONE_SECONDS = 600.0
_BYE_SECONDS = 5.0  # for jobs that end by themselves
_GLANCE_SECONDS = 0.5
_OVER = ".over"  # of a spool that could not be removed


def end_former(directory: Path, say: Callable[[str], None]) -> None:
    """Jobs of a driver that was killed in this directory, whichever engine goes on there: they would end by
    themselves, but nothing is to be written by them from now on. Where Slurm cannot be asked for them, they
    are waited for: without a pulse none is at work for longer."""
    home = directory.absolute() / DIRECTORY
    spools = [path for path in sorted(home.iterdir()) if path.is_dir() and path.suffix != _OVER]
    spools = [path for path in spools if path.name != LOGS]
    if not spools:
        return
    prefix = slurm_jobs.prefix_of(directory.absolute())
    # of another user Slurm neither shows nor ends them
    if all(spool.stat().st_uid == os.getuid() for spool in spools) and _answers(prefix):
        end_jobs(prefix, say)
    else:
        seconds = DiskSpool.beat_seconds + DiskSpool.orphan_seconds + _BYE_SECONDS
        say(f"waiting {seconds:.0f} s: jobs of an earlier run in this directory may be at work until then")
        time.sleep(seconds)
    (home / NOW).unlink(missing_ok=True)
    for spool in spools:
        with contextlib.suppress(OSError):  # that of another user may stay
            spool = spool.rename(spool.with_suffix(_OVER))
        shutil.rmtree(spool, ignore_errors=True)


def _answers(prefix: str) -> bool:
    try:
        slurm_jobs.find_jobs(prefix)
    except (Unreachable, Refused, OSError):
        return False
    return True


def end_jobs(prefix: str, say: Callable[[str], None]) -> None:
    """Those whose names begin like this. It is over when Slurm says so of each."""
    told, until = 0, time.monotonic() + _OPENING_SECONDS
    while True:
        try:
            found = slurm_jobs.find_jobs(prefix).jobs
            names = sorted({name for (name, _), job in found.items() if job.state not in OVER})
            if not names:
                return
            if not told:
                told, until = len(names), time.monotonic() + _GONE_SECONDS
                say("ending the jobs of an earlier run in this directory")
            slurm_jobs.cancel(names=names)
            why = "jobs of an earlier run in this directory do not end"
        except (Unreachable, Refused) as error:
            why = f"Slurm's controller does not answer ({error})"
        if time.monotonic() > until:
            raise EngineError(why, where="--engine slurm", next="see what `squeue --me` says on this machine")
        time.sleep(_GLANCE_SECONDS)
