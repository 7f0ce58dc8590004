"""`tokmill ingest`, `sample`, `normalize`, `filter` and `dedup`: one step over texts;
and `hub`, a look at its datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.artifacts.progress import warnings_to
from tokmill.cli.console import answer, describe_counts, open_progress, out, print_json, verb
from tokmill.cli.pipes import run_step
from tokmill.cli.source_options import (
    ANY_FILE,
    Escaped,
    either_options,
    files_options,
    hub_options,
    out_option,
    replace_option,
    seed_option,
    template_option,
    text_option,
    with_options,
    workers_option,
)
from tokmill.duplicates.near import choose_bands, probability_curve
from tokmill.errors import most_scanned, plural

if TYPE_CHECKING:
    from tokmill.adhoc.from_files import Ingested
    from tokmill.adhoc.single_steps import Output

VERBS = {
    "Single steps, without a recipe": {
        "ingest": (
            "Read one source, and nothing more.",
            {"hub": "adhoc.from_files", "files": "adhoc.from_files"},
        ),
        "sample": ("Draw documents from files.", "adhoc.from_files"),
        "normalize": ("Normalize the texts of files.", "adhoc.from_files"),
        "filter": ("Filter files by measured rules, language and licence.", "adhoc.from_files"),
        "dedup": ("Keep one of several documents that say the same.", "adhoc.from_files"),
    },
    "Corpora": {
        "hub": ("Look at datasets of the Hugging Face hub.", {"configs": "adhoc.reading"}),
    },
}

_PIPE = "- (JSON lines to standard output)"
_documents_out = out_option(f"a directory of Parquet documents, or {_PIPE}", required=True)


@click.group("ingest", epilog="Example: tokmill ingest hub openai/gsm8k --config main --out gsm8k")
def ingest_command() -> None:
    """Read one source, and nothing more: documents as received, with their manifest."""


@ingest_command.command(
    "hub",
    epilog=(
        "Example: tokmill ingest hub openai/gsm8k --config main --split train --out gsm8k --limit docs=1000"
    ),
)
@hub_options
@_documents_out
@workers_option
@verb
def hub(as_json: bool, **options: Any) -> None:
    """Read DATASET from the hub into DIRECTORY. Once its manifest exists, no network is touched again."""
    run_step("ingest_hub", options, as_json, _render_ingested)


@ingest_command.command(
    "files",
    epilog="Example: tokmill ingest files 'dump/AA/*' --format wikipedia --out wiki --option namespaces=[0]",
)
@files_options
@_documents_out
@workers_option
@verb
def files(as_json: bool, **options: Any) -> None:
    """Read local files into DIRECTORY: records and plain text, Wikipedia, StackExchange, parallel text,
    archives.

    PATTERNS may be quoted globs or the files that the shell made of them,
    or - for JSON lines from standard input. Records are .jsonl .json .csv .tsv .txt .md, plain or with .gz
    .zst .bz2 .xz .lz4, .parquet .arrow .feather, or a directory that `save_to_disk` of datasets wrote.
    """
    run_step("ingest_files", options, as_json, _render_ingested)


def _render_ingested(made: Ingested) -> None:
    if made.dataset is not None:
        out.print(f"{escape(made.dataset)} at {made.revision}")
    out.print(f"{describe_counts(made.counts)} → {escape(str(made.directory))}")


@click.group("hub", epilog="Example: tokmill hub configs HuggingFaceFW/fineweb-2 --lang eng")
def hub_command() -> None:
    """Look at datasets of the Hugging Face hub."""


@hub_command.command(
    "configs", epilog="Example: tokmill hub configs HuggingFaceFW/fineweb-2 --lang eng --script Latn"
)
@click.argument("dataset")
@click.option("--lang", help="A language tag, whole: eng is in eng_Latn and not in asm_Beng.")
@click.option("--script", help="A script tag, whole: Latn.")
@click.option("--contains", help="Plain substring of the name. Matches inside other words too.")
@click.option("--revision", help="Branch, tag or commit [default: main].")
@verb
def configs(as_json: bool, **options: Any) -> None:
    """List the configs of DATASET, by language and script tags or by name."""
    with open_progress() as progress, warnings_to(progress.say):
        found = tokmill.hub_configs(**options)
    answer(found, as_json, lambda found: out.print("\n".join(map(escape, found.configs))))


@click.command(
    "sample", epilog="Example: tokmill sample 'data/*.jsonl.zst' --k 1000 --seed 7 --out some.jsonl.zst"
)
@click.argument("patterns", nargs=-1, required=True)
@click.option(
    "--method",
    type=click.Choice(["reservoir", "weighted", "hash", "head", "shuffle_buffer"]),
    default="reservoir",
    help="Only `head` and `shuffle_buffer` leave the rest of the files unread.",
)
@click.option("--k", type=click.IntRange(1), help="Documents, for all methods but hash.")
@click.option("--fraction", help="Share of the documents, for hash.")
@click.option("--weight", help="Field with the weight, for weighted.")
@click.option("--buffer", type=click.IntRange(1), help="Documents in the buffer, for shuffle_buffer.")
@seed_option(default=0)
@text_option
@template_option
@out_option(f"a file .jsonl[.gz|.zst] or .parquet, or {_PIPE}", ANY_FILE, required=True)
@workers_option
@verb
def sample_command(as_json: bool, **options: Any) -> None:
    """Take a sample of the files that PATTERNS name: the same for a seed, whatever the number of workers.
    Equal records are drawn as one: it does not tell how many copies there are.

    PATTERNS may be - for JSON lines from standard input.
    """
    run_step("sample", options, as_json, _render_sample)


def _render_sample(made: Output) -> None:
    scanned = made.figures["scanned"]
    out.print(f"{describe_counts(made.figures['counts'])} → {escape(str(made.path))}")
    if not scanned["is_complete"]:
        read = most_scanned(scanned["fraction"], f"{scanned['fraction']:.2%}")
        out.print(
            f"[yellow]{read} of the files was read: this is their beginning, not a random sample of them[/]"
        )


_cleaning_options = with_options(
    click.option(
        "--domain",
        help="Domain of the documents, also where records carry another [default: default].",
    ),
    seed_option(default=0),
    out_option(
        f"a directory of JSONL.zst shards, a FILE.txt of the texts alone, or {_PIPE}",
        click.Path(path_type=Path),
        required=True,
    ),
    click.option(
        "--separator",
        type=Escaped(),
        default="\\n",
        help=(
            "After each text of a .txt file. \\n: line ends inside of a text become spaces; \\n\\n: blank "
            "lines inside go; any other may be in no text, and nothing changes."
        ),
    ),
    replace_option,
    workers_option,
)


@click.command(
    "normalize",
    epilog="Example: tokmill normalize 'data/*.jsonl.zst' --unicode NFC --newlines lf --out clean",
)
@either_options
@click.option(
    "--unicode", type=click.Choice(["none", "NFC", "NFKC"]), default="NFC", help="Unicode form of the texts."
)
@click.option(
    "--newlines", type=click.Choice(["keep", "lf"]), default="lf", help="Line ends: as they are, or all \\n."
)
@click.option("--nul", type=click.Choice(["strip", "keep"]), default="strip", help="NUL characters.")
@click.option(
    "--redact",
    multiple=True,
    type=click.Choice(["email", "ip", "phone", "secret"]),
    help="Replace these by a mark; may be repeated.",
)
@_cleaning_options
@verb
def normalize_command(as_json: bool, **options: Any) -> None:
    """Normalize the texts of files: Unicode form, line ends, NULs, redaction.

    Writes JSONL.zst shards, a manifest for each, and decisions.jsonl.zst; or, with --out FILE.txt, the texts
    alone. PATTERNS may be quoted globs or the files that the shell made of them, or - for JSON lines from
    standard input; --hub reads a dataset of the hub instead.
    """
    run_step("normalize", options, as_json, _render_cleaned)


@click.command(
    "filter",
    epilog=(
        "Example: tokmill filter 'data/*.jsonl.zst' --pack gopher-quality --rule 'digit_share<=0.3' --out "
        "kept\n\ntokmill filter --hub HuggingFaceFW/fineweb --config sample-10BT --limit docs=10000 "
        "--language en --recall 0.99 --out english.txt"
    ),
)
@either_options
@click.option(
    "--pack",
    multiple=True,
    help="Filter pack: gopher-quality, gopher-repetition, c4, fineweb, stage-a, web-en or code.",
)
@click.option(
    "--rule",
    multiple=True,
    metavar="MEASURE<=THRESHOLD",
    help="A rule on a measure; or MEASURE>=THRESHOLD.",
)
@click.option("--language", multiple=True, help="Keep texts that are detected as this language.")
@click.option(
    "--detector",
    type=click.Choice(["fasttext", "py3langid", "langdetect"]),
    default="fasttext",
    help="Language detector; scores of two detectors cannot be compared.",
)
@click.option("--min-score", help="Lowest score of the language detector [default: 0.65].")
@click.option(
    "--recall",
    help=(
        "Instead of --min-score: keep this share of English texts, such as 0.99; the same for every detector."
    ),
)
@click.option("--allow-license", multiple=True, help="Keep documents of this licence.")
@click.option("--deny-license", multiple=True, help="Drop documents of this licence.")
@click.option(
    "--unknown-license",
    type=click.Choice(["drop", "keep", "quarantine"]),
    default="drop",
    help="What to do with documents without a known licence.",
)
@_cleaning_options
@verb
def filter_command(as_json: bool, **options: Any) -> None:
    """Filter the documents of files by packs and rules on measures, by language and by licence.

    Writes JSONL.zst shards, a manifest for each, and decisions.jsonl.zst, which says of every document
    whether it was kept, and if not why; or, with --out FILE.txt, the texts alone. PATTERNS may be quoted
    globs or the files that the shell made of them, or - for JSON lines from standard input; --hub reads a
    dataset of the hub instead.
    """
    run_step("filter", options, as_json, _render_cleaned)


def _render_cleaned(made: Output) -> None:
    totals = made.figures
    drops = "".join(
        f" · {label} {count:,} {reason}"
        for label, reasons in (("dropped", totals["drops"]), ("not read", totals["not_read"]))
        for reason, count in sorted(reasons.items())
    )
    where = f"{plural(totals['shards'], 'shard')} in {made.path}" if made.path.is_dir() else str(made.path)
    out.print(
        f"{totals['docs']:,} of {plural(totals['docs_in'], 'document')}{escape(drops)} → {escape(where)}"
    )
    if "hub" in totals:
        out.print(f"{escape(totals['hub']['dataset'])} at {totals['hub']['revision']}")
    if totals.get("reshaped"):
        is_newline = click.get_current_context().params["separator"] == "\n"
        out.print(
            f"{'line ends' if is_newline else 'blank lines'} were removed from "
            f"{plural(totals['reshaped'], 'text')}; another --separator keeps them"
        )


_MODES = (
    *("exact", "near", "window", "exact+near", "exact+window", "near+window", "exact+near+window"),
    *("folded", "folded+near", "folded+window", "folded+near+window"),
)
_FORMER_MODES = {"both": "exact+near", "all": "exact+near+window"}


class _Mode(click.Choice):  # type: ignore[type-arg]  # older clicks take none
    def convert(self, value: Any, param: Any, context: Any) -> Any:
        return super().convert(_FORMER_MODES.get(value, value), param, context)


class _UnlessCurve(click.Option):
    """Required, but of who asks for the curve, which is known first."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        is_needless = ctx.params.get("curve") and self.value_is_missing(value)
        return None if is_needless else super().process_value(ctx, value)


@click.command(
    "dedup",
    epilog="Example: tokmill dedup 'data/*.jsonl.zst' --mode exact+near --threshold 0.8 --out unique\n\n"
    "tokmill dedup 'data/*.jsonl.zst' --mode window --policy trim --out unique",
)
@click.argument("files", nargs=-1)
@click.option(
    "--input",
    multiple=True,
    metavar="[NAME=]GLOB",
    help="A source; may be repeated. NAME holds for its records too, whatever they carry.",
)
@click.option(
    "--reference",
    multiple=True,
    metavar="[NAME=]GLOB",
    help="A source to compare with, never dropped or written.",
)
@click.option(
    "--mode",
    type=_Mode(_MODES),
    default="exact+near",
    help="Equal texts (folded: case, white space and Unicode form aside), similar ones, passages that an "
    "earlier document has: keys of `dedup` in a recipe.",
)
@click.option(
    "--policy",
    type=click.Choice(["report", "drop", "trim"]),
    default="report",
    help="What to do with passages: list them, drop documents that mostly repeat, or cut the later copies.",
)
@click.option(
    "--window-words",
    type=click.IntRange(5, 10_000),
    default=50,
    help="Words of the shortest passage to look for.",
)
@click.option(
    "--winnow",
    type=click.IntRange(1, 1000),
    default=31,
    help="Passages of --window-words + --winnow - 1 words are always found.",
)
@click.option(
    "--max-share",
    default="0.5",
    help="With --policy drop: drop documents with more of their words in passages.",
)
@click.option(
    "--min-words",
    type=click.IntRange(0),
    default=50,
    help="With --policy trim: drop documents that would keep fewer words.",
)
@click.option(
    "--scope",
    type=click.Choice(["global", "per-source"]),
    default="global",
    help="Look for copies in all sources, or within each; records that carry a source belong to it.",
)
@click.option(
    "--keep",
    type=click.Choice(["first", "longest", "newest", "best"]),
    default="first",
    help="Which of several copies is kept.",
)
@click.option(
    "--threshold",
    default="0.8",
    help="Jaccard similarity of n-gram sets from which texts are near duplicates.",
)
@click.option("--ngram", type=click.IntRange(1, 64), default=5, help="Words or characters in a shingle.")
@click.option("--unit", type=click.Choice(["word", "char"]), default="word", help="Unit of shingles.")
@click.option(
    "--verify",
    type=click.Choice(["exact", "signature"]),
    default="exact",
    help="Verify a pair by its texts, or by its fingerprints alone.",
)
@text_option
@click.option("--max-cluster", type=click.IntRange(2), help="Stop if a cluster is larger.")
@click.option("--max-source-loss", help="Stop if a source would lose a larger share.")
@click.option(
    "--curve",
    is_flag=True,
    is_eager=True,
    help="Print which share of pairs is found at each similarity, and stop.",
)
@out_option(f"a directory, or {_PIPE}; --curve needs none", required=True, cls=_UnlessCurve)
@replace_option
@workers_option
@verb
def dedup_command(as_json: bool, curve: bool, **options: Any) -> None:
    """Keep one of several documents that say the same, exactly or nearly,
    and one of several copies of a passage.

    Writes deduped.jsonl.zst and decisions.jsonl.zst, which says of every document whether it was kept, and if
    not which document it repeats and how similar they are. A document is dropped only for one that is kept
    and to which it is itself similar enough. FILES may be - for JSON lines from standard input. With
    passages, passages.jsonl.zst lists each of them, and where it was before.
    """
    if curve:
        _print_curve(options["threshold"], as_json)
    else:
        run_step("dedup", options, as_json, _render_deduped, texts="files")


def _render_deduped(made: Output) -> None:
    found = made.figures
    drops = "".join(f" · dropped {count:,} {reason}" for reason, count in sorted(found["drops"].items()))
    out.print(
        f"{found['docs']:,} of {plural(found['docs_in'], 'document')}{drops} → {escape(str(made.path))}"
    )
    if found["clusters"]:
        facts = found["clusters"]
        out.print(f"{plural(facts['clusters'], 'cluster')}, the largest of {facts['largest_cluster']:,}")
    if "passages" in found:
        _render_passages(found["passages"], click.get_current_context().params["policy"])


def _render_passages(facts: dict[str, Any], policy: str) -> None:
    passages, documents = plural(facts["passages"], "passage"), plural(facts["documents"], "document")
    done = {
        "report": "nothing is cut or dropped for them: --policy drop or --policy trim",
        "drop": "documents that are mostly repeated are dropped",
        "trim": f"{plural(facts['bytes_cut'], 'byte')} cut from the later copies",
    }
    out.print(f"{passages} in {documents}, {plural(facts['repeated_words'], 'word')}; {done[policy]}")


def _print_curve(threshold: str, as_json: bool) -> None:
    try:
        bands, rows = choose_bands(float(threshold))
    except ValueError:
        raise click.BadParameter(f"{threshold!r} is no number", param_hint="'--threshold'") from None
    curve = probability_curve(bands, rows)
    if as_json:
        print_json({"ok": True, "bands": bands, "rows": rows, "curve": curve})
        return
    out.print(
        f"{plural(bands, 'band')} of {plural(rows, 'row')}; share of pairs that become candidates, by "
        "similarity:"
    )
    for similarity, share in curve:
        out.print(f"  {similarity:4.2f}  {share:7.2%}  {'█' * round(40 * share)}")
