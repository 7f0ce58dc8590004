"""A directory with a tokenizer, as the hub has it: which file it is, and what ends and begins documents.

    tok/  tokenizer.json            the first of these three that is there is the tokenizer; nothing else
          tokenizer.model           in the directory can change an id
          tekken.json

          tokenizer_config.json     eos_token, bos_token: a string, or {"content": …}
          special_tokens_map.json   likewise, where the first does not say
          generation_config.json    eos_token_id, bos_token_id: a number, or a list of which the first counts

So a directory and the file in it are the same tokenizer: same sha256, same steps, same bytes. What ends a
document is asked of the directory where a recipe leaves `eos` out, and becomes part of the step; a recipe
that pins the sha256 says its `eos` itself, because no pin holds these other files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tokmill.errors import CorruptFile, TokenizerError
from tokmill.storage.disk import told_as_unreadable
from tokmill.storage.location import read_whole

TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tekken.json")

# The largest have a few hundred kilobytes, of chat templates and added tokens.
_MAX_BYTES = 16 << 20

_TOKENS: Final = ("tokenizer_config.json", "special_tokens_map.json")
_IDS: Final = "generation_config.json"


class Mark(NamedTuple):
    """A token or an id, and the file that says so."""

    token: str | int
    file: str


def tokenizer_file(path: Path) -> Path:
    """The tokenizer in a directory; any other path as it is."""
    with told_as_unreadable(path):  # a name that is too long for one
        if not path.is_dir():
            return path
    for name in TOKENIZERS:
        if (path / name).is_file():
            return path / name
    *others, last = TOKENIZERS
    raise TokenizerError(
        "a directory without a tokenizer",
        where=str(path),
        next=f"it should hold a {', '.join(others)} or {last}; or name the file itself",
    )


def find_mark(directory: Path, key: str) -> Mark | None:
    """What the directory says of `eos` or `bos`."""
    for name in _TOKENS:
        token = _read(directory / name).get(f"{key}_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str) and token:
            return Mark(token, name)
    id = _read(directory / _IDS).get(f"{key}_token_id")
    if isinstance(id, list):
        id = next(iter(id), None)
    return Mark(id, _IDS) if isinstance(id, int) and not isinstance(id, bool) else None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = msgspec.json.decode(read_whole(path, _MAX_BYTES))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(
            f"is not JSON ({error})", where=str(path), next="fetch the file again, or set `eos` in the recipe"
        ) from error
    return found if isinstance(found, dict) else {}
