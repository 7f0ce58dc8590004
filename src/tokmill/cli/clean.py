"""`tokmill normalize` and `tokmill filter`: cleaning without a recipe."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from tokmill.cli.console import json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.source_options import (
    files_options,
    files_source,
    one_source_recipe,
    own_labels,
    with_options,
    workers_option,
)
from tokmill.errors import RecipeError
from tokmill.standalone import clean_files

_RULE = re.compile(r"^(?P<measure>[a-z0-9_]+)(?P<sign><=|>=)(?P<bound>-?[0-9.]+)$")

_SHARED: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--domain",
        help="Whose rules apply: code is not judged by rules for prose. Of records that say another too "
        "[default: default].",
    ),
    click.option(
        "--seed", type=click.IntRange(0), default=0, show_default=True, help="Recorded in the manifests."
    ),
    click.option(
        "--out-dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        required=True,
        help="Output.",
    ),
    workers_option,
    json_option,
)


def _shared_options(command: Any) -> Any:
    return with_options(_SHARED, command)


@click.command(
    "normalize",
    epilog="Example: tokmill normalize 'data/*.jsonl.zst' --unicode NFC --newlines lf --out-dir clean",
)
@files_options
@click.option(
    "--unicode",
    type=click.Choice(["none", "NFC", "NFKC"]),
    default="NFC",
    show_default=True,
    help="Unicode form of the texts.",
)
@click.option(
    "--newlines",
    type=click.Choice(["keep", "lf"]),
    default="lf",
    show_default=True,
    help="Line ends: as they are, or all \\n.",
)
@click.option(
    "--nul", type=click.Choice(["strip", "keep"]), default="strip", show_default=True, help="NUL characters."
)
@click.option(
    "--redact",
    multiple=True,
    type=click.Choice(["email", "ip", "phone", "secret"]),
    help="Put a mark in its place; may be given more than once.",
)
@_shared_options
@reports_errors
def normalize_command(unicode: str, newlines: str, nul: str, redact: tuple[str, ...], **given: Any) -> None:
    """Normalize the texts of files: Unicode form, line ends, NULs, and what is to be redacted.

    Writes JSONL.zst shards, a manifest for each, and decisions.jsonl.zst. PATTERNS may be quoted globs or the
    files that the shell made of them.
    """
    sections = {"normalize": {"unicode": unicode, "newlines": newlines, "nul": nul}, "redact": list(redact)}
    _clean(given, sections)


@click.command(
    "filter",
    epilog="Example: tokmill filter 'data/*.jsonl.zst' --pack gopher-quality --rule 'digit_share<=0.3' --out-dir kept",
)
@files_options
@click.option(
    "--pack", "packs", multiple=True, help="gopher-quality, gopher-repetition, c4, fineweb, stage-a, web-en."
)
@click.option("--rule", "rules", multiple=True, metavar="MEASURE<=BOUND", help="Or MEASURE>=BOUND.")
@click.option(
    "--language", "languages", multiple=True, help="Keep texts that are detected to be in this language."
)
@click.option("--min-score", help="Of the language detector [default: 0.65].")
@click.option("--allow-license", multiple=True, help="Keep documents of this licence.")
@click.option("--deny-license", multiple=True, help="Drop documents of this licence.")
@click.option(
    "--unknown-license",
    type=click.Choice(["drop", "keep", "quarantine"]),
    default="drop",
    show_default=True,
    help="Documents without a licence that is known.",
)
@_shared_options
@reports_errors
def filter_command(
    packs: tuple[str, ...],
    rules: tuple[str, ...],
    languages: tuple[str, ...],
    min_score: str | None,
    allow_license: tuple[str, ...],
    deny_license: tuple[str, ...],
    unknown_license: str,
    **given: Any,
) -> None:
    """Filter the documents of files by packs and rules on measures, by language and by licence.

    Writes JSONL.zst shards, a manifest for each, and decisions.jsonl.zst, which tells for every document whether it
    was kept, and if not why. PATTERNS may be quoted globs or the files that the shell made of them.
    """
    sections: dict[str, Any] = {"filters": [*packs, *(_rule(rule) for rule in rules)]}
    if languages:
        asked: dict[str, Any] = {"method": "detect", "keep": list(languages)}
        sections["language"] = {**asked, **({"min_score": min_score} if min_score else {})}
    if allow_license or deny_license:
        lists = {"allow": list(allow_license), "deny": list(deny_license)}
        sections["license"] = {**lists, "unknown": unknown_license}
    if not packs and len(sections) == 1 and not rules:
        raise RecipeError(
            "nothing to filter by",
            where="tokmill filter",
            next="give --pack, --rule, --language, --allow-license or --deny-license",
        )
    _clean(given, sections)


def _rule(text: str) -> dict[str, Any]:
    found = _RULE.match(text.replace(" ", ""))
    if not found:
        raise RecipeError(f"{text} is not a rule", where="--rule", next="for example 'digit_share<=0.3'")
    return {"measure": found["measure"], "max" if found["sign"] == "<=" else "min": found["bound"]}


def _clean(given: dict[str, Any], sections: dict[str, Any]) -> None:
    domain, seed, directory = given.pop("domain"), given.pop("seed"), given.pop("directory")
    workers, as_json = given.pop("workers"), given.pop("as_json")
    # of the source itself: what is asked for by name holds for code too
    source = {**files_source(**given), "clean": sections, **({"domain": domain} if domain else {})}
    recipe = one_source_recipe(source, seed=seed)
    own = {source["name"]: own_labels(name=given["name"], domain=domain)}
    with open_progress() as progress:
        totals = clean_files(recipe, Path.cwd(), directory, own=own, workers=workers, progress=progress)
    if as_json:
        print_json({"ok": True, "directory": str(directory), **totals})
        return
    drops = "".join(
        f" · {label} {count:,} {reason}"
        for label, reasons in (("dropped", totals["drops"]), ("not read", totals["not_read"]))
        for reason, count in sorted(reasons.items())
    )
    out.print(
        f"{totals['docs']:,} of {totals['docs_in']:,} documents{escape(drops)} → "
        f"{totals['shards']} shards in {escape(str(directory))}"
    )
