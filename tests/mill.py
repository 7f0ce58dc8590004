"""Small real corpora, recipes for them, and the command line as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from forked import run_forked
from tokmill.demos.problems import generate_problems

SHARED = Path(__file__).resolve().parents[2] / "shared"


def tokmill(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """With one worker unless it is told otherwise: a pool takes longer to start than most tests to run."""
    whole = {"TOKMILL_WORKERS": "1", **os.environ, **(env or {})}
    return run_forked(list(map(str, arguments)), whole)


def write_problems(path: Path, count: int, seed: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(p, ensure_ascii=False) for p in generate_problems(count, seed)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_recipe(directory: Path, **sections: Any) -> Path:
    """A complete recipe over problems.jsonl and notes.txt; `sections` replace or add, None removes."""
    recipe: dict[str, Any] = {
        "name": "small",
        "seed": 7,
        "sources": [
            {
                "name": "problems",
                "domain": "math",
                "license": "Apache-2.0",
                "files": "problems.jsonl",
                "fields": {"id": "id"},
                "template": "Problem: {question}\n\nSolution: {answer}",
            },
            {"name": "notes", "domain": "prose", "files": "notes.txt", "unit": "paragraph"},
        ],
        "normalize": {"unicode": "NFC", "newlines": "lf"},
        "filters": [{"measure": "chars", "min": 5, "reason": "too_short"}],
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "pack": {"length": 64},
        "builds": [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}],
    }
    recipe.update(sections)
    path = directory / "recipe.yaml"
    path.write_text(json.dumps({k: v for k, v in recipe.items() if v is not None}, indent=1))  # JSON is YAML
    return path


NOTES = (
    "The mill stands by the river.\r\nIt turns all day.\n\nÇa tourne aussi en français\u2028sans se "
    "couper.\n\nThe mill stands by the river.\r\nIt turns all day.\n\nThe  MILL stands by the river.\nit "
    "turns all day.\n\nhm\n\nA NUL\0 hides here, cafe\u0301 too.\n"
)


def small_corpus(directory: Path, problems: int = 60, **sections: Any) -> Path:
    """Writes corpus and recipe below `directory`; returns the recipe's path."""
    directory.mkdir(parents=True, exist_ok=True)
    write_problems(directory / "problems.jsonl", problems)
    (directory / "notes.txt").write_bytes(NOTES.encode())
    sections.setdefault("normalize", {"unicode": "NFC", "newlines": "lf", "max_nul_fraction": "0.01"})
    sections.setdefault("dedup", {"exact": "folded"})  # of the notes one differs in case and spaces alone
    return write_recipe(directory, **sections)


def digest_of(directory: Path) -> str:
    """The content digest of a run that must be in order."""
    found = tokmill("verify", directory, "--json")
    report = json.loads(found.stdout)
    assert report["problems"] == [], report["problems"]
    assert found.returncode == 0
    return str(report["digest"])


def steps_of(out: Path) -> dict[str, Any]:
    """What every manifest of a step says, but for the time and place: files, tasks, counts, facts. What a
    file is known by is its content: the bytes of some say when they were made. A task of ingest is known by
    the source that it read, or by the shards that a takedown made it from."""
    found = {}
    for path in sorted(out.rglob("manifest.json")):
        if path.parent != out:
            manifest = json.loads(path.read_bytes())
            for name in ("environment", "digest", "seal"):
                del manifest[name]
            for entry in manifest["files"]:
                del entry["sha256"], entry["bytes"]
            for task in manifest["tasks"] if manifest["kind"] == "ingest" else ():
                del task["fingerprint"]
            found[path.parent.relative_to(out).as_posix()] = manifest
    return found


def differences(fresh: Any, grown: Any, where: str = "") -> list[str]:
    if isinstance(fresh, dict) and isinstance(grown, dict):
        keys = sorted({*fresh, *grown})
        return [d for key in keys for d in differences(fresh.get(key), grown.get(key), f"{where}.{key}")]
    if isinstance(fresh, list) and isinstance(grown, list) and len(fresh) == len(grown):
        pairs = enumerate(zip(fresh, grown, strict=True))
        return [d for n, (one, other) in pairs for d in differences(one, other, f"{where}[{n}]")]
    return [] if fresh == grown else [f"{where}: {str(fresh)[:200]} became {str(grown)[:200]}"]
