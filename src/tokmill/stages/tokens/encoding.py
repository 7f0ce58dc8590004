"""How the texts of a shard become ids: as they are, as conversations, or with their middle last.

    plain          literals of `tokenizer.control` are control tokens                  tokenizers.fast
    conversation   those that the template wrote are, and what is learned is told      tokenizers.regions
    fim            some documents in three parts, in another order                     tokenizers.fim

Whoever compares tokens with texts (the check of a sample, `tokmill check`) encodes them by the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from tokmill.tokenizers.fast import encode_with_controls
from tokmill.tokenizers.fim import Fim, encode_fim
from tokmill.tokenizers.protocol import Encoded
from tokmill.tokenizers.regions import Masked, encode_marked


class Encoding(NamedTuple):
    """Of one source."""

    controls: Mapping[str, int]  # read in every text
    specials: Mapping[str, int] | None = None  # read in the template of conversations; None: there are none
    fim: Fim | None = None


class FimOptions(msgspec.Struct, frozen=True):
    """`fim` of a recipe; of a task, for one source, with the ids of its sentinels."""

    rate: Decimal
    spm: Decimal
    domains: tuple[str, ...]
    prefix: str
    middle: str
    suffix: str
    seed: int

    def of_source(self, source: str, sentinels: Mapping[str, int]) -> Fim:
        ids = (sentinels[name] for name in (self.prefix, self.middle, self.suffix))
        return Fim(self.seed, source, Fraction(self.rate), Fraction(self.spm), *ids)


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

    def read_controls(column: Any) -> Encoded:
        return encode_with_controls(column, encode, encoding.controls)

    if encoding.fim is not None:
        return Documents(encode_fim(texts, doc_ids, read_controls, encoding.fim))
    return Documents(read_controls(texts))
