"""The Python face: a recipe without a file, records that are Python objects, and one part on a column."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tokmill
from tokmill.errors import InputError, RecipeError
from written import write_rows

REPOSITORY = Path(__file__).parents[1]
ROWS = [
    {
        "text": f"Mill {n} grinds {n * n} sacks of grain, and {n % 7} of rye.",
        "id": f"m{n}",
        "year": str(1700 + n),
    }
    for n in range(300)
]
SECTIONS: dict[str, Any] = {
    "name": "mine",
    "seed": 3,
    "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
    "pack": {"length": 32},
    "builds": [{"name": "rows", "format": "memmap"}],
}


def digest_of(out: Path) -> str:
    found = tokmill.verify(out)
    assert found.problems == []
    return found.digest


def source(**keys: Any) -> dict[str, Any]:
    return {"name": "mine", "fields": {"id": "id", "meta": ["year"]}, **keys}


def run(out: Path, **keys: Any) -> str:
    return digest_of(tokmill.run({**SECTIONS, "sources": [source(**keys)]}, out, workers=1).out)


def kinds_of_objects() -> dict[str, Any]:
    import datasets
    import pandas
    import polars

    table = pa.Table.from_pylist(ROWS)
    return {
        "generator": (row for row in ROWS),
        "function": lambda: iter(ROWS),
        "table": table,
        "reader": table.to_reader(max_chunksize=70),
        "pandas": pandas.DataFrame(ROWS),
        "polars": polars.DataFrame(ROWS),
        "dataset": datasets.Dataset.from_list(ROWS),
        "selected dataset": datasets.Dataset.from_list([*ROWS[150:], *ROWS[:150]]).select(
            [*range(150, 300), *range(150)]
        ),
    }


def test_records_in_memory_have_the_digest_of_the_same_records_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    from_file = run(tmp_path / "file", files=str(tmp_path / "mine.jsonl"))
    assert run(tmp_path / "list", data=ROWS) == run(tmp_path / "again", data=ROWS)
    for kind, data in kinds_of_objects().items():
        assert run(tmp_path / kind, data=data) == run(tmp_path / "list", data=ROWS), kind
    # the manifest of ingest lists the digest of its file:
    # JSON is spelled otherwise by json.dumps, the rest is equal
    documents = [load_texts(tmp_path / name) for name in ("file", "list")]
    assert documents[0] == documents[1]
    assert from_file != run(tmp_path / "list", data=ROWS[1:])


def load_texts(out: Path) -> list[Any]:
    import pyarrow.parquet

    paths = sorted((out / "ingest/mine").glob("documents-*.parquet"))
    return [row for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()]


def test_equal_objects_are_up_to_date_and_others_are_not(tmp_path: Path) -> None:
    recipe = {**SECTIONS, "sources": [source(data=ROWS)]}
    assert tokmill.run(recipe, tmp_path / "out", workers=1).ran
    assert tokmill.run(recipe, tmp_path / "out", workers=1).ran == []
    assert not (tmp_path / "out/.work").exists()
    changed = {**SECTIONS, "sources": [source(data=[*ROWS, {"text": "one more", "id": "x", "year": "1"}])]}
    assert "ingest/mine" in tokmill.run(changed, tmp_path / "out", workers=1).ran
    assert str(tmp_path) not in (tmp_path / "out/manifest.json").read_text()


def test_a_recipe_is_the_same_as_a_file_as_yaml_as_a_dict_and_as_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    as_dict = {**SECTIONS, "sources": [source(files="mine.jsonl")]}
    Path("recipe.yaml").write_text(json.dumps(as_dict))
    sections = tokmill.Recipe(
        name="mine",
        seed=3,
        sources=[
            tokmill.Source(name="mine", files=["mine.jsonl"], fields=tokmill.Fields(id="id", meta=["year"]))
        ],
        tokenizer=tokmill.Tokenizer(
            train=tokmill.Training(model="byte_bpe", vocab_size=300), eos="<|endoftext|>"
        ),
        pack=tokmill.Pack(length=32),
        builds=[tokmill.Build(name="rows", format="memmap")],
    )
    given = {
        "file": "recipe.yaml",
        "yaml": json.dumps(as_dict, indent=1),
        "dict": as_dict,
        "sections": sections,
    }
    digests = {kind: digest_of(tokmill.run(recipe, kind, workers=1).out) for kind, recipe in given.items()}
    assert len(set(digests.values())) == 1, digests
    assert tokmill.load_recipe(json.dumps(as_dict, indent=1)) == tokmill.load_recipe("recipe.yaml")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([{"text": "a"}, "b"], "record 1 of its `data` is a str, not a dict"),
        ([{"text": object()}], "record 0 of its `data` cannot be written as JSON"),
        ("a text", "its `data` is a str"),
        (7, "its `data` is a int"),
    ],
)
def test_objects_that_are_no_records_are_told_by_their_place(tmp_path: Path, data: Any, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        tokmill.run({**SECTIONS, "sources": [source(data=data)]}, tmp_path / "out", workers=1)


def test_mistakes_in_a_dict_are_told_as_those_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="vocab_sise"):
        tokmill.run({**SECTIONS, "sources": [source(data=ROWS)], "tokenizer": {"train": {"vocab_sise": 3}}})
    with pytest.raises(RecipeError, match="needs either `files`, `hub`, `corpus` or `directory`"):
        tokmill.run({**SECTIONS, "sources": [source()]}, tmp_path)


def test_a_function_in_a_recipe_is_told_to_be_named(tmp_path: Path) -> None:
    def shouting(columns: Any) -> list[int]:
        return [text.count("!") for text in columns["text"]]

    recipe = {**SECTIONS, "sources": [source(data=ROWS)]}
    for given in ({"filters": [{"measure": shouting, "max": 5}]}, {"transforms": [shouting]}):
        with pytest.raises(RecipeError, match="shouting is a function of Python") as told:
            tokmill.run({**recipe, **given}, tmp_path / "out")
        assert told.value.next == "write it to a file beside the recipe, and give `hooks.py:shouting`"


def test_a_result_is_shown_in_a_few_lines_with_all_its_fields(tmp_path: Path) -> None:
    done = tokmill.run({**SECTIONS, "sources": [source(data=ROWS)]}, tmp_path / "out", workers=1)
    for result in (done, done.artifacts["tokens"], tokmill.why(done.out, "m7"), tokmill.verify(done.out)):
        shown = repr(result)
        assert len(shown) < 1_500
        assert shown.startswith(f"{type(result).__name__}(")
        names = getattr(result, "_fields", None) or result.__dataclass_fields__
        assert all(f"{name}=" in shown for name in names)
    assert "m7" in repr(tokmill.why(done.out, "m7").documents[0])


def test_a_notebook_goes_from_a_list_of_dicts_to_batches_in_under_fifteen_lines(tmp_path: Path) -> None:
    """The block of the README, as it stands there."""
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.S)
    (block,) = [block for block in blocks if '"data": rows' in block]
    assert len(block.splitlines()) < 15
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "(8, 64)" in done.stdout


def test_what_there_is_is_shown_and_each_name_can_be_had() -> None:
    assert {"run", "Recipe", "verify", "measure", "near_duplicates", "load_recipe"} <= set(dir(tokmill))
    assert all(getattr(tokmill, name) is not None for name in dir(tokmill))


TEXTS = [
    "Write to bob@mills.io, or call.",
    "Le moulin tourne, et il moud le grain tous les jours de la semaine.",
    "3 of 12 mills: 25 %",
    "",
]


def as_kinds(texts: list[str]) -> dict[str, Any]:
    import pandas
    import polars

    return {
        "list": texts,
        "numpy": np.array(texts, object),
        "arrow": pa.array(texts),
        "chunked": pa.chunked_array([texts[:2], texts[2:]]),
        "pandas": pandas.Series(texts, index=range(5, 5 + len(texts)), name="t"),
        "polars": polars.Series("t", texts),
    }


@pytest.mark.parametrize("kind", ["list", "numpy", "arrow", "chunked", "pandas", "polars"])
def test_columns_of_every_kind_give_the_same(kind: str) -> None:
    texts = as_kinds(TEXTS)[kind]
    found = tokmill.measure(texts, ["chars", "digit_share"])
    assert found["chars"].tolist() == [len(text) for text in TEXTS]
    shares = [sum(c.isdigit() for c in text) / len(text) if text else 0.0 for text in TEXTS]
    assert found["digit_share"].tolist() == shares
    languages = tokmill.detect_language(texts)
    assert list(languages.codes)[1] in ("fr", pa.scalar("fr"))
    assert len(languages.scores) == 4
    redacted = tokmill.redact(texts, ["email"])
    assert type(redacted) is (pa.LargeStringArray if kind in ("arrow", "chunked") else type(texts))
    assert str(next(iter(redacted))) == TEXTS[0].replace("bob@mills.io", "email@example.com")
    assert [str(text) for text in list(redacted)[1:]] == TEXTS[1:]


def test_near_duplicates_are_those_of_sets_of_words() -> None:
    """Jaccard similarity by sets, pair by pair."""
    words = [f"w{n}" for n in range(60)]
    texts = [" ".join(words), " ".join([*words[:58], "x", "y"]), " ".join(words[::-1]), " ".join(words)]
    found = tokmill.near_duplicates(texts, threshold=0.7, ngram=3)
    grams = [{tuple(t.split()[i : i + 3]) for i in range(len(t.split()) - 2)} for t in texts]
    for n, survivor in enumerate(found.survivor.tolist()):
        similarity = len(grams[n] & grams[survivor]) / len(grams[n] | grams[survivor])
        assert found.similarity[n] == pytest.approx(similarity, abs=0.08)
        assert bool(found.kept[n]) == (survivor == n)
    assert found.survivor.tolist() == [0, 0, 2, 0]
    assert found.cluster.tolist() == [0, 0, 2, 0]


def test_a_plan_of_rows_holds_every_token_once_or_says_how_many_it_leaves() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 40, 200).tolist()
    plan = tokmill.pack(lengths, 16)
    taken = set()
    for row, document, start, end, offset in zip(*map(list, plan.spans()), strict=True):
        for column in range(start, end):
            taken.add((document, offset + column - start))
            assert row < plan.n_rows
    every = [(d, t) for d, length in enumerate(lengths) for t in range(length)]
    assert sorted(taken) == every[: plan.n_rows * 16]
    assert plan.tail_dropped == len(every) - len(taken)


def test_a_name_that_is_none_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no measure wrods\n.*`words`"):
        tokmill.measure(["a"], ["wrods"])
    with pytest.raises(InputError, match=r"parse_error_share needs the language of a file(.|\n)*`filters`"):
        tokmill.measure(["a"], ["parse_error_share"])
    with pytest.raises(InputError, match="one text is given"):
        tokmill.redact("a text")


# By hand: a function, one of its parameters that take one of some words, and a word that is none of them.
NO_CHOICES = [
    *(("ablate", "size", "8m"), ("ablate", "mask", "document"), ("ablate", "device", "gpu")),
    *(("ablate", "held_out", "frist"), ("ablate", "by", "domains"), ("ablate", "leave_one_out", "source")),
    *(("build", "dtype", "int16"), ("build", "layout", "bestfit"), ("build", "order", "random")),
    *(("check", "verify", "hash"), ("continue_", "shuffle", "epochs"), ("seen", "shuffle", "epochs")),
    *(("dedup", "mode", "exakt"), ("dedup", "policy", "remove"), ("dedup", "scope", "per_source")),
    *(("dedup", "keep", "frist"), ("dedup", "unit", "words"), ("dedup", "verify", "sign")),
    *(("detect_language", "detector", "fastext"), ("encode", "unicode", "nfc"), ("export", "format", "json")),
    *(("filter", "detector", "fastext"), ("filter", "unknown_license", "dorp")),
    *(("materialize_files", "unicode", "nfc"), ("materialize_hub", "unicode", "nfc")),
    *(("materialize_sample", "method", "weigted"), ("near_duplicates", "unit", "words")),
    *(("near_duplicates", "verify", "sign"), ("normalize", "unicode", "nfc"), ("normalize", "nul", "drop")),
    *(("normalize", "newlines", "LF"), ("pack", "layout", "bestfit"), ("pack", "tail", "keep")),
    *(("run", "engine", "spark"), ("sample", "method", "tail"), ("score_apply", "prepare", "fine_web")),
    *(("score_apply", "aggregate", "median"), ("score_train", "kind", "liner")),
    *(("tokenizer_guard", "by", "sources"), ("tokenizer_train", "model", "wordpiece")),
]


@pytest.mark.parametrize(("name", "parameter", "word"), NO_CHOICES)
def test_a_word_that_is_no_choice_is_refused_before_anything_is_done(
    name: str, parameter: str, word: str
) -> None:
    function = getattr(tokmill, name)
    parameters = inspect.signature(function).parameters.values()
    given = [one for one in parameters if one.kind is not one.VAR_POSITIONAL]
    needed = {one.name: None for one in given if one.default is one.empty}
    with pytest.raises(InputError, match=f"{word!r} is not a choice") as error:
        function(**{**needed, parameter: word})
    assert error.value.where == parameter
    assert "set one of " in error.value.next


_OF_BATCHES = [
    *(("mask", "casual"), ("targets", "streams"), ("too_long", "crop"), ("names", "hf"), ("dtype", "i46")),
]
LOADING = {
    "open_dataset": [("verify", "hash"), ("boundaries", "indx")],
    "open_curriculum": [("verify", "hash"), ("boundaries", "indx"), ("shuffle", "epochs"), *_OF_BATCHES],
    "Batches": [("shuffle", "epochs"), *_OF_BATCHES],
    "Curriculum": [("shuffle", "epochs"), *_OF_BATCHES],
    "collate": _OF_BATCHES,
}


def test_a_word_that_is_no_choice_of_the_loader_is_refused(tmp_path: Path) -> None:
    from tokmill import loader

    build = tmp_path / "build/rows"
    stage = {"name": "main", "directory": "build/rows", "length": 4, "rows": 3}
    write_rows(build / "train", np.full((3, 4), 2), "int32", {"eos_id": 2, "pad_id": None, "split": "train"})
    (tmp_path / "curriculum").mkdir()
    told = {"version": 1, "build": "rows", "split": "train", "batch_tokens": 4, "stages": [stage]}
    (tmp_path / "curriculum/rows.json").write_text(json.dumps(told))
    dataset = loader.open_dataset(build)
    calls: dict[str, Any] = {
        "open_dataset": lambda **word: loader.open_dataset(build, **word),
        "open_curriculum": lambda **word: loader.open_curriculum(tmp_path, **word),
        "Batches": lambda **word: loader.Batches(dataset, 1, **word),
        "Curriculum": lambda **word: loader.Curriculum([("main", dataset)], 4, **word),
        "collate": lambda **word: loader.collate([[2, 2]], 2, **word),
    }
    for name, words in LOADING.items():
        calls[name]()
        for parameter, word in words:
            with pytest.raises(InputError, match=f"'{word}'") as error:
                calls[name](**{parameter: word})
            assert error.value.where == parameter, name


@pytest.mark.parametrize(
    ("lengths", "groups", "where"),
    [
        ([1.7, 2.9], None, "lengths"),
        ([3, -1], None, "lengths"),
        (["a"], None, "lengths"),
        ([[1]], None, "lengths"),
        ([[1], [1, 2]], None, "lengths"),
        (["3"], None, "lengths"),
        ([True], None, "lengths"),
        ([3 + 0j], None, "lengths"),
        ([3.0, float("nan")], None, "lengths"),
        ([3, float("inf")], None, "lengths"),
        ([3, None], None, "lengths"),
        ([3, 1 << 70], None, "lengths"),
        (np.array([3, 2.5], object), None, "lengths"),
        ([3, 4], [1], "groups"),
        ([3, 4], ["a", None], "groups"),
        ([3, 4], [[1], [1, 2]], "groups"),
    ],
)
def test_lengths_and_groups_that_are_none_are_told(lengths: Any, groups: Any, where: str) -> None:
    with pytest.raises(InputError) as error:
        tokmill.pack(lengths, 4, groups=groups)
    assert error.value.where == where


def test_whole_numbers_of_every_kind_are_lengths() -> None:
    import pandas

    expected = [column.tolist() for column in tokmill.pack([3, 2, 4], 4).spans()]
    for lengths in (
        [3.0, 2.0, 4.0],
        np.array([3, 2, 4], object),
        np.array([3, 2, 4], np.uint8),
        np.array([3.0, 2, np.int16(4)], object),
        pandas.Series([3.0, 2.0, 4.0]),
        pandas.Series([3, 2, 4], dtype="Int64"),
        pa.chunked_array([[3], [2, 4]]),
    ):
        assert [column.tolist() for column in tokmill.pack(lengths, 4).spans()] == expected


def test_groups_may_be_names_and_no_row_holds_two() -> None:
    names = np.array(["math", "web", "math", "web", "web"])
    spans = tokmill.pack([3, 2, 2, 3, 1], 4, layout="best_fit", groups=names).spans()
    rows: dict[int, set[str]] = {}
    for row, document in zip(spans[0].tolist(), spans[1].tolist(), strict=True):
        rows.setdefault(row, set()).add(str(names[document]))
    assert all(len(held) == 1 for held in rows.values())
    assert tokmill.pack([], 4).n_rows == 0


def test_what_is_no_word_is_no_choice_and_a_function_is_pickled_by_its_name() -> None:
    with pytest.raises(InputError, match="is not a choice"):
        tokmill.ablate(["a", "b"], device=0)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(tokmill.pack)) is tokmill.pack  # noqa: S301
