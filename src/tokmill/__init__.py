"""tokmill: raw text in, training-ready tokens out.

    tokmill.run("recipe.yaml")      mill a recipe                       (tokmill run)
    tokmill.verify("out/name")      prove what was made                 (tokmill verify)
    tokmill.fetch("s3://…", "dir")  bring a published run here          (tokmill fetch)
    tokmill.review("out/name")      what is wrong with it               (tokmill review)
    tokmill.materialize(files, …)   a small sample, drawn once
    tokmill.encode(sample, model, …)   its tokens                       (tokmill encode)

Names are loaded when they are first used: `import tokmill` itself does nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokmill.audit.diff import diff
    from tokmill.audit.report.verbs import report
    from tokmill.audit.review.reviewing import review
    from tokmill.audit.status import status
    from tokmill.audit.trace_document import trace_document
    from tokmill.audit.verify import verify
    from tokmill.fetching import fetch
    from tokmill.forgetting import forget
    from tokmill.recipe_file import load_recipe
    from tokmill.running import run
    from tokmill.subset import materialize
    from tokmill.token_files import encode

__version__ = "0.1.0"

_HOMES = {
    "run": "tokmill.running",
    "trace_document": "tokmill.audit.trace_document",
    "verify": "tokmill.audit.verify",
    "load_recipe": "tokmill.recipe_file",
    "materialize": "tokmill.subset",
    "diff": "tokmill.audit.diff",
    "encode": "tokmill.token_files",
    "fetch": "tokmill.fetching",
    "forget": "tokmill.forgetting",
    "report": "tokmill.audit.report.verbs",
    "review": "tokmill.audit.review.reviewing",
    "status": "tokmill.audit.status",
}

__all__ = [
    "__version__",
    "diff",
    "encode",
    "fetch",
    "forget",
    "load_recipe",
    "materialize",
    "report",
    "review",
    "run",
    "status",
    "trace_document",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tokmill' has no attribute {name!r}")
