"""Pages of the documentation as programs: every block of a page, in order, in one shell.

    page.md ─ blocks ─┬─ sh, python ─> one bash script ─ outputs by block ─┐
                      ├─ yaml with a file name ─> that file                ├─> compared
                      └─ text after a command ─────────────────────────────┘

A comment before a block says how it differs from the others:

    <!-- block: exits 1 -->                 it is meant to fail, with this status
    <!-- block: needs torch -->             run where that package, or that program, is installed
    <!-- block: not run: WHY -->            cannot be run by a test
    <!-- block: shared -->                  the first of a page, and the same on several pages: run once, then
                                            copied

A page is read from top to bottom by somebody who copies what stands there. So blocks share a directory and a
shell (`cd` and `source` last), and a `text` block must be what the command above it prints: line by line,
where `…` stands for anything. Lines that are printed besides may be left out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

_BLOCK = re.compile(
    r"^(?:<!-- block: (?P<mark>[^\n]*?) -->\n)?(?P<indent>[ ]*)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^[ "
    r"]*```[ ]*$",
    re.M | re.S,
)
_FILE_NAME = re.compile(r"# (?P<name>[\w./-]+\.(?:yaml|py|jsonl|txt))(?:\s|$)")
_BETWEEN = "\x1e"  # stands before the output of a block; no command prints it


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    code: str
    mark: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_command(self) -> bool:
        return self.language in ("sh", "python")

    @property
    def file_name(self) -> str | None:
        """Of a block whose first line is a comment with nothing but a name."""
        found = _FILE_NAME.match(self.code)
        return found["name"] if found else None

    @property
    def status(self) -> int:
        return int(self.mark.removeprefix("exits ")) if self.mark.startswith("exits ") else 0

    @property
    def why_not(self) -> str | None:
        """Why this block is not run here."""
        if self.mark.startswith("not run:"):
            return self.mark.removeprefix("not run:").strip()
        needed = self.mark.removeprefix("needs ") if self.mark.startswith("needs ") else ""
        if needed and importlib.util.find_spec(needed) is None and shutil.which(needed) is None:
            return f"{needed} is not installed"
        return None


@dataclass
class Told:
    """What the blocks of a page printed, by the number of the block."""

    blocks: list[Block]
    outputs: dict[int, str] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)


def read_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    name = page.resolve().relative_to(REPOSITORY).as_posix()
    blocks = []
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        code = re.sub(f"^{found['indent']}", "", found["code"], flags=re.M)
        blocks.append(Block(name, line, found["language"], code, (found["mark"] or "").strip()))
    return blocks


def as_script(blocks: list[Block]) -> str:
    """One bash script. It stops at the first command that fails, and its output tells the blocks apart."""
    parts = ["set -euo pipefail", "exec 2>&1"]  # a reader sees both, in their order
    for number, block in enumerate(blocks):
        if block.why_not is not None:
            continue
        name = block.file_name
        if not block.is_command:
            if name is not None:
                parts.append(_written(name, block.code))
            continue
        parts.append(f"printf '{_BETWEEN}{number}\\n'")
        code = block.code
        if block.language == "python":
            name = name or f"$BLOCKS/{number}.py"
            code = f'{_written(name, block.code)}\npython "{name}"'
        if block.status:
            code = f"set +e\n{code}\nprintf '{_BETWEEN}status {number} %d\\n' $?\nset -e"
        parts.append(code)
    return "\n".join(parts) + "\n"


def run_blocks(blocks: list[Block], directory: Path, environment: dict[str, str]) -> Told:
    """Run them in `directory`; a block that fails is an AssertionError that shows its output."""
    aside = directory.with_name(f"{directory.name}-blocks")
    aside.mkdir()
    script = aside / "page.sh"
    script.write_text(as_script(blocks), encoding="utf-8")
    printed = aside / "printed"
    # Into a file: what a page leaves behind in the background would hold a pipe open for good.
    with printed.open("wb") as file:
        page = subprocess.Popen(
            ["bash", str(script)],
            cwd=directory,
            env=environment | {"BLOCKS": str(aside)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            page.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(page.pid, signal.SIGKILL)
    told = Told(blocks)
    last = -1
    preface, *parts = printed.read_text(encoding="utf-8", errors="replace").split(_BETWEEN)
    for part in parts:
        head, _, output = part.partition("\n")
        if head.startswith("status "):
            _, number, status = head.split()
            told.statuses[int(number)] = int(status)
        else:
            last = int(head)
            told.outputs[last] = output
    if page.returncode:
        raise AssertionError(
            f"{blocks[last].where} ends with status "
            f"{page.returncode}:\n{blocks[last].code}\n{told.outputs.get(last, '')}{preface}"
        )
    return told


def missing_lines(shown: str, printed: str) -> list[str]:
    """Lines of a text block that were not printed, in the order in which they stand there."""
    rest = [re.sub(r"\s+", " ", line).strip() for line in printed.splitlines()]
    missing = []
    for line in filter(None, (re.sub(r"\s+", " ", line).strip() for line in shown.splitlines())):
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("…")))
        at = next((i for i, said in enumerate(rest) if pattern.fullmatch(said)), None)
        if at is None:
            missing.append(line)
        else:
            rest = rest[at + 1 :]
    return missing


def reader_environment(home: Path, **more: str) -> dict[str, str]:
    """That of somebody who has just installed it: tokmill on the path, an empty home, no colours.

    One worker, because a test machine is shared; the bytes are the same with any number.
    """
    home.mkdir(exist_ok=True)
    kept = {
        name: os.environ[name]
        for name in ("LANG", "LC_ALL", "TMPDIR", "NUMBA_CACHE_DIR")
        if name in os.environ
    }
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",  # results and what is said on the way come in their order
        "TOKMILL_WORKERS": "1",
        "NO_COLOR": "1",
        # `tokmill check` on a busy machine: 8.2 CPU s with two threads that wait for each other, 1.0 with one
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **more,
    }


def _written(name: str, text: str) -> str:
    return f"""mkdir -p "$(dirname "{name}")"\ncat > "{name}" <<'END_OF_BLOCK'\n{text}END_OF_BLOCK"""
