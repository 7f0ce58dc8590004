"""Recipes to start from (`recipe init`), checked (`check`), described (`schema`),
and made of other projects' lists (`import`).

Lists become recipes as far as they map; the rest is reported line by line.

    datasets:                         domains:                          domains: {web: 0.7, math: 0.3}
      - path: org/name                  web:                            sources:
        name: config                      weight: 0.7                     - {domain: web, dataset: org/name}
        split: train                      sources: [{…, weight: 1}]
        weight: 0.5

    tokenizer: tok/spm.model                          path, sha256 and eos, read from the file where it exists
    output_dir: /data/out                             `--out` of a run
    outputs: {dir: /data/out, format: npy}            the same, and a build in that format
    outputs: [{name: rows, format: memmap}, …]        builds

    file ─ read_lines ─ every key taken, or left with a reason ─> Recipe, its text, and what did not map

The keys are those that such files have: `path` and `name` as `load_dataset` takes them,
or `dataset` and `subset`; a share is called weight, probability, proportion, ratio or share.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import abc
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tokmill.adhoc.explanation import Explained, explain_recipe
from tokmill.adhoc.imported_sources import (
    SHARE,
    Mapping,
    Sources,
    Unmapped,
    Value,
    moved_path,
    parse_share,
    read_lines,
    take_bounds,
    to_name,
    unique_name,
)
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json
from tokmill.demos.stand_in import write_stand_in
from tokmill.errors import RecipeError, TokmillError
from tokmill.formats import format_names
from tokmill.pipeline.examination.examine import examine
from tokmill.pipeline.run import base_of, place_of
from tokmill.recipe import Recipe
from tokmill.recipe.examples import STAND_IN, copy_recipe
from tokmill.recipe.file import Settings, parse_recipe, read_recipe
from tokmill.storage.disk import commit_bytes
from tokmill.storage.location import file_sha256
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.vocabulary import find_eos

_TOKENIZER = ("tokenizer", "tokenizer_path", "tokenizer_file", "tokenizer_name_or_path", "tokenizer_name")
_TOKENIZER_FILE = re.compile(r"\.(json|model|tiktoken)$")
_DIRECTORY = ("output_dir", "out_dir", "output_path", "output", "save_dir")
_WITHIN = ("dir", "directory", "path", *_DIRECTORY, "normalized_dir")
_USUAL_EOS = {".model": "</s>"}


class Outputs:
    """Where results go and as what, taken from the top of the file."""

    def __init__(self, top: Mapping, path: Path, base: Path) -> None:
        self._top, self._path, self._base = top, path, base
        self.out: str | None = None
        self.builds: list[Json] = []
        directory, outputs = top.take(*_DIRECTORY), top.take("outputs", "builds")
        for item in outputs.value if outputs is not None and isinstance(outputs.value, list) else [outputs]:
            if item is not None:
                self._add(item)
        if directory is not None:
            self._put(top, directory)
        self._build(top, top.take("output_format"), "rows")

    def tokenizer(self) -> Json | None:
        """The section of a recipe; None where the file names none that could be one."""
        given = self._top.take(*_TOKENIZER)
        inner = given.value if given is not None and isinstance(given.value, Mapping) else None
        named = inner.take("path", "file", "model", "name") if inner is not None else given
        if given is None or named is None:
            return None
        if not isinstance(named.value, str) or not _TOKENIZER_FILE.search(named.value):
            why = (
                "no file of a tokenizer; name one: `tokenizer: {path: …, sha256: …, eos: …}`; one is trained "
                "otherwise"
            )
            self._top.report(named, why)
            return None
        section: Json = {"path": moved_path(named.value, self._path, self._base)}
        eos = inner.take("eos", "eos_token", "eos_id") if inner is not None else None
        sha256 = inner.take_text("sha256") if inner is not None else None
        file = self._base / Path(section["path"]).expanduser()
        if sha256 is None and file.is_file():
            sha256 = file_sha256(file)
        if sha256 is not None:
            section["sha256"] = sha256
        return section | {"eos": eos.value if eos is not None else self._eos(file, named)}

    def _eos(self, file: Path, named: Value) -> str | int:
        """What the file says itself; what such files usually have, and a word, where it cannot be asked."""
        try:
            return find_eos(load_tokenizer(file))
        except TokmillError:
            usual = _USUAL_EOS.get(file.suffix, "<|endoftext|>")
            self._top.report(
                named, f"cannot be read here; a document is taken to end in {usual}: check `eos`"
            )
            return usual

    def _add(self, item: Value) -> None:
        """One of `outputs`: a directory, or a mapping that says a format, a directory or both."""
        if not isinstance(item.value, Mapping):
            self._put(self._top, item)
            return
        inner = item.value
        name = inner.take_text("name") or "rows"
        if (directory := inner.take(*_WITHIN)) is not None:
            self._put(inner, directory)
        self._build(inner, inner.take("format", "output_format", "type"), name)

    def _put(self, owner: Mapping, directory: Value) -> None:
        if not isinstance(directory.value, str):
            owner.report(directory, "should be a directory")
        elif self.out is not None:
            owner.report(directory, f"a run writes all into one directory, {self.out}")
        else:
            self.out = directory.value

    def _build(self, owner: Mapping, form: Value | None, name: str) -> None:
        if form is None:
            return
        if form.value not in format_names():
            owner.report(form, f"no format that is written; there are {', '.join(format_names())}")
            return
        self.builds.append({"name": unique_name(name, self.builds), "format": form.value})


_LISTS = ("datasets", "sources", "data", "mixture", "corpora", "train")


@short_repr
class Imported(NamedTuple):
    recipe: Recipe
    text: str
    unmapped: list[Unmapped]
    out: str | None  # where the file has its results written: `--out` of a run
    path: Path | None = None  # where the text was written

    def as_json(self) -> Json:
        unmapped = [unmapped._asdict() for unmapped in self.unmapped]
        return {"path": str(self.path), "out": self.out, "unmapped": unmapped}


def recipe_import(file: str | Path, path: str | Path = "recipe.yaml") -> Imported:
    """Turn a YAML list of datasets or of domains with weights into a recipe at `path`, which must be free.

    Every key becomes a key of the recipe, or is in `unmapped` with its line and the reason.
    """
    target = Path(path)
    _refuse_existing(target)
    imported = import_manifest(Path(file), target.resolve().parent)
    commit_bytes(target, imported.text.encode())
    return imported._replace(path=target)


def import_manifest(path: Path, base: Path) -> Imported:
    """A recipe for the directory `base`; RecipeError if the file lists nothing that could be one."""
    document = read_lines(path)
    top = document.value
    if isinstance(top, list):
        top = Mapping(document.line, "", {"datasets": document._replace(path="datasets")})
    if not isinstance(top, Mapping):
        raise _not_a_list(path)
    sources = Sources(path, base)
    domains = _domain_weights(top, sources)
    for key in _LISTS:
        listed = top.values.get(key)
        if listed is not None and isinstance(listed.value, (list, Mapping)):
            top.take(key)
            sources.add_all(listed, None)
    if not sources.found:
        raise _not_a_list(path)
    content = {"name": to_name(top.take_text("name", "experiment", "run_name") or path.stem)}
    outputs = Outputs(top, path, base)
    content |= _sections(top, sources, domains, outputs)
    unmapped = sorted({*top.unmapped(), *sources.unmapped})
    text = _spell(content, unmapped, path.name, outputs.out)
    return Imported(parse_recipe(text.encode(), f"{path}, as a recipe"), text, unmapped, outputs.out)


def _not_a_list(path: Path) -> RecipeError:
    return RecipeError(
        "lists no data that a recipe could read",
        where=str(path),
        next=(
            "it needs `datasets` (a list) or `domains` (with `weight` and `sources`); see `tokmill recipe "
            "init`"
        ),
    )


# -- the rest of the file --------------------------------------------------------------------------


def _domain_weights(top: Mapping, sources: Sources) -> dict[str, Decimal]:
    """Shares of domains; sources that are listed inside of them are added."""
    found: dict[str, Decimal] = {}
    for listed in (value for key in ("domains", "weights", "domain_weights") if (value := top.take(key))):
        for name, item in _named(listed):
            inner, weight = item.value, item
            if isinstance(inner, Mapping):
                inner.take("name")
                given = inner.take(*SHARE)
                nested = inner.take("sources", "datasets", "data")
                if nested is not None and isinstance(nested.value, (list, Mapping)):
                    sources.add_all(nested, name)
                if given is None:
                    continue
                weight = given
            share = parse_share(weight.value)
            if share is None:
                top.report(weight, "a share should be a number from 0 up")
            else:
                found[to_name(name)] = share
    return found


def _named(listed: Value) -> Iterator[tuple[str, Value]]:
    """[{name: web, …}, …] and {web: …} alike."""
    if isinstance(listed.value, Mapping):
        yield from listed.value.take_all()
    elif isinstance(listed.value, list):
        for item in listed.value:
            if isinstance(item.value, Mapping) and (name := item.value.take_text("name", "domain")):
                yield name, item


def _sections(top: Mapping, sources: Sources, domains: dict[str, Decimal], outputs: Outputs) -> Json:
    content: Json = {}
    seed = top.take("seed", "random_seed", "shuffle_seed")
    if seed is not None and isinstance(seed.value, int) and seed.value >= 0:
        content["seed"] = seed.value
    elif seed is not None:
        top.report(seed, "should be a whole number from 0 up")
    mixture = _mixture(top, sources, domains)
    content["sources"] = sources.found
    if rule := take_bounds(top):
        content["filters"] = [rule]
    fraction = top.take("valid_fraction", "val_fraction", "validation_fraction", "val_ratio", "val_split")
    if fraction is not None:
        share = parse_share(fraction.value)
        if share is not None and share < 1:
            content["split"] = {"method": "hash", "valid_fraction": _Number(share)}
        else:
            top.report(fraction, "should be a share below 1")
    tokenizer, vocabulary = outputs.tokenizer(), top.take_whole("vocab_size")
    if tokenizer is not None:
        content["tokenizer"] = tokenizer
        if vocabulary is not None:
            top.report(top.values["vocab_size"], "the tokenizer's file has its own")
    elif vocabulary is not None or mixture or outputs.builds:  # weights are shares of tokens
        training: Json = {"vocab_size": vocabulary} if vocabulary else {"model": "byte_bpe"}
        if mixture.get("weights") or mixture.get("sources"):
            training["weights"] = "mixture"
        content["tokenizer"] = {"train": training, "eos": "<|endoftext|>"}
    if mixture:
        content["mixture"] = mixture
    if length := top.take_whole(*_LENGTH):
        content["pack"] = {"length": length}
    if outputs.builds:
        content["builds"] = outputs.builds
    for why, keys in _LEFT:
        top.leave(why, *keys)
    return content


_LENGTH = ("seq_len", "sequence_length", "seq_length", "block_size", "max_seq_length", "context_length")
_LEFT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("datasets are read as a stream; nothing is cached", ("cache_dir",)),
    ("is an option of the command: --workers", ("num_workers", "workers", "num_proc")),
    ("data is always read as a stream; nothing to set", ("streaming",)),
    ("order comes from `seed`", ("shuffle", "shuffle_buffer", "buffer_size")),
    (
        "belongs to the loader: Batches(…, batch_size=…)",
        ("batch_size", "global_batch_size", "micro_batch_size"),
    ),
)


def _mixture(top: Mapping, sources: Sources, domains: dict[str, Decimal]) -> Json:
    """Shares of domains, and of sources within a domain; a source without a domain is one of its own."""
    members: dict[str, list[str]] = {}
    for index, source in enumerate(sources.found):
        if domains or sources.shares:
            own = source.get("domain", source["name"])
            sources.found[index] = source = {"name": source["name"], "domain": own, **source}
        members.setdefault(source.get("domain", "default"), []).append(source["name"])
    found: Json = {}
    if domains or sources.shares:
        given = domains or sources.shares
        place = top.values.get("domains" if domains else "datasets", Value(top.line, "weights", None))
        named = members if domains else [source["name"] for source in sources.found]
        for name in given:
            if name not in named:
                own_place = place.value.values.get(name) if isinstance(place.value, Mapping) else None
                top.report(own_place or place, f"no source has the domain {name}")
        for name in named:
            if name not in given:
                top.report(place, f"{name} has no weight: it is taken as 0, and is not read")
        weights, within = _shares(members, domains, sources.shares)
        for name in (
            own for shares in within.values() for own in shares if domains and own not in sources.shares
        ):
            top.report(
                place, f"{name} has no weight beside others of its domain: it is taken as 0, and is not read"
            )
        found["weights"] = _written(weights)
        if within:
            found["sources"] = {name: _written(shares) for name, shares in within.items()}
        if any(sum(shares.values(), Decimal(0)) != 1 for shares in (weights, *within.values())):
            found["normalize"] = True
    budget = top.take("total_tokens", "token_budget", "target_tokens", "tokens", "max_tokens")
    if budget is not None:
        found["tokens"] = budget.value
    return found


def _shares(
    members: dict[str, list[str]], domains: dict[str, Decimal], shares: dict[str, Decimal]
) -> tuple[dict[str, Decimal], dict[str, dict[str, Decimal]]]:
    """Without shares of domains, those of their sources add up;
    a source that has none beside others has 0."""
    nothing = Decimal(0)
    within = {name: {own: shares.get(own, nothing) for own in sources} for name, sources in members.items()}
    weights = {
        name: domains.get(name, nothing) if domains else sum(own.values(), nothing)
        for name, own in within.items()
    }
    return weights, {name: own for name, own in within.items() if len(own) > 1 and any(own.values())}


def _written(weights: dict[str, Decimal]) -> dict[str, _Number]:
    return {name: _Number(weight) for name, weight in weights.items()}


# -- as text ---------------------------------------------------------------------------------------


class _Number(str):
    """A number as a recipe takes it: the decimals that were written, without quotes."""

    def __new__(cls, value: Decimal) -> _Number:
        return super().__new__(cls, f"{value:f}")


class _Spelling(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)  # lists are set in from their key


def _number(dumper: Any, number: _Number) -> Any:
    return dumper.represent_scalar(f"tag:yaml.org,2002:{'float' if '.' in number else 'int'}", str(number))


def _text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None)


_Spelling.add_representer(_Number, _number)
_Spelling.add_representer(str, _text)


def _spell(content: Json, unmapped: list[Unmapped], name: str, out: str | None) -> str:
    lines = [f"# Imported from {name}. Paths are relative to this file."]
    if out is not None:
        lines.append(f"# Its results go to: tokmill run … --out {shlex.quote(out)}")
    if unmapped:
        lines += ["# What did not map:", *(f"#   {item}" for item in unmapped)]
    body = yaml.dump(content, Dumper=_Spelling, sort_keys=False, allow_unicode=True, width=110)
    return "\n".join(lines) + "\n\n" + body


# -- to start from ---------------------------------------------------------------------------------

STARTER = """\
# A tokmill recipe: everything that can change a byte of the result. Paths are relative to this file.
name: {name}
seed: 42

sources:
  - name: mine
    domain: web                       # mixtures weigh domains, and reports count by them
    files: {files}
    # license: CC-BY-4.0              # for documents that carry none of their own
    # fields: {{text: text, id: id}}    # which key holds what; template: "Q: {{question}}\\nA: {{answer}}"

normalize: {{unicode: NFC, nul: strip, newlines: lf}}

# license: {{allow: [MIT, Apache-2.0, "CC-BY-*"], unknown: drop}}
# language: {{method: detect, keep: [en]}}
filters:                              # packs: gopher-quality gopher-repetition c4 fineweb stage-a web-en code
  - {{measure: chars, min: 200, reason: too_short}}

dedup: {{exact: true, scope: global}}   # near: {{threshold: 0.8}} finds near duplicates too

split: {{method: hash, valid_fraction: 0.01}}

tokenizer:                            # or a file: {{path: tok/o200k_base.tiktoken, sha256: …, eos: "…"}}
  train: {{model: byte_bpe, vocab_size: 32000}}
  eos: "<|endoftext|>"

pack: {{layout: concat, length: 2048, tail: drop}}

builds:
  - {{name: rows, format: memmap}}      # input_ids.mmap for NumPy and PyTorch
  - {{name: mega, format: megatron}}    # .bin/.idx for Megatron
"""


@short_repr
class Started(NamedTuple):
    """A recipe that was written, and the small files that it reads."""

    path: Path
    files: tuple[Path, ...] = ()

    def as_json(self) -> Json:
        return {"path": str(self.path)}


def recipe_init(
    path: str | Path | None = None,
    *,
    files: str | None = None,
    name: str | None = None,
    like: str | None = None,
    offline: bool = False,
) -> Started:
    """Write a recipe to `path` (default: recipe.yaml, or `like`.yaml), which must be free.

    `like` copies that of a real project, `offline` its variant without a network and small files for it to
    read.
    """
    if like is None and offline:
        raise RecipeError("`--offline` is for `--like`", where="the command line", next="add `--like NAME`")
    if like is not None and (files is not None or name is not None):
        raise RecipeError(
            "a recipe that is copied has its own files and name",
            where="the command line",
            next="edit the copy",
        )
    target = Path(path or ("recipe.yaml" if like is None else f"{like}.yaml"))
    _refuse_existing(target)
    if like is not None:
        copy_recipe(like, target, offline=offline)
        return Started(target, tuple(write_stand_in(target.parent / STAND_IN)) if offline else ())
    text = STARTER.format(
        name=json.dumps("corpus" if name is None else name),
        files=json.dumps("data/*.jsonl" if files is None else files, ensure_ascii=False),
    )
    parse_recipe(text.encode(), str(target))
    commit_bytes(target, text.encode())
    return Started(target)


@short_repr
class Checked(NamedTuple):
    """A recipe without mistakes; and its keys, where that was asked for."""

    recipe: Recipe
    explained: list[Explained] | None = None

    def as_json(self) -> Json:
        keys = {"explained": [row._asdict() for row in self.explained]} if self.explained is not None else {}
        return {"recipe": self.recipe.model_dump(mode="json"), **keys}


def recipe_check(
    recipe: str | Path | abc.Mapping[str, Any] | Recipe,
    out: str | Path | None = None,
    *,
    set: Settings = (),
    explain: bool = False,
) -> Checked:
    """Everything that `run` would refuse before it begins, at once and by line; nothing is written.

    `set`: other values for keys, as of `run`. `explain`: every key with its value, and where that comes from.
    """
    written, base = read_recipe(recipe, set), base_of(recipe)
    checked = examine(written, base, place_of(written, base, out))
    return Checked(checked, list(explain_recipe(written, base)) if explain else None)


def recipe_schema() -> Json:
    """The JSON schema of recipes, for editors and for reading."""
    return Recipe.model_json_schema()


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise RecipeError("exists already", where=str(path), next="choose another path, or remove it first")
