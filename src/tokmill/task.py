"""A task: a pure function of its config and inputs, named so that any process can run it.

    Task(function, key, config, inputs, directory)  ->  files in directory + Receipt

The fingerprint covers what can change a byte: function, key, config and the content of the inputs. Where the
inputs lie on this machine, and what may follow in the same pass, is not part of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tokmill.manifest import FORMAT_VERSION, FileEntry, Json, Receipt, fingerprint_of
from tokmill.storage.parquet import load_table


class Input(msgspec.Struct, frozen=True):
    """A file that a task reads, known by its content."""

    role: str
    path: str
    content_sha256: str
    rows: int = 0


class Task(msgspec.Struct, frozen=True, kw_only=True):
    function: str
    key: str
    config: Json
    inputs: list[Input]
    directory: str
    followers: list[Json] = []  # tasks on the same shard to run in the same pass

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(
            {
                "function": self.function,
                "key": self.key,
                "format_version": FORMAT_VERSION,
                "config": self.config,
                "inputs": [[item.role, item.content_sha256] for item in self.inputs],
            }
        )

    def receipt(self, files: list[FileEntry], counts: Json, facts: Json | None) -> Receipt:
        return Receipt(
            key=self.key, fingerprint=self.fingerprint, files=files, counts=counts, facts=facts or {}
        )

    def paths(self, role: str) -> list[Path]:
        return [Path(item.path) for item in self.inputs if item.role == role]

    def load(self, role: str, columns: list[str] | None = None) -> Any:
        """The one table of that role."""
        (path,) = self.paths(role)
        return load_table(path, columns)


def table_input(role: str, directory: Path, entry: FileEntry) -> Input:
    return Input(role, str(directory / entry.path), entry.content_sha256, entry.rows)
