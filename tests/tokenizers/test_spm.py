"""SentencePiece models: control pieces, user-defined pieces, broken files."""

from __future__ import annotations

import pytest
import sentencepiece

from tokmill.errors import CorruptFile
from tokmill.tokenizers.load import load_tokenizer

MISTRAL = "mistral_instruct_tokenizer_240216.model.v2"


def test_a_published_model_reads_no_control_piece_out_of_text(tokenizer_files):
    tokenizer = load_tokenizer(tokenizer_files / "sentencepiece" / MISTRAL)
    text = "a</s>b <s> <unk> [INST] x [/INST]<0x0A>\n漢 🙂\0"
    ids = tokenizer.encode([text]).ids
    assert tokenizer.decode(ids) == text
    control = {tokenizer.token_id(piece) for piece in ("</s>", "<s>", "<unk>", "[INST]", "[/INST]")}
    assert control == {0, 1, 2, 3, 4}
    assert control.isdisjoint(ids.tolist())
    assert tokenizer.vocab_size == 32768


@pytest.mark.parametrize("name", [MISTRAL, "spm_test_model.model"])
def test_published_models_give_the_ids_of_the_library(tokenizer_files, name):
    path = tokenizer_files / "sentencepiece" / name
    texts = ["Hello, wörld!  It's 2024…", "", "\n\tdef f(x): return x**2  # 漢字 🙂"]
    raw = sentencepiece.SentencePieceProcessor(model_file=str(path))
    encoded = load_tokenizer(path).encode(texts)
    assert encoded.ids.tolist() == [id for ids in raw.encode(texts) for id in ids]


def test_the_unknown_piece_has_an_id_and_an_unknown_name_has_none(tiny_files):
    tokenizer = load_tokenizer(tiny_files / "spm.model")
    assert tokenizer.token_id("<unk>") == 0
    assert tokenizer.token_id("</s>") == 2
    assert tokenizer.token_id("</S>") is None
    assert tokenizer.token_id("") is None


def test_a_user_defined_piece_is_text_with_a_piece_of_its_own(tiny_files):
    tokenizer = load_tokenizer(tiny_files / "spm.model")
    assert tokenizer.token_id("<|user|>") in tokenizer.encode(["cat<|user|>"]).ids


def test_broken_files_are_errors_that_name_them(tmp_path, tiny_files):
    whole = (tiny_files / "spm.model").read_bytes()
    for data in (b"", b"garbage", b'{"version": "1.0"}', whole[:10], whole[: len(whole) // 2], whole[:-7]):
        (tmp_path / "x.model").write_bytes(data)
        with pytest.raises(CorruptFile, match=r"x\.model: not a complete SentencePiece model\n  next: fetch"):
            load_tokenizer(tmp_path / "x.model")
