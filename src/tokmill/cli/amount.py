"""Amounts on the command line as in a recipe: 200M, 1.5B, 50k."""

from __future__ import annotations

from typing import Any

import click

from tokmill.recipe.amount import parse_amount


class Amount(click.ParamType):  # type: ignore[type-arg]  # older clicks take none
    name = "amount"

    def convert(self, value: Any, param: Any, context: Any) -> int:
        try:
            return parse_amount(value)
        except ValueError as error:
            self.fail(str(error), param, context)
