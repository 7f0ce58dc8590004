"""A corpus of code, mathematics and prose that nothing is wrong with, and ways to spoil it, one at a time."""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import tokmill
from tokmill.artifacts.manifest import (
    MANIFEST,
    FileEntry,
    Receipt,
    build_manifest,
    load_manifest,
    write_manifest,
)
from tokmill.formats.index import IndexRow, RowSpans, read_row_index, write_row_index
from tokmill.storage.blocks import plain_sha256
from tokmill.storage.location import file_sha256

Record = dict[str, Any]
Corpus = dict[str, list[Record]]

WORDS = [
    "apple",
    "barley",
    "copper",
    "delta",
    "ember",
    "forest",
    "garden",
    "harbour",
    "island",
    "jasper",
    "kettle",
    "lantern",
    "meadow",
    "needle",
    "orchard",
    "pepper",
    "quarry",
    "river",
    "saddle",
    "timber",
    "umbrella",
    "valley",
    "willow",
    "yellow",
    "zephyr",
    "anchor",
    "bridge",
    "candle",
    "dragon",
    "engine",
    "falcon",
    "gravel",
    "hammer",
    "iron",
    "juniper",
    "kernel",
    "ladder",
    "marble",
    "nectar",
    "oyster",
    "pigeon",
    "quiver",
    "ribbon",
    "silver",
    "thunder",
    "urchin",
    "velvet",
    "window",
    "yonder",
    "zigzag",
    "acorn",
    "basket",
    "cellar",
    "doorway",
    "eagle",
    "fiddle",
    "glacier",
    "hollow",
    "inkwell",
    "jacket",
    "knuckle",
    "lemon",
    "mitten",
    "noodle",
    "otter",
    "parcel",
    "quince",
    "raven",
    "spindle",
    "tunnel",
    "upland",
    "violin",
    "walnut",
    "yarrow",
    "zinc",
    "almond",
    "beacon",
    "cradle",
    "dimple",
    "easel",
    "fennel",
]
DOMAINS = ("code", "math", "prose")
DOCUMENTS = 120


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def write_code(rng: random.Random) -> str:
    name = f"{rng.choice(WORDS)}_{rng.choice(WORDS)}"
    return f"{rng.choice(WORDS)} = lambda {name}: {name} * {rng.randint(2, 99)}\n# {words(rng, 60)}\n"


def write_math(rng: random.Random) -> str:
    a, b = rng.randint(2, 999), rng.randint(2, 999)
    return f"{rng.choice(WORDS)} {words(rng, 30)} {a} + {b} = {a + b}, {words(rng, 30)} \\boxed{{{a + b}}}"


def write_prose(rng: random.Random) -> str:
    return f"{words(rng, 65)}."


def clean_corpus() -> Corpus:
    rng = random.Random(5)
    writers = {"code": write_code, "math": write_math, "prose": write_prose}
    return {
        domain: [
            {
                "id": f"{domain}-{number:04d}" + (".py" if domain == "code" else ""),
                "text": writers[domain](rng),
                "license": "MIT",
                "lang": "python" if domain == "code" else "en",
                "label": f"{domain}-part-{number % 7}",
            }
            for number in range(DOCUMENTS)
        ]
        for domain in DOMAINS
    }


def clean_recipe() -> dict[str, Any]:
    return {
        "name": "clean",
        "seed": 3,
        "sources": [
            {
                "name": domain,
                "domain": domain,
                "files": f"{domain}.jsonl",
                "fields": {
                    "text": "text",
                    "id": "id",
                    "license": "license",
                    "language": "lang",
                    "meta": ["label"],
                },
            }
            for domain in DOMAINS
        ],
        "license": {"allow": ["MIT"], "unknown": "keep"},
        "language": {"method": "field"},
        "dedup": {"near": {}, "partitions": 1, "against": {"files": "bench.jsonl", "fields": ["question"]}},
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 400}, "eos": "<|endoftext|>"},
        "mixture": {"weights": dict.fromkeys(DOMAINS, 1), "normalize": True, "tokens": 50_000},
        "pack": {"length": 32},
        "builds": [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}],
        "review": {"model_params": 500, "train_tokens": "10k"},
    }


def mill(
    directory: Path,
    spoil: Callable[[Corpus, dict[str, Any]], None] | None = None,
    tokenizer: Path | None = None,
) -> Path:
    """The run of the clean recipe, spoilt; `tokenizer` is that of another run, which saves the training."""
    corpus, recipe = clean_corpus(), clean_recipe()
    if tokenizer is not None:
        pinned = {"path": str(tokenizer), "sha256": file_sha256(tokenizer)}
        recipe["tokenizer"] = {**pinned, "eos": recipe["tokenizer"]["eos"]}
        recipe["builds"] = recipe["builds"][:1]
    if spoil is not None:
        spoil(corpus, recipe)
    directory.mkdir(parents=True, exist_ok=True)
    for domain, records in corpus.items():
        lines = [json.dumps(record) + "\n" for record in records]
        (directory / f"{domain}.jsonl").write_text("".join(lines), encoding="utf-8")
    question = (
        "How many zebras may graze on nine hills before any of the seven shepherds takes notice of them?"
    )
    if not (directory / "bench.jsonl").exists():
        (directory / "bench.jsonl").write_text(json.dumps({"question": question}) + "\n")
    return tokmill.run(write_recipe(directory, recipe), workers=1).out


@functools.cache
def clean_run(directory: Path) -> Path:
    """Made once for all tests that only read it, or copy it."""
    return mill(directory / "clean")


def write_recipe(directory: Path, recipe: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1))  # JSON is YAML
    return path


# --- what the mill itself would never make ---


def reseal(run: Path, step: str) -> None:
    """The manifests as if the files of the step had been made so: only what they say is wrong, no hash."""
    directory = run / step
    manifest = load_manifest(directory)
    receipts = [
        msgspec.structs.replace(receipt, files=[_entry(directory, entry) for entry in receipt.files])
        for receipt in manifest.receipts()
    ]
    write_manifest(directory, again(manifest, receipts))
    root = load_manifest(run)
    files = [
        msgspec.structs.replace(
            entry,
            bytes=(run / entry.path).stat().st_size,
            sha256=file_sha256(run / entry.path),
            content_sha256=load_manifest(directory).identity
            if entry.path == f"{step}/{MANIFEST}"
            else entry.content_sha256,
        )
        for entry in root.files
    ]
    inputs = {**root.inputs, step: load_manifest(directory).identity}
    receipt = Receipt(key="run", fingerprint="", files=files, counts={})
    write_manifest(run, again(root, [receipt], inputs))


def _entry(directory: Path, entry: FileEntry) -> FileEntry:
    path = directory / entry.path
    sha256 = file_sha256(path)
    if sha256 == entry.sha256:
        return entry
    content = plain_sha256(path) if entry.table == "index" else sha256
    rows = sum(1 for _ in read_row_index(path)) if entry.table == "index" else entry.rows
    return msgspec.structs.replace(
        entry, bytes=path.stat().st_size, sha256=sha256, content_sha256=content, rows=rows
    )


def edit_config(run: Path, step: str, changes: Record) -> None:
    """The manifest of the step as if it had been asked for something else."""
    manifest = load_manifest(run / step)
    edited = msgspec.structs.replace(manifest, config={**manifest.config, **changes})
    write_manifest(run / step, again(edited, manifest.receipts()))
    reseal(run, step)


def again(manifest: Any, receipts: list[Receipt], inputs: dict[str, str] | None = None) -> Any:
    return build_manifest(
        kind=manifest.kind,
        step=manifest.step,
        config=manifest.config,
        inputs=manifest.inputs if inputs is None else inputs,
        receipts=receipts,
        counts=manifest.counts,
        facts=manifest.facts,
        experiment_id=manifest.experiment_id,
        environment=manifest.environment,
    )


def deal_out_rows(run: Path) -> None:
    """Every tenth row of training becomes the held-out split: what was packed is split."""
    build = run / "build" / "rows"
    lines = list(read_row_index(build / "train" / "index.jsonl.zst"))
    meta = json.loads((build / "train" / "meta.json").read_bytes())
    ids = np.fromfile(build / "train" / "input_ids.mmap", meta["dtype"]).reshape(-1, meta["seq_len"])
    is_held_out = np.arange(len(lines)) % 10 == 9
    for split, chosen in (("train", ~is_held_out), ("valid", is_held_out)):
        ids[chosen].tofile(build / split / "input_ids.mmap")
        described = json.loads((build / split / "meta.json").read_bytes())
        described["n_seqs"] = int(chosen.sum())
        (build / split / "meta.json").write_text(json.dumps(described))
        _write_index(build / split / "index.jsonl.zst", [lines[row] for row in np.flatnonzero(chosen)])
    reseal(run, "build/rows")


def _write_index(path: Path, lines: list[IndexRow]) -> None:
    spans = [(row, span) for row, line in enumerate(lines) for span in line.docs]
    columns = [
        [row for row, _ in spans],
        list(range(len(spans))),
        *([getattr(span, name) for _, span in spans] for name in ("start", "end", "offset")),
    ]
    write_row_index(
        path,
        RowSpans(*(np.array(column, np.int64) for column in columns)),
        [span.doc_id for _, span in spans],
        [span.source for _, span in spans],
    )


def remove_ends(run: Path) -> None:
    """EOS becomes another id, in every row of training."""
    eos = load_manifest(run / "build" / "rows").facts["tokenizer"]["eos_id"]
    path = run / "build" / "rows" / "train" / "input_ids.mmap"
    ids = np.fromfile(path, "int32")
    ids[ids == eos] = eos + 1
    ids.tofile(path)
    reseal(run, "build/rows")


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def copied(run: Path, target: Path) -> Path:
    return Path(shutil.copytree(run, target))
