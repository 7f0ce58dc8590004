"""From a YAML file to a Recipe (or another Section), or to all its mistakes at once.

recipe.yaml ─ plain YAML only ─ validate ─> Recipe
                                     └────> line, path, what is wrong, the key that was probably meant
read_recipe ─> Written: what is left of a recipe without its mistakes,
               so that all others can be looked for too
`--set KEY=VALUE` ─ setting.py ─> a key of the file replaced before it is validated;
                                  mistakes in it are told by its key
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, to_jsonable_python

from tokmill.errors import RecipeError, TokmillError, plural
from tokmill.recipe import Path_, Recipe, Section
from tokmill.recipe.keys import key_paths
from tokmill.recipe.setting import dotted, parse_key, set_key
from tokmill.storage.location import read_whole

S = TypeVar("S", bound=Section)
Settings = Mapping[str, Any] | Sequence[str]  # {"pack.length": 4096} or ["pack.length=4096"]

_MAX_RECIPE_BYTES = 4 << 20
_MAX_NODES = 50_000  # 4,500 sources of five keys, for which PyYAML needs 2.5 s
_MAX_DEPTH = 32
_MAX_MISTAKES = 100  # reported at once: nobody reads more
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_MAX_REPAIRS = 8  # a key, its section, the item of a list, and what referred to it


class Mistake(NamedTuple):
    line: int  # 0: nowhere, because something is missing
    place: str
    what: str
    error: TokmillError | None = None  # what it was met as, if it is none of the keys

    def __str__(self) -> str:
        at = f"line {self.line}: " if self.line else ""
        return f"{at}{self.place or 'recipe'}: {self.what}"


class Written(NamedTuple):
    """A recipe, or another section, as it was written:
    what of it can be used, and every mistake in the rest."""

    content: Any  # None: nothing can be used
    where: str
    mistakes: tuple[Mistake, ...] = ()
    node: Any = None  # of its YAML; None: it was made in Python
    left_out: Mapping[Path_, list[int]] = {}  # places in lists that mistakes took out
    settings: Mapping[Path_, str] = {}  # keys that the command line has set, with their values

    @property
    def recipe(self) -> Recipe:
        return cast(Recipe, self.usable(_REMEDY))

    def usable(self, next: str) -> Any:
        if self.mistakes:
            refuse(self.where, self.mistakes, next)
        return self.content

    def original(self, path: Path_) -> Path_:
        """Where that of `content` is in the file."""
        found: Path_ = ()
        for part in path:
            if isinstance(part, int):
                for gone in self.left_out.get(found, ()):
                    part += gone <= part
            found += (part,)
        return found

    def line(self, path: Path_) -> int:
        """Of the deepest key on the way to `path`; 0: there is none."""
        return _line_of(self.node, path)

    def mistake(self, path: Path_, error: TokmillError) -> Mistake:
        """Something that is wrong with the key at `path` of `content`,
        though it is a key and a value as they should be."""
        parts = tuple(error.where.split("."))
        if parts[0] == path[-1]:
            path += parts[1:]
        elif parts[0] == path[0]:
            path += parts[len(path) :]
        elif len(parts) > 1 and parts[0] not in path and parts in key_paths():
            path = parts
        what = f"{_file_of(error)}{error.what}{'; ' if error.next else ''}{error.next}"
        return self.mistake_at(self.original(path), what, error)

    def mistake_at(self, path: Path_, what: str, error: TokmillError | None = None) -> Mistake:
        if self.is_set(path):
            return Mistake(0, f"--set {dotted(path)}", what, error)
        return Mistake(self.line(path), dotted(path), what, error)

    def is_set(self, path: Path_) -> bool:
        """Does the value at `path` of the file come from the command line?"""
        for own in self.settings:
            shared = min(len(own), len(path))
            if own[:shared] == path[:shared] and (shared == len(own) or not _is_written(self.node, path)):
                return True
        return False


_REMEDY = "fix them and run `tokmill recipe check`; `tokmill help KEY` explains a key"


def refuse(where: str, mistakes: Sequence[Mistake], next: str = _REMEDY) -> NoReturn:
    """All in the order of the file, then those of the command line;
    one that is an error of its own stays that."""
    listed = sorted(mistakes, key=lambda mistake: (mistake.place.startswith("--"), mistake.line))
    listed = listed[:_MAX_MISTAKES]
    error = listed[0].error
    if len(listed) == 1 and error is not None:
        at = f"line {listed[0].line}: " if listed[0].line else ""
        place = f"{where}, {at}{listed[0].place}: {_file_of(error)}"
        raise type(error)(error.what, where=place.removesuffix(": "), next=error.next)
    count = plural(len(listed), "mistake")
    raise RecipeError(
        f"{count}{' or more' if len(listed) == _MAX_MISTAKES else ''}\n"
        + "\n".join(f"  {mistake}" for mistake in listed),
        where=where,
        next=next,
    )


def _file_of(error: TokmillError) -> str:
    """Where it was met, without the keys of the recipe, which are said better."""
    head, _, rest = error.where.partition(": ")
    is_key = re.split(r"[.\[]", head)[0] in Recipe.model_fields or head.startswith("--")
    told = rest if is_key else error.where
    return f"{told}: " if told else ""


def load_recipe(recipe: str | Path) -> Recipe:
    """Of a file, or of YAML itself (text of more than one line).
    A RecipeError lists every mistake with its place."""
    return read_recipe(recipe).recipe


def parse_recipe(data: bytes, where: str) -> Recipe:
    return _parse(data, where, Recipe).recipe


def parse_recorded(asked: Mapping[str, Any]) -> Recipe | None:
    """The recipe that a run wrote down; None: a version did that took other recipes."""
    try:
        return Recipe.model_validate(_as_given(Recipe, asked))
    except ValidationError:
        return None


def _as_given(kind: Any, written: Any) -> Any:
    """Without the defaults that were written down with it, at any depth:
    a build of npy has a dtype, but may not be given one."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Section) and isinstance(written, Mapping):
        fields = kind.model_fields
        return {
            key: _as_given(fields[key].annotation, value) if key in fields else value
            for key, value in written.items()
            if key not in fields
            or fields[key].is_required()
            or value != to_jsonable_python(fields[key].default)
        }
    if origin is list and isinstance(written, list):
        return [_as_given(inner[0], item) for item in written]
    if origin is dict and isinstance(written, Mapping):
        return {key: _as_given(inner[1], value) for key, value in written.items()}
    if origin in (Union, UnionType, Annotated):
        return functools.reduce(lambda value, choice: _as_given(choice, value), inner, written)
    return written


def read_recipe(given: str | Path | Mapping[str, Any] | Recipe, set: Settings = ()) -> Written:
    """A recipe as a file, as YAML, as a dict of sections, or made of sections in Python; with its mistakes.
    Keys of `set` have the values given there."""
    if isinstance(given, Recipe) and not set:
        return Written(given, "the recipe")
    if isinstance(given, str) and "\n" in given:
        return _parse(given.encode(), "the recipe", Recipe, set)
    if isinstance(given, (str, Path)):
        return _parse(read_whole(Path(given), _MAX_RECIPE_BYTES), str(given), Recipe, set)
    content, data = _sections(given) if isinstance(given, Recipe) else dict(given), {}
    if isinstance(content.get("sources"), (list, tuple)):
        content["sources"] = [dict(s) if isinstance(s, Mapping) else s for s in content["sources"]]
        for source in content["sources"]:
            if isinstance(source, dict) and source.get("data") is not None:
                data[source.get("name")] = source.pop("data")
                source["files"] = "of Python"  # until the rest is known to be right
    try:
        text = _as_yaml(content)
    except TypeError as error:
        raise RecipeError(
            str(error), where="the recipe", next="give sections, text, numbers and lists"
        ) from None
    written = _parse(text.encode(), "the recipe", Recipe, set)  # mistakes are told alike
    if written.content is None:
        return written
    sources = [
        source.model_copy(update={"files": None, "data": data[source.name]})
        if source.name in data
        else source
        for source in written.content.sources
    ]
    return written._replace(content=written.content.model_copy(update={"sources": sources}), node=None)


def _sections(recipe: Recipe) -> dict[str, Any]:
    """As they were given; records in memory are no part of what is dumped."""
    content = recipe.model_dump(mode="json", exclude_unset=True)
    for source, own in zip(content["sources"], recipe.sources, strict=True):
        source.update({"data": own.data} if own.data is not None else {})
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, (Path, Decimal)):
        return str(value)
    if callable(value):
        name = getattr(value, "__name__", "")
        raise RecipeError(
            f"{name or type(value).__name__} is a function of Python, and a recipe holds the name of one",
            where="the recipe",
            next="write it to a file beside the recipe, and give "
            f"`hooks.py:{name if name.isidentifier() else 'NAME'}`",
        )
    raise TypeError(f"{type(value).__name__} is nothing that a recipe can hold")


def _as_yaml(content: Any) -> str:
    """JSON is YAML, but for characters that a line ends with there, or that it refuses."""
    text = json.dumps(content, ensure_ascii=False, default=_plain)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def load_section(path: Path, section: type[S], *, next: str) -> S:
    """Another file of the same kind, held against `section`."""
    return cast(S, _parse(read_whole(path, _MAX_RECIPE_BYTES), str(path), section).usable(next))


def _parse(data: bytes, where: str, section: type[Section], set: Settings = ()) -> Written:
    mistakes: list[Mistake] = []
    node, content = _read_yaml(data, where, mistakes)
    if not isinstance(content, dict):
        raise RecipeError("is not a mapping of sections", where=where, next="see `tokmill recipe init`")
    left_out: dict[Path_, list[int]] = {}
    written = Written(None, where, (), node, left_out, _settle(content, set, mistakes))
    usable: Section | None = None
    # what is wrong is taken out, and what is wrong without it: of those mistakes nothing is said
    for attempt in range(_MAX_REPAIRS):
        try:
            usable = section.model_validate(content)
            break
        except ValidationError as error:
            faults = _without_choices(error.errors(include_url=False), content)[:_MAX_MISTAKES]
            if not attempt:
                mistakes += [
                    written.mistake_at(fault["loc"], _what(fault, fault["loc"], section)) for fault in faults
                ]
            wrong = {_deepest(content, fault["loc"]) for fault in faults} - {()}
            content.setdefault("name", "recipe")
            for path in sorted(
                wrong,
                key=lambda path: [(part, "") if isinstance(part, int) else (-1, part) for part in path],
                reverse=True,
            ):
                _take_out(content, path, left_out)
    return written._replace(content=usable, mistakes=tuple(mistakes))


def _without_choices(faults: Sequence[ErrorDetails], content: Any) -> list[ErrorDetails]:
    """Where a value may be a mapping or a word, pydantic tells what is wrong with it as either,
    at `weights.dict[…].web`. Told is what is wrong with it as what it is, at `weights.web`."""
    told: list[ErrorDetails] = []
    for fault in faults:
        choices = [at for at, part in enumerate(fault["loc"]) if str(part).startswith(("dict[", "literal["))]
        if not choices:
            told.append(fault)
            continue
        before, choice, after = (
            fault["loc"][: choices[0]],
            fault["loc"][choices[0]],
            fault["loc"][choices[0] + 1 :],
        )
        value = functools.reduce(lambda value, part: value[part], before, content)
        if isinstance(value, dict) == str(choice).startswith("dict["):
            told.append({**fault, "loc": (*before, *after)})
    return told


def _read_yaml(data: bytes, where: str, mistakes: list[Mistake]) -> tuple[Any, Any]:
    """Its nodes, and their values."""
    try:
        node = yaml.compose(data, Loader=_PlainLoader)
        return node, _content(node, (), mistakes)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"cannot be read as YAML: {_yaml_fault(error, data)}",
            where=where,
            next="indent with spaces, never with tabs"
            if "\\t" in str(error)
            else 'quote it: a value that begins with * goes in quotes, as in `files: "*.jsonl"`'
            if "scanning an alias" in str(error)
            else "fix this place, or what stands before it: indentation, brackets, "
            "and quotes around text with a colon in it",
        ) from error


def _settle(content: dict[str, Any], set: Settings, mistakes: list[Mistake]) -> dict[Path_, str]:
    """Keys of `set` into `content`; what cannot be is a mistake."""
    settings: dict[Path_, str] = {}
    if isinstance(set, Mapping):
        pairs = [(key, _as_yaml(value)) for key, value in set.items()]
    else:
        pairs = [(key, value if sign else "") for key, sign, value in (one.partition("=") for one in set)]
    for key, value in pairs:
        place = f"--set {key}"
        try:
            path = parse_key(key)
            if not value:
                raise ValueError(f"has no value; write `{key}=VALUE`, and null for none")
            set_key(content, path, _read_yaml(value.encode(), place, mistakes)[1])
            settings[path] = value
        except (ValueError, RecipeError) as error:
            mistakes.append(Mistake(0, place, error.what if isinstance(error, RecipeError) else str(error)))
    return settings


def _deepest(content: Any, path: Path_) -> Path_:
    """As far as there is something on the way: where a key is missing, what should have it."""
    for depth, part in enumerate(path):
        if not (
            part in content
            if isinstance(content, dict)
            else isinstance(content, list) and isinstance(part, int)
        ):
            return path[:depth]
        content = content[part]
    return path


def _take_out(content: Any, path: Path_, left_out: dict[Path_, list[int]]) -> None:
    *place, index = Written(None, "", left_out=left_out).original(path)
    for part in path[:-1]:
        content = content[part]
    del content[path[-1]]
    if isinstance(content, list):
        left_out[tuple(place)] = sorted([*left_out.get(tuple(place), ()), int(index)])


def _yaml_fault(error: Exception, data: bytes) -> str:
    """Its line and column, and what is wrong there."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        begun = getattr(error, "context_mark", None) or mark
        context = getattr(error, "context", None)
        if context and begun.line != mark.line:
            context += f" (it begins in line {begun.line + 1})"
        told = ", ".join(part for part in (context, getattr(error, "problem", None)) if part)
        return f"line {mark.line + 1}, column {mark.column + 1}: {told}"
    position = getattr(error, "position", getattr(error, "start", 0))
    line = data.count(b"\n", 0, position) + 1
    column = position - data.rfind(b"\n", 0, position)
    reason = str(getattr(error, "reason", error))
    return f"line {line}, column {column}: {reason}; a recipe is text in UTF-8"


class _PlainLoader(yaml.SafeLoader):
    """YAML without what a recipe has no use for: aliases, a few of which expand to gigabytes, tags, endless
    nesting; and without the plain words that mean something else than they say (`no`, `1:30`,
    `2024-01-01`)."""

    yaml_implicit_resolvers: Any = {}
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
            line, place = key.start_mark.line + 1, dotted((*path, str(key.value)))
            if not isinstance(key, yaml.ScalarNode):
                mistakes.append(Mistake(line, dotted(path), "a key must be a word"))
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


def _what(fault: Any, path: Path_, section: type[Section]) -> str:
    kind, given = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        known = _keys_at(path[:-1], section)
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


def _line_of(node: Any, path: Path_) -> int:
    """The line of the deepest node on the way to `path`."""
    return (_lines_on(node, path) or [0])[-1]


def _is_written(node: Any, path: Path_) -> bool:
    return len(_lines_on(node, path)) == len(path)


def _lines_on(node: Any, path: Path_) -> list[int]:
    """Of the nodes on the way to `path`, as far as there are any."""
    lines: list[int] = []
    for part in path:
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == part), None)
            if pair is None:
                break
            node = pair[1]
            lines.append(pair[0].start_mark.line + 1)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            lines.append(node.start_mark.line + 1)
        else:
            break
    return lines


def _keys_at(path: Path_, section: type[Section]) -> list[str]:
    model: Any = section
    for part in path:
        fields = getattr(model, "model_fields", {})
        if part in fields:
            model = _model_in(fields[part].annotation)  # for a mapping of sections, that of its values
    return sorted(getattr(model, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    """The Section inside list[...], X | None and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (list, dict, Union, type(int | None), Annotated):
        for inner in get_args(annotation):
            found = _model_in(inner)
            if found is not None:
                return found
    return None
