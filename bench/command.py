"""`tokmill` as a process of its own, as a user has it.

`make bench` installs it once more, in `.venv-plain`, with its own dependencies and no others. The environment
of the tests holds three times as many packages, and some of them are loaded where they are found: pandas by
pyarrow, scipy and cffi by numba, 0.7 s of CPU in the driver and in every worker. Where there is no
`.venv-plain` this Python is measured. Bytecode is kept between runs, whatever the environment says: without
it the first 0.1 s go into compiling our modules.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PLAIN = Path(__file__).resolve().parents[1] / ".venv-plain/bin/python"


def command(*arguments: object) -> list[str]:
    python = _PLAIN if _PLAIN.exists() else sys.executable
    return [str(python), "-c", "from tokmill.cli import main; main()", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
