"""The recipe: its sections and keys, which say everything that can change a byte.

Paths are relative to the recipe's directory. Workers, engine and output directory are not here: they cannot
change the output.
"""

from __future__ import annotations

import contextlib
import re
import string
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


def _exact_decimal(value: Any) -> Decimal:
    """0.1 stays 0.1: fractions are compared in integer arithmetic, so no binary fraction may come between."""
    if not isinstance(value, bool) and isinstance(value, (int, float, str, Decimal)):
        with contextlib.suppress(InvalidOperation):
            return Decimal(str(value))
    raise ValueError("should be a number")


Name = Annotated[str, Field(pattern=_NAME, max_length=100)]
Patterns = Annotated[
    list[str],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    ),
    Field(min_length=1),
]
# 2^-64 is 5e-20: more places cannot change a decision
Share = Annotated[Decimal, Field(ge=0, le=1, decimal_places=30), BeforeValidator(_exact_decimal)]
Path_ = tuple[str | int, ...]


class Section(BaseModel):
    """Unknown keys are refused, values are not coerced out of shape, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, str_min_length=1)

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        """Where and why keys that are right by themselves cannot stand together."""
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _every_mistake(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Contradictions are told with the mistakes in single keys, not after those are mended."""
        found = cls._contradictions(given) if isinstance(given, dict) else ()
        faults = [
            InitErrorDetails(type="value_error", loc=place, input=None, ctx={"error": ValueError(why)})
            for place, why in found
        ]
        try:
            section = validate(given)
        except ValidationError as error:
            faults += [
                InitErrorDetails(
                    type=fault["type"], loc=fault["loc"], input=fault["input"], ctx=fault.get("ctx", {})
                )
                for fault in error.errors(include_url=False)
            ]
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return section


class Fields(Section):
    """Which key of a record holds what. Without an entry, `text`/`content`, `id`/`doc_id` and `license` are
    used where the first record has them."""

    text: str | None = None
    id: str | None = None
    license: str | None = None
    created_at: str | None = None
    meta: list[str] = Field(default=[], description="keys to carry along as JSON")


SOURCE_FORMATS = ("wikipedia", "stackexchange", "parallel", "warc")


class Wikipedia(Section):
    """WikiExtractor output (--json lines or <doc> blocks) or a MediaWiki XML dump (.xml, .xml.bz2)."""

    namespaces: list[int] = Field([0], description="of a dump; 0 is articles")


class StackExchange(Section):
    """Posts.xml or a .7z that holds it: questions with their answers."""

    answers: Literal["accepted", "best", "all"] = Field(
        "accepted", description="accepted: the accepted answer, else the best; best: by score; all: by score"
    )
    max_answers: int = Field(1, ge=1, description="for best and all")
    min_question_score: int = 0
    min_answer_score: int = 0
    max_expansion: int = Field(100, ge=1, description="an archive that grows more than this is refused")


class Parallel(Section):
    """Sentence pairs, joined for language modelling."""

    source_key: str = "src_text"
    target_key: str = "tgt_text"
    separator: str = "\n"
    min_chars: int = Field(2, ge=1, description="per side")
    max_chars: int = Field(256, ge=1, description="per side")


class Warc(Section):
    """Web archives: .warc[.gz] (main text of HTML pages) and .wet[.gz] (text as extracted)."""

    main_text: bool = Field(True, description="leave out navigation and boilerplate of HTML pages")


class Hub(Section):
    """A dataset of the Hugging Face hub. A branch is resolved to its commit once, and stays there."""

    dataset: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")
    config: str | None = None
    split: str = "train"
    revision: str | None = Field(None, description="40 hex digits pin it; a branch or tag is resolved once")


class Corpus(Section):
    """Shards listed in a manifest of `tokmill materialize` or `tokmill select`; each must have its sha256."""

    manifest: str
    root: str | None = Field(
        None, description="the directory that holds corpora/ [default: where manifests/ lies]"
    )


class Limit(Section):
    """As many documents as stay within all bounds that are given, in the source's order."""

    docs: int | None = Field(None, ge=1)
    chars: int | None = Field(None, ge=1)
    megabytes: int | None = Field(None, ge=1, description="millions of bytes of text")
    tokens: int | None = Field(None, ge=1, description="estimated: four characters each")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if not any(given.get(key) is not None for key in ("docs", "chars", "megabytes", "tokens")):
            yield (), "needs `docs`, `chars`, `megabytes` or `tokens`"


class Sample(Section):
    """Which documents are taken. Only `head` and `shuffle_buffer` leave the rest of the source unread."""

    method: Literal["reservoir", "weighted", "hash", "head", "shuffle_buffer"]
    k: int | None = Field(None, ge=1, description="documents; for all methods but hash")
    buffer: int | None = Field(None, ge=1, description="documents in the buffer, for shuffle_buffer")
    fraction: Share | None = Field(None, description="for hash")
    weight: str | None = Field(None, description="for weighted: a key of `fields.meta` that holds a number")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        method = given.get("method")
        needed = {"hash": "fraction"}.get(str(method), "k")
        if method is not None and given.get(needed) is None:
            yield (needed,), f"{method} needs `{needed}`"
        for name, key in (("weighted", "weight"), ("shuffle_buffer", "buffer")):
            if method == name and given.get(key) is None:
                yield (key,), f"{name} needs `{key}`"


class Source(Section):
    name: Name
    domain: Name = "default"
    license: str | None = Field(None, description="for documents that carry none of their own")
    files: Patterns | None = Field(
        None, description="glob or list of globs; .jsonl[.gz|.zst] .parquet .txt[.gz|.zst]"
    )
    hub: Hub | None = None
    corpus: Corpus | None = None
    where: dict[str, str] = Field(
        {}, description="keep records whose field has this value; a field that no record has is not applied"
    )
    fields: Fields = Fields()
    template: str | None = Field(
        None, description='builds the text: "Problem: {question}\\n\\nSolution: {answer}"'
    )
    unit: Literal["document", "paragraph", "line"] = Field(
        "document", description="what a document is in .txt files"
    )
    on_bad_record: Literal["quarantine", "fail"] = "quarantine"
    max_bad_fraction: Share = Field(Decimal("0.01"), description="more than this stops the run")
    max_record_bytes: int = Field(128 << 20, ge=1024)
    limit: Limit | None = None
    sample: Sample | None = None
    fallback: Name | None = Field(
        None, description="a source to read only if this one does not reach its limit"
    )
    wikipedia: Wikipedia | None = None
    stackexchange: StackExchange | None = None
    parallel: Parallel | None = None
    warc: Warc | None = None

    @property
    def format(self) -> str:
        """The reader that the source's section chooses; files of records and plain text without one."""
        return next((name for name in SOURCE_FORMATS if getattr(self, name) is not None), "records")

    @field_validator("template")
    @classmethod
    def _plain_fields(cls, value: str | None) -> str | None:
        if value is not None:
            template_parts(value)
        return value

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if given.get("template") is not None and _part(given.get("fields"), "text") is not None:
            yield ("template",), "`template` and `fields.text` both say where the text comes from; keep one"
        if sum(given.get(key) is not None for key in ("files", "hub", "corpus")) != 1:
            yield (), "needs either `files`, `hub` or `corpus`"
        chosen = [name for name in SOURCE_FORMATS if given.get(name) is not None]
        for key in ("hub", "corpus"):
            if given.get(key) is not None and set(chosen) - {"parallel"}:
                yield (chosen[0],), f"reads local files; it cannot be used with `{key}`"
        if given.get("where") and chosen:
            yield ("where",), f"is for files of records, not for `{chosen[0]}`"
        if len(chosen) > 1:
            yield (chosen[1],), f"`{chosen[0]}` already says what the files are; keep one"
        if chosen and given.get("template") is not None:
            yield ("template",), f"`{chosen[0]}` says what the text is; leave the template out"


class Normalize(Section):
    unicode: Literal["none", "NFC", "NFKC"] = "none"
    nul: Literal["strip", "keep"] = "strip"
    newlines: Literal["keep", "lf"] = "keep"
    max_nul_fraction: Share = Field(
        Decimal("0.001"), description="a source with more NUL characters than this is not text"
    )


Measure = Literal["chars", "bytes"]


class Filter(Section):
    """Keep a document when min <= measure <= max."""

    measure: Measure
    min: int | None = None
    max: int | None = None
    reason: str | None = Field(None, pattern=r"^[a-z][a-z0-9_]*$")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        low, high = given.get("min"), given.get("max")
        if low is None and high is None:
            yield (), "needs `min` or `max`"
        elif isinstance(low, int) and isinstance(high, int) and low > high:
            yield ("min",), f"min {low} is above max {high}: nothing would be kept"


class Dedup(Section):
    exact: bool = True
    scope: Literal["global", "per-source"] = "global"
    keep: Literal["first"] = "first"
    partitions: int = Field(4, ge=1, le=4096, description="memory is bounded by one partition of the hashes")


class Split(Section):
    method: Literal["hash"] = "hash"
    valid_fraction: Share = Field(Decimal("0.01"), lt=1)


class Training(Section):
    model: Literal["bpe"] = "bpe"
    vocab_size: int = Field(32000, ge=257, le=1 << 24)
    sample_megabytes: int = Field(256, ge=1, description="text that the tokenizer learns from, drawn by hash")


class Tokenizer(Section):
    """A pinned file or one to train; `eos` is a token of its vocabulary, or an id."""

    path: str | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    encoding: str | None = Field(None, description="for a .tiktoken file whose sha256 is not a published one")
    train: Training | None = None
    eos: str | int

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


class Pack(Section):
    layout: Literal["concat"] = "concat"
    length: int = Field(2048, ge=2)
    tail: Literal["drop", "pad"] = "drop"


class Build(Section):
    name: Name
    format: Literal["memmap", "megatron"]
    dtype: Literal["int32", "uint16"] = "int32"


class Shards(Section):
    megabytes: int = Field(32, ge=1, le=4096, description="text per working shard")

    @property
    def bytes(self) -> int:
        return self.megabytes << 20


class Recipe(Section):
    name: Name
    seed: int = Field(0, ge=0, lt=1 << 63)
    sources: list[Source] = Field(min_length=1)
    shards: Shards = Shards()
    normalize: Normalize = Normalize()
    filters: list[Filter] = []
    dedup: Dedup = Dedup()
    split: Split = Split()
    tokenizer: Tokenizer | None = None
    pack: Pack = Pack()
    builds: list[Build] = []

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        for section in ("sources", "builds"):
            items = given.get(section)
            first: dict[str, int] = {}
            for index, item in enumerate(items if isinstance(items, list) else []):
                name = _part(item, "name")
                if isinstance(name, str) and first.setdefault(name, index) != index:
                    yield (section, index, "name"), f"{section}[{first[name]}] is called {name} too"
        yield from _fallback_mistakes(given.get("sources"))
        if given.get("builds") and given.get("tokenizer") is None:
            yield ("builds",), "`builds` needs a `tokenizer`"


def _fallback_mistakes(sources: Any) -> Iterator[tuple[Path_, str]]:
    items = [item for item in sources if isinstance(item, dict)] if isinstance(sources, list) else []
    places = {item.get("name"): index for index, item in enumerate(items)}
    for index, item in enumerate(items):
        other = item.get("fallback")
        if other is None:
            continue
        if other not in places:
            yield ("sources", index, "fallback"), f"no source is called {other}"
        elif places[other] <= index:
            yield ("sources", index, "fallback"), f"{other} must come after the source that falls back on it"
        if item.get("limit") is None:
            yield ("sources", index, "fallback"), "needs a `limit` that can be missed"


def _part(section: Any, key: str) -> Any:
    """What `section` has under `key`, be it a mapping as parsed or a Section already."""
    return section.get(key) if isinstance(section, dict) else getattr(section, key, None)


def template_parts(template: str) -> list[tuple[str, str | None]]:
    """[(literal, field), …]; only plain {field} names are allowed, with {{ and }} for braces."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"template: {error}; write {{{{ and }}}} for literal braces") from None
    parts: list[tuple[str, str | None]] = []
    for literal, field, spec, conversion in parsed:
        if field is not None and (spec or conversion or not re.fullmatch(r"[^.\[\]{}!:]+", field)):
            raise ValueError(f"template: {{{field}}} must be a plain field name")
        parts.append((literal, field))
    if not any(field for _, field in parts):
        raise ValueError("template names no {field}")
    return parts
