"""Rows as a trainer sees them, against the bytes of the build and the index beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokmill
from explored import Client, mill_corpus


def stored(run: Path, split: str) -> Any:
    dtype = json.loads((run / f"build/rows/{split}/meta.json").read_bytes())["dtype"]
    return np.fromfile(run / f"build/rows/{split}/input_ids.mmap", dtype).reshape(-1, 64)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_rows_are_the_bytes_of_the_build(client: Client, run: Path, split: str) -> None:
    rows = stored(run, split)
    told = client.json("rows", build="rows", split=split, first=0, count=5)
    assert told["total"] == len(rows)
    assert [one["row"] for one in told["rows"]] == list(range(min(5, len(rows))))
    for one in told["rows"]:
        assert one["ids"] == rows[one["row"]].tolist()
        assert len(one["pieces"]) == 64
        assert one["padding"] is None
        assert one["documents"][0]["start"] == 0
        assert one["documents"][-1]["end"] == 64
    last = client.json("rows", build="rows", split=split, first=len(rows) - 1, count=10)
    assert [one["row"] for one in last["rows"]] == [len(rows) - 1]
    assert client.json("rows", build="rows", split=split, first=len(rows), count=1)["rows"] == []


def test_the_documents_of_a_row_are_those_that_peek_shows(client: Client, run: Path) -> None:
    for row in (0, 7, 30):
        (one,) = client.json("rows", build="rows", split="train", first=row, count=1)["rows"]
        pieces = tokmill.peek(run / "build/rows", row, split="train").as_json()["pieces"]
        assert [(d["id"], d["source"], d["start"], d["end"]) for d in one["documents"]] == [
            (p["doc_id"], p["source"], p["start"], p["end"]) for p in pieces
        ]
        for document in one["documents"]:
            told = client.json("document", id=document["id"], source=document["source"])
            assert any(
                place["build"] == "rows" and place["row"] == row and place["column"] == document["start"]
                for place in told["tokens"]
            )


def test_padding_and_sequences_of_any_length_are_told(tmp_path: Path) -> None:
    builds = [{"name": "padded", "format": "memmap"}, {"name": "mega", "format": "megatron"}]
    out = mill_corpus(tmp_path, pack={"layout": "pad", "length": 1024}, builds=builds)
    with tokmill.explore(out) as explorer:
        client = Client(explorer)
        rows = client.json("rows", build="padded", split="train", first=0, count=8)["rows"]
        assert any(one["padding"] for one in rows)
        for one in rows:
            start, end = one["padding"] or [1024, 1024]
            assert start == len(one["ids"]) == one["documents"][-1]["end"]
            assert end == 1024
        mega = client.json("rows", build="mega", split="train", first=0, count=3)
        assert [len(one["ids"]) for one in mega["rows"]] == [one["length"] for one in mega["rows"]]


@pytest.mark.parametrize(
    "fields",
    [
        {"build": "nothing", "split": "train"},
        {"build": "../../etc", "split": "train"},
        {"build": "rows", "split": "../train"},
        {"build": "rows"},
        {"build": "rows", "split": "train", "first": -1},
        {"build": "rows", "split": "train", "first": "x"},
        {"build": "__proto__", "split": "train"},
    ],
)
def test_a_row_that_is_not_there_is_told(client: Client, fields: dict[str, object]) -> None:
    assert client.get("rows", **fields).status == 400


def test_a_huge_count_is_a_page(client: Client) -> None:
    assert len(client.json("rows", build="rows", split="train", count=10**15)["rows"]) == 32
