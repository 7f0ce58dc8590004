"""A spool on a disk that all nodes share.

    <spool>/pulse                 {"beat": 17}, written in its place
    <spool>/prepare.json
    <spool>/0003-0007.orders      driver ──> job     one JSON object per line, appended, closed
    <spool>/0003-0007.replies     job ──> driver     likewise

Network file systems keep two promises: who opens a file sees what was closed before, and a line that has its
end is whole. They do not say when a directory shows a new name, or when a missing file stops being missing.
So the driver makes both files before the job is submitted: nobody ever lists a directory, or looks for a file
that is not there yet.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tokmill.engines.mailbox import (
    PREPARE,
    Box,
    Found,
    FromJob,
    Gone,
    Mailbox,
    ToJob,
    decode_lines,
    encode_lines,
    tried,
)
from tokmill.storage.disk import make_directory, storage_error

_PULSE = "pulse"
_PULSE_BYTES = 32

T = TypeVar("T")


class DiskBox(Generic[T]):
    """A file. It is opened for every look: that is what makes a network file system look."""

    def __init__(self, path: Path, kinds: Any) -> None:
        self.path = path
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kinds)
        self._offset = 0

    def append(self, messages: Iterable[msgspec.Struct]) -> None:
        """Whole lines, to a file that is there. Closed afterwards: that is what others wait for."""
        lines = encode_lines(messages)
        with _telling(self.path):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                while lines:
                    lines = lines[os.write(descriptor, lines) :]
            finally:
                os.close(descriptor)

    def read(self) -> list[T]:
        try:
            with self.path.open("rb", buffering=0) as stream:
                stream.seek(self._offset)
                data = stream.readall()
        except FileNotFoundError:
            raise Gone(str(self.path)) from None
        except OSError as error:
            raise storage_error(error, self.path) from error
        whole, end, _ = (data or b"").rpartition(b"\n")
        messages = decode_lines(whole, self._decoder, self.path)
        self._offset += len(whole) + len(end)
        return messages

    def look(self) -> list[T]:
        return self.read()

    def hurry(self) -> None:
        pass


class DiskSpool:
    pulse_seconds = 5.0
    beat_seconds = 10.0
    orphan_seconds = 60.0
    pending_nap = 0.01  # a thousand of them are looked at every ten seconds
    carries_logs = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = str(directory)

    def open(self) -> None:
        make_directory(self._directory)
        self._directory.chmod(0o700)  # who can write there gives orders in our name

    def make(self, batch: int, index: int) -> Mailbox:
        for path in self._paths(batch, index):
            with _telling(path):
                path.touch(exist_ok=False)
        return self.mailbox(batch, index)

    def mailbox(self, batch: int, index: int) -> Mailbox:
        orders, replies = self._paths(batch, index)
        return Mailbox(DiskBox[ToJob](orders, ToJob), DiskBox[FromJob](replies, FromJob))

    def _paths(self, batch: int, index: int) -> tuple[Path, Path]:
        stem = f"{batch:04}-{index:04}"
        return self._directory / f"{stem}.orders", self._directory / f"{stem}.replies"

    def look(self, boxes: Sequence[Box[FromJob]]) -> list[Found[FromJob]]:
        return [tried(box) for box in boxes]

    def send(self, letters: Sequence[tuple[Box[ToJob], Sequence[ToJob]]]) -> None:
        for box, messages in letters:
            box.append(messages)

    def write_prepare(self, data: bytes) -> None:
        with _telling(self._directory):
            (self._directory / PREPARE).write_bytes(data)

    def load_prepare(self) -> bytes:
        with _telling(self._directory):
            return (self._directory / PREPARE).read_bytes()

    def write_pulse(self, beat: int) -> None:
        """In its place, not by a rename: a client may go on with the old file of a name for a minute."""
        path = self._directory / _PULSE
        with _telling(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(descriptor, f'{{"beat": {beat}}}'.encode().ljust(_PULSE_BYTES), 0)
            finally:
                os.close(descriptor)

    def read_pulse(self) -> bytes:
        path = self._directory / _PULSE
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise Gone(str(path)) from None
        except OSError as error:
            raise storage_error(error, path) from error

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error
