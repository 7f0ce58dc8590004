"""How fast rows are planned and gathered, and what each strategy costs on real documents.

    python bench/packing.py [--texts DIR] [--tokenizer FILE] [--length 2048] [--copies 4] [--rounds 3] [--json
    FILE]

Texts are encoded once (r50k_base by default) and kept in the temp directory. Speed is measured on the corpus
repeated `copies` times: tokens of all documents per CPU second, kernels compiled before, median of the
rounds, from a mapped file into one array that is used again for each batch of rows. Then plans alone for 20
million documents (--many), whose lengths are drawn from the real ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tokmill.packing.costs import Cost, compare_strategies
from tokmill.packing.mixture import Mixture
from tokmill.packing.plan import (
    BATCH_TOKENS,
    LAYOUTS,
    Plan,
    Store,
    gather_rows,
    gather_sequences,
    plan_layout,
    row_batches,
)
from tokmill.packing.quotas import Holding, Target
from tokmill.packing.schedule import MAX_EPOCHS, Offered, Scheduling
from tokmill.storage.disk import ZstdFile
from tokmill.tokenizers.load import load_tokenizer

SHARED = Path(__file__).resolve().parents[2] / "shared"


class Documents(NamedTuple):
    ids: NDArray[np.integer]
    lengths: NDArray[np.int64]
    groups: NDArray[np.int64]  # one per file of texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument(
        "--tokenizer", type=Path, default=SHARED / "data/tokenizers/tiktoken/r50k_base.tiktoken"
    )
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--many", type=int, default=20_000_000, help="documents of the plans without tokens")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    documents = load_documents(paths, options.tokenizer)
    console = Console(soft_wrap=True)
    console.print(compared(documents, options.length))
    found = speeds(documents, options.length, options.copies, options.rounds)
    console.print(speed_table(found))
    if options.many:
        console.print(many(documents, options.length, options.many))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def compared(documents: Documents, length: int) -> Table:
    tokens = int(documents.lengths.sum())
    table = Table(title=f"rows of {length}: {len(documents.lengths):,} documents, {tokens:,} tokens")
    names = ("layout", "rows", "padding", "lost", "fragmented", "of them short", "cross-document")
    for name in names:
        table.add_column(name, justify="left" if name == "layout" else "right")
    for title, groups in (("", None), (" (domains apart)", documents.groups)):
        for cost in compare_strategies(documents.lengths, length, groups):
            if groups is None or cost.layout in ("document", "best_fit"):
                table.add_row(cost.layout + title, *shares(cost))
    return table


def shares(cost: Cost) -> list[str]:
    return [
        f"{cost.rows:,}",
        f"{100 * cost.padding_share:.3f} %",
        f"{100 * cost.truncated_share:.3f} %",
        f"{100 * cost.fragmented_share:.2f} %",
        f"{cost.fragmented_short:,}",
        f"{100 * cost.cross_document_share:.1f} %",
    ]


def speeds(documents: Documents, length: int, copies: int, rounds: int) -> list[dict[str, str | float]]:
    lengths = np.tile(documents.lengths, copies)
    found: list[dict[str, str | float]] = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ids.bin"
        with path.open("wb") as file:
            for _ in range(copies):
                documents.ids.tofile(file)
        ids = np.memmap(path, dtype=documents.ids.dtype, mode="r")
        store = Store([ids], np.cumsum(lengths) - lengths)
        for layout in LAYOUTS:
            small = plan_layout(layout, documents.lengths[:9], length)
            gather_all(small, store)
            planned = cpu_seconds(partial(plan_layout, layout, lengths, length), rounds)
            plan = plan_layout(layout, lengths, length)
            gathered = cpu_seconds(partial(gather_all, plan, store), rounds)
            speed = int(lengths.sum()) / (planned + gathered) / 1e6
            found.append(
                {"layout": layout, "plan_s": planned, "gather_s": gathered, "mtokens_per_cpu_s": speed}
            )
    return found


def speed_table(found: list[dict[str, str | float]]) -> Table:
    table = Table(title="million tokens per CPU second, one core")
    for name in ("layout", "plan s", "gather s", "plan + gather Mtok/s"):
        table.add_column(name, justify="left" if name == "layout" else "right")
    for f in found:
        seconds = (f"{f[key]:.3f}" for key in ("plan_s", "gather_s"))
        table.add_row(str(f["layout"]), *seconds, f"{f['mtokens_per_cpu_s']:,.0f}")
    return table


def gather_all(plan: Plan, store: Store) -> None:
    buffer = np.empty((max(BATCH_TOKENS // max(plan.seq_len, 1), 1), max(plan.seq_len, 1)), store.dtype)
    for first, stop in row_batches(plan):
        if plan.seq_len:
            gather_rows(plan, store, first, stop, pad_id=0, into=buffer)
        else:
            gather_sequences(plan, store, first, stop)


def many(documents: Documents, length: int, count: int) -> Table:
    table = Table(title=f"{count:,} documents, lengths alone")
    for name in ("what", "CPU s", "peak RSS MB so far"):
        table.add_column(name, justify="left" if name == "what" else "right")
    lengths = np.random.default_rng(0).choice(documents.lengths, count)
    for layout in LAYOUTS:
        seconds = cpu_seconds(partial(plan_layout, layout, lengths, length), 1)
        table.add_row(layout, f"{seconds:.2f}", peak())
    parts = np.array_split(lengths, 8)
    shares = (30, 20, 15, 12, 10, 8, 4, 1)
    mixture = Mixture({f"domain{number}": Fraction(share, 100) for number, share in enumerate(shares)})
    target = Target("tokens", int(lengths.sum()) // 4)
    schedule([part[:9] for part in parts], mixture, None)
    seconds = cpu_seconds(lambda: schedule(parts, mixture, target), 1)
    table.add_row(f"schedule of {target.amount / 1e9:.1f} G tokens from 8 sources", f"{seconds:.2f}", peak())
    return table


class Source:
    """Documents in the order of their lengths as given."""

    def __init__(self, number: int, lengths: NDArray[np.int64]) -> None:
        self.holding = Holding(f"source{number}", f"domain{number}", int(lengths.sum()))
        self._lengths = lengths

    def read_epoch(self, epoch: int) -> Iterator[Offered]:
        yield Offered(self._lengths)


def schedule(parts: Sequence[NDArray[np.int64]], mixture: Mixture, target: Target | None) -> int:
    sources = [Source(number, part.astype(np.int64)) for number, part in enumerate(parts)]
    turns = Scheduling(sources, mixture, target, exhausted="stop", max_epochs=MAX_EPOCHS, seq_len=None)
    return sum(len(batch.source) for batch in turns)


def peak() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f}"


def cpu_seconds(act: Callable[[], object], rounds: int) -> float:
    samples = []
    for _ in range(rounds):
        started = time.process_time()
        act()
        samples.append(time.process_time() - started)
    return statistics.median(samples)


def load_documents(paths: list[Path], tokenizer_path: Path) -> Documents:
    """Encoded now, or as they were encoded when the same files were asked for last."""
    facts = "\n".join(f"{path.name} {path.stat().st_size}" for path in [tokenizer_path, *paths])
    kept = (
        Path(tempfile.gettempdir()) / f"tokmill-packing-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.npz"
    )
    if not kept.exists():
        tokenizer = load_tokenizer(tokenizer_path)
        eos = tokenizer.token_id("<|endoftext|>")
        assert eos is not None, f"{tokenizer_path} has no <|endoftext|>"
        ids, lengths, groups = [], [], []
        for group, path in enumerate(paths):
            with ZstdFile(path) as lines:
                encoded = tokenizer.encode([msgspec.json.decode(line)["text"] for line in lines])
            ends = np.cumsum(encoded.lengths)
            ids.append(np.insert(encoded.ids, ends, eos).astype(np.uint16))
            lengths.append(encoded.lengths + 1)
            groups.append(np.full(len(encoded.lengths), group))
        np.savez(
            kept, ids=np.concatenate(ids), lengths=np.concatenate(lengths), groups=np.concatenate(groups)
        )
    with np.load(kept) as arrays:
        return Documents(arrays["ids"], arrays["lengths"], arrays["groups"])


if __name__ == "__main__":
    raise SystemExit(main())
