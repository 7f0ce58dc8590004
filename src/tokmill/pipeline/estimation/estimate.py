"""What a run will come to, from a run in miniature: documents, tokens, time, memory, disk.

small share, nothing loaded yet ─┐                     ┌─ what is loaded once
share, four times it ────────────┼─ CPU and bytes of ──┼─ what each step takes whatever comes
small share again ───────────────┘  every step         └─ what each document adds: times all there are

Of few documents a small share may have none, and a recipe may not run with that: it is made larger then.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgspec

from tokmill.artifacts.manifest import fingerprint_of
from tokmill.artifacts.progress import MARK, Progress, Silence, without_warnings
from tokmill.artifacts.step import Step
from tokmill.engines.local import PAYING_BYTES, compile_kernels
from tokmill.errors import TokmillError
from tokmill.pipeline.estimation.costs import cost_of, growth_of_steps, scratch_bytes, tasks_of
from tokmill.pipeline.estimation.documents import (
    clean_source,
    counted_split,
    estimate_source,
    ranked_out,
    split_tokens,
)
from tokmill.pipeline.estimation.drawn import Came, DrawnRun
from tokmill.pipeline.estimation.figures import Estimate
from tokmill.pipeline.estimation.measuring import Measured, learn, measure, measure_others
from tokmill.pipeline.estimation.miniature import (
    READ_BYTES,
    TEXT_BYTES,
    choose_share,
    only_read,
    passes_of,
    steps_in_miniature,
)
from tokmill.recipe import Recipe

# A worker: measured with shards of 8, 64 and 128 MiB.
_WORKER_BYTES, _SHARD_FACTOR = 540 << 20, 4
# In a process that did other things before, what it took so far is not what a run takes to start.
_MOST_LOADING = 1.5
# The small share is the share divided by the first of these with which the recipe runs.
_SMALLER = (4, 2, 1)
_LARGER = 4  # times the text, where a part of the documents has too few of what the recipe asks for


def estimate_run(
    recipe: Recipe,
    base: Path,
    progress: Progress | None = None,
    *,
    text_bytes: int = TEXT_BYTES,
    read_bytes: int = READ_BYTES,
) -> Estimate:
    """Estimate from about so much text, or as little as is enough of more. Of files that have more than
    `read_bytes`, a part is read."""
    progress = progress or Silence()
    try:
        return _estimate(recipe, base, progress, text_bytes, read_bytes)
    except TokmillError as error:
        if _share_of(recipe, base, text_bytes, read_bytes) >= 1:
            raise
        first = error
    try:
        return _estimate(recipe, base, progress, _LARGER * text_bytes, _LARGER * read_bytes)
    except TokmillError as error:
        share = _share_of(recipe, base, _LARGER * text_bytes, _LARGER * read_bytes)
        if share < 1:
            error.what += f" (among {float(share):.1%} of the documents, by which it is estimated)"
        raise error from first


def _share_of(recipe: Recipe, base: Path, text_bytes: int, read_bytes: int) -> Decimal:
    with without_warnings():
        return choose_share(recipe, base, text_bytes, read_bytes).share


def _estimate(recipe: Recipe, base: Path, progress: Progress, text_bytes: int, read_bytes: int) -> Estimate:
    begun = time.monotonic()
    loaded = min(time.process_time(), _MOST_LOADING)  # what importing all this took is part of every run
    compile_kernels(progress)
    with without_warnings():  # the plan says them
        whole_recipe, miniature = recipe, choose_share(recipe, base, text_bytes, read_bytes)
    share, smaller = miniature.share, _SMALLER[0]
    progress.say(f"estimating from {float(share):.1%} of the documents …")
    with tempfile.TemporaryDirectory(prefix="tokmill-estimate-") as scratch, without_warnings():
        place = Path(scratch)

        def steps_of(name: str, share: Decimal) -> list[Step]:
            return steps_in_miniature(recipe, base, place / name, miniature, share)

        steps = steps_of("small", share / smaller)
        first = measure([step for step in steps if step.kind == "ingest"], {}, base)
        learning = learn(recipe, base, place, miniature)
        if learning.recipe is not recipe:
            recipe, miniature = learning.recipe, only_read(miniature, learning.recipe)
            steps = steps_of("small", share / smaller)
        learned = {name: one.artifact for name, one in learning.steps.items()}
        while True:
            try:
                cold = measure_others(steps, {**first.artifacts, **learned}, base)
                break
            except TokmillError:
                if smaller == _SMALLER[-1]:
                    raise
            smaller = next(fewer for fewer in _SMALLER if fewer < smaller)
            steps = steps_of(f"small-{smaller}", share / smaller)
            first = measure([step for step in steps if step.kind == "ingest"], {}, base)
        cold.cpu.update({**first.cpu, **{name: one.cold for name, one in learning.steps.items()}})
        steps = steps_of("share", share)
        whole = measure_others(steps, learned, base)
        warm = measure_others(steps_of("again", share / smaller), {**first.artifacts, **learned}, base)
        warm.cpu.update({**first.cpu, **{name: one.warm for name, one in learning.steps.items()}})
        cpu = {
            step.name: warm.cpu[step.name] if step.name in learned else whole.cpu[step.name] for step in steps
        }
        disk = whole.disk | {name: one.disk for name, one in learning.steps.items()}
        whole = Measured(whole.artifacts, cpu, {step.name: disk[step.name] for step in steps})
        view = DrawnRun(recipe, miniature, whole.artifacts)
        found = _extrapolate(view, smaller, cold, warm, whole, loaded, begun)
    notes = [*learning.notes, *_nearly_used_up(view)]
    for note in notes:
        progress.say(MARK + note)
    asked = fingerprint_of(whole_recipe.model_dump(mode="json"))
    return msgspec.structs.replace(found, recipe=asked, notes=notes)


def _nearly_used_up(view: DrawnRun) -> Iterator[str]:
    """Sources of which the share has less than is asked for: all there are may have it, or not."""
    mixture = view.recipe.mixture
    if mixture is None or mixture.exhausted == "renormalize" or mixture.repeat is not None:
        return
    most: dict[str, tuple[float, str]] = {}
    for step, artifact in view.artifacts.items():
        if artifact.manifest.kind == "mixture" and view.splits:
            told = artifact.manifest.facts["splits"].get(view.splits[0], {}).get("sources", {})
            for name, source in told.items():
                passes = source.get("passes", source["epochs"])  # through all stages so far
                most[name] = max(most.get(name, (0.0, "")), (passes, step))
    allowed = passes_of(mixture)
    for name, (passes, step) in most.items():
        if passes > allowed:
            yield (
                f"{step}: of {name}, {passes:.2f} times what it has among {view.share:.1%} of the documents "
                f"is asked for, and {allowed} is allowed: of all it may have enough, or the run stops"
            )


def _extrapolate(
    view: DrawnRun,
    smaller: int,
    cold: Measured,
    warm: Measured,
    whole: Measured,
    loaded: float,
    begun: float,
) -> Estimate:
    copies, ranked = view.copies(), ranked_out(view)
    cleaned = {
        name: clean_source(view, name, copies.get(name, {}), ranked.get(name, {})) for name in view.sources
    }
    counted, came = counted_split(view, cleaned.values()), view.came_to_split()
    sources = {
        name: estimate_source(view, name, one, counted, came.get(name, Came()))
        for name, one in cleaned.items()
    }
    tokens = {split: split_tokens(view, sources, split, counted) for split in view.splits}
    growth = growth_of_steps(view, sources)
    lines = {name: cost_of(view, name, smaller, warm, whole, growth) for name in whole.cpu}
    once = sum(max(cold.cpu[name] - warm.cpu[name], 0) for name in warm.cpu)
    cpu = {name: line.cpu for name, line in lines.items()}
    near = view.recipe.dedup.near
    kept = _WORKER_BYTES + _SHARD_FACTOR * min(
        view.recipe.shards.bytes, int(max((one.text_bytes for one in sources.values()), default=0))
    )
    return Estimate(
        recipe=fingerprint_of(view.recipe.model_dump(mode="json")),
        share=view.share,
        sampled_bytes=sum(one.bytes for one in view.sources.values()),
        took_seconds=time.monotonic() - begun,
        sources=sources,
        tokens=tokens,
        builds={
            name.removeprefix("build/"): one.manifest.counts["tokens"]["written"] * growth[name] / view.share
            for name, one in view.artifacts.items()
            if name.startswith("build/")
        },
        disk={name: line.disk for name, line in lines.items()},
        scratch=sum(one.docs for one in cleaned.values()) * scratch_bytes(near) if near is not None else 0.0,
        cpu_seconds=cpu,
        start_seconds=loaded + once,
        tasks=tasks_of(view, sources, cpu),
        memory=kept,
        paying_workers=max(view.miniature.file_bytes // PAYING_BYTES, 1),
    )
