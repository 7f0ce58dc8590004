"""tiktoken rank files (`.tiktoken`): one `base64(token) rank` per line.

    IQ== 0\\n
    Ig== 1\\n
    …

The file holds no split pattern and no special tokens; those belong to a named encoding. A file with a
published sha256 names its encoding itself, any other needs `encoding=`. Nothing is ever downloaded or cached.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tiktoken
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, TokenizerError
from tokmill.tokenizers.fast import Fast, LibraryTokenizer, open_fast
from tokmill.tokenizers.protocol import Boundaries, by_bytes, recent_classes

# The patterns are OpenAI's, in the possessive spelling of tiktoken 0.14: it splits like the older one and
# backtracks less. A test holds them against the installed tiktoken.
_R50K_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_O200K_PATTERN = "|".join(
    (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)

_R50K_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
_P50K_SHA256 = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"
_CL100K_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
_O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")


def _harmony_specials() -> dict[str, int]:
    # 200018 has two names in tiktoken, `<|reserved_200018|>` too; one id with two names cannot be decoded
    named = {
        "<|startoftext|>": 199998,
        "<|endoftext|>": 199999,
        "<|return|>": 200002,
        "<|constrain|>": 200003,
        "<|channel|>": 200005,
        "<|start|>": 200006,
        "<|end|>": 200007,
        "<|message|>": 200008,
        "<|call|>": 200012,
        "<|endofprompt|>": 200018,
    }
    taken = set(named.values())
    return named | {f"<|reserved_{id}|>": id for id in range(200000, 201088) if id not in taken}


@dataclass(frozen=True)
class Encoding:
    """What a rank file does not say. `splitter` is gigatoken's name for the pattern."""

    sha256: str
    pattern: str
    specials: dict[str, int] = field(hash=False)

    @property
    def splitter(self) -> str:
        return {_R50K_PATTERN: "gpt2", _CL100K_PATTERN: "gpt4", _O200K_PATTERN: "o200k"}[self.pattern]


_R50K = Encoding(_R50K_SHA256, _R50K_PATTERN, {"<|endoftext|>": 50256})

# Of two encodings with the same ranks the first is the one a file is recognised as.
ENCODINGS: dict[str, Encoding] = {
    "r50k_base": _R50K,
    "gpt2": _R50K,
    "p50k_base": Encoding(_P50K_SHA256, _R50K_PATTERN, {"<|endoftext|>": 50256}),
    "p50k_edit": Encoding(
        _P50K_SHA256,
        _R50K_PATTERN,
        {"<|endoftext|>": 50256} | dict(zip(_FIM, range(50281, 50284), strict=True)),
    ),
    "cl100k_base": Encoding(
        _CL100K_SHA256,
        _CL100K_PATTERN,
        {"<|endoftext|>": 100257}
        | dict(zip(_FIM, range(100258, 100261), strict=True))
        | {"<|endofprompt|>": 100276},
    ),
    "o200k_base": Encoding(
        _O200K_SHA256, _O200K_PATTERN, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
    ),
    "o200k_harmony": Encoding(_O200K_SHA256, _O200K_PATTERN, _harmony_specials()),
}


class TiktokenTokenizer(LibraryTokenizer):
    kind, library = "tiktoken", f"tiktoken {tiktoken.__version__}"

    def __init__(self, path: Path, sha256: str, data: bytes, encoding: str | None) -> None:
        self.path, self.sha256 = path, sha256
        self.encoding = recognise_encoding(path, sha256, encoding)
        known = ENCODINGS[self.encoding]
        self._ranks = parse_ranks(data, path)
        self.specials = known.specials
        _check_room(self._ranks, known.specials, self.encoding, path)
        self.vocab_size = max(max(self._ranks.values()), *known.specials.values()) + 1
        self._bpe = tiktoken.Encoding(
            self.encoding, pat_str=known.pattern, mergeable_ranks=self._ranks, special_tokens=known.specials
        )

    def _open_fast(self) -> Fast | None:
        splitter = ENCODINGS[self.encoding].splitter
        return open_fast(
            # without special tokens, so that all text is ordinary
            lambda rs: rs.BPETokenizer.from_tiktoken(str(self.path), splitter, {}),
            self.encode,
            routed_classes=recent_classes(),
        )

    def _encode_one(self, text: str) -> NDArray[np.int32]:
        try:
            # No special is allowed and none is refused, so all text is ordinary. 7.3 MB/s with r50k against
            # 6.3 for encode_ordinary and a list; `encode_ordinary_batch` is the latter in threads.
            buffer = self._bpe.encode_to_numpy(text, allowed_special=set(), disallowed_special=())
        except UnicodeEncodeError:
            raise
        except ValueError:
            # The compiled regex gives up on a run of about a million blanks ("Max stack size exceeded").
            # The same pattern in Python does not, and costs 0.5 s for such a document.
            return np.array(self._bpe._encode_only_native_bpe(text), dtype=np.int32)
        ids: NDArray[np.int32] = buffer.view(np.int32)  # uint32 from the library; every id is far below 2^31
        return ids

    def boundaries(self, text: str) -> Boundaries:
        ids = self._encode_one(text)
        found = by_bytes(ids, self._bpe.decode_tokens_bytes(ids.tolist()), text.encode())
        assert found is not None, f"{self.path}: the tokens do not spell the text"
        return found

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        return str(self._bpe.decode(np.asarray(ids, dtype=np.int64).tolist()))

    def token_id(self, token: str) -> int | None:
        if token in self.specials:
            return self.specials[token]
        return self._ranks.get(token.encode())


def recognise_encoding(path: Path, sha256: str, encoding: str | None) -> str:
    """The encoding named by the caller, or the one whose published rank file this is."""
    by_sha256 = [name for name, known in ENCODINGS.items() if known.sha256 == sha256]
    if encoding is None:
        if by_sha256:
            return by_sha256[0]
        raise TokenizerError(
            "a rank file does not say how text is split, and this one is not a published file",
            where=str(path),
            next=f"set `encoding` to one of {', '.join(ENCODINGS)}",
        )
    if encoding not in ENCODINGS:
        raise TokenizerError(
            f"unknown encoding {encoding!r}", where=str(path), next=f"choose one of {', '.join(ENCODINGS)}"
        )
    if by_sha256 and encoding not in by_sha256:
        raise TokenizerError(
            f"these are the ranks of {by_sha256[0]}, not of {encoding}",
            where=str(path),
            next=f"set `encoding` to one of {', '.join(by_sha256)}, or leave it out",
        )
    return encoding


def parse_ranks(data: bytes, path: Path) -> dict[bytes, int]:
    """token -> rank, of a file in which every line is sound and every byte has a token."""
    ranks: dict[bytes, int] = {}
    seen: set[int] = set()
    lines = data.removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, start=1):
        encoded, _, digits = line.partition(b" ")
        try:
            token = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            token = b""
        if not token or not digits.isdigit():
            raise _corrupt(f"line {number} is not `base64 rank`: {line[:60]!r}", path)
        rank = int(digits)
        if token in ranks or rank in seen:
            raise _corrupt(f"line {number} repeats an earlier token or rank: {line[:60]!r}", path)
        ranks[token] = rank
        seen.add(rank)
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise _corrupt(
            f"{len(ranks):,} lines, but no token for the byte 0x{missing[0]:02x}; is it cut?", path
        )
    return ranks


def _check_room(ranks: dict[bytes, int], specials: dict[str, int], encoding: str, path: Path) -> None:
    token_of = {rank: token for token, rank in ranks.items()}
    for special, id in specials.items():
        if id in token_of:
            raise TokenizerError(
                f"rank {id} is the token {token_of[id]!r}, and {encoding} keeps that id for {special}",
                where=str(path),
                next="this file belongs to another encoding; choose it with `encoding`",
            )


def _corrupt(what: str, path: Path) -> CorruptFile:
    return CorruptFile(what, where=str(path), next="fetch the file again and pin its sha256")
