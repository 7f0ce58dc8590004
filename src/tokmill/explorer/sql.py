"""A query as SQL that runs in any DuckDB on the files of the run: to be taken away.

    shards (VALUES) ─ documents ─┬ marks, measures        by the key of the shard and the row
                                 ├ verdicts, labels …     by its number and the row
                                 └ ledgers, lengths       some rows of a shard

Only the tables that the query asks for are joined. The explorer itself asks columns in memory, and values are
bound; here they are written out, because it is text for people.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tokmill.explorer.bulk import quoted
from tokmill.explorer.query import Asked, Condition
from tokmill.explorer.shard_columns import Column
from tokmill.explorer.site import Site

_INGESTED = {"doc_id": "doc_id", "domain": "domain", "created_at": "created_at", "license_tag": "license_tag"}
_MARKS = {"lang": "language", "license": "license", "chars": "chars", "bytes": "bytes"}
_NO_PATH = "*?[\\"  # a pattern, or the separator of another system
_VERDICTS = ("similarity", "cluster", "cluster_size")


def sql_of(site: Site, asked: Asked, columns: Sequence[str]) -> str | None:
    """None where it cannot be said: texts that are searched, files that are elsewhere, columns that are
    put together from more than tables."""
    names = [condition.column.name for condition in asked.conditions]
    names += [asked.sort.name] if asked.sort is not None else []
    needed = list(dict.fromkeys([*columns, *names]))
    root = str(site.directory.resolve())  # DuckDB takes `..` out of the names of files that it finds
    if asked.text or site.url is not None or any(one in root for one in _NO_PATH):
        return None
    made = _Statement(site, root)
    try:
        selected = [f"{made.column(name)} AS {quoted(name)}" for name in needed]
    except KeyError:
        return None
    values = ", ".join(
        f"({shard.number}, {literal(shard.source)}, {literal(shard.key)})" for shard in site.run.shards
    )
    where = "".join(f"\n  AND {_condition(one)}" for one in asked.conditions)
    order = "number, row"
    if asked.sort is not None:
        way = "DESC" if asked.descending else "ASC"
        order = f"{quoted(asked.sort.name)} {way} NULLS LAST, {order}"
    shown = ", ".join(["place", *map(quoted, columns)])
    joins = "".join(f"\n  LEFT JOIN {join}" for join in made.joins.values())
    place = "shards.source || '/' || shards.shard || ':' || documents.file_row_number AS place"
    return (
        f"WITH shards(number, source, shard) AS (VALUES {values}),\n"
        f"found AS (\n  SELECT shards.number, documents.file_row_number AS row, {place}"
        f"{''.join(f', {one}' for one in selected)}\n"
        f"  FROM shards JOIN {made.table('ingest/*/documents-*', 'documents')} ON documents.filename = "
        f"{literal(root + '/ingest/')} || shards.source || '/documents-' || shards.shard || '.parquet'"
        f"{joins}\n)\n"
        f"SELECT {shown} FROM found\nWHERE true{where}\nORDER BY {order}"
    )


class _Statement:
    """Joins, each once, as columns ask for them."""

    def __init__(self, site: Site, root: str) -> None:
        self._site, self._root = site, root
        self.joins: dict[str, str] = {}

    def table(self, pattern: str, name: str) -> str:
        path = literal(f"{self._root}/{pattern}.parquet")
        options = "union_by_name = true, filename = true, file_row_number = true"
        return f"read_parquet({path}, {options}) AS {name}"

    def column(self, name: str) -> str:
        """KeyError: it is in no table by itself."""
        artifacts = self._site.run.artifacts
        if name == "source":
            return "shards.source"
        if name in _INGESTED:
            return f"documents.{_INGESTED[name]}"
        if name in _MARKS:
            return f"{self._by_key('marks')}.{_MARKS[name]}"
        if name in _VERDICTS:
            return f"{self._by_number('dedup', 'verdicts')}.{name}"
        if name in ("split", "verdict") and "split" in artifacts:
            label = f"{self._by_number('split', 'labels')}.split"
            if name == "verdict":
                return f"CASE WHEN {label} = 255 THEN 'dropped' ELSE 'kept' END"
            splits = artifacts["split"].manifest.facts["splits"]
            cases = " ".join(f"WHEN {at} THEN {literal(split)}" for at, split in enumerate(splits))
            return f"CASE {label} {cases} END"
        if name in ("step", "reason"):
            return self._fate(name)
        if name == "tokens":
            return f"{self._lengths()}.tokens"
        column = self._site.columns.column(name)
        if column.step == "clean" and name != "edited":
            return f"{self._by_key('measures')}.{quoted(column.title)}"
        if column.step == "scores":
            return f"{self._by_number('scores', 'percentiles')}.{quoted(name)}"
        raise KeyError(name)

    def _by_key(self, table: str) -> str:
        path = (
            f"{literal(self._root + '/clean/')} || shards.source || '/{table}-' || shards.shard || '.parquet'"
        )
        self.joins[table] = (
            f"{self.table(f'clean/*/{table}-*', table)} ON {table}.filename = {path} "
            f"AND {table}.file_row_number = documents.file_row_number"
        )
        return table

    def _by_number(self, step: str, table: str) -> str:
        path = f"{literal(f'{self._root}/{step}/{table}-')} || printf('%05d', shards.number) || '.parquet'"
        self.joins[table] = (
            f"{self.table(f'{step}/{table}-*', table)} ON {table}.filename = {path} "
            f"AND {table}.file_row_number = documents.file_row_number"
        )
        return table

    def _fate(self, name: str) -> str:
        """By the first step whose ledger names the document."""
        run, cases = self._site.run, []
        if any(cleaned.manifest.entries("ledger") for cleaned in run.of_kind("clean").values()):
            path = f"{literal(self._root + '/clean/')} || shards.source || '/ledger-' || shards.shard"
            cases.append(self._left("clean", "clean/*/ledger-*", f"{path} || '.parquet'"))
        for step in ("scores", "dedup", "split"):
            if step in run.artifacts and run.artifacts[step].manifest.entries("ledger"):
                path = f"{literal(f'{self._root}/{step}/ledger-')} || printf('%05d', shards.number)"
                cases.append(self._left(step, f"{step}/ledger-*", f"{path} || '.parquet'"))
        if not cases:
            return "NULL"
        told = [
            f"WHEN {own}.reason IS NOT NULL THEN {literal(step) if name == 'step' else f'{own}.reason'}"
            for step, own in cases
        ]
        return f"CASE {' '.join(told)} END"

    def _left(self, step: str, pattern: str, path: str) -> tuple[str, str]:
        own = f"left_{step}"
        lines = f"SELECT filename, row, reason FROM {self.table(pattern, 'ledger')} WHERE verdict != 'edit'"
        self.joins[own] = (
            f"({lines}) AS {own} ON {own}.filename = {path} AND {own}.row = documents.file_row_number"
        )
        return step, own

    def _lengths(self) -> str:
        number = "regexp_extract(filename, 'lengths-([0-9]+)[.]parquet$', 1)::INTEGER AS number"
        lines = f"SELECT {number}, row, tokens FROM {self.table('tokens/*/*/lengths-*', 'lengths')}"
        self.joins["lengths"] = (
            f"({lines}) AS lengths ON lengths.number = shards.number "
            "AND lengths.row = documents.file_row_number"
        )
        return "lengths"


def _condition(one: Condition) -> str:
    name = quoted(one.column.name)
    if one.is_null:
        text = f"{name} IS NULL"
    elif one.values:
        text = f"{name} IN ({', '.join(_value(one.column, value) for value in one.values)})"
    else:
        ends = [(">=", one.low), ("<=", one.high)]
        text = " AND ".join(f"{name} {sign} {_number(end)}" for sign, end in ends if end is not None)
        text = text or f"{name} IS NOT NULL"
    return f"NOT coalesce({text}, false)" if one.is_not else f"({text})"


def _value(column: Column, value: str) -> str:
    """A number was read as one when the filter was parsed."""
    if column.kind == "number":
        return _number(float(value))
    return value if column.kind == "bool" else literal(value)


def _number(value: float) -> str:
    """Infinity has no name of its own in SQL."""
    return repr(value) if math.isfinite(value) else f"'{value}'::DOUBLE"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
