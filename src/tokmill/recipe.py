"""The recipe: one YAML file that says everything that can change a byte.

    recipe.yaml ─ parse (duplicate keys refused) ─ validate (all mistakes at once) ─> Recipe

Paths are relative to the recipe's directory. Workers, engine and output directory are not here: they cannot
change the output.
"""

from __future__ import annotations

import difflib
import re
import string
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from tokmill.errors import RecipeError
from tokmill.storage.location import read_whole

_MAX_RECIPE_BYTES = 4 << 20
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

Name = Annotated[str, Field(pattern=_NAME, max_length=100)]
Patterns = Annotated[
    list[str],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    ),
    Field(min_length=1),
]
Path_ = tuple[str | int, ...]


class Section(BaseModel):
    """Unknown keys are refused, values are not coerced out of shape, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_min_length=1)


class Fields(Section):
    """Which key of a record holds what. Without an entry, `text`/`content`, `id`/`doc_id` and `license` are
    used where the first record has them."""

    text: str | None = None
    id: str | None = None
    license: str | None = None
    created_at: str | None = None
    meta: list[str] = Field(default=[], description="keys to carry along as JSON")


class Source(Section):
    name: Name
    domain: Name = "default"
    license: str | None = Field(None, description="for documents that carry none of their own")
    files: Patterns = Field(description="glob or list of globs; .jsonl[.gz|.zst] .parquet .txt[.gz|.zst]")
    fields: Fields = Fields()
    template: str | None = Field(
        None, description='builds the text: "Problem: {question}\\n\\nSolution: {answer}"'
    )
    unit: Literal["document", "paragraph", "line"] = Field(
        "document", description="what a document is in .txt files"
    )
    on_bad_record: Literal["quarantine", "fail"] = "quarantine"
    max_bad_fraction: Decimal = Field(Decimal("0.01"), ge=0, le=1, description="more than this stops the run")
    max_record_bytes: int = Field(128 << 20, ge=1024)

    @field_validator("template")
    @classmethod
    def _plain_fields(cls, value: str | None) -> str | None:
        if value is not None:
            template_parts(value)
        return value

    @model_validator(mode="after")
    def _one_text(self) -> Source:
        if self.template is not None and self.fields.text is not None:
            raise ValueError("`template` and `fields.text` both say where the text comes from; keep one")
        return self


class Normalize(Section):
    unicode: Literal["none", "NFC", "NFKC"] = "none"
    nul: Literal["strip", "keep"] = "strip"
    newlines: Literal["keep", "lf"] = "keep"
    max_nul_fraction: Decimal = Field(
        Decimal("0.001"), ge=0, le=1, description="a source with more NUL characters than this is not text"
    )


Measure = Literal["chars", "bytes"]


class Filter(Section):
    """Keep a document when min <= measure <= max."""

    measure: Measure
    min: int | None = None
    max: int | None = None
    reason: str | None = Field(None, pattern=r"^[a-z][a-z0-9_]*$")

    @model_validator(mode="after")
    def _bounded(self) -> Filter:
        if self.min is None and self.max is None:
            raise ValueError("needs `min` or `max`")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}: nothing would be kept")
        return self


class Dedup(Section):
    exact: bool = True
    scope: Literal["global", "per-source"] = "global"
    keep: Literal["first"] = "first"
    partitions: int = Field(4, ge=1, le=4096, description="memory is bounded by one partition of the hashes")


class Split(Section):
    method: Literal["hash"] = "hash"
    valid_fraction: Decimal = Field(Decimal("0.01"), ge=0, lt=1)


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

    @model_validator(mode="after")
    def _one_origin(self) -> Tokenizer:
        if (self.path is None) == (self.train is None):
            raise ValueError("needs either `path` (with `sha256`) or `train`")
        if self.train is not None and isinstance(self.eos, int):
            raise ValueError("a trained tokenizer takes its `eos` as a string")
        if self.train is not None and (self.sha256 or self.encoding):
            raise ValueError("`sha256` and `encoding` belong to `path`")
        return self


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

    @model_validator(mode="after")
    def _coherent(self) -> Recipe:
        for what, names in (
            ("source", [s.name for s in self.sources]),
            ("build", [b.name for b in self.builds]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"two {what}s are called {', '.join(twice)}")
        if self.builds and self.tokenizer is None:
            raise ValueError("`builds` needs a `tokenizer`")
        return self


def load_recipe(path: Path) -> Recipe:
    """Parse and validate; a RecipeError lists every mistake with its place."""
    data = read_whole(path, _MAX_RECIPE_BYTES)
    return parse_recipe(data, str(path))


def parse_recipe(data: bytes, where: str) -> Recipe:
    try:
        node = yaml.compose(data, Loader=_StrictLoader)
        content = yaml.load(data, Loader=_StrictLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"is not YAML: {error}", where=where, next="fix the file and check it again"
        ) from error
    if not isinstance(content, dict):
        raise RecipeError("is not a mapping of sections", where=where, next="see `tokmill recipe init`")
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        described = [_describe(fault, node) for fault in error.errors(include_url=False)]
        mistakes = list(dict.fromkeys(described))
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        raise RecipeError(
            f"{count}\n" + "\n".join(f"  {line}" for line in mistakes),
            where=where,
            next="fix them and run `tokmill recipe check`; `tokmill recipe schema` lists every key",
        ) from None


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


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe subset, without its silent choice of the last of two equal keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} occurs twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _exact_decimal(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Decimal:
    """0.1 stays 0.1: fractions are compared in integer arithmetic, so no float may come between."""
    return Decimal(str(node.value).replace("_", ""))


_StrictLoader.add_constructor("tag:yaml.org,2002:float", _exact_decimal)


def _describe(fault: Any, node: Any) -> str:
    path: Path_ = tuple(part for part in fault["loc"] if part not in ("str", "int"))  # branches of a union
    place = _dotted(path) or "recipe"
    line = _line_of(node, path)
    at = f"line {line}: " if line else ""
    if fault["type"] == "extra_forbidden":
        known = _keys_at(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}"
        return f"{at}{place}: unknown key; {hint}"
    if fault["type"] == "missing":
        return f"{at}{place}: is required"
    if fault["type"] == "literal_error":
        given, choices = str(fault["input"]), re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        near = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"one of: {', '.join(choices)}"
        return f"{at}{place}: `{given}` is not a choice; {hint}"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{at}{place}: {message[0].lower()}{message[1:]} (got {_shown(fault['input'])})"


def _shown(value: Any) -> str:
    text = repr(str(value)) if isinstance(value, (str, Decimal)) else type(value).__name__
    return str(value) if isinstance(value, (int, bool)) else text if len(text) < 60 else f"{text[:57]}…"


def _dotted(path: Path_) -> str:
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out


def _line_of(node: Any, path: Path_) -> int | None:
    """The line of the deepest node on the way to `path`."""
    line = None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            pairs = {key.value: (key, value) for key, value in node.value}
            if part not in pairs:
                break
            key, node = pairs[part]
            line = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _keys_at(path: Path_) -> list[str]:
    model: Any = Recipe
    for part in path:
        fields = getattr(model, "model_fields", {})
        if part in fields:
            model = _model_in(fields[part].annotation)
    return sorted(getattr(model, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    """The Section inside list[...], X | None and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (list, Union, type(int | None), Annotated):
        for inner in get_args(annotation):
            found = _model_in(inner)
            if found is not None:
                return found
    return None
