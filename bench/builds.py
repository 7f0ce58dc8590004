"""How fast builds are written, and what of that is serial: tokens per CPU second, task by task.

    python bench/builds.py [--tokens 100_000_000] [--vocab 50_257] [--rounds 3] [--json FILE]

A corpus of token shards is made up: two sources, documents of 40 to 60,000 tokens (as text on the web has
them, 700 on average), 8 million tokens to a shard as 32 MB of text give. Then `conduct` of a mixture and of
each build runs as a session runs it, every task in this process. Kernels are compiled before the clock
starts.

    tasks    CPU seconds of all tasks of a phase, and of the longest of them
    serial   what no other core can take part of: the longest task of each phase, and conducting them
    on 16    CPU seconds / 16 for what is cut into many tasks, or the longest task where that is more:
             Amdahl's law, on a machine that has sixteen of these cores and a disk that keeps up
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tokmill.artifacts.directory import Artifact, begin, finish
from tokmill.artifacts.manifest import Json, Receipt, build_manifest, file_entry
from tokmill.artifacts.step import Conduct, Outcome, Step, Unawaited
from tokmill.artifacts.upstream import write_shard_table
from tokmill.formats import find_format
from tokmill.kernels.warm import ensure_compiled
from tokmill.schema import LENGTHS
from tokmill.stages.build.mixture import MixtureOptions
from tokmill.stages.build.options import BuildOptions, PackOptions
from tokmill.stages.registry import STAGES, perform
from tokmill.storage.disk import commit_bytes

SHARD_TOKENS = 8_000_000
CORES = 16
DOMAINS = {"pages": "web", "code": "code"}


class Phase(NamedTuple):
    """The tasks that a step asked for at once."""

    function: str
    tasks: int
    seconds: float  # CPU, of all
    longest: float

    @property
    def on_many(self) -> float:
        return max(self.seconds / CORES, self.longest)


class Run(NamedTuple):
    tokens: int
    phases: list[Phase]
    conducting: float  # CPU seconds between tasks: layouts, receipts, the manifest
    outcome: Outcome

    @property
    def seconds(self) -> float:
        return self.conducting + sum(phase.seconds for phase in self.phases)

    @property
    def on_many(self) -> float:
        return self.conducting + sum(phase.on_many for phase in self.phases)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--vocab", type=int, default=50_257, help="over 65,536 the ids are int32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", action="append", help="memmap and megatron, if none is given")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    ensure_compiled(lambda done, total: None, 1)
    formats = options.format or ["memmap", "megatron"]
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tokmill-builds-") as directory:
        upstream = write_corpus(Path(directory), options.tokens, options.vocab)
        runs = {"mixture": [measured(mixture_step(Path(directory)), upstream) for _ in range(options.rounds)]}
        mixed = {**upstream, "mixture": finished(mixture_step(Path(directory)), runs["mixture"][-1].outcome)}
        for name in formats:
            for title, above in ((name, upstream), (f"{name}, mixed", mixed)):
                step = build_step(Path(directory), name)
                runs[title] = [measured(step, above) for _ in range(options.rounds)]
        console = Console(soft_wrap=True)
        console.print(table_of(runs))
        for name, rounds in runs.items():
            middle = sorted(rounds, key=lambda run: run.seconds)[len(rounds) // 2]
            found.append(
                {
                    "step": name,
                    "tokens": middle.tokens,
                    "cpu_s": statistics.median(run.seconds for run in rounds),
                    "serial_s": middle.on_many,
                    "mtokens_per_cpu_s": middle.tokens / middle.seconds / 1e6,
                    "mtokens_per_s_on_16": middle.tokens / middle.on_many / 1e6,
                    "phases": [phase._asdict() for phase in middle.phases],
                }
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def table_of(runs: dict[str, list[Run]]) -> Table:
    table = Table(title="million tokens per CPU second; on 16 cores, by Amdahl's law")
    for name in ("step", "phase", "tasks", "CPU s", "longest s", "Mtok / CPU s", "Mtok / s on 16"):
        table.add_column(name, justify="left" if name in ("step", "phase") else "right")
    for name, rounds in runs.items():
        run = sorted(rounds, key=lambda run: run.seconds)[len(rounds) // 2]
        for phase in run.phases:
            rate = run.tokens / max(phase.seconds, 1e-9) / 1e6
            table.add_row(
                name,
                phase.function,
                f"{phase.tasks}",
                f"{phase.seconds:.3f}",
                f"{phase.longest:.3f}",
                f"{rate:,.0f}",
            )
        table.add_row(name, "between tasks", "", f"{run.conducting:.3f}", f"{run.conducting:.3f}")
        whole = f"{run.tokens / run.seconds / 1e6:,.0f}", f"{run.tokens / run.on_many / 1e6:,.0f}"
        table.add_row(name, "all", "", f"{run.seconds:.3f}", f"{run.on_many:.3f}", *whole, end_section=True)
    return table


def measured(step: Step, upstream: dict[str, Artifact]) -> Run:
    """Every task in turn, from an empty directory."""
    shutil.rmtree(step.directory, ignore_errors=True)
    begin(step.directory)
    phases: list[Phase] = []
    started, working = time.process_time(), 0.0
    conduct: Conduct = STAGES[step.kind].conduct(step, upstream)
    asked, left, is_done = next(conduct), list[Receipt](), False
    while not is_done:
        took, receipts = [], []
        for task in asked:
            before = time.process_time()
            receipts.append(perform(task))
            took.append(time.process_time() - before)
        working += sum(took)
        phases += phases_of([task.function for task in asked], took)
        first = asked.first if isinstance(asked, Unawaited) else 0
        try:
            asked, left = conduct.send([*left, *receipts[first:]]), receipts[:first]
        except StopIteration as stop:
            outcome, is_done = stop.value, True
    tokens = sum(
        total["tokens"]["written"] if step.kind == "build" else 0 for total in [outcome.counts]
    ) or sum(split["tokens"] for split in outcome.facts["splits"].values())
    return Run(tokens, phases, time.process_time() - started - working, outcome)


def phases_of(functions: list[str], took: list[float]) -> Iterator[Phase]:
    """Tasks of one barrier: functions that stand side by side share the cores, so they are one phase."""
    if functions:
        name = " + ".join(dict.fromkeys(functions))
        yield Phase(name, len(took), sum(took), max(took))


def finished(step: Step, outcome: Outcome) -> Artifact:
    return finish(step.directory, manifest_of(step.kind, step.name, step.config, outcome))


def build_step(directory: Path, format: str) -> Step:
    shapes = find_format(format).shapes
    pack = PackOptions(layout="concat", length=2048, mix_domains=True, tail="drop")
    if "rows" not in shapes:
        pack = PackOptions(layout="indexed")
    options = BuildOptions(
        name=format,
        format=format,
        dtype="smallest",
        sources=(),
        rows_per_shard=4096,
        pack=pack,
        balance="none",
        seed=1,
    )
    return Step(f"build/{format}", "build", directory / "build" / format, options)


def mixture_step(directory: Path) -> Step:
    options = MixtureOptions(
        domains={"web": "1/2", "code": "1/2"},
        sources={domain: {source: "1"} for source, domain in DOMAINS.items()},
        domain_of=DOMAINS,
        target=None,
        exhausted="stop",
        max_epochs=1,
        order="shuffle",
        seed=1,
    )
    return Step("mixture", "mixture", directory / "mixture", options)


def write_corpus(directory: Path, tokens: int, vocab: int) -> dict[str, Artifact]:
    """What stands before a build: the shards of tokens, and the manifests that lead to them."""
    made = np.random.default_rng(7)
    kind = np.uint16 if vocab <= 1 << 16 else np.int32
    ids = made.integers(0, vocab, SHARD_TOKENS).astype(kind)
    receipts: dict[str, list[Receipt]] = {"tokens": [], **{f"ingest/{name}": [] for name in DOMAINS}}
    for number in range(-(-tokens // SHARD_TOKENS)):
        source = list(DOMAINS)[number * len(DOMAINS) * SHARD_TOKENS // max(tokens, SHARD_TOKENS * 2)]
        lengths = lengths_of(made, min(SHARD_TOKENS, tokens - number * SHARD_TOKENS))
        receipts["tokens"].append(write_shard(directory / "tokens", source, number, ids, lengths))
        documents = file_entry(
            f"documents-{number:05d}-000.parquet", "documents", commit_bytes(directory / "none", b""), rows=0
        )
        receipts[f"ingest/{source}"].append(
            Receipt(key=f"{number:05d}", fingerprint="", files=[documents], counts={})
        )
    tokenizer = {"file": "ranks", "sha256": "0" * 64, "vocab_size": vocab, "eos_id": 0, "controls": {}}
    facts = {"tokens": {"splits": ["train"], "tokenizer": tokenizer}}
    found = {}
    for name, own in receipts.items():
        kind_of, _, source = name.partition("/")
        config = {"reading": {"domain": DOMAINS[source]}} if source else {}
        outcome = Outcome(own, {}, facts.get(name, {}))
        found[name] = Artifact(directory / name, manifest_of(kind_of, name, config, outcome))
    return {name: found[name] for name in (*(f"ingest/{source}" for source in DOMAINS), "tokens")}


def lengths_of(made: np.random.Generator, tokens: int) -> Any:
    lengths = np.clip(made.lognormal(6.0, 1.05, tokens // 500), 40, 60_000).astype(np.int64)
    ends = np.cumsum(lengths)
    stop = int(np.searchsorted(ends, tokens))
    return np.append(lengths[:stop], tokens - int(ends[stop - 1])) if stop < len(ends) else lengths


def write_shard(directory: Path, source: str, number: int, ids: Any, lengths: Any) -> Receipt:
    stem = f"train/{source}/tokens-{number:05d}"
    written = commit_bytes(directory / f"{stem}.bin", ids[: int(lengths.sum())])
    count = len(lengths)
    table = pa.table(
        [
            np.arange(count, dtype=np.uint32),
            [f"https://example.org/{source}/{number}/{row:07d}" for row in range(count)],
            lengths,
            lengths * 4,
            pa.repeat(pa.scalar("en"), count),
            pa.repeat(pa.scalar("CC-BY-4.0"), count),
        ],
        schema=LENGTHS,
    )
    path = f"train/{source}/lengths-{number:05d}.parquet"
    files = [
        write_shard_table(str(directory), path, "lengths", table),
        file_entry(f"{stem}.bin", "tokens", written, rows=count),
    ]
    return Receipt(key=f"{number:05d}", fingerprint=f"{number}", files=files, counts={})


def manifest_of(kind: str, step: str, config: Json, outcome: Outcome) -> Any:
    return build_manifest(
        kind=kind,
        step=step,
        config=config,
        inputs={},
        receipts=outcome.receipts,
        counts=outcome.counts,
        facts=outcome.facts,
        experiment_id="bench",
        environment={},
    )


if __name__ == "__main__":
    sys.exit(main())
