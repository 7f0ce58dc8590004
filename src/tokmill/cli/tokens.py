"""`tokmill encode`, `pack`, `shard` and `build`: tokens from a listing (a mixture, a snapshot, a sample), without a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click
from rich.markup import escape
from rich.table import Table

from tokmill.adhoc.tokens import (
    TokenizerOptions,
    build_files,
    encode,
    read_listing,
    shard_files,
    split_rule,
    tokenized,
)
from tokmill.artifacts.manifest import Manifest
from tokmill.audit.whatif import compare_artifacts, compare_run
from tokmill.cli.console import choice_option, json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.source_options import Amount, replace_option, with_options, workers_option
from tokmill.errors import plural
from tokmill.formats import format_names
from tokmill.formats.ids import SPLITS
from tokmill.formats.token_cache import TokenCache
from tokmill.packing.costs import Cost
from tokmill.storage.disk import commit_bytes

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIRECTORY = click.Path(file_okay=False, path_type=Path)


_SHARED = (
    replace_option,
    click.option(
        "--seed",
        type=click.IntRange(0),
        help="Seed of draws and orders [default: that of a mixture file, else 0].",
    ),
    workers_option,
    json_option,
)

_eos = click.option("--eos", help="Token, or id, that ends a document [default: the one it has].")

_TOKENIZER = (
    click.option(
        "--tokenizer-path",
        "tokenizer",
        type=_FILE,
        required=True,
        help="tokenizer.json, .model or .tiktoken.",
    ),
    click.option("--tokenizer-sha256", "sha256", help="Refuse a file with other bytes."),
    click.option("--encoding", help="For a .tiktoken file that is not a published one."),
    _eos,
)

_root = click.option(
    "--root",
    type=_DIRECTORY,
    help="Directory that holds corpora/ of a snapshot [default: where manifests/ lies].",
)


def _shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return with_options(_SHARED, command)


def _tokenizer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return with_options(_TOKENIZER, command)


@click.command(
    "encode",
    epilog="Example: tokmill encode mini/manifest.jsonl --tokenizer-path spm_8000_unigram.model --out cache",
)
@click.argument("manifest", type=_FILE)
@click.option(
    "--tokenizer-path",
    "tokenizer",
    type=_FILE,
    required=True,
    help="tokenizer.json, .model or .tiktoken.",
)
@click.option(
    "--out", "directory", type=_DIRECTORY, required=True, help="Output: token_cache/ and ENCODE.meta.json."
)
@click.option("--eos", help="Token, or id, that ends an example [default: the one it has].")
@click.option("--separator", default="\\n", show_default=True, help="Text between the sides of a pair.")
@choice_option(
    "--unicode",
    choices=["none", "NFC", "NFKC"],
    default="none",
    help="Unicode form of the texts, before the tokenizer's own rules.",
)
@_root
@_shared_options
@reports_errors
def encode_command(
    manifest: Path,
    tokenizer: Path,
    directory: Path,
    eos: str | None,
    separator: str,
    unicode: Literal["none", "NFC", "NFKC"],
    replace: bool,
    seed: int | None,
    root: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Encode the texts that MANIFEST lists into a token cache.

    MANIFEST is a sample (manifest.jsonl), a snapshot or selection (.json) or a mixture (.yaml). It is only read: with
    another tokenizer the same texts are encoded again.
    """
    with open_progress() as progress:
        cache = encode(
            manifest,
            tokenizer,
            directory,
            eos=_token_or_id(eos),
            separator=separator.replace("\\n", "\n").replace("\\t", "\t"),
            normalize=unicode,
            replace=replace,
            seed=seed,
            root=root,
            workers=workers,
            progress=progress,
        )
    meta = TokenCache(cache, model_sha256=None).meta
    if as_json:
        splits = {one.name: one.examples for one in meta.splits}
        facts = {"examples": meta.examples, "tokens": meta.tokens, "splits": splits}
        facts |= {"experiment_id": meta.experiment_id, "input_manifest": meta.input_manifest}
        print_json({"ok": True, "directory": str(cache), "model_sha256": meta.model_sha256, **facts})
    else:
        sizes = ", ".join(f"{one.name} {one.examples:,}" for one in meta.splits)
        out.print(
            f"{plural(meta.examples, 'example')}, {plural(meta.tokens, 'token')}{f' ({sizes})' if sizes else ''} "
            f"→ {escape(str(cache))}"
        )


@click.command(
    "pack",
    epilog="Example: tokmill pack --manifest mixture.yaml --tokenizer-path tok.json --length 4096 "
    "--blocks 10000 --out-dir rows\n\ntokmill pack --compare out/my-run --length 2048",
)
@click.option(
    "--manifest", type=_FILE, help="A mixture (.yaml), a snapshot (.json) or a sample (manifest.jsonl)."
)
@click.option("--out-dir", "directory", type=_DIRECTORY, help="Output; needed unless --compare is given.")
@click.option("--blocks", type=Amount(), help="Rows, exactly [default: as many as there are].")
@click.option("--length", type=click.IntRange(2), default=2048, show_default=True, help="Tokens in a row.")
@choice_option(
    "--layout",
    choices=["concat", "document", "best_fit", "pad"],
    default="document",
    help="How documents fill rows; --compare shows what each costs.",
)
@choice_option(
    "--format",
    "form",
    choices=format_names("rows"),
    default="memmap",
    help="Output format.",
)
@click.option(
    "--compare",
    "run_directory",
    type=_DIRECTORY,
    is_flag=False,
    flag_value=Path(),
    default=None,
    help="Print what each layout would cost on the documents of a run (or of --manifest), and stop.",
)
@click.option("--tokenizer-path", "tokenizer", type=_FILE, help="tokenizer.json, .model or .tiktoken.")
@_eos
@_root
@_shared_options
@reports_errors
def pack_command(
    manifest: Path | None,
    directory: Path | None,
    blocks: int | None,
    length: int,
    layout: str,
    form: str,
    run_directory: Path | None,
    tokenizer: Path | None,
    eos: str | None,
    replace: bool,
    seed: int | None,
    root: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Pack documents into rows of one length, in the shares of a mixture; or compare what each layout costs."""
    if run_directory is not None and run_directory != Path():
        _render_costs(compare_run(run_directory, length), length, as_json)
        return
    if manifest is None or tokenizer is None or directory is None:
        raise click.UsageError("needs --manifest, --tokenizer-path and --out-dir, or --compare RUN")
    listing = read_listing(manifest, seed=seed, root=root)
    options = TokenizerOptions(tokenizer, eos=_token_or_id(eos))
    with open_progress() as progress:
        if run_directory is not None:
            with tokenized(listing, directory, options, workers=workers, progress=progress) as made_tokens:
                costs = compare_artifacts(made_tokens, length, str(manifest))
            _render_costs(costs, length, as_json)
            return
        made = build_files(
            listing,
            directory,
            options,
            {"format": form},
            split={"valid_fraction": 0},
            mixture={**listing.mixture, **({"blocks": blocks} if blocks else {})} or None,
            pack={"layout": layout, "length": length},
            is_flat=True,
            replace=replace,
            workers=workers,
            progress=progress,
        )
    _render_build(made, directory, as_json)


@click.command(
    "shard",
    epilog="Example: tokmill shard mixture.yaml --tokenizer-path spm_32000_unigram.model --log-file stats.json",
)
@click.argument("mixture", type=_FILE)
@click.option(
    "--out-dir", "directory", type=_DIRECTORY, default=Path("shards"), show_default=True, help="Output."
)
@click.option("--length", type=click.IntRange(2), default=512, show_default=True, help="Tokens in a row.")
@click.option(
    "--rows-per-shard", type=click.IntRange(1), default=8192, show_default=True, help="Rows in a file."
)
@click.option(
    "--log-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the figures there, as JSON.",
)
@_tokenizer_options
@_shared_options
@reports_errors
def shard_command(
    mixture: Path,
    directory: Path,
    length: int,
    rows_per_shard: int,
    log_file: Path | None,
    tokenizer: Path,
    sha256: str | None,
    encoding: str | None,
    eos: str | None,
    replace: bool,
    seed: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Tokenize each dataset of MIXTURE into <name>/shard_00000.npy …, int32, (rows, length).

    Documents follow each other, each with its end token; what does not fill the last row is dropped and counted.
    Tokens are counted as written.
    """
    with open_progress() as progress:
        sharded = shard_files(
            read_listing(mixture, seed=seed),
            directory,
            TokenizerOptions(tokenizer, sha256, encoding, _token_or_id(eos)),
            seq_len=length,
            rows_per_shard=rows_per_shard,
            replace=replace,
            workers=workers,
            progress=progress,
        )
    if log_file is not None:
        commit_bytes(log_file, json.dumps(sharded, indent=2, ensure_ascii=False).encode() + b"\n")
    if as_json:
        print_json({"ok": True, **sharded})
        return
    table = Table("dataset", "records", "sequences", "tokens", "shards", "directory")
    for row in sharded["stats"]:
        counts = (f"{row[key]:,}" for key in ("records", "sequences", "tokens", "shards"))
        table.add_row(escape(row["name"]), *counts, escape(row["output_dir"]))
    out.print(table)


@click.command(
    "build",
    epilog="Example: tokmill build megatron --manifest manifests/fineweb-edu_1a2b.json "
    "--tokenizer-path o200k_base.tiktoken --tokens 200M --valid-fraction 0.1 --out-dir healing",
)
@click.argument("form", metavar="FORMAT", type=click.Choice(format_names()))
@click.option(
    "--manifest",
    type=_FILE,
    required=True,
    help="A mixture (.yaml), a snapshot (.json) or a sample (manifest.jsonl).",
)
@click.option("--out-dir", "directory", type=_DIRECTORY, required=True, help="Output: train/ and valid/.")
@click.option("--tokens", type=Amount(), help="Token budget, all splits together: 200M [default: all].")
@click.option(
    "--valid-fraction",
    help="Share to hold out, by sha256 of the document's id [default: as the selection says, or 0].",
)
@click.option(
    "--dtype",
    type=click.Choice(["int32", "uint16", "smallest"]),
    help="Integer type of ids, for megatron and memmap.",
)
@click.option("--length", type=click.IntRange(2), default=2048, show_default=True, help="Tokens in a row.")
@click.option(
    "--order",
    type=click.Choice(["shuffle", "corpus"]),
    default="shuffle",
    show_default=True,
    help="Order of documents.",
)
@_root
@_tokenizer_options
@_shared_options
@reports_errors
def build_command(
    form: str,
    manifest: Path,
    directory: Path,
    tokens: int | None,
    valid_fraction: str | None,
    dtype: str | None,
    length: int,
    order: str,
    root: Path | None,
    tokenizer: Path,
    sha256: str | None,
    encoding: str | None,
    eos: str | None,
    replace: bool,
    seed: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Build training data from a corpus: train/ and valid/ in FORMAT, and a manifest.json to commit.

    A budget in tokens is met from below, to the document; what is left over is recorded.
    """
    listing = read_listing(manifest, seed=seed, root=root)
    mixture = {**listing.mixture, **({"tokens": tokens} if tokens else {})}
    with open_progress() as progress:
        made = build_files(
            listing,
            directory,
            TokenizerOptions(tokenizer, sha256, encoding, _token_or_id(eos)),
            {"format": form, **({"dtype": dtype} if dtype else {})},
            split=split_rule(listing, valid_fraction),
            mixture={**mixture, "order": order} if mixture else None,
            pack={"length": length},
            replace=replace,
            workers=workers,
            progress=progress,
        )
    _render_build(made, directory, as_json)


def _render_build(made: Manifest, directory: Path, as_json: bool) -> None:
    counts = made.counts
    if as_json:
        print_json({"ok": True, "directory": str(directory), "counts": counts, "facts": made.facts})
        return
    tokens = counts["tokens"]
    rows = f"{plural(counts['rows'], 'row')}, " if made.config["pack"]["layout"] != "indexed" else ""
    documents, written = plural(counts["kept"], "document"), plural(tokens["written"], "token")
    out.print(f"{documents}, {rows}{written} → {escape(str(directory))}")
    lost = {key: tokens[key] for key in ("tail_dropped", "truncated", "left_out", "padding") if tokens[key]}
    if lost:
        out.print("  " + ", ".join(f"{key.replace('_', ' ')} {count:,}" for key, count in lost.items()))
    reached = made.facts["budget"]["splits"]  # of a manifest that was read, in the order of its keys
    for split, facts in sorted(reached.items(), key=lambda item: SPLITS.index(item[0])):
        out.print(f"  {split}: {plural(facts['tokens'], 'token')}, {facts['left_over']:,} left over")


def _render_costs(costs: list[Cost], length: int, as_json: bool) -> None:
    if as_json:
        shares = ("padding_share", "truncated_share", "fragmented_share", "cross_document_share")
        print_json(
            {
                "ok": True,
                "length": length,
                "layouts": [
                    {**vars(cost), **{name: round(getattr(cost, name), 6) for name in shares}}
                    for cost in costs
                ],
            }
        )
        return
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


def _token_or_id(given: str | None) -> str | int | None:
    return int(given) if given is not None and given.isdecimal() else given
