"""Mixture files: what they become, and what is wrong with them, with the line."""

from __future__ import annotations

from fractions import Fraction

import pytest

import tokmill
from tokmill.adhoc.mixtures import mixture_weights, read_mixture_file, to_sources
from tokmill.errors import RecipeError

MIXTURE = """\
seed: 42
datasets:
  - {name: fineweb, dataset: HuggingFaceFW/fineweb, subset: sample-10BT, split: train, weight: 0.5,
     text_field: body, samples: 100k}
  - name: mine
    files: "data/*.jsonl.zst"
    weight: 0.5
"""


def written(directory, text):
    path = directory / "mixture.yaml"
    path.write_text(text)
    return path


def test_datasets_become_sources(tmp_path):
    mixture = read_mixture_file(written(tmp_path, MIXTURE))
    assert mixture.seed == 42
    fineweb, mine = to_sources(mixture)
    assert (fineweb.name, fineweb.domain, fineweb.fields.text) == ("fineweb", "fineweb", "body")
    assert fineweb.hub.model_dump() == {
        "dataset": "HuggingFaceFW/fineweb",
        "config": "sample-10BT",
        "split": "train",
        "revision": None,
    }
    assert (fineweb.sample.method, fineweb.sample.k) == ("reservoir", 100_000)
    assert (mine.hub, mine.files, mine.sample) == (None, ["data/*.jsonl.zst"], None)
    assert mixture_weights(mixture) == {"fineweb": Fraction(1, 2), "mine": Fraction(1, 2)}


def test_without_weights_each_has_as_much_as_it_has(tmp_path):
    text = "datasets: [{name: a, files: a.txt}, {name: b, files: b.txt}]"
    assert mixture_weights(read_mixture_file(written(tmp_path, text))) is None


def test_weights_that_do_not_sum_to_one_are_shares_of_their_sum_and_a_line_says_so(tmp_path, caplog):
    text = "datasets: [{name: a, files: a.txt, weight: 0.5}, {name: b, files: b.txt, weight: 0.4}]"
    shares = {"a": Fraction(5, 9), "b": Fraction(4, 9)}
    assert mixture_weights(read_mixture_file(written(tmp_path, text))) == shares
    (said,) = caplog.messages
    assert said.startswith(
        "datasets: weights add up to 0.9, not to 1; taken as shares of it: a 0.5555556, b 0.4"
    )
    caplog.clear()
    normalized = read_mixture_file(written(tmp_path, f"normalize: true\n{text}"))
    assert mixture_weights(normalized) == shares
    assert caplog.messages == []


def test_max_records_a_limit_and_a_unit_are_those_of_the_source(tmp_path):
    text = """\
datasets:
  - {name: a, files: a.jsonl, max_records: 2k, megabytes: 3}
  - {name: b, files: b.txt, limit: {docs: 500, tokens: 9000}, unit: line}
  - {name: c, files: c.jsonl, limit: {megabytes: 4}, max_records: 7}
"""
    sources = {source.name: source for source in to_sources(read_mixture_file(written(tmp_path, text)))}
    limits = {name: source.limit.model_dump(exclude_none=True) for name, source in sources.items()}
    assert limits == {
        "a": {"docs": 2000, "megabytes": 3},
        "b": {"docs": 500, "tokens": 9000},
        "c": {"docs": 7, "megabytes": 4},
    }
    assert [source.unit for source in sources.values()] == ["document", "line", "document"]


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (
            ("samples: 100k", "sample: 100k"),
            "line 4: datasets[0].sample: unknown key; did you mean `samples`?",
        ),
        (("files:", "file:"), "line 5: datasets[1]: needs either `dataset` or `files`"),
        (("weight: 0.5\n", "weight: -1\n"), "line 7: datasets[1].weight: input should be greater than"),
        (("name: mine", "name: fineweb"), "line 5: datasets[1].name: datasets[0] is called fineweb too"),
        (
            ("    weight", "    split: train\n    weight"),
            "line 7: datasets[1].split: `split` belongs to `dataset`",
        ),
        (("seed: 42", "seeds: 42"), "line 1: seeds: unknown key; did you mean `seed`?"),
        (
            ("    weight", "    max_records: 5\n    limit: {docs: 6}\n    weight"),
            "line 7: datasets[1].max_records: `limit: {docs: …}` says it too; keep one",
        ),
        (("    weight", "    unit: lines\n    weight"), "did you mean `line`?"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path, change, mistake):
    with pytest.raises(RecipeError) as raised:
        tokmill.tokenizer_train(manifest=written(tmp_path, MIXTURE.replace(*change)), out=tmp_path / "tok")
    assert not (tmp_path / "tok").exists()
    assert mistake in str(raised.value)
