"""Advice that can be followed where it is met.

An error says what to do in the words of a recipe, since most errors are met by `tokmill run`. Beneath a command that
has no recipe it speaks of that command's options instead:

    `dtype: int32`            the command has --dtype: `--dtype int32`
                              it has not: so it is said that this is a key of recipes
    `--out`                   the command calls it --out-dir: `--out-dir`
    wait (`--wait` does)      the command has no --wait: left out

What can be typed stands between backticks, in every message.
"""

from __future__ import annotations

import re

import click

from tokmill.recipe.keys import names_keys

TYPED = re.compile(r"`([^`]+)`")
_ASIDE = re.compile(r" ?\([^()]*\)")
_OUTPUTS = ("--out", "--out-dir", "--output-dir", "--output", "--root")  # messages say --out


def fit_advice(advice: str, command: click.Command) -> str:
    options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    outputs = [name for name in _OUTPUTS if name in options]
    if outputs:
        advice = re.sub(r"`--out(?=[` ])", f"`{outputs[0]}", advice)
    advice = _ASIDE.sub(lambda aside: "" if _strangers(aside[0], options) else aside[0], advice)
    clauses = re.split(r"(; |, or |, and )", advice)
    fitting = [at for at in range(0, len(clauses), 2) if not _strangers(clauses[at], options)]
    if fitting:
        advice = clauses[fitting[0]] + "".join(clauses[at - 1] + clauses[at] for at in fitting[1:])
    makes_without_recipe = outputs and not any(param.name == "recipe" for param in command.params)
    return _with_options_for_keys(advice, options) if makes_without_recipe else advice


def _strangers(clause: str, options: set[str]) -> bool:
    """Does it ask for an option that the command does not have?"""
    return any(
        typed.startswith("--") and typed.split()[0].partition("=")[0] not in options
        for typed in TYPED.findall(clause)
    )


def _with_options_for_keys(advice: str, options: set[str]) -> str:
    without: list[str] = []

    def fitted(found: re.Match[str]) -> str:
        key, _, value = found[1].partition(":")
        option = f"--{key.rpartition('.')[2].replace('_', '-')}"
        value = value.strip()
        if f"--no{option[1:]}" in options and value in ("true", "false"):
            return f"`{option}`" if value == "true" else f"`--no{option[1:]}`"
        if option in options:
            return f"`{option} {value}`" if value else f"`{option}`"
        if names_keys(found[1]):
            without.append(found[0])
        return found[0]

    advice = TYPED.sub(fitted, advice)
    if without:
        advice += f" ({', '.join(without)} in a recipe, which `tokmill recipe init` writes: this command has no option for it)"
    return advice
