"""Language models against kenlm's own files and a slow twin, and every damage told."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scores.reviews import column, documents
from scores.slow_kneser_ney import Gram, estimated, slow_log10
from tokmill.errors import CorruptFile, InputError
from tokmill.scores.arpa import write_arpa
from tokmill.scores.arrayfile import load_arrays, write_arrays
from tokmill.scores.kneserney import ONE, count_ngrams, join_ngrams, load_ngrams, write_ngrams
from tokmill.scores.perplexity import (
    PERPLEXITY,
    LanguageModel,
    PerplexityOptions,
    count_text_ngrams,
    count_words,
    load_language_model,
    make_vocabulary,
    name_thirds,
    thirds_by_language,
    train_language_model,
    write_language_model,
)

# corpus.txt, what lmplz -o 4 --discount_fallback makes of it, and what kenlm 0.3.0 says of some sentences
KENLM = Path(__file__).parent / "kenlm"


def spelled(model: LanguageModel) -> dict[Gram, tuple[float, float]]:
    """Words of every node, and its two logarithms."""
    nodes, words = model.nodes, [word.decode() for word in model.words]
    grams: list[Gram] = []
    for node, parent in enumerate(nodes.parents.tolist()):
        grams.append((words[nodes.words[node]], *(grams[parent] if parent >= 0 else ())))
    logs = zip((nodes.probabilities / ONE).tolist(), (nodes.backoffs / ONE).tolist(), strict=True)
    return dict(zip(grams, logs, strict=True))


def trained(texts: list[str], order: int, cuts: tuple[int, ...] = ()) -> LanguageModel:
    bounds = [0, *sorted(cuts), len(texts)]
    shards = [column(texts[low:high]) for low, high in itertools.pairwise(bounds)]
    words = make_vocabulary([count_words(shard) for shard in shards])
    return train_language_model(join_ngrams([count_text_ngrams(s, words, order) for s in shards]), words)


# --- training ---


def test_training_gives_what_lmplz_gives() -> None:
    ours = spelled(trained((KENLM / "corpus.txt").read_text("utf-8").splitlines(), 4))
    theirs = spelled(load_language_model(KENLM / "four.arpa.gz"))
    assert ours.keys() == theirs.keys()
    for gram, (log, back) in theirs.items():
        assert ours[gram] == pytest.approx((log, back), abs=2e-6)


SENTENCES = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=7), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150)
@given(SENTENCES, st.integers(1, 5))
def test_training_is_that_of_the_slow_way(sentences: list[list[str]], order: int) -> None:
    ours = spelled(trained([" ".join(sentence) for sentence in sentences], order))
    slow = estimated(sentences, order)
    assert ours.keys() == slow.keys()
    for gram, (probability, back) in slow.items():
        assert 10 ** ours[gram][0] == pytest.approx(probability, rel=1e-5)
        assert 10 ** ours[gram][1] == pytest.approx(back, rel=1e-5)


@settings(deadline=None, max_examples=50)
@given(SENTENCES, st.integers(1, 4))
def test_probabilities_of_all_words_after_any_context_add_up_to_one(
    sentences: list[list[str]], order: int
) -> None:
    model = spelled(trained([" ".join(sentence) for sentence in sentences], order))
    words = [gram[0] for gram in model if len(gram) == 1 and gram != ("<s>",)]
    for context in {gram[:-1] for gram in model if "</s>" not in gram[:-1]} | {("e", "e", "e")}:
        total = sum(10 ** slow_log10(model, context, word, order) for word in words)
        assert total == pytest.approx(1, abs=1e-4)


@settings(deadline=None, max_examples=20)
@given(st.permutations(documents(30)), st.lists(st.integers(0, 30), max_size=3))
def test_shards_and_their_order_do_not_change_the_model(rows: list[Any], cuts: list[int]) -> None:
    expected = trained([row["text"] for row in documents(30)], 3)
    found = trained([row["text"] for row in rows], 3, tuple(cuts))
    assert found.words == expected.words
    for one, other in zip(found.nodes, expected.nodes, strict=True):
        assert np.array_equal(one, other)


def test_the_model_file_is_the_same_on_every_machine(tmp_path: Path) -> None:
    model = trained([row["text"] for row in documents(80, 3)], 5)
    assert write_language_model(tmp_path / "m", model).sha256 == GOLDEN
    again = load_language_model(tmp_path / "m")
    assert (again.sha256, again.words) == (GOLDEN, model.words)
    for one, other in zip(again.nodes, model.nodes, strict=True):
        assert np.array_equal(one, other)


def test_a_model_of_token_ids_is_one_of_words_by_another_name() -> None:
    ids = np.array([5, 3, 4, 2, 5, 3, 2, 4, 2], np.int32)
    names = [b"<unk>", b"<s>", b"</s>", b"3", b"4", b"5"]
    model = train_language_model(count_ngrams(ids, 3), names)
    assert spelled(model).keys() == estimated([["5", "3", "4"], ["5", "3"], ["4"]], 3).keys()


def test_words_that_are_not_in_the_vocabulary_are_learned_as_unknown() -> None:
    texts = column(["a a a b b c"])
    words = make_vocabulary([count_words(texts)], max_words=5)
    assert words == [b"<unk>", b"<s>", b"</s>", b"a", b"b"]
    model = spelled(train_language_model(count_text_ngrams(texts, words, 2), words))
    assert ("b", "<unk>") in model
    assert ("<unk>", "</s>") in model


def test_text_without_a_word_is_told() -> None:
    with pytest.raises(InputError, match="no text to train on"):
        trained([" \n ", ""], 3)


# --- scoring ---


def test_scores_are_those_of_kenlm(tmp_path: Path) -> None:
    model = load_language_model(KENLM / "four.arpa.gz")
    (tmp_path / "plain.arpa").write_bytes(gzip.decompress((KENLM / "four.arpa.gz").read_bytes()))
    plain = load_language_model(tmp_path / "plain.arpa")
    cases = json.loads((KENLM / "scores.json").read_text("utf-8"))
    ids, ends = model.ids(column([case["text"] for case in cases]))
    each = np.zeros(len(ids), np.int32)
    sums = model.sum_logs(ids, ends, each)
    assert (plain.sum_logs(ids, ends) == sums).all()
    for row, case in enumerate(cases):
        assert (each[ends[row] : ends[row + 1]] / ONE).tolist() == pytest.approx(case["words"], abs=2e-6)
        assert sums[row] / ONE == pytest.approx(case["score"], abs=1e-4)


@settings(deadline=None, max_examples=100)
@given(SENTENCES, st.integers(1, 5), st.lists(st.sampled_from("abcdex"), max_size=12))
def test_a_text_is_scored_as_by_the_definition(
    sentences: list[list[str]], order: int, words: list[str]
) -> None:
    model = trained([" ".join(sentence) for sentence in sentences], order)
    by_gram = spelled(model)
    expected = sum(
        slow_log10(by_gram, ("<s>", *words[:at]), word, order) for at, word in enumerate([*words, "</s>"])
    )
    ids, ends = model.ids(column([" ".join(words)]))
    assert model.sum_logs(ids, ends)[0] / ONE == pytest.approx(expected, abs=1e-5)


def test_a_line_is_a_sentence_and_a_blank_one_is_none(tmp_path: Path) -> None:
    model = trained(["a b", "b a a", "c"], 3)
    write_language_model(tmp_path / "m", model)
    log = PERPLEXITY.open(PerplexityOptions(output="log10"), [tmp_path / "m"])
    ids, ends = model.ids(column(["a b\n\n \r\n b  a\t\n", "", " \n"]))
    names = [model.words[number].decode() for number in ids]
    assert (names, ends.tolist()) == (["a", "b", "</s>", "b", "a", "</s>", "</s>", "</s>"], [0, 6, 7, 8])
    whole, first, second, empty = log.score(column(["a b\n\nb a", "a b", "b a", ""])).tolist()
    assert whole == pytest.approx((3 * first + 3 * second) / 6)
    assert math.isfinite(empty)
    perplexity = PERPLEXITY.open(PerplexityOptions(), [tmp_path / "m"])
    assert perplexity.score(column(["a b"]))[0] == pytest.approx(10**-first, rel=1e-12)


def test_pieces_of_an_explanation_add_up_to_the_mean(tmp_path: Path) -> None:
    model = trained([row["text"] for row in documents(30)], 3)
    write_language_model(tmp_path / "m", model)
    scorer = PERPLEXITY.open(PerplexityOptions(output="log10"), [tmp_path / "m"])
    for text in ("the bean\nclick unheard-of the", ""):
        pieces = scorer.explain(text)
        assert sum(p.contribution for p in pieces) == pytest.approx(float(scorer.score(column([text]))[0]))
        assert {piece.piece for piece in pieces} == {*text.split(), "</s>"}
    assert scorer.explain("the\nthe unheard-of")[-1].piece != "unheard-of"


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["en", "fr"])), min_size=1, max_size=60))
def test_each_language_is_cut_into_thirds(rows: list[tuple[int, str]]) -> None:
    values, languages = np.array([float(v) for v, _ in rows]), [language for _, language in rows]
    bounds = thirds_by_language(values, languages)
    names = name_thirds(values, languages, bounds)
    for language in set(languages):
        own = sorted(value for value, of in rows if of == language)
        head = sum(n == "head" for n, of in zip(names, languages, strict=True) if of == language)
        upper = sum(n != "tail" for n, of in zip(names, languages, strict=True) if of == language)
        # the fewest values that hold a third, and two thirds, and all that equal the last of them
        assert head == sum(value <= own[math.ceil(len(own) / 3) - 1] for value in own)
        assert upper == sum(value <= own[math.ceil(2 * len(own) / 3) - 1] for value in own)
    assert name_thirds(np.ones(1), ["xx"], bounds) == ["all"]


# --- files ---


def test_an_arpa_file_that_is_written_is_read_back(tmp_path: Path) -> None:
    model = trained([row["text"] for row in documents(20)], 3)
    write_arpa(tmp_path / "m.arpa", model.words, model.nodes)
    again = spelled(load_language_model(tmp_path / "m.arpa"))
    for gram, logs in spelled(model).items():
        assert again[gram] == pytest.approx(logs, abs=2e-6)


ARPA = "\\data\\\nngram 1=4\nngram 2=2\n\n\\1-grams:\n-1\t<unk>\n0\t<s>\t-.5\n-1\t</s>\n-0.5\ta\t-.25\n\n"
ARPA += "\\2-grams:\n-0.2\t<s> a\n-0.3\ta </s>\n\n\\end\\\n"


def test_spaces_for_tabs_and_a_file_without_unknown_words_are_read(tmp_path: Path) -> None:
    text = ARPA.replace("ngram 1=4", "ngram 1=3").replace("-1\t<unk>\n", "").replace("\t", "  ")
    (tmp_path / "m.arpa").write_text(text, encoding="utf-8")
    model = load_language_model(tmp_path / "m.arpa")
    ids, ends = model.ids(column(["a", "x"]))
    assert (model.sum_logs(ids, ends) / ONE).tolist() == pytest.approx([-0.5, -0.5 - 100 - 1], abs=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("ngram 1=4", "ngram 1=5", "no n-gram of 1"),
        ("ngram 1=4", "ngram 1=3", "was awaited"),
        ("ngram 2=2", "ngram 2=3", "no n-gram of 2"),
        ("ngram 2=2", "ngram 3=2", "ngram 3=2"),
        ("ngram 1=4\nngram 2=2\n", "", "orders 1 to 0"),
        ("\\end\\", "", "ends too soon"),
        ("\\data\\", "data", "was awaited"),
        ("-0.2\t<s> a", "-0.2\t<s> b", "'b' is not among the 1-grams"),
        ("-0.2\t<s> a", "nan\t<s> a", "log10 p = nan"),
        ("-0.2\t<s> a", "0.2\t<s> a", "log10 p = 0.2"),
        ("-0.2\t<s> a", "x\t<s> a", "no numbers"),
        ("-0.2\t<s> a", "-0.2\ta </s>", "twice"),
        ("-1\t<unk>", "-1\ta", "twice"),
        ("0\t<s>", "0\tb", "'<s>' is not among|no <s>"),
        ("-.25\n", "-inf\n", "backoff of -inf"),
    ],
)
def test_an_arpa_file_that_lies_is_told_with_its_line(tmp_path: Path, old: str, new: str, why: str) -> None:
    path = tmp_path / "m.arpa"
    path.write_text(ARPA, encoding="utf-8")
    load_language_model(path)
    assert old in ARPA
    path.write_text(ARPA.replace(old, new), encoding="utf-8")
    with pytest.raises(CorruptFile, match=why) as told:
        load_language_model(path)
    assert told.value.where.startswith(f"{path}:")


def test_an_arpa_file_with_a_hole_is_told(tmp_path: Path) -> None:
    text = ARPA.replace("ngram 2=2\n", "ngram 2=2\nngram 3=1\n")
    text = text.replace("\\end\\", "\\3-grams:\n-0.1\t<s> a a\n\n\\end\\")
    (tmp_path / "m.arpa").write_text(text, encoding="utf-8")
    with pytest.raises(CorruptFile, match="its last 2 words are not an n-gram"):
        load_language_model(tmp_path / "m.arpa")


def test_a_cut_gzip_stream_and_a_pickle_are_told(tmp_path: Path) -> None:
    whole = (KENLM / "four.arpa.gz").read_bytes()
    for data in (whole[:-20], whole[:1000], b"\x80\x04\x95" + bytes(50)):
        (tmp_path / "m").write_bytes(data)
        with pytest.raises(CorruptFile):
            load_language_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sizes": [4, 9]}, "orders of"),
        ({"sizes": []}, "orders of"),
        ({"parents": lambda a: a[:-1]}, "different sizes"),
        ({"parents": lambda a: np.where(np.arange(len(a)) == len(a) - 1, len(a) - 1, a)}, "no shorter one"),
        ({"words_of": lambda a: np.where(np.arange(len(a)) == len(a) - 1, 99, a)}, "a word that is none"),
        ({"words_of": lambda a: np.where(np.arange(len(a)) == 3, 0, a)}, "not in order"),
        ({"word_ends": lambda a: a[::-1]}, "do not fit"),
        ({"probabilities": lambda a: a + 99 * ONE}, "above 1"),
        ({"backoffs": lambda a: a - 505 * ONE}, "out of bounds"),
        ({"backoffs": lambda a: a.astype(np.float32)}, "has arrays"),
    ],
)
def test_a_model_that_does_not_hold_together_is_told(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    write_language_model(tmp_path / "m", trained(["a b", "b a"], 2))
    file = load_arrays(tmp_path / "m", "language-model")
    facts, arrays = json.loads(file.facts), dict(file.arrays)
    for key, value in change.items():
        if key in arrays:
            changed = value(arrays[key])
            arrays[key] = changed if changed.dtype == np.float32 else changed.astype(arrays[key].dtype)
        else:
            facts[key] = value
    write_arrays(tmp_path / "n", "language-model", facts, arrays)
    with pytest.raises(CorruptFile, match=why):
        load_language_model(tmp_path / "n")


def test_counts_are_read_back_and_disorder_is_told(tmp_path: Path) -> None:
    counts = count_ngrams(np.array([3, 4, 2, 3, 2], np.int32), 3)
    write_ngrams(tmp_path / "c", counts)
    for one, other in zip(load_ngrams(tmp_path / "c"), counts, strict=True):
        assert np.array_equal(one, other)
    for grams, numbers in ((counts.grams[::-1], counts.counts), (counts.grams, -counts.counts)):
        write_arrays(tmp_path / "d", "ngram-counts", {}, {"grams": grams, "counts": numbers})
        with pytest.raises(CorruptFile, match="not in order"):
            load_ngrams(tmp_path / "d")


GOLDEN = "35aa6d742272271420f2c0a3fcd003a898bab256fb0d6451d392d7206f166fb4"
