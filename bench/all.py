"""Every bench, one after the other, and the page that they fill: docs/performance.md.

    python bench/all.py [--only NAME …] [--skip NAME …] [--datatrove PYTHON] [--loader-peers PYTHON]
    python bench/all.py --quick --page /tmp/page.md            a smoke run on one document in 200, each once

    bench, a process of its own ─> results/<name>.txt    what it printed
                                   results/<name>.json   its figures
                                   results/<name>.run    CPU and wall seconds, peak RSS, when
    results/* ─ page ─> performance.md

The page is made of all results that are there, so a bench can be run again by itself. datatrove and the
loaders that we are compared with live in environments of their own; where none is named, the page says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from chain import SHARED, write_sample
from page import write_page
from tokmill.storage.disk import ZstdFile

HERE = Path(__file__).parent
QUICK_STEP = 200


class Bench(NamedTuple):
    name: str
    script: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None  # None: not part of a quick run
    takes: tuple[str, ...] = ("--json",)  # --texts, --rounds, --json
    peer: str = ""  # the option that names the other environment


ALL = ("--texts", "--rounds", "--json")
BENCHES = (
    Bench("limits", "limits.py", (), (), ALL),
    Bench("end_to_end", "end_to_end.py", (), ("--workers", "1", "--sample-every", "1"), ALL, "--reference"),
    Bench("stages", "stages.py", (), (), ALL),
    Bench("filters", "filters.py", (), (), ALL, "--reference"),
    Bench("language", "language.py", (), ("--ntrex", "none"), ALL),
    Bench("redaction", "redaction.py", (), (), ALL),
    Bench("encoding", "encoding.py", (), (), ALL),
    Bench("packing", "packing.py", (), ("--many", "100000", "--copies", "1"), ALL),
    Bench("sources", "sources.py", (), None, ("--rounds", "--json")),
    Bench("web", "web.py", (), ("--megabytes", "1"), ("--rounds", "--json"), "--reference"),
    Bench("windows", "windows.py", (), None, ("--texts", "--rounds")),
    Bench("neardup", "neardup.py", (), None, ("--texts", "--rounds"), "--datatrove"),
    Bench("neardup_scale", "neardup.py", ("--scale", "2_000_000"), ("--scale", "20_000"), ()),
    Bench("references", "references.py", ("--documents", "3_000_000"), None, ("--texts", "--json")),
    Bench("loader", "loader.py", (), ("--rows", "400", "--many", "10000"), ("--rounds",), "--peers"),
    Bench("start", "start.py", (), None, ("--rounds",)),
    Bench("engines", "engines.py", (), None, ALL),
    Bench(
        "tracing", "tracing.py", ("--documents", "1000000", "--shards", "170"), None, ("--rounds", "--json")
    ),
    Bench(
        "explore", "explore.py", ("--documents", "1000000", "--shards", "170"), None, ("--rounds", "--json")
    ),
    Bench("growth", "growth.py", ("--documents", "1000000", "4000000"), None, ()),
    Bench("growth_dedup", "growth_dedup.py", ("--documents", "300000"), None, ()),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [bench.name for bench in BENCHES]
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--only", nargs="*", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--skip", nargs="*", choices=names, metavar="NAME", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smoke run: the figures mean nothing")
    parser.add_argument("--datatrove", default=os.environ.get("TOKMILL_REFERENCE_PYTHON"))
    parser.add_argument("--loader-peers", default=os.environ.get("TOKMILL_LOADER_PYTHON"))
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs/performance.md")
    parser.add_argument("--page-only", action="store_true", help="from results that are there")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths and not options.page_only:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    options.results.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as scratch:
        texts = options.texts
        if options.quick:
            texts = write_few(paths, Path(scratch))
        for bench in [] if options.page_only else wanted(options):
            peer = options.loader_peers if bench.name == "loader" else options.datatrove
            command = command_of(bench, texts, options, peer)
            if run(bench, command, options.results):
                failed.append(bench.name)
    write_page(options.page, options.results, [bench.name for bench in BENCHES], is_quick=options.quick)
    if failed:
        print(f"failed: {', '.join(failed)}; see {options.results}/<name>.txt", file=sys.stderr)
    return 1 if failed else 0


def wanted(options: argparse.Namespace) -> list[Bench]:
    return [
        bench
        for bench in BENCHES
        if (options.only is None or bench.name in options.only)
        and bench.name not in options.skip
        and not (options.quick and bench.quick is None)
    ]


def write_few(paths: Sequence[Path], scratch: Path) -> Path:
    for path in write_sample(paths, scratch / "few", QUICK_STEP):
        with ZstdFile(path.with_name(path.name + ".zst"), "w") as file:
            file.write(path.read_bytes())
        path.unlink()
    return scratch / "few"


def command_of(bench: Bench, texts: Path, options: argparse.Namespace, peer: str | None) -> list[str]:
    values = {
        "--texts": str(texts),
        "--rounds": "1" if options.quick else str(options.rounds),
        "--json": str(options.results / f"{bench.name}.json"),
    }
    command = [sys.executable, str(HERE / bench.script)]
    command += bench.quick if options.quick and bench.quick is not None else bench.arguments
    for option in bench.takes:
        command += [option, values[option]]
    return command + ([bench.peer, peer] if bench.peer and peer and Path(peer).exists() else [])


def run(bench: Bench, command: list[str], results: Path) -> int:
    """Its exit status. Children are waited for by the system's own count of what they used."""
    print(f"{bench.name} …", file=sys.stderr, flush=True)
    for kind in ("txt", "json", "run"):
        (results / f"{bench.name}.{kind}").unlink(missing_ok=True)
    load, started = os.getloadavg()[0], time.monotonic()
    environment = {**os.environ, "COLUMNS": "150", "NO_COLOR": "1"}
    with (results / f"{bench.name}.txt").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL, env=environment)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    facts = {
        "command": f"bench/{bench.script} {' '.join(bench.arguments)}".strip(),
        "rounds": int(command[command.index("--rounds") + 1]) if "--rounds" in command else 1,
        "status": process.returncode,
        "wall_s": round(time.monotonic() - started, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_rss_mb": round(used.ru_maxrss / 1024),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "load_before": round(load, 1),
    }
    (results / f"{bench.name}.run").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"{bench.name}: {facts['wall_s']} s, status {facts['status']}", file=sys.stderr, flush=True)
    return process.returncode


if __name__ == "__main__":
    raise SystemExit(main())
