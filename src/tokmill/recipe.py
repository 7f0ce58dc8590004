"""The recipe: one YAML file that says everything that can change a byte.

    recipe.yaml ─ parse (plain YAML only) ─ validate ─> Recipe, or all its mistakes at once

Paths are relative to the recipe's directory. Workers, engine and output directory are not here: they cannot
change the output.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import string
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Self, Union, get_args, get_origin

import yaml
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

from tokmill.errors import RecipeError
from tokmill.storage.location import read_whole

_MAX_RECIPE_BYTES = 4 << 20
_MAX_NODES = 50_000  # 4,500 sources of five keys, for which PyYAML needs 2.5 s
_MAX_DEPTH = 32
_MAX_MISTAKES = 100  # told at once: nobody reads more
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
    """Which documents are taken. Only `head` leaves the rest of the source unread."""

    method: Literal["reservoir", "weighted", "hash", "head"]
    k: int | None = Field(None, ge=1, description="documents; for reservoir, weighted and head")
    fraction: Share | None = Field(None, description="for hash")
    weight: str | None = Field(None, description="for weighted: a key of `fields.meta` that holds a number")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        method = given.get("method")
        needed = {"hash": "fraction"}.get(str(method), "k")
        if method is not None and given.get(needed) is None:
            yield (needed,), f"{method} needs `{needed}`"
        if method == "weighted" and given.get("weight") is None:
            yield ("weight",), "weighted needs `weight`"


class Source(Section):
    name: Name
    domain: Name = "default"
    license: str | None = Field(None, description="for documents that carry none of their own")
    files: Patterns | None = Field(
        None, description="glob or list of globs; .jsonl[.gz|.zst] .parquet .txt[.gz|.zst]"
    )
    hub: Hub | None = None
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
        if (given.get("files") is None) == (given.get("hub") is None):
            yield (), "needs either `files` or `hub`"
        chosen = [name for name in SOURCE_FORMATS if given.get(name) is not None]
        if given.get("hub") is not None and set(chosen) - {"parallel"}:
            yield (chosen[0],), "reads local files; it cannot be used with `hub`"
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


def load_recipe(path: Path) -> Recipe:
    """Parse and validate; a RecipeError lists every mistake with its place."""
    data = read_whole(path, _MAX_RECIPE_BYTES)
    return parse_recipe(data, str(path))


def parse_recipe(data: bytes, where: str) -> Recipe:
    mistakes: list[Mistake] = []
    try:
        node = yaml.compose(data, Loader=_PlainLoader)
        content = _content(node, (), mistakes)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"cannot be read as YAML: {error}", where=where, next="fix the file and check it again"
        ) from error
    if not isinstance(content, dict):
        raise RecipeError("is not a mapping of sections", where=where, next="see `tokmill recipe init`")
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        mistakes += [_describe(fault, node) for fault in faults[:_MAX_MISTAKES]]
    if not mistakes:
        return recipe
    told = sorted(mistakes, key=lambda mistake: mistake.line)[:_MAX_MISTAKES]
    count = "1 mistake" if len(told) == 1 else f"{len(told)} mistakes"
    raise RecipeError(
        f"{count}{' or more' if len(told) == _MAX_MISTAKES else ''}\n"
        + "\n".join(f"  {mistake}" for mistake in told),
        where=where,
        next="fix them and run `tokmill recipe check`; `tokmill recipe schema` lists every key",
    )


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


class Mistake(NamedTuple):
    line: int  # 0: nowhere, because something is missing
    place: str
    what: str

    def __str__(self) -> str:
        at = f"line {self.line}: " if self.line else ""
        return f"{at}{self.place or 'recipe'}: {self.what}"


class _PlainLoader(yaml.SafeLoader):
    """YAML without what a recipe has no use for: aliases, a few of which expand to gigabytes, tags, endless
    nesting; and without the plain words that mean something else than they say (`no`, `1:30`, `2024-01-01`)."""

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012  (PyYAML's name; filled below)
    _nodes = _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self._nodes += 1
        self._depth += 1
        if isinstance(event, yaml.AliasEvent):
            _refuse("a recipe has no aliases; a value that begins with * goes in quotes", event)
        if event.tag is not None:
            _refuse("a recipe has no tags; a value that begins with ! goes in quotes", event)
        if self._depth > _MAX_DEPTH:
            _refuse("this is nested deeper than any recipe", event)
        if self._nodes > _MAX_NODES:
            _refuse(f"a recipe has at most {_MAX_NODES:,} keys and values", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


_NULL, _BOOL, _INT = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int"))
_PlainLoader.add_implicit_resolver(_NULL, re.compile(r"^(?:null|~|)$"), ["n", "~", ""])
_PlainLoader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|false)$"), ["t", "f"])
_PlainLoader.add_implicit_resolver(_INT, re.compile(r"^[-+]?[0-9][0-9_]{0,29}$"), list("-+0123456789"))


def _refuse(what: str, event: Any) -> NoReturn:
    raise yaml.composer.ComposerError(None, None, what, event.start_mark)


def _content(node: Any, path: Path_, mistakes: list[Mistake]) -> Any:
    """The values of a tree of nodes. Of two equal keys the first counts, and the second is a mistake."""
    if isinstance(node, yaml.SequenceNode):
        return [_content(item, (*path, index), mistakes) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            line, place = key.start_mark.line + 1, _dotted((*path, str(key.value)))
            if not isinstance(key, yaml.ScalarNode):
                mistakes.append(Mistake(line, _dotted(path), "a key must be a word"))
            elif key.value in found:
                mistakes.append(Mistake(line, place, "key occurs twice"))
            else:
                found[key.value] = _content(value, (*path, key.value), mistakes)
        return found
    if node is None or node.tag == _NULL:
        return None
    if node.tag == _BOOL:
        return node.value == "true"
    return int(node.value.replace("_", "")) if node.tag == _INT else node.value


def _describe(fault: Any, node: Any) -> Mistake:
    path: Path_ = fault["loc"]
    return Mistake(_line_of(node, path), _dotted(path), _what(fault, path))


def _what(fault: Any, path: Path_) -> str:
    kind, given = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        known = _keys_at(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
        return "unknown key; " + (f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}")
    if kind == "missing":
        return "is required"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        near = difflib.get_close_matches(str(given), choices, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"one of: {', '.join(choices)}"
        return f"{_shown(given)} is not a choice; {hint}"
    message: str = fault["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if given is not None:
        message += f" (got {_shown(given)})"
    if kind == "string_type" and isinstance(given, int):
        message += "; put it in quotes"
    return message + "; write true or false" if kind == "bool_type" else message


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _dotted(path: Path_) -> str:
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out


def _line_of(node: Any, path: Path_) -> int:
    """The line of the deepest node on the way to `path`."""
    line = 0
    for part in path:
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == part), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
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
