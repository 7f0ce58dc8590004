"""Which documents are in which split: of every format, from recipes and from commands,
recounted from the files."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sentencepiece
import tokenizers

import tokmill as mill
from mill import small_corpus, tokmill, write_problems
from tokmill.audit import membership
from tokmill.errors import InputChanged, InputError
from tokmill.loader import open_dataset

ROWS, WHOLE = ("memmap", "npy", "parquet"), ("megatron", "token_cache", "documents")
SPLITS = {"train": 60, "valid": 20, "test": 10}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a build of every format, and three splits."""
    directory = tmp_path_factory.mktemp("run")
    builds: list[dict[str, Any]] = [{"name": name, "format": name} for name in (*ROWS, *WHOLE[:2])]
    builds.append({"name": "documents", "format": "parquet", "pack": {"layout": "indexed"}})
    recipe = small_corpus(
        directory, problems=120, builds=builds, split={"valid_fraction": "0.2", "test_fraction": "0.1"}
    )
    return mill.run(recipe, workers=1).out


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mini/manifest.jsonl with the split of each text, and a SentencePiece model beside it."""
    directory = tmp_path_factory.mktemp("sample")
    problems = write_problems(directory / "raw.jsonl", 90)
    texts = [f"{p['question']}\n{p['answer']}" for p in map(json.loads, problems.read_text().splitlines())]
    (directory / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(directory / "spm"), vocab_size=300, minloglevel=2
    )
    return mill.materialize_sample(
        directory / "texts.jsonl", out=directory / "mini", k=90, seed=3, splits=SPLITS
    ).path


def members(build: Path, **how: Any) -> dict[str, tuple[bool, str]]:
    found = mill.check(build, steps=0, **how).findings
    return {one.split: (one.ok, one.detail) for one in found if one.check == "members"}


def labels_of(run: Path) -> dict[str, str]:
    """doc_id -> split, as the run's own tables have them, read with Arrow alone."""
    found: dict[str, str] = {}
    shards = [
        path
        for source in ("problems", "notes")
        for path in sorted((run / "ingest" / source).glob("documents-*"))
    ]
    for documents, labels in zip(shards, sorted((run / "split").glob("labels-*.parquet")), strict=True):
        ids = pq.read_table(documents)["doc_id"].to_pylist()
        numbers = pq.read_table(labels)["split"].to_pylist()
        found |= {
            id: ("train", "valid", "test")[number]
            for id, number in zip(ids, numbers, strict=True)
            if number < 3
        }
    return found


def stored(build: Path, split: str) -> list[list[int]]:
    """Rows or sequences of a split, by NumPy or Arrow alone."""
    place = build / split
    if (place / "input_ids.mmap").is_file():
        length = json.loads((place / "meta.json").read_text())["seq_len"]
        return np.fromfile(place / "input_ids.mmap", "<i4").reshape(-1, length).tolist()
    if (place / "shard_00000.npy").is_file():
        return [row for path in sorted(place.glob("shard_*.npy")) for row in np.load(path).tolist()]
    if list(place.glob("*.parquet")):
        return [
            row
            for path in sorted(place.glob("*.parquet"))
            for row in pq.read_table(path)["input_ids"].to_pylist()
        ]
    if (place / "tokens.bin").is_file():
        index = (place / "tokens.idx").read_bytes()
        count = int.from_bytes(index[18:26], "little")
        lengths = np.frombuffer(index, "<i4", count, 34)
        return [
            ids.tolist()
            for ids in np.split(np.fromfile(place / "tokens.bin", "<i4"), np.cumsum(lengths)[:-1])
        ]
    (path,) = place.glob("token_cache/*.npz")
    with np.load(path) as part:
        return [ids.tolist() for ids in np.split(part["ids"], np.cumsum(part["lengths"])[:-1])]


@pytest.mark.parametrize("name", [*ROWS, *WHOLE])
def test_every_format_of_a_recipe_holds_the_documents_of_its_labels(run: Path, name: str) -> None:
    found = members(run / "build" / name)
    assert {split: ok for split, (ok, _) in found.items()} == dict.fromkeys(("train", "valid", "test"), True)
    assert all("by the run's labels" in detail for _, detail in found.values())
    labels = labels_of(run)
    if name in WHOLE:  # recounted: text by text, with the library of the tokenizer
        library = tokenizers.Tokenizer.from_file(str(run / "tokenizer/tokenizer.json"))
        texts = {split: Counter() for split in found}  # type: Counter[str]
        for split in found:
            for ids in stored(run / "build" / name, split):
                texts[split][library.decode(ids[:-1])] += 1
        assert {split: sum(own.values()) for split, own in texts.items()} == Counter(labels.values())
        assert not set(texts["train"]) & (set(texts["valid"]) | set(texts["test"]))


def test_a_document_of_another_split_is_found_and_named_in_every_format(run: Path, tmp_path: Path) -> None:
    """The labels of the copy say otherwise than its builds."""
    copy = shutil.copytree(run, tmp_path / "copy")
    path = next(iter(sorted((copy / "split").glob("labels-*.parquet"))))
    table = pq.read_table(path)
    numbers = table["split"].to_pylist()
    row = numbers.index(0)
    numbers[row] = 2
    pq.write_table(pa.table([pa.array(numbers, pa.uint8())], schema=table.schema), path)
    documents = next(iter(sorted((copy / "ingest/problems").glob("documents-*"))))
    doc_id = pq.read_table(documents)["doc_id"][row].as_py()
    for name in (*ROWS, *WHOLE):
        ok, detail = members(copy / "build" / name)["train"]
        assert not ok, name
        assert f"1 belong into another split by the run's labels ({doc_id} of problems: test)" in detail
    ok, detail = members(copy / "build/megatron")["test"]
    assert not ok
    assert "belong here by the run's labels" in detail


def test_tokens_that_are_not_those_of_the_text_are_found(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    path = copy / "build/megatron/valid/tokens.bin"
    ids = np.fromfile(path, "<i4")
    ids[:2] = ids[1::-1]
    ids.tofile(path)
    found = members(copy / "build/megatron")
    assert not found["valid"][0]
    assert "1 have other tokens than their texts" in found["valid"][1]
    assert found["train"][0]


def expected(sample: Path, split: str) -> list[list[int]]:
    spm = sentencepiece.SentencePieceProcessor(model_file=str(sample.parent.parent / "spm.model"))
    lines = [json.loads(line) for line in sample.read_text().splitlines()]
    return [[*spm.encode(line["text"]), spm.eos_id()] for line in lines if line["split"] == split]


def made_by(sample: Path, out: Path, *words: str | Path) -> Path:
    model = sample.parent.parent / "spm.model"
    where = ["--out", out, "--tokenizer", model]
    done = tokmill(*words, *where)
    assert done.returncode == 0, done.stderr + done.stdout
    return out


@pytest.mark.parametrize("form", ["memmap", "npy", "parquet", "megatron", "token_cache"])
def test_a_build_of_a_sample_keeps_its_splits(sample: Path, tmp_path: Path, form: str) -> None:
    """Rows of `build` are a stream, so what they hold is the beginning of it."""
    out = made_by(sample, tmp_path / "out", "build", form, "--manifest", sample, "--length", "32")
    for split in SPLITS:
        found, wanted = stored(out, split), expected(sample, split)
        if form in ROWS:
            stream = [id for ids in wanted for id in ids]
            assert [id for row in found for id in row] == stream[: len(found) * 32]
            assert len(stream) - len(found) * 32 < 32
        else:
            assert found == wanted
    told = members(out, manifest=sample)
    assert all(
        ok and "by manifest.jsonl" in detail and "encoded again" in detail for ok, detail in told.values()
    ), told


def test_pack_and_shard_keep_what_a_sample_holds_out_out_of_their_training_data(
    sample: Path, tmp_path: Path
) -> None:
    packed = made_by(
        sample, tmp_path / "packed", "pack", "--manifest", sample, "--length", "64", "--layout", "pad"
    )
    sharded = made_by(sample, tmp_path / "sharded", "shard", sample, "--length", "32") / "sample"
    for out in (packed, sharded):
        told = members(out, manifest=sample)
        assert set(told) == set(SPLITS)
        assert all(ok and "each" in detail for ok, detail in told.values()), told
    for split in SPLITS:
        wanted = expected(sample, split)
        for row, ids in zip(stored(packed, split), wanted, strict=True):
            cut = ids[:63]  # and its EOS, which is the padding too
            assert row == cut + [ids[-1]] * (64 - len(cut))
        stream = [id for ids in wanted for id in ids]
        flat = [id for row in stored(sharded, split) for id in row]
        assert flat == stream[: len(flat)]


def test_a_cache_whose_splits_changed_places_is_found(sample: Path, tmp_path: Path) -> None:
    cache = made_by(sample, tmp_path / "cache", "encode", sample)
    assert all(ok for ok, _ in members(cache, manifest=sample).values())
    path = cache / "ENCODE.meta.json"
    meta = json.loads(path.read_text())
    meta["splits"] = [
        {"name": "train", "first": 0, "examples": 60},
        {"name": "test", "first": 60, "examples": 10},
        {"name": "valid", "first": 70, "examples": 20},
    ]
    path.write_text(json.dumps(meta))
    told = members(cache, manifest=sample)
    assert told["train"][0]
    assert not told["test"][0]
    assert "10 belong into another split by manifest.jsonl" in told["test"][1]
    assert "10 belong into another split" in told["valid"][1]


def test_a_cache_of_the_old_form_is_refused_and_can_be_made_anew(sample: Path, tmp_path: Path) -> None:
    cache = made_by(sample, tmp_path / "cache", "encode", sample)
    path = cache / "ENCODE.meta.json"
    meta = json.loads(path.read_text())
    meta["splits"] = {"test": 10, "train": 60, "valid": 20}
    path.write_text(json.dumps(meta))
    shown = tokmill("check", cache)
    assert shown.returncode == 1
    assert "recorded how large each split is and not where it begins" in " ".join(
        (shown.stdout + shown.stderr).split()
    )
    with pytest.raises(InputError, match="make it anew: `tokmill encode"):
        open_dataset(cache, "valid")
    model = sample.parent.parent / "spm.model"
    again = tokmill("encode", sample, "--tokenizer", model, "--out", cache)
    assert "--replace" in again.stderr
    done = tokmill("encode", sample, "--tokenizer", model, "--out", cache, "--replace")
    assert done.returncode == 0, done.stderr
    assert [e["ids"].tolist() for e in open_dataset(cache, "valid")] == expected(sample, "valid")


def test_what_is_needed_and_not_beside_the_build_is_named(sample: Path, run: Path, tmp_path: Path) -> None:
    cache = made_by(sample, tmp_path / "far/away/cache", "encode", sample)
    ok, detail = members(cache)["train"]
    assert ok
    assert detail.startswith("not compared: manifest.jsonl (sha256 ")
    assert detail.endswith("is not beside the build; --manifest says where it is")
    other = tmp_path / "manifest.jsonl"
    other.write_text(sample.read_text() + "\n")
    ok, detail = members(cache, manifest=other)["train"]
    assert not ok
    assert "is not the manifest.jsonl that the build was made from" in detail
    beside = shutil.copytree(sample.parent, tmp_path / "far/away/mini")
    ok, detail = members(cache)["train"]
    assert (ok, detail) == (
        True,
        "60 documents, each train by manifest.jsonl; tokens of 60 encoded again, equal",
    )
    assert beside.is_dir()
    shutil.rmtree(cache / "tokenizer")
    ok, detail = members(cache)["train"]
    assert ok
    assert "tokens are not compared: the tokenizer of this build is not beside it" in detail
    assert "encoded again" in members(cache, tokenizer=sample.parent.parent / "spm.model")["train"][1]
    alone = shutil.copytree(run / "build/megatron", tmp_path / "alone")
    assert "neither the run that made it nor a listing is beside it" in members(alone)["train"][1]


def test_a_cache_that_is_not_divided_is_training_data(sample: Path, tmp_path: Path) -> None:
    texts = sample.parent.parent / "texts.jsonl"
    (tmp_path / "mixture.yaml").write_text(f"datasets:\n- {{name: texts, files: {texts}}}\n")
    cache = made_by(sample, tmp_path / "cache", "encode", tmp_path / "mixture.yaml")
    ((ok, detail),) = members(cache).values()
    assert (ok, detail) == (
        True,
        "90 documents, each train by mixture.yaml; tokens of 90 encoded again, equal",
    )
    with pytest.raises(InputError, match="is itself a split"):
        open_dataset(cache, "valid")


def test_of_a_large_build_a_sample_is_looked_at_and_the_line_says_so(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_LABELLED", 40)
    monkeypatch.setattr(membership, "_ENCODED", 5)
    for name in ("memmap", "megatron"):
        ok, detail = members(run / "build" / name)["train"]
        found = re.fullmatch(
            r"a sample of (\d+) documents, each train by the run's labels; tokens of 5 of \1 encoded again, "
            r"equal",
            detail,
        )
        assert ok
        assert found, detail
        assert 10 <= int(found[1]) <= 40
    ok, detail = members(run / "build/megatron")["test"]
    assert ok
    assert not detail.startswith("a sample")


@pytest.mark.parametrize("form", ["megatron", "token_cache"])
def test_a_budget_leaves_documents_out_and_those_that_stay_are_in_their_split(
    sample: Path, tmp_path: Path, form: str
) -> None:
    """Of a corpus: what the budget did not take is not missed, what is there is where its id puts it."""
    rows = [
        {"id": f"d{n}", "text": json.loads(line)["text"]}
        for n, line in enumerate(sample.read_text().splitlines())
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = tokmill(
        "materialize", "files", tmp_path / "texts.jsonl", "--name", "t", "--out", tmp_path / "root"
    )
    assert made.returncode == 0, made.stderr
    (listing,) = (tmp_path / "root/manifests").glob("*.json")
    tokenizer = ["--tokenizer", sample.parent.parent / "spm.model", "--out", tmp_path / "out"]
    budget = ["--tokens", "1k", "--valid-fraction", "0.2"]
    built = tokmill("build", form, "--manifest", listing, *tokenizer, *budget)
    assert built.returncode == 0, built.stderr
    found = members(tmp_path / "out", manifest=listing)
    assert {ok for ok, _ in found.values()} == {True}, found
    assert set(found) == {"train", "valid"}


@pytest.mark.parametrize("tokens", [0, "10kk", -5])
def test_a_budget_that_is_no_amount_is_told(sample: Path, tmp_path: Path, tokens: int | str) -> None:
    with pytest.raises(InputError, match="should be an amount") as error:
        mill.build(
            "memmap",
            manifest=sample,
            out=tmp_path / "out",
            tokens=tokens,
            tokenizer=sample.parent.parent / "spm.model",
        )
    assert error.value.where == "tokens"


@pytest.mark.parametrize("without", [0, 40])
def test_a_sample_of_which_some_records_have_no_split_is_refused(
    sample: Path, tmp_path: Path, without: int
) -> None:
    records = [json.loads(line) for line in sample.read_text().splitlines()]
    del records[without]["split"]
    path = tmp_path / "manifest.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    model = sample.parent.parent / "spm.model"
    with pytest.raises(InputError, match=f"line {without + 1 if without else 2} is otherwise"):
        mill.build("memmap", manifest=path, out=tmp_path / "out", tokenizer=model)


@pytest.mark.parametrize(("broken", "at"), [("5", 0), ("null", 3), ('["split"]', 41), ('{"split": ', 41)])
def test_a_line_of_a_sample_that_is_no_record_is_told_with_its_number(
    sample: Path, tmp_path: Path, broken: str, at: int
) -> None:
    lines = sample.read_text().splitlines()
    lines.insert(at, broken)
    lines.insert(0, "")
    path = tmp_path / "manifest.jsonl"
    path.write_text("\n".join(lines) + "\n")
    model = sample.parent.parent / "spm.model"
    with pytest.raises(InputError, match=f"line {at + 2} is no JSON object") as error:
        mill.build("memmap", manifest=path, out=tmp_path / "out", tokenizer=model)
    assert error.value.where == str(path)


@pytest.mark.parametrize("description", ["5", '{"sha256": '])
def test_a_sample_whose_description_is_damaged_is_refused(
    sample: Path, tmp_path: Path, description: str
) -> None:
    path = Path(shutil.copy(sample, tmp_path / "manifest.jsonl"))
    (tmp_path / "MANIFEST.meta.json").write_text(description)
    model = sample.parent.parent / "spm.model"
    with pytest.raises(InputChanged, match="is not the sample that "):
        mill.build("memmap", manifest=path, out=tmp_path / "out", tokenizer=model)
