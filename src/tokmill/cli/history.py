"""The history of a document in words, for every command that tells one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.markup import escape

from tokmill.audit.why import History, RuleOutcome
from tokmill.cli.console import out
from tokmill.manifest import Json

_SHOWN_ROWS = 8


def render_history(history: History) -> None:
    is_kept = history.fate.startswith("kept")
    out.print(f"[bold]{shown(history.doc_id)}[/] of {shown(history.source)}: ", end="")
    out.print(f"[{'green' if is_kept else 'red'}]{shown(history.fate)}[/]")
    line("ingest", {key: value for key, value in history.ingest.items() if value is not None})
    if history.clean is not None:
        facts = {
            key: value for key, value in history.clean.items() if key != "decisions" and value is not None
        }
        line("clean", facts)
        for decision in history.clean["decisions"]:
            line("", decision)
    if history.rules:
        _render_rules(history.rules)
    if history.dedup is not None:
        line("dedup", {"kept": history.dedup["kept"]})
        for decision in history.dedup["decisions"]:
            line("", decision)
    if history.split is not None:
        line("split", {"side": history.split})
    render_tokens(history.tokens, history.builds)


def render_tokens(tokens: Json | None, builds: Sequence[Json]) -> None:
    """Where they are: in their shard, and in every build, turn by turn."""
    if tokens is not None:
        line("tokens", tokens)
    for build in builds:
        for turn in build["turns"]:
            line(build["build"], {"split": build["split"], **_spelled_turn(turn)})
        if not build["turns"]:
            line(build["build"], {"none": build["why_not"]})


def _spelled_turn(turn: Json) -> Json:
    if "rows" not in turn:
        return {key: value for key, value in turn.items() if key != "turn"}
    rows = [
        f"{row['row']:,} columns {row['start']:,} to {row['end']:,}" for row in turn["rows"][:_SHOWN_ROWS]
    ]
    more = len(turn["rows"]) - len(rows)
    told: Json = {"rows": "; ".join(rows) + (f"; and {more:,} more" if more else "")}
    return {**told, **({"cut_tokens": turn["cut_tokens"]} if turn["cut_tokens"] else {})}


def _render_rules(rules: tuple[RuleOutcome, ...]) -> None:
    """Whole names, however wide: `tokmill whatif --set` takes them."""
    rows = [("rule", "value", "bound", "margin")]
    rows += [(r.rule, number(r.value), r.bound, number(r.margin, "+")) for r in rules]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    colours = ["dim", *("red" if r.margin < 0 else "default" for r in rules)]
    for row, colour in zip(rows, colours, strict=True):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        out.print(f"  [{colour}]{shown('  '.join(cells))}[/]")


def line(label: str, facts: dict[str, Any]) -> None:
    told = " · ".join(f"{key} {_spelled(value)}" for key, value in facts.items())
    out.print(f"  [dim]{shown(label):<12}[/] {shown(told)}")


def shown(text: str) -> str:
    """Texts are anybody's: what is not to be printed could talk to the terminal."""
    return escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text))


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value)


def number(value: float, sign: str = "") -> str:
    return f"{int(value):{sign},}" if float(value).is_integer() else f"{value:{sign}.6g}"
