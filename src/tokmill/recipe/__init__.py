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
        Cleaning,
        CleanLimits,
        Filter,
        Language,
        License,
        Normalize,
        Robots,
        Urls,
    )
    from tokmill.recipe.curriculum import Stage, Where
    from tokmill.recipe.dedup import (
        Against,
        Dedup,
        EarlierNear,
        Near,
        Templates,
        UrlCopies,
        Window,
    )
    from tokmill.recipe.names import ROLES, SOURCE_FORMATS, template_parts
    from tokmill.recipe.scores import (
        FastText,
        Importance,
        Linear,
        Perplexity,
        Repeat,
        Score,
        Select,
        Transformer,
        Windows,
    )
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
    from tokmill.recipe.split import (
        Counts,
        Split,
        Values,
    )
    from tokmill.recipe.tokens import (
        Build,
        Fim,
        Mixture,
        Pack,
        TextFormatName,
        Tokenizer,
        Training,
        TrainingPlan,
        dtype_of,
        format_mistakes,
    )
    from tokmill.recipe.training import ExampleRule, ExampleSet, Train
    from tokmill.recipe.whole import (
        Recipe,
        Shards,
    )

# What has no sections first: who asks for a name of it loads nothing else.
_HOMES = (
    *("names", "section", "cleaning", "dedup", "split", "curriculum", "training", "scores", "source"),
    *("tokens", "whole"),
)

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
    "ExampleRule",
    "ExampleSet",
    "Extract",
    "FastText",
    "Fields",
    "Filter",
    "Fim",
    "Hub",
    "Importance",
    "Language",
    "License",
    "Limit",
    "Linear",
    "Mbox",
    "Mixture",
    "Near",
    "Normalize",
    "Pack",
    "Parallel",
    "Path_",
    "Pdf",
    "Perplexity",
    "Recipe",
    "Repeat",
    "Robots",
    "Sample",
    "Score",
    "Section",
    "Select",
    "Shards",
    "Source",
    "Split",
    "StackExchange",
    "Stage",
    "Templates",
    "TextFormatName",
    "Tokenizer",
    "Train",
    "Training",
    "TrainingPlan",
    "Transformer",
    "UrlCopies",
    "Urls",
    "Values",
    "Warc",
    "Webdataset",
    "Where",
    "Wikipedia",
    "Window",
    "Windows",
    "dtype_of",
    "format_mistakes",
    "template_parts",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
