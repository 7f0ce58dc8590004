"""How often a document is built, by its score.

    repeat   percentiles {95: 4, 80: 2, 40: 1, 0: 0}   score.edu.percentile of a document -> times
    select   tokens 2B                                  score + Gumbel noise -> key; the largest keys that are
                                                        2B tokens together are built once, the others never

A selection is of the sources that have a share. A score that is the logarithm of a weight, and Gumbel noise:
the largest keys are a sample without replacement by those weights (Xie et al. 2023, DSIR). The noise is made
from the identity of the document alone, so who is drawn hangs on no order and no cut. The smallest key that
is in is found by counting tokens by the leading bits of the keys, then by the next: a table of 512 KB,
whatever the number of documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.step import Input, Made, Task, table_input
from tokmill.artifacts.upstream import list_shards
from tokmill.errors import InputError, plural
from tokmill.kernels.chances import gumbel_of
from tokmill.packing.mixture import Mixture
from tokmill.packing.schedule import shuffle_key
from tokmill.schema import PERCENTILE, one_piece
from tokmill.stages.ranking import ordered
from tokmill.storage.digests import id_hashes
from tokmill.storage.tables import load_table

Column = NDArray[Any]

SCORES = "scores"  # the role of the tables with a score
LEFT_OUT = "left_out_by_score"
_BITS = 16


class RepeatByScore(msgspec.Struct, frozen=True, tag="repeat"):
    column: str
    steps: tuple[tuple[float, int], ...]  # from this percentile on, so many times; ascending


class SelectByScore(msgspec.Struct, frozen=True, tag="select"):
    column: str
    tokens: int
    seed: int
    # sources of weight 0 that are read all the same (a score learns from them): not in the config where there
    # are none
    without: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


ByScore = RepeatByScore | SelectByScore


def score_inputs(upstream: Mapping[str, Artifact], numbers: Sequence[int], chosen: ByScore) -> list[Input]:
    """The table of each shard that has the score, in the order of the numbers."""
    return column_inputs(upstream, numbers, chosen.column, role=SCORES)


def column_inputs(
    upstream: Mapping[str, Artifact], numbers: Sequence[int], column: str, *, role: str
) -> list[Input]:
    shards = {shard.number: shard for shard in list_shards(upstream)}
    found = []
    for number in numbers:
        if column.endswith(PERCENTILE):
            holder, path = upstream["scores"], f"percentiles-{number:05d}.parquet"
        else:
            holder, path = (
                upstream[f"clean/{shards[number].source}"],
                f"measures-{shards[number].key}.parquet",
            )
        (entry,) = (one for one in holder.manifest.files if one.path == path)
        found.append(table_input(role, holder.directory, entry))
    return found


def times_of(lengths: Path, scores: Path, chosen: ByScore, least: int | None) -> NDArray[np.int64]:
    """Of each document of a token file. `least`: of a selection, the smallest key that is in; None: all."""
    if isinstance(chosen, SelectByScore):
        _, keys = _keys(lengths, scores, chosen)
        return np.ones(len(keys), np.int64) if least is None else (keys >= np.uint64(least)).astype(np.int64)
    rows = np.asarray(load_table(lengths, ["row"]).column("row"))
    values = values_of(scores, chosen.column)[rows]
    bounds, times = (np.array(column) for column in zip(*chosen.steps, strict=True))
    found: NDArray[np.int64] = times.astype(np.int64)[np.searchsorted(bounds, values, side="right") - 1]
    return found


class Offer(NamedTuple):
    """What a score does to a source."""

    domain: str
    documents: int
    left_out: int


def refuse_domains_left_out(offers: Sequence[Offer], mixture: Mixture, chosen: ByScore) -> None:
    """One with a weight, all of whose documents are left out: it would be told to have none."""
    for domain, weight in mixture.domains.items():
        own = [offer for offer in offers if offer.domain == domain]
        documents = sum(offer.documents for offer in own)
        if not weight or not documents or sum(offer.left_out for offer in own) < documents:
            continue
        who, less = "repeat", "begin lower, or rank within the domain (`percentile: domain`)"
        if isinstance(chosen, SelectByScore):
            who, less = "select", "raise `select.tokens`"
        raise InputError(
            f"the domain {domain} has a weight, and `{who}` leaves out all of its "
            f"{plural(documents, 'document')} by {chosen.column}",
            where="mixture",
            next=f"{less}; or set its weight to 0 (with `mixture: {{normalize: true}}`)",
        )


def perform_select(task: Task[SelectByScore]) -> Made:
    """The smallest key of the largest that have at most so many tokens; None where all have."""
    options, budget = task.options, task.options.tokens
    pairs = list(zip(task.paths("lengths"), task.paths(SCORES), strict=True))

    def read() -> Iterator[tuple[Column, Column]]:
        for lengths, scores in pairs:
            yield _keys(lengths, scores, options)

    if sum(int(tokens.sum()) for tokens, _ in read()) <= budget:
        return Made([], {}, {"least": None})
    above, prefix = 0, 0  # tokens of keys above those that begin so
    for shift in range(64 - _BITS, -1, -_BITS):
        counted = np.zeros(1 << _BITS, np.int64)
        for tokens, keys in read():
            is_mine = np.ones(len(keys), np.bool_)
            if shift + _BITS < 64:
                is_mine = (keys >> np.uint64(shift + _BITS)) == np.uint64(prefix)
            digits = (keys[is_mine] >> np.uint64(shift)) & np.uint64((1 << _BITS) - 1)
            np.add.at(counted, digits.astype(np.int64), tokens[is_mine])
        from_top = above + np.cumsum(counted[::-1])
        digit = (1 << _BITS) - 1 - int(np.searchsorted(from_top, budget, side="right"))
        above += int(counted[digit + 1 :].sum())
        prefix = prefix << _BITS | digit
    # keys of `prefix` itself are one too many
    return Made([], {}, {"least": prefix + 1})


def _keys(lengths: Path, scores: Path, options: SelectByScore) -> tuple[Column, Column]:
    """Tokens and key of each document of a token file."""
    table = load_table(lengths, ["row", "doc_id", "tokens"])
    rows = np.asarray(table.column("row"))
    key = shuffle_key(options.seed, 0, f"select {options.column}")
    noise = gumbel_of(_spread(id_hashes(table.column("doc_id")), key))
    values = values_of(scores, options.column)[rows] + noise
    return np.asarray(table.column("tokens")), ordered(values + 0.0)


def _spread(identities: Column, key: int) -> Column:
    """A keyed hash of each identity: MurmurHash3's last step for 64 bits, as in `kernels.jit`."""
    found = identities.astype(np.uint64) ^ np.uint64(key)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        found = (found ^ (found >> np.uint64(33))) * np.uint64(factor)
    spread: Column = found ^ (found >> np.uint64(33))
    return spread


def values_of(path: Path, column: str) -> Column:
    """A document that was not measured is out already."""
    found = one_piece(load_table(path, [column]).column(0)).fill_null(0)
    return np.asarray(found).astype(np.float64)
