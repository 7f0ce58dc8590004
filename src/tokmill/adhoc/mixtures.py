"""A mixture file: datasets with weights, for commands that need texts and no recipe;
and a tokenizer trained on one.

    seed: 42
    datasets:
      - {name: fineweb, dataset: HuggingFaceFW/fineweb, subset: sample-10BT, split: train, weight: 0.5,
         samples: 100000}
      - {name: mine, files: "data/*.jsonl.zst", weight: 0.3, text_field: body, max_records: 1000}
      - {name: lines, files: "notes/*.txt", weight: 0.2, unit: line, limit: {docs: 500, megabytes: 2}}

    domains:                                            or, instead of `datasets`, two levels of weights
      web: {weight: 0.7, sources: [{name: mdn, files: "mdn/*.parquet", weight: 0.2},
                                   {name: wiki, …, weight: 0.8}]}
      books: {weight: 0}

    read_mixture_file ─ the same YAML and the same mistakes as in a recipe ─> MixtureFile
    to_mixture        ─ weights as the mixture of a recipe has them
    to_sources        ─ dataset: a source of the hub, files: local; samples: a reservoir; max_records: a head
    tokenizer_train   ─ ingest ─ clean ─ split (nothing held out) ─ tokenizer
                      ─> <out>/spm_<vocabulary>_<model>.model or tokenizer.json, and the log

Paths are relative to the file. What has the weight 0 is left out, and needs no files. Training works in
`.tokmill` inside the output, so a killed command resumes. The log records the options: a tokenizer of other
options stays, unless it may be replaced.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from tokmill.adhoc.finished import options_of, other_options
from tokmill.adhoc.reading import recipe_of_options
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.progress import Progress
from tokmill.artifacts.runs import check_workplace
from tokmill.errors import InputError
from tokmill.packing.mixture import check_weights
from tokmill.pipeline.origins import hub_commits
from tokmill.pipeline.run import run_recipe
from tokmill.recipe import Fields, Hub, Limit, Path_, Recipe, Sample, Section, Source, template_parts
from tokmill.recipe.file import load_section
from tokmill.recipe.section import Amount, Name, Patterns, Weight, part_of
from tokmill.recipe.source import HUB_NAME
from tokmill.stages.tokens.tokenizer import LOG
from tokmill.storage.disk import commit_bytes
from tokmill.storage.location import read_whole


class Dataset(Section):
    """One of the hub, or local files."""

    name: Name
    dataset: str | None = Field(None, pattern=HUB_NAME, description="of the Hugging Face hub")
    subset: str | None = Field(None, description="config of that dataset")
    split: str | None = Field(None, description="of that dataset [train]")
    revision: str | None = Field(None, description="commit, branch or tag of that dataset [main]")
    files: Patterns | None = None
    domain: Name | None = Field(None, description="[its name]")
    license: str | None = None
    text_field: str | None = Field(None, description="or text_column [text or content]")
    id_field: str | None = None
    template: str | None = None
    where: dict[str, str] = Field({}, description="keep records whose field has this value")
    weight: Weight = Decimal(1)
    samples: Amount | None = Field(None, description="documents, drawn from all of them")
    megabytes: Amount | None = Field(None, description="millions of bytes of text, from the beginning")
    max_records: Amount | None = Field(
        None, description="documents, from the beginning: no more is read than it takes to find them"
    )
    limit: Limit | None = Field(None, description="bounds as in a recipe: docs, chars, megabytes, tokens")
    unit: Literal["document", "paragraph", "line"] = Field(
        "document", description="what a document is in .txt files"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_new_names(cls, given: Any) -> Any:
        if isinstance(given, dict) and "text_column" in given and "text_field" not in given:
            return {"text_field" if key == "text_column" else key: value for key, value in given.items()}
        return given

    @field_validator("template")
    @classmethod
    def _plain_fields(cls, value: str | None) -> str | None:
        if value is not None:
            template_parts(value)
        return value

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        is_named = [given.get(key) is not None for key in ("dataset", "files")]
        if all(is_named) or not (any(is_named) or _is_nothing(given.get("weight"))):
            yield (), "needs either `dataset` or `files`"
        elif given.get("files") is not None:
            for key in ("subset", "split", "revision"):
                if given.get(key) is not None:
                    yield (key,), f"`{key}` belongs to `dataset`"
        if given.get("template") is not None and given.get("text_field") is not None:
            yield ("template",), "`template` and `text_field` both say where the text comes from; keep one"
        for key, bound in (("max_records", "docs"), ("megabytes", "megabytes")):
            if given.get(key) is not None and part_of(given.get("limit"), bound) is not None:
                yield (key,), f"`limit: {{{bound}: …}}` says it too; keep one"


def _is_nothing(weight: Any) -> bool:
    with contextlib.suppress(InvalidOperation):
        return weight is not None and Decimal(str(weight)) == 0
    return False


class Domain(Section):
    """A share of the whole, and of what it is made; a domain without a share needs no sources."""

    weight: Weight
    sources: list[Dataset] = Field([])


class MixtureFile(Section):
    seed: int = Field(0, ge=0, lt=1 << 63)
    normalize: bool = Field(False, description="weights are not meant to add up to 1: nothing is said of it")
    datasets: list[Dataset] = Field([])
    domains: dict[Name, Domain] = Field({})

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if bool(given.get("datasets")) == bool(given.get("domains")):
            yield (), "needs either `datasets` or `domains`"
        places: list[tuple[Path_, Any]] = [
            (("datasets", index), item) for index, item in _numbered(given.get("datasets"))
        ]
        domains = given.get("domains")
        for name, domain in domains.items() if isinstance(domains, dict) else ():
            sources = part_of(domain, "sources")
            places += [(("domains", name, "sources", index), item) for index, item in _numbered(sources)]
        first: dict[str, str] = {}
        for place, item in places:
            name, spelled = part_of(item, "name"), f"{'.'.join(map(str, place[:-1]))}[{place[-1]}]"
            if isinstance(name, str) and first.setdefault(name, spelled) != spelled:
                yield (*place, "name"), f"{first[name]} is called {name} too"

    def listed(self) -> list[tuple[str, Dataset]]:
        """Every dataset that has a share, with its domain."""
        if self.datasets:
            return [(item.domain or item.name, item) for item in self.datasets if item.weight]
        return [
            (name, item)
            for name, domain in self.domains.items()
            if domain.weight
            for item in domain.sources
            if item.weight
        ]


def _numbered(items: Any) -> Iterator[tuple[int, Any]]:
    return enumerate(items if isinstance(items, list) else [])


def read_mixture_file(path: Path) -> MixtureFile:
    """Every mistake at once, with its line."""
    return load_section(path, MixtureFile, next="fix them and run the command again")


def mixture_weights(mixture: MixtureFile) -> dict[str, Fraction] | None:
    """Of every listed dataset, adding up to 1; None where none has a weight: as much as each has."""
    if mixture.datasets:
        if not any("weight" in item.model_fields_set for item in mixture.datasets):
            return None
        weights = {item.name: item.weight for item in mixture.datasets}
        checked = check_weights(
            weights, list(weights), where="datasets", normalize=mixture.normalize, kind="dataset"
        )
        return {name: weight for name, weight in checked.items() if weight}
    shares = check_weights(
        {name: domain.weight for name, domain in mixture.domains.items()},
        list(mixture.domains),
        where="domains",
        normalize=mixture.normalize,
    )
    found: dict[str, Fraction] = {}
    for name, domain in mixture.domains.items():
        if not shares[name]:
            continue
        within = check_weights(
            {item.name: item.weight for item in domain.sources},
            [item.name for item in domain.sources],
            where=f"domains.{name}.sources",
            normalize=mixture.normalize or len(domain.sources) == 1,
            kind="source",
        )
        found |= {source: shares[name] * weight for source, weight in within.items() if weight}
    return found


def to_mixture(mixture: MixtureFile) -> Json:
    """The shares as the section of a recipe; nothing, where there are none."""
    weights = mixture_weights(mixture)
    if weights is None:
        return {}
    domains: dict[str, dict[str, Fraction]] = {}
    for domain, item in mixture.listed():
        domains.setdefault(domain, {})[item.name] = weights[item.name]
    whole = {name: sum(own.values(), Fraction(0)) for name, own in domains.items()}
    return {
        "weights": {name: _decimal(weight) for name, weight in whole.items()},
        "sources": {
            name: {source: _decimal(weight / whole[name]) for source, weight in own.items()}
            for name, own in domains.items()
            if len(own) > 1
        },
    }


def to_sources(mixture: MixtureFile) -> list[Source]:
    """The datasets that have a share, as sources of a recipe whose directory is that of the file."""
    return [_source(domain, item) for domain, item in mixture.listed()]


def _decimal(weight: Fraction) -> str:
    """As a recipe writes it: twenty places, of which seven count."""
    return str(round(Decimal(weight.numerator) / weight.denominator, 20))


def _source(domain: str, item: Dataset) -> Source:
    hub = None
    if item.dataset is not None:
        hub = Hub(
            dataset=item.dataset, config=item.subset, split=item.split or "train", revision=item.revision
        )
    return Source(
        name=item.name,
        domain=domain,
        license=item.license,
        files=item.files,
        hub=hub,
        where=item.where,
        fields=Fields(text=item.text_field, id=item.id_field),
        template=item.template,
        sample=Sample(method="reservoir", k=item.samples) if item.samples else None,
        limit=_limit(item),
        unit=item.unit,
    )


def _limit(item: Dataset) -> Limit | None:
    given = item.limit.model_dump(exclude_none=True) if item.limit else {}
    bounds = {"docs": item.max_records, "megabytes": item.megabytes}
    given |= {name: bound for name, bound in bounds.items() if bound}
    return Limit(**given) if given else None


_WORK = ".tokmill"
_MAX_BYTES = 1 << 30


@short_repr
class Trained(NamedTuple):
    """A tokenizer, and the log of its training."""

    path: Path
    log: Path
    facts: Json

    def as_json(self) -> Json:
        return {**self.facts, "path": str(self.path), "log": str(self.log)}


def tokenizer_train(
    *,
    manifest: str | Path,
    out: str | Path,
    vocab_size: int = 32000,
    model: Literal["unigram", "bpe", "byte_bpe"] = "unigram",
    stats: str | Path | None = None,
    eos: str | None = None,
    sample_megabytes: int = 256,
    seed: int | None = None,
    character_coverage: float | str | None = None,
    byte_fallback: bool | None = None,
    hard_vocab_limit: bool | None = None,
    normalization: str | None = None,
    user_symbol: Sequence[str] = (),
    control_symbol: Sequence[str] = (),
    add_dummy_prefix: bool | None = None,
    remove_extra_whitespaces: bool | None = None,
    split_digits: bool | None = None,
    min_frequency: int | None = None,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Train a tokenizer on a sample of the datasets of a mixture file, drawn by weight.

    Options that are None have the defaults of `tokenizer.train` in a recipe;
    `eos` is </s>, of byte_bpe <|endoftext|>.
    """
    options: Json = {
        "model": model,
        "vocab_size": vocab_size,
        "sample_megabytes": sample_megabytes,
        "character_coverage": None if character_coverage is None else str(character_coverage),
        "byte_fallback": byte_fallback,
        "hard_vocab_limit": hard_vocab_limit,
        "normalization": normalization,
        "user_symbols": list(user_symbol) or None,
        "control_symbols": list(control_symbol) or None,
        "add_dummy_prefix": add_dummy_prefix,
        "remove_extra_whitespaces": remove_extra_whitespaces,
        "split_digits": split_digits,
        "min_frequency": min_frequency,
    }
    eos = eos or ("<|endoftext|>" if model == "byte_bpe" else "</s>")
    manifest, out = Path(manifest), Path(out)
    mixture = read_mixture_file(manifest)
    recipe = _recipe(mixture, options, eos, mixture.seed if seed is None else seed)
    base = manifest.resolve().parent
    asked = options_of(recipe)
    where = out / LOG if stats is None else Path(stats)
    check_workplace(out / _WORK)
    result = run_recipe(recipe, base, out / _WORK, workers=workers, until="tokenizer", progress=progress)
    made = result.artifacts["tokenizer"]
    (trained_file,) = made.manifest.entries("tokenizer")
    log = json.loads(read_whole(made.directory / LOG, _MAX_BYTES))
    items, commits = {item.name: item for _, item in mixture.listed()}, hub_commits(result.artifacts)
    for entry in log["datasets"]:
        item = items[entry["name"]]
        entry["dataset"] = item.dataset or ", ".join(item.files or [])
        entry["revision"] = commits.get(entry["name"], {}).get("revision")
    trained = read_whole(made.path(trained_file), _MAX_BYTES)
    if not replace and (refusal := _refusal(out / trained_file.path, trained, where, asked)):
        shutil.rmtree(out / _WORK)
        raise refusal
    commit_bytes(out / trained_file.path, trained)
    log["asked"] = asked
    commit_bytes(where, json.dumps(log, indent=1, ensure_ascii=False).encode() + b"\n")
    shutil.rmtree(out / _WORK)
    return Trained(out / trained_file.path, where, log)


def _refusal(model: Path, trained: bytes, log: Path, asked: Json) -> InputError | None:
    """Models of other sizes and kinds have other names, and may lie beside each other;
    the log tells of the last."""
    if not model.is_file() or read_whole(model, _MAX_BYTES) == trained:
        return None
    before = None
    with contextlib.suppress(ValueError):
        log_entries = json.loads(read_whole(log, _MAX_BYTES)) if log.is_file() else None
        before = log_entries.get("asked") if isinstance(log_entries, dict) else None
    if before == asked:  # the same options, and other texts
        before = None
    return other_options(model, before, asked)


def _recipe(mixture: MixtureFile, options: Json, eos: str, seed: int) -> Recipe:
    weights = mixture_weights(mixture)
    training = {key: value for key, value in options.items() if value is not None}
    if weights is not None:
        training["weights"] = {name: _decimal(weight) for name, weight in weights.items()}
    content = {
        "name": "tokenizer",
        "seed": seed,
        "sources": [source.model_dump(mode="json", exclude_defaults=True) for source in to_sources(mixture)],
        "dedup": {"exact": False},
        "split": {"valid_fraction": 0},
        "tokenizer": {"train": training, "eos": eos},
    }
    return recipe_of_options(content)
