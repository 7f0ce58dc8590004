"""A directory as the hub has it: the tokenizer in it, and what it says of documents' ends."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tokmill
from tokmill.cli import main
from tokmill.errors import CorruptFile, EosMissing, InputError, RecipeError, TokenizerError
from written import MegatronFile, load_manifest

NUMBERS = itertools.count()


@pytest.fixture
def directory(tmp_path, tiny_files) -> Path:
    """tokenizer.json with <|endoftext|> and <|pad|>, and nothing else."""
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/tokenizer.json").write_bytes((tiny_files / "tokenizer.json").read_bytes())
    return tmp_path / "tok"


def write(directory: Path, name: str, **content: Any) -> None:
    (directory / name).write_text(json.dumps(content))


def run(place: Path, path: str, **tokenizer: Any) -> Path:
    """A recipe beside the directory."""
    recipe = {
        "name": "r",
        "sources": [{"name": "s", "data": [{"text": "the cat"}]}],
        "split": {"valid_fraction": 0},
        "tokenizer": {"path": str(place / path) + "/" * path.endswith("/"), **tokenizer},
        "builds": [{"name": "mega", "format": "megatron"}],
    }
    return Path(tokmill.run(recipe, place / f"out{next(NUMBERS)}", workers=1).out)


def last(out: Path) -> int:
    return int(MegatronFile(out / "build/mega/train/tokens").sequence(0)[-1])


@pytest.mark.parametrize(
    ("name", "content", "end"),
    [
        ("tokenizer_config.json", {"eos_token": "<|endoftext|>"}, 0),
        ("tokenizer_config.json", {"eos_token": {"content": "<|pad|>", "lstrip": False}}, 1),
        ("special_tokens_map.json", {"eos_token": {"content": "<|pad|>"}}, 1),
        ("generation_config.json", {"eos_token_id": 1}, 1),
        ("generation_config.json", {"eos_token_id": [1, 0]}, 1),
    ],
)
def test_documents_end_as_the_directory_says(directory, name, content, end):
    write(directory, name, **content)
    out = run(directory.parent, "tok/")
    assert last(out) == end == load_manifest(out / "tokenizer").facts["eos_id"]


def test_the_first_file_that_says_it_counts(directory):
    write(directory, "generation_config.json", eos_token_id=0)
    write(directory, "special_tokens_map.json", eos_token="<|pad|>")
    write(directory, "tokenizer_config.json", eos_token=None, bos_token="<|endoftext|>")
    assert last(run(directory.parent, "tok/")) == 1


def test_a_directory_and_its_file_are_the_same_tokenizer(directory):
    write(directory, "tokenizer_config.json", eos_token="<|endoftext|>")
    steps = [
        load_manifest(run(directory.parent, path, **more) / "tokenizer").identity
        for path, more in [
            ("tok/", {}),
            ("tok/", {"eos": "<|endoftext|>"}),
            ("tok", {"eos": "<|endoftext|>"}),
            ("tok/tokenizer.json", {"eos": "<|endoftext|>"}),
        ]
    ]
    assert len(set(steps)) == 1


@pytest.mark.parametrize("names", [["tokenizer.json", "tokenizer.model"], ["tokenizer.model", "tekken.json"]])
def test_tokenizer_json_goes_before_tokenizer_model_and_that_before_tekken(tmp_path, tiny_files, names):
    (tmp_path / "tok").mkdir()
    data = {
        "tokenizer.json": "tokenizer.json",
        "tokenizer.model": "spm.model",
        "tekken.json": "tokenizer.json",
    }
    for name in names:
        (tmp_path / "tok" / name).write_bytes((tiny_files / data[name]).read_bytes())
    found = tokmill.tokenizer_check(tmp_path / "tok").description
    assert found.kind == {"tokenizer.json": "huggingface", "tokenizer.model": "sentencepiece"}[names[0]]


def test_a_pin_is_of_the_file_in_it_and_such_a_recipe_says_its_eos(directory):
    write(directory, "tokenizer_config.json", eos_token="<|pad|>")
    sha256 = tokmill.tokenizer_check(directory).description.sha256
    with pytest.raises(
        RecipeError,
        match=r"the `sha256` pins tokenizer\.json, and not what tokenizer_config\.json says "
        r"of `eos`\n  next: set `eos: \"<\|pad\|>\"`, as it says",
    ):
        run(directory.parent, "tok/", sha256=sha256)
    assert last(run(directory.parent, "tok/", sha256=sha256, eos="<|pad|>")) == 1
    with pytest.raises(TokenizerError, match=f"its sha256 is {sha256}, the recipe pins {'0' * 64}"):
        run(directory.parent, "tok/", sha256="0" * 64, eos="<|pad|>")


def test_a_directory_that_does_not_say_it_is_told_what_to_write(directory):
    with pytest.raises(
        EosMissing,
        match=r"nothing here says what ends a document\n  next: set `eos: \"<\|endoftext\|>\"`",
    ):
        run(directory.parent, "tok/")


def test_a_file_written_as_a_directory_is_told_what_to_write(directory):
    with pytest.raises(
        EosMissing, match=r"a file does not say its `eos`\n  next: set `eos: \"<\|endoftext\|>\"`"
    ):
        run(directory.parent, "tok/tokenizer.json/")


def test_a_token_that_the_vocabulary_lacks_is_an_error(directory):
    write(directory, "tokenizer_config.json", eos_token="</s>")
    with pytest.raises(EosMissing, match="no token '</s>' in the vocabulary"):
        run(directory.parent, "tok/")


def test_a_directory_without_a_tokenizer_is_an_error(tmp_path):
    (tmp_path / "tok").mkdir()
    message = (
        r"a directory without a tokenizer\n  next: it should hold a tokenizer\.json, tokenizer\.model or"
    )
    with pytest.raises(TokenizerError, match=message):
        tokmill.tokenizer_check(tmp_path / "tok")
    with pytest.raises(TokenizerError, match=message):
        run(tmp_path, "tok", eos="x")


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"eos_token": ', "{}".encode("utf-16"), b"\xff", b"[" * 100_000]
)
def test_a_damaged_description_is_an_error_that_names_it(directory, data):
    (directory / "tokenizer_config.json").write_bytes(data)
    with pytest.raises(
        CorruptFile, match=r"tokenizer_config\.json: is not JSON .*\n  next: fetch the file again"
    ):
        run(directory.parent, "tok/")


@pytest.mark.parametrize("content", ["[]", "3", '{"eos_token": 5}', '{"eos_token": {"content": []}}', "{}"])
def test_a_description_of_another_shape_says_nothing(directory, content):
    (directory / "tokenizer_config.json").write_text(content)
    write(directory, "generation_config.json", eos_token_id=1)
    assert last(run(directory.parent, "tok/")) == 1


def test_a_description_that_is_far_too_large_is_refused(directory):
    with (directory / "tokenizer_config.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InputError, match=r"1,073,741,824 bytes is more than the 16,777,216 expected"):
        run(directory.parent, "tok/")


def test_verbs_without_a_recipe_take_a_directory(directory, tmp_path):
    write(directory, "tokenizer_config.json", eos_token="<|pad|>")
    answer = CliRunner().invoke(main, ["tokenizer", "check", str(directory), "--json"])
    assert (answer.exit_code, json.loads(answer.output)["kind"]) == (0, "huggingface")
    (tmp_path / "texts.jsonl").write_text(json.dumps({"id": "a", "text": "the cat"}) + "\n")
    (tmp_path / "m.yaml").write_text("datasets: [{name: a, files: texts.jsonl, weight: 1}]")
    tokmill.build(
        "megatron", manifest=tmp_path / "m.yaml", tokenizer=directory, out=tmp_path / "built", flat=True
    )
    (found,) = (tmp_path / "built").rglob("tokens.idx")
    assert MegatronFile(found.with_suffix("")).sequence(0)[-1] == 1
