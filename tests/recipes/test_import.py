"""`tokmill recipe import FILE`: every key of the file is in the recipe, or told with its line."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE

from tokmill import Recipe, load_recipe, recipe_import
from tokmill.cli import main
from tokmill.errors import RecipeError

DATASETS = """\
seed: 7
defaults: &hub {split: train, streaming: true}
datasets:
  - <<: *hub
    path: HuggingFaceFW/fineweb
    name: sample-10BT
    weight: 0.5
    text_column: text
    max_samples: 100k
  - path: json
    data_files: ["data/*.jsonl.zst"]
    probability: 0.25
    template: "{title}\\n{body}"
    quality_model: big.bin
  - path: wikimedia/wikipedia
    name: 20231101.en
    split: train[:10%]
    proportion: 25%
    text_column: text
tokenizer: gpt2
seq_len: 2048
val_fraction: 0.005
total_tokens: 2B
output_dir: /data/out
optimizer: {lr: 3.0e-4}
"""

DOMAINS = """\
name: Stage A mix
domains:
  filtered_web:
    weight: 0.3
    sources:
      - {name: fineweb edu, dataset: HuggingFaceFW/fineweb-edu, subset: sample-10BT, revision: main, weight: 0.8}
      - {name: crawl, files: crawl/*.warc.gz, weight: 0.2, license: CC-BY-4.0}
  math:
    weight: 0.7
    color: red
    sources:
      owm: {dataset: open-web-math/open-web-math, max_tokens: 50M, min_chars: 100}
  empty: {weight: 0.1}
"""  # noqa: E501


def imported(directory: Path, text: str) -> Any:
    path = directory / "mix.yaml"
    path.write_text(text, encoding="utf-8")
    (directory / "imported.yaml").unlink(missing_ok=True)
    return recipe_import(path, directory / "imported.yaml")


def told(found: Any) -> list[tuple[int, str]]:
    return [(item.line, item.key) for item in found.unmapped]


def test_a_list_of_datasets_becomes_sources_with_a_mixture(tmp_path: Path) -> None:
    recipe = imported(tmp_path, DATASETS).recipe
    web, mine, wiki = recipe.sources
    assert web.hub is not None
    assert (web.hub.dataset, web.hub.config, web.hub.split) == (
        "HuggingFaceFW/fineweb",
        "sample-10BT",
        "train",
    )
    assert (web.fields.text, web.limit and web.limit.docs) == ("text", 100_000)
    assert (mine.name, mine.files, mine.template) == ("data", ["data/*.jsonl.zst"], "{title}\n{body}")
    assert wiki.hub is not None
    assert (wiki.hub.config, wiki.hub.split) == ("20231101.en", "train")
    assert recipe.mixture is not None
    weights = {name: str(weight) for name, weight in recipe.mixture.weights.items()}
    assert weights == {"fineweb-sample-10BT": "0.5", "data": "0.25", "wikipedia-20231101.en": "0.25"}
    assert (recipe.mixture.tokens, recipe.mixture.normalize) == (2_000_000_000, False)
    assert (recipe.seed, recipe.pack.length, str(recipe.split.valid_fraction)) == (7, 2048, "0.005")


def test_what_a_list_of_datasets_has_beyond_a_recipe_is_told_line_by_line(tmp_path: Path) -> None:
    found = imported(tmp_path, DATASETS)
    assert told(found) == [
        (2, "datasets[0].streaming"),
        (2, "defaults"),
        (14, "datasets[1].quality_model"),
        (17, "datasets[2].split"),
        (20, "tokenizer"),
        (25, "optimizer"),
    ]
    why = {item.key: item.why for item in found.unmapped}
    assert "name one: `tokenizer: {path: …" in why["tokenizer"]
    assert found.out == "/data/out"
    assert "all of `train` is read" in why["datasets[2].split"]
    assert all(f"#   {item}\n" in found.text for item in found.unmapped)


def test_domains_with_weights_become_a_mixture_of_two_levels(tmp_path: Path) -> None:
    found = imported(tmp_path, DOMAINS)
    recipe = found.recipe
    assert recipe.name == "Stage-A-mix"
    assert [(source.name, source.domain) for source in recipe.sources] == [
        ("fineweb-edu", "filtered_web"),
        ("crawl", "filtered_web"),
        ("owm", "math"),
    ]
    assert recipe.sources[1].warc is not None
    assert recipe.sources[2].clean is not None
    assert recipe.sources[2].limit is not None
    assert recipe.sources[2].limit.tokens == 50_000_000
    assert recipe.mixture is not None
    assert {name: str(weight) for name, weight in recipe.mixture.weights.items()} == {
        "filtered_web": "0.3",
        "math": "0.7",
    }
    assert {name: str(w) for name, w in recipe.mixture.sources["filtered_web"].items()} == {
        "fineweb-edu": "0.8",
        "crawl": "0.2",
    }
    assert told(found) == [(10, "domains.math.color"), (13, "domains.empty")]


def test_weights_beside_a_list_of_sources_with_domains(tmp_path: Path) -> None:
    text = (
        "weights: {web: 7, math: 3}\nsources:\n  - {domain: web, repo: a/b}\n  - {domain: math, repo: c/d}\n"
    )
    recipe = imported(tmp_path, text).recipe
    assert recipe.mixture is not None
    assert recipe.mixture.normalize
    assert {name: int(weight) for name, weight in recipe.mixture.weights.items()} == {"web": 7, "math": 3}


def test_a_bare_list_of_names_needs_no_weights(tmp_path: Path) -> None:
    recipe = imported(tmp_path, "- a/b\n- {path: c/b, split: test}\n").recipe
    assert [source.name for source in recipe.sources] == ["b", "b-2"]
    assert recipe.mixture is None
    assert recipe.tokenizer is None


def test_an_entry_without_a_share_is_told_and_gets_none(tmp_path: Path) -> None:
    found = imported(tmp_path, "datasets:\n- {path: a/b, weight: 1}\n- {path: c/d}\n- 17\n- {weight: 2}\n")
    whys = [str(item) for item in found.unmapped]
    assert whys == [
        "line 1: datasets: d has no weight: it is taken as 0, and is not read",
        "line 4: datasets[2]: is neither a mapping nor the name of a dataset",
        "line 5: datasets[3]: says no dataset and no files",
    ]


def test_two_words_for_one_thing_are_told(tmp_path: Path) -> None:
    found = imported(tmp_path, "datasets:\n- {path: a/b, weight: 1, ratio: 2}\n")
    assert [str(item) for item in found.unmapped] == [
        "line 2: datasets[0].ratio: `datasets[0].weight` says it already"
    ]


def test_paths_stay_relative_to_where_the_data_is(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    path = tmp_path / "configs" / "mix.yaml"
    path.write_text("datasets: [{files: [../data/*.jsonl, /abs/x.txt, ./other.xlsx]}]\n")
    found = recipe_import(path, tmp_path / "imported.yaml")
    assert found.recipe.sources[0].files == ["data/*.jsonl", "/abs/x.txt", "configs/other.xlsx"]
    assert [item.why.split(";")[0] for item in found.unmapped] == ["no reader for this ending"]


@pytest.mark.parametrize("text", ["", "a: 1\n", "just words\n", "datasets: []\n", "- 1\n- 2\n"])
def test_a_file_that_lists_nothing_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(RecipeError, match=r"mix.yaml"):
        imported(tmp_path, text)


def test_aliases_of_aliases_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(RecipeError, match="50,000 keys and values"):
        imported(tmp_path, "\n".join(lines) + "\n")


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, ["recipe", "import", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_command_writes_the_recipe_and_tells_the_rest_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text(DOMAINS)
    shown = run(tmp_path / "mix.yaml", tmp_path / "recipe.yaml")
    assert shown.exit_code == 0
    assert shown.stdout == f"wrote {tmp_path / 'recipe.yaml'}: 3 sources; 2 keys did not map\n"
    assert re.search(r"mix.yaml, line 10: domains.math.color: no key of a recipe does this\n", shown.stderr)
    assert len(load_recipe(tmp_path / "recipe.yaml").sources) == 3
    checked = CliRunner().invoke(main, ["recipe", "check", str(tmp_path / "recipe.yaml")])
    assert checked.stderr.startswith("EmptyGlob"), "the crawl is not here; all else is in order"
    assert "sources[1].files: crawl/*.warc.gz: the pattern matches no file" in checked.stderr
    again = run(tmp_path / "mix.yaml", tmp_path / "recipe.yaml")
    assert again.exit_code == 1
    assert "exists already" in again.stderr


def test_the_command_tells_it_as_json(tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text(DOMAINS)
    shown = run(tmp_path / "mix.yaml", tmp_path / "recipe.yaml", "--json")
    report = json.loads(shown.stdout)
    assert report["unmapped"][0] == {
        "line": 10,
        "key": "domains.math.color",
        "why": "no key of a recipe does this",
    }


KEYS = [
    "path",
    "name",
    "split",
    "weight",
    "text_column",
    "max_samples",
    "streaming",
    "template",
    "files",
    "license",
]
VALUES = st.one_of(
    st.integers(-2, 9),
    st.sampled_from(["a/b", "x.jsonl", "0.5", "train", "{t}", ""]),
    st.booleans(),
    st.none(),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from([*KEYS, "other"]), VALUES, max_size=6), min_size=1, max_size=3)
)
def test_no_key_is_lost_silently(
    tmp_path_factory: pytest.TempPathFactory, entries: list[dict[str, object]]
) -> None:
    """Whatever an entry holds: an error, or a recipe in which `other` is told."""
    directory = tmp_path_factory.mktemp("any")
    try:
        found = imported(directory, json.dumps({"datasets": entries}))
    except RecipeError:
        return
    assert isinstance(found.recipe, Recipe)
    keys = {item.key for item in found.unmapped}
    for index, entry in enumerate(entries):
        for key in entry:
            if key == "other":
                assert {f"datasets[{index}].other", f"datasets[{index}]"} & keys


def test_bounds_of_any_name_and_the_unit_of_plain_text_become_those_of_the_source(tmp_path: Path) -> None:
    text = """\
datasets:
  - {path: a/b, max_records: 1000}
  - {path: c/d, limit: {docs: 2k, megabytes: 5, pages: 7}}
  - {files: notes/*.txt, limit: 30, unit: line}
  - {files: more/*.txt, limit: {records: 9}, max_docs: 8, unit: sentence}
  - {path: e/f, limit: {pages: 7}}
"""
    found = imported(tmp_path, text)
    limits = [
        source.limit.model_dump(exclude_none=True) if source.limit else None
        for source in found.recipe.sources
    ]
    assert limits == [{"docs": 1000}, {"docs": 2000, "megabytes": 5}, {"docs": 30}, {"docs": 9}, None]
    assert [source.unit for source in found.recipe.sources] == [*["document"] * 2, "line", *["document"] * 2]
    assert told(found) == [
        (3, "datasets[1].limit.pages"),
        (5, "datasets[3].max_docs"),
        (5, "datasets[3].unit"),
        (6, "datasets[4].limit"),
    ]


def test_the_file_of_the_tokenizer_and_the_outputs_are_kept(tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    tokenizer = Tokenizer(BPE({"a": 0, "b": 1, "<|end_of_text|>": 2}, []))
    tokenizer.add_special_tokens(["<|end_of_text|>"])
    tokenizer.save(str(tmp_path / "tok/tokenizer.json"))
    text = """\
datasets: [{files: a.jsonl, weight: 1}]
tokenizer_path: tok/tokenizer.json
seq_len: 512
outputs: {dir: /data/stage a, format: npy}
"""
    (tmp_path / "mix.yaml").write_text(text)
    (tmp_path / "recipes").mkdir()
    made = tmp_path / "recipes/recipe.yaml"
    done = CliRunner().invoke(main, ["recipe", "import", str(tmp_path / "mix.yaml"), str(made)])
    assert done.exit_code == 0, done.output
    assert f"next: tokmill run {made} --out '/data/stage a'" in done.output
    assert "every key mapped" in done.output
    recipe = load_recipe(made)
    assert recipe.tokenizer is not None
    assert recipe.tokenizer.path == "../tok/tokenizer.json"
    assert (
        recipe.tokenizer.sha256 == hashlib.sha256((tmp_path / "tok/tokenizer.json").read_bytes()).hexdigest()
    )
    assert recipe.tokenizer.eos == "<|end_of_text|>"
    assert [(build.name, build.format) for build in recipe.builds] == [("rows", "npy")]
    assert "--out '/data/stage a'" in made.read_text()


def test_a_tokenizer_that_is_not_here_keeps_its_path_and_what_is_guessed_is_told(tmp_path: Path) -> None:
    text = (
        "datasets: [{files: a.jsonl}]\ntokenizer: {path: far/spm.model}\noutputs: [{name: m, format: "
        "megatron}, x/y]\n"
    )
    found = imported(tmp_path, text)
    assert found.recipe.tokenizer is not None
    assert (found.recipe.tokenizer.path, found.recipe.tokenizer.eos) == ("far/spm.model", "</s>")
    assert [(build.name, build.format) for build in found.recipe.builds] == [("m", "megatron")]
    assert found.out == "x/y"
    assert told(found) == [(2, "tokenizer.path")]
