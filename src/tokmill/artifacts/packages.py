"""Entry points of installed packages, and what is known of the code behind one."""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any, Literal

from tokmill.errors import InputError

Kind = Literal["readers", "measures", "transforms", "formats", "tokenizers", "scores"]


def installed(kind: Kind) -> list[str]:
    """Names of the entry points that there are."""
    return list(entry_points(kind))


# Ours, through the same door: they see more than texts, need an extra, and know their digest.
_OURS = {"measures": {"parse_error_share": "tokmill.clean.parsing:PARSE_ERRORS"}}


@functools.cache
def entry_points(kind: Kind) -> dict[str, Any]:
    import importlib.metadata

    points = importlib.metadata.entry_points(group=f"tokmill.{kind}")
    found = {point.name: point for point in sorted(points, key=lambda point: (point.name, point.value))}
    ours = _OURS.get(kind, {}).items()
    return found | {name: importlib.metadata.EntryPoint(name, value, "") for name, value in ours}


@functools.cache
def load_entry_point(kind: Kind, name: str) -> Any:
    if name not in entry_points(kind):
        raise InputError(
            f"the {kind.removesuffix('s')} `{name}` is not installed here",
            where=f"entry points of tokmill.{kind}",
            next="install the package that has it, in the version that the step was planned with",
        )
    try:
        return entry_points(kind)[name].load()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the {kind.removesuffix('s')} at {entry_points(kind)[name].value} cannot be loaded ({error})",
            where=f"entry points of tokmill.{kind}",
            next="install the package that has it anew, or remove it",
        ) from error


@functools.cache
def installed_digest(kind: Kind, name: str) -> str:
    """Of the distribution's own files, as its RECORD has them: the same for any installer, on any machine."""
    point = entry_points(kind)[name]
    if name in _OURS.get(kind, ()):
        return str(point.load().digest())
    top = point.module.partition(".")[0]
    rows = csv.reader((point.dist.read_text("RECORD") or "").splitlines()) if point.dist else ()
    hashes = {row[0]: row[1] for row in rows if len(row) > 1 and row[1]}
    files = {
        path: sha256
        for path, sha256 in hashes.items()
        if ".dist-info/" not in path
        and not path.startswith(("../", "/"))
        and not path.startswith("__editable__")
    }
    if not any(path.split("/")[0] in (top, f"{top}.py") for path in files):
        files = _files_of(top)  # installed in place: what is listed is not what runs
    whose = (point.dist.name, point.dist.version) if point.dist else ("", "")
    return hashlib.sha256(json.dumps([*whose, sorted(files.items())]).encode()).hexdigest()


def _files_of(module: str) -> dict[str, str]:
    spec = importlib.util.find_spec(module)
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    found = [(path.relative_to(place).as_posix(), path) for place in places for path in place.rglob("*.py")]
    if not found and spec and spec.origin:
        found = [(Path(spec.origin).name, Path(spec.origin))]
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found}
