"""How well a tokenizer fits some text, and whether a new one fits it worse than the old.

    tokenizer_coverage  files ─ documents ─ encode ─ decode ─> per source, per language and in all:

        tokens_per_word        words as `tokmill filter` counts them (docs/measures.md)
        tokens_per_byte
        characters_per_token
        unknown_rate           share of the tokens that are the unknown token
        coverage               1 - unknown_rate: share of the tokens that stand for some text
        round_trip_share       share of the documents for which decode(encode(text)) is the text, character by
                               character

    tokenizer_guard     two tokenizers ─> what rose or fell beyond the thresholds

Counts are added up as integers and divided once, so neither the cut into batches nor the order matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.adhoc.reading import Files, listed
from tokmill.artifacts.cells import short_repr
from tokmill.clean.measures import measure
from tokmill.errors import EmptyGlob, InputError
from tokmill.kernels.characters import measure_text
from tokmill.schema import one_piece, string_column
from tokmill.storage import codecs
from tokmill.storage.records import Kind, Wanted
from tokmill.tokenizers.description import Description, check_tokenizer, describe_tokenizer
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.protocol import Tokenizer

By = Literal["source", "language"]

# A vocabulary that needs 5 more tokens for 100 words makes every training 4 % dearer at the usual 1.3.
MAX_RISE = 0.05
MAX_FALL = 0.02

_MAX_RECORD_BYTES = 128 << 20
_TEXT_KEYS, _LANGUAGE_KEYS = ("text", "content"), ("language", "lang")
_UNKNOWN = "unknown"


class Tally(NamedTuple):
    docs: int = 0
    bytes: int = 0
    characters: int = 0
    words: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    round_trips: int = 0

    def plus(self, other: Tally) -> Tally:
        return Tally(*(mine + its for mine, its in zip(self, other, strict=True)))

    @property
    def tokens_per_word(self) -> float | None:
        return _ratio(self.tokens, self.words)

    @property
    def coverage(self) -> float | None:
        return _ratio(self.tokens - self.unknown_tokens, self.tokens)

    @property
    def round_trip_share(self) -> float | None:
        return _ratio(self.round_trips, self.docs)

    def as_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "tokens_per_word": self.tokens_per_word,
            "tokens_per_byte": _ratio(self.tokens, self.bytes),
            "characters_per_token": _ratio(self.characters, self.tokens),
            "unknown_rate": _ratio(self.unknown_tokens, self.tokens),
            "coverage": self.coverage,
            "round_trip_share": self.round_trip_share,
        }


@short_repr
class Coverage(NamedTuple):
    model: str
    total: Tally
    source: dict[str, Tally]
    language: dict[str, Tally]
    unreadable: int  # records of the files that are not documents

    def groups(self, by: By) -> dict[str, Tally]:
        return self.source if by == "source" else self.language

    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "total": self.total.as_json(),
            "by_source": {name: tally.as_json() for name, tally in self.source.items()},
            "by_language": {name: tally.as_json() for name, tally in self.language.items()},
            "unreadable": self.unreadable,
        }


@short_repr
class Checked(NamedTuple):
    """A tokenizer that can be used, and is the pinned one."""

    path: Path
    description: Description

    def as_json(self) -> dict[str, Any]:
        return {"path": str(self.path), **self.description.as_json()}


def tokenizer_check(model: str | Path, *, sha256: str | None = None, encoding: str | None = None) -> Checked:
    """What the tokenizer in a file is; an error if it cannot be used, or is not the pinned file."""
    return Checked(Path(model), check_tokenizer(Path(model), sha256=sha256, encoding=encoding))


def tokenizer_coverage(
    model: str | Path, files: Files, *, text: str | None = None, encoding: str | None = None
) -> Coverage:
    """How many tokens a tokenizer takes for the documents of files, and whether they come back unchanged.

    `text` is the field that holds it. A document without a source is of its file.
    """
    tokenizer, paths = load_tokenizer(Path(model), encoding=encoding), [Path(file) for file in listed(files)]
    unknown_id = describe_tokenizer(tokenizer).unknown_id
    groups: dict[str, dict[str, Tally]] = {"source": {}, "language": {}}
    total, unreadable = Tally(), 0
    for path in paths:
        for documents, bad in _read(path, text):
            unreadable += bad
            counts = _count(
                tokenizer, unknown_id, one_piece(documents.column("text")).cast(pa.large_string())
            )
            total = total.plus(Tally(*(int(column.sum()) for column in counts)))
            for by, tallies in groups.items():
                _add_groups(tallies, documents.column(by), counts)
    if not total.docs:
        raise InputError(
            "no documents to measure the tokenizer on",
            where=", ".join(map(str, paths)),
            next="give files with text",
        )
    return Coverage(
        str(model),
        total,
        dict(sorted(groups["source"].items())),
        dict(sorted(groups["language"].items())),
        unreadable,
    )


def _count(tokenizer: Tokenizer, unknown_id: int | None, texts: Any) -> list[Any]:
    """Per document, in the order of Tally."""
    column = string_column(texts)
    strings = texts.to_pylist()
    encoded = tokenizer.encode_column(texts)
    ends = np.cumsum(encoded.lengths)
    pieces = np.split(encoded.ids, ends[:-1]) if len(ends) else []
    is_unknown = encoded.ids == (-1 if unknown_id is None else unknown_id)
    unknown = np.diff(np.concatenate([[0], np.cumsum(is_unknown)])[np.concatenate([[0], ends])])
    returned = [tokenizer.decode(ids) == text for ids, text in zip(pieces, strings, strict=True)]
    return [
        np.ones(len(strings), np.int64),
        np.diff(column.offsets),
        measure_text(*column[:2]).chars,
        measure(texts, ["words"])["words"],
        encoded.lengths,
        unknown,
        np.array(returned, np.int64),
    ]


def _add_groups(tallies: dict[str, Tally], names: Any, counts: list[Any]) -> None:
    coded = one_piece(names).dictionary_encode()
    numbers = np.asarray(coded.indices)
    for code, name in enumerate(coded.dictionary.to_pylist()):
        rows = numbers == code
        found = Tally(*(int(column[rows].sum()) for column in counts))
        tallies[name] = tallies.get(name, Tally()).plus(found)


def _read(path: Path, text: str | None) -> Iterator[tuple[Any, int]]:
    """Tables text, source, language; and how many records were none."""
    if not path.is_file():
        raise EmptyGlob("no such file", where=str(path), next="check the name")
    peek = codecs.peek(path, max_record_bytes=_MAX_RECORD_BYTES)
    text_keys = (text,) if text else _TEXT_KEYS
    if peek.keys and not set(text_keys) & set(peek.keys):
        raise InputError(
            f"the first records have no field `{text_keys[0]}`; they have {', '.join(sorted(peek.keys))}",
            where=str(path),
            next="name the field that holds the text with `tokmill tokenizer coverage --text`",
        )
    wanted = [
        Wanted("text", text_keys[0], Kind.TEXT, True, tuple(text_keys[1:])),
        Wanted("source", "source", Kind.NAME, False),
        Wanted("language", _LANGUAGE_KEYS[0], Kind.NAME, False, tuple(_LANGUAGE_KEYS[1:])),
    ]
    for batch in codecs.read_batches(path, wanted, unit="document", max_record_bytes=_MAX_RECORD_BYTES):
        rows = batch.table.num_rows
        if rows or batch.bad:
            columns = {
                "text": batch.table.column("text"),
                "source": _named(batch.table, "source", path.name.partition(".")[0]),
                "language": _named(batch.table, "language", _UNKNOWN),
            }
            yield pa.table(columns), len(batch.bad)


def _named(table: Any, name: str, default: str) -> Any:
    return pc.fill_null(one_piece(table.column(name)).cast(pa.string()), default)


def _ratio(count: int, of: int) -> float | None:
    return count / of if of else None


# --- guard ---


class Change(NamedTuple):
    """One figure of one group under both tokenizers."""

    group: str
    figure: str
    base: float | None
    new: float | None
    is_fault: bool


@short_repr
class Guarded(NamedTuple):
    """Is the new tokenizer as good as the base, within the thresholds?"""

    max_rise: float
    max_fall: float
    changes: list[Change]
    base: Coverage
    new: Coverage

    @property
    def ok(self) -> bool:
        return not any(change.is_fault for change in self.changes)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "max_rise": self.max_rise,
            "max_fall": self.max_fall,
            "changes": [change._asdict() for change in self.changes],
            "base": self.base.as_json(),
            "new": self.new.as_json(),
        }


def tokenizer_guard(
    base: str | Path,
    new: str | Path,
    files: Files,
    *,
    max_rise: float = MAX_RISE,
    max_fall: float = MAX_FALL,
    by: By | None = None,
    text: str | None = None,
    base_encoding: str | None = None,
    new_encoding: str | None = None,
) -> Guarded:
    """A fault where the new one takes over `max_rise` more tokens a word,
    or covers or returns over `max_fall` less.

    Both are measured on the same files. With `by` every group must hold, and not only all of them together.
    """
    before = tokenizer_coverage(base, files, text=text, encoding=base_encoding)
    after = tokenizer_coverage(new, files, text=text, encoding=new_encoding)
    changes = compare_coverage(before, after, max_rise=max_rise, max_fall=max_fall, by=by)
    return Guarded(max_rise, max_fall, changes, before, after)


def compare_coverage(
    base: Coverage,
    new: Coverage,
    *,
    max_rise: float = MAX_RISE,
    max_fall: float = MAX_FALL,
    by: By | None = None,
) -> list[Change]:
    pairs = [("total", base.total, new.total)]
    if by is not None:
        pairs += [(f"{by} {name}", tally, new.groups(by)[name]) for name, tally in base.groups(by).items()]
    changes = []
    for group, before, after in pairs:
        rise = _difference(before.tokens_per_word, after.tokens_per_word)
        changes.append(
            Change(group, "tokens_per_word", before.tokens_per_word, after.tokens_per_word, rise > max_rise)
        )
        for figure in ("coverage", "round_trip_share"):
            had, has = getattr(before, figure), getattr(after, figure)
            changes.append(Change(group, figure, had, has, _difference(has, had) > max_fall))
    return changes


def _difference(a: float | None, b: float | None) -> float:
    """b - a, to nine places: 1.35 - 1.3 is 0.05, and that is not more than 0.05."""
    return round(b - a, 9) if a is not None and b is not None else 0.0
