"""`tokmill encode`, `shard` and `build`: tokens from a listing (a mixture, a snapshot, a sample),
without a recipe; `layouts`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from tokmill.cli.console import answer, out, verb, with_progress
from tokmill.cli.pipes import run_step
from tokmill.cli.source_options import (
    ANY_DIRECTORY,
    ANY_FILE,
    FILE,
    Amount,
    Escaped,
    Here,
    TokenOrId,
    out_option,
    replace_option,
    seed_option,
    tokenizer_option,
    with_options,
    workers_option,
)
from tokmill.errors import plural
from tokmill.formats import format_names
from tokmill.formats.ids import SPLITS

if TYPE_CHECKING:
    from tokmill.adhoc.tokens import Built, Encoded, Sharded
    from tokmill.audit.layouts import Layouts

VERBS = {
    "Look at a run": {
        "layouts": ("Say what each layout of rows would cost.", "audit.layouts"),
    },
    "Single steps, without a recipe": {
        "encode": ("Encode a sample, or a corpus, into a token cache.", "adhoc.tokens"),
        "shard": ("Tokenize each dataset of a mixture into .npy shards.", "adhoc.tokens"),
        "build": ("Build training data from a corpus, to a budget of tokens or rows.", "adhoc.tokens"),
    },
}


_seed = seed_option(" [default: that of a mixture file, else 0]")

_shared_options = with_options(replace_option, _seed, workers_option)

_tokenizer = tokenizer_option(required=True)

_eos = click.option(
    "--eos", type=TokenOrId(), help="Token, or id, that ends a document [default: the one it has]."
)

_tokenizer_options = with_options(
    _tokenizer,
    click.option("--tokenizer-sha256", help="Refuse a file with other bytes."),
    click.option("--encoding", help="For a .tiktoken file that is not a published one."),
    _eos,
)

_unicode = click.option(
    "--unicode",
    type=click.Choice(["none", "NFC", "NFKC"]),
    default="none",
    help="Unicode form of the texts, before the tokenizer's own rules.",
)

_root = click.option(
    "--root",
    type=ANY_DIRECTORY,
    help="Directory that holds corpora/ of a snapshot [default: where manifests/ lies].",
)


@click.command(
    "encode",
    epilog="Example: tokmill encode mini/manifest.jsonl --tokenizer spm_8000_unigram.model --out cache",
)
@click.argument("manifest", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@_tokenizer
@out_option("token_cache/ and ENCODE.meta.json, or - (JSON lines to standard output)", required=True)
@click.option("--eos", type=TokenOrId(), help="Token, or id, that ends an example [default: the one it has].")
@click.option("--separator", type=Escaped(), default="\\n", help="Text between the sides of a pair.")
@_unicode
@_root
@_shared_options
@verb
def encode_command(as_json: bool, **options: Any) -> None:
    """Encode the texts that MANIFEST lists into a token cache.

    MANIFEST is a sample (manifest.jsonl), a snapshot or selection (.json) or a mixture (.yaml), or - for JSON
    lines from standard input. It is only read: with another tokenizer the same texts are encoded again.
    """
    run_step("encode", options, as_json, _render_encoded, texts="manifest")


def _render_encoded(made: Encoded) -> None:
    meta = made.meta
    sizes = ", ".join(f"{one.name} {one.examples:,}" for one in meta.splits)
    out.print(
        f"{plural(meta.examples, 'example')}, {plural(meta.tokens, 'token')}{f' ({sizes})' if sizes else ''} "
        f"→ {escape(str(made.directory))}"
    )


@click.command(
    "shard",
    epilog="Example: tokmill shard mixture.yaml --tokenizer spm_32000_unigram.model --stats stats.json",
)
@click.argument("mixture", type=FILE)
@out_option("a directory of .npy shards per dataset", default=Path("shards"))
@click.option("--length", type=click.IntRange(2), default=512, help="Tokens in a row.")
@click.option("--rows-per-shard", type=click.IntRange(1), default=8192, help="Rows in a file.")
@_unicode
@click.option("--stats", type=ANY_FILE, help="Also write the figures there, as JSON.")
@_tokenizer_options
@_shared_options
@verb
def shard_command(as_json: bool, **options: Any) -> None:
    """Tokenize each dataset of MIXTURE into <name>/shard_00000.npy …, int32, (rows, length).

    Documents follow each other, each with its end token;
    what does not fill the last row is dropped and counted. Tokens are counted as written.
    """
    answer(with_progress("shard", options), as_json, _render_sharded)


def _render_sharded(made: Sharded) -> None:
    table = Table("dataset", "records", "sequences", "tokens", "shards", "directory")
    for row in made.stats:
        counts = (f"{row[key]:,}" for key in ("records", "sequences", "tokens", "shards"))
        table.add_row(escape(row["name"]), *counts, escape(row["output_dir"]))
    out.print(table)


@click.command(
    "build",
    epilog="Example: tokmill build megatron --manifest manifests/fineweb-edu_1a2b.json "
    "--tokenizer o200k_base.tiktoken --tokens 200M --valid-fraction 0.1 --out healing",
)
@click.argument("format", metavar="FORMAT", type=click.Choice(format_names()))
@click.option(
    "--manifest",
    type=FILE,
    required=True,
    help="A mixture (.yaml), a snapshot (.json) or a sample (manifest.jsonl).",
)
@out_option("train/ and valid/", required=True)
@click.option("--tokens", type=Amount(), help="Token budget, all splits together: 200M [default: all].")
@click.option("--blocks", type=Amount(), help="Rows, exactly [default: as many as there are].")
@click.option(
    "--valid-fraction",
    help="Share to hold out, by sha256 of the document's id [default: as the selection says, or 0].",
)
@click.option("--flat", is_flag=True, help="Training data alone, in the output itself, without train/.")
@click.option(
    "--dtype",
    type=click.Choice(["int32", "uint16", "smallest"]),
    help="Integer type of ids, for megatron, memmap, llmc, olmo, nanotron.",
)
@click.option(
    "--layout",
    type=click.Choice(["concat", "document", "best_fit", "pad", "indexed"]),
    help=(
        "How documents fill rows [default: concat]; `tokmill layouts` shows what each costs. "
        "indexed: documents as they are, for arrow, parquet and others that need no rows."
    ),
)
@click.option("--length", type=click.IntRange(2), default=2048, help="Tokens in a row.")
@click.option(
    "--order",
    type=click.Choice(["shuffle", "corpus"]),
    default="shuffle",
    help="Order of documents.",
)
@_unicode
@_root
@_tokenizer_options
@_shared_options
@verb
def build_command(as_json: bool, **options: Any) -> None:
    """Build training data from a corpus: train/ and valid/ in FORMAT, and a manifest.json to commit.

    A budget in tokens is met from below, to the document; what is left over is recorded.
    Rows (--blocks) are exact.
    """
    answer(with_progress("build", options), as_json, _render_build)


def _render_build(built: Built) -> None:
    made, counts = built.manifest, built.manifest.counts
    tokens = counts["tokens"]
    rows = f"{plural(counts['rows'], 'row')}, " if made.config["pack"]["layout"] != "indexed" else ""
    documents, written = plural(counts["kept"], "document"), plural(tokens["written"], "token")
    out.print(f"{documents}, {rows}{written} → {escape(str(built.directory))}")
    lost = {key: tokens[key] for key in ("tail_dropped", "truncated", "left_out", "padding") if tokens[key]}
    if lost:
        out.print("  " + ", ".join(f"{key.replace('_', ' ')} {count:,}" for key, count in lost.items()))
    reached = made.facts["budget"]["splits"]  # of a manifest that was read, in the order of its keys
    for split, facts in sorted(reached.items(), key=lambda item: SPLITS.index(item[0])):
        out.print(f"  {split}: {plural(facts['tokens'], 'token')}, {facts['left_over']:,} left over")


@click.command(
    "layouts",
    epilog="Example: tokmill layouts out/my-run --length 2048    "
    "tokmill layouts mixture.yaml --tokenizer tok.json",
)
@click.argument("target", metavar="RUN|MANIFEST", type=Here(exists=True, path_type=Path))
@click.option("--length", type=click.IntRange(2), default=2048, help="Tokens in a row.")
@tokenizer_option(", for MANIFEST")
@_eos
@_root
@_seed
@workers_option
@verb
def layouts_command(as_json: bool, **options: Any) -> None:
    """Say what each layout would cost on the training documents of RUN, or of the texts that MANIFEST lists:
    rows, padding, lost tokens, documents that are cut."""
    answer(with_progress("layouts", options), as_json, _render_layouts)


def _render_layouts(found: Layouts) -> None:
    costs, length = found.costs, found.length
    table = Table("layout", "rows", "padding", "lost", "cut documents", "of them short", "cross-document")
    for cost in costs:
        table.add_row(
            cost.layout,
            f"{cost.rows:,}",
            f"{cost.padding_share:.2%}",
            f"{cost.truncated_share:.2%}",
            f"{cost.fragmented_share:.2%}",
            f"{cost.fragmented_short:,}",
            f"{cost.cross_document_share:.2%}",
        )
    out.print(table)
    first = costs[0]
    documents, tokens = plural(first.documents, "document"), plural(first.tokens_in, "token")
    out.print(f"{documents}, {tokens}, rows of {length:,}")
