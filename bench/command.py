"""`tokmill` as a process of its own, with its own dependencies and no others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PLAIN = Path(__file__).parent / "plain"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from tokmill.cli import main; main()", *map(str, arguments)]


def environment() -> dict[str, str]:
    """Of the command, and of the workers that it starts."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(_PLAIN), os.environ.get("PYTHONPATH", "")])}
