"""What is estimated from some documents, beside what the run over all of them writes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

import tokmill as mill
from mill import digest_of, small_corpus, tokmill, write_recipe
from tokmill.artifacts.progress import Silence
from tokmill.pipeline.estimation.estimate import estimate_run
from tokmill.pipeline.estimation.figures import Estimate, load_estimate, write_estimate
from tokmill.recipe.file import read_recipe

DOCUMENTS = 4000
WORDS = ("river", "stone", "winter", "harbour", "letter", "garden", "engine", "silver", "window", "bridge")


class Counted:
    """Of a run, from its files: documents that have tokens, tokens by split, bytes."""

    def __init__(self, out: Path) -> None:
        self.kept, self.tokens = 0, {}
        for path in sorted(out.glob("tokens/*/*/lengths-*.parquet")):
            lengths = pq.read_table(path, columns=["tokens"]).column(0).to_pylist()
            split = path.parts[-3]
            self.kept += len(lengths)
            self.tokens[split] = self.tokens.get(split, 0) + sum(lengths)
        steps = ("ingest", "clean", "dedup", "split", "tokenizer", "tokens", "mixture", "build")
        self.bytes = sum(
            path.stat().st_size for step in steps for path in (out / step).rglob("*") if path.is_file()
        )


def write_texts(path: Path, seed: int, copies: float = 0.1) -> None:
    """Documents of very different lengths; some are digits, some are there again, some three times."""
    chance = random.Random(seed)
    lines: list[str] = []
    while len(lines) < DOCUMENTS:
        words = int(chance.paretovariate(1.2) * 30) % 3000 + 20
        text = " ".join(chance.choice(WORDS) + str(chance.randrange(50)) for _ in range(words))
        if chance.random() < 0.15:
            text = " ".join(str(chance.randrange(10**6)) for _ in range(words))
        again = 1 + (chance.random() < copies) + (chance.random() < copies / 4)
        lines += [json.dumps({"id": f"{seed}/{len(lines)}/{n}", "text": text}) for n in range(again)]
    chance.shuffle(lines)
    path.write_text("\n".join(lines[:DOCUMENTS]) + "\n")


def corpus(directory: Path, **sections: Any) -> Path:
    directory.mkdir()
    for seed, name in enumerate(("first", "second")):
        write_texts(directory / f"{name}.jsonl", seed)
    whole: dict[str, Any] = {
        "sources": [
            {"name": name, "domain": name, "files": f"{name}.jsonl", "fields": {"id": "id"}}
            for name in ("first", "second")
        ],
        "filters": [{"measure": "digit_share", "max": 0.6, "reason": "mostly_digits"}],
        "dedup": {"exact": True},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 400, "sample_megabytes": 1}, "eos": "<e>"},
        **sections,
    }
    return write_recipe(directory, **whole)


def estimated(recipe: Path, text_bytes: int) -> Estimate:
    whole = read_recipe(recipe).recipe
    assert whole is not None
    return estimate_run(whole, recipe.parent, text_bytes=text_bytes)


def test_an_estimate_from_all_documents_is_what_the_run_is(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path / "in", dedup={"exact": "folded", "near": {}})
    found = estimated(recipe, 20_000_000)
    out = mill.run(recipe, workers=1).out
    actual = Counted(out)
    assert found.share == 1
    assert sum(one.kept.value for one in found.sources.values()) == actual.kept
    assert {split: round(tokens.value, 6) for split, tokens in found.tokens.items()} == actual.tokens
    assert found.sources["notes"].dropped == {"clean: too_short": 1, "dedup: exact_dup": 2}
    assert found.disk_bytes == pytest.approx(actual.bytes, rel=0.05)
    files = (out / "build/rows").glob("*/*.mmap")
    assert found.builds["rows"] * 4 == sum(path.stat().st_size for path in files)


def test_an_estimate_from_a_share_of_the_documents_is_near_what_the_run_is(tmp_path: Path) -> None:
    recipe = corpus(tmp_path / "in")
    size = sum(path.stat().st_size for path in recipe.parent.glob("*.jsonl"))
    found = estimated(recipe, size // 4)
    actual = Counted(mill.run(recipe, workers=1).out)
    assert 0.2 < found.share < 0.3
    kept = sum(one.kept.value for one in found.sources.values())
    # a thousand documents drawn of each source: 95 % of draws are within 4 points
    assert kept == pytest.approx(actual.kept, abs=0.04 * 2 * DOCUMENTS)
    assert sum(one.value for one in found.tokens.values()) == pytest.approx(
        sum(actual.tokens.values()), rel=0.05
    )
    assert found.disk_bytes == pytest.approx(actual.bytes, rel=0.1)
    assert all(one.documents == pytest.approx(DOCUMENTS, rel=0.001) for one in found.sources.values())
    for one in found.sources.values():
        assert one.kept.low <= one.kept.value <= one.kept.high
        assert set(one.dropped) == {"clean: mostly_digits", "dedup: exact_dup"}


def test_bounds_of_the_recipe_hold_for_the_estimate(tmp_path: Path) -> None:
    recipe = corpus(
        tmp_path / "in",
        sources=[
            {"name": "first", "files": "first.jsonl", "fields": {"id": "id"}, "limit": {"docs": 1000}},
            {
                "name": "second",
                "files": "second.jsonl",
                "fields": {"id": "id"},
                "sample": {"method": "reservoir", "k": 1500},
            },
        ],
        split={"method": "counts", "counts": {"valid": 200}},
        mixture={"tokens": 20_000},
    )
    size = sum(path.stat().st_size for path in recipe.parent.glob("*.jsonl"))
    found = estimated(recipe, size // 2)
    actual = Counted(mill.run(recipe, workers=1).out)
    assert found.sources["first"].documents == pytest.approx(1000, rel=0.02)
    assert found.sources["second"].documents == pytest.approx(1500, rel=0.02)
    assert sum(one.kept.value for one in found.sources.values()) == pytest.approx(
        actual.kept, abs=0.03 * 2500
    )
    assert found.builds["rows"] == pytest.approx(20_000, rel=0.1)


def test_a_run_records_what_was_estimated_and_the_report_compares_them(tmp_path: Path) -> None:
    recipe, out = small_corpus(tmp_path / "in"), tmp_path / "out"
    told = tokmill("plan", recipe, "--out", out, "--estimate")
    assert told.returncode == 0, told.stderr
    assert "time on this machine" in told.stdout
    assert "problems" in told.stdout
    assert tokmill("run", recipe, "--out", out).returncode == 0
    environment = json.loads((out / "manifest.json").read_bytes())["environment"]
    actual = Counted(out)
    assert environment["estimate"]["documents"][0] == actual.kept
    assert environment["estimate"]["tokens"][0] == sum(actual.tokens.values())
    assert environment["seconds"] > 0
    assert "Estimated before" in mill.report(out).page.read_text()
    plain = tmp_path / "plain"
    assert tokmill("run", recipe, "--out", plain).returncode == 0
    assert digest_of(plain) == digest_of(out)
    assert "Estimated before" not in mill.report(plain).page.read_text()


def test_an_estimate_of_another_recipe_or_of_more_steps_is_not_that_of_this_run(tmp_path: Path) -> None:
    recipe, out = small_corpus(tmp_path / "in"), tmp_path / "out"
    mill.plan(recipe, out, estimate=True)
    whole = read_recipe(recipe).recipe
    assert whole is not None
    assert load_estimate(out, whole.model_dump(mode="json")) is not None
    mill.run(recipe, out, workers=1, until="split")
    assert "estimate" not in json.loads((out / "manifest.json").read_bytes())["environment"]
    mill.run(recipe, out, set={"seed": 8}, workers=1)
    assert "estimate" not in json.loads((out / "manifest.json").read_bytes())["environment"]


class Heard(Silence):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def test_a_run_that_will_not_fit_on_the_disk_is_told_before_it_begins(tmp_path: Path) -> None:
    recipe, out = small_corpus(tmp_path / "in"), tmp_path / "out"
    found = mill.plan(recipe, out, estimate=True).estimate
    assert found is not None
    write_estimate(out, msgspec.structs.replace(found, disk={**found.disk, "tokens": 1e18}))
    heard = Heard()
    mill.run(recipe, out, workers=1, progress=heard)
    assert sum("it will stop when the disk is full" in line for line in heard.lines) == 1
    assert heard.lines.index(next(line for line in heard.lines if "disk is full" in line)) == 0


def test_warnings_of_the_run_in_miniature_are_not_told(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path / "in", pack={"length": 1_000_000})
    told = tokmill("plan", recipe, "--out", tmp_path / "out", "--estimate")
    assert told.returncode == 0, told.stderr
    assert "no row" not in told.stderr


@pytest.mark.parametrize(
    ("documents", "text_bytes", "sections"),
    [
        (30, 20_000_000, {"filters": [{"measure": "chars", "min": 100, "reason": "short"}]}),
        (120, 8_000, {"dedup": {"keep": "newest"}}),
        (3, 20_000_000, {"split": {"method": "counts", "counts": {"valid": 1}}}),
    ],
    ids=["one document passes", "one document has a date", "few documents are counted"],
)
def test_what_runs_is_estimated_though_a_share_of_the_documents_would_not_run(
    tmp_path: Path, documents: int, text_bytes: int, sections: dict[str, Any]
) -> None:
    with (tmp_path / "few.jsonl").open("w") as file:
        for number in range(documents):
            text = f"text {number} has {WORDS[number % 10]} and {number * number} beside {number * 31} in it"
            last = number == documents - 1
            date = "2024-05-31" if last else None
            file.write(json.dumps({"id": number, "date": date, "text": text * (4 if last else 1)}) + "\n")
    source = {"name": "few", "domain": "few", "files": "few.jsonl", "fields": {"created_at": "date"}}
    builds = [{"name": "rows", "format": "memmap"}]
    recipe = write_recipe(tmp_path, **{"sources": [source], "filters": [], "builds": builds, **sections})
    kept = Counted(mill.run(recipe, workers=1).out).kept
    found = estimated(recipe, text_bytes)
    assert found.sources["few"].kept.low <= kept <= found.sources["few"].kept.high
