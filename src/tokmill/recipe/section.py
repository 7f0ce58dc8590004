"""What every section of a recipe is made of: strict keys, exact numbers, amounts (200M, 1.5B, 50k),
all mistakes at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails

from tokmill.recipe.names import parse_amount

_MAX_PLACES = 60
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


def _exact_decimal(value: Any) -> Decimal:
    """0.1 stays 0.1: fractions are compared in integer arithmetic, so no binary fraction may come between."""
    if not isinstance(value, bool) and isinstance(value, (int, float, str, Decimal)):
        with contextlib.suppress(InvalidOperation):
            number = Decimal(str(value))
            if number.is_finite() and not can_be_spelled(number):
                raise ValueError(f"should have no more than {_MAX_PLACES} digits")
            return shortest(number)
    raise ValueError("should be a number")


def can_be_spelled(number: Decimal) -> bool:
    """Written out, or added, a number is as long as its exponent says."""
    return number.is_finite() and abs(number.adjusted()) <= _MAX_PLACES


def shortest(number: Decimal) -> Decimal:
    """0.1 of 0.10, 1 of 1.0, 0 of -0: one number has one spelling, and so one digest."""
    if not can_be_spelled(number):
        return number  # refused where it is read
    written = f"{number:f}"
    if "." in written:
        written = written.rstrip("0").rstrip(".")
    return Decimal(written.removeprefix("-") if not number else written)


def shortest_spelling(written: str) -> str:
    """The same of a number that is still text; other text stays, to be refused where it is read."""
    try:
        return str(shortest(Decimal(written)))
    except InvalidOperation:
        return written


Name = Annotated[str, Field(pattern=_NAME, max_length=100)]
Patterns = Annotated[
    list[str],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    ),
    Field(min_length=1),
]
# 2^-64 is 5e-20: more places cannot change a decision
Share = Annotated[Decimal, Field(ge=0, le=1, decimal_places=30), BeforeValidator(_exact_decimal)]
Weight = Annotated[Decimal, Field(ge=0, decimal_places=30), BeforeValidator(_exact_decimal)]
Path_ = tuple[str | int, ...]


class Section(BaseModel):
    """Unknown keys are refused, values are not coerced out of shape, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, str_min_length=1, defer_build=True)

    # Keys that recipes did not always have: one that has its default is left out of a dump, and so of every
    # fingerprint and digest, which stay what they were.
    LATER: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _dumped(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return self._without_unset(dump(self))

    def _without_unset(self, dumped: dict[str, Any]) -> dict[str, Any]:
        fields = type(self).model_fields
        unset = [key for key in self.LATER if getattr(self, key) == fields[key].default]
        return {key: value for key, value in dumped.items() if key not in unset} if unset else dumped

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        """Where and why keys that are right by themselves cannot stand together."""
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _every_mistake(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Contradictions are reported with the mistakes in single keys, not after those are fixed."""
        found = cls._contradictions(given) if isinstance(given, dict) else ()
        faults = [
            InitErrorDetails(type="value_error", loc=place, input=None, ctx={"error": ValueError(why)})
            for place, why in found
        ]
        try:
            section = validate(given)
        except ValidationError as error:
            faults += [
                InitErrorDetails(
                    type=fault["type"], loc=fault["loc"], input=fault["input"], ctx=fault.get("ctx", {})
                )
                for fault in error.errors(include_url=False)
            ]
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return section


def part_of(section: Any, key: str) -> Any:
    """What `section` has under `key`, be it a mapping as parsed or a Section already."""
    return section.get(key) if isinstance(section, dict) else getattr(section, key, None)


Amount = Annotated[
    int,
    BeforeValidator(parse_amount),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}),
    Field(ge=1),
]
