"""The jobs of a run on Slurm: asked for, watched, ended. What they work on is not known here.

    submit ─ mailboxes, then an array ─> pending ─ hello ─> running ─ bye ───────────────> gone
                                            │                  └─ over, as squeue has it ─> gone
                                            └─ over before it has begun: told with its log; at last an error

A job is gone when it has said so, or Slurm has; never because it is not heard: one that is silent too long is
cancelled, and then Slurm says so.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tokmill.engines import slurm_jobs
from tokmill.engines.disk_spool import DiskSpool
from tokmill.engines.mailbox import End, Mailbox, Pulse, Spool
from tokmill.engines.own_process import ONE_THREAD
from tokmill.engines.processes import Prepare
from tokmill.engines.slurm_former import end_jobs
from tokmill.engines.slurm_jobs import OVER, Listed, Refused, Seen, Unreachable, Watch
from tokmill.engines.slurm_options import Pool
from tokmill.engines.slurm_state import DIRECTORY, LOGS, NOW
from tokmill.engines.store_spool import StoreSpool
from tokmill.errors import EngineError, TokmillError, plural
from tokmill.storage.disk import make_directory
from tokmill.storage.location import ObjectUrl

# Between looks at the queue: often while jobs come and go, seldom for hours.
_LOOKS = (1.0, 15.0)
# Between arrays: tasks are submitted one by one, and jobs are better asked for together.
_SUBMIT_SECONDS = 1.0
# A job that runs and writes nothing, not even that it lives, has lost its disk.
_LEASE_SECONDS = 180.0
_PATIENCE_SECONDS = 600.0  # with a controller that does not answer
_BYE_SECONDS = 5.0  # for jobs that were told to end; then they are cancelled
_GONE_SECONDS = 600.0
_PENDING_SECONDS = 60.0  # then it is said why, and again after so many times that
_TOLD_AGAIN = 10
_GLANCE_SECONDS = 0.05
_MAX_TRIES = 5  # arrays of which no job has begun
_BAD_NODE = 2  # jobs that have not begun there, while others have elsewhere
_LOG_BYTES = 2000
_PENDING = "PENDING"
# Ends that say nothing of what a job would have done.
_INNOCENT = frozenset({"CANCELLED", "NODE_FAIL", "PREEMPTED", "REVOKED", slurm_jobs.FORGOTTEN})


class Batch:
    """A job array."""

    def __init__(self, name: str, pool: Pool, avoided: str) -> None:
        self.name, self.pool = name, pool
        self.avoided = avoided  # a node on which none of it begins
        self.submitted_at = time.monotonic()
        self.has_begun = False
        self.jobs: list[FleetJob] = []


class FleetJob:
    def __init__(self, batch: Batch, index: int, mailbox: Mailbox) -> None:
        self.batch, self.index, self.mailbox = batch, index, mailbox
        self.pool = batch.pool
        self.number = ""  # 123_4, when it is known
        self.node = ""
        self.state = _PENDING
        self.reason = ""
        self.hello_at: float | None = None  # None: it has not begun
        self.heard_at: float | None = None
        self.ends_at: float | None = None  # None: not known, or never
        self.is_leaving = False  # or was told to
        self.is_gone = False

    def is_pending(self) -> bool:
        return self.heard_at is None and self.state == _PENDING

    def hear_hello(self, number: str, node: str) -> None:
        self.number, self.node, self.state, self.batch.has_begun = number, node, "RUNNING", True
        self.hello_at = time.monotonic()

    def __str__(self) -> str:
        return f"job {self.number or self.batch.name}" + (f" on {self.node}" if self.node else "")


class Fleet:
    """`read`: takes in what jobs have said since they were last read, and calls `forget` of those that say
    bye. `url`: where mailboxes are, if not in `directory`: then nodes need not see it."""

    def __init__(
        self,
        directory: Path,
        worker_bytes: int,
        prepare: Prepare | None,
        say: Callable[[str], None],
        read: Callable[[Sequence[FleetJob]], object],
        url: ObjectUrl | None = None,
    ) -> None:
        self.version = slurm_jobs.require_slurm()
        self.jobs: list[FleetJob] = []  # not gone
        self.has_trouble = False  # that a log may tell more of
        self.home = directory.absolute() / DIRECTORY
        self._logs = self.home / LOGS
        self._worker_bytes, self._say, self._read = worker_bytes, say, read
        self._prefix = slurm_jobs.prefix_of(str(url) if url is not None else directory.absolute())
        token = secrets.token_hex(4)
        self._run = f"{self._prefix}{token}-"
        self._batches = 0
        self._is_told_of_limit = False
        self._tries: dict[Pool, int] = {}  # arrays in a row of which no job has begun
        self._stillborn: dict[str, int] = {}  # by node
        self._good_nodes: set[str] = set()
        self._look_seconds, self._look_at, self._submit_at = _LOOKS[0], 0.0, 0.0
        self._answered_at = time.monotonic()
        self._told_pending = "", self._answered_at
        with contextlib.ExitStack() as undo:
            end_jobs(self._prefix, say)
            make_directory(self._logs)
            self._remove_old()
            self.spool = self._open_spool(token, url)
            undo.callback(self.spool.remove)
            self.spool.write_prepare(msgspec.json.encode(prepare or ((), ())))
            undo.callback(Pulse(self.spool).stop)
            self._watch = Watch(self._prefix)
            undo.callback(self._watch.close)
            self._array = slurm_jobs.max_array_size()
            self._undo = undo.pop_all()

    def close(self) -> None:
        try:
            self.end(self.jobs)
        finally:
            self._undo.close()
            (self.home / NOW).unlink(missing_ok=True)
            if not self.has_trouble:  # else somebody may want to read the logs
                shutil.rmtree(self.home, ignore_errors=True)

    def _open_spool(self, token: str, url: ObjectUrl | None) -> Spool:
        if url is not None:
            return StoreSpool(url.child(token))
        spool = DiskSpool(self.home / token)
        spool.open()
        return spool

    def log_of(self, job: FleetJob) -> Path:
        return self._logs / f"{job.number}.log" if job.number else self._logs

    def write_log(self, job: FleetJob, text: str) -> None:
        """What a job has printed on a node that does not see this directory."""
        with contextlib.suppress(OSError), self.log_of(job).open("a", encoding="utf-8") as log:
            log.write(text)

    def forget(self, job: FleetJob) -> None:
        """It has ended."""
        job.is_gone = True
        self.jobs = [other for other in self.jobs if other is not job]
        self._look_seconds = _LOOKS[0]

    # --- what Slurm says ---

    def look(self) -> list[tuple[FleetJob, str]]:
        """Jobs that are over, with their states, as far as Slurm has answered by now."""
        over: list[tuple[FleetJob, str]] = []
        now = time.monotonic()
        try:
            seen = self._watch.answer()
            if seen is not None:
                self._answered_at = now
                over = self._judge(seen)
        except (Unreachable, Refused) as error:
            self._be_patient(str(error))
        if self.jobs and now >= self._look_at:
            self._watch.ask()
            self._look_at = now + self._look_seconds
            self._look_seconds = min(self._look_seconds * 1.3, _LOOKS[1])
        return over

    def _be_patient(self, why: str) -> None:
        """With a controller that is away: jobs that run need none."""
        heard = [job.heard_at for job in self.jobs if job.heard_at is not None]
        silent = time.monotonic() - max(self._answered_at, *heard, 0.0)
        if silent > _PATIENCE_SECONDS:
            raise EngineError(
                f"Slurm's controller has not answered for {silent / 60:.0f} minutes ({why})",
                where="--engine slurm",
                next="run the same command again when it is back: it resumes",
            )

    def _judge(self, seen: Seen) -> list[tuple[FleetJob, str]]:
        """Of each job that Slurm had when it was asked."""
        over: list[tuple[FleetJob, str]] = []
        for job in self.jobs:
            if seen.asked_at <= job.batch.submitted_at:
                continue
            found = seen.jobs.get((job.batch.name, job.index))
            if found is None:
                over.append((job, slurm_jobs.FORGOTTEN))
                continue
            has_begun = job.hello_at is not None and seen.asked_at > job.hello_at
            is_requeued = found.state == _PENDING and has_begun
            if job.hello_at is not None and not has_begun and found.state not in OVER:
                continue  # it was asked before
            _note(job, found, seen.asked_at)
            silent = time.monotonic() - job.heard_at if job.heard_at is not None else 0.0
            if found.state in OVER:
                over.append((job, found.state))
            elif is_requeued or (found.state == "RUNNING" and silent > _LEASE_SECONDS):
                self._say(
                    f"{job} was {'requeued' if is_requeued else f'silent for {silent:.0f} s'}: cancelled"
                )
                self._cancel([job])
        self._tell_pending()
        return over

    def bury(self, job: FleetJob, state: str) -> None:
        """It is over, and all that it has said was heard."""
        self.forget(job)
        if job.heard_at is not None or job.is_leaving or state in _INNOCENT:
            return
        self.has_trouble = True
        self._stillborn[job.node] = self._stillborn.get(job.node, 0) + 1
        if not job.batch.has_begun and all(other.is_gone for other in job.batch.jobs):
            self._count_try(job, state)

    def welcome(self, job: FleetJob) -> None:
        """It has begun."""
        self._tries.pop(job.pool, None)
        self._good_nodes.add(job.node)
        self._look_seconds = _LOOKS[0]

    def _count_try(self, job: FleetJob, state: str) -> None:
        self._tries[job.pool] = tries = self._tries.get(job.pool, 0) + 1
        self._submit_at = time.monotonic() + tries * _SUBMIT_SECONDS
        log = self.log_of(job)
        try:
            last = log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip()
        except OSError:
            last = (
                f"its log is on that node, {_node_log(job.batch.name)}"
                if self.spool.carries_logs
                else "it has no log: its node may not see this directory"
            )
        if tries >= _MAX_TRIES:
            raise EngineError(
                f"jobs end before they begin ({state} on {job.node}), {tries} arrays of them: {last}",
                where=str(log),
                next="see that every node has this Python"
                + (" and can reach the store; " if self.spool.carries_logs else ", and this directory; ")
                + "`--slurm setup=…` prepares a node, `--slurm python=…` names its Python",
            )
        self._say(f"no job of an array has begun ({state} on {job.node}); its log: {log}")

    def _tell_pending(self) -> None:
        pending, now = [job for job in self.jobs if job.is_pending()], time.monotonic()
        if not pending or len(pending) < len(self.jobs):
            self._told_pending = "", now
            return
        reasons = ", ".join(sorted({job.reason for job in pending if job.reason not in ("", "None")}))
        told, since = self._told_pending
        if now - since > _PENDING_SECONDS * (_TOLD_AGAIN if told == reasons else 1):
            self._told_pending = reasons, now
            self._say(f"{plural(len(pending), 'job')} waiting for Slurm ({reasons or 'it does not say why'})")

    # --- more jobs ---

    def submit(self, pool: Pool, wanted: int, avoided: str = "") -> bool:
        """So many, or as many as Slurm takes at once, not on the node to be `avoided`; none if some were
        asked for just now. False: there is no node but that one."""
        if time.monotonic() < self._submit_at:
            return True
        self._submit_at = time.monotonic() + _SUBMIT_SECONDS
        size = min(wanted, pool.array or self._array, self._array)
        while size:
            batch = self._make_batch(pool, size, avoided)
            try:
                slurm_jobs.submit(self._script(pool), self._arguments(batch))
            except Unreachable as error:
                # The controller may have it all the same: its jobs are known by their names.
                self._be_patient(str(error))
            except Refused as error:
                self.jobs = [job for job in self.jobs if job.batch is not batch]
                if avoided and not error.is_too_many:
                    self._say(f"there is no second attempt on another node than {avoided} ({error})")
                    return False
                size = self._fewer(pool, size, error)
                continue
            batch.submitted_at = time.monotonic()
            self._look_seconds, self._look_at = _LOOKS[0], batch.submitted_at
            break
        return True

    def _fewer(self, pool: Pool, size: int, error: Refused) -> int:
        if error.is_too_many and size > 1:
            if "array" in str(error):
                self._array = size // 2
            return size // 2
        if error.is_too_many and self.jobs:
            self._submit_at = time.monotonic() + _PENDING_SECONDS
            if not self._is_told_of_limit:
                self._is_told_of_limit = True
                self._say(f"Slurm takes no more jobs now ({error})")
            return 0
        raise EngineError(
            f"Slurm does not take the job: {error}",
            where=shlex.join(["sbatch", *pool.arguments(self._worker_bytes)]),
            next="give what this cluster has: `tokmill run --slurm partition=…` and the like, for account, "
            "memory and time",
        ) from None

    def _make_batch(self, pool: Pool, size: int, avoided: str) -> Batch:
        batch = Batch(f"{self._run}{self._batches}", pool, avoided)
        for index in range(size):
            batch.jobs.append(FleetJob(batch, index, self.spool.make(self._batches, index)))
        self._batches += 1
        self.jobs += batch.jobs
        return batch

    def _script(self, pool: Pool) -> str:
        command = [pool.python or sys.executable, "-m", "tokmill.engines.pilot", self.spool.address]
        command += [str(self._batches - 1), str(pool.cpus), str(pool.idle)]
        variables = " ".join(f"{name}={value}" for name, value in ONE_THREAD.items())
        return f"#!/bin/bash\n{pool.setup}\nexport {variables}\nexec {shlex.join(command)}\n"

    def _arguments(self, batch: Batch) -> list[str]:
        bad = {node for node, times in self._stillborn.items() if times >= _BAD_NODE} - self._good_nodes
        excluded = {*(bad if self._good_nodes else ()), batch.avoided} - {""}
        own = batch.pool.arguments(self._worker_bytes, excluded)
        if self.spool.carries_logs:
            where = ["--chdir=/", f"--output={_node_log(batch.name)}"]
        else:
            log = str(self._logs).replace("%", "%%")  # Slurm has % for itself
            where = [f"--chdir={self.home}", f"--output={log}/%A_%a.log"]
        return [
            *("--export=ALL", "--no-requeue", "--nodes=1", "--ntasks=1"),
            *(f"--job-name={batch.name}", f"--array=0-{len(batch.jobs) - 1}"),
            *where,
            *own,
        ]

    # --- the end of jobs ---

    def tell_to_end(self, jobs: Sequence[FleetJob]) -> None:
        told = [job for job in jobs if not job.is_leaving]
        for job in told:
            job.is_leaving = True
            job.mailbox.replies.hurry()
        self.spool.send([(job.mailbox.orders, [End()]) for job in told])

    def break_off(self, jobs: Sequence[FleetJob]) -> None:
        """They are told, and cancelled; nobody waits for them."""
        with contextlib.suppress(TokmillError):
            self.tell_to_end(jobs)
        self._cancel(jobs)

    def end(self, jobs: Sequence[FleetJob]) -> None:
        """They are told, those that have not begun are cancelled, and after a while all of them. It is over
        when each has said so, or Slurm says it of them: nothing of them can write any more."""
        ending = list(jobs)
        with contextlib.suppress(TokmillError):  # a disk that is full: they are cancelled all the same
            self.tell_to_end(ending)
        begun_at = time.monotonic()
        told_at, cancel_at = begun_at + _PENDING_SECONDS, begun_at + _BYE_SECONDS
        self._cancel([job for job in ending if job.heard_at is None])
        while ending := self._not_gone(ending, begun_at):
            now = time.monotonic()
            if now >= cancel_at:
                self._cancel(ending)
                cancel_at = now + 2 * _BYE_SECONDS
            names = ", ".join(str(job) for job in ending[:10])
            if now >= told_at:
                self._say(f"waiting for the end of {names}")
                told_at = now + _TOLD_AGAIN * _PENDING_SECONDS
            if now - begun_at > _GONE_SECONDS:
                raise EngineError(
                    f"Slurm has not ended these jobs in {_GONE_SECONDS / 60:.0f} minutes: {names}",
                    where="--engine slurm",
                    next="see that they are gone (`squeue --me`) before you run again",
                )
            time.sleep(_GLANCE_SECONDS)

    def _not_gone(self, jobs: Sequence[FleetJob], since: float) -> list[FleetJob]:
        self._read(jobs)
        with contextlib.suppress(Unreachable, Refused):
            seen = self._watch.answer()
            if seen is not None and seen.asked_at > since:
                for job in jobs:
                    found = seen.jobs.get((job.batch.name, job.index))
                    if not job.is_gone and (found is None or found.state in OVER):
                        self.forget(job)
        self._watch.ask()
        return [job for job in jobs if not job.is_gone]

    def _cancel(self, jobs: Sequence[FleetJob]) -> None:
        numbers = [job.number for job in jobs if job.number]
        with contextlib.suppress(Unreachable, Refused):  # asked again in a while
            slurm_jobs.cancel(numbers=numbers)
            slurm_jobs.cancel(names=sorted({job.batch.name for job in jobs if not job.number}))

    def _remove_old(self) -> None:
        """Mailboxes of former runs, whose jobs are gone."""
        for path in sorted(self.home.iterdir()):
            if path.is_dir() and path != self._logs:
                shutil.rmtree(path, ignore_errors=True)


def _node_log(batch: str) -> str:
    """On the disk of a node; the driver is told what is in it."""
    return f"/tmp/{batch}_%A_%a.log"


def _note(job: FleetJob, found: Listed, asked_at: float) -> None:
    job.number, job.reason, job.state = found.number, found.reason, found.state
    job.node = job.node or found.nodes
    if found.state == "RUNNING" and found.seconds_left is not None:
        job.ends_at = asked_at + found.seconds_left
