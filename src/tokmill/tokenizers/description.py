"""What a tokenizer file is, in words that are the same for every kind.

file ─ load (sha256 against the pin) ─ control tokens, unknown characters, normalization ─> Description
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.plugin import PluginTokenizer
from tokmill.tokenizers.protocol import Tokenizer


class Description(NamedTuple):
    """`byte_fallback`: every text can be spelled. `normalization`: what is done to the text;
    identity is nothing."""

    kind: str
    model: str
    sha256: str
    vocab_size: int
    specials: dict[str, int]
    unknown_id: int | None
    byte_fallback: bool
    normalization: str
    character_coverage: float | None = None
    add_dummy_prefix: bool | None = None
    remove_extra_whitespaces: bool | None = None

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def check_tokenizer(path: Path, *, sha256: str | None = None, encoding: str | None = None) -> Description:
    """The file loads, is the pinned one, and is described."""
    return describe_tokenizer(load_tokenizer(path, sha256=sha256, encoding=encoding))


def describe_tokenizer(tokenizer: Tokenizer) -> Description:
    if isinstance(tokenizer, PluginTokenizer):
        name, specials = tokenizer.plugin.name, dict(tokenizer.specials)
        return Description(
            tokenizer.kind, name, tokenizer.sha256, tokenizer.vocab_size, specials, None, False, "unknown"
        )
    data = tokenizer.path.read_bytes()
    if tokenizer.kind == "sentencepiece":
        return _describe_sentencepiece(tokenizer, data)
    if tokenizer.kind in ("tiktoken", "tekken"):
        encoding: str = tokenizer.encoding  # type: ignore[attr-defined]
        return Description(
            tokenizer.kind,
            encoding,
            tokenizer.sha256,
            tokenizer.vocab_size,
            dict(sorted(tokenizer.specials.items(), key=lambda item: item[1])),
            None,
            True,
            "identity",
        )
    return _describe_huggingface(tokenizer, data)


def _describe_sentencepiece(tokenizer: Tokenizer, data: bytes) -> Description:
    from tokmill.tokenizers.spm import read_spm_model

    found = read_spm_model(data)
    return Description(
        tokenizer.kind,
        found.model,
        tokenizer.sha256,
        tokenizer.vocab_size,
        found.controls,
        found.unknown_id,
        found.byte_fallback,
        found.normalization,
        found.character_coverage,
        found.add_dummy_prefix,
        found.remove_extra_whitespaces,
    )


class _Model(msgspec.Struct):
    type: str = "unknown"
    unk_token: str | None = None  # BPE, WordPiece, WordLevel
    unk_id: int | None = None  # Unigram
    byte_fallback: bool | None = None


class _File(msgspec.Struct):
    """Of a tokenizer.json all but its vocabulary and merges."""

    model: _Model
    added_tokens: list[dict[str, Any]] | None = None
    normalizer: Any = None
    pre_tokenizer: Any = None


def _describe_huggingface(tokenizer: Tokenizer, data: bytes) -> Description:
    file = msgspec.json.decode(data, type=_File)
    model, unknown = file.model, file.model.unk_id
    if unknown is None and model.unk_token:
        unknown = tokenizer.token_id(model.unk_token)
    specials = {
        token["content"]: token["id"]
        for token in file.added_tokens or []
        if token["special"] and token["id"] != unknown
    }
    # on bytes before the model, or in the model
    is_byte_level = "ByteLevel" in _types(file.pre_tokenizer)
    return Description(
        tokenizer.kind,
        f"{'byte-level ' if is_byte_level else ''}{model.type}",
        tokenizer.sha256,
        tokenizer.vocab_size,
        dict(sorted(specials.items(), key=lambda item: item[1])),
        unknown,
        is_byte_level or bool(model.byte_fallback),
        " ".join(_types(file.normalizer)) or "identity",
    )


def _types(part: Any) -> list[str]:
    """Names of what a part of a tokenizer.json consists of."""
    if not part:
        return []
    inner = part.get("normalizers") or part.get("pretokenizers")
    return [name for item in inner for name in _types(item)] if inner else [part["type"]]
