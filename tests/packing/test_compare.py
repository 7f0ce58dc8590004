"""What strategies cost, counted token by token, and on real documents."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from mill import SHARED
from packing.drawn_lengths import documents_and_row_length
from tokmill.packing.costs import compare_strategies, cost_of
from tokmill.packing.plan import plan_layout
from tokmill.tokenizers.load import load_tokenizer
from written import ZstdFile

RANKS = SHARED / "data/tokenizers/tiktoken/r50k_base.tiktoken"


def test_a_small_corpus_costs_exactly_this():
    #  concat    0000 0111 1112 22|22      document, best_fit   0000 0... 1111 11.. 2222 (rests share rows)
    costs = {cost.layout: cost for cost in compare_strategies(np.array([5, 6, 4]), 4)}
    assert list(costs) == ["concat", "document", "best_fit", "pad", "indexed"]
    concat = costs["concat"]
    assert (concat.rows, concat.padding, concat.tail_dropped, concat.fragmented, concat.fragmented_short) == (
        3,
        0,
        3,
        2,
        0,
    )
    assert concat.cross_document == 3 + 1
    best_fit = costs["best_fit"]
    assert (best_fit.rows, best_fit.padding, best_fit.fragmented, best_fit.cross_document) == (4, 1, 2, 2)
    pad = costs["pad"]
    assert (pad.rows, pad.padding, pad.truncated) == (3, 0, 3)
    assert costs["indexed"].tokens_kept == 15
    assert best_fit.padding_share == 1 / 16
    assert pad.truncated_share == 3 / 15
    assert best_fit.fragmented_share == 2 / 3
    assert best_fit.cross_document_share == 2 / 15


@given(case=documents_and_row_length())
@settings(deadline=None, max_examples=50)
def test_costs_are_what_a_count_over_the_rows_gives(case):
    lengths, seq_len = case
    for cost in compare_strategies(np.array(lengths, np.int64), seq_len, tail="pad"):
        assert cost.tokens_in == cost.tokens_kept + cost.truncated
        if cost.layout in ("document", "best_fit"):
            assert cost.fragmented == sum(length > seq_len for length in lengths)
            assert cost.fragmented_short == 0
        if cost.layout in ("pad", "indexed"):
            assert cost.fragmented == cost.cross_document == 0


def real_lengths() -> np.ndarray:
    """Every fourth document of each file, with its end; encoded once per machine."""
    paths = sorted((SHARED / "bench").glob("*.jsonl.zst"))
    facts = "\n".join(f"{path.name} {path.stat().st_size}" for path in paths)
    kept = (
        Path(tempfile.gettempdir()) / f"tokmill-lengths-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.npy"
    )
    if not kept.exists():
        tokenizer = load_tokenizer(RANKS)
        lengths = []
        for path in paths:
            with ZstdFile(path) as lines:
                texts = [
                    msgspec.json.decode(line)["text"] for number, line in enumerate(lines) if number % 4 == 0
                ]
            lengths.append(tokenizer.encode(texts).lengths + 1)
        np.save(kept, np.concatenate(lengths))
    return np.load(kept)


@pytest.mark.skipif(not RANKS.exists(), reason="needs ../shared")
def test_best_fit_leaves_at_most_two_percent_padding_on_real_documents_and_cuts_only_long_ones():
    lengths = real_lengths()
    cost = cost_of(plan_layout("best_fit", lengths, 2048), lengths)
    assert cost.padding_share <= 0.02
    assert cost.truncated == cost.fragmented_short == 0
    assert cost.fragmented == int((lengths > 2048).sum()) > 0
