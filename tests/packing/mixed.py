"""A mixture by `tokmill.run` over documents of known lengths:
which were built, in turn, read out of their tokens."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import tokmill
from written import Json, MegatronFile, load_manifest

END = 50256  # of GPT-2; all other ids here are bytes


class Mixed(NamedTuple):
    turns: list[tuple[int, int]]  # source and document
    tokens: list[int]  # of each source
    facts: Json  # of the mixture
    weights: dict[str, Fraction]  # of the domains, by its manifest

    @property
    def documents(self) -> list[int]:
        return [sum(source == number for source, _ in self.turns) for number in range(len(self.tokens))]


def mix(
    lengths: Sequence[Sequence[int]],
    weights: Sequence[object] | Mapping[str, object] | None = None,
    *,
    domains: Sequence[str] | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    seed: int = 0,
    pack_length: int = 2048,
    reference: Sequence[str] = (),
    **mixture: Any,
) -> Mixed:
    """Sources s0, s1, … of the domains d0, d1, … or `domains`; a document has five tokens at least,
    with its end. `weights` are of the domains in their order, `ids` the numbers of the documents;
    a `reference` is read whatever its weight."""
    domains = domains or [f"d{number}" for number in range(len(lengths))]
    numbers = ids or [range(len(some)) for some in lengths]
    sources = []
    for source, (some, own) in enumerate(zip(lengths, numbers, strict=True)):
        texts = {number: f"{chr(97 + source)}{number:03d}" for number in own}
        assert all(length > len(text) for length, text in zip(some, texts.values(), strict=True))
        data = [
            {"id": str(number), "text": text.ljust(length - 1, "x")}
            for (number, text), length in zip(texts.items(), some, strict=True)
        ]
        sources.append({"name": f"s{source}", "domain": domains[source], "data": data or [{"text": " "}]})
    if isinstance(weights, Mapping):
        mixture["weights"] = {**weights}
    elif weights is not None:
        named = zip(dict.fromkeys(domains), weights, strict=True)
        mixture["weights"] = {domain: str(weight) for domain, weight in named}
    with tempfile.TemporaryDirectory() as place:
        ranks = Path(place) / "bytes.tiktoken"
        ranks.write_bytes(b"".join(base64.b64encode(bytes([n])) + b" %d\n" % n for n in range(256)))
        recipe = {
            "name": "mixed",
            "seed": seed,
            "sources": sources,
            "dedup": {"exact": bool(reference), "reference": list(reference)},
            "split": {"valid_fraction": 0},
            "tokenizer": {"path": str(ranks), "encoding": "gpt2", "eos": "<|endoftext|>"},
            "mixture": mixture,
            "pack": {"length": pack_length},
            "builds": [{"name": "mega", "format": "megatron"}],
        }
        out = tokmill.run(recipe, Path(place) / "out", workers=1).out
        manifest = load_manifest(out / "mixture")
        built = MegatronFile(out / "build/mega/train/tokens")
        sequences = [built.sequence(number).tolist() for number in range(len(built))]
    turns, tokens = [], [0] * len(lengths)
    for sequence in sequences:
        *text, end = sequence
        assert end == END
        spelled = bytes(text).decode()
        source, document = ord(spelled[0]) - 97, int(spelled[1:4])
        assert len(sequence) == lengths[source][list(numbers[source]).index(document)]
        turns.append((source, document))
        tokens[source] += len(sequence)
    shares = {domain: Fraction(share) for domain, share in (manifest.config["domains"] or {}).items()}
    return Mixed(turns, tokens, manifest.facts["splits"]["train"], shares)
