"""A tokenizer that is somebody else's code: the file that names it, and its answers checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import canonical
from tokmill.artifacts.plugins import Plugin
from tokmill.errors import TokenizerError
from tokmill.tokenizers.protocol import Boundaries, Encoded, by_bytes

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
        with self.plugin.blamed():
            self.specials: Mapping[str, int] = dict(getattr(self._theirs, "specials", {}))
        for token, id in self.specials.items():
            is_id = isinstance(id, int | np.integer) and 0 <= id < size
            if not (isinstance(token, str) and token and is_id):
                raise self.plugin.fault(
                    f"has the special token {token!r} with the id {id!r}",
                    f"let `specials` be texts with ids below vocab_size, which is {size:,}",
                )
        self.engine = f"{self.plugin.name} {self.plugin.digest[:8]}"

    def encode(self, texts: Sequence[str]) -> Encoded:
        if count := self.plugin.asked_twice(len(texts)):
            first, second = (self._encode(texts[:count]) for _ in range(2))
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
