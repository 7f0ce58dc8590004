"""`tokmill verify` and `check`: are the bytes those of the manifests, and can a build be trained on?

`tokmill status`, `fetch`, `forget` and `doctor`:
how far a run is, how to get a published one, how to take documents out of one, and what this machine can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.filesize import decimal
from rich.markup import escape

import tokmill
from tokmill.cli.console import (
    answer,
    err,
    hooks_option,
    open_byte_bar,
    open_progress,
    out,
    verb,
    with_progress,
)
from tokmill.cli.documents import shown
from tokmill.cli.source_options import (
    ANY_DIRECTORY,
    DIRECTORY,
    FILE,
    root_option,
    tokenizer_option,
    workers_option,
)
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.artifacts.manifest import Json
    from tokmill.audit.check import Checked
    from tokmill.audit.status import Examination, Status, StepStatus
    from tokmill.audit.verification import Verification
    from tokmill.engines.slurm_state import SlurmState
    from tokmill.pipeline.garbage import Collected
    from tokmill.publish.publication import Fetched
    from tokmill.takedown.forgetting import Forgetting

VERBS = {
    "Run a recipe": {
        "status": ("Say how far a run is, or why it ended.", "audit.status"),
        "fetch": ("Download a published run, or one build of it.", "publish.publication"),
        "gc": ("Say what a run can do without, and free it.", "pipeline.garbage"),
        "forget": ("Take documents down: out of every file of a run.", "takedown.forgetting"),
        "doctor": ("Versions, resources, and a self-test.", "audit.status"),
    },
    "Look at a run": {
        "verify": ("Prove every file of a run, or find what is wrong.", "audit.verify"),
        "check": ("Try a build as a trainer would: files, ids, masks, overfit one batch.", "audit.check"),
    },
}


@click.command("verify", epilog="Example: tokmill verify demo/out --json")
@click.argument("directory", metavar="DIRECTORY|MANIFEST|URL")
@root_option
@verb
def verify_command(as_json: bool, **options: Any) -> None:
    """Read every byte below DIRECTORY, or of the run published at URL, and prove it against its manifests.

    DIRECTORY is a run or any artifact of it, a build, a materialized root, a sample, a token cache, or what
    normalize and filter wrote. MANIFEST is that of a corpus or of a selection: the shards that it lists are
    proven.

    Exit status 1 when anything is damaged, missing, extra or edited. The digest stands for the content of
    all artifacts: two runs are equal when their digests are.
    """
    with open_byte_bar("verifying") as on_bytes:
        result = tokmill.verify(**options, on_bytes=on_bytes)
    answer(result, as_json, _render_verified)


def _render_verified(result: Verification) -> None:
    for problem in result.problems:
        out.print(f"[red]✗[/] {escape(str(problem))}")
    for warning in result.warnings:
        out.print(f"[yellow]![/] {escape(str(warning))}")
    if result.ok:
        out.print(
            f"[green]✓[/] {plural(result.artifacts, 'artifact')}, {plural(result.files, 'file')}, "
            f"{plural(result.bytes, 'byte')}: all proven"
        )
    out.print(f"digest {result.digest}")
    if result.next:
        out.print(f"next: {escape(result.next)}")


@click.command("check", epilog="Example: tokmill check demo/out/build/rows")
@click.argument("build", type=DIRECTORY)
@click.option(
    "--verify",
    type=click.Choice(["sizes", "hashes"]),
    default="sizes",
    help="Compare the sizes of files with the manifest, or every byte.",
)
@click.option(
    "--steps",
    type=click.IntRange(0),
    default=300,
    help="Training steps to overfit one batch in, at most; 0: skip that check.",
)
@click.option(
    "--train",
    is_flag=True,
    help="Overfit it with the decoder of `ablate`, where PyTorch is installed, instead of a model in NumPy.",
)
@click.option("--manifest", type=FILE, help="Manifest of the build, where it is not beside it.")
@tokenizer_option(", where it is not beside the build")
@hooks_option
@verb
def check_command(as_json: bool, **options: Any) -> None:
    """Open BUILD (or one split of it) as a trainer does and try it: files, facts, range of ids, ends of
    documents, sizes of splits, whether their documents are those that belong there, shapes, targets and masks
    of a batch, and whether a small model can overfit that one batch.

    Exit status 1 when anything is not in order.
    """
    with err.status("opening") as status:
        checked = tokmill.check(**options, on_check=lambda split, check: status.update(f"{split}: {check}"))
    answer(checked, as_json, _render_checked)


def _render_checked(checked: Checked) -> None:
    for finding in checked.findings:
        mark = "[green]✓[/]" if finding.ok else "[red]✗[/]"
        out.print(f"{mark} {escape(finding.split):<8} {finding.check:<8} {escape(finding.detail)}")


_COLOURS = {"finished": "green", "running": "cyan", "failed": "red"}
_MARKS = {"done": "[green]✓[/]", "running": "[cyan]▸[/]", "begun": "[yellow]…[/]", "waiting": "[dim]·[/]"}


@click.command("status", epilog="Example: tokmill status demo/out --json")
@click.argument("directory", type=DIRECTORY)
@verb
def status_command(as_json: bool, **options: Any) -> None:
    """Say how far the run in DIRECTORY is: steps, shards done, rate, time left, the last error.

    Works while it runs, after it ended and after it died. Changes nothing.
    Exit status 1 if it failed or stopped.
    """
    answer(tokmill.status(**options), as_json, _render_status)


def _render_status(found: Status) -> None:
    colour = _COLOURS.get(found.state, "yellow")
    took = f", {_time(found.seconds)}" if found.seconds is not None else ""
    out.print(
        f"[bold]{escape(found.recipe)}[/]  [{colour}]{found.state}[/]  {found.done} of "
        f"{plural(len(found.steps), 'step')}{took}"
    )
    for step in found.steps:
        _render_step(step)
    if found.shards_per_second is not None and found.seconds_left is not None:
        out.print(
            f"{found.shards_per_second:.3g} shards/s; the running steps need about "
            f"{_time(found.seconds_left)} more"
        )
    if found.slurm is not None:
        _render_slurm(found, found.slurm)
    if found.cache_bytes:
        out.print(f"[dim]{decimal(found.cache_bytes)} in the cache beside it, for the next run[/]")
    if found.traffic:
        requests = sum(found.traffic["requests"].values())
        out.print(
            f"[dim]store: {plural(requests, 'request')}, {decimal(found.traffic['bytes_up'])} up, "
            f"{decimal(found.traffic['bytes_down'])} down[/]"
        )
    if found.holder is not None:
        out.print(f"[dim]{escape(found.holder)}[/]")
    if found.error is not None:
        where = f"{found.error['where']}: " if found.error["where"] else ""
        out.print(f"[red]{escape(found.error['kind'])}[/] {escape(where + found.error['what'])}")
        if found.error["next"]:
            out.print(f"  next: {escape(found.error['next'])}")
    elif not found.ok:
        out.print(
            "[dim]no error was recorded: it was killed, or the machine stopped; run the recipe again to "
            "resume[/]"
        )


_SHOWN_TASKS = 10


def _render_slurm(found: Status, slurm: SlurmState) -> None:
    jobs = ", ".join(f"{count} {state}" for state, count in slurm.jobs.items()) or "none"
    why = f" ({', '.join(slurm.reasons)})" if slurm.reasons else ""
    known = [step for step in found.steps if step.state == "running" and step.shards is not None]
    left = sum((step.shards or 0) - (step.shards_done or 0) for step in known)
    at_work = slurm.at_work
    out.print(
        f"Slurm: jobs {escape(jobs + why)}; tasks {max(left - len(at_work), 0):,} waiting, {len(at_work):,} "
        f"running, {slurm.tasks_done:,} done"
    )
    for task in at_work[:_SHOWN_TASKS]:
        where = f"job {task.job} on {task.node}"
        out.print(f"  {escape(task.task):<40} {_time(task.seconds):>10}  [dim]{escape(where)}[/]")
    if len(at_work) > _SHOWN_TASKS:
        out.print(f"  … and {len(at_work) - _SHOWN_TASKS:,} more")
    out.print(f"[dim]logs: {escape(slurm.logs)}[/]")


def _render_step(step: StepStatus) -> None:
    shards = _shards(step)
    seconds = "" if step.seconds is None else _time(step.seconds)
    out.print(
        f"{_MARKS.get(step.state, '[red]✗[/]')} {escape(step.step):<26} {step.state:<8} {shards:<22} "
        f"{seconds:>10}  [dim]{escape(step.detail)}[/]"
    )


def _shards(step: StepStatus) -> str:
    if step.shards_done is None:
        return ""
    if step.shards is None:
        return f"{plural(step.shards_done, 'shard')} so far"
    return f"{step.shards_done:,} of {plural(step.shards, 'shard')}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


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
    """Say what the run in DIRECTORY can do without: steps as they were before (run --keep-previous), the
    cache that makes the next run cheaper, and what commands that were cut short left. Nothing of the finished
    run is among it."""
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


@click.command(
    "forget",
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
        "DIRECTORY]."
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
        out.print(f"  {shown(source)}: {documents} in {shards}")
    for split, tokens in affected["tokens"].items():
        out.print(f"  {shown(split)}: {plural(tokens, 'token')}")
    for build in affected["builds"]:
        steps = f", {build['steps']:,} of {plural(build['of_steps'], 'step')}" if "steps" in build else ""
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
    for label in ("not_found", "already"):
        if affected[label]:
            what = "not found" if label == "not_found" else "forgotten before"
            out.print(f"  [yellow]{what}: {plural(affected[label], 'id')}[/]")


def _render_forgotten(result: Forgetting) -> None:
    if not result.ran:
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
