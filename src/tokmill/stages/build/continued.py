"""The rest of a run: what was seen, what of it is offered again, and what is to come.

    seen.parquet ─ levels of the documents of a shard ─> the order in which a source offers them
    order-<split>, lengths, seen.parquet ─> sets of documents of each source: counted, with a digest of each

    seen        had in part or whole before, and in the recipe still      again     of those, with a turn
    unseen      of which no token was had                                 to_come   of those, with a turn
    gone        had before, and in the recipe no more
    epochs      of the whole run, by then: tokens of its documents that were trained on, and those to come

A target is of the run as a whole: what was trained on counts. Weights are of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.history import HISTORY, Continues, History, ids_sha256, load_history, meaning_of
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.step import Input, Made, Task, TaskOptions
from tokmill.errors import InputError, TokenizerMismatch
from tokmill.packing.quotas import Holding, Unit
from tokmill.schema import one_piece
from tokmill.stages.external.appended import read_tables
from tokmill.storage.digests import id_hashes
from tokmill.storage.tables import load_table

MOST_PASSES = 250  # that a mixture counts; more were had only by whom no recipe asks for another


def history_input(path: Path, continues: Continues) -> Input:
    return Input(HISTORY, str(path), continues.history)


def open_history(task: Task[Any]) -> History | None:
    """None: the run begins at the beginning."""
    tables = (
        load_history(Path(item.path), item.content_sha256) for item in task.inputs if item.role == HISTORY
    )
    return next(map(History, tables), None)


def seen_levels(history: History, source: str, lengths: Path) -> NDArray[np.int64]:
    """How much of each document of a token file was had."""
    return history.levels(source, id_hashes(load_table(lengths, ["doc_id"]).column("doc_id")))


def refuse_other_tokenizer(continues: Continues, tokenizer: Mapping[str, Any]) -> None:
    """`tokenizer`: the facts of the one that the rest is encoded with."""
    other = meaning_of(tokenizer)
    if other == continues.tokenizer:
        return
    before = continues.tokenizer
    key = next(key for key in {**other, **before} if other.get(key) != before.get(key))
    raise TokenizerMismatch(
        f"its {key} is {other.get(key)}, but {before.get(key)} in the run that is continued: ids must mean "
        "what they meant",
        where="tokenizer",
        next="name the file of that run, which its rests have too: "
        "`tokenizer: {path: RUN/tokenizer/FILE, eos: …}`",
    )


def what_is_left(target: int, unit: Unit, seq_len: int | None, continues: Continues) -> int:
    """Of the part of a target that is trained on."""
    seen = seen_of_target(unit, seq_len, continues)
    if seen >= target:
        raise InputError(
            f"nothing is left: {target:,} {unit} were asked for, and {seen:,} were seen",
            where="mixture",
            next="raise the target, which is the length of the whole run",
        )
    return target - seen


def seen_of_target(unit: Unit, seq_len: int | None, continues: Continues) -> int:
    return continues.passes if unit == "documents" else continues.tokens // (seq_len or 1)


def refuse_used_up(holdings: Sequence[Holding], shares: Sequence[Fraction]) -> None:
    """Without a target a mixture ends with the first source that has nothing left: at once."""
    used_up = [one.name for one, share in zip(holdings, shares, strict=True) if share and not one.capacity(1)]
    if not used_up:
        return
    what = "every document that the recipe asks for" if len(used_up) == len(holdings) else ", ".join(used_up)
    raise InputError(
        f"nothing is left: {what} was seen whole",
        where="mixture",
        next="add sources, or set weights of 0; or set a target, which is the length of the whole run, with "
        "`exhausted: repeat`",
    )


class MetOptions(TaskOptions, frozen=True, kw_only=True):
    sources: tuple[str, ...]  # of the shards


def perform_met(task: Task[MetOptions]) -> Made:
    """How many documents of a held-out split were trained on: they judge nothing."""
    history = open_history(task)
    assert history is not None, "it was asked what it has"
    met = sum(
        int(np.count_nonzero(seen_levels(history, source, lengths)))
        for source, lengths in zip(task.options.sources, task.paths("lengths"), strict=True)
    )
    return Made([], {}, {"met": met})


def met_warning(split: str, met: int) -> str:
    return (
        f"{split} holds {met:,} documents that were trained on before: what is measured on them says nothing;"
        " keep `split` as it was"
    )


class TokenFile(NamedTuple):
    """Documents of a source, in a token file."""

    number: int  # of their shard
    source: str
    lengths: Path
    documents: int


def count_sets(parts: Sequence[TokenFile], order: Path, history: History) -> Json:
    """`order`: the turns that they have."""
    turns = {part.number: np.zeros(part.documents, np.int64) for part in parts}
    for piece in read_tables(order, ("shard", "sequence")):
        numbers, sequences = (np.asarray(one_piece(piece.column(name))) for name in ("shard", "sequence"))
        for number in np.unique(numbers).tolist():
            np.add.at(turns[number], sequences[numbers == number], 1)
    sources = {
        source: _sets_of(source, [part for part in parts if part.source == source], turns, history)
        for source in dict.fromkeys(part.source for part in parts)
    }
    gone = {source: len(history.ids(source)) for source in history.sources if source not in sources}
    return {"sources": sources, "gone": gone}


def _sets_of(
    source: str, parts: Sequence[TokenFile], turns: Mapping[int, NDArray[np.int64]], history: History
) -> Json:
    sets: dict[str, list[NDArray[np.uint64]]] = {"seen": [], "again": [], "unseen": [], "to_come": []}
    tokens = dict.fromkeys(sets, 0)
    for part in parts:
        table = load_table(part.lengths, ["doc_id", "tokens"])
        ids, lengths = id_hashes(table.column("doc_id")), np.asarray(table.column("tokens"))
        is_seen, often = history.levels(source, ids) > 0, turns[part.number]
        for name, is_in, times in (
            ("seen", is_seen, 1),
            ("again", is_seen & (often > 0), often),
            ("unseen", ~is_seen, 1),
            ("to_come", ~is_seen & (often > 0), often),
        ):
            sets[name].append(ids[is_in])
            tokens[name] += int((lengths * times)[is_in].sum())
    known = np.unique(np.concatenate(sets["seen"]))
    whole = tokens["seen"] + tokens["unseen"]
    trained_on = history.tokens(source, known) + tokens["again"] + tokens["to_come"]
    return {
        "trained_on": history.tokens(source),
        "epochs": round(trained_on / whole, 6) if whole else 0.0,
        **{
            name: {"documents": sum(map(len, ids)), "tokens": tokens[name], "ids_sha256": ids_sha256(ids)}
            for name, ids in sets.items()
        },
        "gone": len(history.ids(source)) - len(known),
    }
