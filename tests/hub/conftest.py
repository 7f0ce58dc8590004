"""A loopback hub, and the unmodified client in a process of its own:
it reads HF_ENDPOINT when it is imported."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from forked import run_forked
from hub.loopback import LoopbackHub

# Waits are recorded, not waited. `show` gives values back;
# `told` gives the error of a call instead of its result.
_PRELUDE = """
import json, pickle, sys, time, traceback
said, waits, shown = [], [], {}
time.sleep = waits.append
from tokmill.errors import TokmillError
from tokmill.sources import hub, hubfile
from tokmill.sources.hubfile import HubFile
from tokmill.artifacts.progress import warnings_to
saying = warnings_to(said.append)
saying.__enter__()

def show(**values):
    shown.update(values)

def told(act, *arguments, **options):
    try:
        act(*arguments, **options)
    except TokmillError as error:
        return [type(error).__name__, str(error), repr(error) + traceback.format_exc()]
"""
_EPILOGUE = """
print(json.dumps({**shown, "said": said, "waits": waits}))
"""

Client = Callable[..., dict[str, Any]]


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub().serving() as serving:
        yield serving


@pytest.fixture
def client(hub: LoopbackHub, tmp_path: Path) -> Client:
    """Runs a script against the loopback hub and returns what it showed."""
    if not (importlib.util.find_spec("datasets") and importlib.util.find_spec("huggingface_hub")):
        pytest.skip("the extra `hub` is not installed")

    def run(script: str, **environment: str) -> dict[str, Any]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(("HF_", "HUGGING")) and not name.lower().endswith("_proxy")
        }
        settings = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(tmp_path / "hf-home"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
        }
        code = _PRELUDE + dedent(script) + _EPILOGUE
        done = run_forked([], {**inherited, **settings, **environment}, tmp_path, code)
        assert done.returncode == 0, done.stderr[-4000:]
        shown: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**shown, "output": done.stdout + done.stderr}

    return run
