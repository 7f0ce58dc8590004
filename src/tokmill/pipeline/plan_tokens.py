"""The steps from the tokenizer to builds, with weights, targets and layouts resolved.

tokenizer   path: the file's sha256    train: options with their defaults, the sample and the shares of sources in it
tokens ─ mixture (which documents, in which order) ─ build/<name> …      without a mixture: all, in corpus order
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from msgspec.structs import replace

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.step import Step
from tokmill.errors import RecipeError, TokenizerError, TokenizerMismatch
from tokmill.formats import find_format, format_names
from tokmill.packing.mixture import check_weights
from tokmill.recipe import Build, Mixture, Pack, Recipe, Source, Training
from tokmill.stages.build.mixture import MixtureOptions
from tokmill.stages.tokens.tokenizer import Shares, TokenizerExtra, TokenizerOptions
from tokmill.storage.location import file_sha256
from tokmill.tokenizers.load import check_dtype, load_tokenizer
from tokmill.tokenizers.train import resolve_options


def build_steps(recipe: Recipe, out: Path, documents: Sequence[str]) -> list[Step]:
    """The mixture, if there is one, and the builds; `documents` are the steps that the tokens come from."""
    ingests = tuple(name for name in documents if name.startswith("ingest/"))
    needs: tuple[str, ...] = ("tokens", *ingests)
    steps: list[Step] = []
    if recipe.mixture is not None:
        options = _mixture_options(recipe, recipe.mixture)
        steps.append(Step("mixture", "mixture", out / "mixture", options, (*needs, "split")))
        needs += ("mixture",)
    for build in recipe.builds:
        config = _build_config(recipe, build)
        steps.append(Step(f"build/{build.name}", "build", out / "build" / build.name, config, needs))
    return steps


def narrow_builds(recipe: Recipe) -> list[str]:
    """Builds whose ids have two bytes because the recipe says so: a vocabulary may be too large for them."""
    return [build.name for build in recipe.builds if build.dtype == "uint16"]


def is_left_out(recipe: Recipe, source: Source) -> bool:
    """A weight of 0: such a source is not read, and needs no files, unless others are compared with it."""
    if recipe.mixture is None or source.name in recipe.dedup.reference:
        return False
    weights, within = recipe.mixture.weights, recipe.mixture.sources.get(source.domain, {})
    return weights.get(source.domain, 1) == 0 or within.get(source.name, 1) == 0


def settled_weights(
    recipe: Recipe, mixture: Mixture, *, is_told: bool = True
) -> tuple[dict[str, str] | None, dict[str, dict[str, str]]]:
    """Of domains (None: by what they have), and within domains, as exact fractions; told: a sum that is not 1 was
    spoken of already."""
    normalize = mixture.normalize or is_told
    known: dict[str, list[str]] = {}
    for source in recipe.sources:
        known.setdefault(source.domain, []).append(source.name)
    domains = None
    if mixture.weights:
        checked = check_weights(mixture.weights, list(known), where="mixture.weights", normalize=normalize)
        domains = _written(checked)
    within = {}
    for domain, weights in mixture.sources.items():
        if domain not in known:
            names = ", ".join(known)
            raise RecipeError(
                f"no domain is called {domain}", where="mixture.sources", next=f"one of: {names}"
            )
        where = f"mixture.sources.{domain}"
        within[domain] = _written(
            check_weights(weights, known[domain], where=where, normalize=normalize, kind="source")
        )
    return domains, within


def _mixture_options(recipe: Recipe, mixture: Mixture) -> MixtureOptions:
    domains, within = settled_weights(recipe, mixture, is_told=False)
    return MixtureOptions(
        domains=domains,
        sources=within,
        domain_of={source.name: source.domain for source in recipe.sources},
        target=mixture.target,
        exhausted=mixture.exhausted,
        max_epochs=mixture.max_epochs,
        order=mixture.order,
        held_out=mixture.held_out,
        seed=recipe.seed,
        seq_len=recipe.pack.length,
    )


def _written(weights: dict[str, Fraction]) -> dict[str, str]:
    return {name: str(weight) for name, weight in weights.items()}


def _build_config(recipe: Recipe, build: Build) -> Json:
    pack = build.pack or recipe.pack
    balance = recipe.mixture.balance if recipe.mixture is not None else "none"
    config = build.model_dump(mode="json", exclude={"pack", "rows_per_shard"})
    format = find_format(build.format)
    if format.is_sharded:
        config["rows_per_shard"] = build.rows_per_shard
    if "rows" not in format.shapes:
        pack = Pack(layout="indexed")
    if "documents" not in format.shapes and pack.layout == "indexed":
        *others, last = format_names("documents")
        raise RecipeError(
            f"{build.format} is made of rows, and the layout `indexed` has none",
            where=f"builds.{build.name}",
            next=f"choose another layout for it with `pack`, or the format {', '.join(others)} or `{last}`",
        )
    config["pack"] = _pack_config(pack, balance)
    if pack.layout != "indexed":
        # builds of before counted documents, and what `pad` truncates, that are in no row: they are made again
        config["pack"]["counted"] = "in rows"
    config["balance"] = balance if pack.layout != "indexed" else "none"
    config["seed"] = recipe.seed
    return config


def _pack_config(pack: Pack, balance: str) -> Json:
    if pack.layout == "indexed":
        return {"layout": "indexed"}
    is_mixed = pack.mix_domains
    if is_mixed is None:
        is_mixed = pack.layout == "concat" and balance == "none"
    if is_mixed and balance == "smallest":
        raise RecipeError(
            "rows that mix domains cannot be balanced by domain",
            where="pack.mix_domains",
            next="set `mix_domains: false`, or `balance: none`",
        )
    config: Json = {"layout": pack.layout, "length": pack.length, "mix_domains": is_mixed}
    if pack.layout == "concat":
        config["tail"] = pack.tail
    return config


def tokenizer_step(recipe: Recipe, base: Path, out: Path, documents: tuple[str, ...]) -> Step:
    """`documents` are the steps that say which texts there are, for training."""
    tokenizer, directory = recipe.tokenizer, out / "tokenizer"
    assert tokenizer is not None, "a recipe without a tokenizer has no such step"
    options = TokenizerOptions(
        eos=tokenizer.eos,
        control=tuple(tokenizer.control),
        padded_vocab_size=tokenizer.padded_vocab_size,
        encoding=tokenizer.encoding,
        train=None,
    )
    if tokenizer.train is not None:
        options = _trained(options, recipe, tokenizer.train)
        return Step("tokenizer", "tokenizer", directory, options, documents)
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
    options = replace(options, sha256=actual)
    extra = TokenizerExtra(path)
    return Step("tokenizer", "tokenizer", directory, options, files={path.name: actual}, extra=extra)


def _trained(options: TokenizerOptions, recipe: Recipe, training: Training) -> TokenizerOptions:
    asked = training.options()
    control_symbols = asked.pop("control_symbols")
    return replace(
        options,
        train={**resolve_options(asked), "control_symbols": control_symbols},
        sample_megabytes=training.sample_megabytes,
        shares=_shares(recipe, training),
        datasets={source.name: source.hub.dataset if source.hub else None for source in recipe.sources},
        seed=recipe.seed,
    )


def _shares(recipe: Recipe, training: Training) -> Shares:
    """Of the sources in the sample: as asked for, or as in the mixture; nothing: as much as they have."""
    names = [source.name for source in recipe.sources]
    if training.weights is not None:
        checked = check_weights(training.weights, names, where="tokenizer.train.weights", kind="source")
        return Shares(sources=_written(checked))
    mixture = recipe.mixture
    if mixture is None or not (mixture.weights or mixture.sources):
        return Shares()
    domains, within = settled_weights(recipe, mixture)
    domain_of = {source.name: source.domain for source in recipe.sources}
    return Shares(domains=domains, within=within, domain_of=domain_of)
