"""Batches against the plainest of loops: padding, targets, masks, segments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.builds import EOS, documents, write_split
from tokmill.errors import EosMissing, InputError
from tokmill.formats.memmap import write_memmap
from tokmill.loader import IGNORE_INDEX, Batches, collate, open_dataset

PAD = 0

examples = st.lists(st.lists(st.sampled_from([EOS, 5, 6, 7]), max_size=9), max_size=5)
lengths = st.one_of(st.none(), st.integers(1, 12))


def slow_documents(ids: list[int], starts: list[int] | None = None) -> list[int]:
    """The number of the document of each token."""
    number, found = 0, []
    for place, _ in enumerate(ids):
        if place and (ids[place - 1] == EOS if starts is None else place in starts):
            number += 1
        found.append(number)
    return found


def slow_batch(rows, width, mask, targets, starts=None):
    """Place by place."""
    tokens = [[row[c] if c < len(row) else PAD for c in range(width)] for row in rows]
    wanted, allowed = [], []
    for number, row in enumerate(rows):
        row = row[:width]
        documents_of = slow_documents(row, None if starts is None else starts[number])
        following = []
        for c in range(width):
            is_next = c + 1 < len(row)
            if is_next and targets == "documents" and documents_of[c] != documents_of[c + 1]:
                is_next = False
            following.append(row[c + 1] if is_next else IGNORE_INDEX)
        wanted.append(following)
        if mask == "tokens":
            allowed.append([c < len(row) for c in range(width)])
        elif mask == "keys":
            allowed.append([[c < len(row) for c in range(width)]])
        else:
            square = []
            for query in range(width):
                line = []
                for key in range(width):
                    if query >= len(row):
                        may = key == query
                    else:
                        may = key <= query
                        if mask == "documents":
                            may = may and documents_of[key] == documents_of[query]
                    line.append(may)
                square.append(line)
            allowed.append(square)
    return tokens, wanted, allowed


@given(
    rows=examples,
    length=lengths,
    mask=st.sampled_from(["tokens", "keys", "causal", "documents"]),
    targets=st.sampled_from(["stream", "documents"]),
    dtype=st.sampled_from([np.int32, np.int64]),
)
@settings(deadline=None, max_examples=300)
def test_batches_are_what_the_words_mean(rows, length, mask, targets, dtype):
    batch = collate(rows, PAD, length, mask=mask, targets=targets, eos_id=EOS, too_long="cut", dtype=dtype)
    width = max(map(len, rows), default=0) if length is None else length
    tokens, wanted, allowed = slow_batch(rows, width, mask, targets)
    assert batch["tokens"].tolist() == tokens
    assert batch["targets"].tolist() == wanted
    assert batch["attn_mask"].tolist() == allowed
    assert batch["lengths"].tolist() == [min(len(row), width) for row in rows]
    assert batch["tokens"].dtype == batch["targets"].dtype == dtype
    assert batch["attn_mask"].dtype == bool
    assert batch["tokens"].shape == (len(rows), width)
    shapes = {"tokens": (width,), "keys": (1, width)}
    assert batch["attn_mask"].shape == (len(rows), *shapes.get(mask, (width, width)))


@given(rows=examples, length=lengths)
@settings(deadline=None, max_examples=200)
def test_segments_cover_the_batch_and_positions_start_again_in_each(rows, length):
    batch = collate(rows, PAD, length, varlen=True, eos_id=EOS, too_long="cut")
    width = batch["tokens"].shape[1]
    bounds, positions = [], []
    for number, row in enumerate(rows):
        row = row[:width]
        segments = [*slow_documents(row), *["padding"] * (width - len(row))]
        for column in range(width):
            is_new = column == 0 or segments[column] != segments[column - 1]
            if is_new:
                bounds.append(number * width + column)
            positions.append(0 if is_new else positions[-1] + 1)
    assert batch["cu_seqlens"].tolist() == [*bounds, len(rows) * width]
    assert batch["cu_seqlens"].dtype == np.int32
    assert batch["position_ids"].reshape(-1).tolist() == positions
    sizes = np.diff(batch["cu_seqlens"])
    assert batch["max_seqlen"] == (sizes.max() if len(sizes) else 0)


@given(
    data=st.data(), rows=st.lists(st.lists(st.integers(5, 9), min_size=1, max_size=8), min_size=1, max_size=4)
)
@settings(deadline=None, max_examples=100)
def test_starts_that_are_given_are_used_instead_of_eos(data, rows):
    starts = [
        [0, *sorted(data.draw(st.sets(st.integers(1, len(row) - 1))) if len(row) > 1 else [])] for row in rows
    ]
    given_examples = [
        {"ids": np.array(row), "starts": np.array(one)} for row, one in zip(rows, starts, strict=True)
    ]
    batch = collate(given_examples, PAD, mask="documents", targets="documents")
    _, wanted, allowed = slow_batch(rows, max(map(len, rows)), "documents", "documents", starts)
    assert batch["targets"].tolist() == wanted
    assert batch["attn_mask"].tolist() == allowed


def test_no_query_has_nothing_to_attend_to():
    batch = collate([[], [5], [5, EOS, 6]], PAD, 4, mask="documents", eos_id=EOS)
    assert batch["attn_mask"].any(axis=-1).all()


def test_what_does_not_fit_is_refused_or_cut():
    with pytest.raises(
        InputError, match=r"an example has 3 ids, and the batch 2\n  next: .*too_long=\"cut\""
    ):
        collate([[5, 6, 7]], PAD, 2)
    assert collate([[5, 6, 7]], PAD, 2, too_long="cut")["tokens"].tolist() == [[5, 6]]


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"mask": "all"}, "mask"),
        ({"targets": "x"}, "targets"),
        ({"dtype": np.uint16}, "dtype"),
        ({"length": 0}, "length"),
    ],
)
def test_an_option_that_is_not_known_is_refused(options, where):
    with pytest.raises(InputError, match=f"^{where}: "):
        collate([[5]], PAD, **options)


def test_documents_need_something_that_ends_them():
    with pytest.raises(EosMissing, match="nothing says where documents end"):
        collate([[5]], PAD, mask="documents")


@pytest.mark.parametrize("format", ["memmap", "npy", "megatron"])
@pytest.mark.parametrize("boundaries", ["eos", "index"])
@pytest.mark.parametrize(
    "options", [{}, {"mask": "documents", "targets": "documents", "varlen": True}, {"length": 40}]
)
def test_rows_that_come_as_a_block_are_collated_like_examples(format, boundaries, options, tmp_path):
    write_split(tmp_path / "train", format, documents(60))
    if format == "megatron":
        boundaries = "eos"
    ds = open_dataset(tmp_path / "train", eos_id=EOS, boundaries=boundaries)
    batches = Batches(ds, 4, shuffle="none", pad_id=PAD, **options)
    for number, batch in enumerate(batches):
        rows = range(number * 4, min(number * 4 + 4, len(ds)))
        slow = collate([ds[row] for row in rows], PAD, eos_id=EOS, **options)
        assert batch.keys() == slow.keys()
        for name, value in slow.items():
            assert np.array_equal(batch[name], value), name
    assert number == len(batches) - 1


# A row is full, ends in padding, is nothing but padding, or has ids like padding in its middle.
padded_rows = st.lists(
    st.lists(st.sampled_from([EOS, PAD, 5, 6]), min_size=6, max_size=6), min_size=1, max_size=5
)


@given(
    rows=padded_rows,
    pad_id=st.sampled_from([PAD, EOS]),
    dtype=st.sampled_from(["uint16", "int32"]),
    length=st.sampled_from([None, 6]),
    world_size=st.integers(1, 3),
)
@settings(deadline=None, max_examples=150)
def test_rows_of_a_padded_layout_are_batched_place_by_place(
    rows, pad_id, dtype, length, world_size, tmp_path_factory
):
    """As best_fit, document and pad write them: what padding is follows from the end of a row alone."""
    directory = tmp_path_factory.mktemp("padded") / "train"
    meta = {"eos_id": EOS, "pad_id": pad_id, "vocab_size": 9, "split": "train", "tokenizer_sha256": "ab" * 32}
    write_memmap(directory, [np.array(rows)], seq_len=6, dtype=dtype, meta=meta)
    for rank in range(world_size):
        batches = Batches(
            open_dataset(directory),
            len(rows),
            shuffle="none",
            length=length,
            rank=rank,
            world_size=world_size,
        )
        (batch,) = batches
        mine = rows[len(rows) * rank // world_size : len(rows) * (rank + 1) // world_size]
        real = []
        for row in mine:
            end = 6
            while end and row[end - 1] == pad_id:
                end -= 1
            real.append(
                min(end + 1, 6) if pad_id == EOS else end
            )  # of the EOS at the end the first is the document's
        width = max(real, default=0) if length is None else length
        assert batch["lengths"].tolist() == real
        assert batch["tokens"].tolist() == [row[:width] for row in mine]
        assert batch["targets"].tolist() == [
            [row[c + 1] if c + 1 < n else IGNORE_INDEX for c in range(width)]
            for row, n in zip(mine, real, strict=True)
        ]
        assert batch["attn_mask"].tolist() == [[c < n for c in range(width)] for n in real]
        assert batch["tokens"].dtype == batch["targets"].dtype == np.int32
        assert batch["tokens"].flags.c_contiguous
