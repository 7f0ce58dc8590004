"""Every command and every code block that a reader can copy is run, and prints what the page says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import click
import pytest

from docs.checkout import git_environment, make_origin
from docs.pages import (
    REPOSITORY,
    Block,
    Told,
    missing_lines,
    read_blocks,
    reader_environment,
    run_blocks,
)
from slurm_nodes import slurm_nodes
from tokmill import load_recipe
from tokmill.cli import main
from tokmill.recipe.file import parse_recorded

_README, _TUTORIAL = REPOSITORY / "README.md", REPOSITORY / "docs/tutorial.md"
_HOW_TO = sorted((REPOSITORY / "docs/how-to").glob("*.md"))
# All but these take 100 s (kernels compiled): README, tutorial, explorer. These take 150 more.
_SLOW = {
    "ablate",
    "choose-filters",
    "dedup-safely",
    "disk",
    "estimate-a-run",
    "feed-megatron",
    "feed-pytorch",
    "mix-domains",
    "pack-for-long-context",
    "pin-a-dataset",
    "read-a-ledger",
    "run-on-object-storage",
    "run-on-ray",
    "score-documents",
    "shell",
    "take-a-document-down",
    "train-a-tokenizer",
    "train-with-transformers",
    "what-has-it-seen",
}
_PAGES = [_README, _TUTORIAL, *_HOW_TO]
_ON_SLURM = REPOSITORY / "docs/how-to/run-on-slurm.md"
_LANGUAGES = {"sh", "python", "yaml", "text"}

# Blocks that no test can run: they reach the hub, several machines, or a training framework of their own.
_NOT_RUN_AT_MOST = 5

_AROUND = {
    "sources": "[{name: web, domain: web, files: web.jsonl}, {name: math, domain: math, files: math.jsonl}]",
    "tokenizer": '{train: {vocab_size: 4096}, eos: "<|endoftext|>"}',
}
_CLONE = re.compile(r"git clone (?P<address>\S+)")


def _named(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A reader's, with the repository to be cloned behind the address on the page."""
    directory = tmp_path_factory.mktemp("reader")
    (address,) = {found["address"] for page in _PAGES for found in _CLONE.finditer(page.read_text())}
    return reader_environment(directory / "home", **git_environment(make_origin(directory), address))


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


def _run_page(page: Path, directory: Path, environment: dict[str, str], shared_runs: Path) -> Told:
    blocks = read_blocks(page)
    first = next((block for block in blocks if block.is_command), None)
    if first is not None and first.mark == "shared":
        # Files are replaced by runs, never written over: links will do.
        shutil.copytree(
            _shared_run(first, shared_runs, environment), directory, copy_function=_link, dirs_exist_ok=True
        )
        blocks = [block for block in blocks if block is not first]
    return run_blocks(blocks, directory, environment)


def _shared_run(block: Block, shared_runs: Path, environment: dict[str, str]) -> Path:
    """What the first block of several pages makes; made once."""
    made = shared_runs / f"{len(block.code)}-{sum(block.code.encode())}"
    if not made.exists():
        made.mkdir()
        run_blocks([block], made, environment)
    return made


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _assert_told(told: Told) -> None:
    """A text block right after a command is what it printed, and commands that should fail did."""
    before: int | None = None
    for number, block in enumerate(told.blocks):
        if before in told.outputs and block.language == "text":
            missing = missing_lines(block.code, told.outputs[before])
            assert not missing, f"{block.where}: not printed: {missing}\nprinted was\n{told.outputs[before]}"
        if number in told.outputs:
            assert told.statuses.get(number, 0) == block.status, f"{block.where}\n{told.outputs[number]}"
        before = number


def test_the_readme_does_what_it_says(environment: dict[str, str], shared_runs: Path, tmp_path: Path) -> None:
    """In a clone, as its reader has one."""
    (clone,) = _CLONE.findall(_TUTORIAL.read_text())
    run_blocks([Block("README.md", 1, "sh", f"git clone --quiet {clone} here\n")], tmp_path, environment)
    told = _run_page(_README, tmp_path / "here", environment, shared_runs)
    _assert_told(told)
    assert not [block.where for block in told.blocks if block.mark.startswith("not run")]


def test_the_tutorial_leads_from_a_clone_to_a_batch(
    environment: dict[str, str], shared_runs: Path, tmp_path: Path
) -> None:
    told = _run_page(_TUTORIAL, tmp_path, environment, shared_runs)
    _assert_told(told)
    assert not [block.where for block in told.blocks if block.mark.startswith("not run")]
    commands = [number for number, block in enumerate(told.blocks) if block.is_command]
    not_run = [number for number in commands if number not in told.outputs]
    assert len(not_run) <= 1  # the training loop, where PyTorch is not installed


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow_docs] if page.stem in _SLOW else [])
        for page in _HOW_TO
        if page != _ON_SLURM
    ],
)
def test_a_how_to_does_what_it_says(
    page: Path, environment: dict[str, str], shared_runs: Path, tmp_path: Path
) -> None:
    _assert_told(_run_page(page, tmp_path, environment, shared_runs))


@pytest.mark.slow_docs
def test_the_page_of_slurm_does_what_it_says(
    environment: dict[str, str], shared_runs: Path, tmp_path: Path
) -> None:
    with slurm_nodes(2) as slurm:
        told = _run_page(_ON_SLURM, tmp_path, environment | {"SLURM_CONF": str(slurm.config)}, shared_runs)
        _assert_told(told)
        commands = [number for number, block in enumerate(told.blocks) if block.is_command]
        assert commands == list(told.outputs)
        assert slurm.running() == []


def test_the_tree_in_the_readme_is_the_tree() -> None:
    (tree,) = re.findall(r"^```text\n(cli/ .*?)^```$", _README.read_text(encoding="utf-8"), re.M | re.S)
    drawn = [room for floor in tree.splitlines() for room in re.split(r"\s{2,}", floor)[0].split()]
    packages = {path.parent.name for path in (REPOSITORY / "src/tokmill").glob("*/__init__.py")}
    assert {room.removesuffix("/") for room in drawn if room.endswith("/")} == packages


def test_hardly_a_block_cannot_be_run() -> None:
    kept_back = [b.where for page in _PAGES for b in read_blocks(page) if b.mark.startswith("not run")]
    assert len(kept_back) <= _NOT_RUN_AT_MOST, kept_back


@pytest.mark.parametrize("page", _PAGES, ids=_named)
def test_every_block_is_of_a_kind_that_is_looked_at(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = read_blocks(page)
    assert len(blocks) * 2 == len(re.findall(r"^ *```", text, re.M))
    assert text.count("<!-- block:") == sum(bool(block.mark) for block in blocks)
    for block in blocks:
        assert block.language in _LANGUAGES, f"{block.where}: {block.language!r}"
        known = re.fullmatch(r"|shared|exits \d+|needs \w+|not run: .+", block.mark)
        assert known, f"{block.where}: {block.mark}"


@pytest.mark.parametrize("page", _PAGES, ids=_named)
def test_parts_of_recipes_are_parts_of_a_recipe(page: Path, tmp_path: Path) -> None:
    """YAML without a file name: what it shows is checked, key by key, with the least around it."""
    for block in read_blocks(page):
        if block.language != "yaml" or block.file_name:
            continue
        missing = (name for name in _AROUND if not re.search(f"^{name}:", block.code, re.M))
        around = "".join(f"{name}: {_AROUND[name]}\n" for name in missing)
        path = tmp_path / f"{block.where.replace('/', '-')}.yaml"  # whose name an error begins with
        path.write_text(f"name: part\n{around}{block.code}", encoding="utf-8")
        recipe = load_recipe(path)
        assert parse_recorded(recipe.model_dump(mode="json")) == recipe.model_copy(update={"review": None})


@pytest.mark.parametrize("page", _PAGES, ids=_named)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{_named(page)} links to {target}"


@pytest.mark.parametrize("page", _PAGES, ids=_named)
def test_commands_in_the_text_exist_with_their_options(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for code in re.findall(r"`([^`]+)`", prose):
        words = code.split()
        if words[:1] == ["tokmill"] and len(words) > 1:
            _assert_command(words[1:], f"{_named(page)}: `{code}`")
        for script in re.findall(r"\b(?:bench|examples|recipes)/[\w/-]+\.(?:py|yaml)", code):
            assert (REPOSITORY / script).is_file(), f"{_named(page)}: {script}"


def _assert_command(words: list[str], where: str) -> None:
    command: click.Command = main
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"{where}: no command {name}"
        command = found
    known = {option for parameter in command.params for option in parameter.opts}
    known |= set(context.help_option_names) | {"--help", "--version"}
    asked = {word.split("=")[0] for word in words if word.startswith("--")}
    assert asked <= known, f"{where}: {sorted(asked - known)}"
