"""Names of splits: train, valid and test, and the field's other words for the second of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SPLITS: Final = ("train", "valid", "test")  # by number

# What records, hub datasets and trainers call each. A word stands in one list only.
SPLIT_WORDS: Final = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}

_OURS: Final = {word: name for name, words in SPLIT_WORDS.items() for word in words}


def plain_split(name: str) -> str:
    """Our name for it; a word that is no other name for one of ours stays as it is."""
    return _OURS.get(name, name)


def find_split(wanted: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is meant: the very word, or else another word for the same."""
    known = list(names)
    if wanted in known:
        return wanted
    return next((name for name in known if plain_split(name) == plain_split(wanted)), None)
