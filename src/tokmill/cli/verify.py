"""`tokmill verify` and `check`: are the bytes those of the manifests, and can a build be trained on?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.cli.console import answer, err, hooks_option, open_byte_bar, out, verb
from tokmill.cli.source_options import DIRECTORY, FILE, root_option, tokenizer_option
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.audit.check import Checked
    from tokmill.audit.verification import Verification

VERBS = {
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
    if result.digest:
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
