"""How soon a user sees something: `tokmill run` to its first bar, and all kernels compiled where none is.

    python bench/start.py [--rounds 5] [--processes 1 2]

Both in processes of their own: the first in a pseudo-terminal, with kernels and bytecode in their caches and
a recipe that has nothing done yet; the second into a cache of its own, so that nothing is taken from the
machine's and nothing is left in it.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from command import command, environment
from tokmill.demos.problems import generate_problems
from tokmill.kernels.warm import load_kernels

BAR = "━".encode()
WARM = (
    "import sys; from tokmill.kernels.warm import ensure_compiled; print(ensure_compiled(lambda *_: None, "
    "int(sys.argv[1])))"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, os.cpu_count() or 1])
    options = parser.parse_args()
    load_kernels()
    with tempfile.TemporaryDirectory() as scratch:
        seconds = [first_bar(Path(scratch), number) for number in range(options.rounds + 1)][1:]
    console = Console(soft_wrap=True)
    console.print(
        f"tokmill run to its first bar: {statistics.median(seconds):.2f} s, {max(seconds):.2f} at most "
        f"of {options.rounds}"
    )
    table = Table(title="kernels compiled where none is")
    for name in ("processes", "kernels", "seconds", "CPU seconds"):
        table.add_column(name, justify="right")
    for processes in dict.fromkeys(options.processes):
        table.add_row(str(processes), *cold(processes))
    console.print(table)
    return 0


def first_bar(scratch: Path, number: int) -> float:
    """From the start of the process to the first bar that its terminal is sent."""
    texts = scratch / "problems.jsonl"
    texts.write_text("".join(json.dumps(problem) + "\n" for problem in generate_problems(2000, 1)))
    recipe = scratch / f"recipe-{number}.yaml"
    recipe.write_text(
        json.dumps(
            {
                "name": f"start-{number}",
                "sources": [
                    {
                        "name": "problems",
                        "files": texts.name,
                        "fields": {"id": "id"},
                        "template": "{question} {answer}",
                    }
                ],
                "tokenizer": {
                    "train": {"model": "byte_bpe", "vocab_size": 400},
                    "eos": "<|endoftext|>",
                },
                "builds": [{"name": "rows", "format": "memmap"}],
                "pack": {"length": 64},
            }
        )
    )
    screen, terminal = pty.openpty()
    begun = time.monotonic()
    child = subprocess.Popen(
        command("run", recipe),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**environment(), "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(terminal)
    seen, at = b"", 0.0
    try:
        while more := os.read(screen, 1 << 16):
            seen += more
            if not at and BAR in seen:
                at = time.monotonic() - begun
    except OSError:  # it has ended
        pass
    os.close(screen)
    if child.wait() or not at:
        raise SystemExit(seen.decode())
    return at


def cold(processes: int) -> tuple[str, str, str]:
    """Kernels, seconds, and CPU seconds of all processes."""
    with tempfile.TemporaryDirectory() as cache:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begun = time.monotonic()
        python = command()[0]
        done = subprocess.run(
            [python, "-c", WARM, str(processes)],
            env={**environment(), "NUMBA_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.monotonic() - begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout.strip(), f"{seconds:.1f}", f"{used:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
