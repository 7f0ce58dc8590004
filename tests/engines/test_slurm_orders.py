"""Which job has which task: a Slurm that lists what the test says, and jobs whose part the test plays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.slurm_site import Site, number_of, open_site
from engines.tasks import perform, task
from slurm_nodes import until
from tokmill.artifacts.step import Task
from tokmill.engines.cluster import Loss, WorkerLost
from tokmill.engines.mailbox import Answer, Hello, Order, Returned
from tokmill.engines.orders import carry_out, encode_order
from tokmill.engines.slurm import SlurmCluster
from tokmill.engines.slurm_fleet import FleetJob
from tokmill.engines.slurm_options import parse_slurm


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return open_site(tmp_path, monkeypatch)


class Played:
    def __init__(self, site: Site, directory: Path, most: int = 8, **asked: object) -> None:
        self.said: list[str] = []
        self.site = site
        self.left = "UNLIMITED"  # of the time of jobs
        self.begun: set[FleetJob] = set()
        self.over: dict[FleetJob, str] = {}
        self.cluster = SlurmCluster(
            directory / "out", most, parse_slurm(asked), 1 << 30, self.said.append, None
        )
        self.orders: dict[FleetJob, list[Order]] = {}

    def submit(self, key: str) -> int:
        return self.cluster.submit(order_of(key))

    def go_on(self, *handles: int) -> list[int]:
        """What was said is heard, orders go out, and jobs are asked for. Those that are over by now."""
        self.site.list(*((job, self._state(job), job.node) for job in self.jobs()), left=self.left)
        return list(self.cluster.wait(handles, 0))

    def _state(self, job: FleetJob) -> str:
        if job not in self.begun:
            return "CANCELLED" if job.is_leaving else "PENDING"
        return self.over.get(job, "RUNNING")

    def jobs(self) -> list[FleetJob]:
        return self.cluster._fleet.jobs

    def begin(self, job: FleetJob, node: str) -> None:
        self.begun.add(job)
        self.go_on()
        job.mailbox.replies.append([Hello(number_of(job), node)])
        until(lambda: not self.go_on() and job.hello_at is not None, "it is not heard")

    def keys(self, job: FleetJob) -> list[str]:
        """Of the tasks that it has been given."""
        had = self.orders.setdefault(job, [])
        had += [message for message in job.mailbox.orders.read() if isinstance(message, Order)]
        return [msgspec.json.decode(bytes(one.order))["task"]["key"] for one in had]

    def answer(self, job: FleetJob) -> None:
        """The last one that it has been given."""
        assert self.keys(job)
        last = self.orders[job][-1]
        job.mailbox.replies.append([Answer(last.number, msgspec.Raw(carry_out(bytes(last.order))))])
        self.go_on()

    def give_back(self, job: FleetJob) -> None:
        assert self.keys(job)
        job.mailbox.replies.append([Returned([self.orders[job][-1].number])])
        self.go_on()

    def hear_of_time(self, left: str) -> None:
        """As squeue has it of those that run."""
        self.left = left
        running = [job for job in self.jobs() if job.hello_at is not None]
        for job in running:
            job.ends_at = None

        def is_heard() -> bool:
            self.go_on()
            return all(job.ends_at is not None for job in running)

        until(is_heard, "squeue is not asked")


def order_of(key: str) -> bytes:
    return encode_order(perform, task(key))


@pytest.fixture
def played(site: Site, tmp_path: Path) -> Iterator[Played]:
    made = Played(site, tmp_path)
    yield made
    site.list()
    made.cluster.close()


def lost(played: Played, handle: int) -> Any:
    with pytest.raises(WorkerLost) as caught:
        played.cluster.reply(handle)
    return caught.value.loss


# --- when a task has begun ---


def test_a_task_has_begun_when_a_job_has_it_and_not_when_it_waits_for_one(played: Played) -> None:
    first, second = played.submit("a"), played.submit("b")
    played.go_on()
    submitted = time.monotonic() - 1000
    assert [played.cluster.begun_at(handle, submitted) for handle in (first, second)] == [None, None]
    before = time.monotonic()
    job, _ = played.jobs()
    played.begin(job, "n1")
    assert played.keys(job) == ["a"]
    at = played.cluster.begun_at(first, submitted)
    assert at is not None
    assert before <= at <= time.monotonic()
    assert played.cluster.begun_at(second, submitted) is None
    returned = time.monotonic()
    played.give_back(job)  # as where it is preempted; then a job has it anew
    again = played.cluster.begun_at(first, submitted)
    assert again is not None
    assert again >= returned


# --- time that is left ---


def test_that_a_task_was_cut_off_by_the_limit_takes_nothing_from_jobs_of_the_others(
    played: Played, site: Site
) -> None:
    long = played.submit("long")
    played.go_on()
    (job,) = played.jobs()
    played.begin(job, "n1")
    played.cluster._given[long].begun_at -= 3000  # it was begun long ago
    played.hear_of_time("0:30")
    played.give_back(job)
    assert lost(played, long) is Loss.TIME
    played.submit("a")
    played.submit("b")
    played.hear_of_time("10:00")
    played.answer(job)
    assert played.keys(job) == ["long", "a", "b"], "minutes are left, and what is done took none"


def test_a_task_that_was_cut_off_waits_for_a_job_that_has_done_nothing_yet(
    played: Played, site: Site
) -> None:
    long = played.submit("long")
    played.go_on()
    (job,) = played.jobs()
    played.begin(job, "n1")
    played.hear_of_time("0:30")
    played.give_back(job)
    assert lost(played, long) is Loss.TIME
    played.submit("a")
    played.hear_of_time("10:00")
    played.answer(job)
    played.submit("long")  # the engine has it done again
    played.submit("b")
    played.go_on()
    assert played.keys(job) == ["long", "a", "b"]
    (fresh,) = (one for one in played.jobs() if one is not job)
    played.begin(fresh, "n2")
    played.hear_of_time("60:00")
    assert played.keys(fresh) == ["long"]


def test_the_longest_that_is_done_is_what_a_task_needs_of_the_time_that_is_left(
    played: Played, site: Site
) -> None:
    first = played.submit("a")
    played.go_on()
    (job,) = played.jobs()
    played.begin(job, "n1")
    played.cluster._given[first].begun_at -= 3000
    played.hear_of_time("10:00")
    played.answer(job)
    played.submit("b")
    played.go_on()
    assert played.keys(job) == ["a"]


# --- second attempts ---


def begin_twice(played: Played) -> tuple[FleetJob, int, int]:
    """A task at work on n1, and another attempt that waits."""
    first = played.submit("late")
    played.go_on()
    (job,) = played.jobs()
    played.begin(job, "n1")
    second = played.cluster.submit_elsewhere(order_of("late"), first)
    assert second is not None
    played.go_on()
    return job, first, second


def test_jobs_that_the_user_keeps_from_nodes_are_kept_from_that_of_the_other_attempt_too(
    site: Site, tmp_path: Path
) -> None:
    for number, asked in enumerate(
        ({"exclude": "bad[1-2]"}, {"extra": "-x bad[1-2] --hold"}, {"extra": "--exclude bad[1-2]"})
    ):
        played = Played(site, tmp_path / str(number), **asked)
        begin_twice(played)
        arguments = site.asked()[-1].split()
        assert [one for one in arguments if "exclude" in one] == ["--exclude=bad[1-2],n1"]
        assert "-x" not in arguments
        assert ("--hold" in arguments) == (number == 1)
        site.list()
        played.cluster.close()


def test_one_job_is_asked_for_another_attempt_and_no_second_one(played: Played, site: Site) -> None:
    begin_twice(played)
    for _ in range(5):
        played.go_on()
    assert len(site.asked()) == 2


def test_two_late_tasks_on_two_nodes_may_each_go_to_the_node_of_the_other(played: Played, site: Site) -> None:
    handles = [played.submit("a"), played.submit("b")]
    played.go_on()
    for job, node in zip(list(played.jobs()), ("n1", "n2"), strict=True):
        played.begin(job, node)
    for handle, key in zip(handles, "ab", strict=True):
        assert played.cluster.submit_elsewhere(order_of(key), handle) is not None
    for _ in range(5):
        played.go_on()
    asked = [one for line in site.asked() for one in line.split() if "exclude" in one]
    assert sorted(asked) == ["--exclude=n1", "--exclude=n2"]


def test_where_slurm_has_no_other_node_the_second_attempt_is_dropped_and_not_asked_for_again(
    played: Played, site: Site
) -> None:
    site.refuse("--exclude", "Batch job submission failed: Requested node configuration is not available")
    job, first, second = begin_twice(played)
    assert lost(played, second) is Loss.NOWHERE
    assert played.cluster.submit_elsewhere(order_of("late"), first) is None
    for _ in range(3):
        played.go_on()
    assert len([line for line in site.asked() if "--exclude" in line]) == 1
    (told,) = played.said
    assert "Requested node configuration" in told
    played.answer(job)
    assert played.cluster.reply(first)


def test_an_attempt_that_waits_takes_any_node_when_the_other_one_is_lost(played: Played, site: Site) -> None:
    job, first, second = begin_twice(played)
    (elsewhere,) = (one for one in played.jobs() if one is not job)
    played.over[job] = "NODE_FAIL"
    until(lambda: played.go_on(first, second) == [first], "squeue is not asked")
    assert lost(played, first) is Loss.NODE

    def is_asked_again() -> bool:
        played.go_on()
        return "--exclude" not in site.asked()[-1]

    until(is_asked_again, "no job without the exclusion")
    assert number_of(elsewhere) in site.cancelled(), "it would wait for a node that may never come"
    (other,) = (one for one in played.jobs() if not one.is_leaving)
    played.begin(other, "n1")
    assert played.keys(other) == ["late"]


def test_a_task_that_comes_back_is_one_task_though_another_attempt_waits(played: Played) -> None:
    """The job was preempted: whoever begins it next, it is not late any more."""
    job, first, second = begin_twice(played)
    job.mailbox.replies.append([Returned([1])])
    assert played.go_on(first, second) == [second]
    assert lost(played, second) is Loss.NOWHERE
    played.go_on()
    assert played.keys(job) == ["late", "late"], "the job has not said that it leaves"


def test_jobs_for_another_attempt_that_is_not_needed_any_more_are_taken_back(
    played: Played, site: Site
) -> None:
    job, first, second = begin_twice(played)
    (elsewhere,) = (one for one in played.jobs() if one is not job)
    until(lambda: not played.go_on() and bool(elsewhere.number), "squeue is not asked")
    played.answer(job)
    assert number_of(elsewhere) in site.cancelled()
    assert lost(played, second) is Loss.NOWHERE
    played.submit("next")
    played.go_on()
    assert played.keys(job) == ["late", "next"]
    assert played.cluster.reply(first)


# --- whose jobs ---


def test_a_task_of_a_step_has_its_jobs_whatever_stage_has_the_function(site: Site, tmp_path: Path) -> None:
    asked = {"dedup.mem": "1G", "index.mem": "2G", "ingest.mem": "3G"}
    out = tmp_path / "out"
    for function, step, memory in (
        ("index.listing", "dedup", "1G"),
        ("index.listing", "index/rows", "2G"),
        ("posts", "ingest/forum", "3G"),
        ("ingest.digest", "", "3G"),
        ("tokens", "tokens", "1263M"),
    ):
        played = Played(site, tmp_path, 8, **asked)
        given = Task(function=function, key="a", options={}, inputs=[], directory=str(out / step))
        played.cluster.submit(encode_order(perform, given))
        played.go_on()
        assert f"--mem={memory}" in site.asked()[-1].split()
        site.list()
        played.cluster.close()
