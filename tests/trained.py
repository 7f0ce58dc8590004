"""A tokenizer as recipes use one, over texts in memory: trained (`train`), and at work (`encode`)."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokmill
from written import MegatronFile, load_manifest


class Trained(NamedTuple):
    name: str  # of the file
    data: bytes
    vocab_size: int


def train(texts: Iterable[str], *, eos: str, **options: Any) -> Trained:
    """Every text is used, copies too. `options` are those of `tokenizer.train`."""
    recipe = {
        "name": "trained",
        "sources": [{"name": "texts", "data": [{"text": text} for text in texts]}],
        "dedup": {"exact": False},
        "split": {"valid_fraction": 0},
        "tokenizer": {"train": options, "eos": eos},
    }
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1, until="tokenizer").out / "tokenizer"
        facts = load_manifest(out).facts
        return Trained(facts["file"], (out / facts["file"]).read_bytes(), facts["vocab_size"])


def eos_id(tokenizer: Path, eos: str | int, encoding: str | None = None) -> int:
    """What ends a document, by the manifest of a run with the tokenizer of a file."""
    section = {"path": str(tokenizer), "eos": eos, "encoding": encoding}
    recipe = {"name": "r", "sources": [{"name": "texts", "data": [{"text": "x"}]}], "tokenizer": section}
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1, until="tokenizer").out
        found: int = load_manifest(out / "tokenizer").facts["eos_id"]
    return found


def encode(
    tokenizer: Path,
    texts: list[str],
    *,
    eos: str,
    encoding: str | None = None,
    control: Sequence[str] = (),
) -> list[list[int]]:
    """The ids of every text by the tokenizer of a file, as a build has them;
    without the one that ends a document."""
    section = {"path": str(tokenizer), "eos": eos, "encoding": encoding, "control": [*control]}
    recipe = {
        "name": "encoded",
        "sources": [{"name": "texts", "data": [{"text": text} for text in texts]}],
        "normalize": {"nul": "keep", "max_nul_fraction": 1},
        "dedup": {"exact": False},
        "split": {"valid_fraction": 0},
        "tokenizer": section,
        "builds": [{"name": "ids", "format": "megatron", "dtype": "int32"}],
    }
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1).out
        end = load_manifest(out / "tokenizer").facts["eos_id"]
        sequences = MegatronFile(out / "build/ids/train/tokens")
        found = [sequences.sequence(number).tolist() for number in range(len(sequences))]
    assert len(found) == len(texts)
    assert all(ids[-1] == end for ids in found)
    return [ids[:-1] for ids in found]


def rank_lines(tokens: list[bytes]) -> bytes:
    """A rank file of these tokens."""
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
