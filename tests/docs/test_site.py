"""The site is whole: it builds without a warning or a network, and everything that the code has is on it."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pyarrow as pa
import pydantic
import pytest
import yaml

import tokmill
from browser import open_page
from docs.built_site import BuiltPage, read_page
from docs.verbs import walk_verbs
from tokmill import errors, schema
from tokmill.adhoc.mixtures import MixtureFile
from tokmill.recipe import Recipe, Source

REPOSITORY = Path(__file__).parents[2]
SOURCE = Path(tokmill.__file__).parent

# The index is made in the page, and no event tells when: asked for at every frame.
_FIRST_RESULT = """
new Promise(done => {
  const look = () => {
    document.querySelector(".md-search__input").dispatchEvent(new KeyboardEvent("keyup"))
    const found = document.querySelector(".md-search-result__item a")
    found ? done(found.getAttribute("href")) : requestAnimationFrame(look)
  }
  look()
})
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does, in a process whose every way to a network leads nowhere."""
    pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
    directory = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(
        ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    )
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=REPOSITORY,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr, built.stderr
    return directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, BuiltPage]:
    return {path.relative_to(site).as_posix(): read_page(path) for path in sorted(site.rglob("*.html"))}


@pytest.fixture(scope="module")
def generators() -> Iterator[Any]:
    """The modules that make the reference, found as MkDocs finds them."""
    sys.path.insert(0, str(REPOSITORY / "docs"))
    try:
        yield importlib.import_module("generators")
    finally:
        sys.path.remove(str(REPOSITORY / "docs"))


def test_no_page_loads_anything_from_elsewhere(pages: dict[str, BuiltPage], site: Path) -> None:
    for name, page in pages.items():
        for address in page.loaded:
            assert not re.match(r"(\w+:)?//", address), f"{name} loads {address}"
            if name != "404.html":  # that one may be shown for any address
                assert (site / name).parent.joinpath(address.partition("?")[0]).resolve().is_file(), (
                    f"{name}: {address}"
                )
    for path in [*site.rglob("*.css"), *site.rglob("*.js")]:
        assert not re.search(r"""(@import|url\()\s*["']?https?:""", path.read_text(encoding="utf-8")), path


def test_every_link_within_the_site_leads_to_a_place_that_is_there(
    pages: dict[str, BuiltPage], site: Path
) -> None:
    for name, page in pages.items():
        if name == "404.html":
            continue
        for address in page.followed:
            if re.match(r"\w+:", address):
                continue
            path, _, fragment = address.partition("#")
            target = (site / name).parent.joinpath(path).resolve() if path else site / name
            if target.is_dir():
                target /= "index.html"
            assert target.is_file(), f"{name} links to {address}"
            if fragment and target.suffix == ".html":
                assert fragment in pages[target.relative_to(site.resolve()).as_posix()].ids, (
                    f"{name} links to {address}"
                )


def test_search_and_both_schemes_work_from_the_disk(site: Path) -> None:
    with open_page() as page:
        colours = []
        for scheme in ("light", "dark"):
            page.open(site / "index.html", scheme=scheme)
            colours.append(page.run("getComputedStyle(document.body).backgroundColor"))
        assert colours[0] != colours[1]
        page.type(".md-search__input", "conservation")
        first = page.run(_FIRST_RESULT)
        assert "explanations/conservation.html" in first
        assert not page.complaints
        assert not [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))]


def test_every_command_argument_and_option_is_on_its_page(pages: dict[str, BuiltPage]) -> None:
    seen = 0
    for path, command in walk_verbs():
        page = pages[f"reference/commands/{path[0]}.html"]
        told = page.code[f"tokmill {' '.join(path)}"]
        for parameter in command.params:
            names = (
                [*parameter.opts, *parameter.secondary_opts]
                if isinstance(parameter, click.Option)
                else [parameter.human_readable_name]
            )
            assert set(names) <= told, f"tokmill {' '.join(path)} {names}"
            if isinstance(parameter.type, click.Choice):
                assert set(map(str, parameter.type.choices)) <= told
            seen += 1
        assert " ".join((command.help or "").split("\n\n")[0].split()).rstrip(".") in page.words
    assert seen > 200


@pytest.mark.parametrize(
    ("root", "name", "title"), [(Recipe, "recipe", "Recipe"), (MixtureFile, "mixture-file", "Mixture file")]
)
def test_every_key_is_on_the_site_with_its_choices_and_default(
    root: type[pydantic.BaseModel], name: str, title: str, pages: dict[str, BuiltPage]
) -> None:
    page = pages[f"reference/{name}.html"]
    places: dict[type[pydantic.BaseModel], list[str]] = {}
    for path, model in _sections(root, ""):
        places.setdefault(model, []).append(path)
    assert len(places) > (20 if root is Recipe else 2)
    headings = {heading.replace("[]", "").replace("<name>", "name"): heading for heading in page.code}
    for model, paths in places.items():
        chosen = next((path for path in paths if (path or title) in headings), None)
        assert chosen is not None, f"no section for {model.__name__} at any of {paths}"
        told = page.code[headings[chosen or title]]
        written = model.model_json_schema(by_alias=False)  # `data` of a source is for Python alone
        for key, field in model.model_fields.items():
            full = f"{chosen}.{key}".removeprefix(".")
            if (model, key) == (Source, "data"):
                assert key not in written["properties"]
                continue
            assert key in told, full
            assert full in page.ids, f"no anchor for {full}"
            for choice in _choices(field.annotation):
                assert choice in told, f"{full}: {choice}"
            if isinstance(field.default, (int, str)) and not isinstance(field.default, bool):
                assert json.dumps(field.default).strip('"') in told, f"{full}: default {field.default}"


def _sections(model: type[pydantic.BaseModel], path: str) -> Iterator[tuple[str, type[pydantic.BaseModel]]]:
    yield path, model
    for key, field in model.model_fields.items():
        for inner, is_mapping in _models_in(field.annotation, False):
            below = f"{path}.{key}".removeprefix(".") + (".name" if is_mapping else "")
            yield from _sections(inner, below)


def _models_in(annotation: Any, is_mapping: bool) -> Iterator[tuple[type[pydantic.BaseModel], bool]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        yield annotation, is_mapping
    for inner in get_args(annotation):
        yield from _models_in(inner, is_mapping or getattr(annotation, "__origin__", None) is dict)


def _choices(annotation: Any) -> Iterator[str]:
    """The members of every Literal in a type."""
    for inner in get_args(annotation):
        if isinstance(inner, str) and "Literal" in repr(annotation):
            yield inner
        else:
            yield from _choices(inner)


def test_every_key_is_described_once_by_its_model_or_by_the_page(generators: Any) -> None:
    recipe_keys = generators.recipe_keys
    undescribed = set()
    for _, model in (*_sections(Recipe, ""), *_sections(MixtureFile, "")):
        for key, field in model.model_fields.items():
            if not field.description:
                undescribed.add(f"{model.__name__}.{key}")
    assert set(recipe_keys.MORE) == undescribed


def test_packs_are_told_with_every_bound_and_the_paper_they_come_from(pages: dict[str, BuiltPage]) -> None:
    page = pages["reference/packs.html"]
    for path in sorted((SOURCE / "clean/packs").glob("*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        first = path.read_text(encoding="utf-8").split("\n")[0].removeprefix("# ")
        assert " ".join(first.split()) in page.words, path.name
        for rule in content.get("rules", []):
            assert {rule["name"], rule["measure"], rule["reason"]} <= page.code[f"{path.stem}"]
            bound = f"≥ {rule['min']:g}" if "min" in rule else f"≤ {rule['max']:g}"
            assert re.search(rf"{rule['name']}\s*{re.escape(bound)} ", page.words), (
                f"{path.stem}.{rule['name']} {bound}"
            )


def _can_be_wrong(path: tuple[str, ...]) -> bool:
    """Whether the result of a verb says if all is well (`ok`): the command exits with 1 where it is not."""
    function = inspect.unwrap(getattr(tokmill, "_".join(path), len))
    home = sys.modules[getattr(function, "__module__", __name__)]
    result = getattr(home, getattr(function, "__annotations__", {}).get("return", ""), None)
    return hasattr(result, "ok") or "ok" in getattr(result, "__annotations__", ())


def test_every_error_has_its_meaning_and_every_exit_status_is_told(
    pages: dict[str, BuiltPage], generators: Any
) -> None:
    page, failures = pages["reference/errors.html"], generators.failures
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.TokmillError)
    ]
    assert {kind.__name__ for kind in kinds} <= page.all_code
    for kind in kinds:
        assert len(failures.meaning(kind)) > 10, f"{kind.__name__} has no meaning"
    answering = {
        path[0]
        for path, command in walk_verbs()
        if command.callback
        and (
            _can_be_wrong(path) or "raise SystemExit(" in inspect.getsource(inspect.unwrap(command.callback))
        )
    }
    assert set(failures.ANSWERS) == answering
    statuses = re.findall(r"SystemExit\((\d+)\)", (SOURCE / "cli/console.py").read_text(encoding="utf-8"))
    for status in {"0", "2", *statuses}:
        assert re.search(rf"\b{status}\b", page.words)


def test_every_table_of_a_run_is_told_column_by_column(pages: dict[str, BuiltPage], generators: Any) -> None:
    tables = generators.tables
    known = {name for name, value in vars(schema).items() if isinstance(value, pa.Schema)}
    assert known == {*tables.TABLES, *tables.PASSING, "LEDGER"}
    for name, told in tables.TABLES.items():
        assert set(told.columns) == set(getattr(schema, name).names), name
        assert set(getattr(schema, name).names) <= pages["reference/tables.html"].all_code
    assert (
        set(generators.ledger.COLUMNS) == set(schema.LEDGER.names) <= pages["reference/ledger.html"].all_code
    )


def test_every_public_name_of_python_is_told_with_its_parameters(pages: dict[str, BuiltPage]) -> None:
    page = pages["reference/python.html"]
    for module in (tokmill, importlib.import_module("tokmill.loader")):
        for name in set(module.__all__) - {"__version__"}:
            told = " ".join(page.code[f"{module.__name__}.{name}"])
            value = getattr(module, name)
            if inspect.isclass(value) and issubclass(value, pydantic.BaseModel):
                value.model_rebuild()  # sections of a recipe are built when they are first used
            if inspect.isfunction(value) or inspect.isclass(value):
                for parameter in inspect.signature(value).parameters:
                    assert re.search(rf"\b{parameter}\b", told), f"{name}({parameter})"
