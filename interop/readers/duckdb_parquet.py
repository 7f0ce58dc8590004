"""DuckDB queries the Parquet shards."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import duckdb

from compare import given, report

BUILD = {"format": "parquet", "rows_per_shard": 20}

query = """select input_ids from read_parquet(?, filename = true, file_row_number = true)
           order by filename, file_row_number"""
found = duckdb.execute(query, [str(given().train / "*.parquet")]).fetchall()
report("duckdb", "`read_parquet` in a query: every row", [row[0] for row in found])
