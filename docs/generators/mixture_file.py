"""Every key of a mixture in a file of its own, from the model that reads it.

tokmill.adhoc.mixtures ─> reference/mixture-file.md
"""

from __future__ import annotations

from tokmill.adhoc.mixtures import MixtureFile
from tokmill.reference.markup import fenced, page
from tokmill.reference.recipe_keys import sections

PATH = "reference/mixture-file.md"

_EXAMPLE = """
seed: 42
datasets:
  - {name: fineweb, dataset: HuggingFaceFW/fineweb, subset: sample-10BT, weight: 0.5, samples: 100000}
  - {name: mine, files: "data/*.jsonl.zst", weight: 0.5, text_field: body}
"""


def pages() -> dict[str, str]:
    return {
        PATH: page(
            "# Mixture file",
            "",
            "A list of datasets with weights, for commands that need texts and no recipe: `tokmill tokenizer "
            "train`, `encode`, `pack`, `shard` and `build`. Paths are relative to the file.",
            fenced(_EXAMPLE, "yaml"),
            *sections(MixtureFile),
        ),
    }
