"""tokmill: raw text in, training-ready tokens out.

    a recipe      run, load_recipe, Recipe and its sections; records may be Python objects (`data`)
    its result    verify, status, diff, trace_document, report, review, forget, fetch
    from files    materialize, encode
    a column      measure, detect_language, near_duplicates, redact, pack

Names are loaded when they are first used: `import tokmill` itself does nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokmill.adhoc.columns import detect_language, measure, near_duplicates, pack, redact
    from tokmill.adhoc.subset import materialize
    from tokmill.adhoc.tokens import encode
    from tokmill.audit.diff import diff
    from tokmill.audit.status import status
    from tokmill.audit.trace import trace_document
    from tokmill.audit.verify import verify
    from tokmill.pipeline.run import run
    from tokmill.publish.publication import fetch
    from tokmill.recipe import (
        Build,
        Cleaning,
        Corpus,
        Dedup,
        Fields,
        Hub,
        Language,
        License,
        Limit,
        Mixture,
        Near,
        Normalize,
        Pack,
        Parallel,
        Recipe,
        Sample,
        Shards,
        Source,
        Split,
        StackExchange,
        Tokenizer,
        Training,
        Warc,
        Wikipedia,
        Window,
    )
    from tokmill.recipe.file import load_recipe
    from tokmill.reports.verbs import report
    from tokmill.reviews.review import review
    from tokmill.takedown.forgetting import forget

__version__ = "0.1.0"

_HOMES = {
    "tokmill.adhoc.columns": ["detect_language", "measure", "near_duplicates", "pack", "redact"],
    "tokmill.adhoc.subset": ["materialize"],
    "tokmill.adhoc.tokens": ["encode"],
    "tokmill.audit.diff": ["diff"],
    "tokmill.audit.status": ["status"],
    "tokmill.audit.trace": ["trace_document"],
    "tokmill.audit.verify": ["verify"],
    "tokmill.pipeline.run": ["run"],
    "tokmill.publish.publication": ["fetch"],
    "tokmill.recipe": [
        *("Build", "Cleaning", "Corpus", "Dedup", "Fields", "Hub", "Language", "License", "Limit", "Mixture"),
        *("Near", "Normalize", "Pack", "Parallel", "Recipe", "Sample", "Shards", "Source", "Split"),
        *("StackExchange", "Tokenizer", "Training", "Warc", "Wikipedia", "Window"),
    ],
    "tokmill.recipe.file": ["load_recipe"],
    "tokmill.reports.verbs": ["report"],
    "tokmill.reviews.review": ["review"],
    "tokmill.takedown.forgetting": ["forget"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Build",
    "Cleaning",
    "Corpus",
    "Dedup",
    "Fields",
    "Hub",
    "Language",
    "License",
    "Limit",
    "Mixture",
    "Near",
    "Normalize",
    "Pack",
    "Parallel",
    "Recipe",
    "Sample",
    "Shards",
    "Source",
    "Split",
    "StackExchange",
    "Tokenizer",
    "Training",
    "Warc",
    "Wikipedia",
    "Window",
    "__version__",
    "detect_language",
    "diff",
    "encode",
    "fetch",
    "forget",
    "load_recipe",
    "materialize",
    "measure",
    "near_duplicates",
    "pack",
    "redact",
    "report",
    "review",
    "run",
    "status",
    "trace_document",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'tokmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
