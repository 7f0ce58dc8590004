"""Perplexity under an n-gram model: read from an ARPA file, or trained here.

    shards of texts ─ count_words ─ make_vocabulary ─> words
                    ─ word_ids, count_ngrams ─ join_ngrams ─ train_language_model ─> a model

    file "language-model"   words        uint8[…], word_ends  int64[word + 1]      ids in this order
                            parents, words_of, probabilities, backoffs   int32[node]
                            facts: sizes of the orders, discounts, tokens

A line of a text is a sentence, its words stand between white space. As in CCNet (Wenzek et al. 2020) the
perplexity of a text is 10^(-sum of log10 p / n) over all words and ends of sentences; each language has its
own bounds of head, middle and tail, which are thirds of its documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.kernels.languagemodel import END, MAX_ORDER, map_words, node_slots, score_ids, word_slots
from tokmill.schema import StringColumn
from tokmill.scores import Piece, ScoreKind
from tokmill.scores.arpa import SPECIAL, load_arpa
from tokmill.scores.arrayfile import checked_arrays, load_arrays, write_arrays
from tokmill.scores.kneserney import ONE, NgramCounts, Nodes, count_ngrams, estimate
from tokmill.scores.logarithm import LN10, exp
from tokmill.storage.disk import Written, load_bytes

KIND = "language-model"
MAX_WORDS = 1 << 22
_ARRAYS = {
    "words": ("|u1", 1),
    "word_ends": ("<i8", 1),
    "parents": ("<i4", 1),
    "words_of": ("<i4", 1),
    "probabilities": ("<i4", 1),
    "backoffs": ("<i4", 1),
}


class LanguageModel:
    """Open for scoring: the arrays, and tables to find words and n-grams in."""

    def __init__(self, words: Sequence[bytes], nodes: Nodes, sha256: str = "") -> None:
        self.words, self.nodes, self.sha256 = list(words), nodes, sha256
        self._bytes = np.frombuffer(b"".join(self.words) + b"\0", np.uint8)
        self._ends = np.cumsum([0, *map(len, self.words)])
        self._word_slots = word_slots(self._bytes, self._ends)
        self._records = np.stack(nodes[1:5], axis=1)
        self._node_slots = node_slots(nodes.parents, nodes.words, len(self.words))

    @property
    def order(self) -> int:
        return len(self.nodes.sizes)

    def ids(self, texts: StringColumn) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Of all rows, and where each row ends."""
        return map_words(texts.data, texts.offsets, self._bytes, self._ends, self._word_slots)

    def sum_logs(
        self, ids: NDArray[np.int32], ends: NDArray[np.int64], each: NDArray[np.int32] | None = None
    ) -> NDArray[np.int64]:
        """log10 p of each row, in 1/2^22; of every id into `each`."""
        return score_ids(ids, ends, self.order, self._records, self._node_slots, each)


# --- training ---


def count_words(texts: StringColumn) -> Counter[bytes]:
    """Of one shard. Counts of shards add up."""
    counts: Counter[bytes] = Counter()
    for start, stop in zip(texts.offsets[:-1].tolist(), texts.offsets[1:].tolist(), strict=True):
        counts.update(texts.data[start:stop].tobytes().split())
    return counts


def make_vocabulary(
    shards: Iterable[Mapping[bytes, int]], *, max_words: int = MAX_WORDS, min_count: int = 1
) -> list[bytes]:
    """The most frequent words, after the three special ones; of equal ones the first by its bytes."""
    joined: Counter[bytes] = Counter()
    for shard in shards:
        joined.update(shard)
    for special in SPECIAL:
        joined.pop(special, None)
    ranked = sorted((-count, word) for word, count in joined.items() if count >= min_count)
    return [*SPECIAL, *(word for _, word in ranked[: max_words - len(SPECIAL)])]


def count_text_ngrams(texts: StringColumn, words: Sequence[bytes], order: int) -> NgramCounts:
    """Of one shard. A text without a word has no n-grams."""
    spelled = np.frombuffer(b"".join(words) + b"\0", np.uint8)
    ends = np.cumsum([0, *map(len, words)])
    ids, rows = map_words(texts.data, texts.offsets, spelled, ends, word_slots(spelled, ends))
    is_bare = (np.diff(rows) == 1) & (ids[rows[:-1]] == END)
    kept = np.repeat(~is_bare, np.diff(rows))
    return count_ngrams(ids[kept], order)


def train_language_model(counts: NgramCounts, words: Sequence[bytes]) -> LanguageModel:
    """`counts` are joined. Of token ids, the words are whatever tokens are called."""
    return LanguageModel(words, estimate(counts, len(words)))


# --- the file ---


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    sizes: list[int]
    discounts: list[tuple[float, float, float]]


def write_language_model(path: Path, model: LanguageModel) -> Written:
    nodes = model.nodes
    arrays: dict[str, NDArray[Any]] = {
        "words": np.frombuffer(b"".join(model.words), np.uint8),
        "word_ends": np.cumsum([0, *map(len, model.words)]),
        "parents": nodes.parents,
        "words_of": nodes.words,
        "probabilities": nodes.probabilities,
        "backoffs": nodes.backoffs,
    }
    return write_arrays(path, KIND, _Facts(nodes.sizes, nodes.discounts), arrays)


def load_language_model(path: Path) -> LanguageModel:
    """Of our own form, or an ARPA file (.gz or not): its first bytes say which."""
    if load_bytes(path)[:8] != b"tokmill\n":
        return LanguageModel(*load_arpa(path))
    file = load_arrays(path, KIND)
    spelled, ends, parents, words_of, probabilities, backoffs = checked_arrays(file, path, _ARRAYS)
    try:
        facts = msgspec.json.decode(file.facts, type=_Facts)
        sizes, count = facts.sizes, len(ends) - 1
        if not 1 <= len(sizes) <= MAX_ORDER or min(sizes) < 0 or sizes[0] != count or count < len(SPECIAL):
            raise ValueError(f"orders of {sizes} n-grams, of {count} words")
        if {len(parents), len(words_of), len(probabilities), len(backoffs)} != {sum(sizes)}:
            raise ValueError("its arrays have different sizes")
        if ends[0] != 0 or ends[-1] != len(spelled) or (np.diff(ends) < 0).any():
            raise ValueError("its words do not fit their letters")
        bases = np.cumsum([0, *sizes])
        for order, size in enumerate(sizes[1:], 1):
            own = parents[bases[order] : bases[order] + size]
            if ((own < bases[order - 1]) | (own >= bases[order])).any():
                raise ValueError(f"an n-gram of {order + 1} words has no shorter one")
        if ((words_of < 0) | (words_of >= count)).any() or (parents[:count] != -1).any():
            raise ValueError("an n-gram has a word that is none")
        if not np.array_equal(words_of[:count], np.arange(count)):
            raise ValueError("its words are not in order")
        if (probabilities > 0).any() or (np.abs(backoffs.astype(np.int64)) > 500 * ONE).any():
            raise ValueError("a probability is above 1, or a backoff out of bounds")
    except (ValueError, msgspec.DecodeError) as error:
        raise CorruptFile(
            f"no language model: {error}", where=str(path), next="copy or train it again"
        ) from None
    words = [spelled[a:b].tobytes() for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    nodes = Nodes(sizes, parents, words_of, probabilities, backoffs, facts.discounts)
    return LanguageModel(words, nodes, file.sha256)


# --- scoring ---


class PerplexityOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    output: Literal["perplexity", "log10"] = "perplexity"  # log10: the mean log10 p of a word


class PerplexityScorer:
    def __init__(self, model: LanguageModel, options: PerplexityOptions) -> None:
        self._model, self._options = model, options

    def score(self, texts: StringColumn) -> NDArray[np.float64]:
        """A text without a word is one sentence that ends at once."""
        ids, ends = self._model.ids(texts)
        means = self._model.sum_logs(ids, ends) / ONE / np.diff(ends)
        return means if self._options.output == "log10" else exp(-means * LN10)

    def explain(self, text: str) -> list[Piece]:
        """What each word adds to the mean log10 p, all its places together; the least likely first."""
        data = text.encode()
        column = StringColumn(
            np.frombuffer(data or b"\0", np.uint8), np.array([0, len(data)]), np.ones(1, np.bool_)
        )
        ids, ends = self._model.ids(column)
        each = np.zeros(len(ids), np.int32)
        self._model.sum_logs(ids, ends, each)
        spelled = iter(data.split())
        adds: dict[str, int] = {}
        for number, units in zip(ids.tolist(), each.tolist(), strict=True):
            name = "</s>" if number == END else next(spelled).decode()
            adds[name] = adds.get(name, 0) + units
        pieces = [Piece(name, units / ONE / len(ids)) for name, units in adds.items()]
        return sorted(pieces, key=lambda piece: (-abs(piece.contribution), piece.piece))


# --- head, middle, tail ---


class Thirds(NamedTuple):
    """Of a language's documents: head is perplexity <= head, tail is perplexity > middle."""

    head: float
    middle: float


def thirds_by_language(perplexities: NDArray[np.float64], languages: Sequence[str]) -> dict[str, Thirds]:
    """The documents at the end of the first and of the second third: exact, and of any order."""
    names, places = np.unique(np.asarray(languages, object).astype(str), return_inverse=True)
    bounds = {}
    for number, name in enumerate(names.tolist()):
        own = np.sort(perplexities[places == number])
        first, second = (-(-len(own) * part // 3) - 1 for part in (1, 2))
        bounds[name] = Thirds(float(own[first]), float(own[second]))
    return bounds


def name_thirds(
    perplexities: NDArray[np.float64], languages: Sequence[str], bounds: Mapping[str, Thirds]
) -> list[str]:
    """head, middle or tail; "all" in a language that has no bounds."""
    found = []
    for value, language in zip(perplexities.tolist(), languages, strict=True):
        thirds = bounds.get(language)
        if thirds is None:
            found.append("all")
        else:
            found.append("head" if value <= thirds.head else "middle" if value <= thirds.middle else "tail")
    return found


def _open(options: PerplexityOptions, files: Sequence[Path]) -> PerplexityScorer:
    return PerplexityScorer(load_language_model(files[0]), options)


PERPLEXITY = ScoreKind(key="perplexity", options=PerplexityOptions, open=_open)
