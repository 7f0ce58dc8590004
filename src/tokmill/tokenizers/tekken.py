"""`tekken.json` of Mistral: ranks as tiktoken has them, with their own split pattern and special tokens.

    config           pattern, default_vocab_size, default_num_special_tokens, version
    vocab            [{rank: 0, token_bytes: "AA==", token_str: …}, …]     more than are used
    special_tokens   [{rank: 0, token_str: "<unk>", is_control: true}, …]  not in files up to v7

    ids   0 … S-1    special tokens; those that the file does not name are <SPECIAL_n>
          S … V-1    ranks 0 … V-S-1 of the vocabulary; the ranks after them are left out

with S = default_num_special_tokens and V = default_vocab_size. So it is read by
mistral_common/tokens/tokenizers/tekken.py of github.com/mistralai/mistral-common (1.11.7), which has tiktoken
encode as well, and so are the tokens that files up to v7 leave to the reader.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import tiktoken

from tokmill.errors import CorruptFile
from tokmill.tokenizers.fast import load_fast
from tokmill.tokenizers.tiktoken_ranks import TiktokenTokenizer, for_gigatoken

_IMPLIED: Final = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]
_LAST_WITHOUT_TOKENS: Final = 7  # the version of the file

# 16 million names. Files have 1,000 special tokens; one damaged digit would ask for gigabytes.
_MAX_SPECIALS = 1 << 24


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int
    version: str


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


class TekkenTokenizer(TiktokenTokenizer):
    kind = "tekken"

    def __init__(self, path: Path, sha256: str, data: bytes) -> None:
        self.path, self.sha256 = path, sha256
        try:
            file = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _corrupt(f"not a tekken.json ({error})", path) from error
        config = file.config
        count = config.default_num_special_tokens
        inner = config.default_vocab_size - count
        if not 0 < count <= _MAX_SPECIALS or not 256 <= inner <= len(file.vocab):
            raise _corrupt(
                f"asks for {config.default_vocab_size:,} ids, {count:,} of them special tokens, and has "
                f"{len(file.vocab):,} others",
                path,
            )
        self.encoding = f"tekken {config.version}"
        self.specials = _specials(file, count, path)
        self._pattern = config.pattern
        self._unshifted = _ranks(file.vocab[:inner], path)
        self._ranks = {token: count + rank for token, rank in self._unshifted.items()}
        self.vocab_size = config.default_vocab_size
        try:
            self._bpe = tiktoken.Encoding(
                self.encoding,
                pat_str=config.pattern,
                mergeable_ranks=self._ranks,
                special_tokens=self.specials,
            )
        except ValueError as error:
            raise _corrupt(f"its pattern cannot be read ({error})", path) from error

    def _load_fast(self) -> Any:
        def load(rs: Any) -> Any:
            return rs.load_hf_json(for_gigatoken(self._unshifted, self._pattern, len(self.specials)))

        return load_fast(load)


def _specials(file: _File, count: int, path: Path) -> dict[str, int]:
    named = file.special_tokens
    if named is None:
        version = re.fullmatch(r"v(\d+)\w*", file.config.version)
        if version is None or int(version[1]) > _LAST_WITHOUT_TOKENS:
            raise _corrupt(f"version {file.config.version}, and no special tokens", path)
        named = [_Special(rank, token) for rank, token in enumerate(_IMPLIED)]
    fillers = [_Special(rank, f"<SPECIAL_{rank}>") for rank in range(len(named), count)]
    specials = {special.token_str: special.rank for special in [*named, *fillers]}
    if list(specials.values()) != list(range(count)) or len(named) + len(fillers) != count:
        raise _corrupt(
            f"its {len(named):,} special tokens are not {count:,} or fewer distinct ones, in order of their "
            "ranks",
            path,
        )
    return specials


def _ranks(vocabulary: list[_Token], path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for rank, entry in enumerate(vocabulary):
        try:
            token = base64.b64decode(entry.token_bytes, validate=True)
        except (binascii.Error, ValueError):
            token = b""
        if entry.rank != rank or not token or token in ranks:
            raise _corrupt(
                f"token {rank:,} of the vocabulary is damaged, repeated or out of order: {entry}", path
            )
        ranks[token] = rank
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise _corrupt(f"no token for the byte 0x{missing[0]:02x}", path)
    return ranks


def _corrupt(what: str, path: Path) -> CorruptFile:
    return CorruptFile(what, where=str(path), next="fetch the file again and pin its sha256")
