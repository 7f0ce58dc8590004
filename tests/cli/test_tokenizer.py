"""`tokmill tokenizer`: trained from a mixture file, checked, measured, compared."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mill import tokmill, write_problems
from tokmill.cli import main


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Two files of a few hundred documents each, with weights."""
    directory = tmp_path_factory.mktemp("mixture")
    write_problems(directory / "problems.jsonl", 300)
    lines = [
        json.dumps({"text": f"Le moulin {n} tourne.\nIl moud {n * n} grains, déjà.\n", "language": "fr"})
        for n in range(300)
    ]
    (directory / "moulin.jsonl").write_text("\n".join(lines) + "\n")
    datasets = [
        {
            "name": "problems",
            "files": "problems.jsonl",
            "weight": 0.5,
            "template": "Problem: {question}\n\nSolution: {answer}",
        },
        {"name": "moulin", "files": "moulin.jsonl", "weight": 0.5, "samples": 200},
    ]
    path = directory / "mixture.yaml"
    path.write_text(json.dumps({"seed": 3, "datasets": datasets}))
    return path


def tokenizer(*arguments: str | Path) -> Result:
    """In this process: what a command does, without the seconds that a process takes to start."""
    result = CliRunner().invoke(main, ["tokenizer", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def train_arguments(mixture: Path, out: Path) -> list[str | Path]:
    return ["train", "--manifest", mixture, "--out", out, "--sample-megabytes", "1", "--workers", "1"]


def train(mixture: Path, out: Path, *options: str | Path) -> Result:
    return tokenizer(*train_arguments(mixture, out), *options)


@pytest.mark.parametrize(
    ("model", "name", "eos"),
    [
        ("unigram", "spm_420_unigram.model", "</s>"),
        ("bpe", "spm_420_bpe.model", "</s>"),
        ("byte_bpe", "tokenizer.json", "<|endoftext|>"),
    ],
)
def test_a_model_and_its_log_are_published_and_nothing_else_is_left(tmp_path, mixture, model, name, eos):
    log_file = tmp_path / "logs" / "train.json"
    options = ("--vocab-size", "420", "--model", model, "--stats", log_file)
    done = train(mixture, tmp_path / "tok", *options, "--json")
    assert done.exit_code == 0, done.stderr
    assert [path.name for path in (tmp_path / "tok").iterdir()] == [name]
    log = json.loads(log_file.read_text())
    assert log["model"] == name
    assert log["sha256"] == hashlib.sha256((tmp_path / "tok" / name).read_bytes()).hexdigest()
    assert (log["vocab_size"], log["byte_fallback"], log["normalization"]) == (420, True, "identity")
    assert log["character_coverage"] == (1.0 if model == "byte_bpe" else 0.9995)
    assert log["eos"] == eos
    problems, moulin = log["datasets"]
    assert (moulin["name"], moulin["dataset"], moulin["samples"]) == ("moulin", "moulin.jsonl", 200)
    assert (problems["name"], problems["samples"]) == ("problems", 300)
    assert json.loads(done.stdout)["ok"]


def test_the_model_is_the_same_for_any_number_of_workers(tmp_path, mixture):
    done = train(mixture, tmp_path / "one", "--vocab-size", "420")
    assert done.exit_code == 0, done.stderr
    again = tokmill("tokenizer", *train_arguments(mixture, tmp_path / "two")[:-1], "2", "--vocab-size", "420")
    assert again.returncode == 0, again.stderr
    for name in ("spm_420_unigram.model", "tokenizer.log.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_failed_training_leaves_no_model_and_says_the_largest_vocabulary(tmp_path, mixture):
    done = train(mixture, tmp_path / "tok", "--vocab-size", "30000")
    assert done.exit_code == 1
    assert "vocab_size 30,000 is more than this text has pieces for: " in done.stderr
    assert [path.name for path in (tmp_path / "tok").iterdir()] == [".tokmill"]
    then = train(mixture, tmp_path / "tok", "--vocab-size", "30000", "--no-hard-vocab-limit")
    assert then.exit_code == 0, then.stderr
    assert "= ingest/problems" in then.stderr, "the work that was done is kept"
    (model,) = (tmp_path / "tok").glob("spm_*_unigram.model")
    assert sorted(path.name for path in (tmp_path / "tok").iterdir()) == [model.name, "tokenizer.log.json"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--model", "byte_bpe", "--user-symbol", "<x>"),
            "user_symbols: does not belong to the model byte_bpe",
        ),
        (("--min-frequency", "3"), "min_frequency: does not belong to the model unigram"),
        (("--normalization", "nfk"), '"nfk" is not a choice; did you mean `nfkc`?'),
        (("--character-coverage", "0.5"), "character_coverage: should be 0.98 to 1"),
        (("--eos", "<unk>", "--vocab-size", "400"), "SentencePiece keeps <unk> for itself"),
    ],
)
def test_options_that_cannot_be_are_an_error(tmp_path, mixture, options, message):
    done = train(mixture, tmp_path / "tok", *options)
    assert done.exit_code == 1
    assert message in done.stderr


@pytest.fixture(scope="module")
def models(tmp_path_factory, mixture):
    """A vocabulary that fits, and one that is too small."""
    directory = tmp_path_factory.mktemp("models")
    for size in ("420", "330"):
        done = train(mixture, directory, "--vocab-size", size, "--model", "bpe")
        assert done.exit_code == 0, done.stderr
    return directory / "spm_420_bpe.model", directory / "spm_330_bpe.model"


def test_check_says_what_a_file_is_and_refuses_another(models):
    good, _ = models
    digest = hashlib.sha256(good.read_bytes()).hexdigest()
    done = tokenizer("check", good, "--sha256", digest)
    assert done.exit_code == 0
    for part in ("sentencepiece, bpe", digest, "(as pinned)", "420", "byte fallback   yes", "<s> 1, </s> 2"):
        assert part in done.stdout
    wrong = tokenizer("check", good, "--sha256", "0" * 64, "--json")
    assert wrong.exit_code == 1
    assert json.loads(wrong.stdout)["error"]["kind"] == "TokenizerMismatch"
    report = json.loads(tokenizer("check", good, "--json").stdout)
    assert (report["vocab_size"], report["specials"]) == (420, {"<s>": 1, "</s>": 2})


def test_coverage_is_told_by_language(models, mixture):
    good, _ = models
    files = mixture.parent / "moulin.jsonl"
    done = tokenizer("coverage", good, files, "--by", "language")
    assert done.exit_code == 0, done.stderr
    header, french, total = done.stdout.splitlines()
    assert header.split() == ["documents", "tokens/word", "tokens/byte", "chars/token", "unknown", "returned"]
    assert french.split()[0] == "fr"
    assert total.split()[-2:] == ["0.000%", "100.00%"]
    report = json.loads(tokenizer("coverage", good, files, "--json").stdout)
    assert report["by_language"]["fr"] == report["total"]
    assert report["total"]["docs"] == 300


def test_guard_fails_for_the_worse_and_passes_for_the_same(models, mixture):
    good, poor = models
    files = mixture.parent / "moulin.jsonl"
    same = tokenizer("guard", good, good, files)
    assert same.exit_code == 0
    worse = tokenizer("guard", good, poor, files)
    assert worse.exit_code == 1
    assert "tokens_per_word" in worse.stdout
    assert "1 of 3 figures beyond the thresholds (tokens per word +0.05, shares -0.02)" in worse.stdout
    assert tokenizer("guard", poor, good, files).exit_code == 0, "fewer tokens are no fault"
    allowed = tokenizer("guard", good, poor, files, "--max-rise", "9", "--json")
    assert allowed.exit_code == 0
    assert json.loads(allowed.stdout)["ok"]
