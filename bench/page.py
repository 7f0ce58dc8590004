"""docs/performance.md from the results of bench/all.py: every figure is read from a file, but for those of
`elsewhere`, which were measured once.

results/<name>.{json,txt,run} ─ one section after the other ─> the page
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page_chain import end_to_end, growth, stages
from page_tables import Results, paragraph, table

TITLES = {
    "windows": "Repeated passages and benchmark items",
    "neardup": "Near duplicates: quality and speed",
    "neardup_scale": "Near duplicates at scale: synthetic fingerprints through partition files",
    "references": "Earlier corpora: size, quality and speed of an index",
    "loader": "Loading batches",
    "start": "Starting",
    "engines": "Engines on one machine",
    "tracing": "Tracing a token or a document in a large run",
    "growth": "Memory of mixtures and builds as the corpus grows",
    "growth_dedup": "Memory of deduplication and splits as the corpus grows",
}
PACKAGES = ("numpy", "numba", "pyarrow", "gigatoken", "tokenizers", "tiktoken")
HIGH_LOAD = 0.5  # running processes per core, before a bench began


def write_page(page: Path, directory: Path, names: Sequence[str], *, is_quick: bool) -> None:
    results = Results(directory)
    runs = {name: facts for name in names if (facts := results.run(name)) is not None}
    sections = [
        ["# How fast, and how large", *introduction(results, runs, is_quick)],
        end_to_end(results),
        growth(results),
        stages(results),
        parts(results),
        *(printed(results, name, title) for name, title in TITLES.items()),
        elsewhere(),
        took(runs),
    ]
    page.write_text("\n".join("\n".join(section) + "\n" for section in sections if section))


def introduction(results: Results, runs: dict[str, dict[str, Any]], is_quick: bool) -> list[str]:
    cores = os.cpu_count()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    dates = sorted({facts["date"] for facts in runs.values()})
    when = " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "no run yet"
    lines = [
        "",
        *paragraph(
            "Written by `make bench` (`bench/all.py`); every figure is from a run on this machine, and each "
            "bench can be run by itself. MB are 10^6 bytes of UTF-8 text as received, CPU seconds those of "
            "all processes, figures the median of the rounds."
        ),
        "",
        *paragraph(
            f"{when}; {cores} x {processor()}, {memory_gb():.0f} GB; {platform.system()} "
            f"{platform.machine()}; Python {platform.python_version()}, {versions}."
        ),
    ]
    if is_quick:
        lines += ["", "**A smoke run on a few documents: these figures mean nothing.**"]
    return lines


def parts(results: Results) -> list[str]:
    """What has JSON, as one table: work, figure, what stands beside it."""
    rows: list[list[object]] = []
    if found := results.json("filters"):
        for name, f in found.items():
            if isinstance(f, dict) and "mb_per_cpu_s" in f:
                theirs = f.get("reference_mb_per_cpu_s")
                beside = f"datatrove {theirs:.2f} ({f['mb_per_cpu_s'] / theirs:,.0f} x)" if theirs else ""
                rows.append([f"filters: {name}", f"{f['mb_per_cpu_s']:.1f}", beside, "filters.py"])
    if found := results.json("language"):
        whole, own = found["whole"]["mb_per_cpu_s"], found["own_code"]["mb_per_cpu_s"]
        beside = f"fastText on whole texts {whole:.1f}, on the same excerpts {own:.1f}"
        rows.append(["language", f"{found['tokmill']['mb_per_cpu_s']:.1f}", beside, "language.py"])
    if found := results.json("redaction"):
        beside = f"plain `re` {found['all']['plain_mb_per_cpu_s']:.1f}"
        rows.append(["redaction, all kinds", f"{found['all']['mb_per_cpu_s']:.0f}", beside, "redaction.py"])
    if found := results.json("encoding"):
        for f in found["figures"]:
            equal = {True: "; files equal byte for byte", False: "; files DIFFER", None: ""}[
                found["equal_bytes"]
            ]
            beside = f"peak RSS {f['peak_rss_mb']:,.0f} MB{equal if f['what'] == 'tokmill run' else ''}"
            rows.append([f"Megatron files: {f['what']}", f"{f['mb_per_cpu_s']:.1f}", beside, "encoding.py"])
    if found := results.json("sources"):
        rows += [
            [
                f"ingest: {f['source']}",
                f"{f['mb_per_cpu_s']:.1f}",
                f"peak RSS {f['peak_rss_mb']:,} MB",
                "sources.py",
            ]
            for f in found
        ]
    if found := results.json("web"):
        ours, *theirs = found["ways"]
        beside = "; ".join(f"{f['way']} {f['mb_per_cpu_s']:.1f}" for f in theirs)
        rows.append(["web archives to documents, of HTML", f"{ours['mb_per_cpu_s']:.1f}", beside, "web.py"])
    if found := results.json("packing"):
        rows += [
            [
                f"rows: {f['layout']}",
                f"{f['mtokens_per_cpu_s']:,.0f} M tokens",
                "plan and gather",
                "packing.py",
            ]
            for f in found
        ]
    if not rows:
        return []
    head = [
        "## Each part by itself",
        "",
        "MB of text per CPU second on one core, where nothing else is said.",
        "",
    ]
    return [*head, *table(["work", "figure", "beside it", "`bench/`"], rows, left=(0, 2, 3))]


def printed(results: Results, name: str, title: str) -> list[str]:
    facts = results.run(name)
    if facts is None or facts["status"]:
        return []
    text = re.sub(r"/\S*/(?=shared/|bench/|bin/)", "", results.text(name)).strip("\n")
    lines = [line.rstrip() for line in text.splitlines()]
    return [f"## {title}", "", f"`{facts['command']}`", "", "```text", *lines, "```"]


def elsewhere() -> list[str]:
    """What was measured once, on other machines or by hand: as the page has it."""
    lines = (Path(__file__).resolve().parents[1] / "docs/performance.md").read_text().splitlines()
    first = lines.index("## Measured once")
    last = next(at for at in range(first + 1, len(lines)) if lines[at].startswith("## "))
    return lines[first : last - 1]


def took(runs: dict[str, dict[str, Any]]) -> list[str]:
    rows = [
        [
            f"`{facts['command']}`",
            facts["rounds"],
            f"{facts['wall_s']:,.0f}",
            f"{facts['cpu_s']:,.0f}",
            f"{facts['peak_rss_mb']:,}",
            "" if facts["status"] == 0 else f"status {facts['status']}",
        ]
        for facts in runs.values()
    ]
    lines = [
        "## What the benches themselves took",
        "",
        *table(["bench", "rounds", "wall s", "CPU s", "peak RSS MB", ""], rows),
    ]
    load = max((facts["load_before"] for facts in runs.values()), default=0.0)
    if load > HIGH_LOAD * (os.cpu_count() or 1):
        lines += [
            "",
            *paragraph(
                f"The machine was not idle: up to {load:.0f} processes wanted its {os.cpu_count()} cores. "
                "CPU seconds are then higher (caches are shared), and wall seconds much higher, than on an "
                "idle machine, for us and for those beside us."
            ),
        ]
    return lines


def processor() -> str:
    """lscpu knows the name where /proc/cpuinfo of ARM does not."""
    if sys.platform == "linux":
        try:
            said = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
        except FileNotFoundError:
            said = ""
        for line in said.splitlines():
            if line.startswith("Model name:"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


if __name__ == "__main__":
    raise SystemExit("make the page with: python bench/all.py --page-only")
