"""`tokmill normalize` and `tokmill filter`: cleaning without a recipe."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from tokmill.adhoc.single_steps import clean_files, clean_to_text
from tokmill.cli.console import choice_option, json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.source_options import (
    either_options,
    either_source,
    one_source_recipe,
    own_labels,
    replace_option,
    with_options,
    workers_option,
)
from tokmill.errors import RecipeError, plural

NEWLINE = "\\n"
_RULE = re.compile(r"^(?P<measure>[a-z0-9_]+)(?P<sign><=|>=)(?P<threshold>-?[0-9.]+)$")

_SHARED: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--domain",
        help="Domain of the documents, also where records carry another [default: default].",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Seed, recorded in the manifests.",
    ),
    click.option(
        "--out-dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        help="Output: JSONL.zst shards with their manifests.",
    ),
    click.option(
        "--out",
        "target",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Output: the texts alone, in one .txt file, with its manifest and decisions beside it.",
    ),
    click.option(
        "--separator",
        default="\\n",
        show_default=True,
        help="After each text of a .txt file. \\n: line ends inside of a text become spaces; \\n\\n: blank lines "
        "inside go; any other may be in no text, and nothing changes.",
    ),
    replace_option,
    workers_option,
    json_option,
)


def _shared_options(command: Any) -> Any:
    return with_options(_SHARED, command)


@click.command(
    "normalize",
    epilog="Example: tokmill normalize 'data/*.jsonl.zst' --unicode NFC --newlines lf --out-dir clean",
)
@either_options
@choice_option("--unicode", choices=["none", "NFC", "NFKC"], default="NFC", help="Unicode form of the texts.")
@choice_option("--newlines", choices=["keep", "lf"], default="lf", help="Line ends: as they are, or all \\n.")
@choice_option("--nul", choices=["strip", "keep"], default="strip", help="NUL characters.")
@click.option(
    "--redact",
    multiple=True,
    type=click.Choice(["email", "ip", "phone", "secret"]),
    help="Replace these by a mark; may be repeated.",
)
@_shared_options
@reports_errors
def normalize_command(unicode: str, newlines: str, nul: str, redact: tuple[str, ...], **given: Any) -> None:
    """Normalize the texts of files: Unicode form, line ends, NULs, redaction.

    Writes JSONL.zst shards, a manifest for each, and decisions.jsonl.zst; or, with --out, the texts alone. PATTERNS
    may be quoted globs or the files that the shell made of them; --hub reads a dataset of the hub instead.
    """
    sections = {"normalize": {"unicode": unicode, "newlines": newlines, "nul": nul}, "redact": list(redact)}
    _clean(given, sections)


@click.command(
    "filter",
    epilog="Example: tokmill filter 'data/*.jsonl.zst' --pack gopher-quality --rule 'digit_share<=0.3' --out-dir kept"
    "\n\ntokmill filter --hub HuggingFaceFW/fineweb --config sample-10BT --limit docs=10000 --language en "
    "--recall 0.99 --out english.txt",
)
@either_options
@click.option(
    "--pack",
    "packs",
    multiple=True,
    help="Filter pack: gopher-quality, gopher-repetition, c4, fineweb, stage-a or web-en.",
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="MEASURE<=THRESHOLD",
    help="A rule on a measure; or MEASURE>=THRESHOLD.",
)
@click.option("--language", "languages", multiple=True, help="Keep texts that are detected as this language.")
@choice_option(
    "--detector",
    choices=["fasttext", "py3langid", "langdetect"],
    default="fasttext",
    help="Language detector; scores of two detectors cannot be compared.",
)
@click.option("--min-score", help="Lowest score of the language detector [default: 0.65].")
@click.option(
    "--recall",
    help="Instead of --min-score: keep this share of English texts, such as 0.99; the same for every detector.",
)
@click.option("--allow-license", multiple=True, help="Keep documents of this licence.")
@click.option("--deny-license", multiple=True, help="Drop documents of this licence.")
@choice_option(
    "--unknown-license",
    choices=["drop", "keep", "quarantine"],
    default="drop",
    help="What to do with documents without a known licence.",
)
@_shared_options
@reports_errors
def filter_command(
    packs: tuple[str, ...],
    rules: tuple[str, ...],
    languages: tuple[str, ...],
    detector: str,
    min_score: str | None,
    recall: str | None,
    allow_license: tuple[str, ...],
    deny_license: tuple[str, ...],
    unknown_license: str,
    **given: Any,
) -> None:
    """Filter the documents of files by packs and rules on measures, by language and by licence.

    Writes JSONL.zst shards, a manifest for each, and decisions.jsonl.zst, which says of every document whether it
    was kept, and if not why; or, with --out, the texts alone. PATTERNS may be quoted globs or the files that the shell
    made of them; --hub reads a dataset of the hub instead.
    """
    sections: dict[str, Any] = {"filters": [*packs, *(_rule(rule) for rule in rules)]}
    if languages:
        keys: dict[str, Any] = {"method": "detect", "keep": list(languages), "detector": detector}
        thresholds = {"min_score": min_score, "recall": recall}
        sections["language"] = {**keys, **{key: value for key, value in thresholds.items() if value}}
    elif min_score or recall or detector != "fasttext":
        raise RecipeError(
            "no language to keep", where="--detector, --min-score and --recall", next="add `--language en`"
        )
    if allow_license or deny_license:
        lists = {"allow": list(allow_license), "deny": list(deny_license)}
        sections["license"] = {**lists, "unknown": unknown_license}
    if not packs and len(sections) == 1 and not rules:
        raise RecipeError(
            "nothing to filter by",
            where="tokmill filter",
            next="give `--pack`, `--rule`, `--language`, `--allow-license` or `--deny-license`",
        )
    _clean(given, sections)


def _rule(text: str) -> dict[str, Any]:
    parsed = _RULE.match(text.replace(" ", ""))
    if not parsed:
        raise RecipeError(f"{text} is not a rule", where="--rule", next="for example `digit_share<=0.3`")
    return {"measure": parsed["measure"], "max" if parsed["sign"] == "<=" else "min": parsed["threshold"]}


def _clean(given: dict[str, Any], sections: dict[str, Any]) -> None:
    domain, seed, directory = given.pop("domain"), given.pop("seed"), given.pop("directory")
    target, separator = given.pop("target"), given.pop("separator")
    options = {"workers": given.pop("workers"), "replace": given.pop("replace")}
    as_json = given.pop("as_json")
    if (directory is None) == (target is None):
        raise click.UsageError("needs either --out-dir DIRECTORY or --out FILE.txt")
    # of the source itself: rules that are named here hold for code too
    source = {**either_source(**given), "clean": sections, **({"domain": domain} if domain else {})}
    recipe = one_source_recipe(source, seed=seed)
    own = {source["name"]: own_labels(name=given["name"], domain=domain)}
    with open_progress() as progress:
        if target is not None:
            spelled = separator.replace("\\n", "\n").replace("\\t", "\t")
            totals = clean_to_text(
                recipe, Path.cwd(), target, separator=spelled, own=own, progress=progress, **options
            )
        else:
            totals = clean_files(recipe, Path.cwd(), directory, own=own, progress=progress, **options)
    if as_json:
        place = {"path": str(target)} if target is not None else {"directory": str(directory)}
        print_json({"ok": True, **place, **totals})
        return
    drops = "".join(
        f" · {label} {count:,} {reason}"
        for label, reasons in (("dropped", totals["drops"]), ("not read", totals["not_read"]))
        for reason, count in sorted(reasons.items())
    )
    shards = totals.get("shards")
    where = str(target) if shards is None else f"{plural(shards, 'shard')} in {directory}"
    out.print(
        f"{totals['docs']:,} of {plural(totals['docs_in'], 'document')}{escape(drops)} → {escape(where)}"
    )
    if "hub" in totals:
        out.print(f"{escape(totals['hub']['dataset'])} at {totals['hub']['revision']}")
    if totals.get("reshaped"):
        out.print(
            f"{'line ends' if separator == NEWLINE else 'blank lines'} were removed from "
            f"{plural(totals['reshaped'], 'text')}; another --separator keeps them"
        )
