"""A classifier in fastText's file format, written by hand: words have weights, and a score is known from them
alone. Nothing here shares code with the reader."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path

# what a word of the corpus of problems says of its text
WEIGHTS = {
    "</s>": 0.25,
    "Problem:": 1.5,
    "many": 2.0,
    "the": -1.0,
    "each": -3.0,
    "Solution:": 0.5,
    "has": 1.0,
}


def write_model(path: Path, weights: Mapping[str, float] = WEIGHTS) -> Path:
    """Labels __label__good and __label__bad; of one dimension, with softmax."""
    head = struct.pack("<2i12id", 793712314, 12, 1, 5, 5, 1, 5, 1, 3, 3, 0, 0, 0, 100, 0.0001)
    words = [(word, 9, 0) for word in weights] + [("__label__good", 5, 1), ("__label__bad", 4, 1)]
    names = b"".join(word.encode() + b"\0" + struct.pack("<qb", count, kind) for word, count, kind in words)
    dictionary = struct.pack("<3i2q", len(words), len(weights), 2, 100, -1) + names
    inputs = struct.pack("<?2q", False, len(weights), 1) + struct.pack(f"<{len(weights)}f", *weights.values())
    outputs = struct.pack("<?2q2f", False, 2, 1, 1.0, 0.0)
    path.write_bytes(head + dictionary + inputs + outputs)
    return path


def score_of(text: str, weights: Mapping[str, float] = WEIGHTS) -> float:
    """The chance of __label__good, and what fastText adds to every chance."""
    words = text.replace("\0", " ").replace("\x1c", "\x1b").split()
    known = [weights[word] for word in words if word in weights] + [weights["</s>"]]
    return min(1 / (1 + math.exp(-sum(known) / len(known))) + 1e-5, 1.0)
