"""An ablation as a page of Markdown: verdicts, what they cost, and what they do not say.

The same rows as the table of the command line, which `verdict_rows` makes for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tokmill.errors import plural
from tokmill.proxy.comparing import Difference

if TYPE_CHECKING:
    from tokmill.proxy.ablation import Ablation
    from tokmill.proxy.trials import Trial

HEADINGS = ("judged on", "build", "first", "this", "difference", "interval", "p", "verdict")


def verdict_rows(result: Ablation) -> Iterator[tuple[str, ...]]:
    """One for each difference, in words and figures."""
    for one in result.differences:
        yield (
            one.domain if one.metric == "bits_per_byte" else f"{one.domain}, {one.metric.replace('_', ' ')}",
            one.target,
            f"{one.base:.4f}",
            f"{one.value:.4f}",
            f"{one.difference:+.4f}",
            _interval(one),
            "-" if one.adjusted_p is None else f"{one.adjusted_p:.2g}",
            one.verdict,
        )


def _interval(one: Difference) -> str:
    if one.low is None or one.high is None:
        return "-"
    return f"{one.low:+.4f} to {one.high:+.4f}"


def page_of(result: Ablation) -> str:
    return "\n".join([*_verdict_lines(result), *_mixture_lines(result), *_cost_lines(result)]) + "\n"


def _verdict_lines(result: Ablation) -> Iterator[str]:
    asked, confidence = result.asked, Decimal(str(result.asked["confidence"]))
    yield "# Ablation\n"
    yield (
        f"{plural(len(result.trials), 'build')}, {plural(asked['seeds'], 'seed')} each: models of "
        f"{asked['size']} (without the embedding) trained on {asked['tokens']:,} tokens, on "
        f"{asked['device']}. The first build is `{result.trials[0].name}`; the others are compared with it, "
        f"seed by seed.\n"
    )
    yield "## Verdicts\n"
    yield from _table(HEADINGS, list(verdict_rows(result)))
    yield (
        f"\nFewer bits per byte are better. Intervals are Student's, over seeds, with a confidence of "
        f"{(100 * confidence).normalize():f}%; p is corrected for "
        f"{plural(len(result.differences), 'comparison')} (Holm). Noise: p is "
        f"{(1 - confidence).normalize():f} or more.\n"
    )


def _cost_lines(result: Ablation) -> Iterator[str]:
    asked = result.asked
    yield "## What was judged on\n"
    yield from _table(("name", "bytes", "documents"), [_text_row(one) for one in result.texts])
    yield (
        "\nA document is judged alone, after what stands before one in training, in windows that overlap by "
        "half of their length. Held-out texts that any of the builds trains on, the same to the byte, are "
        "left out.\n"
    )
    yield "## What it cost\n"
    headings = ("build", "rows", "weights of a model", "epochs", "tokens", "learned", "FLOPs", "seconds")
    yield from _table(headings, [_cost_row(trial) for trial in result.trials])
    yield "\nSeconds are of CPU time, or of a GPU while it was held.\n"
    yield "## What has to be known\n"
    yield from (f"- {note}" for note in result.notes)
    yield (
        "- Intervals cover the luck of seeds: first weights and order of data. They do not cover that these "
        "are some documents of many."
    )
    yield (
        f"- Models of {asked['size']} on {asked['tokens']:,} tokens are small: what they find is a reason to "
        "look closer, and no proof for a large one."
    )


def _cost_row(trial: Trial) -> tuple[str, ...]:
    return (
        trial.name,
        f"{trial.rows:,}",
        f"{trial.weights:,}",
        f"{trial.epochs:.2f}",
        f"{trial.tokens:,}",
        f"{trial.learned:,}",
        f"{trial.flops:.2e}",
        f"{trial.seconds:.0f}",
    )


def _text_row(one: dict[str, Any]) -> tuple[str, ...]:
    if "items" in one:
        return one["name"], "-", plural(one["items"], "item")
    chosen = f"{one['documents']:,}" + (f" of {one['of']:,}" if one["of"] > one["documents"] else "")
    return one["name"], f"{one['bytes']:,}", chosen


def _mixture_lines(result: Ablation) -> Iterator[str]:
    mixture = result.mixture
    if mixture is None:
        return
    yield f"## Proposed weights\n\n{mixture['told']}\n"
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{mixture['present'][name]:.3f}",
            f"{one['weight']:.3f}",
            f"{one['low']:.3f} to {one['high']:.3f}",
        )
        for name, one in mixture["weights"].items()
    ]
    yield from _table(("domain", "present", "proposed", "interval"), rows)
    yield "\nIntervals of weights, and of the gain, hold 90% of bootstraps, whatever the confidence above.\n"


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"| {' | '.join('---' for _ in headings)} |"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
