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

import os
import re

_SECRET_NAMES = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|CREDENTIAL|ACCESS_KEY|API_?KEY", re.IGNORECASE
)
_SECRETS = (
    re.compile(r"(?<=://)[^/@\s]+:[^/@\s]+(?=@)"),  # a name and a password in a URL
    re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"(?<=[?&]sig=)[^&\s]+"),
)
_MIN_SECRET_CHARS = 8  # shorter values are no secrets, and words of every line


def without_secrets(text: str) -> str:
    """Replace what looks like a secret, and the values of environment variables that are named like one."""
    for name, value in os.environ.items():
        if len(value) >= _MIN_SECRET_CHARS and value in text and _SECRET_NAMES.search(name):
            text = text.replace(value, "***")
    for pattern in _SECRETS:
        text = pattern.sub("***", text)
    return text


class TokmillError(Exception):
    """`what` happened, `where` (file, key, directory), and what to do `next`; none of them has a secret."""

    def __init__(self, what: str, *, where: str = "", next: str = "") -> None:
        what, where, next = map(without_secrets, (what, where, next))
        super().__init__(what, where, next)
        self.what, self.where, self.next = what, where, next

    @property
    def kind(self) -> str:
        """The name of its class that the drawing above has: an adapter's own kinds are for the adapter."""
        return next(kind.__name__ for kind in type(self).__mro__ if kind.__module__ == __name__)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  next: {self.next}" if self.next else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where, self.next)


def _rebuild(kind: type[TokmillError], what: str, where: str, next: str) -> TokmillError:
    return kind(what, where=where, next=next)


def install_hint(extra: str) -> str:
    """Say how to install an extra. The project is on no index: `pip install tokmill` finds nothing there."""
    return f"pip install '.[{extra}]' in the clone of tokmill, or pip install 'WHEEL[{extra}]' with its wheel"


def plural(count: int, noun: str) -> str:
    """ "1 shard", "2,000 shards": for every message that counts."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def spelled_share(part: int, whole: int) -> str:
    """Enough places to be told from nothing: 0.04 %, 12 %."""
    percent = 100 * part / whole if whole else 0
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def most_scanned(fraction: float, spelled: str) -> str:
    """Say how much of a source was read before a limit ended it: not known of a file that is read at once."""
    return f"at most {spelled}" if fraction < 1 else "an unknown share"


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
