"""`tokmill fetch`, `gc`, `forget` and `doctor`: how to get a published run, free what one can do without,
take documents out of one, and what this machine can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.filesize import decimal
from rich.markup import escape

import tokmill
from tokmill.cli.console import answer, err, open_byte_bar, open_progress, out, verb, with_progress
from tokmill.cli.documents import shown
from tokmill.cli.source_options import ANY_DIRECTORY, DIRECTORY, FILE, workers_option
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.artifacts.manifest import Json
    from tokmill.audit.status import Examination
    from tokmill.pipeline.garbage import Collected
    from tokmill.publish.publication import Fetched
    from tokmill.takedown.forgetting import Forgetting

VERBS = {
    "Run a recipe": {
        "fetch": ("Download a published run, or one build of it.", "publish.publication"),
        "gc": ("Say what a run can do without, and free it.", "pipeline.garbage"),
        "forget": ("Take documents down: out of every file of a run.", "takedown.forgetting"),
        "doctor": ("Versions, resources, and a self-test.", "audit.status"),
    },
}


@click.command("fetch", epilog="Example: tokmill fetch s3://bucket/runs/demo out/demo --build rows")
@click.argument("url")
@click.argument("directory", type=ANY_DIRECTORY)
@click.option("--build", metavar="NAME", help="One build and its tokenizer [default: the whole run].")
@verb
def fetch_command(as_json: bool, **options: Any) -> None:
    """Download the run that is published at URL to DIRECTORY, every file checked against its manifest.

    An interrupted fetch resumes.
    """
    with open_byte_bar("fetching") as on_bytes:
        result = tokmill.fetch(**options, on_bytes=on_bytes)
    answer(result, as_json, _render_fetched)


def _render_fetched(result: Fetched) -> None:
    kept = f", {result.reused:,} of them were there" if result.reused else ""
    out.print(
        f"{plural(result.files, 'file')}, {plural(result.bytes, 'byte')}{kept} → "
        f"{escape(str(result.directory))}"
    )
    err.print(f"[dim]prove it with: tokmill verify {escape(str(result.directory))}[/]")


@click.command("gc", epilog="Example: tokmill gc out/web    tokmill gc out/web --delete")
@click.argument("directory", type=ANY_DIRECTORY)
@click.option("--delete", is_flag=True, help="Free it [default: only say what can go].")
@verb
def gc_command(as_json: bool, **options: Any) -> None:
    """Say what the run in DIRECTORY can do without: steps that the recipe no longer names or that a run
    replaced (run --keep-previous), the cache that makes the next run cheaper, and what commands that were cut
    short left. Nothing of the finished run is among it, and no file that tokmill did not write."""
    answer(tokmill.gc(**options), as_json, _render_collected)


def _render_collected(result: Collected) -> None:
    for item in result.found:
        out.print(f"  {decimal(item.bytes):>9}  {escape(item.what):<44} [dim]{escape(item.path)}[/]")
    if not result.found:
        out.print("nothing to free")
        return
    freed = "freed" if result.is_deleted else "can be freed"
    out.print(f"{decimal(result.bytes)} {freed}")
    if not result.is_deleted:
        err.print(f"[dim]free it with: tokmill gc {escape(str(result.directory))} --delete[/]")


class _ForgetCommand(click.Command):
    """Ids of documents are options: one that stands behind the directory is told so."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message:
                raise
            hint = "a document is named with `--doc-id ID`, many with `--doc-ids FILE`"
            raise click.UsageError(f"{error.message}: {hint}", ctx) from None


@click.command(
    "forget",
    cls=_ForgetCommand,
    epilog=(
        "Example: tokmill forget out/web --doc-id page-17 --dry-run    tokmill forget out/web --doc-ids "
        "takedown.txt    tokmill forget out/web --source blogs"
    ),
)
@click.argument("directory", type=DIRECTORY)
@click.option(
    "--doc-id", multiple=True, metavar="ID", help="A document, in every source that has it. May be repeated."
)
@click.option(
    "--doc-ids",
    type=FILE,
    help='A file with an id per line, or a JSON object: {"source": …, "doc_id": …}.',
)
@click.option("--source", help="All documents of a source; with ids or --license, those of it.")
@click.option("--license", metavar="SPDX", help="All documents under a licence.")
@click.option(
    "--batch-size", type=click.IntRange(1), help="Rows of a training step, to count the steps affected."
)
@click.option("--dry-run", is_flag=True, help="Say what is affected, and change nothing.")
@click.option(
    "--base",
    type=DIRECTORY,
    help=(
        "Where the recipe lies, if the run has hooks, benchmarks or earlier corpora [default: two above "
        "DIRECTORY; hooks run only from a directory that is named here]."
    ),
)
@workers_option
@verb
def forget_command(as_json: bool, **options: Any) -> None:
    """Take documents out of every file of the run in DIRECTORY: texts, tokens, rows, ledgers.

    Says first what they are in, then rebuilds what must change from the run's own shards. No source is read.
    The new manifest names the former run and the removal, `tokmill verify` proves that they are gone, and
    running the recipe again does not bring them back. Copies of a build elsewhere are not touched.
    """
    with open_progress() as progress:
        result = tokmill.forget(**options, progress=progress, tell=None if as_json else _render_affected)
    answer(result, as_json, _render_foreseen if options["dry_run"] else _render_forgotten)


def _render_foreseen(result: Forgetting) -> None:
    _render_affected(result.affected)
    out.print("nothing to do: they are forgotten already" if result.is_done else "nothing was changed")


def _render_affected(affected: Json) -> None:
    out.print(f"selected: [bold]{plural(affected['documents'], 'document')}[/]")
    for source, part in affected["sources"].items():
        documents, shards = plural(part["documents"], "document"), plural(len(part["shards"]), "shard")
        besides = f", {plural(part['left_out'], 'record')} that ingest left out" if "left_out" in part else ""
        out.print(f"  {shown(source)}: {documents} in {shards}{besides}")
    for split, tokens in affected["tokens"].items():
        out.print(f"  {shown(split)}: {plural(tokens, 'token')}")
    for build in affected["builds"]:
        steps = (
            f", {build['steps']:,} of {plural(build['of_steps'], 'step')} in order, up to "
            f"{build['steps_shuffled']:,} shuffled"
            if "steps" in build
            else ""
        )
        out.print(
            f"  {shown(build['build'])} {shown(build['split'])}: {plural(build['tokens'], 'token')} in "
            f"{build['rows']:,} of {plural(build['of_rows'], 'row')}{steps}"
        )
    for texts in affected.get("texts", ()):
        out.print(
            f"  {shown(texts['build'])} {shown(texts['split'])}: {texts['records']:,} of "
            f"{plural(texts['of_records'], 'text')}, in {len(texts['files']):,} of "
            f"{plural(texts['of_files'], 'file')}"
        )
    copies = affected["copies"]
    if copies["documents"]:
        out.print(
            f"  dropped as copies of these, and may come back: {plural(copies['documents'], 'document')}"
        )
        for copy in copies["examples"]:
            out.print(f"    {shown(copy['source'])} {shown(copy['doc_id'])} [dim]{shown(copy['reason'])}[/]")
    if affected["kept_steps"]:
        out.print(f"  steps as they were before: {plural(affected['kept_steps'], 'document')}")
    for label, what in (
        ("not_found", "not in the run now, and left out from now on"),
        ("already", "forgotten before"),
    ):
        if affected[label]:
            out.print(f"  [yellow]{what}: {plural(affected[label], 'id')}[/]")


def _render_forgotten(result: Forgetting) -> None:
    if not result.ran and not result.removed:
        out.print("nothing to do: they are forgotten already")
        return
    out.print(
        f"forgotten: {plural(result.affected['documents'], 'document')}; {plural(len(result.ran), 'step')} "
        f"rebuilt, {len(result.skipped):,} unchanged"
    )
    for name in result.removed:
        again = "" if "/" in name else "; write it again"
        out.print(f"  [dim]removed {escape(name)}: it may quote them{again}[/]")
    err.print(f"[dim]prove it with: tokmill verify {escape(str(result.directory))}[/]")


@click.command(
    "doctor", epilog="Example: tokmill doctor --warm    tokmill doctor --storage s3://bucket/runs --json"
)
@click.option("--storage", metavar="URL", help="Also test conditional writes of this object store.")
@click.option("--warm", is_flag=True, help="Compile all kernels now, which the first run would do.")
@verb
def doctor_command(as_json: bool, **options: Any) -> None:
    """Show versions, cores, memory and disk, which optional packages are there, and whether every codec
    gives back what it was given.

    With --warm the kernels are compiled ahead: in an image, or before a pace is measured. With --storage a
    few small objects are written below URL and deleted again. A store that takes conditional writes without
    keeping their condition is found out: it pretends, and runs must not be published there.
    """
    answer(with_progress("doctor", options), as_json, _render_doctor)


def _render_doctor(report: Examination) -> None:
    for title, rows in report.sections.items():
        out.print(f"[bold]{escape(title)}[/]")
        for name, value in rows.items():
            out.print(f"  {name:<22} {escape(value)}")
    out.print("[green]✓ all self-tests passed[/]" if report.ok else "[red]✗ a self-test failed[/]")
