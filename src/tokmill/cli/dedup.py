"""`tokmill dedup` and `tokmill clusters`: copies, and the clusters that they form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from tokmill.adhoc.single_steps import dedup_files
from tokmill.audit.examples import Member, compare_members, load_clusters
from tokmill.cli.console import choice_option, json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.source_options import replace_option, sources_recipe, workers_option
from tokmill.duplicates.near import choose_bands, probability_curve
from tokmill.errors import plural

_MODES = ("exact", "near", "window", "exact+near", "exact+window", "near+window", "exact+near+window")
_FORMER_MODES = {"both": "exact+near", "all": "exact+near+window"}
_SHOWN_PLACES = 8
_SHOWN_CHARS = 160


class _Mode(click.Choice):  # type: ignore[type-arg]  # older clicks take none
    def convert(self, value: Any, param: Any, context: Any) -> Any:
        return super().convert(_FORMER_MODES.get(value, value), param, context)


@click.command(
    "dedup",
    epilog="Example: tokmill dedup 'data/*.jsonl.zst' --mode exact+near --threshold 0.8 --out-dir unique\n\n"
    "tokmill dedup 'data/*.jsonl.zst' --mode window --policy trim --out-dir unique",
)
@click.argument("files", nargs=-1)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]GLOB",
    help="A source; may be repeated. NAME holds for its records too, whatever they carry.",
)
@click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="[NAME=]GLOB",
    help="A source to compare with, never dropped or written.",
)
@click.option(
    "--mode",
    type=_Mode(_MODES),
    default="exact+near",
    show_default=True,
    help="Equal texts, similar ones, passages that an earlier document has: keys of `dedup` in a recipe.",
)
@choice_option(
    "--policy",
    choices=["report", "drop", "trim"],
    default="report",
    help="What to do with passages: list them, drop documents that mostly repeat, or cut the later copies.",
)
@click.option(
    "--window-words",
    type=click.IntRange(5, 10_000),
    default=50,
    show_default=True,
    help="Words of the shortest passage to look for.",
)
@click.option(
    "--winnow",
    type=click.IntRange(1, 1000),
    default=31,
    show_default=True,
    help="Passages of --window-words + --winnow - 1 words are always found.",
)
@click.option(
    "--max-share",
    default="0.5",
    show_default=True,
    help="With --policy drop: drop documents with more of their words in passages.",
)
@click.option(
    "--min-words",
    type=click.IntRange(0),
    default=50,
    show_default=True,
    help="With --policy trim: drop documents that would keep fewer words.",
)
@choice_option(
    "--scope",
    choices=["global", "per-source"],
    default="global",
    help="Look for copies in all sources, or within each; records that carry a source belong to it.",
)
@choice_option(
    "--keep",
    choices=["first", "longest", "newest", "best"],
    default="first",
    help="Which of several copies is kept.",
)
@click.option(
    "--threshold",
    default="0.8",
    show_default=True,
    help="Jaccard similarity of n-gram sets from which texts are near duplicates.",
)
@click.option(
    "--ngram",
    type=click.IntRange(1, 64),
    default=5,
    show_default=True,
    help="Words or characters in a shingle.",
)
@choice_option("--unit", choices=["word", "char"], default="word", help="Unit of shingles.")
@choice_option(
    "--verify",
    choices=["exact", "signature"],
    default="exact",
    help="Verify a pair by its texts, or by its fingerprints alone.",
)
@click.option("--text", help="Field that holds the text [default: text or content].")
@click.option("--max-cluster", type=click.IntRange(2), help="Stop if a cluster is larger.")
@click.option("--max-source-loss", help="Stop if a source would lose a larger share.")
@click.option(
    "--curve", is_flag=True, help="Print which share of pairs is found at each similarity, and stop."
)
@click.option(
    "--out-dir", "directory", type=click.Path(file_okay=False, path_type=Path), required=True, help="Output."
)
@replace_option
@workers_option
@json_option
@reports_errors
def dedup_command(
    files: tuple[str, ...],
    inputs: tuple[str, ...],
    references: tuple[str, ...],
    mode: str,
    policy: str,
    window_words: int,
    winnow: int,
    max_share: str,
    min_words: int,
    scope: str,
    keep: str,
    threshold: str,
    ngram: int,
    unit: str,
    verify: str,
    text: str | None,
    max_cluster: int | None,
    max_source_loss: str | None,
    curve: bool,
    directory: Path,
    replace: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Keep one of several documents that say the same, exactly or nearly, and one of several copies of a passage.

    Writes deduped.jsonl.zst and decisions.jsonl.zst, which says of every document whether it was kept, and if not
    which document it repeats and how similar they are. A document is dropped only for one that is kept and to which
    it is itself similar enough. With passages, passages.jsonl.zst lists each of them, and where it was before.
    """
    near = {"threshold": threshold, "ngram": ngram, "unit": unit, "verify": verify}
    limits = {"max_share": max_share, "min_words": min_words}
    window = {"words": window_words, "winnow": winnow, "policy": policy, **limits}
    kinds = mode.split("+")
    dedup: dict[str, Any] = {
        "exact": "exact" in kinds,
        "near": near if "near" in kinds else None,
        "window": window if "window" in kinds else None,
        "scope": scope,
        "keep": keep,
        "max_cluster": max_cluster,
        "max_source_loss": max_source_loss,
    }
    if curve:
        _render_curve(float(threshold), as_json)
        return
    recipe, reference, own = sources_recipe(files, inputs, references, text, dedup)
    with open_progress() as progress:
        found = dedup_files(
            recipe,
            Path.cwd(),
            directory,
            reference=reference,
            own=own,
            replace=replace,
            workers=workers,
            progress=progress,
        )
    if as_json:
        print_json({"ok": True, "directory": str(directory), **found})
        return
    drops = "".join(f" · dropped {count:,} {reason}" for reason, count in sorted(found["drops"].items()))
    out.print(
        f"{found['docs']:,} of {plural(found['docs_in'], 'document')}{drops} → {escape(str(directory))}"
    )
    if found["clusters"]:
        facts = found["clusters"]
        out.print(f"{plural(facts['clusters'], 'cluster')}, the largest of {facts['largest_cluster']:,}")
    if "passages" in found:
        _render_passages(found["passages"], policy)


def _render_passages(facts: dict[str, Any], policy: str) -> None:
    passages, documents = plural(facts["passages"], "passage"), plural(facts["documents"], "document")
    done = {
        "report": "nothing is cut or dropped for them: --policy drop or --policy trim",
        "drop": "documents that are mostly repeated are dropped",
        "trim": f"{plural(facts['bytes_cut'], 'byte')} cut from the later copies",
    }
    out.print(f"{passages} in {documents}, {plural(facts['repeated_words'], 'word')}; {done[policy]}")


def _render_curve(threshold: float, as_json: bool) -> None:
    bands, rows = choose_bands(threshold)
    curve = probability_curve(bands, rows)
    if as_json:
        print_json({"ok": True, "bands": bands, "rows": rows, "curve": curve})
        return
    out.print(
        f"{plural(bands, 'band')} of {plural(rows, 'row')}; share of pairs that become candidates, by similarity:"
    )
    for similarity, share in curve:
        out.print(f"  {similarity:4.2f}  {share:7.2%}  {'█' * round(40 * share)}")


@click.command("clusters", epilog="Example: tokmill clusters out/web --count 5 --diff")
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option(
    "--count",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Clusters to show, the largest first.",
)
@click.option(
    "--members", type=click.IntRange(2), default=5, show_default=True, help="Members to show of each cluster."
)
@click.option(
    "--diff", is_flag=True, help="Show the differences between the first and the last member shown."
)
@json_option
@reports_errors
def clusters_command(directory: Path, count: int, members: int, diff: bool, as_json: bool) -> None:
    """Show the largest clusters of near duplicates in the run in DIRECTORY."""
    found = load_clusters(directory, count, members)
    if as_json:
        print_json({"ok": True, "clusters": [cluster.as_json() for cluster in found]})
        return
    if not found:
        out.print("no two documents are near duplicates")
    for cluster in found:
        out.print(f"[bold]cluster {cluster.cluster}[/]: {plural(cluster.size, 'document')}")
        for member in cluster.members:
            outcome = "[green]kept[/]   " if member.kept else f"[red]{member.similarity:.3f}[/]  "
            out.print(f"  {outcome} {escape(member.shard)}:{member.row}  {escape(member.doc_id)}")
        if diff and len(cluster.members) > 1:  # with `policy: report` the last is kept too
            _render_difference(directory, cluster.members[0], cluster.members[-1])


def _render_difference(directory: Path, one: Member, other: Member) -> None:
    found = compare_members(directory, one, other)
    out.print(f"    {escape(one.doc_id)} → {escape(other.doc_id)}: {plural(len(found), 'difference')}")
    for place in found[:_SHOWN_PLACES]:
        removed, added = _shortened(place.removed), _shortened(place.added)
        out.print(
            f"      [dim]… {escape(place.before)}[/] [red strike]{escape(removed)}[/] "
            f"[green]{escape(added)}[/] [dim]{escape(place.after)} …[/]"
        )
    if len(found) > _SHOWN_PLACES:
        out.print(f"      [dim]and {len(found) - _SHOWN_PLACES} more[/]")


def _shortened(text: str) -> str:
    return (
        text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS // 2]} […] {text[-_SHOWN_CHARS // 2 :]}"
    )
