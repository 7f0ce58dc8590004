"""From files to documents: which records a source has, and what each becomes (docs/inputs.md).

    files, sorted ─ records, in their order ─ where ─ fields, template ─ limit, sample ─> documents

A record that cannot be used is quarantined with its place and a reason, one that is not wanted is dropped.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from backports import zstd

from plain.hashing import MASK, mix, seeded, text_hash

Json = dict[str, Any]


@dataclass(frozen=True)
class Document:
    text: str
    source: str
    domain: str
    doc_id: str
    license_tag: str | None
    created_at: str | None
    meta: Json | None


@dataclass
class Ingested:
    """What reading a source came to. Left out are (file, place, reason)."""

    documents: list[Document] = field(default_factory=list)
    bad: list[tuple[str, int, str]] = field(default_factory=list)
    dropped: list[tuple[str, int, str]] = field(default_factory=list)


class Bad(Exception):
    """A record that cannot be used, with the reason."""


def ingest(source: Json, base: Path, seed: int) -> Ingested:
    found = Ingested()
    limit = _Limit(source)
    draw = source.get("sample") or {}
    for name, path in find_files(source["files"], base):
        for place, record in read_records(path, source.get("unit", "document")):
            try:
                if isinstance(record, Bad):
                    raise record
                reason = _not_wanted(record, source)
                if reason:
                    found.dropped.append((name, place, reason))
                    continue
                document = to_document(record, source, name if _is_text_file(path, source) else None)
            except Bad as fault:
                found.bad.append((name, place, str(fault)))
                continue
            if draw.get("method") == "hash" and not _is_drawn(document.doc_id, draw["fraction"], seed):
                found.dropped.append((name, place, "not_sampled"))
                continue
            if not limit.has_room(document):
                return found
            found.documents.append(document)
            if limit.is_used_up:
                return found
    if draw.get("method") == "reservoir":
        found.documents = _smallest(found.documents, draw["k"], seed)
    return found


# --- files ---


def find_files(patterns: str | list[str], base: Path) -> list[tuple[str, Path]]:
    """(name, path) in the order of the patterns, sorted by name within each, none twice. The name is the path
    below what comes before the first wildcard, with as much more of it as tells it from an earlier one."""
    found: dict[Path, str] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        parts = Path(pattern).parts
        fixed = next((i for i, part in enumerate(parts) if set(part) & set("*?[")), len(parts) - 1)
        root = base.joinpath(*parts[:fixed])
        matches = {path for path in base.glob(pattern) if path.is_file()}
        for name, path in sorted((path.relative_to(root).as_posix(), path) for path in matches):
            if path.resolve() in found:
                continue
            whole = path.relative_to(base).as_posix().split("/")
            longer = ("/".join(whole[-depth:]) for depth in range(name.count("/") + 1, len(whole) + 1))
            found[path.resolve()] = next(one for one in longer if one not in found.values())
    return [(name, path) for path, name in found.items()]


def _is_text_file(path: Path, source: Json) -> bool:
    return _suffix(path) in (".txt", ".md") and source.get("unit", "document") == "document"


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz").removesuffix(".zst")).suffix


def _bytes(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    return zstd.decompress(data) if path.suffix == ".zst" else data


def read_records(path: Path, unit: str) -> Iterator[tuple[int, Json | Bad]]:
    """Each record with its place: a byte of the decompressed file, or the number of a row."""
    match _suffix(path):
        case ".jsonl" | ".ndjson":
            yield from _json_lines(_bytes(path))
        case ".json":
            data = _bytes(path)
            if data.lstrip().startswith(b"["):
                yield from enumerate(json.loads(data))
            else:
                yield from _json_lines(data)
        case ".parquet":
            yield from enumerate(pq.read_table(path).to_pylist())
        case ".arrow" | ".feather":
            yield from enumerate(pa.ipc.open_file(path).read_all().to_pylist())
        case ".csv" | ".tsv":
            yield from _rows(_bytes(path), "," if _suffix(path) == ".csv" else "\t")
        case _:
            yield from _texts(_bytes(path), unit)


def _json_lines(data: bytes) -> Iterator[tuple[int, Json | Bad]]:
    place = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    for line in data[place:].split(b"\n"):
        if line.strip(b" \t\r"):
            try:
                yield place, parse_object(line)
            except Bad as fault:
                yield place, fault
        place += len(line) + 1


def parse_object(line: bytes) -> Json:
    """A JSON object, strictly: no key twice in one object, no NaN, no half of a surrogate pair."""

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            raise Bad("duplicate_key")
        return dict(pairs)

    def refuse(name: str) -> None:
        raise Bad("invalid_json")

    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise Bad("invalid_utf8") from None
    try:
        found = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except ValueError:
        raise Bad("invalid_json") from None
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Bad("lone_surrogate") from None
    if not isinstance(found, dict):
        raise Bad("wrong_type")
    return found


def _rows(data: bytes, separator: str) -> Iterator[tuple[int, Json | Bad]]:
    """Values are the strings that lie there; a cell without anything is no value."""
    rows = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=separator, strict=True)
    names = next(rows)
    for number, row in enumerate(rows):
        if len(row) != len(names):
            yield number, Bad("wrong_cells")
        else:
            yield number, {name: value or None for name, value in zip(names, row, strict=True)}


def _texts(data: bytes, unit: str) -> Iterator[tuple[int, Json | Bad]]:
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    if unit == "document":
        pieces = [(0, data)] if data.strip() else []
    elif unit == "line":
        lines = [(match.start(), match[0]) for match in re.finditer(rb"[^\n]+", data)]
        pieces = [(place, line.removesuffix(b"\r")) for place, line in lines if line.strip(b" \t\r")]
    else:
        blocks = re.finditer(rb"(?:^[ \t\r]*[^ \t\r\n][^\n]*\n?)+", data, re.MULTILINE)
        pieces = [(match.start(), match[0].rstrip(b"\r\n")) for match in blocks]
    for place, piece in pieces:
        try:
            yield place, {"text": piece.decode()}
        except UnicodeDecodeError:
            yield place, Bad("invalid_utf8")


# --- records ---


def _not_wanted(record: Json, source: Json) -> str | None:
    for key, value in (source.get("where") or {}).items():
        if _spelled(_follow(record, key)) != str(value):
            return f"other_{key}"
    return None


def to_document(record: Json, source: Json, file_id: str | None) -> Document:
    fields = source.get("fields") or {}

    def first(name: str, *keys: str) -> str | None:
        own = fields.get(name)
        for key in (own,) if own else keys:
            value = _follow(record, key)
            if value is not None:
                return _joined_terms(value) if name == "license" else _spelled(value)
        return None

    doc_id, license_tag = first("id", "id", "doc_id"), first("license", "license", "license_tag")
    text = _text_of(record, source)
    if file_id is not None:
        doc_id = file_id
    created_at = first("created_at", "created_at")
    return Document(
        text,
        source["name"],
        source.get("domain", "default"),
        _filled(doc_id) or "".join(f"{word:016x}" for word in text_hash(text)),
        _filled(license_tag) or source.get("license"),
        _filled(created_at),
        _meta_of(record, fields),
    )


def _text_of(record: Json, source: Json) -> str:
    if source.get("template"):
        return _fill(source["template"], record)
    own = (source.get("fields") or {}).get("text")
    for key in (own,) if own else ("text", "content"):
        value = _follow(record, key)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return "\n".join(value)  # a list of strings is one text, with a line for each
        if value is not None and not isinstance(value, str):
            raise Bad("wrong_type")
        if value is not None:
            return value
    raise Bad("missing_field")


def _fill(template: str, record: Json) -> str:
    def value_of(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        value = _follow(record, match[1])
        if value is None:
            raise Bad("missing_field")
        spelled = _spelled(value)
        assert spelled is not None
        return spelled

    return re.sub(r"\{\{|\}\}|\{([^{}]+)\}", value_of, template)


def _meta_of(record: Json, fields: Json) -> Json | None:
    """What the record carries as `meta`, and the keys that were asked for, which come last and win."""
    named = [*fields.get("meta", []), *([fields["language"]] if fields.get("language") else [])]
    carried = record.get("meta") if "meta" not in named else None
    if isinstance(carried, str):
        try:
            carried = parse_object(carried.encode())
        except Bad:
            carried = {"meta": carried}
    elif carried is not None and not isinstance(carried, dict):
        carried = {"meta": carried}
    own = {key: value for key in named if (value := _follow(record, key)) is not None}
    if not named:
        return carried
    return {**(carried or {}), **own}


def _follow(record: Json, key: str) -> Any:
    """`a.b[0].c`; a key that is spelled like the path comes first."""
    if key in record or not re.search(r"[.\[]", key):
        return record.get(key)
    value: Any = record
    for name, number in re.findall(r"([^.\[\]]+)|\[(-?\d+)\]", key):
        if value is None:
            return None
        if number:
            if not isinstance(value, list):
                raise Bad("wrong_type")
            value = value[int(number)] if -len(value) <= int(number) < len(value) else None
        else:
            if not isinstance(value, dict):
                raise Bad("wrong_type")
            value = value.get(name)
    return value


def _spelled(value: Any) -> str | None:
    """A string as it is, a number or a truth value as JSON writes it."""
    if isinstance(value, dict | list):
        raise Bad("wrong_type")
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _joined_terms(value: Any) -> str | None:
    """Of a list of licences all must be allowed; AND binds closer than OR."""
    if not isinstance(value, list):
        return _spelled(value)
    if not all(isinstance(one, str) for one in value):
        raise Bad("wrong_type")
    return (
        " AND ".join(f"({one})" if len(value) > 1 and " OR " in one.upper() else one for one in value) or None
    )


def _filled(value: str | None) -> str | None:
    """A blank string is no id, no licence and no date."""
    return value if value is not None and value.strip() else None


# --- limits and samples ---


class _Limit:
    """As many documents as stay within all bounds; a token is four characters."""

    def __init__(self, source: Json) -> None:
        asked = source.get("limit") or {}
        draw = source.get("sample") or {}
        chars = [asked.get("chars"), 4 * asked["tokens"] if asked.get("tokens") else None]
        docs = [asked.get("docs"), draw.get("k") if draw.get("method") == "head" else None]
        size = asked["megabytes"] * 10**6 if asked.get("megabytes") else None
        bounds = ((len, docs), (lambda d: len(d.text), chars), (lambda d: len(d.text.encode()), [size]))
        self._left: list[tuple[Any, int]] = [
            (measure if index else lambda d: 1, min(b for b in given if b is not None))
            for index, (measure, given) in enumerate(bounds)
            if any(b is not None for b in given)
        ]

    @property
    def is_used_up(self) -> bool:
        return any(left == 0 for _, left in self._left)

    def has_room(self, document: Document) -> bool:
        after = [(measure, left - measure(document)) for measure, left in self._left]
        if any(left < 0 for _, left in after):
            return False
        self._left = after
        return True


def _is_drawn(doc_id: str, fraction: object, seed: int) -> bool:
    threshold = int(Fraction(str(fraction)) * (1 << 64))
    return bool(threshold >> 64) or mix(seeded(f"sample {seed}"), doc_id)[0] < threshold


def _smallest(documents: list[Document], k: int, seed: int) -> list[Document]:
    """The k documents with the smallest draws from (seed, id, text), in their order."""
    start = ((seed + 1) * 0x9E3779B97F4A7C15 & MASK, (seed + 1) * 0xC2B2AE3D27D4EB4F & MASK)
    keys = [mix(mix(start, one.doc_id), one.text)[0] for one in documents]
    chosen = sorted(range(len(documents)), key=lambda at: (keys[at], at))[:k]
    return [replace(documents[at]) for at in sorted(chosen)]
