"""YAML whose keys know their lines, so that each of them is either taken or told.

    read_lines ─> Mapping ─ take("weight", "probability") ─> Value(line, path, value)
                          └ leave("streaming", why)       ─> Unmapped(line, key, why)
                  whatever was neither taken nor left is told in the end

Numbers with a point stay as they are written: 0.1 is a tenth. Aliases and merge keys (`<<`) are followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tokmill.errors import RecipeError
from tokmill.recipe.amount import parse_amount
from tokmill.storage.location import read_whole

_MAX_BYTES = 4 << 20
_MAX_NODES = 50_000  # as in a recipe: a few aliases of aliases are gigabytes
_BOOL, _INT, _NULL, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "null", "merge"))


class Unmapped(NamedTuple):
    line: int
    key: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.key}: {self.why}"


class Value(NamedTuple):
    """A scalar, a list or a Mapping, and where it stands."""

    line: int
    path: str
    value: Any


@dataclass
class Mapping:
    line: int
    path: str
    values: dict[str, Value]
    _taken: set[str] = field(default_factory=set)
    _left: list[Unmapped] = field(default_factory=list)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def is_taken(self, key: str) -> bool:
        return key in self._taken

    def take(self, *keys: str) -> Value | None:
        """The first of `keys` that is there and has a value; the others are told."""
        found = [
            self.values[key] for key in keys if key in self.values and self.values[key].value is not None
        ]
        self._taken.update(key for key in keys if key in self.values)
        for other in found[1:]:
            self._left.append(Unmapped(other.line, other.path, f"`{found[0].path}` says it already"))
        return found[0] if found else None

    def take_all(self) -> list[tuple[str, Value]]:
        """Of a mapping whose keys are names."""
        self._taken.update(self.values)
        return list(self.values.items())

    def take_text(self, *keys: str) -> str | None:
        found = self.take(*keys)
        if found is None or isinstance(found.value, str):
            return None if found is None else found.value
        if isinstance(found.value, int) and not isinstance(found.value, bool):
            return str(found.value)  # a name or a date that looks like a number
        self.tell(found, "should be text")
        return None

    def take_whole(self, *keys: str) -> int | None:
        """A whole number; 2M and 50k too."""
        found = self.take(*keys)
        if found is None:
            return None
        try:
            return parse_amount(found.value)
        except ValueError:
            self.tell(found, "should be a whole number from 1 up")
        return None

    def tell(self, value: Value, why: str) -> None:
        self._left.append(Unmapped(value.line, value.path, why))

    def leave(self, why: str, *keys: str) -> None:
        """Keys that are known, and for which a recipe has no key."""
        for key in keys:
            if key in self.values:
                self._taken.add(key)
                self._left.append(Unmapped(self.values[key].line, self.values[key].path, why))

    def pass_over(self, why: str) -> None:
        """The whole of it, in one line."""
        self._taken.update(self.values)
        self._left.append(Unmapped(self.line, self.path, why))

    def untold(self) -> Iterator[Unmapped]:
        yield from self._left
        for key, value in self.values.items():
            if key not in self._taken:
                yield Unmapped(value.line, value.path, "no key of a recipe does this")
        for key in self.values:
            yield from _inside(self.values[key].value)


def _inside(value: Any) -> Iterator[Unmapped]:
    """Of mappings that were looked into; one that was not is told as a whole."""
    items = value if isinstance(value, list) else [Value(0, "", value)]
    for item in items:
        if isinstance(item.value, Mapping) and (item.value._taken or item.value._left):
            yield from item.value.untold()
        elif isinstance(item.value, list):
            yield from _inside(item.value)


def read_lines(path: Path) -> Value:
    """The document: a Mapping, or a list of Values."""
    data = read_whole(path, _MAX_BYTES)
    try:
        node: Any = yaml.compose(data, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read as YAML: {error}", where=str(path), next="fix the file") from error
    if node is None:
        raise RecipeError("is empty", where=str(path), next="give a list of datasets or domains")
    return _Walk(str(path)).value(node, "")


class _Walk:
    def __init__(self, where: str) -> None:
        self._where = where
        self._nodes = 0

    def value(self, node: Any, path: str) -> Value:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise RecipeError(
                f"has more than {_MAX_NODES:,} keys and values, aliases counted as often as they stand",
                where=self._where,
                next="import its parts one by one",
            )
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            return Value(line, path, self._mapping(node, path))
        if isinstance(node, yaml.SequenceNode):
            return Value(
                line, path, [self.value(item, f"{path}[{index}]") for index, item in enumerate(node.value)]
            )
        return Value(line, path, _scalar(node))

    def _mapping(self, node: Any, path: str) -> Mapping:
        found: dict[str, Value] = {}
        merged: list[Any] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            name = str(key.value)
            inner = self.value(value, f"{path}.{name}" if path else name)
            found[name] = inner._replace(line=key.start_mark.line + 1)
        for other in merged:
            if isinstance(other, yaml.MappingNode):
                for name, value in self._mapping(other, path).values.items():
                    found.setdefault(name, value)
        return Mapping(node.start_mark.line + 1, path, found)


def _scalar(node: Any) -> Any:
    if node.tag == _NULL:
        return None
    if node.tag == _BOOL:
        return node.value.lower() in ("yes", "true", "on")
    if node.tag == _INT:
        try:
            return int(node.value.replace("_", ""))
        except ValueError:  # 0x1F, 1:30
            return node.value
    return str(node.value)
