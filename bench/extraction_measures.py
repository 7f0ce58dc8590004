"""How good an extracted text is, against an article, against segments, and against a page's structure.

    article     4-grams of words ─ as multisets ─ tp, fp, fn of a page ─> means of pages' precision and recall
    segments    those that belong and are there, that do not and are, … ─> one count over all pages
    structure   gold blocks ─ each with the likest block of the Markdown ─> mean of edit similarities

The first counts as scrapinghub's article-extraction-benchmark does: a page weighs as much as any other, a
text of fewer than four words is one shingle, a page without a prediction has no precision, and F1 is of the
means. The second counts as trafilatura's evaluation does: a segment is found where it occurs in the output,
all runs of white space being one space. The third is WebMainBench's edit similarity, 1 - distance / longer
length.
"""

from __future__ import annotations

import os
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

NGRAM = 4
# A page of a hundred signatures is not worth a hundred pages with one program each.
MAX_ITEMS = 20
MAX_CHARS = 4_000  # that are compared: two such texts take 0.05 s, by the product of their lengths

_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"\s+")


# --- articles ---


class Overlap(NamedTuple):
    tp: float
    fp: float
    fn: float


def overlap(gold: str, predicted: str) -> Overlap:
    true, found = shingles(gold), shingles(predicted)
    both = (true & found).total()
    whole = (true | found).total()
    if not whole:
        return Overlap(0, 0, 0)
    return Overlap(both / whole, (found.total() - both) / whole, (true.total() - both) / whole)


def shingles(text: str) -> Counter[tuple[str, ...]]:
    words = _WORD.findall(text)
    if not words:
        return Counter()
    return Counter(tuple(words[at : at + NGRAM]) for at in range(max(1, len(words) - NGRAM + 1)))


def article_figures(overlaps: Iterable[Overlap]) -> dict[str, float]:
    pages = list(overlaps)
    precision = _mean(tp / (tp + fp) for tp, fp, fn in pages if tp + fp > 0)
    recall = _mean(tp / (tp + fn) for tp, fp, fn in pages if tp + fn > 0)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {"pages": len(pages), "precision": precision, "recall": recall, "f1": f1}


# --- segments ---


class Found(NamedTuple):
    tp: int
    fp: int
    fn: int
    tn: int


def find_segments(wanted: Sequence[str], unwanted: Sequence[str], predicted: str) -> Found:
    text = one_line(predicted)
    tp = sum(one_line(segment) in text for segment in wanted)
    fp = sum(one_line(segment) in text for segment in unwanted)
    return Found(tp, fp, len(wanted) - tp, len(unwanted) - fp)


def segment_figures(pages: Iterable[Found]) -> dict[str, float]:
    counts = list(pages)
    tp, fp, fn, tn = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0, 0, 0)
    return {
        "pages": len(counts),
        "precision": _ratio(tp, tp + fp),
        "recall": _ratio(tp, tp + fn),
        "f1": _ratio(2 * tp, 2 * tp + fp + fn),
        "accuracy": _ratio(tp + tn, tp + fp + fn + tn),
    }


def one_line(text: str) -> str:
    return _SPACE.sub(" ", text).strip()


# --- structure ---

Table = list[list[str]]


class Blocks(NamedTuple):
    """What of a page is more than prose, each as one normalized text."""

    code: list[str]
    tables: list[str]
    formulas: list[str]


_FORMULA = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<![\\$\w])\$(?=[^\s$])([^$\n]*?[^\s$\\])\$(?![\w$])",
    re.DOTALL,
)
_CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")


def gold_blocks(code: Sequence[str], tables: Sequence[Table], formulas: Sequence[str]) -> Blocks:
    return Blocks(
        [normal_code(text) for text in code],
        [normal_table(table) for table in tables],
        [normal_formula(text) for text in formulas],
    )


def markdown_blocks(markdown: str) -> Blocks:
    """Fenced and indented code, GFM tables, and what stands between dollars or \\( and \\) elsewhere."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    lines: list[str] = markdown.splitlines()
    code = []
    for token in tokens:
        if token.type in ("fence", "code_block"):
            code.append(normal_code(token.content))
            for number in range(*token.map or (0, 0)):
                if number < len(lines):
                    lines[number] = ""
    prose = _CODE_SPAN.sub(" ", "\n".join(lines))
    formulas = ["".join(groups) for groups in _FORMULA.findall(prose)]
    return Blocks(
        code, [normal_table(table) for table in _tables(tokens)], [normal_formula(f) for f in formulas]
    )


def _tables(tokens: list[Token]) -> Iterable[Table]:
    table: Table = []
    in_table = False
    for token in tokens:
        if token.type == "table_open":
            table, in_table = [], True
        elif token.type == "tr_open" and in_table:
            table.append([])
        elif token.type == "inline" and in_table:
            table[-1].append("".join(_plain(child) for child in token.children or []))
        elif token.type == "table_close":
            in_table = False
            yield table


def _plain(token: Token) -> str:
    if token.type in ("softbreak", "hardbreak") or (token.type == "html_inline" and "br" in token.content):
        return " "
    return "" if token.type == "html_inline" else token.content


def normal_code(text: str) -> str:
    lines = [line.rstrip() for line in text.replace("\xa0", " ").expandtabs(8).splitlines()]
    return "\n".join(lines).strip("\n")[:MAX_CHARS]


def normal_table(table: Table) -> str:
    """A row is a line, between cells stands a bar; empty rows and empty last cells are nothing."""
    rows = [" | ".join(one_line(cell) for cell in row).rstrip(" |") for row in table]
    return "\n".join(row for row in rows if row)[:MAX_CHARS]


def normal_formula(text: str) -> str:
    """LaTeX without the white space, which means nothing, and without its delimiters."""
    plain = _SPACE.sub("", text)
    for start, end in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if plain.startswith(start) and plain.endswith(end) and len(plain) > len(start + end):
            plain = plain[len(start) : -len(end)]
            break
    return plain.replace("\\displaystyle", "").replace("\\textstyle", "")[:MAX_CHARS]


def best_similarities(gold: Sequence[str], predicted: Sequence[str]) -> list[float]:
    """For each of the first MAX_ITEMS gold blocks, how like it the likest predicted block is."""
    candidates = list(dict.fromkeys(predicted))
    return [_best(block, candidates) for block in gold[:MAX_ITEMS]]


def _best(block: str, candidates: list[str]) -> float:
    best = 1.0 if block in candidates else 0.0
    if best:
        return best
    # the likest by length first: one that is much longer or shorter cannot be better than their ratio
    for candidate in sorted(candidates, key=lambda text: abs(len(text) - len(block))):
        shorter, longer = sorted((len(block), len(candidate)))
        if longer and shorter / longer > best:
            best = max(best, similarity(block, candidate))
    return best


def similarity(a: str, b: str) -> float:
    longer = max(len(a), len(b))
    return 1 - edit_distance(a, b) / longer if longer else 1.0


def edit_distance(a: str, b: str) -> int:
    """Levenshtein's, a column at a time in the bits of one integer (Hyyrö 2003, after Myers 1999)."""
    if len(a) < len(b):
        a, b = b, a
    start = len(os.path.commonprefix((a, b)))  # noqa: RUF071 - by character is what is meant
    a, b = a[start:], b[start:]
    if not b:
        return len(a)
    places: dict[str, int] = {}
    for at, char in enumerate(b):
        places[char] = places.get(char, 0) | 1 << at
    every, last = (1 << len(b)) - 1, 1 << len(b) - 1
    up, down, distance = every, 0, len(b)
    for char in a:
        same = places.get(char, 0)
        diagonal = ((((same & up) + up) ^ up) | same | down) & every
        rises, falls = (down | ~(diagonal | up)) & every, up & diagonal
        distance += bool(rises & last) - bool(falls & last)
        rises, falls = (rises << 1 | 1) & every, (falls << 1) & every
        up, down = (falls | ~(diagonal | rises)) & every, rises & diagonal
    return distance


def code_lines(code: Sequence[str], predicted: str) -> tuple[int, int]:
    """How many lines of the gold code stand in the output just so, indented as they are, fenced or not;
    and how many lines there are. Lines of three characters or fewer say nothing."""
    there = {line.rstrip() for line in predicted.replace("\xa0", " ").expandtabs(8).splitlines()}
    lines = [line for block in code[:MAX_ITEMS] for line in block.splitlines() if len(line.strip()) > 3]
    return sum(line in there for line in lines), len(lines)


def structure_figures(pages: Iterable[tuple[str, list[float]]]) -> dict[str, float]:
    """Of (site, similarities of a page's blocks): the mean over blocks, and over sites of their means."""
    sites: dict[str, list[float]] = {}
    count = 0
    for site, values in pages:
        if values:
            sites.setdefault(site, []).extend(values)
            count += 1
    return {
        "pages": count,
        "items": sum(map(len, sites.values())),
        "similarity": _mean(value for values in sites.values() for value in values),
        "site_similarity": _mean(map(statistics.mean, sites.values())),
    }


def page_similarity(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """All blocks of a page as one text, as WebMainBench compares them: what is too much costs, too."""
    return similarity("\n".join(gold)[:MAX_CHARS], "\n".join(predicted)[:MAX_CHARS])


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return statistics.fmean(numbers) if numbers else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
