"""From the hub to a sample in one call: nested fields, several splits, the commit recorded,
and no second draw."""

from __future__ import annotations

import hashlib
import io
import json
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hub.conftest import Client
from hub.loopback import LoopbackHub
from hub.test_milling import tokmill

DATASET = "mills/pairs"
SPLITS = {"train": 20, "valid": 4, "test": 6}
NESTED = {"source_key": "translation.fr", "target_key": "translation.en"}


def pair(number: int) -> dict[str, Any]:
    return {
        "translation": {"en": f"the mill number {number}", "fr": f"le moulin numéro {number}"},
        "score": number,
    }


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


@pytest.fixture
def published(hub: LoopbackHub) -> str:
    """40 pairs to train on in two files, 10 for validation; in the repository they lie in another order."""
    return hub.commit(
        DATASET,
        {
            "data/train-00000-of-00002.parquet": parquet([pair(n) for n in range(20)]),
            "data/train-00001-of-00002.parquet": parquet([pair(n) for n in range(20, 40)]),
            "data/validation-00000-of-00001.parquet": parquet([pair(n) for n in range(40, 50)]),
            "data/test-00000-of-00001.parquet": parquet([pair(n) for n in range(50, 60)]),
        },
    )


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_nested_template_and_two_splits_give_a_sample_in_one_call(
    hub: LoopbackHub, published: str, client: Client, tmp_path: Path
) -> None:
    script = f"""
        import tokmill
        template = "{{translation.fr}} = {{translation.en}} ({{score}})"
        drawn = tokmill.materialize_sample(
            dataset="{DATASET}", split="validation+train", out="out",
            k=30, seed=7, splits={SPLITS}, template=template,
        )
        show(path=str(drawn.path))
    """
    path = tmp_path / client(script)["path"]
    rows = rows_of(path)
    assert Counter(row["split"] for row in rows) == SPLITS
    possible = [
        f"le moulin numéro {n} = the mill number {n} ({n})" for n in [*range(40, 50), *range(40)]
    ]  # validation first, as it was asked for
    places = [possible.index(row["text"]) for row in rows]
    assert places == sorted(places)
    assert len(set(places)) == 30
    for row in rows:
        folded = unicodedata.normalize("NFKC", row["text"]).encode()
        assert row["uid"] == hashlib.sha256(folded).hexdigest()[:32]
        assert (row["dataset"], row["revision"]) == (DATASET, published)
    meta = json.loads((path.parent / "MANIFEST.meta.json").read_text())
    assert (meta["revision"], meta["counts"]["read"], meta["hub"]["split"]) == (
        published,
        50,
        "validation+train",
    )
    before, asked = path.read_bytes(), len(hub.seen())
    hub.commit(DATASET, {"data/train-00000-of-00001.parquet": parquet([pair(1)])})
    client(script)
    assert path.read_bytes() == before
    assert len(hub.seen()) == asked  # the branch that was resolved stays resolved, and nothing is asked


def test_several_splits_are_read_in_the_order_in_which_datasets_itself_reads_them(
    hub: LoopbackHub, published: str, client: Client, tmp_path: Path
) -> None:
    for split in ("train+validation", "validation+train", " test + train "):
        shown = client(
            f"""
            import datasets, tokmill
            from tokmill.recipe import Hub
            from tokmill.sources.readers import list_hub
            theirs = datasets.load_dataset("{DATASET}", split="{split}".replace(" ", ""))
            files = list_hub(Hub(dataset="{DATASET}", split="{split}"), "{published}")
            show(theirs=[row["score"] for row in theirs], files=[file.name for file in files])
            """
        )
        first = {
            "data/train-00000-of-00002.parquet": range(20),
            "data/train-00001-of-00002.parquet": range(20, 40),
        }
        first |= {"data/validation-00000-of-00001.parquet": range(40, 50)}
        first |= {"data/test-00000-of-00001.parquet": range(50, 60)}
        assert [n for file in shown["files"] for n in first[file]] == shown["theirs"]


def test_the_command_line_draws_pairs_and_records_the_commit(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    command = [
        *(
            "materialize",
            "sample",
            "--dataset",
            DATASET,
            "--split",
            "train+validation",
            "--k",
            "30",
            "--seed",
            "7",
        ),
        *("--splits", "train=20,valid=4,test=6", "--source-key", "translation.fr"),
        *("--target-key", "translation.en", "--out", tmp_path / "mini"),
    ]
    done = tokmill(hub, tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert f"{DATASET} at {published}" in done.stdout
    rows = rows_of(tmp_path / "mini/manifest.jsonl")
    assert Counter(row["split"] for row in rows) == SPLITS
    for row in rows:
        number = int(row["src_text"].rpartition(" ")[2])
        assert (row["src_text"], row["tgt_text"]) == (
            f"le moulin numéro {number}",
            f"the mill number {number}",
        )
        assert number < 50
    other = tokmill(hub, tmp_path, *command, "--method", "weighted", "--weight", "score")
    assert (other.returncode, "--resample" in other.stderr) == (1, True)
    drawn = tokmill(hub, tmp_path, *command, "--method", "weighted", "--weight", "score", "--resample")
    assert drawn.returncode == 0, drawn.stderr
    weighted = rows_of(tmp_path / "mini/manifest.jsonl")
    assert [set(row) for row in weighted] == [set(row) for row in rows]
    assert "le moulin numéro 0" not in {row["src_text"] for row in weighted}  # a weight of 0
    assert tokmill(hub, tmp_path, "verify", tmp_path / "mini").returncode == 0


def test_a_split_that_is_not_there_and_one_that_is_named_twice_are_refused(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    for split, why in (("train+dev", "no split `dev`"), ("train+train", "twice")):
        done = tokmill(hub, tmp_path, "ingest", "hub", DATASET, "--split", split, "--out", tmp_path / "out")
        assert done.returncode == 1
        assert why in done.stderr


def test_records_without_the_member_are_quarantined_where_they_lie(hub: LoopbackHub, tmp_path: Path) -> None:
    rows = [*(pair(n) for n in range(300)), {"translation": {"en": "alone"}, "score": 1}, {"score": 2}]
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    hub.commit(DATASET, {"data/train.jsonl": b"".join(lines)})
    done = tokmill(
        *(hub, tmp_path, "ingest", "hub", DATASET, "--template", "{translation.fr} {score}"),
        *("--out", tmp_path / "out", "--json"),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (ledger,) = (tmp_path / "out").rglob("ledger-*.parquet")
    told = {row["offset"]: row["reason"] for row in pq.read_table(ledger).to_pylist()}
    ends = [sum(map(len, lines[:300])), sum(map(len, lines[:301]))]
    assert told == dict.fromkeys(ends, "missing_field")
