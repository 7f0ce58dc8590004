"""A small run with everything that a report shows:
drops near a bound, near duplicates, licences, a hostile text."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import tokmill
from mill import small_corpus

HOSTILE_ID = "evil\"'</script><b>"
HOSTILE = (
    "</script><script>window.pwned = 1; document.title = 'pwned'</script><img src=x onerror='window.pwned = "
    "2'> "
    'and then \u202eturned\u202c around, \u2028 with & and "quotes" enough to be kept here '
    "</pre></blockquote>"
)
MILL = (
    "The mill by the river has four stones and two wheels, and the miller knows the sound of each of them. "
    "In the morning the sluice is opened by hand, slowly, because the old timber does not like haste; in the "
    "evening it is closed again. Between the two the flour falls into sacks that somebody has to carry, one "
    "after the other, up the ladder and across the yard to the barn where the cats are. "
)
FAULTS = ["just right", "short one", "tiny!!"]  # characters against a bound of 10: 10, 9, 6


def write_wild(path: Path) -> None:
    near = MILL.replace("four stones", "five stones")
    documents = [
        {"id": HOSTILE_ID, "text": HOSTILE, "license": "MIT"},
        {"id": "mill-1", "text": MILL * 3, "license": "CC-BY-4.0"},
        {"id": "mill-2", "text": MILL * 2 + near, "license": "CC-BY-4.0"},
        {"id": "mill-3", "text": MILL * 3, "license": None},
        *({"id": f"fault-{at}", "text": text, "license": "MIT"} for at, text in enumerate(FAULTS)),
    ]
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")


def write_corpus(directory: Path, **sections: Any) -> Path:
    """The recipe of such a run."""
    recipe_path = small_corpus(directory, problems=90)
    write_wild(directory / "wild.jsonl")
    recipe = json.loads(recipe_path.read_text())
    wild = {
        "name": "wild",
        "domain": "web",
        "files": "wild.jsonl",
        "fields": {"id": "id", "license": "license"},
    }
    recipe["sources"].append(wild)
    recipe["filters"] = [
        {"measure": "chars", "min": 10, "reason": "too_short"},
        {"measure": "words", "min": 1},
    ]
    recipe["dedup"] = {"exact": "folded", "near": {"threshold": 0.7}}
    recipe["builds"].append({"name": "table", "format": "parquet", "pack": {"layout": "indexed"}})
    recipe.update(sections)
    kept = {key: value for key, value in recipe.items() if value is not None}
    recipe_path.write_text(json.dumps(kept, indent=1))
    return recipe_path


def figures_of(run: Path) -> dict[str, Any]:
    """What a report of the run says, read from its file."""
    with tempfile.TemporaryDirectory() as place:
        found: dict[str, Any] = json.loads(tokmill.report(run, out=place).figures.read_bytes())
    return found
