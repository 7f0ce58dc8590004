"""`tokmill why`, `trace`, `peek` and `clusters`:
a document's history, where its tokens are, a row as text, near copies.

    why     document ─> every rule with its value and margin, verdicts, split, tokens       render_history
            of a web page also its blocks                                                   _render_page
    trace   token ─> characters of a document, and its history;  document ─> its rows       render_tokens
    peek    row ─> text, document by document;  web page ─> its blocks beside its text, as an HTML page
    clusters    the largest clusters of near duplicates, and how their members differ

Texts of documents go through `shown`, so that none can control the terminal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.text import Text

import tokmill
from tokmill.audit.trace import TracedDocument
from tokmill.cli.console import answer, err, hooks_option, out, verb
from tokmill.cli.source_options import ANY_PATH, DIRECTORY, FILE, out_option, tokenizer_option
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.artifacts.manifest import Json
    from tokmill.audit.check import Peeked
    from tokmill.audit.clusters import Clusters, Difference
    from tokmill.audit.trace import Trace, Traced
    from tokmill.audit.why import History, RuleOutcome, Why
    from tokmill.reports.peeking import PeekedPage

VERBS = {
    "Look at a run": {
        "why": ("Show the history of a document, or what was dropped.", "audit.why"),
        "trace": ("Find the characters behind a token, or the tokens of a document.", "audit.trace"),
        "peek": ("Show the text of a row of a build, or the blocks of a web page.", "reports.peeking"),
        "clusters": ("Show the largest clusters of near duplicates.", "audit.clusters"),
    },
}

_SHOWN_ROWS = 8


def render_history(history: History) -> None:
    is_kept = history.outcome.startswith("kept")
    out.print(f"[bold]{shown(history.doc_id)}[/] of {shown(history.source)}: ", end="")
    out.print(f"[{'green' if is_kept else 'red'}]{shown(history.outcome)}[/]")
    line("ingest", {key: value for key, value in history.ingest.items() if value is not None})
    if history.page is not None:
        _render_page(history.page)
    if history.clean is not None:
        facts = {
            key: value for key, value in history.clean.items() if key != "decisions" and value is not None
        }
        line("clean", facts)
        for decision in history.clean["decisions"]:
            line("", decision)
    if history.rules:
        _render_rules(history.rules)
    if history.scores is not None:
        percentiles = {name: f"{v:.6g}" for name, v in history.scores["percentiles"].items() if v is not None}
        line("scores", {"kept": history.scores["kept"], **percentiles})
        for decision in history.scores["decisions"]:
            line("", decision)
    for score in history.explained:
        _render_score(score)
    if history.dedup is not None:
        line("dedup", {"kept": history.dedup["kept"]})
        for decision in history.dedup["decisions"]:
            line("", decision)
    if history.split is not None:
        line("split", {"side": history.split})
    render_tokens(history.tokens, history.builds)


def _render_score(score: Json) -> None:
    """What pushed it up, and what down."""
    line(score["score"], {key: score[key] for key in ("value", "windows", "note") if score[key] is not None})
    for key, colour in (("up", "green"), ("down", "red")):
        pieces = " · ".join(f"{one['contribution']:+.4g} {shown(one['piece'])}" for one in score[key])
        if pieces:
            out.print(f"  {'':<12} [{colour}]{pieces}[/]")


def _render_page(page: Json) -> None:
    """Where it lies, how much of it was kept, and its blocks where they are asked for."""
    line("page", {key: page[key] for key in ("file", "offset", "url") if page[key] is not None})
    if page["note"] is not None:
        out.print(f"  {'':<12} [yellow]{shown(page['note'])}[/]")
    if "threshold" in page:
        out.print(f"  {'':<12} {_spelled_tallies(page)}")
    for block in page.get("blocks", ()):
        _render_block(block)
    told = sum(page[key]["blocks"] for key in _VERDICTS) if "threshold" in page else 0
    if "blocks" in page and told > len(page["blocks"]):
        out.print(f"  [dim]and {told - len(page['blocks']):,} more[/]")


_VERDICTS = {"kept": "green", "left_out": "default", "hidden": "yellow"}
_BLOCK_CHARS, _BLOCK_REASONS = 100, 3


def _spelled_tallies(page: Json) -> str:
    told = [
        f"[{colour}]{name.replace('_', ' ')}[/] {plural(page[name]['blocks'], 'block')}, "
        f"{plural(page[name]['chars'], 'character')}"
        for name, colour in _VERDICTS.items()
    ]
    return f"{' · '.join(told)} · threshold {page['threshold']:+.2f}"


def _render_block(block: Json) -> None:
    colour = _VERDICTS[block["verdict"].replace(" ", "_")]
    text = block["text"][:_BLOCK_CHARS]
    cut = "…" if len(text) < block["chars"] else ""
    out.print(
        f"  [{colour}]{block['verdict']:<8}[/] {block['score']:+6.2f}  [dim]{shown(block['path'])}[/]  "
        f"{shown(text)}{cut}"
    )
    reasons = [one for one in block["reasons"] if one["feature"] != "others"][:_BLOCK_REASONS]
    told = " · ".join(f"{one['points']:+.2f} {one['words']}" for one in reasons)
    out.print(f"  {'':<16} [dim]{shown(block['because'])}: {shown(told)}[/]")


def render_tokens(tokens: Json | None, builds: Sequence[Json]) -> None:
    """Where they are: in their shard, and in every build, once per epoch."""
    if tokens is not None:
        line("tokens", tokens)
    for build in builds:
        for turn in build["turns"]:
            line(build["build"], {"split": build["split"], **_spelled_turn(turn)})
        if not build["turns"]:
            line(build["build"], {"none": build["why_not"]})


def _spelled_turn(turn: Json) -> Json:
    if "rows" not in turn:
        return {key: value for key, value in turn.items() if key != "turn"}
    rows = [
        f"{row['row']:,} columns {row['start']:,} to {row['end']:,}" for row in turn["rows"][:_SHOWN_ROWS]
    ]
    more = len(turn["rows"]) - len(rows)
    told: Json = {"rows": "; ".join(rows) + (f"; and {more:,} more" if more else "")}
    return {**told, **({"cut_tokens": turn["cut_tokens"]} if turn["cut_tokens"] else {})}


def _render_rules(rules: tuple[RuleOutcome, ...]) -> None:
    """Whole names, however wide: `tokmill whatif --set` takes them."""
    rows = [("rule", "value", "threshold", "margin")]
    rows += [(r.rule, number(r.value), r.bound, number(r.margin, "+")) for r in rules]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    colours = ["dim", *("red" if r.margin < 0 else "default" for r in rules)]
    for row, colour in zip(rows, colours, strict=True):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        out.print(f"  [{colour}]{shown('  '.join(cells))}[/]")


def line(label: str, facts: dict[str, Any]) -> None:
    told = " · ".join(f"{key} {_spelled(value)}" for key, value in facts.items())
    out.print(f"  [dim]{shown(label):<12}[/] {shown(told)}")


def shown(text: str) -> str:
    return escape(_printable(text))


def _printable(text: str) -> str:
    """Anybody may have written a text: what is not printable could control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value)


def number(value: float, sign: str = "") -> str:
    return f"{int(value):{sign},}" if float(value).is_integer() else f"{value:{sign}.6g}"


_SHOWN_CHARS = 300


@click.command(
    "why", epilog="Example: tokmill why demo/out problem-00017    tokmill why demo/out --reason too_short"
)
@click.argument("directory", type=DIRECTORY)
@click.argument("doc_id", required=False)
@click.option("--source", help="Only documents of this source.")
@click.option(
    "--reason",
    help=(
        "Show some of the documents that left or were changed for this reason (or part of its name), and "
        "their number; `all`: every reason."
    ),
)
@click.option("--blocks", is_flag=True, help="Of a web page: every block, its score and what decided it.")
@click.option("--explain", is_flag=True, help="Of learned scores: the words and n-grams that decided them.")
@click.option(
    "--base",
    type=DIRECTORY,
    help="Where the recipe lies, to read a web page again [default: around DIRECTORY, then here].",
)
@verb
def why_command(as_json: bool, **options: Any) -> None:
    """Show the history of DOC_ID in the run in DIRECTORY: where it came from, every rule with its value and
    margin, what was decided, and where its tokens are.

    Of a web page, if its file is still there, also how much of the page was kept and left out.
    """
    answer(tokmill.why(**options), as_json, lambda found: _render_why(found, options["reason"]))


def _render_why(found: Why, reason: str | None) -> None:
    for history in found.documents or ():
        render_history(history)
    for one in found.counts or ():
        out.print(f"[dim]{shown(one['step'])}: {one['verdict']} {one['docs']:,} {shown(one['reason'])}[/]")
    if found.examples:
        _render_examples(found.examples)
    elif found.counts:
        out.print("no example of them was recorded")
    elif reason is not None:
        out.print(
            "no document left or was changed for "
            f"{shown(reason)}{'; reasons of this run:' if found.others else ''}"
        )
        _render_reasons(found.others or [])


def _render_reasons(counts: list[Json]) -> None:
    """Each once, the largest first."""
    totals: Counter[str] = Counter()
    steps: dict[str, list[str]] = {}
    for one in counts:
        totals[one["reason"]] += one["docs"]
        steps.setdefault(one["reason"], []).append(one["step"])
    for reason, docs in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        out.print(f"  {docs:>10,}  {shown(reason)}  [dim]{shown(', '.join(steps[reason]))}[/]")


def _render_examples(examples: list[dict[str, Any]]) -> None:
    for example in examples:
        measured = ""
        if example["value"] is not None and example["threshold"] is not None:
            measured = f" ({number(example['value'])}, threshold {number(example['threshold'])})"
        name = example["doc_id"] or f"{example['file']} at {example['offset']:,}"
        out.print(f"[red]{shown(example['reason'])}[/]{measured}  {shown(example['source'])} {shown(name)}")
        told = [example["step"], example.get("detail")]
        if example.get("match"):
            told.append(f"kept instead: {example['match']['source']} {example['match']['doc_id']}")
        if example.get("similarity") is not None:
            told.append(f"similarity {number(example['similarity'])}")
        out.print(f"  [dim]{shown(' · '.join(part for part in told if part))}[/]")
        if example["text"] is not None:
            text = example["text"][:_SHOWN_CHARS]
            out.print(f"[dim]{shown(text)}{'…' if len(example['text']) > _SHOWN_CHARS else ''}[/]")
        out.print()


@click.command(
    "trace",
    epilog="Example: tokmill trace demo/out/build/rows --row 17 --column 300    "
    "tokmill trace demo/out --doc-id problem-00017",
)
@click.argument("directory", type=DIRECTORY)
@click.option("--row", type=click.IntRange(0), help="A row, or a sequence, of a build.")
@click.option("--column", type=click.IntRange(0), help="One token of the row.")
@click.option("--offset", type=click.IntRange(0), help="A token of documents end to end, counted from 0.")
@click.option("--split", help="Split of the build [default: its first].")
@click.option("--doc-id", help="A document of a run: where its tokens are, or why it has none.")
@click.option("--source", help="With --doc-id: only of this source.")
@verb
def trace_command(as_json: bool, **options: Any) -> None:
    """Say which characters of which document a token of the build in DIRECTORY was read from,
    and that document's history; or, for a run, where the tokens of a document are."""
    answer(tokmill.trace(**options), as_json, _render_trace)


def _render_trace(found: Trace) -> None:
    for document in found.documents:
        if isinstance(document, TracedDocument):
            _render_document(document)
        else:
            _render_traced(document)
    for step in found.documents[0].missing if isinstance(found.documents[0], TracedDocument) else ():
        err.print(f"[yellow]not finished[/]: {shown(step)} has no artifact")


def _render_traced(traced: Traced) -> None:
    where = f"{shown(traced.build)} {shown(traced.split)} row {traced.row:,}"
    columns = f"columns {traced.start:,} to {traced.end:,}"
    if traced.source is None or traced.doc_id is None:
        out.print(f"[bold]{where}[/] {columns}: {traced.note}")
        return
    out.print(f"[bold]{where}[/] {columns}: [green]{shown(traced.doc_id)}[/] of {shown(traced.source)}")
    first, stop = traced.tokens
    whole = f" of {traced.document_tokens:,}" if traced.document_tokens is not None else ""
    end = ", with the end of the document" if traced.ends_document else ""
    out.print(f"  [dim]{'tokens':<12}[/] {first:,} to {stop:,}{whole}{end}")
    stretch = traced.stretch
    if stretch is not None:
        cut = ", a token ends inside a character" if stretch.is_cut else ""
        out.print(
            f"  [dim]{'characters':<12}[/] {stretch.start:,} to {stretch.end:,} "
            f"(bytes {stretch.first_byte:,} to {stretch.end_byte:,}{cut})"
        )
        before, marked, after = (shown(part.replace("\n", "⏎")) for part in stretch.excerpt)
        out.print(f"  [dim]{before}[/]⟦[bold]{marked}[/]⟧[dim]{after}[/]")
    _render_origin(traced.origin)
    if traced.history is not None:
        render_history(traced.history)
    if traced.note is not None:
        err.print(f"[yellow]{shown(traced.note)}[/]")


def _render_document(document: TracedDocument) -> None:
    if document.history is not None:
        render_history(document.history)
    else:
        out.print(
            f"[bold]{shown(document.doc_id)}[/] of {shown(document.source)}: "
            f"[red]{shown(document.outcome)}[/]"
        )
    _render_origin(document.origin)
    render_tokens(document.tokens, document.builds)


def _render_origin(origin: Json | None) -> None:
    told = {key: value for key, value in (origin or {}).items() if value is not None}
    if told:
        line("origin", told)


# One after the other: neighbours are told apart, on dark and on light.
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@click.command(
    "peek",
    epilog="Example: tokmill peek demo/out/build/rows --row 3    "
    "tokmill peek --html crawl.warc.gz --out page.html",
)
@click.argument("build", type=DIRECTORY, required=False)
@click.option("--row", type=int, default=0, help="Row to show; -1 is the last.")
@click.option("--split", help="Split of the build [default: train, or its only one].")
@tokenizer_option(", where it is not beside the build")
@hooks_option
@click.option(
    "--html", type=FILE, help="A web page (.html) or web archive (.warc, .warc.gz), in place of BUILD."
)
@click.option("--id", help="Which page of a web archive, by its WARC-Record-ID [default: the first].")
@out_option("the page for --html [default: NAME.blocks.html in the working directory]", ANY_PATH)
@verb
def peek_command(as_json: bool, **options: Any) -> None:
    """Show the text of one row of BUILD, each document in a colour of its own.

    With --html: write a page that shows the blocks of a web page, kept or left out, with their scores and
    what decided them, beside the text that is taken out. It needs no network and runs no script.
    """
    is_page = options["html"] is not None
    answer(tokmill.peek(**options), as_json, _render_peeked_page if is_page else _render_peeked)


def _render_peeked_page(found: PeekedPage) -> None:
    told = found.as_json()
    line("page", {key: told[key] for key in ("file", "offset", "id", "url") if told[key] is not None})
    out.print(f"  {'':<12} {_spelled_tallies(told)}")
    out.print(f"[green]✓[/] {shown(told['page'])}")


def _render_peeked(found: Peeked) -> None:
    padding = f", {found.padding:,} padding" if found.padding else ""
    out.print(
        f"[bold]{found.split}[/] row {found.row:,} of {found.rows:,}: "
        f"{plural(found.length, 'token')}{padding}, {plural(len(found.pieces), 'document')}"
    )
    for number, piece in enumerate(found.pieces):
        colour = _COLOURS[number % len(_COLOURS)]
        name = " of ".join(part for part in (piece.doc_id, piece.source) if part)
        where = f"[{piece.start}:{piece.end}]"
        begun = f"from its token {piece.offset:,}" if piece.offset else ""
        ended = "" if piece.is_ended else "continues or was truncated"
        told = ", ".join(part for part in (name, begun, ended) if part)
        out.print(Text(_printable(f"── {where} {told}"), style=f"dim {colour}"))
        out.print(Text(_printable(piece.text), style=colour))


_SHOWN_PLACES = 8
_DIFFERENCE_CHARS = 160


@click.command("clusters", epilog="Example: tokmill clusters out/web --count 5 --diff")
@click.argument("directory", type=DIRECTORY)
@click.option("--count", type=click.IntRange(1), default=10, help="Clusters to show, the largest first.")
@click.option("--members", type=click.IntRange(2), default=5, help="Members to show of each cluster.")
@click.option(
    "--diff", is_flag=True, help="Show the differences between the first and the last member shown."
)
@verb
def clusters_command(as_json: bool, **options: Any) -> None:
    """Show the largest clusters of near duplicates in the run in DIRECTORY."""
    answer(tokmill.clusters(**options), as_json, _render_clusters)


def _render_clusters(found: Clusters) -> None:
    if not found.clusters:
        out.print("no two documents are near duplicates")
    for cluster in found.clusters:
        out.print(f"[bold]cluster {cluster.cluster}[/]: {plural(cluster.size, 'document')}")
        for member in cluster.members:
            outcome = "[green]kept[/]   " if member.kept else f"[red]{member.similarity:.3f}[/]  "
            out.print(f"  {outcome} {shown(member.shard)}:{member.row}  {shown(member.doc_id)}")
        differences = (found.differences or {}).get(cluster.cluster)
        if differences is not None:
            names = " → ".join(shown(member.doc_id) for member in (cluster.members[0], cluster.members[-1]))
            out.print(f"    {names}: {plural(len(differences), 'difference')}")
            _render_differences(differences)


def _render_differences(found: list[Difference]) -> None:
    for place in found[:_SHOWN_PLACES]:
        removed, added = _shortened(place.removed), _shortened(place.added)
        out.print(
            f"      [dim]… {shown(place.before)}[/] [red strike]{shown(removed)}[/] "
            f"[green]{shown(added)}[/] [dim]{shown(place.after)} …[/]"
        )
    if len(found) > _SHOWN_PLACES:
        out.print(f"      [dim]and {len(found) - _SHOWN_PLACES} more[/]")


def _shortened(text: str) -> str:
    return (
        text
        if len(text) <= _DIFFERENCE_CHARS
        else f"{text[: _DIFFERENCE_CHARS // 2]} […] {text[-_DIFFERENCE_CHARS // 2 :]}"
    )
