"""Entries of other projects' lists of data, as sources of a recipe;
every key is mapped, or reported with its line.

    {path: org/name, name: config, split: train}       as load_dataset takes them ─┐
    {dataset: org/name, subset: config}                                            ├ Sources.add_all
    {files: "data/*.jsonl", text_column: body}                                     │ ─> sources, shares
    org/name                                                                       ┘    unmapped keys

    read_lines ─> Mapping ─ take("weight", "probability") ─> Value(line, path, value)
                          └ leave("streaming", why)       ─> Unmapped(line, key, why)
                  what was neither taken nor left is reported in the end

Numbers with a point stay as they are written: 0.1 is a tenth. Aliases and merge keys (`<<`) are followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tokmill.artifacts.manifest import Json
from tokmill.errors import RecipeError
from tokmill.recipe import template_parts
from tokmill.recipe.names import parse_amount
from tokmill.storage import codecs
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

    def is_taken(self, key: str) -> bool:
        return key in self._taken

    def take(self, *keys: str) -> Value | None:
        """The first of `keys` that is there and has a value; the others are reported."""
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
        self.report(found, "should be text")
        return None

    def take_whole(self, *keys: str) -> int | None:
        """A whole number; 2M and 50k too."""
        found = self.take(*keys)
        if found is None:
            return None
        try:
            return parse_amount(found.value)
        except ValueError:
            self.report(found, "should be a whole number from 1 up")
        return None

    def report(self, value: Value, why: str) -> None:
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

    def unmapped(self) -> Iterator[Unmapped]:
        yield from self._left
        for key, value in self.values.items():
            if key not in self._taken:
                yield Unmapped(value.line, value.path, "no key of a recipe does this")
        for key in self.values:
            yield from _inside(self.values[key].value)


def _inside(value: Any) -> Iterator[Unmapped]:
    """Of mappings that were looked into; one that was not is reported as a whole."""
    items = value if isinstance(value, list) else [Value(0, "", value)]
    for item in items:
        if isinstance(item.value, Mapping) and (item.value._taken or item.value._left):
            yield from item.value.unmapped()
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


SHARE = ("weight", "probability", "proportion", "ratio", "share", "prob", "mix_weight", "sampling_weight")
_BUILDERS = ("json", "parquet", "text")  # of load_dataset: `data_files` says what is read
_FILE = re.compile(
    r"(^[./~])|[*?]|\.(jsonl|ndjson|json|parquet|arrow|txt|md|csv|tsv)(\.gz|\.zst|\.bz2|\.xz)?$|^[a-z0-9]+://"
)
_ENDINGS = {
    "warc": (".warc", ".warc.gz", ".wet", ".wet.gz"),
    "pdf": (".pdf",),
    "mbox": (".mbox", ".mbox.gz", ".mbox.zst"),
    "stackexchange": (".7z", "Posts.xml"),
    "wikipedia": (".xml.bz2",),
}
_DATASET = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_TEXT = ("text_column", "text_field", "text_key", "content_field", "column", "text")
_BOUNDS = {
    "docs": (
        "max_records",
        "max_samples",
        "max_docs",
        "max_documents",
        "max_examples",
        "limit",
        "take",
    ),
    "tokens": ("max_tokens",),
    "chars": ("max_total_chars",),
    "megabytes": ("megabytes", "max_megabytes", "size_mb", "max_mb"),
}
_WITHIN_LIMIT = {"docs": ("documents", "records", "samples"), "megabytes": ("mb",)}
_UNITS = ("document", "paragraph", "line")
_SLICE = re.compile(r"(\w+)\[(.*)\]")


class Sources:
    """Entries as sources, with their shares; names are made unique."""

    def __init__(self, path: Path, base: Path) -> None:
        self._path = path
        self._base = base
        self.found: list[Json] = []
        self.shares: dict[str, Decimal] = {}
        self.unmapped: list[Unmapped] = []

    def add_all(self, listed: Value, domain: str | None) -> None:
        """A list of entries, or a mapping from their names; an entry may be the bare name of a dataset."""
        items: list[tuple[str | None, Value]]
        if isinstance(listed.value, Mapping):
            items = [*listed.value.take_all()]
        else:
            items = [(None, item) for item in listed.value]
        for name, item in items:
            if isinstance(item.value, Mapping):
                self._add(item.value, name, domain)
            elif isinstance(item.value, str) and name is None:
                self._add(Mapping(item.line, item.path, {"path": item}), None, domain)
            elif name is not None and parse_share(item.value) is not None:
                # name: 0.3, where the name is that of a dataset
                values = {"path": Value(item.line, item.path, name), "weight": item}
                self._add(Mapping(item.line, item.path, values), None, domain)
            else:
                self.unmapped.append(
                    Unmapped(item.line, item.path, "is neither a mapping nor the name of a dataset")
                )

    def _add(self, entry: Mapping, name: str | None, domain: str | None) -> None:
        place = self._place(entry)
        if place is None:
            entry.pass_over("says no dataset and no files")
            return
        keys = ("name", "id", "source", "source_id", "key")
        named = name or entry.take_text(*(key for key in keys if not entry.is_taken(key)))
        if named is None:
            hub = place.get("hub") or {"dataset": _stem(Path(place["files"][0]))}
            named = "-".join(filter(None, [hub["dataset"].rpartition("/")[2], hub.get("config")]))
        source: Json = {"name": unique_name(named, self.found)}
        own = entry.take_text("domain", "category", "group")
        if own or domain:
            source["domain"] = to_name(own or domain or "")
        if license := entry.take_text("license", "licence"):
            source["license"] = license
        source |= place | _reading(entry) | _amount(entry)
        if unit := entry.take("unit"):
            if unit.value in _UNITS:
                source["unit"] = unit.value
            else:
                entry.report(unit, f"should be one of {', '.join(_UNITS)}")
        if rule := take_bounds(entry):
            source["clean"] = {"filters": [rule]}
        share = entry.take(*SHARE)
        if share is not None:
            weight = parse_share(share.value)
            if weight is None:
                entry.report(share, "a share should be a number from 0 up")
            else:
                self.shares[source["name"]] = weight
        entry.leave("data is always read as a stream; nothing to set", "streaming")
        entry.leave("code from the hub is never run", "trust_remote_code")
        entry.leave(
            "order comes from the seed; see `sample: {method: shuffle_buffer}`", "shuffle", "buffer_size"
        )
        entry.leave("say it of the whole recipe: `language: {method: field, keep: […]}`", "language", "lang")
        entry.leave("repeating is for the mixture: `exhausted: repeat` and `max_epochs`", "epochs", "repeat")
        self.found.append(source)

    def _place(self, entry: Mapping) -> Json | None:
        """`hub` or `files`. Beside a `path`, `name` is its config, as for load_dataset."""
        files = entry.take("files", "data_files", "paths", "glob", "local_path", "input", "filename")
        given = entry.take(
            "path", "dataset", "hf_path", "repo", "repo_id", "hf_dataset", "dataset_name", "hub", "hf_id"
        )
        where = given.value if given is not None else None
        if files is not None or (isinstance(where, str) and where not in _BUILDERS and _FILE.search(where)):
            chosen = files or given
            assert chosen is not None
            patterns = chosen.value if isinstance(chosen.value, list) else [chosen]
            if files is not None and isinstance(where, str) and where not in _BUILDERS and given is not None:
                entry.report(given, f"`{files.path}` says where the data is")
            if not all(isinstance(item.value, str) for item in patterns):
                entry.report(chosen, "should be a path, or a list of paths")
                return None
            entry.leave(
                "belongs to a dataset of the hub; these are files", "split", "revision", "subset", "config"
            )
            formats = sorted({name for item in patterns if (name := _format(item.value))})
            for item in patterns:
                if not (formats or item.value.endswith((*codecs.SUFFIXES, "*"))):
                    entry.report(item, f"no reader for this ending; known: {' '.join(codecs.SUFFIXES)}")
            moved: Json = {"files": [moved_path(item.value, self._path, self._base) for item in patterns]}
            return moved | {name: {} for name in formats}
        if not isinstance(where, str) or given is None or not _DATASET.fullmatch(where):
            return None
        hub: Json = {"dataset": where}
        keys = ["subset", "config", "config_name", "hf_config"]
        if given.path.endswith(".path") or given.path.endswith(".hf_path"):
            keys.insert(0, "name")
        if config := entry.take_text(*keys):
            hub["config"] = config
        if split := entry.take("split"):
            sliced = _SLICE.fullmatch(str(split.value))
            hub["split"] = sliced[1] if sliced else str(split.value)
            if sliced:
                entry.report(
                    split,
                    f"a part of a split ([{sliced[2]}]); all of `{sliced[1]}` is read: set `limit` or "
                    "`sample`",
                )
        if revision := entry.take_text("revision", "commit", "tag"):
            hub["revision"] = revision
        return {"hub": hub}


def moved_path(pattern: str, path: Path, base: Path) -> str:
    """A path that was relative to the file `path`, relative to `base`."""
    if "://" in pattern or os.path.isabs(pattern) or pattern.startswith("~"):  # noqa: PTH117
        return pattern
    home = path.resolve().parent
    return pattern if home == base else os.path.relpath(home / pattern, base)


def _stem(path: Path) -> str:
    """data/*.jsonl.zst is data."""
    stem = path.name.partition(".")[0]
    return path.parent.name if "*" in stem else stem


def _format(pattern: str) -> str | None:
    """The reader of a source that an ending asks for."""
    return next((name for name, endings in _ENDINGS.items() if pattern.endswith(endings)), None)


def _reading(entry: Mapping) -> Json:
    """Which key holds what, or a template."""
    found: Json = {}
    template = entry.take("template", "prompt_template", "format")
    if template is not None:
        try:
            template_parts(str(template.value))
            found["template"] = str(template.value)
        except ValueError:
            entry.report(template, "is no template of plain {field} names")
    if "template" in found:
        entry.leave("the template says what the text is", *_TEXT)
    fields = {"text": entry.take_text(*_TEXT), "id": entry.take_text("id_field", "id_column", "id_key")}
    if "template" in found:
        fields["text"] = None
    if any(fields.values()):
        found["fields"] = {key: value for key, value in fields.items() if value}
    where = entry.take("where")
    if where is not None and isinstance(where.value, Mapping):
        found["where"] = {key: str(item.value) for key, item in where.value.take_all()}
    elif where is not None:
        entry.report(where, "should be a mapping of fields to their values")
    return found


def _amount(entry: Mapping) -> Json:
    """`samples` are drawn from all; every other bound takes from the beginning."""
    found: Json = {}
    if drawn := entry.take_whole("samples", "num_samples", "n_samples"):
        found["sample"] = {"method": "reservoir", "k": drawn}
    given = entry.values.get("limit")
    within = given.value if given is not None and isinstance(given.value, Mapping) else None
    limit = {bound: _bound(entry, within, bound, names) for bound, names in _BOUNDS.items()}
    if within is not None and any(map(within.is_taken, within.values)):
        entry.take("limit")
    if any(limit.values()):
        found["limit"] = {key: value for key, value in limit.items() if value}
    return found


def _bound(entry: Mapping, within: Mapping | None, bound: str, names: tuple[str, ...]) -> int | None:
    """`limit: {docs: 1000}`, or one of the names that the same bound has by itself."""
    if within is None:
        return entry.take_whole(*names)
    names = tuple(name for name in names if name != "limit")
    found = within.take_whole(bound, *_WITHIN_LIMIT.get(bound, ()))
    if found is None:
        return entry.take_whole(*names)
    entry.leave(f"`{within.path}` says it already", *names)
    return found


def take_bounds(entry: Mapping) -> Json:
    """Bounds on the length of a document, as a rule; nothing where there are none."""
    low, high = entry.take_whole("min_chars", "min_length"), entry.take_whole("max_chars", "max_length")
    bounds = {key: value for key, value in (("min", low), ("max", high)) if value is not None}
    return {"measure": "chars", **bounds} if bounds else {}


def parse_share(value: Any) -> Decimal | None:
    """0.3, 3 and 30 % are shares."""
    try:
        spelled = str(value).strip()
        share = Decimal(spelled.removesuffix("%")) / (100 if spelled.endswith("%") else 1)
    except InvalidOperation:
        return None
    return share if share.is_finite() and share >= 0 and not isinstance(value, bool) else None


def to_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100] or "data"


def unique_name(name: str, others: list[Json]) -> str:
    """One that a recipe takes and none of the others has."""
    name, taken = to_name(name), {other["name"] for other in others}
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in numbered if other not in taken)
