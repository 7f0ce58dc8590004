"""`tokmill materialize` and `tokmill select`: snapshots of corpora, with a manifest to commit.

materialize hub | files    one source ─> a snapshot: shards, and a manifest that lists their sha256
materialize sample         files or a dataset ─> k documents with exact split sizes, drawn once
select                     a snapshot ─> a manifest of some of its shards
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.artifacts.progress import warnings_to
from tokmill.cli.console import answer, err, open_progress, out, verb, with_progress
from tokmill.cli.source_options import (
    ANY_FILE,
    FILE,
    Escaped,
    files_options,
    hub_options,
    out_option,
    root_option,
    seed_option,
    text_option,
    tokenizer_option,
    where_option,
    with_options,
    workers_option,
)
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.adhoc.snapshot import Materialized
    from tokmill.adhoc.subset import Sample

VERBS = {
    "Corpora": {
        "materialize": (
            "Write a snapshot: shards, and a manifest to commit.",
            {"hub": "adhoc.snapshot", "files": "adhoc.snapshot", "sample": "adhoc.subset"},
        ),
        "select": ("Choose shards of a snapshot.", "adhoc.snapshot"),
    },
}


@click.command(
    "sample",
    epilog=(
        "Example: tokmill materialize sample --dataset wmt/wmt14 --config fr-en --source-key translation.fr "
        "--target-key translation.en --k 120 --seed 42 --splits train=96,valid=12,test=12 --out mini"
    ),
)
@click.argument("patterns", nargs=-1)
@click.option("--dataset", help="A dataset of the hub, instead of files.")
@click.option("--config", help="Config of the dataset.")
@click.option("--split", default="train", help="Split of the dataset, or several: train+validation.")
@click.option("--revision", help="Branch, tag or commit; resolved once and recorded [default: main].")
@text_option
@click.option(
    "--template", type=Escaped(), help='Text made from fields, e.g. "{translation.fr}\\n{translation.en}".'
)
@click.option("--source-key", help="Of pairs: the field of one side, e.g. translation.fr.")
@click.option("--target-key", help="Of pairs: the field of the other.")
@where_option
@click.option(
    "--min-chars", type=click.IntRange(0), help="Fewest characters of a text, or of each side of a pair."
)
@click.option(
    "--max-chars", type=click.IntRange(0), help="Most characters of a text, or of each side of a pair."
)
@click.option("--k", type=click.IntRange(1), required=True, help="Documents to draw.")
@seed_option(required=True)
@click.option("--splits", required=True, metavar="NAME=N,…", help="Exact sizes of the splits, k in all.")
@click.option(
    "--method",
    type=click.Choice(["reservoir", "weighted"]),
    default="reservoir",
    help="Uniform, or by weight.",
)
@click.option("--weight", help="Field with the weight, for weighted.")
@click.option("--keep-duplicates", is_flag=True, help="Draw from equal texts too.")
@click.option("--resample", is_flag=True, help="Replace an existing sample.")
@out_option("manifest.jsonl and MANIFEST.meta.json", required=True)
@verb
def sample_command(as_json: bool, **options: Any) -> None:
    """Draw k documents, from the files that PATTERNS name or from --dataset, and divide them by --splits.

    All of them are read; equal texts count once. An existing sample stays, unless --resample is given.
    """
    if bool(options["patterns"]) == bool(options["dataset"]):
        raise click.UsageError("needs either PATTERNS or --dataset")
    with open_progress() as progress, warnings_to(progress.say):
        made = tokmill.materialize_sample(**options)
    answer(made, as_json, _render_sample)


def _render_sample(made: Sample) -> None:
    meta, counts = made.meta, made.meta["counts"]
    if "hub" in meta:
        out.print(f"{escape(meta['dataset'])} at {meta['revision']}")
    shown = ", ".join(f"{name} {size:,}" for name, size in meta["splits"].items())
    available = plural(counts["available"], "document")
    out.print(f"{counts['taken']:,} of {available} ({shown}) → {escape(str(made.path))}")


_shared_options = with_options(
    out_option("corpora/ and manifests/", required=True),
    click.option(
        "--unicode",
        type=click.Choice(["none", "NFC", "NFKC"]),
        default="none",
        help="Unicode form of the texts.",
    ),
    tokenizer_option("; tokens are counted with it, not estimated"),
    click.option("--shard-megabytes", type=click.IntRange(1, 4096), default=32, help="Text per shard."),
    click.option("--replace", is_flag=True, help="Replace a snapshot that was made with other options."),
    workers_option,
)


@click.group(
    "materialize",
    epilog="Example: tokmill materialize hub HuggingFaceFW/fineweb-edu --config sample-10BT --out /data",
)
def materialize_command() -> None:
    """Write a snapshot of a corpus: compressed shards, and a small manifest to commit.

    \b
    OUT/corpora/DATASET/REVISION/*.jsonl.zst
    OUT/manifests/DATASET_REVISION.json

    A recipe reads it back with `corpus: {manifest: …}`, and refuses a shard with another sha256.
    An existing snapshot stays: one with other options needs another name or output, or --replace.
    """


@materialize_command.command(
    "hub", epilog="Example: tokmill materialize hub openai/gsm8k --config main --out corpora --text question"
)
@hub_options
@click.option("--name", help="Name of the corpus [default: DATASET, and its config and split].")
@_shared_options
@verb
def hub(as_json: bool, **options: Any) -> None:
    """Materialize DATASET of the hub. Once its manifest exists, no network is touched again."""
    _answer(with_progress("materialize_hub", options), as_json)


@materialize_command.command(
    "files", epilog="Example: tokmill materialize files 'data/*.jsonl.zst' --name notes --out corpora"
)
@files_options
@_shared_options
@verb
def files(as_json: bool, **options: Any) -> None:
    """Materialize local files; their revision is the digest of their content."""
    _answer(with_progress("materialize_files", options), as_json)


materialize_command.add_command(sample_command)


def _answer(made: Materialized, as_json: bool) -> None:
    if made.removed:
        err.print(f"[dim]removed or replaced: {escape(', '.join(made.removed))}[/]")
    if made.broken:
        broken = escape(", ".join(made.broken))
        err.print(f"[dim]these list shards that no longer exist; select again: {broken}[/]")
    answer(made, as_json, _render)


@click.command(
    "select",
    epilog=(
        "Example: tokmill select manifests/notes_4f….json --tokens 1000000 --seed 7 --out manifests/some.json"
    ),
)
@click.argument("manifest", type=FILE)
@click.option("--shard", multiple=True, metavar="GLOB", help="Take shards whose name matches.")
@click.option("--shards", type=click.IntRange(1), help="Number of shards.")
@click.option("--rows", type=click.IntRange(1), help="Shards until they hold this many documents.")
@click.option("--tokens", type=click.IntRange(1), help="Shards until they hold this many tokens.")
@seed_option(" [default: shards in their order]")
@click.option(
    "--valid-fraction",
    help="Record this rule, which `build` follows: held out, by sha256 of the document's id.",
)
@root_option
@out_option("the manifest", ANY_FILE, required=True)
@click.option("--replace", is_flag=True, help="Replace another selection.")
@verb
def select_command(as_json: bool, **options: Any) -> None:
    """Choose shards of the snapshot that MANIFEST describes, and write a manifest that lists only those.

    Every chosen shard is read and must have the sha256 that MANIFEST lists.
    """
    answer(tokmill.select(**options), as_json, _render)


def _render(made: Materialized) -> None:
    totals, snapshot = made.snapshot.invariants, made.snapshot
    about = " (estimated)" if snapshot.tokens_are_estimated else ""
    out.print(f"{escape(snapshot.dataset)} at {snapshot.revision}")
    out.print(
        f"{plural(totals['rows'], 'document')} · {plural(totals['tokens'], 'token')}{about} · "
        f"{plural(totals['shards'], 'shard')}, {totals['bytes'] / 1e6:,.1f} MB → {escape(str(made.path))}"
    )
