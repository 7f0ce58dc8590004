"""`recipe check --explain`: every key, with the line that says it, or as a default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.mistaken import WEB, Workspace, command, made_workspace


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    with made_workspace() as made:
        yield made


def explained(*arguments: str | Path) -> dict[str, tuple[Any, str]]:
    shown = command("recipe", "check", *arguments, "--explain", "--json")
    assert shown.exit_code == 0, shown.output
    return {row["key"]: (row["value"], row["origin"]) for row in json.loads(shown.stdout)["explained"]}


def test_every_key_is_explained_by_its_line_or_as_a_default(workspace: Workspace) -> None:
    found = explained(workspace.directory / "recipe.yaml")
    assert found["seed"] == (7, "line 2")
    assert found["sources[1].unit"] == ("paragraph", "line 11")
    assert found["sources[0].unit"] == ("document", "default")
    assert found["split.valid_fraction"] == ("0.1", "line 16")
    assert found["pack.tail"] == ("drop", "default")
    assert found["builds[1].format"] == ("megatron", "line 25")
    assert found["web: chars.min"] == ("chars >= 5, or too_short", "line 13")


def test_how_a_source_is_cleaned_is_explained_by_source_domain_and_pack(workspace: Workspace) -> None:
    path = workspace.directory / "explained.yaml"
    text = workspace.text.replace(WEB, WEB + "\n    clean: {redact: [email]}")
    packs = "domains:\n  prose:\n    filters: [{pack: gopher-quality, set: {min_words: 30}}]\nfilters:"
    path.write_text(text.replace("filters:", packs))
    try:
        found = explained(path)
    finally:
        path.unlink()
    assert found["web: redact"] == (["email"], "sources[0].clean, line 8")
    assert found["notes: redact"] == ([], "default")
    assert found["notes: filters"][1] == "domains.prose, line 15"
    assert found["notes: gopher-quality.min_words"][0].startswith("non_symbol_words >= 30")
    assert found["notes: gopher-quality.min_words"][1] == "line 15"
    assert found["notes: gopher-quality.max_words"][1] == "pack gopher-quality"
    assert "web: gopher-quality.min_words" not in found


def test_bounds_of_one_measure_are_explained_by_the_filter_that_has_each(workspace: Workspace) -> None:
    """Each is looked for by changing the line that is named."""
    path = workspace.directory / "bounds.yaml"
    filters = (
        "filters:\n"
        "  - {measure: words, min: 51}\n"
        "  - {measure: words, max: 1001}\n"
        "  - {pack: gopher-quality, set: {min_words: 31}}\n"
        "  - gopher-quality\n"
        "  - {measure: chars, max: 90001}\n"
    )
    own = "domains:\n  prose:\n    filters:\n      - gopher-repetition\n      - {measure: words, max: 71}\n"
    text = workspace.text.replace("filters:\n", own + filters)
    path.write_text(text)
    try:
        before = explained(path)
        bounds = {key: row for key, row in before.items() if re.search(r"(words|chars)\.(min|max)$", key)}
        assert len(bounds) == 5
        assert before["web: gopher-quality.min_words"][1] == "pack gopher-quality"  # the one that came last
        for key, (value, origin) in bounds.items():
            lines = text.splitlines(keepends=True)
            number = int(origin.removeprefix("domains.prose, ").removeprefix("line ")) - 1
            lines[number] = re.sub(r"(m..: )\d+", r"\g<1>7", lines[number])
            path.write_text("".join(lines))
            assert explained(path)[key][0].split(",")[0] == re.sub(r"\d+,", "7,", value).split(",")[0], key
    finally:
        path.unlink()


def test_what_is_explained_is_a_line_for_each_key(workspace: Workspace) -> None:
    shown = command("recipe", "check", workspace.directory / "recipe.yaml", "--explain")
    lines = shown.stdout.splitlines()
    assert any(line.split() == ["seed", "7", "line", "2"] for line in lines)
    assert lines[-1].startswith("✓ ")
