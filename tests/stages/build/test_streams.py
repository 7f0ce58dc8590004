"""Streams in blocks: the rows of one plan of all documents, for any cut into chunks and blocks."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.formats.index import RowSpans
from tokmill.packing.plan import Store, Tail, gather_rows, plan_layout
from tokmill.stages.build import blocks
from tokmill.stages.build.blocks import Block, Blocks, read_meetings
from tokmill.stages.build.documents import Documents
from tokmill.stages.build.options import PackOptions, SplitBuildOptions


class HeldChunks:
    """Documents in memory, cut anywhere; ids tell the document and the position."""

    def __init__(self, lengths: list[int], domains: list[int], cuts: list[int]) -> None:
        self._bounds = [0, *sorted(min(cut, len(lengths)) for cut in cuts), len(lengths)]
        self.rows = [stop - first for first, stop in itertools.pairwise(self._bounds)]
        self.domain_names = ["a", "b", "c"]
        self._lengths, self._domains = np.array(lengths, np.int64), np.array(domains, np.int32)
        self.ids = np.array(
            [1000 * number + at for number, length in enumerate(lengths) for at in range(length)], np.int32
        )
        self.loads, self.loss = 0, None

    def load(self, chunk: int) -> Documents:
        self.loads += 1
        rows = np.arange(self._bounds[chunk], self._bounds[chunk + 1])
        ends = np.cumsum(self._lengths)
        names = pa.array([f"d{row}" for row in rows], pa.string())
        store = Store([self.ids], (ends - self._lengths)[rows], np.zeros(len(rows), np.int32))
        return Documents(rows, self._lengths[rows], store, self._domains[rows], names, names)

    def may_hold(self, chunk: int, domain: int) -> bool:
        return domain in self._domains[self._bounds[chunk] : self._bounds[chunk + 1]]


def blocks_of(chunks: HeldChunks, block: int, seq_len: int, tail: Tail, is_apart: bool) -> list[Block]:
    options = SplitBuildOptions(
        name="rows",
        format="memmap",
        dtype="int32",
        sources=(),
        pack=PackOptions(layout="concat", length=seq_len, tail=tail, mix_domains=not is_apart),
        balance="none",
        seed=0,
        split="train",
        tokenizer={},
        experiment_id="",
        shards=(),
        rows=None,
    )
    made = Blocks(options, chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK_DOCUMENTS", block)
        return list(made)


def listed(spans: RowSpans) -> list[tuple[int, ...]]:
    return [tuple(int(value) for value in span) for span in zip(*spans, strict=True)]


documents = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 2)), max_size=40)


@given(
    documents=documents,
    cuts=st.lists(st.integers(0, 40), max_size=8),
    block=st.integers(1, 20),
    seq_len=st.integers(2, 40),
    tail=st.sampled_from(["drop", "pad"]),
    is_apart=st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_blocks_have_the_rows_of_one_plan(documents, cuts, block, seq_len, tail, is_apart):
    lengths, domains = [length for length, _ in documents], [domain for _, domain in documents]
    groups = np.array(domains, np.int32) if is_apart else None
    whole = plan_layout("concat", np.array(lengths, np.int64), seq_len, groups, tail)
    chunks = HeldChunks(lengths, domains, cuts)
    found = blocks_of(chunks, block, seq_len, tail, is_apart)
    spans, rows = [], []
    for one in found:
        own = one.spans(0, one.plan.n_rows)
        spans += listed(own._replace(document=one.documents.number[own.document]))
        rows += gather_rows(one.plan, one.documents.store, 0, one.plan.n_rows, pad_id=-1).tolist()
    assert spans == listed(whole.spans())
    for name in ("tokens_in", "tokens_kept", "padding", "tail_dropped"):
        assert sum(getattr(one.plan, name) for one in found) == getattr(whole, name)
    for row, document, start, end, offset in spans:
        begin = 1000 * document + offset
        assert rows[row][start:end] == list(range(begin, begin + end - start))
    # the same meetings by document
    met = [span for piece in read_meetings(found) for span in sorted(listed(piece), key=by_document)]
    assert met == sorted(listed(whole.spans()), key=by_document)


def by_document(span: tuple[int, ...]) -> tuple[int, int]:
    return span[1], span[4]


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_block_holds_its_own_documents_and_a_row_of_each_stream(is_apart: bool) -> None:
    """A domain with a document at each end, too: its row waits for the last, and nothing else does."""
    count = 4000
    lengths = [10] * count
    domains = [number % 2 for number in range(count)]
    domains[0] = domains[-1] = 2
    chunks = HeldChunks(lengths, domains, list(range(0, count, 50)))
    found = blocks_of(chunks, 200, 64, "pad", is_apart)
    assert len(found) == count // 200
    assert max(len(one.documents) for one in found) <= 200 + 3 * 7
    # each chunk for its block and for each stream that looks into it, not for every block
    assert chunks.loads <= 5 * count // 50
