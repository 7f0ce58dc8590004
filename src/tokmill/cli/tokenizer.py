"""`tokmill tokenizer train | check | coverage | guard`: train one, look at one, measure it, compare two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from tokmill.adhoc.mixtures import train_from_mixture
from tokmill.adhoc.tokenizer_coverage import (
    MAX_FALL,
    MAX_RISE,
    By,
    Change,
    Tally,
    compare_coverage,
    measure_coverage,
)
from tokmill.cli.console import choice_option, json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.source_options import replace_option, workers_option
from tokmill.errors import plural
from tokmill.tokenizers.load import check_tokenizer, load_tokenizer

_EOS = {"byte_bpe": "<|endoftext|>"}

_path = click.Path(dir_okay=False, path_type=Path)
_files = click.argument("files", nargs=-1, required=True, type=_path)
_text = click.option("--text", help="Field that holds the text [default: text or content].")
_by = click.option(
    "--by", type=click.Choice(["source", "language"]), help="Group by this, besides the total."
)
_encoding = click.option("--encoding", help="Encoding of a .tiktoken file that is not a published one.")


@click.group(
    "tokenizer", epilog="Example: tokmill tokenizer coverage tok.model data/*.jsonl.zst --by language"
)
def tokenizer_command() -> None:
    """Train, check and compare tokenizers."""


@tokenizer_command.command(
    "train",
    epilog="Example: tokmill tokenizer train --manifest mixture.yaml --vocab-size 32000 --model unigram "
    "--out-dir tok --log-file tok/log.json",
)
@click.option(
    "--manifest",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="Datasets and their weights, in YAML.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(257, 1 << 24),
    default=32000,
    show_default=True,
    help="Tokens, control symbols included.",
)
@choice_option(
    "--model",
    choices=["unigram", "bpe", "byte_bpe"],
    default="unigram",
    help="unigram and bpe are SentencePiece models, byte_bpe is a tokenizer.json.",
)
@click.option(
    "--out-dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Output.",
)
@click.option(
    "--log-file",
    type=_path,
    help="Log of the training [default: tokenizer.log.json in the output directory].",
)
@click.option("--eos", help="The token that ends a document [default: </s>; byte_bpe: <|endoftext|>].")
@click.option(
    "--sample-megabytes",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Text to learn from, all sources together.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the sample [default: that of the manifest].")
@click.option("--character-coverage", help="Share of characters with pieces of their own [default: 0.9995].")
@click.option(
    "--byte-fallback/--no-byte-fallback", default=None, help="Spell other characters in bytes [default: yes]."
)
@click.option(
    "--hard-vocab-limit/--no-hard-vocab-limit",
    default=None,
    help="Refuse a smaller vocabulary [default: yes].",
)
@click.option("--normalization", help="identity, nfkc, nmt_nfkc, nfkc_cf or nmt_nfkc_cf [default: identity].")
@click.option(
    "--user-symbol", "user_symbols", multiple=True, help="A piece that is never cut; may be repeated."
)
@click.option("--control-symbol", "control_symbols", multiple=True, help="A control token; may be repeated.")
@click.option(
    "--add-dummy-prefix/--no-add-dummy-prefix",
    default=None,
    help="Spell the first word as one after a space [default: yes].",
)
@click.option(
    "--remove-extra-whitespaces/--keep-whitespaces", default=None, help="Runs of spaces [default: keep]."
)
@click.option(
    "--split-digits/--no-split-digits", default=None, help="Make every digit a piece [default: no]."
)
@click.option(
    "--min-frequency",
    type=click.IntRange(1),
    help="Lowest count of a merged pair, for byte_bpe [default: 2].",
)
@replace_option
@workers_option
@json_option
@reports_errors
def train(
    manifest: Path,
    vocab_size: int,
    model: str,
    directory: Path,
    log_file: Path | None,
    eos: str | None,
    seed: int | None,
    user_symbols: tuple[str, ...],
    control_symbols: tuple[str, ...],
    replace: bool,
    workers: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a tokenizer on a sample of the datasets in MANIFEST, drawn by weight.

    The same manifest, texts and options give the same bytes, whatever the number of workers and cores. A killed
    command resumes.
    """
    options |= {
        "model": model,
        "vocab_size": vocab_size,
        "user_symbols": list(user_symbols) or None,
        "control_symbols": list(control_symbols) or None,
    }
    with open_progress() as progress:
        made = train_from_mixture(
            manifest,
            directory,
            options,
            eos=eos or _EOS.get(model, "</s>"),
            log_file=log_file,
            seed=seed,
            replace=replace,
            workers=workers,
            progress=progress,
        )
    if as_json:
        print_json({"ok": True, **made})
        return
    samples = sum(dataset["samples"] for dataset in made["datasets"])
    characters = sum(dataset["characters"] for dataset in made["datasets"])
    out.print(
        f"{plural(made['vocab_size'], 'token')} from {plural(samples, 'document')}, {plural(characters, 'character')} "
        f"→ {escape(made['path'])}"
    )
    out.print(f"sha256 {made['sha256']}")


@tokenizer_command.command(
    "check", epilog="Example: tokmill tokenizer check o200k_base.tiktoken --sha256 446a9538cb6c…"
)
@click.argument("model", type=_path)
@click.option("--sha256", help="The file must have this digest.")
@_encoding
@json_option
@reports_errors
def check(model: Path, sha256: str | None, encoding: str | None, as_json: bool) -> None:
    """Say what MODEL is; fail if it cannot be used, or is not the pinned file."""
    found = check_tokenizer(model, sha256=sha256, encoding=encoding)
    if as_json:
        print_json({"ok": True, "path": str(model), **found.as_json()})
        return
    out.print(f"[green]✓[/] {escape(str(model))}: {found.kind}, {escape(found.model)}")
    out.print(f"  sha256          {found.sha256}{'  (as pinned)' if sha256 else ''}")
    out.print(f"  vocabulary      {found.vocab_size:,}")
    out.print(f"  byte fallback   {'yes' if found.byte_fallback else 'no'}")
    out.print(f"  normalization   {escape(found.normalization)}")
    shown = [f"{token} {id}" for token, id in list(found.specials.items())[:12]]
    more = f" and {len(found.specials) - 12:,} more" if len(found.specials) > 12 else ""
    out.print(f"  control tokens  {escape(', '.join(shown) or 'none')}{more}")


@tokenizer_command.command(
    "coverage", epilog="Example: tokmill tokenizer coverage tok.model data/*.jsonl.zst --by language"
)
@click.argument("model", type=_path)
@_files
@_by
@_text
@_encoding
@json_option
@reports_errors
def coverage(
    model: Path, files: tuple[Path, ...], by: By | None, text: str | None, encoding: str | None, as_json: bool
) -> None:
    """Measure how many tokens MODEL takes for the documents of FILES, and whether they come back unchanged."""
    found = measure_coverage(load_tokenizer(model, encoding=encoding), files, text=text)
    if as_json:
        print_json({"ok": True, "model": str(model), **found.as_json()})
        return
    groups = found.groups(by) if by else {}
    rows = [*groups.items(), ("total", found.total)]
    width = max(len(name) for name, _ in rows)
    out.print(
        f"{'':{width}} {'documents':>10} {'tokens/word':>11} {'tokens/byte':>11} {'chars/token':>11} "
        f"{'unknown':>9} {'returned':>9}"
    )
    for name, tally in rows:
        out.print(_row(name.ljust(width), tally))
    if found.unreadable:
        out.print(f"[yellow]not documents: {plural(found.unreadable, 'record')}[/]")


def _row(name: str, tally: Tally) -> str:
    figures = tally.as_json()
    return (
        f"{escape(name)} {tally.docs:>10,} {_shown(figures['tokens_per_word']):>11} "
        f"{_shown(figures['tokens_per_byte']):>11} {_shown(figures['characters_per_token']):>11} "
        f"{_shown(figures['unknown_rate'], '.3%'):>9} {_shown(figures['round_trip_share'], '.2%'):>9}"
    )


def _shown(value: float | None, form: str = ".4f") -> str:
    return "-" if value is None else format(value, form)


@tokenizer_command.command(
    "guard", epilog="Example: tokmill tokenizer guard old.model new.model held-out/*.jsonl.zst --by language"
)
@click.argument("base", type=_path)
@click.argument("new", type=_path)
@_files
@click.option(
    "--max-rise",
    type=click.FloatRange(0),
    default=MAX_RISE,
    show_default=True,
    help="Allowed rise of tokens per word.",
)
@click.option(
    "--max-fall",
    type=click.FloatRange(0, 1),
    default=MAX_FALL,
    show_default=True,
    help="Allowed fall of the share of known tokens, and of documents that come back unchanged.",
)
@_by
@_text
@click.option("--base-encoding", help="Encoding of BASE, a .tiktoken file that is not a published one.")
@click.option("--new-encoding", help="Likewise, of NEW.")
@json_option
@reports_errors
def guard(
    base: Path,
    new: Path,
    files: tuple[Path, ...],
    max_rise: float,
    max_fall: float,
    by: By | None,
    text: str | None,
    base_encoding: str | None,
    new_encoding: str | None,
    as_json: bool,
) -> None:
    """Compare tokenizer NEW with BASE on FILES; exit status 1 if it is worse than the thresholds allow."""
    measured = [
        measure_coverage(load_tokenizer(path, encoding=encoding), files, text=text)
        for path, encoding in ((base, base_encoding), (new, new_encoding))
    ]
    changes = compare_coverage(*measured, max_rise=max_rise, max_fall=max_fall, by=by)
    is_fine = not any(change.is_fault for change in changes)
    if as_json:
        print_json(
            {
                "ok": is_fine,
                "max_rise": max_rise,
                "max_fall": max_fall,
                "changes": [change._asdict() for change in changes],
                "base": measured[0].as_json(),
                "new": measured[1].as_json(),
            }
        )
    else:
        _render_changes(changes, max_rise, max_fall)
    if not is_fine:
        raise SystemExit(1)


def _render_changes(changes: list[Change], max_rise: float, max_fall: float) -> None:
    width = max(len(change.group) for change in changes)
    out.print(f"{'':{width}} {'':18} {'base':>9} {'new':>9} {'change':>9}")
    for change in changes:
        moved = "-" if change.base is None or change.new is None else f"{change.new - change.base:+.4f}"
        mark = "[red]✗[/]" if change.is_fault else "[green]✓[/]"
        out.print(
            f"{escape(change.group.ljust(width))} {change.figure:18} {_shown(change.base):>9} {_shown(change.new):>9} "
            f"{moved:>9} {mark}"
        )
    faults = sum(change.is_fault for change in changes)
    if faults:
        out.print(
            f"[red]{faults} of {plural(len(changes), 'figure')} beyond the thresholds[/] "
            f"(tokens per word +{max_rise:g}, shares -{max_fall:g})"
        )
