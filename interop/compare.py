"""What every reader does: its arguments, where a clone lies, and the comparison, token for token.

Runs in the foreign Python; imports nothing of tokmill.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Given(NamedTuple):
    train: Path  # the split of the build that is read
    ids: np.ndarray  # int64: all documents or rows, end to end
    lengths: np.ndarray  # int64


def given() -> Given:
    build, expected = sys.argv[1:3]
    with np.load(expected) as arrays:
        return Given(Path(build) / "train", arrays["ids"], arrays["lengths"])


def report(package: str, compared: str, sequences: Iterable[object], *, version: str | None = None) -> None:
    """`sequences` are what the package read, in order: documents, rows or windows. All of them."""
    read = [np.asarray(one, np.int64).reshape(-1) for one in sequences]
    ids = np.concatenate([np.empty(0, np.int64), *read])
    expected = given().ids
    both = min(len(ids), len(expected))
    wrong = np.flatnonzero(ids[:both] != expected[:both])
    if wrong.size or len(ids) != len(expected):
        at = int(wrong[0]) if wrong.size else both
        sys.exit(f"{package} read {len(ids):,} tokens of {len(expected):,}; the first that differs is {at:,}")
    version = version or importlib.metadata.version(package)
    print(json.dumps({"package": package, "version": version, "compared": compared, "tokens": len(ids)}))


def report_texts(package: str, compared: str, splits: dict[str, list[dict[str, object]]]) -> None:
    """`splits` are the records that the package read, in order. A null is a field that is not there."""
    with Path(sys.argv[2]).open(encoding="utf-8") as file:
        expected = [json.loads(line) for line in file]
    documents = 0
    for split, found in splits.items():
        own = [record for record in expected if record["split"] == split]
        plain = [{key: value for key, value in record.items() if value is not None} for record in found]
        documents += len(plain)
        if plain != own:
            wrong = next(
                (at for at, (a, b) in enumerate(zip(plain, own, strict=False)) if a != b),
                min(len(plain), len(own)),
            )
            sys.exit(f"{package} read {len(plain):,} of {len(own):,} documents of {split}; {wrong:,} differs")
    version = importlib.metadata.version(package)
    print(json.dumps({"package": package, "version": version, "compared": compared, "documents": documents}))


def require(is_so: bool, what: str) -> None:
    if not is_so:
        sys.exit(what)


def window(total: int, most: int = 64) -> int:
    """The longest that divides all tokens, so that none is left over."""
    return max(length for length in range(1, most + 1) if total % length == 0)


class Clone(NamedTuple):
    path: Path
    version: str


def clone(repository: str) -> Clone:
    """Of a project that is no package: beside the foreign Python, as `make interop` puts it there."""
    path = Path(sys.prefix) / "src" / repository.partition("/")[2]
    if not (path / ".git").exists():
        raise ModuleNotFoundError(f"no clone of github.com/{repository} in {path}")
    told = subprocess.run(
        ["git", "-C", str(path), "rev-parse", "--short=10", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Clone(path, told.stdout.strip())
