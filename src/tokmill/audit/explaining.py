"""What pushed the learned scores of a document up and down.

    document ─ text as cleaned ─ windows, where there are some ─ scorer.explain ─> pieces, the strongest first

A run names its models and not where they lie: they are looked for from `base`, or from the directories above
the run and the working one, by the names that the recipe has, and known by their sha256. A model that the run
has trained is in it. The text is the cleaned one; of a document that cleaning dropped, the one that was
received, whose score may be a little other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.manifest import Json
from tokmill.audit.opened import load_of
from tokmill.audit.places import Place, RunPlaces
from tokmill.audit.texts import Place as TextPlace
from tokmill.audit.texts import load_texts
from tokmill.clean.examine import CleanOptions
from tokmill.kernels.wordwindows import cut_windows
from tokmill.schema import string_column
from tokmill.scores import find_kind
from tokmill.scores.scoring import HOOK, ScorePlan, blamed, open_scorer, score_texts
from tokmill.stages.score.stage import with_models
from tokmill.storage.location import file_sha256

_PIECES = 8  # that push up, and as many that push down
_PIECE_CHARS = 80
_NEAR = 1e-9


def explain_scores(run: RunPlaces, place: Place, base: str | Path | None) -> Iterator[Json]:
    """Of every score of the document's source."""
    shard, row = place
    cleaned = run.artifacts.get(f"clean/{shard.source}")
    plans = cleaned.manifest.options(CleanOptions).scores if cleaned is not None else ()
    if not plans:
        return
    assert cleaned is not None
    where = TextPlace(shard.name, row)
    text = load_texts(run.artifacts, [where], None, until="edits")[where].text
    marks = load_of(cleaned, f"marks-{shard.key}.parquet", ["kept"])
    is_kept = marks is None or bool(marks.column("kept")[row].as_py())
    measures = load_of(cleaned, f"measures-{shard.key}.parquet", [plan.column for plan in plans])
    values: Json = measures.slice(row, 1).to_pylist()[0] if measures is not None else {}
    learned, models = with_models(plans, run.artifacts)
    for plan in learned:
        told: Json = {"score": plan.column, "value": values.get(plan.column), "windows": None, "note": None}
        if plan.kind == HOOK:
            yield {**told, "note": "a function of yours, which tells no reasons", "up": [], "down": []}
            continue
        if plan.is_stored:
            yield {**told, "note": "a model that tells no reasons", "up": [], "down": []}
            continue
        own = models.get(plan.name)
        files = {own[1]: own[0]} if own is not None else _find_files(run, plan, base)
        if files is None:
            note = "its model is not found: `--base` says where the recipe lies"
            yield {**told, "note": note, "up": [], "down": []}
            continue
        yield {**told, **_explained(text, plan, files, told["value"], is_kept)}


def _explained(
    text: str, plan: ScorePlan, files: dict[str, Path], value: float | None, is_kept: bool
) -> Json:
    scorer, column = open_scorer(plan, files), string_column(pa.array([text], pa.large_string()))
    told: Json = {}
    now = float(score_texts(column, plan, files)[0])
    if value is not None and abs(now - value) > _NEAR:
        which = (
            "of the cleaned text: an edit or redaction changed it"
            if is_kept
            else "of the text as it was received, before it was normalized and edited"
        )
        told["note"] = f"{which}; it scores {now:.6g}"
    if plan.windows is not None:
        offsets = cut_windows(column.data, column.offsets, plan.windows.words).offsets
        parts = [column.data[a:b].tobytes().decode() for a, b in pairwise(offsets)]
        whole = replace(plan, windows=None)
        scores = score_texts(string_column(pa.array(parts, pa.large_string())), whole, files).tolist()
        told["windows"] = [
            {"score": score, "begins": part.strip()[:_PIECE_CHARS]}
            for score, part in zip(scores, parts, strict=True)
        ]
    with blamed(plan):
        pieces = scorer.explain(text)
    for key, sign in (("up", 1), ("down", -1)):
        own = [piece for piece in pieces if piece.contribution * sign > 0][:_PIECES]
        told[key] = [{"piece": one.piece[:_PIECE_CHARS], "contribution": one.contribution} for one in own]
    return told


def _find_files(run: RunPlaces, plan: ScorePlan, base: str | Path | None) -> dict[str, Path] | None:
    """By sha256; None where one is not there, or is another now."""
    root = open_artifact(run.directory)
    listed: list[Any] = root.manifest.config.get("scores", []) if root is not None else []
    asked: Json = next((score for score in listed if score["name"] == plan.name), {})
    section = asked.get(plan.kind) or asked.get("options") or {}
    names = [str(section[key]) for key in find_kind(plan.kind).files if section.get(key) is not None]
    found: dict[str, Path] = {}
    for name, digest in zip(names, plan.files, strict=False):
        for above in [Path(base)] if base is not None else [*run.directory.resolve().parents[:3], Path()]:
            path = above / Path(name).expanduser()
            if path.is_file() and file_sha256(path) == digest:
                found[digest] = path
                break
    return found if set(plan.files) == set(found) else None
