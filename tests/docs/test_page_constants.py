"""Figures on pages that are constants of the code, or of the suites."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import tokmill
from docs.verbs import walk_verbs
from faults import test_damage, test_hostile_inputs, test_kills, test_object_store, test_power
from tokmill.pipeline.session import SAMPLED_BYTES
from tokmill.recipe import Recipe
from tokmill.sources.readers import READERS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reliability.md"


def cells(suite: str) -> list[str]:
    (row,) = re.findall(rf"^\| `{suite}` (.*)\|$", PAGE.read_text(encoding="utf-8"), re.M)
    return [cell.strip() for cell in row.split("|")[1:]]


def test_the_table_says_how_much_of_each_suite_is_done_and_when() -> None:
    quick, whole = test_kills.QUICK, test_kills.WHOLE
    assert cells("test_kills.py")[1:] == [f"{quick} + {quick}", f"{whole} + {whole}"]
    what, *times = cells("test_hostile_inputs.py")
    templates = sum(name.startswith("template: ") for name in test_hostile_inputs.BOMBS)
    assert f"{len(test_hostile_inputs.TARGETS)} readers" in what
    assert f"{len(test_hostile_inputs.BOMBS) - templates} bombs, and {templates} chat templates" in what
    assert times == [f"{test_hostile_inputs.QUICK} each", f"{test_hostile_inputs.WHOLE:,} each"]
    *_, few, all_ = cells("test_object_store.py")
    assert few == f"{test_object_store.QUICK} kills"
    assert all_.startswith(f"{test_object_store.WHOLE} kills")
    *_, few, all_ = cells("test_damage.py")
    assert (few.split()[0], all_) == (str(test_damage.QUICK), f"{test_damage.WHOLE:,}")
    *_, few, all_ = cells("test_power.py")
    assert few.startswith(f"{test_power.QUICK} + ")
    assert all_.startswith(f"{test_power.WHOLE} of ")


def test_the_page_of_disks_says_how_much_is_read_of_steps_that_are_up_to_date() -> None:
    (mebibytes,) = re.findall(
        r"reads up to (\d+) MiB of the steps", (DOCS / "how-to/disk.md").read_text("utf-8")
    )
    assert int(mebibytes) * 1024 * 1024 == SAMPLED_BYTES


def test_the_page_lists_the_options_whose_defaults_are_not_those_of_a_recipe() -> None:
    defined = Recipe.model_json_schema()["$defs"]
    sections = {
        "unicode": "Normalize",
        "newlines": "Normalize",
        "nul": "Normalize",
        "length": "Pack",
        "tail": "Pack",
        "model": "Training",
        "vocab_size": "Training",
        "sample_megabytes": "Training",
        "threshold": "Near",
        "ngram": "Near",
        "unit": "Near",
    }
    known = {name: str(defined[section]["properties"][name]["default"]) for name, section in sections.items()}
    differing = {
        (" ".join(path), option.name, str(option.default), known[option.name])
        for path, command in walk_verbs()
        for option in command.params
        if option.name in known and isinstance(option.default, (str, int))
    }
    differing = {row for row in differing if row[2] != row[3]}
    page = (DOCS / "how-to/shell.md").read_text("utf-8")
    rows = re.findall(r"^\| `tokmill ([a-z ]+) --(\w+)` \| (\w+) \| (\w+) \|$", page, re.M)
    assert differing == set(rows)


def test_the_page_of_inputs_tells_of_every_reader_and_of_every_key_that_it_has() -> None:
    page = (DOCS / "inputs.md").read_text("utf-8")
    defined = Recipe.model_json_schema()["$defs"]
    section = {"wikipedia": "Wikipedia", "stackexchange": "StackExchange", "parallel": "Parallel"}
    for reader in set(READERS) - {"records"}:
        assert re.search(rf"`{reader}: {{", page), reader
        for key in defined[section[reader]]["properties"] if reader in section else ():
            assert re.search(rf"\b{key}\b", page), f"{reader}.{key}"


def test_figures_that_stand_on_two_pages_are_those_of_the_page_of_figures() -> None:
    of = {path.stem: path.read_text("utf-8") for path in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]}

    def column(page: str, first: str, rows: int = 1) -> list[list[str]]:
        """What stands in a table of the page, from the row that begins so, in as many rows."""
        lines = of[page].splitlines()
        at = next(at for at, line in enumerate(lines) if re.match(rf"[|│] {first}", line))
        return [[cell.strip() for cell in re.split("[|│]", line)[1:-1]] for line in lines[at : at + rows]]

    bench = of["performance"].partition("112 permutations ┃ to verdicts")[2]
    measured = re.findall(r"^│ \w+ +│ +[\d.]+ │ +[\d,]+ │ +(\d+) │ +\d+ │ +(\d+) │", bench, re.M)
    told = column("near-duplicates", r"code \(36", 6)
    assert [tuple(row[1:]) for row in told] == measured[:6]
    passages = [list(row) for row in zip(*(row[1:] for row in column("passages", "marks", 3)), strict=True)]
    bench = of["performance"].partition("passages and decontamination")[2]
    assert passages == [
        list(row) for row in re.findall(r"^│ \w+ +│ +[\d.]+ │ +(\d+) │ +(\d+) │ +(\d+) │", bench, re.M)[:6]
    ]
    loading = of["performance"].partition("## Loading batches")[2]
    for words, name in (
        ("tokmill, int32 /", "tokmill, int32"),
        ("PyTorch", "datasets"),
        ("MosaicML", "Stream"),
    ):
        (micro,) = re.findall(rf"^│ {name}[^│]*│ +([\d,.]+) │.*$", loading, re.M)[:1]
        (row,) = column("loader", words)
        assert row[1].split()[0] in (micro, f"{float(micro.replace(',', '')):,.0f}"), row
    (fast,) = re.findall(r"^\| language \| ([\d.]+) ", of["performance"], re.M)
    assert column("language", "`fasttext`")[0][4] == f"{float(fast):.0f}"
    for layout in ("concat", "document", "best_fit", "pad"):
        (figure,) = re.findall(rf"^\| rows: {layout} \| ([\d,]+) M", of["performance"], re.M)
        assert re.search(rf"{figure}[ A-Za-z]* for `{layout}`", of["packing"]), layout


def test_packages_and_extras_are_listed_as_they_are_installed() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {re.match(r"[\w.-]+", one)[0] for one in project["dependencies"]}  # type: ignore[index]
    page = (DOCS / "dependencies.md").read_text("utf-8").partition("## Runtime")[2].partition("\n###")[0]
    assert set(re.findall(r"^\| \[([\w.-]+)\]", page, re.M)) == needed
    extras = set(project["optional-dependencies"]) - {"test", "docs", "dev"}
    listed = re.findall(r'pip install "\.\[([\w,]+)\]"', (DOCS.parent / "README.md").read_text("utf-8"))
    assert set(max(listed, key=len).split(",")) == extras


def test_every_function_of_the_face_says_what_it_does() -> None:
    functions = [getattr(tokmill, name) for name in tokmill.__all__]
    silent = [one.__name__ for one in functions if inspect.isfunction(one) and len(one.__doc__ or "") < 20]
    assert silent == []
