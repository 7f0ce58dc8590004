"""Figures of a tokenizer on documents, against counting them one by one; and the guard that compares two."""

from __future__ import annotations

import io
import json
from fractions import Fraction

import pytest
import sentencepiece

import tokmill
from tokmill.adhoc.tokenizer_coverage import Coverage, Tally, compare_coverage
from tokmill.errors import EmptyGlob, InputError

DOCUMENTS = [
    {"text": "the cat sat on the mat", "source": "a", "language": "en"},
    {"text": "the other cat sat there too", "source": "a", "language": "en"},
    {"text": "les chats étaient là", "source": "b", "language": "fr"},
    {"text": "漢字\nthe cat", "source": "b", "language": None},
    {"text": "", "source": "b", "language": "fr"},
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("documents")
    lines = [json.dumps(document, ensure_ascii=False) for document in DOCUMENTS]
    (directory / "one.jsonl").write_text("\n".join(lines[:3]) + "\n")
    (directory / "two.jsonl").write_text("\n".join([*lines[3:], "not json"]) + "\n")
    return [directory / "one.jsonl", directory / "two.jsonl"]


def train(directory, **asked):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([document["text"] for document in DOCUMENTS[:3]] * 9),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        minloglevel=2,
        **{"byte_fallback": True, "user_defined_symbols": ["\n"], **asked},
    )
    path = directory / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return path


def slow_tally(tokenizer, documents, unknown_id):
    docs = bytes_ = characters = tokens = unknown = returned = 0
    for document in documents:
        text = document["text"]
        ids = tokenizer.encode(text)
        docs, bytes_, characters = docs + 1, bytes_ + len(text.encode()), characters + len(text)
        tokens, unknown = tokens + len(ids), unknown + ids.count(unknown_id)
        returned += tokenizer.decode(ids) == text
    return docs, bytes_, characters, tokens, unknown, returned


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_counts_are_those_of_counting_one_by_one(tmp_path, files, byte_fallback):
    tokenizer = train(tmp_path, byte_fallback=byte_fallback)
    found = tokmill.tokenizer_coverage(tokenizer, files)
    groups = {
        "total": (found.total, DOCUMENTS),
        "a": (found.source["a"], DOCUMENTS[:2]),
        "b": (found.source["b"], DOCUMENTS[2:]),
        "en": (found.language["en"], DOCUMENTS[:2]),
        "fr": (found.language["fr"], [DOCUMENTS[2], DOCUMENTS[4]]),
        "unknown": (found.language["unknown"], [DOCUMENTS[3]]),
    }
    library = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer))
    for tally, documents in groups.values():
        counted = tally.docs, tally.bytes, tally.characters, tally.tokens, tally.unknown_tokens
        assert (*counted, tally.round_trips) == slow_tally(library, documents, 0)
    assert found.unreadable == 1
    # words: six and six, four, two letters of a script without spaces and two
    assert [found.source[name].words for name in "ab"] == [12, 8]
    assert (found.total.unknown_tokens == 0) == byte_fallback
    assert found.total.round_trip_share == (1 if byte_fallback else 0.8)
    told = found.as_json()["by_source"]["a"]
    assert told["tokens_per_word"] == Fraction(told["tokens"], told["words"])
    assert told["tokens_per_byte"] == told["tokens"] / told["bytes"]
    assert told["characters_per_token"] == told["characters"] / told["tokens"]


def test_neither_the_order_nor_the_cut_into_files_matters(tmp_path, files):
    tokenizer = train(tmp_path)
    joined = tmp_path / "joined.jsonl"
    joined.write_text(files[1].read_text() + files[0].read_text())
    assert tokmill.tokenizer_coverage(tokenizer, [joined]) == tokmill.tokenizer_coverage(tokenizer, files)


def test_a_document_without_a_source_is_of_its_file(tmp_path):
    (tmp_path / "notes.txt").write_text("the cat\n")
    (tmp_path / "other.jsonl").write_text('{"body": "the mat"}\n')
    tokenizer = train(tmp_path)
    assert set(tokmill.tokenizer_coverage(tokenizer, [tmp_path / "notes.txt"]).source) == {"notes"}
    assert set(tokmill.tokenizer_coverage(tokenizer, [tmp_path / "other.jsonl"], text="body").source) == {
        "other"
    }
    with pytest.raises(InputError, match=r"no field `text`; they have body\n  next: .*--text"):
        tokmill.tokenizer_coverage(tokenizer, [tmp_path / "other.jsonl"])
    with pytest.raises(EmptyGlob, match="no such file"):
        tokmill.tokenizer_coverage(tokenizer, [tmp_path / "missing.jsonl"])
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="no documents to measure the tokenizer on"):
        tokmill.tokenizer_coverage(tokenizer, [tmp_path / "empty.jsonl"])


def coverage(words, tokens, unknown=0, round_trips=100):
    tally = Tally(100, 1, 1, words, tokens, unknown, round_trips)
    return Coverage("", tally, {"s": tally}, {}, 0)


@pytest.mark.parametrize(
    ("new", "faults"),
    [
        (coverage(1000, 1350), []),  # 0.05 more, and that is not more than 0.05
        (coverage(1000, 1351), ["tokens_per_word"]),
        (coverage(1000, 1000), []),
        (coverage(1000, 1300, unknown=26), []),
        (coverage(1000, 1300, unknown=27), ["coverage"]),
        (coverage(1000, 1300, round_trips=98), []),
        (coverage(1000, 1300, round_trips=97), ["round_trip_share"]),
        (coverage(1000, 1400, 100, 0), ["tokens_per_word", "coverage", "round_trip_share"]),
    ],
)
def test_the_guard_fails_beyond_its_bounds_and_not_at_them(new, faults):
    base = coverage(1000, 1300)
    assert [c.figure for c in compare_coverage(base, new) if c.is_fault] == faults
    assert [c.figure for c in compare_coverage(base, new, by="source") if c.is_fault] == faults * 2
    assert not [c for c in compare_coverage(base, new, max_rise=1, max_fall=1) if c.is_fault]


def test_the_guard_sees_a_language_that_the_total_hides():
    def both(small):
        large = Tally(1000, 1, 1, 100_000, 130_000, 0, 1000)
        return Coverage("", large.plus(small), {}, {"en": large, "fr": small}, 0)

    base, new = both(Tally(1, 1, 1, 100, 130, 0, 1)), both(Tally(1, 1, 1, 100, 200, 0, 1))
    assert not [c for c in compare_coverage(base, new) if c.is_fault]
    assert [c.group for c in compare_coverage(base, new, by="language") if c.is_fault] == ["language fr"]


def test_text_without_words_does_not_trip_the_guard():
    assert not [c for c in compare_coverage(coverage(0, 5), coverage(0, 9)) if c.is_fault]


def test_every_record_is_asked_for_its_source_and_language(tmp_path):
    lines = ['{"text": "the cat"}', '{"content": "the mat", "source": "web", "lang": "en"}']
    lines += ['{"text": "a hat", "source": {"url": "x"}, "language": null, "lang": "de"}']
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    found = tokmill.tokenizer_coverage(train(tmp_path), [tmp_path / "some.jsonl"])
    assert {name: tally.docs for name, tally in found.source.items()} == {"some": 2, "web": 1}
    assert {name: tally.docs for name, tally in found.language.items()} == {"unknown": 1, "en": 1, "de": 1}
    assert found.unreadable == 0
