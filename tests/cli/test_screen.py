"""What moves on the screen while a user waits, in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from mill import small_corpus
from tokmill.kernels.warm import kernels_of

MAIN = "from tokmill.cli import main; main()"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Watched:
    """What was written to a terminal, and when."""

    def __init__(self, *arguments: str | Path, program: str = MAIN, **environment: str) -> None:
        screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
        self.times = [time.monotonic()]
        child = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm", **environment},
        )
        os.close(terminal)
        self.parts: list[str] = [""]
        self.raw = b""
        try:
            while more := os.read(screen, 1 << 16):
                self.times.append(time.monotonic())
                self.parts.append(_CONTROL.sub("", more.decode(errors="replace")))
                self.raw += more
        except OSError:  # all who could write to it have ended
            self.times.append(time.monotonic())
            self.parts.append("")
        os.close(screen)
        self.status = child.wait()

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def lines(self) -> list[str]:
        """What stands on the screen at the end, as high as all lines ever written."""
        lines, at = [""], 0
        for control, row in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", self.raw.decode()):
            if row:
                lines[at] += row
            elif control == "\n":
                at += 1
                lines += [""] * (at == len(lines))
            elif control.endswith("A"):
                at -= int(control[2:-1])
            elif control.endswith("K"):
                lines[at] = ""
        return lines

    def longest_silence(self) -> tuple[float, str]:
        """And the last words before it."""
        pauses = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        longest = max(pauses)
        return longest, "".join(self.parts[: pauses.index(longest) + 1])[-200:]


@pytest.mark.slow_screen
def test_something_moves_at_least_every_two_seconds_in_the_demo_with_nothing_compiled(
    tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    watched = Watched("demo", "--out", tmp_path / "demo", NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    longest, words = watched.longest_silence()
    record_property("longest_silence_seconds", round(longest, 2))
    print(f"longest silence: {longest:.2f} s, after {words!r}")
    assert watched.status == 0, watched.text
    kernels = len(kernels_of())
    for count in (f"compiling {kernels} kernels, once per version", f"{kernels // 2}/{kernels}"):
        assert count in watched.text
    # it is done before the first step, and no step has its time
    steps = re.findall(r"✓ ([\w/ ]+?) +([\d.]+) s", watched.text)
    assert steps[0][0] == "compiling kernels"
    rest = watched.times[-1] - watched.times[0] - float(steps[0][1])
    assert [step for step in steps[1:] if float(step[1]) > rest] == []
    assert longest <= 2, f"{longest:.2f} s of silence after {words!r}"


def test_a_run_shows_a_bar_for_the_whole_of_it_and_one_for_each_step(tmp_path: Path) -> None:
    watched = Watched("run", small_corpus(tmp_path), "--workers", "1")
    assert watched.status == 0, watched.text
    assert re.search(r"steps +[━╸╺]+ +10/10 ", watched.text)
    counts = re.findall(r"[━╸╺]+ +(\d+)/(\d+) ", watched.text)
    assert counts
    assert [(done, total) for done, total in counts if int(done) > int(total)] == []


# The bars are drawn as fast as a thread can, while steps begin and end.
_MANY_STEPS = """
import sys
from rich.live import Live
from tokmill.cli.console import open_progress

start = Live.start
def start_fast(live, refresh=False):
    live.refresh_per_second = 1e9
    start(live, refresh)
Live.start = start_fast
sys.setswitchinterval(1e-6)
with open_progress() as progress:
    for number in range(200):
        progress.begin_step(f"step-{number}", [])
        progress.finish_step(f"step-{number}", 0.0, {})
"""


def test_the_line_of_every_step_stays_on_the_screen_while_bars_are_drawn() -> None:
    watched = Watched(program=_MANY_STEPS)
    assert watched.status == 0, watched.text
    shown = re.findall(r"✓ step-(\d+)", "\n".join(watched.lines()))
    assert shown == [str(number) for number in range(200)]
