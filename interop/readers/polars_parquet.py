"""Polars reads the Parquet shards of documents, with their names."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import polars

from compare import given, report, require

BUILD = {"format": "parquet", "pack": {"layout": "indexed"}, "rows_per_shard": 20}

train, _, lengths = given()
table = polars.read_parquet(sorted(train.glob("*.parquet")))
require(table["input_ids"].list.len().to_list() == lengths.tolist(), "other lengths")
require(table["doc_id"].null_count() == 0, "documents without a name")
report("polars", "`read_parquet`: every document and length", table["input_ids"].to_list())
