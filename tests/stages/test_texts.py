"""Builds with `content: text`: what they hold is counted again from the files of the steps before."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tokmill
from mill import tokmill as command
from tokmill.errors import RecipeError
from written import file_sha256, load_lines, load_manifest, load_table, read_row_index, rewrite_manifest

FORMATS = {"jsonl": ".jsonl.zst", "parquet": ".parquet", "webdataset": ".tar"}
FIELDS = ("text", "source", "domain", "doc_id", "license_tag", "created_at", "meta", "split", "language")
SENTENCE = "The quick brown fox jumps over the lazy dog while seven more dogs look on from the hill"

Record = dict[str, Any]


def corpus(directory: Path, documents: int = 60, words: int = 12) -> None:
    """Two sources whose records have licences, dates and `meta` of many shapes; some are copies."""
    directory.mkdir(parents=True, exist_ok=True)
    for source in ("web", "math"):
        lines = []
        for number in range(documents):
            record: Record = {
                "id": f"{source}-{number}",
                "text": f"{source} {number} mail me at a{number}@millers.net \u2028 "
                + " ".join(f"word{number * 7 + at}" for at in range(words)),
            }
            if number % 10 == 9:  # a copy of the one before it
                record["text"] = json.loads(lines[-1])["text"]
            if number % 2:
                record["license"] = "MIT"
            if number % 3 == 0:
                record["meta"] = {"n": number, "list": [1, "a"]} if number % 2 else {"other": "\u00fc\n"}
            if number % 5 == 0:
                record["created_at"] = f"2020-01-{number % 28 + 1:02d}"
            lines.append(json.dumps(record))
        (directory / f"{source}.jsonl").write_text("\n".join(lines) + "\n")


def recipe(directory: Path, **sections: Any) -> Record:
    sources = [
        {"name": name, "domain": name, "files": str(directory / f"{name}.jsonl"), "license": "CC-BY-4.0"}
        for name in ("web", "math")
    ]
    whole = {
        "name": "toy",
        "sources": sources,
        "redact": ["email"],
        "split": {"valid_fraction": "0.2"},
        "builds": [{"name": name, "format": name, "content": "text"} for name in FORMATS],
        **sections,
    }
    return {key: value for key, value in whole.items() if value is not None}


def read_texts(texts: Path, split: str) -> list[Record]:
    """Of a build of any format, by json, pyarrow and tarfile alone; nulls and `meta` alike."""
    found: list[Record] = []
    for path in sorted((texts / split).iterdir()):
        if path.name.endswith(".jsonl.zst"):
            found += load_lines(path)
        elif path.suffix == ".parquet":
            found += pq.read_table(path).to_pylist()
        else:
            found += read_tar(path)
    for record in found:
        if isinstance(record.get("meta"), str):
            record["meta"] = json.loads(record["meta"])
    return [{name: value for name, value in record.items() if value is not None} for record in found]


def read_tar(path: Path) -> list[Record]:
    with tarfile.open(path) as file:
        members = {m.name: file.extractfile(m).read() for m in file.getmembers()}  # type: ignore[union-attr]
    keys = [name.removesuffix(".txt") for name in members if name.endswith(".txt")]
    assert len(members) == 2 * len(keys)
    return [{"text": members[f"{key}.txt"].decode(), **json.loads(members[f"{key}.json"])} for key in keys]


def expected_texts(out: Path) -> dict[str, list[Record]]:
    """What the steps before left of each document: ingest, edits, trims, verdicts and labels."""
    splits = load_manifest(out / "split").facts["splits"]
    found: dict[str, list[Record]] = {split: [] for split in splits}
    number = 0
    for source in ("web", "math"):
        for entry in load_manifest(out / "ingest" / source).entries("documents"):
            key = Path(entry.path).stem.removeprefix("documents-")
            rows = load_table(out / "ingest" / source / entry.path).to_pylist()
            for place, name in (
                (out / "clean" / source, f"edits-{key}"),
                (out / "dedup", f"trims-{number:05d}"),
            ):
                if (place / f"{name}.parquet").is_file():
                    for edit in load_table(place / f"{name}.parquet").to_pylist():
                        rows[edit["row"]]["text"] = edit["text"]
            labels = load_table(out / "split" / f"labels-{number:05d}.parquet")["split"].to_pylist()
            marks = load_table(out / "clean" / source / f"marks-{key}.parquet")["language"].to_pylist()
            for row, label, language in zip(rows, labels, marks, strict=True):
                if label != 255:
                    record = {**row, "split": splits[label], "language": language}
                    record["meta"] = json.loads(row["meta"]) if row["meta"] else None
                    found[splits[label]].append({k: v for k, v in record.items() if v is not None})
            number += 1
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a tokenizer; not to be changed."""
    directory = tmp_path_factory.mktemp("plain")
    corpus(directory)
    return tokmill.run(recipe(directory), directory / "out", workers=1).out


MIXTURE: Record = {
    "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
    "mixture": {"weights": {"web": "0.8", "math": "0.2"}, "tokens": 9_000, "exhausted": "repeat"},
}
MEGA = {"name": "mega", "format": "megatron"}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mixed")
    corpus(directory)
    builds = [*recipe(directory)["builds"], MEGA]
    return tokmill.run(recipe(directory, **MIXTURE, builds=builds), directory / "out", workers=1).out


@pytest.mark.parametrize("format", FORMATS)
def test_texts_need_no_tokenizer_and_hold_every_document_that_the_split_kept_with_all_its_fields(
    plain: Path, format: str
) -> None:
    expected = expected_texts(plain)
    assert not (plain / "tokens").exists()
    assert {split: len(rows) for split, rows in expected.items()}.keys() == {"train", "valid"}
    for split, records in expected.items():
        assert read_texts(plain / "texts" / format, split) == records
    text = expected["train"][0]["text"]
    assert "@millers.net" not in text
    assert "\u2028" in text
    manifest = load_manifest(plain / "texts" / format)
    assert manifest.counts["kept"] == sum(map(len, expected.values()))
    assert {split: own["docs"] for split, own in manifest.counts["splits"].items()} == {
        split: len(rows) for split, rows in expected.items()
    }
    assert all(name.endswith(FORMATS[format]) for name in (e.path for e in manifest.entries("texts")))


def test_a_text_is_without_the_passages_that_deduplication_cut(tmp_path: Path) -> None:
    records = [
        {"id": f"d{number}", "text": f"Own words {number} first. {SENTENCE}. Then more {number} words follow"}
        for number in range(4)
    ]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    sources = recipe(tmp_path)["sources"][:1]
    window = {"window": {"policy": "trim", "words": 12, "min_words": 3, "winnow": 1}}
    out = tokmill.run(recipe(tmp_path, sources=sources, dedup=window, split=None), tmp_path / "out").out
    for format in FORMATS:
        texts = {record["doc_id"]: record["text"] for record in read_texts(out / "texts" / format, "train")}
        assert SENTENCE in texts["d0"]
        assert SENTENCE not in texts["d1"]
        assert {record["text"] for record in read_texts(out / "texts" / format, "train")} == {
            record["text"] for record in expected_of_one(out)
        }


def expected_of_one(out: Path) -> list[Record]:
    (entry,) = load_manifest(out / "ingest/web").entries("documents")
    rows = load_table(out / "ingest/web" / entry.path).to_pylist()
    for edit in load_table(out / "dedup/trims-00000.parquet").to_pylist():
        rows[edit["row"]]["text"] = edit["text"]
    return list(rows)


def test_texts_follow_the_mixture_document_for_document_and_repeat_what_it_repeats(mixed: Path) -> None:
    """The index of a token build says whose tokens come when."""
    everywhere = {
        (record["source"], record["doc_id"]): record
        for records in expected_texts(mixed).values()
        for record in records
    }
    for split in ("train", "valid"):
        rows = read_row_index(mixed / "build/mega" / split / "index.jsonl.zst")
        turns = [(span.source, span.doc_id) for row in rows for span in row.docs]
        for format in FORMATS:
            assert read_texts(mixed / "texts" / format, split) == [everywhere[turn] for turn in turns]
        assert split == "valid" or len(turns) > len(set(turns))
    assert not list((mixed / "texts").rglob("scratch*"))


def test_a_split_that_the_mixture_leaves_whole_is_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    corpus(tmp_path)
    mixture = {**MIXTURE["mixture"], "held_out": "whole"}
    builds = [{"name": "some", "format": "jsonl", "content": "text", "sources": ["math"]}]
    whole = recipe(tmp_path, **{**MIXTURE, "mixture": mixture, "builds": builds})
    out = tokmill.run(whole, tmp_path / "out", workers=1).out
    of_math = [record for record in expected_texts(out)["valid"] if record["source"] == "math"]
    assert read_texts(out / "texts/some", "valid") == of_math
    train = read_texts(out / "texts/some", "train")
    assert {record["source"] for record in train} == {"math"}
    order = load_table(out / "mixture/order-train.parquet")
    assert len(train) == sum(shard == 1 for shard in order["shard"].to_pylist())


STAGES: list[Record] = [
    {"name": "main", "steps": 20},
    {"name": "anneal", "tokens": 2_000, "length": 32, "weights": {"web": "0.2", "math": "0.8"}},
]


def turns_of_stage(out: Path, stage: str) -> list[tuple[str, str]]:
    """Source and id of each turn, by the order as it was written and the tables of the tokens."""
    ids = {}
    for entry in load_manifest(out / "tokens").entries("lengths"):
        split, domain, name = entry.path.split("/")
        if split == "train":
            number = int(name.removeprefix("lengths-").removesuffix(".parquet"))
            ids[number] = domain, load_table(out / "tokens" / entry.path)["doc_id"].to_pylist()
    order = load_table(out / f"stage/{stage}/order-train.parquet").to_pydict()
    return [(ids[n][0], ids[n][1][at]) for n, at in zip(order["shard"], order["sequence"], strict=True)]


@pytest.mark.parametrize("per_token", [4, 1 << 19])
def test_an_export_of_stages_has_what_they_chose_stage_after_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per_token: int
) -> None:
    """One file, or several for each stage: `per_token` is how large a token is taken to be."""
    corpus(tmp_path)
    mixture = {
        "weights": {"web": "0.5", "math": "0.5"},
        "held_out": "whole",
        "batch_tokens": 128,
        "exhausted": "repeat",
        "max_epochs": 9,
        "stages": STAGES,
    }
    sections = {**MIXTURE, "mixture": mixture, "pack": {"length": 64}, "shards": {"megabytes": 256}}
    sections["builds"] = [{"name": "rows", "format": "memmap"}]
    out = tokmill.run(recipe(tmp_path, **sections), tmp_path / "out", workers=1).out
    monkeypatch.setattr("tokmill.stages.texts.CHARS_PER_TOKEN", per_token)
    made = tokmill.export(out, out=tmp_path / "texts", workers=1)
    turns = [turns_of_stage(out, stage["name"]) for stage in STAGES]
    records = read_texts(tmp_path / "texts", "train")
    assert [(record["source"], record["doc_id"]) for record in records] == turns[0] + turns[1]
    assert {*turns[0], *turns[1]} < {(r["source"], r["doc_id"]) for r in expected_texts(out)["train"]}
    built = [
        {
            (span.source, span.doc_id)
            for row in read_row_index(out / f"build/rows-{stage['name']}/train/index.jsonl.zst")
            for span in row.docs
        }
        for stage in STAGES
    ]
    assert [set(own) for own in turns] == built
    by_key = {(r["source"], r["doc_id"]): r for r in expected_texts(out)["train"]}
    assert records == [by_key[record["source"], record["doc_id"]] for record in records]
    assert read_texts(tmp_path / "texts", "valid") == expected_texts(out)["valid"]
    files = load_manifest(tmp_path / "texts").entries("texts")
    assert (sum(entry.path.startswith("train/") for entry in files) > 4) == (per_token > 4)
    told = made.as_json()["splits"]
    assert told == {"train": len(records), "valid": len(expected_texts(out)["valid"])}
    assert tokmill.verify(tmp_path / "texts").ok


def test_a_mixture_larger_than_a_file_is_cut_into_several_in_its_order(tmp_path: Path) -> None:
    corpus(tmp_path, documents=500, words=300)
    builds = [{"name": "texts", "format": "jsonl", "content": "text"}, MEGA]
    mixture = {"weights": {"web": "0.5", "math": "0.5"}}
    whole = recipe(
        tmp_path,
        **{**MIXTURE, "mixture": mixture},
        builds=builds,
        shards={"megabytes": 1},
        split=None,
        redact=[],
    )
    out = tokmill.run(whole, tmp_path / "out", workers=1).out
    files = load_manifest(out / "texts/texts").entries("texts")
    assert len(files) > 2
    rows = read_row_index(out / "build/mega/train/index.jsonl.zst")
    turns = [(span.source, span.doc_id) for row in rows for span in row.docs]
    records = read_texts(out / "texts/texts", "train")
    assert [(record["source"], record["doc_id"]) for record in records] == turns


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers_writes_the_same_texts(mixed: Path) -> None:
    whole = recipe(mixed.parent, **MIXTURE, builds=[*recipe(mixed.parent)["builds"], MEGA])
    out = tokmill.run(whole, mixed.parent / "three", workers=3).out
    for format in FORMATS:
        one, three = (load_manifest(run / "texts" / format) for run in (mixed, out))
        assert one.identity == three.identity
        assert one.digest == three.digest
    assert tokmill.verify(mixed).digest == tokmill.verify(out).digest


def test_what_was_written_before_a_run_was_cut_short_is_not_written_again(tmp_path: Path) -> None:
    """As a kill leaves it: files and receipts of two tasks, no manifest."""
    corpus(tmp_path)
    asked = recipe(tmp_path, builds=[{"name": "texts", "format": "jsonl", "content": "text"}])
    out = tokmill.run(asked, tmp_path / "out", workers=1).out
    texts = out / "texts/texts"
    before = load_manifest(texts)
    files = {entry.path: entry._asdict() for entry in before.files}
    (texts / "receipts").mkdir()
    for task in before.tasks[:1]:
        own = {**task, "files": [files[path] for path in task["files"]]}
        (texts / "receipts" / f"{task['key']}.json").write_text(json.dumps(own))
    kept = [texts / path for path in before.tasks[0]["files"]]
    inodes = [path.stat().st_ino for path in kept]
    for task in before.tasks[1:]:
        for path in task["files"]:
            (texts / path).unlink()
    (texts / "manifest.json").unlink()
    (out / "manifest.json").unlink()
    again = tokmill.run(asked, out, workers=1)
    assert again.ran == ["texts/texts"]
    assert [path.stat().st_ino for path in kept] == inodes
    assert load_manifest(texts).digest == before.digest
    assert tokmill.verify(out).ok
    assert tokmill.run(asked, out, workers=1).ran == []


def test_a_build_of_texts_that_the_recipe_no_longer_has_is_removed(tmp_path: Path) -> None:
    corpus(tmp_path)
    out = tokmill.run(recipe(tmp_path), tmp_path / "out", workers=1).out
    left = recipe(tmp_path)["builds"][:1]
    assert tokmill.run(recipe(tmp_path, builds=left), out, workers=1).ran == []
    assert [path.name for path in (out / "texts").iterdir()] == ["jsonl"]
    assert tokmill.verify(out).ok


def test_measures_are_those_that_cleaning_took_and_every_file_has_the_same_columns(tmp_path: Path) -> None:
    corpus(tmp_path)
    asked = recipe(tmp_path, filters=[{"measure": "words", "min": 3}])
    asked["builds"] = [{**build, "measures": True} for build in asked["builds"]]
    asked["domains"] = {"math": {"filters": [{"measure": "digit_share", "max": 0.9}]}}
    out = tokmill.run(asked, tmp_path / "out", workers=1).out
    expected: dict[str, Record] = {}
    for source in ("web", "math"):
        for entry in load_manifest(out / "clean" / source).entries("measures"):
            ids = load_table(out / "ingest" / source / entry.path.replace("measures", "documents"))["doc_id"]
            rows = load_table(out / "clean" / source / entry.path).to_pylist()
            expected |= dict(zip(ids.to_pylist(), rows, strict=True))
    for format in FORMATS:
        for record in (r for split in ("train", "valid") for r in read_texts(out / "texts" / format, split)):
            found = {name: value for name, value in record["measures"].items() if value is not None}
            assert found == expected[record["doc_id"]]
    schemas = {
        str(pq.read_schema(path).remove_metadata()) for path in (out / "texts/parquet").rglob("*.parquet")
    }
    assert len(schemas) == 1


@pytest.mark.parametrize("ints_in", ["a", "b"])
@pytest.mark.parametrize("of", ["filters", "scores"])
def test_a_hook_may_answer_whole_numbers_for_one_shard_and_others_for_the_next(
    tmp_path: Path, of: str, ints_in: str
) -> None:
    for name in ("a", "b"):
        lines = [json.dumps({"id": f"{name}{n}", "text": f"Text {n} of file {name}."}) for n in range(20)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "hooks.py").write_text(
        "def half(columns):\n"
        f"    if columns['doc_id'][0][0] == {ints_in!r}:\n"
        "        return [int(name[1:]) for name in columns['doc_id']]\n"
        "    return [int(name[1:]) / 2 for name in columns['doc_id']]\n"
    )
    hook = f"{tmp_path / 'hooks.py'}:half"
    column = f"hook.{hook}" if of == "filters" else "score.half"
    asked = recipe(
        tmp_path,
        sources=[{"name": "web", "files": str(tmp_path / "[ab].jsonl"), "fields": {"id": "id"}}],
        filters=[{"measure": hook if of == "filters" else "score.half", "min": 0}],
        scores=[{"name": "half", "hook": hook}] if of == "scores" else None,
        builds=[{"name": name, "format": name, "content": "text", "measures": True} for name in FORMATS],
    )
    out = tokmill.run(asked, tmp_path / "out", workers=1).out
    assert len(load_manifest(out / "clean/web").entries("measures")) == 2
    expected = {f"{name}{n}": n if name == ints_in else n / 2 for name in ("a", "b") for n in range(20)}
    for format in FORMATS:
        records = [r for split in ("train", "valid") for r in read_texts(out / "texts" / format, split)]
        assert {r["doc_id"]: r["measures"][column] for r in records} == expected


def test_measures_of_a_recipe_that_measures_nothing_are_a_warning(tmp_path: Path) -> None:
    corpus(tmp_path, documents=5)
    build = {"name": "texts", "format": "jsonl", "content": "text", "measures": True}
    result = tokmill.run(recipe(tmp_path, builds=[build]), tmp_path / "out", workers=1)
    assert [(step, "no rule measures anything" in what) for step, what in result.warnings] == [
        ("texts/texts", True)
    ]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_datasets_opens_the_directory_with_its_splits(
    plain: Path, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = datasets.load_dataset(str(plain / "texts" / format), cache_dir=str(tmp_path))
    expected = expected_texts(plain)
    assert set(found) == {"train", "validation"}
    for split, name in (("train", "train"), ("valid", "validation")):
        records = []
        for record in found[name]:
            meta = record["meta"]
            record["meta"] = json.loads(meta) if isinstance(meta, str) else meta
            if record["created_at"]:  # of JSON, `datasets` reads a date as a time
                record["created_at"] = record["created_at"].removesuffix(" 00:00:00")
            records.append({key: value for key, value in record.items() if value is not None})
        assert records == expected[split]


def test_the_card_has_licences_sizes_and_the_files_of_each_split(plain: Path) -> None:
    yaml = pytest.importorskip("yaml")
    _, front, body = (plain / "texts/parquet/README.md").read_text().split("---\n", 2)
    card = yaml.safe_load(front)
    assert card["license"] == ["cc-by-4.0", "mit"]
    assert card["pretty_name"] == "toy"
    assert card["size_categories"] == ["n<1K"]
    (config,) = card["configs"]
    assert config["data_files"] == [
        {"split": "train", "path": "train/*.parquet"},
        {"split": "validation", "path": "valid/*.parquet"},
    ]
    assert f"| train | {len(expected_texts(plain)['train'])} |" in body


@pytest.mark.parametrize(
    ("tags", "name", "link"),
    [
        (["CC-BY-SA-3.0 AND CC-BY-SA-4.0"], "CC-BY-SA-3.0 AND CC-BY-SA-4.0", None),
        (["MIT OR Apache-2.0", "CC-BY-SA-2.5"], "(Apache-2.0 OR MIT) AND CC-BY-SA-2.5", None),
        (["CC-BY-SA-2.5", "MIT"], "CC-BY-SA-2.5", "https://creativecommons.org/licenses/by-sa/2.5/"),
    ],
)
def test_the_card_links_what_is_one_licence_and_names_several_as_one_expression(
    tmp_path: Path, tags: list[str], name: str, link: str | None
) -> None:
    yaml = pytest.importorskip("yaml")
    data = [{"id": f"d{n}", "text": f"text {n}", "license": tags[n % len(tags)]} for n in range(6)]
    build = {"name": "texts", "format": "jsonl", "content": "text"}
    asked = recipe(tmp_path, sources=[{"name": "web", "data": data}], split=None, builds=[build])
    out = tokmill.run(asked, tmp_path / "out", workers=1).out
    card = yaml.safe_load((out / "texts/texts/README.md").read_text().split("---\n")[1])
    assert (card["license_name"], card.get("license_link")) == (name, link)


def test_attribution_is_of_the_texts_where_nothing_else_is_built(plain: Path) -> None:
    said = (plain / "ATTRIBUTION.md").read_text()
    records = [record for own in expected_texts(plain).values() for record in own]
    mit = sum(r["license_tag"] == "MIT" and r["source"] == "web" for r in records)
    assert f"| web | {mit} |" in said or f" {mit} " in said


@pytest.mark.parametrize("format", FORMATS)
def test_verify_finds_a_file_of_texts_that_is_other_than_it_was(
    plain: Path, format: str, tmp_path: Path
) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(plain / "texts" / format, copy)
    assert tokmill.verify(copy).ok
    path = sorted((copy / "train").iterdir())[0]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (problem,) = tokmill.verify(copy).problems
    assert problem.what.startswith("truncated")
    assert problem.where == f"train/{path.name}"
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert not tokmill.verify(copy).ok


@pytest.mark.parametrize("format", FORMATS)
def test_verify_reads_texts_again_and_finds_other_documents_than_the_manifest_has(
    plain: Path, format: str, tmp_path: Path
) -> None:
    """Two files changed places, and whoever did it wrote a manifest that fits their bytes."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(plain / "texts" / format, copy)
    one, two = sorted((copy / "train").iterdir())
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)

    def sizes(body: Record) -> None:
        for entry in body["files"]:
            path = copy / entry["path"]
            entry |= {"bytes": path.stat().st_size, "sha256": file_sha256(path)}

    rewrite_manifest(copy, sizes)
    problems = tokmill.verify(copy).problems
    assert {problem.where for problem in problems} == {f"train/{one.name}", f"train/{two.name}"}
    assert all("its reader finds" in problem.what for problem in problems)


def test_why_says_in_which_file_and_record_a_document_is(mixed: Path, plain: Path) -> None:
    for out in (plain, mixed):
        for doc_id in ("web-3", "math-20"):
            (document,) = tokmill.why(out, doc_id).documents or []
            for told in (build for build in document.builds if build["build"].startswith("texts/")):
                texts = out / told["build"]
                found = [
                    (f"{told['split']}/{path.name}", number)
                    for path in sorted((texts / told["split"]).iterdir())
                    for number, record in enumerate(_records(path))
                    if record["doc_id"] == doc_id
                ]
                assert [(turn["file"], turn["record"]) for turn in told["turns"]] == found
                assert told["turns"] or told["why_not"] == "the mixture gave it no turn"
    said = command("why", plain, "web-3").stdout
    assert ("texts/jsonl" in said and "record=" in said) or "record" in said


def _records(path: Path) -> list[Record]:
    if path.suffix == ".tar":
        return read_tar(path)
    return load_lines(path) if path.suffix == ".zst" else pq.read_table(path).to_pylist()


def test_why_says_that_a_build_of_texts_is_of_other_sources(tmp_path: Path) -> None:
    corpus(tmp_path, documents=5)
    build = {"name": "some", "format": "jsonl", "content": "text", "sources": ["math"]}
    out = tokmill.run(recipe(tmp_path, builds=[build]), tmp_path / "out", workers=1).out
    (document,) = tokmill.why(out, "web-3").documents or []
    assert document.builds[0]["why_not"] == "the build is of math only"


@pytest.mark.parametrize("is_mixed", [False, True])
def test_forget_takes_a_document_out_of_texts_and_its_dry_run_lists_them(
    tmp_path: Path, is_mixed: bool
) -> None:
    corpus(tmp_path)
    out = tokmill.run(recipe(tmp_path, **(MIXTURE if is_mixed else {})), tmp_path / "out", workers=1).out
    (document,) = tokmill.why(out, "web-3").documents or []
    said = command("forget", out, "--doc-id", "web-3", "--dry-run").stdout
    affected = tokmill.forget(out, doc_id="web-3", dry_run=True).affected["texts"]
    for told in affected:
        turns = next(build["turns"] for build in document.builds if build["build"] == told["build"])
        assert told["records"] == len(turns) > 0
        assert told["files"] == sorted({turn["file"] for turn in turns})
        assert f"{told['build']} {told['split']}: {told['records']} of {told['of_records']} texts" in said
    assert len(affected) == 3
    done = tokmill.forget(out, doc_id="web-3", workers=1)
    assert {f"texts/{format}" for format in FORMATS} <= set(done.ran)
    for format in FORMATS:
        for split in ("train", "valid"):
            assert all(r["doc_id"] != "web-3" for r in read_texts(out / "texts" / format, split))
    assert tokmill.verify(out).ok
    again = recipe(tmp_path, **(MIXTURE if is_mixed else {}))
    assert tokmill.run(again, out, workers=1).ran == []


def test_verify_finds_a_forgotten_document_that_is_still_in_texts(tmp_path: Path) -> None:
    corpus(tmp_path)
    out = tokmill.run(recipe(tmp_path), tmp_path / "out", workers=1).out
    before = {path: path.read_bytes() for path in (out / "texts").rglob("*") if path.is_file()}
    tokmill.forget(out, doc_id="web-3", workers=1)
    for path, data in before.items():
        path.write_bytes(data)

    def as_before(body: Record) -> None:
        for entry in body["files"]:
            path = out / entry["path"]
            if entry["path"].startswith("texts/"):
                told = json.loads(path.read_bytes())
                entry |= {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
                entry["content_sha256"] = told["identity"]
                body["inputs"][str(Path(entry["path"]).parent)] = told["identity"]
                body["counts"][str(Path(entry["path"]).parent)] = told["counts"]

    # manifests that prove each other: what is left to find is the document
    for format in FORMATS:

        def inputs(body: Record) -> None:
            for label in (label for label in body["inputs"] if label.startswith("step ")):
                body["inputs"][label] = load_manifest(out / label.removeprefix("step ")).identity
            body["counts"] |= {"in": body["counts"]["in"] - 1, "kept": body["counts"]["kept"] - 1}
            body["tasks"][0]["counts"]["in"] -= 1
            body["tasks"][0]["counts"]["kept"] -= 1

        rewrite_manifest(out / "texts" / format, inputs)
    rewrite_manifest(out, as_before)
    problems = tokmill.verify(out).problems
    assert len([p for p in problems if "texts of documents that were forgotten" in p.what]) == 3


BUILD = {"name": "texts", "format": "jsonl", "content": "text"}


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ({"name": "a", "format": "jsonl"}, "jsonl holds texts: add `content: text`"),
        (
            {**BUILD, "format": "memmap"},
            "memmap holds tokens; texts are jsonl, parquet or webdataset",
        ),
        ({**BUILD, "format": "yaml"}, "format"),
        ({**BUILD, "dtype": "uint16"}, "is of tokens: a build of texts has none"),
        ({**BUILD, "rows_per_shard": 3}, "is of tokens: a build of texts has none"),
        ({**BUILD, "pack": {"length": 8}}, "is of tokens: a build of texts has none"),
        ({"name": "a", "format": "memmap", "measures": True}, "belongs to `content: text`"),
        ({"name": "a", "format": "parquet"}, "`builds` needs a `tokenizer`"),
        ({**BUILD, "sources": ["nowhere"]}, "no source is called nowhere"),
    ],
)
def test_what_a_build_of_texts_cannot_be_is_told_at_its_key(tmp_path: Path, build: Record, said: str) -> None:
    corpus(tmp_path, documents=2)
    with pytest.raises(RecipeError, match=r"(?s)builds") as told:
        tokmill.run(recipe(tmp_path, builds=[build]), tmp_path / "out")
    assert said in str(told.value)


def test_a_build_of_tokens_is_written_down_as_before_there_were_texts() -> None:
    of_tokens = tokmill.Build(name="a", format="memmap").model_dump(mode="json")
    assert "content" not in of_tokens
    assert "measures" not in of_tokens
    of_text = tokmill.Build(name="a", format="jsonl", content="text").model_dump(mode="json")
    assert of_text["content"] == "text"


def test_plan_and_until_know_texts_by_name(tmp_path: Path) -> None:
    corpus(tmp_path, documents=5)
    asked = recipe(tmp_path)
    assert list(tokmill.plan(asked, tmp_path / "out").steps)[-3:] == [f"texts/{name}" for name in FORMATS]
    out = tokmill.run(asked, tmp_path / "out", until="texts/jsonl", workers=1).out
    assert [path.name for path in (out / "texts").iterdir()] == ["jsonl"]
    changed = {**asked, "builds": [{**BUILD, "name": "jsonl", "measures": True}]}
    reasons = tokmill.plan(changed, out).steps["texts/jsonl"]
    assert any("measures" in reason for reason in reasons)


def test_a_tar_is_the_same_to_the_byte_wherever_it_is_made(plain: Path) -> None:
    (path, *_) = sorted((plain / "texts/webdataset/train").iterdir())
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as file:
        members = file.getmembers()
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o644)}
    entry = next(e for e in load_manifest(plain / "texts/webdataset").files if e.path.endswith(path.name))
    assert entry.content_sha256 == entry.sha256 == file_sha256(path)
