"""Lines that recur on the pages of a site: how they are known, when they recur, and texts without them.

    URL ─ one form ─> host           texts, hosts ─> lines ─ 64 bits of host and line
    pages of the host ─> how many of them have to have a line
    texts, lines that recur ─> what is left

A page counts a line once. Two lines are told apart by 64 bits: of 10^11 lines and 10^7 that recur,
a twentieth of one is taken for another.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.kernels import hashing, sitelines, wordclasses
from tokmill.kernels.sitelines import CutTexts, Lines
from tokmill.schema import one_piece, string_column

# How lines are folded, and the table that says what a letter, a digit and a space is.
LINE_NORMALIZATION = f"lines-spaces-digits0-1 ({wordclasses.VERSION})"

_HOST = r"^https://(?P<host>[^/?]+)"


class TemplateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`dedup.templates` of a recipe."""

    min_pages: int = 10
    min_share: Decimal = Decimal("0.2")
    min_host_pages: int = 20
    max_chars: int = 300
    field: str = "url"

    def pages_needed(self, host_pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """On how many pages a line recurs, of hosts with so many; in whole numbers, whatever the share."""
        share = Fraction(self.min_share)
        sizes, places = np.unique(host_pages, return_inverse=True)
        shares = [-(-int(size) * share.numerator // share.denominator) for size in sizes]
        return np.maximum(np.array(shares, np.int64), self.min_pages)[places]


class Hosts(NamedTuple):
    names: Any  # null: no URL
    keys: NDArray[np.uint64]
    is_known: NDArray[np.bool_]


def hosts_of(urls: Any) -> Hosts:
    """Of URLs in one form, so without `www.`; a port that is not the usual one is part of it."""
    names = pc.struct_field(pc.extract_regex(one_piece(urls), _HOST), "host")
    state = np.zeros((len(names), 2), np.uint64)
    hashing.mix_column(*string_column(names.fill_null("")), state)
    return Hosts(names, np.ascontiguousarray(state[:, 0]), np.asarray(names.is_valid()))


def site_lines(texts: Any, hosts: NDArray[np.uint64], is_wanted: NDArray[np.bool_], max_chars: int) -> Lines:
    column = string_column(texts)
    return sitelines.hash_lines(
        column.data, column.offsets, wordclasses.class_table(), hosts, is_wanted, max_chars
    )


def count_pages(lines: Lines) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Every key once, ascending; on how many rows it is, and the first of them."""
    order = np.argsort(lines.keys, kind="stable")  # rows ascend within a key
    keys, rows = lines.keys[order], lines.rows[order]
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = keys[1:] != keys[:-1]
    is_page = is_first.copy()
    is_page[1:] |= rows[1:] != rows[:-1]
    firsts = np.flatnonzero(is_first)
    pages = np.add.reduceat(is_page, firsts, dtype=np.int64) if len(firsts) else np.zeros(0, np.int64)
    return keys[firsts], pages, rows[firsts]


def strip_lines(texts: Any, lines: Lines, recurs: NDArray[np.bool_]) -> CutTexts:
    column = string_column(texts)
    classes = wordclasses.class_table()
    return sitelines.cut_lines(column.data, column.offsets, classes, lines.rows[recurs], lines.starts[recurs])


def fewest_pages(
    cut: CutTexts, rows: NDArray[np.int64], starts: NDArray[np.int64], pages: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of each span: the pages of the rarest of its lines, which are given in order. Every span has one."""
    lines, spans = (at << np.int64(40) | start for at, start in ((rows, starts), cut[-3:-1]))
    return np.minimum.reduceat(pages, np.searchsorted(lines, spans))
