"""Megabytes of text per CPU second through the filter packs,
beside the reference implementation in the same run.

    python bench/filters.py --texts ../shared/bench
    python bench/filters.py --parity --reference /path/to/venv/bin/python       agreement of verdicts per pack

Texts are JSONL.zst files with `text` and `lang`, held in memory as Arrow before the clock starts. `together`
is what a run with `web-en` does, by the same function: quality and repetition measured, lines edited, what
they left measured for c4 and fineweb. The reference is datatrove, in an environment of its own (pip install
datatrove spacy nltk regex); its verdicts are kept in --cache, because it needs minutes where this needs
seconds.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tokmill.clean.measures import measure
from tokmill.clean.rules import EditedMeasures, Pack, edit_and_measure, edit_lines, load_pack
from tokmill.storage.disk import ZstdFile

HERE = Path(__file__).parent
TOGETHER, ENGLISH = "together", "together, English only"
PACKS = ("gopher-quality", "gopher-repetition", "c4", "fineweb")
# Every n-th English document, so that all sources are in it: some 300 documents, half a minute of datatrove.
SAMPLE_STEP = 101


class Document(NamedTuple):
    key: str
    text: str
    lang: str


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, default=Path("../shared/bench"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parity", action="store_true", help="compare verdicts on all English documents")
    parser.add_argument(
        "--reference",
        type=Path,
        default=os.environ.get("TOKMILL_REFERENCE_PYTHON"),
        help="python with datatrove installed; default: $TOKMILL_REFERENCE_PYTHON",
    )
    parser.add_argument("--cache", type=Path, default=Path("/tmp/tokmill-reference-verdicts.jsonl"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.texts.is_dir():
        print(f"{options.texts}: no such directory; say where the texts are with --texts", file=sys.stderr)
        return 2
    reference = Path(options.reference) if options.reference else None
    if reference is None or not reference.exists():
        print("no reference: name a python that has datatrove with --reference", file=sys.stderr)
        if options.parity:
            return 2
        reference = None
    documents = list(read_documents(options.texts))
    english = [document for document in documents if document.lang == "en"]
    if options.parity:
        figures = compare(english, verdicts_of(reference, english, options.cache))  # type: ignore[arg-type]
    else:
        figures = race(documents, english[::SAMPLE_STEP], reference, options.rounds)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def read_documents(directory: Path) -> Iterator[Document]:
    for path in sorted(directory.glob("*.jsonl.zst")):
        with ZstdFile(path) as file:
            lines = file.read().split(b"\n")
        for number, line in enumerate(filter(None, lines)):
            record = json.loads(line)
            yield Document(f"{path.name}:{number}", record["text"], record.get("lang", ""))


# --- speed ---


def race(
    documents: list[Document], sample: list[Document], reference: Path | None, rounds: int
) -> dict[str, Any]:
    texts = pa.array([document.text for document in documents], pa.large_string())
    megabytes = sum(len(document.text.encode()) for document in documents) / 1e6
    acts: dict[str, Callable[[], object]] = {
        name: lambda name=name: measured(load_pack(name), texts)  # type: ignore[misc]
        for name in PACKS
    }
    acts[TOGETHER] = lambda: measured_together(texts)
    english = pa.array([document.text for document in documents if document.lang == "en"], pa.large_string())
    acts[ENGLISH] = lambda: measured_together(english)
    sizes = dict.fromkeys(acts, megabytes) | {
        ENGLISH: len(b"".join(t.encode() for t in english.to_pylist())) / 1e6
    }
    for act in acts.values():
        act()  # compiles
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(rounds):
        for name, act in acts.items():
            started = time.process_time()
            act()
            seconds[name].append(time.process_time() - started)
    figures: dict[str, Any] = {
        name: {"mb_per_cpu_s": round(sizes[name] / statistics.median(found), 1), "cpu_s": found}
        for name, found in seconds.items()
    }
    figures["megabytes"] = round(megabytes, 1)
    if reference:
        sample_megabytes = sum(len(document.text.encode()) for document in sample) / 1e6
        theirs = list(ask_reference(reference, sample))
        for name in PACKS:
            spent = sum(verdict["cpu_s"][name] for verdict in theirs)
            figures[name]["reference_mb_per_cpu_s"] = sample_megabytes / spent
        spent = sum(sum(verdict["cpu_s"].values()) for verdict in theirs)
        for name in (TOGETHER, ENGLISH):
            figures[name]["reference_mb_per_cpu_s"] = sample_megabytes / spent
        figures["sample"] = {"documents": len(sample), "megabytes": round(sample_megabytes, 2)}
    table = Table(title=f"filter packs, {megabytes:,.1f} MB of text, one core, median of {rounds}")
    for column in ("pack", "MB / CPU s", "datatrove MB / CPU s", "ratio"):
        table.add_column(column, justify="left" if column == "pack" else "right")
    for name in acts:
        ours, theirs_rate = figures[name]["mb_per_cpu_s"], figures[name].get("reference_mb_per_cpu_s")
        cells = (f"{theirs_rate:.3f}", f"{ours / theirs_rate:,.0f} x") if theirs_rate else ("-", "-")
        table.add_row(name, f"{ours:,.1f}", *cells)
    Console(soft_wrap=True).print(table)
    return figures


def measured(pack: Pack, texts: Any) -> dict[str, Any]:
    if pack.line_edits is not None:
        return edit_and_measure(texts, pack.line_edits, [], asked(pack)).after
    return measure(texts, asked(pack))


def measured_together(texts: Any) -> EditedMeasures:
    repetition, quality, c4, fineweb = load_pack("web-en").simple()
    assert c4.line_edits is not None
    before, after = asked(repetition) + asked(quality), asked(c4) + asked(fineweb)
    return edit_and_measure(texts, c4.line_edits, before, after)


def asked(pack: Pack) -> list[str]:
    return sorted({rule.measure for rule in pack.rules})


# --- agreement ---


def compare(documents: list[Document], verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    texts = pa.array([document.text for document in documents], pa.large_string())
    figures: dict[str, Any] = {"documents": len(documents)}
    table = Table(title=f"verdicts on {len(documents):,} English documents")
    for column in ("pack", "agree", "kept by both", "kept here only", "kept there only"):
        table.add_column(column, justify="left" if column == "pack" else "right")
    for name in (*PACKS, "web-en"):
        ours = judged(load_pack(name), texts)
        pairs = [(mine, verdict[name]) for mine, verdict in zip(ours, verdicts, strict=True)]
        split = [pair for pair in pairs if (pair[0] is None) != (pair[1] is None)]
        share = 1 - len(split) / len(pairs)
        here = sum(mine is None for mine, _ in split)
        table.add_row(
            name,
            f"{100 * share:.2f} %",
            f"{sum(pair == (None, None) for pair in pairs):,}",
            f"{here:,}",
            f"{len(split) - here:,}",
        )
        classes = collections.Counter(f"{mine or 'kept'} / {theirs or 'kept'}" for mine, theirs in split)
        figures[name] = {"agree": share, "disagreements": dict(classes.most_common())}
    console = Console(soft_wrap=True)
    console.print(table)
    for name in (*PACKS, "web-en"):
        for kind, count in figures[name]["disagreements"].items():
            console.print(f"{name}: {count:,} x {kind} (here / there)")
    return figures


def judged(pack: Pack, texts: Any) -> list[str | None]:
    """The first reason to drop each document, each pack on what the one before it left."""
    reasons = np.full(len(texts), None, object)
    for part in pack.simple():
        if part.line_edits is not None:
            texts = edit_lines(texts, part.line_edits).texts
        values = measure(texts, asked(part))
        for rule in part.rules:
            value = values[rule.measure]
            is_broken = value < rule.min if rule.min is not None else value > rule.max
            reasons[is_broken & (reasons == None)] = rule.reason  # noqa: E711  # element by element
    found: list[str | None] = reasons.tolist()
    return found


# --- the reference ---


def verdicts_of(reference: Path, documents: list[Document], cache: Path) -> list[dict[str, Any]]:
    """From the cache, and from the reference what is not there yet;
    an interrupted run goes on where it was."""
    known = {}
    if cache.exists():
        known = {verdict["row"]: verdict for verdict in map(json.loads, cache.read_text().splitlines())}
    missing = [document for document in documents if document.key not in known]
    if missing:
        print(
            f"asking the reference about {len(missing):,} documents; verdicts go to {cache}", file=sys.stderr
        )
        with cache.open("a") as kept:
            for verdict in ask_reference(reference, missing):
                known[verdict["row"]] = verdict
                kept.write(json.dumps(verdict) + "\n")
                kept.flush()
    return [known[document.key] for document in documents]


def ask_reference(reference: Path, documents: list[Document]) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryFile("w+") as asked_for:
        for document in documents:
            asked_for.write(json.dumps({"row": document.key, "text": document.text}) + "\n")
        asked_for.seek(0)
        command = [str(reference), str(HERE / "filters_reference.py")]
        with subprocess.Popen(command, stdin=asked_for, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)
    if process.returncode:
        raise SystemExit(
            f"{reference}: the reference ended with status {process.returncode}; is datatrove installed?"
        )


if __name__ == "__main__":
    raise SystemExit(main())
