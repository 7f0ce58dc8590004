"""Rows of a build as a trainer sees them: ids, their pieces, documents, padding, and what is learned."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from tokmill.artifacts.manifest import Json
from tokmill.audit.check import row_spans
from tokmill.audit.trace import tokenizer_of
from tokmill.errors import InputError
from tokmill.explorer.passages import sendable
from tokmill.explorer.site import Site
from tokmill.loader.dataset import Dataset, open_dataset
from tokmill.tokenizers.protocol import Tokenizer

MAX_ROWS = 32
MAX_IDS = 65_536  # of one answer
_PIECES = 300_000  # that are remembered


class Builds:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._opened: dict[tuple[str, str], Dataset] = {}
        self._tokenizers: dict[str, Tokenizer] = {}
        self._pieces: dict[str, dict[int, str]] = {}

    def rows(self, build: str, split: str, first: int, count: int) -> Json:
        with self._lock:
            dataset = self._open(build, split)
            stop = min(first + min(max(count, 0), MAX_ROWS), len(dataset))
            told, ids = [], 0
            for row in range(first, stop):
                told.append(self._row(build, dataset, row))
                ids += len(told[-1]["ids"])
                if ids > MAX_IDS:
                    break
            return {
                "build": build,
                "split": split,
                "rows": told,
                "total": len(dataset),
                "seq_len": dataset.facts.seq_len,
                "eos_id": dataset.facts.eos_id,
            }

    def _open(self, build: str, split: str) -> Dataset:
        artifact = self._site.run.artifacts.get(f"build/{build}")
        if artifact is None or artifact.manifest.kind != "build":
            names = [step.removeprefix("build/") for step in self._site.run.of_kind("build")]
            raise InputError(
                f"no build is called {build[:80]}",
                where="build",
                next=f"one of: {', '.join(names) or 'none'}",
            )
        splits = [task["key"] for task in artifact.manifest.tasks]
        if split not in splits:
            raise InputError(
                f"{build} has no split {split[:80]}", where="split", next=f"one of: {', '.join(splits)}"
            )
        key = (build, split)
        if key not in self._opened:
            where = f"{self._site.url}/build/{build}" if self._site.url else artifact.directory
            self._opened[key] = open_dataset(where, split)
        return self._opened[key]

    def _row(self, build: str, dataset: Dataset, row: int) -> Json:
        example = dataset[row]
        ids = np.asarray(example["ids"], np.int64)[:MAX_IDS]
        spans = row_spans(dataset, row, example)
        length, width = len(example["ids"]), dataset.facts.seq_len
        loss = example.get("loss_mask")
        return {
            "row": row,
            "ids": ids.tolist(),
            "pieces": self._spelled(build, dataset, ids.tolist()),
            "documents": [
                {
                    "id": span.doc_id,
                    "source": span.source,
                    "start": span.start,
                    "end": span.end,
                    "offset": span.offset,
                }
                for span in spans
            ],
            "padding": [length, width] if width is not None and width > length else None,
            "loss": None if loss is None else [int(one) for one in loss[:MAX_IDS]],
            "length": length,
        }

    def _spelled(self, build: str, dataset: Dataset, ids: Sequence[int]) -> list[str]:
        """Each id by itself: a part of a character is U+FFFD."""
        if build not in self._tokenizers:
            self._tokenizers[build] = tokenizer_of(self._site.run)
        known = self._pieces.setdefault(build, {})
        if len(known) > _PIECES:
            known.clear()
        for one in set(ids) - set(known):
            known[one] = sendable(self._tokenizers[build].decode(np.array([one], np.int64))).text
        return [known[one] for one in ids]
