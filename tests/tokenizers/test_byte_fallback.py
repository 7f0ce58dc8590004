"""BPE with byte fallback in a tokenizer.json, as Llama 2, Mistral and Gemma have it, by the fast path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from hard_texts import TEXT
from tokmill.tokenizers.load import load_tokenizer

pytest.importorskip("gigatoken")

PREPEND = {"type": "Prepend", "prepend": "▁"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
CUT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
STYLES: dict[str, dict[str, Any]] = {
    "llama2": {"normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}},
    "gemma": {"normalizer": REPLACE, "pre_tokenizer": CUT},
    "no cuts": {"normalizer": REPLACE},
    **{
        f"metaspace {scheme}": {
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": scheme,
                "split": scheme == "first",
            }
        }
        for scheme in ("first", "always", "never")
    },
}
SPELLED = [
    "<s>",
    "</s>",
    "a<s>b",
    "<unk>",
    "<0x0A>",
    "x<0xE2>",
    "▁▁ ▁",
    "\n\n",
    "\n\n\n\n",
    "a\n\nb",
    "<div> <b>",
]


def added(id: int, content: str, **flags: bool) -> dict[str, Any]:
    token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
    return {**token, "normalized": False, "special": False, **flags}


def converted(tiny_files: Path) -> dict[str, Any]:
    """A SentencePiece model as a tokenizer.json: a merge for every way to cut a piece, best score first."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(tiny_files / "spm.model"))
    ids = range(model.get_piece_size())
    pieces = {model.id_to_piece(id): id for id in ids}
    plain = [model.id_to_piece(id) for id in ids if not (model.is_control(id) or model.is_unknown(id))]
    plain = {piece for piece in plain if not model.is_byte(pieces[piece])}
    merges = [
        (-model.get_score(pieces[piece]), -cut, piece[:cut], piece[cut:])
        for piece in sorted(plain)
        for cut in range(1, len(piece))
        if piece[:cut] in plain and piece[cut:] in plain
    ]
    return {
        "version": "1.0",
        "added_tokens": [added(pieces[name], name, special=True) for name in ("<unk>", "<s>", "</s>")],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": pieces,
            "merges": [[left, right] for _, _, left, right in sorted(merges)],
        },
    }


def written(directory: Path, config: dict[str, Any]) -> Any:
    (directory / "tokenizer.json").write_text(json.dumps(config))
    return load_tokenizer(directory / "tokenizer.json")


def same(tokenizer: Any, texts: list[str]) -> bool:
    found, expected = tokenizer.encode_column(pa.array(texts, pa.large_string())), tokenizer.encode(texts)
    return found.ids.tolist() == expected.ids.tolist() and found.lengths.tolist() == expected.lengths.tolist()


@pytest.fixture(scope="module", params=[(style, more) for style in STYLES for more in (False, True)], ids=str)
def tokenizer(request, tiny_files, tmp_path_factory):
    """With and without plain added tokens, some of which the vocabulary has."""
    style, has_added = request.param
    config = converted(tiny_files) | STYLES[style]
    if has_added:
        size = len(config["model"]["vocab"])
        names = ["\n\n", "\n\n\n", "<div>", "▁▁▁"]
        config["added_tokens"] += [added(size + at, name) for at, name in enumerate(names)]
        config["added_tokens"].append(added(config["model"]["vocab"]["th"], "th", normalized=True))
    return written(tmp_path_factory.mktemp("fallback"), config)


@given(texts=st.lists(TEXT | st.sampled_from(SPELLED), max_size=6))
@settings(deadline=None, max_examples=80)
def test_ids_are_those_of_the_reference(tokenizer, texts):
    assert tokenizer.is_fast
    assert same(tokenizer, texts)


def test_no_literal_becomes_a_control_token(tokenizer):
    ids = tokenizer.encode_column(pa.array(["<s>a</s> <s>", "</s>"], pa.large_string())).ids
    assert not {tokenizer.token_id("<s>"), tokenizer.token_id("</s>")} & set(ids.tolist())


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, REPLACE]}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": "▁"}},
        {"normalizer": REPLACE, "pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": REPLACE, "pre_tokenizer": CUT | {"behavior": "Isolated"}},
        {"normalizer": REPLACE, "pre_tokenizer": {"type": "Digits", "individual_digits": True}},
    ],
    ids=str,
)
def test_what_is_not_known_to_be_the_same_is_left_to_the_reference(tiny_files, tmp_path, change):
    tokenizer = written(tmp_path, converted(tiny_files) | change)
    assert not tokenizer.is_fast
    assert same(tokenizer, ["the  cat <s>", "12 ﬁ", "<0x0A>"])


@pytest.mark.parametrize("change", [{"ignore_merges": True}, {"end_of_word_suffix": "</w>"}], ids=str)
def test_so_are_models_with_options_that_change_merges(tiny_files, tmp_path, change):
    config = converted(tiny_files) | STYLES["gemma"]
    config["model"] |= change
    assert not written(tmp_path, config).is_fast


def test_so_is_one_that_lacks_a_piece_for_a_byte(tiny_files, tmp_path):
    config = converted(tiny_files) | STYLES["gemma"]
    config["model"]["vocab"]["<gone>"] = config["model"]["vocab"].pop("<0x07>")
    tokenizer = written(tmp_path, config)
    assert not tokenizer.is_fast
    assert same(tokenizer, ["a\x07b"])


@given(texts=st.lists(TEXT | st.sampled_from(SPELLED), max_size=4))
@settings(deadline=None, max_examples=60)
def test_a_published_model_gives_the_ids_of_the_reference(published_fallback, texts):
    assert published_fallback.engine.startswith("gigatoken ")
    assert same(published_fallback, texts)


@pytest.fixture(scope="module")
def published_fallback(tokenizer_files, tmp_path_factory):
    """Mistral's SentencePiece model as a tokenizer.json, with the normalizer of Llama 2."""
    directory = tmp_path_factory.mktemp("published")
    data = (tokenizer_files / "sentencepiece/mistral_instruct_tokenizer_240216.model.v2").read_bytes()
    (directory / "spm.model").write_bytes(data)
    return written(directory, converted(directory) | STYLES["llama2"])
