"""`tokmill recipe check | schema | init | import`, and `tokmill demo`: a recipe to start from, and one that runs as it is."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
from rich.markup import escape

from tokmill.adhoc.recipe_import import import_manifest
from tokmill.adhoc.single_steps import DECISIONS
from tokmill.audit.examples import write_decisions
from tokmill.audit.verify import verify
from tokmill.cli.console import (
    describe_counts,
    err,
    json_option,
    open_progress,
    out,
    print_json,
    reports_errors,
)
from tokmill.cli.source_options import workers_option
from tokmill.demo.corpus import write_corpus, write_recipe
from tokmill.demo.stand_in import write_stand_in
from tokmill.errors import RecipeError, plural
from tokmill.pipeline.plan import check_cleaning
from tokmill.pipeline.run import run
from tokmill.recipe import Recipe
from tokmill.recipe.file import STAND_IN, copy_recipe, load_recipe, parse_recipe
from tokmill.reports.page import report
from tokmill.storage.disk import commit_bytes

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
            f"[green]✓[/] {escape(str(recipe))}: {plural(len(loaded.sources), 'source')}, "
            f"{plural(len(loaded.builds), 'build')}"
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
            err.print(f"wrote {plural(made, 'small file')} into {escape(str(path.parent / STAND_IN))}")
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

    Every key of FILE becomes a key of the recipe, or is reported with its line and the reason. An existing PATH is never
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
                "unmapped": [unmapped._asdict() for unmapped in imported.unmapped],
            }
        )
        return
    for unmapped in imported.unmapped:
        err.print(escape(f"{file}, {unmapped}"), soft_wrap=True)
    sources = plural(len(imported.recipe.sources), "source")
    left = f"{plural(len(imported.unmapped), 'key')} did not map" if imported.unmapped else "every key mapped"
    out.print(f"wrote {escape(str(path))}: {sources}; {left}")
    if imported.out is not None:  # a recipe does not say where its results go
        out.print(escape(f"next: tokmill run {shlex.quote(str(path))} --out {shlex.quote(imported.out)}"))


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise RecipeError("exists already", where=str(path), next="choose another path, or remove it first")


LINE = "\n"


@click.command(
    "demo", epilog="Example: tokmill demo --out demo\n\ntokmill demo --report --decisions --log-file demo.log"
)
@click.option(
    "--out",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Output.",
)
@click.option("--report", "has_report", is_flag=True, help="Also write report.html and report.json.")
@click.option(
    "--decisions",
    "has_decisions",
    is_flag=True,
    help="Also write decisions.jsonl.zst: the verdict on every document, and why.",
)
@workers_option
@json_option
@reports_errors
def demo_command(
    directory: Path, has_report: bool, has_decisions: bool, workers: int | None, as_json: bool
) -> None:
    """Run a recipe over what every machine has: the Python standard library, its language reference, and a small
    corpus of our own. Trains a tokenizer, so nothing is downloaded."""
    corpus, recipe = directory / "corpus", directory / "recipe.yaml"
    if not recipe.exists():
        err.print("[dim]writing the corpus …[/]")
        write_corpus(corpus)
        write_recipe(directory)
    with open_progress() as progress:
        result = run(recipe, directory / "out", workers=workers, progress=progress)
    verified = verify(result.out)
    extra: dict[str, str] = {}
    if has_report:
        made = report(result.out, directory)
        extra |= {"report": str(made.page), "figures": str(made.figures)}
    if has_decisions:
        path = directory / DECISIONS
        write_decisions(path, result.artifacts)
        extra["decisions"] = str(path)
    if as_json:
        print_json({**verified.as_json(), "run": result.as_json(), **extra})
    else:
        for name in ("build/rows", "build/mega"):
            out.print(f"{name}: {escape(describe_counts(result.artifacts[name].manifest.counts))}")
        out.print(
            f"""
tokens     {result.out}/build/rows/train/input_ids.mmap
           {result.out}/build/mega/train/tokens.bin + tokens.idx
tokenizer  {result.out}/tokenizer/tokenizer.json
manifest   {result.out}/manifest.json
recipe     {recipe}
digest     {verified.digest}  ({"proven" if verified.ok else "NOT PROVEN"})
{"".join(f"{name:<11}{where}{LINE}" for name, where in extra.items())}
next       tokmill verify {result.out}
           tokmill run {recipe} --out {result.out}      (does nothing: all is up to date)
           edit {recipe} and run it again: only what depends on the change is rebuilt
           tokmill recipe init                          (a recipe of your own)""",
            markup=False,
        )
    raise SystemExit(0 if verified.ok else 1)
