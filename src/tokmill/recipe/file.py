"""From a YAML file to a Recipe (or another Section), or to all its mistakes at once; and the example recipes.

recipe.yaml ─ plain YAML only ─ validate ─> Recipe
                                     └────> line, path, what is wrong, the key that was probably meant

recipes/<name>.yaml            examples of real projects, against the hub: of a checkout, or of the package
recipes/offline/<name>.yaml    the same with other `sources`: files that write_stand_in makes beside it
recipes/README.md              a section `## <name>` for each

copy_recipe ─ the lines of its section as comments ─ the recipe ─> a file of one's own
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from tokmill.errors import RecipeError, plural
from tokmill.recipe import Path_, Recipe, Section
from tokmill.storage.disk import commit_bytes
from tokmill.storage.location import read_whole

S = TypeVar("S", bound=Section)

_MAX_RECIPE_BYTES = 4 << 20
_MAX_NODES = 50_000  # 4,500 sources of five keys, for which PyYAML needs 2.5 s
_MAX_DEPTH = 32
_MAX_MISTAKES = 100  # reported at once: nobody reads more


def load_recipe(recipe: str | Path) -> Recipe:
    """Of a file, or of YAML itself (text of more than one line). A RecipeError lists every mistake with its place."""
    if isinstance(recipe, str) and "\n" in recipe:
        return parse_recipe(recipe.encode(), "the recipe")
    return parse_recipe(read_whole(Path(recipe), _MAX_RECIPE_BYTES), str(recipe))


def parse_recipe(data: bytes, where: str) -> Recipe:
    remedy = "fix them and run `tokmill recipe check`; `tokmill recipe schema` lists every key"
    return _parse(data, where, Recipe, remedy)


def recipe_of(given: str | Path | Mapping[str, Any] | Recipe) -> Recipe:
    """A recipe as a file, as YAML, as a dict of sections, or made of sections in Python."""
    if isinstance(given, Recipe):
        return given
    if not isinstance(given, Mapping):
        return load_recipe(given)
    content, data = dict(given), {}
    if isinstance(content.get("sources"), (list, tuple)):
        content["sources"] = [dict(s) if isinstance(s, Mapping) else s for s in content["sources"]]
        for source in content["sources"]:
            if isinstance(source, dict) and source.get("data") is not None:
                data[source.get("name")] = source.pop("data")
                source["files"] = "of Python"  # until the rest is known to be right
    try:
        text = json.dumps(content, ensure_ascii=False, default=_plain)
    except TypeError as error:
        raise RecipeError(
            str(error), where="the recipe", next="give sections, text, numbers and lists"
        ) from None
    recipe = parse_recipe(text.encode(), "the recipe")  # JSON is YAML: mistakes are told alike
    sources = [
        source.model_copy(update={"files": None, "data": data[source.name]})
        if source.name in data
        else source
        for source in recipe.sources
    ]
    return recipe.model_copy(update={"sources": sources})


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, (Path, Decimal)):
        return str(value)
    raise TypeError(f"{type(value).__name__} is nothing that a recipe can hold")


def load_section(path: Path, section: type[S], *, next: str) -> S:
    """Another file of the same kind, held against `section`."""
    return _parse(read_whole(path, _MAX_RECIPE_BYTES), str(path), section, next)


def _parse(data: bytes, where: str, section: type[S], next: str) -> S:
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
        found = section.model_validate(content)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        mistakes += [_describe(fault, node, section) for fault in faults[:_MAX_MISTAKES]]
    if not mistakes:
        return found
    listed = sorted(mistakes, key=lambda mistake: mistake.line)[:_MAX_MISTAKES]
    count = plural(len(listed), "mistake")
    raise RecipeError(
        f"{count}{' or more' if len(listed) == _MAX_MISTAKES else ''}\n"
        + "\n".join(f"  {mistake}" for mistake in listed),
        where=where,
        next=next,
    )


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


def _describe(fault: Any, node: Any, section: type[Section]) -> Mistake:
    path: Path_ = fault["loc"]
    return Mistake(_line_of(node, path), _dotted(path), _what(fault, path, section))


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


# --- example recipes ---

STAND_IN = "stand-in"  # beside an offline recipe; `tokmill.demos.stand_in` writes it
_README = "README.md"


def examples_directory() -> Path:
    """A wheel has the folder inside the package; a checkout at its root, where people look for it."""
    package = Path(__file__).parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def recipe_names() -> list[str]:
    return sorted(path.stem for path in examples_directory().glob("*.yaml"))


def find_recipe(name: str, *, offline: bool = False) -> Path:
    names = recipe_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise RecipeError(
            f"no recipe is called {name}",
            where=str(examples_directory()),
            next=(f"did you mean `{near[0]}`? " if near else "") + f"there are: {', '.join(names)}",
        )
    return (examples_directory() / "offline" if offline else examples_directory()) / f"{name}.yaml"


def copy_recipe(name: str, path: Path, *, offline: bool = False) -> None:
    """Write the recipe to `path`, below what the README says of it."""
    source = find_recipe(name, offline=offline)
    lines = [f"# {line}".rstrip() for line in about(name)]
    commit_bytes(path, "\n".join([*lines, "", source.read_text(encoding="utf-8")]).encode())


def about(name: str) -> list[str]:
    """The lines of its section in the README, without the heading."""
    lines = (examples_directory() / _README).read_text(encoding="utf-8").splitlines()
    start = lines.index(f"## {name}") + 1
    end = next((n for n in range(start, len(lines)) if lines[n].startswith("## ")), len(lines))
    return "\n".join(lines[start:end]).strip("\n").splitlines()
