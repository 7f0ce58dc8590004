"""What a review says of a recipe alone; and that what a recipe says of training changes no byte of the
output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import tokmill
from reviews.reviewed import clean_corpus, clean_recipe, write_recipe
from tokmill.cli import main
from written import load_manifest


def reviewed(target: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["review", str(target), "--json", "--no-verify", *options])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def answer(found: dict[str, Any], word: str) -> dict[str, Any]:
    (chosen,) = (one for one in found["questions"] if word in one["question"])
    return dict(chosen)


# --- a recipe says what is trained, and no byte of the output changes ---


def files_of(run: Path) -> dict[str, bytes]:
    """All but JSON, which has times in it."""
    paths = [
        path
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.suffix in (".parquet", ".mmap", ".npy", ".zst", ".bin", ".idx", ".md")
    ]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in paths}


def test_a_review_section_changes_no_byte_and_no_digest(tmp_path: Path) -> None:
    corpus, recipe = clean_corpus(), clean_recipe()
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
        for domain, records in corpus.items():
            (tmp_path / name / f"{domain}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        (tmp_path / name / "bench.jsonl").write_text(
            '{"question": "How many zebras graze on the nine hills of the town?"}\n'
        )
    with_it = tokmill.run(write_recipe(tmp_path / "with", recipe), workers=1)
    plain = {key: value for key, value in recipe.items() if key != "review"}
    without = tokmill.run(write_recipe(tmp_path / "without", plain), workers=1)
    assert tokmill.verify(with_it.out).digest == tokmill.verify(without.out).digest
    for name in ("", "ingest/code", "tokens", "mixture", "build/rows"):
        one, other = load_manifest(with_it.out / name), load_manifest(without.out / name)
        assert (one.config, one.fingerprint, one.identity) == (
            other.config,
            other.fingerprint,
            other.identity,
        )
    assert files_of(with_it.out) == files_of(without.out) != {}
    # said later, nothing is made again, and the review knows it
    later = tokmill.run(write_recipe(tmp_path / "without", recipe), workers=1)
    assert later.ran == []
    assert tokmill.verify(later.out).problems == []
    told = answer(reviewed(later.out), "large enough")["figures"]["training"]
    assert (told["model_params"], told["train_tokens"]) == (500, 10_000)
    # a takedown keeps it
    forgotten = Path(shutil.copytree(later.out, tmp_path / "forgotten"))
    tokmill.forget(forgotten, doc_ids=["prose-0003"], base=tmp_path / "without", workers=1)
    assert answer(reviewed(forgotten), "large enough")["figures"]["training"]["model_params"] == 500
    # and taken out again, it is forgotten
    tokmill.run(write_recipe(tmp_path / "without", plain), workers=1)
    assert answer(reviewed(later.out), "large enough")["figures"]["training"]["model_params"] is None


# --- recipes ---


def limited(tmp_path: Path, **mixture: Any) -> Path:
    recipe = clean_recipe()
    for source in recipe["sources"]:
        source["limit"] = {"megabytes": 10}
    recipe["mixture"] = mixture
    return write_recipe(tmp_path, recipe)


def test_a_recipe_with_limits_and_balance_is_not_said_to_have_neither(tmp_path: Path) -> None:
    found = reviewed(limited(tmp_path, balance="smallest"))
    size, balance = answer(found, "large enough"), answer(found, "in balance")
    assert size["figures"]["limits"] == {name: {"megabytes": 10} for name in ("code", "math", "prose")}
    assert size["figures"]["tokens_at_most"] == dict.fromkeys(("code", "math", "prose"), 2_500_000)
    assert any("at most 10 MB of text" in one for one in size["says"])
    assert not any("all that there is is built" in one for one in size["says"])
    assert balance["figures"]["balance"] == "smallest"
    assert any("equal size" in one for one in balance["says"])
    assert not any("as large as" in one for one in balance["says"])


def test_a_recipe_whose_limits_are_passed_too_often_is_told_before_it_is_run(tmp_path: Path) -> None:
    found = reviewed(limited(tmp_path, balance="smallest"), "--train-tokens", "75M", "--model-params", "1M")
    (finding,) = (one for one in found["findings"] if one["check"] == "plan_epochs")
    assert finding["severity"] == "high"
    assert finding["evidence"][0]["value"] == 10


def test_a_recipe_without_limits_target_and_weights_builds_all_that_there_is(tmp_path: Path) -> None:
    recipe = clean_recipe()
    recipe["mixture"] = {}
    found = reviewed(write_recipe(tmp_path, recipe))
    assert any("all that there is is built" in one for one in answer(found, "large enough")["says"])
    assert any("as large as their sources" in one for one in answer(found, "in balance")["says"])
