"""tokenizer.json: what a file may configure, and control tokens that hide in the model's own vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Raw
from tokenizers import decoders, models, pre_tokenizers

from tokmill import tokenizer_check
from tokmill.errors import CorruptFile
from tokmill.tokenizers.load import load_tokenizer
from trained import encode, eos_id

FILES = ["gpt2-tokenizer.json", "gpt-neox-20b-style-tokenizer.json"]


@pytest.mark.parametrize("name", FILES)
def test_published_files_never_read_a_control_token_out_of_text(tokenizer_files, name):
    path = tokenizer_files / "hf" / name
    raw = Raw.from_file(str(path))
    text = "a<|endoftext|>b <|endoftext|>\n<|padding|>   <|endoftext|>"
    end = raw.token_to_id("<|endoftext|>")
    assert end in raw.encode(text).ids, "the library by itself does"
    (ids,) = encode(path, [text], eos="<|endoftext|>")
    assert end not in ids
    assert raw.token_to_id("<|padding|>") not in ids
    assert raw.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", FILES)
def test_ids_are_decoded_to_text_and_to_the_names_of_control_tokens(tokenizer_files, name):
    tokenizer = load_tokenizer(tokenizer_files / "hf" / name)
    text = "a<|endoftext|>b <|endoftext|>\n<|padding|>   <|endoftext|>"
    assert tokenizer.decode(tokenizer.encode([text]).ids) == text
    assert tokenizer.decode([tokenizer.token_id("<|endoftext|>")]) == "<|endoftext|>"


def test_added_tokens_that_are_not_special_are_still_used(tokenizer_files):
    path = tokenizer_files / "hf" / FILES[1]
    raw = Raw.from_file(str(path))
    spaces = " " * 24
    address, blanks = encode(
        path, ["|||EMAIL_ADDRESS|||", f"|||EMAIL_ADDRESS|||{spaces}"], eos="<|endoftext|>"
    )
    assert address == [raw.token_to_id("|||EMAIL_ADDRESS|||")]
    assert blanks == [*address, raw.token_to_id(spaces)]


@pytest.mark.parametrize("name", FILES)
def test_published_files_give_the_ids_of_the_library(tokenizer_files, name):
    path = tokenizer_files / "hf" / name
    text = "Hello, wörld!  It's 2024…\n\n\tdef f(x): return x**2  # 漢字 🙂 e\u0301"
    raw = Raw.from_file(str(path))
    assert encode(path, [text, text], eos="<|endoftext|>") == [raw.encode(text).ids] * 2


def save(tokenizer: Raw, directory: Path, **changes: object) -> Path:
    config = json.loads(tokenizer.to_str())
    config.update(changes)
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(config))
    return path


def unigram() -> Raw:
    pieces = [
        ("<unk>", 0.0),
        ("</s>", 0.0),
        *((piece, -3.5) for piece in ("<", "/", "s", ">", "a")),
        ("▁", -2.0),
    ]
    tokenizer = Raw(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens(["</s>", "<unk>"])
    return tokenizer


def test_unigram_models_do_not_find_a_control_token_in_text(tmp_path):
    raw = unigram()
    raw.encode_special_tokens = True
    assert 1 in raw.encode("a</s>a", add_special_tokens=False).ids, "the library alone is not enough"
    path, texts = save(unigram(), tmp_path), ["a</s>a", "as a", "</s></s>"]
    found = encode(path, texts, eos="</s>")
    assert not any(1 in ids for ids in found)
    assert [raw.decode(ids) for ids in found] == texts
    assert eos_id(path, "</s>") == 1


def test_unknown_text_is_still_unknown_beside_a_masked_control_token(tmp_path):
    path = save(unigram(), tmp_path)
    assert encode(path, ["aza", "</s>z"], eos="</s>") == [[6, 0, 6], [2, 3, 4, 5, 0]]


def test_word_level_models_do_not_find_a_control_token_in_text(tmp_path):
    raw = Raw(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_special_tokens(["<unk>", "</s>"])
    assert encode(save(raw, tmp_path), ["a </s> a z"], eos="</s>") == [[2, 0, 2, 0]]


@pytest.mark.parametrize("merges", [[], [("<", "s"), ("<s", ">")]])
def test_bpe_models_do_not_build_a_control_token_from_text(tmp_path, merges):
    vocabulary = {"<": 0, "s": 1, ">": 2, "<s>": 3, "<s": 4}
    raw = Raw(models.BPE(vocabulary, merges, ignore_merges=True))
    raw.decoder = decoders.Fuse()
    raw.add_special_tokens(["<s>"])
    (ids,) = encode(save(raw, tmp_path), ["<s>"], eos="<s>")
    assert 3 not in ids
    assert raw.decode(ids) == "<s>"


def test_truncation_padding_and_dropout_in_the_file_are_switched_off(tmp_path, tiny_files):
    raw = Raw.from_file(str(tiny_files / "tokenizer.json"))
    raw.enable_truncation(3)
    raw.enable_padding(length=50)
    raw.model.dropout = 0.5
    path = save(raw, tmp_path)
    assert json.loads(path.read_text())["model"]["dropout"] == 0.5
    text = "the other cat sat there too"
    (plain,) = encode(tiny_files / "tokenizer.json", [text], eos="<|endoftext|>")
    assert encode(path, [text] * 20, eos="<|endoftext|>") == [plain] * 20


def test_the_vocabulary_reaches_to_the_highest_id_even_with_gaps(tmp_path):
    raw = Raw(models.WordLevel({"a": 0, "b": 900}, unk_token="a"))
    assert tokenizer_check(save(raw, tmp_path)).description.vocab_size == 901


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"not json", b'{"version": "9"}', b"\xff\xfe\0", b'{"version":"1.0","model":{']
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path, data):
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(
        CorruptFile, match=r"tokenizer\.json: not a tokenizer\.json that `tokenizers` .* can read"
    ):
        tokenizer_check(tmp_path / "tokenizer.json")


def test_every_cut_of_a_file_is_an_error(tmp_path, tiny_files):
    data = (tiny_files / "tokenizer.json").read_bytes().rstrip()
    for size in range(1, len(data), 997):
        (tmp_path / "t.json").write_bytes(data[:size])
        with pytest.raises(CorruptFile):
            tokenizer_check(tmp_path / "t.json")
