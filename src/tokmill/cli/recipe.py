"""`tokmill recipe check | schema | init`."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.markup import escape

from tokmill.cleaning_plan import check_cleaning
from tokmill.cli.console import json_option, out, print_json, reports_errors
from tokmill.errors import RecipeError
from tokmill.recipe import Recipe
from tokmill.recipe_file import load_recipe, parse_recipe
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
    """Check, describe or start a recipe."""


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
    "init", epilog="Example: tokmill recipe init --files 'data/*.jsonl.zst' --name corpus"
)
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=Path("recipe.yaml"))
@click.option("--files", default="data/*.jsonl", show_default=True, help="Glob of the input files.")
@click.option("--name", default="corpus", show_default=True, help="Name of the recipe.")
@json_option
@reports_errors
def init(path: Path, files: str, name: str, as_json: bool) -> None:
    """Write a commented starter recipe to PATH. An existing file is never overwritten."""
    if path.exists():
        raise RecipeError("exists already", where=str(path), next="choose another path, or remove it first")
    text = STARTER.format(name=json.dumps(name), files=json.dumps(files, ensure_ascii=False))
    parse_recipe(text.encode(), str(path))
    commit_bytes(path, text.encode())
    if as_json:
        print_json({"ok": True, "path": str(path)})
    else:
        out.print(f"wrote {escape(str(path))}; edit it, then: tokmill run {escape(str(path))}")
