"""`tokmill materialize` and `tokmill select`: corpora that travel, with a manifest to commit.

`tokmill materialize sample`: a small sample with its splits, drawn once.
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
from tokmill.artifacts.progress import told_to
from tokmill.artifacts.snapshot import (
    Container,
    check_shards,
    default_root,
    load_container,
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
from tokmill.errors import RecipeError
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
@choice_option(
    "--method",
    choices=["reservoir", "weighted"],
    default="reservoir",
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


_SHARED = (
    click.option(
        "--root",
        type=click.Path(file_okay=False, path_type=Path),
        required=True,
        help="Where corpora/ and manifests/ go.",
    ),
    choice_option(
        "--unicode", choices=["none", "NFC", "NFKC"], default="none", help="Unicode form of the texts."
    ),
    click.option(
        "--tokenizer",
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
    click.option(
        "--replace", is_flag=True, help="Put it in the place of one that was made with other options."
    ),
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
    """Write a corpus as compressed shards plus a small manifest to commit.

    \b
    ROOT/corpora/DATASET/REVISION/*.jsonl.zst
    ROOT/manifests/DATASET_REVISION.json

    A recipe reads it back with `corpus: {manifest: …}`, and refuses a shard whose sha256 is another. A corpus that is
    there stays: one with other options needs another name or root, or --replace.
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
            progress.say(f"these list shards that are gone now; select again: {', '.join(made.broken)}")
    _render(made.path, made.container, as_json, replaced={"shards": made.removed, "manifests": made.broken})


def _hub_name(*, dataset: str, config: str | None, split: str, **_: Any) -> str:
    """A config and a split other than the usual are other corpora: they must not take each other's place."""
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
@click.option("--shard", "patterns", multiple=True, metavar="GLOB", help="Shards whose name matches.")
@click.option("--shards", "count", type=click.IntRange(1), help="As many shards.")
@click.option("--rows", type=click.IntRange(1), help="Shards until they hold this many documents.")
@click.option("--tokens", type=click.IntRange(1), help="Shards until they hold this many tokens.")
@click.option("--seed", type=click.IntRange(0), help="Take shards in an order drawn by this seed.")
@click.option(
    "--valid-fraction",
    help="The rule that it is for: held out, by sha256 of the document's id. `build` goes by it.",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where corpora/ lies [default: where manifests/ lies].",
)
@click.option(
    "--out",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Manifest to write.",
)
@click.option("--replace", is_flag=True, help="Write it in the place of another selection.")
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
    """Choose shards of the container that MANIFEST describes, and write a manifest that lists only those.

    Every chosen shard is read and must have the sha256 that MANIFEST lists.
    """
    selection = select_shards(
        load_container(manifest),
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


def _render(path: Path, container: Container, as_json: bool, **more: Any) -> None:
    if as_json:
        described = msgspec.to_builtins(container, order="deterministic")
        print_json({"ok": True, "manifest": str(path), **more, **described})
        return
    have = container.invariants
    about = " (estimated)" if container.tokens_are_estimated else ""
    out.print(f"{escape(container.dataset)} at {container.revision}")
    out.print(
        f"{have['rows']:,} documents · {have['tokens']:,} tokens{about} · "
        f"{have['shards']} shards, {have['bytes'] / 1e6:,.1f} MB → {escape(str(path))}"
    )
