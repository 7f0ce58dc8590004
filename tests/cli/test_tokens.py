"""encode, pack, shard and build: tokens without a recipe, as a user runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers

import tokmill as mill
from mill import small_corpus, tokmill, write_problems
from tokmill.artifacts.manifest import load_manifest
from tokmill.formats.index import read_row_index
from tokmill.formats.megatron import MegatronFile
from tokmill.loader import list_splits, open_dataset
from tokmill.tokenizers.load import load_tokenizer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets, a mixture of them, a trained tokenizer, and a container."""
    directory = tmp_path_factory.mktemp("corpus")
    for name, count, seed in (("a", 300, 1), ("b", 500, 2)):
        problems = write_problems(directory / f"{name}.raw.jsonl", count, seed)
        lines = [json.loads(line) for line in problems.read_text().splitlines()]
        texts = [f"Problem: {item['question']}\n\nSolution: {item['answer']}" for item in lines]
        rows = [{"id": f"{name}{number}", "text": text} for number, text in enumerate(texts)]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        problems.unlink()
    (directory / "mixture.yaml").write_text(
        "seed: 5\ndatasets:\n- {name: a, files: a.jsonl, weight: 0.75}\n- {name: b, files: b.jsonl, weight: "
        "0.25}\n"
    )
    made = tokmill(
        "tokenizer", "train", "--manifest", directory / "mixture.yaml", "--vocab-size", "400",
        "--model", "bpe", "--out", directory / "tok",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    done = tokmill(
        "materialize",
        "files",
        directory / "a.jsonl",
        directory / "b.jsonl",
        "--name",
        "problems",
        "--out",
        directory,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return directory


@pytest.fixture(scope="module")
def model(corpus: Path) -> Path:
    (path,) = (corpus / "tok").glob("*.model")
    return path


def run_json(*arguments: str | Path) -> dict[str, Any]:
    found = tokmill(*arguments, "--json")
    assert found.returncode == 0, found.stderr + found.stdout
    report: dict[str, Any] = json.loads(found.stdout)
    return report


def texts_of(corpus: Path, name: str) -> list[str]:
    return [json.loads(line)["text"] for line in (corpus / f"{name}.jsonl").read_text().splitlines()]


def test_shards_hold_each_dataset_by_itself_and_the_log_counts_what_was_written(
    corpus: Path, model: Path, tmp_path: Path
) -> None:
    arguments = ["shard", corpus / "mixture.yaml", "--tokenizer", model, "--length", "64"]
    options = ["--rows-per-shard", "100", "--out", tmp_path / "out", "--stats", tmp_path / "log.json"]
    run_json(*arguments, *options)
    log = json.loads((tmp_path / "log.json").read_text())
    assert log["manifest"].endswith("mixture.yaml")
    tokenizer = load_tokenizer(model)
    for stats, name in zip(log["stats"], "ab", strict=True):
        directory = tmp_path / "out" / name
        shards = [np.load(path) for path in sorted(directory.glob("shard_*.npy"))]
        rows = np.concatenate(shards)
        assert {shard.dtype for shard in shards} == {np.dtype("<i4")}
        assert (stats["name"], stats["dataset"], stats["subset"]) == (name, f"{name}.jsonl", None)
        assert (stats["sequences"], stats["tokens"], stats["shards"]) == (len(rows), rows.size, len(shards))
        texts = texts_of(corpus, name)
        assert stats["records"] == len(texts)
        assert stats["output_dir"] == str(directory)
        eos = tokenizer.token_id("</s>")
        stream = [id for text in texts for id in [*tokenizer.encode([text]).ids.tolist(), eos]]
        assert rows.reshape(-1).tolist() == stream[: rows.size]
        assert len(stream) - rows.size < 64
        assert mill.verify(directory).problems == []
    assert not (tmp_path / "out/.work").exists()
    fewer = ["--rows-per-shard", "100000", "--out", tmp_path / "out"]
    refused = tokmill(*arguments, *fewer)
    assert refused.returncode != 0
    assert "rows_per_shard` changed 100 → 100000" in " ".join(refused.stderr.split()), refused.stderr
    assert len(list((tmp_path / "out/a").glob("shard_*"))) > 1
    run_json(*arguments, *fewer, "--replace")
    assert [path.name for path in sorted((tmp_path / "out/a").glob("shard_*"))] == ["shard_00000.npy"]


def test_packed_rows_have_the_shares_of_the_mixture_and_their_number_is_exact(
    corpus: Path, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rows"
    run_json(
        "pack", "--manifest", corpus / "mixture.yaml", "--tokenizer", model, "--length", "128",
        "--blocks", "150", "--layout", "concat", "--out", out,
    )  # fmt: skip
    meta = json.loads((out / "meta.json").read_text())
    rows = np.fromfile(out / "input_ids.mmap", "<i4").reshape(-1, 128)
    assert (len(rows), meta["n_seqs"]) == (150, 150)
    tokens = {"a": 0, "b": 0}
    for row in read_row_index(out / "index.jsonl.zst"):
        for span in row.docs:
            tokens[span.source] += span.end - span.start
    assert abs(tokens["a"] / (150 * 128) - 0.75) < 0.01
    assert load_tokenizer(out / meta["tokenizer_path"]).sha256 == meta["tokenizer_sha256"]
    assert open_dataset(out, verify="hashes")[7]["ids"].tolist() == rows[7].tolist()
    assert mill.verify(out).problems == []
    # documents that are in no row are counted by nobody
    indexed = {
        (doc.source, doc.doc_id) for row in read_row_index(out / "index.jsonl.zst") for doc in row.docs
    }
    assert meta["counts"]["documents"] == len(indexed) < 800
    found = {one.check: one for one in mill.check(out, steps=0).findings}
    assert (found["sizes"].ok, found["sizes"].detail) == (True, "150 examples, 150 in the manifest")
    shown = run_json("peek", out, "--row", "3")
    assert shown["pieces"][0]["text"]


@pytest.mark.parametrize("form", ["memmap", "npy", "parquet", "megatron", "token_cache"])
def test_a_build_is_shown_as_text_with_the_tokenizer_that_lies_in_it(
    corpus: Path, model: Path, tmp_path: Path, form: str
) -> None:
    run_json(
        "build", form, "--manifest", corpus / "mixture.yaml", "--tokenizer", model, "--length", "64",
        "--valid-fraction", "0.2", "--out", tmp_path / "out",
    )  # fmt: skip
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    texts = {f"{name}{number}": text for name in "ab" for number, text in enumerate(texts_of(corpus, name))}
    for split in ("train", "valid"):
        for piece in run_json("peek", moved, "--split", split)["pieces"]:
            told = " ".join(piece["text"].removesuffix("</s>").split())
            assert told in " ".join(texts[piece["doc_id"]].split())
            assert len(told) > 5
        assert run_json("peek", moved / split)["pieces"]


def test_tokens_of_a_corpus_are_counted_with_a_tokenizer_and_with_its_directory_alike(
    corpus: Path, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "hub").mkdir()
    shutil.copy(model, tmp_path / "hub" / "tokenizer.model")
    files = ["materialize", "files", corpus / "a.jsonl", "--name", "a", "--out", tmp_path]
    first, second = (run_json(*files, "--tokenizer", path) for path in (model, tmp_path / "hub"))
    assert first == second
    listed = json.loads(Path(first["manifest"]).read_text())
    encoder = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokens = sum(len(encoder.encode(text)) for text in texts_of(corpus, "a"))
    assert listed["invariants"]["tokens"] == tokens


def test_a_cache_is_shown_as_text_split_by_split(corpus: Path, model: Path, tmp_path: Path) -> None:
    sample = mill.materialize_sample(
        corpus / "a.jsonl", out=tmp_path / "mini", k=30, seed=1, splits={"train": 20, "valid": 6, "test": 4}
    ).path
    cache = mill.encode(sample, tokenizer=model, out=tmp_path / "cache", workers=1).directory
    lines = [json.loads(line) for line in sample.read_text().splitlines()]
    for split in ("train", "valid", "test"):
        wanted = [line for line in lines if line["split"] == split]
        for row in (0, -1):
            (piece,) = run_json("peek", cache, "--split", split, "--row", str(row))["pieces"]
            assert piece["doc_id"] == wanted[row]["uid"]
            assert piece["text"].split()[:5] == wanted[row]["text"].split()[:5]


def test_a_vocabulary_that_does_not_fit_two_bytes_is_refused_before_anything_is_read(
    corpus: Path, tmp_path: Path
) -> None:
    """Of a pinned file when the run is planned; of one that is trained, before its first token."""
    large = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{n}": n for n in range(70_000)}, unk_token="w0")
    )
    large.add_special_tokens(["<eos>"])
    large.save(str(tmp_path / "large.json"))
    refused = tokmill(
        "build", "megatron", "--manifest", corpus / "mixture.yaml", "--tokenizer", tmp_path / "large.json",
        "--dtype", "uint16", "--out", tmp_path / "out",
    )  # fmt: skip
    assert refused.returncode != 0
    assert "vocab 70,001 does not fit uint16" in refused.stderr
    assert "--dtype int32" in refused.stderr
    assert not (tmp_path / "out/.work/ingest").exists()
    builds = [{"name": "rows", "format": "memmap", "dtype": "uint16"}]
    pinned = {"path": str(tmp_path / "large.json"), "eos": "<eos>"}
    recipe = small_corpus(tmp_path / "pinned", builds=builds, tokenizer=pinned)
    for words in (["plan", recipe], ["run", recipe]):
        told = tokmill(*words)
        assert told.returncode != 0
        assert "build rows: vocab 70,001 does not fit uint16" in told.stderr
    assert not (recipe.parent / "out/small/ingest").exists()
    trained = {
        "train": {"model": "byte_bpe", "vocab_size": 300},
        "padded_vocab_size": 70_000,
        "eos": "<|endoftext|>",
    }
    recipe = small_corpus(tmp_path / "trained", builds=builds, tokenizer=trained)
    told = tokmill("run", recipe)
    assert told.returncode != 0
    assert "build rows: vocab 70,000 does not fit uint16" in told.stderr
    assert not list((recipe.parent / "out/small/tokens").rglob("*.bin"))


def test_layouts_are_compared_before_one_is_chosen(corpus: Path, model: Path, tmp_path: Path) -> None:
    found = run_json("layouts", corpus / "mixture.yaml", "--tokenizer", model, "--length", "128")
    assert found == run_json(
        "pack", "--manifest", corpus / "mixture.yaml", "--tokenizer", model, "--length", "128",
        "--out", tmp_path / "rows", "--compare",
    )  # fmt: skip
    by_name = {cost["layout"]: cost for cost in found["layouts"]}
    assert list(by_name) == ["concat", "document", "best_fit", "pad", "indexed"]
    assert by_name["best_fit"]["padding_share"] > by_name["concat"]["padding_share"] == 0
    assert by_name["pad"]["cross_document"] == by_name["indexed"]["padding"] == 0
    assert not (tmp_path / "rows").exists()


def test_megatron_files_meet_a_budget_and_their_manifest_says_all_they_were_made_from(
    corpus: Path, model: Path, tmp_path: Path
) -> None:
    (manifest,) = (corpus / "manifests").glob("*.json")
    out = tmp_path / "mega"
    run_json(
        "build", "megatron", "--manifest", manifest, "--tokenizer", model, "--tokens", "20k",
        "--valid-fraction", "0.1", "--out", out,
    )  # fmt: skip
    made = load_manifest(out)
    train, valid = (MegatronFile(out / split / "tokens") for split in ("train", "valid"))
    assert 17_900 < len(train.ids) <= 18_000
    assert 1_800 < len(valid.ids) <= 2_000
    facts = made.facts
    assert facts["budget"]["target"] == {"tokens": 20_000}
    assert facts["budget"]["splits"]["train"]["tokens"] == len(train.ids)
    assert facts["tokenizer_sha256"] == load_tokenizer(model).sha256
    assert facts["input_manifest"]["name"] == manifest.name
    assert facts["split"]["method"] == "hash"
    assert {"git_sha", "packages"} <= made.environment.keys()
    assert facts["skipped"]["mixture"]["dropped"]["over_budget"] > 0
    eos = facts["tokenizer"]["eos_id"]
    assert all(train.sequence(number)[-1] == eos for number in range(len(train)))
    assert mill.verify(out).problems == []
    moved = shutil.copytree(out, tmp_path / "elsewhere")
    assert mill.verify(moved).digest == mill.verify(out).digest


def test_documents_are_built_as_they_are_where_no_rows_are_asked_for(
    corpus: Path, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "documents"
    mixture = corpus / "mixture.yaml"
    asked = ["build", "arrow", "--manifest", mixture, "--tokenizer", model, "--out", out, "--flat"]
    run_json(*asked, "--layout", "indexed", "--tokens", "5k")
    assert mill.verify(out).problems == []
    rows = open_dataset(out)
    eos = load_manifest(out).facts["tokenizer"]["eos_id"]
    ids = [rows[row]["ids"].tolist() for row in range(len(rows))]
    assert len({len(own) for own in ids}) > 1
    assert all(own.index(eos) == len(own) - 1 for own in ids)


def test_texts_are_encoded_in_the_form_that_is_asked_for_and_uids_of_another_are_told(
    model: Path, tmp_path: Path
) -> None:
    texts = [f"\ufb01ne problem {n}" if n % 2 else f"plain problem {n}" for n in range(8)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "in.jsonl").write_text(lines)
    splits = {"train": 8}
    sample = mill.materialize_sample(
        tmp_path / "in.jsonl", out=tmp_path / "mini", k=8, seed=1, splits=splits
    ).path
    (tmp_path / "ours.yaml").write_text("datasets: [{name: s, files: in.jsonl}]")
    cached = ["encode", sample, "--tokenizer", model, "--out"]
    said = "its uids are made of NFKC text, and 4 texts of it are not NFKC: encoded as they are"
    assert said in tokmill(*cached, tmp_path / "as-is").stderr
    assert "NFKC" not in tokmill(*cached, tmp_path / "nfkc", "--unicode", "NFKC").stderr
    mixture = ["--manifest", tmp_path / "ours.yaml", "--tokenizer", model]
    options = ["--unicode", "NFKC", "--layout", "indexed", "--flat", "--out", tmp_path / "built"]
    run_json("build", "arrow", *mixture, *options)
    found = tokmill("shard", tmp_path / "ours.yaml", "--tokenizer", model, "--length", "8",
                    "--unicode", "NFKC", "--out", tmp_path / "shards")  # fmt: skip
    assert found.returncode == 0, found.stderr
    spm = sentencepiece.SentencePieceProcessor(model_file=str(model))
    wanted = sorted(spm.encode(text.replace("\ufb01", "fi")) for text in texts)
    for place in ("nfkc", "built"):
        rows = open_dataset(tmp_path / place)
        assert sorted(rows[row]["ids"].tolist()[:-1] for row in range(len(rows))) == wanted, place
    ids = np.concatenate([np.load(path).ravel() for path in sorted((tmp_path / "shards/s").glob("*.npy"))])
    assert "\ufb01" not in spm.decode(ids.tolist())


def test_a_sample_is_encoded_split_by_split_and_never_drawn_again(
    corpus: Path, model: Path, tmp_path: Path
) -> None:
    sample = mill.materialize_sample(
        corpus / "a.jsonl",
        out=tmp_path / "mini",
        k=120,
        seed=42,
        splits={"train": 96, "valid": 12, "test": 12},
    ).path
    before = sample.read_bytes()
    cache = mill.encode(sample, tokenizer=model, out=tmp_path / "cache", workers=1).directory
    examples = [json.loads(line) for line in before.decode().splitlines()]
    meta = json.loads((cache / "ENCODE.meta.json").read_text())
    assert (meta["examples"], meta["byte_fallback"]) == (120, True)
    # by another library, and by what the sample says of each text:
    # not by the order in which anything is listed
    spm = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for split, size in (("train", 96), ("valid", 12), ("test", 12)):
        wanted = [[*spm.encode(e["text"]), meta["eos_id"]] for e in examples if e["split"] == split]
        assert len(wanted) == size
        assert [e["ids"].tolist() for e in open_dataset(cache, split)] == wanted, split
    everything = [tuple(e["ids"]) for split in list_splits(cache) for e in open_dataset(cache, split)]
    assert len(everything) == len(set(everything)) == 120
    ranges = {one["name"]: (one["first"], one["examples"]) for one in meta["splits"]}
    assert ranges == {"train": (0, 96), "valid": (96, 12), "test": (108, 12)}
    assert sample.read_bytes() == before
    sample.write_bytes(before + b"\n")
    refused = tokmill("encode", sample, "--tokenizer", model, "--out", tmp_path / "other")
    assert refused.returncode != 0
    assert "is not the sample that MANIFEST.meta.json describes" in refused.stderr


def test_a_cache_of_another_tokenizer_is_refused(corpus: Path, model: Path, tmp_path: Path) -> None:
    found = run_json("encode", corpus / "mixture.yaml", "--tokenizer", model, "--out", tmp_path / "cache")
    assert found["examples"] == 800
    from tokmill.errors import TokenizerMismatch

    with pytest.raises(TokenizerMismatch, match="not with 0000"):
        open_dataset(tmp_path / "cache", tokenizer_sha256="0" * 64)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["build", "megatron", "--tokens", "9M"], "the mixture reaches"),
        (["build", "megatron", "--eos", "<none>"], "no token '<none>' in the vocabulary"),
        (["build", "megatron", "--tokens", "lots"], "should be an amount"),
        (["build", "memmap", "--length", "1"], "1 is not in the range"),
        (["build", "megatron", "--tokenizer-sha256", "0" * 64], "sha256"),
    ],
)
def test_what_cannot_be_built_is_told_and_leaves_no_build(
    corpus: Path, model: Path, tmp_path: Path, arguments: list[str], told: str
) -> None:
    out = tmp_path / "out"
    found = tokmill(*arguments, "--manifest", corpus / "mixture.yaml", "--tokenizer", model, "--out", out)
    assert found.returncode != 0
    assert told in found.stderr.replace("\n", " ")
    assert not (out / "manifest.json").exists()
    assert not list(out.glob("train/*"))
