"""One compiled pass over each document: every number that a rule can ask for.

    texts ─┬─ marks       characters, braces, # and …          bytes alone
           ├─ characters  shares of digits, capitals, symbols  class table
           ├─ lines       lines, paragraphs, repeated ones
           ├─ phrases     lorem ipsum, javascript, policies, boilerplate
           ├─ code        long lines, lines of data, marks of generated files
           └─ words ──┬── lengths, stop words, sentences
                      └── repetition of n-grams

    texts ─ line edits ─> edited        measure_both: words are split once; those of the edited texts are the
                                        words of the lines that stayed whole, and of those something was taken
                                        out of

Only the groups that the requested names need are computed. A share is one division of two whole numbers, so
it is the same on any machine and for any cut of the documents into batches; of nothing it is 0.
docs/measures.md defines each.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.plugins import Plugin
from tokmill.clean import parsing
from tokmill.kernels import characters, codelines, lines, patterns, words, wordstats
from tokmill.kernels.patterns import (
    ABBREVIATIONS,
    BOILERPLATE,
    JAVASCRIPT,
    LOREM_IPSUM,
    POLICY_PHRASES,
    STOP_WORDS,
    UNITS,
    URL_STARTS,
)
from tokmill.kernels.wordclasses import class_table
from tokmill.schema import StringColumn, string_column

Column = NDArray[Any]

SHORT_LINE_CHARS = 30
# Below this many lines a share of lines that repeat says nothing.
MIN_LINES_TO_REPEAT = 6
# Where The Stack v2 looks for marks of generated files; the first line of a minified one may be all of it.
HEAD_LINES, HEAD_BYTES = 5, 4096
# Words of so much text are held at once, at 13 bytes each. Less makes the cost of a block felt:
# 15 % at 64 KiB.
_BLOCK_BYTES = 1 << 21


class Measure(NamedTuple):
    """`counted`, divided by `of` where it is a share; both are "<group>.<what its kernel counts>"."""

    group: str
    unit: str
    description: str
    counted: str
    of: str


class KeptLines(NamedTuple):
    """What line edits left of the filled lines of a column; row i has offsets[i]:offsets[i + 1] of them."""

    offsets: Column
    is_whole: Column  # uint8, per filled line: it stayed, and nothing is gone but spaces at its ends
    cut: Any  # texts, per row: the lines that stayed with something taken out


def measure(texts: Any, names: Collection[str]) -> dict[str, Column]:
    """One value per row for each name: int64 counts, float64 shares."""
    return _values(_count(string_column(texts), _counts_for(names)), names)


def measure_both(
    texts: Any, names: Collection[str], edited: Any, edited_names: Collection[str], kept: KeptLines
) -> tuple[dict[str, Column], dict[str, Column]]:
    """`measure(texts, names)` and `measure(edited, edited_names)`, where `edited` is `texts` less some lines.

    To split the words again took a fifth of the time of all packs together (28 MB per CPU second, not 35).
    """
    refs, edited_refs = _counts_for(names), _counts_for(edited_names)
    of_words = {ref for ref in edited_refs if _group(ref) in _OF_WORDS}
    if not of_words or not of_words <= _WHOLE.keys() or not _OF_WORDS & set(map(_group, refs)):
        return measure(texts, names), measure(edited, edited_names)
    found = _count(string_column(texts), refs, kept)
    left = _count(string_column(edited), edited_refs - of_words)
    cut = _count(string_column(kept.cut), of_words)
    left |= {ref: found[_WHOLE[ref]] + cut[ref] for ref in of_words}
    return _values(found, names), _values(left, edited_names)


def measure_by(plugin: Plugin, columns: Mapping[str, Any], *others: Any) -> Column:
    """One number per document by a function of somebody else's: float64, whole numbers too. It may answer
    those for one shard and others for the next, and a column has one type in all of them."""

    def numbers(answer: Any, rows: int) -> Column:
        with plugin.blamed():
            values = np.asarray(answer)
        if values.shape != (rows,) or values.dtype.kind not in "iufb":
            raise plugin.fault(
                f"returned {values.dtype} of shape {values.shape}; {rows} numbers are needed",
                "return a list, or a NumPy array, with a number for each of columns['text']",
            )
        if not np.isfinite(values).all():
            raise plugin.fault("returned a number that is not finite", "return 0 instead")
        return values.astype(np.float64)

    found: Column = plugin.ask(columns, numbers, *others)
    return found


def _counts_for(names: Collection[str]) -> set[str]:
    asked = [MEASURES[name] for name in names]
    return {ref for m in asked for ref in (*_parts(m.counted), *_parts(m.of)) if ref}


def _group(ref: str) -> str:
    return ref.split(".")[0]


def _values(found: dict[str, Column], names: Collection[str]) -> dict[str, Column]:
    asked = [MEASURES[name] for name in names]
    return {
        name: _ratio(_composed(found, m.counted), _composed(found, m.of)) if m.of else found[m.counted]
        for name, m in zip(names, asked, strict=True)
    }


# Counted from split words, and what of it is a sum over lines.
_OF_WORDS = {"words", "repetition"}
_WHOLE = {"words.words": "whole.words", "words.sentences": "whole.sentences"}


def _count(column: StringColumn, refs: Collection[str], kept: KeptLines | None = None) -> dict[str, Column]:
    """What the kernels count, by "<group>.<name>": at least the refs asked for."""
    data, offsets = column.data, column.offsets
    groups = set(map(_group, refs))
    found: dict[str, Column] = {"bytes.bytes": np.diff(offsets)}
    if "marks" in groups:
        found |= _named("marks", characters.measure_marks(data, offsets))
    if "characters" in groups:
        found |= _named("characters", characters.measure_chars(data, offsets, class_table()))
    if "lines" in groups:
        counted = lines.measure_lines(data, offsets, class_table(), short_chars=SHORT_LINE_CHARS)
        found |= _named("lines", counted)
    if "phrases" in groups:
        names = tuple(n for n in _PHRASES if f"phrases.{n}" in refs or f"phrases.{n}_lines" in refs)
        hits = patterns.count_phrases(data, offsets, _phrase_table(names))
        for group, name in enumerate(names):
            found[f"phrases.{name}"], found[f"phrases.{name}_lines"] = hits.hits[group], hits.lines[group]
    if groups & {"code", "generated"}:
        code = codelines.measure_code_lines(data, offsets, head_lines=HEAD_LINES, head_bytes=HEAD_BYTES)
        found |= _named("code", code)
        if "generated" in groups:
            heads = codelines.gather_heads(data, offsets, code.head)
            found["generated.lines"] = patterns.count_phrases(*heads, _generated_marks()).lines[0]
    if groups & _OF_WORDS:
        found |= _count_words(data, offsets, groups, kept)
    return found


def _count_words(
    data: Column, offsets: Column, groups: Collection[str], kept: KeptLines | None
) -> dict[str, Column]:
    """Block by block: the words of a block are split once, and all that is asked is counted from them."""
    blocks = list(_blocks(offsets))
    most = max((int(offsets[end] - offsets[start]) for start, end in blocks), default=0)
    into = words.empty_words(most, max((end - start for start, end in blocks), default=0))
    stop_hashes = _stop_hashes()
    parts: list[dict[str, Column]] = []
    for start, end in blocks:
        split = words.split_words(data, offsets[start : end + 1], class_table(), _lexicon(), into)
        part: dict[str, Column] = {}
        if "words" in groups:
            part |= _named("words", wordstats.measure_words(*split, stop_hashes))
        if "repetition" in groups:
            repeated = wordstats.measure_repetition(split.offsets, split.hashes, split.chars)
            part |= {f"repetition.top_{n}": repeated.top[:, k] for k, n in enumerate(wordstats.TOP_SIZES)}
            part |= {f"repetition.dup_{n}": repeated.dup[:, k] for k, n in enumerate(wordstats.DUP_SIZES)}
        if kept is not None:
            places = kept.offsets[start : end + 1]
            part |= _named("whole", wordstats.count_whole(split.offsets, split.facts, places, kept.is_whole))
        parts.append(part)
    return {ref: np.concatenate([part[ref] for part in parts]) for ref in parts[0]}


def _blocks(offsets: Column) -> Iterator[tuple[int, int]]:
    """Runs of rows with about _BLOCK_BYTES of text, at least one row each; one empty run for no rows."""
    rows = len(offsets) - 1
    start = 0
    while True:
        end = int(np.searchsorted(offsets, offsets[start] + _BLOCK_BYTES, side="right")) - 1
        end = min(max(end, start + 1), rows)
        yield start, end
        start = end
        if start >= rows:
            return


def _named(group: str, counted: Any) -> dict[str, Column]:
    return {f"{group}.{field}": value for field, value in counted._asdict().items()}


def _parts(of: str) -> tuple[str, ...]:
    return _COMPOSED[of][0] if of in _COMPOSED else (of,)


def _composed(found: dict[str, Column], of: str) -> Column:
    if of not in _COMPOSED:
        return found[of]
    refs, compose = _COMPOSED[of]
    return compose(*(found[ref] for ref in refs))


def _ratio(counted: Column, of: Column) -> Column:
    return np.divide(counted, of, out=np.zeros(len(of), np.float64), where=of != 0)


# What is made of more than one count, or of none.
_COMPOSED: dict[str, tuple[tuple[str, ...], Callable[..., Column]]] = {
    "alphanumerics": (("characters.letters", "characters.digits"), np.add),
    "body": (("marks.chars", "marks.newlines"), lambda chars, newlines: chars - newlines),
    "enough_lines": (("lines.filled",), lambda filled: np.where(filled >= MIN_LINES_TO_REPEAT, filled, 0)),
    "two": (("words.words",), lambda count: np.full(len(count), 2, np.int64)),
}

_PHRASES = {
    "lorem_ipsum": LOREM_IPSUM,
    "javascript": JAVASCRIPT,
    "policy_phrases": POLICY_PHRASES,
    "urls": URL_STARTS,
    "boilerplate": BOILERPLATE,
}


@functools.cache
def _phrase_table(names: tuple[str, ...]) -> patterns.PhraseTable:
    return patterns.phrase_table(tuple(_PHRASES[name] for name in names))


@functools.cache
def _generated_marks() -> patterns.PhraseTable:
    return patterns.phrase_table((codelines.GENERATED_MARKS,))


@functools.cache
def _lexicon() -> words.Lexicon:
    return words.Lexicon(words.pack(UNITS), words.pack(ABBREVIATIONS))


@functools.cache
def _stop_hashes() -> Column:
    text = np.frombuffer(" ".join(STOP_WORDS).encode(), np.uint8)
    split = words.split_words(text, np.array([0, text.size], np.int64), class_table(), _lexicon())
    return split.hashes.copy()


def _described() -> Iterator[tuple[str, Measure]]:
    rows = [
        ("bytes", "bytes.bytes", "", "bytes of UTF-8"),
        ("chars", "marks.chars", "", "code points"),
        ("open_braces", "marks.braces", "", "opening curly brackets"),
        ("ascii_share", "characters.ascii", "characters.chars", "characters below U+0080"),
        ("letter_share", "characters.letters", "characters.chars", "letters"),
        ("alphanumeric_share", "alphanumerics", "characters.chars", "letters and decimal digits"),
        ("upper_share", "characters.upper", "characters.chars", "capital and title-case letters"),
        ("digit_share", "characters.digits", "characters.chars", "decimal digits of any script"),
        ("whitespace_share", "characters.spaces", "characters.chars", "spaces, tabs, line ends"),
        ("control_share", "characters.controls", "characters.chars", "control characters that are no spaces"),
        ("symbol_share", "characters.symbols", "characters.chars", "punctuation and symbols"),
        ("longest_char_run", "characters.longest_run", "", "longest run of one character that is no space"),
        ("lines", "lines.lines", "", "lines, blank ones too; a last line end begins no other"),
        ("filled_lines", "lines.filled", "", "lines with a character that is no space"),
        ("paragraphs", "lines.paragraphs", "", "runs of text between two or more line ends"),
        ("bullet_line_share", "lines.bullets", "lines.lines", "lines that begin with - or •"),
        ("ellipsis_line_share", "lines.ellipses", "lines.lines", "lines that end in ... or …"),
        ("terminal_line_share", "lines.terminals", "lines.filled",
         "filled lines that end in . ! ? or their like"),
        ("short_line_share", "lines.short", "lines.filled", "filled lines of at most 30 characters"),
        ("dup_lines", "lines.dup_lines", "", "filled lines that an earlier one equals"),
        ("dup_paragraphs", "lines.dup_paragraphs", "", "paragraphs that an earlier one equals"),
        ("dup_line_share", "lines.dup_lines", "lines.filled", "filled lines that an earlier one equals"),
        ("dup_paragraph_share", "lines.dup_paragraphs", "lines.paragraphs",
         "paragraphs that an earlier one equals"),
        ("dup_line_char_share", "lines.dup_line_chars", "marks.chars", "characters in duplicate lines"),
        ("dup_line_body_share", "lines.dup_line_chars", "body",
         "the same, of the characters that are no line ends"),
        ("dup_paragraph_char_share", "lines.dup_paragraph_chars", "marks.chars",
         "characters in duplicate paragraphs"),
        ("repeated_line_share", "lines.repeated_lines", "enough_lines",
         "filled lines that equal another; 0 below 6 lines"),
        ("words", "words.words", "", "words, punctuation standing alone included"),
        ("non_symbol_words", "words.non_symbol_words", "",
         "words that are not all punctuation, symbols or controls"),
        ("mean_word_length", "words.non_symbol_chars", "words.non_symbol_words",
         "characters of a non-symbol word"),
        ("median_word_length", "words.double_median", "two",
         "characters of a non-symbol word, in the middle"),
        ("longest_word", "words.longest", "", "characters of the longest word"),
        ("alpha_word_share", "words.alpha_words", "words.words", "words with a letter"),
        ("stop_words", "words.stop_words", "", "how many of the be to of and that have with occur"),
        ("sentences", "words.sentences", "", "sentences; a line ends one"),
        ("hash_word_ratio", "marks.hashes", "words.words", "# per word"),
        ("ellipsis_word_ratio", "marks.ellipses", "words.words", "... and … per word"),
        ("newline_word_ratio", "marks.newlines", "words.words", "line ends per word"),
        *(
            (f"top_{n}gram_share", f"repetition.top_{n}", "marks.chars",
             f"characters of the most frequent {n}-gram")
            for n in wordstats.TOP_SIZES
        ),
        *(
            (f"dup_{n}gram_share", f"repetition.dup_{n}", "marks.chars",
             f"characters in {n}-grams met before")
            for n in wordstats.DUP_SIZES
        ),
        ("lorem_ipsum", "phrases.lorem_ipsum", "", "places that say lorem ipsum"),
        ("javascript", "phrases.javascript", "", "places that say javascript"),
        ("policy_phrases", "phrases.policy_phrases", "", "places that speak of policies or cookies"),
        ("urls", "phrases.urls", "", "places with http:// or https://"),
        ("boilerplate_lines", "phrases.boilerplate_lines", "", "lines with a phrase of site boilerplate"),
        ("boilerplate_line_share", "phrases.boilerplate_lines", "enough_lines",
         "the same, of filled lines; 0 below 6"),
        ("longest_line", "code.longest", "", "characters of the longest line"),
        ("mean_line_length", "code.chars", "code.lines", "characters of a line, its end left out"),
        ("data_line_share", "code.data", "code.lines",
         "lines of 40 bytes or more that are numbers, or have 64 of base64"),
        ("generated_marks", "generated.lines", "",
         "of the first 5 lines, those that say generated, or do not edit"),
    ]  # fmt: skip
    for name, counted, of, description in rows:
        unit = "ratio" if name.endswith("_ratio") else "share" if name.endswith("_share") else "count"
        if name.endswith("_length") or name == "longest_line":
            unit = "characters"
        yield name, Measure(_group(_parts(counted)[0]), unit, description, counted, of)


MEASURES: dict[str, Measure] = dict(_described())


def unknown_measure(name: str) -> tuple[str, str]:
    """What is wrong with a name that is none of a text, and what to do."""
    if name == parsing.NAME:
        what, advice = f"{name} needs the language of a file, not its text alone", "ask for it in `filters`"
    else:
        (near,) = difflib.get_close_matches(name, MEASURES, n=1, cutoff=0)
        what, advice = f"there is no measure {name}", f"did you mean `{near}`?"
    return what, advice
