"""Whose every row and token of a batch is, against a walk over the index with other tools,
and the build's counts."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokmill as mill
from loader.builds import documents, write_split
from mill import write_problems
from tokmill.errors import InputError
from tokmill.loader import Batches, Curriculum, open_dataset
from written import ZstdDecompressor

DOMAIN = {"gsm": "math", "notes": "prose", "wiki": "prose"}
BUILDS: dict[str, dict[str, Any]] = {
    "memmap": {"format": "memmap"},
    "npy": {"format": "npy", "rows_per_shard": 7},
    "rows": {"format": "parquet"},
    "megatron": {"format": "megatron"},
    "token_cache": {"format": "token_cache"},
    "documents": {"format": "parquet", "pack": {"layout": "indexed"}},
    "padded": {"format": "memmap", "pack": {"layout": "pad", "length": 32}},
    "whole": {"format": "memmap", "pack": {"layout": "document", "length": 96}},
    "fitted": {"format": "npy", "pack": {"layout": "best_fit", "length": 96, "mix_domains": True}},
}
# of some sources
SOME: dict[str, dict[str, Any]] = {
    "wiki": {"format": "memmap", "sources": ["wiki"]},
    "pair": {"format": "npy", "sources": ["gsm", "notes"], "pack": {"length": 32}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    for number, name in enumerate(DOMAIN):
        rows = (
            write_problems(directory / "raw.jsonl", 40 + 10 * number, seed=number + 1)
            .read_text()
            .splitlines()
        )
        key = "question" if number else "answer"
        lines = [
            {"id": f"{name}-{n}", "text": f"{name} {n}: {json.loads(r)[key]}"} for n, r in enumerate(rows)
        ]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = {
        "name": "origins",
        "sources": [
            {"name": name, "domain": domain, "files": f"{name}.jsonl", "fields": {"id": "id"}}
            for name, domain in reversed(DOMAIN.items())  # not the order of the alphabet
        ],
        "split": {"valid_fraction": "0.2"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "mixture": {"order": "shuffle"},
        "pack": {"length": 48},
        "builds": [{"name": name, **build} for name, build in {**BUILDS, **SOME}.items()],
    }
    (directory / "recipe.yaml").write_text(json.dumps(recipe))
    return mill.run(directory / "recipe.yaml", workers=1).out


def told(split: Path) -> list[list[dict[str, Any]]]:
    """The documents of every row, as any reader of Zstandard and JSON has them."""
    data, lines = (split / "index.jsonl.zst").read_bytes(), b""
    while data:
        frame = ZstdDecompressor()
        lines += frame.decompress(data)
        data = frame.unused_data
    return [json.loads(line)["docs"] for line in lines.splitlines()]


def walk(docs: list[dict[str, Any]], width: int) -> tuple[int, list[int]]:
    """Of one row: the number of its source, and of each of its tokens; names in the order of the alphabet."""
    names = sorted(DOMAIN)
    tokens = [-1] * width
    sizes: Counter[tuple[str, str]] = Counter()
    for doc in docs:
        for column in range(doc["start"], min(doc["end"], width)):
            tokens[column] = names.index(doc["source"])
            sizes[doc["source"], doc["doc_id"]] += 1
    if not sizes:
        return -1, tokens
    most = max(sizes.values())
    first = next(key for key in sizes if sizes[key] == most)
    return names.index(first[0]), tokens


def as_domain(source: int) -> int:
    names = ["math", "prose"]
    return -1 if source < 0 else names.index(DOMAIN[sorted(DOMAIN)[source]])


Rows = dict[tuple[int, ...], list[list[dict[str, Any]]]]


def expect(batch: dict[str, Any], by_ids: Rows) -> None:
    """Every row is found again by its tokens, whatever the order;
    rows of the same tokens are told as one of them."""
    width = batch["tokens"].shape[1]
    assert batch["token_source"].shape == batch["token_domain"].shape == batch["tokens"].shape
    for row, length in enumerate(batch["lengths"].tolist()):
        told = batch["source"][row].item(), batch["token_source"][row].tolist()
        padding = [-1] * (width - length)
        known = [walk(docs, length) for docs in by_ids[tuple(batch["tokens"][row, :length].tolist())]]
        assert told in [(source, tokens + padding) for source, tokens in known]
        assert batch["domain"][row] == as_domain(told[0])
        assert batch["token_domain"][row].tolist() == [as_domain(one) for one in told[1]]


def rows_by_ids(build: Path, split: str, boundaries: Any = "eos") -> Rows:
    dataset = open_dataset(build, split, boundaries=boundaries)
    found: Rows = {}
    for example, docs in zip(dataset, told(build / split), strict=True):
        found.setdefault(tuple(example["ids"].tolist()), []).append(docs)
    return found


@pytest.mark.parametrize("boundaries", ["eos", "index"])
@pytest.mark.parametrize("name", list(BUILDS))
def test_rows_and_tokens_are_those_of_the_index_in_every_format(
    run: Path, name: str, boundaries: Any
) -> None:
    build = run / "build" / name
    for split in ("train", "valid"):
        dataset = open_dataset(build, split, boundaries=boundaries)
        assert (dataset.sources, dataset.domains) == (sorted(DOMAIN), ["math", "prose"])
        known, seen, tokens = rows_by_ids(build, split, boundaries), 0, Counter[int]()
        for batch in Batches(dataset, batch_size=5, seed=3, origins=True):
            expect(batch, known)
            seen += len(batch["lengths"])
            tokens.update(batch["token_source"][batch["attn_mask"]].tolist())
        assert seen == len(dataset)
        (task,) = [t for t in json.loads((build / "manifest.json").read_text())["tasks"] if t["key"] == split]
        counted = task["counts"]["sources"]
        wanted = {sorted(DOMAIN).index(name): own["tokens"] for name, own in counted.items() if own["tokens"]}
        if (
            boundaries == "index"
        ):  # where EOS is the padding too, only the index knows a last document that is all EOS
            assert tokens == wanted
        else:
            assert sum(tokens.values()) <= sum(wanted.values())


@pytest.mark.parametrize("name", ["memmap", "megatron", "padded"])
def test_ranks_and_a_resumed_run_have_the_origins_of_their_own_rows(run: Path, name: str) -> None:
    build = run / "build" / name
    known = rows_by_ids(build, "train")
    seen = []
    for rank in range(3):
        batches = Batches(
            open_dataset(build), batch_size=4, seed=9, origins=True, rank=rank, world_size=3, prefetch=rank
        )
        for batch in islice(batches, 2):
            expect(batch, known)
            seen += [
                tuple(row[:n].tolist()) for row, n in zip(batch["tokens"], batch["lengths"], strict=True)
            ]
        state = batches.state_dict()
    resumed = Batches(open_dataset(build), batch_size=2, seed=9, origins=True)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    for batch in resumed:
        expect(batch, known)
        seen += [tuple(row[:n].tolist()) for row, n in zip(batch["tokens"], batch["lengths"], strict=True)]
    assert sorted(seen) == sorted(ids for ids, rows in known.items() for _ in rows)


@pytest.mark.parametrize("name", ["memmap", "token_cache"])
def test_the_rest_of_a_batch_is_the_same_with_and_without(run: Path, name: str) -> None:
    plain, labelled = (
        list(Batches(open_dataset(run / "build" / name), batch_size=4, seed=1, origins=asked))
        for asked in (False, True)
    )
    assert len(plain) == len(labelled)
    for one, other in zip(plain, labelled, strict=True):
        assert list(other)[: len(one)] == list(one)
        assert set(other) - set(one) == {"domain", "source", "token_domain", "token_source"}
        assert all(np.array_equal(one[key], other[key]) for key in one)


def test_a_row_that_is_cut_is_whose_the_rest_of_it_is(run: Path) -> None:
    dataset = open_dataset(run / "build/memmap")
    docs = told(run / "build/memmap/train")
    (batch,) = islice(
        Batches(dataset, batch_size=len(dataset), shuffle="none", origins=True, length=11, too_long="cut"), 1
    )
    expected = [walk(row, 11) for row in docs]
    assert batch["source"].tolist() == [source for source, _ in expected]
    assert batch["token_source"].tolist() == [tokens for _, tokens in expected]
    assert len({source for source, _ in expected}) > 1


def test_several_datasets_share_their_numbers(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other/train"
    write_split(other, "memmap", documents(60), seq_len=48)
    lone = open_dataset(other)
    with pytest.raises(InputError, match="which domain each source is of"):
        Batches(lone, batch_size=2, origins=True)
    mine = open_dataset(run / "build/memmap")
    mixed = Batches(
        [mine, open_dataset(run / "build/memmap", "valid")], 6, weights=[2, 1], origins=True, seed=4
    )
    assert (mixed.sources, mixed.domains) == (sorted(DOMAIN), ["math", "prose"])
    known = rows_by_ids(run / "build/memmap", "train") | rows_by_ids(run / "build/memmap", "valid")
    for batch in mixed:
        expect(batch, known)


def test_a_cache_of_encode_says_whose_its_examples_are(run: Path, tmp_path: Path) -> None:
    home = run.parent.parent
    (home / "mixture.yaml").write_text(
        "domains:\n"
        + "".join(
            f"  {domain}: {{weight: 0.5, sources: [{{name: {name}, files: {name}.jsonl, id_field: id}}]}}\n"
            for name, domain in (("wiki", "web"), ("gsm", "math"))
        )
    )
    given = {"tokenizer": run / "tokenizer/tokenizer.json", "out": tmp_path / "cache"}
    cache = mill.encode(home / "mixture.yaml", **given, workers=1).directory
    dataset = open_dataset(cache)
    assert (dataset.sources, dataset.domains) == (["gsm", "wiki"], ["math", "web"])
    docs = told(cache)
    (batch,) = islice(Batches(dataset, batch_size=len(dataset), shuffle="none", origins=True), 1)
    assert [["gsm", "wiki"][at] for at in batch["source"].tolist()] == [row[0]["source"] for row in docs]
    assert set(batch["token_source"][batch["attn_mask"]].tolist()) == {0, 1}
    assert (batch["token_source"][~batch["attn_mask"]] == -1).all()


def test_they_go_to_another_process_with_the_batches(run: Path) -> None:
    batches = Batches(open_dataset(run / "build/memmap"), batch_size=8, seed=5, origins=True)
    again = pickle.loads(pickle.dumps(batches))  # noqa: S301
    for step in batches.steps(0, 0):
        one, other = batches.batch_of(step), again.batch_of(step)
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert again.sources == sorted(DOMAIN)


def test_tensors_have_them_too_with_any_number_of_workers(run: Path) -> None:
    torch = pytest.importorskip("torch")
    from tokmill.loader.torch import Feed

    build = run / "build/memmap"
    known = rows_by_ids(build, "train")
    found = []
    for workers in (0, 2):
        feed = Feed(Batches(open_dataset(build), batch_size=8, seed=5, origins=True), num_workers=workers)
        epoch = list(feed)
        assert all(batch["token_domain"].dtype == torch.int32 for batch in epoch)
        for batch in epoch:
            expect({name: value.numpy() for name, value in batch.items()}, known)
        found.append(torch.cat([batch["domain"] for batch in epoch]).tolist())
    assert found[0] == found[1]


def test_stages_of_other_sources_are_numbered_alike(run: Path) -> None:
    names = ("wiki", "pair", "memmap")
    stages = [(name, open_dataset(run / "build" / name, "train")) for name in names]
    curriculum = Curriculum(stages, 192, origins=True)
    assert (curriculum.sources, curriculum.domains) == (sorted(DOMAIN), ["math", "prose"])
    by_ids: Rows = {}
    for name in names:
        for ids, docs in rows_by_ids(run / "build" / name, "train").items():
            by_ids.setdefault(ids, []).extend(docs)
    seen = set()
    for batch in curriculum:
        expect(batch, by_ids)
        seen |= set(np.unique(batch["token_source"]).tolist())
    assert seen == {0, 1, 2}
    sent = pickle.loads(pickle.dumps(Curriculum(stages, 192, origins=True)))  # noqa: S301
    assert [batch["source"].tolist() for batch in sent] == [
        batch["source"].tolist() for batch in Curriculum(stages, 192, origins=True)
    ]
    assert Curriculum(stages, 192).sources == sorted(DOMAIN)
