"""A sample of pairs from its manifest to batches:
words for splits, Unicode forms, and one id that ties them together."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
import sentencepiece

import tokmill as mill
from mill import small_corpus, tokmill, write_problems
from tokmill.loader import list_splits, open_dataset
from written import load_manifest

# compatibility forms that NFKC takes apart, and NFC leaves
ODD = ["ﬁne", "Ｗｉｄｅ", "x²", "①", "Ⅳ", "cafe\u0301"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That has no normalization of its own: what it is given is what it encodes."""
    directory = tmp_path_factory.mktemp("model")
    lines = write_problems(directory / "raw.jsonl", 60).read_text().splitlines()
    texts = [json.loads(line)["question"] for line in lines]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*texts, *ODD, "fine wide x2 1 IV caf\u00e9"]),
        model_prefix=str(directory / "spm"),
        vocab_size=400,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    return directory / "spm.model"


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """Pairs whose second split is called `val`, drawn once."""
    lines = write_problems(tmp_path / "raw.jsonl", 40, seed=3).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    table = [
        {"source": f"{ODD[number % len(ODD)]} {row['question']}", "target": row["answer"]}
        for number, row in enumerate(rows)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table))
    parallel = {"source_key": "source", "target_key": "target", "max_chars": 5000}
    splits = {"train": 20, "val": 8, "test": 4}
    return mill.materialize_sample(
        path, out=tmp_path / "mini", k=32, seed=9, splits=splits, parallel=parallel
    ).path


def expected(sample: Path, model: Path, label: str, form: str | None = None) -> list[list[int]]:
    spm = sentencepiece.SentencePieceProcessor(model_file=str(model))
    found = []
    for line in map(json.loads, sample.read_text().splitlines()):
        if line["split"] == label:
            text = f"{line['src_text']}\n{line['tgt_text']}"
            found.append([*spm.encode(unicodedata.normalize(form, text) if form else text), spm.eos_id()])
    return found


@pytest.mark.parametrize("word", ["val", "valid", "validation", "dev"])
def test_val_is_valid_in_manifests_caches_builds_and_commands(
    sample: Path, model: Path, tmp_path: Path, word: str
) -> None:
    assert {json.loads(line)["split"] for line in sample.read_text().splitlines()} == {"train", "val", "test"}
    cache = mill.encode(sample, tokenizer=model, out=tmp_path / "cache", workers=1).directory
    assert list_splits(cache) == ["train", "valid", "test"]
    assert [e["ids"].tolist() for e in open_dataset(cache, word)] == expected(sample, model, "val")
    build = [
        "build",
        "megatron",
        "--manifest",
        sample,
        "--tokenizer",
        model,
        "--out",
        tmp_path / "mega",
    ]
    assert tokmill(*build).returncode == 0
    assert [e["ids"].tolist() for e in open_dataset(tmp_path / "mega", word)] == expected(
        sample, model, "val"
    )
    assert mill.check(cache, steps=0).ok
    assert all(one.ok for one in mill.check(tmp_path / "mega", steps=0).findings)
    shown = tokmill("peek", cache, "--split", word, "--json")
    assert json.loads(shown.stdout)["rows"] == 8


def test_a_fraction_beside_the_splits_of_a_sample_is_refused(
    sample: Path, model: Path, tmp_path: Path
) -> None:
    build = [
        "build",
        "memmap",
        "--manifest",
        sample,
        "--tokenizer",
        model,
        "--out",
        tmp_path / "out",
    ]
    refused = tokmill(*build, "--valid-fraction", "0.1")
    assert refused.returncode != 0
    assert "the sample says of every text which split it is in" in refused.stderr


def test_a_recipe_reads_the_words_that_records_use(tmp_path: Path) -> None:
    words = ["train", "train", "validation", "val", "dev", "valid", "test"]
    rows = [
        {"id": f"d{n}", "text": f"Document number {n} of many.", "split": words[n % 7]} for n in range(70)
    ]
    (tmp_path / "r").mkdir()
    (tmp_path / "r/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"name": "rows", "files": "rows.jsonl", "fields": {"id": "id", "meta": ["split"]}}
    recipe = small_corpus(
        tmp_path / "r",
        sources=[source],
        split={"method": "field", "field": "split"},
        builds=[{"name": "mega", "format": "megatron"}],
    )
    run = mill.run(recipe, workers=1).out
    sizes = {split: len(open_dataset(run / "build/mega", split)) for split in ("train", "dev", "test")}
    assert sizes == {"train": 20, "dev": 40, "test": 10}
    shown = tokmill("trace", run / "build/mega", "--split", "val", "--row", "0", "--column", "0", "--json")
    assert shown.returncode == 0, shown.stderr
    assert all(one.ok for one in mill.check(run / "build/mega", steps=0).findings)
    counted = small_corpus(
        tmp_path / "c",
        split={"method": "counts", "counts": {"val": 12}},
        builds=[{"name": "mega", "format": "megatron"}],
    )
    assert len(open_dataset(mill.run(counted, workers=1).out / "build/mega", "valid")) == 12
    both = small_corpus(tmp_path / "b", split={"method": "counts", "counts": {"val": 12, "valid": 3}})
    assert "val" in tokmill("recipe", "check", both).stderr


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_texts_are_brought_into_a_unicode_form_before_they_are_encoded(
    sample: Path, model: Path, tmp_path: Path, form: str
) -> None:
    done = tokmill("encode", sample, "--tokenizer", model, "--out", tmp_path / "cache", "--unicode", form)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "cache/ENCODE.meta.json").read_text())["normalization"]["unicode"] == form
    found = [e["ids"].tolist() for e in open_dataset(tmp_path / "cache", "train")]
    assert found == expected(sample, model, "train", form)
    assert found != expected(sample, model, "train")
    told = [one for one in mill.check(tmp_path / "cache", steps=0).findings if one.check == "members"]
    assert all(one.ok and "encoded again, equal" in one.detail for one in told)


def test_one_experiment_id_goes_through_sample_cache_and_build(
    sample: Path, model: Path, tmp_path: Path
) -> None:
    cache = mill.encode(sample, tokenizer=model, out=tmp_path / "cache", workers=1).directory
    build = [
        "build",
        "memmap",
        "--manifest",
        sample,
        "--tokenizer",
        model,
        "--out",
        tmp_path / "rows",
    ]
    assert tokmill(*build, "--length", "32").returncode == 0
    shard = ["shard", sample, "--tokenizer", model, "--out", tmp_path / "shards", "--length", "32"]
    assert tokmill(*shard).returncode == 0
    own = json.loads(sample.with_name("MANIFEST.meta.json").read_text())["experiment_id"]
    assert len(own) == 16
    told = [
        json.loads((cache / "ENCODE.meta.json").read_text())["input_manifest"],
        load_manifest(tmp_path / "rows").facts["input_manifest"],
        load_manifest(tmp_path / "shards/sample").facts["input_manifest"],
    ]
    assert [one["experiment_id"] for one in told] == [own] * 3
    again = mill.materialize_sample(
        tmp_path / "pairs.jsonl", out=tmp_path / "again", k=32, seed=10,
        splits={"train": 20, "val": 8, "test": 4}, parallel={"source_key": "source", "target_key": "target",
            "max_chars": 5000},
    )  # fmt: skip
    assert again.meta["experiment_id"] != own
