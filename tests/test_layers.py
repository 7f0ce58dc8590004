"""The architecture, proven from the imports: every module has a layer, and imports point downwards only."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tokmill

SOURCE = Path(tokmill.__file__).parent

REPOSITORY = Path(__file__).parents[1]


def drawn_floors(page: Path) -> list[tuple[str, ...]]:
    """The floors of the drawing on a page, from the ground up: `room/ module.py    what is there`."""
    (drawing,) = re.findall(r"^```text\n(cli/ .*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    floors = [re.split(r"\s{2,}", line)[0].split() for line in drawing.splitlines()]
    return [tuple(re.sub(r"/$|\.py$", "", room) for room in floor) for floor in reversed(floors)]


# A module may import from its own room and from floors below its own.
FLOORS = [*drawn_floors(REPOSITORY / "CONTRIBUTING.md"), ("",)]  # the package itself, the public face, on top

# Imports inside a function, each with its reason. Nothing else is imported late.
LATE = {
    ("cli.console", "tokmill.recipe.keys"): "0.15 s, where an error is told",
    ("kernels.jit", "tokmill.kernels.compiler"): "numba: 0.2 s, where a kernel is called",
    ("tokenizers.load", "tokmill.tokenizers.huggingface"): "the adapter of the kind of file that is loaded",
    ("tokenizers.load", "tokmill.tokenizers.tiktoken_ranks"): "likewise",
    ("tokenizers.load", "tokmill.tokenizers.spm"): "likewise",
    ("tokenizers.description", "tokmill.tokenizers.spm"): "likewise, to describe one",
    ("tokenizers.load", "tokmill.tokenizers.tekken"): "likewise",
    ("engines.local", "tokmill.engines.ray"): "the engine that is asked for",
    ("engines.local", "tokmill.engines.dask"): "likewise",
    ("engines.local", "tokmill.engines.slurm"): "likewise",
    ("pipeline.session", "tokmill.engines.slurm_former"): "what jobs are asked with, where there were some",
    ("audit.why", "tokmill.audit.webpages"): "half a second of readers, where a source has web pages",
    ("audit.why", "tokmill.audit.explaining"): "models and their kernels, where an explanation is asked for",
    ("audit.check", "tokmill.proxy.overfitting"): "the extra `torch`, where a decoder is asked for",
    ("explorer.verbs", "tokmill.explorer.server"): "the extra `explore`",
    ("explorer.verbs", "tokmill.explorer.opening"): "likewise",
    ("explorer.verbs", "tokmill.explorer.listing"): "likewise",
    ("explorer.verbs", "tokmill.explorer.search"): "likewise",
    ("explorer.opening", "tokmill.explorer.published"): "of a run that is elsewhere",
    ("explorer.routes", "tokmill.explorer.builds"): "a third of the start with the next two: warming.py",
    ("explorer.routes", "tokmill.explorer.compare"): "likewise",
    ("explorer.routes", "tokmill.explorer.recipe_change"): "likewise",
    ("reports.peeking", "tokmill.reports.webpage"): "likewise, and of what makes pages",
    ("sources.hubfile", "huggingface_hub"): "the extra `hub`",
    ("sources.hubfile", "huggingface_hub.errors"): "likewise",
    ("sources.hubfile", "huggingface_hub.utils"): "likewise",
    ("sources.hub", "datasets"): "likewise",
    ("sources.chat", "tokmill.sources.sandbox"): "the extra `chat`",
    ("sources.warc", "fastwarc.warc"): "the extra `warc`",
    ("sources.warc", "fastwarc.stream_io"): "likewise",
    ("sources.extract.engines", "resiliparse.extract.html2text"): "likewise",
    ("sources.warc", "resiliparse.parse.encoding"): "likewise",
    ("sources.extract.engines", "resiliparse.parse.html"): "likewise",
    ("sources.extract.engines", "trafilatura"): "the extra `trafilatura`",
    ("sources.pdftext", "pypdfium2_raw"): "the extra `pdf`",
    ("sources.stackexchange", "py7zr"): "the extra `stackexchange`",
    ("sources.stackexchange", "py7zr.io"): "likewise",
    ("sources.wikitext", "mwparserfromhell"): "the extra `wikipedia`",
    ("clean.language", "py3langid.langid"): "the extra `language`",
    ("clean.language", "langdetect.detector_factory"): "likewise",
    ("clean.language", "langdetect.lang_detect_exception"): "likewise",
    ("clean.parsing", "tree_sitter"): "the extra `code`",
    ("engines.ray", "ray"): "the extra `ray`",
    ("engines.dask", "dask"): "the extra `dask`",
    ("engines.dask", "distributed"): "likewise",
    ("proxy.trials", "tokmill.proxy.experiments"): "the extra `torch`",
    ("scores.device", "torch"): "the extra `transformer`, or what a hook brings",
    ("scores.transformer", "tokenizers"): "the extra `transformer`",
    ("scores.transformer", "torch"): "the extra `transformer`",
    ("scores.transformer", "transformers"): "the extra `transformer`",
    ("scores.transformer", "transformers.models.auto.modeling_auto"): "the extra `transformer`",
    ("tokenizers.fast", "awkward"): "not everywhere installed; the reference does without",
    ("tokenizers.fast", "gigatoken"): "likewise",
    ("formats.arrow", "pyarrow"): "not for who reads other formats in a trainer",
    ("formats.parquet", "pyarrow"): "not for who reads other formats in a trainer",
    ("formats.parquet", "pyarrow.parquet"): "likewise",
    ("artifacts.packages", "importlib.metadata"): "40 ms, where a name is none of ours",
    ("loader.origins", "tokmill.formats.index"): "where the index is asked for",
    ("loader.dataset", "tokmill.loader.remote"): "where a build is in an object store",
    ("storage.objects", "tokmill.storage.relay"): "where a process was forked",
    ("storage.cloud", "obstore.store"): "the extras `s3`, `gs` and `az`",
    ("storage.cloud", "obstore.exceptions"): "likewise",
    ("storage.cloud", "obstore.auth.boto3"): "likewise, for a profile of ~/.aws",
    ("storage.objects", "fsspec.implementations.memory"): "likewise, for memory://",
    ("demos.corpus", "pydoc_data.topics"): "some distributions leave it out",
}

# Modules that load others by name when they are first asked for.
BY_NAME = {
    "": "names of the public face",
    "artifacts.hooks": "what the files of a hook import",
    "artifacts.plugins": "our own formats and kinds of scores",
    "clean.parsing": "the grammar of a language, of the extra `code`",
    "engines.forking": "what a server is asked to load, and the worker that it becomes",
    "engines.orders": "the task function an order names",
    "loader": "names of its public face",
    "recipe": "likewise",
    "cli": "verbs of the command line",
    "cli.console": "what tasks need, before workers are forked",
    "kernels.warm": "the kernels of its own folder, all or those of some modules",
    "reference.python_names": "the public face, to tell of its names",
    "sources.readers": "the reader of a source's format",
    "stages.dedup.stage": "the methods that the recipe's section names",
}

# What may be imported by whoever reads a build in a trainer: nothing that is heavy to install.
LIGHT_PACKAGES = {"numpy", "msgspec", "backports", "compression"}


class Import(NamedTuple):
    importer: str  # without the leading "tokmill."; "" is the package itself
    target: str  # as written, with the package
    is_late: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imports_of(name: str) -> Iterator[Import]:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    late = {
        inner
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(outer)
    }
    for_types = {
        inner
        for outer in ast.walk(tree)
        if isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.unparse(outer.test)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node in late)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                is_module = whole.removeprefix("tokmill.") in MODULES
                yield Import(name, whole if is_module else str(node.module), node in late)


ALL_IMPORTS = [found for name in MODULES for found in imports_of(name)]
OURS = [
    found._replace(target=found.target.removeprefix("tokmill").removeprefix("."))
    for found in ALL_IMPORTS
    if found.target.split(".")[0] == "tokmill"
]


def floor_of(name: str) -> int:
    room = name.split(".")[0]
    (number,) = [number for number, floor in enumerate(FLOORS) if room in floor]
    return number


def closure(names: set[str]) -> set[str]:
    """The modules, all that they import, and the packages around those."""
    reached: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        reached.add(name)
        around = {name.rpartition(".")[0]}
        waiting |= ({found.target for found in OURS if found.importer == name} | around) - reached
    return reached


def test_every_room_is_drawn_and_every_room_that_is_drawn_is_there() -> None:
    drawn = [room for floor in FLOORS for room in floor]
    assert len(drawn) == len(set(drawn)), "a room on two floors"
    assert set(drawn) == {name.split(".")[0] for name in MODULES}
    assert drawn_floors(REPOSITORY / "README.md") == drawn_floors(REPOSITORY / "CONTRIBUTING.md")


def test_the_house_is_not_higher_than_twelve_floors_and_has_no_loose_modules() -> None:
    assert len(FLOORS) - 1 <= 12
    loose = {path.name for path in SOURCE.glob("*.py")}
    assert loose == {"__init__.py", "errors.py", "schema.py"}


def test_imports_point_downwards() -> None:
    wrong = [
        f"{found.importer or 'tokmill'} imports {found.target or 'tokmill'}"
        for found in OURS
        if floor_of(found.target) >= floor_of(found.importer)
        and found.target.split(".")[0] != found.importer.split(".")[0]
        and (found.importer.split(".")[0], found.target) != ("cli", "")  # it calls verbs as everybody does
    ]
    assert wrong == []


def test_no_two_modules_need_each_other() -> None:
    edges: dict[str, set[str]] = {name: set() for name in MODULES}
    for found in OURS:
        if found.target != found.importer and not found.is_late:
            edges[found.importer].add(found.target)
    while True:
        ready = {name for name, targets in edges.items() if not targets}
        if not ready:
            break
        edges = {name: targets - ready for name, targets in edges.items() if name not in ready}
    assert edges == {}, "a cycle, or what hangs on one"


def test_what_is_imported_is_there() -> None:
    assert {found.target for found in OURS} <= set(MODULES)


def test_nothing_is_imported_inside_a_function_but_what_is_listed() -> None:
    late = {(found.importer, found.target) for found in ALL_IMPORTS if found.is_late}
    assert late == set(LATE)


def test_nothing_is_loaded_by_name_but_by_the_public_face_and_the_command_line() -> None:
    """importlib.import_module and __import__ would hide an import from this test."""
    hidden = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
    }
    assert hidden == set(BY_NAME)


def test_kernels_know_nothing_of_the_mill() -> None:
    targets = {found.target for found in OURS if found.importer.split(".")[0] == "kernels"}
    assert {target.split(".")[0] for target in targets} == {"kernels"}


def test_demos_need_errors_and_storage_and_only_the_verbs_that_write_them_need_demos() -> None:
    needs = {f.target.split(".")[0] for f in OURS if f.importer.split(".")[0] == "demos"}
    assert needs == {"demos", "errors", "storage"}
    needed_by = {
        f.importer for f in OURS if f.target.split(".")[0] == "demos" and not f.importer.startswith("demos")
    }
    assert needed_by == {"adhoc.recipes", "reports.demo"}


def test_what_a_trainer_reads_builds_with_is_light() -> None:
    """Whatever it imports, on any way, comes with Python or is small: no pydantic, numba, pyarrow.
    Formats are loaded by name, so all of them count."""
    read_with = {name for name in MODULES if name.split(".")[0] in ("formats", "loader")} - {"loader.torch"}
    names = closure(read_with)
    packages = {
        found.target.split(".")[0] for found in ALL_IMPORTS if found.importer in names and not found.is_late
    }
    foreign = packages - set(sys.stdlib_module_names) - {"tokmill"}
    assert foreign <= LIGHT_PACKAGES
    assert "numpy" in foreign


def test_what_reads_a_run_for_the_tests_shares_nothing_with_what_wrote_it() -> None:
    """A second way is one only as long as it does not go back to the first."""
    for name in ("written.py", "recount.py", "object_servers.py"):
        tree = ast.parse((REPOSITORY / "tests" / name).read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        named = {str(getattr(node, "module", "")) for node in imports}
        named |= {alias.name for node in imports for alias in node.names}
        assert not [target for target in named if target.split(".")[0] == "tokmill"], name
