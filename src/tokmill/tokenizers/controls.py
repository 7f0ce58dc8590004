"""Literals that a recipe wants read as control tokens, and nothing else in the text.

    "hi <|im_start|>user"   ─ cut ─>  |hi |<|im_start|>|user|   ─ encode part by part ─>  hi_  100264  user

Leftmost, then longest. Each part is encoded as a text of its own: a SentencePiece model with a dummy prefix puts it
before every part, so the text after a control begins with "▁" as a document does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tokmill.kernels.literals import find_literals, literal_table
from tokmill.schema import large_strings, one_piece, string_column
from tokmill.tokenizers.fast import starts
from tokmill.tokenizers.protocol import Encoded

EncodeColumn = Callable[[Any], Encoded]


def encode_with_controls(texts: Any, encode: EncodeColumn, controls: Mapping[str, int]) -> Encoded:
    """One sequence per text. Without controls, or where none occurs, this is `encode`."""
    if not controls:
        return encode(texts)
    column = string_column(texts)
    found = find_literals(column.data, column.offsets, literal_table(list(controls)))
    if not len(found.rows):
        return encode(texts)
    # every occurrence becomes a row of its own, between the rows of the text before and after it
    cuts = np.stack([found.begins, found.ends], axis=1).ravel()
    offsets = np.insert(column.offsets, np.repeat(found.rows + 1, 2), cuts)
    parts = encode(large_strings(column.data, offsets))
    numbers = np.array(list(controls.values()), np.int32)[found.literals]
    places = found.rows + 1 + 2 * np.arange(len(found.rows))  # of the occurrences among the parts
    is_control = np.zeros(len(offsets) - 1, np.bool_)
    is_control[places] = True
    lengths = np.where(is_control, 1, parts.lengths)
    ids = np.empty(int(lengths.sum()), np.int32)
    is_id_of_text = np.repeat(~is_control, lengths)
    ids[is_id_of_text] = parts.ids[np.repeat(~is_control, parts.lengths)]
    ids[~is_id_of_text] = numbers
    parts_per_row = np.bincount(found.rows, minlength=len(one_piece(texts))) * 2 + 1
    ends = starts(lengths)[starts(parts_per_row)]
    return Encoded(ids, np.diff(ends))
