"""Packs: rules of the field, by name, as data files beside this module.

    gopher-quality ┐            name, version, rules: measure, bound, reason
    c4             ├ packs/*.yaml
    web-en         ┘            packs, in order: each judges what the line edits of those before it left

A pack's rules judge the text after its own line edits. Changing a bound or an edit in a file means a new version.
"""

from __future__ import annotations

import difflib
import functools
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tokmill.clean.lines import LineOptions
from tokmill.errors import RecipeError

_DIRECTORY = Path(__file__).parent / "packs"
# libyaml, where PyYAML has it: 3 ms for a pack of packs, not 25
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class PackRule(NamedTuple):
    """Drop what measures below `min` or above `max`; each rule has one of them."""

    name: str
    measure: str
    min: float | None
    max: float | None
    reason: str


class Pack(NamedTuple):
    name: str
    version: int
    line_edits: LineOptions | None
    rules: tuple[PackRule, ...]
    parts: tuple[Pack, ...] = ()  # of a pack made of packs, which has no rules of its own

    def simple(self) -> tuple[Pack, ...]:
        """The packs with rules that it stands for, in order: itself, unless it is made of packs."""
        return self.parts or (self,)


PACKS = ("c4", "fineweb", "gopher-quality", "gopher-repetition", "stage-a", "web-en")


@functools.cache
def load_pack(name: str) -> Pack:
    if name not in PACKS:
        near = difflib.get_close_matches(name, PACKS, n=1, cutoff=0.4)
        raise RecipeError(
            f"there is no filter pack {name!r}",
            where="filters",
            next=f"did you mean {near[0]!r}?" if near else f"the packs are {', '.join(PACKS)}",
        )
    text = (_DIRECTORY / f"{name}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = _LOADER(text).get_single_data()
    edits = content.get("line_edits")
    return Pack(
        name,
        content["version"],
        None if edits is None else LineOptions(**edits),
        tuple(
            PackRule(rule["name"], rule["measure"], rule.get("min"), rule.get("max"), rule["reason"])
            for rule in content.get("rules", [])
        ),
        tuple(_part(**part) for part in content.get("packs", [])),
    )


def _part(pack: str, line_edits: dict[str, Any] | None = None) -> Pack:
    whole = load_pack(pack)
    if line_edits is None or whole.line_edits is None:
        return whole
    return whole._replace(line_edits=whole.line_edits._replace(**line_edits))
