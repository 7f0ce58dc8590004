"""How many modules a document enters between the recipe and the first batch, and how large the package is.

    python bench/modules.py             calls are counted while a small recipe is run by one worker and a
                                        batch is read
    python bench/modules.py --list      and each module is named

A module counts if one of its functions was called, other than by an import.
Kernels count by the function that calls them.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import tokmill

SOURCE = Path(tokmill.__file__).parent


# What a first recipe has, and what it has later.
PLAIN = {
    "filters": [{"measure": "words", "min": 3, "reason": "too_short"}],
    "dedup": {"exact": True},
}
MORE = {
    **PLAIN,
    "language": {"method": "detect", "keep": ["en"], "min_score": 0},
    "dedup": {"exact": True, "near": {}},
    "mixture": {"weights": {"default": 1}},
}


def entered_modules(sections: dict[str, Any]) -> set[str]:
    """Of a recipe that reads, cleans, deduplicates, splits, tokenizes, packs and loads."""
    entered: set[str] = set()
    prefix, importing = f"{SOURCE}/", threading.local()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>":
            importing.depth = getattr(importing, "depth", 0) + {"call": 1, "return": -1}.get(event, 0)
            return
        is_function = event == "call" and code.co_flags & inspect.CO_OPTIMIZED
        if is_function and code.co_filename.startswith(prefix) and not getattr(importing, "depth", 0):
            entered.add(code.co_filename.removeprefix(prefix))

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        rows = [
            {"text": f"Mill {n} grinds {n * n} sacks of grain and {n % 7} of rye. " * 3} for n in range(200)
        ]
        (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = {
            "name": "entered",
            "sources": [{"name": "rows", "files": "rows.jsonl"}],
            **sections,
            "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
            "pack": {"length": 64},
            "builds": [{"name": "rows", "format": "memmap"}],
        }
        (directory / "recipe.yaml").write_text(json.dumps(recipe))
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            from tokmill.loader import Batches, open_dataset

            out = tokmill.run(directory / "recipe.yaml", workers=1).out
            next(iter(Batches(open_dataset(out / "build/rows", "train"), batch_size=2)))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return entered


def code_lines(path: Path) -> int:
    """Without blank lines, comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    told: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        ) and ast.get_docstring(node):
            told.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in told
        for number, line in enumerate(text.splitlines(), 1)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="name each module that is entered")
    arguments = parser.parse_args()
    paths = sorted(SOURCE.rglob("*.py"))
    print(f"{len(paths)} modules, {sum(map(code_lines, paths)):,} lines of code")
    for sections, what in (
        (PLAIN, "a plain recipe"),
        (MORE, "one with languages, near duplicates and a mixture"),
    ):
        entered = entered_modules(sections)
        print(f"{len(entered)} modules from {what} to the first batch")
        if arguments.list:
            print("\n".join(f"    {path}" for path in sorted(entered)))


if __name__ == "__main__":
    main()
