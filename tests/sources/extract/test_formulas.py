r"""Formulas in pages: what each renderer leaves, once, and pages that have none."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.html_pages import rendered
from tokmill.kernels.htmlformulas import MAX_LATEX, find_formulas
from tokmill.kernels.htmlrender import NO_FORMULAS
from tokmill.kernels.htmltree import parse

TEX = '<annotation encoding="application/x-tex">{}</annotation>'
KATEX = (
    '<span class="katex"><span class="katex-mathml"><math><semantics><mrow><mi>x</mi></mrow>'
    + TEX.format("x^2 &lt; 3")
    + '</semantics></math></span><span class="katex-html" aria-hidden="true">x2&lt;3</span></span>'
)
PREVIEW = '<span class="MathJax_Preview">x</span>'
DRAWN = '<span class="MathJax" id="M-1"><nobr>x2</nobr></span>'
# html, plain text; Markdown is the same
PAGES = {
    "KaTeX": (f"<p>a {KATEX}, b", "a $x^2 < 3$, b"),
    "KaTeX, displayed": (f'<p>a <span class="katex-display">{KATEX}</span> b', "a\n$$x^2 < 3$$\nb"),
    "MathJax 2": (
        f'<p>a {PREVIEW}{DRAWN}<script type="math/tex" id="M">x^2</script> b',
        "a $x^2$ b",
    ),
    "MathJax 2, displayed": (
        (
            f'<p>a</p>{PREVIEW}<div class="MathJax_Display">x</div><script type="math/tex;mode=display">'
            "\\begin{aligned}\n  x &= 1 % one\n\n\\end{aligned}</script>"
        ),
        "a\n\n$$\\begin{aligned}\nx &= 1\n\\end{aligned}$$",
    ),
    "MathJax 2 without its source": (
        (
            'a <span class="MathJax"><nobr>x2</nobr><span class="MJX_Assistive_MathML">'
            "<math><msup><mi>x</mi><mn>2</mn></msup></math></span></span>"
        ),
        "a $x^{2}$",
    ),
    "MathML in a script": ('a <script type="math/mml"><math><mi>x</mi></math></script>', "a $x$"),
    "MathJax 3": (
        (
            '<p>a <mjx-container class="MathJax" display="true"><mjx-math><mjx-mi>x</mjx-mi></mjx-math>'
            "<mjx-assistive-mml><math><mi>π</mi></math></mjx-assistive-mml></mjx-container>"
        ),
        "a\n$$\\pi$$",
    ),
    "Wikipedia": (
        '<span class="mwe-math-element"><span class="mwe-math-mathml-inline mwe-math-mathml-a11y" style='
        '"display: none;"><math><semantics><mi>x</mi>'
        + TEX.format("{\\displaystyle {\\frac {a}{b}}}")
        + '</semantics></math></span><img class="mwe-math-fallback-image-inline" alt="x"></span>.',
        "${\\frac {a}{b}}$.",
    ),
    "Wikipedia's image": ('<img class="mwe-math-fallback-image-inline" alt="{\\displaystyle x}">', "$x$"),
    "images": (
        (
            '<img class="latex" alt="\\alpha &lt; 1"> <img class="tex" alt="b"> <img alt="c"> '
            '<img class="math" alt="$d$">'
        ),
        "$\\alpha < 1$ $b$ $d$",
    ),
    "an image of Sphinx, displayed": ('<div class="math"><p><img class="math" alt="x"></p></div>', "$x$"),
    "Sphinx": (
        'a <span class="math notranslate">\\(x\\)</span><div class="math">\\[y \\\\[2pt]\n z\\]</div>',
        "a $x$\n\n$$y \\\\[2pt]\nz$$",
    ),
    "two in one": ('<span class="math">\\(x\\) and \\(y\\)</span>', "\\(x\\) and \\(y\\)"),
    "text": ("<p>$$x$$ \\(y\\) <span class='math-container'>$z$</span>", "$$x$$ \\(y\\) $z$"),
    "MathML alone": ('<p>a <math display="block"><mi>x</mi></math>', "a\n$$x$$"),
    "LaTeXML's": ('<math class="ltx_Math" alttext="\\beta"><mi>b</mi></math>', "$\\beta$"),
    "an empty one": ("a <math></math> b", "a b"),
    "what looks like one": ("<p>math katex</p><div class='mathclass'>a</div>", "math katex\n\na"),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_formula_is_written_once_as_latex(name: str) -> None:
    html, text = PAGES[name]
    assert rendered(html) == text
    assert rendered(html, "markdown") == text


def test_formulas_in_cells_headings_and_items() -> None:
    shown = f'<span class="katex-display">{KATEX.replace("x^2", "|x|")}</span>'
    html = f"<h2>a {shown}</h2><table><tr><th>{shown}<th>b<tr><td>c<td>d</table><ul><li>e {shown}</ul>"
    assert rendered(html, "markdown") == (
        "## a $$|x| < 3$$\n\n| $$\\|x\\| < 3$$ | b |\n| --- | --- |\n| c | d |\n\n- e\n  $$|x| < 3$$"
    )


def test_a_page_without_marks_has_none() -> None:
    data = np.frombuffer(b"<p>a<img src=b alt=c>", np.uint8)
    assert find_formulas(data, parse(data)) is NO_FORMULAS


@pytest.mark.parametrize(
    "html",
    [
        "<math>" * 3000 + "x",
        '<span class="math">' * 3000 + "\\(x\\)",
        "<math>" + "<mi>x</mi>" * 20_000 + "</math>",
        '<div class="MathJax katex ' + "x" * 100_000 + '">' + "<math><mi>x</mi></math>" * 500,
        f'<img class="latex" alt="{"x" * (2 * MAX_LATEX)}">',
        "<script type=math/tex>" + "x" * 2 * MAX_LATEX + "</script>",
        '<span class="MathJax_Preview">' * 2000,
        "<math><mfrac>" * 200,
    ],
)
def test_pages_made_to_be_large_end(html: str) -> None:
    data = np.frombuffer(html.encode(), np.uint8)
    formulas = find_formulas(data, parse(data))
    assert (formulas.until[:-1] <= formulas.node[1:]).all()
    assert formulas.latex.size <= 2 * len(html)
