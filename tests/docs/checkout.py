"""A repository to clone, so that pages can begin where a reader begins: `git clone`, `make demo`.

    working tree ─ copy, git init, commit ─> origin/ <─ git's own `insteadOf` ─ the address on the page
                                               │ git clone
                                               └─> post-checkout hook: .venv is there already

Installing is what `make` does for minutes and over the network; the tests run in the environment that came of
it, and a clone gets that one. All else is the page's: real git, real make, real tokmill.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from docs.pages import REPOSITORY

# One small file of tests: `make test` is run by these tests, and the whole would run itself.
_CONTENTS = (
    "Makefile",
    "README.md",
    "LICENSE",
    "pyproject.toml",
    "constraints.txt",
    "examples",
    "recipes",
    "bench",
)
_TESTS = ("tests/stages/test_draw.py", "tests/written.py")

_HOOK = """#!/bin/sh
mkdir -p .venv
for part in bin lib pyvenv.cfg; do ln -s "{prefix}/$part" .venv/$part; done
touch .venv/.installed-runtime .venv/.installed-testing
"""


def make_origin(directory: Path) -> Path:
    """A git repository of the working tree as it is now."""
    origin = directory / "origin"
    for name in (*_CONTENTS, *_TESTS):
        source, target = REPOSITORY / name, origin / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy2(source, target)
    author = ["-c", "user.name=tokmill", "-c", "user.email=tokmill@example.invalid"]
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        [*author, "commit", "--quiet", "--message", "as it is"],
    ):
        subprocess.run(["git", "-C", str(origin), *command], check=True)
    hook = directory / "template/hooks/post-checkout"
    hook.parent.mkdir(parents=True)
    hook.write_text(_HOOK.format(prefix=sys.prefix))
    hook.chmod(0o755)
    return origin


def git_environment(origin: Path, address: str) -> dict[str, str]:
    """Makes `git clone ADDRESS` clone `origin`."""
    settings = {
        f"url.{origin}.insteadOf": address,
        "init.templateDir": str(origin.parent / "template"),
        "advice.detachedHead": "false",
    }
    found = {"GIT_CONFIG_COUNT": str(len(settings)), "GIT_CONFIG_NOSYSTEM": "1"}
    for number, (key, value) in enumerate(settings.items()):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found
