"""Ids that a recipe speaks of: what ends and begins a document, control tokens, and how large an id may be.

Every check needs the tokenizer, and no text.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from tokmill.errors import EosMissing, RecipeError, TokenizerError, VocabTooLarge
from tokmill.tokenizers.directory import find_mark
from tokmill.tokenizers.protocol import Tokenizer

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
