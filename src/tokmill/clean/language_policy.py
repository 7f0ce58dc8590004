"""Which languages a corpus may have: what is asked, what a source allows to apply, and who is left out.

    detect   texts ─ detect_languages ─ codes, scores ┬─ no language known, or a score below the bound: unsure
    field    meta  ─ the source's own word ─ codes ───┴─ a language that is not in `keep`: other

Without `keep` the language is only recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.clean.detectors import UNDETERMINED, DetectorName
from tokmill.clean.language import detect_languages
from tokmill.manifest import Json

OTHER_LANGUAGE, UNSURE_LANGUAGE = "other_language", "language_unsure"
LANGUAGE_SCORE = "language_score"


class LanguagePlan(msgspec.Struct, frozen=True):
    """What is asked, and what is done: `applied` is none where a field is asked for that the source has not."""

    asked: Json
    applied: str  # field | detect | none
    key: str | None = None  # in `meta`, for field
    model: str = ""  # sha256 of the detector's model


class Spoken(NamedTuple):
    """Per document its language (null: not known), how sure that is, and what is wrong with it."""

    codes: Any  # string column
    scores: NDArray[np.float64]  # 1 where the source itself says it
    min_score: float
    is_unsure: NDArray[np.bool_]
    is_other: NDArray[np.bool_]


def judge_languages(meta: Any, texts: Any, config: Json) -> Spoken:
    """`config` is a LanguagePlan that is applied."""
    if config["applied"] == "field":
        codes = _field_codes(meta, config["key"])
        scores, min_score = np.ones(len(texts)), 0.0
    else:
        detector: DetectorName = config["asked"]["detector"]
        codes, scores = detect_languages(texts, detector)
        min_score = float(config["asked"]["min_score"])
    keep = config["asked"]["keep"]
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
