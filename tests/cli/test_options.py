"""Options of single steps have the names and the defaults of the recipe keys that mean the same."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tokmill import Recipe
from tokmill.cli import main

# verb: {option: key}
SAME: dict[str, dict[str, str]] = {
    "dedup": {
        "--scope": "dedup.scope",
        "--keep": "dedup.keep",
        "--threshold": "dedup.near.threshold",
        "--ngram": "dedup.near.ngram",
        "--unit": "dedup.near.unit",
        "--verify": "dedup.near.verify",
        "--window-words": "dedup.window.words",
        "--winnow": "dedup.window.winnow",
        "--policy": "dedup.window.policy",
        "--max-share": "dedup.window.max_share",
        "--min-words": "dedup.window.min_words",
        "--max-cluster": "dedup.max_cluster",
        "--max-source-loss": "dedup.max_source_loss",
    },
    "normalize": {
        "--unicode": "normalize.unicode",
        "--newlines": "normalize.newlines",
        "--nul": "normalize.nul",
        "--redact": "redact",
    },
    "filter": {
        "--detector": "language.detector",
        "--min-score": "language.min_score",
        "--recall": "language.recall",
        "--unknown-license": "license.unknown",
    },
    "encode": {"--unicode": "normalize.unicode"},
    "layouts": {"--length": "pack.length"},
    "shard": {
        "--length": "pack.length",
        "--rows-per-shard": "builds.rows_per_shard",
        "--tokenizer-sha256": "tokenizer.sha256",
        "--encoding": "tokenizer.encoding",
    },
    "build": {
        "--length": "pack.length",
        "--tokens": "mixture.tokens",
        "--order": "mixture.order",
        "--valid-fraction": "split.valid_fraction",
        "--dtype": "builds.dtype",
    },
    "ingest hub": {
        "--config": "sources.hub.config",
        "--split": "sources.hub.split",
        "--revision": "sources.hub.revision",
        "--template": "sources.template",
        "--created-at-field": "sources.fields.created_at",
    },
    "tokenizer train": {
        "--model": "tokenizer.train.model",
        "--vocab-size": "tokenizer.train.vocab_size",
        "--sample-megabytes": "tokenizer.train.sample_megabytes",
        "--min-frequency": "tokenizer.train.min_frequency",
        "--character-coverage": "tokenizer.train.character_coverage",
    },
}

# What differs, and why. None: the option says its default in words, because it depends on something.
OTHER_DEFAULTS: dict[tuple[str, str], Any] = {
    ("normalize", "--unicode"): "NFC",  # a verb that is called to normalize does so
    ("normalize", "--newlines"): "lf",
    ("filter", "--min-score"): None,  # the recipe's, where there is no --recall
    ("shard", "--length"): 512,
    ("build", "--valid-fraction"): None,  # as the selection says
    ("build", "--dtype"): None,  # the format's
    ("tokenizer train", "--model"): "unigram",
}


def option_of(verb: str, name: str) -> click.Option:
    command: click.Command = main
    for word in verb.split():
        assert isinstance(command, click.Group)
        below = command.get_command(click.Context(command), word)
        assert below is not None
        command = below
    (found,) = [param for param in command.params if name in param.opts]
    assert isinstance(found, click.Option)
    return found


def key_of(path: str) -> dict[str, Any]:
    """A key in the published JSON schema of recipes."""
    schema = Recipe.model_json_schema()
    part: dict[str, Any] = schema
    for word in path.split("."):
        options = [part, *part.get("anyOf", []), part.get("items", {})]
        names = [option["$ref"].rpartition("/")[2] for option in options if "$ref" in option]
        if names:
            part = schema["$defs"][names[0]]
        part = part["properties"][word]
    return part


@pytest.mark.parametrize(
    ("verb", "name", "path"), [(v, o, k) for v, keys in SAME.items() for o, k in keys.items()]
)
def test_an_option_has_the_name_and_the_default_of_its_key(verb: str, name: str, path: str) -> None:
    option, key = option_of(verb, name), key_of(path)
    default = option.to_info_dict()["default"]  # None where it has none, whatever click calls that
    words = name.removeprefix("--").split("-")
    assert set(path.rpartition(".")[2].split("_")) <= set(words), "named after its key"
    if (verb, name) in OTHER_DEFAULTS:
        assert default == OTHER_DEFAULTS[verb, name]
        assert str(key.get("default")) != str(default), "no longer another: take it off the list"
    else:
        assert str(default or None) == str(key.get("default") or None)
    if isinstance(option.type, click.Choice) and "enum" in key:
        assert set(option.type.choices) <= set(key["enum"])
