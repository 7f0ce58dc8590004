"""The architecture, proven from the imports: every module has a layer, and imports point downwards only."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tokmill

SOURCE = Path(tokmill.__file__).parent

# From the ground up: a module may import from its own layer and from those listed before it. A name stands for
# a module, or for a package and all that is in it.
LAYERS: list[tuple[str, ...]] = [
    ("errors", "collector", "split_names"),  # what users meet; the garbage collector of our processes
    ("kernels",),  # numba loops over bytes and integers; no I/O, no Python objects
    ("codepoints", "wordclasses"),  # tables of Unicode for the kernels
    ("schema",),  # the tables that move through the mill
    ("storage",),  # where bytes live: commit, codecs, digests
    ("manifest", "environment", "progress", "journal"),  # evidence, and what is said on the way
    (
        "task",
        "artifact",
        "container",
        "forgotten",
        "forgotten_rows",
        "publication",
        "publication_target",
        "fetching",
    ),  # a pure function of its inputs; the life of a directory
    (
        "recipe",
        "recipe_file",
        "recipe_lines",
        "recipe_shelf",
        "imported_sources",
    ),  # everything that can change a byte
    ("sources",),  # records become documents
    ("sample", "split", "clean", "dedup"),  # decisions on columns
    ("tokenizers",),  # text to ids
    ("formats",),  # what a trainer maps: writer and reader together
    ("loader",),  # from a build to batches: readers of formats, and NumPy
    ("pack",),  # lengths in, plan out
    ("mixture_file", "imported_outputs", "recipe_import"),  # weights in a file of their own, or of others
    ("engines",),  # who runs tasks
    ("demo",),  # a corpus that every machine has
    ("stages",),  # what a task does with its shard
    (
        "cleaning_plan",
        "token_plan",
        "tokenizer_plan",
        "plan",
        "standing",
        "provenance",
        "run_manifest",
        "run_session",
        "running",
    ),  # a recipe as steps, and the steps done
    ("publishing",),  # a build taken out of its run
    (
        "subset_drawing",
        "subset",
        "materializing",
        "standalone",
        "decisions",
        "tokenizer_training",
        "finished_files",
        "token_files",
    ),  # parts of the mill without a recipe
    ("audit",),  # verify, doctor: reads artifacts only
    ("forgetting_steps", "forgetting"),  # a takedown
    ("cli",),  # parse, call, render
    ("",),  # the package itself: the public face, which loads what is asked for
]

# Imports inside a function, each with its reason. Nothing else is imported late.
LATE = {
    ("tokenizers.load", "tokmill.tokenizers.huggingface"): "the adapter of the kind of file that is loaded",
    ("tokenizers.load", "tokmill.tokenizers.tiktoken_ranks"): "likewise",
    ("tokenizers.load", "tokmill.tokenizers.spm"): "likewise",
    ("tokenizers.checks", "tokmill.tokenizers.tiktoken_ranks"): "likewise",
    ("engines.opening", "tokmill.engines.ray"): "the engine that is asked for",
    ("engines.opening", "tokmill.engines.dask"): "likewise",
    ("sources.hubfile", "huggingface_hub"): "the extra `hub`",
    ("sources.hubfile", "huggingface_hub.errors"): "likewise",
    ("sources.hubfile", "huggingface_hub.utils"): "likewise",
    ("sources.hub", "datasets"): "likewise",
    ("sources.warc", "fastwarc.warc"): "the extra `warc`",
    ("sources.warc", "fastwarc.stream_io"): "likewise",
    ("sources.webpage", "resiliparse.extract.html2text"): "likewise",
    ("sources.webpage", "resiliparse.parse.encoding"): "likewise",
    ("sources.webpage", "resiliparse.parse.html"): "likewise",
    ("sources.sevenzip", "py7zr"): "the extra `stackexchange`",
    ("sources.sevenzip", "py7zr.io"): "likewise",
    ("sources.wikitext", "mwparserfromhell"): "the extra `wikipedia`",
    ("clean.detectors", "py3langid.langid"): "the extra `language`",
    ("clean.detectors", "langdetect.detector_factory"): "likewise",
    ("clean.detectors", "langdetect.lang_detect_exception"): "likewise",
    ("dedup.cuda", "torch"): "the extra `torch`",
    ("engines.ray", "ray"): "the extra `ray`",
    ("engines.dask", "dask"): "the extra `dask`",
    ("engines.dask", "distributed"): "likewise",
    ("tokenizers.fast", "awkward"): "not everywhere installed; the reference does without",
    ("tokenizers.fast", "gigatoken"): "likewise",
    ("formats.parquet", "pyarrow"): "not for who reads other formats in a trainer",
    ("formats.parquet", "pyarrow.parquet"): "likewise",
    ("loader.stores", "tokmill.formats.memmap"): "the reader of the format that is opened",
    ("loader.stores", "tokmill.formats.npy"): "likewise",
    ("loader.stores", "tokmill.formats.megatron"): "likewise",
    ("loader.stores", "tokmill.formats.token_cache"): "likewise",
    ("loader.stores", "tokmill.formats.parquet"): "likewise",
    ("loader.rowindex", "tokmill.formats.row_index"): "where the index is asked for",
    ("loader.origins", "tokmill.formats.row_index"): "likewise",
    ("loader.dataset", "tokmill.artifacts.manifest"): "where there is a manifest",
    ("loader.dataset", "tokmill.formats.token_cache"): "where a cache holds several splits",
    ("loader.dataset", "tokmill.formats.npy"): "where nothing describes the files",
    ("loader.contract", "tokmill.storage.location"): "where hashes are asked for",
    ("storage.objects.cloud", "obstore.store"): "the extras `s3`, `gs` and `az`",
    ("storage.objects.cloud", "obstore.exceptions"): "likewise",
    ("storage.objects.cloud", "obstore.auth.boto3"): "likewise, for a profile of ~/.aws",
    ("storage.objects.memory", "fsspec.implementations.memory"): "likewise, for memory://",
    ("demo.corpus", "pydoc_data.topics"): "some distributions leave it out",
}

# Modules that load others by name when they are first asked for.
BY_NAME = {
    "": "names of the public face",
    "engines.orders": "the task function an order names",
    "loader": "names of its public face",
    "cli": "verbs of the command line",
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


def layer_of(name: str) -> int:
    top = name.split(".")[0]
    (number,) = [number for number, layer in enumerate(LAYERS) if top in layer]
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


def test_every_module_has_a_layer_and_every_layer_has_a_module() -> None:
    placed = [name for layer in LAYERS for name in layer]
    assert len(placed) == len(set(placed)), "a name in two layers"
    tops = {name.split(".")[0] for name in MODULES}
    assert tops - set(placed) == set(), "new here: give it a layer above"
    assert set(placed) - tops == set(), "no longer there"


def test_no_import_points_upwards() -> None:
    upwards = [
        f"{found.importer or 'tokmill'} imports {found.target or 'tokmill'}"
        for found in OURS
        if layer_of(found.target) > layer_of(found.importer)
    ]
    assert upwards == []


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


def test_the_demo_needs_errors_and_storage_and_only_the_command_line_needs_the_demo() -> None:
    needs = {f.target.split(".")[0] for f in OURS if f.importer.split(".")[0] == "demo"}
    assert needs == {"demo", "errors", "storage"}
    needed_by = {f.importer.split(".")[0] for f in OURS if f.target.split(".")[0] == "demo"}
    assert needed_by == {"demo", "cli"}


def test_stages_are_known_only_to_the_plan_and_the_run() -> None:
    assert {f.importer.split(".")[0] for f in OURS if f.target.split(".")[0] == "stages"} == {
        "stages",
        "token_plan",
        "tokenizer_plan",
        "plan",
        "standing",
        "run_manifest",
        "run_session",
        "running",
        "subset_drawing",
        "materializing",
        "standalone",
        "decisions",
        "tokenizer_training",
        "audit",
        "forgetting",
        "forgetting_steps",
    }


@pytest.mark.parametrize("package", ["formats", "loader"])
def test_what_a_trainer_reads_builds_with_is_light(package: str) -> None:
    """Whatever it imports, on any way, comes with Python or is small: no pydantic, numba, pyarrow."""
    names = closure({name for name in MODULES if name.split(".")[0] == package} - {"loader.torch"})
    assert "formats.memmap" in names
    packages = {
        found.target.split(".")[0] for found in ALL_IMPORTS if found.importer in names and not found.is_late
    }
    foreign = packages - set(sys.stdlib_module_names) - {"tokmill"}
    assert foreign <= LIGHT_PACKAGES
    assert "numpy" in foreign
