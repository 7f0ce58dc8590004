"""`tokmill forget`: take documents down."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.markup import escape

from tokmill.artifacts.manifest import Json
from tokmill.cli.console import err, json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.documents import shown
from tokmill.cli.source_options import workers_option
from tokmill.errors import InputError, RecipeError, plural
from tokmill.takedown.footprint import Selection
from tokmill.takedown.forgetting import Forgetting, forget


@click.command(
    "forget",
    epilog="Example: tokmill forget out/web --doc-ids takedown.txt --dry-run    tokmill forget out/web --source blogs",
)
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option(
    "--doc-ids",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help='A file with an id per line, or a JSON object: {"source": …, "doc_id": …}.',
)
@click.option("--source", help="All documents of a source; with --doc-ids or --license, those of it.")
@click.option("--license", "license_name", metavar="SPDX", help="All documents under a licence.")
@click.option(
    "--batch-size", type=click.IntRange(1), help="Rows of a training step, to count the steps affected."
)
@click.option("--dry-run", is_flag=True, help="Say what is affected, and change nothing.")
@click.option(
    "--base",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where the recipe lies, if the run has hooks or benchmarks [default: two above DIRECTORY].",
)
@workers_option
@json_option
@reports_errors
def forget_command(
    directory: Path,
    doc_ids: Path | None,
    source: str | None,
    license_name: str | None,
    batch_size: int | None,
    dry_run: bool,
    base: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Take documents out of every file of the run in DIRECTORY: texts, tokens, rows, ledgers.

    Says first what they are in, then rebuilds what must change from the run's own shards. No source is read. The
    new manifest names the former run and the removal, `tokmill verify` proves that they are gone, and running the
    recipe again does not bring them back. Copies of a build elsewhere are not touched.
    """
    if (doc_ids is None and source is None and license_name is None) or (doc_ids and license_name):
        raise RecipeError(
            "needs --doc-ids, --source or --license, and not both of --doc-ids and --license",
            where="tokmill forget",
            next="see `tokmill forget --help`",
        )
    listed = tuple(read_doc_ids(doc_ids, source)) if doc_ids is not None else ()
    selection = Selection(listed, source, license_name)
    with open_progress() as progress:
        result = forget(
            directory,
            selection,
            batch_size=batch_size,
            dry_run=dry_run,
            base=base,
            workers=workers,
            progress=progress,
            tell=None if as_json else _render_affected,
        )
    if as_json:
        print_json({"ok": True, **result.as_json()})
    elif dry_run:
        _render_affected(result.affected)
        out.print("nothing to do: they are forgotten already" if result.is_done else "nothing was changed")
    else:
        _render_done(result)


def read_doc_ids(path: Path, source: str | None) -> list[tuple[str | None, str]]:
    """Each with the source it is of, or None for any."""
    ids: list[tuple[str | None, str]] = []
    try:
        lines = path.read_bytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 (byte {error.start:,})", where=str(path), next="give an id per line, as UTF-8"
        ) from None
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if not line:
            continue
        if line.startswith("{"):
            try:
                record = msgspec.json.decode(line, type=_Named)
            except msgspec.MsgspecError as error:
                raise InputError(
                    f"line {number} is not {{source, doc_id}} ({error})",
                    where=str(path),
                    next='write it as `{"source": "NAME", "doc_id": "ID"}`, or the id alone',
                ) from None
            ids.append((record.source or source, record.doc_id))
        else:
            ids.append((source, line))
    if not ids:
        raise InputError("lists no id", where=str(path), next="give an id per line")
    return ids


class _Named(msgspec.Struct):
    doc_id: str
    source: str | None = None


def _render_affected(affected: Json) -> None:
    out.print(f"selected: [bold]{plural(affected['documents'], 'document')}[/]")
    for source, part in affected["sources"].items():
        documents, shards = plural(part["documents"], "document"), plural(len(part["shards"]), "shard")
        out.print(f"  {shown(source)}: {documents} in {shards}")
    for split, tokens in affected["tokens"].items():
        out.print(f"  {shown(split)}: {plural(tokens, 'token')}")
    for build in affected["builds"]:
        steps = f", {build['steps']:,} of {plural(build['of_steps'], 'step')}" if "steps" in build else ""
        out.print(
            f"  {shown(build['build'])} {shown(build['split'])}: {plural(build['tokens'], 'token')} in "
            f"{build['rows']:,} of {plural(build['of_rows'], 'row')}{steps}"
        )
    copies = affected["copies"]
    if copies["documents"]:
        out.print(
            f"  dropped as copies of these, and may come back: {plural(copies['documents'], 'document')}"
        )
        for copy in copies["examples"]:
            out.print(f"    {shown(copy['source'])} {shown(copy['doc_id'])} [dim]{shown(copy['reason'])}[/]")
    for label in ("not_found", "already"):
        if affected[label]:
            what = "not found" if label == "not_found" else "forgotten before"
            out.print(f"  [yellow]{what}: {plural(affected[label], 'id')}[/]")


def _render_done(result: Forgetting) -> None:
    if not result.ran:
        out.print("nothing to do: they are forgotten already")
        return
    out.print(
        f"forgotten: {plural(result.affected['documents'], 'document')}; {plural(len(result.ran), 'step')} rebuilt, "
        f"{len(result.skipped):,} unchanged"
    )
    for name in result.removed:
        out.print(f"  [dim]removed {escape(name)}: it may quote them; write it again[/]")
    err.print(f"[dim]prove it with: tokmill verify {escape(str(result.directory))}[/]")
