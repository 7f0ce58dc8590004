"""tokmill: raw text in, training-ready tokens out.

    a recipe      run, plan, continue_, Recipe and its sections; records may be Python objects (`data`)
    its result    verify, status, report, review, why, trace, diff, whatif, forget, fetch …
    from files    normalize, filter, dedup, sample, encode, build, materialize_files …
    a column      measure, detect_language, near_duplicates, normalize_urls, redact, pack

Every verb of the command line is a function of its name (`tokmill hub configs` is `hub_configs`, `tokmill
continue` is `continue_`), with its options as arguments of their names, the same defaults, and a result that
has `as_json()`: what the verb prints with --json.

Names are loaded when they are first used: `import tokmill` itself does nothing.
"""

from __future__ import annotations

import ast
import functools
import importlib
import keyword
import re
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokmill import errors

if TYPE_CHECKING:
    from tokmill.adhoc.columns import (
        detect_language,
        measure,
        near_duplicates,
        normalize_urls,
        pack,
        redact,
    )
    from tokmill.adhoc.from_files import dedup, filter, ingest_files, ingest_hub, normalize, sample
    from tokmill.adhoc.mixtures import tokenizer_train
    from tokmill.adhoc.reading import hub_configs
    from tokmill.adhoc.recipes import recipe_check, recipe_import, recipe_init, recipe_schema
    from tokmill.adhoc.score_training import score_eval, score_train
    from tokmill.adhoc.scoring import score_apply
    from tokmill.adhoc.snapshot import materialize_files, materialize_hub, select
    from tokmill.adhoc.subset import materialize_sample
    from tokmill.adhoc.tokenizer_coverage import tokenizer_check, tokenizer_coverage, tokenizer_guard
    from tokmill.adhoc.tokens import build, encode, shard
    from tokmill.audit.agreement import score_compare
    from tokmill.audit.check import check
    from tokmill.audit.clusters import clusters
    from tokmill.audit.diff import diff
    from tokmill.audit.layouts import layouts
    from tokmill.audit.seen import seen
    from tokmill.audit.status import doctor, status
    from tokmill.audit.trace import trace
    from tokmill.audit.verify import verify
    from tokmill.audit.whatif import whatif
    from tokmill.audit.why import why
    from tokmill.cli.help import help
    from tokmill.continuation.continuing import continue_
    from tokmill.explorer.verbs import documents, explore
    from tokmill.pipeline.garbage import gc
    from tokmill.pipeline.run import plan, run
    from tokmill.proxy.ablation import ablate
    from tokmill.publish.publication import fetch
    from tokmill.recipe import (
        Build,
        Cleaning,
        Corpus,
        Dedup,
        Directory,
        Fields,
        Hub,
        Language,
        License,
        Limit,
        Mbox,
        Mixture,
        Near,
        Normalize,
        Pack,
        Parallel,
        Pdf,
        Recipe,
        Sample,
        Shards,
        Source,
        Split,
        StackExchange,
        Tokenizer,
        Training,
        Warc,
        Webdataset,
        Wikipedia,
        Window,
    )
    from tokmill.recipe.file import load_recipe
    from tokmill.reports.demo import demo
    from tokmill.reports.peeking import peek
    from tokmill.reports.verbs import report
    from tokmill.reviews.review import review
    from tokmill.takedown.forgetting import forget

__version__ = "0.1.0"

# Names that are no verbs, by where they are. Those of verbs are in the tables of the command line's files.
_HOMES = {
    "tokmill.adhoc.columns": [
        *("detect_language", "measure", "near_duplicates", "normalize_urls", "pack", "redact"),
    ],
    "tokmill.recipe": [
        *("Build", "Cleaning", "Corpus", "Dedup", "Directory", "Fields", "Hub", "Language", "License"),
        *("Limit", "Mbox", "Mixture", "Near", "Normalize", "Pack", "Parallel", "Pdf", "Recipe", "Sample"),
        *("Shards", "Source", "Split", "StackExchange", "Tokenizer", "Training", "Warc", "Webdataset"),
        *("Wikipedia", "Window"),
    ],
    "tokmill.recipe.file": ["load_recipe"],
}
_TABLE = re.compile(r"^VERBS = (\{$.*?^\})$", re.MULTILINE | re.DOTALL)


class Verb(NamedTuple):
    """One of the command line, as its file says in VERBS."""

    group: str  # its heading in `tokmill --help`
    summary: str
    home: str | dict[str, str]  # the module of its function; of a group of verbs, of each
    file: str  # the module of its command

    def functions(self, name: str) -> dict[str, str]:
        """`tokmill hub configs` is `tokmill.hub_configs`. A word of Python's own has an underscore behind it:
        `tokmill continue` is `tokmill.continue_`."""
        if isinstance(self.home, str):
            return {f"{name}_" if keyword.iskeyword(name) else name: f"tokmill.{self.home}"}
        return {f"{name}_{below}": f"tokmill.{home}" for below, home in self.home.items()}


@functools.cache
def read_verbs() -> dict[str, Verb]:
    """Of all files in cli/. They are read and not imported,
    so that neither this nor `tokmill --help` loads anything."""
    found = {}
    for path in sorted((Path(__file__).parent / "cli").glob("*.py")):
        table = _TABLE.search(path.read_text("utf-8"))
        for group, verbs in ast.literal_eval(table[1]).items() if table else ():
            for name, (summary, home) in verbs.items():
                found[name] = Verb(group, summary, home, f"tokmill.cli.{path.stem}")
    return found


@functools.cache
def _home_of() -> dict[str, str]:
    names = {name: home for home, names in _HOMES.items() for name in names}
    for name, verb in read_verbs().items():
        names |= verb.functions(name)
    return names


__all__ = ["Build", "Cleaning", "Corpus", "Dedup", "Directory", "Fields", "Hub", "Language", "License"]
__all__ += ["Limit", "Mbox", "Mixture", "Near", "Normalize", "Pack", "Parallel", "Pdf", "Recipe"]
__all__ += ["Sample", "Shards", "Source", "Split", "StackExchange", "Tokenizer", "Training", "Warc"]
__all__ += ["Webdataset", "Wikipedia", "Window", "__version__"]
__all__ += ["ablate", "build", "check", "clusters", "continue_", "dedup", "demo", "detect_language", "diff"]
__all__ += ["doctor", "documents", "encode", "explore"]
__all__ += ["fetch", "filter", "forget", "gc", "help", "hub_configs", "ingest_files", "ingest_hub", "layouts"]
__all__ += ["load_recipe", "materialize_files", "materialize_hub", "materialize_sample", "measure"]
__all__ += [
    "near_duplicates",
    "normalize",
    "normalize_urls",
    "pack",
    "peek",
    "plan",
    "recipe_check",
    "recipe_import",
]
__all__ += ["recipe_init", "recipe_schema", "redact", "report", "review", "run", "sample"]
__all__ += ["score_apply", "score_compare", "score_eval", "score_train", "seen", "select", "shard"]
__all__ += ["status", "tokenizer_check", "tokenizer_coverage", "tokenizer_guard", "tokenizer_train", "trace"]
__all__ += ["verify", "whatif", "why"]


def __getattr__(name: str) -> Any:
    home = _home_of().get(name)
    if home is None:
        raise AttributeError(f"module 'tokmill' has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    return _with_choices(found) if isinstance(found, types.FunctionType) else found


@functools.cache
def _with_choices(function: types.FunctionType) -> Any:
    """The function, refusing words that are none of its choices, as a recipe and the command line do."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        for name, value in (dict(zip(names, arguments, strict=False)) | options).items():
            known = _choices(function).get(name, (value,))
            if not any(value is one or (isinstance(value, str) and value == one) for one in known):
                raise errors.InputError(
                    f"{value!r} is not a choice",
                    where=name,
                    next=f"set one of {', '.join(one or 'None' for one in known)}",
                )
        return function(*arguments, **options)

    checked.__module__ = __name__  # where pickle finds it
    return checked


@functools.cache
def _choices(function: types.FunctionType) -> dict[str, tuple[str | None, ...]]:
    """Of parameters that take some words and nothing else, or None."""
    found = {}
    for name, kind in typing.get_type_hints(function).items():
        is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
        parts = typing.get_args(kind) if is_union else (kind,)
        if all(part is type(None) or typing.get_origin(part) is typing.Literal for part in parts):
            found[name] = tuple(one for part in parts for one in typing.get_args(part) or (None,))
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_home_of()})
