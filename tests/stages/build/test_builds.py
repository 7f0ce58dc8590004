"""Builds of a run: every token of every row in every format maps back to its document,
and the numbers add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import tokmill as mill
from mill import small_corpus, tokmill
from tokmill.audit.opened import open_run
from tokmill.audit.proofs import flow_problems
from tokmill.errors import InputError, RecipeError
from tokmill.formats import format_names
from trained import rank_lines
from written import MegatronFile, load_manifest, load_table, read_row_index, read_token_cache

BUILDS = [
    {"name": f"{layout}-{form}", "format": form, "pack": {"layout": layout, "length": length, **more}}
    for layout, length, more in [
        ("concat", 48, {"tail": "pad"}),
        ("document", 48, {}),
        ("best_fit", 48, {"mix_domains": True}),
        ("pad", 32, {}),
    ]
    for form in ("memmap", "npy", "parquet")
]
SEQUENCES = [
    {"name": "mega", "format": "megatron", "dtype": "smallest"},
    {"name": "cache", "format": "token_cache"},
    {"name": "lists", "format": "parquet", "pack": {"layout": "indexed"}},
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = small_corpus(tmp_path_factory.mktemp("builds"), builds=[*BUILDS, *SEQUENCES])
    return mill.run(recipe, workers=1).out


def documents_of(run: Path, split: str) -> dict[tuple[str, str], list[int]]:
    """(source, doc_id) -> ids, from the token shards alone."""
    sources = [
        name
        for name in ("problems", "notes")
        for _ in load_manifest(run / "ingest" / name).entries("documents")
    ]
    found = {}
    for path in sorted(run.glob(f"tokens/{split}/*/lengths-*.parquet")):
        stem = path.with_name(path.name.replace("lengths-", "tokens-").removesuffix(".parquet"))
        sequences = MegatronFile(stem)
        source = sources[int(path.stem.removeprefix("lengths-"))]
        for number, doc_id in enumerate(load_table(path).column("doc_id").to_pylist()):
            found[source, doc_id] = sequences.sequence(number).tolist()
    return found


def rows_of(directory: Path, form: str, length: int) -> list[list[int]]:
    """As NumPy and pyarrow alone read them."""
    if form == "memmap":
        return np.fromfile(directory / "input_ids.mmap", "<i4").reshape(-1, length).tolist()
    if form == "npy":
        shards = [np.load(path) for path in sorted(directory.glob("shard_*.npy"))]
        return np.concatenate(shards).tolist()
    tables = [pq.read_table(path) for path in sorted(directory.glob("shard_*.parquet"))]
    return [row for table in tables for row in table.column("input_ids").to_pylist()]


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build["name"])
def test_every_column_of_every_row_is_a_token_of_its_document_or_padding(
    finished: Path, build: dict[str, Any], split: str
) -> None:
    documents = documents_of(finished, split)
    directory, pack = finished / "build" / build["name"] / split, build["pack"]
    meta = json.loads((directory / "meta.json").read_text())
    rows = rows_of(directory, build["format"], pack["length"])
    index = list(read_row_index(directory / "index.jsonl.zst"))
    assert [row.row for row in index] == list(range(len(rows)))
    used: dict[tuple[str, str], set[int]] = {}
    padding = 0
    for ids, origin in zip(rows, index, strict=True):
        assert len(ids) == pack["length"]
        rebuilt = [meta["eos_id"]] * len(ids)
        covered = 0
        for span in origin.docs:
            width = span.end - span.start
            rebuilt[span.start : span.end] = documents[span.source, span.doc_id][
                span.offset : span.offset + width
            ]
            places = used.setdefault((span.source, span.doc_id), set())
            assert places.isdisjoint(range(span.offset, span.offset + width)), "a token is there twice"
            places.update(range(span.offset, span.offset + width))
            covered += width
        assert ids == rebuilt
        padding += len(ids) - covered
    counts = meta["counts"]
    assert (counts["padding"], meta["pad_id"]) == (padding, meta["eos_id"] if padding else None)
    assert counts["written"] == sum(map(len, used.values()))
    assert counts["in"] == sum(map(len, documents.values()))
    assert counts["in"] == counts["written"] + counts["truncated"]
    for name, ids in documents.items():
        assert ids[-1] == meta["eos_id"]
        assert len(ids) - 1 in used[name], "every document ends in EOS"


@pytest.mark.parametrize("split", ["train", "valid"])
def test_sequences_are_the_documents_in_every_format(finished: Path, split: str) -> None:
    documents = list(documents_of(finished, split).values())
    mega = MegatronFile(finished / "build/mega" / split / "tokens")
    assert mega.dtype == np.uint16
    assert [mega.sequence(number).tolist() for number in range(len(mega))] == documents
    cache = finished / "build/cache" / split
    assert list(read_token_cache(cache)) == documents
    meta = json.loads((cache / "ENCODE.meta.json").read_bytes())
    assert meta["model_sha256"] == load_manifest(finished / "build/cache").facts["tokenizer"]["sha256"]
    assert rows_of(finished / "build/lists" / split, "parquet", 0) == documents


def test_a_build_says_what_it_holds_by_domain_source_language_and_licence(finished: Path) -> None:
    counts = load_manifest(finished / "build/concat-npy").counts
    for name in ("domains", "sources", "languages", "licenses"):
        assert sum(total["tokens"] for total in counts[name].values()) == counts["tokens"]["written"]
    assert set(counts["domains"]) == {"math", "prose"}
    assert set(counts["licenses"]) == {"Apache-2.0", "unknown"}
    (note,) = load_manifest(finished / "build/concat-npy").facts["notes"]
    assert "times the tokens of prose" in note


def test_a_run_with_every_format_is_proven(finished: Path) -> None:
    assert mill.verify(finished).problems == []
    shard = finished / "build/concat-npy/train/shard_00000.npy"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-4])
    try:
        assert [problem.where for problem in mill.verify(finished).problems] == [
            "build/concat-npy/train/shard_00000.npy"
        ]
    finally:
        shard.write_bytes(whole)


def test_a_shorter_build_leaves_no_shard_of_the_longer_one(tmp_path: Path) -> None:
    builds = [{"name": "rows", "format": "npy", "rows_per_shard": 8}]
    out = mill.run(small_corpus(tmp_path, problems=120, builds=builds), workers=1).out
    before = len(list((out / "build/rows/train").glob("shard_*.npy")))
    mill.run(small_corpus(tmp_path, problems=40, builds=builds), workers=1)
    after = sorted((out / "build/rows/train").glob("shard_*.npy"))
    meta = json.loads((out / "build/rows/train/meta.json").read_text())
    assert before > len(after) == meta["n_shards"]
    assert sum(len(np.load(path)) for path in after) == meta["n_seqs"]
    assert mill.verify(out).problems == []


def mixed(directory: Path, problems: int = 400, **mixture: Any) -> Path:
    (directory / "more").mkdir(parents=True, exist_ok=True)
    lines = [f"Note {number}: {'the mill turns ' * (1 + number % 5)}.\n\n" for number in range(300)]
    (directory / "essays.txt").write_text("".join(lines))
    recipe = json.loads(small_corpus(directory, problems=problems).read_text())
    recipe["sources"][1]["files"] = "essays.txt"
    recipe["dedup"] = {"exact": False}
    recipe["mixture"] = mixture
    recipe["builds"] = [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}]
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


def test_a_build_without_a_row_says_so(tmp_path: Path) -> None:
    recipe = small_corpus(
        tmp_path / "c",
        pack={"length": 1 << 20, "tail": "drop"},
        builds=[{"name": "rows", "format": "memmap"}],
    )
    out = mill.run(recipe, tmp_path / "out", workers=1).out
    warnings = load_manifest(out / "build/rows").facts["warnings"]
    assert any(said.startswith("no row: ") and "1,048,576" in said for said in warnings)


def test_a_run_whose_build_has_no_row_of_its_tokens_ends_with_status_1_and_is_whole(tmp_path: Path) -> None:
    builds = [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}]
    recipe = small_corpus(tmp_path, pack={"length": 1 << 20, "tail": "drop"}, builds=builds)
    for _ in range(2):  # made, and up to date
        done = tokmill("run", recipe, "--out", tmp_path / "out")
        assert done.returncode == 1
        assert "build/rows has no row of the tokens that it was given" in done.stderr
        assert "build/mega has no row" not in done.stderr
    assert json.loads(tokmill("run", recipe, "--out", tmp_path / "out", "--json").stdout)["ok"] is False
    assert tokmill("verify", tmp_path / "out").returncode == 0
    other = 'builds=[{"name": "mega", "format": "megatron"}]'
    nothing = tokmill("run", recipe, "--out", tmp_path / "out", "--set", other)
    assert nothing.returncode == 0, nothing.stderr


def test_a_padded_build_that_has_fewer_rows_than_blocks_were_asked_for_says_so(tmp_path: Path) -> None:
    """Beside one that is not padded blocks are so many tokens, and documents longer than a row are fewer."""
    recipe = mixed(tmp_path, blocks=40, held_out="whole")
    described = json.loads(recipe.read_text())
    packs = {"rows": {"length": 8}, "pad": {"layout": "pad", "length": 8}}
    described["builds"] = [{"name": name, "format": "memmap", "pack": packs[name]} for name in packs]
    recipe.write_text(json.dumps({**described, "pack": {"length": 8}}))
    out = mill.run(recipe, workers=1).out
    rows = {name: len(rows_of(out / "build" / name / "train", "memmap", 8)) for name in packs}
    assert rows["rows"] == 40 > rows["pad"] > 0
    warnings = {name: load_manifest(out / "build" / name).facts["warnings"] for name in packs}
    said = {name: [one for one in own if "of 40" in one] for name, own in warnings.items()}
    assert said["rows"] == []
    assert [one.partition(":")[0] for one in said["pad"]] == [f"{rows['pad']} of 40 rows"]
    described["builds"] = [{"name": "pad", "format": "memmap"}]
    recipe.write_text(json.dumps({**described, "pack": packs["pad"]}))
    out = mill.run(recipe, tmp_path / "alone", workers=1).out
    assert len(rows_of(out / "build/pad/train", "memmap", 8)) == 40
    assert not any("of 40" in one for one in load_manifest(out / "build/pad").facts["warnings"])


@pytest.mark.parametrize("fault", ["dropped", "unusable"])
@pytest.mark.parametrize(
    "mixture", [{}, {"balance": "smallest"}, {"tokens": 500, "exhausted": "renormalize"}, None]
)
def test_a_run_in_which_nothing_is_left_is_proven_and_told(
    finished: Path, tmp_path: Path, mixture: dict[str, Any] | None, fault: str
) -> None:
    """By a rule, or because no record is a document: then there is no shard either."""
    recipe = small_corpus(
        tmp_path,
        tokenizer={"path": str(finished / "tokenizer/tokenizer.json"), "eos": "<|endoftext|>"},
        filters=[{"measure": "words", "min": 1_000_000, "reason": "too_few_words"}],
        builds=[
            {"name": "rows", "format": "memmap"},
            {"name": "lists", "format": "arrow", "pack": {"layout": "indexed"}},
        ],
        **({} if mixture is None else {"mixture": mixture}),
    )
    if fault == "unusable":
        described = json.loads(recipe.read_text())
        described["sources"] = [{**described["sources"][0], "max_bad_fraction": 1}]
        recipe.write_text(json.dumps(described))
        (tmp_path / described["sources"][0]["files"]).write_text("{no record\n")
    out = mill.run(recipe, workers=1).out
    assert load_manifest(out / "build/rows").counts["rows"] == 0
    assert (out / "build/rows/train/input_ids.mmap").stat().st_size == 0
    assert mill.verify(out).problems == []
    for verb in ("report", "review", "status"):
        shown = tokmill(verb, out)
        assert shown.returncode == 0, shown.stderr
    artifacts = open_run(out)
    for name, artifact in artifacts.items():  # as runs of before wrote it
        if not artifact.manifest.tasks:
            artifacts[name] = artifact._replace(manifest=replace(artifact.manifest, counts={}))
    assert list(flow_problems(artifacts)) == []


@pytest.mark.usefixtures("forked_workers")
def test_built_shares_are_the_weights_and_the_budget_is_met_from_below(tmp_path: Path) -> None:
    recipe = mixed(tmp_path, weights={"math": "0.6", "prose": "0.4"}, tokens="8k")
    out = mill.run(recipe, workers=2).out
    assert mill.verify(out).problems == []
    facts = load_manifest(out / "mixture").facts["splits"]
    for split, budget in (("train", 7200), ("valid", 800)):
        assert facts[split]["reached"] + facts[split]["left_over"] == budget
        assert 0 <= facts[split]["left_over"] < 200, "less than the shortest document that was left"
    assert facts["train"]["max_error"] < 0.01, "a document is half a percent here"
    built = load_manifest(out / "build/mega").counts["domains"]
    total = sum(domain["tokens"] for domain in built.values())
    assert total == facts["train"]["tokens"] + facts["valid"]["tokens"]
    assert abs(built["math"]["tokens"] / total - 0.6) < 0.01
    counts = load_manifest(out / "mixture").counts
    assert counts["in"] == counts["kept"] + counts["dropped"]["over_budget"]
    assert load_manifest(out / "build/mega").facts["warnings"] == [], "these shares were asked for"


@pytest.mark.usefixtures("forked_workers")
def test_a_mixture_is_the_same_for_any_number_of_workers_and_size_of_shards(tmp_path: Path) -> None:
    digests = set()
    for workers in (1, 2):
        recipe = mixed(tmp_path, weights={"math": "0.5", "prose": "0.5"}, documents=300)
        digests.add(mill.verify(mill.run(recipe, tmp_path / f"w{workers}", workers=workers).out).digest)
    assert len(digests) == 1


def test_an_exhausted_source_stops_before_anything_is_built_and_says_how_far_it_got(tmp_path: Path) -> None:
    recipe = mixed(tmp_path, weights={"math": "0.1", "prose": "0.9"}, tokens="30k")
    with pytest.raises(
        InputError, match=r"notes is exhausted: .* the mixture reaches [\d,]+ of 27,000"
    ) as error:
        mill.run(recipe, workers=1)
    assert "lower the budget" in str(error.value)
    assert not list(tmp_path.glob("out/small/build/*/*"))
    assert not (tmp_path / "out/small/mixture/manifest.json").exists()
    repeated = mixed(
        tmp_path, weights={"math": "0.1", "prose": "0.9"}, tokens="20k", exhausted="repeat", max_epochs=9
    )
    out = mill.run(repeated, workers=1).out
    facts, counts = load_manifest(out / "mixture").facts["splits"], load_manifest(out / "mixture").counts
    assert facts["train"]["sources"]["notes"]["epochs"] > 1
    assert counts["repeats"] > 0
    assert mill.verify(out).problems == []
    assert len(MegatronFile(out / "build/mega/train/tokens")) > counts["kept"] - 100


def test_balance_gives_every_domain_as_many_rows_as_the_smallest(tmp_path: Path) -> None:
    out = mill.run(mixed(tmp_path, balance="smallest", order="corpus"), workers=1).out
    domains: dict[str, int] = {}
    for row in read_row_index(out / "build/rows/train/index.jsonl.zst"):
        (source,) = {span.source for span in row.docs}
        domains[source] = domains.get(source, 0) + 1
    assert domains["problems"] == domains["notes"] > 10
    tokens = load_manifest(out / "build/rows").counts["tokens"]
    assert tokens["left_out"] > 0
    assert tokens["in"] == tokens["written"] + tokens["tail_dropped"] + tokens["left_out"]
    assert mill.verify(out).problems == []


def asked_for_rows(
    directory: Path, pack: dict[str, Any], builds: list[dict[str, Any]], **mixture: Any
) -> Path:
    """Five sources of three domains, with short documents and with documents longer than many rows."""
    directory.mkdir()
    sources = []
    for number, (domain, words) in enumerate([("a", 3), ("a", 90), ("b", 17), ("b", 400), ("c", 41)]):
        texts = [f"{number} {row} " + "the mill turns " * (1 + row * 7 % words) for row in range(120)]
        path = directory / f"s{number}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        sources.append({"name": f"s{number}", "domain": domain, "files": path.name})
    recipe = {
        "name": "rows",
        "sources": sources,
        "dedup": {"exact": False},
        "split": {"valid_fraction": "0.2"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 270}, "eos": "<|endoftext|>"},
        "mixture": {"weights": {"a": "0.5", "b": "0.3", "c": "0.2"}, **mixture},
        "pack": pack,
        "builds": builds,
    }
    (directory / "recipe.yaml").write_text(json.dumps(recipe))
    return directory / "recipe.yaml"


@pytest.mark.parametrize(
    ("mixture", "workers"),
    [
        ({"blocks": 37}, 1),
        ({"blocks": 37}, 3),
        ({"blocks": 90, "exhausted": "renormalize"}, 1),
        ({"blocks": 120, "exhausted": "repeat"}, 1),
    ],
)
def test_so_many_blocks_are_so_many_rows_in_every_layout(
    tmp_path: Path, mixture: dict[str, Any], workers: int
) -> None:
    packs: dict[str, dict[str, Any]] = {
        "concat": {},
        "apart": {"mix_domains": False},
        "document": {"layout": "document"},
        "best_fit": {"layout": "best_fit", "mix_domains": True},
    }
    builds = [
        {"name": name, "format": "memmap", "pack": {"length": 128, **pack}} for name, pack in packs.items()
    ]
    out = mill.run(asked_for_rows(tmp_path / "c", {"length": 128}, builds, **mixture), workers=workers).out
    valid = mixture["blocks"] // 5
    for name in packs:
        rows = {
            split: (out / f"build/{name}/{split}/input_ids.mmap").stat().st_size / 4 / 128
            for split in ("train", "valid")
        }
        assert rows == {"train": mixture["blocks"] - valid, "valid": valid}, name
    assert mill.verify(out).problems == []


def test_so_many_blocks_are_so_many_padded_documents_however_long(tmp_path: Path) -> None:
    builds = [{"name": "rows", "format": "memmap"}]
    recipe = asked_for_rows(tmp_path / "c", {"layout": "pad", "length": 16}, builds, blocks=100)
    out = mill.run(recipe, workers=1).out
    rows = np.fromfile(out / "build/rows/train/input_ids.mmap", "<i4").reshape(-1, 16)
    assert len(rows) == 80
    assert (rows != rows[:, :1]).any(), "ids, not padding"


def test_what_has_no_weight_is_not_read_and_needs_no_files(tmp_path: Path) -> None:
    recipe = mixed(tmp_path, weights={"math": "1", "prose": "0"})
    (tmp_path / "essays.txt").unlink()
    out = mill.run(recipe, workers=1).out
    assert not (out / "ingest/notes").exists()
    assert set(load_manifest(out / "build/rows").counts["domains"]) == {"math"}


def test_a_held_out_split_can_be_kept_whole(tmp_path: Path) -> None:
    out = mill.run(mixed(tmp_path, tokens="5k", held_out="whole"), workers=1).out
    facts = load_manifest(out / "mixture").facts["splits"]
    assert list(facts) == ["train"]
    assert 4800 < facts["train"]["reached"] <= 5000, "less than a document of each source is missing"
    split = load_manifest(out / "split").counts
    assert len(MegatronFile(out / "build/mega/valid/tokens")) == split["valid"]
    assert mill.verify(out).problems == []


def test_a_held_out_split_without_a_part_of_the_target_is_built_whole_and_told(tmp_path: Path) -> None:
    builds = [{"name": "rows", "format": "megatron"}]
    done = tokmill("run", asked_for_rows(tmp_path / "c", {"length": 128}, builds, blocks=4))
    assert done.returncode == 0, done.stderr
    out = tmp_path / "c/out/rows"
    assert len(MegatronFile(out / "build/rows/valid/tokens")) == load_manifest(out / "split").counts["valid"]
    manifest = load_manifest(out / "mixture")
    assert list(manifest.facts["splits"]) == ["train"]
    (told,) = [line for line in manifest.facts["warnings"] if line.startswith("valid ")]
    assert told.startswith("valid has no part of 4 blocks, and is built whole")
    assert "valid has no part of 4 blocks" in done.stderr
    enough = mill.run(asked_for_rows(tmp_path / "d", {"length": 128}, builds, blocks=5), workers=1).out
    assert "warnings" not in load_manifest(enough / "mixture").facts


def test_a_mixture_of_nothing_counts_nothing(tmp_path: Path) -> None:
    recipe = mixed(tmp_path, tokens="5k", exhausted="renormalize")
    (tmp_path / "ranks.tiktoken").write_bytes(rank_lines([bytes([byte]) for byte in range(256)]))
    tokenizer = {"path": "ranks.tiktoken", "encoding": "cl100k_base", "eos": "<|endoftext|>"}
    sections = {"filters": [{"measure": "chars", "min": 10**6}], "tokenizer": tokenizer}
    recipe.write_text(json.dumps(json.loads(recipe.read_text()) | sections))
    out = mill.run(recipe, workers=1, until="mixture").out
    counts = load_manifest(out / "mixture").counts
    assert counts == {"in": 0, "kept": 0, "dropped": {}, "quarantined": {}}


def test_weights_with_another_sum_build_what_their_shares_build_and_a_line_says_so(tmp_path: Path) -> None:
    built = {}
    for name, weights in (("shares", {"math": "0.75", "prose": "0.25"}), ("parts", {"math": 3, "prose": 1})):
        (tmp_path / name).mkdir()
        recipe = mixed(tmp_path / name, weights=weights, tokens="2k", exhausted="renormalize")
        done = tokmill("run", recipe)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("mixture.weights: weights add up to 4, not to 1") == (name == "parts")
        build = next((tmp_path / name).glob("out/*/build/mega"))
        built[name] = {path.name: path.read_bytes() for path in sorted(build.rglob("tokens.*"))}
    assert built["shares"] == built["parts"]
    assert built["parts"]


@pytest.mark.parametrize(
    ("mixture", "told"),
    [
        ({"weights": {"math": "1"}}, "no weight for the domain prose"),
        ({"weights": {"maths": "0.5", "prose": "0.5"}}, "no domain is called maths"),
        ({"sources": {"proze": {"notes": "1"}}}, "no domain is called proze"),
        ({"tokens": "5k", "blocks": 3}, "`tokens` already says how much is built"),
        ({"exhausted": "repeat"}, "has no end without a target"),
        ({"tokens": "many"}, "should be an amount"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_by_name(
    tmp_path: Path, mixture: dict[str, Any], told: str
) -> None:
    with pytest.raises(RecipeError, match=told):
        mill.run(mixed(tmp_path, **mixture), workers=1)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"pack": {"length": 1}}, "pack.length"),
        ({"pack": {"layout": "indexed"}}, "is made of rows, and the layout `indexed` has none"),
        ({"builds": [{"name": "a", "format": "npy", "dtype": "uint16"}]}, "npy is always int32"),
        *(
            (
                {"builds": [{"name": "a", "format": name, "rows_per_shard": 7}]},
                rf"builds\[0\].rows_per_shard: {name} sizes its files itself; .*for arrow, npy, parquet",
            )
            for name in format_names()
            if name not in ("arrow", "npy", "parquet")
        ),
        (
            {"tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": 5}},
            "takes its `eos` as a string",
        ),
    ],
)
def test_a_build_that_cannot_be_is_refused_by_name(
    tmp_path: Path, sections: dict[str, Any], told: str
) -> None:
    with pytest.raises(RecipeError, match=told):
        mill.run(small_corpus(tmp_path, **sections), workers=1)


@pytest.mark.parametrize(("dtype", "is_warned"), [("int32", True), ("smallest", False)])
def test_ids_that_a_trainer_would_take_for_others_by_its_vocabulary_are_told(
    tmp_path: Path, dtype: str, is_warned: bool
) -> None:
    builds = [{"name": "ds", "format": "nanotron", "dtype": dtype}, {"name": "rows", "format": "memmap"}]
    done = tokmill("run", small_corpus(tmp_path, builds=builds))
    assert done.returncode == 0, done.stderr
    said = "nanotron takes 2 bytes for an id where the vocabulary has 300"
    assert (said in done.stderr) == is_warned
    assert "rows: its ids" not in done.stderr
    ids = np.fromfile(tmp_path / "out/small/build/ds/train/tokens.ds", np.uint16)
    assert (ids[1::2] == 0).all() == is_warned, "what a reader of two bytes sees"
