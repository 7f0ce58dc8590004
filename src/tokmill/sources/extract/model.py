"""The model that judges the blocks of a page: a file of whole numbers, model.npz.

    class_hashes  class_odds     words of classes and ids, and how much oftener they are around what is kept
    text_hashes   text_odds      words of the text
    first_*       second_*       trees of `kernels.boosting`: on features; on features and their context
    threshold                    of the second score

`bench/train_extraction.py` makes it.
"""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.kernels.boosting import Trees, check_trees
from tokmill.kernels.htmlfeatures import CONTEXT_NAMES, NAMES
from tokmill.kernels.htmlodds import Odds, odds_table


class Model(NamedTuple):
    class_odds: Odds
    text_odds: Odds
    first: Trees
    second: Trees
    threshold: int


@functools.cache
def load_model(path: Path | None = None) -> Model:
    """The one that is shipped by default."""
    where = path or files(__package__).joinpath("model.npz")
    try:
        with where.open("rb") as file, ZipFile(file) as archive:
            return _model({name.removesuffix(".npy"): _array(archive, name) for name in archive.namelist()})
    except (BadZipFile, EOFError, KeyError, TypeError, ValueError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise CorruptFile(
            f"is no model of web pages: {what}",
            where=str(where),
            next="train it anew" if path else "install the package anew",
        ) from error


@functools.cache
def model_digest() -> str:
    """SHA-256 of the one that is shipped: with another, pages have another text."""
    return hashlib.sha256(files(__package__).joinpath("model.npz").read_bytes()).hexdigest()


def _array(archive: ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def _model(named: dict[str, NDArray[Any]]) -> Model:
    features = {"first": len(NAMES), "second": len(NAMES) + len(CONTEXT_NAMES)}
    trees = {
        stage: check_trees(Trees(*(named[f"{stage}_{part}"] for part in Trees._fields)), size)
        for stage, size in features.items()
    }
    class_odds, text_odds = (
        odds_table(dict(zip(named[f"{of}_hashes"].tolist(), named[f"{of}_odds"].tolist(), strict=True)))
        for of in ("class", "text")
    )
    return Model(class_odds, text_odds, trees["first"], trees["second"], int(named["threshold"]))
