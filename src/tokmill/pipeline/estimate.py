"""What a run will come to, from a run in miniature: documents, tokens, time, memory, disk.

    small share, nothing loaded yet ─┐                     ┌─ what is loaded once
    share, twice to eight times it ──┼─ CPU and bytes of ──┼─ what each step takes whatever comes
    small share again ───────────────┘  every step         └─ what each document adds: times all there are

    documents   of what was drawn, scaled by the documents read
    tokens      scaled by the bytes of text read: a few long documents hold most of them
    duplicates  found in a share f of the documents are those pairs of which both ends were drawn, f² of all;
                of larger clusters more, by how many triples there are to a pair

An interval is 95 % of what another draw would have given; for time, what machines vary by.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow.compute as pc

from tokmill.artifacts.manifest import Json, add_counts, available_cores, fingerprint_of
from tokmill.artifacts.progress import ESTIMATE, Progress, Silence, without_warnings
from tokmill.artifacts.step import Artifact, Step
from tokmill.duplicates.near import choose_bands
from tokmill.engines.local import PAYING_BYTES, Resources, compile_kernels
from tokmill.pipeline.miniature import TEXT_BYTES, Miniature, choose_share, steps_in_miniature
from tokmill.pipeline.session import Session
from tokmill.recipe import Near, Recipe
from tokmill.schema import string_column
from tokmill.stages.ingest.stage import NOT_SAMPLED
from tokmill.stages.tokens.stage import shards_of_split
from tokmill.storage.disk import commit_bytes
from tokmill.storage.tables import load_table

_LOG = logging.getLogger("tokmill.pipeline")

_SMALLER = 4
_Z = 1.96
# Of the same run on the same machine, idle: 0.9 to 1.1; beside other work more.
_TIME_VARIES = 0.2
# A worker: measured with shards of 8, 64 and 128 MiB.
_WORKER_BYTES, _SHARD_FACTOR = 540 << 20, 4
# In a process that did other things before, what it took so far is not what a run takes to start.
_MOST_LOADING = 1.5
# Until the workers are at work, in seconds of waiting.
_POOL_SECONDS = 0.5


class Interval(msgspec.Struct, frozen=True, array_like=True):
    value: float
    low: float
    high: float

    def contains(self, actual: float) -> bool:
        return self.low <= actual <= self.high

    def __add__(self, other: Interval) -> Interval:
        """Of two that vary apart from each other."""
        value = self.value + other.value
        low = math.hypot(self.value - self.low, other.value - other.low)
        high = math.hypot(self.high - self.value, other.high - other.value)
        return Interval(value, max(value - low, 0), value + high)


_NOTHING = Interval(0, 0, 0)


class SourceEstimate(msgspec.Struct, frozen=True):
    documents: float  # in the files, as far as limits and samples let them in
    kept: Interval
    dropped: dict[str, float]  # by step and reason
    tokens: Interval
    text_bytes: float


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    recipe: str  # fingerprint of the recipe that it is of
    share: float
    sampled_bytes: int
    took_seconds: float
    sources: dict[str, SourceEstimate]
    tokens: dict[str, Interval]  # by split
    builds: dict[str, float]  # tokens written
    disk: dict[str, float]  # bytes of each step, when it is done
    scratch: float  # bytes besides, at the worst moment
    cpu_seconds: dict[str, float]  # of each step
    start_seconds: float
    tasks: dict[str, list[float]]  # seconds of what can be done side by side
    memory: int  # bytes of a worker
    paying_workers: int  # more of them are not used

    def seconds(self, workers: int) -> Interval:
        """From the first to the last moment, with so many workers."""
        used = min(workers, self.paying_workers)
        value = self.start_seconds + (_POOL_SECONDS if used > 1 else 0)
        value += sum(_makespan(sizes, used) for sizes in self.tasks.values())
        return Interval(value, value * (1 - _TIME_VARIES), value * (1 + _TIME_VARIES))

    @property
    def disk_bytes(self) -> float:
        """When all is done."""
        return sum(self.disk.values())

    @property
    def kept(self) -> Interval:
        return sum((one.kept for one in self.sources.values()), _NOTHING)

    def summary(self, workers: int) -> Json:
        """What a run is compared with when it is done."""
        return {
            "documents": list(msgspec.to_builtins(self.kept)),
            "tokens": list(msgspec.to_builtins(sum(self.tokens.values(), _NOTHING))),
            "bytes": self.disk_bytes,
            "seconds": list(msgspec.to_builtins(self.seconds(workers))),
        }

    def as_json(self) -> Json:
        told: Json = msgspec.to_builtins(self)
        counts = sorted({1, 2, 4, 8, 16, available_cores()})
        return {**told, "seconds": {str(n): list(msgspec.to_builtins(self.seconds(n))) for n in counts}}


def estimate_run(
    recipe: Recipe, base: Path, progress: Progress | None = None, *, text_bytes: int = TEXT_BYTES
) -> Estimate:
    """From about so much text, or as little as is enough of more."""
    begun = time.monotonic()
    loaded = min(time.process_time(), _MOST_LOADING)  # what importing all this took is part of every run
    progress = progress or Silence()
    compile_kernels(progress)
    miniature = choose_share(recipe, base, text_bytes)
    share, small = miniature.share, miniature.share / _SMALLER
    progress.say(f"estimating from {float(share):.1%} of the documents …")
    with tempfile.TemporaryDirectory(prefix="tokmill-estimate-") as scratch, without_warnings():
        place = Path(scratch)
        cold = _measure(steps_in_miniature(recipe, base, place / "small", miniature, small), {}, base)
        whole = _measure(steps_in_miniature(recipe, base, place / "share", miniature, share), {}, base)
        ingested = {name: one for name, one in cold.artifacts.items() if name.startswith("ingest/")}
        again = steps_in_miniature(recipe, base, place / "again", miniature, small)
        warm = _measure([step for step in again if step.name not in ingested], ingested, base)
        warm.cpu.update({name: cold.cpu[name] for name in ingested})
        view = _View(recipe, miniature, whole.artifacts)
        return _extrapolate(view, cold, warm, whole, loaded, begun)


def write_estimate(out: Path, estimate: Estimate) -> None:
    commit_bytes(out / ESTIMATE, msgspec.json.format(msgspec.json.encode(estimate.as_json()), indent=2))


def load_estimate(out: Path, recipe: Json) -> Estimate | None:
    """Of this recipe; None: there is none, or it is of another."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        known = msgspec.json.decode((out / ESTIMATE).read_bytes(), type=Estimate)
        return known if known.recipe == fingerprint_of(recipe) else None
    return None


def free_bytes(out: Path) -> int:
    """Of the disk that `out` is on, or will be."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    return shutil.disk_usage(nearest).free


def warn_of_disk(estimate: Estimate, out: Path) -> None:
    needed, free = estimate.disk_bytes + estimate.scratch, free_bytes(out)
    if needed > free:
        _LOG.warning(
            "%s: the run will take about %.1f GB, and %.1f are free: it will stop when the disk is full",
            out,
            needed / 1e9,
            free / 1e9,
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


# --- what was drawn ---


class _Source(NamedTuple):
    """Of a source, drawn and all there are: documents, and bytes of text."""

    docs: int
    bytes: int
    all_docs: float
    all_bytes: float
    sizes: Any  # bytes of text of each document that was drawn
    tokens: dict[str, Any]  # by split: tokens of each; 0 where it is not of the split

    @property
    def by_docs(self) -> float:
        return self.all_docs / max(self.docs, 1)

    @property
    def by_bytes(self) -> float:
        return self.all_bytes / max(self.bytes, 1)


class _View:
    """A run in miniature, source by source."""

    def __init__(self, recipe: Recipe, miniature: Miniature, artifacts: Mapping[str, Artifact]) -> None:
        self.recipe, self.miniature, self.artifacts = recipe, miniature, artifacts
        self.share = float(miniature.share)
        self.splits = artifacts["tokens"].manifest.facts["splits"] if "tokens" in artifacts else []
        self.sources = {name: self._source(name) for name in miniature.sources}

    def _source(self, name: str) -> _Source:
        ingest = self.artifacts[f"ingest/{name}"]
        counts = ingest.manifest.counts
        read: Json = {}
        for receipt in ingest.manifest.receipts():
            read = add_counts(read, receipt.facts.get("read", {}))
        sizes = [np.zeros(0, np.int64)]
        for entry in ingest.manifest.entries("documents"):
            offsets = string_column(load_table(ingest.path(entry), ["text"]).column("text")).offsets
            sizes.append(np.diff(offsets))
        drawn = self.miniature.sources[name]
        scale = 1 / float(drawn.read)
        docs, size = read.get("docs", 0) * scale, read.get("bytes", 0) * scale
        bounded = self._is_bounded(name)
        return _Source(
            docs=counts["kept"],
            bytes=counts["text_bytes"],
            # a limit lets in as much as it says: the miniature's is smaller by the share
            all_docs=counts["kept"] / self.share if bounded else docs,
            all_bytes=counts["text_bytes"] / self.share if bounded else size,
            sizes=np.concatenate(sizes),
            tokens={split: self._tokens(name, split) for split in self.splits},
        )

    def _is_bounded(self, name: str) -> bool:
        (source,) = (source for source in self.recipe.sources if source.name == name)
        return source.limit is not None or source.sample is not None

    def _tokens(self, name: str, split: str) -> Any:
        """Of each document of the source that was drawn, in order."""
        counts = {
            number: entry.rows for number, (source, entry) in enumerate(self._shards()) if source == name
        }
        found = {number: np.zeros(rows, np.int64) for number, rows in counts.items()}
        for shard in shards_of_split(self.artifacts, split):
            if shard.source == name:
                table = load_table(Path(shard.lengths.path), ["row", "tokens"])
                found[shard.number][np.asarray(table.column("row"))] = np.asarray(table.column("tokens"))
        return np.concatenate([np.zeros(0, np.int64), *found.values()])

    def _shards(self) -> Iterator[tuple[str, Any]]:
        for name, artifact in self.artifacts.items():
            if name.startswith("ingest/"):
                for entry in artifact.manifest.entries("documents"):
                    yield name.removeprefix("ingest/"), entry

    def left_out(self, name: str) -> dict[str, float]:
        """By reason: records of the source that become no document; all that are read are looked at."""
        counts = self.artifacts[f"ingest/{name}"].manifest.counts
        read = float(self.miniature.sources[name].read)
        return {
            reason: count / read
            for verdict in ("dropped", "quarantined")
            for reason, count in counts[verdict].items()
            if reason != NOT_SAMPLED
        }

    def copies(self) -> dict[str, dict[str, tuple[float, float]]]:
        """By source and reason: documents that go for another one, of all there are; and their deviation."""
        found: dict[str, dict[str, tuple[float, float]]] = {}
        dedup = self.artifacts.get("dedup")
        if dedup is None:
            return found
        seen: dict[tuple[str, int], int] = {}
        pairs: dict[tuple[str, str], list[int]] = {}
        for entry in dedup.manifest.entries("ledger"):
            wanted = ["verdict", "source", "reason", "match_shard", "match_row"]
            table = load_table(dedup.path(entry), wanted)
            for row in table.filter(pc.equal(table.column("verdict"), "drop")).to_pylist():
                survivor = row["match_shard"], row["match_row"]
                own = pairs.setdefault((row["source"], row["reason"]), [0, 0, 0, 0])
                if survivor[0] is None:
                    own[3] += 1
                    continue
                earlier = seen[survivor] = seen.get(survivor, 0) + 1
                own[0] += 1
                own[1] += earlier
                own[2] += earlier * (earlier - 1) // 2
        for (source, reason), (copies, twos, threes, alone) in pairs.items():
            by_docs = self.sources[source].by_docs if source in self.sources else 1 / self.share
            of_others = copies * _copies_in_all(self.share, twos, threes)
            error = math.hypot(of_others / math.sqrt(max(copies, 1)), by_docs * math.sqrt(alone))
            found.setdefault(source, {})[reason] = of_others + alone * by_docs, error * (self.share < 1)
        return found


def _copies_in_all(share: float, pairs: int, triples: int) -> float:
    """How many times as many copies all documents have as the share has.

    Sizes of clusters are taken to be geometric: of a pair all of which both ends were drawn are seen, share²,
    of a triple share³. So triples to a pair tell the mean size less one, g; a cluster of which n were drawn
    has n - 1 copies, or none where n is 0.
    """
    if share >= 1 or not pairs:
        return 1.0
    g = triples / (share * pairs)
    if g < 1e-6:
        return share**-2
    q = g / (1 + g)
    seen = share / (1 - q) - 1 + (1 - q) * (1 - share) / (1 - q * (1 - share))
    return g / seen


# --- to the whole ---


def _extrapolate(
    view: _View, cold: _Measured, warm: _Measured, whole: _Measured, loaded: float, begun: float
) -> Estimate:
    copies = view.copies()
    sources = {name: _estimate_source(view, name, copies.get(name, {})) for name in view.sources}
    tokens = {split: _split_tokens(view, sources, split) for split in view.splits}
    growth = _growth(view, sources)
    lines = {name: _line(view, name, warm, whole, growth) for name in whole.cpu}
    once = sum(max(cold.cpu[name] - warm.cpu[name], 0) for name in warm.cpu)
    cpu = {name: line.cpu for name, line in lines.items()}
    docs = sum(one.kept.value for one in sources.values())
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
        scratch=docs * _scratch_bytes(near) if near is not None else 0.0,
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


def _estimate_source(view: _View, name: str, copies: Mapping[str, tuple[float, float]]) -> SourceEstimate:
    source = view.sources[name]
    counts = view.artifacts[f"clean/{name}"].manifest.counts
    clean = counts["kept"] * source.by_docs
    copied = {reason: min(count, clean) for reason, (count, _) in copies.items()}
    kept = max(clean - sum(copied.values()), 0)
    dropped = {f"ingest: {reason}": count for reason, count in view.left_out(name).items()}
    for verdict in ("dropped", "quarantined"):
        dropped |= {f"clean: {reason}": n * source.by_docs for reason, n in counts[verdict].items()}
    dropped |= {f"dedup: {reason}": count for reason, count in copied.items()}
    sizes = sum(source.tokens.values(), np.zeros(len(source.sizes), np.int64))
    # documents that a share finds no copy of go too, with as many tokens as the others have
    found = (counts["kept"] - int((sizes > 0).sum())) * source.by_docs
    before = float(sizes.sum()) * source.by_bytes
    more = (sum(copied.values()) - found) / max(kept + sum(copied.values()) - found, 1) if view.splits else 0
    value = before * (1 - max(more, 0))
    spread = _Z * _deviation(sizes, source, view.share)
    drawn = source.by_docs * math.sqrt((1 - view.share) * _variance(counts["kept"], source.docs))
    error = _Z * math.hypot(drawn, *(deviation for _, deviation in copies.values()))
    return SourceEstimate(
        documents=source.all_docs,
        kept=Interval(kept, max(kept - error, 0), min(kept + error, source.all_docs)),
        dropped=dropped,
        tokens=Interval(value, max(value - spread, 0), value + spread),
        text_bytes=source.all_bytes,
    )


def _variance(kept: int, drawn: int) -> float:
    """Of how many of those drawn are kept (Agresti and Coull 1998: four more, two of them kept)."""
    share = (kept + 2) / (drawn + 4)
    return drawn * share * (1 - share)


def _deviation(tokens: Any, source: _Source, share: float) -> float:
    """Of the tokens of all, as bytes of text times the tokens of a byte (Cochran 1977, 6.3)."""
    if len(tokens) < 2 or share >= 1:
        return 0.0
    rest = tokens - tokens.sum() / max(source.sizes.sum(), 1) * source.sizes
    return float(source.all_docs * math.sqrt((1 - share) * rest.var(ddof=1) / len(rest)))


def _split_tokens(view: _View, sources: Mapping[str, SourceEstimate], split: str) -> Interval:
    total = _NOTHING
    for name, source in view.sources.items():
        drawn = sum(int(one.sum()) for one in source.tokens.values())
        here = int(source.tokens[split].sum())
        share = here / drawn if drawn else 0.0
        of = sources[name].tokens
        own = _Z * _deviation(source.tokens[split], source, view.share)
        total += Interval(of.value * share, max(of.value * share - own, 0), of.value * share + own)
    return total


def _growth(view: _View, sources: Mapping[str, SourceEstimate]) -> dict[str, float]:
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
    has_target = view.recipe.mixture is not None and view.recipe.mixture.target is not None
    grown = {}
    for name in view.artifacts:
        kind, _, source = name.partition("/")
        if kind in ("ingest", "clean"):
            grown[name] = view.sources[source].by_bytes * share
        elif kind in ("mixture", "build", "texts"):
            grown[name] = 1.0 if has_target else tokens
        else:
            grown[name] = {"tokens": tokens, "split": docs}.get(kind, text)
    return grown


class _Line(NamedTuple):
    cpu: float
    disk: float


def _line(view: _View, name: str, warm: _Measured, whole: _Measured, growth: Mapping[str, float]) -> _Line:
    """Through two points, to all there is."""
    kind, _, source = name.partition("/")
    share, small = view.share, view.share / _SMALLER
    read = float(view.miniature.sources[source].read) if kind == "ingest" else 1.0

    def at_all(few: float, many: float, *, each: float) -> float:
        slope = max(many - few, 0) / (share - small)
        fixed = max(many - slope * share, 0)
        return fixed / each + slope * growth[name]

    return _Line(
        at_all(warm.cpu[name], whole.cpu[name], each=read),
        at_all(warm.disk.get(name, 0) or whole.disk[name] / _SMALLER, whole.disk[name], each=1.0),
    )


# --- side by side ---


def _tasks(
    view: _View, sources: Mapping[str, SourceEstimate], cpu: Mapping[str, float]
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
        kind = name.partition("/")[0]
        if kind in ("dedup", "tokens"):
            found[name] = [seconds / every] * every
        elif kind not in ("ingest", "clean"):
            found[name] = [seconds]
    return found


def _makespan(sizes: Iterable[float], workers: int) -> float:
    """Of tasks that are done longest first, each by whoever is free (Graham 1969)."""
    free = [0.0] * workers
    for size in sorted(sizes, reverse=True):
        heapq.heapreplace(free, free[0] + size)
    return max(free)
