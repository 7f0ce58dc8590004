"""Mixture files: what they become, and what is wrong with them, with the line."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tokmill.errors import RecipeError
from tokmill.mixture_file import mixture_weights, read_mixture_file, to_sources

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


def test_weights_that_do_not_sum_say_to_what_they_do(tmp_path):
    text = "datasets: [{name: a, files: a.txt, weight: 0.5}, {name: b, files: b.txt, weight: 0.4}]"
    with pytest.raises(RecipeError, match=r"weights add up to 0\.9, not to 1\n  next: .*normalize: true"):
        mixture_weights(read_mixture_file(written(tmp_path, text)))
    normalized = read_mixture_file(written(tmp_path, f"normalize: true\n{text}"))
    assert mixture_weights(normalized) == {"a": Fraction(5, 9), "b": Fraction(4, 9)}


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
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path, change, mistake):
    with pytest.raises(RecipeError) as raised:
        read_mixture_file(written(tmp_path, MIXTURE.replace(*change)))
    assert mistake in str(raised.value)
