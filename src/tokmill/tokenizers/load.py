"""From a tokenizer file to a Tokenizer.

    directory ─▶ the file in it
    read once ─▶ sha256 (against the pin) ─▶ kind (by name, else by content) ─▶ adapter

      .json                        tokenizer.json of Hugging Face `tokenizers`, or tekken.json of Mistral
      .tiktoken                    tiktoken ranks
      .model, .model.<version>     SentencePiece (or tiktoken ranks, which Llama 3 ships under this name)
      .plugin.json                 somebody else's code, by name and digest (tokmill.artifacts.plugins), and
                                   its options

The library behind a kind is imported when a file of that kind is loaded, and not before.
"""

from __future__ import annotations

import copy
import hashlib
import re
from pathlib import Path

from tokmill.errors import TokenizerError, TokenizerMismatch
from tokmill.storage.on_demand import at_hand
from tokmill.tokenizers.directory import tokenizer_file
from tokmill.tokenizers.plugin import PluginTokenizer
from tokmill.tokenizers.protocol import Tokenizer

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
