"""Every kernel compiled, or loaded from the disk cache, before work starts.

    compile_kernels  ->  first call of each kernel, the smallest first
        it came from the cache          not a word: all of them load in 0.3 s
        it had to be compiled           "compiling 7 kernels, once per machine …", "compiled 7 kernels in 8 s"

A command calls this once, before it starts workers: they then find the cache full, and none of them compiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tokmill.kernels import excerpt, folding, hashing, htmltext, jsonlines, redaction, sha256, text, xmlrows
from tokmill.kernels.columns import frozen


class FirstCall(NamedTuple):
    kernel: Any  # numba's dispatcher
    call: Callable[[], object]


class Compilation(NamedTuple):
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody wants here
    compiled: int
    seconds: float


def first_calls() -> list[FirstCall]:
    """Each kernel with a call of its wrapper on next to nothing. A test finds a kernel that is missing here."""
    data = frozen(np.frombuffer(b"A\r\n b", np.uint8), np.uint8)
    offsets = frozen(np.array([0, data.size], np.int64), np.int64)
    state = np.zeros((1, 2), np.uint64)
    table = folding.FoldTable(np.zeros(1, np.uint8), np.zeros(1, np.int32), np.zeros(1, np.uint8), 1)
    wanted, names = xmlrows.wanted_names(["a"]), htmltext.name_table({"a": 1})
    return [
        FirstCall(hashing._fold_sequence, lambda: hashing.fold_sequence(state)),
        FirstCall(
            hashing._mix_column, lambda: hashing.mix_column(data, offsets, np.ones(1, np.bool_), state)
        ),
        FirstCall(hashing._fold_hashes, lambda: hashing.fold_hashes(data, offsets)),
        FirstCall(text._measure_text, lambda: text.measure_text(data, offsets)),
        FirstCall(text._edit_text, lambda: text.edit_text(data, offsets, strip_nul=True, lf_newlines=True)),
        FirstCall(folding._suspects, lambda: folding.suspects(data, offsets, table.classes)),
        FirstCall(folding._fold_rows, lambda: folding.fold_rows(data, offsets, table)),
        FirstCall(sha256._sha256_prefixes, lambda: sha256.sha256_prefixes(data, offsets)),
        FirstCall(jsonlines._audit_lines, lambda: jsonlines.audit_lines(b"{}\n")),
        FirstCall(redaction._find_windows, lambda: redaction.find_windows(data, offsets, (0, 1, 2, 3))),
        FirstCall(
            excerpt._excerpt_letters,
            lambda: excerpt.excerpt_letters(
                data, offsets, np.zeros(128, np.uint8), places=1, bytes_per_place=1, min_bytes=0
            ),
        ),
        FirstCall(xmlrows._scan_rows, lambda: xmlrows.scan_rows(b" ", 0, wanted, 1, xmlrows.Room(1, 1, 1))),
        FirstCall(
            htmltext._lay_out,
            lambda: htmltext.lay_out(data, offsets, names, names, max_indented_lists=1),
        ),
    ]


def compile_kernels(announce: Callable[[str], None]) -> Compilation:
    started = time.perf_counter()
    calls = first_calls()
    compiled = 0
    for position, (kernel, call) in enumerate(calls):
        misses = _cache_misses(kernel)
        call()
        if _cache_misses(kernel) == misses:
            continue
        if compiled == 0:
            announce(f"compiling {len(calls) - position} kernels, once per machine …")
        compiled += 1
    seconds = time.perf_counter() - started
    if compiled:
        announce(f"compiled {compiled} kernels in {seconds:.1f} s")
    return Compilation(len(calls), compiled, seconds)


def _cache_misses(kernel: Any) -> int:
    return sum(kernel.stats.cache_misses.values())
