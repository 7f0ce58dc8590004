"""A threshold written to the recipe: shown as a diff first, and written only if that is what was shown.

    recipe.yaml ─ nodes with their places in the text ─ the filters that judge the source ─ the rule
        ─> the number is replaced where it stands, or put where the rule of a pack takes another one
        ─> parsed again ─> diff, and a digest of the file before and after

The rest of the file keeps every byte: comments, order, indents. A list of filters is that of a source
(`clean`), of its domain (`domains`), or of all; a rule that other sources share is not changed for one.
"""

from __future__ import annotations

import difflib
import hashlib
import io
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tokmill.artifacts.manifest import Json
from tokmill.clean.rules import BOUNDS, PACKS, load_pack
from tokmill.errors import InputError, RecipeError
from tokmill.explorer.described import NEAR_RULE
from tokmill.explorer.site import Site
from tokmill.recipe import Recipe
from tokmill.recipe.file import parse_recipe
from tokmill.storage.disk import rewrite_bytes
from tokmill.storage.location import read_whole

_MAX_BYTES = 4 << 20
_NO_NEWLINE = "\\ No newline at end of file"
_LANGUAGE = "language.min_score"


class Replacement(NamedTuple):
    start: int
    end: int
    text: str


class Proposed(NamedTuple):
    path: Path
    before: str
    after: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.before}\0{self.after}".encode()).hexdigest()

    def diff(self) -> str:
        before, after = (list(io.StringIO(text)) for text in (self.before, self.after))
        name = self.path.name
        lines = difflib.unified_diff(before, after, fromfile=name, tofile=name)
        return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}\n" for line in lines)


def propose(site: Site, rule: str, value: float, source: str | None) -> Proposed:
    path = _recipe_of(site)
    before = read_whole(path, _MAX_BYTES).decode()
    recipe = parse_recipe(before.encode(), str(path))
    sources = {one.name: one.domain for one in recipe.sources}
    if source is not None and source not in sources:
        raise InputError(
            f"the recipe has no source {source[:80]}", where=str(path), next="choose another one"
        )
    root = yaml.compose(before, Loader=yaml.SafeLoader)
    number = spelled(value)
    if rule == NEAR_RULE:
        found = list(_of_near(_value(root, "dedup"), number, before))
    else:
        places = _lists(root, sources, source, rule, str(path))
        found = [change for node in places for change in _changes(node, rule, number, before)]
    if not found:
        raise InputError(
            f"the recipe has no rule {rule[:80]} to change",
            where=str(path),
            next="it may be that of another recipe; or add the rule to `filters` by hand",
        )
    after = before
    for change in sorted(found, reverse=True):
        after = after[: change.start] + change.text + after[change.end :]
    _check(parse_recipe(after.encode(), str(path)), recipe, path)
    return Proposed(path, before, after)


def describe_change(site: Site, rule: str, value: float, source: str | None) -> Json:
    proposed = propose(site, rule, value, source)
    return {"diff": proposed.diff(), "digest": proposed.digest, "path": str(proposed.path)}


def write_change(site: Site, rule: str, value: float, source: str | None, digest: str) -> Json:
    """Only what was shown: of a file that changed since, another diff has another digest."""
    proposed = propose(site, rule, value, source)
    if proposed.digest != digest:
        raise InputError(
            "the change is not the one that was shown: the recipe is another one by now",
            where=str(proposed.path),
            next="look at the diff again",
        )
    rewrite_bytes(proposed.path, proposed.after.encode())
    return {"written": str(proposed.path), "diff": proposed.diff(), "digest": digest}


def _recipe_of(site: Site) -> Path:
    if site.recipe is None:
        raise InputError(
            "no recipe may be changed",
            where="tokmill explore",
            next="start it with `tokmill explore RUN --recipe RECIPE`",
        )
    return site.recipe


def spelled(value: float) -> str:
    """As YAML reads it again: no exponent, no trailing .0 of a whole number."""
    text = format(Decimal(repr(float(value))), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _check(after: Recipe, before: Recipe, path: Path) -> None:
    """It parses, so it can be run; that nothing else moved is seen in the diff."""
    if after == before:
        raise InputError(
            "the recipe has this threshold already", where=str(path), next="choose another value"
        )


# --- which lists of filters ---


def _lists(root: Any, sources: dict[str, str], source: str | None, rule: str, where: str) -> list[Any]:
    """The node of each section that has filters and judges the source, or any."""
    found: dict[int, tuple[Any, set[str]]] = {}
    for name, domain in sources.items():
        section = _section_of(root, name, domain, "language" if rule == _LANGUAGE else "filters")
        if section is not None:
            found.setdefault(id(section), (section, set()))[1].add(name)
    if source is None:
        return [section for section, _ in found.values()]
    for section, names in found.values():
        if source in names:
            if names != {source}:
                raise RecipeError(
                    f"the rule is that of {', '.join(sorted(names))} together",
                    where=where,
                    next=f"change it for all of them, or give {source} a `clean` section of its own first",
                )
            return [section]
    return []


def _section_of(root: Any, source: str, domain: str, key: str) -> Any | None:
    own = None
    for item in _items(_value(root, "sources")):
        if _text(_value(item, "name")) == source:
            own = _value(item, "clean")
    for section in (own, _value(_value(root, "domains"), domain), root):
        if section is not None and _value(section, key) is not None:
            return section
    return None


def _items(node: Any) -> list[Any]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _value(node: Any, key: str) -> Any | None:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == key:
                return value
    return None


def _text(node: Any) -> str | None:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


# --- where in a list ---


def _changes(section: Any, rule: str, number: str, text: str) -> Iterator[Replacement]:
    if rule == _LANGUAGE:
        least = _value(_value(section, "language"), "min_score")
        if least is not None:
            yield _replaced(least, number)
        return
    measure, _, bound = rule.rpartition(".")
    for item in _items(_value(section, "filters")):
        pack = _text(item) or _text(_value(item, "pack"))
        if pack is not None:
            part, _, name = rule.partition(".")
            if pack in PACKS and any(
                own.name == part and name in {one.name for one in own.rules}
                for own in load_pack(pack).simple()
            ):
                yield _of_pack(item, pack, name, number, text)
        elif bound in BOUNDS:
            named = _text(_value(item, "measure")) or _text(_value(item, "hook")) or ""
            label = named.rpartition(":")[2]
            threshold = _value(item, bound)
            if label == measure and threshold is not None:
                yield _replaced(threshold, number)


def _of_near(dedup: Any, number: str, text: str) -> Iterator[Replacement]:
    """`near: {}` or one that has options."""
    near = _value(dedup, "near")
    known = _value(near, "threshold")
    if known is not None:
        yield _replaced(known, number)
    elif isinstance(near, yaml.MappingNode):
        yield _added(near, f"threshold: {number}", text)


def _replaced(node: Any, text: str) -> Replacement:
    return Replacement(node.start_mark.index, node.end_mark.index, text)


def _of_pack(item: Any, pack: str, name: str, number: str, text: str) -> Replacement:
    """`gopher-quality`, `{pack: gopher-quality}` or one that has other thresholds already."""
    if isinstance(item, yaml.ScalarNode):
        return _replaced(item, f"{{pack: {pack}, set: {{{name}: {number}}}}}")
    others = _value(item, "set")
    known = _value(others, name)
    if known is not None:
        return _replaced(known, number)
    if others is not None:
        return _added(others, f"{name}: {number}", text)
    return _added(item, f"set: {{{name}: {number}}}", text)


def _added(mapping: Any, entry: str, text: str) -> Replacement:
    """One more key in a mapping, in the style that it has."""
    if mapping.flow_style:  # at its beginning: the end may have a comma, or a comment
        at = text.index("{", mapping.start_mark.index) + 1
        comma = "," if mapping.value else ""
        space = " " if mapping.value and not text[at].isspace() else ""
        return Replacement(at, at, f"{entry}{comma}{space}")
    key, last = mapping.value[-1]
    stop = len(text[: last.end_mark.index].rstrip())
    line_end = text.find("\n", stop)
    stop = len(text) if line_end < 0 else line_end
    return Replacement(stop, stop, f"\n{' ' * key.start_mark.column}{entry}")
