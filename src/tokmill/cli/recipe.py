"""`tokmill recipe check | schema | init | import`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
from rich.markup import escape

from tokmill.cleaning_plan import check_cleaning
from tokmill.cli.console import err, json_option, out, print_json, reports_errors
from tokmill.demo.stand_in import write_stand_in
from tokmill.errors import RecipeError
from tokmill.recipe import Recipe
from tokmill.recipe_file import load_recipe, parse_recipe
from tokmill.recipe_import import import_manifest
from tokmill.recipe_shelf import STAND_IN, copy_recipe
from tokmill.storage.commit import commit_bytes

STARTER = """\
# A tokmill recipe: everything that can change a byte of the result. Paths are relative to this file.
name: {name}
seed: 42

sources:
  - name: mine
    domain: web                       # domains are what mixtures and reports speak of
    files: {files}
    # license: CC-BY-4.0              # for documents that carry none of their own
    # fields: {{text: text, id: id}}    # which key holds what; template: "Q: {{question}}\\nA: {{answer}}"

normalize: {{unicode: NFC, nul: strip, newlines: lf}}

# license: {{allow: [MIT, Apache-2.0, "CC-BY-*"], unknown: drop}}
# language: {{method: detect, keep: [en]}}
filters:                              # packs: gopher-quality gopher-repetition c4 fineweb stage-a web-en
  - {{measure: chars, min: 200, reason: too_short}}

dedup: {{exact: true, scope: global}}   # near: {{threshold: 0.8}} finds near duplicates too

split: {{method: hash, valid_fraction: 0.01}}

tokenizer:                            # or a file: {{path: tok/o200k_base.tiktoken, sha256: …, eos: "<|endoftext|>"}}
  train: {{model: byte_bpe, vocab_size: 32000}}
  eos: "<|endoftext|>"

pack: {{layout: concat, length: 2048, tail: drop}}

builds:
  - {{name: rows, format: memmap}}      # input_ids.mmap for NumPy and PyTorch
  - {{name: mega, format: megatron}}    # .bin/.idx for Megatron
"""


@click.group("recipe", epilog="Example: tokmill recipe check recipe.yaml")
def recipe_command() -> None:
    """Check, describe, start or import a recipe."""


@recipe_command.command("check", epilog="Example: tokmill recipe check recipe.yaml")
@click.argument("recipe", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@reports_errors
def check(recipe: Path, as_json: bool) -> None:
    """List every mistake in RECIPE at once, with its line and the key that was probably meant."""
    loaded = load_recipe(recipe)
    check_cleaning(loaded, recipe.resolve().parent)
    if as_json:
        print_json({"ok": True, "recipe": loaded.model_dump(mode="json")})
    else:
        out.print(
            f"[green]✓[/] {escape(str(recipe))}: {len(loaded.sources)} sources, {len(loaded.builds)} builds"
        )


@recipe_command.command("schema", epilog="Example: tokmill recipe schema > recipe.schema.json")
@json_option
@reports_errors
def schema(as_json: bool) -> None:
    """Print the JSON schema of recipes, for editors and for reading. It is JSON with and without --json."""
    print_json(Recipe.model_json_schema())


@recipe_command.command(
    "init",
    epilog="Example: tokmill recipe init --files 'data/*.jsonl.zst' --name corpus; "
    "tokmill recipe init --like stage-a --offline",
)
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--files", help="Glob of the input files [default: data/*.jsonl].")
@click.option("--name", help="Name of the recipe [default: corpus].")
@click.option("--like", metavar="NAME", help="Copy a recipe of a real project; an unknown NAME lists them.")
@click.option(
    "--offline",
    is_flag=True,
    help="With --like: the variant without a network, and small files that it reads.",
)
@json_option
@reports_errors
def init(
    path: Path | None, files: str | None, name: str | None, like: str | None, offline: bool, as_json: bool
) -> None:
    """Write a recipe to PATH [default: recipe.yaml, or NAME.yaml with --like]. An existing file is never overwritten."""
    if like is None and offline:
        raise RecipeError("`--offline` is for `--like`", where="the command line", next="add `--like NAME`")
    if like is not None and (files is not None or name is not None):
        raise RecipeError(
            "a recipe that is copied has its own files and name",
            where="the command line",
            next="edit the copy",
        )
    path = path or Path("recipe.yaml" if like is None else f"{like}.yaml")
    _refuse_existing(path)
    if like is not None:
        copy_recipe(like, path, offline=offline)
        if offline:
            made = len(write_stand_in(path.parent / STAND_IN))
            err.print(f"wrote {made} small files into {escape(str(path.parent / STAND_IN))}")
    else:
        text = STARTER.format(
            name=json.dumps("corpus" if name is None else name),
            files=json.dumps("data/*.jsonl" if files is None else files, ensure_ascii=False),
        )
        parse_recipe(text.encode(), str(path))
        commit_bytes(path, text.encode())
    if as_json:
        print_json({"ok": True, "path": str(path)})
    else:
        out.print(f"wrote {escape(str(path))}; edit it, then: tokmill run {escape(str(path))}")


@recipe_command.command("import", epilog="Example: tokmill recipe import data_mix.yaml recipe.yaml")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=Path("recipe.yaml"))
@json_option
@reports_errors
def import_(file: Path, path: Path, as_json: bool) -> None:
    """Turn FILE, a YAML list of datasets or of domains with weights, into a recipe at PATH.

    Every key of FILE becomes a key of the recipe, or is told with its line and the reason. An existing PATH is never
    overwritten.
    """
    _refuse_existing(path)
    imported = import_manifest(file, path.resolve().parent)
    commit_bytes(path, imported.text.encode())
    if as_json:
        print_json(
            {
                "ok": True,
                "path": str(path),
                "out": imported.out,
                "unmapped": [told._asdict() for told in imported.unmapped],
            }
        )
        return
    for told in imported.unmapped:
        err.print(escape(f"{file}, {told}"), soft_wrap=True)
    count = len(imported.recipe.sources)
    left = f"{len(imported.unmapped)} keys did not map" if imported.unmapped else "every key mapped"
    out.print(f"wrote {escape(str(path))}: {count} sources; {left}")
    if imported.out is not None:  # a recipe does not say where its results go
        out.print(escape(f"next: tokmill run {shlex.quote(str(path))} --out {shlex.quote(imported.out)}"))


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise RecipeError("exists already", where=str(path), next="choose another path, or remove it first")
