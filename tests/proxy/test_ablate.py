"""`tokmill ablate` from end to end, on builds that take seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import tokmill  # noqa: E402
from mill import small_corpus  # noqa: E402
from mill import tokmill as command  # noqa: E402
from tokmill.errors import InputError, TokenizerError, TokmillError  # noqa: E402
from tokmill.proxy import experiments  # noqa: E402
from tokmill.proxy.targets import short_names  # noqa: E402
from written import load_lines  # noqa: E402

QUICK: Any = {"size": "0.2M", "tokens": 8192, "seeds": 2, "held_out_bytes": 2000, "device": "cpu"}
MOMENTARY = {"seconds", "out", "directory", "text"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    for name, least in (("a", 5), ("b", 150)):
        rule = {"measure": "chars", "min": least, "reason": "too_short"}
        recipe = small_corpus(directory / name, problems=120, filters=[rule])
        tokmill.run(recipe, directory / name / "out", workers=1)
    return directory


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if key not in MOMENTARY}
    return [plain(one) for one in value] if isinstance(value, list) else value


def targets(runs: Path) -> list[Path]:
    return [runs / "a/out/build/rows", runs / "b/out/build/rows"]


def test_python_and_the_command_line_give_the_same_result_and_the_same_files(
    runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("The mill stands by the river.")
    (tmp_path / "items.jsonl").write_text('{"prompt": "2 + 2 =", "choices": [" 3", " 4"], "answer": 1}\n')
    result = tokmill.ablate(
        targets(runs),
        **QUICK,
        text=[tmp_path / "mine.txt"],
        choices=[tmp_path / "items.jsonl"],
        out=tmp_path / "python",
    )
    options = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]
    done = command(
        *("ablate", *targets(runs), *options, "--text", tmp_path / "mine.txt"),
        *("--choices", tmp_path / "items.jsonl", "--out", tmp_path / "command", "--json"),
        env={"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown.pop("ok") is True
    assert plain(json.loads(json.dumps(result.as_json()))) == plain(shown)
    for place in ("python", "command"):
        written = json.loads((tmp_path / place / "ablation.json").read_bytes())
        assert plain(written) == plain(shown)
        assert "| mine.txt | b |" in (tmp_path / place / "ablation.md").read_text()


def test_every_figure_of_a_verdict_follows_from_the_scores(runs: Path, tmp_path: Path) -> None:
    told = tokmill.ablate(targets(runs), **QUICK, out=tmp_path).as_json()
    values = {(s["target"], s["name"], s["seed"]): s["value"] for s in told["scores"]}
    for one in told["differences"]:
        pairs = [(values["a", one["domain"], seed], values["b", one["domain"], seed]) for seed in (1, 2)]
        assert one["base"] == pytest.approx(sum(a for a, _ in pairs) / 2)
        assert one["difference"] == pytest.approx(sum(b - a for a, b in pairs) / 2)
        spread = abs((pairs[0][1] - pairs[0][0]) - (pairs[1][1] - pairs[1][0])) / 2
        assert one["high"] - one["difference"] == pytest.approx(63.657 * spread, rel=1e-3)  # t of 1 and 99 %
    assert told["asked"]["size"] == "0.2M"
    for trial in told["targets"]:
        assert trial["tokens"] == 2 * 4 * 32 * 64  # seeds, steps, rows, tokens of a row
        assert trial["learned"] == 2 * 4 * 32 * 63
        assert trial["epochs"] == pytest.approx(4 * 32 / trial["rows"], abs=1e-3)


@pytest.mark.parametrize(
    ("confidence", "told", "noise"),
    [(0.99, "99%", "0.01"), (0.995, "99.5%", "0.005"), (0.999, "99.9%", "0.001"), (0.9, "90%", "0.1")],
)
def test_the_page_tells_the_confidence_as_it_was_asked_for(
    confidence: float, told: str, noise: str, runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.getbasetemp() / "confidence"  # its models are trained once
    tokmill.ablate(targets(runs), **{**QUICK, "tokens": 2048}, confidence=confidence, out=out)
    page = (out / "ablation.md").read_text()
    assert f"a confidence of {told};" in page
    assert f"Noise: p is {noise} or more." in page


def test_models_that_are_there_are_not_trained_again(runs: Path, tmp_path: Path) -> None:
    first = tokmill.ablate(targets(runs), **QUICK, out=tmp_path).as_json()
    weights = sorted((tmp_path / "models").glob("*/weights.safetensors"))
    assert len(weights) == 4
    before = {path: path.stat().st_mtime_ns for path in weights}
    weights[0].with_name("scores.json").unlink()  # killed before it was judged
    again = tokmill.ablate(targets(runs), **QUICK, out=tmp_path).as_json()
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in weights} == before
    shutil.rmtree(weights[1].parent)  # killed before it was trained
    assert plain(tokmill.ablate(targets(runs), **QUICK, out=tmp_path).as_json()) == plain(first)
    assert weights[1].exists()


def test_models_that_were_judged_or_trained_otherwise_are_not_compared(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {**QUICK, "tokens": 2048, "seeds": 1}

    def again() -> tuple[dict[Path, int], dict[Path, set[str]]]:
        tokmill.ablate(targets(runs), **quick, out=tmp_path)
        weights = tmp_path.glob("models/*/weights.safetensors")
        scores = tmp_path.glob("models/*/scores.json")
        return (
            {path: path.stat().st_mtime_ns for path in weights},
            {path: set(json.loads(path.read_bytes())) for path in scores},
        )

    weights, scores = again()
    assert len(weights) == 2
    monkeypatch.setattr(experiments, "JUDGING", experiments.JUDGING + 1)
    same, judged = again()
    assert same == weights
    assert all(len(judged[path]) == 2 * len(names) and judged[path] > names for path, names in scores.items())
    monkeypatch.setattr(experiments, "TRAINING", experiments.TRAINING + 1)
    trained, _ = again()
    assert len(trained) == 4
    assert trained.items() > weights.items()


def test_a_build_is_not_different_from_itself(runs: Path, tmp_path: Path) -> None:
    build = targets(runs)[0]
    told = tokmill.ablate([build, build], **QUICK, out=tmp_path).as_json()
    assert {one["verdict"] for one in told["differences"]} == {"noise"}
    assert {one["difference"] for one in told["differences"]} == {0.0}


def test_what_is_judged_on_is_held_out_by_the_first_run_and_in_no_training_data(
    runs: Path, tmp_path: Path
) -> None:
    told = tokmill.ablate(targets(runs), **{**QUICK, "held_out_bytes": "1M"}, out=tmp_path).as_json()
    texts = _exported(runs / "a/out", tmp_path)
    assert min(map(len, texts.values())) > 5
    judged = texts["valid"] - texts["train"]
    by_name = {one["name"]: one for one in told["texts"]}
    assert sum(one["documents"] for one in by_name.values()) == len(judged)
    assert sum(one["bytes"] for one in by_name.values()) == sum(len(text.encode()) for text in judged)


def _exported(run: Path, tmp_path: Path) -> dict[str, set[str]]:
    """Texts by split, as another verb writes them."""
    out = tmp_path / "exported"
    tokmill.export(run, out=out, workers=1)
    return {
        split: {record["text"] for path in sorted((out / split).glob("*.zst")) for record in load_lines(path)}
        for split in ("train", "valid")
    }


def test_a_budget_larger_than_the_data_tells_its_epochs(runs: Path, tmp_path: Path) -> None:
    told = tokmill.ablate(targets(runs), **{**QUICK, "tokens": "60k", "seeds": 1}, out=tmp_path).as_json()
    for trial in told["targets"]:
        assert trial["epochs"] == pytest.approx(29 * 32 / trial["rows"], abs=1e-3)
        assert trial["epochs"] > 1
        assert any(f"seen {trial['epochs']:.1f} times" in note for note in told["notes"])
    assert any(note.startswith("one seed") for note in told["notes"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"targets": ["a/out", "nowhere"], "build": "rows"}, "no such directory"),
        ({"targets": ["a/out", "b/out"]}, "has several builds"),
        ({"targets": ["a/out", "b/out"], "build": "cols"}, "has no build 'cols'"),
        ({"targets": ["a/out/build/rows"]}, "nothing to compare it with"),
        ({"length": 48}, "no multiple of 48"),
        ({"batch_tokens": 32}, "a step takes 32"),
        ({"batch_tokens": "1M"}, "a step takes 1,000,000"),
        ({"held_out": "none"}, "nothing to judge the models on"),
        ({"size": "7B"}, "'7B' is not a choice"),
        ({"tokens": "many"}, "should be an amount"),
        ({"confidence": 2.0}, "2.0"),
        ({"rate": -1.0}, "rate: -1.0"),
        ({"rate": float("nan")}, "rate: nan"),
        ({"grid": 6, "spread": 0.0}, "spread: 0.0"),
        ({"grid": 6, "leave_one_out": "rules"}, "both were asked for"),
        ({"grid": 6}, "variants are made of one recipe"),
        ({"text": ["binary"]}, "is not UTF-8"),
        ({"text": ["empty"]}, "is empty"),
        ({"text": ["math"]}, "two of the texts are called 'math'"),
    ],
)
def test_what_cannot_be_compared_is_told(
    change: dict[str, Any], told: str, runs: Path, tmp_path: Path
) -> None:
    for name, data in (("binary", b"\xff\xfe"), ("empty", b""), ("math", b"2 + 2")):
        (tmp_path / name).write_bytes(data)
    options = {**QUICK, "targets": targets(runs), **change}
    options["targets"] = [runs / target for target in options["targets"]]
    options["text"] = [tmp_path / name for name in options.get("text", [])]
    with pytest.raises(InputError, match=told) as error:
        tokmill.ablate(**options, out=tmp_path / "out")
    assert error.value.next


def test_a_build_without_its_tokenizer_or_its_run_is_told(runs: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(runs / "a/out/build/rows", alone)
    with pytest.raises(TokenizerError, match="not beside it"):
        tokmill.ablate([alone, targets(runs)[1]], **QUICK, out=tmp_path / "out")
    shutil.copytree(runs / "a/out", tmp_path / "run")
    (tmp_path / "run/manifest.json").unlink()
    with pytest.raises(InputError, match="held-out texts are not at hand") as error:
        tokmill.ablate([tmp_path / "run/build/rows", targets(runs)[1]], **QUICK, out=tmp_path / "out")
    assert "--text" in error.value.next
    (tmp_path / "mine.txt").write_text("The mill stands by the river.")
    told = tokmill.ablate(
        [tmp_path / "run/build/rows", targets(runs)[1]],
        **{**QUICK, "seeds": 1},
        held_out="none",
        text=[tmp_path / "mine.txt"],
        out=tmp_path / "out",
    )
    assert [one["name"] for one in told.texts] == ["mine.txt"]


def test_a_run_without_a_held_out_split_is_told(tmp_path: Path) -> None:
    for name in "ab":
        recipe = small_corpus(tmp_path / name, problems=60, split={"valid_fraction": "0"})
        tokmill.run(recipe, tmp_path / name / "out", workers=1)
    with pytest.raises(InputError, match="no document is held out") as error:
        tokmill.ablate(
            [tmp_path / name / "out" for name in "ab"], build="rows", **QUICK, out=tmp_path / "out"
        )
    assert "valid_fraction" in error.value.next


def test_a_weight_file_that_is_damaged_is_told(runs: Path, tmp_path: Path) -> None:
    options = {**QUICK, "seeds": 1}
    tokmill.ablate(targets(runs), **options, out=tmp_path)
    path = sorted((tmp_path / "models").glob("*/weights.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TokmillError, match="damaged"):
        tokmill.ablate(targets(runs), **options, out=tmp_path)


def test_names_are_what_is_different_about_paths() -> None:
    paths = [Path("/x/raw/build/rows"), Path("/x/clean/v2/build/rows")]
    assert short_names(paths) == ["raw", "clean/v2"]
    assert short_names([paths[0], paths[0]]) == [str(paths[0]), f"{paths[0]} (2)"]
    assert short_names([Path("/x"), Path("/x/y")]) == ["/x", "/x/y"]


def test_builds_of_two_tokenizers_are_judged_on_the_same_bytes(tmp_path: Path) -> None:
    for size in (280, 400):
        tokenizer = {"train": {"model": "byte_bpe", "vocab_size": size}, "eos": "<|endoftext|>"}
        recipe = small_corpus(tmp_path / str(size), problems=200, tokenizer=tokenizer)
        tokmill.run(recipe, tmp_path / str(size) / "out", workers=1)
    told = tokmill.ablate(
        [tmp_path / "280/out", tmp_path / "400/out"], build="rows", **QUICK, out=tmp_path / "out"
    ).as_json()
    assert [trial["vocab_size"] for trial in told["targets"]] == [280, 400]
    for one in told["scores"]:
        assert 0 < one["value"] < 8


def test_leaving_out_sources_runs_the_recipe_without_each_of_them(tmp_path: Path) -> None:
    sources = [{"name": name, "domain": name, "files": f"{name}.jsonl"} for name in ("one", "two")]
    recipe = small_corpus(tmp_path, sources=sources, mixture={"weights": {"one": 0.6, "two": 0.4}})
    for name in ("one", "two"):
        lines = [{"id": f"{name}-{at}", "text": f"{name} says {at} things " * 12} for at in range(80)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = tokmill.ablate(
        [recipe], leave_one_out="sources", build="rows", **QUICK, by="source", workers=1, out=tmp_path / "out"
    ).as_json()
    assert {one["domain"] for one in told["differences"]} == {"one", "two", "mean of sources"}
    assert [trial["name"] for trial in told["targets"]] == ["whole", "without-one", "without-two"]
    assert {one["name"] for one in told["texts"]} == {"one", "two"}
    runs = tmp_path / "out/runs"
    for variant, left in (("without-one", "two"), ("without-two", "one")):
        assert tokmill.verify(runs / variant).ok, tokmill.verify(runs / variant).problems
        assert sorted(path.name for path in (runs / variant / "ingest").iterdir()) == [left]
        documents = next((runs / "whole/ingest" / left).glob("documents-*"))
        linked = runs / variant / "ingest" / left / documents.name
        assert linked.stat().st_ino == documents.stat().st_ino  # it was not read again
        tokenizers = [runs / name / "tokenizer/tokenizer.json" for name in ("whole", variant)]
        assert tokenizers[0].read_bytes() == tokenizers[1].read_bytes()
    assert tokmill.verify(runs / "whole").ok


def test_leaving_out_rules_brings_their_documents_back(tmp_path: Path) -> None:
    rules: Any = [
        {"measure": "chars", "min": 5, "reason": "too_short"},
        {"measure": "chars", "max": 300, "reason": "too_long"},
    ]
    recipe = small_corpus(tmp_path, problems=120, filters=rules, dedup={"exact": True})
    told = tokmill.ablate(
        [recipe], leave_one_out="rules", build="rows", **QUICK, workers=1, out=tmp_path / "out"
    ).as_json()
    names = ["whole", "without-too_short", "without-too_long", "without-dedup"]
    assert [trial["name"] for trial in told["targets"]] == names
    kept = {}
    for name in names:
        manifest = json.loads((tmp_path / "out/runs" / name / "clean/problems/manifest.json").read_text())
        kept[name] = manifest["counts"]["kept"]
    assert kept["without-too_long"] > kept["whole"] == kept["without-dedup"]


def test_a_grid_proposes_weights_and_says_how_sure_it_is(tmp_path: Path) -> None:
    recipe = small_corpus(
        tmp_path,
        problems=150,
        mixture={
            "weights": {"math": 0.5, "prose": 0.5},
            "tokens": 12_000,
            "exhausted": "repeat",
            "max_epochs": 99,
        },
    )
    (tmp_path / "notes.txt").write_text(
        "\n\n".join(
            f"Note {at}: the mill by river {at % 7} turns all day, and stops at {at}." for at in range(300)
        )
    )
    told = tokmill.ablate(
        [recipe], grid=6, build="rows", **{**QUICK, "seeds": 1}, workers=1, out=tmp_path / "out"
    ).as_json()
    mixture = told["mixture"]
    assert mixture["present"] == {"math": 0.5, "prose": 0.5}
    assert mixture["mixtures"] == 7
    assert sum(one["weight"] for one in mixture["weights"].values()) == pytest.approx(1)
    assert mixture["verdict"] in ("better", "noise")
    page = (tmp_path / "out/ablation.md").read_text()
    assert f"## Proposed weights\n\n{mixture['told']}" in page
    inodes = {
        path.stat().st_ino for path in (tmp_path / "out/runs").glob("*/tokens/train/math/tokens-00000.bin")
    }
    assert len(inodes) == 1  # tokens are made once for all mixtures
