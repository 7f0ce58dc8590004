"""A bar for commands that read many bytes: how far, and how fast."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from tokmill.cli.console import err


@contextlib.contextmanager
def open_byte_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """What it gives is told (bytes done, bytes in all). Nothing is drawn where nobody looks."""
    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        bar = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)
