"""The part of a manifest that may differ between two equal runs: when, where and with what it was made."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from tokmill.manifest import Json

_PACKAGES = ("tokmill", "numpy", "numba", "pyarrow", "msgspec", "tokenizers", "tiktoken", "sentencepiece")

# Environment variable of a worker: where it may compute what is the same on every device.
DEVICE = "TOKMILL_DEVICE"


def available_cores() -> int:
    """Cores this process may use, which in a container is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def describe_environment(*, workers: int, engine: str, recipe_directory: Path) -> Json:
    return {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": engine,
        "workers": workers,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": available_cores(),
        "packages": {name: package_version(name) for name in _PACKAGES},
        **_git(recipe_directory),
    }


@functools.cache
def _git(directory: Path) -> Json:
    """The commit of the recipe's repository, where there is one, and whether tracked files differ from it."""
    sha = _ask_git(directory, "rev-parse", "HEAD")
    changes = _ask_git(directory, "status", "--porcelain", "--untracked-files=no") if sha else None
    return {"git_sha": sha or None, "git_dirty": None if changes is None else bool(changes)}


def _ask_git(directory: Path, *arguments: str) -> str | None:
    try:
        found = subprocess.run(
            ["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None
