"""tokenizer.model of Llama 3 and 4: recognised by what is in it, with Meta's patterns and tokens."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from hard_texts import TEXT
from tokmill import tokenizer_check
from tokmill.errors import TokenizerError
from tokmill.tokenizers.encodings import ENCODINGS
from tokmill.tokenizers.load import load_tokenizer
from trained import encode, eos_id, rank_lines

SENTENCE = "This is a test sentence."
# what Meta's test of the tokenizer says of the sentence; `.` stands elsewhere in these files
LANDMARKS = {
    "llama3": {0: b"!", 2028: b"This", 374: b" is", 264: b" a", 1296: b" test", 11914: b" sentence"},
    "llama4": {0: b"\xc0", 3231: b"This", 373: b" is", 262: b" a", 1600: b" test", 17705: b" sentence"},
}
COUNTS = {"llama3": 128_000, "llama4": 200_000}


def made(directory: Path, name: str, count: int | None = None) -> Path:
    """As many ranks as Meta's file has, and its landmarks; the others are made up."""
    placed = LANDMARKS[name]
    others = [bytes([byte]) for byte in range(256) if bytes([byte]) not in placed.values()]
    rest = iter(others + [b"~%d~" % number for number in range(count or COUNTS[name])])
    tokens = [placed.get(rank) or next(rest) for rank in range(count or COUNTS[name])]
    path = directory / "tokenizer.model"
    path.write_bytes(rank_lines(tokens))
    return path


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        (
            "llama3",
            128_256,
            {
                "<|begin_of_text|>": 128_000,
                "<|end_of_text|>": 128_001,
                "<|finetune_right_pad_id|>": 128_004,
                "<|start_header_id|>": 128_006,
                "<|eot_id|>": 128_009,
                "<|reserved_special_token_245|>": 128_255,
            },
        ),
        (
            "llama4",
            202_048,
            {
                "<|begin_of_text|>": 200_000,
                "<|end_of_text|>": 200_001,
                "<|header_start|>": 200_005,
                "<|eot|>": 200_008,
                "<|image_start|>": 200_080,
                "<|vision_reserved_special_token_1047|>": 201_133,
                "<|reasoning_thinking_end|>": 201_143,
                "<|reserved_special_token_903|>": 202_047,
            },
        ),
    ],
)
def test_a_file_is_recognised_by_its_content(tmp_path, name, size, tokens):
    path = made(tmp_path, name)
    found = tokenizer_check(path).description
    assert (found.kind, found.model, found.vocab_size) == ("tiktoken", name, size)
    assert {token: found.specials[token] for token in tokens} == tokens
    assert len(found.specials) == size - COUNTS[name]
    ranks = {token: rank for rank, token in LANDMARKS[name].items()}
    (ids,) = encode(path, [SENTENCE], eos="<|end_of_text|>")
    assert ids[:-1] == [ranks[token] for token in (b"This", b" is", b" a", b" test", b" sentence")]


def test_a_file_with_other_landmarks_is_not_recognised(tmp_path):
    path = made(tmp_path, "llama3")
    path.write_bytes(
        path.read_bytes()
        .replace(b" 2028\n", b" x\n")
        .replace(b" 2029\n", b" 2028\n")
        .replace(b" x\n", b" 2029\n")
    )
    with pytest.raises(TokenizerError, match=r"next: set `encoding` to one of r50k_base, .*, llama3, llama4"):
        tokenizer_check(path)
    assert tokenizer_check(path, encoding="llama3").description.vocab_size == 128_256


def test_a_smaller_vocabulary_of_that_kind_has_its_tokens_after_its_ranks(tmp_path):
    path = made(tmp_path, "llama3", count=400)
    with pytest.raises(TokenizerError, match="a rank file does not say how text is split"):
        tokenizer_check(path)
    assert tokenizer_check(path, encoding="llama3").description.vocab_size == 656
    assert eos_id(path, "<|end_of_text|>", encoding="llama3") == 401


@pytest.mark.parametrize("name", COUNTS)
def test_literals_of_special_tokens_stay_text(tmp_path, name):
    path = made(tmp_path, name, count=400)
    text = "<|begin_of_text|><|end_of_text|>"
    (ids,) = encode(path, [text], eos="<|end_of_text|>", encoding=name)
    assert max(ids) < 400
    assert load_tokenizer(path, encoding=name).decode(ids) == text


@given(text=st.text(max_size=60) | st.text(alphabet="aB1 '\n\r\tsé漢_.", max_size=40))
@settings(deadline=None, max_examples=200)
def test_llama3_splits_as_meta_writes_it(text):
    theirs = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    assert regex.findall(ENCODINGS["llama3"].pattern, text) == regex.findall(theirs, text)
    assert ENCODINGS["llama4"].pattern == ENCODINGS["o200k_base"].pattern


@pytest.fixture(scope="module", params=COUNTS)
def merged(request, tmp_path_factory):
    """Ranks of which one is no merge of two others, and blanks that end a text in one token."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [b"th", b"the", b" the", b"at", b" c", b" cat", b"'s", b"\n\n", b" \n", b" \n ", b"\n "]
    tokens += [b"12", b"123", b"zqx"] if request.param == "llama3" else [b"12", b"123"]
    path = tmp_path_factory.mktemp("merged") / "tokenizer.model"
    path.write_bytes(rank_lines(tokens))
    return load_tokenizer(path, encoding=request.param)


@given(texts=st.lists(TEXT | st.sampled_from(["zqx", " zqx zqxzqx", "a \n ", "12 \n \n"]), max_size=5))
@settings(deadline=None, max_examples=200)
def test_the_fast_path_gives_the_ids_of_the_reference(merged, texts):
    pytest.importorskip("gigatoken")
    assert merged.is_fast
    found, expected = merged.encode_column(pa.array(texts, pa.large_string())), merged.encode(texts)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()
