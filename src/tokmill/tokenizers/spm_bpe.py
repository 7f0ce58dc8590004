"""A SentencePiece BPE model as the `tokenizer.json` that gigatoken reads.

    pieces ─ vocab, merges        dummy prefix ─ Prepend "▁"        blank ─ Replace by "▁"

Models that it can hold, by measurement against sentencepiece 0.2.2: BPE with byte fallback that leaves the text as it
is. Normalizing by a charsmap goes by graphemes there, and removing whitespace takes more than blanks, so such
models stay with the reference. So do those with symbols that hold whitespace.

A merge is listed for every split of a piece into two pieces, best score first: that is the order in which
SentencePiece merges. Control, unknown and byte pieces get none, because text never becomes them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tokmill.tokenizers.spm_model import read_spm_model


def for_gigatoken(model: Any, data: bytes) -> tuple[bytes, list[str]] | None:
    """The file, and the symbols whose documents it must not be given; None for a model it cannot hold."""
    spec = read_spm_model(data)
    ids = range(spec.vocab_size)
    if (
        spec.model != "bpe"
        or not spec.byte_fallback
        or spec.normalization != "identity"
        or spec.remove_extra_whitespaces
        or any(model.is_unused(id) for id in ids)
        or any("▁" in symbol or any(map(str.isspace, symbol)) for symbol in spec.user_symbols)
    ):
        return None
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    if spec.add_dummy_prefix:
        normalizers.insert(0, {"type": "Prepend", "prepend": "▁"})
    config: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": model.id_to_piece(model.unk_id()),
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {model.id_to_piece(id): id for id in ids},
            "merges": _merges(model),
        },
    }
    return msgspec.json.encode(config), list(spec.user_symbols)


def _merges(model: Any) -> list[list[str]]:
    scores = {
        model.id_to_piece(id): model.get_score(id)
        for id in range(model.get_piece_size())
        if not (model.is_control(id) or model.is_unknown(id) or model.is_byte(id))
    }
    merges = [
        (-score, whole[:cut], whole[cut:])
        for whole, score in scores.items()
        for cut in range(1, len(whole))
        if whole[:cut] in scores and whole[cut:] in scores
    ]
    merges.sort(key=lambda merge: (merge[0], -len(merge[1])))  # stable: ties stay in order of ids
    return [[left, right] for _, left, right in merges]
