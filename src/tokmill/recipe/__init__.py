"""The recipe: its sections and keys, which say everything that can change a byte.

Paths are relative to the recipe's directory. Workers, engine and output directory are not here: they cannot
change the output.
"""

from tokmill.recipe.cleaning import (
    Against,
    Cleaning,
    Counts,
    Dedup,
    Filter,
    Language,
    License,
    Near,
    Normalize,
    Split,
    Values,
    Window,
)
from tokmill.recipe.section import Path_, Section
from tokmill.recipe.source import (
    SOURCE_FORMATS,
    Corpus,
    Fields,
    Hub,
    Limit,
    Parallel,
    Sample,
    Source,
    StackExchange,
    Warc,
    Wikipedia,
    template_parts,
)
from tokmill.recipe.whole import (
    Build,
    Mixture,
    Pack,
    Recipe,
    Shards,
    Tokenizer,
    Training,
    TrainingPlan,
    format_mistakes,
)

__all__ = [
    "SOURCE_FORMATS",
    "Against",
    "Build",
    "Cleaning",
    "Corpus",
    "Counts",
    "Dedup",
    "Fields",
    "Filter",
    "Hub",
    "Language",
    "License",
    "Limit",
    "Mixture",
    "Near",
    "Normalize",
    "Pack",
    "Parallel",
    "Path_",
    "Recipe",
    "Sample",
    "Section",
    "Shards",
    "Source",
    "Split",
    "StackExchange",
    "Tokenizer",
    "Training",
    "TrainingPlan",
    "Values",
    "Warc",
    "Wikipedia",
    "Window",
    "format_mistakes",
    "template_parts",
]
