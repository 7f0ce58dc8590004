"""What a model has seen by a state of its loader, as a section of the report of the run.

    state ─ the builds of the run with the files that it names ─ audit/seen ─> figures ─> tables

The report of a run is otherwise the same at any time; this section is of a moment of a training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokmill.artifacts.manifest import Json
from tokmill.audit.seen import Seen, load_state, seen, stage_alone
from tokmill.errors import InputError
from tokmill.loader.dataset import Dataset, list_splits, open_dataset
from tokmill.reports.charts import Section, bar, count, percent, shown, table

_BY = ("source", "domain", "license")


def describe_seen(directory: Path, state: Mapping[str, Any] | str | Path) -> list[Json]:
    """`state` is of builds of the run, in whatever order its loader read them; or of the stages of one."""
    told = load_state(state)
    if "stages" not in told:
        return [_described(directory, told, None, told["datasets"])]
    return [
        _described(directory, stage_alone(told, number), stage["name"], stage["datasets"])
        for number, stage in enumerate(told["stages"])
    ]


def _described(
    directory: Path, told: Mapping[str, Any], stage: str | None, datasets: Sequence[Mapping[str, Any]]
) -> Json:
    builds, split = _builds_of(directory, [one["fingerprint"] for one in datasets])
    by_key = {by: seen(builds, state=told, split=split, by=by) for by in _BY}
    first = by_key[_BY[0]]
    return {
        "stage": stage,
        "builds": [path.name for path in builds],
        "split": split,
        "epoch": first.epoch,
        "position": first.position,
        "epoch_samples": first.epoch_samples,
        "earlier_tokens": first.earlier_tokens,
        "total": first.total._asdict(),
        "passes": {str(often): documents for often, documents in first.passes.items()},
        "by": {by: _groups(found) for by, found in by_key.items()},
    }


def _groups(found: Seen) -> list[Json]:
    return [group._asdict() for group in sorted(found.groups, key=lambda one: (-one.seen, one.name))]


def _builds_of(directory: Path, wanted: Sequence[str]) -> tuple[list[Path], str]:
    """Those with these fingerprints, in their order, and their split."""
    opened = {
        (dataset.fingerprint, split): path
        for path in sorted((directory / "build").glob("*/"))
        if (path / "manifest.json").is_file()
        for split in list_splits(path)
        for dataset in _with_rows(path, split)
    }
    for split in dict.fromkeys(split for _, split in opened):
        found = [opened.get((fingerprint, split)) for fingerprint in wanted]
        if all(found):
            return [path for path in found if path is not None], split
    raise InputError(
        "is of other files than those that this run has built",
        where="state",
        next=f"give a state of a loader of {directory / 'build'}, or the run that it is of",
    )


def _with_rows(path: Path, split: str) -> list[Dataset]:
    dataset = open_dataset(path, split)
    return [dataset] if len(dataset) else []


def seen_section(facts: Json) -> Section:
    says = "What a model was trained on by a state of its loader."
    return Section("seen", "Seen", says, "".join(map(_moment, facts["seen"])))


def _moment(told: Json) -> str:
    builds = ", ".join(told["builds"])
    title = f"<h3>{shown(told['stage'] or builds)} <small>{_at(told)}</small></h3>"
    total = told["total"]
    often = ", ".join(f"{count(documents)} {_often(times)}" for times, documents in told["passes"].items())
    words = (
        f"<p>{count(total['seen'])} tokens, {total['epochs']:.2f} epochs of the {count(total['tokens'])} of "
        f"{shown(builds)} ({shown(told['split'])}); "
        f"{percent(total['new'] / total['tokens'] if total['tokens'] else None)} of them were seen once at "
        f"least. Documents seen whole: {often}.{_earlier(told)}</p>"
    )
    tables = "".join(_table(by, groups, total["seen"]) for by, groups in told["by"].items())
    return title + words + tables


def _at(told: Json) -> str:
    if told["stage"] is not None and told["epoch"]:
        return "after its end"
    sample = f"before sample {count(told['position'])} of {count(told['epoch_samples'])}"
    return sample if told["stage"] is not None else f"{sample} in epoch {count(told['epoch'])}"


def _earlier(told: Json) -> str:
    tokens = told["earlier_tokens"]
    return f" Earlier runs had {count(tokens)} tokens, which are not counted here." if tokens else ""


def _often(times: str) -> str:
    return {"0": "never", "1": "once"}.get(times, f"{times} times")


def _table(by: str, groups: list[Json], whole: int) -> str:
    rows = [
        [
            shown(group["name"]),
            bar(group["new"] / group["tokens"] if group["tokens"] else 0.0),
            percent(group["new"] / group["tokens"] if group["tokens"] else None),
            count(group["seen"]),
            percent(group["seen"] / whole if whole else None),
            f"{group['epochs']:.2f}",
            count(group["whole"]),
            count(group["partly"]),
            count(group["unseen"]),
        ]
        for group in groups
    ]
    heads = ["", "covered", "tokens seen", "share", "epochs", "documents whole", "partly", "not yet"]
    return table([f"By {by}", *heads], rows, 2)
