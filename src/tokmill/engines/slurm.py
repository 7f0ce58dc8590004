"""Tasks by Slurm jobs, on nodes that share a disk with the driver, or an object store.

    tasks wait ─> more jobs (`slurm_fleet`): as many as there are tasks, `--workers` processes at most
    a job says hello ─> one order to each of its processes that is free ─> reply, and the next order
    nothing to do ─> jobs end by themselves

    <out>/.slurm/<run>/        orders and replies (`mailbox`); removed with the run. Or in a store
    <out>/.slurm/logs/         123_4.log of each job: a line for every task that begins and ends; kept where
                               something went wrong
    <out>/.slurm/now.json      jobs and tasks, for `tokmill status`

Before the tasks of a job that is over go to others its replies are read to their end.

    FAILED, OUT_OF_MEMORY      Loss.WORKER: maybe its task's doing      TIMEOUT   Loss.TIME
    NODE_FAIL, CANCELLED …     Loss.NODE                                returned  no loss: it was told to end
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from tokmill.artifacts.manifest import Json
from tokmill.engines.cluster import MAX_PREEMPTIONS, ClusterEngine, Loss, WorkerLost
from tokmill.engines.mailbox import (
    NAPS,
    Answer,
    Beat,
    Box,
    Bye,
    Found,
    FromJob,
    Garbled,
    Gone,
    Hello,
    Leaving,
    Logged,
    Lost,
    Order,
    Returned,
    ToJob,
    Word,
)
from tokmill.engines.orders import Named, name_in
from tokmill.engines.processes import Prepare
from tokmill.engines.slurm_fleet import Fleet, FleetJob
from tokmill.engines.slurm_options import Pool, Pools
from tokmill.engines.slurm_state import AtWork, write_state
from tokmill.errors import TokmillError
from tokmill.storage.location import ObjectUrl
from tokmill.storage.traffic import Traffic

DEFAULT_WORKERS = 64
_STATE_SECONDS = 2.0
# A task is begun where what the longest took fits in what is left of the job, and a little more.
_TIME_FACTOR = 1.2
_LATE_SECONDS = 60.0  # Slurm looks at limits now and then
_LOSSES = {
    "FAILED": Loss.WORKER,
    "OUT_OF_MEMORY": Loss.WORKER,
    "COMPLETED": Loss.WORKER,
    "TIMEOUT": Loss.TIME,
    "DEADLINE": Loss.TIME,
}


def open_slurm(
    directory: Path,
    workers: int | None,
    pools: Pools,
    worker_bytes: int,
    say: Callable[[str], None],
    prepare: Prepare | None,
    url: ObjectUrl | None = None,
) -> ClusterEngine:
    """`workers`: the most processes at once. `directory`: of the run, on a disk that every node has, unless
    there is a `url` for what driver and jobs say to each other."""
    most = workers or DEFAULT_WORKERS
    return SlurmEngine(SlurmCluster(directory, most, pools, worker_bytes, say, prepare, url), most, say)


class SlurmEngine(ClusterEngine):
    def __init__(self, cluster: SlurmCluster, most: int, say: Callable[[str], None]) -> None:
        super().__init__(cluster, most, say)
        self._jobs = cluster

    @property
    def workers(self) -> int:
        """Processes that there were at once: Slurm may never have given as many as were asked for."""
        return max(self._jobs.most_processes, 1)


class _Failed(msgspec.Struct, frozen=True):
    fault: object = None
    bug: object = None


class _Given:
    """A task that was submitted."""

    def __init__(self, order: bytes, function: str, key: str, pool: Pool) -> None:
        self.order, self.function, self.pool = order, function, pool
        self.name = f"{function} {key}"
        self.job: FleetJob | None = None  # that has it
        self.other: int | None = None  # attempt of the same task
        self.returned = 0  # times, by jobs that were told to end by others
        self.is_discarded = False
        self.begun_at = 0.0
        self.reply: bytes | None = None
        self.lost: WorkerLost | None = None

    def is_over(self) -> bool:
        return self.reply is not None or self.lost is not None


class SlurmCluster:
    max_deaths = 3
    has_nodes = True

    def __init__(
        self,
        directory: Path,
        most: int,
        pools: Pools,
        worker_bytes: int,
        say: Callable[[str], None],
        prepare: Prepare | None,
        url: ObjectUrl | None = None,
    ) -> None:
        self._most, self._pools, self._say = most, pools, say
        self._directory = directory.absolute()
        self._traffic = Traffic()  # of jobs with the store, beside their tasks
        self._given: dict[int, _Given] = {}
        self._of_job: dict[FleetJob, set[int]] = {}  # what each is at
        self._handed_in: dict[FleetJob, int] = {}
        self._waiting: dict[Pool, deque[int]] = {pool: deque() for pool in pools.all()}
        self._longest: dict[str, float] = {}  # seconds of a task that is done, by its function
        self._cut_off: set[bytes] = set()  # orders of tasks that a limit has ended
        self._alone: set[tuple[Pool, str]] = set()  # nodes beside which there is none
        self.most_processes = 0  # of jobs that have said hello, at once
        self._count = self._done = 0
        self._state_at = self._pending_at = 0.0
        self._garbled: set[FleetJob] = set()
        with contextlib.ExitStack() as undo:
            undo.enter_context(_ending_on_sigterm())
            self._fleet = Fleet(directory, worker_bytes, prepare, say, self._look, url)
            undo.callback(self._fleet.close)
            self._undo = undo.pop_all()
        self.name = f"slurm {self._fleet.version}"
        self.is_blame_shared = any(pool.cpus > 1 for pool in pools.all())
        self.killer = (
            f"read the logs of its jobs below {self._fleet.home}; give jobs more memory (`--slurm mem=…`)"
        )

    def submit(self, order: bytes, needed_bytes: int = 0) -> int:
        return self._submit(order)

    def submit_elsewhere(self, order: bytes, handle: int) -> int | None:
        """It waits for a job on another node."""
        given = self._given[handle]
        if given.job is None or (given.pool, given.job.node) in self._alone:
            return None
        given.other = number = self._submit(order)
        self._given[number].other = handle
        return number

    def begun_at(self, handle: int, submitted_at: float) -> float | None:
        given = self._given[handle]
        return given.begun_at if given.job is not None else None

    def discard(self, handle: int) -> None:
        """Its job is told to end, and what else it has comes back."""
        given = self._given[handle]
        given.is_discarded = True
        if handle in self._waiting[given.pool]:
            self._drop(handle)
        elif given.job is not None:
            self._fleet.break_off([given.job])

    def _submit(self, order: bytes) -> int:
        task = name_in(order)
        self._count += 1
        given = _Given(order, task.function, task.key, self._pools.of(*self._stages_of(task)))
        self._given[self._count] = given
        self._waiting[given.pool].append(self._count)
        return self._count

    def _stages_of(self, task: Named) -> Iterator[str]:
        """Its function, its step and the stage of the function (posts of ingest/web, index.listing of dedup);
        then those of what follows."""
        for one in (task, *task.followers):
            yield one.function
            if Path(one.directory).is_relative_to(self._directory):
                yield from Path(one.directory).relative_to(self._directory).parts[:1]
            yield one.function.partition(".")[0]

    def wait(self, handles: Sequence[int], seconds: float | None = None) -> Sequence[int]:
        nap = NAPS[0]
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            has_news = self._read_replies()
            for job, state in self._fleet.look():
                self._bury(job, state)
            self._hand_out()
            self._ask_for_jobs()
            self._write_state()
            over = [handle for handle in handles if self._given[handle].is_over()]
            if over or (until is not None and time.monotonic() >= until):
                return over
            nap = NAPS[0] if has_news else min(nap * 1.5, NAPS[1])
            time.sleep(nap)

    def reply(self, handle: int) -> bytes:
        given = self._given.pop(handle)
        if given.lost is not None:
            raise given.lost
        assert given.reply is not None
        return given.reply

    def cancel(self, handles: Sequence[int]) -> None:
        """Nothing of them can write any more afterwards."""
        jobs = [job for job, numbers in self._of_job.items() if numbers & set(handles)]
        for handle in handles:
            given = self._given.pop(handle, None)
            if given is not None and handle in self._waiting[given.pool]:
                self._waiting[given.pool].remove(handle)
        self._fleet.end(jobs)
        for job in jobs:
            self._forget(job)

    def workers(self) -> int:
        return self._most

    def traffic(self) -> Json:
        return self._traffic.as_json()

    def close(self) -> None:
        self._undo.close()

    # --- replies ---

    def _read_replies(self) -> bool:
        now = time.monotonic()
        is_time = now >= self._pending_at
        if is_time:
            pending = sum(job.is_pending() for job in self._fleet.jobs)
            self._pending_at = now + self._fleet.spool.pending_nap * pending
        return self._look([job for job in self._fleet.jobs if is_time or not job.is_pending()])

    def _look(self, jobs: Sequence[FleetJob]) -> bool:
        """As far as it is time to."""
        read = [job for job in jobs if job not in self._garbled]
        found = self._fleet.spool.look([job.mailbox.replies for job in read])
        heard = [self._take_in(job, messages) for job, messages in zip(read, found, strict=True)]
        return any(heard)

    def _take_in(self, job: FleetJob, found: Found[FromJob]) -> bool:
        if isinstance(found, Garbled):
            self._say(f"{job}: {found}")
            self._garbled.add(job)
            self._fleet.end([job])
            self._bury(job, "CANCELLED")
            return True
        if isinstance(found, Exception):
            return False  # the disk may be back in a moment; else the job is silent for too long
        if found:
            job.heard_at = time.monotonic()
        for message in found:
            self._hear(job, message)
        return bool(found)

    def _hear(self, job: FleetJob, message: FromJob) -> None:
        match message:
            case Hello():
                job.hear_hello(message.job, message.node)
                self._fleet.welcome(job)
                self._of_job[job], self._handed_in[job] = set(), 0
                processes = sum(other.pool.cpus for other in self._of_job)
                self.most_processes = max(self.most_processes, processes)
            case Word():
                extra = {} if message.counted is None else {"counted": tuple(message.counted)}
                logging.getLogger(message.logger).log(message.level, "%s", message.message, extra=extra)
            case Logged():
                self._fleet.write_log(job, message.text)
            case Answer():
                self._traffic.merge(message.traffic)
                given = self._take_from(job, message.number)
                if given is not None:
                    given.reply = bytes(message.reply)
                    self._drop_waiting(given.other)
                    if not given.is_discarded:
                        took = time.monotonic() - given.begun_at
                        self._longest[given.function] = max(self._longest.get(given.function, 0.0), took)
                    self._handed_in[job] += 1
                    self._done += 1
                    self._tell_of_failure(job, given)
            case Lost():
                self._lose(job, message.number, Loss.WORKER)
            case Returned():
                is_late = job.ends_at is not None and time.monotonic() > job.ends_at - _LATE_SECONDS
                for number in message.numbers:
                    given = self._given.get(number)
                    if given is not None and not job.is_leaving:
                        given.returned += 1
                    if is_late:
                        self._lose(job, number, Loss.TIME)
                    elif given is not None and given.returned >= MAX_PREEMPTIONS:
                        self._lose(job, number, Loss.PREEMPTED)
                    else:
                        self._put_back(job, number)
            case Leaving():
                job.is_leaving = True
            case Beat():
                self._traffic.merge(message.traffic)
            case Bye():
                self._traffic.merge(message.traffic)
                self._fleet.forget(job)
                self._forget(job)

    def _take_from(self, job: FleetJob, number: int) -> _Given | None:
        """None where it was cancelled."""
        self._of_job.get(job, set()).discard(number)
        given = self._given.get(number)
        if given is not None:
            given.job = None
        return given

    def _tell_of_failure(self, job: FleetJob, given: _Given) -> None:
        failed = msgspec.json.decode(given.reply or b"", type=_Failed)
        if failed.fault is not None or failed.bug is not None:
            self._fleet.has_trouble = True
            self._say(f"{given.name} failed in {job}; its log: {self._fleet.log_of(job)}")

    def _lose(self, job: FleetJob, number: int, loss: Loss) -> None:
        given = self._take_from(job, number)
        if given is not None and given.is_discarded:
            given.lost = WorkerLost(loss)
        elif given is not None:
            self._fleet.has_trouble = True
            self._say(f"{given.name} was lost with {job}; its log: {self._fleet.log_of(job)}")
            given.lost = WorkerLost(loss)
            if loss is Loss.TIME:
                self._cut_off.add(given.order)

    def _put_back(self, job: FleetJob, number: int) -> None:
        given = self._take_from(job, number)
        if given is None:
            return
        self._drop_waiting(given.other)
        if given.is_discarded or self._avoided(number):  # the other attempt is at work
            given.lost = WorkerLost(Loss.NOWHERE)
        else:
            self._waiting[given.pool].appendleft(number)

    def _drop(self, number: int) -> None:
        """One that waits, and that another attempt does without."""
        given = self._given[number]
        self._waiting[given.pool].remove(number)
        given.lost = WorkerLost(Loss.NOWHERE)

    def _drop_waiting(self, number: int | None) -> None:
        given = self._given.get(number) if number is not None else None
        if number is not None and given is not None and number in self._waiting[given.pool]:
            self._drop(number)

    def _bury(self, job: FleetJob, state: str) -> None:
        if job not in self._garbled:
            try:
                self._take_in(job, job.mailbox.replies.read())
            except (Garbled, Gone, TokmillError) as error:
                self._say(f"the last replies of {job} cannot be read ({error})")
        for number in list(self._of_job.get(job, ())):
            self._lose(job, number, _LOSSES.get(state, Loss.NODE))
        self._forget(job)
        if not job.is_gone:
            self._fleet.bury(job, state)

    def _forget(self, job: FleetJob) -> None:
        """Orders that it has not seen are nobody's fault."""
        for number in list(self._of_job.get(job, ())):
            self._put_back(job, number)
        self._of_job.pop(job, None)
        self._handed_in.pop(job, None)

    # --- orders and jobs ---

    def _free(self, job: FleetJob) -> int:
        if job.is_leaving or job.is_gone or job not in self._of_job:
            return 0
        return job.pool.cpus - len(self._of_job[job])

    def _hand_out(self) -> None:
        now = time.monotonic()
        letters: list[tuple[Box[ToJob], list[ToJob]]] = []
        for job in list(self._of_job):
            waiting, free = self._waiting[job.pool], self._free(job)
            if not waiting or not free:
                continue
            may = [number for number in waiting if self._avoided(number) != job.node]
            numbers = [number for number in may if self._has_time(job, number, now)][:free]
            if not numbers:
                if may and not self._of_job[job]:
                    self._fleet.tell_to_end([job])
                continue
            self._of_job[job].update(numbers)
            for number in numbers:
                waiting.remove(number)
                self._given[number].job, self._given[number].begun_at = job, now
            orders = [Order(number, msgspec.Raw(self._given[number].order)) for number in numbers]
            letters.append((job.mailbox.orders, [*orders]))
            job.mailbox.replies.hurry()
        self._fleet.spool.send(letters)

    def _has_time(self, job: FleetJob, number: int, now: float) -> bool:
        """One that has done nothing yet has all the time there is. It is for those that a limit has ended."""
        given = self._given[number]
        if given.order in self._cut_off:
            return not self._handed_in[job] and not self._of_job[job]
        if job.ends_at is None or not self._handed_in[job]:
            return True
        return job.ends_at - now > _TIME_FACTOR * self._longest.get(given.function, 0.0)

    def _avoided(self, number: int) -> str:
        """The node that another attempt is at work on."""
        other = self._given.get(self._given[number].other or 0)
        return other.job.node if other is not None and other.job is not None else ""

    def _ask_for_jobs(self) -> None:
        for pool, waiting in self._waiting.items():
            away = Counter(node for number in waiting if (node := self._avoided(number)))
            jobs = [job for job in self._fleet.jobs if job.pool == pool and not job.is_leaving]
            self._fleet.break_off([job for job in jobs if _is_in_vain(job, away)])
            if not waiting:
                continue
            own = [job for job in jobs if not job.is_leaving]
            free = {job: self._free(job) if job in self._of_job else pool.cpus for job in own}
            lacking, avoided = len(waiting) - away.total() - sum(free.values()), ""
            for node, count in sorted(away.items()):
                if lacking <= 0:
                    elsewhere = sum(left for job, left in free.items() if _is_elsewhere(job, node))
                    lacking, avoided = max(len(waiting) - sum(free.values()), count - elsewhere), node
            used = sum(job.pool.cpus for job in self._fleet.jobs if not job.is_leaving)
            room = max((self._most - used) // pool.cpus, 0 if self._fleet.jobs else 1)
            wanted = min(-(-lacking // pool.cpus), room)
            if wanted > 0:
                if not self._fleet.submit(pool, wanted, avoided):
                    self._alone.add((pool, avoided))
                    for number in [one for one in waiting if self._avoided(one) == avoided]:
                        self._drop(number)
            elif lacking > 0 and not own:  # others have all the room: those that have nothing to do leave
                idle = [job for job in self._fleet.jobs if not self._of_job.get(job)]
                self._fleet.tell_to_end([job for job in idle if not self._waiting[job.pool]])

    # --- what `tokmill status` reads ---

    def _write_state(self) -> None:
        now = time.monotonic()
        if now < self._state_at:
            return
        self._state_at = now + _STATE_SECONDS
        at_work = [
            AtWork(
                given.name,
                given.job.number,
                given.job.node,
                str(self._fleet.log_of(given.job)),
                round(now - given.begun_at, 1),
            )
            for given in self._given.values()
            if given.job is not None
        ]
        write_state(
            self._fleet.home,
            jobs=[(job.state, job.reason) for job in self._fleet.jobs],
            done=self._done,
            at_work=at_work,
        )


def _is_elsewhere(job: FleetJob, node: str) -> bool:
    return job.node not in ("", node) or job.batch.avoided == node


def _is_in_vain(job: FleetJob, away: Container[str]) -> bool:
    """Asked for by an attempt that waits no more: the nodes that are left may never be free."""
    return bool(job.batch.avoided and job.number) and job.is_pending() and job.batch.avoided not in away


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """A driver that is told to end cancels its jobs, as one that is interrupted does."""
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    if is_ours:
        signal.signal(signal.SIGTERM, _end_driver)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_driver(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
