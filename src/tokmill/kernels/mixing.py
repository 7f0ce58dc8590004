"""Which source gives the next document: the one that is furthest behind its share, in tokens.

    mark_shuffle   identities, a key     -> numbers to sort by: a shuffle that is the same anywhere
    go_on          windows, an account   -> turns (source, place), until a window is empty or there is no room

    deficit_i  =  share_i * tokens so far  -  tokens of i so far        all deficits add up to zero

Shares are whole numbers that add up to 2^31, so deficits are exact: a length is below 2^31 and a deficit
stays within a few documents, which 63 bits hold. What has been given so far is in the account, so a source
need not show all its documents at once: where windows end makes no difference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import HASHES, ROWS, Int, frozen, raw_kernel, raw_step

Numbers = NDArray[np.int32]
Amounts = NDArray[np.int64]

SHARE_BITS = 31

U64 = np.uint64


class Windows(NamedTuple):
    """The documents that source i shows, in its order: places nexts[i] to ends[i] of the columns."""

    lengths: Amounts
    costs: Amounts
    nexts: Amounts
    ends: Amounts
    is_last: NDArray[np.bool_]  # nothing follows the window


class Account(NamedTuple):
    """What the sources should give and have given. Goes on from call to call."""

    quotas: Amounts
    shares: Amounts
    deficits: Amounts
    taken: Amounts
    passed_over: Amounts
    spent: Amounts  # one number: costs so far


def open_account(quotas: Amounts, shares: Amounts) -> Account:
    none = np.zeros(quotas.size, np.int64)
    return Account(quotas.copy(), shares.copy(), none, none.copy(), none.copy(), np.zeros(1, np.int64))


class Stop(NamedTuple):
    """How many turns were taken, and why no more: `source` has shown all (WAITING), or has no more (DRY)."""

    turns: int
    why: int
    source: int


DONE, FULL, WAITING, DRY = range(4)


def mark_shuffle(
    identities: NDArray[np.uint64], key: int, first_row: int = 0, rows: int | None = None
) -> NDArray[np.uint64]:
    """A keyed hash of each identity with its row in the low bits: sorted, these are a shuffle of the rows.

    Sorting whole numbers takes a quarter of the time of an argsort (20 million: 1.0 s instead of 4.0), and
    rows whose hashes agree in the bits that are left stay in order. Of some of `rows` only, from `first_row`
    on: the same marks.
    """
    marks = np.empty(identities.size, np.uint64)
    bits = row_bits(first_row + identities.size if rows is None else rows)
    _mark_shuffle(frozen(identities, np.uint64), U64(key), U64(bits), U64(first_row), marks)
    return marks


def row_bits(rows: int) -> int:
    return max(rows - 1, 0).bit_length()


def go_on(
    windows: Windows,
    account: Account,
    limit: int,
    patience: int,
    is_strict: bool,
    source_out: Numbers,
    place_out: Amounts,
) -> Stop:
    """Turns as far as the windows and the room for turns reach; account and `nexts` are brought up to them.

    A source gives as many tokens as its quota allows: a document that would exceed it is passed over, and
    after `patience` of these in a row the source is done. All is done when the next document would take the
    costs over `limit`. Where the source whose turn it is has nothing left, its share goes to the others; or,
    if that is strict, that is the end.
    """
    turns, why, source = _take_turns(
        frozen(windows.lengths, np.int64),
        frozen(windows.costs, np.int64),
        windows.nexts,
        frozen(windows.ends, np.int64),
        frozen(windows.is_last, np.bool_),
        frozen(account.quotas, np.int64),
        account.shares,
        account.deficits,
        account.taken,
        account.passed_over,
        account.spent,
        limit,
        patience,
        is_strict,
        source_out,
        place_out,
    )
    return Stop(int(turns), int(why), int(source))


@raw_kernel(lambda: mark_shuffle(HASHES, 0))
def _mark_shuffle(
    identities: NDArray[np.uint64],
    key: np.uint64,
    bits: np.uint64,
    first_row: np.uint64,
    marks: NDArray[np.uint64],
) -> None:
    for row in range(identities.size):
        # the finalizer of splitmix64 (Steele et al. 2014), twice: the key alone must not show as a shift
        mixed = _mixed(_mixed(identities[row]) ^ key)
        marks[row] = ((mixed >> bits) << bits) | (first_row + U64(row))


@raw_step
def _mixed(value: np.uint64) -> np.uint64:
    value += U64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> U64(27))) * U64(0x94D049BB133111EB)
    return value ^ (value >> U64(31))


@raw_kernel(
    lambda: go_on(
        Windows(ROWS, ROWS, ROWS.copy(), ROWS, np.ones(1, np.bool_)),
        open_account(ROWS, ROWS),
        1,
        1,
        False,
        np.zeros(1, np.int32),
        np.zeros(1, np.int64),
    )
)
def _take_turns(
    lengths: Amounts,
    costs: Amounts,
    nexts: Amounts,
    ends: Amounts,
    is_last: NDArray[np.bool_],
    quotas: Amounts,
    shares: Amounts,
    deficits: Amounts,
    taken: Amounts,
    passed_over: Amounts,
    spent: Amounts,
    limit: int,
    patience: int,
    is_strict: bool,
    source_out: Numbers,
    place_out: Amounts,
) -> tuple[Int, Int, Int]:
    count: Int = 0
    while spent[0] < limit:
        if count == source_out.size:
            return count, FULL, -1
        source: Int = -1
        for other in range(shares.size):
            if shares[other] > 0 and (source < 0 or deficits[other] > deficits[source]):
                source = other
        if source < 0:
            return count, DONE, -1
        place = nexts[source]
        end = ends[source]
        room = quotas[source] - taken[source]
        last = min(end, place + patience)
        while place < last and lengths[place] > room:
            place += 1
        if place == last or room == 0:
            if place == end and not is_last[source]:
                return count, WAITING, source
            if is_strict and place == end:
                return count, DRY, source
            _retire(shares, source)
            continue
        passed_over[source] += place - nexts[source]
        nexts[source] = place + 1
        length = lengths[place]
        if spent[0] + costs[place] > limit:
            return count, DONE, -1
        spent[0] += costs[place]
        source_out[count] = source
        place_out[count] = place
        count += 1
        taken[source] += length
        for other in range(shares.size):
            deficits[other] += shares[other] * length
        deficits[source] -= length << SHARE_BITS
    return count, DONE, -1


@raw_step
def _retire(shares: Amounts, source: Int) -> None:
    """What the source had of the whole is shared out among the others, in proportion;
    the first takes what is left."""
    shares[source] = 0
    total: Int = 0
    for other in range(shares.size):
        total += shares[other]
    first: Int = -1
    given: Int = 0
    for other in range(shares.size):
        if shares[other] > 0:
            shares[other] = (shares[other] << SHARE_BITS) // total
            given += shares[other]
            if first < 0:
                first = other
    if first >= 0:
        shares[first] += (1 << SHARE_BITS) - given
