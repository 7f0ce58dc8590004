"""Variables of the environment: those that the source reads are those of the table."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import tokmill
from tokmill.reference.variables import VARIABLES, pages

SOURCE = Path(tokmill.__file__).parent
TEXTS = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if path.name != "variables.py"]


def test_every_variable_of_ours_in_the_source_is_in_the_table_and_no_other() -> None:
    found = {name for text in TEXTS for name in re.findall(r"\bTOKMILL_[A-Z][A-Z_]*\b", text)}
    assert found == {name for name in VARIABLES if name.startswith("TOKMILL_")}
    (page,) = pages().values()
    assert all(f"`{name}`" in page for name in VARIABLES)


def test_every_variable_that_is_read_by_its_name_is_in_the_table() -> None:
    read = set()
    for text in TEXTS:
        if "environ" not in text and "getenv" not in text:
            continue  # to parse and to write all of them takes four seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
                read |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    assert read
    assert read <= set(VARIABLES)


def test_the_completion_of_a_shell_is_one_variable_away() -> None:
    start = [sys.executable, "-c", "from tokmill.cli import main; main(prog_name='tokmill')"]
    environment = {**os.environ, "_TOKMILL_COMPLETE": "zsh_source"}
    shown = subprocess.run(start, env=environment, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("#compdef tokmill")
