"""How well surface tokens alone tell the domains apart:
multinomial naive Bayes, taught by training rows, asked about held-out ones.

    training rows ─ counts of each id in each domain ─┬─ log-probabilities ─> held-out rows:
                                                      │                       which domain is likeliest?
                                                      └─ markers: ids that a domain has more of
                                                         than the others
                                                         masked, and all asked again

    row              all tokens of a row that are of its domain (the one that most of them are of)
    row start        the first 16 of a row
    document start   the first 16 of each document whose beginning is in a row

Whatever a router or a probe of hidden states finds about domains is to be compared with this: it needs no
context at all. Log-probabilities are whole numbers (2^-20 nats), so that no order of additions changes a
verdict. EOS and BOS are never looked at, nor an id that training rows do not have. Domains count alike: the
prior is uniform, and so is the mean over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.reviews.finding import NotMeasured
from tokmill.reviews.rows import (
    PROBE_HELD_OUT_TOKENS,
    PROBE_TRAIN_TOKENS,
    Classes,
    Ints,
    Pieces,
    SplitPieces,
    Taken,
    tokens_of,
)
from tokmill.reviews.subject import Build

FIRST = 16  # tokens: about ten words
MASKED = (20, 200)  # markers of each domain
SHOWN = 8
UNIT = 1 << 20  # a nat

VIEWS = ("row", "row start", "document start")


class Units(NamedTuple):
    """What is classified: `token` is the id of each token, `unit` whose it is (ascending),
    `label` of each unit its domain."""

    token: NDArray[np.integer]
    unit: Ints
    label: Ints


@dataclass(frozen=True)
class View:
    """What was found out of one view. Masked by 0, 20 and 200 markers of each domain."""

    name: str
    trained_on: tuple[int, ...]  # units of each domain
    asked: tuple[int, ...]
    right: dict[int, tuple[float, ...]]  # of each domain; among j likeliest that are equal, 1/j
    masked_tokens: dict[int, tuple[int, int]]  # held-out tokens that are masked, of those that are looked at
    markers: tuple[tuple[int, ...], ...]  # ids of each domain, the strongest first

    def accuracy(self, masked: int = 0) -> float:
        """The mean over domains that were asked about; chance is one by their number."""
        shares = [right / asked for right, asked in zip(self.right[masked], self.asked, strict=True) if asked]
        return sum(shares) / len(shares)

    @property
    def chance(self) -> float:
        return 1 / len(self.asked)


@dataclass(frozen=True)
class Probe:
    word: str  # domain, or source
    domains: tuple[str, ...]
    split: str  # that was asked about
    views: tuple[View, ...]
    train: Taken
    held_out: Taken
    noise: tuple[Noise | None, ...]  # of each domain


class Noise(NamedTuple):
    """Of the mean loss of a domain's held-out tokens, by document:
    their losses under its own unigram model, in nats."""

    documents: int
    tokens: int
    loss: float
    error: float  # one standard error, documents being drawn
    error_of_tokens: float  # and if every token were drawn by itself


def probe(
    build: Build,
    classes: Classes,
    tokenizer: Json,
    max_tokens: tuple[int, int] = (PROBE_TRAIN_TOKENS, PROBE_HELD_OUT_TOKENS),
) -> Probe:
    """`tokenizer` as the build's manifest has it."""
    if len(build.splits) < 2:
        raise NotMeasured("nothing is held out, so there are no rows to be asked about")
    if "vocab_size" not in tokenizer:
        raise NotMeasured(f"the manifest of build {build.name} does not say how large the vocabulary is")
    vocab_size = max(tokenizer["vocab_size"], tokenizer.get("padded_vocab_size") or 0)
    marks = [tokenizer[key] for key in ("eos_id", "bos_id") if tokenizer.get(key) is not None]
    names = tuple(sorted(set(classes.of.values())))  # of a row that is half of each, the first
    codes = {source: names.index(domain) for source, domain in classes.of.items()}
    train = SplitPieces(build, build.splits[0], max_tokens[0])
    held_out = SplitPieces(build, build.splits[1], max_tokens[1])
    counts = {view: np.zeros((len(names), vocab_size), np.int64) for view in VIEWS}
    trained_on = {view: np.zeros(len(names), np.int64) for view in VIEWS}
    with_eos = np.zeros((len(names), vocab_size), np.int64)
    for pieces in train:
        domains = _domains(pieces, codes)
        for view, units in _views(pieces, domains, len(names), marks):
            _add_counts(counts[view], units.label[units.unit], units.token)
            trained_on[view] += np.bincount(units.label, minlength=len(names))
        places, piece = tokens_of(pieces, slice(None), pieces.lengths)
        _add_counts(with_eos, domains[piece], pieces.ids[places])
    if sum(trained_on["row"] > 0) < 2:
        raise NotMeasured(f"there are no two {classes.word}s in the training rows to be told apart")
    asking = {view: _Asking(counts[view]) for view in VIEWS}
    losses = _Losses(with_eos)
    for pieces in held_out:
        domains = _domains(pieces, codes)
        for view, units in _views(pieces, domains, len(names), marks):
            asking[view].ask(units)
        losses.add(pieces, domains)
    if not asking["row"].asked.any():
        raise NotMeasured("no row is held out")
    views = (asking[view].answer(view, trained_on[view]) for view in VIEWS if asking[view].asked.any())
    return Probe(
        classes.word, names, build.splits[1], tuple(views), train.taken, held_out.taken, losses.noise()
    )


def _add_counts(counts: Ints, domains: Ints, tokens: NDArray[np.integer]) -> None:
    counts += np.bincount(domains * counts.shape[1] + tokens, minlength=counts.size).reshape(counts.shape)


def _domains(pieces: Pieces, codes: Mapping[str, int]) -> Ints:
    return np.array([codes[source] for source in pieces.sources], np.int64)


# --- what is classified ---


def _views(pieces: Pieces, domains: Ints, count: int, marks: list[int]) -> Iterator[tuple[str, Units]]:
    amounts = np.zeros((pieces.rows, count), np.int64)
    np.add.at(amounts, (pieces.row, domains), pieces.lengths)
    mine = amounts.argmax(1)[pieces.row] == domains
    yield "row", _units(pieces, mine, pieces.lengths[mine], pieces.row, domains, marks)
    first = np.searchsorted(pieces.row, pieces.row)  # of each piece, the first of its row
    room = FIRST - (pieces.start - pieces.start[first])
    early = (room > 0) & (domains[first] == domains)
    yield (
        "row start",
        _units(pieces, early, np.minimum(pieces.lengths, room)[early], pieces.row, domains, marks),
    )
    begun = pieces.offset == 0
    number = np.arange(len(domains))
    yield (
        "document start",
        _units(pieces, begun, np.minimum(pieces.lengths, FIRST)[begun], number, domains, marks),
    )


def _units(
    pieces: Pieces, chosen: NDArray[np.bool_], lengths: Ints, unit: Ints, domains: Ints, marks: list[int]
) -> Units:
    """The first so many tokens of each chosen piece, and whose unit they are of;
    only units that have a token, numbered anew."""
    places, piece = tokens_of(pieces, chosen, lengths)
    token = pieces.ids[places]
    if marks:
        is_word = ~np.isin(token, marks)
        token, piece = token[is_word], piece[is_word]
    of_unit = unit[piece]
    is_first = np.ones(len(of_unit), np.bool_)
    is_first[1:] = of_unit[1:] != of_unit[:-1]
    return Units(token, np.cumsum(is_first) - 1, domains[piece[is_first]])


# --- naive Bayes ---


def log_probabilities(counts: Ints, masked: Ints | None = None) -> Ints:
    """Of each id in each domain, one added to every count, in UNITs;
    0 for ids that are masked or in no training row."""
    seen = np.asarray(counts.any(0))
    if masked is not None:
        seen[masked] = False
    used = np.where(seen, counts, 0)
    totals = used.sum(1, keepdims=True) + int(seen.sum())
    logs = np.rint((np.log(used + 1) - np.log(np.maximum(totals, 1))) * UNIT).astype(np.int64)
    return np.where(seen, logs, 0)


def rank_markers(counts: Ints, most: int) -> tuple[tuple[int, ...], ...]:
    """Ids of each domain by p log(p / q), where q is the mean of the other domains:
    what tells most, weighed by how often."""
    seen = np.asarray(counts.any(0))
    share = np.where(seen, (counts + 1) / (counts.sum(1, keepdims=True) + int(seen.sum())), 1.0)
    found = []
    for domain in range(len(counts)):
        others = np.delete(share, domain, 0).mean(0)
        strength = np.rint(share[domain] * np.log(share[domain] / others) * (1 << 40)).astype(np.int64)
        strength[~seen | (counts[domain] == 0)] = 0
        order = np.lexsort((np.arange(len(strength)), -strength))[:most]
        found.append(tuple(order[strength[order] > 0].tolist()))
    return tuple(found)


class _Asking:
    """One view: verdicts about held-out units, with nothing masked and with markers masked."""

    def __init__(self, counts: Ints) -> None:
        self._markers = rank_markers(counts, max(MASKED))
        self._tables = {0: log_probabilities(counts)}
        self._hidden = {0: np.zeros(counts.shape[1], np.bool_)}
        for most in MASKED:
            ids = np.array(sorted({id for mine in self._markers for id in mine[:most]}), np.int64)
            self._tables[most] = log_probabilities(counts, ids)
            self._hidden[most] = np.isin(np.arange(counts.shape[1]), ids)
        self._known = np.asarray(counts.any(0))
        size = len(counts)
        self.asked = np.zeros(size, np.int64)
        self._right = {
            most: np.zeros((size, size + 1), np.int64) for most in self._tables
        }  # by how many are equal
        self._masked = {most: [0, 0] for most in self._tables}

    def ask(self, units: Units) -> None:
        if not len(units.label):
            return
        size = len(self.asked)
        self.asked += np.bincount(units.label, minlength=size)
        begins = np.searchsorted(units.unit, np.arange(len(units.label)))
        known = int(self._known[units.token].sum())
        for most, table in self._tables.items():
            scores = np.stack(
                [np.add.reduceat(table[domain][units.token], begins) for domain in range(size)], 1
            )
            best = scores == scores.max(1, keepdims=True)
            is_right = best[np.arange(len(scores)), units.label]
            equal = best.sum(1)[is_right]
            np.add.at(self._right[most], (units.label[is_right], equal), 1)
            self._masked[most][0] += int(self._hidden[most][units.token].sum())
            self._masked[most][1] += known

    def answer(self, view: str, trained_on: Ints) -> View:
        right = {
            most: tuple(
                sum(int(count) / equal for equal, count in enumerate(mine) if equal)
                for mine in table.tolist()
            )
            for most, table in self._right.items()
        }
        masked = {most: (hidden, known) for most, (hidden, known) in self._masked.items()}
        return View(
            view, tuple(trained_on.tolist()), tuple(self.asked.tolist()), right, masked, self._markers
        )


# --- noise of a held-out loss ---


@dataclass
class _Losses:
    """Losses of held-out documents under the unigram model of their domain,
    one added to each count of the vocabulary."""

    counts: Ints
    documents: dict[tuple[str, str], int] = field(default_factory=dict)
    sums: list[list[int]] = field(default_factory=list)  # domain, tokens, loss
    squares: list[int] = field(default_factory=list)  # of single tokens, by domain

    def __post_init__(self) -> None:
        totals = self.counts.sum(1, keepdims=True) + self.counts.shape[1]
        self.losses = np.rint((np.log(totals) - np.log(self.counts + 1)) * UNIT).astype(np.int64)
        self.squares = [0] * len(self.counts)

    def add(self, pieces: Pieces, domains: Ints) -> None:
        places, piece = tokens_of(pieces, slice(None), pieces.lengths)
        loss = self.losses[domains[piece], pieces.ids[places]]
        sums = np.zeros(len(domains), np.int64)
        np.add.at(sums, piece, loss)
        for domain in np.unique(domains).tolist():
            mine = loss[domains[piece] == domain].astype(np.float64) / UNIT
            self.squares[domain] += round(float((mine * mine).sum()) * UNIT)
        columns = zip(
            pieces.sources,
            pieces.doc_ids,
            domains.tolist(),
            pieces.lengths.tolist(),
            sums.tolist(),
            strict=True,
        )
        for source, doc_id, domain, tokens, total in columns:
            number = self.documents.setdefault((source, doc_id), len(self.sums))
            if number == len(self.sums):
                self.sums.append([domain, 0, 0])
            self.sums[number][1] += tokens
            self.sums[number][2] += total

    def noise(self) -> tuple[Noise | None, ...]:
        return tuple(self._of(domain) for domain in range(len(self.counts)))

    def _of(self, domain: int) -> Noise | None:
        mine = [(tokens, total / UNIT) for of, tokens, total in self.sums if of == domain]
        tokens = sum(count for count, _ in mine)
        if len(mine) < 2 or not tokens:
            return None
        loss = sum(total for _, total in mine) / tokens
        # a ratio of sums over documents that are drawn: longer ones weigh more, and tokens of one are alike
        spread = sum((total - loss * count) ** 2 for count, total in mine) * len(mine) / (len(mine) - 1)
        variance = max(self.squares[domain] / UNIT / tokens - loss * loss, 0.0)
        return Noise(len(mine), tokens, loss, spread**0.5 / tokens, (variance / tokens) ** 0.5)
