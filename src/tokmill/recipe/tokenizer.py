"""The section that says what turns text into ids: a pinned file, or one to train."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field, field_validator

from tokmill.recipe.section import Name, Path_, Section, Share, Weight

# which options belong to which models; all others belong to each
_SENTENCEPIECE = (
    "character_coverage",
    "byte_fallback",
    "hard_vocab_limit",
    "user_symbols",
    "normalization",
    "add_dummy_prefix",
    "remove_extra_whitespaces",
    "whitespace_pieces",
    "split_digits",
    "max_piece_length",
)
_BYTE_LEVEL = ("min_frequency",)

_MIN_COVERAGE = Decimal("0.98")  # SentencePiece takes no less


class Training(Section):
    """unigram and bpe are SentencePiece models, byte_bpe is a Hugging Face tokenizer.json.

    Options without a default here belong to some models only, which have their own.
    """

    model: Literal["unigram", "bpe", "byte_bpe"] = "byte_bpe"
    vocab_size: int = Field(32000, ge=257, le=1 << 24)
    sample_megabytes: int = Field(256, ge=1, description="text that the tokenizer learns from, drawn by hash")
    weights: dict[Name, Weight] | None = Field(
        None, description="of the sources in that text [default: of the mixture, or as much as they have]"
    )
    control_symbols: list[str] = Field([], description="control tokens besides `eos`")
    character_coverage: Share | None = Field(
        None, description="of characters that get a piece of their own [0.9995]"
    )
    byte_fallback: bool | None = Field(None, description="spell the other characters in bytes [true]")
    hard_vocab_limit: bool | None = Field(None, description="no smaller vocabulary than asked for [true]")
    user_symbols: list[str] | None = Field(
        None, description="pieces that are found in text and never cut; not for special tokens"
    )
    normalization: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] | None = Field(
        None, description="[identity]; others change the text"
    )
    add_dummy_prefix: bool | None = Field(
        None, description="the first word is spelled as one after a space [true]"
    )
    remove_extra_whitespaces: bool | None = Field(None, description="[false]")
    whitespace_pieces: bool | None = Field(None, description="runs of spaces may be a piece [true]")
    split_digits: bool | None = Field(None, description="every digit is a piece [false]")
    max_piece_length: int | None = Field(None, ge=1, le=512, description="characters [16]")
    min_frequency: int | None = Field(None, ge=1, description="of a pair that is merged, for byte_bpe [2]")

    @field_validator("character_coverage")
    @classmethod
    def _within_the_library(cls, value: Decimal | None) -> Decimal | None:
        if value is not None and value < _MIN_COVERAGE:
            raise ValueError(f"should be {_MIN_COVERAGE} to 1")
        return value

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        model = given.get("model", "byte_bpe")
        others = _SENTENCEPIECE if model == "byte_bpe" else _BYTE_LEVEL
        for key in others:
            if given.get(key) is not None:
                yield (key,), f"does not belong to the model {model}"

    def options(self) -> dict[str, Any]:
        """What was asked of the trainer."""
        return self.model_dump(mode="json", exclude={"sample_megabytes", "weights"}, exclude_none=True)


class Tokenizer(Section):
    """A pinned file or one to train; `eos` is a token of its vocabulary, or an id."""

    path: str | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    encoding: str | None = Field(None, description="for a .tiktoken file whose sha256 is not a published one")
    train: Training | None = None
    eos: str | int
    control: list[str] = Field(
        [], description="control tokens whose literals in text become their ids; all others stay text"
    )
    padded_vocab_size: int | None = Field(
        None, ge=1, le=1 << 31, description="rows of the embedding that the ids are for"
    )

    @field_validator("eos", mode="before")
    @classmethod
    def _token_or_id(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise ValueError("should be a token of the vocabulary, or an id")
        return value

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        is_trained = given.get("train") is not None
        if is_trained == (given.get("path") is not None):
            yield (), "needs either `path` (with `sha256`) or `train`"
        elif is_trained:
            if isinstance(given.get("eos"), int):
                yield ("eos",), "a trained tokenizer takes its `eos` as a string"
            for key in ("sha256", "encoding"):
                if given.get(key) is not None:
                    yield (key,), f"`{key}` belongs to `path`"
        control = given.get("control")
        if isinstance(control, list) and len(set(map(str, control))) != len(control):
            yield ("control",), "names a token twice"
