"""How long `tokmill trace` takes on a large run: ten million documents in 1,700 shards.

    python bench/tracing.py [--documents 10000000] [--shards 1700] [--keep DIR] [--rounds 3] [--json FILE]

The run is made, not milled (made_run.py). Asked for are the last documents of a shard of full size, which is
the worst place. A figure is the median of the rounds: seconds of a process that has loaded its libraries, and
of the whole command.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokmill
from command import command, environment
from made_run import Corpus, main_of
from tokmill.artifacts.manifest import Json
from tokmill.audit.trace import BuildSplit, find_offset, open_build, trace_row


def measure(directory: Path, documents: int, shards: int, rounds: int) -> Json:
    per = -(-documents // shards)
    copy = (per - 2) // 100 * 100 + 1  # the last row with a copy
    kept, dropped = f"doc-{2 * per - 1 - (copy == per - 1)}", f"doc-{per + copy}"
    asked: dict[str, tuple[Callable[[], Any], list[str]]] = {
        "trace --doc-id, kept": (
            lambda: tokmill.trace(directory, doc_id=kept),
            ["trace", str(directory), "--doc-id", kept],
        ),
        "trace --doc-id, dropped": (
            lambda: tokmill.trace(directory, doc_id=dropped),
            ["trace", str(directory), "--doc-id", dropped],
        ),
        "why, kept": (lambda: tokmill.why(directory, kept), ["why", str(directory), kept]),
    }
    rows, mega = directory / "build/rows", directory / "build/mega"
    told = tokmill.trace(directory, doc_id=kept).as_json()["documents"][0]
    in_rows, in_mega = (build["turns"][0] for build in told["builds"])
    row, column = in_rows["rows"][0]["row"], in_rows["rows"][0]["start"]
    offset = in_mega["first_token"] + 3
    asked["trace --row --column"] = (
        lambda: trace_row(open_build(rows), row, column),
        ["trace", str(rows), "--row", str(row), "--column", str(column)],
    )
    asked["trace --offset"] = (
        lambda: _at_offset(open_build(mega), offset),
        ["trace", str(mega), "--offset", str(offset)],
    )
    figures: Json = {"documents": documents, "shards": shards}
    for name, (call, arguments) in asked.items():
        spent, walls, whole, waited = [], [], [], []
        for _ in range(rounds):
            cpu, wall = time.process_time(), time.monotonic()
            call()
            spent.append(time.process_time() - cpu)
            walls.append(time.monotonic() - wall)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            wall = time.monotonic()
            subprocess.run(
                command(*arguments, "--json"), env=environment(), check=True, stdout=subprocess.DEVNULL
            )
            waited.append(time.monotonic() - wall)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            whole.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        figures[name] = {
            "cpu_s": round(statistics.median(spent), 3),
            "wall_s": round(statistics.median(walls), 3),
            "command_cpu_s": round(statistics.median(whole), 3),
            "command_wall_s": round(statistics.median(waited), 3),
        }
    return figures


def _at_offset(found: BuildSplit, offset: int) -> Any:
    return trace_row(found, *find_offset(found, offset))


if __name__ == "__main__":
    raise SystemExit(main_of(__doc__, Corpus, measure, 3))
