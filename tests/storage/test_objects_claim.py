"""The claim: a run that lives keeps others out by name, one that is dead does not, and none is lost unnoticed."""

from __future__ import annotations

import threading
import uuid

import msgspec
import pytest

from tokmill.errors import RunLocked, TokmillError
from tokmill.storage.objects import claim as claims
from tokmill.storage.objects.claim import CLAIM, Note, open_claim
from tokmill.storage.objects.store import Store, open_store
from tokmill.storage.objects.url import ObjectUrl, parse_url


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> ObjectUrl:
    """Time passes quickly: what is tested is who waits for whom, not how long."""
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(claims, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(claims, "_POLL_SECONDS", 0.01)
    return parse_url(f"memory://{uuid.uuid4().hex}/runs/x")


def note_at(place: ObjectUrl) -> Note:
    found = open_store(place).load(place.child(CLAIM).key)
    assert found is not None
    return msgspec.json.decode(found.data, type=Note)


def leave(place: ObjectUrl, **fields: object) -> Store:
    store = open_store(place)
    note = Note(is_held=True, recipe="other", pid=1, host="elsewhere", since="then", **fields)  # type: ignore[arg-type]
    data = msgspec.json.encode(note)
    store.upload(place.child(CLAIM).key, [data], len(data))
    return store


def test_a_claim_is_held_renewed_and_set_free(place: ObjectUrl) -> None:
    with open_claim(place, "mine"):
        first = note_at(place)
        assert (first.is_held, first.recipe) == (True, "mine")
        waited = threading.Event()
        while note_at(place).beat == first.beat:
            waited.wait(0.01)
    assert not note_at(place).is_held
    with open_claim(place, "again"):
        assert note_at(place).recipe == "again"


def test_a_second_run_is_refused_by_the_name_of_the_first(place: ObjectUrl) -> None:
    with (
        open_claim(place, "first"),
        pytest.raises(RunLocked, match=r"another tokmill run publishes here \(recipe first, pid ") as caught,
        open_claim(place, "second"),
    ):
        pytest.fail("two runs in one place")
    assert caught.value.where == str(place)
    assert not note_at(place).is_held


def test_a_second_run_can_wait_for_the_first(place: ObjectUrl) -> None:
    said: list[str] = []
    may_end = threading.Event()

    def hold() -> None:
        with open_claim(place, "first"):
            holding.set()
            may_end.wait()

    holding = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    holding.wait()
    try:
        with open_claim(place, "second", wait=True, say=lambda text: (said.append(text), may_end.set())):  # type: ignore[func-returns-value]
            assert note_at(place).recipe == "second"
    finally:
        may_end.set()
        holder.join()
    assert "waiting for another tokmill run" in said[0]


def test_the_claim_of_a_dead_process_of_this_machine_is_taken_at_once(
    place: ObjectUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "SILENT_SECONDS", 1e9)
    leave(place, machine=claims.this_machine(), began=1, unfinished=["runs/x/abc"])
    said: list[str] = []
    with open_claim(place, "mine", say=said.append) as claim:
        assert claim.unfinished == ["runs/x/abc"], "what the dead one left is forgotten"
    assert "a run was killed here (recipe other, pid 1 on elsewhere" in said[0]


def test_the_claim_of_another_machine_is_taken_only_when_it_is_silent(place: ObjectUrl) -> None:
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
        with pytest.raises(RunLocked, match="recipe other"), open_claim(place, "mine"):
            pytest.fail("two runs in one place")
    finally:
        stop.set()
        beating.join()
    with open_claim(place, "mine"):
        assert note_at(place).recipe == "mine"
    assert store.head(place.child(CLAIM).key) is not None


def test_a_claim_that_cannot_be_read_keeps_nobody_out(place: ObjectUrl) -> None:
    store = open_store(place)
    store.upload(place.child(CLAIM).key, [b'{"is_held": tr'], 14)
    with open_claim(place, "mine"):
        assert note_at(place).is_held


def test_a_run_whose_claim_was_taken_over_notices_before_it_goes_on(place: ObjectUrl) -> None:
    with open_claim(place, "slow") as claim:
        leave(place, machine="another")
        claim.beat()
        with pytest.raises(RunLocked, match="taken this place over"):
            claim.check()
    assert note_at(place).recipe == "other", "what was not ours any more was set free"


def test_a_run_that_fails_sets_its_place_free(place: ObjectUrl) -> None:
    with pytest.raises(TokmillError, match="inside"), open_claim(place, "mine"):
        raise TokmillError("inside")
    assert not note_at(place).is_held
