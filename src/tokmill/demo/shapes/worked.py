"""What every shape of word problem returns, and the two phrases they share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Worked:
    question: str
    steps: tuple[str, ...]
    value: int
    check: str


def count_of(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def round_up(total: int, size: int, *, exact: str, over: str) -> tuple[str, int]:
    """One step that divides and, where something is left over, takes one more."""
    quotient, rest = divmod(total, size)
    if rest == 0:
        return f"{total} ÷ {size} = {quotient}, {exact}.", quotient
    return (
        f"{total} ÷ {size} = {quotient} remainder {rest}, {over} {quotient} + 1 = {quotient + 1}.",
        quotient + 1,
    )
