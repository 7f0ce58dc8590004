"""DuckDB reads the run and nothing else; a query that takes too long is stopped; a cell shows the page."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import tokmill
from explored import Client
from tokmill.errors import InputError
from tokmill.explorer import query
from tokmill.explorer.bulk import connect_to
from tokmill.explorer.columns import Columns
from tokmill.explorer.site import Site

OUTSIDE = [
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "COPY (SELECT 1) TO '/tmp/explored.csv'",
    "ATTACH '/tmp/explored.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SELECT * FROM read_parquet('https://example.com/x.parquet')",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SET enable_external_access = true",
    "SET memory_limit = '100GB'",
    "SET autoinstall_known_extensions = true",
]


@pytest.mark.parametrize("statement", OUTSIDE)
def test_a_statement_reaches_nothing_outside(run: Path, statement: str) -> None:
    for connection in (query.connect(), connect_to(run.absolute())):
        with pytest.raises(duckdb.Error):
            connection.execute(statement)


def test_the_reader_of_tables_reads_below_the_run_and_what_is_asked_reads_no_file(run: Path) -> None:
    table = next((run / "split").glob("labels-*.parquet")).absolute()
    assert connect_to(run.absolute()).execute("SELECT count(*) FROM read_parquet(?)", [str(table)]).fetchall()
    with pytest.raises(duckdb.Error):
        query.connect().execute("SELECT count(*) FROM read_parquet(?)", [str(table)])
    with pytest.raises(duckdb.Error):
        connect_to((run / "dedup").absolute()).execute("SELECT * FROM read_parquet(?)", [str(table)])
    above = f"{run.absolute()}/../books.jsonl"
    with pytest.raises(duckdb.Error):
        connect_to(run.absolute()).execute("SELECT * FROM read_text(?)", [above])


def test_a_query_that_takes_too_long_is_stopped_and_the_next_one_is_answered(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "SECONDS", 0.2)
    queries = Site(run).queries
    few = pa.table({"position": pa.array(range(30_000), pa.uint32())})
    every = "documents a, documents b, documents c"
    endless = f"SELECT count(*) FROM {every} WHERE a.position + b.position > c.position"
    with pytest.raises(InputError, match="was stopped"):
        queries.ask(endless, [], few, None)
    assert queries.ask("SELECT count(*) FROM documents", [], few, None) == [(30_000,)]


def test_columns_that_are_not_used_are_let_go(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokmill.explorer import columns as module

    monkeypatch.setattr(module, "CACHE_BYTES", 3_000)
    columns = Site(run).columns
    assert isinstance(columns, Columns)
    for name in ("words", "digit_share", "chars", "verdict", "reason", "tokens", "words"):
        columns.whole(name)
        held = list(columns._loaded.values())
        assert sum(one.nbytes for one in held) <= 3_000 or len(held) == 1


def test_texts_that_are_too_many_are_not_put_in_order(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokmill.explorer import columns as module

    monkeypatch.setattr(module, "TEXT_BYTES", 1_000)
    with pytest.raises(InputError, match="too many texts"):
        tokmill.documents(run, sort="doc_id")


def test_a_cell_of_a_notebook_shows_the_page_and_says_where_it_is(run: Path) -> None:
    with tokmill.explore(run) as explorer:
        cell = explorer._repr_html_()
        (source,) = re.findall(r'<iframe src="([^"]+)"', cell)
        assert source.replace("&amp;", "&") == explorer.url.replace("127.0.0.1", "localhost")
        client = Client(explorer)
        path = source.partition(f":{client.port}")[2]
        assert client.ask(path, {"Host": f"localhost:{client.port}"}).status == 303
        assert client.token not in repr(explorer)
        assert str(run) in cell


def test_a_file_that_is_damaged_is_told_by_its_name(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(run, tmp_path / "run")
    table = next((copy / "split").glob("labels-*.parquet"))
    table.write_bytes(table.read_bytes()[:-100])
    with tokmill.explore(copy) as explorer:
        client = Client(explorer)
        answer = client.get("documents", sort="split")
        assert answer.status == 400
        assert table.name in answer.json["error"]["where"]
        assert client.json("documents", sort="chars", columns="chars,words")["total"] > 0
