"""What runs the pages would notice a page that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.pages import Block, missing_lines, reader_environment, run_blocks


def sh(code: str, mark: str = "") -> Block:
    return Block("page.md", 1, "sh", code, mark)


def run_in(directory: Path, *blocks: Block) -> dict[int, str]:
    (directory / "page").mkdir()
    return run_blocks(list(blocks), directory / "page", reader_environment(directory / "home")).outputs


def test_blocks_share_a_directory_and_a_shell(tmp_path: Path) -> None:
    recipe = Block("page.md", 3, "yaml", "# some/recipe.yaml\nname: x\n")
    python = Block("page.md", 9, "python", "print(open('recipe.yaml').read())\n")
    told = run_in(
        tmp_path, recipe, sh("cd some\nexport WORD=kept\n"), sh('echo "$WORD"; echo said >&2\n'), python
    )
    assert told == {1: "", 2: "kept\nsaid\n", 3: "# some/recipe.yaml\nname: x\n\n"}


def test_a_command_that_fails_stops_the_page_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)page.md:1 ends with status 3.*before"):
        run_in(tmp_path, sh("echo before\n(exit 3)\necho after\n"), sh("touch ran\n"))
    assert not (tmp_path / "page/ran").exists()


def test_a_status_that_was_foretold_is_told_and_the_page_goes_on(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    blocks = [sh("(exit 4)\n", "exits 4"), sh("true\n", "exits 4"), sh("echo on\n")]
    told = run_blocks(blocks, tmp_path / "page", reader_environment(tmp_path / "home"))
    assert told.statuses == {0: 4, 1: 0}
    assert told.outputs[2] == "on\n"


def test_what_cannot_run_here_says_why() -> None:
    assert sh("x", "not run: needs a cluster").why_not == "needs a cluster"
    assert sh("x", "needs no_such_package").why_not == "no_such_package is not installed"
    assert sh("x", "needs bash").why_not is None
    assert sh("x", "needs pytest").why_not is None


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("✓ dedup      … s  4 of 6\n", []),
        ("first\n…  (proven)\n", []),
        ("✓ dedup … s 5 of 6\n", ["✓ dedup … s 5 of 6"]),
        ("first\nfirst\n", ["first"]),
        ("digest … (proven)\nfirst\n", ["first"]),
    ],
)
def test_lines_that_are_shown_were_printed_in_their_order(shown: str, missing: list[str]) -> None:
    printed = "first\n✓ dedup   0.31 s  4 of 6\nsaid besides\ndigest ab12  (proven)\n"
    assert missing_lines(shown, printed) == missing


def test_every_link_between_files_of_the_clone_leads_to_a_place_that_is_there() -> None:
    root = Path(__file__).parents[2]
    pages = [*root.glob("*.md"), *(root / "recipes").rglob("*.md"), *(root / "docs").rglob("*.md")]
    dead = []
    for page in sorted(pages):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target, place in re.findall(r"\]\(([^)#\s]+)(?:#([^)\s]*))?\)", text):
            if ":" in target:
                continue
            led = page.parent / target
            is_anchor = led == page.parent / "reference/index.md" or led.name == "index.md"
            if not led.exists() or (place and is_anchor and f'id="{place}"' not in led.read_text()):
                dead.append(f"{page.relative_to(root)}: {target}#{place}")
    assert dead == []
