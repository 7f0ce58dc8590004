"""tiktoken rank files (`.tiktoken`, `tokenizer.model` of Llama 3 and 4): one `base64(token) rank` per line.

    IQ== 0\\n
    Ig== 1\\n
    …

The file holds no split pattern and no special tokens; those belong to a named encoding
(tokmill.tokenizers.encodings). Nothing is ever downloaded or cached.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tiktoken
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, TokenizerError
from tokmill.tokenizers.encodings import ENCODINGS, recognise_encoding
from tokmill.tokenizers.fast import Fast, LibraryTokenizer, load_fast, open_fast
from tokmill.tokenizers.protocol import BYTE_LETTERS, Boundaries, by_bytes, recent_classes


class TiktokenTokenizer(LibraryTokenizer):
    kind, library = "tiktoken", f"tiktoken {tiktoken.__version__}"

    def __init__(self, path: Path, sha256: str, data: bytes, encoding: str | None) -> None:
        self.path, self.sha256 = path, sha256
        self._ranks = parse_ranks(data, path)
        self.encoding = recognise_encoding(path, sha256, encoding, self._ranks)
        known = ENCODINGS[self.encoding]
        self.specials = known.specials(len(self._ranks))
        _check_room(self._ranks, self.specials, self.encoding, path)
        self.vocab_size = max(max(self._ranks.values()), *self.specials.values()) + 1
        self._bpe = tiktoken.Encoding(
            self.encoding, pat_str=known.pattern, mergeable_ranks=self._ranks, special_tokens=self.specials
        )

    def _load_fast(self) -> Any:
        known = ENCODINGS[self.encoding]

        def load(rs: Any) -> Any:
            if known.splitter is None:
                return rs.load_hf_json(for_gigatoken(self._ranks, known.pattern))
            # without special tokens, so that all text is ordinary
            return rs.BPETokenizer.from_tiktoken(str(self.path), known.splitter, {})

        return load_fast(load)

    def _open_fast(self) -> Fast | None:
        return open_fast(self._fast_model, self.encode, routed_classes=recent_classes())

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


def for_gigatoken(ranks: Mapping[bytes, int], pattern: str, first_id: int = 0) -> bytes:
    """The same as a tokenizer.json, ids from `first_id` on.

    tiktoken takes a part that is a token as it is (`ignore_merges`), and merges the two neighbours whose
    union has the lowest rank, whichever they are: so there is a merge for each way to cut a token in two.
    Slower to open than the ranks themselves (4 s for 128,000), and it holds ranks that no two others make.
    """
    letters = {byte: letter for letter, byte in BYTE_LETTERS.items()}
    spelled = {token: "".join(map(letters.__getitem__, token)) for token in ranks}
    merges = [
        (rank, ranks[token[:cut]], spelled[token[:cut]], spelled[token[cut:]])
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    merges.sort(key=lambda merge: merge[:2])
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    letters_of_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    config: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, letters_of_bytes]},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {spelled[token]: first_id + rank for token, rank in ranks.items()},
            "merges": [[left, right] for _, _, left, right in merges],
        },
    }
    return msgspec.json.encode(config)


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
