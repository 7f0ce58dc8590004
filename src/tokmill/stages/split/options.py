"""`split` of a recipe, by its method."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Literal

import msgspec

from tokmill.stages.split.keys import TEST, VALID, Bound


class _Shuffled(msgspec.Struct, frozen=True, kw_only=True, tag_field="method"):
    by: Literal["document", "cluster"]


class HashSplit(_Shuffled, frozen=True, tag="hash"):
    valid_fraction: Decimal
    test_fraction: Decimal

    @property
    def has_test(self) -> bool:
        return self.test_fraction > 0

    def bounds(self) -> tuple[Bound, ...]:
        valid = Fraction(self.valid_fraction)
        held_out = valid + Fraction(self.test_fraction)
        return Bound(VALID, int(valid * (1 << 64))), Bound(TEST, int(held_out * (1 << 64)))


class SplitCounts(msgspec.Struct, frozen=True):
    train: int | None  # None: the rest
    valid: int
    test: int


class CountsSplit(_Shuffled, frozen=True, tag="counts"):
    counts: SplitCounts
    seed: int

    @property
    def has_test(self) -> bool:
        return bool(self.counts.test)


class FormulaSplit(_Shuffled, frozen=True, tag="formula"):
    test: bool
    seed: int

    @property
    def has_test(self) -> bool:
        return self.test


class FieldSplit(msgspec.Struct, frozen=True, kw_only=True, tag_field="method", tag="field"):
    field: str
    values: dict[str, tuple[str, ...]]  # by split
    unknown: Literal["fail", "drop", "train"]

    @property
    def has_test(self) -> bool:
        return bool(self.values["test"])


ShuffledSplit = HashSplit | CountsSplit | FormulaSplit
SplitOptions = ShuffledSplit | FieldSplit
