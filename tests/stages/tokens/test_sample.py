"""What a tokenizer learns from: exactly the share of each source, chosen by the documents alone."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import tokmill as mill
from mill import small_corpus
from tokmill.artifacts.progress import Silence
from tokmill.artifacts.step import Input, Task
from tokmill.stages.tokens.sample import (
    DRAWS,
    ChooseOptions,
    Pick,
    Shares,
    _cut,
    _taken,
    divide_budget,
    perform_choose,
)
from tokmill.storage.tables import write_table
from written import load_manifest, load_table

# draws of few values, so that many are equal
SHARD = st.lists(st.tuples(st.integers(0, 5).map(lambda n: n << 61), st.integers(0, 40)), max_size=8)


@given(
    shards=st.lists(st.tuples(st.sampled_from("ab"), SHARD), max_size=5),
    budget=st.integers(0, 200),
    weights=st.sampled_from([None, {"a": "1/2", "b": "1/2"}, {"a": "1", "b": "0"}, {"a": "1/7", "b": "6/7"}]),
)
@settings(deadline=None, max_examples=60)
def test_every_source_gives_its_share_in_the_order_of_the_draws(tmp_path_factory, shards, budget, weights):
    directory = tmp_path_factory.mktemp("draws")
    inputs = []
    for number, (_, documents) in enumerate(shards):
        path = directory / f"{number}.parquet"
        columns = [np.array([d[i] for d in documents], dtype) for i, dtype in ((0, np.uint64), (1, np.int64))]
        write_table(path, pa.table(columns, schema=DRAWS))
        inputs.append(Input("draws", str(path), str(number)))
    task = Task(
        function="tokenizer.choose",
        key="choice",
        options=ChooseOptions(
            bytes=budget,
            shares=Shares(sources=weights or None),
            sources=tuple(source for source, _ in shards),
        ),
        inputs=inputs,
        directory=str(directory),
    )
    facts = msgspec.json.decode(msgspec.json.encode(perform_choose(task).facts))
    for source in {source for source, _ in shards}:
        everything = sorted(
            (draw, shard, row, size)
            for shard, (owner, documents) in enumerate(shards)
            if owner == source
            for row, (draw, size) in enumerate(documents)
        )
        available = sum(size for *_, size in everything)
        total = sum(size for _, documents in shards for _, size in documents)
        wanted = (
            int(Fraction(weights[source]) * budget)
            if weights
            else min(available, budget * available // max(total, 1) if total > budget else available)
        )
        assert facts["available"][source] == available
        assert facts["wanted"][source] == wanted
        left, expected = wanted, {}
        for _, shard, row, size in everything:
            taken = min(size, left)
            if taken or (not size and left >= 0 and available <= wanted):
                expected[shard, row] = taken
            left -= taken
        pick = msgspec.convert(facts["picks"][source], Pick)
        found = {}
        for shard, (owner, documents) in enumerate(shards):
            if owner == source:
                rows, is_cut = _taken(np.array([d[0] for d in documents], np.uint64), pick, shard)
                for row in rows.tolist():
                    found[shard, row] = documents[row][1]
                if is_cut:
                    found[shard, rows.tolist()[-1]] = pick.cut_bytes
        assert {place: size for place, size in found.items() if size} == {
            place: size for place, size in expected.items() if size
        }
        assert sum(found.values()) == min(wanted, available)


def test_texts_are_cut_between_characters():
    texts = pa.array(["whole", "aé漢🙂", "b"], pa.large_string())
    assert _cut(texts, 1, 1).to_pylist() == ["whole", "a"]
    assert _cut(texts, 1, 5).to_pylist() == ["whole", "aé"]
    assert _cut(texts, 1, 6).to_pylist() == ["whole", "aé漢"]
    assert _cut(texts, 1, 10).to_pylist() == ["whole", "aé漢🙂"]
    assert _cut(texts, 1, 11).to_pylist() == ["whole", "aé漢🙂", "b"]
    assert _cut(texts[1:], 0, 0).to_pylist() == []
    assert _cut(pa.array(["漢"], pa.large_string()), 0, 2).to_pylist() == []


def test_shares_follow_the_mixture_and_within_a_domain_what_there_is():
    available = {"a": 100, "b": 300, "c": 50}
    shares = Shares(
        domains={"web": "3/4", "math": "1/4"},
        within={},
        domain_of={"a": "web", "b": "web", "c": "math"},
    )
    assert divide_budget(available, 400, shares) == {"a": 75, "b": 225, "c": 100}
    shares = replace(shares, within={"web": {"a": "2/3", "b": "1/3"}})
    assert divide_budget(available, 400, shares) == {"a": 200, "b": 100, "c": 100}
    shares = replace(shares, domains=None)
    assert divide_budget(available, 450, shares) == {"a": 266, "b": 133, "c": 50}
    unweighted = replace(shares, within={"web": {"a": "1", "b": "0"}})  # b is read for others: 100 to 50
    assert divide_budget(available, 450, unweighted) == {"a": 300, "b": 0, "c": 150}
    assert divide_budget(available, 45, Shares()) == {"a": 10, "b": 30, "c": 5}
    assert divide_budget(available, 10**9, Shares()) == available


def corpus(directory: Path, **train):
    """Two sources of more than a megabyte each, whose documents name their source in every word."""
    directory.mkdir(exist_ok=True)
    for name in ("left", "right"):
        lines = [
            json.dumps({"id": str(i), "text": f"{name}{i % 97} {name} {name}{i % 89}\n" * 40})
            for i in range(1500)
        ]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return small_corpus(
        directory,
        sources=[{"name": name, "files": f"{name}.jsonl"} for name in ("left", "right")],
        shards={"megabytes": 1},
        filters=None,
        dedup={"exact": False},
        tokenizer={
            "train": {"model": "bpe", "vocab_size": 400, "sample_megabytes": 1, **train},
            "eos": "<|endoftext|>",
        },
    )


@pytest.mark.usefixtures("forked_workers")
def test_the_sample_has_the_weights_to_the_byte_whatever_the_workers(tmp_path):
    recipe = corpus(tmp_path / "c", weights={"left": "0.25", "right": "0.75"})
    identities = set()
    for workers in (1, 2):
        out = mill.run(recipe, tmp_path / f"out-{workers}", workers=workers, until="tokenizer").out
        manifest = load_manifest(out / "tokenizer")
        identities.add(manifest.identity)
        assert mill.verify(out).problems == []
    assert len(identities) == 1
    assert sorted(path.name for path in (out / "tokenizer").iterdir()) == [
        "manifest.json",
        "spm_400_bpe.model",
        "tokenizer.log.json",
    ]
    log = json.loads((out / "tokenizer/tokenizer.log.json").read_text())
    assert [(d["name"], d["bytes"], d["characters"]) for d in log["datasets"]] == [
        ("left", 1 << 18, 1 << 18),
        ("right", 3 << 18, 3 << 18),
    ]
    assert 0 < log["datasets"][0]["samples"] < log["datasets"][1]["samples"] < 1500
    assert log["sha256"] == manifest.facts["sha256"]
    assert manifest.facts["vocab_size"] == manifest.facts["padded_vocab_size"] == log["vocab_size"] == 400


def test_a_source_with_less_than_its_share_gives_all_and_is_told(tmp_path):
    recipe = corpus(tmp_path / "c", sample_megabytes=4, weights={"left": "0.75", "right": "0.25"})
    said = []

    class Listening(Silence):
        def say(self, message):
            said.append(message)

    out = mill.run(recipe, tmp_path / "out", workers=1, until="tokenizer", progress=Listening()).out
    left, right = json.loads((out / "tokenizer/tokenizer.log.json").read_text())["datasets"]
    labels = [load_table(path) for path in sorted((out / "split").glob("labels-*.parquet"))]
    of_left = np.concatenate([np.asarray(table.column("split")) for table in labels])[:1500]
    assert left["samples"] == int((of_left == 0).sum()) < 1500, "what is held out is not learned from"
    assert left["short_by_bytes"] == left["wanted_bytes"] - left["bytes"] > 0
    assert right["bytes"] == right["wanted_bytes"] == 1 << 20
    assert "short_by_bytes" not in right
    assert any("one source has fewer bytes" in message and ": left " in message for message in said)
