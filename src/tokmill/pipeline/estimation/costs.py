"""CPU seconds and bytes of disk of a run, from two runs in miniature:

    small share ─┬─ what each step takes whatever comes
    the share ───┴─ what each document adds: times all there are

and the tasks that can be done side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tokmill.duplicates.near import choose_bands
from tokmill.pipeline.estimation.drawn import DrawnRun
from tokmill.pipeline.estimation.figures import SourceEstimate
from tokmill.pipeline.estimation.measuring import Measured
from tokmill.recipe import Near


def growth_of_steps(view: DrawnRun, sources: Mapping[str, SourceEstimate]) -> dict[str, float]:
    """By step: how much more than what was drawn over the share there is of what it works on."""
    share = view.share
    drawn = {
        name: sum(int(one.sum()) for one in source.tokens.values()) for name, source in view.sources.items()
    }
    tokens = sum(one.tokens.value for one in sources.values()) * share / max(sum(drawn.values()), 1)
    docs = sum(one.all_docs for one in view.sources.values()) * share
    docs /= max(sum(one.docs for one in view.sources.values()), 1)
    text = sum(one.all_bytes for one in view.sources.values()) * share
    text /= max(sum(one.bytes for one in view.sources.values()), 1)
    grown = {}
    for name in view.artifacts:
        kind, _, source = name.partition("/")
        if kind in ("ingest", "inference", "clean"):
            grown[name] = view.sources[source].by_bytes * share
        elif kind in ("mixture", "stage", "build", "curriculum", "texts"):
            grown[name] = _growth_of_built(view, name, tokens)
        else:
            grown[name] = {"tokens": tokens, "split": docs}.get(kind, text)
    return grown


def _growth_of_built(view: DrawnRun, name: str, tokens: float) -> float:
    """What the recipe bounds grows to that bound, and all else with the tokens."""
    mixture = view.recipe.mixture
    if mixture is None or (mixture.target is None and not mixture.stages and not _is_selected(view)):
        return tokens
    if mixture.target is not None and mixture.held_out == "mixed":
        return 1.0  # of all splits together
    counts = view.artifacts[name].manifest.counts.get("tokens", {})
    written = counts.get("written", 0)
    if not written:
        return 1.0
    held_out = sum(
        int(source.tokens[split].sum()) for source in view.sources.values() for split in view.splits[1:]
    )
    unbounded = float(min(held_out / written, 1))
    return 1.0 - unbounded + unbounded * tokens


def _is_selected(view: DrawnRun) -> bool:
    """Does the selection leave some out? One of more than there is takes all."""
    if view.recipe.mixture is None or view.recipe.mixture.select is None or not view.splits:
        return False
    training = view.artifacts["mixture"].manifest.facts["splits"].get(view.splits[0], {})
    return training.get("least") is not None


class Cost(NamedTuple):
    cpu: float
    disk: float


def cost_of(
    view: DrawnRun,
    name: str,
    smaller: int,
    warm: Measured,
    whole: Measured,
    growth: Mapping[str, float],
) -> Cost:
    """Draw a line through two points, to all there is. `warm` is of a share that is `smaller` times as small;
    where that is the share itself, every document is taken to add as much."""
    kind, _, source = name.partition("/")
    share, small = view.share, view.share / smaller
    read = float(view.miniature.sources[source].read) if kind == "ingest" else 1.0
    if kind == "score":
        read = float(view.miniature.learned)

    few = warm.disk.get(name, 0) or whole.disk[name] / smaller
    if kind in ("score", "examples"):
        few = whole.disk[name]  # they are as large in any share

    def at_all(few: float, many: float, *, each: float) -> float:
        slope = max(many - few, 0) / (share - small) if smaller > 1 else many / share
        fixed = max(many - slope * share, 0)
        return fixed / each + slope * growth[name]

    return Cost(
        at_all(warm.cpu[name], whole.cpu[name], each=read),
        at_all(few, whole.disk[name], each=1.0),
    )


def tasks_of(
    view: DrawnRun, sources: Mapping[str, SourceEstimate], cpu: Mapping[str, float]
) -> dict[str, list[float]]:
    """By what follows on each other: seconds of the tasks that can be done at the same time."""
    shard = view.recipe.shards.bytes
    parts = {
        name: max(math.ceil(one.text_bytes / shard), len(view.miniature.sources[name].files), 1)
        for name, one in sources.items()
    }
    read = [
        (cpu[f"ingest/{name}"] + cpu[f"clean/{name}"]) / count
        for name, count in parts.items()
        for _ in range(count)
    ]
    every = sum(parts.values())
    found = {"ingest": read}
    for name, seconds in cpu.items():
        kind, _, source = name.partition("/")
        if kind in ("dedup", "tokens"):
            found[name] = [seconds / every] * every
        elif kind == "inference":
            found.setdefault(kind, []).extend([seconds / parts[source]] * parts[source])
        elif kind not in ("ingest", "clean"):
            found[name] = [seconds]
    return found


def scratch_bytes(near: Near) -> int:
    """Of a document, while near duplicates are looked for: its signature, and its bands."""
    chosen = choose_bands(float(near.threshold))
    bands, rows = near.bands or chosen[0], near.rows or chosen[1]
    return 20 + bands * (4 * rows + 12)
