"""Parts of a file that had to guess where they begin, and the proof.

    part 0   begins at 0       ─ read ─> the next begins at 117
    part 1   guessed 117   ✓   ─ read ─> the next begins at 203
    part 2   guessed 230   ✗   read again from 203 ─> the next begins at 308
    part 3   guessed 308   ✓   …

The first part of a file has nothing to guess; each part that began where the one before it ended proves the
next. So what the receipts hold is what one part of the whole file would have read, whatever lies in it: a
guess that was wrong costs reading its part again, and no more. What a part says while its guess is not proved
(that the file is broken, that a record is bad) counts for nothing: only when read from the right place is it
an error.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from tokmill.artifacts.manifest import Json, Receipt
from tokmill.artifacts.step import Task
from tokmill.storage.records import Seam, Span

BROKEN = "is_broken"  # a fact of a receipt

Proof = Generator[list[Task[Any]], list[Receipt], tuple[Task[Any], Receipt]]


class Seams:
    """Follows the parts of a source in their order."""

    def __init__(self) -> None:
        self._next: int | None = None  # where the part that comes has to begin; None: the file has ended

    def follow(self, task: Task[Any], receipt: Receipt) -> Proof:
        """The task and its receipt, or those of the part read again."""
        seam = seam_of(receipt.facts)
        if seam is None or is_broken(receipt):
            return task, receipt
        span: Span = task.options.span
        if span.start:
            if not self._agrees(seam, span):
                end_of_file = task.inputs[0].rows
                begins = end_of_file if self._next is None else self._next
                task = msgspec.structs.replace(
                    task, options=msgspec.structs.replace(task.options, begins=begins)
                )
                (receipt,) = yield [task]
                if is_broken(receipt):
                    return task, receipt
                seam = seam_of(receipt.facts)
                assert seam is not None, "it had one before"
            if seam.begins is None:  # no record of it: the next part begins where this one had to
                return task, receipt
        self._next = seam.ends
        return task, receipt

    def follow_all(
        self, tasks: list[Task[Any]], receipts: list[Receipt]
    ) -> Generator[list[Task[Any]], list[Receipt], list[Receipt]]:
        proved = []
        for task, receipt in zip(tasks, receipts, strict=True):
            _, receipt = yield from self.follow(task, receipt)
            proved.append(receipt)
        return proved

    def _agrees(self, seam: Seam, span: Span) -> bool:
        if seam.is_broken:
            return False
        if seam.begins is not None:
            return seam.begins == self._next
        return self._next is None or (span.end is not None and self._next >= span.end)


def is_broken(receipt: Receipt) -> bool:
    """Read ahead, and not to its end: it says nothing until it is read in its turn."""
    return bool(receipt.facts.get(BROKEN))


def as_fact(seam: Seam) -> Json:
    """As it is in a receipt."""
    return {name: value for name, value in seam._asdict().items() if value is not None and value is not False}


def seam_of(facts: Json) -> Seam | None:
    fact: Json | None = facts.get("seam")
    if fact is None:
        return None
    return Seam(fact.get("begins"), fact.get("ends"), fact.get("is_broken", False))
