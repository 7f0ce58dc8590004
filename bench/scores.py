"""Scores of documents on real text: MB of text per CPU second, ours beside fastText's own code.

python bench/scores.py [--texts DIR] [--docs 4000] [--rounds 3] [--json FILE]

Models are trained on the spot by the fastText library (make .venv-fasttext/.installed): two labels with word
bigrams, as published quality classifiers are, and five labels with subwords. The reference is
fasttext-predict, which the extra `language` brings: the library's own C++, called once a text, with line ends
made spaces beforehand. CPU time of this process, rounds alternate, the median counts. What was compared is
checked: the same chances within 1e-4.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from backports import zstd
from rich.console import Console
from rich.table import Table

from stages import SHARED
from tokmill.schema import string_column
from tokmill.scores.fasttext import FastTextOptions, open_fasttext

DOMAINS = ("code", "math", "multilingual", "prose", "web")
TRAINED = 400  # texts of each domain that models learn from, and are not asked about
LIBRARY = Path(__file__).resolve().parents[1] / ".venv-fasttext"
MODELS: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any] | None]] = {
    "two labels, word bigrams, 100 dimensions": (
        ("math", "web"),
        {"dim": 100, "wordNgrams": 2, "bucket": 200_000, "epoch": 3},
        None,
    ),
    "five labels, subwords, 64 dimensions": (
        DOMAINS,
        {"dim": 64, "minn": 3, "maxn": 6, "bucket": 200_000, "epoch": 3},
        None,
    ),
    "five labels, subwords, quantized, tree": (
        DOMAINS,
        {"dim": 16, "minn": 2, "maxn": 4, "bucket": 200_000, "epoch": 3, "loss": "hs"},
        {"cutoff": 50_000, "qnorm": True},
    ),
}
_TRAIN = """
import json, sys, fasttext
asked = json.load(open(sys.argv[1]))
model = fasttext.train_supervised(asked["train"], thread=1, seed=1, verbose=0, **asked["options"])
if asked["quantize"] is not None:
    model.quantize(input=asked["train"], verbose=0, **asked["quantize"])
model.save_model(asked["model"])
"""


def load_texts(directory: Path, domain: str) -> list[str]:
    with zstd.open(directory / f"{domain}.jsonl.zst", "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def train(folder: Path, name: str, texts: dict[str, list[str]]) -> Path:
    labels, options, quantize = MODELS[name]
    stem = name.replace(" ", "-").replace(",", "")
    data, model, asked = folder / f"{stem}.txt", folder / f"{stem}.bin", folder / f"{stem}.json"
    lines = [
        f"__label__{label} {text[:1500].replace(chr(10), ' ')}"
        for label in labels
        for text in texts[label][:TRAINED]
    ]
    data.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    request = {"train": str(data), "model": str(model), "options": options, "quantize": quantize}
    asked.write_text(json.dumps(request))
    environment = {**os.environ, "PYTHONPATH": str(LIBRARY)}
    subprocess.run([sys.executable, "-c", _TRAIN, str(asked)], env=environment, check=True)
    return model


def timed(work: Any) -> tuple[float, Any]:
    before = time.process_time()
    found = work()
    return time.process_time() - before, found


def all_together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All texts by each model in turn: the harmonic means."""
    speeds = {who: len(rows) / sum(1 / row[who] for row in rows) for who in ("ours", "fasttext")}
    worst = {what: max(row[what] for row in rows) for what in ("open", "apart")}
    return {"model": "one after the other", **speeds, **worst}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, default=SHARED / "bench")
    parser.add_argument("--docs", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    import fasttext_pybind  # type: ignore[import-not-found]

    texts = {domain: load_texts(asked.texts, domain) for domain in DOMAINS}
    others = [text for domain in DOMAINS for text in texts[domain][TRAINED:]]
    every = [others[place * len(others) // asked.docs] for place in range(min(asked.docs, len(others)))]
    size = sum(len(text.encode()) for text in every) / 1e6
    lines = [text.replace("\n", " ").replace("\0", " ") for text in every]
    encoded = [line.encode() + b"\n" for line in lines]
    column = string_column(pa.array(every, pa.large_string()))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (labels, _, _) in MODELS.items():
            count = len(labels)
            model = train(Path(folder), name, texts)
            reference: Any = fasttext_pybind.fasttext()
            reference.loadModel(str(model))
            opening, scorer = timed(
                lambda m=model, one=labels[0]: open_fasttext(FastTextOptions(label=one), [m])
            )
            scorer.score(column)  # compiled, and the words are met
            ours, theirs = [], []
            for _ in range(asked.rounds):
                fresh = open_fasttext(FastTextOptions(label=labels[0]), [model])  # no word is remembered
                seconds, scores = timed(lambda one=fresh: one.score(column))
                ours.append(seconds)
                seconds, found = timed(
                    lambda one=reference, k=count: [one.predict(line, k, -1.0, "strict") for line in encoded]
                )
                theirs.append(seconds)
            wanted = f"__label__{labels[0]}"
            expected = np.array([{label: p for p, label in answer}[wanted] for answer in found])
            apart = float(np.abs(np.clip(expected, 0, 1) - scores).max())
            assert apart <= 1e-4, (name, apart)
            own, other = size / statistics.median(ours), size / statistics.median(theirs)
            rows.append({"model": name, "ours": own, "fasttext": other, "open": opening, "apart": apart})
    rows.append(all_together(rows))
    table = Table(title=f"{len(every):,} documents, {size:.0f} MB of text, MB per CPU second")
    for heading in ("model", "tokmill", "fasttext-predict", "times", "farthest apart", "opened in s"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        figures = (f"{row['ours']:.0f}", f"{row['fasttext']:.1f}", f"{row['ours'] / row['fasttext']:.1f}")
        table.add_row(row["model"], *figures, f"{row['apart']:.1e}", f"{row['open']:.2f}")
    Console().print(table)
    if asked.json:
        asked.json.write_text(
            json.dumps({"megabytes": size, "documents": len(every), "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
