"""What terabytes will take: cores, memory, disk, requests and money. Writes docs/scale.md.

    python bench/scale.py [--out docs/scale.md]

    figures that benches measured, prices that stores and clouds ask ─ arithmetic ─> tables

Nothing is run here: FIGURES and PRICES are at the top, each with where it is from. The page says what would
break first, and `tests/bench/test_scale.py` holds it to what this script writes.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NamedTuple

TERABYTE = 1e12
DOCUMENT_BYTES = 3_300  # of the texts of the benches
WORKER_GB, SHARD_FACTOR = 0.6, 6  # tokmill.engines.local: itself, and so many times a shard
BANDS, BANDS_AT_ONCE = 14, 2_000_000  # tokmill.stages.dedup.near
HASHES_AT_ONCE = 1_000_000  # tokmill.stages.dedup.exact


class Step(NamedTuple):
    name: str
    mb_per_cpu_second: float  # of text as received
    written: float  # bytes for each byte of text
    tasks_per_shard: float


# bench/stages.py, two Neoverse-N1 cores, everything kept (docs/performance.md)
STEPS = (
    Step("ingest and clean", 23.9, 110 / 138, 1),
    Step("dedup", 70.4, 34 / 138, 4),
    Step("split", 2757.7, 0.0, 1),
    Step("tokens", 67.4, 67 / 138, 1),
    Step("build", 196.4, 132 / 138, 0),
)
# `bench/neardup.py --scale 20_000_000`: sorted bands and fingerprints, while the step lasts
SCRATCH_BYTES_PER_DOCUMENT = 616
RANGE_SECONDS = 0.0001  # to find and read a range of one run (tokmill.stages.external.runs)
# bench/many_shards.py: 10,000 shards, 1,000 sources, some 70,000 tasks
DRIVER_SECONDS_PER_TASK = 0.0015
# a task that names 10,000 files: 21.5 ms for its fingerprint, 1.7 for its order of 1.7 MB
DRIVER_SECONDS_PER_NAMED_FILE = 2.15e-6
ORDER_BYTES_PER_NAMED_FILE = 169
# 16 cores against one, of 2.2 GB (bench/scaling.py): CPU seconds grow by this
MORE_CPU = 1.16

# us-east-1, list prices of late 2026; the arithmetic is what counts: change them here
CORE_HOUR = 0.04  # dollars, a core of a spot instance with 4 GB
PUT, GET = 5e-6, 4e-7  # dollars a request
GB_MONTH = 0.023
# 20 shards of 138 MB, two nodes, no shared disk (docs/decisions/0022): requests that write, and that read
WRITES_PER_SHARD, READS_PER_SHARD = 37, 43
STORE_UP, STORE_DOWN = 1.27, 0.47  # bytes for each byte of text, but for what dedup brings
NODE_CORES = 16


class Corpus(NamedTuple):
    called: str
    text_bytes: float
    shard_megabytes: int


CORPORA = (
    Corpus("1 TB", TERABYTE, 32),
    Corpus("a billion documents", 1e9 * DOCUMENT_BYTES, 128),
    Corpus("10 TB", 10 * TERABYTE, 256),
    Corpus("100 TB", 100 * TERABYTE, 1024),
)
CORES = (16, 256, 2048)


class Plan(NamedTuple):
    """What a corpus comes to."""

    corpus: Corpus

    @property
    def documents(self) -> float:
        return self.corpus.text_bytes / DOCUMENT_BYTES

    @property
    def shards(self) -> int:
        return math.ceil(self.corpus.text_bytes / (self.corpus.shard_megabytes << 20))

    @property
    def partitions(self) -> int:
        """Of near duplicates, the most of all."""
        return math.ceil(self.documents * BANDS / BANDS_AT_ONCE)

    @property
    def tasks(self) -> float:
        exchanged = 2 * self.partitions + self.documents / HASHES_AT_ONCE
        return self.shards * sum(step.tasks_per_shard for step in STEPS) + exchanged

    def cpu_hours(self, step: Step) -> float:
        seconds = self.corpus.text_bytes / 1e6 / step.mb_per_cpu_second
        if step.name == "dedup":  # each partition reads a range of the run of every shard
            seconds += 2 * self.partitions * self.shards * RANGE_SECONDS
        return seconds * MORE_CPU / 3600

    @property
    def all_hours(self) -> float:
        return sum(self.cpu_hours(step) for step in STEPS)

    @property
    def worker_gigabytes(self) -> float:
        return WORKER_GB + SHARD_FACTOR * (self.corpus.shard_megabytes << 20) / 1e9

    @property
    def written_bytes(self) -> float:
        return self.corpus.text_bytes * sum(step.written for step in STEPS)

    @property
    def scratch_bytes(self) -> float:
        return self.documents * SCRATCH_BYTES_PER_DOCUMENT

    @property
    def named_files(self) -> float:
        """A task of a partition names the runs of all shards, twice in a run."""
        return 3 * self.partitions * self.shards

    @property
    def driver_hours(self) -> float:
        named = 2 * self.named_files * DRIVER_SECONDS_PER_NAMED_FILE  # asked for, and handed out
        return (self.tasks * DRIVER_SECONDS_PER_TASK + named) / 3600

    @property
    def order_bytes(self) -> float:
        return self.named_files * ORDER_BYTES_PER_NAMED_FILE

    def brought_bytes(self, cores: int) -> float:
        """From the store. Runs of all shards are brought whole, once to each node."""
        nodes = max(cores // NODE_CORES, 1)
        return STORE_DOWN * self.corpus.text_bytes + min(nodes, self.partitions) * self.scratch_bytes

    @property
    def request_dollars(self) -> float:
        return self.shards * (WRITES_PER_SHARD * PUT + READS_PER_SHARD * GET)


def render() -> str:
    plans = [Plan(corpus) for corpus in CORPORA]
    names = " | ".join(corpus.called for corpus in CORPORA)
    rule = " | ".join(["---", *["---:"] * len(plans)])

    def row(label: str, values: list[str]) -> str:
        return f"| {label} | {' | '.join(values)} |"

    lines = [*_HEAD.splitlines(), "", f"| | {names} |", f"| {rule} |"]
    lines += [
        row("documents of 3.3 kB", [_count(plan.documents) for plan in plans]),
        row("`shards.megabytes`", [str(plan.corpus.shard_megabytes) for plan in plans]),
        row("shards", [_count(plan.shards) for plan in plans]),
        row("tasks", [_count(plan.tasks) for plan in plans]),
        row("memory of a worker", [f"{plan.worker_gigabytes:.1f} GB" for plan in plans]),
    ]
    lines += [row(f"{step.name}, core hours", [_hours(p.cpu_hours(step)) for p in plans]) for step in STEPS]
    lines += [row("all, core hours", [f"**{_hours(plan.all_hours)}**" for plan in plans])]
    for cores in CORES:
        lines.append(row(f"hours on {cores:,} cores", [_hours(plan.all_hours / cores) for plan in plans]))
    lines += [
        row("hours of the driver", [_hours(plan.driver_hours) for plan in plans]),
        row("orders that the driver sends", [_size(plan.order_bytes) for plan in plans]),
        row("disk: all steps", [_size(plan.written_bytes) for plan in plans]),
        row("disk: near duplicates, meanwhile", [_size(plan.scratch_bytes) for plan in plans]),
        row("cores, dollars", [f"{plan.all_hours * CORE_HOUR:,.0f}" for plan in plans]),
        row("a month of all steps in a store", [f"{p.written_bytes / 1e9 * GB_MONTH:,.0f}" for p in plans]),
        "",
        *_STORE.splitlines(),
        "",
        f"| | {names} |",
        f"| {rule} |",
        row("sent to the store", [_size(STORE_UP * plan.corpus.text_bytes) for plan in plans]),
        *(
            row(f"brought, {cores:,} cores", [_size(plan.brought_bytes(cores)) for plan in plans])
            for cores in CORES
        ),
        row("requests that write", [_count(plan.shards * WRITES_PER_SHARD) for plan in plans]),
        row("requests that read", [_count(plan.shards * READS_PER_SHARD) for plan in plans]),
        row("requests, dollars", [f"{plan.request_dollars:,.2f}" for plan in plans]),
        "",
        *_BREAKS.format(
            shards=_count(Plan(Corpus("", 1e9 * DOCUMENT_BYTES, 32)).shards),
            orders=_size(Plan(Corpus("", 1e9 * DOCUMENT_BYTES, 32)).order_bytes),
            hours=_hours(Plan(Corpus("", 1e9 * DOCUMENT_BYTES, 32)).driver_hours),
            less=_size(Plan(CORPORA[1]).order_bytes),
            fewer=_hours(Plan(CORPORA[1]).driver_hours),
        ).splitlines(),
    ]
    return "\n".join(lines) + "\n"


def _count(number: float) -> str:
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:,.1f} {name}"
    return f"{number:,.0f}"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}"


def _size(size: float) -> str:
    for unit, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size / 1e6:,.0f} MB"


_HEAD = """# What terabytes will take

Written by `python bench/scale.py` from figures that were measured on far less: it is arithmetic, and the
largest corpus that went through whole is on [How fast, and how large](performance.md). Cores are those of
the reference machine (2.5 to 3 GHz, ARM); a recipe with language, four filter packs, exact and near
duplicates, a split, gpt2 tokens and one build. CPU seconds are taken to grow by 16 % on many cores, as on
sixteen. Prices: a core hour 0.04 dollars (spot), a GB and month 0.023, a million requests that write 5,
that read 0.40. They are at the top of the script.

Shards grow with the corpus, because the number of files that tasks name grows with the square of their
number (below)."""

_STORE = """## Without a shared disk

[Every task reads from the store and writes to it](object-storage.md). What nodes bring depends on how many
there are: tasks of near duplicates need a range of the runs of all shards, and a node brings each of those
files once, whole. Nodes have 16 cores."""

_BREAKS = """## What breaks first

**The driver names every file to every partition.** A task of near duplicates reads a range of the run of
*every* shard, so its order lists all of them: 169 bytes and 2 µs each, for the fingerprint that makes its
receipt be found again. A billion documents in shards of 32 MiB would be {shards} shards; orders would be
{orders} in all, and the driver would work {hours} hours for them. With shards of 128 MiB it is {less} and
{fewer} hours. That is why the table has larger ones; a worker then needs more memory.

At a tenth of the shards it was tried (`python bench/many_shards.py`: 1,000 sources, 10,000 files and shards
of four short documents, two workers): 5.6 CPU seconds and 230 MB to plan, 108 CPU seconds and 517 MB of the
driver for the run, 1.5 ms for each of some 70,000 tasks, 10 seconds for `status` and 14 for a second run that
has nothing to do. Few documents make few partitions, so what tasks of partitions name is not in it.

**Next: what nodes bring for near duplicates.** Files that are brought whole to every node cost nodes ×
scratch bytes; ranges of them would cost their bytes once, and a request for each shard and partition. Until
then fewer, larger nodes are the remedy.

**Then: one task that sees all pairs.** Survivors of near duplicates are settled by a single task, whose
memory grows with the documents that have a copy and whose time grows with their pairs
(`bench/growth_dedup.py --single` measures both).

Of made fingerprints (`python bench/many_fingerprints.py --documents 200000000 --shard 1000000 --copies
50 --workers 8`: the step's own plan and tasks, one in fifty a copy, on 16 x86 cores) 200 million in 200
shards took 317 CPU seconds, 53 s with eight processes: all 4,000,000 copies were found, the eight
processes that look through the 1,400 partitions had 2.2 GB together, and the one that settles survivors
0.43 GB. Making the fingerprints is not in it (207 CPU seconds). On two cores and a tenth of the memory
10 million took 16 CPU seconds, 24 million 39."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs/scale.md")
    parser.parse_args().out.write_text(render())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
