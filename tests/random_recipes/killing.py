"""A run that ends itself by SIGKILL before its n-th change of what is on the disk.

Python tells an audit hook of each rename, link, removal and new directory: no part of the mill is replaced.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

CHANGES = ("os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir")
count = 0
kill_at: int | None = None


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    global count
    if event in CHANGES:
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def watch() -> None:
    """From here on changes are counted; no audit hook is ever taken away."""
    if _on_event not in _watching:
        _watching.append(_on_event)
        sys.addaudithook(_on_event)


_watching: list[Any] = []


def main() -> None:
    """Recipe, directory, the change at which to die."""
    import tokmill

    global kill_at
    recipe, out, at = sys.argv[1:4]
    kill_at = int(at)
    watch()
    tokmill.run(recipe, out, workers=1)
