"""One word of the reference, as plain text: a key of a recipe, an error, a reason, a measure, a pack,
a name of Python, a variable.

    find_entries("near.threshold") ─> [Entry("recipe key", "dedup.near.threshold", "number, default 0.8\\n…")]

A key may be said by its end (`threshold`: every key of that name)
or by its place in a recipe (`domains.web.filters[2].min`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import NamedTuple

from tokmill.adhoc.mixtures import Dataset
from tokmill.clean.measures import MEASURES
from tokmill.clean.parsing import NAME as PARSE_ERROR_SHARE
from tokmill.clean.rules import PACKS, load_pack
from tokmill.errors import install_hint
from tokmill.reference import failures, ledger, python_names, recipe_keys
from tokmill.reference.variables import VARIABLES


class Entry(NamedTuple):
    kind: str
    name: str
    text: str


def find_entries(word: str) -> list[Entry]:
    """All that are called so; none where nothing is."""
    return [*_keys(word), *_others(word)]


def near_words(word: str, others: list[str]) -> list[str]:
    """What was probably meant."""
    keys = recipe_keys.key_names()
    names = {*keys, *(key.rpartition(".")[2] for key in keys), *_names(), *others}
    return difflib.get_close_matches(word, sorted(names), n=3, cutoff=0.6)


def _names() -> Iterator[str]:
    yield from (kind.__name__ for kind in failures.error_classes())
    yield from (reason for reasons in ledger.REASONS.values() for reason in reasons)
    yield from (*ledger.pack_reasons(), *MEASURES, PARSE_ERROR_SHARE, *PACKS, *VARIABLES)
    yield from Dataset.model_fields
    yield from python_names.public_names()


def _keys(word: str) -> Iterator[Entry]:
    for key in recipe_keys.find_keys(word):
        width = max((len(name) for name, _ in key.rows), default=0)
        rows = [f"  {name:<{width}}  {told}" for name, told in key.rows]
        yield Entry("recipe key", key.path, "\n".join(filter(None, [key.takes, key.what, *rows])))


def _is_of(word: str, family: str) -> bool:
    """`robots_noai` is of `robots_<word>`."""
    start, mark, _ = family.partition("<")
    return bool(mark) and word.startswith(start) and word != start


def _others(word: str) -> Iterator[Entry]:
    for kind in failures.error_classes():
        if kind.__name__.lower() == word.lower():
            parent = kind.__bases__[0].__name__
            yield Entry("error", kind.__name__, f"{failures.meaning(kind)} (a {parent}; exit status 1)")
    for (stage, verdict, about), reasons in ledger.REASONS.items():
        for reason, told in reasons.items():
            if word == reason or (word not in reasons and _is_of(word, reason)):
                yield Entry("reason", word, f"{told}\n{about}; step {stage}, verdict {verdict}")
    rules = ledger.pack_reasons().get(word)
    if rules:
        yield Entry("reason", word, f"a document broke one of these rules: {', '.join(rules)}")
    if word in MEASURES:
        yield Entry("measure", word, MEASURES[word].description)
    if word == PARSE_ERROR_SHARE:
        what = "share of bytes: what the language's grammar cannot read"
        needs = f"needs the extra `code`: {install_hint('code')}"
        yield Entry("measure", word, f"{what}; of `filters` alone, and {needs}")
    if word in PACKS:
        pack = load_pack(word)
        listed = ", ".join(rule.name for rule in pack.rules)
        yield Entry("filter pack", word, f"{len(pack.rules)} rules: {listed}")
    if word in VARIABLES:
        yield Entry("variable", word, VARIABLES[word])
    if word in Dataset.model_fields:
        told = Dataset.model_fields[word].description or "as the key of that name of a source in a recipe"
        yield Entry("key of a mixture file", f"datasets.{word}", told)
    for name in python_names.public_names():
        if word in (name, name.removeprefix("tokmill."), name.rpartition(".")[2]):
            yield Entry("Python", name, re.sub(r"```\w*\n?", "", python_names.describe(name)).strip())
