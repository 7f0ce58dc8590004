"""The fast path gives the ids of the reference, or is not taken."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from hard_texts import NEWCOMERS, SENTENCES, TEXT
from tokmill.kernels.wordclasses import UNSAFE
from tokmill.tokenizers.fast import encode_column, load_fast, open_fast, replace_rows
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.protocol import Encoded, recent_classes

pytest.importorskip("gigatoken")

TINY = {
    "json": ("tokenizer.json", None),
    "gpt2": ("ranks.tiktoken", "gpt2"),
    "cl100k": ("ranks.tiktoken", "cl100k_base"),
    "o200k": ("ranks.tiktoken", "o200k_base"),
    "spm": ("spm.model", None),
}
PUBLISHED = [
    "tiktoken/r50k_base.tiktoken",
    "tiktoken/cl100k_base.tiktoken",
    "tiktoken/o200k_base.tiktoken",
    "hf/gpt2-tokenizer.json",
    "hf/gpt-neox-20b-style-tokenizer.json",
    "sentencepiece/mistral_instruct_tokenizer_240216.model.v2",
]


def column(texts):
    return pa.array(texts, pa.large_string())


def same(tokenizer, texts) -> bool:
    found, expected = tokenizer.encode_column(column(texts)), tokenizer.encode(texts)
    assert (found.ids.dtype, found.lengths.dtype) == (np.int32, np.int64)
    return found.ids.tolist() == expected.ids.tolist() and found.lengths.tolist() == expected.lengths.tolist()


@pytest.fixture(scope="session")
def models(tiny_files, tmp_path_factory):
    """The tiny files, with ranks of which each is a merge of two others: gigatoken knows no other."""
    directory = tmp_path_factory.mktemp("models")
    for name in ("tokenizer.json", "spm.model"):
        (directory / name).write_bytes((tiny_files / name).read_bytes())
    merged = [
        "th",
        "the",
        " the",
        "at",
        " c",
        " cat",
        "'s",
        "\n\n",
        " \n",
        "\n \n",
        "  ",
        "    ",
        "12",
        "123",
    ]
    tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in merged]
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    (directory / "ranks.tiktoken").write_bytes(b"".join(lines))
    return directory


@pytest.fixture(scope="session", params=sorted(TINY))
def tiny(request, models):
    name, encoding = TINY[request.param]
    return load_tokenizer(models / name, encoding=encoding)


@pytest.fixture(scope="session", params=PUBLISHED)
def published(request, tokenizer_files):
    return load_tokenizer(tokenizer_files / request.param)


@given(texts=st.lists(TEXT, max_size=5))
@settings(deadline=None, max_examples=150)
def test_tiny_models_give_the_ids_of_the_reference(tiny, texts):
    assert tiny.is_fast
    assert same(tiny, texts)


@given(texts=st.lists(TEXT, max_size=5))
@settings(deadline=None, max_examples=150)
def test_published_models_give_the_ids_of_the_reference(published, texts):
    assert published.engine.startswith("gigatoken ")
    assert same(published, texts)


def test_every_character_is_seen_alike_or_goes_to_the_reference(published):
    """Each in places where being a letter, a mark, a number or a space changes the ids;
    of ideographs some."""
    safe = np.flatnonzero(recent_classes() == 0)
    scripts = [code for code in safe.tolist() if code < 0x20000 and not 0xD800 <= code < 0xF900]
    dense = [code for code in scripts if not (0x3400 <= code < 0xA000 or 0xAC00 <= code < 0xD7A4)]
    places = "{0}'s {0}\n \n1{0}a{0}\u0301A{0}\u0323 the{0}the\n"
    codes = [
        *dense,
        *range(0x3400, 0x4DB0, 31),
        *range(0x4E00, 0x9FA0, 31),
        *range(0xAC00, 0xD7A4, 31),
        0xE000,
    ]
    for first in range(0, len(codes), 64):
        texts = [places.format(chr(code)) for code in codes[first : first + 64]]
        if not same(published, ["".join(texts)]):
            assert [text for text in texts if not same(published, [text])] == []
            raise AssertionError(f"U+{codes[first]:04X} and those after it differ together and not alone")


def test_real_text_gives_the_ids_of_the_reference(published, tokenizer_files):
    files = sorted((tokenizer_files.parents[1] / "bench").glob("*.jsonl.zst"))
    if not files:
        pytest.skip("no texts in ../shared/bench")
    from tokmill.storage.disk import ZstdFile

    for path in files:
        with ZstdFile(path) as lines:
            texts = [json.loads(line)["text"] for number, line in enumerate(lines) if number % 97 == 0]
        assert same(published, texts)


def test_newcomers_are_what_is_new_and_not_a_symbol():
    classes = recent_classes()
    assert [classes[ord(c)] for c in NEWCOMERS] == [UNSAFE] * len(NEWCOMERS)
    assert not any(classes[ord(c)] for c in "aé漢🥺🫠🫨ẞ€₿\u0301ൺ\u103a\ue000\ufeff")
    # nothing that Unicode 3.2 had
    assert not any(
        classes[code]
        for code in range(0x30000)
        if unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs")
    )


def test_rows_of_a_sliced_column_in_pieces_are_those_asked_for(tiny):
    texts = ["a cat", "", NEWCOMERS[0], " the the\0", "é" * 50, "last"]
    whole = pa.chunked_array([column(texts[:2]), column(texts[2:])])
    found, expected = tiny.encode_column(whole.slice(1, 4)), tiny.encode(texts[1:5])
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()
    none = tiny.encode_column(column([]))
    assert (none.ids.tolist(), none.lengths.tolist()) == ([], [])
    assert tiny.encode_column(column(["", ""])).lengths.tolist() == [0, 0]


@pytest.mark.parametrize("text", ["a" * 300_000, " " * 1_200_000, "\n" * 50_000, "漢" * 50_000, "\0" * 9_000])
def test_a_very_long_run_gives_the_ids_of_the_reference(tiny, text):
    assert same(tiny, [text, "after"])


def test_without_gigatoken_the_reference_does_it_all(models, monkeypatch):
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    for name, encoding in TINY.values():
        tokenizer = load_tokenizer(models / name, encoding=encoding)
        assert not tokenizer.is_fast
        assert tokenizer.engine.split()[0] in ("tiktoken", "tokenizers", "sentencepiece")
        assert tokenizer.engine.split()[1][0].isdigit()
        assert same(tokenizer, ["the cat <|endoftext|>", "", NEWCOMERS[0]])


def test_a_model_that_gives_other_ids_is_not_used(models):
    tokenizer = load_tokenizer(models / "ranks.tiktoken", encoding="gpt2")
    path = str(tokenizer.path)
    other = (models / "tokenizer.json").read_bytes()
    wrong = open_fast(load_fast(lambda rs: rs.load_hf_json(other)), tokenizer.encode)
    right = open_fast(load_fast(lambda rs: rs.BPETokenizer.from_tiktoken(path, "gpt2", {})), tokenizer.encode)
    assert wrong is None
    assert right is not None
    assert open_fast(load_fast(lambda rs: rs.load_hf_json("{")), tokenizer.encode) is None


def test_ranks_with_gaps_are_left_to_the_reference(tmp_path, models):
    path = tmp_path / "gaps.tiktoken"
    path.write_bytes((models / "ranks.tiktoken").read_bytes() + b"enp6 300\n")
    tokenizer = load_tokenizer(path, encoding="gpt2")
    assert tokenizer.engine.startswith("tiktoken ")
    assert tokenizer.encode_column(column(["zzz"])).ids.tolist() == [300]


def test_ranks_that_no_two_others_make_are_left_to_the_reference(tiny_files):
    tokenizer = load_tokenizer(tiny_files / "ranks.tiktoken", encoding="gpt2")
    assert tokenizer.engine.startswith("tiktoken ")
    assert same(tokenizer, [" cat the cat"])


def changed(tiny_files, tmp_path, change) -> object:
    config = json.loads((tiny_files / "tokenizer.json").read_text())
    change(config)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(config))
    return load_tokenizer(path)


def added(content, **flags):
    token = {"id": 999, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
    return {**token, "normalized": False, "special": False, **flags}


@pytest.mark.parametrize(
    "flags", [{}, {"normalized": True}, {"single_word": True}, {"lstrip": True}, {"rstrip": True}]
)
def test_added_tokens_have_the_ids_and_manners_that_the_library_gives_them(tiny_files, tmp_path, flags):
    tokenizer = changed(tiny_files, tmp_path, lambda c: c["added_tokens"].append(added("zqx", **flags)))
    assert tokenizer.token_id("zqx") == tokenizer.vocab_size - 1 != 999
    assert tokenizer.is_fast == (flags in ({}, {"normalized": True}))  # gigatoken 0.10 finds parts of words
    assert same(tokenizer, ["zqx", "a zqx b", "azqxb", " zqx ", "zqx\n\nzqx", "zqxzqx", "\tzqx", "zq x"])


@pytest.mark.parametrize("normalizer", ["NFC", "NFKC", "NFD", "Lowercase"])
def test_normalizers_are_known_or_left_to_the_reference(tiny_files, tmp_path, normalizer):
    tokenizer = changed(tiny_files, tmp_path, lambda c: c.update(normalizer={"type": normalizer}))
    assert tokenizer.is_fast == (normalizer == "NFC")
    assert same(tokenizer, ["Cafe\u0301 ﬁ Å", "the CAT", "\u0323\u0301a"])


def test_a_split_that_gigatoken_does_not_know_is_left_to_the_reference(tiny_files, tmp_path):
    def change(config):
        pattern = {"type": "Split", "pattern": {"Regex": r"\w+|\W"}, "behavior": "Isolated", "invert": False}
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
        config["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [pattern, byte_level]}

    tokenizer = changed(tiny_files, tmp_path, change)
    assert tokenizer.engine.startswith("tokenizers ")
    assert same(tokenizer, ["the cat's"])


SPM = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}


@pytest.mark.parametrize(
    ("options", "is_fast"),
    [
        (SPM, True),
        (SPM | {"add_dummy_prefix": False}, True),
        (SPM | {"user_defined_symbols": ["<|user|>", "cat"]}, True),
        (SPM | {"control_symbols": ["the", "<|x|>"]}, True),
        (SPM | {"allow_whitespace_only_pieces": True, "split_by_whitespace": False}, True),
        (SPM | {"user_defined_symbols": ["  "]}, False),
        (SPM | {"remove_extra_whitespaces": True}, False),
        (SPM | {"normalization_rule_name": "nmt_nfkc"}, False),
        (SPM | {"treat_whitespace_as_suffix": True}, False),
        (SPM | {"model_type": "unigram"}, False),
        (SPM | {"byte_fallback": False}, False),
    ],
    ids=str,
)
def test_sentencepiece_models_are_fast_where_the_ids_are_the_same(tmp_path, options, is_fast):
    model = io.BytesIO()
    defaults = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 380, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, minloglevel=2, **{**defaults, **options}
    )
    (tmp_path / "m.model").write_bytes(model.getvalue())
    tokenizer = load_tokenizer(tmp_path / "m.model")
    assert tokenizer.is_fast == is_fast

    @given(texts=st.lists(TEXT | st.sampled_from(["cat", "  ", "<|x|> the", "a<|user|>b"]), max_size=6))
    @settings(deadline=None, max_examples=60)
    def check(texts):
        assert same(tokenizer, texts)

    check()


@given(
    sequences=st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=4), st.booleans()), max_size=8),
)
@settings(deadline=None)
def test_rows_are_replaced_in_their_places(sequences):
    def encoded(lists):
        flat = np.array([id for ids in lists for id in ids], np.int32)
        return Encoded(flat, np.array([len(ids) for ids in lists], np.int64))

    rows = [row for row, (_, is_replaced) in enumerate(sequences) if is_replaced]
    others = [[100 + row] * (row % 3) for row in rows]
    expected = [ids for ids, _ in sequences]
    for row, ids in zip(rows, others, strict=True):
        expected[row] = ids
    found = replace_rows(encoded([ids for ids, _ in sequences]), np.array(rows, np.int64), encoded(others))
    assert found.ids.tolist() == encoded(expected).ids.tolist()
    assert found.lengths.tolist() == [len(ids) for ids in expected]


def test_the_reference_alone_takes_a_column_too(tiny):
    texts = ["a", "", "the cat"]
    found = encode_column(column(texts), None, tiny.encode)
    assert found.ids.tolist() == tiny.encode(texts).ids.tolist()


NEW_WORDS = """
import random, sys
from pathlib import Path
import psutil, pyarrow as pa
from tokmill.tokenizers import fast
from tokmill.tokenizers.load import load_tokenizer

fast.MAX_GROWTH, fast.LEAST_TEXT = 40 << 20, 2 << 20
tokenizer, draw = load_tokenizer(Path(sys.argv[1])), random.Random(1)
letters, peak, first = "abcdefghijklmnopqrstuvwxyz", 0, None
for _ in range(12):
    words = ["".join(draw.choices(letters, k=8)) for _ in range(300_000)]
    texts = [" ".join(words[at : at + 1000]) for at in range(0, len(words), 1000)]
    found = tokenizer.encode_column(pa.array(texts, pa.large_string()))
    assert found.lengths[:3].tolist() == tokenizer.encode(texts[:3]).lengths.tolist()
    assert found.ids[: found.lengths[:3].sum()].tolist() == tokenizer.encode(texts[:3]).ids.tolist()
    del words, texts, found
    now = psutil.Process().memory_info().rss >> 20
    first = now if first is None else first
    peak = max(peak, now)
print(peak - first)
"""


def test_memory_does_not_grow_with_the_words_that_were_seen(tiny_files: Path) -> None:
    """32 MB of words that are all new: gigatoken remembers each of them, in 90 bytes."""
    path = str(tiny_files / "tokenizer.json")
    done = subprocess.run(
        [sys.executable, "-c", NEW_WORDS, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 160
