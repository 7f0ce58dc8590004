"""Scores by a transformer: documents and MB of text a second, and the share of the device's peak.

    python bench/transformer_scores.py [--device auto] [--precision bfloat16] [--docs 2000] [--texts DIR]
                                       [--layers 12] [--width 768] [--max-tokens 512] [--json FILE]

The model has the shape of the FineWeb-Edu classifier (BERT-like, 12 layers of 768, one output) and random
weights; the tokenizer is trained on the texts themselves (30,522 words and pieces). Nothing is fetched. Texts
are those of --texts (*.jsonl.zst), or made ones where there are none.

A round scores all texts as a task does: tokenized, sorted by length, in batches without padding. Seconds are
those of the wall, the model moved and warmed up before. The first 512 tokens of a text are looked at, so MB
of text a second depend on how long texts are, and tokens a second do not. FLOPs are those of the matrix
products: 2 x weights of the layers x tokens, and 4 x width x length of attention for each token and layer.
The peak is that of products of large matrices on the same device in the same precision (one thread on a
CPU); with --peak-tflops also the share of what the data sheet says.

Beside it: how far scores of the same texts lie apart when each is computed alone, before they are rounded.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from backports import zstd

from stages import SHARED
from tokmill.demos.problems import generate_problems
from tokmill.schema import string_column
from tokmill.scores import transformer
from tokmill.scores.transformerfile import model_files


def load_texts(directory: Path, docs: int) -> list[str]:
    paths = sorted(directory.glob("*.jsonl.zst"))
    texts: list[str] = []
    for path in paths:
        with zstd.open(path, "rt", encoding="utf-8") as lines:
            for line, _ in zip(lines, range(-(-docs // len(paths))), strict=False):
                texts.append(json.loads(line)["text"])
    if not texts:
        texts = [f"{one['question']} {one['answer']}" for one in generate_problems(docs, 1)]
    return texts[:docs]


def make_model(directory: Path, texts: list[str], options: argparse.Namespace) -> None:
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=30_522, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator((text[:4000] for text in texts), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=30_522,
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 64,
        intermediate_size=4 * options.width,
        max_position_embeddings=options.max_tokens,
        num_labels=1,
    )
    BertForSequenceClassification(config).save_pretrained(directory)


def peak_flops(device: str, precision: str) -> float:
    """By a product of large matrices."""
    import torch

    size = 4096 if device == "cuda" else 1024
    one, other = (torch.randn(size, size, device=device, dtype=getattr(torch, precision)) for _ in range(2))
    seconds = []
    for _ in range(20 if device == "cuda" else 5):
        started = time.perf_counter()
        one @ other
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return float(2 * size**3 / min(seconds))


def flops(lengths: np.ndarray[Any, Any], layers: int, width: int) -> float:
    dense = 2 * 12 * width * width * layers * int(lengths.sum())
    attention = 4 * width * layers * int((lengths.astype(np.int64) ** 2).sum())
    return float(dense + attention)


def measure(directory: Path, texts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    import torch

    make_model(directory, texts, options)
    names = model_files(directory)
    asked = transformer.TransformerOptions(
        names=names,
        device=options.device,
        precision=options.precision,
        max_tokens=options.max_tokens,
    )
    scorer = transformer.open_transformer(asked, [directory / name for name in names])
    column = string_column(pa.array(texts, pa.large_string()))
    scorer.score(string_column(pa.array(texts[:32], pa.large_string())))  # moved, and warm
    told = scorer.describe()
    device = "cpu" if told["device"] == "cpu" else "cuda"
    started = time.perf_counter()
    lengths = np.array([len(ids) for ids in scorer.tokens(column)])
    tokenizing = time.perf_counter() - started
    seconds = []
    for _ in range(options.rounds):
        started = time.perf_counter()
        whole = scorer.score(column)
        seconds.append(time.perf_counter() - started)
    wall = statistics.median(seconds)
    before = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else before)
    peak = peak_flops(device, options.precision)
    torch.set_num_threads(before)
    some = np.linspace(0, len(texts) - 1, min(len(texts), 50)).astype(int).tolist()
    alone = [string_column(pa.array([texts[at]], pa.large_string())) for at in some]
    exact, single = scorer.values(column)[some], np.concatenate([scorer.values(one) for one in alone])
    rounded = whole[some] != np.concatenate([scorer.score(one) for one in alone])
    size = sum(len(text.encode()) for text in texts)
    done, sheet = flops(lengths, options.layers, options.width), options.peak_tflops
    return {
        **told,
        "model": {"layers": options.layers, "width": options.width, "max_tokens": options.max_tokens},
        "documents": len(texts),
        "text_mb": round(size / 1e6, 2),
        "tokens": int(lengths.sum()),
        "seconds": round(wall, 3),
        "seconds_each": [round(one, 3) for one in seconds],
        "tokenizing_s": round(tokenizing, 3),
        "documents_per_s": round(len(texts) / wall, 1),
        "mb_per_s": round(size / 1e6 / wall, 3),
        "tokens_per_s": round(int(lengths.sum()) / wall),
        "tflops": round(done / wall / 1e12, 3),
        "peak_tflops_of_products": round(peak / 1e12, 3),
        "share_of_products": round(done / wall / peak, 3),
        "share_of_data_sheet": round(done / wall / 1e12 / sheet, 3) if sheet else None,
        "spread_of_scores": float(np.std(whole)),
        "largest_change_by_batch": float(np.abs(exact - single).max()),
        "rounded_differently": int(rounded.sum()),
        "compared": len(some),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--docs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument(
        "--peak-tflops", type=float, help="of the data sheet: 989 of an H200 in bfloat16, dense"
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    texts = load_texts(options.texts, options.docs)
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as scratch:
        figures = measure(Path(scratch), texts, options)
    json.dump(figures, sys.stdout, indent=2)
    print()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
