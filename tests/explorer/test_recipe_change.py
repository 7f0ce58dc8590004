"""A threshold goes into the recipe as a diff that was shown, and nothing else of the file moves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import tokmill
from explored import Client
from tokmill.explorer.recipe_change import spelled

COMMENTED = """# what we mill
name: looked-at
sources:
  - {name: web, domain: web, license: CC-BY-4.0, files: web.jsonl}  # from the net
  - name: books
    domain: prose
    license: MIT
    files: books.jsonl
filters:   # in order
  - {measure: words, min: 50, reason: too_few_words}   # fifty
  - measure: digit_share
    max: 0.08  # not a table
    reason: mostly_digits
  - {measure: chars, min: 10, reason: too_short}
  - gopher-quality
  - {pack: gopher-repetition, set: {max_top_2gram_share: 0.3}}
domains:
  prose:
    filters:
      - measure: words
        min: 50
      - pack: gopher-quality   # for books
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(COMMENTED)
    return path


@pytest.fixture
def writing(run: Path, recipe: Path) -> Iterator[Client]:
    with tokmill.explore(run, recipe=recipe) as explorer:
        yield Client(explorer)


def changed_lines(before: str, after: str) -> list[tuple[str, str]]:
    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    return [(one, other) for one, other in pairs if one != other]


def confirm(client: Client, rule: str, value: float, source: str | None = None) -> str:
    fields = {"rule": rule, "value": value, **({"source": source} if source else {})}
    shown = client.json("recipe_change", **fields)
    answer = client.post("recipe_change", {**fields, "digest": shown["digest"]})
    assert answer.status == 200, answer.body
    assert answer.json["diff"] == shown["diff"]
    return str(shown["diff"])


def test_only_the_number_changes_and_comments_stay(writing: Client, recipe: Path) -> None:
    diff = confirm(writing, "digit_share.max", 0.12)
    after = recipe.read_text()
    assert changed_lines(COMMENTED, after) == [
        ("    max: 0.08  # not a table", "    max: 0.12  # not a table")
    ]
    assert "-    max: 0.08  # not a table\n+    max: 0.12  # not a table\n" in diff


@pytest.mark.parametrize(
    ("section", "line"),
    [
        (
            "dedup: {exact: true, near: {threshold: 0.7}}  # alike\n",
            "dedup: {exact: true, near: {threshold: 0.85}}  # alike",
        ),
        ("dedup:\n  near:  # alike\n    ngram: 4\n", "    threshold: 0.85"),
        ("dedup: {near: {}}\n", "dedup: {near: {threshold: 0.85}}"),
    ],
)
def test_the_threshold_of_near_duplicates_goes_into_its_section(
    writing: Client, recipe: Path, section: str, line: str
) -> None:
    recipe.write_text(COMMENTED + section)
    confirm(writing, "dedup.near.threshold", 0.85)
    assert line in recipe.read_text().splitlines()
    assert tokmill.load_recipe(recipe).dedup.near.threshold == Decimal("0.85")  # type: ignore[union-attr]


def test_a_rule_of_two_lists_changes_in_both_or_in_that_of_one_source(writing: Client, recipe: Path) -> None:
    confirm(writing, "words.min", 70, "books")
    assert changed_lines(COMMENTED, recipe.read_text()) == [("        min: 50", "        min: 70")]
    confirm(writing, "words.min", 60)
    loaded = tokmill.load_recipe(recipe)
    assert loaded.filters[0].min == 60
    assert loaded.domains["prose"].filters is not None
    assert loaded.domains["prose"].filters[0].min == 60


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("gopher-quality.min_words", "  - {pack: gopher-quality, set: {min_words: 30}}"),
        (
            "gopher-repetition.max_top_2gram_share",
            "  - {pack: gopher-repetition, set: {max_top_2gram_share: 30}}",
        ),
        (
            "gopher-repetition.max_top_3gram_share",
            "  - {pack: gopher-repetition, set: {max_top_3gram_share: 30, max_top_2gram_share: 0.3}}",
        ),
    ],
)
def test_a_rule_of_a_pack_gets_another_threshold_in_its_set(
    writing: Client, recipe: Path, rule: str, line: str
) -> None:
    confirm(writing, rule, 30, "web")
    assert line in recipe.read_text().splitlines()
    tokmill.load_recipe(recipe)


def test_a_pack_in_block_style_gets_a_line_of_its_own(writing: Client, recipe: Path) -> None:
    confirm(writing, "gopher-quality.min_words", 30, "books")
    assert recipe.read_text().splitlines()[-2:] == [
        "      - pack: gopher-quality   # for books",
        "        set: {min_words: 30}",
    ]
    domain = tokmill.load_recipe(recipe).domains["prose"]
    assert domain.filters is not None
    assert domain.filters[1].set == {"min_words": 30}


@pytest.mark.parametrize(
    ("item", "after"),
    [
        (
            "{pack: gopher-quality, set: {max_words: 1000,}}",
            "{pack: gopher-quality, set: {min_words: 60, max_words: 1000,}}",
        ),
        (
            "{pack: gopher-quality, set: {\n      max_words: 1000  # many\n    }}",
            "{pack: gopher-quality, set: {min_words: 60,\n      max_words: 1000  # many\n    }}",
        ),
        (
            "{pack: gopher-quality, set: {  # none yet\n    }}",
            "{pack: gopher-quality, set: {min_words: 60  # none yet\n    }}",
        ),
        ("{pack: gopher-quality, set: {}}", "{pack: gopher-quality, set: {min_words: 60}}"),
        ("{pack: gopher-quality,}", "{set: {min_words: 60}, pack: gopher-quality,}"),
        (
            "{pack: gopher-quality, set: &most {max_words: 1000}}",
            "{pack: gopher-quality, set: &most {min_words: 60, max_words: 1000}}",
        ),
    ],
)
def test_a_mapping_in_braces_gets_another_entry_however_it_is_written(
    writing: Client, recipe: Path, item: str, after: str
) -> None:
    before = COMMENTED.replace("  - gopher-quality\n", f"  - {item}\n")
    recipe.write_text(before)
    confirm(writing, "gopher-quality.min_words", 60, "web")
    assert recipe.read_text() == before.replace(item, after)
    loaded = tokmill.load_recipe(recipe).filters
    assert [one.set["min_words"] for one in loaded if one.pack == "gopher-quality"] == [60]


@pytest.mark.parametrize(
    "end",
    [
        "dedup: {near: {threshold: 0.7}}",
        "dedup: {near: {threshold: 0.7}}\n",
        "dedup:\n  near:\n    ngram: 4",
        "dedup: {near: {threshold: 0.7}}\r\n# the end",
    ],
)
def test_the_change_is_shown_as_diff_shows_it(
    writing: Client, recipe: Path, tmp_path: Path, end: str
) -> None:
    """A file need not end with a newline."""
    recipe.write_text(COMMENTED + end)
    (tmp_path / "before").write_text(COMMENTED + end)
    shown = confirm(writing, "dedup.near.threshold", 0.85)
    told = subprocess.run(
        ["diff", "-u", str(tmp_path / "before"), str(recipe)], capture_output=True, check=False
    )
    assert told.returncode == 1
    assert shown.split("\n")[2:] == told.stdout.decode().split("\n")[2:]


def test_what_was_not_shown_is_not_written(writing: Client, recipe: Path) -> None:
    shown = writing.json("recipe_change", rule="words.min", value=60)
    asked = {"rule": "words.min", "value": 60, "digest": shown["digest"]}
    assert writing.post("recipe_change", {**asked, "value": 61}).status == 400
    assert writing.post("recipe_change", {**asked, "digest": "0" * 64}).status == 400
    assert recipe.read_text() == COMMENTED
    recipe.write_text(COMMENTED + "# somebody else's line\n")
    assert writing.post("recipe_change", asked).status == 400
    assert recipe.read_text() == COMMENTED + "# somebody else's line\n"


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"rule": "words.min"},
        {"rule": "words.min", "value": "60", "digest": "x"},
        {"rule": "words.min", "value": 60, "digest": "x", "path": "/etc/passwd"},
        {"rule": ["words.min"], "value": 60, "digest": "x"},
    ],
)
def test_a_body_of_another_shape_is_refused(writing: Client, recipe: Path, told: dict[str, object]) -> None:
    assert writing.post("recipe_change", told).status == 400
    assert recipe.read_text() == COMMENTED


@pytest.mark.parametrize(
    "fields",
    [
        {"rule": "nothing.min", "value": 1},
        {"rule": "words.min", "value": 50},
        {"rule": "words.min", "value": "nan"},
        {"rule": "words.min", "value": 1, "source": "nobody"},
        {"rule": "words", "value": 1},
    ],
)
def test_a_change_that_is_none_is_told(writing: Client, fields: dict[str, object]) -> None:
    assert writing.get("recipe_change", **fields).status == 400


def test_without_a_recipe_nothing_is_written(client: Client) -> None:
    assert client.json("run")["writable"] is False
    assert client.get("recipe_change", rule="words.min", value=60).status == 400
    told = {"rule": "words.min", "value": 60, "digest": "x"}
    assert client.post("recipe_change", told).status == 400


def test_a_change_of_all_sources_is_not_made_for_one_that_shares_the_list(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(COMMENTED[: COMMENTED.index("domains:")])
    with tokmill.explore(run, recipe=path) as explorer:
        answer = Client(explorer).get("recipe_change", rule="words.min", value=60, source="web")
    assert answer.status == 400
    assert "books, web together" in answer.json["error"]["what"]


def test_the_changed_recipe_does_what_the_threshold_said(run: Path, tmp_path: Path) -> None:
    """From the handle to the run: the explorer predicts, the recipe is changed and milled again."""
    shutil.copytree(run.parent, tmp_path / "again", ignore=shutil.ignore_patterns("out*"))
    recipe = tmp_path / "again/recipe.yaml"
    with tokmill.explore(run, recipe=recipe) as explorer:
        client = Client(explorer)
        predicted = client.json("threshold", rule="words.min", value=80)
        confirm(client, "words.min", 80)
    tokmill.run(recipe, tmp_path / "again/out", workers=1, until="clean")
    again = tokmill.documents(tmp_path / "again/out", where="verdict:kept").as_json()
    assert again["total"] == predicted["then"]["kept"] != predicted["now"]["kept"]


@pytest.mark.parametrize(
    ("value", "text"), [(50, "50"), (0.1, "0.1"), (1e-7, "0.0000001"), (1e22, "1" + "0" * 22), (-2.5, "-2.5")]
)
def test_a_number_is_spelled_as_yaml_reads_it_again(value: float, text: str) -> None:
    assert spelled(value) == text


def test_the_file_keeps_its_mode_and_a_link_stays_one(run: Path, recipe: Path, tmp_path: Path) -> None:
    recipe.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(recipe)
    with tokmill.explore(run, recipe=link) as explorer:
        confirm(Client(explorer), "digit_share.max", 0.12)
    assert link.is_symlink()
    assert "max: 0.12" in recipe.read_text()
    assert recipe.stat().st_mode & 0o777 == 0o640
