"""From texts to columns: every score of a plan, in the pass that measures.

    texts ─┬─ windows ─ scorer ─ mean, max, min, share above ─> score.edu
           └─ scorer ────────────────────────────────────────> score.math

Scores that are stored (`ScoreKind.is_stored`) are computed by the same code, in a step before this pass.

A scorer is opened once in a process, and known by the digests of its files: a file that is another by then is
refused. Of a hook this knows only its name: it is asked where measures of hooks are. What the kind of a
package does wrong is told as theirs.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.plugins import Plugin
from tokmill.errors import InputChanged, InputError
from tokmill.kernels.wordwindows import Aggregate, aggregate, cut_windows
from tokmill.schema import SCORE, StringColumn, string_column
from tokmill.scores import Numbers, Scorer, find_kind
from tokmill.scores.device import choose_device, device_name
from tokmill.storage.location import file_sha256
from tokmill.tokenizers.regions import strip_marks

HOOK = "hook"
_KEPT_OPEN = 8  # or as many as a plan has


class WindowPlan(msgspec.Struct, frozen=True):
    words: int
    aggregate: Aggregate = "mean"
    bound: float = 0.0


class ScorePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of `scores`: all that can change a bit of its column."""

    name: str
    kind: str
    options: dict[str, Any] = {}
    files: tuple[str, ...] = ()  # sha256 of the model's, in the order of the kind
    windows: WindowPlan | None = None
    plugin: Plugin | None = None  # a hook, or a kind that is not ours
    step: str | None = None  # that trains the model, which has no digest yet
    version: int = 1  # of how it is computed, where nothing else tells it
    without_marks: bool = False  # of conversations: what marks their regions is no text

    @property
    def column(self) -> str:
        return SCORE + self.name

    @property
    def is_stored(self) -> bool:
        """A hook that is told its device computes as a transformer does."""
        return "device" in self.options if self.kind == HOOK else find_kind(self.kind).is_stored


def texts_to_score(texts: Any, plans: Iterable[ScorePlan]) -> Any:
    """As people read them: a mark would be a letter of the word beside it, and tell conversations apart."""
    return strip_marks(texts) if any(plan.without_marks for plan in plans) else texts


def score_columns(texts: Any, plans: Iterable[ScorePlan], files: Mapping[str, Path]) -> dict[str, Numbers]:
    """A column of each score that is no hook's, and not stored. `files`: where the models are, by sha256."""
    column = string_column(texts)
    own = [plan for plan in plans if plan.kind != HOOK and not plan.is_stored]
    return {plan.column: score_texts(column, plan, files, len(own)) for plan in own}


def score_texts(texts: StringColumn, plan: ScorePlan, files: Mapping[str, Path], among: int = 1) -> Numbers:
    """`among`: so many plans are asked of each shard, in turn."""
    scorer = open_scorer(plan, files, among)
    if plan.windows is None:
        return _answers(scorer, texts, plan)
    windows = cut_windows(texts.data, texts.offsets, plan.windows.words)
    valid = np.ones(len(windows.offsets) - 1, np.bool_)
    values = _answers(scorer, StringColumn(texts.data, windows.offsets, valid), plan)
    return aggregate(values.astype(np.float64), windows.firsts, plan.windows.aggregate, plan.windows.bound)


def open_scorer(plan: ScorePlan, files: Mapping[str, Path], among: int = 1) -> Scorer:
    assert plan.step is None, "a model that is trained by then"
    key = plan.kind, msgspec.json.encode(plan.options, order="sorted"), plan.files, plan.plugin
    with _LOCK:
        if key not in _OPEN:
            paths = [files[digest] for digest in plan.files]
            _refuse_others(paths, plan.files)
            kind = find_kind(plan.kind)
            if plan.plugin is not None:
                plan.plugin.load()  # of this very version
            while len(_OPEN) >= max(_KEPT_OPEN, among):
                _OPEN.pop(next(iter(_OPEN)))
            options = msgspec.convert(plan.options, kind.options)
            with blamed(plan):
                _OPEN[key] = kind.open(options, paths)
        return _OPEN[key]


def blamed(plan: ScorePlan) -> contextlib.AbstractContextManager[None]:
    """What goes wrong within is told as the package's, if the kind is of one."""
    return contextlib.nullcontext() if plan.plugin is None else plan.plugin.blamed()


def describe_scorer(plan: ScorePlan, files: Mapping[str, Path]) -> Json:
    """Of one that is stored: on what it computes."""
    if plan.kind == HOOK:
        return {"device": device_name(choose_device(plan.options["device"]))}
    told: Json = open_scorer(plan, files).describe()  # type: ignore[attr-defined]
    return told


_OPEN: dict[Any, Scorer] = {}
_LOCK = threading.Lock()


def _refuse_others(paths: Sequence[Path], digests: Sequence[str]) -> None:
    for path, digest in zip(paths, digests, strict=True):
        if model_sha256(path) != digest:
            raise InputChanged("the model changed while it was in use", where=str(path), next="run again")


def model_sha256(path: Path) -> str:
    """A file that nobody wrote to is read once in a process: a model may have gigabytes, and judge many
    sources."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, size: int, modified: int) -> str:
    return file_sha256(path)


def _answers(scorer: Scorer, texts: StringColumn, plan: ScorePlan) -> Numbers:
    rows = len(texts.offsets) - 1
    if plan.plugin is not None and (count := plan.plugin.asked_twice(rows)):
        some = StringColumn(texts.data, texts.offsets[: count + 1], texts.is_valid[:count])
        first, second = (_checked(scorer, some, plan).tolist() for _ in range(2))
        plan.plugin.refuse_difference(first, second)
    return _checked(scorer, texts, plan)


def _checked(scorer: Scorer, texts: StringColumn, plan: ScorePlan) -> Numbers:
    rows = len(texts.offsets) - 1
    with blamed(plan):
        values: Any = np.asarray(scorer.score(texts))
    is_right = values.shape == (rows,) and values.dtype in (np.float64, np.int64)
    if not is_right or not np.isfinite(values).all():
        told = f"answered {values.dtype} of shape {values.shape} for {rows} texts, or no finite number"
        next = "a scorer answers one finite int64 or float64 for each text"
        if plan.plugin is not None:
            raise plan.plugin.fault(told, next)
        raise InputError(told, where=f"score {plan.name} ({plan.kind})", next=next)
    numbers: Numbers = values
    return numbers
