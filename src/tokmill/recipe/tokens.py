"""Sections for tokens: the tokenizer, the mixture, rows and builds, and the model that is to be trained.

tokenizer    a pinned file, or one to train
mixture      how much of which domain and source
pack         how documents are laid into rows
builds       in which formats
review       the model: for `tokmill review` alone, and for nothing that is built
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticKnownError

from tokmill.artifacts.plugins import HOOK
from tokmill.formats import Columns, Format, find_format, format_names, is_format, known_format
from tokmill.recipe.curriculum import Stage, mixture_mistakes
from tokmill.recipe.scores import Repeat, Select
from tokmill.recipe.section import Amount, Name, Path_, Section, Share, Weight, part_of

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
    weights: dict[Name, Weight] | Literal["mixture"] | None = Field(
        None,
        description=(
            "of the sources in that text; mixture: those of the mixture, and another mixture trains another "
            "tokenizer [default: as much as they have]"
        ),
    )
    control_symbols: list[str] = Field([], description="control tokens besides `eos`")
    character_coverage: Share | None = Field(
        None, description="of characters that get a piece of their own [0.9995]"
    )
    byte_fallback: bool | None = Field(None, description="spell the other characters in bytes [true]")
    hard_vocab_limit: bool | None = Field(None, description="no smaller vocabulary than `vocab_size` [true]")
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
    """A pinned file or directory, a plugin, or one to train; `eos` and `bos` are tokens of its vocabulary, or
    ids."""

    LATER: ClassVar = ("bos",)

    path: str | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    encoding: str | None = Field(
        None, description="for a rank file that is not a published one: cl100k_base, llama3 …"
    )
    plugin: str | None = Field(
        None, description="a function that makes one: of an installed package, or hooks.py:name"
    )
    options: dict[str, Any] = Field({}, description="for the `plugin`")
    train: Training | None = None
    eos: str | int | None = Field(
        None,
        description="what ends a document; required, but for a directory that is not pinned: `path: tok/` "
        "says it itself",
    )
    bos: str | int | None = Field(
        None, description="a token, or an id, that every document begins with [default: none]"
    )
    control: list[str] = Field(
        [], description="control tokens whose literals in text become their ids; all others stay text"
    )
    padded_vocab_size: int | None = Field(
        None, ge=1, le=1 << 31, description="rows of the embedding that the ids are for"
    )

    @field_validator("eos", "bos", mode="before")
    @classmethod
    def _token_or_id(cls, value: Any) -> Any:
        if value is None:
            return value
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise ValueError("should be a token of the vocabulary, or an id")
        return value

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        is_trained = given.get("train") is not None
        if sum(given.get(key) is not None for key in ("path", "plugin", "train")) != 1:
            yield (), "needs either `path` (with `sha256`), `plugin` or `train`"
            return
        path = given.get("path")
        if given.get("eos") is None and not (isinstance(path, str) and path.endswith("/")):
            yield ("eos",), "is required; only a directory, written `path: tok/`, may say it itself"
        for key in ("eos", "bos"):
            if is_trained and isinstance(given.get(key), int):
                yield (key,), f"a trained tokenizer takes its `{key}` as a string"
        for key, owner in (("sha256", "path"), ("encoding", "path"), ("options", "plugin")):
            if given.get(key) and given.get(owner) is None:
                yield (key,), f"`{key}` belongs to `{owner}`"
        control = given.get("control")
        if isinstance(control, list) and len(set(map(str, control))) != len(control):
            yield ("control",), "names a token twice"


Unit = Literal["tokens", "blocks", "documents", "megabytes"]
_TARGETS: tuple[Unit, ...] = ("tokens", "blocks", "documents", "megabytes")


class Mixture(Section):
    """Shares of the built tokens by domain, and within a domain by source;
    a build is as large as its target."""

    LATER: ClassVar = ("repeat", "select", "batch_tokens", "stages")

    weights: dict[Name, Weight] = Field({}, description="of domains [default: by the tokens they have]")
    sources: dict[Name, dict[Name, Weight]] = Field({}, description="of the sources of a domain")
    normalize: bool = Field(False, description="weights are not meant to add up to 1: nothing is said of it")
    tokens: Amount | None = Field(None, description="200M; all splits together")
    blocks: Amount | None = Field(None, description="rows of pack.length tokens, exactly")
    documents: Amount | None = None
    megabytes: Amount | None = Field(None, description="millions of bytes of text")
    exhausted: Literal["stop", "renormalize", "repeat"] = "stop"
    max_epochs: int = Field(4, ge=1, description="for repeat")
    order: Literal["shuffle", "corpus"] = Field("shuffle", description="of the documents of a source")
    held_out: Literal["mixed", "whole"] = Field(
        "mixed",
        description="whole: held-out splits keep every document, in order; the target is for training",
    )
    balance: Literal["none", "smallest"] = Field(
        "none", description="smallest: of each domain as many rows as the smallest has"
    )
    repeat: Repeat | None = Field(None, description="documents with a high score more often, with a low less")
    select: Select | None = Field(None, description="some documents, drawn by a score")
    batch_tokens: Amount | None = Field(None, description="of a step of training, for `stages`")
    stages: list[Stage] = Field([], description="what is trained on in turn, each with its own target")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if given.get("repeat") is not None and given.get("select") is not None:
            yield ("select",), "`repeat` says already which documents are built; keep one"
        targets = [key for key in _TARGETS if given.get(key) is not None]
        for key in targets[1:]:
            yield (key,), f"`{targets[0]}` already says how much is built; keep one"
        yield from mixture_mistakes(given, targets)
        if not targets and not given.get("stages") and given.get("exhausted", "stop") != "stop":
            yield (
                ("exhausted",),
                "has no end without a target: set `tokens`, `blocks`, `documents` or `megabytes`",
            )

    @property
    def target(self) -> tuple[Unit, int] | None:
        return next(((key, getattr(self, key)) for key in _TARGETS if getattr(self, key) is not None), None)

    def of_stage(self, stage: Stage, length: int) -> Mixture:
        """A mixture of that stage alone, in rows of that length."""
        return self.model_copy(
            update={
                "stages": [],
                "batch_tokens": None,
                "weights": stage.weights or self.weights,
                "sources": {**self.sources, **stage.sources},
                "blocks": stage.rows(length, self.batch_tokens),
            }
        )


class Pack(Section):
    """How documents are laid into rows of equal length."""

    layout: Literal["concat", "document", "best_fit", "pad", "indexed"] = Field(
        "concat",
        description="concat: one stream, cut; document: whole documents in order; best_fit: least padding; "
        "pad: one a row; indexed: no rows",
    )
    length: int = Field(2048, ge=2, lt=1 << 31)
    tail: Literal["drop", "pad"] = Field("drop", description="of concat: what does not fill the last row")
    mix_domains: bool | None = Field(
        None, description="may a row hold two domains [default: only with concat and without balance]"
    )


TextFormatName = Literal["jsonl", "parquet", "webdataset"]
TEXT_FORMATS: tuple[str, ...] = get_args(TextFormatName)  # what is written of `content: text`


class _FormatName:
    """A name of the registry, told as a choice: which there are depends on what is installed."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        names = sorted({*format_names(), *TEXT_FORMATS})
        return {"anyOf": [{"type": "string", "enum": names}, {"type": "string", "pattern": HOOK}]}


def _check_format(name: Any) -> Any:
    if isinstance(name, str) and (name in TEXT_FORMATS or is_format(name)):
        return name
    choices = ", ".join(f"'{known}'" for known in sorted({*format_names(), *TEXT_FORMATS}))
    raise PydanticKnownError("literal_error", {"expected": choices})


class Build(Section):
    """One of the forms that the tokens are written in, or the texts.
    megatron, token_cache, nanogpt, llmc and nanotron keep documents as they are."""

    LATER: ClassVar = ("columns", "content", "measures")

    name: Name
    format: Annotated[str, BeforeValidator(_check_format), _FormatName()]
    dtype: Literal["int32", "uint16", "smallest"] = Field(
        "int32",
        description="for memmap, megatron, llmc, olmo, nanotron; nanogpt is always uint16. smallest: what "
        "holds the vocabulary",
    )
    pack: Pack | None = Field(None, description="[default: that of the recipe]")
    rows_per_shard: int = Field(
        8192, ge=1, description="for arrow, npy and parquet: rows, or documents, of a file"
    )
    columns: Columns = Field(
        "ids",
        description="for parquet. huggingface: `input_ids`, `labels`, `attention_mask`, as models of "
        "transformers take them; huggingface_documents: `input_ids`, `labels`, `position_ids`, which keep "
        "the documents of a row apart",
    )
    sources: list[Name] = Field([], description="only these [default: all]")
    content: Literal["tokens", "text"] = Field(
        "tokens",
        description="text: the documents themselves, as jsonl, parquet or webdataset, in texts/NAME",
    )
    measures: bool = Field(False, description="of texts: with what the rules measured")

    @property
    def is_text(self) -> bool:
        return self.content == "text"

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        name = given.get("format")
        if given.get("content") == "text":
            yield from _text_mistakes(given)
            return
        if given.get("measures"):
            yield ("measures",), "belongs to `content: text`"
        if not isinstance(name, str):
            return
        if format := known_format(name):
            yield from format_mistakes(given, format)
        elif name in TEXT_FORMATS:
            yield ("format",), f"{name} holds texts: add `content: text`"


def _text_mistakes(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """What is said of texts, and is of tokens."""
    name = given.get("format")
    if isinstance(name, str) and is_format(name) and name not in TEXT_FORMATS:
        *others, last = TEXT_FORMATS
        yield ("format",), f"{name} holds tokens; texts are {', '.join(others)} or {last}"
    for key in ("dtype", "pack", "rows_per_shard"):
        if key in given and given[key] != Build.model_fields[key].default:
            yield (key,), "is of tokens: a build of texts has none"


def format_mistakes(build: dict[str, Any] | Build, format: Format) -> Iterator[tuple[Path_, str]]:
    """What the build asks of its format, and the format cannot do.
    A record beside the recipe is known to the plan alone."""
    name = part_of(build, "format")
    if format.write is None:
        yield ("format",), f"{name} is only read: nothing writes it"
    dtype, is_written = part_of(build, "dtype"), isinstance(build, dict)  # a section has its default
    if len(format.dtypes) == 1 and dtype not in (None, *format.dtypes, *(() if is_written else ("int32",))):
        yield ("dtype",), f"{name} is always {format.dtypes[0]}"
    columns = part_of(build, "columns")
    if isinstance(columns, str) and columns != "ids" and columns not in format.columns:
        yield ("columns",), f"{name} has ids alone; `columns: {columns}` is for parquet"
    rows, default = part_of(build, "rows_per_shard"), Build.model_fields["rows_per_shard"].default
    if not format.is_sharded and rows not in (None, default):
        sharded = ", ".join(one for one in format_names() if find_format(one).is_sharded)
        yield ("rows_per_shard",), f"{name} sizes its files itself; `rows_per_shard` is for {sharded}"
    if part_of(build, "pack") is not None and "rows" not in format.shapes:
        yield ("pack",), f"{name} keeps documents as they are"
    if "documents" not in format.shapes and part_of(part_of(build, "pack"), "layout") == "indexed":
        others = format_names("documents")
        yield ("pack", "layout"), f"{name} is made of rows; use {', '.join(others[:-1])} or {others[-1]}"


def dtype_of(build: Build, format: Format | None) -> Literal["int32", "uint16", "smallest"]:
    """Of its ids: what the recipe says, or else the only one of the format."""
    if format is None or len(format.dtypes) > 1:
        return build.dtype
    return "uint16" if format.dtypes == ("uint16",) else "int32"


class TrainingPlan(Section):
    """The model that is to be trained. Changes no byte: a run only writes it down beside what it made."""

    model_params: Amount | None = Field(None, description="parameters of the model: 7B, 124M")
    train_tokens: Amount | None = Field(
        None,
        description="tokens that it is trained on, repeats counted again: 200B [default: the build once]",
    )


class Fim(Section):
    """Fill in the middle: some documents are cut in three, and their middle is told last."""

    rate: Share = Field(Decimal("0.5"), description="of the documents that are cut")
    spm: Share = Field(
        Decimal("0.5"), description="of those, suffix first; the others begin with their prefix"
    )
    domains: list[Name] = Field(["code"], min_length=1, description="whose documents")
    prefix: str = Field("<fim_prefix>", description="a token of the tokenizer")
    middle: str = Field("<fim_middle>", description="likewise")
    suffix: str = Field("<fim_suffix>", description="likewise")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        defaults = {"prefix": "<fim_prefix>", "middle": "<fim_middle>", "suffix": "<fim_suffix>"}
        seen: dict[str, str] = {}
        for key, default in defaults.items():
            token = str(given.get(key, default))
            if seen.setdefault(token, key) != key:
                yield (key,), f"`{seen[token]}` is {token} too"
