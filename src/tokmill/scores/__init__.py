"""What a score is, and which kinds there are.

    ScoreKind   key · options · files · open                a kind: its section of a recipe, and who opens it
    Scorer      score · explain                             a model that is open, in a worker

    recipe      scores: [{name: edu, fasttext: {path: edu.bin, label: __label__hq}}]
    driver      options of the kind, and the files that it reads, each by its sha256
    worker      kind.open(options, files) -> Scorer, once in a process for each score
                texts of a shard ─ prepared, cut into windows ─ scorer.score ─ aggregated ─> score.edu

All that the rest knows of a kind hangs off its record, which stands at the end of the kind's own file. Adding
one touches that file, its section in `recipe/scores.py` and one line below. A kind of somebody else's is the
record of an installed package, `[project.entry-points."tokmill.scores"]`.

What holds for every kind:

- `score` is a function of the text alone: not of the other rows, of their number or of what was asked before.
  (Not quite so for a kind that `is_stored`.)
  Equal bytes give equal bits, in any batch, process and thread, on ARM and x86: sums are of whole numbers, or
  of floats in the order of the text. Whoever caches does it by the bytes of what it caches.
- Whole columns: Arrow's buffers in, one NumPy array out. No Python object for each document.
- A row that is null or has no word scores what the model says of nothing, which is finite.
  An answer that is not finite is an error of the model, told when it is opened where that can be seen.
- A model is read through `open` alone: a file that is cut, lies about its sizes, has another dimension or
  holds NaN is a CorruptFile that names it, before anything is scored. No pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from tokmill.artifacts.packages import installed, installed_digest
from tokmill.artifacts.plugins import Plugin, own_record
from tokmill.errors import RecipeError
from tokmill.schema import StringColumn

# One line for each kind that is ours: the key of its section in a recipe, and where its record is.
_OURS = {
    "fasttext": "tokmill.scores.fasttext:FASTTEXT",
    "importance": "tokmill.scores.importance:IMPORTANCE",
    "linear": "tokmill.scores.linear:LINEAR",
    "perplexity": "tokmill.scores.perplexity:PERPLEXITY",
    "transformer": "tokmill.scores.transformer:TRANSFORMER",
}

Numbers = NDArray[np.float64] | NDArray[np.int64]


class Piece(NamedTuple):
    """A part of a text, and what it adds to the score (below zero: takes away)."""

    piece: str  # an n-gram, a word, a window: as a person reads it
    contribution: float  # in the scorer's own units, in which the pieces of a text add up; not the score's


class Scorer(Protocol):
    def score(self, texts: StringColumn) -> Numbers:
        """One finite number for each row: int64, or float64."""

    def explain(self, text: str) -> list[Piece]:
        """What pushed the score of the text up or down: every piece once, the strongest first."""


Options = TypeVar("Options", default=Any)


@dataclass(frozen=True)
class ScoreKind(Generic[Options]):
    key: str  # of the section in an entry of `scores`

    # A frozen msgspec.Struct: what the recipe says, less where files are. All that can change a bit of a
    # score and is no file; it is in the fingerprint.
    options: type[Options]

    # In a worker, and in whoever explains. Files are local, in the order of `files`.
    open: Callable[[Options, Sequence[Path]], Scorer]

    # Keys of the section that name a file of the model, relative to the recipe: `path` has its pin in
    # `sha256`, another key in `<key>_sha256`.
    files: tuple[str, ...] = ("path",)

    # Where `path` is a directory: the names of the files in it that the model is, sorted. They are in the
    # options as `names`, and `sha256` is the digest of them all.
    list_files: Callable[[Path], list[str]] | None = None

    # The floats of such a model hang on the machine. They are computed in a step of their own, over texts as
    # normalized, and stored; its scorer also has `describe`, which says on what it computes.
    is_stored: bool = False


def find_kind(key: str) -> ScoreKind:
    """The record of this key."""
    if key in _OURS:
        kind: ScoreKind = own_record(_OURS[key])
        return kind
    if key in installed("scores"):
        return Plugin("scores", key, installed_digest("scores", key)).load_record(ScoreKind)
    raise RecipeError(
        f"there is no kind of score {key!r}",
        where="scores",
        next=f"one of {', '.join(kind_keys())}; a package may bring others",
    )


def kind_keys() -> list[str]:
    """Of all kinds that a recipe may ask for."""
    return sorted({*_OURS, *installed("scores")})
