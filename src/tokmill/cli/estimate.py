"""What `plan --estimate` shows: each source, each step, and what a run needs of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from tokmill.artifacts.manifest import available_cores
from tokmill.cli.console import err, out
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.pipeline.estimation.figures import Estimate, Interval


def render_estimate(estimate: Estimate, free_bytes: int) -> None:
    documents = Table(box=None, pad_edge=False)
    for name in ("source", "documents", "kept", "", "tokens", "", "lost to"):
        documents.add_column(name, justify="left" if name in ("source", "lost to") else "right")
    for name, one in estimate.sources.items():
        reasons = sorted(one.dropped.items(), key=lambda item: -item[1])[:3]
        lost = ", ".join(
            f"{reason.partition(': ')[2]} {count:,.0f}" for reason, count in reasons if count >= 1
        )
        documents.add_row(
            escape(name), f"{one.documents:,.0f}", *_within(one.kept), *_within(one.tokens), escape(lost)
        )
    out.print()
    out.print(documents)
    for split, tokens in estimate.tokens.items():
        value, within = _within(tokens)
        out.print(f"{escape(split)}: {value} tokens {within}")
    steps = Table(box=None, pad_edge=False)
    for name in ("step", "CPU s", "disk"):
        steps.add_column(name, justify="left" if name == "step" else "right")
    for name, seconds in estimate.cpu_seconds.items():
        steps.add_row(escape(name), f"{seconds:,.1f}", _megabytes(estimate.disk[name]))
    out.print()
    out.print(steps)
    counts = sorted({1, 2, available_cores()})
    times = ", ".join(f"{_within(estimate.seconds(n), 1)[0]} s with {plural(n, 'worker')}" for n in counts)
    out.print(f"\ntime on this machine: {times} (± 20 %)")
    out.print(f"memory: {_megabytes(estimate.memory)} a worker")
    needed = estimate.disk_bytes + estimate.scratch
    mark = "[red]" if needed > free_bytes else "[default]"
    out.print(
        f"disk: {_megabytes(estimate.disk_bytes)}, and {_megabytes(estimate.scratch)} while it works; "
        f"{mark}{_megabytes(free_bytes)} are free[/]"
    )
    err.print(
        f"[dim]from {estimate.share:.1%} of the documents, in {estimate.took_seconds:.0f} s; "
        "what is after ± holds for 95 % of such draws[/]"
    )


def _within(interval: Interval, digits: int = 0) -> tuple[str, str]:
    spread = max(interval.high - interval.value, interval.value - interval.low)
    return f"{interval.value:,.{digits}f}", f"± {spread:,.{digits}f}"


def _megabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
