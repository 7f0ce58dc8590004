"""Entries of other projects' lists of data, as sources of a recipe.

{path: org/name, name: config, split: train}       as load_dataset takes them ─┐
{dataset: org/name, subset: config}                                            ├ Sources.add_all ─> found, shares, told
{files: "data/*.jsonl", text_column: body}                                     │
org/name                                                                       ┘
"""

from __future__ import annotations

import os
import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from tokmill.manifest import Json
from tokmill.recipe import template_parts
from tokmill.recipe_lines import Mapping, Unmapped, Value
from tokmill.storage import codecs

SHARE = ("weight", "probability", "proportion", "ratio", "share", "prob", "mix_weight", "sampling_weight")
_BUILDERS = ("json", "parquet", "text")  # of load_dataset: `data_files` says what is read
_FILE = re.compile(r"(^[./~])|[*?]|\.(jsonl|ndjson|json|parquet|txt|md|csv|tsv)(\.gz|\.zst)?$|^[a-z0-9]+://")
_FORMATS = {
    "warc": (".warc", ".warc.gz", ".wet", ".wet.gz"),
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
        self.told: list[Unmapped] = []

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
                self.told.append(
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
        source: Json = {"name": self._unique(to_name(named))}
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
                entry.tell(unit, f"should be one of {', '.join(_UNITS)}")
        if rule := take_bounds(entry):
            source["clean"] = {"filters": [rule]}
        share = entry.take(*SHARE)
        if share is not None:
            weight = parse_share(share.value)
            if weight is None:
                entry.tell(share, "a share should be a number from 0 up")
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
                entry.tell(given, f"`{files.path}` says where the data is")
            if not all(isinstance(item.value, str) for item in patterns):
                entry.tell(chosen, "should be a path, or a list of paths")
                return None
            entry.leave(
                "belongs to a dataset of the hub; these are files", "split", "revision", "subset", "config"
            )
            formats = sorted({name for item in patterns if (name := _format(item.value))})
            for item in patterns:
                if not (formats or item.value.endswith((*codecs.SUFFIXES, "*"))):
                    entry.tell(item, f"no reader for this ending; known: {' '.join(codecs.SUFFIXES)}")
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
                entry.tell(
                    split,
                    f"a part of a split ([{sliced[2]}]); all of `{sliced[1]}` is read: set `limit` or `sample`",
                )
        if revision := entry.take_text("revision", "commit", "tag"):
            hub["revision"] = revision
        return {"hub": hub}

    def _unique(self, name: str) -> str:
        taken = {source["name"] for source in self.found}
        numbers = (f"{name}-{number}" for number in range(2, len(taken) + 3))
        return name if name not in taken else next(other for other in numbers if other not in taken)


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
    return next((name for name, endings in _FORMATS.items() if pattern.endswith(endings)), None)


def _reading(entry: Mapping) -> Json:
    """Which key holds what, or a template."""
    found: Json = {}
    template = entry.take("template", "prompt_template", "format")
    if template is not None:
        try:
            template_parts(str(template.value))
            found["template"] = str(template.value)
        except ValueError:
            entry.tell(template, "is no template of plain {field} names")
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
        entry.tell(where, "should be a mapping of fields to their values")
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
