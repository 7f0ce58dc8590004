"""Names and weights of a mixture, and whether its budget can be met."""

from __future__ import annotations

import contextlib
import difflib
from decimal import Decimal
from pathlib import Path
from typing import Any

from tokmill.artifacts.history import load_continues
from tokmill.errors import InputError, TokmillError
from tokmill.packing.mixture import refuse_unknown
from tokmill.pipeline.documents import is_left_out, refuse_unread_fallback
from tokmill.pipeline.examination.mistakes import Files, Found, Sizes
from tokmill.pipeline.tokens import are_rows_documents, resolved_weights
from tokmill.recipe import Mixture, Recipe, Source, Stage
from tokmill.recipe.file import Written
from tokmill.recipe.section import Path_
from tokmill.storage import codecs
from tokmill.storage.blocks import PACKED

# Of a compressed file. Text shrinks 3 to 6 times; 20 times is a file of repeats.
_MAX_EXPANSION = 20


def look_at_mixture(found: Found, recipe: Recipe, sizes: Sizes, base: Path, out: Path) -> None:
    mixture = recipe.mixture
    if mixture is None or _renames_sources(found.written):
        return
    domains = list(dict.fromkeys(source.domain for source in recipe.sources))
    asked: list[tuple[Path_, Any, list[str], str]] = []
    places: list[tuple[Path_, Mixture | Stage]] = [(("mixture",), mixture)]
    places += [(("mixture", "stages", at), stage) for at, stage in enumerate(mixture.stages)]
    for place, one in places:
        asked += [((*place, "weights", name), one.weights[name], domains, "domain") for name in one.weights]
        for domain, weights in one.sources.items():
            own = [source.name for source in recipe.sources if source.domain == domain]
            asked.append(((*place, "sources", domain), 1, domains, "domain"))
            if own:
                asked += [
                    ((*place, "sources", domain, name), weights[name], own, "source") for name in weights
                ]
    names_hold = [
        found.holds(place, refuse_unknown, place[-1], known, kind, "mixture")
        for place, weight, known, kind in asked
        if weight
    ]
    for place, one in places[1:] if all(names_hold) else ():
        assert isinstance(one, Stage), "after the mixture itself"
        of_stage = mixture.of_stage(one, one.length or recipe.pack.length)
        found.holds(place, resolved_weights, recipe, of_stage)
    if all(names_hold) and found.holds(("mixture",), resolved_weights, recipe, mixture):
        _unread(found, recipe)
        _budget(found, recipe, sizes, base, _tokens_before(out))


def _unread(found: Found, recipe: Recipe) -> None:
    """What would be made of sources that are not read alone, and would be empty without a word."""
    for index, source in enumerate(recipe.sources):
        found.holds(("sources", index, "fallback"), refuse_unread_fallback, recipe, source)
    parts: list[tuple[Path_, str, list[str]]] = [
        (("builds", index, "sources"), f"the build {build.name}", build.sources)
        for index, build in enumerate(recipe.builds)
    ]
    if recipe.split.field == "source" and recipe.split.values is not None:
        parts += [
            (("split", "values", key), key, getattr(recipe.split.values, key)) for key in ("valid", "test")
        ]
    unread = {source.name for source in recipe.sources if is_left_out(recipe, source)}
    for place, what, names in parts:
        if names and unread.issuperset(names):
            why = f"{names[0]} has a weight of 0 and is not read: {what} would be empty"
            found.note(place, InputError(why, next="give it a weight, or take its name out here"))


def _renames_sources(written: Written) -> bool:
    """A mistake in what sources are called, or one that took a source out:
    others that name them may be right."""
    places = [mistake.place for mistake in written.mistakes if mistake.place.startswith("sources")]
    last = [place.rpartition(".")[2] for place in places]
    return ("sources",) in written.left_out or any(
        difflib.get_close_matches(key, ["name", "domain"], cutoff=0.5) for key in last
    )


def _tokens_before(out: Path) -> int:
    """That were trained on when the run began, and that a target counts; of one that begins at the beginning,
    none. A table that cannot be read is told by what reads it."""
    with contextlib.suppress(TokmillError):
        continues = load_continues(out)
        return continues.tokens if continues is not None else 0
    return 0


def _budget(found: Found, recipe: Recipe, sizes: Sizes, base: Path, before: int) -> None:
    """A token has a byte of text or more: more tokens than bytes are nowhere,
    and that is known before any is read. `before`: tokens of a target that are not asked of the files."""
    mixture = recipe.mixture
    assert mixture is not None, "asked by whoever has one"
    unit, amount = mixture.target or ("documents", 0)
    with contextlib.suppress(TokmillError):  # a format that there is not is told with its build
        if unit == "blocks" and are_rows_documents(recipe, base):
            return
    amount *= {"tokens": 1, "blocks": recipe.pack.length, "megabytes": 10**6}.get(unit, 0)
    amount = max(amount - before, 0) if unit != "megabytes" else amount
    epochs = mixture.max_epochs if mixture.exhausted == "repeat" else 1
    times = max(mixture.repeat.percentiles.values()) if mixture.repeat is not None else 1
    if not amount or mixture.exhausted == "renormalize":
        return  # nothing is too much for it: it takes what there is; or nothing is left
    shares = {source.domain: mixture.weights.get(source.domain, Decimal(0)) for source in recipe.sources}
    total = sum(shares.values(), Decimal(0))
    # without weights, all of them together
    asked: dict[str | None, int] = (
        {domain: int(amount * share / total) for domain, share in shares.items()} if total else {None: amount}
    )
    for domain, wanted in asked.items():
        own = [source for source in recipe.sources if domain in (None, source.domain)]
        known = [_most_bytes(source, sizes[source.name]) for source in own]
        most = epochs * times * sum(size or 0 for size in known)
        if None not in known and wanted > most:
            whose = "the files" if domain is None else f"the domain {domain}"
            what = (
                f"asks for {wanted:,} {'bytes' if unit == 'megabytes' else 'tokens'} of {whose}, which "
                f"cannot give more than {most:,} bytes of text{f' in {epochs} epochs' if epochs > 1 else ''}"
                f"{f', each {times} times' if times > 1 else ''}"
            )
            advice = "ask for less, add files, or set `exhausted: renormalize`"
            found.note(("mixture", unit), InputError(what, next=advice))
            return


def _most_bytes(source: Source, files: Files | None) -> int | None:
    """No text of it is longer than its files, unpacked; None: not known."""
    if files is None or source.template is not None or source.format != "records":
        return None
    return 2 * sum(
        file.bytes * (_MAX_EXPANSION if file.path.suffix in (*PACKED, *codecs.COLUMNS) else 1)
        for file in files.every
    )
