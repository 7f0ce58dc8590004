"""How fast the models of `tokmill ablate` train: tokens a second, and how much of a GPU's peak they use.

    python bench/ablate.py                               on a GPU: the 60M model at length 2,048, bf16
    python bench/ablate.py --device cpu --sizes 0.2M 2M --length 256
    python bench/ablate.py --profile profile.txt         by kernel, and profile.json for a trace viewer

    model FLOPs of a token: 6 for every weight of a matrix, the head's too, and 6 for every number of
    attention that the causal mask leaves. PaLM's count, which many quote, has attention without the mask: it
    is printed too (utilisation_palm). Utilisation = model FLOPs / seconds / peak; what is computed twice
    counts once.

Steps are whole: gradients of all micro-batches, clipping, AdamW, random ids already on the device. With
deterministic algorithms, as `ablate` has them, and without.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokmill.proxy.learning import MICRO_TOKENS, Learner, can_compile, deterministic
from tokmill.proxy.schedule import Schedule
from tokmill.proxy.shapes import SIZES

# bf16 with dense matrices, as the makers say
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}


def batch_of(rows: int, length: int, vocab_size: int, device: str) -> tuple[Any, Any, None, int]:
    """Random ids, so that no file is in the way: what `Learner.learn` takes after the number of the step."""
    draw = np.random.Generator(np.random.PCG64(1))
    ids = torch.from_numpy(draw.integers(0, vocab_size, (rows, length + 1))).to(device)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), None, rows * length


def measure(asked: argparse.Namespace, size: str, device: str, *, is_deterministic: bool) -> dict[str, Any]:
    shape, length = SIZES[size], asked.length
    rows = max(asked.batch_tokens // length, 1)
    schedule = Schedule(shape, 1000, rows, length, 0.002)
    is_compiled = asked.compile == "yes" or (asked.compile == "auto" and can_compile(device))
    learner = Learner(schedule, seed=1, vocab_size=asked.vocab_size, device=device, is_compiled=is_compiled)
    batch = batch_of(rows, length, asked.vocab_size, device)
    with deterministic(device) if is_deterministic else contextlib.nullcontext():
        for _ in range(asked.warmup):
            learner.learn(500, *batch)
        seconds = []
        for _ in range(asked.repeats):
            begun = clock(device)
            for _ in range(asked.steps):
                learner.learn(500, *batch)
            seconds.append((clock(device) - begun) / asked.steps)
        if asked.profile is not None:
            write_profile(learner, batch, asked.profile, device)
    median = sorted(seconds)[len(seconds) // 2]
    tokens = rows * length
    flops = shape.flops_per_token(asked.vocab_size, length)
    palm = flops + 6 * shape.layers * shape.width * length
    peak = asked.peak or next((peak for name, peak in PEAKS.items() if name in device_words(device)), None)
    return {
        "size": size,
        "device": device_words(device),
        "weights": shape.weights(asked.vocab_size),
        "vocab_size": asked.vocab_size,
        "length": length,
        "batch_tokens": tokens,
        "deterministic": is_deterministic,
        "compiled": is_compiled,
        "seconds_per_step": round(median, 5),
        "spread": [round(min(seconds), 5), round(max(seconds), 5)],
        "tokens_per_second": round(tokens / median),
        "model_tflops": round(flops * tokens / median / 1e12, 3),
        "utilisation": None if peak is None else round(flops * tokens / median / peak, 4),
        "utilisation_palm": None if peak is None else round(palm * tokens / median / peak, 4),
        "peak_tflops": None if peak is None else peak / 1e12,
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if device == "cuda" else None,
    }


def clock(device: str) -> float:
    """Seconds; of a CPU, those of all its cores together."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def device_words(device: str) -> str:
    return str(torch.cuda.get_device_name()) if device == "cuda" else "cpu"


def write_profile(learner: Learner, batch: tuple[Any, ...], path: Path, device: str) -> None:
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if device == "cuda" else []
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(3):
            learner.learn(500, *batch)
        clock(device)
    key = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    table = profile.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=80)
    path.write_text(table)
    profile.export_chrome_trace(str(path.with_suffix(".json")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--sizes", nargs="+", default=["60M"], choices=list(SIZES))
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--vocab-size", type=int, default=32_768)
    parser.add_argument(
        "--batch-tokens", type=int, help="of a step [default: 524288 on a GPU, 8192 on a CPU]"
    )
    parser.add_argument("--micro-tokens", type=int, help="that go through the model at once")
    parser.add_argument("--compile", choices=["auto", "yes", "no"], default="auto")
    parser.add_argument("--steps", type=int, help="between two looks at the clock [default: 10; CPU: 1]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warmup", type=int, help="[default: 5; CPU: 1]")
    parser.add_argument("--peak", type=float, help="FLOP/s of the device in bf16, where it is not known here")
    parser.add_argument("--only-deterministic", action="store_true", help="leave out the other way")
    parser.add_argument("--profile", type=Path, help="write a table of kernels here, and a trace beside it")
    asked = parser.parse_args()
    device = asked.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    is_gpu = device == "cuda"
    asked.batch_tokens = asked.batch_tokens or (1 << 19 if is_gpu else 8192)
    asked.steps = asked.steps or (10 if is_gpu else 1)
    asked.warmup = asked.warmup or (5 if is_gpu else 1)
    if asked.micro_tokens:
        MICRO_TOKENS[device] = asked.micro_tokens
    for size in asked.sizes:
        for is_deterministic in (True,) if asked.only_deterministic or not is_gpu else (True, False):
            found = measure(asked, size, device, is_deterministic=is_deterministic)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
