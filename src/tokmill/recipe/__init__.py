"""The recipe: its sections and keys, which say everything that can change a byte.

Paths are relative to the recipe's directory. Workers, engine and output directory are not here: they cannot
change the output.

Names are loaded when they are first used: tasks know some of them, and none of the sections.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokmill.recipe.cleaning import (
        Against,
        Cleaning,
        CleanLimits,
        Counts,
        Dedup,
        EarlierNear,
        Filter,
        Language,
        License,
        Near,
        Normalize,
        Robots,
        Split,
        Templates,
        UrlCopies,
        Urls,
        Values,
        Window,
    )
    from tokmill.recipe.names import ROLES, SOURCE_FORMATS, template_parts
    from tokmill.recipe.section import Path_, Section
    from tokmill.recipe.source import (
        Chat,
        Corpus,
        Directory,
        Extract,
        Fields,
        Hub,
        Limit,
        Mbox,
        Parallel,
        Pdf,
        Sample,
        Source,
        StackExchange,
        Warc,
        Webdataset,
        Wikipedia,
    )
    from tokmill.recipe.whole import (
        Build,
        Fim,
        Mixture,
        Pack,
        Recipe,
        Shards,
        TextFormatName,
        Tokenizer,
        Training,
        TrainingPlan,
        dtype_of,
        format_mistakes,
    )

_HOMES = {
    "tokmill.recipe.cleaning": [
        *(
            "Against",
            "Cleaning",
            "CleanLimits",
            "Counts",
            "Dedup",
            "EarlierNear",
            "Filter",
            "Language",
            "License",
            "Near",
            "Normalize",
            "Robots",
            "Split",
            "Templates",
            "UrlCopies",
            "Urls",
            "Values",
            "Window",
        )
    ],
    "tokmill.recipe.names": [*("ROLES", "SOURCE_FORMATS", "template_parts")],
    "tokmill.recipe.section": [*("Path_", "Section")],
    "tokmill.recipe.source": [
        *(
            "Chat",
            "Corpus",
            "Directory",
            "Extract",
            "Fields",
            "Hub",
            "Limit",
            "Mbox",
            "Parallel",
            "Pdf",
            "Sample",
            "Source",
            "StackExchange",
            "Warc",
            "Webdataset",
            "Wikipedia",
        )
    ],
    "tokmill.recipe.whole": [
        *(
            "Build",
            "Fim",
            "Mixture",
            "Pack",
            "Recipe",
            "Shards",
            "TextFormatName",
            "Tokenizer",
            "Training",
            "TrainingPlan",
            "dtype_of",
            "format_mistakes",
        )
    ],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ROLES",
    "SOURCE_FORMATS",
    "Against",
    "Build",
    "Chat",
    "CleanLimits",
    "Cleaning",
    "Corpus",
    "Counts",
    "Dedup",
    "Directory",
    "EarlierNear",
    "Extract",
    "Fields",
    "Filter",
    "Fim",
    "Hub",
    "Language",
    "License",
    "Limit",
    "Mbox",
    "Mixture",
    "Near",
    "Normalize",
    "Pack",
    "Parallel",
    "Path_",
    "Pdf",
    "Recipe",
    "Robots",
    "Sample",
    "Section",
    "Shards",
    "Source",
    "Split",
    "StackExchange",
    "Templates",
    "TextFormatName",
    "Tokenizer",
    "Training",
    "TrainingPlan",
    "UrlCopies",
    "Urls",
    "Values",
    "Warc",
    "Webdataset",
    "Wikipedia",
    "Window",
    "dtype_of",
    "format_mistakes",
    "template_parts",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'tokmill.recipe' has no attribute {name!r}")
