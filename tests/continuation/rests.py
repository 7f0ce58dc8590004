"""Recipes of runs and of their rests; what was seen of a run, by a replay of the loader, and what is to come,
by a walk by hand."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from recount import Recount
from tokmill.artifacts.manifest import Json
from tokmill.loader import Batches

Key = tuple[str, str]  # source and id
DOMAINS = {"web": "web", "math": "math", "more": "math"}  # of the sources
TEXT = "{question} {answer}"
LONGER = {"tokens": 14000, "exhausted": "repeat"}


def recipe_of(*names: str, **sections: Any) -> Json:
    sources = [
        {
            "name": name,
            "domain": DOMAINS[name],
            "files": f"{name}.jsonl",
            "template": TEXT,
            "fields": {"id": "id"},
        }
        for name in names
    ]
    return {
        "name": "whole",
        "seed": 3,
        "sources": sources,
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "pack": {"length": 48},
        "builds": [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}],
        **sections,
    }


def written(directory: Path, name: str, recipe: Json) -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(json.dumps(recipe))
    return path


class Had(NamedTuple):
    passes: int
    is_partly: bool
    tokens: int

    @property
    def level(self) -> int:
        return 2 * self.passes + self.is_partly


def rows_handed_out(batches: Batches, samples: int) -> list[Counter[int]]:
    """Of each dataset, walked sample by sample."""
    found = [Counter[int]() for _ in batches.datasets]
    for number in range(samples):
        dataset, row = batches.sample(*divmod(number, batches.epoch_samples))
        found[dataset][row] += 1
    return found


def had_by_replay(
    run: Path, builds: list[str], handed_out: list[Counter[int]], names: tuple[str, ...] = ("web", "math")
) -> dict[Key, Had]:
    whole: Counter[Key] = Counter()
    most: Counter[Key] = Counter()
    tokens: Counter[Key] = Counter()
    recount = Recount(run, {name: DOMAINS[name] for name in names})
    for build, times in zip(builds, handed_out, strict=True):
        for turn in recount.built(build, "train").turns:
            key = (turn.doc.source, turn.doc.doc_id)
            often = [times[row] for row, start, end, _ in turn.pieces for _ in range(start, end)]
            whole[key] += min(often)
            most[key] += max(often)
            tokens[key] += sum(often)
    return {key: Had(whole[key], most[key] > whole[key], tokens[key]) for key in tokens if tokens[key]}


def id_of(doc_id: str) -> int:
    return int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big")


def table_of(run: Path) -> dict[tuple[str, int], Had]:
    lines = pq.read_table(run / "seen.parquet").to_pylist()
    keys = [(line["source"], line["id"]) for line in lines]
    assert keys == sorted(set(keys))
    return {
        key: Had(line["passes"], line["partly"], line["tokens"])
        for key, line in zip(keys, lines, strict=True)
    }


def walk(run: Path, names: list[str], had: dict[Key, Had], most_passes: int) -> dict[Key, int]:
    """Turn by turn: nobody comes before somebody of the source who had less, but who is never to come. The
    levels of all documents at the end."""
    recount = Recount(run, {name: DOMAINS[name] for name in names})
    levels = {
        (doc.source, doc.doc_id): had.get((doc.source, doc.doc_id), Had(0, False, 0)).level
        for doc in recount.in_split("train")
    }
    turns = [(doc.source, doc.doc_id) for doc in recount.turns("train")]
    left = Counter(turns)
    passed_over: dict[str, set[Key]] = defaultdict(set)
    for turn in turns:
        less = {key for key in levels if key[0] == turn[0] and levels[key] < levels[turn]}
        assert not [key for key in less if left[key]], f"{turn} came early"
        assert levels[turn] // 2 < most_passes
        passed_over[turn[0]] |= less
        levels[turn] += 2
        left[turn] -= 1
    facts = json.loads((run / "mixture/manifest.json").read_bytes())["facts"]["splits"]["train"]
    for source, keys in passed_over.items():
        assert len(keys) <= facts["sources"][source]["passed_over"]
    check_sets(recount, turns, had, facts["continued"])
    return levels


def check_sets(recount: Recount, turns: list[Key], had: dict[Key, Had], told: Json) -> None:
    often = Counter(turns)
    documents = recount.in_split("train")
    for source, sets in told["sources"].items():
        own = [doc for doc in documents if doc.source == source]
        seen = [doc for doc in own if (source, doc.doc_id) in had]
        unseen = [doc for doc in own if (source, doc.doc_id) not in had]
        again = [doc for doc in seen if often[source, doc.doc_id]]
        to_come = [doc for doc in unseen if often[source, doc.doc_id]]
        for name, chosen, is_by_turn in (
            ("seen", seen, False), ("again", again, True),
            ("unseen", unseen, False), ("to_come", to_come, True),
        ):  # fmt: skip
            ids = b"".join(id_of(doc.doc_id).to_bytes(8, "little") for doc in chosen)
            assert sets[name] == {
                "documents": len(chosen),
                "tokens": sum(
                    doc.tokens * (often[source, doc.doc_id] if is_by_turn else 1) for doc in chosen
                ),
                "ids_sha256": hashlib.sha256(ids).hexdigest(),
            }
        assert sets["gone"] == sum(name == source for name, _ in had) - len(seen)
        assert sets["trained_on"] == sum(one.tokens for (name, _), one in had.items() if name == source)
    elsewhere = Counter(name for name, _ in had if name not in told["sources"])
    assert told["gone"] == dict(elsewhere)


def ids_in(run: Path, source: str) -> set[str]:
    names = sorted((run / "ingest" / source).glob("documents-*"))
    assert names
    return {doc_id for name in names for doc_id in pq.read_table(name).column("doc_id").to_pylist()}
