"""The steps from documents to builds: tokenizer, mixture, and one build each.

tokenizer    path: the sha256 of the file, or of the one in the directory  train: options with defaults, the
             sample and the shares of sources in it
mixture      which documents, in which order; without one, all, in corpus order
stages       of a mixture: one mixture each, and one of every build; the curriculum says in which order
texts        builds of texts; without a mixture they follow the split, and need no tokenizer
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import msgspec
from msgspec import structs

from tokmill.artifacts.history import HISTORY_FILE, Continues, load_continues
from tokmill.artifacts.plugins import find_plugin
from tokmill.artifacts.step import Step
from tokmill.errors import EosMissing, RecipeError, TokenizerError, TokenizerMismatch
from tokmill.formats import format_names, known_format, resolve_format
from tokmill.packing.mixture import check_weights
from tokmill.pipeline.documents import has_no_share, is_left_out
from tokmill.recipe import (
    Build,
    Mixture,
    Pack,
    Recipe,
    Stage,
    Tokenizer,
    Training,
    dtype_of,
    format_mistakes,
)
from tokmill.recipe.curriculum import MOST_PASSES
from tokmill.schema import PERCENTILE
from tokmill.stages.build.continued import refuse_other_tokenizer
from tokmill.stages.build.mixture import MixtureOptions
from tokmill.stages.build.options import BuildOptions, PackOptions
from tokmill.stages.build.scored import ByScore, RepeatByScore, SelectByScore
from tokmill.stages.build.staged import StageOptions, WhereOptions
from tokmill.stages.curriculum import CurriculumOptions, PlannedStage
from tokmill.stages.texts import TextsOptions
from tokmill.stages.tokens.sample import Shares
from tokmill.stages.tokens.tokenizer import TokenizerExtra, TokenizerOptions
from tokmill.storage.location import file_sha256
from tokmill.tokenizers.directory import find_mark, tokenizer_file
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.train import resolve_options
from tokmill.tokenizers.vocabulary import check_dtype, find_eos


def tokenizer_step(recipe: Recipe, base: Path, out: Path, documents: tuple[str, ...]) -> Step:
    """`documents` are the steps that say which texts there are, for training."""
    tokenizer, directory = recipe.tokenizer, out / "tokenizer"
    assert tokenizer is not None, "a recipe without a tokenizer has no such step"
    continues = load_continues(out)
    if continues is not None and tokenizer.train is not None:
        tokenizer = _trained_before(tokenizer, tokenizer.train, continues, directory)
    options = TokenizerOptions(
        eos=tokenizer.eos if tokenizer.eos is not None else "",
        control=tuple(tokenizer.control),
        padded_vocab_size=tokenizer.padded_vocab_size,
        encoding=tokenizer.encoding,
        bos=tokenizer.bos,
        train=None,
    )
    if tokenizer.train is not None:
        options = _trained(options, recipe, tokenizer.train)
        return Step("tokenizer", "tokenizer", directory, options, documents)
    if tokenizer.plugin is not None:
        plugin = find_plugin("tokenizers", tokenizer.plugin, base, "tokenizer.plugin")
        options = structs.replace(options, plugin=plugin, options=tokenizer.options)
        return Step("tokenizer", "tokenizer", directory, options)
    path, actual = pinned_file(tokenizer, base)
    if continues is not None:
        refuse_other_tokenizer(continues, {**continues.tokenizer, "sha256": actual})
    if tokenizer.eos is None:
        options = structs.replace(options, eos=_eos_of_directory(tokenizer, base))
    narrow = narrow_builds(recipe)
    if narrow:
        known = load_tokenizer(path, encoding=tokenizer.encoding).vocab_size
        build, dtypes = next(iter(narrow.items()))
        check_dtype(max(known, tokenizer.padded_vocab_size or 0), "uint16", f"build {build}", dtypes)
    options = structs.replace(options, sha256=actual)
    extra = TokenizerExtra(path)
    return Step("tokenizer", "tokenizer", directory, options, files={path.name: actual}, extra=extra)


def _trained_before(
    tokenizer: Tokenizer, training: Training, continues: Continues, directory: Path
) -> Tokenizer:
    """Of the rest of a run: it has the tokenizer of that run, which lies in its own directory."""
    refuse_other_training(continues, training)
    sha256 = continues.tokenizer["sha256"]
    for path in sorted(directory.glob("*")):
        if path.is_file() and file_sha256(path) == sha256:
            here = {"train": None, "path": str(path.absolute()), "sha256": sha256}
            return tokenizer.model_copy(update=here)
    raise TokenizerMismatch(
        f"the tokenizer of the run that is continued is not here (its sha256 is {sha256})",
        where=str(directory),
        next="give the same `tokmill continue` again, or name a copy of its file: "
        "`tokenizer: {path: FILE, eos: …}`",
    )


def refuse_other_training(continues: Continues, training: Training) -> None:
    """Of the rest of a run: what is trained as before is the tokenizer that the run has."""
    if not continues.train:
        raise TokenizerMismatch(
            "the recipe trains a tokenizer, and how that of the run was trained is not known",
            where="tokenizer.train",
            next="name the file of that run: `tokenizer: {path: OLD/tokenizer/FILE, eos: …}`",
        )
    if continues.train != training.model_dump(mode="json"):
        raise TokenizerMismatch(
            "the recipe trains another tokenizer than that of the run",
            where="tokenizer.train",
            next="leave `tokenizer` as it was",
        )


def pinned_file(tokenizer: Tokenizer, base: Path) -> tuple[Path, str]:
    """The file that the recipe names, and its sha256, which must be the pinned one."""
    path = tokenizer_file(_named(tokenizer, base))
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
    return path, actual


def _named(tokenizer: Tokenizer, base: Path) -> Path:
    return base / Path(tokenizer.path or "").expanduser()


def _eos_of_directory(tokenizer: Tokenizer, base: Path) -> str | int:
    """What it says ends a document, for a recipe that leaves it to the directory and pins nothing."""
    path = _named(tokenizer, base)
    mark = find_mark(path, "eos") if path.is_dir() else None
    if mark is not None and tokenizer.sha256 is None:
        return mark.token
    if mark is None:
        opened = load_tokenizer(path, encoding=tokenizer.encoding)
        raise EosMissing(
            "nothing here says what ends a document" if path.is_dir() else "a file does not say its `eos`",
            where=str(path),
            next=f"set `eos: {_written_token(find_eos(opened))}` if documents end so",
        )
    raise RecipeError(
        f"the `sha256` pins {tokenizer_file(path).name}, and not what {mark.file} says of `eos`",
        where=str(path),
        next=f"set `eos: {_written_token(mark.token)}`, as it says",
    )


def _written_token(token: str | int) -> str:
    """As it is typed into a recipe."""
    return json.dumps(token, ensure_ascii=False)


def _trained(options: TokenizerOptions, recipe: Recipe, training: Training) -> TokenizerOptions:
    asked = training.options()
    control_symbols = asked.pop("control_symbols")
    return structs.replace(
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
    if training.weights is None:
        return Shares()
    if training.weights != "mixture":
        checked = check_weights(training.weights, names, where="tokenizer.train.weights", kind="source")
        return Shares(sources=_written(checked))
    mixture = recipe.mixture
    if mixture is None or not (mixture.weights or mixture.sources):
        return Shares()
    domains, within = resolved_weights(recipe, mixture)
    domain_of = {source.name: source.domain for source in recipe.sources}
    return Shares(domains=domains, within=within, domain_of=domain_of)


def narrow_builds(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Builds whose ids have two bytes because the recipe or the format says so, and the dtypes they may have:
    a vocabulary may be too large for them."""
    builds = [build for build in recipe.builds if not build.is_text]
    known = {build.name: known_format(build.format) for build in builds}
    return {
        build.name: one.dtypes if (one := known[build.name]) is not None else ("uint16", "int32")
        for build in builds
        if dtype_of(build, known[build.name]) == "uint16"
    }


def build_steps(recipe: Recipe, base: Path, out: Path, documents: Sequence[str]) -> list[Step]:
    """The mixture, if there is one, and the builds; `documents` are the steps that the tokens come from."""
    ingests = tuple(name for name in documents if name.startswith("ingest/"))
    needs: tuple[str, ...] = ("tokens", *ingests)
    steps: list[Step] = []
    continues = load_continues(out)
    if continues is not None:
        refuse_without_mixture(recipe)
    if recipe.mixture is not None and recipe.mixture.stages:
        return _stage_steps(recipe, recipe.mixture, base, out, needs, documents)
    if recipe.mixture is not None:
        options = _mixture_options(recipe, recipe.mixture, base)
        if continues is not None:
            options = structs.replace(options, continues=continues)
        # a score is in what cleaning measured, or in the percentiles after it
        scored = [n for n in documents if n == "scores" or n.startswith("clean/")] if options.chosen else []
        needed = (*needs, "split", *scored)
        steps.append(Step("mixture", "mixture", out / "mixture", options, needed, extra=out / HISTORY_FILE))
        needs += ("mixture",)
    for build in recipe.builds:
        if build.is_text:
            continue
        made = build_options(recipe, build, base)
        if continues is not None and made.pack.layout != "best_fit":  # which lays rows as documents fit
            made = structs.replace(made, is_in_order=True)
        steps.append(Step(f"build/{build.name}", "build", out / "build" / build.name, made, needs))
    return steps


def refuse_without_mixture(recipe: Recipe) -> None:
    """Of the rest of a run: a mixture is what puts documents in an order."""
    mixture = recipe.mixture
    if mixture is None:
        raise RecipeError(
            "what was seen is put last by a mixture, and the recipe has none",
            where="mixture",
            next="add `mixture: {}`: all that there is, by the tokens that domains have",
        )
    if mixture.stages:
        raise RecipeError(
            "stages count for themselves what was had",
            where="mixture.stages",
            next="make the rest of the run with one mixture for each stage that is left, one after the other",
        )
    if mixture.max_epochs > MOST_PASSES:
        raise RecipeError(
            f"{mixture.max_epochs:,} passes are more than are counted",
            where="mixture.max_epochs",
            next=f"set {MOST_PASSES} or less",
        )
    if mixture.megabytes is not None:
        raise RecipeError(
            "how many megabytes were seen is not known",
            where="mixture.megabytes",
            next="give the length of the whole run in `tokens`, `blocks` or `documents`",
        )
    if mixture.balance != "none":
        raise RecipeError(
            "rows that are left out to balance domains would be told as to come",
            where="mixture.balance",
            next="leave it out in the rest of a run, and give weights",
        )
    if mixture.repeat is not None or mixture.select is not None:
        raise RecipeError(
            "documents that a score repeats or draws are not put in order by what was seen",
            where="mixture.repeat" if mixture.repeat is not None else "mixture.select",
            next="leave it out in the rest of a run, or filter by the score",
        )


def _stage_steps(
    recipe: Recipe, mixture: Mixture, base: Path, out: Path, needs: tuple[str, ...], documents: Sequence[str]
) -> list[Step]:
    """Each stage after the one before it, each with a build of its own of every one in the recipe."""
    mixed, built = [], []
    planned: dict[str, tuple[PlannedStage, ...]] = {}
    before: tuple[str, ...] = ()
    for stage in mixture.stages:
        length = stage.length or recipe.pack.length
        options = _stage_options(recipe, mixture, stage, length, base, before[-1] if before else None)
        scored = [n for n in documents if n == "scores" or n.startswith("clean/")] if stage.where else []
        name = f"stage/{stage.name}"
        own = (*needs, "split", *scored, *(f"stage/{former}" for former in before[-1:]))
        mixed.append(Step(name, "mixture", out / "stage" / stage.name, options, own))
        for build in recipe.builds:
            made = build_options(recipe, build, base)
            asked = structs.replace(
                made,
                name=f"{build.name}-{stage.name}",
                pack=structs.replace(made.pack, length=length),
            )
            step = f"build/{asked.name}"
            built.append(Step(step, "build", out / "build" / asked.name, asked, (*needs, name)))
            tokens = stage.tokens or stage.rows(length, mixture.batch_tokens) * length
            planned[build.name] = (
                *planned.get(build.name, ()),
                PlannedStage(stage.name, step, length, tokens),
            )
        before = (*before, stage.name)
    if not planned:
        return mixed
    ends = ("tokens", *(step.name for step in built))
    curriculum = CurriculumOptions(builds=planned, batch_tokens=mixture.batch_tokens)
    return [*mixed, *built, Step("curriculum", "curriculum", out / "curriculum", curriculum, ends)]


def _stage_options(
    recipe: Recipe, mixture: Mixture, stage: Stage, length: int, base: Path, after: str | None
) -> MixtureOptions:
    own = StageOptions(
        name=stage.name,
        after=after,
        min_tokens=stage.min_tokens,
        max_tokens=stage.max_tokens,
        where=tuple(
            WhereOptions(
                one.by,
                None if one.min is None else float(one.min),
                None if one.max is None else float(one.max),
            )
            for one in stage.where
        ),
    )
    number = mixture.stages.index(stage)

    def place_of(key: str) -> str:
        """What a stage does not say is written above it."""
        section, _, domain = key.partition(".")
        is_own = bool(stage.weights) if section == "weights" else domain in stage.sources
        return f"mixture.stages[{number}].{key}" if is_own else f"mixture.{key}"

    asked = _mixture_options(recipe, mixture.of_stage(stage, length), base, place_of)
    return structs.replace(asked, seq_len=length, stage=own)


def text_steps(recipe: Recipe, out: Path, documents: tuple[str, ...]) -> list[Step]:
    """Builds of texts. They need no tokens, unless a mixture says which documents, and in which order."""
    needs = (*documents, "mixture") if recipe.mixture is not None else documents
    return [
        Step(f"texts/{build.name}", "texts", out / "texts" / build.name, text_options(recipe, build), needs)
        for build in recipe.builds
        if build.is_text
    ]


def text_options(recipe: Recipe, build: Build) -> TextsOptions:
    return TextsOptions(
        title=recipe.name,
        format=build.format,
        sources=tuple(build.sources),
        measures=build.measures,
        shard_bytes=recipe.shards.bytes,
    )


def resolved_weights(
    recipe: Recipe,
    mixture: Mixture,
    *,
    is_told: bool = True,
    place_of: Callable[[str], str] = "mixture.{}".format,
) -> tuple[dict[str, str] | None, dict[str, dict[str, str]]]:
    """Of domains (None: by what they have), and within domains, as exact fractions; told:
    a sum that is not 1 was spoken of already. `place_of`: where a key of the mixture is written."""
    normalize = mixture.normalize or is_told
    known: dict[str, list[str]] = {}
    for source in recipe.sources:
        known.setdefault(source.domain, []).append(source.name)
    domains = None
    if mixture.weights:
        where = place_of("weights")
        checked = check_weights(mixture.weights, list(known), where=where, normalize=normalize)
        domains = _written(checked)
    within = {}
    for domain, weights in mixture.sources.items():
        if domain not in known:
            names = ", ".join(known)
            raise RecipeError(
                f"no domain is called {domain}", where=place_of("sources"), next=f"one of: {names}"
            )
        where = place_of(f"sources.{domain}")
        within[domain] = _written(
            check_weights(weights, known[domain], where=where, normalize=normalize, kind="source")
        )
    return domains, within


def _written(weights: dict[str, Fraction]) -> dict[str, str]:
    return {name: str(weight) for name, weight in weights.items()}


def _mixture_options(
    recipe: Recipe, mixture: Mixture, base: Path, place_of: Callable[[str], str] = "mixture.{}".format
) -> MixtureOptions:
    domains, within = resolved_weights(recipe, mixture, is_told=False, place_of=place_of)
    target = mixture.target
    if target is not None and target[0] == "blocks" and are_rows_documents(recipe, base):
        target = "documents", target[1]
    is_in_blocks = target is not None and target[0] == "blocks"
    return MixtureOptions(
        domains=domains,
        sources=within,
        domain_of={source.name: source.domain for source in recipe.sources},
        target=target,
        exhausted=mixture.exhausted,
        max_epochs=mixture.max_epochs,
        order=mixture.order,
        held_out=mixture.held_out,
        seed=recipe.seed,
        seq_len=recipe.pack.length if is_in_blocks else msgspec.UNSET,
        met="from above" if is_in_blocks else msgspec.UNSET,
        chosen=_by_score(recipe, mixture),
    )


def are_rows_documents(recipe: Recipe, base: Path) -> bool:
    """Of every build, however long they are."""
    return recipe.pack.layout == "pad" and all(
        build.pack in (None, recipe.pack)
        and "rows" in resolve_format(build.format, base, f"builds.{build.name}")[0].shapes
        for build in recipe.builds
        if not build.is_text
    )


def _by_score(recipe: Recipe, mixture: Mixture) -> ByScore | msgspec.UnsetType:
    if mixture.repeat is not None:
        steps = sorted((float(least), times) for least, times in mixture.repeat.percentiles.items())
        return RepeatByScore(mixture.repeat.by + PERCENTILE, tuple(steps))
    if mixture.select is not None:
        idle = tuple(
            source.name
            for source in recipe.sources
            if has_no_share(mixture, source) and not is_left_out(recipe, source)
        )
        select = mixture.select
        return SelectByScore(select.by, select.tokens, recipe.seed, idle or msgspec.UNSET)
    return msgspec.UNSET


def build_options(recipe: Recipe, build: Build, base: Path) -> BuildOptions:
    pack = build.pack or recipe.pack
    balance = recipe.mixture.balance if recipe.mixture is not None else "none"
    format, plugin = resolve_format(build.format, base, f"builds.{build.name}")
    for place, why in format_mistakes(build, format):
        key = ".".join(map(str, place))
        raise RecipeError(why, where=f"builds.{build.name}.{key}", next="change it, or choose another format")
    masked = [s.name for s in recipe.sources if s.chat is not None and s.chat.loss != "all"]
    if not format.has_loss and (
        mine := [name for name in masked if not build.sources or name in build.sources]
    ):
        raise RecipeError(
            f"{build.format} has no place for the loss mask of {mine[0]}",
            where=f"builds.{build.name}.format",
            next="use memmap, npy or parquet, or set `loss: all`",
        )
    if "rows" not in format.shapes:
        pack = Pack(layout="indexed")
    if "documents" not in format.shapes and pack.layout == "indexed":
        *others, last = format_names("documents")
        raise RecipeError(
            f"{build.format} is made of rows, and the layout `indexed` has none",
            where=f"builds.{build.name}",
            next=f"choose another layout for it with `pack`, or the format {', '.join(others)} or `{last}`",
        )
    return BuildOptions(
        name=build.name,
        format=build.format,
        plugin=plugin,
        dtype=dtype_of(build, format),
        sources=tuple(build.sources),
        rows_per_shard=build.rows_per_shard if format.is_sharded else 0,
        columns=build.columns,
        pack=_pack_options(pack, balance),
        balance=balance if pack.layout != "indexed" else "none",
        seed=recipe.seed,
    )


def _pack_options(pack: Pack, balance: str) -> PackOptions:
    if pack.layout == "indexed":
        return PackOptions(layout="indexed")
    is_mixed = pack.mix_domains
    if is_mixed is None:
        is_mixed = pack.layout == "concat" and balance == "none"
    if is_mixed and balance == "smallest":
        raise RecipeError(
            "rows that mix domains cannot be balanced by domain",
            where="pack.mix_domains",
            next="set `mix_domains: false`, or `balance: none`",
        )
    return PackOptions(
        layout=pack.layout,
        length=pack.length,
        mix_domains=is_mixed,
        tail=pack.tail if pack.layout == "concat" else None,
        # builds of before counted documents, and what `pad` truncates, that are in no row:
        # they are made again
        counted="in rows",
    )
