"""Mixtures as they are built: against a twin in plain integers, and against what was asked for."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from packing.in_memory import Corpus, Schedule, in_order, schedule
from packing.mixed import mix
from packing.slow_schedule import schedule_slowly
from packing.test_compare import RANKS, real_lengths
from plain.hashing import splitmix as mixed_slowly
from plain.mixing import take_turns as turns_slowly
from tokmill.errors import InputError, RecipeError
from tokmill.kernels.mixing import DRY, Windows, go_on, open_account
from tokmill.packing import balance
from tokmill.packing import schedule as turning
from tokmill.packing.balance import Balance, row_groups
from tokmill.packing.mixture import Mixture
from tokmill.packing.plan import Plan, Store, gather_rows, plan_layout, take_rows
from tokmill.packing.quotas import Holding, Target
from tokmill.packing.schedule import Offered, Scheduling

T = TypeVar("T")


def corpora_of(*lengths: list[int] | np.ndarray) -> list[Corpus]:
    return [Corpus(f"s{n}", f"d{n}", np.array(part, np.int64)) for n, part in enumerate(lengths)]


def mixture_of(*weights: object) -> Mixture:
    return Mixture({f"d{n}": Fraction(str(weight)) for n, weight in enumerate(weights)})


def drawn(seed: int, count: int, mean: float = 5.0) -> np.ndarray:
    return np.maximum(1, np.random.default_rng(seed).lognormal(mean, 1.0, count)).astype(np.int64)


def taken_of(found: Schedule) -> list[tuple[int, int]]:
    return list(zip(found.source.tolist(), found.document.tolist(), strict=True))


@given(
    parts=st.lists(
        st.tuples(st.lists(st.integers(1, 50), max_size=12), st.integers(1, 9), st.integers(0, 200)),
        min_size=1,
        max_size=4,
    ),
    limit=st.integers(0, 600),
    patience=st.integers(1, 4),
    strict=st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_turns_are_those_of_the_slow_twin(parts, limit, patience, strict):
    lengths = [part for part, _, _ in parts]
    quotas = [quota for _, _, quota in parts]
    weights = [weight for _, weight, _ in parts]
    shares = [(weight << 31) // sum(weights) for weight in weights]
    shares[0] += (1 << 31) - sum(shares)
    flat = np.array([length for part in lengths for length in part], np.int64)
    begins = np.cumsum([0, *(len(part) for part in lengths)])
    windows = Windows(flat, flat, begins[:-1].copy(), begins[1:], np.ones(len(lengths), np.bool_))
    account = open_account(np.array(quotas, np.int64), np.array(shares, np.int64))
    source, place = np.empty(len(flat) + 1, np.int32), np.empty(len(flat) + 1, np.int64)
    stop = go_on(windows, account, limit, patience, strict, source, place)
    taken = zip(source[: stop.turns].tolist(), place[: stop.turns].tolist(), strict=True)
    turns, dry = turns_slowly(lengths, quotas, shares, limit, patience, strict)
    assert [(s, p - int(begins[s])) for s, p in taken] == turns
    assert (stop.source if stop.why == DRY else -1) == dry
    assert account.taken.tolist() == [
        sum(lengths[s][d] for s, d in turns if s == source) for source in range(len(lengths))
    ]


@given(
    parts=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), max_size=12),
            st.integers(0, 9),
            st.sampled_from("ab"),
        ),
        min_size=1,
        max_size=4,
    ),
    target=st.one_of(
        st.none(),
        st.builds(Target, st.sampled_from(["tokens", "documents"]), st.integers(1, 400)),
        st.builds(Target, st.just("megabytes"), st.integers(1, 30)),
    ),
    exhausted=st.sampled_from(["stop", "renormalize", "repeat"]),
    max_epochs=st.integers(1, 5),
    order=st.sampled_from(["shuffle", "corpus"]),
    window=st.integers(1, 40),
    batch=st.integers(1, 9),
    patience=st.integers(1, 4),
)
@settings(deadline=None, max_examples=400)
def test_a_schedule_is_that_of_the_slow_twin_for_any_window(
    parts, target, exhausted, max_epochs, order, window, batch, patience
):
    """Identities repeat (there are six), so hashes do."""
    corpora = [
        Corpus(
            f"s{number}",
            domain,
            np.array([length for length, _ in documents], np.int64),
            np.array([identity for _, identity in documents], np.uint64),
            np.array([100_000 * length for length, _ in documents], np.int64),
        )
        for number, (documents, _, domain) in enumerate(parts)
    ]
    weights = {domain: 0 for _, _, domain in parts}
    for _, weight, domain in parts:
        weights[domain] += weight
    total = sum(weights.values()) or 1
    mixture = Mixture({domain: Fraction(weight, total) for domain, weight in weights.items()})
    if target is None:
        exhausted = "stop"
    asked = {"exhausted": exhausted, "max_epochs": max_epochs, "order": order, "seed": 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turning, "PATIENCE", patience)
        patch.setattr(turning, "_WINDOW_DOCUMENTS", window)
        patch.setattr(turning, "_BATCH_TURNS", batch)
        fast = outcome_of(lambda: schedule(corpora, mixture, target, **asked))
    slow = outcome_of(lambda: schedule_slowly(corpora, mixture, target, patience=patience, **asked))
    if isinstance(fast, str):
        assert isinstance(slow, str)
        assert fast == slow or f"mixture: {slow} is exhausted" in fast
        return
    assert taken_of(fast) == slow
    # what the mixture counts by, without a look at the documents: they come again when all have come
    for number, corpus in enumerate(corpora):
        distinct = len(np.unique(fast.document[fast.source == number]))
        assert distinct == min(fast.documents[number], len(corpus.lengths))


def outcome_of(act: Callable[[], T]) -> T | str:
    """What it gives, or what its error says."""
    try:
        return act()
    except InputError as error:
        return str(error)


class Endless:
    """A source of so many documents that nobody could hold them;
    how far it was read ahead of what was taken."""

    def __init__(self, name: str, batch: int) -> None:
        self.holding = Holding(name, name, 10**15)
        self.offered = self.passed = self.most_held = 0
        self._batch = batch

    def read_epoch(self, epoch):
        while True:
            self.offered += self._batch
            self.most_held = max(self.most_held, self.offered - self.passed)
            yield Offered(np.full(self._batch, 7, np.int64))


def test_a_schedule_reads_no_further_ahead_than_its_windows(monkeypatch):
    monkeypatch.setattr(turning, "_WINDOW_DOCUMENTS", 3000)
    monkeypatch.setattr(turning, "_BATCH_TURNS", 500)
    sources = [Endless(name, 100) for name in "abc"]
    mixture = Mixture({"a": Fraction(6, 10), "b": Fraction(3, 10), "c": Fraction(1, 10)})
    turns = 0
    for found in Scheduling(sources, mixture, Target("tokens", 7 * 200_000)):
        turns += len(found.source)
        assert len(found.source) <= 500
        for number, source in enumerate(sources):
            mine = found.position[found.source == number]
            if len(mine):
                assert mine.tolist() == list(range(source.passed, source.passed + len(mine)))
                source.passed = int(mine[-1]) + 1
    assert turns == 200_000
    assert max(source.most_held for source in sources) <= 1000 + turning.PATIENCE + 100 + 500


@given(
    seed=st.integers(0, 10**6),
    weights=st.lists(st.integers(1, 99), min_size=2, max_size=6),
    order=st.sampled_from(["shuffle", "corpus"]),
)
@settings(deadline=None, max_examples=40)
def test_built_shares_are_within_a_tenth_of_a_point_and_so_is_every_long_stretch(seed, weights, order):
    corpora = corpora_of(*(drawn(seed + n, 6000, 4 + n % 3) for n in range(len(weights))))
    mixture = mixture_of(*(Fraction(weight, sum(weights)) for weight in weights))
    found = schedule(corpora, mixture, None, order=order, seed=seed)
    longest = max(int(corpus.lengths.max()) for corpus in corpora)
    budget = found.reached + found.left_over
    assert found.max_error <= 0.001
    assert 0 <= found.left_over <= len(weights) * longest
    assert found.total_tokens == found.reached <= budget
    # each source gives each document at most once
    assert len(set(taken_of(found))) == len(found.source)
    # every prefix is as near to the weights as whole documents allow
    sizes = np.array([corpora[s].lengths[d] for s, d in taken_of(found)])
    so_far = np.cumsum(sizes)
    for source, wanted in enumerate(found.wanted):
        own = np.cumsum(np.where(found.source == source, sizes, 0))
        body = so_far < 0.9 * budget
        assert np.abs(own - float(wanted) * so_far)[body].max(initial=0) <= 2 * longest


@pytest.mark.skipif(not RANKS.exists(), reason="needs ../shared")
def test_real_documents_are_mixed_within_a_hundredth_of_a_point():
    lengths = real_lengths()
    corpora = corpora_of(*np.array_split(lengths, 5))
    found = schedule(corpora, mixture_of("0.4", "0.3", "0.15", "0.1", "0.05"), Target("tokens", 3_000_000))
    assert found.max_error <= 0.0001
    assert found.left_over < 200


def test_a_token_budget_is_never_exceeded_and_the_rest_is_recorded():
    found = mix([[10] * 9, [7] * 9], ["0.5", "0.5"], tokens=100, order="corpus")
    assert found.tokens == [50, 49]
    assert (found.facts["reached"], found.facts["left_over"]) == (99, 1)
    assert found.documents == [5, 7]
    assert found.turns[:6] == [(0, 0), (1, 0), (1, 1), (0, 1), (1, 2), (0, 2)]


def test_a_document_that_exceeds_the_part_of_its_source_is_passed_over():
    found = mix([[12, 100, 8, 6]], ["1"], tokens=20, order="corpus")
    assert found.turns == [(0, 0), (0, 2)]
    assert found.facts["sources"]["s0"]["passed_over"] == 1
    assert found.facts["left_over"] == 0


def test_weight_zero_takes_nothing():
    assert mix([[5] * 9, [5] * 9], ["1", "0"], tokens=20).documents == [4, 0]


def test_a_shuffle_depends_on_seed_epoch_and_identity_alone():
    lengths = drawn(3, 500).clip(5).tolist()

    def order_of(ids: list[int], seed: int) -> list[int]:
        own = [lengths[number] for number in ids]
        return [document for _, document in mix([own], ["1"], ids=[ids], seed=seed, tokens=sum(own)).turns]

    whole = order_of([*range(500)], 5)
    assert sorted(whole) == list(range(500))
    assert whole != order_of([*range(500)], 6)
    assert whole != list(range(500))
    # in another order, and without half of the documents: the others stay in the same order
    assert order_of([*reversed(range(500))], 5) == whole
    assert order_of([*range(0, 500, 2)], 5) == [row for row in whole if row % 2 == 0]


def test_a_source_repeats_in_another_order_each_time():
    found = mix([[8] * 25, [8] * 500], ["0.5", "0.5"], tokens=800, exhausted="repeat")
    own = [document for source, document in found.turns if source == 0]
    assert [found.facts["sources"][name]["epochs"] for name in ("s0", "s1")] == [2.0, 0.1]
    assert sorted(own[:25]) == sorted(own[25:]) == list(range(25))
    assert own[:25] != own[25:]


@pytest.mark.parametrize(
    ("asked", "weights", "ran_out"),
    [
        ({"tokens": 900}, ["0.25", "0.75"], []),  # 3.3 of 4 passes, a hair under its share
        ({"blocks": 8, "pack_length": 100}, ["0.25", "0.75"], []),
        ({"documents": 33}, ["0.4", "0.6"], []),
        ({"blocks": 10, "pack_length": 100}, ["0.2", "0.8"], ["s1"]),  # all of its passes
    ],
)
def test_a_source_that_repeats_has_run_out_when_it_gave_all_of_its_passes(asked, weights, ran_out):
    """Passes are counted in the tokens that were built."""
    lengths, passes = [[61, 7, 90, 33] * 9, [17, 19, 23, 29, 31, 37, 44]], 4
    found = mix(lengths, weights, exhausted="repeat", max_epochs=passes, **asked)
    turns = Counter(found.turns)
    shares = [tokens / sum(found.tokens) for tokens in found.tokens]
    assert shares[1] < float(weights[1]), "a hair under its share, or this proves nothing"
    assert sum(turns[1, document] for document in range(7)) > 7
    spent = all(turns[1, document] == passes for document in range(7))
    assert (["s1"] if spent else []) == ran_out
    assert found.facts["exhausted"] == ran_out


def test_renormalizing_takes_all_of_a_small_source_and_spreads_it_over_the_whole():
    lengths, weights = [[8] * 25, [8] * 500, [8] * 500], ["0.5", "0.25", "0.25"]
    found = mix(lengths, weights, tokens=2000, exhausted="renormalize")
    assert found.tokens == [200, 896, 896]
    assert max(turn for turn, (source, _) in enumerate(found.turns) if source == 0) > 200
    assert found.facts["exhausted"] == ["s0"]
    whole = mix(lengths, weights, tokens=10**6, exhausted="renormalize")
    assert whole.documents == [25, 500, 500]
    assert whole.facts["left_over"] == 10**6 - 8 * 1025


@pytest.mark.parametrize(("unit", "amount"), [("documents", 60), ("megabytes", 1)])
def test_a_target_in_documents_or_megabytes_is_met_to_the_document(unit, amount):
    corpora = [
        corpus._replace(text_bytes=10_000 * np.arange(1, 101))
        for corpus in corpora_of([10] * 100, [20] * 100)
    ]
    found = schedule(corpora, mixture_of("0.5", "0.5"), Target(unit, amount), order="corpus")
    if unit == "documents":
        assert (len(found.source), found.left_over) == (60, 0)
        assert found.documents == [40, 20]
    else:
        text_bytes = sum(int(corpora[s].text_bytes[d]) for s, d in taken_of(found))
        assert 900_000 < text_bytes <= 1_000_000


def test_blocks_are_rows_of_tokens():
    found = mix([[8] * 100], ["1"], blocks=5, pack_length=16)
    assert (sum(found.tokens), found.facts["reached"], found.facts["left_over"]) == (80, 5, 0)


@given(
    sources=st.lists(
        st.tuples(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 50)),
        min_size=1,
        max_size=5,
    ),
    length=st.integers(2, 40),
    share=st.integers(1, 100),
    exhausted=st.sampled_from(["stop", "renormalize", "repeat"]),
)
@settings(deadline=None, max_examples=400)
def test_blocks_are_full_whenever_the_tokens_are_there(sources, length, share, exhausted):
    """For any documents: a part of a source may be smaller than each of them,
    and may end in the middle of one."""
    tokens, weights = [sum(lengths) for lengths, _ in sources], [weight for _, weight in sources]
    total = sum(weights)
    there = min(count * total // weight for count, weight in zip(tokens, weights, strict=True))
    there = {"stop": there, "renormalize": sum(tokens), "repeat": 3 * there}[exhausted]
    rows = there // length * share // 100
    assume(rows)
    found = schedule(
        corpora_of(*(lengths for lengths, _ in sources)),
        Mixture({f"d{n}": Fraction(weight, total) for n, weight in enumerate(weights)}),
        Target("blocks", rows),
        exhausted=exhausted,
        max_epochs=3,
        seq_len=length,
    )
    assert sum(sources[s][0][d] for s, d in taken_of(found)) >= rows * length
    assert (found.reached, found.left_over) == (rows, 0)


def test_a_count_of_documents_repeats_or_stops_where_a_source_ends():
    lengths, weights = [[10] * 5, [10] * 100], ["0.5", "0.5"]
    with pytest.raises(
        InputError,
        match=(
            r"mixture: s0 is exhausted: it has 50 tokens, and its weight asks for 200; the mixture reaches 1"
        ),
    ):
        mix(lengths, weights, documents=40)
    assert mix(lengths, weights, documents=40, exhausted="repeat").documents == [20, 20]
    assert mix(lengths, weights, documents=40, exhausted="renormalize").documents == [5, 35]
    with pytest.raises(InputError, match=r"it has 150 tokens in 3 epochs(.|\n)*raise `max_epochs`"):
        mix(lengths, weights, documents=40, exhausted="repeat", max_epochs=3)


def test_without_a_target_the_mixture_is_as_large_as_the_weights_allow():
    assert mix([[5] * 10, [5] * 100], ["0.5", "0.5"]).tokens == [50, 50]
    with pytest.raises(RecipeError, match=r"mixture\.exhausted: has no end without a target"):
        mix([[5]], ["1"], exhausted="repeat")


def test_a_domain_without_documents_is_exhausted_whatever_is_counted():
    for unit, amount in (("tokens", 20), ("documents", 4)):
        with pytest.raises(InputError, match="domain d1 is exhausted: it has 0 tokens"):
            mix([[5] * 9, []], ["0.5", "0.5"], **{unit: amount})
        found = mix([[5] * 9, []], ["0.5", "0.5"], exhausted="renormalize", **{unit: amount})
        assert found.documents == [4, 0]


@given(seed=st.integers(0, 999), layout=st.sampled_from(["concat", "document", "best_fit", "pad"]))
@settings(deadline=None, max_examples=30)
def test_every_token_of_a_mixed_and_packed_build_maps_back(seed, layout):
    """An id says (source, document, position): read from the rows,
    and found again through plan and schedule."""
    corpora = corpora_of(drawn(seed, 60, 2), drawn(seed + 1, 40, 2), drawn(seed + 2, 9, 2))
    found = schedule(
        corpora,
        mixture_of("0.5", "0.3", "0.2"),
        Target("tokens", 900),
        exhausted="repeat",
        max_epochs=99,
        seed=seed,
    )
    ids = [
        np.array(
            [n * 10**6 + d * 10**3 + p for d, length in enumerate(c.lengths) for p in range(length)], np.int32
        )
        for n, c in enumerate(corpora)
    ]
    lengths = in_order(found, [corpus.lengths for corpus in corpora])
    begins = in_order(found, [np.cumsum(corpus.lengths) - corpus.lengths for corpus in corpora])
    groups = found.source if layout in ("document", "best_fit") else None
    plan = plan_layout(layout, lengths, 16, groups, "pad")
    rows = gather_rows(plan, Store(ids, begins, found.source), 0, plan.n_rows, pad_id=-1)
    covered = np.zeros_like(rows, np.bool_)
    for row, document, start, end, offset in zip(*plan.spans(), strict=True):
        origin = found.source[document] * 10**6 + found.document[document] * 10**3 + offset
        assert rows[row, start:end].tolist() == list(range(origin, origin + end - start))
        covered[row, start:end] = True
    assert (rows[~covered] == -1).all()
    assert covered.sum() == plan.tokens_kept


def test_bad_requests_are_errors():
    with pytest.raises(RecipeError, match=r"mixture.max_epochs: 0 epochs"):
        schedule(corpora_of([5]), mixture_of("1"), None, max_epochs=0)
    with pytest.raises(InputError, match=r"s0: a document has more than 2,147,483,647 tokens"):
        schedule(corpora_of([1 << 31]), mixture_of("1"), None)


@given(
    rows=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    cut=st.integers(1, 30),
    bits=st.sampled_from([1, 4, 16]),
)
@settings(deadline=None, max_examples=60)
def test_balance_in_blocks_keeps_the_rows_with_the_smallest_hashes(rows, seed, cut, bits):
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(rows)), rows))
    fewest = min((count for count in rows if count), default=0)
    expected = []
    for group in np.unique(groups).tolist():
        mine = np.flatnonzero(groups == group)
        key = int.from_bytes(hashlib.sha256(f"tokmill.balance.1 {seed} {group}".encode()).digest()[:8], "big")
        width = max(len(mine) - 1, 0).bit_length()
        marks = [mixed_slowly(mixed_slowly(row) ^ key) >> width for row in range(len(mine))]
        ranked = sorted(range(len(mine)), key=lambda row, marks=marks: (marks[row], row))
        expected += mine[ranked[:fewest]].tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "_BATCH_ROWS", cut)
        patch.setattr(balance, "_LOOK_BITS", bits)
        even = balance.Balance(rows, seed)
        kept, before = [], np.zeros(len(rows), np.int64)
        for first in range(0, len(groups), cut):
            block = groups[first : first + cut]
            kept += (first + even.kept_rows(block, before)).tolist()
            before += np.bincount(block, minlength=len(rows))
    assert kept == sorted(expected)


def balanced(plan: Plan, groups: np.ndarray, seed: int) -> Plan:
    """A whole plan at once, as a build does it in blocks."""
    of_rows = row_groups(plan, groups)
    rows = np.bincount(of_rows)
    return take_rows(plan, Balance(rows.tolist(), seed).kept_rows(of_rows, np.zeros(len(rows), np.int64)))


def test_larger_domains_lose_rows_until_all_have_as_many_as_the_smallest():
    lengths, groups = np.full(60, 8), np.repeat([0, 1, 3], [30, 20, 10])
    plan = plan_layout("document", lengths, 8, groups)
    even = balanced(plan, groups, seed=1)
    assert np.bincount(row_groups(even, groups)).tolist() == [10, 10, 0, 10]
    assert (even.left_out, even.tokens_kept, even.tokens_in) == (240, 240, 480)
    kept = even.spans().document.tolist()
    assert kept == sorted(kept)
    assert kept[-10:] == list(range(50, 60))
    assert kept[:10] != list(range(10)), "not the first ten: chosen by hash"
    assert balanced(plan, groups, seed=2).spans().document.tolist() != kept
