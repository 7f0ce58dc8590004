"""An explorer in a script that does not stop it: it answers until the process ends, and that ends quietly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import sys, time, urllib.request
import tokmill

url = tokmill.explore(sys.argv[1]).url  # and nothing else keeps it
time.sleep(float(sys.argv[2]))
urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(url).read()
"""


def test_a_process_ends_whatever_is_being_read_ahead(run: Path) -> None:
    """Threads that were inside DuckDB or Arrow aborted it, one time in eight."""
    asked = [[sys.executable, "-c", _SCRIPT, str(run), str(number / 50)] for number in range(12)]
    for at in range(0, len(asked), 2):
        started = [
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for command in asked[at : at + 2]
        ]
        ended = [(process.communicate()[1].decode(), process.returncode) for process in started]
        assert ended == [("", 0)] * 2
