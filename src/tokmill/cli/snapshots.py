"""`tokmill materialize` and `tokmill select`: snapshots of corpora, with a manifest to commit.

materialize hub | files    one source ─> a snapshot: shards, and a manifest that lists their sha256
materialize sample         files or a dataset ─> k documents with exact split sizes, drawn once
select                     a snapshot ─> a manifest of some of its shards
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec
from pydantic import ValidationError
from rich.markup import escape

from tokmill.adhoc.snapshot import materialize_source
from tokmill.adhoc.subset import META_NAME, Method, materialize
from tokmill.artifacts.progress import warnings_to
from tokmill.artifacts.snapshot import (
    Snapshot,
    check_shards,
    default_root,
    load_snapshot,
    select_shards,
    write_selection,
)
from tokmill.cli.console import choice_option, json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.source_options import (
    FILES,
    files_options,
    files_source,
    hub_options,
    hub_source,
    named_pairs,
    one_source_recipe,
    whole_number,
    with_options,
    workers_option,
)
from tokmill.errors import RecipeError, plural
from tokmill.recipe import Split


@click.command(
    "sample",
    epilog="Example: tokmill materialize sample --dataset wmt/wmt14 --config fr-en --source-key translation.fr "
    "--target-key translation.en --k 120 --seed 42 --splits train=96,valid=12,test=12 --out mini",
)
@click.argument("patterns", nargs=-1)
@click.option("--dataset", help="A dataset of the hub, instead of files.")
@click.option("--config", help="Config of the dataset.")
@click.option(
    "--split", default="train", show_default=True, help="Split of the dataset, or several: train+validation."
)
@click.option("--revision", help="Branch, tag or commit; resolved once and recorded [default: main].")
@click.option("--text", help="Field that holds the text [default: text or content].")
@click.option("--template", help='Text made from fields, e.g. "{translation.fr}\\n{translation.en}".')
@click.option("--source-key", help="Of pairs: the field of one side, e.g. translation.fr.")
@click.option("--target-key", help="Of pairs: the field of the other.")
@click.option(
    "--where", multiple=True, metavar="FIELD=VALUE", help="Keep records whose field has this value."
)
@click.option(
    "--min-chars", type=click.IntRange(0), help="Fewest characters of a text, or of each side of a pair."
)
@click.option(
    "--max-chars", type=click.IntRange(0), help="Most characters of a text, or of each side of a pair."
)
@click.option("--k", type=click.IntRange(1), required=True, help="Documents to draw.")
@click.option("--seed", type=click.IntRange(0), required=True, help="Another seed, another sample.")
@click.option("--splits", required=True, metavar="NAME=N,…", help="Exact sizes of the splits, k in all.")
@choice_option(
    "--method",
    choices=["reservoir", "weighted"],
    default="reservoir",
    help="Uniform, or by weight.",
)
@click.option("--weight", help="Field with the weight, for weighted.")
@click.option("--keep-duplicates", is_flag=True, help="Draw from equal texts too.")
@click.option("--resample", is_flag=True, help="Replace an existing sample.")
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
    """Draw k documents, from the files that PATTERNS name or from --dataset, and divide them by --splits.

    All of them are read; equal texts count once. An existing sample stays, unless --resample is given.
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
    with open_progress() as progress, warnings_to(progress.say):
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
    out.print(
        f"{counts['taken']:,} of {plural(counts['available'], 'document')} ({shown}) → {escape(str(path))}"
    )


_SHARED = (
    click.option(
        "--root",
        type=click.Path(file_okay=False, path_type=Path),
        required=True,
        help="Directory for corpora/ and manifests/.",
    ),
    choice_option(
        "--unicode", choices=["none", "NFC", "NFKC"], default="none", help="Unicode form of the texts."
    ),
    click.option(
        "--tokenizer-path",
        "tokenizer",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Count tokens with this file instead of estimating them.",
    ),
    click.option(
        "--shard-megabytes",
        type=click.IntRange(1, 4096),
        default=32,
        show_default=True,
        help="Text per shard.",
    ),
    click.option("--replace", is_flag=True, help="Replace a snapshot that was made with other options."),
    workers_option,
    json_option,
)


def _shared_options(command: Any) -> Any:
    return with_options(_SHARED, command)


@click.group(
    "materialize",
    epilog="Example: tokmill materialize hub HuggingFaceFW/fineweb-edu --config sample-10BT --root /data",
)
def materialize_command() -> None:
    """Write a snapshot of a corpus: compressed shards, and a small manifest to commit.

    \b
    ROOT/corpora/DATASET/REVISION/*.jsonl.zst
    ROOT/manifests/DATASET_REVISION.json

    A recipe reads it back with `corpus: {manifest: …}`, and refuses a shard with another sha256. An existing snapshot
    stays: one with other options needs another name or root, or --replace.
    """


@materialize_command.command(
    "hub", epilog="Example: tokmill materialize hub openai/gsm8k --config main --root corpora --text question"
)
@hub_options
@click.option("--name", help="Name of the corpus [default: DATASET, and its config and split].")
@_shared_options
@reports_errors
def hub(name: str | None, **given: Any) -> None:
    """Materialize DATASET of the hub. Once its manifest exists, no network is touched again."""
    _materialize(hub_source, given, lambda options: name or _hub_name(**options))


@materialize_command.command(
    "files", epilog="Example: tokmill materialize files 'data/*.jsonl.zst' --name notes --root corpora"
)
@files_options
@_shared_options
@reports_errors
def files(**given: Any) -> None:
    """Materialize local files; their revision is the digest of their content."""
    _materialize(files_source, given, lambda options: str(options["name"] or FILES))


materialize_command.add_command(sample_command)


def _materialize(to_source: Any, given: dict[str, Any], to_name: Any) -> None:
    root, as_json = given.pop("root"), given.pop("as_json")
    unicode_form, tokenizer = given.pop("unicode"), given.pop("tokenizer")
    megabytes, workers, replace = given.pop("shard_megabytes"), given.pop("workers"), given.pop("replace")
    recipe = one_source_recipe(
        to_source(**given), normalize={"unicode": unicode_form}, shards={"megabytes": megabytes}
    )
    with open_progress() as progress:
        made = materialize_source(
            recipe,
            Path.cwd(),
            root,
            to_name(given),
            tokenizer=tokenizer,
            replace=replace,
            workers=workers,
            progress=progress,
        )
        if made.removed:
            progress.say(f"removed or replaced: {', '.join(made.removed)}")
        if made.broken:
            progress.say(f"these list shards that no longer exist; select again: {', '.join(made.broken)}")
    _render(made.path, made.snapshot, as_json, replaced={"shards": made.removed, "manifests": made.broken})


def _hub_name(*, dataset: str, config: str | None, split: str, **_: Any) -> str:
    """Another config or split is another corpus: they must not replace each other."""
    return (
        dataset
        + (f".{config}" if config else "")
        + (f".{split.replace(' ', '')}" if split != "train" else "")
    )


@click.command(
    "select",
    epilog="Example: tokmill select manifests/notes_4f….json --tokens 1000000 --seed 7 --out manifests/some.json",
)
@click.argument("manifest", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--shard", "patterns", multiple=True, metavar="GLOB", help="Take shards whose name matches.")
@click.option("--shards", "count", type=click.IntRange(1), help="Number of shards.")
@click.option("--rows", type=click.IntRange(1), help="Shards until they hold this many documents.")
@click.option("--tokens", type=click.IntRange(1), help="Shards until they hold this many tokens.")
@click.option("--seed", type=click.IntRange(0), help="Take shards in an order drawn by this seed.")
@click.option(
    "--valid-fraction",
    help="Record this rule, which `build` follows: held out, by sha256 of the document's id.",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory that holds corpora/ [default: where manifests/ lies].",
)
@click.option(
    "--out",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Manifest to write.",
)
@click.option("--replace", is_flag=True, help="Replace another selection.")
@json_option
@reports_errors
def select_command(
    manifest: Path,
    patterns: tuple[str, ...],
    count: int | None,
    rows: int | None,
    tokens: int | None,
    seed: int | None,
    valid_fraction: str | None,
    root: Path | None,
    target: Path,
    replace: bool,
    as_json: bool,
) -> None:
    """Choose shards of the snapshot that MANIFEST describes, and write a manifest that lists only those.

    Every chosen shard is read and must have the sha256 that MANIFEST lists.
    """
    selection = select_shards(
        load_snapshot(manifest),
        patterns=patterns,
        count=count,
        rows=rows,
        tokens=tokens,
        seed=seed,
        split=None if valid_fraction is None else _hash_split(valid_fraction),
        parent=manifest,
    )
    check_shards(selection, root or default_root(manifest))
    write_selection(target, selection, replace=replace)
    _render(target, selection, as_json)


def _hash_split(valid_fraction: str) -> dict[str, Any]:
    try:
        return Split.model_validate({"valid_fraction": valid_fraction}).settings(0)
    except ValidationError as error:
        raise RecipeError(
            f"{valid_fraction}: {error.errors()[0]['msg'].removeprefix('Value error, ')}",
            where="--valid-fraction",
            next="give a share from 0 up to, and without, 1",
        ) from None


def _render(path: Path, snapshot: Snapshot, as_json: bool, **more: Any) -> None:
    if as_json:
        described = msgspec.to_builtins(snapshot, order="deterministic")
        print_json({"ok": True, "manifest": str(path), **more, **described})
        return
    totals = snapshot.invariants
    about = " (estimated)" if snapshot.tokens_are_estimated else ""
    out.print(f"{escape(snapshot.dataset)} at {snapshot.revision}")
    out.print(
        f"{plural(totals['rows'], 'document')} · {plural(totals['tokens'], 'token')}{about} · "
        f"{plural(totals['shards'], 'shard')}, {totals['bytes'] / 1e6:,.1f} MB → {escape(str(path))}"
    )
