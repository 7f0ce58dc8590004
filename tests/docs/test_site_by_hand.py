"""What pages written by hand name exists: commands with their options, measures, packs, keys."""

from __future__ import annotations

import re
from pathlib import Path

from docs.verbs import walk_verbs
from tokmill.clean.measures import MEASURES
from tokmill.clean.rules import PACKS
from tokmill.recipe.file import parse_recipe

REPOSITORY = Path(__file__).parents[2]

_BY_HAND = [
    REPOSITORY / "docs/index.md",
    *sorted((REPOSITORY / "docs/explanations").glob("*.md")),
    *sorted((REPOSITORY / "docs/coming-from").glob("*.md")),
    REPOSITORY / "docs/reference/formats.md",
]


def test_commands_on_pages_written_by_hand_exist_with_their_options() -> None:
    known = {" ".join(path): command for path, command in walk_verbs()}
    seen = 0
    for page in _BY_HAND:
        for words in re.findall(r"tokmill [^`\n]*", page.read_text(encoding="utf-8").replace("\\\n", " ")):
            words = re.sub(r"^tokmill (-[vq] )+", "tokmill ", words)  # options of tokmill itself
            path = next(
                (" ".join(words.split()[1:n]) for n in (3, 2) if " ".join(words.split()[1:n]) in known), None
            )
            options = re.findall(r"(?<=\s)--[a-z-]+", words.partition("#")[0])
            assert path or not options, f"{page.name}: {words}"
            for option in options:
                assert any(option in parameter.opts for parameter in known[path or ""].params), (
                    f"{page.name}: {words}"
                )
            seen += path is not None
    assert seen > 50


def test_measures_packs_and_the_first_recipe_on_pages_written_by_hand_exist() -> None:
    for page in _BY_HAND:
        words = page.read_text(encoding="utf-8")
        assert set(re.findall(r"measure: (\w+)", words)) <= set(MEASURES), page.name
        assert set(re.findall(r"pack: ([\w-]+)", words)) <= set(PACKS), page.name
    (first,) = re.findall(
        r"```yaml\n(.*?)```", (REPOSITORY / "docs/index.md").read_text(encoding="utf-8"), re.S
    )
    assert parse_recipe(first.encode(), "index.md").builds
