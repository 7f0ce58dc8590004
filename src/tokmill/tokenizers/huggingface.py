"""`tokenizer.json` files of the Hugging Face `tokenizers` library.

    text ─▶ encode_special_tokens=True, add_special_tokens=False ─▶ ids ─▶ a control id among them?
                                                                           │ no           │ yes (rare)
                                                                           ▼              ▼
                                                                         done     masked copy ─▶ ids

`encode_special_tokens = True` stops the library from cutting special tokens out of text, and for byte-level
BPE that is all it takes. The *model* may still know the string: a Unigram or WordLevel vocabulary, and BPE
with `ignore_merges`, hold `</s>` as an entry like any other and find it in the text (measured with 0.23.3).
So ids are looked at, and a document with a control id is encoded again by a copy whose control entries bear
names that no text contains.

What a file may configure and a corpus must not have is switched off: truncation, padding, BPE dropout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import tokenizers
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.tokenizers.fast import Fast, LibraryTokenizer, load_fast, open_fast
from tokmill.tokenizers.protocol import (
    BYTE_LETTERS,
    Boundaries,
    by_bytes,
    by_offsets,
    recent_classes,
)

_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")

# 16 MB of flags. The largest vocabularies have some 262,000 ids; one damaged digit would ask for gigabytes.
_MAX_IDS = 1 << 24


class HuggingFaceTokenizer(LibraryTokenizer):
    kind, library = "huggingface", f"tokenizers {tokenizers.__version__}"

    def __init__(self, path: Path, sha256: str, data: bytes) -> None:
        self.path, self.sha256 = path, sha256
        self._data = data
        try:
            self._tokenizer = _open_plain(data)
            model = msgspec.json.decode(data, type=_File).model
        except (ValueError, msgspec.MsgspecError) as error:
            reason = str(error).removeprefix("Cannot instantiate Tokenizer from buffer: ")
            raise CorruptFile(
                f"not a tokenizer.json that `tokenizers` {tokenizers.__version__} can read ({reason})",
                where=str(path),
                next="fetch the file again and pin its sha256",
            ) from error
        added = self._tokenizer.get_added_tokens_decoder()
        # not get_vocab_size(): that counts entries, and a vocabulary may have gaps
        self.vocab_size = max([_last_id(model.vocab), *added]) + 1
        if not self.vocab_size:
            raise CorruptFile("the vocabulary is empty", where=str(path), next="fetch the file again")
        if self.vocab_size > _MAX_IDS:
            raise CorruptFile(
                f"an id of {self.vocab_size - 1:,} in a vocabulary of {len(model.vocab):,}",
                where=str(path),
                next="fetch the file again and pin its sha256",
            )
        self.specials = {
            token.content: id for id, token in sorted(added.items()) if token.special and token.content
        }
        self._is_control = np.zeros(self.vocab_size, dtype=np.bool_)
        self._is_control[sorted(_control_ids(added, model))] = True
        self._masked: tokenizers.Tokenizer | None = None

    def _load_fast(self) -> Any:
        plain = _for_gigatoken(self._tokenizer, self._data)
        return None if plain is None else load_fast(lambda rs: rs.load_hf_json(plain))

    def _open_fast(self) -> Fast | None:
        return open_fast(self._fast_model, self.encode, routed_classes=recent_classes())

    def boundaries(self, text: str) -> Boundaries:
        """By the bytes that byte-level tokens stand for, else by the offsets of the library."""
        ids, data = self._encode_one(text), text.encode()
        spelled = [str(self._tokenizer.id_to_token(id)) for id in ids.tolist()]
        if all(character in BYTE_LETTERS for token in spelled for character in token):
            tokens = [bytes(BYTE_LETTERS[character] for character in token) for token in spelled]
            found = by_bytes(ids, tokens, data)
            if found is not None:
                return found
        encoder = self._tokenizer
        if self._is_control[_encode_plain(encoder, text)].any():
            encoder = self._masked_copy()
        places = encoder.encode(text, add_special_tokens=False).offsets
        sizes = np.array([0, *(len(character.encode()) for character in text)], np.int64)
        offsets = np.cumsum(sizes)[np.array(places, np.int64).reshape(-1, 2)]
        is_byte = np.array([_BYTE_PIECE.fullmatch(token) is not None for token in spelled], np.bool_)
        return by_offsets(ids, offsets, is_byte, len(data))

    def _masked_copy(self) -> tokenizers.Tokenizer:
        if self._masked is None:
            self._masked = _open_plain(msgspec.json.encode(_mask(self._data)))
        return self._masked

    def _encode_one(self, text: str) -> NDArray[np.int32]:
        ids = _encode_plain(self._tokenizer, text)
        if not self._is_control[ids].any():
            return ids
        masked_ids = _encode_plain(self._masked_copy(), text)
        assert not self._is_control[masked_ids].any(), f"{self.path}: the masked copy found a control token"
        return masked_ids

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        return str(
            self._tokenizer.decode(np.asarray(ids, dtype=np.int64).tolist(), skip_special_tokens=False)
        )

    def token_id(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found


def _open_plain(data: bytes) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_buffer(data)
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None) is not None:
        tokenizer.model.dropout = None  # a file may ask for it, and every encode would then differ
    return tokenizer


def _encode_plain(tokenizer: tokenizers.Tokenizer, text: str) -> NDArray[np.int32]:
    # A batch of one: the `fast` calls skip offsets (8 to 13 % faster than `encode`) and exist for batches
    # only. A longer batch would use every core unless TOKENIZERS_PARALLELISM says no, and that is the user's
    # to set.
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return np.array(encoding.ids, dtype=np.int32)


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[msgspec.Raw]  # of Unigram a list
    unk_token: str | None = None  # BPE, WordPiece, WordLevel
    unk_id: int | None = None  # Unigram


class _File(msgspec.Struct):
    model: _Model


def _last_id(vocabulary: dict[str, int] | list[msgspec.Raw]) -> int:
    """-1 if there is none."""
    return max(vocabulary.values(), default=-1) if isinstance(vocabulary, dict) else len(vocabulary) - 1


def _control_ids(added: Mapping[int, Any], model: _Model) -> set[int]:
    """Special tokens, without the unknown token: that one is what unknown text really becomes."""
    return {
        id
        for id, token in added.items()
        if token.special and token.content != model.unk_token and id != model.unk_id
    }


def _mask(data: bytes) -> dict[str, Any]:
    """The same tokenizer, with every control entry of the model under a name that no text contains.

    Ids stay where they are; merges that would build a control entry go. The scores of a Unigram model
    survive: both sides write the shortest decimal that reads back as the same double.
    """
    config: dict[str, Any] = msgspec.json.decode(data)
    model = config["model"]
    names: dict[str, str] = {}
    for token in config["added_tokens"]:
        if token["special"] and token["content"] != model.get("unk_token"):
            names[token["content"]] = f"\0control {token['id']}\0"
            token["content"] = names[token["content"]]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        for name in names:
            if name in vocabulary:
                vocabulary[names[name]] = vocabulary.pop(name)
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    if "merges" in model:
        model["merges"] = _without_merges_to(names, model["merges"])
    config["post_processor"] = None  # may name the control tokens; adds nothing to ordinary text
    return config


def _for_gigatoken(tokenizer: tokenizers.Tokenizer, data: bytes) -> bytes | None:
    """The masked file of a BPE with no special token left in it; None for any other model.

    Byte-level, or with byte fallback as SentencePiece's and Gemma's are (`_is_plain_fallback`).

    Ids of added tokens are those that `tokenizers` gives them, which are not always those of the file:
    one that the model's vocabulary lacks gets the next free id.
    """
    config = _mask(data)
    model = config["model"]
    if model.get("type") != "BPE":
        return None
    if model.get("byte_fallback"):
        if not _is_plain_fallback(config):
            return None
    elif model.get("unk_token"):
        return None
    plain = {id: token for id, token in tokenizer.get_added_tokens_decoder().items() if not token.special}
    if any(token.single_word or token.lstrip or token.rstrip for token in plain.values()):
        return None  # gigatoken 0.10 finds a `single_word` inside of words too
    added = [
        {
            "id": id,
            "content": token.content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": token.normalized,
            "special": False,
        }
        for id, token in sorted(plain.items())
    ]
    model["dropout"] = None
    config.update(added_tokens=added, truncation=None, padding=None)
    return msgspec.json.encode(config)


def _is_plain_fallback(config: dict[str, Any]) -> bool:
    """Whether gigatoken 0.10 gives the ids of `tokenizers` for a BPE with byte fallback: every byte has a
    piece, blanks become "▁" and nothing else is normalized, and there are no cuts but at blanks.

    Not with `ignore_merges`: a text that is a piece for a byte (`<0x0A>`) becomes it in `tokenizers` alone.
    """
    model, vocabulary = config["model"], config["model"]["vocab"]
    if (
        model.get("ignore_merges")
        or model.get("continuing_subword_prefix")
        or model.get("end_of_word_suffix")
    ):
        return False
    if any(f"<0x{byte:02X}>" not in vocabulary for byte in range(256)):
        return False
    normalizer, splitter = config.get("normalizer"), config.get("pre_tokenizer")
    steps = normalizer["normalizers"] if normalizer and normalizer["type"] == "Sequence" else [normalizer]
    if splitter is not None and splitter["type"] == "Metaspace":
        return steps == [None] and splitter.get("replacement") == "▁"
    return all(step in _BLANKS for step in steps if step is not None) and splitter in (None, _CUT_AT_BLANKS)


_BLANKS: Final = (
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
)
_CUT_AT_BLANKS: Final = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}


def _without_merges_to(names: Iterable[str], merges: list[Any]) -> list[Any]:
    """`a bc` or `["a", "bc"]` makes abc. A control token has few ways to be made,
    and a model has 50,000 merges."""
    ways = {(name[:at], name[at:]) for name in names for at in range(1, len(name))}
    if merges and isinstance(merges[0], str):
        spelled = {f"{left} {right}" for left, right in ways}
        return [merge for merge in merges if merge not in spelled]
    return [merge for merge in merges if tuple(merge) not in ways]
