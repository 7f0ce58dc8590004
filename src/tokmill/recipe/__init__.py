"""The recipe: its sections and keys, which say everything that can change a byte.

Paths are relative to the recipe's directory. Workers, engine and output directory are not here: they cannot
change the output.
"""

from tokmill.recipe.cleaning import Cleaning, Filter, Language, License, Normalize
from tokmill.recipe.dedup import Against, Dedup, Near, Window
from tokmill.recipe.packing import Build, Mixture, Pack
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
from tokmill.recipe.split import Counts, Split, Values
from tokmill.recipe.tokenizer import Tokenizer, Training
from tokmill.recipe.training_plan import TrainingPlan
from tokmill.recipe.whole import Recipe, Shards

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
    "template_parts",
]
