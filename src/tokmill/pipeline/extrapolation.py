"""What a run will come to, from a run in miniature: documents, tokens, time, memory, disk.

small share, nothing loaded yet ─┐                     ┌─ what is loaded once
share, four times it ────────────┼─ CPU and bytes of ──┼─ what each step takes whatever comes
small share again ───────────────┘  every step         └─ what each document adds: times all there are

Scores that learn do so before, once for all three, from all documents that are read.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import fingerprint_of
from tokmill.artifacts.progress import MARK, Progress, Silence, without_warnings
from tokmill.artifacts.step import Step
from tokmill.duplicates.near import choose_bands
from tokmill.engines.local import PAYING_BYTES, Resources, compile_kernels
from tokmill.errors import InputError
from tokmill.pipeline.drawn import Came, DrawnRun, DrawnSource
from tokmill.pipeline.estimate import NOTHING, Estimate, Interval, SourceEstimate
from tokmill.pipeline.miniature import (
    READ_BYTES,
    TEXT_BYTES,
    Miniature,
    choose_share,
    learning_steps,
    only_read,
    passes_of,
    steps_in_miniature,
    without_score,
)
from tokmill.pipeline.session import Session
from tokmill.recipe import Near, Recipe
from tokmill.stages.sampling import SPLITS, TRAIN
from tokmill.stages.split.stage import NOT_COUNTED
from tokmill.storage.tables import load_table

_SMALLER = 4
_Z = 1.96
# A worker: measured with shards of 8, 64 and 128 MiB.
_WORKER_BYTES, _SHARD_FACTOR = 540 << 20, 4
# In a process that did other things before, what it took so far is not what a run takes to start.
_MOST_LOADING = 1.5


def estimate_run(
    recipe: Recipe,
    base: Path,
    progress: Progress | None = None,
    *,
    text_bytes: int = TEXT_BYTES,
    read_bytes: int = READ_BYTES,
) -> Estimate:
    """From about so much text, or as little as is enough of more. Of files that have more than `read_bytes`,
    a part is read."""
    begun = time.monotonic()
    loaded = min(time.process_time(), _MOST_LOADING)  # what importing all this took is part of every run
    progress = progress or Silence()
    compile_kernels(progress)
    with without_warnings():  # the plan says them
        whole_recipe, miniature = recipe, choose_share(recipe, base, text_bytes, read_bytes)
    share, small = miniature.share, miniature.share / _SMALLER
    progress.say(f"estimating from {float(share):.1%} of the documents …")
    with tempfile.TemporaryDirectory(prefix="tokmill-estimate-") as scratch, without_warnings():
        place = Path(scratch)

        def steps_of(name: str, share: Decimal) -> list[Step]:
            return steps_in_miniature(recipe, base, place / name, miniature, share)

        steps = steps_of("small", small)
        first = _measure([step for step in steps if step.kind == "ingest"], {}, base)
        learning = _learn(recipe, base, place, miniature)
        if learning.recipe is not recipe:
            recipe, miniature = learning.recipe, only_read(miniature, learning.recipe)
            steps = steps_of("small", small)
        learned = {name: one.artifact for name, one in learning.steps.items()}
        cold = _measure_others(steps, {**first.artifacts, **learned}, base)
        cold.cpu.update({**first.cpu, **{name: one.cold for name, one in learning.steps.items()}})
        steps = steps_of("share", share)
        whole = _measure_others(steps, learned, base)
        warm = _measure_others(steps_of("again", small), {**first.artifacts, **learned}, base)
        warm.cpu.update({**first.cpu, **{name: one.warm for name, one in learning.steps.items()}})
        cpu = {
            step.name: warm.cpu[step.name] if step.name in learned else whole.cpu[step.name] for step in steps
        }
        disk = whole.disk | {name: one.disk for name, one in learning.steps.items()}
        whole = _Measured(whole.artifacts, cpu, {step.name: disk[step.name] for step in steps})
        view = DrawnRun(recipe, miniature, whole.artifacts)
        found = _extrapolate(view, cold, warm, whole, loaded, begun)
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


# --- the runs in miniature ---


class _Measured(NamedTuple):
    artifacts: dict[str, Artifact]
    cpu: dict[str, float]
    disk: dict[str, int]


def _measure(steps: Sequence[Step], given: Mapping[str, Artifact], base: Path) -> _Measured:
    """Each step by itself, in this process."""
    artifacts, cpu, disk = dict(given), {}, {}
    out = steps[0].directory.parents[len(Path(steps[0].name).parts) - 1]
    session = Session(base, out, Resources(1), 0, Silence())
    try:
        for step in steps:
            begun = time.process_time()
            made, _, _ = session.run_steps([step], artifacts)
            cpu[step.name] = time.process_time() - begun
            artifacts.update(made)
            disk[step.name] = sum(path.stat().st_size for path in step.directory.rglob("*") if path.is_file())
    finally:
        session.close()
    return _Measured(artifacts, cpu, disk)


def _measure_others(steps: Sequence[Step], given: Mapping[str, Artifact], base: Path) -> _Measured:
    return _measure([step for step in steps if step.name not in given], given, base)


# --- scores that learn ---


class _Learned(NamedTuple):
    """A step of a score that learns, done twice."""

    artifact: Artifact
    cold: float  # CPU seconds, with what is loaded once
    warm: float
    disk: int


class _Learning(NamedTuple):
    recipe: Recipe  # without scores that found no examples
    steps: dict[str, _Learned]
    notes: list[str]


def _learn(recipe: Recipe, base: Path, out: Path, miniature: Miniature) -> _Learning:
    """Some of few labels may be none: then the estimate goes on without that score, and says so."""
    rest, learned, notes = recipe, dict[str, _Learned](), list[str]()
    artifacts: dict[str, Artifact] = {}
    for step in learning_steps(recipe, base, out / "learning", miniature):
        name = step.name.removeprefix("score/")
        try:
            cold = _measure([step], artifacts, base)
        except InputError as error:
            # where all is read, the run would fail too
            if miniature.learned >= 1 or not error.where.startswith(f"scores.{name}.train"):
                raise
            rest, used = without_score(rest, name)
            learned = {own: one for own, one in learned.items() if not own.startswith(f"examples/{name}-")}
            notes.append(_left_out(name, used, miniature))
            continue
        artifacts |= cold.artifacts
        if step.kind != "ingest":
            warm = _measure([replace(step, directory=out / "relearning" / step.name)], artifacts, base)
            made = artifacts[step.name]
            learned[step.name] = _Learned(
                made, cold.cpu[step.name], warm.cpu[step.name], cold.disk[step.name]
            )
        # without a rule that asks for it no figure hangs on the score
        if step.kind == "score" and miniature.learned < 1 and without_score(recipe, name)[1]:
            notes.append(_less_certain(name, artifacts[step.name], miniature))
    return _Learning(rest, learned, notes)


def _left_out(name: str, used: Sequence[str], miniature: Miniature) -> str:
    told = f", and without what asks for it: {', '.join(used)}" if used else ""
    return (
        f"score.{name}: {_read_share(miniature)} of the documents were read, with too few examples to learn "
        f"from; the estimate is without this score{told}"
    )


def _less_certain(name: str, artifact: Artifact, miniature: Miniature) -> str:
    examples = artifact.manifest.facts["examples"]
    told = " and ".join(f"{count:,} {label}" for label, count in examples.items())
    return (
        f"score.{name}: learned from {told} examples, among {_read_share(miniature)} of the documents; "
        "the run learns from all, and what it does by this score may be further off than ± says"
    )


def _read_share(miniature: Miniature) -> str:
    return f"{float(miniature.learned):.1%}"


# --- to the whole ---


def _extrapolate(
    view: DrawnRun, cold: _Measured, warm: _Measured, whole: _Measured, loaded: float, begun: float
) -> Estimate:
    copies, ranked = view.copies(), _ranked_out(view)
    cleaned = {
        name: _clean_source(view, name, copies.get(name, {}), ranked.get(name, {})) for name in view.sources
    }
    counted, came = _counted(view, cleaned.values()), view.came_to_split()
    sources = {
        name: _estimate_source(view, name, one, counted, came.get(name, Came()))
        for name, one in cleaned.items()
    }
    tokens = {split: _split_tokens(view, sources, split, counted) for split in view.splits}
    growth = _growth(view, sources)
    lines = {name: _line(view, name, warm, whole, growth) for name in whole.cpu}
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
        scratch=sum(one.docs for one in cleaned.values()) * _scratch_bytes(near) if near is not None else 0.0,
        cpu_seconds=cpu,
        start_seconds=loaded + once,
        tasks=_tasks(view, sources, cpu),
        memory=kept,
        paying_workers=max(view.miniature.file_bytes // PAYING_BYTES, 1),
    )


def _scratch_bytes(near: Near) -> int:
    """Of a document, while near duplicates are looked for: its signature, and its bands."""
    chosen = choose_bands(float(near.threshold))
    bands, rows = near.bands or chosen[0], near.rows or chosen[1]
    return 20 + bands * (4 * rows + 12)


def _ranked_out(view: DrawnRun) -> dict[str, dict[str, int]]:
    """By source and reason: documents of those drawn that a rule on a percentile drops."""
    found: dict[str, dict[str, int]] = {}
    if (scores := view.artifacts.get("scores")) is not None:
        for entry in scores.manifest.entries("ledger"):
            table = load_table(scores.path(entry), ["source", "reason"])
            for row in table.group_by(["source", "reason"]).aggregate([([], "count_all")]).to_pylist():
                own = found.setdefault(row["source"], {})
                own[row["reason"]] = own.get(row["reason"], 0) + row["count_all"]
    return found


class _Counted(NamedTuple):
    """What a split by numbers takes of all documents that come to it."""

    docs: float
    error: float
    share: float  # of them, over all splits
    training: float  # of those that are not held out


def _counted(view: DrawnRun, cleaned: Collection[_Cleaned]) -> _Counted | None:
    """None: another split, or one that does in the miniature what it does in the run."""
    counts, docs = view.recipe.split.counts, sum(one.docs for one in cleaned)
    if counts is None or counts.train is None or not docs or view.share >= 1:
        return None
    held_out = counts.valid + counts.test
    return _Counted(
        docs,
        math.hypot(*(one.error for one in cleaned)),
        min((counts.train + held_out) / docs, 1.0),
        min(counts.train / max(docs - held_out, counts.train), 1.0),
    )


class _Cleaned(NamedTuple):
    """Of a source, what comes to the split."""

    stays: int  # of those drawn, before duplicates
    docs: float
    error: float
    copied: dict[str, float]
    dropped: dict[str, float]


def _clean_source(
    view: DrawnRun, name: str, copies: Mapping[str, tuple[float, float]], ranked: Mapping[str, int]
) -> _Cleaned:
    source = view.sources[name]
    counts = view.artifacts[f"clean/{name}"].manifest.counts
    stays = counts["kept"] - sum(ranked.values())
    clean = stays * source.by_docs
    copied = {reason: min(count, clean) for reason, (count, _) in copies.items()}
    kept = max(clean - sum(copied.values()), 0)
    dropped = {f"ingest: {reason}": count for reason, count in view.left_out(name).items()}
    for verdict in ("dropped", "quarantined"):
        dropped |= {f"clean: {reason}": n * source.by_docs for reason, n in counts[verdict].items()}
    dropped |= {f"scores: {reason}": n * source.by_docs for reason, n in ranked.items()}
    dropped |= {f"dedup: {reason}": count for reason, count in copied.items()}
    drawn = source.by_docs * math.sqrt((1 - view.share) * _variance(stays, source.docs))
    error = _Z * math.hypot(drawn, kept * source.spread, *(deviation for _, deviation in copies.values()))
    return _Cleaned(stays, kept, error, copied, dropped)


def _estimate_source(
    view: DrawnRun, name: str, cleaned: _Cleaned, counted: _Counted | None, came: Came
) -> SourceEstimate:
    source = view.sources[name]
    kept, error, lost = _after_split(view, cleaned, counted, came)
    sizes = sum(_tokens(source, split, counted) for split in view.splits)
    sizes = sizes + np.zeros(len(source.sizes))
    # documents that a share finds no copy of go too, with as many tokens as the others have
    found = (cleaned.stays - came.docs) * source.by_docs
    before = float(sizes.sum()) * source.by_bytes
    copied = sum(cleaned.copied.values())
    more = (copied - found) / max(cleaned.docs + copied - found, 1) if view.splits else 0
    value = before * (1 - max(more, 0))
    spread = _Z * math.hypot(_deviation(sizes, source, view.share), value * source.spread)
    most = source.all_docs * (1 + _Z * source.spread)
    return SourceEstimate(
        documents=source.all_docs,
        kept=Interval(kept, max(kept - error, 0), min(kept + error, most)),
        dropped=cleaned.dropped | {f"split: {reason}": count for reason, count in lost.items()},
        tokens=Interval(value, max(value - spread, 0), value + spread),
        text_bytes=source.all_bytes,
    )


def _after_split(
    view: DrawnRun, cleaned: _Cleaned, counted: _Counted | None, came: Came
) -> tuple[float, float, dict[str, float]]:
    """Documents that it leaves, how far they may be off, and those that it drops, by reason."""
    docs = cleaned.docs
    if counted is not None:
        # all sources have the same share of a number that is certain: what one has more others have less
        part = docs / counted.docs
        others = math.sqrt(max(counted.error**2 - cleaned.error**2, 0))
        error = counted.share * math.hypot((1 - part) * cleaned.error, part * others)
        error = math.hypot(error, _Z * math.sqrt(docs * counted.share * (1 - part) * (1 - counted.share)))
        lost = docs * (1 - counted.share)
        return docs - lost, error, {NOT_COUNTED: lost} if lost else {}
    shares = {reason: count / came.docs for reason, count in came.dropped.items()}
    left = 1 - sum(shares.values())
    deviation = docs * math.sqrt((1 - view.share) * left * (1 - left) / max(came.docs, 1))
    return (
        docs * left,
        math.hypot(cleaned.error * left, _Z * deviation),
        {reason: docs * share for reason, share in shares.items()},
    )


def _tokens(source: DrawnSource, split: str, counted: _Counted | None) -> Any:
    """Of each document that was drawn; in training as many as a number of documents has of all."""
    return source.tokens[split] * (counted.training if counted is not None and split == SPLITS[TRAIN] else 1)


def _variance(kept: int, drawn: int) -> float:
    """Of how many of those drawn are kept (Agresti and Coull 1998: four more, two of them kept)."""
    share = (kept + 2) / (drawn + 4)
    return drawn * share * (1 - share)


def _deviation(tokens: Any, source: DrawnSource, share: float) -> float:
    """Of the tokens of all, as bytes of text times the tokens of a byte (Cochran 1977, 6.3)."""
    if len(tokens) < 2 or share >= 1:
        return 0.0
    rest = tokens - tokens.sum() / max(source.sizes.sum(), 1) * source.sizes
    return float(source.all_docs * math.sqrt((1 - share) * rest.var(ddof=1) / len(rest)))


def _split_tokens(
    view: DrawnRun, sources: Mapping[str, SourceEstimate], split: str, counted: _Counted | None
) -> Interval:
    total = NOTHING
    for name, source in view.sources.items():
        drawn = {own: _tokens(source, own, counted) for own in view.splits}
        share = float(drawn[split].sum() / max(sum(one.sum() for one in drawn.values()), 1))
        of = sources[name].tokens
        own = _Z * math.hypot(_deviation(drawn[split], source, view.share), of.value * share * source.spread)
        total += Interval(of.value * share, max(of.value * share - own, 0), of.value * share + own)
    return total


def _growth(view: DrawnRun, sources: Mapping[str, SourceEstimate]) -> dict[str, float]:
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


class _Line(NamedTuple):
    cpu: float
    disk: float


def _line(view: DrawnRun, name: str, warm: _Measured, whole: _Measured, growth: Mapping[str, float]) -> _Line:
    """Through two points, to all there is."""
    kind, _, source = name.partition("/")
    share, small = view.share, view.share / _SMALLER
    read = float(view.miniature.sources[source].read) if kind == "ingest" else 1.0
    if kind == "score":
        read = float(view.miniature.learned)

    few = warm.disk.get(name, 0) or whole.disk[name] / _SMALLER
    if kind in ("score", "examples"):
        few = whole.disk[name]  # they are as large in any share

    def at_all(few: float, many: float, *, each: float) -> float:
        slope = max(many - few, 0) / (share - small)
        fixed = max(many - slope * share, 0)
        return fixed / each + slope * growth[name]

    return _Line(
        at_all(warm.cpu[name], whole.cpu[name], each=read),
        at_all(few, whole.disk[name], each=1.0),
    )


# --- side by side ---


def _tasks(
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
