"""What a driver and a job say to each other: on a disk as a network file system may show it, in a store."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from slurm_nodes import until
from tokmill.engines.disk_spool import DiskBox, DiskSpool
from tokmill.engines.mailbox import Beat, Bye, End, FromJob, Garbled, Gone, Order, Pulse, Spool
from tokmill.engines.pilot import open_spool
from tokmill.engines.store_spool import StoreSpool, Taken
from tokmill.errors import StorageError
from tokmill.storage.location import parse_url
from tokmill.storage.objects import open_store
from tokmill.storage.traffic import counting


@pytest.fixture(params=["disk", "store"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Spool:
    if request.param == "store":
        return StoreSpool(parse_url(f"memory://{uuid.uuid4().hex}/work/orders/x"))
    made = DiskSpool(tmp_path / "spool")
    made.open()
    return made


def test_what_is_appended_is_read_once_and_in_order(spool: Spool) -> None:
    mailbox = spool.make(0, 7)
    theirs = open_spool(spool.address).mailbox(0, 7)
    assert theirs.orders.read() == []
    body = msgspec.Raw(b'{"perform":"a:b"}')
    spool.send([(mailbox.orders, [Order(1, body), Order(2, body)])])
    mailbox.orders.append([End()])
    first, second, end = theirs.orders.read()
    assert isinstance(first, Order)
    assert isinstance(second, Order)
    assert (first.number, bytes(first.order), second.number, end) == (1, bytes(body), 2, End())
    assert theirs.orders.read() == []
    theirs.replies.append([Beat()])
    other = spool.make(0, 8)
    assert spool.look([mailbox.replies, other.replies]) == [[Beat()], []]


def test_a_pulse_beats_and_stops_and_a_spool_that_is_removed_is_gone(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spool), "pulse_seconds", 0.01)
    theirs = open_spool(spool.address)
    with pytest.raises(Gone):
        theirs.read_pulse()
    pulse = Pulse(spool)
    first = theirs.read_pulse()
    until(lambda: theirs.read_pulse() != first, "no second beat")
    pulse.stop()
    last = theirs.read_pulse()
    assert msgspec.json.decode(last)["beat"] > 1
    assert theirs.read_pulse() == last
    spool.write_prepare(b"[[],[]]")
    assert theirs.load_prepare() == b"[[],[]]"
    spool.remove()
    with pytest.raises(Gone):
        theirs.read_pulse()


# On a disk


def test_a_line_without_its_end_is_left_until_it_has_one(tmp_path: Path) -> None:
    path = tmp_path / "replies"
    path.write_bytes(b'{"type":"Beat"}\n{"type":"Bye","re')
    box = DiskBox[FromJob](path, FromJob)
    assert box.read() == [Beat()]
    assert box.read() == []
    with path.open("ab") as stream:
        stream.write(b'ad":3,"why":"x"}\n')
    assert box.read() == [Bye("x")]


STRANGE = [b"\0" * 20, b'{"type":"Strange"}', b"{}", b"\xff"]


@pytest.mark.parametrize("line", STRANGE)
def test_a_whole_line_that_is_none_of_ours_is_told_and_not_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "replies"
    path.write_bytes(line + b"\n")
    box = DiskBox[FromJob](path, FromJob)
    for _ in range(2):
        with pytest.raises(Garbled):
            box.read()


def test_a_mailbox_is_made_once_and_nothing_is_appended_to_one_that_is_gone(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path)
    mailbox = spool.make(1, 0)
    with pytest.raises(StorageError):
        spool.make(1, 0)
    path = tmp_path / "0001-0000.orders"
    path.unlink()
    with pytest.raises(StorageError):
        mailbox.orders.append([End()])
    assert not path.exists()
    with pytest.raises(Gone):
        mailbox.orders.read()


def test_a_pulse_is_written_in_its_place(tmp_path: Path) -> None:
    """A client may go on with the old file of a name."""
    spool = DiskSpool(tmp_path)
    spool.write_pulse(1)
    inode = (tmp_path / "pulse").stat().st_ino
    spool.write_pulse(2)
    assert (tmp_path / "pulse").stat().st_ino == inode
    assert msgspec.json.decode(spool.read_pulse())["beat"] == 2


# In a store


@pytest.fixture
def stored() -> StoreSpool:
    return StoreSpool(parse_url(f"memory://{uuid.uuid4().hex}/x"))


def test_two_that_write_in_one_box_find_out_at_their_first_word(stored: StoreSpool) -> None:
    one, two = (stored.mailbox(0, 0).replies for _ in range(2))
    one.append([Bye("one")])
    one.append([Bye("one, again")])
    with pytest.raises(Taken):
        two.append([Bye("two")])
    assert stored.mailbox(0, 0).replies.read() == [Bye("one"), Bye("one, again")]


def test_an_object_that_is_none_of_ours_is_told_and_not_passed_over(stored: StoreSpool) -> None:
    box = stored.mailbox(0, 0).replies
    store = open_store(parse_url(stored.address))
    store.upload("x/0000-0000/replies/000000", [STRANGE[1]], len(STRANGE[1]))
    for _ in range(2):
        with pytest.raises(Garbled):
            box.read()
    assert isinstance(stored.look([box])[0], Garbled)


class Clock:
    """Of which the test says how late it is."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tokmill.engines.store_spool.time", clock)
    return clock


def looks(stored: StoreSpool, clock: Clock, seconds: float, act: Callable[[], object]) -> int:
    """Requests of one who asks a hundred times a second for so long."""
    with counting() as traffic:
        end = clock.now + seconds
        while clock.now < end:
            act()
            clock.now += 0.01
    return sum(traffic.requests.values())


def test_looks_for_what_does_not_come_are_ever_more_seldom(stored: StoreSpool, clock: Clock) -> None:
    box = stored.mailbox(0, 0).replies
    assert looks(stored, clock, 5, box.look) <= 25
    assert looks(stored, clock, 60, lambda: stored.look([box])) <= 27
    assert looks(stored, clock, 600, box.look) <= 121
    stored.mailbox(0, 0).replies.append([Beat()])
    clock.now += 5
    assert box.look() == [Beat()]
    assert looks(stored, clock, 5, box.look) <= 25, "after news it is soon looked again, and no more often"
    box.hurry()
    with counting() as traffic:
        assert box.look() == []
    assert traffic.requests == {"get": 1}
