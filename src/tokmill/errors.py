"""Every error a user can meet.

    TokmillError
    ├── RecipeError             the recipe cannot be used (all its mistakes at once)
    ├── InputError              the input cannot be used
    │   ├── EmptyGlob           a pattern matched no file
    │   ├── CorruptFile         truncated or damaged, or of another format than its name says
    │   ├── TooManyBadRecords   more records were quarantined than the ceiling allows
    │   ├── InputChanged        a file changed while, or after, it was read
    │   ├── CleanLimit          cleaning would drop more than was allowed
    │   └── DedupLimit          deduplication would drop more than was allowed
    ├── StorageError            bytes could not be read or written
    │   ├── DiskFull
    │   ├── OutputLost          the result could not be written to standard output
    │   └── RunLocked           another process works in the same output directory
    ├── ManifestError           an artifact's evidence does not add up
    │   ├── ManifestDamaged     manifest.json was edited or cut
    │   └── ConservationBroken  in != kept + dropped + quarantined
    ├── TokenizerError          the tokenizer cannot be used
    │   ├── TokenizerMismatch   its sha256 is not the pinned one
    │   ├── EosMissing
    │   └── VocabTooLarge       ids do not fit the dtype
    ├── OutOfMemory             the machine has no memory left for what was to be read or made
    ├── TaskFailed              a task died for a reason that is not the user's
    └── MissingExtra            an optional package is not installed

A message says what happened, where, and what to do next.
"""

from __future__ import annotations


class TokmillError(Exception):
    """`what` happened, `where` (file, key, directory), and what to do `next`."""

    def __init__(self, what: str, *, where: str = "", next: str = "") -> None:
        super().__init__(what, where, next)
        self.what, self.where, self.next = what, where, next

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  next: {self.next}" if self.next else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where, self.next)


def _rebuild(kind: type[TokmillError], what: str, where: str, next: str) -> TokmillError:
    return kind(what, where=where, next=next)


def plural(count: int, noun: str) -> str:
    """ "1 shard", "2,000 shards": for every message that counts."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def spelled_share(part: int, whole: int) -> str:
    """Enough places to be told from nothing: 0.04 %, 12 %."""
    percent = 100 * part / whole if whole else 0
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


class RecipeError(TokmillError): ...


class InputError(TokmillError): ...


class EmptyGlob(InputError): ...


class CorruptFile(InputError): ...


class TooManyBadRecords(InputError): ...


class CleanLimit(InputError): ...


class DedupLimit(InputError): ...


class InputChanged(InputError): ...


class StorageError(TokmillError): ...


class DiskFull(StorageError): ...


class OutputLost(StorageError): ...


class RunLocked(StorageError): ...


class ManifestError(TokmillError): ...


class ManifestDamaged(ManifestError): ...


class ConservationBroken(ManifestError): ...


class TokenizerError(TokmillError): ...


class TokenizerMismatch(TokenizerError): ...


class EosMissing(TokenizerError): ...


class VocabTooLarge(TokenizerError): ...


class OutOfMemory(TokmillError): ...


class TaskFailed(TokmillError): ...


class MissingExtra(TokmillError): ...


class EngineError(TokmillError):
    """The engine that was asked for cannot be used."""
