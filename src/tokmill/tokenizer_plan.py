"""The tokenizer's step: a file that is pinned, or all that training one depends on.

train   options with their defaults, the size of the sample, the shares of the sources in it
path    the file's sha256
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from tokmill.errors import TokenizerError, TokenizerMismatch
from tokmill.manifest import Json
from tokmill.pack.mixture import check_weights
from tokmill.recipe import Recipe, Training
from tokmill.stages.step import Step
from tokmill.storage.location import file_sha256
from tokmill.token_plan import narrow_builds, settled_weights
from tokmill.tokenizers.load import check_dtype, load_tokenizer
from tokmill.tokenizers.train import settle_options


def tokenizer_step(recipe: Recipe, base: Path, out: Path, documents: tuple[str, ...]) -> Step:
    """`documents` are the steps that say which texts there are, for training."""
    tokenizer, directory = recipe.tokenizer, out / "tokenizer"
    assert tokenizer is not None, "a recipe without a tokenizer has no such step"
    asked: Json = {
        "eos": tokenizer.eos,
        "control": tokenizer.control,
        "padded_vocab_size": tokenizer.padded_vocab_size,
        "encoding": tokenizer.encoding,
    }
    if tokenizer.train is not None:
        config = {**asked, **_training_config(recipe, tokenizer.train)}
        return Step("tokenizer", "tokenizer", directory, config, documents)
    path = base / Path(tokenizer.path or "").expanduser()
    if not path.is_file():
        raise TokenizerError(
            "no such tokenizer file",
            where=str(path),
            next="check `tokenizer.path`; it is relative to the recipe, and tokmill never downloads one",
        )
    actual = file_sha256(path)
    if tokenizer.sha256 is not None and tokenizer.sha256 != actual:
        raise TokenizerMismatch(
            f"its sha256 is {actual}, the recipe pins {tokenizer.sha256}",
            where=str(path),
            next="restore the pinned file, or change `tokenizer.sha256` if the new one is meant",
        )
    narrow = narrow_builds(recipe)
    if narrow:
        known = load_tokenizer(path, encoding=tokenizer.encoding).vocab_size
        check_dtype(max(known, tokenizer.padded_vocab_size or 0), "uint16", where=f"build {narrow[0]}")
    config = {**asked, "train": None, "sha256": actual}
    return Step("tokenizer", "tokenizer", directory, config, files={path.name: actual}, extra={"path": path})


def _training_config(recipe: Recipe, training: Training) -> Json:
    options = training.options()
    control_symbols = options.pop("control_symbols")
    return {
        "train": {**settle_options(options), "control_symbols": control_symbols},
        "sample_megabytes": training.sample_megabytes,
        "shares": _shares(recipe, training),
        "datasets": {source.name: source.hub.dataset if source.hub else None for source in recipe.sources},
        "seed": recipe.seed,
    }


def _shares(recipe: Recipe, training: Training) -> Json:
    """Of the sources in the sample: as asked for, or as in the mixture; nothing: as much as they have."""
    names = [source.name for source in recipe.sources]
    if training.weights is not None:
        checked = check_weights(training.weights, names, where="tokenizer.train.weights", kind="source")
        return {"sources": _written(checked)}
    mixture = recipe.mixture
    if mixture is None or not (mixture.weights or mixture.sources):
        return {}
    domains, within = settled_weights(recipe, mixture)
    domain_of = {source.name: source.domain for source in recipe.sources}
    return {"domains": domains, "within": within, "domain_of": domain_of}


def _written(weights: dict[str, Fraction]) -> dict[str, str]:
    return {name: str(weight) for name, weight in weights.items()}
