"""Formulas found and written a second way: the readable twins of the kernels, on pages that nobody wrote."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sources.extract import slow_formulas
from tokmill.kernels.htmlformulas import find_formulas
from tokmill.kernels.htmlmarks import Formulas
from tokmill.kernels.htmltree import parse

NAME_LIST = """
mi mn mo mtext ms mrow mstyle mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts mtable
mtr mlabeledtr mtd mfenced menclose mspace mphantom semantics maction annotation annotation-xml none merror
mprescripts mpadded foo m:mi m:mrow
"""
NAMES = NAME_LIST.split()
TEXT_LIST = "x ab sin α ∑ ( ) [ { } | 1 3.14 % _ ^ ~ ¯ ‾ → ′ ' '' \\ é 𝐀 ℝ ⏟ lim ∬ $ # ∦ - 𝑥 ℓ ϕ 漢字"
TEXTS = [
    *TEXT_LIST.split(),
    *[" ", "  a  b ", "&alpha;", "&lt;", "&nbsp;", "\u0304", "a\nb", "\u2009", "\u2061", "&amp;", "&#x2211;"],
]
ATTRIBUTES = [
    *[""] * 8,
    *(' mathvariant="bold"', " mathvariant=normal", ' mathvariant="double-struck"', ' linethickness="0"'),
    *(
        ' linethickness="0.0pt"',
        ' columnalign="right left"',
        ' open="["',
        ' open="|" close="|"',
        ' close="]"',
    ),
    *(' separators=";,"', ' separators=""', ' notation="box top"', ' notation="circle"', ' width="1em"'),
    *(
        ' width="2px"',
        ' width=".3em"',
        ' linebreak="newline"',
        ' encoding="application/x-tex"',
        ' width="-1em"',
    ),
]
TEX = [
    *("x^2", "\\(x\\)", "\\[y\\\\[2pt] z\\]", "$$a$$", "$a$", "\\(a\\) and \\(b\\)", "{\\displaystyle x}"),
    *("{\\displaystyle {a}{b}}", "{\\displaystyle a}{b}", "% <![CDATA[\nx\n%]]>", "a % c\n b\\% d\n\n e"),
    *("&lt;x&gt;", " ", "", "{\\textstyle  \\frac{a}{b} }", "\\(\\)", "$$$$", "$$$", "a\u00a0b", "$\\\\$"),
    "\\(\\\\(\\)",
]
AROUND = [
    *("<span class='katex'>{}</span>", "<span class='katex-display'>{}</span>", "<div class=math>{}</div>"),
    *("<mjx-container display=true>{}</mjx-container>", "<span class='math inline'>{}</span>", "<p>{}</p>"),
    *("<div class='MathJax_Display'>{}</div>", "<span class=MathJax_Preview>{}</span>", "<div>{}"),
    "<span class='mwe-math-element'>{}</span>",
]


def mathml(source: random.Random, depth: int) -> str:
    name = source.choice(NAMES)
    inner = "".join(
        source.choice(TEXTS) if depth > 4 or source.random() < 0.35 else mathml(source, depth + 1)
        for _ in range(source.choice([0, 1, 1, 2, 2, 3, 4, 5]))
    )
    return f"<{name}{source.choice(ATTRIBUTES)}>{inner}</{name}>"


def formula(source: random.Random) -> str:
    tex, pick = source.choice(TEX), source.choice
    kinds = ["math/tex", "math/tex; mode=display", "Math/TeX", "text/javascript math"]
    images = ["latex", "tex", "math", "x mwe-math-fallback-image-display", "foo tex"]
    classes = ["math", "math notranslate", "MathJax", "MathJax_Preview", "mathx"]
    return pick(
        [
            f'<script type="{pick(kinds)}">{tex}</script>',
            f"<script type=math/mml><math{pick(['', ' display=block'])}>{mathml(source, 2)}</math></script>",
            f"<img class='{pick(images)}' alt='{tex}'>",
            f"<span class='{pick(classes)}'>{tex}</span>",
            f"<math><annotation encoding='{pick(['TeX', 'MathML'])}'>{tex}</annotation></math>",
            f"<math>{mathml(source, 1)}</math>",
            f"<math class=ltx_Math alttext='{tex}'>{mathml(source, 3)}</math>",
            f"<span class=MathJax>{tex}</span>{pick([' ', ''])}<script type=math/tex>{tex}</script>",
            tex,
        ]
    )


def page(source: random.Random, depth: int = 0) -> str:
    inner = "".join(
        formula(source) if depth > 3 or source.random() < 0.6 else page(source, depth + 1)
        for _ in range(source.choice([1, 2, 3]))
    )
    return source.choice(AROUND).format(inner)


def rows(formulas: Formulas) -> list[tuple[int, int, bytes, bool]]:
    texts = [
        formulas.latex[first:end].tobytes()
        for first, end in zip(formulas.offsets[:-1], formulas.offsets[1:], strict=True)
    ]
    are_display = formulas.is_display.astype(bool).tolist()
    return list(zip(formulas.node.tolist(), formulas.until.tolist(), texts, are_display, strict=True))


def assert_alike(html: str) -> None:
    data = np.frombuffer(html.encode(), np.uint8)
    tree = parse(data)
    assert rows(find_formulas(data, tree)) == rows(slow_formulas.find_formulas(data, tree))


@settings(deadline=None, max_examples=400)
@given(st.integers(0, 2**32))
def test_formulas_of_any_dress_are_those_of_the_twin(seed: int) -> None:
    assert_alike(page(random.Random(seed)))


@settings(deadline=None, max_examples=400)
@given(st.integers(0, 2**32))
def test_mathml_is_written_as_the_twin_writes_it(seed: int) -> None:
    source = random.Random(seed)
    assert_alike(f"<p>a <math>{''.join(mathml(source, 0) for _ in range(source.randint(1, 3)))}</math> b")


def test_a_width_that_is_no_number_is_no_space() -> None:
    data = np.frombuffer(b"<math><mi>a</mi><mspace width='-.'/><mi>b</mi></math>", np.uint8)
    assert find_formulas(data, parse(data)).latex.tobytes() == b"ab"
