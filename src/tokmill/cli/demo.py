"""`tokmill demo`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from tokmill.audit.report.writing import report
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
from tokmill.decisions import write_decisions
from tokmill.demo.corpus import write_corpus, write_recipe
from tokmill.running import run
from tokmill.standalone import DECISIONS

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
    help="Also write decisions.jsonl.zst: what became of every document, and why.",
)
@workers_option
@json_option
@reports_errors
def demo_command(
    directory: Path, has_report: bool, has_decisions: bool, workers: int | None, as_json: bool
) -> None:
    """Mill what every machine has: the Python standard library, its language reference, and a small corpus
    of our own. Trains a tokenizer, so nothing is downloaded."""
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
