"""Small datasets under the names of real ones, for a hub on this machine."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from zstandard import ZstdDecompressor

from hub.loopback import LoopbackHub
from recipes.shelved import NAMES
from tokmill.recipe.examples import find_recipe
from tokmill.recipe.file import load_recipe

# dataset: (config, split, the file as it is called there, the file that stands in for it)
PUBLISHED: dict[str, tuple[str | None, str, str, str]] = {
    "wmt/wmt14": ("fr-en", "train", "fr-en/train-00000-of-00030.parquet", "pairs.jsonl"),
    "HuggingFaceFW/fineweb": ("sample-10BT", "train", "sample/10BT/000_00000.parquet", "web.jsonl.zst"),
    "HuggingFaceFW/fineweb-edu": ("sample-10BT", "train", "sample/10BT/000_00000.parquet", "web.jsonl.zst"),
    "wikimedia/wikipedia": (
        "20231101.en",
        "train",
        "20231101.en/train-00000-of-00041.parquet",
        "encyclopedia.parquet",
    ),
    "allenai/c4": ("en", "train", "en/c4-train.00000-of-01024.json.gz", "c4.jsonl.gz"),
    "DKYoon/SlimPajama-6B": (None, "train", "data/train-00000-of-00048.parquet", "slimpajama.jsonl.zst"),
    "codeparrot/codeparrot-clean": (None, "train", "file-000000000001.json.gz", "code.jsonl.zst"),
    "manu/project_gutenberg": (
        None,
        "en",
        "data/en-00000-of-00052-7cda8f63c262acf8.parquet",
        "encyclopedia.parquet",
    ),
    "open-web-math/open-web-math": (None, "train", "data/train-00000-of-00114.parquet", "webmath.jsonl.zst"),
    "codeparrot/github-jupyter-code-to-text": (None, "train", "data/train.parquet", "notebooks.parquet"),
    "gfissore/arxiv-abstracts-2021": (None, "train", "arxiv-abstracts.jsonl.gz", "abstracts.jsonl.gz"),
    "Salesforce/wikitext": (
        "wikitext-103-raw-v1",
        "train",
        "wikitext-103-raw-v1/train-00000-of-00002.parquet",
        "wikitext.parquet",
    ),
    "openai/gsm8k": ("main", "train", "main/train-00000-of-00001.parquet", "problems.jsonl"),
    "DigitalLearningGmbH/MATH-lighteval": (
        None,
        "train",
        "data/train-00000-of-00001.parquet",
        "competition.jsonl",
    ),
}


def publish(hub: LoopbackHub, stand_in: Path) -> None:
    """Commits that a recipe pins are there under the very digits."""
    pins = {
        source.hub.dataset: source.hub.revision
        for name in NAMES
        for source in load_recipe(find_recipe(name)).sources
        if source.hub is not None and len(source.hub.revision or "") == 40
    }
    for dataset, (config, split, path, file) in PUBLISHED.items():
        card = (
            f"---\nconfigs:\n- config_name: {config or 'default'}\n  data_files:\n  - split: {split}\n    "
            f"path: {path}\n---\n"
        )
        files = {"README.md": card.encode(), path: as_published(stand_in / file, path)}
        hub.commit(dataset, files)
        if pin := pins.get(dataset):
            hub.repositories[dataset].commits[pin] = files


def as_published(stand_in: Path, name: str) -> bytes:
    if name.endswith(".parquet"):
        if stand_in.suffix == ".parquet":
            return stand_in.read_bytes()
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(records(stand_in)), sink)
        return sink.getvalue()
    lines = "".join(json.dumps(record) + "\n" for record in records(stand_in))
    return gzip.compress(lines.encode())


def records(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    elif path.suffix == ".gz":
        data = gzip.decompress(data)
    return [json.loads(line) for line in data.splitlines()]
