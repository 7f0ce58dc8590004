"""Near duplicates: how well they are found, how fast, beside datatrove, and how it grows.

    python bench/neardup.py                                           quality and speed
    python bench/neardup.py --datatrove /path/to/venv/bin/python      the same sample through
                                                                      datatrove's four stages
    python bench/neardup.py --scale 20_000_000                        synthetic fingerprints through
                                                                      partition files

Quality is judged by gold pairs with exact word-5-gram Jaccard over lower case and \\w+ words. Speed is CPU
seconds of this process, the median of the rounds, over texts held in memory as Arrow. "permutations" is what
was not kept: 112 separate permutations instead of one, same shingles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from neardup_permutations import permutation_signatures
from neardup_scale import cluster_synthetic
from stages import SHARED
from tokmill.duplicates.near import (
    Edges,
    NearOptions,
    Pairs,
    Resolved,
    estimate,
    find_near_duplicates,
    found_share,
    read_pairs,
    resolve,
    signatures,
    unique_pairs,
    verify_pairs,
)
from tokmill.kernels.minhash import band_keys
from tokmill.storage.disk import ZstdFile

HERE = Path(__file__).parent
# Every n-th English document, all domains: some 3 MB, ten seconds of datatrove.
SAMPLE_STEP = 20
STEPS = 20

console = Console(width=150)


class Gold(NamedTuple):
    name: str
    texts: Any
    a: NDArray[np.int64]
    b: NDArray[np.int64]
    jaccard: NDArray[np.float64]


class Outcome(NamedTuple):
    keys: NDArray[np.uint64]
    candidates: Pairs
    edges: Edges
    resolved: Resolved


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--gold", type=Path, default=SHARED / "data/neardup")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--datatrove", type=Path, help="a python that has datatrove and spacy installed")
    parser.add_argument("--scale", type=int, help="this many synthetic fingerprints, and nothing else")
    parser.add_argument("--partitions", type=int, default=128)
    parser.add_argument("--scratch", type=Path, help="where --scale writes; default: a temporary directory")
    options = parser.parse_args()
    if options.scale:
        cluster_synthetic(options.scale, options.partitions, options.scratch, console)
        return 0
    for path in (options.gold, options.texts):
        if not path.is_dir():
            print(f"{path}: no such directory; name one with --gold or --texts", file=sys.stderr)
            return 2
    golds = [load_gold(path) for path in sorted(options.gold.glob("*.pairs.tsv"))]
    for gold in golds:
        report_quality(gold)
    report_errors(golds)
    report_speed(options.texts, options.rounds)
    if options.datatrove:
        race(options.texts, options.datatrove, options.rounds)
    return 0


# --- quality ---


def load_gold(path: Path) -> Gold:
    name = path.name.removesuffix(".pairs.tsv")
    with (path.parent / f"{name}.docs.jsonl").open(encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    number = {record["id"]: index for index, record in enumerate(records)}
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    ends = [np.array([number[row[end]] for row in rows], np.int64) for end in (0, 1)]
    texts = pa.array([record["text"] for record in records], pa.large_string())
    return Gold(name, texts, ends[0], ends[1], np.array([float(row[2]) for row in rows]))


def deduplicate(texts: Any, options: NearOptions) -> Outcome:
    made = signatures(texts, options)
    keys = band_keys(made.values, options.bands, options.rows)
    docs = np.repeat(np.arange(len(texts)), options.bands)
    listed = read_pairs(keys.ravel(), docs, digests=made.digests[docs], ranks=docs)
    candidates = unique_pairs(*map(np.concatenate, zip(*listed, strict=True)))
    edges = verify_pairs(
        *candidates, options, made.values.__getitem__, lambda rows: texts.take(pa.array(rows))
    )
    return Outcome(keys, candidates, edges, resolve(len(texts), edges.a, edges.b, edges.similarity))


def report_quality(gold: Gold) -> None:
    """Left, of the gold pairs in a range of Jaccard: how many share a band, are compared, and so on. Right,
    of all that were compared, similar, or dropped (with a document that is kept): how many have a gold
    Jaccard of at least that."""
    options = NearOptions()
    found = deduplicate(gold.texts, options)
    kept = found.resolved.survivor < 0
    shares_band = (found.keys[gold.a] == found.keys[gold.b]).any(axis=1)
    is_compared, is_edge = (
        np.isin(pair_codes(gold.a, gold.b), pair_codes(pairs.a, pairs.b))
        for pairs in (found.candidates, found.edges)
    )
    is_settled = ~(kept[gold.a] & kept[gold.b])
    nearest, nearest_kept = np.zeros(len(kept)), np.zeros(len(kept))
    for one, other in ((gold.a, gold.b), (gold.b, gold.a)):
        np.maximum.at(nearest, one, gold.jaccard)
        np.maximum.at(nearest_kept, one[kept[other]], gold.jaccard[kept[other]])
    proposed = gold_jaccard(gold, found.candidates)
    accepted = gold_jaccard(gold, Pairs(found.edges.a, found.edges.b))
    table = Table(
        title=f"{gold.name}: {len(kept):,} documents, {len(gold.a):,} gold pairs, {(~kept).sum():,} dropped"
    )
    for column in (
        "J from", "pairs", "share a band", "in theory", "compared", "similar", "one survivor at most",
        "compared: J from", "similar: J from", "dropped: J from",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for step in range(STEPS - 1, 3, -1):
        low, high = step / STEPS, (step + 1) / STEPS
        here = (gold.jaccard >= low) & ((gold.jaccard < high) | (step == STEPS - 1))
        table.add_row(
            f"{low:.2f}",
            f"{here.sum():,}",
            share(shares_band[here]),
            f"{100 * found_share((low + high) / 2, options.bands, options.rows):.1f} %",
            *(share(part[here]) for part in (is_compared, is_edge, is_settled)),
            *(share(part >= low) for part in (proposed, accepted, nearest_kept[~kept])),
        )
    console.print(table)
    alike, alone = gold.jaccard >= 0.85, nearest < 0.5
    exact = found.edges.is_exact.sum()
    console.print(
        f"pairs with J >= 0.85 that end with at most one survivor   {share(is_settled[alike])} of "
        f"{alike.sum():,}   (at least 98 %)\ndropped documents that have a kept one with J >= 0.75      "
        f"{share(nearest_kept[~kept] >= 0.75)} of {(~kept).sum():,}   (at least 99.5 %)\ndocuments without a "
        f"pair J >= 0.5 that were dropped        {(~kept[alone]).sum()} of {alone.sum():,}   "
        f"(none)\ncandidates {len(found.candidates.a):,}, edges {len(found.edges.a):,}, of which {exact:,} "
        "by exact Jaccard\n"
    )


def report_errors(golds: list[Gold]) -> None:
    """Estimates against exact Jaccard of the same shingles, for pairs around the threshold."""
    table = Table(
        title="estimates of gold pairs with 0.7 <= J < 0.9, 112 positions: one permutation, and 112 of them"
    )
    for column in ("pairs of", "pairs", "bias, one", "error, one", "bias, 112", "error, 112", "in theory"):
        table.add_column(column, justify="right")
    options = NearOptions()
    for gold in golds:
        around = (gold.jaccard >= 0.7) & (gold.jaccard < 0.9)
        a, b = gold.a[around], gold.b[around]
        figures = []
        for values in (signatures(gold.texts, options).values, permutation_signatures(gold.texts, options)):
            errors = estimate(values[a], values[b]) - gold.jaccard[around]
            figures += [f"{errors.mean():+.4f}", f"{errors.std():.4f}"]
        theory = np.sqrt(np.mean(gold.jaccard[around] * (1 - gold.jaccard[around])) / options.positions)
        table.add_row(gold.name, f"{around.sum():,}", *figures, f"{theory:.4f}")
    console.print(table)


def gold_jaccard(gold: Gold, pairs: Pairs) -> NDArray[np.float64]:
    """0 for a pair that is not among the gold ones, which begin at 0.2."""
    codes, wanted = pair_codes(gold.a, gold.b), pair_codes(pairs.a, pairs.b)
    order = np.argsort(codes, kind="stable")
    place = np.minimum(np.searchsorted(codes[order], wanted), len(codes) - 1)
    found = order[place]
    return np.where(codes[found] == wanted, gold.jaccard[found], 0.0)


def pair_codes(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    return (np.minimum(a, b) << 32) | np.maximum(a, b)


def share(flags: NDArray[np.bool_]) -> str:
    return f"{100 * flags.mean():.2f} %" if len(flags) else "–"


# --- speed ---


def load_texts(directory: Path, *, only: str | None = None) -> dict[str, Any]:
    columns = {}
    for path in sorted(directory.glob("*.jsonl.zst")):
        with ZstdFile(path) as file:
            records = [json.loads(line) for line in file.read().split(b"\n") if line]
        texts = [record["text"] for record in records if only is None or record["lang"] == only]
        columns[path.name.split(".")[0]] = pa.array(texts, pa.large_string())
    return columns


def report_speed(directory: Path, rounds: int) -> None:
    options, columns = NearOptions(), load_texts(directory)
    columns["all"] = pa.concat_arrays(list(columns.values()))
    table = Table(title=f"MB of text per CPU second, one core, median of {rounds}")
    for column in ("text", "MB", "documents", "fingerprints", "112 permutations", "to verdicts", "dropped"):
        table.add_column(column, justify="left" if column == "text" else "right")
    find_near_duplicates(columns["all"][:100], options)  # compiles, builds the tables
    permutation_signatures(columns["all"][:100], options)
    for name, texts in columns.items():
        size = megabytes(texts)
        acts: list[Callable[[], Any]] = [
            lambda texts=texts: signatures(texts, options),  # type: ignore[misc]
            lambda texts=texts: permutation_signatures(texts, options),  # type: ignore[misc]
            lambda texts=texts: find_near_duplicates(texts, options),  # type: ignore[misc]
        ]
        dropped = (find_near_duplicates(texts, options).survivor >= 0).sum()
        speeds = [f"{size / cpu_seconds(act, rounds):.0f}" for act in acts]
        table.add_row(name, f"{size:.1f}", f"{len(texts):,}", *speeds, f"{dropped:,}")
    console.print(table)


def race(directory: Path, reference: Path, rounds: int) -> None:
    """The same English sample, the same n-gram, bands and rows;
    datatrove's time by stage and by word splitting."""
    texts = pa.concat_arrays(list(load_texts(directory, only="en").values()))
    texts = texts.take(pa.array(np.arange(0, len(texts), SAMPLE_STEP)))
    size = megabytes(texts)
    options = NearOptions()
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts.to_pylist())
    command = [
        str(reference),
        str(HERE / "neardup_reference.py"),
        str(options.ngram),
        str(options.bands),
        str(options.rows),
    ]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    theirs: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    whole = sum(theirs["stages"].values())
    ours = cpu_seconds(lambda: find_near_duplicates(texts, options), rounds)
    prints = cpu_seconds(lambda: signatures(texts, options), rounds)
    table = Table(title=f"the same {size:.2f} MB ({len(texts):,} English documents), CPU seconds")
    for column in ("what", "datatrove", "tokmill", "ratio"):
        table.add_column(column, justify="left" if column == "what" else "right")
    signing = theirs["stages"]["signature"]
    for what, other, own in (
        ("fingerprints", signing, prints),
        ("fingerprints, word splitting left out", signing - theirs["splitting"], prints),
        ("all stages, texts to verdicts", whole, ours),
        ("all stages, word splitting left out", whole - theirs["splitting"], ours),
    ):
        table.add_row(what, f"{other:.2f}", f"{own:.4f}", f"{other / own:,.0f} x")
    console.print(table)
    console.print(
        f"datatrove {theirs['version']}: {size / whole:.2f} MB / CPU s, word splitting "
        f"{100 * theirs['splitting'] / whole:.0f} %, dropped {theirs['dropped']:,}; tokmill "
        f"{size / ours:.0f} MB / CPU s, dropped "
        f"{(find_near_duplicates(texts, options).survivor >= 0).sum():,}"
    )


def megabytes(texts: Any) -> float:
    return float(sum(len(text) for text in texts.cast(pa.large_binary()).to_pylist())) / 1e6


def cpu_seconds(act: Callable[[], Any], rounds: int) -> float:
    spent = []
    for _ in range(rounds):
        started = time.process_time()
        act()
        spent.append(time.process_time() - started)
    return statistics.median(spent)


if __name__ == "__main__":
    raise SystemExit(main())
