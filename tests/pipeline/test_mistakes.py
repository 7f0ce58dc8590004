"""Mistakes that people make in recipes: each is told before any work, with its place and what to do,
and changes nothing.

A workspace has a finished run. Each mistake is an edit of its recipe, or a file beside it;
`recipe check`, `plan` and `run` are then given the edited one, for the directory of the finished run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokmill
from mill import write_recipe
from pipeline.mistaken import NOTES, PATH, WEB, Workspace, command, contents, made_workspace
from pipeline.wrong_files import FILES
from pipeline.wrong_keys import KEYS, YAML
from pipeline.wrong_rules import RULES
from pipeline.wrong_tokens import BESIDES, TOKENS
from tokmill.errors import EmptyGlob, InputError, RecipeError

CASES = {**KEYS, **YAML, **FILES, **RULES, **TOKENS}


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    with made_workspace() as made:
        yield made


def write_case(workspace: Workspace, name: str) -> tuple[Path, list[Path]]:
    case, text = CASES[name], workspace.text
    for old, new in [(case.old, case.new), BESIDES.get(name, ("", ""))]:
        assert old in text, old
        text = text.replace(old, new, 1)
    path = workspace.directory / "case.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    written = [path]
    for file, data in case.files.items():
        (workspace.directory / file).write_bytes(data)
        written.append(workspace.directory / file)
    return path, written


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_told_with_its_place_and_what_to_do_and_nothing_changes(
    workspace: Workspace, name: str
) -> None:
    case = CASES[name]
    path, written = write_case(workspace, name)
    try:
        before = contents(workspace.directory)
        shown = command("run", path, "--out", workspace.out, "--workers", "1")
        assert shown.exit_code == 1, shown.output
        assert shown.stdout == ""
        for part in (str(path), case.place, case.message):
            assert part in shown.stderr
        *_, last = shown.stderr.splitlines()
        assert last.startswith("  next: ")
        assert case.next in last
        for verb in (["plan"], ["recipe", "check"]):
            assert command(*verb, path, "--out", workspace.out).stderr == shown.stderr
        assert contents(workspace.directory) == before
    finally:
        for file in written:
            file.unlink()


def test_there_are_more_than_fifty_five_of_them() -> None:
    assert len(CASES) >= 55


def test_after_all_mistakes_the_finished_run_is_still_finished(workspace: Workspace) -> None:
    assert command("verify", workspace.out).exit_code == 0
    shown = command("run", workspace.directory / "recipe.yaml")
    assert "nothing to do" in shown.stdout


def test_seven_mistakes_of_seven_kinds_are_told_together_in_the_order_of_the_file(
    workspace: Workspace,
) -> None:
    text = workspace.text
    for old, new in [
        ("seed: 7", "sed: 7"),
        (WEB, "files: wb/*.jsonl"),
        ("measure: chars", "measure: charz"),
        ("allow: [MIT,", "allow: [MITT,"),
        ("<|endoftext|>", "</s>"),
        ("web: 0.6", "wbe: 0.6"),
        ("format: memmap", "format: memmapp"),
    ]:
        assert old in text
        text = text.replace(old, new)
    path = workspace.directory / "seven.yaml"
    path.write_text(text)
    try:
        shown = command("recipe", "check", path)
    finally:
        path.unlink()
    assert shown.exit_code == 1
    head, *lines, last = shown.stderr.splitlines()
    assert head == f"RecipeError {path}: 7 mistakes"
    places = ["2: sed", "7: sources[0].files", "13: filters[0]", "14: license.allow[0]", "20: tokenizer.eos"]
    places += ["21: mixture.weights.wbe", "24: builds[0].format"]
    assert [line.split(": ", 2)[:2] for line in lines] == [
        [f"  line {place.split(': ')[0]}", place.split(": ")[1]] for place in places
    ]
    assert last == "  next: fix them and run `tokmill recipe check`; `tokmill help KEY` explains a key"


def test_a_source_that_cannot_be_used_does_not_move_the_lines_and_places_of_those_after_it(
    workspace: Workspace,
) -> None:
    text = workspace.text.replace("  - name: web\n", "  - nme: web\n").replace(NOTES, "files: nots.txt")
    path = workspace.directory / "moved.yaml"
    path.write_text(text)
    try:
        shown = command("recipe", "check", path)
    finally:
        path.unlink()
    assert [line.split(": ", 2)[:2] for line in shown.stderr.splitlines()[1:-1]] == [
        ["  line 4", "sources[0].name"],
        ["  line 4", "sources[0].nme"],
        ["  line 10", "sources[1].files"],
    ]


def test_one_mistake_keeps_its_kind_and_several_are_one_error(workspace: Workspace) -> None:
    content = {"name": "x", "sources": [{"name": "a", "files": str(workspace.directory / "none.txt")}]}
    with pytest.raises(EmptyGlob, match=r"the recipe, sources\[0\].files: .*none.txt: the pattern"):
        tokmill.recipe_check(content)
    content["filters"] = ["nopack"]
    with pytest.raises(RecipeError, match=r"2 mistakes\n  sources\[0\].files: .*\n  filters\[0\]: "):
        tokmill.run(content, workspace.directory / "never")
    assert not (workspace.directory / "never").exists()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("raises_when_made", "failed (ValueError: no model here; line 2)"),
        ("makes_nothing", "returned a int that has no encode_batch, decode, token_id"),
    ],
)
def test_a_tokenizer_of_others_that_cannot_be_made_is_told(
    workspace: Workspace, factory: str, message: str
) -> None:
    text = "".join(line for line in workspace.text.splitlines(True) if "sha256" not in line)
    path = workspace.directory / "plugin.yaml"
    path.write_text(text.replace(PATH, f"plugin: hooks.py:{factory}"))
    try:
        shown = command("recipe", "check", path)
    finally:
        path.unlink()
    assert shown.exit_code == 1
    assert "line 18: tokenizer.plugin: " in shown.stderr
    assert message in shown.stderr


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "- a list\n", "words\n"])
def test_what_is_no_recipe_at_all_is_told_with_the_way_to_start(workspace: Workspace, text: str) -> None:
    path = workspace.directory / "none.yaml"
    path.write_text(text)
    try:
        shown = command("run", path)
    finally:
        path.unlink()
    assert shown.exit_code == 1
    assert f"RecipeError {path}: is not a mapping of sections" in shown.stderr
    assert "next: see `tokmill recipe init`" in shown.stderr


def rated_corpus(directory: Path, times: int, tokens: int) -> Path:
    """Every document is built `times` times; the target has so many tokens."""
    directory.mkdir()
    for name, word in (("good", "theorem"), ("bad", "sale")):
        lines = [json.dumps({"text": f"{word} number {number} of {name} " * 8}) for number in range(40)]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    sides = {"positive": [{"source": "good"}], "negative": [{"source": "bad"}]}
    repeat = {"by": "score.good", "percentiles": {"0": times}}
    return write_recipe(
        directory,
        sources=[{"name": name, "files": f"{name}.jsonl"} for name in ("good", "bad")],
        filters=None,
        scores=[{"name": "good", "train": sides, "percentile": "corpus"}],
        mixture={"tokens": tokens, "repeat": repeat},
        builds=[{"name": "rows", "format": "memmap"}],
    )


def test_rows_of_a_document_each_are_asked_for_as_documents_are(tmp_path: Path) -> None:
    """`layout: pad`: 40 rows of 2,048 are 40 short documents, and not 81,920 tokens."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(60)))
    builds = [{"name": "rows", "format": "npy"}]
    made = []
    for unit in ("documents", "blocks"):
        recipe = write_recipe(
            tmp_path,
            sources=[{"name": "a", "files": "a.jsonl"}],
            filters=None,
            split={"method": "counts", "counts": {"valid": 5}},
            mixture={unit: 40},
            pack={"layout": "pad", "length": 2048},
            builds=builds,
        )
        out = tokmill.run(recipe, tmp_path / unit, workers=1).out
        made.append([path.read_bytes() for path in sorted((out / "build/rows").rglob("*.npy"))])
    assert made[0] == made[1]
    assert sum(len(data) for data in made[1]) > 40 * 2048 * 4
    builds.append({"name": "stream", "format": "npy", "pack": {"length": 2048}})  # whose rows are tokens
    whole = json.loads(recipe.read_text()) | {"builds": builds}
    recipe.write_text(json.dumps(whole))
    with pytest.raises(InputError, match=r"mixture\.blocks: asks for 81,920 tokens"):
        tokmill.plan(recipe)


def test_a_budget_that_only_repeated_documents_reach_is_no_mistake(tmp_path: Path) -> None:
    first = rated_corpus(tmp_path / "first", 1, 100)
    size = sum(path.stat().st_size for path in first.parent.glob("*.jsonl"))
    target = 3 * size  # more than the 2 x that a pass is trusted with
    out = tokmill.run(rated_corpus(tmp_path / "often", 40, target), workers=1).out
    written = sum(path.stat().st_size // 4 for path in (out / "build/rows").glob("train/*.mmap"))
    assert 2 * size < written <= target
    for times in (1, 2):
        with pytest.raises(InputError, match=r"mixture\.tokens: asks for") as refused:
            tokmill.plan(rated_corpus(tmp_path / f"{times} times", times, 5 * size))
        most = f"cannot give more than {2 * times * size:,} bytes of text"
        assert most + (", each 2 times" if times == 2 else "") in str(refused.value)
