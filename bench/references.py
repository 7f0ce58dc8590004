"""Deduplication against earlier corpora: how large an index is, what it finds, how fast it is asked.

    python bench/references.py                             size, quality and speed
    python bench/references.py --documents 5_000_000       and how it is asked when it has so many more

Quality: of the documents of a gold set every second one is the earlier corpus, the others are looked up. True
is who has a Jaccard similarity of at least the threshold with one of them, by exact comparison of all pairs
that share an n-gram. Size: of an index of all bench texts. Speed: CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import tokmill
from stages import SHARED
from tokmill.duplicates.near import NearOptions, compare_pairs
from tokmill.duplicates.shingling import all_units
from tokmill.duplicates.sketches import WORDS, Sketches, sketch, sketch_options
from tokmill.stages.indexes.files import Index, load_listing, short_keys
from tokmill.storage.disk import ZstdFile

THRESHOLD = 0.8
NEAR = NearOptions()
OPTIONS = sketch_options(Decimal("0.8"), "word", 5)
LIST = 100_000  # of the documents that are asked for in a large index

console = Console(width=150)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--gold", type=Path, default=SHARED / "data/neardup")
    parser.add_argument("--documents", type=lambda text: int(text.replace("_", "")), default=0)
    parser.add_argument("--json", type=Path, help="the figures, for the page")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        figures["quality"] = [quality(path) for path in sorted(options.gold.glob("*.docs.jsonl"))]
        figures["size"] = size_and_speed(options.texts, Path(scratch))
        if options.documents:
            figures["large"] = large(options.documents, Path(scratch))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


# --- quality ---


def quality(path: Path) -> dict[str, Any]:
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    before, after = (pa.array([r["text"] for r in records[at::2]], pa.large_string()) for at in (0, 1))
    best = most_similar(before, after)
    with tempfile.TemporaryDirectory() as scratch:
        made_index(before, Path(scratch))
        by_index, by_texts = (looked_up(after, Path(scratch), name) for name in ("index", "run"))
    is_true = best >= THRESHOLD
    told = {"set": path.name.removesuffix(".docs.jsonl"), "looked_up": len(after), "true": int(is_true.sum())}
    table = Table(title=f"{told['set']}: {told['looked_up']:,} documents, {told['true']:,} are there")
    for column in ("by", "precision", "recall", "wrong", "… farther than 0.05 from the threshold"):
        table.add_column(column, justify="right")
    for name, found in (("index", by_index), ("run", by_texts)):
        right, wrong = found & is_true, found != is_true
        precision, recall = right.sum() / max(found.sum(), 1), right.sum() / is_true.sum()
        far = int((wrong & (abs(best - THRESHOLD) > 0.05)).sum())
        told[name] = {
            "precision": float(precision),
            "recall": float(recall),
            "wrong": int(wrong.sum()),
            "far": far,
        }
        table.add_row(name, f"{precision:.4f}", f"{recall:.4f}", f"{wrong.sum():,}", f"{far:,}")
    console.print(table)
    return told


def looked_up(texts: Any, directory: Path, reference: str) -> Any:
    """Which of these texts a run drops that has the reference, by its ledgers."""
    records = [{"id": str(number), "text": text} for number, text in enumerate(texts.to_pylist())]
    recipe = {
        "name": "later",
        "sources": [{"name": "all", "data": records}],
        "dedup": {"exact": False, "near": {}, "reference": [str(directory / reference)]},
        "split": {"valid_fraction": 0},
    }
    out = tokmill.run(recipe, directory / f"by-{reference}", workers=1).out
    found = np.zeros(len(texts), np.bool_)
    for path in sorted((out / "dedup").glob("ledger-*.parquet")):
        for row in pq.read_table(path, columns=["doc_id", "reason"]).to_pylist():
            found[int(row["doc_id"])] |= row["reason"] == "reference_near_dup"
    return found


def most_similar(before: Any, after: Any) -> Any:
    """Of each later text the largest exact similarity with an earlier one, over all pairs with a common
    n-gram; in batches, by brute force."""
    both = pa.concat_arrays([before, after])
    rows = all_units(both, "word", keep_digits=True)
    having: dict[tuple[int, ...], list[int]] = {}
    best = np.zeros(len(after))
    pairs: tuple[list[int], list[int]] = ([], [])
    for row in range(len(both)):
        units = rows.units[rows.offsets[row] : rows.offsets[row + 1]].tolist()
        grams = {tuple(units[at : at + 5]) for at in range(max(len(units) - 4, 1 if units else 0))}
        if row < len(before):
            for gram in grams:
                having.setdefault(gram, []).append(row)
        else:
            others = sorted({other for gram in grams for other in having.get(gram, ())})
            pairs[0].extend(others)
            pairs[1].extend([row] * len(others))
    a, b = (np.array(side, np.int64) for side in pairs)
    similarity = compare_pairs(a, b, NEAR, lambda numbers: both.take(pa.array(numbers)))
    np.maximum.at(best, b - len(before), similarity)
    return best


def made_index(texts: Any, directory: Path) -> Index:
    """Of a run over these texts, as the product makes it."""
    recipe = {
        "name": "bench",
        "sources": [{"name": "all", "data": [{"text": text} for text in texts.to_pylist()]}],
        "dedup": {"exact": False},
        "split": {"valid_fraction": 0},
    }
    out = tokmill.run(recipe, directory / "run", workers=1).out
    tokmill.index(out, out=directory / "index", workers=1)
    return Index(directory / "index", load_listing(directory / "index/manifest.json"))


# --- size and speed ---


def size_and_speed(folder: Path, scratch: Path) -> dict[str, Any]:
    table = Table(title="an index of the bench texts")
    for column in ("texts", "documents", "MB of text", "bytes a document", "index", "share of the text"):
        table.add_column(column, justify="right")
    told: dict[str, Any] = {"sets": {}}
    every: list[Any] = []
    for path in [*sorted(folder.glob("*.jsonl.zst")), None]:
        texts = pa.concat_arrays(every) if path is None else load_texts(path)
        every.append(texts)
        name = "all" if path is None else path.name.partition(".")[0]
        directory = scratch / name
        made_index(texts, directory)
        found = tokmill.index(directory / "run", out=directory / "index", workers=1).as_json()
        per = found["index_bytes"] / found["documents"]
        told["sets"][name] = found
        table.add_row(
            name,
            f"{found['documents']:,}",
            f"{found['text_bytes'] / 1e6:,.1f}",
            f"{per:.1f}",
            f"{found['index_bytes'] / 1e6:,.2f} MB",
            f"{found['share_of_text']:.2%}",
        )
    console.print(table)
    texts, index = (
        pa.concat_arrays(every[:-1]),
        Index(directory / "index", load_listing(directory / "index/manifest.json")),
    )
    size = sum(len(text.encode()) for text in texts.to_pylist())
    began = time.process_time()
    sketches = sketch(texts, OPTIONS)
    made = time.process_time() - began
    began = time.process_time()
    found_pairs = index.find_similar(sketches, THRESHOLD)
    asked = time.process_time() - began
    console.print(
        f"sketches: {size / 1e6 / made:.0f} MB a CPU second, {len(texts) / made:,.0f} documents; "
        f"searches: {len(texts) / asked:,.0f} documents a CPU second, {len(found_pairs.asked):,} pairs; "
        f"both: {len(texts) / (made + asked):,.0f} documents"
    )
    told["megabytes_per_second"] = size / 1e6 / made
    told["searches_per_second"] = len(texts) / asked
    return told


def load_texts(path: Path) -> Any:
    with ZstdFile(path) as file:
        return pa.array([json.loads(line)["text"] for line in file.read().splitlines()], pa.large_string())


# --- many documents ---


def large(documents: int, scratch: Path) -> dict[str, Any]:
    """An index of made sketches, in the layout that a run would have; a tenth of those that are asked for are
    in it, with a twentieth of their bits turned."""
    draw = np.random.default_rng(7)
    high = np.sort(draw.integers(0, 1 << 64, documents, np.uint64))
    bits = draw.integers(0, 1 << 64, (documents, WORDS), np.uint64)
    keys = draw.integers(1, 1 << 64, (documents, OPTIONS.bands), np.uint64)
    directory = scratch / "large"
    directory.mkdir()
    entries, bands = directory / "entries-00000.bin", directory / "bands-00000.bin"
    with entries.open("wb") as file:
        for column in (high, high[::-1].copy(), bits):
            file.write(column.data)
    short = short_keys(keys.reshape(-1), 0, 1)
    order = np.argsort(short, kind="stable")
    with bands.open("wb") as file:
        file.write(short[order].data)
        file.write((order // OPTIONS.bands).astype(np.uint32).data)
    listing = {"entries": [[entries.name, documents]], "bands": [[bands.name, len(order)]]}
    (directory / "listing.json").write_text(json.dumps(listing))
    known = draw.integers(0, documents, LIST // 10)
    asked_keys = draw.integers(1, 1 << 64, (LIST, OPTIONS.bands), np.uint64)
    asked_bits = draw.integers(0, 1 << 64, (LIST, WORDS), np.uint64)
    asked_keys[: len(known), 0] = keys[known, 0]
    turned = np.packbits(draw.random((len(known), WORDS * 64)) < 0.05, axis=1).view(np.uint64)
    asked_bits[: len(known)] = bits[known] ^ turned
    del high, bits, keys, short, order
    index = Index(directory, load_listing(directory / "listing.json"))
    began = time.process_time()
    pairs = index.find_similar(Sketches(asked_bits, asked_keys), THRESHOLD)
    seconds = time.process_time() - began
    size = entries.stat().st_size + bands.stat().st_size
    console.print(
        f"of {documents:,} documents ({size / 1e6:,.0f} MB): {LIST / seconds:,.0f} searches a CPU second, "
        f"{len(pairs.asked):,} of {len(known):,} found; "
        f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB, most of it to make them"
    )
    return {
        "documents": documents,
        "bytes": size,
        "searches_per_second": LIST / seconds,
        "found": len(pairs.asked),
    }


if __name__ == "__main__":
    sys.exit(main())
