"""What the tokenizer's step depends on, and what it refuses."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import small_corpus
from tokmill.errors import RecipeError, TokenizerError
from tokmill.pipeline.tokens import tokenizer_step
from tokmill.recipe.file import parse_recipe
from written import load_manifest


def step_of(train: dict[str, Any], **sections: Any):
    recipe = {
        "name": "r",
        "sources": [
            {"name": "wiki", "domain": "web", "files": "a.jsonl"},
            {"name": "books", "domain": "prose", "hub": {"dataset": "some/books"}},
        ],
        "tokenizer": {"train": train, "eos": "</s>"},
        **sections,
    }
    return tokenizer_step(parse_recipe(json.dumps(recipe).encode(), "r"), Path(), Path("out"), ("split",))


def test_defaults_are_settled_in_the_config_by_model():
    byte_level = step_of({}).config
    assert byte_level["train"] == {
        "model": "byte_bpe",
        "vocab_size": 32000,
        "min_frequency": 2,
        "control_symbols": [],
    }
    assert byte_level["datasets"] == {"wiki": None, "books": "some/books"}
    unigram = step_of({"model": "unigram", "character_coverage": 1}).config["train"]
    assert (unigram["character_coverage"], unigram["byte_fallback"], unigram["hard_vocab_limit"]) == (
        1,
        True,
        True,
    )
    assert unigram["normalization"] == "identity"
    assert "min_frequency" not in unigram


def recipe_of(train: dict[str, Any], **sections: Any) -> dict[str, Any]:
    texts = [{"text": f"Line {number} of many others, and all of it is text."} for number in range(20)]
    return {
        "name": "r",
        "sources": [
            {"name": "wiki", "domain": "web", "data": texts},
            {"name": "books", "domain": "prose", "data": texts},
        ],
        "dedup": {"exact": False},
        "tokenizer": {"train": {"vocab_size": 300, **train}, "eos": "</s>"},
        **sections,
    }


def shares_of(train: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """What the manifest of a trained tokenizer says of its sample."""
    with tempfile.TemporaryDirectory() as place:
        out = mill.run(recipe_of(train, **sections), Path(place) / "out", workers=1, until="tokenizer").out
        found: dict[str, Any] = load_manifest(out / "tokenizer").config["shares"]
    return found


def test_shares_are_those_of_the_sources_or_of_the_mixture_or_natural():
    assert shares_of({}) == {}
    weights = {"wiki": "0.25", "books": "0.75"}
    assert shares_of({"weights": weights}) == {"sources": {"wiki": "1/4", "books": "3/4"}}
    mixture = {"weights": {"web": "0.1", "prose": "0.9"}, "sources": {"web": {"wiki": 1}}}
    expected = {
        "domains": {"web": "1/10", "prose": "9/10"},
        "within": {"web": {"wiki": "1"}},
        "domain_of": {"wiki": "web", "books": "prose"},
    }
    assert shares_of({"weights": "mixture"}, mixture=mixture) == expected
    assert shares_of({}, mixture=mixture) == {}, "another mixture is no other tokenizer"
    assert "sources" in shares_of({"weights": weights}, mixture=mixture)


def test_weights_of_a_sample_that_do_not_sum_to_one_are_shares_and_a_line_says_so(caplog):
    assert shares_of({"weights": {"wiki": "0.5", "books": 1}}) == {"sources": {"wiki": "1/3", "books": "2/3"}}
    said = [line for line in caplog.messages if "add up" in line]
    assert len(said) == 1
    assert said[0].startswith("tokenizer.train.weights: weights add up to 1.5, not to 1")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            {"weights": {"wiki": "0.5", "boks": "0.5"}},
            "no source is called boks\n  next: did you mean books?",
        ),
        ({"weights": {"wiki": 1}}, "no weight for the source books"),
        ({"byte_fallback": False}, "tokenizer.train.byte_fallback: does not belong to the model byte_bpe"),
        (
            {"model": "bpe", "min_frequency": 3},
            "tokenizer.train.min_frequency: does not belong to the model bpe",
        ),
        ({"model": "unigramm"}, '"unigramm" is not a choice; did you mean `unigram`?'),
        (
            {"model": "bpe", "character_coverage": "0.9"},
            "tokenizer.train.character_coverage: should be 0.98 to 1",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(tmp_path, train, message):
    with pytest.raises(RecipeError) as raised:
        mill.plan(recipe_of(train), tmp_path / "out")
    assert message in str(raised.value)


def tokenizer_of(directory: Path, **section: Any) -> dict[str, Any]:
    trained = {"train": {"vocab_size": 300}, "eos": "<|endoftext|>"}
    recipe = small_corpus(directory, tokenizer={**trained, **section})
    out = mill.run(recipe, directory / "out", workers=1, until="tokenizer").out
    return load_manifest(out / "tokenizer").facts


def test_control_tokens_and_a_padded_vocabulary_are_facts(tmp_path):
    facts = tokenizer_of(tmp_path, control=["<|user|>"], padded_vocab_size=384)
    assert facts["controls"] == {"<|user|>": 1}
    assert (facts["vocab_size"], facts["padded_vocab_size"], facts["eos_id"]) == (300, 384, 0)


def test_a_padded_vocabulary_that_is_too_small_is_an_error(tmp_path):
    with pytest.raises(TokenizerError, match=r"has 300 ids, padded_vocab_size is 299\n  next: set it to 300"):
        tokenizer_of(tmp_path, padded_vocab_size=299)
