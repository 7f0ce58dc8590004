"""Stages of a mixture, recounted from what was written: nothing here is shared with what made it."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tokmill as mill
from faults.dying import die_in_run
from mill import tokmill
from tokmill.errors import InputError, TokmillError
from tokmill.loader import open_curriculum
from tokmill.stages.build import mixture_stage
from written import MemmapRows, load_manifest, load_table, read_row_index

DOMAINS = {"web": "web", "books": "prose", "math": "math"}
SOURCES = {domain: name for name, domain in DOMAINS.items()}  # tokens lie by domain
WEIGHTS = {"web": "0.6", "prose": "0.3", "math": "0.1"}
STAGES: list[dict[str, Any]] = [
    {"name": "main", "steps": 60},
    {
        "name": "long",
        "tokens": 60_000,
        "length": 256,
        "min_tokens": 45,
        "weights": {"web": 0, "prose": 1, "math": 0},
    },
    {
        "name": "anneal",
        "steps": 50,
        "length": 32,
        "weights": {"web": "0.3", "prose": "0.2", "math": "0.5"},
        "where": [{"by": "score.even", "min": 0.5}, {"by": "score.even", "max": 1}],
    },
]
LENGTHS = {"main": 64, "long": 256, "anneal": 32}
BATCH_TOKENS = 2048
MAX_EPOCHS = 6


class Turn(NamedTuple):
    source: str
    shard: int
    sequence: int
    tokens: int


class Staged(NamedTuple):
    recipe: Path
    out: Path
    curriculum: dict[str, Any]


def write_staged(home: Path, **mixture: Any) -> Path:
    draw = random.Random(3)
    words = [chr(97 + number) for number in range(26)]  # a token each
    for name, documents, low, high in (("web", 2600, 8, 50), ("books", 700, 30, 50), ("math", 450, 8, 50)):
        lines = [
            {
                "id": f"{name}-{at}",
                "text": " ".join([f"{name} {at}", *draw.choices(words, k=draw.randint(low, high))]),
            }
            for at in range(documents)
        ]
        (home / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    hooks = (
        "import numpy as np\n\n"
        "def even(columns):\n"
        "    return np.array([len(text) % 5 > 0 for text in columns['text'].to_pylist()], float)\n"
    )
    (home / "hooks.py").write_text(hooks)
    recipe = {
        "name": "staged",
        "seed": 5,
        "sources": [
            {
                "name": name,
                "domain": domain,
                "license": "CC0-1.0",
                "files": f"{name}.jsonl",
                "fields": {"id": "id"},
            }
            for name, domain in DOMAINS.items()
        ],
        "scores": [{"name": "even", "hook": "hooks.py:even"}],
        "split": {"valid_fraction": "0.02"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 500}, "eos": "<|endoftext|>"},
        "pack": {"length": 64},
        "mixture": {
            "weights": WEIGHTS,
            "held_out": "whole",
            "exhausted": "repeat",
            "max_epochs": MAX_EPOCHS,
            "batch_tokens": BATCH_TOKENS,
            "stages": STAGES,
            **mixture,
        },
        "builds": [{"name": "rows", "format": "memmap"}],
    }
    path = home / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1))
    return path


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    home = tmp_path_factory.mktemp("staged")
    recipe, out = write_staged(home), home / "out"
    ended = tokmill("run", recipe, "--out", out)
    assert ended.returncode == 0, ended.stderr
    return Staged(recipe, out, json.loads((out / "curriculum/rows.json").read_text()))


def shards_of(out: Path) -> dict[int, tuple[str, Any, Path]]:
    """Source, lengths and ids of each shard of training, by its number."""
    found = {}
    for entry in load_manifest(out / "tokens").entries("lengths"):
        split, domain, name = entry.path.split("/")
        if split == "train":
            number = int(name.removeprefix("lengths-").removesuffix(".parquet"))
            ids = out / "tokens" / entry.path.replace("lengths-", "tokens-").replace(".parquet", ".bin")
            found[number] = SOURCES[domain], load_table(out / "tokens" / entry.path), ids
    return found


def turns_of(out: Path, stage: str) -> list[Turn]:
    shards = shards_of(out)
    tokens = {number: table.column("tokens").to_pylist() for number, (_, table, _) in shards.items()}
    order = load_table(out / f"stage/{stage}/order-train.parquet").to_pydict()
    pairs = zip(order["shard"], order["sequence"], strict=True)
    return [Turn(shards[n][0], n, at, tokens[n][at]) for n, at in pairs]


def eligible(out: Path, stage: dict[str, Any]) -> set[tuple[int, int]]:
    """Documents that a stage may have, by their texts and tokens as they were written."""
    found = set()
    texts = {}
    for name in DOMAINS:
        lines = (out.parent / f"{name}.jsonl").read_text().splitlines()
        texts[name] = {line["id"]: line["text"] for line in map(json.loads, lines)}
    for number, (source, table, _) in shards_of(out).items():
        for at, (name, tokens) in enumerate(
            zip(table.column("doc_id").to_pylist(), table.column("tokens").to_pylist(), strict=True)
        ):
            is_scored = "where" not in stage or len(texts[source][name]) % 5 > 0
            if is_scored and tokens >= stage.get("min_tokens", 1):
                found.add((number, at))
    return found


def test_every_stage_has_the_tokens_and_the_shares_that_were_asked_for(staged: Staged) -> None:
    for stage, told in zip(STAGES, staged.curriculum["stages"], strict=True):
        split = staged.out / f"build/rows-{stage['name']}/train"
        rows, length = MemmapRows(split), LENGTHS[stage["name"]]
        assert rows.ids.shape == (told["rows"], length)
        asked = stage.get("tokens") or stage["steps"] * BATCH_TOKENS
        assert abs(rows.ids.size - asked) <= length / 2
        assert abs(rows.ids.size - asked) <= 0.001 * asked or "tokens" in stage
        by_domain = dict.fromkeys(WEIGHTS, 0)
        for row in read_row_index(split / "index.jsonl.zst"):
            for span in row.docs:
                by_domain[DOMAINS[span.source]] += span.end - span.start
        assert sum(by_domain.values()) == rows.ids.size
        for domain, weight in stage.get("weights", WEIGHTS).items():
            assert abs(by_domain[domain] / rows.ids.size - float(weight)) <= 0.001, (stage["name"], domain)


def test_a_document_comes_again_when_all_that_the_stage_may_have_came_as_often(staged: Staged) -> None:
    had: dict[tuple[int, int], int] = {}
    repeated = 0
    for stage in STAGES:
        allowed = eligible(staged.out, stage)
        shards = shards_of(staged.out)
        # how many of each source the stage may have were had so often
        at_level: dict[str, dict[int, int]] = {source: {} for source in DOMAINS}
        for document in allowed:
            levels, level = at_level[shards[document[0]][0]], had.get(document, 0)
            levels[level] = levels.get(level, 0) + 1
        for turn in turns_of(staged.out, stage["name"]):
            document, levels = (turn.shard, turn.sequence), at_level[turn.source]
            assert document in allowed
            level = had.get(document, 0)
            assert level == min(number for number, count in levels.items() if count)
            levels[level] -= 1
            levels[level + 1] = levels.get(level + 1, 0) + 1
            had[document] = level + 1
            repeated += level > 0
        written = (
            load_table(staged.out / f"stage/{stage['name']}/had-train.parquet").column("had").to_pylist()
        )
        documents = [(number, at) for number in sorted(shards) for at in range(shards[number][1].num_rows)]
        assert written == [had.get(document, 0) for document in documents]
    assert repeated > 100
    assert max(had.values()) <= MAX_EPOCHS


def test_rows_are_the_documents_in_their_turns_and_a_stage_leaves_less_than_its_last_one(
    staged: Staged,
) -> None:
    shards = shards_of(staged.out)
    ids = {number: np.fromfile(path, np.uint16) for number, (_, _, path) in shards.items()}
    begins = {
        number: np.cumsum([0, *table.column("tokens").to_pylist()])
        for number, (_, table, _) in shards.items()
    }
    for stage in STAGES:
        turns = turns_of(staged.out, stage["name"])
        stream = np.concatenate(
            [
                ids[t.shard][begins[t.shard][t.sequence] : begins[t.shard][t.sequence] + t.tokens]
                for t in turns
            ]
        )
        rows = MemmapRows(staged.out / f"build/rows-{stage['name']}/train").ids
        assert rows.reshape(-1).tolist() == stream[: rows.size].tolist()
        assert 0 <= len(stream) - rows.size < turns[-1].tokens
        manifest = load_manifest(staged.out / f"build/rows-{stage['name']}")
        (counts,) = (task["counts"]["tokens"] for task in manifest.tasks if task["key"] == "train")
        assert counts["in"] == len(stream)
        assert counts["in"] - counts["written"] == len(stream) - rows.size, "and it is counted"
        mixed = load_manifest(staged.out / f"stage/{stage['name']}").counts
        assert (
            mixed["in"]
            == mixed["kept"] + sum(mixed["dropped"].values())
            == sum(t.num_rows for _, t, _ in shards.values())
        )
        assert mixed["kept"] == len({(t.shard, t.sequence) for t in turns})
        assert mixed["kept"] + mixed["repeats"] == len(turns)
        left_out = mixed["dropped"].get("left_out_by_stage", 0)
        assert mixed["in"] - left_out == len(eligible(staged.out, stage))


def test_held_out_documents_are_the_same_in_every_stage(staged: Staged) -> None:
    held = []
    for stage in STAGES:
        path = staged.out / f"build/rows-{stage['name']}/valid/index.jsonl.zst"
        held.append(list(dict.fromkeys(span.doc_id for row in read_row_index(path) for span in row.docs)))
    shortest = min(map(len, held))
    assert shortest > 40
    assert all(documents[:shortest] == held[0][:shortest] for documents in held), (
        "but for those in the last row"
    )


def test_any_workers_and_any_kill_make_the_same(staged: Staged, tmp_path: Path) -> None:
    out = tmp_path / "out"
    die_in_run(staged.recipe, out, after="step", name="stage/main", workers=3)
    assert not (out / "curriculum").is_dir()
    ended = tokmill("run", staged.recipe, "--out", out, "--workers", "3")
    assert ended.returncode == 0, ended.stderr
    ours, theirs = (json.loads(tokmill("verify", at, "--json").stdout) for at in (staged.out, out))
    assert ours["problems"] == theirs["problems"] == []
    assert ours["digest"] == theirs["digest"]
    for path in ("curriculum/rows.json", "build/rows-long/train/input_ids.mmap"):
        assert (staged.out / path).read_bytes() == (out / path).read_bytes()


def test_documents_that_several_tasks_sorted_come_in_the_same_order(
    staged: Staged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(staged.out, out)
    shutil.rmtree(out / "stage")
    sorting = mixture_stage._run_tasks
    sorted_by: list[int] = []

    def counting(whole: Any) -> Any:
        tasks = sorting(whole)
        sorted_by.append(len(tasks))
        return tasks

    monkeypatch.setattr(mixture_stage, "_SORTED_AT_ONCE", 300)
    monkeypatch.setattr(mixture_stage, "_run_tasks", counting)
    mill.run(staged.recipe, out=out, workers=1)
    assert len(sorted_by) == len(STAGES)
    assert min(sorted_by) >= 3
    for stage in STAGES:
        for name in ("order-train.parquet", "had-train.parquet"):
            path = f"stage/{stage['name']}/{name}"
            assert (out / path).read_bytes() == (staged.out / path).read_bytes()


def test_one_document_is_told_stage_by_stage(staged: Staged) -> None:
    """`why` and `trace` look in the order of the stage that the build is of."""
    turn = turns_of(staged.out, "long")[3]
    table = shards_of(staged.out)[turn.shard][1]
    doc_id = table.column("doc_id")[turn.sequence].as_py()
    found = json.loads(tokmill("why", staged.out, doc_id, "--json").stdout)
    (told,) = found["documents"]
    builds = {one["build"]: len(one["turns"]) for one in told["builds"]}
    for stage in STAGES:
        turns = turns_of(staged.out, stage["name"])
        expected = sum((t.shard, t.sequence) == (turn.shard, turn.sequence) for t in turns)
        assert builds[f"build/rows-{stage['name']}"] == expected
    rows = list(read_row_index(staged.out / "build/rows-long/train/index.jsonl.zst"))
    row = next(row for row in rows if any(span.doc_id == doc_id for span in row.docs))
    traced = tokmill("trace", staged.out / "build/rows-long", "--row", str(row.row), "--json")
    assert traced.returncode == 0, traced.stderr
    assert doc_id in traced.stdout


def test_a_state_says_what_was_seen_of_each_stage(staged: Staged) -> None:
    curriculum = open_curriculum(staged.out, seed=4)
    for at, _ in enumerate(curriculum):
        if at == 70:  # ten steps into the second stage, and one more
            break
    done, seen_rows = curriculum.state_dict(), 11 * BATCH_TOKENS // 256
    shares = []
    for stage in STAGES:
        found = mill.seen(staged.out / f"build/rows-{stage['name']}", state=done)
        shares.append((found.total.seen, found.total.tokens))
    (main, whole), (long, _), (anneal, _) = shares
    assert (main, long, anneal) == (whole, 256 * seen_rows, 0)
    with pytest.raises(InputError, match="none of its stages is this build"):
        mill.seen(staged.out / "build/rows-main", state=done, split="valid")


def test_a_source_that_the_stages_before_used_up_is_told(staged: Staged, tmp_path: Path) -> None:
    stages = [
        {"name": "first", "steps": 4, "weights": {"web": 0, "prose": 0, "math": 1}},
        {"name": "next", "steps": 40},
    ]
    recipe = write_staged(tmp_path, exhausted="stop", stages=stages)
    out = tmp_path / "out"
    shutil.copytree(staged.out, out)
    ended = tokmill("run", recipe, "--out", out)
    assert ended.returncode == 1
    assert load_manifest(out / "stage/first").counts["kept"] > 100
    told = r"stage next: math is exhausted: it has [0-9,]{5} tokens, and its weight asks for 8,192"
    assert re.search(told, ended.stderr)


def write_few(home: Path, **mixture: Any) -> Path:
    """Two sources of 60 documents, of which `math` is in the default weights not at all."""
    path = write_staged(home, **mixture)
    recipe = json.loads(path.read_text())
    recipe["sources"] = [one for one in recipe["sources"] if one["name"] != "books"]
    for name in ("web", "math"):
        lines = (home / f"{name}.jsonl").read_text().splitlines()[:60]
        (home / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    recipe |= {"pack": {"length": 32}, "scores": [], "split": {"valid_fraction": "0.1"}}
    path.write_text(json.dumps(recipe))
    return path


def tokens_by_domain(build: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in read_row_index(build / "train/index.jsonl.zst"):
        for span in row.docs:
            domain = DOMAINS[span.source]
            found[domain] = found.get(domain, 0) + span.end - span.start
    return found


def test_a_source_without_a_weight_is_brought_in_by_a_later_stage(tmp_path: Path) -> None:
    stages = [
        {"name": "main", "steps": 4},
        {"name": "anneal", "tokens": 640, "weights": {"web": "0.25", "math": "0.75"}},
    ]
    weights = {"web": "1", "math": "0"}
    recipe = write_few(tmp_path, weights=weights, batch_tokens=128, stages=stages, exhausted="stop")
    out = mill.run(recipe, out=tmp_path / "out", workers=1).out
    assert tokens_by_domain(out / "build/rows-main") == {"web": 512}
    annealed = tokens_by_domain(out / "build/rows-anneal")
    assert sum(annealed.values()) == 640
    assert abs(annealed["math"] - 480) <= 50  # a document
    told = json.loads(recipe.read_text())
    told["mixture"]["stages"] = stages[:1]
    recipe.write_text(json.dumps(told))
    ended = mill.run(recipe, out=tmp_path / "without", workers=1)
    assert not (ended.out / "ingest/math").exists(), "no stage has any of it"


def test_a_stage_that_its_documents_do_not_fill_is_a_warning(tmp_path: Path) -> None:
    stages = [{"name": "main", "tokens": 1600}, {"name": "b", "steps": 60, "length": 64}]
    weights = {"web": "0.5", "math": "0.5"}
    recipe = write_few(
        tmp_path, weights=weights, batch_tokens=192, stages=stages, exhausted="renormalize", max_epochs=4
    )
    made = mill.run(recipe, out=tmp_path / "out", workers=1)
    rows = len(MemmapRows(made.out / "build/rows-b/train").ids)
    assert 0 < rows < 180
    (told,) = (what for step, what in made.warnings if step == "curriculum")
    assert told.startswith(f"the stage b has {rows} of 180 rows, {-(-rows // 3)} of 60 steps")
    stages[1]["steps"] = rows // 3
    enough = write_few(tmp_path, weights=weights, batch_tokens=192, stages=stages, exhausted="renormalize")
    made = mill.run(enough, out=tmp_path / "out", workers=1)
    assert not [what for step, what in made.warnings if step == "curriculum"]
    assert len(MemmapRows(made.out / "build/rows-b/train").ids) == rows // 3 * 3


def test_a_stage_whose_documents_were_all_had_before_says_so(tmp_path: Path) -> None:
    stages = [{"name": "main", "tokens": 100_000}, {"name": "b", "steps": 6}]
    weights = {"web": "0.5", "math": "0.5"}
    recipe = write_few(tmp_path, weights=weights, batch_tokens=128, stages=stages, exhausted="renormalize")
    with pytest.raises(InputError, match="the stage b has no row: no document is left") as raised:
        mill.run(recipe, out=tmp_path / "out", workers=1)
    trained = sum(table.num_rows for _, table, _ in shards_of(tmp_path / "out").values())
    assert f"{trained} had_before" in str(raised.value)
    assert "`exhausted: repeat`" in str(raised.value)
    assert "more tokens" not in str(raised.value)


MISTAKES = {
    "tokens: 5M": ({"tokens": "5M"}, "leave it out"),
    "no held_out": ({"held_out": "mixed"}, "set `held_out: whole`"),
    "balance": ({"balance": "smallest"}, "give the `stages` weights"),
    "no batch_tokens": ({"batch_tokens": None}, "needs `batch_tokens`"),
    "odd batch_tokens": ({"batch_tokens": 1000}, "960 would be"),
    "two of a name": ({"stages": [STAGES[0], STAGES[0]]}, "is called main too"),
    "no target": ({"stages": [{"name": "a"}]}, "either `tokens` or `steps`"),
    "passes": ({"max_epochs": 1000}, "250 at most"),
    "no such score": (
        {"stages": [{"name": "a", "steps": 1, "where": [{"by": "score.odd", "min": 1}]}]},
        "no score is called odd",
    ),
    "no such domain": (
        {"stages": [{"name": "a", "steps": 1, "weights": {"code": 1}}]},
        "no domain is called code",
    ),
    "between": (
        {"stages": [{"name": "a", "steps": 1, "min_tokens": 9, "max_tokens": 8}]},
        "is above `max_tokens`",
    ),
    "no bound": (
        {"stages": [{"name": "a", "steps": 1, "where": [{"by": "score.even"}]}]},
        "needs `min` or `max`",
    ),
}


@pytest.mark.parametrize(("mixture", "told"), MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_stand_beside_stages_is_told(tmp_path: Path, mixture: dict[str, Any], told: str) -> None:
    recipe = write_staged(tmp_path, **mixture)
    with pytest.raises(TokmillError) as raised:
        mill.run(recipe, out=tmp_path / "out", workers=1)
    assert told in str(raised.value)


WRONG_BUILDS = {
    "documents": ({"format": "megatron"}, "stages are of rows"),
    "texts": ({"format": "jsonl", "content": "text"}, "texts have no stages"),
    "another length": ({"format": "memmap", "pack": {"length": 32}}, "`length` of each"),
    "another layout": (
        {"format": "memmap", "pack": {"length": 64, "layout": "best_fit"}},
        "`layout: concat`",
    ),
    "some sources": ({"format": "memmap", "sources": ["web"]}, "of all sources"),
}


@pytest.mark.parametrize(("build", "told"), WRONG_BUILDS.values(), ids=WRONG_BUILDS)
def test_builds_that_have_no_stages_are_told(tmp_path: Path, build: dict[str, Any], told: str) -> None:
    path = write_staged(tmp_path)
    recipe = json.loads(path.read_text())
    recipe["builds"] = [{"name": "rows", **build}]
    path.write_text(json.dumps(recipe))
    with pytest.raises(TokmillError) as raised:
        mill.run(path, out=tmp_path / "out", workers=1)
    assert told in str(raised.value)
