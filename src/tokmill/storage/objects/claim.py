"""One writer at a time below a URL.

    <url>/claim.json   who writes, its beat, and what it may have left half uploaded
        free           create (If-None-Match) or replace (If-Match) ─> ours
        held           its etag changes within fifteen seconds: a run that lives, refused by name (or waited for)
                       it does not, or its process is gone: it was killed, and its claim is replaced
    while it is held   replaced every four seconds; a replacement that is refused says that the claim was lost
    at the end         replaced by "free": an object cannot be deleted on a condition everywhere

The claim spares two runs the work that one of them would lose. It is not what keeps a publication whole: that is
the conditional write of the manifest, which holds whatever happens to the claim.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec

from tokmill.errors import RunLocked, StorageError
from tokmill.storage.lock import process_began, this_machine
from tokmill.storage.objects.meta import Loaded, wrong_etag
from tokmill.storage.objects.store import Store, open_store
from tokmill.storage.objects.url import ObjectUrl

CLAIM = "claim.json"

BEAT_SECONDS = 4.0
# Three beats, and a little for the way there.
SILENT_SECONDS = 15.0
_POLL_SECONDS = 0.5

_held_here: set[str] = set()  # nonces of this process: an earlier claim of it may have stayed behind


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What the object says. `unfinished`: keys below which a writer may have left objects of no publication."""

    is_held: bool
    recipe: str = ""
    pid: int = 0
    host: str = ""  # for people
    machine: str = ""
    began: int = 0
    since: str = ""
    nonce: str = ""
    beat: int = 0
    unfinished: list[str] = []

    def __str__(self) -> str:
        return f"recipe {self.recipe}, pid {self.pid} on {self.host}, since {self.since}"


class Claim:
    """Held. `check` raises where it was lost; `leave` and `settle` write down what is half uploaded."""

    def __init__(self, store: Store, url: ObjectUrl, note: Note, etag: str) -> None:
        self._store, self._url, self._key = store, url, url.child(CLAIM).key
        self._note, self._etag = note, etag
        self._writing = threading.Lock()
        self._is_lost = False

    @property
    def unfinished(self) -> list[str]:
        return self._note.unfinished

    def check(self) -> None:
        if self._is_lost:
            raise RunLocked(
                "another run has taken this place over, because this one was not heard of for too long",
                where=str(self._url),
                next="look at what that run publishes; the same command goes on from here if it is to be this one",
            )

    def write_unfinished(self, prefixes: list[str]) -> None:
        self._write(msgspec.structs.replace(self._note, unfinished=sorted(set(prefixes))))
        self.check()

    def beat(self) -> None:
        with contextlib.suppress(StorageError):  # the store is out of reach: the next beat tries again
            self._write(self._note)

    def release(self) -> None:
        with contextlib.suppress(StorageError):  # it will be found silent
            self._write(Note(is_held=False, unfinished=self._note.unfinished))

    def _write(self, note: Note) -> None:
        with self._writing:
            if self._is_lost:
                return
            note = msgspec.structs.replace(note, beat=self._note.beat + 1)
            etag = self._store.replace(self._key, msgspec.json.encode(note), self._etag)
            if etag is None:
                self._is_lost = True
            else:
                self._note, self._etag = note, etag


@contextlib.contextmanager
def open_claim(
    url: ObjectUrl, recipe: str, *, wait: bool = False, say: Callable[[str], None] = lambda message: None
) -> Iterator[Claim]:
    """Hold the place, or refuse by the name of who does; with `wait`, hold it when they are done."""
    store = open_store(url)
    since = datetime.now(UTC).isoformat(" ", timespec="seconds").replace("+00:00", " UTC")
    mine = Note(
        is_held=True,
        recipe=recipe,
        pid=os.getpid(),
        host=socket.gethostname(),
        machine=this_machine(),
        began=process_began(os.getpid()),
        since=since,
        nonce=secrets.token_hex(8),
    )
    _held_here.add(mine.nonce)
    try:
        claim = _acquire(store, url, mine, wait, say)
    except BaseException:
        _held_here.discard(mine.nonce)
        raise
    stop = threading.Event()

    def keep_beating() -> None:
        while not stop.wait(BEAT_SECONDS):
            claim.beat()

    beating = threading.Thread(target=keep_beating, daemon=True)
    try:
        _check_conditions(store, url)
        beating.start()
        yield claim
    finally:
        stop.set()
        if beating.is_alive():
            beating.join()
        claim.release()
        _held_here.discard(mine.nonce)


def _acquire(store: Store, url: ObjectUrl, mine: Note, wait: bool, say: Callable[[str], None]) -> Claim:
    key = url.child(CLAIM).key
    has_said = False
    while True:
        found = store.load(key)
        held = None if found is None else _read(found)
        if found is None:
            etag = store.create(key, msgspec.json.encode(mine))
            if etag is not None:
                return Claim(store, url, mine, etag)
            continue  # somebody was quicker: look who
        unfinished = held.unfinished if held is not None else []
        if held is None or not held.is_held or not _is_alive(held, found, store, key):
            if held is not None and held.is_held:
                say(f"a run was killed here ({held}); this one takes its place")
            note = msgspec.structs.replace(mine, unfinished=unfinished)
            etag = store.replace(key, msgspec.json.encode(note), found.etag)
            if etag is not None:
                return Claim(store, url, note, etag)
            continue
        if not wait:
            raise RunLocked(
                f"another tokmill run publishes here ({held})",
                where=str(url),
                next="wait for it to end (`--wait` does), or choose another `--out`",
            )
        if not has_said:
            say(f"waiting for another tokmill run at {url} ({held})")
            has_said = True
        time.sleep(_POLL_SECONDS)


def _is_alive(held: Note, found: Loaded, store: Store, key: str) -> bool:
    if held.machine == this_machine():
        if held.pid == os.getpid() and held.began == process_began(held.pid):
            return held.nonce in _held_here
        return held.began != 0 and process_began(held.pid) == held.began
    until = time.monotonic() + SILENT_SECONDS
    while time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        meta = store.head(key)
        if meta is None or meta.etag != found.etag:
            return True
    return False


def _read(found: Loaded) -> Note | None:
    """None where it cannot be read: it keeps nobody out."""
    try:
        return msgspec.json.decode(found.data, type=Note)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _check_conditions(store: Store, url: ObjectUrl) -> None:
    """Two writes that must be refused. A server that accepts them cannot keep two runs apart."""
    key = url.child(CLAIM).key
    pretends = (
        store.create(key, b"{}") is not None or store.replace(key, b"{}", wrong_etag(url.scheme)) is not None
    )
    if pretends:
        raise StorageError(
            "the store takes conditional writes and does not keep their condition",
            where=str(url),
            next=f"`tokmill doctor --storage {url}` tells more; publish to a store that does, or to a directory",
        )
