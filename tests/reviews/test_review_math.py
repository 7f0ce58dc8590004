"""How mathematics is written: prices are no LaTeX,
and every share is counted again by a scanner without a regex."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import tokmill
from mill import SHARED
from tokmill.cli import main
from tokmill.reviews.texts import FORMS, INLINE, find_forms

GSM8K = SHARED / "data/math/gsm8k/train.jsonl"
MATH = SHARED / "data/math/MATH/test_0000-1499.jsonl"

MATHEMATICS = [
    "Let $x$ be even.",
    "If $x^2 + 1 = 5$, then",
    "the sum is $12$.",
    "in $\\triangle ABC$",
    "side $ABCD$ of it",
    "of $f(x) = \\sqrt{x}$ it is known",
    "a price of $\\$5$",
    "with $2 + 3 = 5$ apples",
    "and $n!$ ways",
    "$(a, b)$",
]
PRICES = [
    "A book for $5 and a pen for $3.",
    "She paid $5, he paid $10.",
    "$12+$10=$22",
    "So $48/2=$<<48/2=24>>24 a month",
    "It costs 5$ or 7$ a day",
    "He has $200 - $50 = $150 left",
    "from $5k to $7k",
    "escaped \\$5 and \\$7 here",
    "5$, a candy bar for 2$, a drink",
    "$1,000 and $2,000, $3",
    "US$ and C$ and A$",
]


def test_a_price_between_dollars_is_no_mathematics_and_a_formula_is() -> None:
    found = find_forms(pa.array(MATHEMATICS + PRICES, pa.large_string()))[INLINE].tolist()
    wrong = [
        text for text, has in zip(MATHEMATICS + PRICES, found, strict=True) if has != (text in MATHEMATICS)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("form", "written", "not_written"),
    [
        (
            "calculator marks <<…>>",
            ["48/2=<<48/2=24>>24", "<<.5*20=10>>10"],
            ["cout << a == 1 >> b", "<<EOF", "<< 5 >>"],
        ),
        (
            "#### n",
            ["so\n#### 72", "#### $1,200", "#### -3.5\n"],
            ["#### Results", "#### 3 ways to win", "a #### 3"],
        ),
        ("\\boxed{…}", ["\\boxed{7}", "\\fbox{7}"], ["boxed{7}", "\\boxedx{7}"]),
        ("LaTeX commands", ["\\frac{1}{2}", "\\dfrac12", "2\\pi"], ["\\fraction", "C:\\input", "frac"]),
        ("LaTeX environments", ["\\begin{align*}"], ["\\begin", "begin{x}"]),
    ],
)
def test_a_form_is_found_where_it_is_written_and_nowhere_else(
    form: str, written: list[str], not_written: list[str]
) -> None:
    found = find_forms(pa.array([*written, *not_written]))[form].tolist()
    assert found == [True] * len(written) + [False] * len(not_written)


# --- the shares that a review tells ---


def has_formula(text: str) -> bool:
    """Between two dollars of a line; a scanner over pieces, no regex."""
    for line in text.replace("\\$", "").split("\n"):
        pieces = line.split("$")
        for at in range(1, len(pieces) - 1):
            inside, after = pieces[at], pieces[at + 1]
            behind = after[:1] or ("$" if at + 2 < len(pieces) else "")
            if not inside or behind.isalnum() or behind in ("<", "("):
                continue
            if "\\" in inside and any(c.isalpha() or c == "{" for c in _after_backslashes(inside)):
                if not inside[0].isspace():
                    return True
            elif _is_algebra(inside):
                return True
    return False


def _after_backslashes(text: str) -> list[str]:
    return [text[at + 1] for at in range(len(text) - 1) if text[at] == "\\"]


def _is_algebra(inside: str) -> bool:
    words, word = [], ""
    for character in inside + " ":
        if character.isalpha():
            word += character
        elif word:
            words.append(word)
            word = ""
    if any(len(word) > 2 and not (word.isupper() and len(word) <= 6) for word in words):
        return False
    if any(not (c.isalnum() or c in "+*/=^_(){}[],.<>|!':;% -") for c in inside):
        return False
    first, last = inside[0], inside[-1]
    if not words:
        is_number = inside.lstrip("-").replace(",", "").replace(".", "").isdigit()
        return is_number or (
            (first.isdigit() or first in "([{-")
            and (last.isdigit() or last in ")]}")
            and any(c in "=^<>+*/," for c in inside)
        )
    return (first.isalnum() or first in "([{+|-") and (last.isalnum() or last in ")]}!'|")


def reviewed(recipe: dict[str, Any], directory: Path) -> dict[str, Any]:
    (directory / "recipe.yaml").write_text(json.dumps(recipe))
    run = tokmill.run(directory / "recipe.yaml", workers=1).out
    result = CliRunner().invoke(main, ["review", str(run), "--json", "--no-verify"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (answer,) = (one for one in found["questions"] if "mathematics" in one["question"])
    figures: dict[str, Any] = answer["figures"] | {"says": answer["says"]}
    return figures


def recipe_of(**files: Path) -> dict[str, Any]:
    return {
        "name": "forms",
        "sources": [
            {"name": name, "domain": "math", "files": str(path), "template": "{question}\n\n{answer}"}
            for name, path in files.items()
        ],
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
    }


@pytest.mark.skipif(not (GSM8K.exists() and MATH.exists()), reason="needs ../shared/data")
def test_problems_with_dollar_prices_have_no_latex_and_competition_problems_have(tmp_path: Path) -> None:
    figures = reviewed(recipe_of(gsm8k=GSM8K, competition=MATH), tmp_path)
    for name, path in (("gsm8k", GSM8K), ("competition", MATH)):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        # exact duplicates are dropped by the run; every text counts once
        texts = list(dict.fromkeys(f"{one['question']}\n\n{one['answer']}" for one in records))
        answers = figures[name]["answers"]
        assert figures[name]["documents"] == len(texts)
        assert answers[INLINE] == sum(map(has_formula, texts))
        assert answers["\\boxed{…}"] == sum("\\boxed" in text or "\\fbox" in text for text in texts)
        assert answers["LaTeX environments"] == sum("\\begin{" in text for text in texts)
        assert answers["calculator marks <<…>>"] == sum(
            "<<" in text and "=" in text.split("<<", 1)[1] for text in texts
        )
        assert answers["#### n"] == sum(text.splitlines()[-1].startswith("#### ") for text in texts)
    assert figures["gsm8k"]["answers"][INLINE] == 0
    assert figures["gsm8k"]["answers"]["LaTeX commands"] == 0
    assert figures["gsm8k"]["answers"]["calculator marks <<…>>"] > 7000
    assert figures["competition"]["answers"][INLINE] > 1400
    assert not any("LaTeX" in one or INLINE in one for one in figures["says"] if one.startswith("gsm8k"))


def test_every_form_has_a_name_of_its_own_in_the_answer(tmp_path: Path) -> None:
    texts = [
        f"Of {number} things, $x_{number}$ cost ${number} each, and \\boxed{{{number}}}."
        for number in range(30)
    ]
    lines = [json.dumps({"question": text, "answer": f"so\n#### {n}"}) for n, text in enumerate(texts)]
    (tmp_path / "made.jsonl").write_text("\n".join(lines))
    figures = reviewed(recipe_of(made=tmp_path / "made.jsonl"), tmp_path)
    assert set(figures["made"]["answers"]) == set(FORMS)
    counts = {name: count for name, count in figures["made"]["answers"].items() if count}
    assert counts == {INLINE: 30, "\\boxed{…}": 30, "#### n": 30}
