"""Conversations: one text in which regions are marked, and its tokens with what is learned of them.

A mark is a Unicode noncharacter, which the standard keeps for use inside of a program (section 23.7): no text
that is interchanged has one, and a record that does never becomes a document. Every mark sets the state
anew, whatever stood before it:

    U+FDD0 TEMPLATE     control literals are control tokens      not learned
    U+FDD1 CONTENT      a literal is text, whatever it spells    not learned
    U+FDD2 ANSWER       a literal is text                        learned
    U+FDD3 ENDING       control literals are control tokens      learned up to the first of them, and with it
    U+FDD4 GENERATED    control literals are control tokens      learned

    <|im_start|>user\\n•hi <|im_end|>•<|im_end|>\\n<|im_start|>assistant\\n•Hello•<|im_end|>\\n
    TEMPLATE           CONTENT       TEMPLATE                             ANSWER ENDING
    parts    |<|im_start|>|user\\nhi <|im_end|>|<|im_end|>|\\n|<|im_start|>|assistant\\n|Hello|<|im_end|>|\\n|
    loss      0            0                   0           0  0            0            1     1           0

A text is cut at the control tokens of the template and where learning begins or ends, and nowhere else: each
part is encoded as text, control tokens aside. At inference a prompt is encoded by itself and the answer comes
after it, so the cut before an answer is the one that a model will meet. An ending without a control token is
learned only between two answers of one turn. A text without any mark is text, and learned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.kernels.patterns import Occurrences, find_literals, literal_table
from tokmill.schema import StringColumn, large_strings, one_piece, string_column
from tokmill.tokenizers.fast import replace_rows, starts
from tokmill.tokenizers.protocol import Boundaries, Encoded, Tokenizer, tile

TEMPLATE, CONTENT, ANSWER, ENDING, GENERATED = (chr(0xFDD0 + number) for number in range(5))
MARKS: Final = (TEMPLATE, CONTENT, ANSWER, ENDING, GENERATED)  # by their numbers
_TEMPLATE, _CONTENT, _ANSWER, _ENDING, _GENERATED = range(5)
_MARK_BYTES: Final = 3

# All of the block: a text that has any of them is nobody's.
RESERVED: Final = "".join(map(chr, range(0xFDD0, 0xFDF0)))
_WITHOUT: Final = dict.fromkeys(map(ord, MARKS))
_MARK: Final = re.compile(f"([{''.join(MARKS)}])")
_ANSWERS: Final = (ANSWER, GENERATED)

# As ChatML, Llama 3, DeepSeek and Gemma spell them. [INST] is text for some models and a token for others.
_LITERAL: Final = re.compile(r"<\|[^<>|\s]{1,60}\|>|<｜[^<>｜\s]{1,60}｜>|<(?:start|end)_of_turn>")
_COMMENT: Final = re.compile(r"{#.*?#}", re.DOTALL)

EncodeColumn = Callable[[Any], Encoded]


class Masked(NamedTuple):
    """Tokens of many conversations, and of each whether it is learned."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]
    loss: NDArray[np.uint8]
    end_loss: NDArray[np.uint8]  # of each conversation: is the end of the document learned?
    text_bytes: NDArray[np.int64]  # of each, marks aside


def without_marks(text: str) -> str:
    """As people are shown it."""
    return text.translate(_WITHOUT)


def has_marks(text: str) -> bool:
    return any(mark in text for mark in MARKS)


def answer_bytes(text: str) -> int:
    """What is learned of a text, without what ends an answer: the same for every tokenizer."""
    if not has_marks(text):
        return len(text.encode())
    _, *parts = _MARK.split(text)
    answers = (part for mark, part in zip(parts[::2], parts[1::2], strict=True) if mark in _ANSWERS)
    return sum(len(part.encode()) for part in answers)


def control_literals(template: str, *named: str) -> list[str]:
    """What a chat template writes and means as control tokens, by the look of it; `named`, where it names
    them: bos and eos."""
    written = _COMMENT.sub("", template)
    found = _LITERAL.findall(written)
    found += [token for token, name in zip(named, ("bos_token", "eos_token"), strict=False)
              if token and name in written]  # fmt: skip
    return list(dict.fromkeys(found))


def strip_marks(texts: Any) -> Any:
    """The same of a column; texts without marks are not copied."""
    column = string_column(texts)
    marks = find_literals(column.data, column.offsets, literal_table(MARKS))
    return texts if not len(marks.rows) else large_strings(*_stripped(column, marks))


_BY_TEMPLATE: Final = f"(?:[{TEMPLATE}{ENDING}{GENERATED}][^{''.join(MARKS)}]*)+"


def own_texts(texts: Any) -> Any:
    """Return what the documents of a column say themselves: of conversations the messages, a line feed
    between two of them, without what their template wrote around them."""
    column = string_column(texts)
    if not len(find_literals(column.data, column.offsets, literal_table(MARKS)).rows):
        return texts
    inner = pc.replace_substring_regex(texts, rf"\A{_BY_TEMPLATE}|{_BY_TEMPLATE}\z", "")
    return pc.replace_substring_regex(
        pc.replace_substring_regex(inner, _BY_TEMPLATE, "\n"), f"[{CONTENT}{ANSWER}]", ""
    )


class TextParts(NamedTuple):
    texts: Any
    per_row: NDArray[np.int64]


def text_parts(texts: Any, controls: Sequence[str]) -> TextParts:
    """What of many conversations is encoded as text, part by part: neither marks nor control tokens."""
    parts = _cut(string_column(texts), {literal: number for number, literal in enumerate(controls)})
    is_text = parts.control < 0
    of_row = np.repeat(np.arange(len(parts.per_row)), parts.per_row)
    column = large_strings(parts.data, parts.offsets).filter(pa.array(is_text))
    return TextParts(column, np.bincount(of_row[is_text], minlength=len(parts.per_row)))


def encode_marked(texts: Any, encode: EncodeColumn, controls: Mapping[str, int]) -> Masked:
    """One sequence per text; `controls` are all control tokens of the tokenizer."""
    parts = _cut(string_column(texts), controls)
    encoded = _encode_parts(parts, encode)
    lengths = np.where(parts.control >= 0, 1, encoded.lengths)
    is_text = np.repeat(parts.control < 0, lengths)
    ids = np.empty(int(lengths.sum()), np.int32)
    ids[is_text] = encoded.ids[np.repeat(parts.control < 0, encoded.lengths)]
    ids[~is_text] = parts.control[parts.control >= 0]
    ends = starts(lengths)[starts(parts.per_row)]
    loss = np.repeat(parts.loss, lengths)
    return Masked(ids, np.diff(ends), loss, parts.end_loss, np.diff(parts.row_offsets))


def marked_boundaries(tokenizer: Tokenizer, text: str, controls: Mapping[str, int]) -> Boundaries:
    """Of one conversation: the ids, and the bytes of the text without its marks that each was read from."""
    parts = _cut(string_column(pa.array([text], pa.large_string())), controls)
    ids, begins = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for number, begin in enumerate(parts.offsets[:-1].tolist()):
        if parts.control[number] >= 0:
            ids.append(parts.control[number : number + 1].astype(np.int32))
            begins.append(np.array([begin], np.int64))
            continue
        spelled = parts.data[begin : parts.offsets[number + 1]].tobytes().decode()
        part = tokenizer.boundaries(spelled)
        ids.append(part.ids)
        begins.append(part.bounds[: len(part.ids)] + begin)
    return Boundaries(np.concatenate(ids), tile(np.concatenate(begins), int(parts.row_offsets[-1])))


# --- where a text is cut ---


class _Parts(NamedTuple):
    """Parts of all texts, one after the other in `data`; none is empty."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    control: NDArray[np.int64]  # the id of a control token; -1: text
    loss: NDArray[np.uint8]
    is_joined: NDArray[np.bool_]  # text that goes on from the part before it
    row_offsets: NDArray[np.int64]
    per_row: NDArray[np.int64]
    end_loss: NDArray[np.uint8]


class _Regions(NamedTuple):
    """Of all texts, in order; places are those of the column."""

    row: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    state: NDArray[np.int64]


def _cut(column: StringColumn, controls: Mapping[str, int]) -> _Parts:
    marks = find_literals(column.data, column.offsets, literal_table(MARKS))
    regions = _regions(column, marks)
    found, of_region = _controls(column, marks, regions, controls)
    data, row_offsets = _stripped(column, marks)

    def place(at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the column -> of the data without marks."""
        moved: NDArray[np.int64] = at - column.offsets[0]
        return moved - _MARK_BYTES * np.searchsorted(marks.begins, at, "left")

    loss_begin, loss_end = _learned(regions, found, of_region)
    loss_begin, loss_end = place(loss_begin), place(loss_end)
    is_some = loss_end > loss_begin
    loss_begin, loss_end = loss_begin[is_some], loss_end[is_some]
    # where learning goes on, nothing is cut
    is_inner = np.isin(loss_begin, loss_end) & ~np.isin(loss_begin, row_offsets)
    is_inner_end = np.isin(loss_end, loss_begin) & ~np.isin(loss_end, row_offsets)
    begins, ends = place(found.begins), place(found.ends)
    cuts = (row_offsets, begins, ends, loss_begin[~is_inner], loss_end[~is_inner_end])
    offsets = np.unique(np.concatenate(cuts))
    control = np.full(len(offsets) - 1, -1, np.int64)
    numbers = np.array(list(controls.values()), np.int64)
    control[np.searchsorted(offsets, begins)] = numbers[found.literals] if len(begins) else -1
    within = np.searchsorted(loss_begin, offsets[:-1], "right") - 1
    loss = np.zeros(len(control), np.uint8)
    if len(loss_begin):
        loss[:] = (within >= 0) & (offsets[:-1] < loss_end[np.maximum(within, 0)])
    first = np.searchsorted(offsets, row_offsets)  # of each row; an empty one has no part
    is_joined = np.zeros(len(control), np.bool_)
    is_joined[1:] = (control[1:] < 0) & (control[:-1] < 0)
    is_joined[first[first < len(control)]] = False
    return _Parts(data, offsets, control, loss, is_joined, row_offsets, np.diff(first), _end_loss(regions))


def _regions(column: StringColumn, marks: Occurrences) -> _Regions:
    """The first of a text begins with it, every other with its mark. Without any mark all is an answer."""
    rows = len(column.offsets) - 1
    per_row = np.bincount(marks.rows, minlength=rows)
    row = np.repeat(np.arange(rows), per_row + 1)
    first = starts(per_row + 1)[:-1]
    of_mark = marks.rows + 1 + np.arange(len(marks.rows))
    state, begin, end = (np.zeros(len(row), np.int64) for _ in range(3))
    state[first[per_row == 0]] = _ANSWER
    state[of_mark] = marks.literals
    begin[first], begin[of_mark] = column.offsets[:-1], marks.ends
    end[first + per_row] = column.offsets[1:]
    end[of_mark - 1] = marks.begins
    return _Regions(row, begin, end, state)


def _controls(
    column: StringColumn, marks: Occurrences, regions: _Regions, controls: Mapping[str, int]
) -> tuple[Occurrences, NDArray[np.int64]]:
    """Control literals that stand within one region of the template, and the number of that region."""
    cuts = np.stack([marks.begins, marks.ends], axis=1).ravel()
    pieces = np.insert(column.offsets, np.repeat(marks.rows + 1, 2), cuts)
    found = find_literals(column.data, pieces, literal_table(list(controls)))
    of_piece = np.full(len(pieces) - 1, -1, np.int64)
    of_piece[2 * np.arange(len(regions.row)) - regions.row] = np.arange(len(regions.row))
    region = of_piece[found.rows]
    is_template = np.isin(regions.state[region], (_TEMPLATE, _ENDING, _GENERATED))
    return Occurrences(*(part[is_template] for part in found)), region[is_template]


def _learned(
    regions: _Regions, found: Occurrences, of_region: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each region, from where to where it is learned."""
    is_whole = np.isin(regions.state, (_ANSWER, _GENERATED))
    end = np.where(is_whole, regions.end, regions.begin)
    is_ending = regions.state == _ENDING
    goes_on = np.zeros(len(end), np.bool_)
    goes_on[:-1] = (regions.state[1:] == _ANSWER) & (regions.row[1:] == regions.row[:-1])
    end = np.where(is_ending & goes_on, regions.end, end)
    with_control, first = np.unique(of_region, return_index=True)
    mine = is_ending[with_control]
    end[with_control[mine]] = found.ends[first[mine]]
    return regions.begin, end


def _end_loss(regions: _Regions) -> NDArray[np.uint8]:
    """Is what a conversation says last an answer? Then so is its end."""
    learned = np.ones(int(regions.row[-1]) + 1 if len(regions.row) else 0, np.uint8)
    says = np.isin(regions.state, (_CONTENT, _ANSWER, _GENERATED))
    learned[regions.row] = np.isin(regions.state, (_ANSWER, _GENERATED))  # where nothing is said
    rows, states = regions.row[says], regions.state[says]
    is_last = np.ones(len(rows), np.bool_)
    is_last[:-1] = rows[1:] != rows[:-1]
    learned[rows[is_last]] = states[is_last] != _CONTENT
    return learned


def _stripped(column: StringColumn, marks: Occurrences) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The texts without their marks: bytes, and offsets from 0 on."""
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    stays = np.ones(last - first, np.bool_)
    stays[(marks.begins[:, None] - first + np.arange(_MARK_BYTES)).ravel()] = False
    before = np.searchsorted(marks.begins, column.offsets, "left")
    return column.data[first:last][stays], column.offsets - first - _MARK_BYTES * before


# --- parts to ids ---


def _encode_parts(parts: _Parts, encode: EncodeColumn) -> Encoded:
    column = large_strings(parts.data, parts.offsets)
    rows = np.flatnonzero(parts.is_joined)
    newline = _newline_before(encode) if len(rows) else None
    encoded = encode(column)
    if newline is None:
        return encoded
    # A model that puts a blank before every text must not put one where a text goes on: such a part is
    # encoded after a newline, whose ids are taken off again, as transformers does.
    texts = one_piece(column.take(pa.array(rows))).to_pylist()
    again = encode(pa.array([f"\n{text}" for text in texts], pa.large_string()))
    begins = starts(again.lengths)
    is_after = np.array(
        [np.array_equal(again.ids[at : at + len(newline)], newline) for at in begins[:-1].tolist()], np.bool_
    )
    kept = np.ones(len(again.ids), np.bool_)
    for at in begins[:-1][is_after].tolist():
        kept[at : at + len(newline)] = False
    of_text = np.repeat(is_after, again.lengths)
    others = Encoded(again.ids[kept & of_text], again.lengths[is_after] - len(newline))
    return replace_rows(encoded, rows[is_after], others)


def _newline_before(encode: EncodeColumn) -> NDArray[np.int32] | None:
    """The ids of a newline, where a text by itself has other ids than after one; None: it has the same."""
    probe = encode(pa.array(["\n", "x", "\nx"], pa.large_string()))
    newline, alone, after = np.split(probe.ids, np.cumsum(probe.lengths)[:-1])
    return None if np.array_equal(after, np.concatenate([newline, alone])) else newline
