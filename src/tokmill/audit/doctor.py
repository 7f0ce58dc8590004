"""Is this machine ready? Facts and a self-test, nothing is changed.

An object store that is named is asked too: does it keep the conditions of conditional writes, or only take them?
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
import tempfile
from importlib import util
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from tokmill.environment import available_cores, package_version
from tokmill.errors import TokmillError
from tokmill.manifest import Json
from tokmill.storage import codecs
from tokmill.storage.digest import table_sha256
from tokmill.storage.objects.probe import OK, probe_store
from tokmill.storage.objects.url import parse_url
from tokmill.storage.records import Kind, Wanted

_REQUIRED = ("numpy", "numba", "pyarrow", "msgspec", "pydantic", "tokenizers", "tiktoken", "sentencepiece")
_EXTRAS = {
    "hub": "datasets",
    "ray": "ray",
    "dask": "distributed",
    "torch": "torch",
    "s3": "obstore",
    "gs": "obstore",
    "az": "obstore",
    "stackexchange": "py7zr",
    "warc": "fastwarc",
    "wikipedia": "mwparserfromhell",
}
_SAMPLE = ["plain", "línea dos", "日本語\u2028separator", 'quotes " and \\ and \t tab', ""]


@dataclasses.dataclass(frozen=True)
class Examination:
    ok: bool
    sections: dict[str, dict[str, str]]

    def as_json(self) -> Json:
        return dataclasses.asdict(self)


def examine(storage: str | None = None) -> Examination:
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    machine = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(available_cores()),
        "memory": f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free",
        "disk here": f"{disk.free / 2**30:.1f} of {disk.total / 2**30:.1f} GiB free",
    }
    versions = {"python": platform.python_version()}
    versions.update((name, package_version(name) or "missing") for name in ("tokmill", *_REQUIRED))
    extras = {
        extra: package_version(name) or f"not installed (pip install 'tokmill[{extra}]')"
        if util.find_spec(name)
        else f"not installed (pip install 'tokmill[{extra}]')"
        for extra, name in _EXTRAS.items()
    }
    tests = {suffix: _round_trip(suffix) for suffix in (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")}
    sections = {"machine": machine, "versions": versions, "extras": extras, "codec self-test": tests}
    is_ok = all(result == "ok" for result in tests.values())
    if storage is not None:
        found = probe_store(storage)
        sections[f"storage {parse_url(storage)}"] = {finding.what: finding.outcome for finding in found}
        is_ok = is_ok and all(finding.outcome == OK for finding in found)
    return Examination(is_ok, sections)


def _round_trip(suffix: str) -> str:
    """Write and read back a small table; the content digest must survive."""
    table = pa.table({"text": pa.array(_SAMPLE, pa.large_string())})
    wanted = [Wanted("text", "text", Kind.TEXT, True)]
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / f"sample{suffix}"
            codecs.write_table(path, table)
            batches: list[Any] = [
                batch.table
                for batch in codecs.read_batches(path, wanted, unit="document", max_record_bytes=1 << 20)
            ]
        return "ok" if table_sha256(pa.concat_tables(batches)) == table_sha256(table) else "content differs"
    except TokmillError as error:
        return str(error)
