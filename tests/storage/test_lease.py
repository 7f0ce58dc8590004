"""The lease of a URL: a run that lives keeps others out by name, one that is dead does not,
and none is lost unnoticed."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from pathlib import Path

import msgspec
import pytest

from tokmill.errors import RunLocked, TokmillError
from tokmill.storage import lease as leases
from tokmill.storage.lease import CLAIM, Holder, ObjectPlace, open_lease
from tokmill.storage.location import ObjectUrl, parse_url
from tokmill.storage.objects import Store, open_store


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> ObjectUrl:
    """Time passes quickly: what is tested is who waits for whom, not how long."""
    monkeypatch.setattr(ObjectPlace, "heartbeat_seconds", 0.02)
    monkeypatch.setattr(ObjectPlace, "expiry_seconds", 0.3)
    monkeypatch.setattr(ObjectPlace, "poll_seconds", 0.01)
    return parse_url(f"memory://{uuid.uuid4().hex}/runs/x")


def note_at(place: ObjectUrl) -> Holder:
    found = open_store(place).load(place.child(CLAIM).key)
    assert found is not None
    return msgspec.json.decode(found.data, type=Holder)


def leave(place: ObjectUrl, **fields: object) -> Store:
    store = open_store(place)
    note = Holder(**{"pid": 1, "host": "elsewhere", "began": 0, "since": "then", "recipe": "other", **fields})  # type: ignore[arg-type]
    data = msgspec.json.encode(note)
    store.upload(place.child(CLAIM).key, [data], len(data))
    return store


def test_a_lease_is_held_renewed_and_set_free(place: ObjectUrl) -> None:
    with open_lease(place, "mine"):
        first = note_at(place)
        assert (first.is_held, first.recipe) == (True, "mine")
        waited = threading.Event()
        while note_at(place).beat == first.beat:
            waited.wait(0.01)
    assert not note_at(place).is_held
    with open_lease(place, "again"):
        assert note_at(place).recipe == "again"


def test_a_second_run_is_refused_by_the_name_of_the_first(place: ObjectUrl) -> None:
    with (
        open_lease(place, "first"),
        pytest.raises(RunLocked, match=r"another tokmill run publishes here \(recipe first, pid ") as caught,
        open_lease(place, "second"),
    ):
        pytest.fail("two runs in one place")
    assert caught.value.where == str(place)
    assert not note_at(place).is_held


def test_a_second_run_can_wait_for_the_first(place: ObjectUrl) -> None:
    said: list[str] = []
    may_end = threading.Event()

    def hold() -> None:
        with open_lease(place, "first"):
            holding.set()
            may_end.wait()

    holding = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    holding.wait()
    try:
        with open_lease(place, "second", wait=True, say=lambda text: (said.append(text), may_end.set())):  # type: ignore[func-returns-value]
            assert note_at(place).recipe == "second"
    finally:
        may_end.set()
        holder.join()
    assert "waiting for another tokmill run" in said[0]


def test_the_lease_of_a_dead_process_of_this_machine_is_taken_at_once(
    place: ObjectUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectPlace, "expiry_seconds", 1e9)
    leave(place, machine=leases.this_machine(), began=1, unfinished=["runs/x/abc"])
    said: list[str] = []
    with open_lease(place, "mine", say=said.append) as lease:
        assert lease.unfinished == ["runs/x/abc"], "what the dead one left is forgotten"
    assert "a run was killed here (recipe other, pid 1 on elsewhere" in said[0]


def test_the_lease_of_another_machine_is_taken_only_when_it_is_silent(place: ObjectUrl) -> None:
    store = leave(place, machine="another")
    stop = threading.Event()

    def beat() -> None:
        beats = 0
        while not stop.wait(0.02):
            beats += 1
            leave(place, machine="another", beat=beats)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(RunLocked, match="recipe other"), open_lease(place, "mine"):
            pytest.fail("two runs in one place")
    finally:
        stop.set()
        beating.join()
    with open_lease(place, "mine"):
        assert note_at(place).recipe == "mine"
    assert store.head(place.child(CLAIM).key) is not None


def test_a_lease_that_cannot_be_read_keeps_nobody_out(place: ObjectUrl) -> None:
    store = open_store(place)
    store.upload(place.child(CLAIM).key, [b'{"is_held": tr'], 14)
    with open_lease(place, "mine"):
        assert note_at(place).is_held


def test_a_run_whose_lease_was_taken_over_notices_before_it_goes_on(place: ObjectUrl) -> None:
    with open_lease(place, "slow") as lease:
        leave(place, machine="another")
        lease.heartbeat()
        with pytest.raises(RunLocked, match="taken this place over"):
            lease.check()
    assert note_at(place).recipe == "other", "what was not ours any more was set free"


def test_a_run_that_fails_sets_its_place_free(place: ObjectUrl) -> None:
    with pytest.raises(TokmillError, match="inside"), open_lease(place, "mine"):
        raise TokmillError("inside")
    assert not note_at(place).is_held


def test_a_note_that_the_disk_takes_only_half_of_is_an_error_and_no_lock(tmp_path: Path) -> None:
    """A write may be short: half a note names nobody, and would keep nobody out."""
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from tokmill.errors import StorageError\n"
        "from tokmill.storage.lease import open_lease\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))\n"
        "try:\n"
        "    with open_lease(Path(sys.argv[1])):\n"
        "        print('held')\n"
        "except StorageError as error:\n"
        "    print('refused')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
    assert list((tmp_path / "out").iterdir()) == []
