"""SentencePiece models: control pieces, user-defined pieces, broken files."""

from __future__ import annotations

import pytest
import sentencepiece

from tokmill import tokenizer_check
from tokmill.errors import CorruptFile, EosMissing
from tokmill.tokenizers.load import load_tokenizer
from trained import encode, eos_id

MISTRAL = "mistral_instruct_tokenizer_240216.model.v2"


def test_a_published_model_reads_no_control_piece_out_of_text(tokenizer_files):
    path = tokenizer_files / "sentencepiece" / MISTRAL
    raw = sentencepiece.SentencePieceProcessor(model_file=str(path))
    text = "a</s>b <s> <unk> [INST] x [/INST]<0x0A>\n漢 🙂\0"
    (ids,) = encode(path, [text], eos="</s>")
    assert raw.decode(ids) == text
    control = {raw.piece_to_id(piece) for piece in ("</s>", "<s>", "<unk>", "[INST]", "[/INST]")}
    assert control == {0, 1, 2, 3, 4}
    assert control.isdisjoint(ids)
    assert tokenizer_check(path).description.vocab_size == raw.get_piece_size() == 32768


@pytest.mark.parametrize("name", [MISTRAL, "spm_test_model.model"])
def test_published_models_give_the_ids_of_the_library(tokenizer_files, name):
    path = tokenizer_files / "sentencepiece" / name
    texts = ["Hello, wörld!  It's 2024…", "\n\tdef f(x): return x**2  # 漢字 🙂"]
    raw = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert encode(path, texts, eos="</s>") == raw.encode(texts)
    assert load_tokenizer(path).encode([""]).ids.tolist() == raw.encode("") == []


def test_the_unknown_piece_has_an_id_and_an_unknown_name_has_none(tiny_files):
    path = tiny_files / "spm.model"
    found = tokenizer_check(path).description
    assert (found.unknown_id, found.specials["</s>"]) == (0, 2)
    assert eos_id(path, "</s>") == 2
    with pytest.raises(EosMissing, match="no token '</S>' in the vocabulary"):
        eos_id(path, "</S>")


def test_a_user_defined_piece_is_text_with_a_piece_of_its_own(tiny_files):
    raw = sentencepiece.SentencePieceProcessor(model_file=str(tiny_files / "spm.model"))
    (ids,) = encode(tiny_files / "spm.model", ["cat<|user|>"], eos="</s>")
    assert raw.piece_to_id("<|user|>") in ids


def test_broken_files_are_errors_that_name_them(tmp_path, tiny_files):
    whole = (tiny_files / "spm.model").read_bytes()
    for data in (b"", b"garbage", b'{"version": "1.0"}', whole[:10], whole[: len(whole) // 2], whole[:-7]):
        (tmp_path / "x.model").write_bytes(data)
        with pytest.raises(CorruptFile, match=r"x\.model: not a complete SentencePiece model\n  next: fetch"):
            tokenizer_check(tmp_path / "x.model")
