"""The recipe: its sections and keys, which say everything that can change a byte.

Paths are relative to the recipe's directory. Workers, engine and output directory are not here: they cannot
change the output.
"""

from tokmill.recipe.cleaning import Cleaning, Filter, Language, License, Normalize
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
    Against,
    Build,
    Dedup,
    Near,
    Pack,
    Recipe,
    Shards,
    Split,
    Tokenizer,
    Training,
    Window,
)

__all__ = [
    "SOURCE_FORMATS",
    "Against",
    "Build",
    "Cleaning",
    "Corpus",
    "Dedup",
    "Fields",
    "Filter",
    "Hub",
    "Language",
    "License",
    "Limit",
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
    "Warc",
    "Wikipedia",
    "Window",
    "template_parts",
]
