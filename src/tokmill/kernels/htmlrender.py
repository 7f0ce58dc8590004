"""The text of a web page, plain or as Markdown, from its tree and what of it is wanted.

    tree ──────────────┐
    block of each text ┼─ one walk over the nodes ─ elements that end here ─┐
    blocks to keep ────┤                            the one that begins ────┼─> lines (`htmlwriter`)
    formulas ──────────┘                            text, formula ──────────┘

                         plain text                            Markdown
    <p>, <div>, …        a blank line before it                likewise
    <h2>                 a paragraph                           ## heading, on one line
    <ul>, <ol>, <li>     "- item", "1. item", indented         likewise, with all that an item holds
    <blockquote>         its paragraphs                        > quote
    <pre>                every space and newline kept          a fenced block, with its language
    <table> of data      a line per row, tabs between cells    a table of GitHub's Markdown
    <table> of layout    the blocks that it holds              likewise
    <dt>, <dd>           paragraphs                            the term, and ": definition" beneath it
    <br>                 a newline; two of them a blank line   likewise
    <hr>                 nothing                               ---
    <b>, <i>, <del>      nothing                               **, *, ~~
    <code>, <kbd>, …     nothing                               backticks
    <a>                  its text                              its text, or [text](address)
    <button>, <input>    their text, between spaces
    <sub>, <sup>         digits and signs as ₂ and ², else the text alone
    <q>                  “quotation marks”
    formulas             $…$, and $$…$$ on a line of its own

Text that would mean something to a reader of Markdown stays as it is, for it is the text that is wanted: no
backslashes before * or _. Escaped is what would change the structure around it: a pipe within a cell, and
three backticks or tildes at the beginning of a line. Line numbers of highlighters are left out.

Time and space are linear in bytes and nodes: depth is bounded by the tree, prefixes and spans by constants.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlattributes import (
    BYTES_PER_LOOK,
    GUTTERS,
    HREF,
    LANGUAGE_CLASSES,
    LANGUAGE_PREFIXES,
    LOOKS,
    NUMBERS,
    START,
    VALUE,
    find_attribute,
    has_class,
    is_code_cell,
    is_line_number,
    language_of,
    number_of,
)
from tokmill.kernels.htmlentities import html_entities
from tokmill.kernels.htmlmarks import NO_FORMULAS, Formulas
from tokmill.kernels.htmltables import TABLE_KINDS, columns_of, take_cell
from tokmill.kernels.htmltree import MAX_DEPTH, TAGS, TEXT, WHITE, Tree, parse
from tokmill.kernels.htmlwriter import (
    BACKTICKS,
    BEGUN,
    BOLD,
    BREAKS,
    BULLET,
    CELL,
    CELL_BEGUN,
    CELLS,
    CODE,
    COLUMN,
    COLUMNS,
    CONTAINERS,
    DEFINITION,
    FENCE_AT,
    FLAT,
    GAP,
    HAS_LINKS,
    HAS_SPANS,
    HEADING,
    IN_PRE,
    IN_ROW,
    IS_FIRST,
    IS_MARKDOWN,
    IS_SOFT,
    ITALIC,
    ITEMS,
    LINK,
    LIST_NUMBERS,
    LISTS,
    LOOSE,
    LOOSE_INDENT,
    MARK_KINDS,
    MARKS,
    MAX_CONTAINERS,
    MAX_INDENTED_LISTS,
    MAX_PREFIX,
    MAX_RUN,
    NEWLINES,
    NONE_WAITS,
    OPEN_KINDS,
    PREFIX,
    PREFIX_ROOM,
    PREFIXED,
    PREFIXES,
    PREFIXES_PER_BYTE,
    QUOTATION,
    QUOTE_LINE,
    ROWS,
    RULE,
    RUN,
    SAVED,
    SOLID,
    SPACE,
    SPANS,
    STATES,
    STRIKE,
    TERM_END,
    TO,
    Page,
    Writer,
    begin_line,
    close_marks,
    end_cell,
    end_line,
    has_marker,
    lead,
    make_room,
    open_container,
    pad_row,
    page_of,
    pre_newline,
    put,
    put_many,
    put_newline,
    put_pre,
    put_pre_newlines,
    put_run,
    put_text,
    step,
)
from tokmill.kernels.jit import Bytes, Int, frozen, raw_kernel, raw_step

U64 = np.uint64

# What an element does.
_NOTHING, _BLOCK, _BREAK, _PRE, _LIST, _NUMBERED, _ITEM, _QUOTE, _HEADING = 0, 1, 2, 3, 4, 5, 6, 7, 8
_TABLE, _ROW, _CELL, _RULE, _TERM, _DETAIL, _SPAN, _SUB, _SUP, _SOFT = 9, 10, 11, 12, 13, 14, 15, 16, 17, 18
_APART = 19  # between spaces
_MARK = 20  # and the kind of mark

_MAX_SCRIPT = 8  # bytes of what is written as ² or ₂
_MAX_ADDRESS = 2048
_DIGITS = 9  # the most of an item's number, as in CommonMark
_PLAIN_TAG = 6  # bytes: with nothing but a name

_SUPERSCRIPTS = dict(zip("0123456789+-=()ni−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ⁻", strict=True))
_SUBSCRIPTS = dict(zip("0123456789+-=()", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎", strict=True))


_BLOCKS = """
html body div p dl caption figure figcaption article section main aside nav header footer hgroup address
center details summary dialog form fieldset legend option optgroup select textarea frameset
"""


def _acts() -> NDArray[np.uint8]:
    acts = np.zeros(256, np.uint8)
    for act, names in (
        (_BLOCK, _BLOCKS),
        (_BREAK, "br"),
        (_PRE, "pre listing xmp plaintext"),
        (_LIST, "ul menu"),
        (_NUMBERED, "ol"),
        (_ITEM, "li"),
        (_QUOTE, "blockquote"),
        (_HEADING, "h1 h2 h3 h4 h5 h6"),
        (_TABLE, "table"),
        (_ROW, "tr"),
        (_CELL, "td th"),
        (_RULE, "hr"),
        (_TERM, "dt"),
        (_DETAIL, "dd"),
        (_SPAN, "span"),
        (_APART, "button input video audio object embed canvas iframe"),
        (_SUB, "sub"),
        (_SUP, "sup"),
        (_MARK + BOLD, "b strong"),
        (_MARK + ITALIC, "i em"),
        (_MARK + CODE, "code tt kbd samp"),
        (_MARK + STRIKE, "del s"),
        (_MARK + LINK, "a"),
        (_MARK + QUOTATION, "q"),
    ):
        for name in names.split():
            acts[TAGS[name]] = act
    return acts


def _scripts() -> NDArray[np.uint64]:
    """By the byte of a character the bytes of it above and below the line, and their number beside them."""
    scripts = np.zeros((2, 128), np.uint64)
    for row, characters in enumerate((_SUBSCRIPTS, _SUPERSCRIPTS)):
        for plain, raised in characters.items():
            if plain.isascii():
                data = raised.encode()
                scripts[row, ord(plain)] = int.from_bytes(data, "little") << 8 | len(data)
    return scripts


_ACTS, _SCRIPTS = frozen(_acts(), np.uint8), frozen(_scripts(), np.uint64)
_H1 = TAGS["h1"]


class Options(NamedTuple):
    markup: str = "text"  # or "markdown"
    links: bool = False  # addresses, of Markdown


def render(
    data: Bytes,
    tree: Tree,
    block: NDArray[np.int32],
    keep: NDArray[np.uint8],
    formulas: Formulas = NO_FORMULAS,
    options: Options = Options(),  # noqa: B008
) -> bytes:
    """The text of the blocks with `keep`, in UTF-8.

    `block` has the number of the one that a text or a formula is in; what has -1 is never shown.
    """
    # most of it is not touched; where it is too small, the size is known then
    room = 4 * data.size + PREFIXES
    while True:
        out = np.empty(room, np.uint8)
        size = render_into(data, tree, block, keep, formulas, options, out)
        if size <= room:
            return out[:size].tobytes()
        room = size


def render_into(
    data: Bytes,
    tree: Tree,
    block: NDArray[np.int32],
    keep: NDArray[np.uint8],
    formulas: Formulas,
    options: Options,
    out: Bytes,
) -> int:
    """How many bytes the text has; `out` holds it if they fit."""
    if options.markup not in ("text", "markdown"):
        raise ValueError(f"markup is {options.markup!r}, not text or markdown")
    if block.size != tree.tag.size or int(block.max(initial=-1)) >= keep.size:
        raise ValueError(f"{block.size} nodes in {keep.size} blocks for a tree of {tree.tag.size} nodes")
    state = np.zeros(STATES, np.int64)
    state[IS_MARKDOWN], state[HAS_LINKS] = options.markup == "markdown", options.links
    _render(
        page_of(data, html_entities()), tree, frozen(block, np.int32), frozen(keep, np.uint8), formulas,
        _ACTS, _SCRIPTS, TABLE_KINDS, GUTTERS, NUMBERS, LANGUAGE_CLASSES, LANGUAGE_PREFIXES,
        np.empty((3, MAX_DEPTH + 2), np.int64), Writer(state, out),
    )  # fmt: skip
    return int(state[TO])


def _first_call() -> object:
    tree = parse(np.frombuffer(b"a", np.uint8))
    block = np.zeros(tree.tag.size, np.int32)
    return render(np.frombuffer(b"a", np.uint8), tree, block, np.ones(1, np.uint8))


@raw_kernel(_first_call)
def _render(
    page: Page,
    tree: Tree,
    block: NDArray[np.int32],
    keep: Bytes,
    formulas: Formulas,
    acts: Bytes,
    scripts: NDArray[np.uint64],
    table_kinds: Bytes,
    gutters: NDArray[np.uint64],
    numbers: NDArray[np.uint64],
    language_classes: NDArray[np.uint64],
    language_prefixes: Bytes,
    opened: NDArray[np.int64],  # elements: the node after each, what it does, its prefix or has it a mark
    w: Writer,
) -> None:
    data, s = page.data, w.state
    tag, last = tree.tag, tree.last
    s[LOOSE] = NONE_WAITS
    s[TERM_END] = -1
    s[PREFIX_ROOM] = PREFIXES + PREFIXES_PER_BYTE * data.size
    looks: Int = LOOKS + data.size // BYTES_PER_LOOK  # at elements around code
    depth: Int = 0
    formula: Int = 0
    node: Int = 1
    while node <= tag.size:
        while depth > 0 and (opened[0, depth] <= node or node == tag.size):
            if opened[1, depth] == _BLOCK and s[FLAT] == 0:
                end_line(w, page)
                if not has_marker(w):
                    s[GAP] = 2
            else:
                _close(w, page, opened[1, depth], opened[2, depth])
            depth -= 1
        if node == tag.size:
            break
        begin, end = np.int64(tree.start[node]), np.int64(tree.end[node])
        while formula < formulas.node.size and formulas.node[formula] < node:
            formula += 1
        number = np.int64(block[node])
        is_wanted = number >= 0 and keep[number] != 0
        if formula < formulas.node.size and formulas.node[formula] == node:
            if is_wanted:
                is_block = acts[tag[node]] == _BLOCK and not s[FLAT] and not s[IN_PRE]
                if is_block:
                    end_line(w, page)
                    if not has_marker(w):
                        s[GAP] = 2
                _put_formula(w, page, formulas, formula)
                if is_block:
                    end_line(w, page)
                    s[GAP] = 2
            node = max(node + 1, np.int64(formulas.until[formula]))
            continue
        if tag[node] == TEXT:
            if tree.flags[node] & WHITE and not s[IN_PRE]:
                s[SPACE] = 1
            elif s[IN_PRE]:
                if is_wanted or tree.flags[node] & WHITE:
                    put_pre(w, page, begin, end)
            elif is_wanted:
                put_text(w, page, begin, end)
            node += 1
            continue
        act: Int = np.int64(acts[tag[node]])
        mark: Int = 0
        if act == _NOTHING or (act == _SPAN and not s[IN_PRE]):
            node += 1
            continue
        if end - begin > _PLAIN_TAG:
            if act == _CELL and has_class(data, begin, end, gutters):
                node = np.int64(last[node])
                continue
            if s[IN_PRE] and is_line_number(data, tree, node, numbers):
                node = np.int64(last[node])
                continue

        if s[IN_PRE]:
            if act == _BREAK:
                pre_newline(w)
            if act >= _SPAN or act == _CELL or act == _BREAK:
                node += 1
                continue
            act = _SOFT
            if s[NEWLINES] == 0 and not s[IS_FIRST]:
                s[NEWLINES] = s[IS_SOFT] = 1
        elif act >= _MARK:
            mark = _open_mark(w, page, act - _MARK, begin, end)
            if mark == 0:
                node += 1
                continue
        elif act == _SUB or act == _SUP:
            node += 1
            if last[node - 1] == node + 1 and tag[node] == TEXT and block[node] >= 0 and keep[block[node]]:
                node += _put_script(w, page, scripts, act - _SUB, tree, node)
            continue
        elif act == _APART:
            s[SPACE] = 1
        elif s[FLAT]:
            if act == _CELL and s[IN_ROW]:
                end_cell(w, page)
                if s[HAS_SPANS]:
                    s[CELL], s[COLUMN] = take_cell(data, begin, end, s[COLUMN], s)
                else:
                    s[CELL] = s[COLUMN]
                    s[COLUMN] += 1
            else:
                s[SPACE] = 1
                act = _BLOCK
        elif act == _BREAK:
            s[BREAKS] = min(s[BREAKS] + s[BEGUN], np.int64(2))
            s[SPACE] = 0
            node += 1
            continue
        else:
            end_line(w, page)
            container: Int = NONE_WAITS
            if act == _LIST or act == _NUMBERED:
                first: Int = BULLET
                if act == _NUMBERED:
                    first = number_of(data, begin, end, START)
                    first = 1 if first < 0 else first
                s[GAP] = 1 if s[LISTS] and (first <= 1 or not s[IS_MARKDOWN]) else 2
                s[LIST_NUMBERS + s[LISTS]] = first
                s[LISTS] += 1
                s[ITEMS] = 0
                act = _LIST
            elif act == _ITEM:
                if s[ITEMS] or not s[LISTS]:
                    s[GAP] = 1
                s[ITEMS] += 1
                container = BULLET
                place = LIST_NUMBERS + s[LISTS] - 1
                if s[LISTS] and s[place] >= 0:
                    container = number_of(data, begin, end, VALUE) if end - begin > _PLAIN_TAG else -1
                    container = min(s[place] if container < 0 else container, np.int64(10**_DIGITS - 1))
                    s[place] = container + 1
            elif act == _DETAIL and s[IS_MARKDOWN]:
                container = DEFINITION
                if not has_marker(w):
                    s[GAP] = 1 if s[TERM_END] == s[TO] and s[TO] > 0 else 2
            else:
                if not has_marker(w):
                    s[GAP] = 2
                if act == _QUOTE:
                    container = QUOTE_LINE
                elif act == _HEADING and s[IS_MARKDOWN]:
                    s[HEADING] = np.int64(tag[node]) - _H1 + 1
                    s[FLAT] += 1
                elif act == _RULE:
                    s[RULE] = s[IS_MARKDOWN] if s[TO] else 0
                elif act == _PRE or (
                    act == _CELL and end - begin > _PLAIN_TAG and is_code_cell(data, tree, node)
                ):
                    _begin_pre(w)
                    s[IN_PRE] = 2 if act == _CELL else 1
                    act = _PRE
                    if s[IS_MARKDOWN]:
                        at, stop, looked = language_of(
                            data, tree, node, language_classes, language_prefixes, looks
                        )
                        looks -= looked
                        if at >= 0:
                            put_run(w, data, at, stop)
                elif act == _TABLE:
                    s[COLUMNS], s[HAS_SPANS] = columns_of(data, tree, node, table_kinds, block, s)
                    s[HAS_SPANS] &= s[IS_MARKDOWN]
                    s[ROWS] = 0
                elif act == _ROW and s[COLUMNS]:
                    if s[ROWS]:
                        s[GAP] = 1
                    s[IN_ROW] = 1
                    s[FLAT] += 1
                    s[CELL] = -1
                    s[CELLS] = s[CELL_BEGUN] = s[COLUMN] = 0
                elif act != _TERM:
                    act = _BLOCK
            if container != NONE_WAITS:
                width: Int = 2 if container < 0 else 3
                power: Int = 10
                while container >= power:
                    width += 1
                    power *= 10
                is_room = s[CONTAINERS] < MAX_CONTAINERS and s[PREFIX] + width <= MAX_PREFIX
                if s[IS_MARKDOWN] and is_room:
                    open_container(w, container, width)
                    mark = width
                elif act == _ITEM:
                    s[LOOSE] = container
                    s[LOOSE_INDENT] = 0 if s[IS_MARKDOWN] else 2 * min(s[LISTS] - 1, MAX_INDENTED_LISTS)
        depth += 1
        opened[0, depth], opened[1, depth], opened[2, depth] = last[node], act, mark
        node += 1


@raw_step
def _close(w: Writer, page: Page, act: Int, mark: Int) -> None:
    s = w.state
    if act >= _MARK:
        s[MARKS] -= 1
        s[OPEN_KINDS + act - _MARK] -= 1
        close_marks(w, page, s[MARKS])
    elif act == _APART:
        s[SPACE] = 1
    elif act == _SOFT:
        if s[NEWLINES] == 0 and not s[IS_FIRST]:
            s[NEWLINES] = s[IS_SOFT] = 1
    elif act == _PRE:
        _end_pre(w)
    elif act == _ROW:
        _end_row(w, page)
    elif act == _CELL:
        end_cell(w, page)
    elif act == _HEADING:
        s[FLAT] -= 1
        end_line(w, page)
        s[HEADING] = 0
        s[GAP] = 2
    elif s[FLAT]:
        s[SPACE] = 1
    else:
        end_line(w, page)
        if mark:
            s[CONTAINERS] -= 1
            s[PREFIX] -= mark
            s[PREFIXED] = min(s[PREFIXED], s[CONTAINERS])
        if act == _LIST:
            s[LISTS] -= 1
            s[LOOSE] = NONE_WAITS
            s[GAP] = 1 if s[LISTS] and not s[IS_MARKDOWN] else 2
            s[ITEMS] = 1
        elif act == _ITEM:
            s[LOOSE] = NONE_WAITS
            s[GAP] = 1 if s[LISTS] else 2
        elif act == _TABLE:
            s[COLUMNS] = 0
            s[GAP] = 2
        elif not has_marker(w):
            s[GAP] = 2
        if act == _TERM or act == _DETAIL:
            s[TERM_END] = s[TO]


@step
def _open_mark(w: Writer, page: Page, kind: Int, start: Int, end: Int) -> Int:
    """1 for an element that is marked: not within its like, nor within code."""
    s, data = w.state, page.data
    at: Int = 0
    if kind != QUOTATION:
        if not s[IS_MARKDOWN] or s[OPEN_KINDS + kind] or s[OPEN_KINDS + CODE]:
            return 0
        if kind == BOLD and s[HEADING]:
            return 0
        if kind == LINK:
            if not s[HAS_LINKS]:
                return 0
            at, stop = find_attribute(data, start, end, HREF)
            if at < 0 or stop == at or stop - at > _MAX_ADDRESS or data[at] == 0x23:
                return 0
            # "javascript:", "data:"
            first = data[at] | 0x20
            if first == 0x6A and stop - at > 10 and data[at + 10] == 0x3A:
                return 0
            if first == 0x64 and stop - at > 4 and data[at + 4] == 0x3A:
                return 0
    s[MARK_KINDS + s[MARKS]] = kind | at << 8
    s[MARKS] += 1
    s[OPEN_KINDS + kind] += 1
    return 1


@step
def _put_script(w: Writer, page: Page, scripts: NDArray[np.uint64], row: Int, tree: Tree, node: Int) -> Int:
    """Digits and signs above or below the line; 0 for anything else."""
    begin, end = np.int64(tree.start[node]), np.int64(tree.end[node])
    if end - begin > _MAX_SCRIPT:
        return 0
    for at in range(begin, end):
        if page.data[at] >= 0x80 or scripts[row, page.data[at]] == U64(0):
            return 0
    if w.state[IN_PRE]:
        put_pre_newlines(w)
    else:
        lead(w, page)
    for at in range(begin, end):
        script = scripts[row, page.data[at]]
        put(w, script >> U64(8), np.int64(script & U64(0xFF)))
    return 1


@step
def _put_formula(w: Writer, page: Page, formulas: Formulas, number: Int) -> None:
    s = w.state
    first, after = formulas.offsets[number], formulas.offsets[number + 1]
    if first == after:
        return
    width: Int = 2 if formulas.is_display[number] else 1
    is_block = width == 2 and not s[FLAT] and not s[IN_PRE]
    if s[IN_PRE]:
        put_pre_newlines(w)
        s[SOLID] = 1
    else:
        if is_block and s[BEGUN]:
            s[BREAKS] = max(s[BREAKS], np.int64(1))
        lead(w, page)
    put(w, U64(0x2424), width)
    for k in range(first, after):
        byte = formulas.latex[k]
        if byte == 0x0A and is_block:
            put_newline(w, 1)
            continue
        if byte == 0x7C and s[IN_ROW] and s[IS_MARKDOWN]:
            put(w, U64(0x5C), 1)
        put(w, U64(0x20) if byte == 0x0A else U64(byte), 1)
    put(w, U64(0x2424), width)
    if is_block:
        s[BREAKS] = 1


@step
def _begin_pre(w: Writer) -> None:
    s = w.state
    s[SAVED], s[SAVED + 1], s[SAVED + 2] = s[TO], s[GAP], s[PREFIXED]
    s[SAVED + 3], s[SAVED + 4] = s[LOOSE], s[RULE]
    begin_line(w)
    s[NEWLINES] = s[SOLID] = s[RUN] = s[MAX_RUN] = s[IS_SOFT] = 0
    s[IS_FIRST] = 1
    if s[IS_MARKDOWN]:
        s[FENCE_AT] = s[TO]
        put(w, U64(0x606060), 3)
        s[NEWLINES] = 1
    elif s[SAVED + 3] != NONE_WAITS:
        s[TO] -= 1  # a marker has its line alone
        put(w, U64(0x0A), 1)


@step
def _end_pre(w: Writer) -> None:
    s = w.state
    s[IN_PRE] = s[SPACE] = 0
    if not s[SOLID]:
        s[TO], s[GAP], s[PREFIXED] = s[SAVED], s[SAVED + 1], s[SAVED + 2]
        s[LOOSE], s[RULE] = s[SAVED + 3], s[SAVED + 4]
        return
    s[GAP] = 2
    if s[IS_MARKDOWN]:
        put_newline(w, 1)
        longer = max(s[MAX_RUN] - 2, np.int64(0))
        put_many(w, BACKTICKS, 3 + longer)
        make_room(w, s[FENCE_AT], longer)


@step
def _end_row(w: Writer, page: Page) -> None:
    s = w.state
    end_cell(w, page)
    s[IN_ROW] = 0
    s[FLAT] -= 1
    if s[HAS_SPANS]:
        for k in range(s[COLUMNS]):
            s[SPANS + k] -= s[SPANS + k] > 0
    if not s[BEGUN]:
        return
    if not s[IS_MARKDOWN]:
        pad_row(w, s[COLUMN])
    elif s[HAS_SPANS] or not s[ROWS]:
        pad_row(w, s[COLUMNS])
    if s[IS_MARKDOWN] and not s[ROWS]:
        put_newline(w, 1)
        put(w, U64(0x7C), 1)
        for _ in range(s[COLUMNS]):
            put(w, U64(0x7C202D2D2D20), 6)
    s[ROWS] += 1
    s[BEGUN] = s[SPACE] = s[BREAKS] = 0
    s[GAP] = 1
