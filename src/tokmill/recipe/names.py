"""What tasks and options know of recipes, without the sections: those take 0.15 s to be loaded."""

from __future__ import annotations

import re
import string
from decimal import Decimal
from fractions import Fraction
from typing import Any

# Of deduplication: a document is looked at in this order, and goes for the first that finds it. What a method
# does is in the module of its name in `stages/dedup`.
METHODS = ("against", "earlier", "url", "exact", "templates", "near", "window")
LATER_METHODS = ("url", "templates")  # recipes did not always have these

SOURCE_FORMATS = ("wikipedia", "stackexchange", "parallel", "warc", "pdf", "mbox", "directory", "webdataset")
ROLES = ("system", "user", "assistant", "tool")  # of who speaks in a conversation
WARN_SOURCE_LOSS = Decimal("0.5")


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


# A member is a key of an object in a record, never an attribute: what looks like one is refused.
_FIELD = r"(?!\d+[.\[])[^.\[\]{}!:]+(?:\.(?!__)[^.\[\]{}!:]+|\[-?\d+\])*"


def template_parts(template: str) -> list[tuple[str, str | None]]:
    """[(literal, field), …]; {field}, {object.member} or {list[0].member}, with {{ and }} for braces."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"template: {error}; write {{{{ and }}}} for literal braces") from None
    parts: list[tuple[str, str | None]] = []
    for literal, field, spec, conversion in parsed:
        if field is not None and (spec or conversion or not re.fullmatch(_FIELD, field)):
            raise ValueError(f"template: {{{field}}} must be a field name, or a.b or a[0]")
        parts.append((literal, field))
    if not any(field for _, field in parts):
        raise ValueError("template names no {field}")
    return parts
