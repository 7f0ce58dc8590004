"""`tokmill materialize sample`: a small sample with its splits, drawn once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from tokmill.cli.console import json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.source_options import named_pairs, whole_number
from tokmill.progress import told_to
from tokmill.subset import META_NAME, Method, materialize


@click.command(
    "sample",
    epilog="Example: tokmill materialize sample --dataset wmt/wmt14 --config fr-en --source-key translation.fr "
    "--target-key translation.en --k 120 --seed 42 --splits train=96,valid=12,test=12 --out mini",
)
@click.argument("patterns", nargs=-1)
@click.option("--dataset", help="A dataset of the hub, instead of files.")
@click.option("--config", help="Config of the dataset.")
@click.option(
    "--split", default="train", show_default=True, help="Of the dataset; or several: train+validation."
)
@click.option("--revision", help="Branch, tag or commit; resolved once and recorded [default: main].")
@click.option("--text", help="Field that holds the text [default: text or content].")
@click.option("--template", help='Text made from fields, e.g. "{translation.fr}\\n{translation.en}".')
@click.option("--source-key", help="Of pairs: the field of one side, e.g. translation.fr.")
@click.option("--target-key", help="Of pairs: the field of the other.")
@click.option(
    "--where", multiple=True, metavar="FIELD=VALUE", help="Keep records whose field has this value."
)
@click.option("--min-chars", type=click.IntRange(0), help="Of a text, or of each side of a pair.")
@click.option("--max-chars", type=click.IntRange(0), help="Of a text, or of each side of a pair.")
@click.option("--k", type=click.IntRange(1), required=True, help="Documents.")
@click.option("--seed", type=click.IntRange(0), required=True, help="Another seed, another sample.")
@click.option("--splits", required=True, metavar="NAME=N,…", help="Exact sizes, k in all.")
@click.option(
    "--method",
    type=click.Choice(["reservoir", "weighted"]),
    default="reservoir",
    show_default=True,
    help="Every document alike, or by its weight.",
)
@click.option("--weight", help="Field with the weight, for weighted.")
@click.option("--keep-duplicates", is_flag=True, help="Draw from equal texts too.")
@click.option("--resample", is_flag=True, help="Draw again in the place of a sample that is there.")
@click.option(
    "--out",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help=f"Output: manifest.jsonl and {META_NAME}.",
)
@json_option
@reports_errors
def sample_command(
    patterns: tuple[str, ...],
    dataset: str | None,
    config: str | None,
    split: str,
    revision: str | None,
    text: str | None,
    template: str | None,
    source_key: str | None,
    target_key: str | None,
    where: tuple[str, ...],
    min_chars: int | None,
    max_chars: int | None,
    k: int,
    seed: int,
    splits: str,
    method: Method,
    weight: str | None,
    keep_duplicates: bool,
    resample: bool,
    directory: Path,
    as_json: bool,
) -> None:
    """Draw k documents, of the files that PATTERNS name or of --dataset, and divide them by --splits.

    All of them are read; equal texts count once. A sample that is there is never drawn again unasked.
    """
    if bool(patterns) == bool(dataset):
        raise click.UsageError("needs either PATTERNS or --dataset")
    if (source_key is None) != (target_key is None):
        raise click.UsageError("a pair has two sides: give --source-key and --target-key")
    bounds = {
        key: value for key, value in (("min_chars", min_chars), ("max_chars", max_chars)) if value is not None
    }
    pair: dict[str, Any] | None = None
    if source_key is not None:
        pair = {"source_key": source_key, "target_key": target_key, **bounds}
    filters = {**({"where": named_pairs("--where", where)} if where else {}), **({} if pair else bounds)}
    hub = {"dataset": dataset, "config": config, "split": split, "revision": revision}
    sizes = named_pairs("--splits", tuple(splits.split(",")))
    with open_progress() as progress, told_to(progress.say):
        path = materialize(
            hub if dataset else list(patterns),
            directory,
            k=k,
            seed=seed,
            splits={name: whole_number("--splits", size) for name, size in sizes.items()},
            method=method,
            weight=weight,
            filters=filters or None,
            parallel=pair,
            text=text,
            template=template and template.replace("\\n", "\n"),
            dedup=not keep_duplicates,
            resample=resample,
        )
    meta = json.loads(path.with_name(META_NAME).read_bytes())
    if as_json:
        print_json({"ok": True, "manifest": str(path), **meta})
        return
    if dataset:
        out.print(f"{escape(dataset)} at {meta['revision']}")
    counts = meta["counts"]
    shown = ", ".join(f"{name} {size:,}" for name, size in meta["splits"].items())
    out.print(f"{counts['taken']:,} of {counts['available']:,} documents ({shown}) → {escape(str(path))}")
