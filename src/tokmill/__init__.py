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
    from tokmill.adhoc.subset import materialize
    from tokmill.adhoc.tokens import encode
    from tokmill.audit.diff import diff
    from tokmill.audit.status import status
    from tokmill.audit.trace import trace_document
    from tokmill.audit.verify import verify
    from tokmill.pipeline.run import run
    from tokmill.publish.publication import fetch
    from tokmill.recipe.file import load_recipe
    from tokmill.reports.verbs import report
    from tokmill.reviews.reviewing import review
    from tokmill.takedown.forgetting import forget

__version__ = "0.1.0"

_HOMES = {
    "run": "tokmill.pipeline.run",
    "trace_document": "tokmill.audit.trace",
    "verify": "tokmill.audit.verify",
    "load_recipe": "tokmill.recipe.file",
    "materialize": "tokmill.adhoc.subset",
    "diff": "tokmill.audit.diff",
    "encode": "tokmill.adhoc.tokens",
    "fetch": "tokmill.publish.publication",
    "forget": "tokmill.takedown.forgetting",
    "report": "tokmill.reports.verbs",
    "review": "tokmill.reviews.reviewing",
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
