"""Jobs that come and go as no real Slurm can be made to have them: its programs are of the test."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engines.slurm_site import Site, open_site
from slurm_nodes import until
from tokmill.engines.mailbox import Bye, Hello
from tokmill.engines.slurm_fleet import Fleet, FleetJob
from tokmill.engines.slurm_options import Pool
from tokmill.errors import EngineError


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return open_site(tmp_path, monkeypatch)


class Sailed:
    def __init__(self, directory: Path) -> None:
        self.said: list[str] = []
        self.fleet = Fleet(directory / "out", 1 << 30, None, self.said.append, self.read)

    def read(self, jobs: Sequence[FleetJob]) -> None:
        for job in jobs:
            for message in job.mailbox.replies.read():
                job.heard_at = time.monotonic()
                if isinstance(message, Hello):
                    job.hear_hello(message.job, message.node)
                    self.fleet.welcome(job)
                elif isinstance(message, Bye):
                    self.fleet.forget(job)

    def begin(self, job: FleetJob, node: str) -> None:
        job.mailbox.replies.append([Hello(f"7_{job.index}", node)])
        self.read([job])

    def look(self, times: int = 1) -> list[tuple[FleetJob, str]]:
        """So many answers of squeue."""
        found: list[tuple[FleetJob, str]] = []
        for _ in range(times):
            before = self.fleet._answered_at

            def is_answered(before: float = before) -> bool:
                found.extend(self.fleet.look())
                return self.fleet._answered_at > before

            until(is_answered, "squeue is not asked")
        return found


@pytest.fixture
def sailed(site: Site, tmp_path: Path) -> Iterator[Sailed]:
    made = Sailed(tmp_path)
    yield made
    site.list()
    made.fleet.close()
    assert made.fleet.jobs == []


POOL = Pool()


def sizes(asked: list[str]) -> list[int]:
    return [int(line.partition("--array=0-")[2].split()[0]) + 1 for line in asked]


def test_an_array_that_is_too_large_is_halved_until_it_is_taken_and_that_is_remembered(
    site: Site, sailed: Sailed
) -> None:
    site.largest(3, "Batch job submission failed: Invalid job array specification")
    sailed.fleet.submit(POOL, 20)
    assert sizes(site.asked()) == [20, 10, 5, 2]
    assert len(sailed.fleet.jobs) == 2
    sailed.fleet.submit(POOL, 20)
    assert sizes(site.asked())[-1] == 2
    site.list(*((job, "PENDING", "") for job in sailed.fleet.jobs))


def test_a_limit_on_jobs_is_said_once_and_those_there_are_go_on(site: Site, sailed: Sailed) -> None:
    sailed.fleet.submit(POOL, 1)
    site.largest(-1, "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)")
    sailed.fleet.submit(POOL, 2)
    sailed.fleet._submit_at = 0.0  # a minute later
    sailed.fleet.submit(POOL, 2)
    assert sizes(site.asked()) == [1, 2, 1, 2, 1]
    assert len(sailed.fleet.jobs) == 1
    (told,) = sailed.said
    assert "job submit limit" in told


def test_a_first_job_that_is_refused_is_an_error(site: Site, sailed: Sailed) -> None:
    site.largest(-1, "Job violates accounting/QOS policy")
    with pytest.raises(EngineError, match="QOS policy"):
        sailed.fleet.submit(POOL, 8)
    assert sizes(site.asked()) == [8, 4, 2, 1]


def test_jobs_that_a_controller_took_while_it_went_away_are_ours(site: Site, sailed: Sailed) -> None:
    site.largest(-1, "Unable to contact slurm controller (connect failure)")
    sailed.fleet.submit(POOL, 1)
    (job,) = sailed.fleet.jobs
    site.list((job, "RUNNING", "n1"))
    assert sailed.look() == []
    sailed.begin(job, "n1")
    assert sailed.fleet.jobs == [job]
    assert job.number == "7_0"


def test_jobs_that_no_controller_has_heard_of_are_over_and_no_try(site: Site, sailed: Sailed) -> None:
    site.largest(-1, "Unable to contact slurm controller (connect failure)")
    for _ in range(8):
        sailed.fleet.submit(POOL, 1)
        ((job, state),) = sailed.look(2)[:1]
        assert state == "FORGOTTEN"
        sailed.fleet.bury(job, state)
    assert sailed.said == []


def test_a_job_that_was_requeued_is_cancelled(site: Site, sailed: Sailed) -> None:
    sailed.fleet.submit(POOL, 1)
    (job,) = sailed.fleet.jobs
    site.list((job, "PENDING", ""))
    sailed.look()
    sailed.begin(job, "n1")
    site.list((job, "RUNNING", "n1"))
    sailed.look(2)
    assert site.cancelled() == "", "an answer from before it began was held against it"
    site.list((job, "PENDING", ""))
    sailed.look(2)
    assert "7_0" in site.cancelled()
    assert "requeued" in sailed.said[0]


def test_a_job_that_runs_and_is_silent_for_too_long_is_cancelled_and_not_given_up(
    site: Site, sailed: Sailed
) -> None:
    sailed.fleet.submit(POOL, 1)
    (job,) = sailed.fleet.jobs
    sailed.begin(job, "n1")
    site.list((job, "RUNNING", "n1"))
    job.heard_at = time.monotonic() - 1000
    over = sailed.look(2)
    assert "7_0" in site.cancelled()
    assert all(state == "FORGOTTEN" for _, state in over), "it was given up before Slurm said so"
    assert "silent" in sailed.said[0]


def test_a_node_where_no_job_begins_is_avoided_once_others_have_begun_elsewhere(
    site: Site, sailed: Sailed
) -> None:
    sailed.fleet.submit(POOL, 3)
    good, *bad = sailed.fleet.jobs
    sailed.begin(good, "n1")
    site.list((good, "RUNNING", "n1"), *((job, "FAILED", "n2") for job in bad))
    for job, state in sailed.look(2)[:2]:
        sailed.fleet.bury(job, state)
    sailed.fleet.submit(POOL, 1)
    assert "--exclude=n2" in site.asked()[-1]
    assert "--exclude" not in site.asked()[0]


def test_a_percent_sign_in_the_path_of_logs_is_not_slurms(site: Site, tmp_path: Path) -> None:
    sailed = Sailed(tmp_path / "50%A")
    sailed.fleet.submit(POOL, 1)
    (asked,) = site.asked()
    assert "/50%%A/out/.slurm/logs/%A_%a.log" in asked
    assert "--chdir=" + str(tmp_path / "50%A") in asked
    sailed.fleet.close()
