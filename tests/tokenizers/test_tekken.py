"""tekken.json: special tokens first, the vocabulary cut to size after them, and every damage told."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hard_texts import TEXT
from tokmill import tokenizer_check
from tokmill.errors import CorruptFile, TokenizerError
from tokmill.tokenizers.load import load_tokenizer
from trained import encode, eos_id

# of Mistral's files, and one that no fast path knows
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MERGED = [b"th", b"the", b" the", b"at", b" c", b" cat", b"\n\n", b"  ", b"12", b" left", b" out"]
TOKENS = [bytes([byte]) for byte in range(256)] + MERGED


def tekken(version: str = "v3", **config: object) -> dict[str, object]:
    """20 special tokens of 32 are named; of the merged tokens the last two are beyond the size."""
    return {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(TOKENS),
            "default_vocab_size": 32 + len(TOKENS) - 2,
            "default_num_special_tokens": 32,
            "version": version,
            **config,
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(TOKENS)
        ],
        "version": 1,
        "type": "Tekken",
    }


def written(directory: Path, content: dict[str, object], name: str = "tekken.json") -> Path:
    path = directory / name
    path.write_text(json.dumps(content))
    return path


def special(rank: int, token: str) -> dict[str, object]:
    return {"rank": rank, "token_str": token, "is_control": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("tekken"), tekken())


def test_special_tokens_come_first_and_the_vocabulary_is_cut_to_size(path):
    assert encode(path, [" the cat left"], eos="</s>") == [
        [32 + TOKENS.index(token) for token in (b" the", b" cat", b" ", b"l", b"e", b"f", b"t")]
    ]
    found = tokenizer_check(path).description
    assert (found.kind, found.model, found.vocab_size) == ("tekken", "tekken v3", 32 + len(TOKENS) - 2)
    assert (found.specials["<s>"], found.specials["[TOOL_CONTENT]"], found.specials["<SPECIAL_31>"]) == (
        1,
        19,
        31,
    )
    assert len(found.specials) == 32


def test_literals_of_special_tokens_stay_text(path):
    text = "<s>[INST] </s> <SPECIAL_31>"
    (ids,) = encode(path, [text], eos="</s>")
    assert min(ids) >= 32
    assert b"".join(TOKENS[id - 32] for id in ids).decode() == text
    assert encode(path, ["a</s>b"], eos="</s>", control=["</s>"])[0][1] == 2
    assert load_tokenizer(path).decode([1, *ids, 2]) == f"<s>{text}</s>"


def test_named_special_tokens_are_those_of_the_file(tmp_path):
    content = tekken("v13") | {
        "special_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "<end>")]
    }
    found = written(tmp_path, content)
    assert eos_id(found, "<end>") == 2
    assert eos_id(found, "<SPECIAL_3>") == 3
    with pytest.raises(TokenizerError, match="no token '</s>' in the vocabulary"):
        eos_id(found, "</s>")


def test_a_file_of_another_name_is_recognised_by_its_content(tmp_path, path):
    for name in ("tekken_240718.json", "mistral.json", "mistral"):
        other = tmp_path / name
        other.write_bytes(path.read_bytes())
        assert tokenizer_check(other).description.kind == "tekken"


@given(texts=st.lists(TEXT, max_size=5))
@settings(deadline=None, max_examples=100)
def test_the_fast_path_gives_the_ids_of_the_reference(path, texts):
    pytest.importorskip("gigatoken")
    tokenizer = load_tokenizer(path)
    assert tokenizer.is_fast
    found, expected = tokenizer.encode_column(pa.array(texts, pa.large_string())), tokenizer.encode(texts)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()


def test_a_pattern_of_its_own_is_left_to_the_reference(tmp_path):
    tokenizer = load_tokenizer(written(tmp_path, tekken(pattern=r"\w+|\W")))
    assert tokenizer.engine.startswith("tiktoken ")
    assert tokenizer.encode_column(pa.array([" the"], pa.large_string())).ids.tolist() == [
        32 + TOKENS.index(b" "),
        32 + TOKENS.index(b"the"),
    ]


def damaged(number: int, **entry: object) -> dict[str, object]:
    content = tekken()
    content["vocab"][number].update(entry)
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"vocab": []}, r"not a tekken\.json \(Object missing required field `config`\)"),
        (tekken(default_vocab_size=9999), "asks for 9,999 ids, 32 of them special tokens, and has 267"),
        (tekken(default_num_special_tokens=0), "asks for 297 ids, 0 of them special tokens"),
        (tekken(default_num_special_tokens=-5), "asks for 297 ids, -5 of them special"),
        (tekken(default_vocab_size=100), "asks for 100 ids"),
        (tekken(default_vocab_size=1 << 62, default_num_special_tokens=1 << 61), "asks for 4,611,6"),
        (tekken(default_num_special_tokens=8, default_vocab_size=270), "its 20 special tokens are not 8 or"),
        (tekken("v13"), "version v13, and no special tokens"),
        (tekken("new"), "version new, and no special tokens"),
        (tekken(pattern="(("), r"its pattern cannot be read \("),
        (tekken() | {"special_tokens": [special(0, "s"), special(1, "s")]}, "its 2 special tokens are not"),
        (tekken() | {"special_tokens": [special(7, "<s>")]}, "its 1 special tokens are not 32 or fewer"),
        (damaged(260, rank=300), "token 260 of the vocabulary is damaged, repeated or out of order"),
        (damaged(260, token_bytes="!"), "token 260 of the vocabulary is damaged"),
        (damaged(260, token_bytes=""), "token 260 of the vocabulary is damaged"),
        (damaged(260, token_bytes="dGhl"), "token 260 of the vocabulary is damaged, repeated"),
        (damaged(65, token_bytes="enp6"), "no token for the byte 0x41"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_damage_is_an_error_that_names_it(tmp_path, content, message):
    with pytest.raises(CorruptFile, match=rf"tekken\.json: {message}(.|\n)*next: fetch the file again"):
        tokenizer_check(written(tmp_path, content))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_cut_file_is_an_error(tmp_path, path, share):
    data = path.read_bytes()
    (tmp_path / "tekken.json").write_bytes(data[: int(share * len(data))])
    with pytest.raises(CorruptFile, match=r"not a tekken\.json"):
        tokenizer_check(tmp_path / "tekken.json")


def test_another_encoding_of_text_is_an_error(tmp_path, path):
    (tmp_path / "tekken.json").write_bytes(path.read_text().encode("utf-16"))
    with pytest.raises(CorruptFile, match=r"not a tekken\.json"):
        tokenizer_check(tmp_path / "tekken.json")


def test_an_encoding_does_not_belong_to_it(path):
    with pytest.raises(TokenizerError, match="is for tiktoken rank files, and this is a tekken file"):
        tokenizer_check(path, encoding="gpt2")
