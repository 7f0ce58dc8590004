"""What a model has seen, of a plan of 100 billion tokens: seconds and memory of each answer.

    python bench/seen.py [--tokens 100e9] [--length 2048] [--document 1400] [--keep DIR] [--json FILE]

The plan is made: documents of random lengths in a shuffled order, packed one after the other, as a mixture
and a build of rows write them (order, lengths, places.npy); there are no tokens, which nothing here reads.
Each answer is given by a process of its own, and its peak memory is that of the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.step import Input
from tokmill.audit.exposure import PlacesFile, measure_exposure
from tokmill.audit.grouping import group_documents
from tokmill.audit.places import Turns
from tokmill.formats.ids import npy_header
from tokmill.formats.index import find_places
from tokmill.loader.history import count_times, find_samples
from tokmill.loader.order import Order
from tokmill.stages.tokens.stage import SplitShard

SHARD = 1 << 20  # documents
LICENSES = ["MIT", "CC-BY-4.0", None]


def make(directory: Path, tokens: int, length: int, document: int) -> Json:
    """Lengths by shard; the order; places in the order of turns."""
    documents = tokens // document
    rng = np.random.default_rng(1)
    lengths = np.maximum(rng.exponential(document, documents), 8).astype(np.int64)
    for number, first in enumerate(range(0, documents, SHARD)):
        own = lengths[first : first + SHARD]
        license = pa.DictionaryArray.from_arrays(np.arange(len(own)) % 3, pa.array(LICENSES)).cast(
            pa.string()
        )
        table = pa.table({"tokens": own.astype(np.uint32), "license": license, "language": license})
        pq.write_table(table, directory / f"lengths-{number:05d}.parquet")
    order = rng.permutation(documents)
    table = pa.table(
        {"shard": (order // SHARD).astype(np.uint32), "sequence": (order % SHARD).astype(np.uint32)}
    )
    pq.write_table(table, directory / "order-train.parquet", row_group_size=1 << 20)
    own = lengths[order]
    ends = np.cumsum(own)
    rows = int(ends[-1]) // length  # what fills no row is left out
    begins = ends - own
    built = int(np.searchsorted(begins, rows * length))
    counts = (np.minimum(ends[:built], rows * length) - 1) // length - begins[:built] // length + 1
    meetings = int(counts.sum())
    with (directory / "places.npy").open("wb") as file:
        file.write(npy_header((meetings, 5), "<u4"))
        for first in range(0, built, 1 << 20):
            part = slice(first, min(first + (1 << 20), built))
            times = counts[part]
            turn = np.repeat(np.arange(part.start, part.stop), times)
            begin, end = begins[turn], np.minimum(ends[turn], rows * length)
            row = begin // length + np.arange(len(turn)) - np.repeat(np.cumsum(times) - times, times)
            start, stop = np.maximum(begin, row * length), np.minimum(end, (row + 1) * length)
            columns = (turn, row, start - row * length, stop - row * length, start - begin)
            np.stack(columns, axis=1).astype("<u4").tofile(file)
    told = {
        "documents": documents,
        "rows": rows,
        "meetings": meetings,
        "tokens": int(ends[-1]),
        "length": length,
    }
    (directory / "plan.json").write_text(json.dumps(told))
    return told


def ask(directory: Path, what: str) -> Json:
    told = json.loads((directory / "plan.json").read_text())
    shards = []
    for number, first in enumerate(range(0, told["documents"], SHARD)):
        size = min(SHARD, told["documents"] - first)
        path = str(directory / f"lengths-{number:05d}.parquet")
        entry: Any = Input("lengths", path, "", size)
        shards.append(SplitShard(number, f"source-{number % 7}", "web", entry, entry))
    turns = Turns(shards, [], directory / "order-train.parquet")
    places = PlacesFile(directory / "places.npy", told["meetings"])
    order = Order([told["rows"]], [1], 5, "epoch", None, lambda source, rows: rows)
    began, cpu = time.perf_counter(), time.process_time()
    if what == "document":
        (turn,) = turns.of(0, 77)
        spans = find_places(*places, turn)
        answer: Json = {
            "samples": [find_samples(order, 0, row, 4) for row in spans.row.tolist()],
        }
    else:
        epoch, share = (1, 0.37) if what == "license" else (0, 0.6)
        position = int(share * told["rows"])
        times, grouped = count_times(order, epoch, position)[0], group_documents(turns, what, {})
        exposure = measure_exposure(turns, places, times, grouped)
        assert int(exposure.seen.sum()) == (epoch * told["rows"] + position) * told["length"]
        answer = {"groups": len(exposure.names), "seen": int(exposure.seen.sum())}
    seconds = time.perf_counter() - began
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory = int(status["VmHWM"].split()[0]) / 1e6  # getrusage tells the process that forked
    return {"seconds": seconds, "cpu": time.process_time() - cpu, "gigabytes": memory, "answer": answer}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=float, default=100e9)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--document", type=int, default=1400)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        print(json.dumps(ask(options.keep, options.ask)))
        return
    with tempfile.TemporaryDirectory(prefix="seen-") as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(exist_ok=True)
        if not (directory / "plan.json").is_file():
            print(make(directory, int(options.tokens), options.length, options.document), file=sys.stderr)
        found = {}
        for what in ("source", "license", "document"):
            command = [sys.executable, __file__, "--keep", str(directory), "--ask", what]
            found[what] = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout
            )
            one = found[what]
            print(f"{what:10} {one['seconds']:6.2f} s  {one['cpu']:6.2f} CPU s  {one['gigabytes']:.2f} GB")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
