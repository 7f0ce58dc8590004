"""A row of docs/interop.md: what a script of another project, run in its own Python, told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

_MISSING = ("ModuleNotFoundError", "ImportError")


class Row(NamedTuple):
    """Of the page."""

    name: str
    package: str
    version: str
    compared: str
    equal: int  # tokens, or documents
    missing: str = ""  # why it was not run


class Differs(Exception):
    """A reader, a writer or a tokenizer ran, and what it says is not what is so."""


def run_script(python: Path, script: Path, *arguments: Path) -> dict[str, Any]:
    # -P: a script called csv.py must not be what `import csv` finds
    command = [str(python), "-P", str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        if missing := [line for line in lines if line.startswith(_MISSING)]:
            return {"missing": missing[-1].partition(": ")[2]}
        last = lines[-1]
        raise Differs(f"{script.parent.name}/{script.name}: {last}\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def row_of(name: str, told: dict[str, Any], count: str) -> Row:
    if "missing" in told:
        return Row(name, "", "", "", 0, told["missing"])
    return Row(name, told["package"], told["version"], told.get("compared", ""), int(told.get(count, 0)))
