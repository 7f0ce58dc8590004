"""Every kernel compiled, or loaded from the disk cache, before work starts.

    compile_kernels  ->  first call of each kernel, the smallest first
        it came from the cache          not a word: all of them load in a second
        it had to be compiled           "compiling 7 kernels, once per machine …", "compiled 7 kernels in 8 s"

    ensure_compiled  ->  the same, unless a file beside the cache says that all of this has been done before

A command calls the second once, before it starts workers: they then find the cache full, and none of them compiles. It
does not load what only they will call.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding
import numba
import numpy as np

from tokmill.kernels import (
    boundaries,
    buckets,
    characters,
    copying,
    digests,
    excerpt,
    folding,
    hashing,
    htmltext,
    jaccard,
    jsonlines,
    jsonstrings,
    languages,
    lineedits,
    lines,
    literals,
    minhash,
    mixing,
    packing,
    passages,
    phrases,
    redaction,
    repetition,
    sequences,
    sha256,
    shingles,
    survivors,
    text,
    windows,
    words,
    wordstats,
    xmlrows,
)
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
    classes = np.zeros(256, np.uint16)
    lexicon = words.Lexicon(np.zeros(1, np.uint64), np.zeros(1, np.uint64))
    split, none = words.empty_words(data.size, 1), np.zeros(2, np.int64)
    spoken = phrases.phrase_table((("a",),))
    kinds, rows = np.zeros(256, np.uint8), np.zeros(1, np.int64)
    forms = windows.WordTable(np.zeros(128, np.uint8), np.zeros(128, np.int32), np.zeros(1, np.uint8))
    hashes, bits = np.zeros(1, np.uint64), survivors.no_bits(1)
    sizes, lengths = np.ones(2, np.int32), np.full(2, 4, np.int64)

    def folded() -> windows.FoldedWords:
        return windows.fold_words(data, offsets[:-1], offsets[1:], forms)

    wanted, names = xmlrows.wanted_names(["a"]), htmltext.name_table({"a": 1})
    return [
        FirstCall(digests._fold_sequence, lambda: digests.fold_sequence(state)),
        FirstCall(
            hashing._mix_column, lambda: hashing.mix_column(data, offsets, np.ones(1, np.bool_), state)
        ),
        FirstCall(hashing._fold_hashes, lambda: hashing.fold_hashes(data, offsets)),
        FirstCall(hashing._blank_rows, lambda: hashing.blank_rows(data, offsets)),
        FirstCall(
            languages._likeliest_labels,
            lambda: languages.likeliest_labels(data, offsets, languages.no_languages()),
        ),
        FirstCall(text._measure_text, lambda: text.measure_text(data, offsets)),
        FirstCall(text._edit_text, lambda: text.edit_text(data, offsets, strip_nul=True, lf_newlines=True)),
        FirstCall(folding._suspects, lambda: folding.suspects(data, offsets, table.classes)),
        FirstCall(folding._fold_rows, lambda: folding.fold_rows(data, offsets, table)),
        FirstCall(sha256._sha256_prefixes, lambda: sha256.sha256_prefixes(data, offsets)),
        FirstCall(jsonlines._audit_lines, lambda: jsonlines.audit_lines(b"{}\n")),
        FirstCall(jsonstrings._unescape, lambda: jsonstrings.unescape(data, offsets[:-1], offsets[1:])),
        FirstCall(characters._measure_marks, lambda: characters.measure_marks(data, offsets)),
        FirstCall(characters._measure_chars, lambda: characters.measure_chars(data, offsets, classes)),
        FirstCall(phrases._count_phrases, lambda: phrases.count_phrases(data, offsets, spoken)),
        FirstCall(
            literals._find_literals,
            lambda: literals.find_literals(data, offsets, literals.literal_table(["a"])),
        ),
        FirstCall(
            sequences._end_sequences,
            lambda: [
                sequences.end_sequences(np.zeros(1, np.int32), np.arange(2), rows, 0, kind)
                for kind in ("uint16", "int32")
            ],
        ),
        FirstCall(lines._bound_lines, lambda: lines.measure_lines(data, offsets, classes, short_chars=30)),
        FirstCall(lines._measure_lines, lambda: lines.measure_lines(data, offsets, classes, short_chars=30)),
        FirstCall(words._split_words, lambda: words.split_words(data, offsets, classes, lexicon, split)),
        FirstCall(
            wordstats._measure_words,
            lambda: wordstats.measure_words(none, split.hashes, split.chars, split.facts, lexicon.units),
        ),
        FirstCall(
            wordstats._count_whole,
            lambda: wordstats.count_whole(none, split.facts, none, split.facts),
        ),
        FirstCall(
            repetition._measure_repetition,
            lambda: repetition.measure_repetition(none, split.hashes, split.chars),
        ),
        FirstCall(
            lineedits._edit_lines,
            lambda: lineedits.edit_lines(
                data,
                offsets,
                classes,
                spoken,
                min_words=3,
                max_word_chars=9,
                terminal_only=True,
                strip_citations=True,
            ),
        ),
        FirstCall(redaction._find_windows, lambda: redaction.find_windows(data, offsets, (0, 1, 2, 3))),
        FirstCall(
            excerpt._excerpt_letters,
            lambda: excerpt.excerpt_letters(
                data, offsets, np.zeros(128, np.uint8), places=1, bytes_per_place=1, min_bytes=0
            ),
        ),
        FirstCall(shingles._word_units, lambda: shingles.word_units(data, offsets, kinds, keep_digits=False)),
        FirstCall(shingles._char_units, lambda: shingles.char_units(data, offsets, kinds, keep_digits=False)),
        FirstCall(minhash._sketch, lambda: minhash.sketch(np.ones(1, np.uint32), np.arange(2), 5, 4)),
        FirstCall(minhash._band_keys, lambda: minhash.band_keys(np.ones((1, 4), np.uint32), 2, 2)),
        FirstCall(
            jaccard._overlap, lambda: jaccard.overlap(np.ones(1, np.uint32), np.arange(2), rows, rows, 5)
        ),
        FirstCall(buckets._repeated, lambda: buckets.repeated(np.ones(2, np.uint64))),
        FirstCall(buckets._count_links, lambda: buckets.count_links(hashes, rows, 8, 8)),
        FirstCall(
            buckets._list_links, lambda: buckets.list_links(buckets.count_links(hashes, rows, 8, 8), 0, 1)
        ),
        FirstCall(survivors._join_components, lambda: survivors.join_components(1, rows, rows)),
        FirstCall(
            survivors._choose_survivors,
            lambda: survivors.choose_survivors(rows, rows, np.ones(1), np.zeros(1, np.bool_)),
        ),
        FirstCall(survivors._set_bits, lambda: survivors.set_bits(bits, rows)),
        FirstCall(survivors._count_before, lambda: survivors.count_before(bits)),
        FirstCall(survivors._places_of, lambda: survivors.places_of(bits, none, rows)),
        FirstCall(survivors._numbers_at, lambda: survivors.numbers_at(np.full(8, 1, np.uint64), none, rows)),
        FirstCall(
            survivors._join_members, lambda: survivors.join_members(np.zeros(1, np.uint32), rows, rows, rows)
        ),
        FirstCall(survivors._list_roots, lambda: survivors.list_roots(np.zeros(1, np.uint32))),
        FirstCall(
            survivors._walk_edges,
            lambda: survivors.walk_edges(rows, rows, rows, np.ones(1), np.zeros(1, np.bool_), bits),
        ),
        FirstCall(windows._window_marks, lambda: windows.window_marks(data, offsets, forms, 1, 1)),
        FirstCall(windows._fold_words, lambda: windows.count_words(data, offsets, forms)),
        FirstCall(windows._gram_hashes, lambda: windows.gram_hashes(folded(), rows, 1)),
        FirstCall(
            windows._find_grams,
            lambda: windows.find_grams(data, offsets, forms, windows.gram_index([1], [hashes])),
        ),
        FirstCall(passages._first_marks, lambda: passages.first_marks(hashes, rows, rows)),
        FirstCall(
            passages._roll_marks,
            lambda: passages.roll_marks(hashes, rows, rows, passages.empty_window(1), 0),
        ),
        FirstCall(passages._extend_runs, lambda: passages.extend_runs(folded(), rows, rows, rows, rows, 1)),
        FirstCall(passages._equal_runs, lambda: passages.equal_runs(folded(), rows, folded(), rows, rows)),
        FirstCall(
            passages._settle_spans, lambda: passages.settle_spans(rows, rows, rows, rows, rows, 0.5, 0, bits)
        ),
        FirstCall(
            boundaries._cut_spans,
            lambda: boundaries.cut_spans(data, offsets, kinds, hashes, rows, rows, rows),
        ),
        FirstCall(boundaries._remove_spans, lambda: boundaries.remove_spans(data, offsets, rows, rows, rows)),
        FirstCall(packing._order_by, lambda: packing.best_fit_bins(sizes, sizes, 3)),
        FirstCall(packing._best_fit, lambda: packing.best_fit_bins(sizes, sizes, 3)),
        FirstCall(
            packing._fill_window,
            lambda: packing.window_bins(sizes, np.zeros(2, np.bool_), sizes, 3, open_rows=1),
        ),
        FirstCall(packing._number_rows, lambda: packing.list_pieces(lengths, sizes, 3)),
        FirstCall(packing._list_pieces, lambda: packing.list_pieces(lengths, sizes, 3)),
        FirstCall(
            copying._copy_pieces,
            lambda: copying.copy_pieces(data, none, none, none, np.empty(1, np.uint8)),
        ),
        FirstCall(mixing._mark_shuffle, lambda: mixing.mark_shuffle(hashes, 0)),
        FirstCall(
            mixing._take_turns,
            lambda: mixing.take_turns(
                lengths, lengths, np.zeros(1, np.int32), none, none[:1], none[:1], none[:1], 1, 1, False
            ),
        ),
        FirstCall(xmlrows._scan_rows, lambda: xmlrows.scan_rows(b" ", 0, wanted, 1, xmlrows.Room(1, 1, 1))),
        FirstCall(
            htmltext._lay_out,
            lambda: htmltext.lay_out(data, offsets, names, names, max_indented_lists=1),
        ),
    ]


# What every run needs; the others come with a recipe that asks for them.
ALWAYS = frozenset({"digests", "folding", "hashing", "jsonlines", "jsonstrings", "sha256", "text"})


def ensure_compiled(announce: Callable[[str], None], modules: Collection[str]) -> None:
    """That workers find in the cache what they will call: kernels that are always needed, and those of `modules`."""
    looks = _looks(_calls_of(modules))
    if all(_read(ready) == look for ready, look in looks.items()):
        return
    compile_kernels(announce, modules)
    with contextlib.suppress(OSError):  # then they are loaded next time too
        for ready, look in looks.items():
            ready.write_text(look)


def compile_kernels(announce: Callable[[str], None], modules: Collection[str] | None = None) -> Compilation:
    """Those that are always needed and those of `modules`; None is all: 40 s where none is compiled yet."""
    started = time.perf_counter()
    calls = _calls_of(modules)
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


def _calls_of(modules: Collection[str] | None) -> list[FirstCall]:
    return [
        call
        for call in first_calls()
        if modules is None or call.kernel.__module__.rpartition(".")[2] in ALWAYS.union(modules)
    ]


def _cache_misses(kernel: Any) -> int:
    return sum(kernel.stats.cache_misses.values())


def _looks(calls: Sequence[FirstCall]) -> dict[Path, str]:
    """By module, for a file beside its cached kernels: all that makes numba compile one of them again."""
    machine = (
        numba.__version__,
        sys.implementation.cache_tag,
        numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name(),
        numba.config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten(),
    )
    found = {}
    for call in calls:
        module = call.kernel.__module__
        source = Path(sys.modules[module].__file__ or "").stat()
        folder = call.kernel.stats.cache_path or os.devnull  # where nothing is cached, nothing is ever ready
        found[Path(folder) / f"{module}.ready"] = repr((*machine, source.st_mtime_ns, source.st_size))
    return found


def _read(ready: Path) -> str | None:
    try:
        return ready.read_text()
    except (OSError, UnicodeDecodeError):
        return None
