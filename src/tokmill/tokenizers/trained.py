"""What a trainer gives back, and what every trainer refuses alike."""

from __future__ import annotations

from typing import NamedTuple

from tokmill.errors import InputError


class Trained(NamedTuple):
    """A tokenizer file, and how many ids it really has: little text cannot fill a large vocabulary."""

    data: bytes
    vocab_size: int


def no_text() -> InputError:
    return InputError(
        "no text to train a tokenizer on",
        next="check that the sources are not empty after cleaning, and that their weights are not all 0",
    )
