"""Lines of a document written into a buffer: blank lines, prefixes of quotes and list items, emphasis, code.

    containers   quote   item 2.             what each line of Markdown begins with; plain text has none
    line         > 2. The **bold
                 >    text** of it           continued: the marker becomes as many spaces
                 >                           a blank line keeps the quote

Nothing is written before text needs it: a blank line, a marker, a space or an opening `**` waits until a
character follows, so that what holds no text leaves no trace, and emphasis never begins or ends with a space.

The buffer may be too small. Then bytes are counted and not written, and the caller tries again with more.

Few steps, each called with one combination of types: numba takes half a second for every other one. Those
that every short text needs are a part of the place that calls them: an array is seven arguments of a call,
and `put` and `put_text` as calls took 70 of the 115 ns of a paragraph of one letter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlentities import NAME_CODES, Entities, entity_at
from tokmill.kernels.htmltree import MAX_DEPTH
from tokmill.kernels.jit import Bytes, Int, called_step, frozen, raw_step, store_word

step = called_step

U64 = np.uint64
# Containers that are deeper, or would make the prefix wider, give none: 500 nested quotes must not make each
# line 1,000 bytes.
MAX_CONTAINERS, MAX_PREFIX = 12, 32
MAX_INDENTED_LISTS = 8  # in plain text
# So many bytes of prefixes and indentation for each of the page, and so many for any; beyond that lines have
# none. Of empty lines in 12 quotes each made 24 bytes.
PREFIXES_PER_BYTE, PREFIXES = 2, 1 << 16
MAX_COLUMNS = 1000  # of a table in which cells span others, as in the HTML standard

# --- the state, as places of one array: numba passes no reference to a number ---
TO = 0  # bytes written, or that would have been
GAP = 1  # newlines before the next line, where it begins a block
BEGUN = 2  # the block has text
SPACE = 3  # waits: 1 a space, 2 a single one that does not break
BREAKS = 4  # newlines of <br> that wait
IS_MARKDOWN, HAS_LINKS = 5, 6
CONTAINERS = 7  # open ones
PREFIXED = 8  # of them those that the last line had
LOOSE, LOOSE_INDENT = 9, 10  # a marker that waits and belongs to no container
HEADING = 11  # its level
FLAT = 12  # open elements that are one line, whatever they hold: a row, a heading
RULE = 13  # a line between blocks waits
LISTS = 14  # open ones
ITEMS = 15  # of the innermost list so far
TERM_END = 16  # where the last <dt> or <dd> ended
MARKS = 17  # open inline elements that are marked, like `**`
OPEN_MARKS = 18  # of them those whose beginning is written
LAST_MARK, LAST_MARK_AT = 19, 20  # the kind that ended last, and where
CODE_AT = 21  # where the content of code begins
RUN, MAX_RUN = 22, 23  # of backticks in it
OPEN_KINDS = 24  # open elements of each of 8 kinds of mark
IN_PRE = 32  # 2: where spaces that do not break are the indentation
NEWLINES = 33  # of <pre> that wait
IS_SOFT = 34  # the last of them is the end of an element, and not of the text
SOLID = 35  # <pre> has more than white space
IS_FIRST = 36  # no character of it was read
FENCE_AT = 37
SAVED = 38  # what an empty <pre> leaves as it was: TO, GAP, PREFIXED, LOOSE, RULE
COLUMNS, HAS_SPANS = 43, 44  # of the table of data
ROWS = 45  # of it that are written
IN_ROW = 46
CELL, CELL_BEGUN = 47, 48  # its column; -1 before the first
CELLS = 49  # that are written
COLUMN = 50  # after the last cell of the row
PREFIX = 51  # bytes that containers give to a line

PREFIX_ROOM = 57  # bytes that are left for prefixes
PREFIX_WORDS = 52  # those bytes, where none of the containers is new; eight in each word
CONTAINER_KINDS = 64
CONTAINER_ENDS = CONTAINER_KINDS + MAX_CONTAINERS  # where the bytes of each end
QUOTE_ENDS = CONTAINER_ENDS + MAX_CONTAINERS  # and those of the last quote up to it
LIST_NUMBERS = QUOTE_ENDS + MAX_CONTAINERS  # the next item's of each open list
MARK_KINDS = LIST_NUMBERS + MAX_DEPTH + 2  # kind | place of its address << 8
SPANS = MARK_KINDS + MAX_DEPTH + 2  # rows that a cell above still covers, by column
STATES = SPANS + MAX_COLUMNS

NONE_WAITS = -9
BULLET, QUOTE_LINE, DEFINITION = -1, -2, -3  # kinds of containers; a number is that of a numbered item
BOLD, ITALIC, CODE, STRIKE, LINK, QUOTATION = 1, 2, 3, 4, 5, 6  # kinds of marks

_SPACES, BACKTICKS = U64(0x2020202020202020), U64(0x6060606060606060)

_PLAIN, _SPACE, _AMPERSAND, _C2, _MARK = 0, 1, 2, 3, 4
_CLASSES = 256  # where they begin in the tables


def _tables() -> NDArray[np.uint8]:
    kinds = np.full(256, _PLAIN, np.uint8)
    kinds[[ord(space) for space in " \n\t\r\f"]] = _SPACE
    kinds[ord("&")], kinds[0xC2] = _AMPERSAND, _C2
    kinds[[ord("|"), ord("`")]] = _MARK
    return np.concatenate([NAME_CODES, kinds])


_TABLES = frozen(_tables(), np.uint8)


class Writer(NamedTuple):
    state: NDArray[np.int64]
    out: Bytes


class Page(NamedTuple):
    data: Bytes
    keys: NDArray[np.uint64]  # of entities
    values: NDArray[np.uint64]
    controls: NDArray[np.int32]
    tables: Bytes


def page_of(data: Bytes, entities: Entities) -> Page:
    return Page(frozen(data, np.uint8), *entities.names, entities.controls, _TABLES)


# --- bytes ---


@raw_step
def put(w: Writer, word: np.uint64, width: Int) -> None:
    """The lowest bytes of a word, the first of them first."""
    to = w.state[TO]
    w.state[TO] = to + width
    if to + 8 <= w.out.size:  # what is behind TO means nothing
        store_word(w.out, to, word)
    elif to + width <= w.out.size:
        for k in range(width):
            w.out[to + k] = np.uint8(word)
            word >>= U64(8)


@raw_step
def put_many(w: Writer, word: np.uint64, count: Int) -> None:
    """A byte, eight times in a word, any number of times."""
    while count > 0:
        put(w, word, min(count, np.int64(8)))
        count -= 8


@raw_step
def put_run(w: Writer, data: Bytes, first: Int, end: Int) -> None:
    to = w.state[TO]
    w.state[TO] = to + (end - first)
    if to + (end - first) <= w.out.size:
        for k in range(end - first):
            w.out[to + k] = data[first + k]


@step
def make_room(w: Writer, at: Int, width: Int) -> None:
    """Backticks put in where others are, before what was written since."""
    to = w.state[TO]
    w.state[TO] = to + width
    if to + width <= w.out.size:
        for k in range(to - at):
            w.out[to + width - 1 - k] = w.out[to - 1 - k]
        for k in range(width):
            w.out[at + k] = 0x60


# --- lines ---


@step
def open_container(w: Writer, kind: Int, width: Int) -> None:
    """What each line of it begins with after the first is kept as bytes: those of 250,000 paragraphs within
    12 quotes took 310 ns each when they were made anew."""
    s = w.state
    number, first = s[CONTAINERS], s[PREFIX]
    # -- spaces from `first` on, a quote's sign before them; what is behind is written when it is reached
    place, shift = PREFIX_WORDS + (first >> 3), U64(8 * (first & 7))
    mask = ~U64(0) << shift
    filling = _SPACES ^ (U64(0x1E) << shift) if kind == QUOTE_LINE else _SPACES
    s[place] = np.int64((U64(s[place]) & ~mask) | (filling & mask))
    for word in range(place + 1, PREFIX_WORDS + ((first + width - 1) >> 3) + 1):
        s[word] = np.int64(_SPACES)
    s[CONTAINER_KINDS + number] = kind
    s[CONTAINER_ENDS + number] = first + width
    s[QUOTE_ENDS + number] = s[QUOTE_ENDS + number - 1] if number else 0
    if kind == QUOTE_LINE:
        s[QUOTE_ENDS + number] = first + width
    s[CONTAINERS] += 1
    s[PREFIX] += width


@step
def put_prefix(w: Writer, is_blank: bool) -> None:
    """What a line begins with, markers of containers that are new included; of a blank line, its quotes."""
    s = w.state
    known = s[PREFIXED]
    size: Int = 0
    if known:
        size = s[QUOTE_ENDS + known - 1] - 1 if is_blank else s[CONTAINER_ENDS + known - 1]
        size = size if size <= s[PREFIX_ROOM] else np.int64(0)
        s[PREFIX_ROOM] -= size
    place: Int = PREFIX_WORDS
    while size > 0:
        put(w, U64(s[place]), min(size, np.int64(8)))
        size -= 8
        place += 1
    if is_blank:
        return
    for k in range(known, s[CONTAINERS]):
        _put_marker(w, s[CONTAINER_KINDS + k])
    if s[LOOSE] != NONE_WAITS:
        if s[LOOSE_INDENT] <= s[PREFIX_ROOM]:
            put_many(w, _SPACES, s[LOOSE_INDENT])
            s[PREFIX_ROOM] -= s[LOOSE_INDENT]
        _put_marker(w, s[LOOSE])
    s[PREFIXED] = s[CONTAINERS]
    s[LOOSE] = NONE_WAITS


@step
def _put_marker(w: Writer, kind: Int) -> None:
    if kind < 0:
        put(w, U64(0x202D if kind == BULLET else 0x203E if kind == QUOTE_LINE else 0x203A), 2)
        return
    digits, width = U64(0), np.int64(0)
    rest = U64(kind)
    while rest > U64(0) or width == 0:
        if width == 8:  # of at most nine
            put(w, U64(0x30) + rest, 1)
            break
        digits = digits << U64(8) | (U64(0x30) + rest % U64(10))
        rest //= U64(10)
        width += 1
    if width <= 6:  # with what is behind it in one word
        put(w, digits | U64(0x202E) << U64(8 * width), width + 2)
        return
    put(w, digits, width)
    put(w, U64(0x202E), 2)


@step
def put_newline(w: Writer, count: Int) -> None:
    """Ends of lines, the last with the prefix of the next."""
    s = w.state
    for _ in range(count - 1):
        put(w, U64(0x0A), 1)
        if s[IS_MARKDOWN]:
            put_prefix(w, True)
    put(w, U64(0x0A), 1)
    if s[IS_MARKDOWN]:
        put_prefix(w, False)


@step
def begin_line(w: Writer) -> None:
    """Of a block: the newlines before it, and the prefix."""
    s = w.state
    if s[CONTAINERS] == 0 and s[PREFIXED] == 0 and s[LOOSE] == NONE_WAITS and s[RULE] == 0:
        if s[TO] > 0:  # as nearly all lines begin
            put(w, U64(0x0A0A), 1 if s[GAP] == 1 else 2)
        s[GAP] = 2
        return
    if s[TO] > 0:
        if s[RULE]:
            containers, loose = s[CONTAINERS], s[LOOSE]  # it stands before markers that wait
            s[CONTAINERS], s[LOOSE] = s[PREFIXED], NONE_WAITS
            put_newline(w, 2)
            s[CONTAINERS], s[LOOSE] = containers, loose
            put(w, U64(0x2D2D2D), 3)
            s[GAP] = 2
        put(w, U64(0x0A), 1)
        if s[GAP] != 1:
            put_prefix(w, True)
            put(w, U64(0x0A), 1)
    s[RULE] = 0
    put_prefix(w, False)
    s[GAP] = 2


@raw_step
def has_marker(w: Writer) -> bool:
    s = w.state
    return bool(s[PREFIXED] < s[CONTAINERS] or s[LOOSE] != NONE_WAITS)


@step
def pad_row(w: Writer, columns: Int) -> None:
    """Empty cells up to a number of them."""
    s = w.state
    while s[CELLS] < columns:
        if s[IS_MARKDOWN]:
            put(w, U64(0x7C2020), 3)
        elif s[CELLS]:
            put(w, U64(0x09), 1)
        s[CELLS] += 1


@step
def lead(w: Writer, page: Page) -> None:
    """What waits before a character that is written now."""
    s = w.state
    has_space = True
    if s[IN_ROW]:
        if not s[CELL_BEGUN]:
            has_space = False
            s[CELL_BEGUN] = 1
            s[CELL] = max(s[CELL], 0)
            if not s[BEGUN]:
                begin_line(w)
                s[BEGUN] = 1
                if s[IS_MARKDOWN]:
                    put(w, U64(0x7C), 1)
            pad_row(w, s[CELL])
            if s[IS_MARKDOWN]:
                put(w, U64(0x20), 1)
            elif s[CELL]:
                put(w, U64(0x09), 1)
    elif not s[BEGUN]:
        has_space = False
        begin_line(w)
        s[BEGUN] = 1
        if s[HEADING]:
            put(w, U64(0x23232323232323), s[HEADING])
            put(w, U64(0x20), 1)
    elif s[BREAKS]:
        has_space = False
        if s[BREAKS] > 1:
            close_marks(w, page, 0)
        put_newline(w, s[BREAKS])
    if has_space and s[SPACE]:
        put(w, U64(0x20 if s[SPACE] == 1 else 0xA0C2), s[SPACE])
    s[SPACE] = s[BREAKS] = 0
    while s[OPEN_MARKS] < s[MARKS]:
        kind = s[MARK_KINDS + s[OPEN_MARKS]] & 0xFF
        s[OPEN_MARKS] += 1
        width: Int = 1 if kind == ITALIC else 2
        if kind == BOLD or kind == ITALIC or kind == STRIKE:
            if s[LAST_MARK] == kind and s[LAST_MARK_AT] == s[TO]:
                s[TO] -= width  # <b>a</b><b>b</b>: it goes on
            else:
                put(w, U64(0x7E7E if kind == STRIKE else 0x2A2A), width)
        elif kind == CODE:
            put(w, U64(0x60), 1)
            s[CODE_AT] = s[TO]
            s[RUN] = s[MAX_RUN] = 0
        elif kind == LINK:
            put(w, U64(0x5B), 1)
        elif kind == QUOTATION:
            put(w, U64(0x9C80E2), 3)


@step
def close_marks(w: Writer, page: Page, rest: Int) -> None:
    """All but the first `rest` that are written."""
    s, data = w.state, page.data
    width: Int = 0
    after: Int = 0
    at: Int = 0
    while s[OPEN_MARKS] > rest:
        s[OPEN_MARKS] -= 1
        place = MARK_KINDS + s[OPEN_MARKS]
        kind = s[place] & 0xFF
        if kind == BOLD or kind == ITALIC or kind == STRIKE:
            put(w, U64(0x7E7E if kind == STRIKE else 0x2A2A), 1 if kind == ITALIC else 2)
            s[LAST_MARK], s[LAST_MARK_AT] = kind, s[TO]
        elif kind == QUOTATION:
            put(w, U64(0x9D80E2), 3)
        elif kind == CODE:
            # as many backticks as its content has none of; then spaces, for it may begin or end with one
            if s[MAX_RUN]:
                make_room(w, s[CODE_AT], s[MAX_RUN] + 1)
                at = s[CODE_AT] + s[MAX_RUN]
                if at < w.out.size:
                    w.out[at] = 0x20
                put(w, U64(0x20), 1)
            put_many(w, BACKTICKS, s[MAX_RUN] + 1)
        elif kind == LINK:
            put(w, U64(0x285D), 2)
            at = s[place] >> 8
            s[place] = 0  # once: a link may hold many blocks
            quote = np.int64(data[at - 1])
            is_quoted = quote == 0x22 or quote == 0x27
            while at < data.size:
                byte = np.int64(data[at])
                if (byte == quote) if is_quoted else (byte <= 0x20 or byte == 0x3E):
                    break
                word, width, after = U64(byte), np.int64(1), np.int64(at + 1)
                if byte == 0x26:
                    word, width, after = entity_at(
                        data, at, data.size, page.keys, page.values, page.controls, page.tables
                    )
                    # in an attribute a name without its semicolon is one only before something else
                    if data[after - 1] != 0x3B and after < data.size:
                        if page.tables[data[after]] or data[after] == 0x3D:
                            word, width, after = U64(0x26), np.int64(1), np.int64(at + 1)
                at = after
                code = np.int64(word) if width == 1 else np.int64(0x80)
                if code == 0x0A or code == 0x0D or code == 0x09:
                    continue
                if code <= 0x20 or code == 0x28 or code == 0x29 or code == 0x3C or code == 0x3E:
                    low = code & 0xF
                    word = U64(0x3025 + (code >> 4 << 8) + ((low + (0x30 if low < 10 else 0x37)) << 16))
                    width = np.int64(3)
                put(w, word, width)
            put(w, U64(0x29), 1)


@raw_step
def end_line(w: Writer, page: Page) -> None:
    s = w.state
    if s[OPEN_MARKS]:
        close_marks(w, page, 0)
    s[BEGUN] = s[SPACE] = s[BREAKS] = 0


@step
def end_cell(w: Writer, page: Page) -> None:
    s = w.state
    if s[OPEN_MARKS]:
        close_marks(w, page, 0)
    if s[CELL_BEGUN]:
        s[CELLS] = s[CELL] + 1
        if s[IS_MARKDOWN]:
            put(w, U64(0x7C20), 2)
    s[CELL_BEGUN] = s[SPACE] = s[BREAKS] = 0


# --- text ---


@raw_step
def put_text(w: Writer, page: Page, at: Int, end: Int) -> None:
    """White space collapsed, entities decoded.

    A single space that does not break is one where text is at both sides; more of them, or one beside other
    white space, are layout and become a space.
    """
    s, data, tables = w.state, page.data, page.tables
    space: Int = s[SPACE]
    width: Int = 0
    is_led = False
    while at < end:
        byte = np.int64(data[at])
        kind = np.int64(tables[_CLASSES + byte])
        word, width = U64(byte), np.int64(0)
        if kind == _AMPERSAND:
            word, width, at = entity_at(data, at, end, page.keys, page.values, page.controls, tables)
            if width == 0:
                continue
            if width == 1:
                byte = np.int64(word)
                if tables[_CLASSES + byte] == _SPACE:
                    space = 1
                    continue
            elif width == 2 and word == U64(0xA0C2):
                space = 2 if space == 0 else 1
                continue
        elif kind == _SPACE:
            space = 1
            at += 1
            continue
        elif kind == _C2 and at + 1 < end and data[at + 1] == 0xA0:
            space = 2 if space == 0 else 1
            at += 2
            continue
        if not is_led:
            is_led = True
            s[SPACE] = space
            is_new = s[BEGUN] == 0 or s[BREAKS] > 0
            lead(w, page)
            if is_new and s[IS_MARKDOWN] and (byte == 0x60 or byte == 0x7E) and s[OPEN_KINDS + CODE] == 0:
                if at + 2 < end and data[at + 1] == byte and data[at + 2] == byte:
                    put(w, U64(0x5C), 1)  # it is no fence
        elif space:
            put(w, U64(0x20 if space == 1 else 0xA0C2), space)
        space = 0
        if width or kind == _MARK:
            if word == U64(0x7C) and s[IN_ROW] and s[IS_MARKDOWN]:
                put(w, U64(0x5C), 1)
            s[RUN] = s[RUN] + 1 if word == U64(0x60) else 0
            s[MAX_RUN] = max(s[MAX_RUN], s[RUN])
            put(w, word, max(width, np.int64(1)))
            at += 1 if width == 0 else 0
            continue
        first = at
        at += 1
        while at < end:
            if tables[_CLASSES + np.int64(data[at])] != _PLAIN:
                if data[at] != 0x20 or at + 1 >= end:
                    break
                if tables[_CLASSES + np.int64(data[at + 1])] != _PLAIN:
                    break
            at += 1
        put_run(w, data, first, at)
        s[RUN] = 0
    s[SPACE] = space


@raw_step
def put_pre(w: Writer, page: Page, at: Int, end: Int) -> None:
    """As it is, except for a first newline and the last ones."""
    s, data = w.state, page.data
    width: Int = 0
    while at < end:
        first = at
        is_solid = False
        while at < end:
            byte = data[at]
            if byte == 0x26 or byte == 0x0A or byte == 0x0D or byte == 0x60:
                break
            is_solid |= byte > 0x20
            at += 1
        if at > first:
            put_pre_newlines(w)
            put_run(w, data, first, at)
            s[SOLID] |= is_solid
            s[RUN] = 0
            continue
        word, width = U64(data[at]), np.int64(1)
        if word == U64(0x26):
            word, width, at = entity_at(data, at, end, page.keys, page.values, page.controls, page.tables)
            if word == U64(0xA0C2) and s[IN_PRE] == 2:
                word, width = U64(0x20), np.int64(1)
        else:
            at += 1
            if word == U64(0x0D):
                word = U64(0x0A)
                at += 1 if at < end and data[at] == 0x0A else 0
        if word == U64(0x0A):
            pre_newline(w)
        elif width:
            put_pre_newlines(w)
            put(w, word, width)
            s[SOLID] |= width > 1 or word > U64(0x20)
            s[RUN] = s[RUN] + 1 if word == U64(0x60) else 0
            s[MAX_RUN] = max(s[MAX_RUN], s[RUN])


@step
def pre_newline(w: Writer) -> None:
    s = w.state
    if not s[IS_FIRST] and not s[IS_SOFT]:
        s[NEWLINES] += 1
    s[IS_FIRST] = s[IS_SOFT] = s[RUN] = 0


@step
def put_pre_newlines(w: Writer) -> None:
    """Those that wait in <pre>."""
    s = w.state
    s[IS_FIRST] = s[IS_SOFT] = 0
    if s[NEWLINES]:
        put_newline(w, s[NEWLINES])
        s[NEWLINES] = 0
