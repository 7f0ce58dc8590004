"""How much of each block of a page belongs to its text, and how much that answer weighs in training.

    articles    words of the blocks ─ aligned with the article's words ──────────> share of matched words
    segments    words ─ runs of four that peers' texts have ─ mean of peers ─┬───> weak label
                blocks that hold a segment with, or without ─────────────────┴───> 1, or 0
    structure   words ─ runs of four that the known text has ────────────────────> share of covered words

    label, words ─ weigh ─> weight        LabelledPage ─ write_labels ─ load_labels ─> LabelledPage

Blocks are those of tokmill.kernels.htmlblocks, without formulas. Labels are float32 and shares of peers
float16: the precision that the shipped model was trained with.
"""

from __future__ import annotations

import difflib
import html as entities
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from tokmill.kernels.htmlblocks import Blocks, cut
from tokmill.kernels.htmltree import TAGS, TEXT, Tree, parse
from tokmill.kernels.jit import Bytes, frozen

Shares = NDArray[np.float64]  # [block]

# Peers, and what the word of each counts for where nobody has labelled a block. By their F1 on the segments:
# trafilatura 0.932, its modes 0.927 and 0.929, readability 0.874, and Resiliparse, which keeps much, 0.821.
OPINIONS = {
    "trafilatura": 0.45,
    "trafilatura_precision": 0.15,
    "trafilatura_recall": 0.15,
    "readability": 0.2,
    "resiliparse": 0.05,
}
# Whether a weak label is sure: all of these say so, or none. Recall and Resiliparse say yes to nearly all.
_WITNESSES = ("trafilatura", "trafilatura_precision", "readability")
_RUN = 4  # words: the shingle of the article measure
_MIN_MATCH = 3  # words in a row that are no chance; fewer count only where they are the whole block
_WORD = re.compile(r"\w+")
_BR = TAGS["br"]

# A page weighs about the same whatever its length, as it does in the measures: words of a block (a long one
# is one verdict, too) over words that belong. So much for a page of each set, and for any block of it:
_MAX_WORDS, _MIN_PAGE_WORDS = 200, 50
_PAGE_WEIGHT = {"articles": 7.0, "segments": 1.5, "structure": 1.0, "teasers": 2.0, "parts": 2.0, "both": 2.0}
_BLOCK_WEIGHT = {"articles": 0.03}  # of any other set, and of those made of articles:
_LEAST_WEIGHT = 0.01
# By hand is worth more than peers: 0.5 for each block of a segment. Heavier made segments better, 0.948, and
# articles worse, 0.948 (docs/decisions/0016).
_SEGMENT_WEIGHT = 0.5
_UNSURE = 0.2  # what is left of a weak label's weight where peers are of two minds
_EMPTY_WEIGHT = 0.001  # a block without words: whatever it is, no measure sees it


class LabelledPage(msgspec.Struct):
    set: str
    id: str
    host: str
    fold: int
    html: str
    words: list[int]  # [block], as the others
    label: list[float]
    weight: list[float]


class Texts:
    """The blocks of a page as text, in its order, and their words."""

    def __init__(self, html: str, between: str = "") -> None:
        """`between`: what stands between the texts of a block, which are one where markup is within words."""
        data, tree, blocks = parse_blocks(html)
        source = bytes(data)
        parts: list[list[str]] = [[] for _ in blocks.element]
        for node in np.flatnonzero((tree.tag == TEXT) | (tree.tag == _BR)).tolist():
            if tree.tag[node] == TEXT:
                if blocks.of[node] >= 0:
                    text = source[tree.start[node] : tree.end[node]].decode("utf-8", "replace")
                    parts[blocks.of[node]].append(text)
            elif node + 1 < len(tree.tag) and blocks.of[node + 1] >= 0:
                parts[blocks.of[node + 1]].append(" ")
        self.texts = [one_line(entities.unescape(between.join(part))) for part in parts]
        self.words = [_WORD.findall(text) for text in self.texts]
        self.counts = np.array([len(words) for words in self.words], np.int64)
        self.ends = np.concatenate(([0], np.cumsum(self.counts)))  # among the words of the page
        lengths = [len(text) + 1 for text in self.texts]
        self.starts = np.concatenate(([0], np.cumsum(lengths)))[:-1]  # among its characters

    def all_words(self) -> list[str]:
        return [word for words in self.words for word in words]

    def find(self, segment: str) -> list[tuple[int, int]]:
        """All places of a text: its first block, and one after its last."""
        page, wanted = " ".join(self.texts), one_line(segment)
        places = []
        at = page.find(wanted) if wanted else -1
        while at >= 0:
            first, last = np.searchsorted(self.starts, (at, at + len(wanted) - 1), "right") - 1
            places.append((int(first), int(last) + 1))
            at = page.find(wanted, at + 1)
        return places

    def means(self, is_there: NDArray[Any]) -> Shares:
        """Of what is known of each word of the page; 0 for a block without words."""
        return np.array(
            [
                is_there[start:end].mean() if end > start else 0.0
                for start, end in zip(self.ends[:-1].tolist(), self.ends[1:].tolist(), strict=True)
            ],
            np.float64,
        )


def parse_blocks(html: str) -> tuple[Bytes, Tree, Blocks]:
    data = frozen(np.frombuffer(html.encode(), np.uint8), np.uint8)
    tree = parse(data)
    return data, tree, cut(tree, np.zeros(len(tree.tag), np.uint8))


def one_line(text: str) -> str:
    return " ".join(text.split())


# --- labels ---


def label_page(
    set_: str, html: str, gold: Mapping[str, Any], peers: Mapping[str, str] | None = None
) -> tuple[NDArray[np.int64], Shares, Shares]:
    """Words, labels and weights of the blocks. `peers`: the text of each of OPINIONS, for segments."""
    if set_ == "segments":
        if peers is None:
            raise ValueError("segments are labelled with the texts of peers")
        texts = Texts(html)
        shares = np.array([cover(texts, peers[name]) for name in OPINIONS])
        label, by_hand = label_segments(
            texts, shares, gold["with"], gold["without"], gold.get("comments") or []
        )
        at = [list(OPINIONS).index(name) for name in _WITNESSES]
        witnesses = shares.astype(np.float16)[at].astype(np.float64)
        sure = np.abs(witnesses.mean(0) - 0.5) * 2
    elif set_ == "articles":
        texts = Texts(html)
        label = align(texts, gold["text"])
        by_hand, sure = np.zeros(len(label), bool), np.ones(len(label))
    else:
        # what documentation highlights is a text for each token
        texts = Texts(html, between=" ")
        label = cover(texts, gold["text"])
        by_hand, sure = np.zeros(len(label), bool), np.ones(len(label))
    label = label.astype(np.float32).astype(np.float64)
    return texts.counts, label, weigh(set_, texts.counts, label, by_hand, sure)


def weigh_made(set_: str, html: str, label: Sequence[float]) -> tuple[NDArray[np.int64], Shares, Shares]:
    """Words, labels and weights of a page made of a labelled one."""
    words, shares = Texts(html).counts, np.array(label, np.float64)
    return words, shares, weigh(set_, words, shares, np.zeros(len(shares), bool), np.ones(len(shares)))


def align(texts: Texts, gold: str) -> Shares:
    """The share of each block's words that the longest runs common to page and article match, in order."""
    matcher = difflib.SequenceMatcher(None, texts.all_words(), _WORD.findall(gold), autojunk=False)
    is_matched = np.zeros(texts.ends[-1])
    for start, _, length in matcher.get_matching_blocks():
        if length == 0:
            continue
        block = int(np.searchsorted(texts.ends, start, "right")) - 1
        if length >= _MIN_MATCH or texts.counts[block] <= length + 1:
            is_matched[start : start + length] = 1
    return texts.means(is_matched)


def cover(texts: Texts, text: str) -> Shares:
    """The share of each block's words that are in a run of four which the text has, too."""
    gold, page = _WORD.findall(text), texts.all_words()
    runs = set(zip(*(gold[start:] for start in range(_RUN)), strict=False))
    is_covered = np.zeros(len(page), bool)
    for start in range(len(page) - _RUN + 1):
        if tuple(page[start : start + _RUN]) in runs:
            is_covered[start : start + _RUN] = True
    return texts.means(is_covered)


def label_segments(
    texts: Texts, shares: Shares, wanted: Sequence[str], unwanted: Sequence[str], comments: Sequence[str]
) -> tuple[Shares, NDArray[np.bool_]]:
    """Labels, and which are by hand. What is unwanted is so wherever it occurs; of a wanted segment one place
    is meant, the one that peers believe in most, for a teaser may say the same. Comments have the last word.
    """
    label: Shares = np.array(list(OPINIONS.values())) @ shares
    by_hand = np.zeros(len(label), bool)
    for segment in unwanted:
        for first, end in texts.find(segment):
            label[first:end], by_hand[first:end] = 0, True
    for segment in wanted:
        places = texts.find(segment)
        if places:
            # between equals the longer: 1,000 characters are worth 0.03 of belief
            belief = [
                label[first:end].mean() + 1e-3 * sum(map(len, texts.texts[first:end])) ** 0.5
                for first, end in places
            ]
            first, end = places[int(np.argmax(belief))]
            label[first:end], by_hand[first:end] = 1, True
    for segment in comments:
        for first, end in texts.find(segment):
            label[first:end], by_hand[first:end] = 0, True
    return label, by_hand


def weigh(
    set_: str, words: NDArray[np.int64], label: Shares, by_hand: NDArray[np.bool_], sure: Shares
) -> Shares:
    size = np.minimum(words, _MAX_WORDS)
    of_page = max((size * label).sum(), _MIN_PAGE_WORDS)
    weight: Shares = (size + 2.0) / of_page * _PAGE_WEIGHT[set_] + _BLOCK_WEIGHT.get(set_, _LEAST_WEIGHT)
    if set_ == "segments":
        weight = weight * (_UNSURE + (1 - _UNSURE) * sure)
        weight = np.where(by_hand, weight + _SEGMENT_WEIGHT, weight)
    weight[words == 0] = _EMPTY_WEIGHT
    return weight


# --- a file of them: one JSON line for each page, in zstd ---


def write_labels(path: Path, pages: Iterable[LabelledPage]) -> int:
    """How many bytes."""
    lines = msgspec.json.Encoder().encode_lines(list(pages))
    unfinished = path.with_name(f"{path.name}.unfinished")
    size = unfinished.write_bytes(zstandard.ZstdCompressor().compress(lines))
    unfinished.replace(path)
    return size


def load_labels(path: Path) -> list[LabelledPage]:
    with path.open("rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file).read()
    return msgspec.json.Decoder(LabelledPage).decode_lines(lines)
