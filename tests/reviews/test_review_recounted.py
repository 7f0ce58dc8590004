"""What the review says of size, balance, artefacts, noise and surface tokens,
counted again from the written files."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import recount
import tokmill
from mill import SHARED
from reviews.reviewed import Corpus, copied, mill, write_recipe
from tokmill.cli import main
from tokmill.reviews.probe import probe
from tokmill.reviews.rows import Classes, SplitPieces, is_chosen
from tokmill.reviews.separability import sampled
from tokmill.reviews.subject import open_subject
from written import Json, load_manifest, rewrite_manifest

DATA = SHARED / "data"
GPT2 = DATA / "tokenizers/hf/gpt2-tokenizer.json"
needs_data = pytest.mark.skipif(not GPT2.exists(), reason="needs ../shared/data")


def reviewed(target: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["review", str(target), "--json", "--no-verify", *options])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def answer(found: dict[str, Any], word: str) -> dict[str, Any]:
    (chosen,) = (one for one in found["questions"] if word in one["question"])
    return dict(chosen)


def domains_of(run: Path) -> dict[str, str]:
    """As the recipe in the run's manifest has them."""
    sources = json.loads((run / "manifest.json").read_text())["config"]["sources"]
    return {source["name"]: source["domain"] for source in sources}


def tokenizer_facts(build: Path) -> tuple[int, int]:
    meta = json.loads((build / "train" / "meta.json").read_text())
    return meta["eos_id"], meta["padded_vocab_size"]


# --- two runs: real text in rows that are balanced, made text in rows that mix domains ---


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("real")
    template = "Problem: {question}\n\nSolution: {answer}"
    recipe = {
        "name": "three",
        "seed": 42,
        "sources": [
            {
                "name": "files",
                "domain": "code",
                "files": [str(DATA / "code/python.jsonl"), str(DATA / "code/tokio.jsonl")],
            },
            {
                "name": "gsm8k",
                "domain": "math",
                "files": str(DATA / "math/gsm8k/test.jsonl"),
                "template": template,
            },
            {
                "name": "competition",
                "domain": "math",
                "files": str(DATA / "math/MATH/test_0000-1499.jsonl"),
                "template": template,
            },
            {
                "name": "wikitext",
                "domain": "prose",
                "files": str(DATA / "prose/wikitext-2/valid.txt"),
                "unit": "line",
            },
        ],
        "domains": {
            "code": {"filters": [{"measure": "chars", "max": 10000, "reason": "too_long"}]},
            "prose": {"filters": [{"measure": "chars", "min": 200, "reason": "too_short"}]},
        },
        "split": {"method": "formula"},
        "tokenizer": {"path": str(GPT2), "eos": "<|endoftext|>"},
        "mixture": {"balance": "smallest"},
        "pack": {"length": 512},
        "builds": [{"name": "blocks", "format": "memmap"}],
    }
    return tokmill.run(write_recipe(directory, recipe), workers=1).out


def spoil(corpus: Corpus, recipe: dict[str, Any]) -> None:
    """Documents that go on in the next row, rows of several domains, repeats,
    ids that several sources have."""
    for records in corpus.values():
        for number, record in enumerate(records):
            record["id"] = f"{number:04d}"
    recipe["mixture"] |= {"tokens": 120_000, "exhausted": "repeat"}
    recipe["split"] = {"valid_fraction": "0.2"}
    recipe["pack"] = {"length": 48}
    recipe["builds"] = recipe["builds"][:1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mill(tmp_path_factory.mktemp("made"), spoil)


# --- told apart by surface tokens ---


def check_told_apart(run: Path, name: str) -> dict[str, Any]:
    build = run / "build" / name
    eos, _ = tokenizer_facts(build)
    domain_of = domains_of(run)
    figures: dict[str, Any] = answer(reviewed(run), "surface tokens")["figures"][name]
    assert set(figures["views"]) == set(recount.VIEWS)
    for view, told in figures["views"].items():
        slow = recount.tell_apart(build, view, domain_of, eos)
        whole, taught = slow[0]
        assert told["units"] == whole.asked
        assert told["trained_on"] == whole.trained_on
        assert told["right"] == pytest.approx(whole.right)
        assert told["accuracy"] == pytest.approx(whole.accuracy, abs=1e-6)
        assert told["chance"] == pytest.approx(1 / len(taught.domains), abs=1e-6)
        for most in (20, 200):
            assert told["accuracy_masked"][str(most)] == pytest.approx(slow[most][0].accuracy, abs=1e-6), (
                view,
                most,
            )
        for domain in taught.domains:
            assert [one["id"] for one in told["markers"][domain]] == taught.markers(domain, 20), (
                view,
                domain,
            )
    return figures


@needs_data
def test_surface_tokens_tell_code_mathematics_and_prose_apart_as_a_slow_twin_says(real: Path) -> None:
    figures = check_told_apart(real, "blocks")
    rows = figures["views"]["row"]
    assert rows["accuracy"] == 1.0
    markers = {name: [one["text"] for one in listed] for name, listed in rows["markers"].items()}
    assert '"unk"' in markers["prose"]
    assert {'" $"', '"Problem"'} & set(markers["math"])
    assert '"_"' in markers["code"]
    opening = [one["text"] for one in figures["views"]["document start"]["markers"]["math"]]
    assert opening[0] == '"Problem"'
    assert figures["views"]["row start"]["accuracy_masked"]["200"] < 0.95


def test_surface_tokens_of_rows_with_several_domains_are_those_of_the_slow_twin(made: Path) -> None:
    figures = check_told_apart(made, "rows")
    assert figures["views"]["row"]["accuracy"] < 1.0


def own_words(corpus: Corpus, recipe: dict[str, Any]) -> None:
    """Every domain has six words of its own among thirty that all have: markers, and nothing beside them."""
    rng = random.Random(4)
    letters = "abcdefghijklmnopqrstuvwxyz"
    shared = ["".join(rng.choice(letters) for _ in range(5)) for _ in range(30)]
    for number, records in enumerate(corpus.values()):
        mine = [f"{'xyz'[number]}{letter}q" for letter in "abcdef"]
        for record in records:
            record["text"] = " ".join(rng.choice(mine if rng.random() < 0.2 else shared) for _ in range(80))
    recipe["tokenizer"]["train"]["vocab_size"] = 450  # words are tokens, or a few
    recipe["dedup"] = {"exact": True}
    recipe["split"] = {"valid_fraction": "0.3"}
    recipe["mixture"] = {"balance": "smallest"}
    recipe["pack"] = {"length": 64}
    recipe["builds"] = recipe["builds"][:1]


def test_domains_with_words_of_their_own_are_told_apart_and_without_those_words_not(tmp_path: Path) -> None:
    run = mill(tmp_path, own_words)
    rows = answer(reviewed(run), "surface tokens")["figures"]["rows"]["views"]["row"]
    assert rows["accuracy"] > 0.98
    assert rows["accuracy_masked"]["20"] < 0.5
    assert rows["chance"] == pytest.approx(1 / 3, abs=1e-6)
    (finding,) = (one for one in reviewed(run)["findings"] if one["check"] == "surface_shortcut")
    assert finding["severity"] == "medium"
    for number, domain in enumerate(("code", "math", "prose")):
        strongest = rows["markers"][domain][0]["text"]
        assert "xyz"[number] in strongest or "q" in strongest


def one_text(corpus: Corpus, recipe: dict[str, Any]) -> None:
    rng = random.Random(6)
    for records in corpus.values():
        for record in records:
            record["text"] = " ".join(rng.choice(("ember", "otter", "raven", "quince")) for _ in range(80))
    recipe["dedup"] = {"exact": True}
    recipe["split"] = {"valid_fraction": "0.3"}
    del recipe["mixture"]["tokens"]
    recipe["builds"] = recipe["builds"][:1]


def test_domains_of_one_kind_of_text_are_told_apart_no_better_than_by_chance(tmp_path: Path) -> None:
    rows = answer(reviewed(mill(tmp_path, one_text)), "surface tokens")["figures"]["rows"]["views"]["row"]
    units = sum(rows["units"].values())
    assert abs(rows["accuracy"] - 1 / 3) < 4 * math.sqrt(2 / 9 / units)


def test_the_confound_is_named_where_routing_is_spoken_of(made: Path) -> None:
    says = " ".join(answer(reviewed(made), "surface tokens")["says"])
    assert "confound of any analysis of routing" in says
    assert "chance 33.3 %" in says


def test_some_rows_of_many_are_chosen_by_their_numbers_alone_and_it_is_said(made: Path) -> None:
    subject = open_subject(made)
    (build,) = subject.builds
    facts = build.artifact.manifest.facts["tokenizer"]
    some = probe(build, Classes("domain", domains_of(made)), facts, (20_000, 8_000))
    again = probe(build, Classes("domain", domains_of(made)), facts, (20_000, 8_000))
    assert some == again
    assert 0 < some.train.rows < some.train.of_rows
    assert 0 < some.held_out.rows < some.held_out.of_rows
    assert f"{some.train.rows:,} of {some.train.of_rows:,} training rows" in sampled(some)
    split = SplitPieces(build, "train", 20_000)
    assert sum(batch.rows for batch in split) == some.train.rows

    def mixed(number: int) -> int:  # splitmix64, in Python's own integers
        state = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return state ^ state >> 31

    share = Fraction(20_000, load_manifest(build.artifact.directory).tasks[0]["counts"]["tokens"]["written"])
    slow = [mixed(number) < share * 2**64 for number in range(some.train.of_rows)]
    assert is_chosen(np.arange(some.train.of_rows, dtype=np.uint64), share).tolist() == slow
    assert sum(slow) == some.train.rows


# --- noise and boundaries ---


def check_noise_and_boundaries(run: Path, name: str) -> None:
    build = run / "build" / name
    eos, vocab_size = tokenizer_facts(build)
    found = reviewed(run)
    slow = recount.losses(build, domains_of(run), vocab_size)
    noise = answer(found, "held out")["figures"]["noise"]
    assert set(noise) == set(slow)
    for domain, (documents, tokens, loss, error) in slow.items():
        assert (noise[domain]["documents"], noise[domain]["tokens"]) == (documents, tokens)
        assert noise[domain]["loss"] == pytest.approx(loss, abs=1e-4)
        assert noise[domain]["error"] == pytest.approx(error, abs=1e-4)
    told = answer(found, "a row lack")["figures"]["boundaries"][name]
    assert told.pop("of_rows") == told["rows"]
    assert told == recount.boundaries(build, domains_of(run), eos)


@needs_data
def test_noise_and_boundaries_of_real_text_are_recounted(real: Path) -> None:
    check_noise_and_boundaries(real, "blocks")


def test_noise_and_boundaries_of_mixed_and_repeated_rows_are_recounted(made: Path) -> None:
    check_noise_and_boundaries(made, "rows")


# --- size ---


def test_tokens_per_parameter_and_passes_follow_from_the_rows_that_are_there(made: Path) -> None:
    found = reviewed(made, "--model-params", "1.5k", "--train-tokens", "600k")
    told = answer(found, "large enough")["figures"]["training"]
    built: Counter[str] = Counter()
    unique: dict[str, set[tuple[str, int]]] = {}
    for ids, docs in recount.read_rows(made / "build/rows/train"):
        assert len(ids) == 48
        for doc in docs:
            built[doc["source"]] += doc["end"] - doc["start"]
            mine = unique.setdefault(doc["source"], set())
            mine.update((doc["doc_id"], doc["offset"] + n) for n in range(doc["end"] - doc["start"]))
    total = sum(built.values())
    assert told["built_tokens"] == total
    assert told["tokens_per_parameter"] == 400
    assert told["passes"] == pytest.approx(600_000 / total, abs=1e-5)
    for source, count in built.items():
        mine = told["sources"][source]
        assert mine["built"] == count
        assert mine["epochs"] == pytest.approx(600_000 / total * count / len(unique[source]), rel=0.01)
    lasts = {source: len(unique[source]) * total / count for source, count in built.items()}
    assert told["first_to_repeat"] == min(lasts, key=lambda source: lasts[source])
    distinct = sum(map(len, unique.values()))
    repeats = 600_000 / distinct - 1
    worth = distinct + distinct * 15.39 * (1 - math.exp(-repeats / 15.39))
    assert told["worth_tokens"] == pytest.approx(worth, rel=0.01)
    epochs = [one for one in found["findings"] if one["check"] == "plan_epochs"]
    assert [one["severity"] for one in epochs] == ["high"]
    assert not [one for one in found["findings"] if one["check"] == "tokens_per_parameter"]


def test_a_model_that_is_too_large_for_its_tokens_is_a_finding_with_the_bound(made: Path) -> None:
    found = reviewed(made, "--model-params", "7B", "--train-tokens", "100B")
    (finding,) = (one for one in found["findings"] if one["check"] == "tokens_per_parameter")
    values = {measure["name"]: measure["value"] for measure in finding["evidence"]}
    assert values == {
        "trained on": 10**11,
        "model": 7 * 10**9,
        "tokens per parameter": pytest.approx(100 / 7, abs=1e-6),
    }
    assert finding["threshold"]["value"] == 20
    assert "Hoffmann" in finding["threshold"]["read_from"]


def test_without_a_model_the_review_says_how_to_name_one(tmp_path: Path, made: Path) -> None:
    run = copied(made, tmp_path / "copy")
    path = run / "build/rows"
    shutil.copytree(path, tmp_path / "alone")
    found = reviewed(tmp_path / "alone")
    said = [one["says"] for one in found["assumptions"]]
    assert any("--model-params" in one for one in said)
    assert any("--train-tokens" in one for one in said)


# --- balance ---


@needs_data
def test_what_balancing_leaves_out_is_what_the_rows_lack_and_the_alternative_leaves_out_least(
    real: Path, tmp_path: Path
) -> None:
    figures = answer(reviewed(real), "in balance")["figures"]
    available: Counter[str] = Counter()
    domain_of = domains_of(real)
    for path in (real / "tokens/train").rglob("*.bin"):  # the ids themselves, of each source
        available[_domain_of_file(path, domain_of)] += path.stat().st_size // _bytes_per_id(real)
    rows = Counter(domain_of[docs[0]["source"]] for _, docs in recount.read_rows(real / "build/blocks/train"))
    (left_out,) = figures["left_out"].values()
    assert left_out["rows"] == dict(rows)
    assert len(set(rows.values())) == 1
    written = 512 * sum(rows.values())
    tails = sum(count % 512 for count in available.values())
    assert left_out["of_tokens"] == sum(available.values())
    assert left_out["tokens"] == sum(available.values()) - written - tails
    # asked for as the answer says, the mixture leaves out what it says,
    # but for the last documents of each source
    recipe = json.loads((real.parents[1] / "recipe.yaml").read_text())
    ways = figures["ways"]
    recipe["mixture"] = {
        "weights": dict.fromkeys(available, 1),
        "normalize": True,
        "tokens": ways["repeat"]["tokens"],
        "exhausted": "repeat",
        "max_epochs": 4,
        "held_out": "whole",
    }
    (section,) = (one for one in answer(reviewed(real), "in balance")["says"] if "mixture: {" in one)
    assert f"tokens: {ways['repeat']['tokens']}" in section
    run = tokmill.run(write_recipe(tmp_path, recipe), workers=1).out
    facts = load_manifest(run / "mixture").facts["splits"]["train"]
    assert facts["tokens"] == pytest.approx(ways["repeat"]["tokens"], rel=0.002)
    used = sum(min(told["tokens"], told["available"]) for told in facts["sources"].values())
    assert sum(available.values()) - used == pytest.approx(ways["repeat"]["left_out"], rel=0.01)
    assert (
        ways["repeat"]["left_out"]
        < ways["cut"]["left_out"]
        == sum(available.values()) - 3 * min(available.values())
    )


def _domain_of_file(path: Path, domain_of: dict[str, str]) -> str:
    (domain,) = {domain for domain in domain_of.values() if domain in path.parts}
    return domain


def _bytes_per_id(run: Path) -> int:
    manifest = json.loads((run / "tokens/manifest.json").read_text())
    total = sum(manifest["counts"]["tokens"].values())
    size = sum(path.stat().st_size for path in (run / "tokens").rglob("*.bin"))
    assert size % total == 0
    return int(size // total)


# --- artefacts and languages of code ---


@needs_data
def test_artefacts_are_counted_as_by_hand(real: Path) -> None:
    found = reviewed(real)
    figures = answer(found, "left in their texts")["figures"]
    lines = (DATA / "prose/wikitext-2/valid.txt").read_text(encoding="utf-8").split("\n")
    texts = list(dict.fromkeys(line for line in lines if len(line) >= 200))
    marks = figures["wikitext"]["marks"]
    assert figures["wikitext"]["documents"] == len(texts)
    assert marks["<unk>"] == sum("<unk>" in text for text in texts)
    assert marks["@-@"] == sum(any(f" {mark} " in text for mark in ("@-@", "@,@", "@.@")) for text in texts)
    assert marks["blank at the end"] == sum(text != text.rstrip(" ") for text in texts)
    assert marks["blank at the beginning"] == sum(text != text.lstrip() for text in texts)
    assert figures["gsm8k"]["common_beginning"] == ["Problem:", figures["gsm8k"]["documents"]]
    told = {
        (one["about"], one["evidence"][0]["name"])
        for one in found["findings"]
        if one["check"] == "dataset_artefacts"
    }
    assert {("source wikitext", "<unk>"), ("source wikitext", "@-@")} <= told
    assert not any(about == "source files" for about, _ in told)


@needs_data
def test_languages_of_code_are_shares_of_the_bytes_by_file_ending(real: Path) -> None:
    figures = answer(reviewed(real), "programming languages")["figures"]["code"]
    sizes: Counter[str] = Counter()
    documents: Counter[str] = Counter()
    seen = set()
    for name in ("python", "tokio"):
        for line in (DATA / f"code/{name}.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if len(record["text"]) <= 10_000 and record["text"] not in seen:
                seen.add(record["text"])
                language = {"py": "python", "rs": "rust"}[record["id"].rsplit(".", 1)[1]]
                sizes[language] += len(record["text"].encode())
                documents[language] += 1
    assert {name: told["text_bytes"] for name, told in figures["languages"].items()} == sizes
    assert {name: told["documents"] for name, told in figures["languages"].items()} == documents
    assert figures["text_bytes"] == sum(sizes.values())


def ends_alike(corpus: Corpus, recipe: dict[str, Any]) -> None:
    for record in corpus["prose"][:90]:
        record["text"] += " All rights reserved."


def test_an_ending_that_most_documents_of_a_source_have_is_a_finding(tmp_path: Path) -> None:
    found = reviewed(mill(tmp_path, ends_alike))
    (finding,) = (one for one in found["findings"] if one["check"] == "dataset_artefacts")
    assert (finding["about"], finding["evidence"][0]["value"]) == ("source prose", 90)
    assert "ights reserved." in finding["says"]


# --- builds by themselves ---


def alone(run: Path, target: Path, domain_of: dict[str, str] | None) -> Path:
    """A build taken out of its run, whose manifest says which domain a source is of, or does not."""
    build = Path(shutil.copytree(run / "build/rows", target))

    def change(body: Json) -> None:
        body["facts"].pop("domain_of", None)
        body["facts"] |= {"domain_of": domain_of} if domain_of else {}

    rewrite_manifest(build, change)
    return build


def test_a_build_by_itself_is_judged_by_its_sources_where_it_does_not_say_their_domains(
    made: Path, tmp_path: Path
) -> None:
    found = reviewed(alone(made, tmp_path / "alone", None), "--model-params", "1k", "--train-tokens", "200k")
    inside = answer(reviewed(made), "surface tokens")["figures"]["rows"]["views"]["row"]
    told = answer(found, "surface tokens")
    views = told["figures"]["."]["views"]
    assert views["row"]["accuracy"] == inside["accuracy"]  # every domain has one source here
    assert any("sources are told apart" in one for one in told["not_measured"])
    assert answer(found, "large enough")["figures"]["training"]["tokens_per_parameter"] == 200
    boundaries = answer(found, "a row lack")["figures"]["boundaries"]["."]
    assert boundaries["pieces"] > 0
    assert set(boundaries["rows_by_source"]) == {"code", "math", "prose"}
    # the tokenizer is not beside it
    assert all(one["text"] == f"id {one['id']}" for one in views["row"]["markers"]["code"])


def test_a_build_by_itself_is_judged_by_domains_where_it_says_them(made: Path, tmp_path: Path) -> None:
    domain_of = {"code": "signs", "math": "signs", "prose": "words"}
    build = alone(made, tmp_path / "alone", domain_of)
    told = answer(reviewed(build), "surface tokens")
    assert told["figures"]["."]["domains"] == ["signs", "words"]
    assert not any("sources are told apart" in one for one in told["not_measured"])
    eos, _ = tokenizer_facts(build)
    slow, _ = recount.tell_apart(build, "row", domain_of, eos)[0]
    assert told["figures"]["."]["views"]["row"]["right"] == pytest.approx(slow.right)
    assert told["figures"]["."]["views"]["row"]["chance"] == 0.5


# --- documents that repeat ---


def few_and_often(corpus: Corpus, recipe: dict[str, Any]) -> None:
    """Twelve documents of mathematics, built several times over, and a longer one that is built once;
    of the rows, the last ones are left out."""
    corpus["math"], corpus["prose"] = corpus["math"][:12], corpus["prose"][:26]
    corpus["prose"][0] |= {"id": "long-1", "text": corpus["prose"][0]["text"] * 2}
    recipe["dedup"] = {"exact": True}
    recipe["split"] = {"method": "counts", "counts": {"valid": 6}}
    weights = {"code": "0.3", "math": "0.4", "prose": "0.3"}
    recipe["mixture"] = {"weights": weights, "blocks": 60, "exhausted": "repeat", "max_epochs": 9}
    recipe["pack"] = {"layout": "best_fit", "length": 256}


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mill(tmp_path_factory.mktemp("repeated"), few_and_often)


def tokens_of_documents(run: Path) -> dict[tuple[str, str], int]:
    """Of training, by the tables of lengths."""
    found = {}
    for path in sorted((run / "tokens/train").rglob("lengths-*.parquet")):
        table = pq.read_table(path, columns=["doc_id", "tokens"], partitioning=None).to_pydict()
        source = path.parent.name
        found.update({(source, name): count for name, count in zip(*table.values(), strict=True)})
    return found


def pieces_in(build: Path) -> list[tuple[tuple[str, str], int, int]]:
    """Document, offset and tokens of every piece of a training row."""
    return [
        ((doc["source"], doc["doc_id"]), doc["offset"], doc["end"] - doc["start"])
        for _, docs in recount.read_rows(build / "train")
        for doc in docs
    ]


@pytest.mark.parametrize("place", ["run", "build/rows", "alone"])
def test_the_largest_document_is_the_one_with_most_tokens_in_all_of_its_turns(
    repeated: Path, tmp_path: Path, place: str
) -> None:
    target = {"run": repeated, "build/rows": repeated / place}.get(place, tmp_path / "alone")
    if place == "alone":
        shutil.copytree(repeated / "build/rows", target)
    tokens: Counter[tuple[str, str]] = Counter()
    for name, _, width in pieces_in(repeated / "build/rows"):
        tokens[name] += width
    ((source, doc_id), most), (_, second) = tokens.most_common(2)
    in_a_turn = tokens_of_documents(repeated)[source, doc_id]
    assert most > second
    assert tokens["prose", "long-1"] > in_a_turn, "or turns one by one would tell the same"
    (finding,) = (one for one in reviewed(target)["findings"] if one["check"] == "giant_document")
    assert finding["about"] == f"document {source}/{doc_id}"
    total = sum(tokens.values())
    assert finding["says"].startswith(f"{most:,} of {total:,} training tokens ({100 * most / total:.2f} %)")
    assert [measure["value"] for measure in finding["evidence"]] == [
        most,
        pytest.approx(100 * most / total, abs=1e-6),
    ]


@pytest.mark.parametrize("name", ["rows", "mega"])
def test_a_source_is_built_so_often_as_its_documents_stand_in_rows(repeated: Path, name: str) -> None:
    """Turns that no row holds are not counted; a document that a row cut is."""
    whole = tokens_of_documents(repeated)
    there = sum(count for (source, _), count in whole.items() if source == "math")
    turns = Counter(name for name, offset, _ in pieces_in(repeated / "build" / name) if offset == 0)
    built = sum(whole[document] * times for document, times in turns.items() if document[0] == "math")
    scheduled = load_manifest(repeated / "mixture").facts["splits"]["train"]["sources"]["math"]["tokens"]
    assert (built < scheduled) == (name == "rows"), "or this proves nothing"
    targets = [repeated / "build" / name] + ([repeated] if name == "mega" else [])
    for target in targets:  # of several builds the one that repeats it most is told
        (finding,) = (
            one
            for one in reviewed(target)["findings"]
            if (one["check"], one["about"]) == ("source_repeats", "source math")
        )
        values = {measure["name"]: measure["value"] for measure in finding["evidence"]}
        assert values == {
            "epochs": pytest.approx(built / there, abs=1e-6),
            "built": built,
            "there are": there,
        }
        assert finding["says"].endswith(f"times over in build {name}")


def test_a_source_that_no_build_holds_is_scheduled_and_not_built(repeated: Path, tmp_path: Path) -> None:
    run = copied(repeated, tmp_path / "copy")
    (run / "manifest.json").unlink()
    shutil.rmtree(run / "build")
    scheduled = load_manifest(run / "mixture").facts["splits"]["train"]["sources"]["math"]["tokens"]
    (finding,) = (one for one in reviewed(run)["findings"] if one["check"] == "source_repeats")
    assert finding["says"].startswith("its documents are scheduled ")
    assert {measure["name"]: measure["value"] for measure in finding["evidence"]}["scheduled"] == scheduled
