"""Which documents, in which order: filters as the address has them, asked of DuckDB.

    f=words:10..50        a range, either end may be missing     f=lang:en,de      one of these values
    f=score.edu:null      without a value                        f=!verdict:kept   the other documents
    sort=-words           largest first; who has no value comes last; then in the order of the corpus

    whole columns (numbers) ─ DuckDB ─> how many, and the positions of a page ─ rows ─> what is shown

Values are bound, never written into the statement, and a name of a column is one of those that the run has.
"""

from __future__ import annotations

import difflib
import math
import threading
import time
import urllib.parse
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.errors import InputError
from tokmill.explorer.bulk import quoted
from tokmill.explorer.columns import Columns, Whole
from tokmill.explorer.shard_columns import Column

MAX_LIMIT = 500
MAX_OFFSET = 100_000
MAX_FILTERS = 40
MAX_VALUES = 1_000
MAX_GROUPS = 100_000
SECONDS = 20.0  # that one statement may take
MEMORY = "400MB"  # of DuckDB; columns are ours
_COUNTS = 256  # totals of filters that are remembered
DEFAULT = ("doc_id", "source", "verdict", "reason", "split", "lang", "license", "chars", "tokens")


class Condition(NamedTuple):
    """One filter: a range, some values, or none at all."""

    column: Column
    is_not: bool
    values: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    is_null: bool = False


class Asked(NamedTuple):
    """A query: its filters, its order. What is shown of it is not part of it."""

    conditions: tuple[Condition, ...] = ()
    sort: Column | None = None
    descending: bool = False
    text: str | None = None


def _refused(what: str, next: str = "see the list of columns") -> InputError:
    return InputError(what, where="filter", next=next)


def _other_column(asked: str, columns: Columns) -> str:
    name, colon, _ = asked.partition(":")
    near = difflib.get_close_matches(name, columns.known, n=1) if colon else []
    named = f"did you mean {near[0]}?" if near else f"columns are {', '.join(columns.known)}"
    return f"{named if colon else ''}; write column:value or column:low..high".removeprefix("; ")


def parse_filter(text: str, columns: Columns) -> Condition:
    is_not, rest = text.startswith("!"), text.removeprefix("!")
    names = [name for name in columns.known if rest.startswith(f"{name}:")]
    if not names:
        raise _refused(f"{text[:80]} is no filter of a column of this run", _other_column(rest, columns))
    name = max(names, key=len)  # a name may have a colon in it
    column, value = columns.column(name), rest[len(name) + 1 :]
    if value == "null":
        return Condition(column, is_not, is_null=True)
    if column.kind == "number":
        low, dots, high = value.partition("..")
        if dots:
            return Condition(column, is_not, low=_number(low, text), high=_number(high, text))
    values = tuple(urllib.parse.unquote(one) for one in value.split(","))
    if len(values) > MAX_VALUES:
        raise _refused(f"a filter with {len(values):,} values", f"at most {MAX_VALUES:,}")
    if column.kind == "number":
        for one in values:
            _number(one, text, may_miss=False)
    if column.kind == "bool" and not set(values) <= {"true", "false"}:
        raise _refused(f"{name} is true or false", f"{name}:true")
    return Condition(column, is_not, values=values)


def _number(text: str, filter: str, *, may_miss: bool = True) -> float | None:
    if not text and may_miss:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise _refused(f"{text[:40]} is no number, in {filter[:80]}", "write column:low..high")
    return value


def parse_query(columns: Columns, filters: Sequence[str], sort: str | None, text: str | None = None) -> Asked:
    if len(filters) > MAX_FILTERS:
        raise _refused(f"{len(filters):,} filters", f"at most {MAX_FILTERS}")
    asked = Asked(tuple(parse_filter(one, columns) for one in filters), text=text or None)
    if not sort:
        return asked
    return asked._replace(sort=columns.column(sort.removeprefix("-")), descending=sort.startswith("-"))


class Page(NamedTuple):
    positions: list[int]
    total: int
    seconds: float


class Queries:
    """One connection without a file: it sees the columns that it is given, and nothing else."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._lock = threading.Lock()
        self._counts: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        self._connection: Any = None
        self._numbered: Any = None  # the positions of all documents

    def prepare(self) -> None:
        """What every answer needs, before one is asked for."""
        self._positions()
        with self._lock:
            self._connected()

    # --- answers ---

    def page(self, asked: Asked, offset: int, limit: int, among: Any | None = None) -> Page:
        """`among` are positions, ascending, that a search of texts found."""
        began = time.perf_counter()
        offset, limit = bounded(offset, limit)
        self._columns.prepare(self._needs(asked))  # together: what is in one table is read once
        total = self.count(asked, among)
        positions: list[int] = []
        if not asked.conditions and asked.sort is None and among is None:
            positions = list(range(offset, min(offset + limit, total)))
        elif total > offset and limit:
            where, values = self._where(asked, among)
            order, direction = _order(asked)
            statement = (
                f"SELECT position FROM documents WHERE {where} "
                f"ORDER BY {order}{direction}position LIMIT ? OFFSET ?"
            )
            found = self._run(statement, [*values, limit, offset], self._needs(asked), among)
            positions = [row[0] for row in found]
        return Page(positions, total, time.perf_counter() - began)

    def count(self, asked: Asked, among: Any | None = None) -> int:
        if not asked.conditions and among is None:
            return self._columns.documents
        key = (asked.conditions, None if among is None else asked.text)
        if key in self._counts:
            return self._counts[key]
        where, values = self._where(asked, among)
        statement = f"SELECT count(*) FROM documents WHERE {where}"
        ((total,),) = self._run(statement, values, self._needs(asked._replace(sort=None)), among)
        self._counts[key] = int(total)
        if len(self._counts) > _COUNTS:
            self._counts.popitem(last=False)
        return int(total)

    def mask(self, asked: Asked, among: Any | None = None) -> NDArray[np.bool_]:
        """Of all documents, whether they are among those asked for."""
        where, values = self._where(asked, among)
        found = self._run(
            f"SELECT position FROM documents WHERE {where}", values, self._needs(asked), among, "numpy"
        )
        chosen = np.zeros(self._columns.documents, np.bool_)
        chosen[found["position"]] = True
        return chosen

    def group(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Documents by the values of columns of few values, and how many of each."""
        listed = ", ".join(map(quoted, names))
        statement = f"SELECT {listed}, count(*) FROM documents GROUP BY {listed} ORDER BY ALL LIMIT ?"
        found = self._run(statement, [MAX_GROUPS], names, None)
        words = [self._columns.whole(name).names for name in names]
        return [
            (
                *(
                    value if own is None or value is None else own[value]
                    for value, own in zip(values, words, strict=True)
                ),
                int(documents),
            )
            for *values, documents in found
        ]

    def around(self, asked: Asked, position: int, among: Any | None = None) -> Json:
        """The documents before and after one, in the order of the query, and its number in it (None: it is
        not in it)."""
        where, values = self._where(asked, among)
        needs = self._needs(asked)
        ((is_in,),) = self._run(
            f"SELECT count(*) FROM documents WHERE {where} AND position = ?",
            [*values, position],
            needs,
            among,
        )
        total = self.count(asked, among)
        if not is_in:
            return {"previous": None, "next": None, "position": None, "total": total}
        before, after, bound = self._sides(asked, position)
        order, direction = _order(asked)
        ((number,),) = self._run(
            f"SELECT count(*) FROM documents WHERE {where} AND ({before})", [*values, *bound], needs, among
        )
        following = self._run(
            f"SELECT position FROM documents WHERE {where} AND ({after}) "
            f"ORDER BY {order}{direction}position LIMIT 1",
            [*values, *bound],
            needs,
            among,
        )
        back_order, back_direction = _order(asked, backwards=True)
        previous = self._run(
            f"SELECT position FROM documents WHERE {where} AND ({before}) "
            f"ORDER BY {back_order}{back_direction}position DESC LIMIT 1",
            [*values, *bound],
            needs,
            among,
        )
        return {
            "previous": previous[0][0] if previous else None,
            "next": following[0][0] if following else None,
            "position": int(number),
            "total": total,
        }

    def _sides(self, asked: Asked, position: int) -> tuple[str, str, list[Any]]:
        """Conditions of who comes before and after a document; nulls are last."""
        if asked.sort is None:
            return "position < ?", "position > ?", [position]
        name = quoted(asked.sort.name)
        value = self._columns.whole(asked.sort.name).values[position].as_py()
        if value is None:
            return (
                f"{name} IS NOT NULL OR position < ?",
                f"{name} IS NULL AND position > ?",
                [position],
            )
        first, last = (">", "<") if asked.descending else ("<", ">")
        return (
            f"{name} {first} ? OR ({name} = ? AND position < ?)",
            f"{name} {last} ? OR {name} IS NULL OR ({name} = ? AND position > ?)",
            [value, value, position],
        )

    # --- statements ---

    def _where(self, asked: Asked, among: Any | None) -> tuple[str, list[Any]]:
        parts, values = [], []
        for condition in asked.conditions:
            text, own = self._condition(condition)
            parts.append(f"NOT coalesce({text}, false)" if condition.is_not else f"({text})")
            values += own
        if among is not None:
            parts.append("position IN (SELECT position FROM searched)")
        return " AND ".join(parts) or "true", values

    def _condition(self, condition: Condition) -> tuple[str, list[Any]]:
        column, name = condition.column, quoted(condition.column.name)
        if condition.is_null:
            return f"{name} IS NULL", []
        if condition.values:
            found = self._values(column, condition.values)
            return (f"{name} IN ({', '.join('?' * len(found))})" if found else "false"), found
        bounds = [(">=", condition.low), ("<=", condition.high)]
        told = [(sign, value) for sign, value in bounds if value is not None]
        if not told:
            return f"{name} IS NOT NULL", []
        return " AND ".join(f"{name} {sign} ?" for sign, _ in told), [value for _, value in told]

    def _values(self, column: Column, values: Sequence[str]) -> list[Any]:
        if column.kind == "category":
            codes = {name: code for code, name in enumerate(self._columns.whole(column.name).names or [])}
            return [codes[value] for value in values if value in codes]
        if column.kind == "bool":
            return [value == "true" for value in values]
        return list(values) if column.kind == "text" else [float(value) for value in values]

    def _needs(self, asked: Asked) -> list[str]:
        names = [condition.column.name for condition in asked.conditions]
        return list(dict.fromkeys([*names, *([asked.sort.name] if asked.sort is not None else [])]))

    def _run(
        self,
        statement: str,
        values: Sequence[Any],
        needs: Sequence[str],
        among: Any | None,
        form: Literal["rows", "numpy"] = "rows",
    ) -> Any:
        self._columns.prepare(needs)
        wholes = {name: self._columns.whole(name) for name in needs}
        return self.ask(statement, values, self._table(wholes), among, form)

    def _table(self, wholes: dict[str, Whole]) -> Any:
        names = ["position", *wholes]
        return pa.table([self._positions(), *(whole.values for whole in wholes.values())], names=names)

    def _positions(self) -> Any:
        if self._numbered is None:
            self._numbered = pa.array(np.arange(self._columns.documents, dtype=np.uint32))
        return self._numbered

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = connect()
        return self._connection

    def ask(
        self, statement: str, values: Sequence[Any], table: Any, among: Any | None, form: str = "rows"
    ) -> Any:
        """One at a time; who takes too long is stopped."""
        with self._lock:
            connection = self._connected()
            connection.register("documents", table)
            if among is not None:
                connection.register("searched", pa.table({"position": among}))
            timer = threading.Timer(SECONDS, connection.interrupt)
            timer.start()
            try:
                done = connection.execute(statement, list(values))
                found = done.fetchnumpy() if form == "numpy" else done.fetchall()
            except duckdb.InterruptException:
                raise InputError(
                    f"was stopped after {SECONDS:.0f} seconds", where="query", next="ask for fewer documents"
                ) from None
            except duckdb.OutOfMemoryException:
                raise InputError(
                    f"needs more than {MEMORY} of memory", where="query", next="ask for fewer documents"
                ) from None
            finally:
                timer.cancel()
                connection.unregister("documents")
                if among is not None:
                    connection.unregister("searched")
            return found


def connect() -> Any:
    """DuckDB without a file, a network, an extension, or a setting that a statement could change."""
    return duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",
            "memory_limit": MEMORY,
            "threads": "2",
            "lock_configuration": "true",
        },
    )


def bounded(offset: int, limit: int) -> tuple[int, int]:
    if not 0 <= offset <= MAX_OFFSET:
        raise InputError(
            f"a page that begins at {offset:,}",
            where="offset",
            next=f"filter, or turn the order round: at most {MAX_OFFSET:,}",
        )
    return offset, min(max(limit, 0), MAX_LIMIT)


def _order(asked: Asked, *, backwards: bool = False) -> tuple[str, str]:
    if asked.sort is None:
        return "", ""
    descends = asked.descending != backwards
    nulls = "FIRST" if backwards else "LAST"
    return quoted(asked.sort.name), f" {'DESC' if descends else 'ASC'} NULLS {nulls}, "
