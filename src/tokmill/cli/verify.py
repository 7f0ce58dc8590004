"""`tokmill verify` and `tokmill check`: are the bytes those of the manifests, and can a build be trained on?"""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from tokmill.audit.check import STEPS, check_build
from tokmill.audit.verify import verify
from tokmill.cli.console import (
    choice_option,
    err,
    json_option,
    open_byte_bar,
    out,
    print_json,
    reports_errors,
)
from tokmill.errors import plural


@click.command("verify", epilog="Example: tokmill verify demo/out --json")
@click.argument("directory", metavar="DIRECTORY|MANIFEST|URL")
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory that holds corpora/ [default: where manifests/ lies].",
)
@json_option
@reports_errors
def verify_command(directory: str, root: Path | None, as_json: bool) -> None:
    """Read every byte below DIRECTORY, or of the run published at URL, and prove it against its manifests.

    DIRECTORY is a run or any artifact of it, a build, a materialized root, a sample, a token cache, or what normalize
    and filter wrote. MANIFEST is that of a corpus or of a selection: the shards that it lists are proven.

    Exit status 1 when anything is damaged, missing, extra or edited. The digest stands for the content of
    all artifacts: two runs are equal when their digests are.
    """
    with open_byte_bar("verifying") as on_bytes:
        result = verify(directory, on_bytes=on_bytes, root=root)
    if as_json:
        print_json(result.as_json())
    else:
        for problem in result.problems:
            out.print(f"[red]✗[/] {escape(str(problem))}")
        if result.ok:
            out.print(
                f"[green]✓[/] {plural(result.artifacts, 'artifact')}, {plural(result.files, 'file')}, "
                f"{plural(result.bytes, 'byte')}: all proven"
            )
        out.print(f"digest {result.digest}")
    raise SystemExit(0 if result.ok else 1)


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("check", epilog="Example: tokmill check demo/out/build/rows")
@click.argument("build", type=click.Path(file_okay=False, exists=True, path_type=Path))
@choice_option(
    "--verify",
    choices=["sizes", "hashes"],
    default="sizes",
    help="Compare the sizes of files with the manifest, or every byte.",
)
@click.option(
    "--steps",
    type=click.IntRange(0),
    default=STEPS,
    show_default=True,
    help="Training steps to overfit one batch in, at most; 0: skip that check.",
)
@click.option("--manifest", type=_FILE, help="Manifest of the build, where it is not beside it.")
@click.option("--tokenizer", type=_FILE, help="Tokenizer file of the build, where it is not beside it.")
@json_option
@reports_errors
def check_command(
    build: Path, verify: str, steps: int, manifest: Path | None, tokenizer: Path | None, as_json: bool
) -> None:
    """Open BUILD (or one split of it) as a trainer does and try it: files, facts, range of ids, ends of documents, sizes
    of splits, whether their documents are those that belong there, shapes, targets and masks of a batch, and whether a
    small model can overfit that one batch.

    Exit status 1 when anything is not in order.
    """
    with err.status("opening") as status:
        checked = check_build(
            build,
            verify="hashes" if verify == "hashes" else "sizes",
            steps=steps,
            manifest=manifest,
            tokenizer=tokenizer,
            on_check=lambda split, check: status.update(f"{split}: {check}"),
        )
    if as_json:
        print_json(checked.as_json())
    else:
        for finding in checked.findings:
            mark = "[green]✓[/]" if finding.ok else "[red]✗[/]"
            out.print(f"{mark} {escape(finding.split):<8} {finding.check:<8} {escape(finding.detail)}")
    raise SystemExit(0 if checked.ok else 1)
