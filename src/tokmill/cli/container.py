"""`tokmill materialize` and `tokmill select`: corpora that travel, with a manifest to commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from rich.markup import escape

from tokmill.cli.console import json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.source_options import (
    FILES,
    files_options,
    files_source,
    hub_options,
    hub_source,
    one_source_recipe,
    with_options,
    workers_option,
)
from tokmill.container import (
    Container,
    check_shards,
    default_root,
    load_container,
    select_shards,
    write_container,
)
from tokmill.materializing import materialize_source

_SHARED = (
    click.option(
        "--root",
        type=click.Path(file_okay=False, path_type=Path),
        required=True,
        help="Where corpora/ and manifests/ go.",
    ),
    click.option(
        "--unicode",
        type=click.Choice(["none", "NFC", "NFKC"]),
        default="none",
        show_default=True,
        help="Unicode form of the texts.",
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

    A recipe reads it back with `corpus: {manifest: …}`, and refuses a shard whose sha256 is another.
    """


@materialize_command.command(
    "hub", epilog="Example: tokmill materialize hub openai/gsm8k --config main --root corpora --text question"
)
@hub_options
@_shared_options
@reports_errors
def hub(**given: Any) -> None:
    """Materialize DATASET of the hub. Once its manifest exists, no network is touched again."""
    _materialize(hub_source, given, lambda options: _hub_name(**options))


@materialize_command.command(
    "files", epilog="Example: tokmill materialize files 'data/*.jsonl.zst' --name notes --root corpora"
)
@files_options
@_shared_options
@reports_errors
def files(**given: Any) -> None:
    """Materialize local files; their revision is the digest of their content."""
    _materialize(files_source, given, lambda options: str(options["name"] or FILES))


def _materialize(to_source: Any, given: dict[str, Any], to_name: Any) -> None:
    root, as_json = given.pop("root"), given.pop("as_json")
    unicode_form, tokenizer = given.pop("unicode"), given.pop("tokenizer")
    megabytes, workers = given.pop("shard_megabytes"), given.pop("workers")
    recipe = one_source_recipe(
        to_source(**given), normalize={"unicode": unicode_form}, shards={"megabytes": megabytes}
    )
    with open_progress() as progress:
        path, container = materialize_source(
            recipe, Path.cwd(), root, to_name(given), tokenizer=tokenizer, workers=workers, progress=progress
        )
    _render(path, container, as_json)


def _hub_name(*, dataset: str, config: str | None, split: str, **_: Any) -> str:
    """A config and a split other than the usual are other corpora: they must not take each other's place."""
    return dataset + (f".{config}" if config else "") + (f".{split}" if split != "train" else "")


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
@json_option
@reports_errors
def select_command(
    manifest: Path,
    patterns: tuple[str, ...],
    count: int | None,
    rows: int | None,
    tokens: int | None,
    seed: int | None,
    root: Path | None,
    target: Path,
    as_json: bool,
) -> None:
    """Choose shards of the container that MANIFEST describes, and write a manifest that lists only those.

    Every chosen shard is read and must have the sha256 that MANIFEST lists.
    """
    selection = select_shards(
        load_container(manifest), patterns=patterns, count=count, rows=rows, tokens=tokens, seed=seed
    )
    check_shards(selection, root or default_root(manifest))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_container(target, selection)
    _render(target, selection, as_json)


def _render(path: Path, container: Container, as_json: bool) -> None:
    if as_json:
        print_json(
            {"ok": True, "manifest": str(path), **msgspec.to_builtins(container, order="deterministic")}
        )
        return
    have = container.invariants
    about = " (estimated)" if container.tokens_are_estimated else ""
    out.print(f"{escape(container.dataset)} at {container.revision}")
    out.print(
        f"{have['rows']:,} documents · {have['tokens']:,} tokens{about} · "
        f"{have['shards']} shards, {have['bytes'] / 1e6:,.1f} MB → {escape(str(path))}"
    )
