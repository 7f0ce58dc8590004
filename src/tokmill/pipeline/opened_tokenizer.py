"""What a tokenizer's file holds, and whether it has what a recipe asks of it: opened by whoever has time.

    run ─ ask ─> server ─ fork ─> open ─ eos, bos, control, vocabulary ─> Opened ─> examination
     └─ sources, rules, … are examined meanwhile ──────────────────────────────────────┘

To open one takes 0.2 s. Where no process is ready to be forked, the examination does it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tokmill.artifacts.step import Step
from tokmill.engines.forking import Answer, ask_ahead
from tokmill.engines.orders import Fault
from tokmill.errors import TokmillError
from tokmill.pipeline.tokens import tokenizer_step
from tokmill.recipe import Recipe, Tokenizer
from tokmill.stages.tokens.tokenizer import TokenizerExtra, TokenizerOptions, open_published
from tokmill.storage.disk import system_error
from tokmill.tokenizers.vocabulary import check_padded, resolve_bos, resolve_controls, resolve_eos


class Wrong(msgspec.Struct, frozen=True):
    place: tuple[str | int, ...]  # below `tokenizer`
    fault: Fault


class Opened(msgspec.Struct, frozen=True):
    vocab_size: int = 0
    fault: Fault | None = None  # it cannot be opened
    wrong: list[Wrong] = []


def step_of(recipe: Recipe, base: Path, out: Path) -> Step:
    """Whatever the builds may say of its vocabulary."""
    return tokenizer_step(recipe.model_copy(update={"builds": []}), base, out, ())


def begin_opening(recipe: Recipe | None, base: Path, out: Path) -> Answer | None:
    """In another process, if one is ready; None: it is not, or there is nothing to open. What is wrong so far
    is found again by the examination."""
    tokenizer = recipe.tokenizer if recipe is not None else None
    if recipe is None or tokenizer is None or tokenizer.path is None or (out / "tokenizer").exists():
        return None
    try:
        step = step_of(recipe, base, out)
    except (TokmillError, OSError):
        return None
    options = msgspec.to_builtins(step.options)
    return ask_ahead(
        f"{__name__}:open_elsewhere", options, str(step.extra.path), tokenizer.model_dump(mode="json")
    )


def open_elsewhere(options: dict[str, Any], path: str, tokenizer: dict[str, Any]) -> Any:
    asked = msgspec.convert(options, TokenizerOptions)
    step = Step("tokenizer", "tokenizer", Path(), asked, extra=TokenizerExtra(Path(path)))
    return msgspec.to_builtins(open_here(step, Tokenizer.model_validate_json(msgspec.json.encode(tokenizer))))


def open_here(step: Step, tokenizer: Tokenizer) -> Opened:
    try:
        opened = open_published(step)
    except TokmillError as error:
        return Opened(fault=Fault.of(error))
    wrong: list[Wrong] = []

    def holds(place: tuple[str | int, ...], check: Callable[..., Any], *arguments: Any) -> bool:
        try:
            check(*arguments)
        except (TokmillError, OSError) as error:
            told = error if isinstance(error, TokmillError) else system_error(error, "")
            wrong.append(Wrong(place, Fault.of(told)))
            return False
        return True

    if holds(("eos",), resolve_eos, opened, step.options.eos) and tokenizer.bos is not None:
        eos_id = resolve_eos(opened, step.options.eos)
        holds(("bos",), resolve_bos, opened, tokenizer.bos, eos_id)
    for number, literal in enumerate(tokenizer.control):
        holds(("control", number), resolve_controls, opened, [literal])
    holds((), check_padded, opened.vocab_size, tokenizer.padded_vocab_size)
    return Opened(opened.vocab_size, None, wrong)


def opened_tokenizer(step: Step, tokenizer: Tokenizer, asked: Answer | None) -> Opened:
    """As the other process has found it, if it was asked and has lived to tell."""
    told = asked.wait() if asked is not None else None
    return open_here(step, tokenizer) if told is None else msgspec.convert(told, Opened)
