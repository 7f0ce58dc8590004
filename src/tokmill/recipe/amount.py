"""Amounts as people write them: 200M, 1.5B, 50k, 2_000_000."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_AMOUNT = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kKMGBT]?)")
_FACTORS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}


def parse_amount(written: Any) -> int:
    """A whole number in the end, 1 or more; ValueError otherwise."""
    match = _AMOUNT.fullmatch(str(written).strip()) if not isinstance(written, bool) else None
    amount = Fraction(0)
    if match:
        amount = Fraction(Decimal(re.sub("[_,]", "", match[1]))) * _FACTORS[match[2]]
    if amount < 1 or amount.denominator != 1:
        raise ValueError("should be an amount: a whole number, or 50k, 200M, 1.5B, 2T")
    return int(amount)


Amount = Annotated[
    int,
    BeforeValidator(parse_amount),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}),
    Field(ge=1),
]
