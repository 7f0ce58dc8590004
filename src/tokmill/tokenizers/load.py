"""From a tokenizer file to a Tokenizer, with every check that needs no text.

    directory ─▶ the file in it
    read once ─▶ sha256 (against the pin) ─▶ kind (by name, else by content) ─▶ adapter

      .json                        tokenizer.json of Hugging Face `tokenizers`, or tekken.json of Mistral
      .tiktoken                    tiktoken ranks
      .model, .model.<version>     SentencePiece (or tiktoken ranks, which Llama 3 ships under this name)
      .plugin.json                 somebody else's code, by name and digest (tokmill.artifacts.plugins), and
                                   its options

The library behind a kind is imported when a file of that kind is loaded, and not before.

What a tokenizer file is, in words that are the same for every kind.

file ─ load (sha256 against the pin) ─ control tokens, unknown characters, normalization ─> Description
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import canonical
from tokmill.artifacts.plugins import SAMPLE, Plugin
from tokmill.errors import EosMissing, RecipeError, TokenizerError, TokenizerMismatch, VocabTooLarge
from tokmill.storage.elsewhere import at_hand
from tokmill.tokenizers.directory import find_mark, tokenizer_file
from tokmill.tokenizers.protocol import Boundaries, Encoded, Tokenizer, by_bytes

# In the order in which they are offered when the asked-for token does not exist.
_EOS_NAMES: Final = (
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "<|end_of_text|>",
    "<|eos|>",
    "<|endofdocument|>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "[SEP]",
    "<|im_end|>",
    "<|eot_id|>",
    "<|return|>",
)

_BOS_NAMES: Final = (
    "<s>",
    "<bos>",
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<|bos|>",
    "<｜begin▁of▁sentence｜>",
    "[BOS]",
    "[CLS]",
)

_ID_LIMITS: Final = {"uint16": 1 << 16, "int32": 1 << 31}

_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+(\n|\Z)")
_TEKKEN = re.compile(rb'"default_num_special_tokens"\s*:\s*[0-9]')
# field 1 (a piece), its length, then field 1 again (the piece's text)
_PIECE_BYTES = re.compile(rb"\n[\x00-\x7f]\n", re.DOTALL)


def load_tokenizer(path: Path, *, sha256: str | None = None, encoding: str | None = None) -> Tokenizer:
    """The tokenizer in `path`, whose bytes must have the pinned `sha256` if one is given; of a directory, the
    one in it.

    `encoding` names the split pattern and special tokens of a rank file (`cl100k_base`, …).
    """
    path = tokenizer_file(Path(path))
    data = _read(path)
    actual = hashlib.sha256(data).hexdigest()
    if sha256 is not None and sha256.lower() != actual:
        raise TokenizerMismatch(
            f"sha256 is {actual}, but {sha256} is pinned",
            where=str(path),
            next=(
                "restore the pinned file, or pin the new sha256 if the change is meant (every token may "
                "differ)"
            ),
        )
    kind = _kind_of(path, data)
    if encoding is not None and kind != "tiktoken":
        raise TokenizerError(
            f"encoding: {encoding} is for tiktoken rank files, and this is a {kind} file",
            where=str(path),
            next="leave encoding out",
        )
    if kind == "huggingface":
        from tokmill.tokenizers.huggingface import HuggingFaceTokenizer

        return HuggingFaceTokenizer(path, actual, data)
    if kind == "tiktoken":
        from tokmill.tokenizers.tiktoken_ranks import TiktokenTokenizer

        return TiktokenTokenizer(path, actual, data, encoding)
    if kind == "tekken":
        from tokmill.tokenizers.tekken import TekkenTokenizer

        return TekkenTokenizer(path, actual, data)
    if kind == "plugin":
        return PluginTokenizer(path, actual, data)
    from tokmill.tokenizers.spm import SentencePieceTokenizer

    return SentencePieceTokenizer(path, actual, data)


_last_pinned: dict[tuple[str, str, str | None], Tokenizer] = {}


def pinned_tokenizer(path: str, sha256: str, encoding: str | None) -> Tokenizer:
    """The same, loaded once in a process, or in the one that this was forked from: whoever has read the file
    that a step publishes, or its copy, has read it for those that use it."""
    file = tokenizer_file(Path(path))
    key = file.name, sha256.lower(), encoding
    loaded = _last_pinned.get(key)
    if loaded is None:
        loaded = load_tokenizer(file, sha256=sha256, encoding=encoding)
    elif loaded.path != file:
        loaded = copy.copy(loaded)
        vars(loaded)["path"] = file  # the one before may be gone
    _last_pinned.clear()
    _last_pinned[key] = loaded
    return loaded


def _read(path: Path) -> bytes:
    try:
        return at_hand(path).read_bytes()
    except FileNotFoundError:
        raise TokenizerError(
            "no such tokenizer file",
            where=str(path),
            next="check `tokenizer.path` (it is relative to the recipe); tokmill never downloads a tokenizer",
        ) from None
    except OSError as error:
        raise TokenizerError(
            f"cannot read the tokenizer file ({error.strerror})",
            where=str(path),
            next="check the file's permissions and the disk",
        ) from error


def _kind_of(path: Path, data: bytes) -> str:
    name = path.name.lower()
    if name.endswith(".plugin.json"):
        return "plugin"
    if name.endswith(".json"):
        return "tekken" if name == "tekken.json" or _TEKKEN.search(data) else "huggingface"
    if name.endswith(".tiktoken"):
        return "tiktoken"
    if name.endswith(".model") or ".model." in name:
        return "tiktoken" if _RANK_LINE.match(data) else "sentencepiece"
    if data.lstrip()[:1] == b"{":
        return "tekken" if _TEKKEN.search(data) else "huggingface"
    if _RANK_LINE.match(data):
        return "tiktoken"
    if _PIECE_BYTES.match(data):
        return "sentencepiece"
    raise TokenizerError(
        "neither the name nor the content is of a known kind",
        where=str(path),
        next="give a tokenizer.json (Hugging Face), a .tiktoken rank file, a .model (SentencePiece) or a "
        "tekken.json",
    )


PLUGIN_FILE = "tokenizer.plugin.json"


class _PluginFile(msgspec.Struct, frozen=True):
    plugin: Plugin
    options: dict[str, Any]


def plugin_file(plugin: Plugin, options: dict[str, Any]) -> bytes:
    """What stands for a plugin where other tokenizers have a file."""
    return canonical(msgspec.to_builtins(_PluginFile(plugin, options))) + b"\n"


class PluginTokenizer:
    """What a plugin's factory returns, and its answers checked. It has

    vocab_size                         every id is below
    encode_batch(texts) -> sequences   of ids, one for each text
    decode(ids) -> str
    token_id(token) -> int or None     for `eos` and `control`
    specials                           control tokens with their ids, which text never becomes; may be missing
    """

    kind, is_fast = "plugin", False

    def __init__(self, path: Path, sha256: str, data: bytes) -> None:
        self.path, self.sha256 = path, sha256
        try:
            told = msgspec.json.decode(data, type=_PluginFile)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TokenizerError(
                f"names no plugin ({error})", where=str(path), next="copy the file again"
            ) from error
        self.plugin = told.plugin
        self._theirs = told.plugin.call(**told.options)
        lacking = [name for name in ("encode_batch", "decode", "token_id") if not hasattr(self._theirs, name)]
        size = getattr(self._theirs, "vocab_size", None)
        if lacking or not isinstance(size, int) or size < 1:
            told_of = f"has no {', '.join(lacking)}" if lacking else f"has the vocab_size {size!r}"
            raise self.plugin.fault(
                f"returned a {type(self._theirs).__name__} that {told_of}",
                "return an object with vocab_size, encode_batch, decode and token_id",
            )
        self.vocab_size: int = size
        self.specials: Mapping[str, int] = dict(getattr(self._theirs, "specials", {}))
        self.engine = f"{self.plugin.name} {self.plugin.digest[:8]}"

    def encode(self, texts: Sequence[str]) -> Encoded:
        if self.plugin.is_first_call():
            first, second = (self._encode(texts[:SAMPLE]) for _ in range(2))
            self.plugin.refuse_difference(_sequences(first), _sequences(second))
        return self._encode(texts)

    def encode_column(self, texts: Any) -> Encoded:
        return self.encode(texts.to_pylist())

    def _encode(self, texts: Sequence[str]) -> Encoded:
        with self.plugin.blamed():
            answer = [np.asarray(ids) for ids in self._theirs.encode_batch(list(texts))]
        if len(answer) != len(texts):
            raise self.plugin.fault(
                f"encoded {len(texts)} texts to {len(answer)} sequences", "return one for each text"
            )
        for ids in answer:
            if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
                raise self.plugin.fault(
                    f"encoded a text to {ids.dtype} of shape {ids.shape}",
                    "return the ids of each text, in a list",
                )
            if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
                raise self.plugin.fault(
                    f"gave the id {ids.max() if ids.min() >= 0 else ids.min()}; vocab_size is "
                    f"{self.vocab_size:,}",
                    "let vocab_size be above every id",
                )
        lengths = np.array([len(ids) for ids in answer], np.int64)
        return Encoded(np.concatenate([np.empty(0, np.int32), *answer]).astype(np.int32), lengths)

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        with self.plugin.blamed():
            text = self._theirs.decode([int(id) for id in ids])
        if not isinstance(text, str):
            raise self.plugin.fault(f"decoded ids to a {type(text).__name__}", "return a str")
        return text

    def boundaries(self, text: str) -> Boundaries:
        ids = self.encode([text]).ids
        found = by_bytes(ids, [self.decode([id]).encode() for id in ids.tolist()], text.encode())
        if found is None:
            raise self.plugin.fault(
                "decodes single ids to what does not spell the text",
                "where each token begins in the text cannot be known of such a tokenizer",
            )
        return found

    def token_id(self, token: str) -> int | None:
        with self.plugin.blamed():
            id = self._theirs.token_id(token)
        if id is not None and not (isinstance(id, int | np.integer) and 0 <= id < self.vocab_size):
            raise self.plugin.fault(
                f"gave {id!r} for the token {token!r}", "return an id below vocab_size, or None"
            )
        return None if id is None else int(id)


def _sequences(encoded: Encoded) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])]


def resolve_eos(tokenizer: Tokenizer, eos: str | int) -> int:
    """The id that ends a document.

    A string must be a token that text cannot spell; an id is taken at its word.
    """
    return _resolve(tokenizer, "eos", eos, "end")


def resolve_bos(tokenizer: Tokenizer, bos: str | int, eos_id: int) -> int:
    """The id that begins a document, likewise. It is not the one that ends it: a reader that looks for ends
    would find one at every beginning."""
    bos_id = _resolve(tokenizer, "bos", bos, "begin")
    if bos_id == eos_id:
        raise TokenizerError(
            f"bos and eos are both {bos!r} (id {bos_id}), so a document would end where it begins",
            where=str(tokenizer.path),
            next="leave `bos` out: the token that ends a document stands before the next one already",
        )
    return bos_id


def _resolve(tokenizer: Tokenizer, key: str, asked: str | int, act: str) -> int:
    if isinstance(asked, int):
        if not 0 <= asked < tokenizer.vocab_size:
            raise EosMissing(
                f"{key} id {asked} is outside the vocabulary (0 to {tokenizer.vocab_size - 1:,})",
                where=str(tokenizer.path),
                next=_suggest(tokenizer, key),
            )
        return asked
    found = tokenizer.token_id(asked)
    if found is None:
        raise EosMissing(
            f"no token {asked!r} in the vocabulary", where=str(tokenizer.path), next=_suggest(tokenizer, key)
        )
    if found in tokenizer.encode([asked]).ids:
        raise TokenizerError(
            f"{asked!r} (id {found}) is also what ordinary text is encoded to, so a document could {act} in "
            "its middle",
            where=str(tokenizer.path),
            next=f"{_suggest(tokenizer, key, besides=asked)}, or set the id {found} as {key} to accept it",
        )
    return found


def resolve_controls(tokenizer: Tokenizer, controls: Iterable[str]) -> dict[str, int]:
    """The id of each literal that a recipe wants read as a control token, in the order given."""
    found: dict[str, int] = {}
    for literal in controls:
        id = tokenizer.token_id(literal) if literal else None
        if id is None:
            known = list(tokenizer.specials)
            raise TokenizerError(
                f"no control token {literal!r} in the vocabulary",
                where=str(tokenizer.path),
                next=f"choose from {', '.join(known[:20])}{', …' if len(known) > 20 else ''}"
                if known
                else "leave controls out: this tokenizer has no control tokens",
            )
        if literal not in tokenizer.specials and id in tokenizer.encode([literal]).ids:
            raise TokenizerError(
                f"{literal!r} (id {id}) is an ordinary token: text becomes it without being asked",
                where=str(tokenizer.path),
                next=f"leave {literal!r} out of controls",
            )
        found[literal] = id
    return found


def resolve_sentinels(tokenizer: Tokenizer, wanted: Mapping[str, str]) -> dict[str, int]:
    """The ids of the tokens that `fim` names, by their spelling."""
    found: dict[str, int] = {}
    for key, token in wanted.items():
        id = tokenizer.token_id(token)
        if id is None:
            near = difflib.get_close_matches(token, tokenizer.specials, n=3, cutoff=0.5)
            raise TokenizerError(
                f"no token {token!r} in the vocabulary",
                where=f"{tokenizer.path}: fim.{key}",
                next=f"did you mean {', '.join(near)}? Set it as the {key} of `fim`"
                if near
                else f"set the {key} of `fim` to a control token of the tokenizer, or leave `fim` out",
            )
        if token not in tokenizer.specials and id in tokenizer.encode([token]).ids:
            raise TokenizerError(
                f"{token!r} (id {id}) is an ordinary token: text becomes it without being asked",
                where=f"{tokenizer.path}: fim.{key}",
                next=f"set the {key} of `fim` to a control token",
            )
        found[token] = id
    return found


def find_eos(tokenizer: Tokenizer, given: Path | None = None) -> str | int:
    """What the directory `given` says, or the first of the usual tokens that this one has."""
    if given is not None and given.is_dir() and (mark := find_mark(given, "eos")) is not None:
        return mark.token
    for name in _EOS_NAMES:
        if tokenizer.token_id(name) is not None:
            return name
    raise EosMissing(
        "none of the usual tokens that end a document is in the vocabulary",
        where=str(tokenizer.path),
        next="say which token, or which id, ends a document",
    )


def _suggest(tokenizer: Tokenizer, key: str, besides: str = "") -> str:
    usual = _EOS_NAMES if key == "eos" else _BOS_NAMES
    found = [name for name in usual if name != besides and tokenizer.token_id(name) is not None]
    return (
        f"set `{key}` to one of {', '.join(found)}" if found else f"set `{key}` to the id of a control token"
    )


def check_dtype(
    vocab_size: int, dtype: str, where: str, dtypes: Collection[str] = ("uint16", "int32")
) -> None:
    """Every id of the vocabulary must fit the dtype of the build at `where`, whose format has these."""
    if dtype not in _ID_LIMITS:
        raise RecipeError(
            f"unknown dtype {dtype!r}", where=where, next="set `dtype: uint16` or `dtype: int32`"
        )
    if vocab_size > _ID_LIMITS[dtype]:
        raise VocabTooLarge(
            f"vocab {vocab_size:,} does not fit {dtype}",
            where=where,
            next="use a smaller vocabulary"
            if dtype == "int32"
            else "set `dtype: int32`"
            if "int32" in dtypes
            else "choose a format that has int32, or use a smaller vocabulary",
        )


def check_padded(vocab_size: int, padded: int | None) -> None:
    if padded is not None and padded < vocab_size:
        raise TokenizerError(
            f"the vocabulary has {vocab_size:,} ids, padded_vocab_size is {padded:,}",
            where="tokenizer.padded_vocab_size",
            next=f"set it to {vocab_size} or more, or leave it out",
        )


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
