"""What people said of documents: a file that recipes train on, one line for each document.

    {"doc_id": "q-17", "source": "se", "label": "good", "tags": ["recipe"], "who": "ada",
     "when": "2026-11-18T11:30:00Z", "text_sha256": "9f86…", "sample": "random"}

    a document without a label   one line is appended, then fsync
    one that has a label         the whole file anew without the old line: temp file, fsync, rename, fsync
    a label taken back           likewise

A label without a source, as other hands may write it, is that of every document with its id: one that is
given to such a document replaces it.

`save` returns after the sync, so what was acknowledged outlives a kill and a disk without power. The file has
one record of a document at any moment, which is what `train: {labels: FILE}` of a recipe asks for
(tokmill.scores.labels). `text_sha256` is of the text that was looked at: whether a text has changed since its
label can be told. `sample` says how the document came up, because only a random one speaks for all, and
`random:RULE` for all that the rule drops.

A last line that breaks off was never acknowledged: it is not read, and the next save cuts it off. Several
explorers may write one file: each save holds flock on it, and reads what others wrote first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokmill.artifacts.manifest import Json
from tokmill.errors import InputError
from tokmill.storage.disk import (
    make_directory,
    rewrite_bytes,
    sync_directory,
    told_as_unreadable,
    told_as_unwritable,
)

GOOD, BAD = "good", "bad"
_NORMAL_95 = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations
_MAX_WORD = 200  # of a label, of a tag: characters
_MAX_TAGS = 50


class Label(msgspec.Struct, frozen=True, omit_defaults=False):
    doc_id: str
    source: str | None
    label: str
    tags: tuple[str, ...] = ()
    who: str = ""
    when: str = ""
    text_sha256: str | None = None
    sample: str | None = None  # random, random:RULE, border, disagreement, or None: it was met on the way

    @property
    def key(self) -> tuple[str | None, str]:
        return self.source, self.doc_id

    def as_json(self) -> Json:
        told: Json = msgspec.to_builtins(self)
        return {"id": told.pop("doc_id"), **told}


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class LabelStore:
    """The labels of one file, in the order in which they were given."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()  # several links to one file are one file
        self._mine = threading.Lock()  # flock is of a process
        self._seen: tuple[int, int, int] | None = None
        self._labels: dict[tuple[str | None, str], Label] = {}
        with self._mine:
            self._refresh()

    def __len__(self) -> int:
        return len(self.load())

    def load(self) -> list[Label]:
        """As the file is now: another explorer may have written to it."""
        with self._mine:
            self._refresh()
            return list(self._labels.values())

    def of(self, doc_id: str, source: str | None = None) -> Label | None:
        with self._mine:
            self._refresh()
            return self._labels.get((source, doc_id)) or self._labels.get((None, doc_id))

    def save(self, label: Label) -> int:
        """How many documents have a label, once this one is on the disk."""
        _check(label, str(self.path))
        with self._mine, self._locked() as descriptor:
            if self._has(label.key):
                self._rewrite([*self._without(label.key), label])
            else:
                self._append(descriptor, label)
            return len(self._labels)

    def remove(self, doc_id: str, source: str | None = None) -> int:
        """Take a label back; how many are left."""
        with self._mine, self._locked():
            if self._has((source, doc_id)):
                self._rewrite(self._without((source, doc_id)))
            return len(self._labels)

    def _has(self, key: tuple[str | None, str]) -> bool:
        """By its source, or for documents of that id in any."""
        return key in self._labels or (None, key[1]) in self._labels

    def _without(self, key: tuple[str | None, str]) -> list[Label]:
        return [one for own, one in self._labels.items() if own not in (key, (None, key[1]))]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, open and ours alone, and all of it read. A rewrite gives its name to another file:
        who waited for the lock of the old one takes that of the new one."""
        make_directory(self.path.parent)
        while True:
            with told_as_unwritable(self.path):
                is_new = not self.path.exists()
                descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    is_same = _is_at(descriptor, self.path)
                except BaseException:
                    os.close(descriptor)
                    raise
            if is_same:
                break
            os.close(descriptor)
        try:
            if is_new:
                sync_directory(self.path.parent)
            self._refresh()
            yield descriptor
        finally:
            os.close(descriptor)

    def _append(self, descriptor: int, label: Label) -> None:
        line = _line(label)
        with told_as_unwritable(self.path):
            size = os.fstat(descriptor).st_size
            whole = _whole_bytes(descriptor, size)
            rest = os.pread(descriptor, size - whole, whole)
            if _is_label(rest):  # an editor left out the last newline
                line, whole = b"\n" + line, size
            elif rest:  # a line that a kill tore
                os.ftruncate(descriptor, whole)
            try:
                written = os.write(descriptor, line)
                if written != len(line):
                    raise OSError(28, f"short write: {written} of {len(line)} bytes")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, whole)  # it is not acknowledged, so it is not there
                raise
            self._labels[label.key] = label
            self._seen = _state(os.fstat(descriptor))

    def _rewrite(self, labels: list[Label]) -> None:
        rewrite_bytes(self.path, b"".join(map(_line, labels)))
        self._seen = None
        self._refresh()

    def _refresh(self) -> None:
        with told_as_unreadable(self.path):
            try:
                state = _state(self.path.stat())
            except FileNotFoundError:
                self._seen, self._labels = None, {}
                return
            if state == self._seen:
                return
            content = self.path.read_bytes()
        self._labels = {}
        for label in parse_labels(content, str(self.path)):
            self._labels.pop(label.key, None)  # the last one stands, where it was given
            self._labels[label.key] = label
        self._seen = state


def parse_labels(content: bytes, where: str) -> Iterator[Label]:
    """Every line but one that breaks off at the end."""
    *lines, rest = content.split(b"\n")
    for number, line in enumerate([*lines, rest] if _is_label(rest) else lines, 1):
        if not line.strip():
            continue
        try:
            yield _read_line(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(
                f"line {number:,} is no label: {error}",
                where=where,
                next="every line is an object with `doc_id` and `label`: take this one out",
            ) from None


def _read_line(line: bytes) -> Label:
    """Files by other hands may say `id`, and leave out all but the label."""
    record = msgspec.json.decode(line, type=dict[str, object])
    return msgspec.convert({"source": None, "doc_id": record.get("id"), **record}, Label)


def _is_label(line: bytes) -> bool:
    try:
        _read_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _check(label: Label, where: str) -> None:
    words = (label.label, *label.tags)
    if not label.doc_id or not label.label.strip():
        raise InputError("a label needs a document and a word", where=where, next="send `id` and `label`")
    if len(label.tags) > _MAX_TAGS or any(not word.strip() or len(word) > _MAX_WORD for word in words):
        raise InputError(
            "a label or a tag is empty or too long, or there are too many",
            where=where,
            next=f"at most {_MAX_TAGS} tags, of 1 to {_MAX_WORD} characters each",
        )


def _line(label: Label) -> bytes:
    return msgspec.json.encode(label) + b"\n"


def _whole_bytes(descriptor: int, size: int) -> int:
    """Up to the end of the last whole line."""
    end = size
    while end > 0:
        start = max(0, end - (1 << 16))
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _state(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


class Precision(NamedTuple):
    """Of the labelled documents that a rule drops, how many are bad; and what that says of all it drops."""

    labelled: int
    right: int
    precision: float | None
    low: float
    high: float

    def as_json(self) -> Json:
        return self._asdict()


def precision_of(labels: Iterable[str]) -> Precision:
    """`labels` are those of documents that the rule drops; words other than good and bad do not count."""
    judged = [label for label in labels if label in (GOOD, BAD)]
    right = judged.count(BAD)
    low, high = wilson(right, len(judged))
    return Precision(len(judged), right, right / len(judged) if judged else None, low, high)


def wilson(right: int, of: int) -> tuple[float, float]:
    """The interval of Wilson (1927) at 95 %: it stays within 0 and 1, and says something of 3 out of 3."""
    if not of:
        return 0.0, 1.0
    share, z2 = right / of, _NORMAL_95**2
    centre = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _NORMAL_95 * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    return max(0.0, centre - half) if right else 0.0, min(1.0, centre + half) if right < of else 1.0
