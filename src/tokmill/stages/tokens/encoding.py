"""How the texts of a shard become ids: as they are, or as conversations.

    plain          literals of `tokenizer.control` are control tokens                  tokenizers.fast
    conversation   those that the template wrote are, and what is learned is told      tokenizers.regions

Whoever compares tokens with texts (the check of a sample, `tokmill check`) encodes them by the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tokmill.tokenizers.fast import encode_with_controls
from tokmill.tokenizers.protocol import Encoded
from tokmill.tokenizers.regions import Masked, encode_marked


class Encoding(NamedTuple):
    """Of one source."""

    controls: Mapping[str, int]  # read in every text
    specials: Mapping[str, int] | None = None  # read in the template of conversations; None: there are none


class Documents(NamedTuple):
    """One sequence per text; `masked`: the same and what is learned, of conversations."""

    encoded: Encoded
    masked: Masked | None = None


def encode_documents(
    texts: Any, doc_ids: Any, encode: Callable[[Any], Encoded], encoding: Encoding
) -> Documents:
    if encoding.specials is not None:
        masked = encode_marked(texts, encode, encoding.specials)
        return Documents(Encoded(masked.ids, masked.lengths), masked)
    return Documents(encode_with_controls(texts, encode, encoding.controls))
