"""Scores that are computed once: a step of its own, stored, and read by all that comes after."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `transformer` is not installed")
pytest.importorskip("transformers", reason="the extra `transformer` is not installed")

import tokmill as mill
from faults.dying import die_in_run
from mill import digest_of, small_corpus
from scores.tiny_transformer import forward, save_model
from stages.test_options import ClusterSession
from tokmill.artifacts.manifest import load_manifest as read_manifest
from tokmill.artifacts.progress import Silence
from tokmill.engines.local import Resources
from tokmill.errors import TokmillError
from tokmill.pipeline.plan import plan_steps, steps_until
from tokmill.stages.registry import STAGES
from written import load_lines, load_manifest, load_table

LEAST = 0.2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), ["LABEL_0"])


def corpus(directory: Path, model: Path, least: float = LEAST, **sections: Any) -> Path:
    """`edu`: as it is; `all`: over windows, which see the end of a document too."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "model").exists():
        shutil.copytree(model, directory / "model")
    section = {"path": "model", "device": "cpu"}
    scores = [
        {"name": "edu", "transformer": section, "percentile": "corpus"},
        {"name": "all", "transformer": section, "windows": {"words": 20, "aggregate": "min"}},
    ]
    sections.setdefault("filters", [{"measure": "score.edu", "min": least, "reason": "low_edu"}])
    sections.setdefault("scores", scores)
    return small_corpus(directory, shards={"megabytes": 1}, **sections)


def rows_of(out: Path, source: str) -> list[tuple[str, str, dict[str, Any], dict[str, Any], bool]]:
    """Text, id, what is stored, what cleaning measured, and whether it is kept."""
    found: list[Any] = []
    for entry in load_manifest(out / "ingest" / source).entries("documents"):
        key = entry.path.removeprefix("documents-")
        documents = load_table(out / "ingest" / source / entry.path)
        found += zip(
            documents.column("text").to_pylist(),
            documents.column("doc_id").to_pylist(),
            load_table(out / "inference" / source / f"scores-{key}").to_pylist(),
            load_table(out / "clean" / source / f"measures-{key}").to_pylist(),
            load_table(out / "clean" / source / f"marks-{key}").column("kept").to_pylist(),
            strict=True,
        )
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    return mill.run(corpus(tmp_path_factory.mktemp("run"), model), workers=1).out


def test_every_document_has_the_score_that_transformers_gives_its_text(run: Path, model: Path) -> None:
    rows = rows_of(run, "problems") + rows_of(run, "notes")
    assert len(rows) > 60
    for text, doc_id, stored, measures, kept in rows:
        assert stored["doc_id"] == doc_id
        assert measures["score.edu"] == stored["score.edu"]
        assert measures["score.all"] == stored["score.all"]
        assert kept == (stored["score.edu"] >= LEAST)
        if "\0" not in text and "\u0301" not in text:  # of which cleaning makes another text
            text = text.replace("\r\n", "\n")
            assert stored["score.edu"] == pytest.approx(forward(model, text)[0], abs=6e-5)
    assert {kept for *_, kept in rows} == {True, False}
    assert any(stored["score.all"] < stored["score.edu"] for _, _, stored, _, _ in rows)


def test_the_manifest_says_by_what_they_were_computed(run: Path, model: Path) -> None:
    import torch
    import transformers

    manifest = json.loads((run / "inference/problems/manifest.json").read_text())
    (told,) = manifest["facts"]["computed"]["edu"]
    assert (told["device"], told["precision"]) == ("cpu", "float32")
    assert (told["torch"], told["transformers"]) == (torch.__version__, transformers.__version__)
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in model.iterdir()}
    assert set(manifest["config"]["scores"][0]["files"]) == digests
    assert {value for key, value in manifest["inputs"].items() if key.startswith("file score")} == digests
    assert manifest["counts"]["in"] == manifest["counts"]["kept"]


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers_gives_one_digest(run: Path, tmp_path: Path, model: Path) -> None:
    """Each worker loads PyTorch: three take eight seconds longer than two."""
    assert digest_of(mill.run(corpus(tmp_path, model), workers=2).out) == digest_of(run)


def test_tasks_that_travel_as_json_give_the_same_artifacts(run: Path, tmp_path: Path, model: Path) -> None:
    loaded = mill.load_recipe(corpus(tmp_path, model))
    steps = steps_until(plan_steps(loaded, tmp_path, tmp_path / "there"), "clean")
    session = ClusterSession(tmp_path, tmp_path / "there", Resources(1), 1 << 20, Silence())
    there, _, _ = session.run_steps(steps)
    session.close()
    for step in steps:
        own = read_manifest(run / step.name)
        assert there[step.name].manifest.identity == own.identity
        assert own.options(STAGES[step.kind].options) == step.options  # type: ignore[arg-type]
        assert own.config == step.config
    assert {step.kind for step in steps} == {"ingest", "inference", "clean"}


def test_a_threshold_that_moves_computes_no_score_again(tmp_path: Path, model: Path) -> None:
    out = mill.run(corpus(tmp_path, model), workers=1).out
    before = {path: path.stat().st_mtime_ns for path in out.glob("inference/*/*")}
    assert before
    told = mill.whatif(out, {"score.edu.min": -1.0})
    again = mill.run(corpus(tmp_path, model, least=-1.0), workers=1)
    assert {path: path.stat().st_mtime_ns for path in out.glob("inference/*/*")} == before
    kept = sum(load_manifest(out / "clean" / source).counts["kept"] for source in ("problems", "notes"))
    assert kept == told.kept_then > told.kept_now
    fresh = mill.run(corpus(tmp_path / "fresh", model, least=-1.0), workers=1).out
    assert digest_of(again.out) == digest_of(fresh)


def test_a_run_that_was_cut_short_goes_on_from_what_is_stored(tmp_path: Path, run: Path, model: Path) -> None:
    recipe = corpus(tmp_path, model)
    out = mill.run(recipe, workers=1, until="inference").out
    # as a kill before the manifest leaves it: the receipts and the files are there
    manifest = out / "inference/problems/manifest.json"
    manifest.rename(manifest.with_name("manifest.stale.json"))
    files = sorted(out.glob("inference/*/scores-*.parquet"))
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    again = mill.run(recipe, workers=1).out
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before
    assert digest_of(again) == digest_of(run)


def test_a_run_that_is_killed_while_it_scores_keeps_what_is_stored(
    tmp_path: Path, run: Path, model: Path
) -> None:
    recipe, out = corpus(tmp_path, model), tmp_path / "out"
    die_in_run(recipe, out, after="task", name="inference/")
    assert not list(out.glob("inference/*/manifest.json"))
    files = sorted(out.glob("inference/*/scores-*.parquet"))
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    assert before
    mill.run(recipe, out, workers=1)
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before
    assert digest_of(out) == digest_of(run)


@pytest.mark.slow_faults
def test_ray_gives_the_same_run(run: Path, tmp_path: Path, model: Path) -> None:
    pytest.importorskip("ray")
    assert digest_of(mill.run(corpus(tmp_path, model), engine="ray", workers=2).out) == digest_of(run)


def test_another_model_computes_them_again(tmp_path: Path, model: Path) -> None:
    recipe = corpus(tmp_path, model)
    out = mill.run(recipe, workers=1, until="clean").out
    before = rows_of(out, "problems")
    shutil.rmtree(tmp_path / "model")
    save_model(tmp_path / "model", ["LABEL_0"], trained=False)
    mill.run(recipe, workers=1, until="clean")
    after = rows_of(out, "problems")
    assert all(a[2]["score.edu"] != b[2]["score.edu"] for a, b in zip(before, after, strict=True))
    assert all(row[2]["score.edu"] == row[3]["score.edu"] for row in after)


def test_a_pin_holds_all_files_of_the_model(tmp_path: Path, model: Path) -> None:
    names = sorted(path.name for path in model.iterdir())
    lines = "".join(f"{hashlib.sha256((model / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
    pin = hashlib.sha256(lines.encode()).hexdigest()
    scores = [{"name": "edu", "transformer": {"path": "model", "sha256": pin, "device": "cpu"}}]
    recipe = corpus(tmp_path, model, scores=scores)
    assert mill.run(recipe, workers=1, until="clean").out
    words = tmp_path / "model/tokenizer.json"
    words.write_text(words.read_text() + "\n")
    with pytest.raises(TokmillError, match=f"the recipe pins {pin}"):
        mill.run(recipe, tmp_path / "other", workers=1)
    assert not list((tmp_path / "other").rglob("*.parquet"))


def test_a_pickle_or_a_label_that_is_not_there_stops_the_run_before_anything_is_read(
    tmp_path: Path, model: Path
) -> None:
    scores = [{"name": "edu", "transformer": {"path": "model", "label": "best"}}]
    recipe = corpus(tmp_path, model, scores=scores, filters=[])
    with pytest.raises(TokmillError, match="no label 'best'"):
        mill.run(recipe, tmp_path / "one", workers=1)
    (tmp_path / "model/model.safetensors").rename(tmp_path / "model/pytorch_model.bin")
    with pytest.raises(TokmillError, match="a pickle"):
        mill.run(recipe, tmp_path / "two", workers=1)
    assert not [path for name in ("one", "two") for path in (tmp_path / name).rglob("*") if path.is_file()]


def test_verify_why_report_and_forget_know_the_step(tmp_path: Path, model: Path) -> None:
    builds = [{"name": "out", "format": "jsonl", "content": "text", "measures": True}]
    out = mill.run(corpus(tmp_path, model, builds=builds, tokenizer=None, pack=None), workers=1).out
    assert not mill.verify(out).problems
    doc_id = next(row[1] for row in rows_of(out, "problems") if row[4])
    assert "score.edu" in json.dumps(mill.why(out, doc_id, explain=True).as_json())
    facts = mill.report(out, out=tmp_path / "page").facts
    assert [score["measure"] for score in facts["scores"]] == ["score.edu", "score.all"]
    mill.forget(out, doc_id=[doc_id], source="problems", base=tmp_path, workers=1)
    assert not mill.verify(out).problems
    assert all(row[2]["doc_id"] != doc_id for row in rows_of(out, "problems"))
    lines = [line for path in sorted(out.glob("texts/out/**/*.jsonl*")) for line in load_lines(path)]
    assert lines
    assert all(line["doc_id"] != doc_id for line in lines)


def test_a_takedown_with_another_model_is_refused_before_anything_is_written(
    tmp_path: Path, model: Path
) -> None:
    out = mill.run(corpus(tmp_path, model), workers=1).out
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    told = json.loads((tmp_path / "model/config.json").read_bytes())
    (tmp_path / "model/config.json").write_text(json.dumps(told | {"_name_or_path": "another"}))
    doc_id = rows_of(out, "problems")[0][1]
    with pytest.raises(
        TokmillError, match=r"not the file that the run was made with \(the model of the score"
    ):
        mill.forget(out, doc_id=doc_id, source="problems", base=tmp_path, workers=1)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("counts", [(1,), pytest.param((1, 3), marks=pytest.mark.slow_faults)])
def test_a_score_that_is_stored_and_one_that_learns_stand_side_by_side(
    tmp_path: Path, model: Path, counts: tuple[int, ...]
) -> None:
    scores = [
        {"name": "edu", "transformer": {"path": "model", "device": "cpu"}},
        {"name": "good", "train": {"positive": [{"source": "problems"}], "negative": [{"source": "notes"}]}},
    ]
    runs = [
        mill.run(corpus(tmp_path / str(workers), model, scores=scores), workers=workers).out
        for workers in counts
    ]
    assert len({digest_of(out) for out in runs}) == 1
    rows = rows_of(runs[0], "problems") + rows_of(runs[0], "notes")
    assert all(measures["score.edu"] == stored["score.edu"] for _, _, stored, measures, _ in rows)
    goods = [measures["score.good"] for *_, measures, _ in rows]
    of_problems = len(rows_of(runs[0], "problems"))
    assert min(goods[:of_problems]) > max(goods[of_problems:])  # numbers and prose are told apart
    assert not mill.verify(runs[0]).problems
