"""0.1 and 0.10 are one number, so they are one configuration: the same digests, and nothing to do again."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokmill as mill
from mill import small_corpus, tokmill, write_problems
from tokmill import Split
from tokmill.recipe.section import shortest_spelling


@given(st.integers(0, 10**12), st.integers(0, 20), st.integers(0, 5))
def test_however_a_number_is_written_it_is_spelled_once_and_is_the_same_number(
    digits: int, places: int, zeros: int
) -> None:
    whole, rest = divmod(digits, 10**places)
    plain = f"{whole}.{rest:0{places}d}" if places else str(whole)
    variants = {plain, f"{plain}{'' if places else '.'}{'0' * zeros}0", f"{digits}e-{places}", f"+{plain}"}
    spelled = {shortest_spelling(variant) for variant in variants}
    assert len(spelled) == 1
    (one,) = spelled
    assert Fraction(one) == Fraction(digits, 10**places)
    assert len(one) <= len(plain) or "E" in one


@pytest.mark.parametrize(
    ("written", "spelled"),
    [("0.1", "0.1"), ("0.10", "0.1"), ("1", "1"), ("1.0", "1"), ("10", "10"), ("0", "0"), ("-0.0", "0"),
     ("1e-3", "0.001"), ("0.0000001", "1E-7"), ("1e1", "10"), ("words", "words"),
     ("1e999999999", "1E+999999999")],
)  # fmt: skip
def test_the_spelling_is_that_of_the_shortest_form(written: str, spelled: str) -> None:
    assert shortest_spelling(written) == spelled


def test_long_fractions_lose_no_digit() -> None:
    written = "0.123456789012345678901234567891"  # more digits than a Decimal context keeps
    assert str(Split(valid_fraction=Decimal(written)).valid_fraction) == written


@pytest.mark.parametrize(("bound", "dumped"), [("5", 5), ("5.0", 5), (5.0, 5), (5, 5), ("0.30", 0.3)])
def test_a_bound_of_a_rule_has_one_form(bound: Any, dumped: float) -> None:
    source = {"name": "s", "files": "a.jsonl"}
    recipe = mill.Recipe(name="r", sources=[source], filters=[{"measure": "chars", "min": bound}])
    found = recipe.model_dump(mode="json")["filters"][0]["min"]
    assert (json.dumps(found), type(found)) == (json.dumps(dumped), type(dumped))


def recipe_with(directory: Path, share: str, bound: str) -> Path:
    path = small_corpus(
        directory,
        split={"valid_fraction": share, "test_fraction": share},
        filters=[{"measure": "chars", "min": bound, "reason": "too_short"}],
        dedup={"near": {"threshold": f"0.8{share[3:]}"}},
        mixture={
            "weights": {"math": f"0.5{share[3:]}", "prose": f"0.5{share[3:]}"},
            "exhausted": "renormalize",
            "tokens": 3000,
        },
    )
    if share == "0.10":  # as YAML, without quotes
        text = path.read_text()
        path.write_text(text.replace('"0.10"', "0.10").replace('"0.80"', "0.80").replace('"5.0"', "5.0"))
    return path


def without_environment(run: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(run.rglob("manifest.json")):
        body = json.loads(path.read_bytes())
        for key in ("environment", "seal"):
            del body[key]
        found[path.relative_to(run).as_posix()] = body
    return found


def test_two_spellings_give_equal_manifests_and_the_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    for name, share, bound in (("short", "0.1", "5"), ("long", "0.10", "5.0")):
        result = mill.run(recipe_with(tmp_path / name, share, bound), workers=1)
        assert result.ran
    short, long = (without_environment(tmp_path / name / "out/small") for name in ("short", "long"))
    for name in [*short]:  # meta.json says when it was written, and only that
        for body in (short, long):
            for entry in body[name]["files"]:
                entry.pop("bytes"), entry.pop("sha256")
            body[name].pop("digest")
    assert short == long
    again = mill.run(recipe_with(tmp_path / "short", "0.10", "5.0"), workers=1)
    assert again.ran == []


def test_the_digest_of_the_options_of_a_build_does_not_depend_on_the_spelling(tmp_path: Path) -> None:
    problems = write_problems(tmp_path / "problems.jsonl", 60)
    (tmp_path / "m.yaml").write_text(
        f'datasets: [{{name: p, files: {problems}, template: "{{question}} {{answer}}"}}]\n'
    )
    trained = ("--vocab-size", "300", "--model", "byte_bpe", "--out", tmp_path / "tok")
    done = tokmill("tokenizer", "train", "--manifest", tmp_path / "m.yaml", *trained, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    model = json.loads(done.stdout)["path"]
    digests = set()
    for share in ("0.1", "0.10", "1e-1"):
        out = tmp_path / share
        done = tokmill(
            *("build", "megatron", "--manifest", tmp_path / "m.yaml", "--valid-fraction", share, "--json"),
            *("--tokenizer", model, "--out", out),
        )
        assert done.returncode == 0, done.stderr + done.stdout
        facts = json.loads(done.stdout)["facts"]
        digests.add((facts["config_sha256"], json.dumps(facts["split"], sort_keys=True)))
    assert len(digests) == 1
