"""Recipes: every mistake at once, and YAML without its surprises."""

from __future__ import annotations

import contextlib
import functools
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill import Recipe, Source, load_recipe, recipe_init
from tokmill.errors import InputError, RecipeError
from tokmill.recipe import template_parts

SOURCES = "sources: [{name: a, files: a.jsonl}]\n"
SMALL = f"name: small\n{SOURCES}"
EOS = 'eos: "<|end|>"'


def parse(text: str) -> Recipe:
    return load_recipe(f"{text}\n")  # a text of one line would be a path


def starter(directory: Path) -> Path:
    return recipe_init(directory / "recipe.yaml", files="*.jsonl", name="starter").path


def mistakes(text: str) -> list[str]:
    """The mistakes that are told about a recipe, one per line of the error."""
    with pytest.raises(RecipeError) as caught:
        parse(text)
    assert caught.value.where == "the recipe"
    count, *lines = caught.value.what.splitlines()
    assert count == ("1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes")
    return [line.strip() for line in lines]


def test_a_recipe_with_many_mistakes_is_refused_with_all_of_them_each_at_its_place() -> None:
    told = mistakes(
        """\
nmae: broken
seed: -1
sources:
  - name: a b
    licence: MIT
    files: data/*.jsonl
    template: "{a[b]}"
    max_bad_fraction: 1.5
    on_bad_record: quarantin
  - {name: web}
  - name: web
    files: []
    fields: {txt: body}
normalize: {unicode: NFD, nul: strip, nul: keep}
filters:
  - {measure: words, min: 3}
  - {measure: chars, min: 9, max: 3}
dedup: {exact: maybe}
split: {valid_fraction: one tenth}
tokenizer: {path: tok.json, train: {vocab_size: 10}, eos: [1]}
pack: {length: 2.5}
builds:
  - {name: rows, format: memap}
"""
    )
    expected = [
        "name: is required",
        "line 1: nmae: unknown key; did you mean `name`?",
        "line 2: seed: input should be ",
        "line 4: sources[0].name: string should match pattern ",
        "line 5: sources[0].licence: unknown key; did you mean `license`?",
        'line 7: sources[0].template: template: {a[b]} must be a field name, or a.b or a[0] (got "{a[b]}")',
        "line 8: sources[0].max_bad_fraction: input should be less than or equal to 1",
        'line 9: sources[0].on_bad_record: "quarantin" is not a choice; did you mean `quarantine`?',
        "line 10: sources[1]: needs either `files`, `hub`, `corpus` or `directory`",
        "line 11: sources[2].name: sources[1] is called web too",
        "line 12: sources[2].files: ",
        "line 13: sources[2].fields.txt: unknown key; did you mean `text`?",
        "line 14: normalize.nul: key occurs twice",
        'line 14: normalize.unicode: "NFD" is not a choice; did you mean `NFC`?',
        "line 17: filters[1].min: min 9 is above max 3: nothing would be kept",
        'line 18: dedup.exact: should be true, false or folded (got "maybe")',
        'line 19: split.valid_fraction: should be a number (got "one tenth")',
        "line 20: tokenizer: needs either `path` (with `sha256`), `plugin` or `train`",
        "line 20: tokenizer.train.vocab_size: input should be greater than or equal to 257",
        "line 20: tokenizer.eos: should be a token of the vocabulary, or an id (got a list)",
        'line 21: pack.length: input should be a valid integer (got "2.5")',
        'line 23: builds[0].format: "memap" is not a choice; did you mean `memmap`?',
    ]
    assert [line[: len(start)] for line, start in zip(told, expected, strict=True)] == expected


SCORED = f"{SMALL}scores: [{{name: s, hook: 'h.py:f', percentile: corpus}}]\ntokenizer: {{path: t, {EOS}}}\n"


STAGED = f"{SCORED}mixture: {{held_out: whole, "


TRAINED = f"{SMALL}scores: [{{name: s, train: {{positive: [SET], negative: [{{files: b}}]}}}}]"


def section_places() -> list[tuple[str, str]]:
    """A recipe for every section, with KEY where a stranger can be put."""
    return [
        (f"{SMALL}KEY", "Recipe"),
        ("name: x\nsources: [{name: a, files: b, KEY}]", "Source"),
        ("name: x\nsources: [{name: a, files: b, fields: {KEY}}]", "Fields"),
        ("name: x\nsources: [{name: a, hub: {dataset: d, KEY}}]", "Hub"),
        ("name: x\nsources: [{name: a, files: b, wikipedia: {KEY}}]", "Wikipedia"),
        ("name: x\nsources: [{name: a, files: b, stackexchange: {KEY}}]", "StackExchange"),
        ("name: x\nsources: [{name: a, files: b, parallel: {KEY}}]", "Parallel"),
        ("name: x\nsources: [{name: a, files: b, warc: {KEY}}]", "Warc"),
        ("name: x\nsources: [{name: a, files: b, warc: {}, extract: {KEY}}]", "Extract"),
        ("name: x\nsources: [{name: a, files: b, pdf: {KEY}}]", "Pdf"),
        ("name: x\nsources: [{name: a, files: b, mbox: {KEY}}]", "Mbox"),
        ("name: x\nsources: [{name: a, directory: {path: b, KEY}}]", "Directory"),
        ("name: x\nsources: [{name: a, files: b, webdataset: {KEY}}]", "Webdataset"),
        ("name: x\nsources: [{name: a, files: b, chat: {KEY}}]", "Chat"),
        ("name: x\nsources: [{name: a, files: b, chat: {names: {KEY}}}]", "ChatNames"),
        ("name: x\nsources: [{name: a, files: b, limit: {docs: 1, KEY}}]", "Limit"),
        ("name: x\nsources: [{name: a, files: b, sample: {method: head, k: 1, KEY}}]", "Sample"),
        ("name: x\nsources: [{name: a, corpus: {manifest: m, KEY}}]", "Corpus"),
        ("name: x\nsources: [{name: a, files: b, clean: {KEY}}]", "Cleaning"),
        (f"{SMALL}domains: {{default: {{KEY}}}}", "Cleaning"),
        (f"{SMALL}clean: {{KEY}}", "CleanLimits"),
        (f"{SMALL}license: {{KEY}}", "License"),
        (f"{SMALL}urls: {{unknown: drop, KEY}}", "Urls"),
        (f"{SMALL}urls: {{block: {{words: [x], KEY}}}}", "Block"),
        (f"{SMALL}robots: {{drop: [noai], KEY}}", "Robots"),
        (f"{SMALL}dedup: {{url: {{KEY}}}}", "UrlCopies"),
        (f"{SMALL}dedup: {{templates: {{KEY}}}}", "Templates"),
        (f"{SMALL}language: {{KEY}}", "Language"),
        (f"{SMALL}normalize: {{KEY}}", "Normalize"),
        (f"{SMALL}filters: [{{measure: chars, min: 1, KEY}}]", "Filter"),
        (f"{SMALL}scores: [{{name: s, hook: 'h.py:f', KEY}}]", "Score"),
        (f"{SMALL}scores: [{{name: s, fasttext: {{path: p, label: l, KEY}}}}]", "FastText"),
        (f"{SMALL}scores: [{{name: s, linear: {{path: p, KEY}}}}]", "Linear"),
        (f"{SMALL}scores: [{{name: s, importance: {{path: p, KEY}}}}]", "Importance"),
        (f"{SMALL}scores: [{{name: s, perplexity: {{path: p, KEY}}}}]", "Perplexity"),
        (f"{SMALL}scores: [{{name: s, train: {{labels: l, KEY}}}}]", "Train"),
        (TRAINED.replace("SET", "{files: g, KEY}"), "ExampleSet"),
        (TRAINED.replace("SET", "{files: g, where: {field: f, min: 1, KEY}}"), "ExampleRule"),
        (f"{SMALL}scores: [{{name: s, transformer: {{path: p, KEY}}}}]", "Transformer"),
        (f"{SMALL}scores: [{{name: s, plugin: p, windows: {{words: 10, KEY}}}}]", "Windows"),
        (f"{SMALL}dedup: {{KEY}}", "Dedup"),
        (f"{SMALL}dedup: {{near: {{KEY}}}}", "Near"),
        (f"{SMALL}dedup: {{window: {{KEY}}}}", "Window"),
        (f"{SMALL}dedup: {{against: {{files: a, fields: [b], KEY}}}}", "Against"),
        (f"{SMALL}split: {{KEY}}", "Split"),
        (f"{SMALL}split: {{method: counts, counts: {{valid: 1, KEY}}}}", "Counts"),
        (f"{SMALL}split: {{method: field, field: a, values: {{valid: [b], KEY}}}}", "Values"),
        (f"{SMALL}tokenizer: {{path: t, {EOS}}}\nmixture: {{KEY}}", "Mixture"),
        (f"{SCORED}mixture: {{repeat: {{by: score.s, percentiles: {{0: 1}}, KEY}}}}", "Repeat"),
        (f"{SCORED}mixture: {{select: {{by: score.s, tokens: 5, KEY}}}}", "Select"),
        (f"{STAGED}stages: [{{name: a, tokens: 5, KEY}}]}}", "Stage"),
        (f"{STAGED}stages: [{{name: a, tokens: 5, where: [{{by: score.s, min: 1, KEY}}]}}]}}", "Where"),
        (f"{SMALL}tokenizer: {{path: t, {EOS}}}\nfim: {{domains: [default], KEY}}", "Fim"),
        (f"{SMALL}shards: {{KEY}}", "Shards"),
        (f"{SMALL}review: {{KEY}}", "TrainingPlan"),
        (f"{SMALL}pack: {{KEY}}", "Pack"),
        (f"{SMALL}tokenizer: {{path: t, {EOS}, KEY}}", "Tokenizer"),
        (f"{SMALL}tokenizer: {{{EOS}, train: {{KEY}}}}", "Training"),
        (f"{SMALL}tokenizer: {{path: t, {EOS}}}\nbuilds: [{{name: b, format: memmap, KEY}}]", "Build"),
    ]


@functools.cache
def json_schema() -> dict[str, Any]:
    """A tenth of a second, for each of a hundred tests."""
    return Recipe.model_json_schema()


def keys_of(section: str) -> list[str]:
    """As the JSON schema has them."""
    schema = json_schema()
    keys = (schema if section == "Recipe" else schema["$defs"][section])["properties"]
    return sorted([*keys, "data"] if section == "Source" else keys)  # `data` is of Python, and in no schema


def test_the_places_below_are_all_the_sections_there_are() -> None:
    assert {section for _, section in section_places()} == {"Recipe", *Recipe.model_json_schema()["$defs"]}


@pytest.mark.parametrize(("text", "section"), section_places())
def test_an_unknown_key_is_refused_at_every_level_with_the_keys_that_are_known_there(
    text: str, section: str
) -> None:
    (line,) = mistakes(text.replace("KEY", "qqqqqq: 1"))
    assert re.match(r"line \d+: [a-z0-9\[\].]*qqqqqq: unknown key; known keys: ", line)
    assert line.endswith(f": {', '.join(keys_of(section))}")


@pytest.mark.parametrize(("text", "section"), section_places())
def test_a_misspelt_key_brings_the_one_that_was_probably_meant(text: str, section: str) -> None:
    key = max(keys_of(section), key=len)
    (line,) = mistakes(text.replace("KEY", f"{key[0]}x{key[1:]}: 1"))
    assert line.endswith(f"unknown key; did you mean `{key}`?")


@pytest.mark.parametrize("key", ["int", "str", "1", "true", "null", "<<", "model_config"])
def test_a_key_that_means_something_elsewhere_is_an_unknown_key_like_any_other(key: str) -> None:
    (line,) = mistakes(f"{SMALL}{key}: 3\n")
    assert line.startswith(f"line 3: {key}: unknown key; ")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{SMALL}name: again\n", "line 3: name"),
        (f'{SMALL}"name": again\n', "line 3: name"),
        ("name: x\nsources:\n  - name: a\n    files: b\n    name: c\n", "line 5: sources[0].name"),
        (f"{SMALL}dedup: {{exact: true, exact: true}}\n", "line 3: dedup.exact"),
        (f"{SMALL}qqqqqq: {{deep: {{a: 1, a: 2}}}}\n", "line 3: qqqqqq.deep.a"),
    ],
)
def test_a_key_that_occurs_twice_is_a_mistake(text: str, place: str) -> None:
    assert f"{place}: key occurs twice" in mistakes(text)


@pytest.mark.parametrize("key", ["? [a, b]\n", "? {a: b}\n", "[a]"])
def test_a_key_that_is_not_a_word_is_a_mistake(key: str) -> None:
    assert mistakes(f"{SMALL}{key}: c\n") == ["line 3: recipe: a key must be a word"]


@pytest.mark.parametrize(
    "data", [b"a: [}", b"a: b: c", b"\tname: x", b"name: 'x", b"name: \xff", b"\x00", b"a: 1\n---\nb: 2\n"]
)
def test_what_is_not_yaml_is_refused_as_such(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "recipe.yaml").write_bytes(data)
    with pytest.raises(RecipeError, match="cannot be read as YAML: ") as caught:
        load_recipe(tmp_path / "recipe.yaml")
    assert caught.value.where == str(tmp_path / "recipe.yaml")
    assert caught.value.next


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "just words\n", "42\n", "null\n"])
def test_what_is_not_a_mapping_is_refused_with_the_way_to_start(text: str) -> None:
    with pytest.raises(RecipeError, match="is not a mapping of sections") as caught:
        parse(text)
    assert "tokmill recipe init" in caught.value.next


@pytest.mark.parametrize(
    "word", ["no", "No", "yes", "off", "ON", "y", "True", "FALSE", "1:30", "2024-01-01", "1e3"]
)
def test_a_plain_word_is_text_even_where_yaml_1_1_takes_it_for_something_else(word: str) -> None:
    recipe = parse(f"name: x\nsources: [{{name: a, files: b, license: {word}}}]\n")
    assert recipe.sources[0].license == word


@pytest.mark.parametrize("word", ["no", "off", "0.1", "1e-3"])
def test_a_name_may_be_such_a_word_too(word: str) -> None:
    assert parse(f"name: {word}\n{SOURCES}").name == word


@pytest.mark.parametrize(
    ("value", "shown"), [("true", "true"), ("false", "false"), ("2024", "2024"), ("007", "7"), ("-3", "-3")]
)
def test_a_boolean_or_a_number_in_the_place_of_text_says_that_it_needs_quotes(value: str, shown: str) -> None:
    (line,) = mistakes(f"name: {value}\n{SOURCES}")
    assert line == f"line 1: name: input should be a valid string (got {shown}); put it in quotes"
    assert parse(f'name: "{value.strip("-")}"\n{SOURCES}').name == value.strip("-")


@pytest.mark.parametrize("word", ["no", "yes", "off", "True", "1", "0", '"true"'])
def test_only_true_and_false_are_booleans(word: str) -> None:
    (line,) = mistakes(f"{SMALL}split: {{method: formula, test: {word}}}\n")
    assert line.startswith("line 3: split.test: input should be a valid boolean (got ")
    assert line.endswith("write true or false")
    assert parse(f"{SMALL}split: {{method: formula, test: false}}\n").split.test is False


SCALARS = st.one_of(
    st.text("0123456789_+-.eExo:~", max_size=12),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["true", "null", "no", "<<", "{}", "[]", "[{a: b}]", "{a: [b, {c: d}]}", "", "*a", "&a", "!a"]
    ),
)
KEYS = st.one_of(SCALARS, st.sampled_from(sorted(Recipe.model_fields)))


@settings(deadline=None, max_examples=400)
@given(st.lists(st.tuples(KEYS, SCALARS), max_size=4))
def test_whatever_is_written_the_answer_is_a_recipe_or_a_recipe_error(pairs: list[tuple[str, str]]) -> None:
    text = SMALL + "".join(f"{key}: {value}\n" for key, value in pairs)
    with contextlib.suppress(RecipeError):
        assert parse(text).name == "small"


@pytest.mark.parametrize("nothing", ["", "null", "~"])
def test_an_empty_value_is_the_same_as_null(nothing: str) -> None:
    assert (
        parse(f"name: x\nsources: [{{name: a, files: b, license: {nothing}}}]\n").sources[0].license is None
    )


@pytest.mark.parametrize("value", ["true", '"42"', "4.2", "4e1", "forty", "9" * 5000, "0x10"])
def test_a_whole_number_is_never_made_of_anything_else(value: str) -> None:
    (line,) = mistakes(f"{SMALL}seed: {value}\n")
    assert line.startswith("line 3: seed: input should be a valid integer (got ")
    assert len(line) < 150


@pytest.mark.parametrize(("written", "value"), [("1_000", 1000), ("+5", 5), ("010", 10), ("0", 0)])
def test_whole_numbers_are_decimal_whatever_they_begin_with(written: str, value: int) -> None:
    assert parse(f"{SMALL}seed: {written}\n").seed == value


@pytest.mark.parametrize(
    "written", ["0.1", "1e-3", ".05", "0", "0.30000000000000004", "0.333333333333333333333333333333"]
)
def test_a_fraction_stays_the_decimal_that_was_written(written: str) -> None:
    fraction = parse(f"{SMALL}split: {{valid_fraction: {written}}}\n").split.valid_fraction
    assert fraction == Decimal(written)
    assert parse(f'{SMALL}split: {{valid_fraction: "{written}"}}\n').split.valid_fraction == fraction


@pytest.mark.parametrize(
    "written", [".inf", "-.inf", ".nan", "NaN", "true", "1:30.5", "[0.1]", "half", "0,1"]
)
def test_what_is_not_a_number_is_no_fraction(written: str) -> None:
    (line,) = mistakes(f"{SMALL}split: {{valid_fraction: {written}}}\n".replace("0,1", '"0,1"'))
    assert line.startswith("line 3: split.valid_fraction: ")
    assert "number" in line


@pytest.mark.parametrize("written", ["1", "1.0", "-0.1", "2", "1e-999999999", "1e999999999"])
def test_a_fraction_out_of_bounds_is_refused_at_once(written: str) -> None:
    (line,) = mistakes(f"{SMALL}split: {{valid_fraction: {written}}}\n")
    assert line.startswith("line 3: split.valid_fraction: ")


@pytest.mark.parametrize("written", ["-1", "1e-31", "1e-999999999", "1e999999999"])
def test_a_weight_out_of_bounds_is_refused_at_once(written: str) -> None:
    lines = mistakes(f"{SMALL}mixture: {{weights: {{a: {written}}}}}\n")
    assert [line for line in lines if line.startswith("line 3: mixture.weights.a: ")]


@pytest.mark.parametrize(
    ("tokenizer", "told"),
    [
        (
            "{train: {weights: {a: -1}}, eos: e}",
            "tokenizer.train.weights.a: input should be greater than or equal to 0",
        ),
        (
            "{train: {weights: mixtur}, eos: e}",
            'tokenizer.train.weights: "mixtur" is not a choice; did you mean `mixture`?',
        ),
        ("{train: {}, eos: [e]}", "tokenizer.eos: should be a token of the vocabulary, or an id"),
    ],
)
def test_a_value_that_may_be_one_of_two_things_is_told_as_what_it_was_meant_to_be(
    tokenizer: str, told: str
) -> None:
    (line,) = mistakes(f"{SMALL}tokenizer: {tokenizer}\n")
    assert line.startswith(f"line 3: {told}"), line


def test_sections_that_are_left_out_have_working_defaults() -> None:
    recipe = parse(SMALL)
    assert recipe.tokenizer is None
    assert recipe.builds == []
    assert recipe.seed == 0
    assert recipe.dedup.exact
    assert recipe.split.valid_fraction == Decimal("0.01")
    assert (recipe.normalize.unicode, recipe.normalize.nul, recipe.normalize.newlines) == (
        "none",
        "strip",
        "keep",
    )
    (source,) = recipe.sources
    assert source.files == ["a.jsonl"]
    assert (source.domain, source.license, source.unit) == ("default", None, "document")
    assert source.on_bad_record == "quarantine"
    assert source.max_bad_fraction == Decimal("0.01")


def test_a_recipe_cannot_be_changed_after_loading() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse(SMALL).seed = 3


def test_what_a_recipe_dumps_it_loads_again(tmp_path: Path) -> None:
    recipe = load_recipe(starter(tmp_path))
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (f"{{{EOS}}}", "tokenizer: needs either `path` (with `sha256`), `plugin` or `train`"),
        (
            f"{{path: t, train: {{}}, {EOS}}}",
            "tokenizer: needs either `path` (with `sha256`), `plugin` or `train`",
        ),
        ("{path: t}", "tokenizer.eos: is required"),
        ("{train: {}, eos: 5}", "tokenizer.eos: a trained tokenizer takes its `eos` as a string"),
        ('{path: t, eos: ""}', "tokenizer.eos: should be a token of the vocabulary, or an id"),
        ("{path: t, eos: true}", "tokenizer.eos: should be a token of the vocabulary, or an id"),
        (f"{{train: {{}}, encoding: x, {EOS}}}", "tokenizer.encoding: `encoding` belongs to `path`"),
        (f"{{path: t, sha256: beef, {EOS}}}", "tokenizer.sha256: string should match pattern"),
    ],
)
def test_a_tokenizer_comes_from_exactly_one_place(tokenizer: str, why: str) -> None:
    (line,) = mistakes(f"{SMALL}tokenizer: {tokenizer}\n")
    assert line.startswith(f"line 3: {why}")


@pytest.mark.parametrize("tokenizer", ["{path: t, eos: 0}", f"{{path: t, {EOS}}}", f"{{train: {{}}, {EOS}}}"])
def test_a_tokenizer_from_one_place_is_accepted(tokenizer: str) -> None:
    assert parse(f"{SMALL}tokenizer: {tokenizer}\n").tokenizer is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{SMALL}builds: [{{name: b, format: memmap}}]", "line 3: builds: `builds` needs a `tokenizer`"),
        (
            "name: x\nsources: [{name: a, files: b, template: '{q}', fields: {text: t}}]",
            (
                "line 2: sources[0].template: `template` and `fields.text` both say where the text comes "
                "from; keep one"
            ),
        ),
        (f"{SMALL}filters: [{{measure: chars}}]", "line 3: filters[0]: needs `min` or `max`"),
        (
            f"{STAGED}stages: [{{name: a, tokens: 5, where: [{{by: score.s, min: 0.9, max: 0.3}}]}}]}}",
            "line 5: mixture.stages[0].where[0].min: is above `max`",
        ),
        (
            TRAINED.replace("SET", "{files: g, where: {field: f, min: 0.9, max: 0.3}}"),
            "line 3: scores[0].train.positive[0].where[0].min: is above `max`",
        ),
        (
            f"{SMALL}filters: [{{measure: chars, reason: Too Short, min: 1}}]",
            "line 3: filters[0].reason: string should match pattern '^[a-z][a-z0-9_]*$' (got \"Too Short\")",
        ),
    ],
)
def test_sections_that_contradict_themselves_are_refused(text: str, why: str) -> None:
    assert mistakes(text) == [why]


def test_contradictions_are_seen_in_sections_made_in_python_too() -> None:
    with pytest.raises(ValueError, match="both say where the text comes from"):
        Source(name="a", files=["b"], template="{q}", fields={"text": "t"})
    with pytest.raises(ValueError, match="nothing would be kept"):
        Recipe(name="x", sources=[], filters=[{"measure": "chars", "min": 2, "max": 1}])
    first = Source(name="a", files=["a"])
    for other, limit, why in (("b", None, "no source is called b"), ("a", None, "needs a `limit`")):
        with pytest.raises(ValueError, match=why):
            Recipe(name="x", sources=[first, Source(name="c", files=["c"], fallback=other, limit=limit)])
    with pytest.raises(ValueError, match="a must come after the source that falls back on it"):
        Recipe(name="x", sources=[first, Source(name="c", files=["c"], fallback="a", limit={"docs": 1})])


@pytest.mark.parametrize(
    "template",
    [
        "{a[b]}",
        "{.b}",
        "{a.}",
        "{a[x]}",
        "{a!r}",
        "{a:>10}",
        "{a:{b}}",
        "{}",
        "{",
        "}",
        "{a",
        "a}",
        "plain",
        "{{a}}",
        "{a!}",
        "{ {a} }",
    ],
)
def test_a_template_takes_plain_field_names_and_nothing_else(template: str) -> None:
    with pytest.raises(ValueError):
        Source(name="a", files=["b"], template=template)
    with pytest.raises(RecipeError, match=r"sources\[0\]\.template: "):
        parse(yaml.safe_dump({"name": "x", "sources": [{"name": "a", "files": "b", "template": template}]}))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.text(), st.text("abc _-é", min_size=1)), min_size=1, max_size=4), st.text())
def test_a_template_splits_into_the_literals_and_fields_it_was_made_of(
    pairs: list[tuple[str, str]], tail: str
) -> None:
    def escaped(literal: str) -> str:
        return literal.replace("{", "{{").replace("}", "}}")

    template = "".join(f"{escaped(literal)}{{{field}}}" for literal, field in pairs) + escaped(tail)
    parts = template_parts(template)
    assert "".join(literal + (f"<{field}>" if field is not None else "") for literal, field in parts) == (
        "".join(f"{literal}<{field}>" for literal, field in pairs) + tail
    )
    assert [field for _, field in parts if field is not None] == [field for _, field in pairs]


def billion_laughs() -> str:
    lines = ["a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    for letter, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{letter}: &{letter} [{', '.join([f'*{before}'] * 10)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (billion_laughs(), "a recipe has no aliases"),
        ("name: &x [*x]\n", "a recipe has no aliases"),
        ("name: &x a\nother: {<<: *x}\n", "a recipe has no aliases"),
        ("files: *glob\n", "a value that begins with \\* goes in quotes"),
        ("x: " + "[" * 100_000, "nested deeper than any recipe"),
        ("x: " + "{a: " * 100_000, "nested deeper than any recipe"),
        ("x:\n " + "- " * 100_000, "nested deeper than any recipe"),
        ("? " * 100_000, "nested deeper than any recipe"),
        ("name: !!python/object/apply:os.system [ls]\n", "a recipe has no tags"),
        ("name: !!binary aGk=\n", "a recipe has no tags"),
        ("seed: !!float x\n", "a recipe has no tags"),
    ],
)
def test_yaml_that_is_made_to_explode_or_to_run_is_refused_at_once(text: str, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        parse(text)


def test_a_pattern_without_quotes_is_told_to_be_quoted() -> None:
    with pytest.raises(RecipeError) as caught:
        parse("name: x\nsources: [{name: a, domain: web, files: *.jsonl}]\n")
    assert "line 2" in caught.value.what
    assert caught.value.next.startswith("quote it: ")
    assert 'files: "*.jsonl"' in caught.value.next


def test_more_keys_and_values_than_any_recipe_has_are_refused() -> None:
    with pytest.raises(RecipeError, match="a recipe has at most 50,000 keys and values"):
        parse("x: [" + "a," * 50_000 + "]")


def test_of_countless_mistakes_a_hundred_are_told() -> None:
    with pytest.raises(RecipeError) as caught:
        parse(SMALL + "".join(f"qq{number}: 1\n" for number in range(3000)))
    count, *lines = caught.value.what.splitlines()
    assert count == "100 mistakes or more"
    assert len(lines) == 100


def test_a_file_that_is_too_large_to_be_a_recipe_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    with path.open("wb") as file:
        file.truncate((4 << 20) + 1)
    with pytest.raises(InputError, match="bytes is more than the"):
        load_recipe(path)


def test_a_recipe_is_loaded_from_its_file_and_mistakes_name_it(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(SMALL)
    assert load_recipe(path) == parse(SMALL)
    path.write_text(f"{SMALL}sed: 3\n")
    with pytest.raises(RecipeError, match=r"recipe\.yaml: 1 mistake\n  line 3: sed: unknown key"):
        load_recipe(path)


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """As much of a JSON schema validator as recipes need; an unknown keyword is an error of this test."""
    noted = {"title", "description", "default", "$defs"}
    known = {
        "$ref",
        "type",
        "anyOf",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
    }
    known |= {"minLength", "maxLength", "pattern", "minItems", "minimum", "maximum", "exclusiveMaximum"}
    assert set(schema) <= known | noted, set(schema) - known - noted
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "boolean": bool,
        "null": type(None),
    }
    kinds["number"] = (int, float)
    if "$ref" in schema and not accepts(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, root):
        return False
    if "anyOf" in schema and not any(accepts(branch, value, root) for branch in schema["anyOf"]):
        return False
    if "type" in schema:
        is_kind = isinstance(value, kinds[schema["type"]])
        if not is_kind or (isinstance(value, bool) and schema["type"] != "boolean"):
            return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        return (
            set(schema.get("required", [])) <= set(value)
            and (schema.get("additionalProperties") is not False or set(value) <= set(properties))
            and all(accepts(properties[key], item, root) for key, item in value.items() if key in properties)
        )
    if isinstance(value, list):
        return len(value) >= schema.get("minItems", 0) and all(
            accepts(schema["items"], item, root) for item in value if "items" in schema
        )
    if isinstance(value, str):
        return (
            schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
            and re.search(schema.get("pattern", ""), value) is not None
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value) and value < schema.get(
            "exclusiveMaximum", value + 1
        )
    return True


def test_the_json_schema_accepts_the_starter_recipe_and_refuses_mistakes_in_it(tmp_path: Path) -> None:
    schema = Recipe.model_json_schema()
    content = yaml.safe_load(starter(tmp_path).read_text(encoding="utf-8"))
    assert accepts(schema, content, schema)
    wrong: list[dict[str, Any]] = [
        {"sed": 1},
        {"seed": "1"},
        {"seed": -1},
        {"sources": []},
        {"sources": [{"files": "a"}]},
        {"sources": [{"name": "a", "files": []}]},
        {"sources": [{"name": "a b", "files": "c"}]},
        {"split": {"valid_fraction": 1}},
        {"pack": {"layout": "conct"}},
        {"builds": [{"name": "b", "format": "parqet"}]},
    ]
    for change in wrong:
        assert not accepts(schema, {**content, **change}, schema), change
        assert mistakes(yaml.safe_dump({**content, **change})), change


def test_every_key_of_the_schema_is_described_by_its_type() -> None:
    for name, section in Recipe.model_json_schema()["$defs"].items():
        assert section["additionalProperties"] is False, name
        assert section["properties"], name
