"""A schedule the slow way: everything in memory, in plain integers, one document after the other."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from packing.in_memory import Corpus
from tokmill.packing.mixture import Mixture
from tokmill.packing.quotas import (
    Holding,
    Target,
    largest_budget,
    refuse_empty_domains,
    shares_of,
    source_quotas,
)
from tokmill.packing.schedule import _in_bits, shuffle_key

Turns = list[tuple[int, int]]


def turns_slowly(
    lengths: list[list[int]],
    quotas: list[int],
    shares: list[int],
    limit: int,
    patience: int,
    strict: bool,
    costs: list[list[int]] | None = None,
) -> tuple[Turns, int]:
    """Whose share of all tokens so far exceeds its own tokens the most is next."""
    costs = lengths if costs is None else costs
    waiting = [list(enumerate(zip(*parts, strict=True))) for parts in zip(lengths, costs, strict=True)]
    taken, exact, total = [0] * len(lengths), [0] * len(lengths), 0
    turns: Turns = []
    shares = list(shares)
    while any(shares) and total < limit:
        active = [at for at, share in enumerate(shares) if share]
        source = max(active, key=lambda at: (exact[at], -at))
        room = quotas[source] - taken[source]
        fitting = [at for at, (_, (length, _)) in enumerate(waiting[source][:patience]) if length <= room]
        if not fitting or not room:
            if strict and len(waiting[source]) <= patience and not fitting:
                return turns, source
            shares[source] = 0
            whole = sum(shares)
            if whole:
                shares = [(share << 31) // whole for share in shares]
                first = next(at for at, share in enumerate(shares) if share)
                shares[first] += (1 << 31) - sum(shares)
            continue
        document, (length, cost) = waiting[source][fitting[0]]
        del waiting[source][: fitting[0] + 1]
        if total + cost > limit:
            break
        total += cost
        taken[source] += length
        turns.append((source, document))
        exact = [deficit + share * length for deficit, share in zip(exact, shares, strict=True)]
        exact[source] -= length << 31
    return turns, -1


def mixed_slowly(value: int) -> int:
    """The finalizer of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) % (1 << 64)
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return value ^ (value >> 31)


def order_slowly(corpus: Corpus, epoch: int, order: str, seed: int) -> list[int]:
    """By the hash without its last bits, as many as the number of a document takes; then by that number."""
    count = len(corpus.lengths)
    if order == "corpus":
        return list(range(count))
    identities = range(count) if corpus.identities is None else corpus.identities.tolist()
    key, bits = shuffle_key(seed, epoch, corpus.name), max(count - 1, 0).bit_length()
    marks = [mixed_slowly(mixed_slowly(identity) ^ key) >> bits for identity in identities]
    return sorted(range(count), key=lambda row: (marks[row], row))


def schedule_slowly(
    corpora: Sequence[Corpus],
    mixture: Mixture,
    target: Target | None,
    *,
    exhausted: str,
    max_epochs: int,
    order: str,
    seed: int,
    patience: int,
) -> Turns | str:
    """(source, document) of every turn; or the name of the source that ran dry."""
    holdings = [Holding(c.name, c.domain, int(c.lengths.sum())) for c in corpora]
    target = target or Target("tokens", max(largest_budget(holdings, mixture), 1))
    limit = target.amount * (1_000_000 if target.unit == "megabytes" else 1)
    is_counted = target.unit in ("documents", "megabytes")
    shares = shares_of(holdings, mixture)
    if is_counted:
        if exhausted != "renormalize":
            refuse_empty_domains(
                holdings, mixture, sum(h.tokens for h in holdings) or 1, exhausted, max_epochs
            )
        epochs = [1 if share else 0 for share in shares]
    else:
        quotas = source_quotas(holdings, mixture, limit, exhausted, max_epochs)
        epochs = [-(-quota // max(h.tokens, 1)) for quota, h in zip(quotas, holdings, strict=True)]
        shares = [Fraction(quota, max(sum(quotas), 1)) for quota in quotas]
    while True:
        orders = [
            [row for epoch in range(count) for row in order_slowly(corpus, epoch, order, seed)]
            for corpus, count in zip(corpora, epochs, strict=True)
        ]
        lengths = [[int(c.lengths[row]) for row in rows] for c, rows in zip(corpora, orders, strict=True)]
        costs = lengths
        if target.unit == "documents":
            costs = [[1] * len(rows) for rows in orders]
        elif target.unit == "megabytes":
            costs = [
                [int(c.text_bytes[row]) for row in rows] for c, rows in zip(corpora, orders, strict=True)
            ]
        if is_counted:
            quotas = [h.tokens * count for h, count in zip(holdings, epochs, strict=True)]
        bits = _in_bits(shares).tolist()
        strict = is_counted and exhausted != "renormalize"
        turns, dry = turns_slowly(lengths, quotas, bits, limit, patience, strict, costs)
        if dry < 0:
            return [(source, orders[source][place]) for source, place in turns]
        if exhausted == "stop" or epochs[dry] >= max_epochs:
            return corpora[dry].name
        epochs[dry] = min(2 * epochs[dry], max_epochs)
