"""Options are typed from the plan to the worker,
and JSON in between where they travel or are written down."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from made_fasttext import write_model
from mill import small_corpus
from tokmill import load_recipe
from tokmill.adhoc.index import index
from tokmill.artifacts.manifest import load_manifest
from tokmill.artifacts.progress import Silence
from tokmill.engines.cluster import ClusterEngine, Engine
from tokmill.engines.local import Resources
from tokmill.engines.orders import carry_out
from tokmill.errors import ManifestDamaged
from tokmill.pipeline.plan import plan_steps, steps_until
from tokmill.pipeline.run import run_recipe
from tokmill.pipeline.session import Session
from tokmill.stages.dedup.near import METHOD as NEAR
from tokmill.stages.registry import STAGES

DEDUP = {
    "near": {"threshold": "0.70", "ngram": 3},
    "window": {"words": 20, "winnow": 5, "policy": "trim", "max_share": "0.4"},
    "against": {"files": "items.jsonl", "fields": ["q"], "ngram": 5, "min_words": 5},
    "keep": "best",
    "max_source_loss": 1,
}


class Here:
    """A cluster of this process: every task goes to its worker, and its receipt comes back, as bytes of
    JSON."""

    name = "here"
    is_blame_shared = False
    max_deaths = 1
    killer = ""
    has_nodes = False

    def submit(self, order: bytes, needed_bytes: int = 0) -> bytes:
        return carry_out(order)

    def submit_elsewhere(self, order: bytes, handle: bytes) -> None:
        return None

    def begun_at(self, handle: bytes, submitted_at: float) -> float:
        return submitted_at

    def wait(self, handles: Sequence[bytes], seconds: float | None = None) -> Sequence[bytes]:
        return handles

    def reply(self, handle: bytes) -> bytes:
        return handle

    def discard(self, handle: bytes) -> None:
        pass

    def cancel(self, handles: Sequence[bytes]) -> None:
        pass

    def workers(self) -> int:
        return 1

    def traffic(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


class ClusterSession(Session):
    def _open_engine(self) -> Engine:
        self._engine = self._engine or ClusterEngine(Here(), 1, print)
        return self._engine


LEARNED = {
    "name": "worked",
    "train": {
        "positive": [{"source": "problems", "where": [{"measure": "chars", "min": 5}]}],
        "negative": [{"source": "notes"}, {"files": "items.jsonl", "text": "q"}],
        "rate": "1.5",
    },
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


@pytest.fixture
def learning(tmp_path: Path) -> Path:
    """Steps of every kind, but for those of a curriculum."""
    return write_recipe(tmp_path, [LEARNED])


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """A curriculum, with bounds on lengths and scores."""
    stages = [
        {"name": "main", "tokens": 600},
        {
            "name": "long",
            "steps": 2,
            "length": 64,
            "min_tokens": 20,
            "where": [{"by": "score.edu.percentile", "min": 5}],
            "weights": {"math": "1", "prose": "0"},
        },
    ]
    mixture = {
        "weights": {"math": "0.7", "prose": "0.3"},
        "held_out": "whole",
        "batch_tokens": 128,
        "exhausted": "renormalize",
        "stages": stages,
    }
    builds = [{"name": "rows", "format": "memmap"}]
    return write_recipe(tmp_path, mixture=mixture, builds=builds, pack={"length": 32})


def write_recipe(tmp_path: Path, scores: Sequence[object] = (), **sections: object) -> Path:
    (tmp_path / "items.jsonl").write_text('{"q": "the mill stands by the river and turns all day"}\n')
    write_model(tmp_path / "edu.bin")
    return small_corpus(
        tmp_path,
        scores=[
            {"name": "edu", "fasttext": {"path": "edu.bin", "label": "good"}, "percentile": "domain"},
            *scores,
        ],
        dedup=DEDUP,
        language={"method": "none", "keep": ["en"]},
        license={"unknown": "keep"},
        redact=["email"],
        split={"method": "counts", "by": "cluster", "counts": {"valid": 5}},
        **{
            "mixture": {
                "weights": {"math": "0.7", "prose": "0.3"},
                "documents": 20,
                "exhausted": "renormalize",
            },
            "builds": [
                {"name": "rows", "format": "memmap"},
                {"name": "texts", "format": "jsonl", "content": "text"},
            ],
            **sections,
        },
    )


@pytest.mark.parametrize("which", ["learning", "staged"])
def test_a_run_whose_tasks_travel_as_json_is_the_same_run(
    which: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    loaded = load_recipe(request.getfixturevalue(which))
    here = run_recipe(loaded, tmp_path, tmp_path / "here", workers=1).artifacts
    steps = plan_steps(loaded, tmp_path, tmp_path / "there")
    session = ClusterSession(tmp_path, tmp_path / "there", Resources(1), 1 << 20, Silence())
    there, _, _ = session.run_steps(steps)
    session.close()
    assert {name: (a.manifest.identity, a.manifest.tasks) for name, a in there.items()} == {
        name: (a.manifest.identity, a.manifest.tasks) for name, a in here.items()
    }


def test_options_of_a_manifest_are_those_of_the_step_that_wrote_it(learning: Path, tmp_path: Path) -> None:
    loaded = load_recipe(learning)
    run_recipe(loaded, tmp_path, tmp_path / "out", workers=1)
    steps = plan_steps(loaded, tmp_path, tmp_path / "out")
    # an index is no step of a recipe; inference, which takes the extra `transformer`, is in test_inference.py
    # and a curriculum below
    assert {step.kind for step in steps} | {"index", "inference", "curriculum"} == set(STAGES)
    check_options(steps)
    dedup = load_manifest(tmp_path / "out/dedup")
    assert dedup.config["near"]["threshold"] == "0.7"
    near = NEAR.asked_in(dedup)
    assert near is not None
    assert near.threshold == Decimal("0.7")
    index(tmp_path / "out", out=tmp_path / "index", splits=["train"], ids=True, workers=1)
    made = load_manifest(tmp_path / "index").options(STAGES["index"].options)  # type: ignore[arg-type]
    assert (made.splits, made.ids, made.sketch.threshold) == (("train",), True, near.threshold)


def check_options(steps: Sequence[Any]) -> None:
    for step in steps:
        manifest = load_manifest(step.directory)
        assert manifest.options(STAGES[step.kind].options) == step.options  # type: ignore[arg-type]
        assert manifest.config == step.config


def test_options_of_stages_are_those_of_their_manifests(staged: Path, tmp_path: Path) -> None:
    loaded = load_recipe(staged)
    run_recipe(loaded, tmp_path, tmp_path / "out", workers=1)
    steps = plan_steps(loaded, tmp_path, tmp_path / "out")
    assert {"stage/main", "stage/long", "curriculum", "build/rows-long"} <= {step.name for step in steps}
    check_options(steps)


def test_a_manifest_of_other_options_says_what_to_do(recipe: Path, tmp_path: Path) -> None:
    run_recipe(load_recipe(recipe), tmp_path, tmp_path / "out", workers=1, until="dedup")
    manifest = load_manifest(tmp_path / "out/dedup")
    changed = msgspec.structs.replace(manifest, config={**manifest.config, "keep": "loudest"})
    with pytest.raises(ManifestDamaged, match=r"loudest.*keep"):
        changed.options(STAGES["dedup"].options)


def test_no_step_of_a_plan_is_changed_by_asking_for_some(recipe: Path, tmp_path: Path) -> None:
    steps = plan_steps(load_recipe(recipe), tmp_path, tmp_path / "out")
    chosen = steps_until(steps, "ingest/problems")
    assert chosen[-1].extra.follower is None
    assert all(step.extra.follower is not None for step in steps if step.kind == "ingest")
