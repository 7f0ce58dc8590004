"""`tokmill tokenizer train | check | coverage | guard`: train one, look at one, measure it, compare two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.cli.console import answer, out, verb, with_progress
from tokmill.cli.source_options import (
    ANY_FILE,
    ANY_PATH,
    FILE,
    out_option,
    replace_option,
    seed_option,
    text_option,
    workers_option,
)
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.adhoc.mixtures import Trained
    from tokmill.adhoc.tokenizer_coverage import By, Checked, Coverage, Guarded, Tally

VERBS = {
    "Tokenizers": {
        "tokenizer": (
            "Train, check and compare tokenizers.",
            {
                "train": "adhoc.mixtures",
                "check": "adhoc.tokenizer_coverage",
                "coverage": "adhoc.tokenizer_coverage",
                "guard": "adhoc.tokenizer_coverage",
            },
        ),
    },
}

_files = click.argument("files", nargs=-1, required=True, type=ANY_FILE)
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
    "--out tok --stats tok/log.json",
)
@click.option("--manifest", type=FILE, required=True, help="Datasets and their weights, in YAML.")
@click.option(
    "--vocab-size",
    type=click.IntRange(257, 1 << 24),
    default=32000,
    help="Tokens, control symbols included.",
)
@click.option(
    "--model",
    type=click.Choice(["unigram", "bpe", "byte_bpe"]),
    default="unigram",
    help="unigram and bpe are SentencePiece models, byte_bpe is a tokenizer.json.",
)
@out_option("the tokenizer and its log", required=True)
@click.option(
    "--stats",
    type=ANY_FILE,
    help="Figures of the training, as JSON [default: tokenizer.log.json in the output directory].",
)
@click.option("--eos", help="The token that ends a document [default: </s>; byte_bpe: <|endoftext|>].")
@click.option(
    "--sample-megabytes",
    type=click.IntRange(1),
    default=256,
    help="Text to learn from, all sources together.",
)
@seed_option(" [default: that of the manifest]")
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
@click.option("--user-symbol", multiple=True, help="A piece that is never cut; may be repeated.")
@click.option("--control-symbol", multiple=True, help="A control token; may be repeated.")
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
@verb
def train(as_json: bool, **options: Any) -> None:
    """Train a tokenizer on a sample of the datasets in MANIFEST, drawn by weight.

    The same manifest, texts and options give the same bytes, whatever the number of workers and cores.
    A killed command resumes.
    """
    answer(with_progress("tokenizer_train", options), as_json, _render_trained)


def _render_trained(made: Trained) -> None:
    facts = made.facts
    samples = plural(sum(dataset["samples"] for dataset in facts["datasets"]), "document")
    characters = plural(sum(dataset["characters"] for dataset in facts["datasets"]), "character")
    out.print(
        f"{plural(facts['vocab_size'], 'token')} from {samples}, {characters} → {escape(str(made.path))}"
    )
    out.print(f"sha256 {facts['sha256']}")


@tokenizer_command.command(
    "check", epilog="Example: tokmill tokenizer check o200k_base.tiktoken --sha256 446a9538cb6c…"
)
@click.argument("model", type=ANY_PATH)
@click.option("--sha256", help="The file must have this digest.")
@_encoding
@verb
def check(as_json: bool, **options: Any) -> None:
    """Say what MODEL is; fail if it cannot be used, or is not the pinned file."""
    answer(tokmill.tokenizer_check(**options), as_json, _render_checked)


def _render_checked(checked: Checked) -> None:
    found, is_pinned = checked.description, click.get_current_context().params["sha256"]
    out.print(f"[green]✓[/] {escape(str(checked.path))}: {found.kind}, {escape(found.model)}")
    out.print(f"  sha256          {found.sha256}{'  (as pinned)' if is_pinned else ''}")
    out.print(f"  vocabulary      {found.vocab_size:,}")
    out.print(f"  byte fallback   {'yes' if found.byte_fallback else 'no'}")
    out.print(f"  normalization   {escape(found.normalization)}")
    shown = [f"{token} {id}" for token, id in list(found.specials.items())[:12]]
    more = f" and {len(found.specials) - 12:,} more" if len(found.specials) > 12 else ""
    out.print(f"  control tokens  {escape(', '.join(shown) or 'none')}{more}")


@tokenizer_command.command(
    "coverage", epilog="Example: tokmill tokenizer coverage tok.model data/*.jsonl.zst --by language"
)
@click.argument("model", type=ANY_PATH)
@_files
@_by
@text_option
@_encoding
@verb
def coverage(by: By | None, as_json: bool, **options: Any) -> None:
    """Measure how many tokens MODEL takes for the documents of FILES,
    and whether they come back unchanged."""
    found = tokmill.tokenizer_coverage(**options)
    answer(found, as_json, lambda found: _render_coverage(found, by))


def _render_coverage(found: Coverage, by: By | None) -> None:
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
@click.argument("base", type=ANY_FILE)
@click.argument("new", type=ANY_FILE)
@_files
@click.option("--max-rise", type=click.FloatRange(0), default=0.05, help="Allowed rise of tokens per word.")
@click.option(
    "--max-fall",
    type=click.FloatRange(0, 1),
    default=0.02,
    help="Allowed fall of the share of known tokens, and of documents that come back unchanged.",
)
@_by
@text_option
@click.option("--base-encoding", help="Encoding of BASE, a .tiktoken file that is not a published one.")
@click.option("--new-encoding", help="Likewise, of NEW.")
@verb
def guard(as_json: bool, **options: Any) -> None:
    """Compare tokenizer NEW with BASE on FILES; exit status 1 if it is worse than the thresholds allow."""
    answer(tokmill.tokenizer_guard(**options), as_json, _render_guarded)


def _render_guarded(found: Guarded) -> None:
    changes = found.changes
    width = max(len(change.group) for change in changes)
    out.print(f"{'':{width}} {'':18} {'base':>9} {'new':>9} {'change':>9}")
    for change in changes:
        moved = "-" if change.base is None or change.new is None else f"{change.new - change.base:+.4f}"
        mark = "[red]✗[/]" if change.is_fault else "[green]✓[/]"
        out.print(
            f"{escape(change.group.ljust(width))} {change.figure:18} {_shown(change.base):>9} "
            f"{_shown(change.new):>9} {moved:>9} {mark}"
        )
    faults = sum(change.is_fault for change in changes)
    if faults:
        out.print(
            f"[red]{faults} of {plural(len(changes), 'figure')} beyond the thresholds[/] "
            f"(tokens per word +{found.max_rise:g}, shares -{found.max_fall:g})"
        )
