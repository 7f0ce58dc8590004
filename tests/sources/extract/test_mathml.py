r"""MathML as LaTeX: every element, and input that is made to be large."""

from __future__ import annotations

import numpy as np
import pytest

from tokmill.kernels.htmlformulas import find_formulas
from tokmill.kernels.htmltree import parse
from tokmill.kernels.mathml import MAX_NODES

X, Y, ONE = "<mi>x</mi>", "<mi>y</mi>", "<mn>1</mn>"


def latex(mathml: str) -> str | None:
    data = np.frombuffer(f"<math>{mathml}</math>".encode(), np.uint8)
    formulas = find_formulas(data, parse(data))
    return formulas.latex.tobytes().decode() if formulas.node.size else None


CASES = {
    "<mi>α</mi><mi>x</mi>": r"\alpha x",
    "<mi>sin</mi><mi>x</mi>": r"\sin x",
    "<mi>foo</mi>": r"\operatorname{foo}",
    '<mi mathvariant="double-struck">R</mi><mi mathvariant="bold">v</mi>': r"\mathbb{R}\mathbf{v}",
    "<mi>𝐀</mi><mi>𝓕</mi><mi>𝔸</mi><mi>ℝ</mi><mi>𝑥</mi>": r"\mathbf{A}\mathcal{F}\mathbb{A}\mathbb{R}x",
    "<mn>3.14</mn><mo>≤</mo><mn>4</mn>": r"3.14\le4",
    "<mo>&minus;</mo><mo>&sum;</mo><mo>%</mo><mo>{</mo>": r"-\sum\%\{",
    "<mtext>if  x_1 </mtext>": r"\text{if x\_1 }",
    "<ms>a</ms>": r'\text{"a"}',
    f"<mrow>{X}<mo>+</mo>{Y}</mrow>": "x+y",
    f"<mfrac>{X}{Y}</mfrac>": r"\frac{x}{y}",
    f'<mfrac linethickness="0">{X}{Y}</mfrac>': r"{x \atop y}",
    f"<msqrt>{X}<mo>+</mo>{ONE}</msqrt>": r"\sqrt{x+1}",
    f"<mroot>{X}<mn>3</mn></mroot>": r"\sqrt[3]{x}",
    f"<msub>{X}{ONE}</msub>": "x_{1}",
    f"<msup><mrow>{X}{Y}</mrow>{ONE}</msup>": "{xy}^{1}",
    f"<msup>{X}<mo>′</mo></msup>": "x'",
    f"<msubsup>{X}{ONE}{Y}</msubsup>": "x_{1}^{y}",
    f"<munder><mi>lim</mi><mrow>{X}<mo>→</mo><mn>0</mn></mrow></munder>": r"\lim_{x\rightarrow0}",
    f"<munderover><mo>∑</mo>{X}{Y}</munderover>": r"\sum_{x}^{y}",
    f"<mover>{X}<mo>^</mo></mover><mover>{X}<mo>→</mo></mover>": r"\hat{x}\vec{x}",
    f"<mover>{X}<mtext>def</mtext></mover>": r"\overset{\text{def}}{x}",
    f"<munder>{X}<mo>_</mo></munder><munder>{X}{Y}</munder>": r"\underline{x}\underset{y}{x}",
    f"<munder><munder>{X}<mo>⏟</mo></munder><mi>n</mi></munder>": r"\underbrace{x}_{n}",
    f"<mtable><mtr><mtd>{X}</mtd><mtd>{Y}</mtd></mtr><mtr><mtd>{ONE}</mtd></mtr></mtable>": (
        r"\begin{matrix} x & y \\ 1 \end{matrix}"
    ),
    f"<mrow><mo>(</mo><mtable><mtr><mtd>{X}</mtd></mtr></mtable><mo>)</mo></mrow>": (
        r"\begin{pmatrix} x \end{pmatrix}"
    ),
    f"<mrow><mo>{{</mo><mtable><mtr><mtd>{X}</mtd></mtr></mtable></mrow>": r"\begin{cases} x \end{cases}",
    f"<mfenced>{X}{Y}</mfenced>": "(x, y)",
    f'<mfenced open="[" close="[" separators=";">{X}{Y}</mfenced>': "[x; y[",
    f"<mmultiscripts>{X}{ONE}<none/><mprescripts/><none/>{Y}</mmultiscripts>": "{}^{y}x_{1}",
    f'<menclose notation="box">{X}</menclose>': r"\boxed{x}",
    f'{X}<mspace width="1em"/>{Y}': r"x\quad y",
    f"<mstyle>{X}</mstyle><mpadded>{X}</mpadded><merror>{X}</merror>": "xxx",
    f"<mphantom>{X}</mphantom>": r"\phantom{x}",
    f'<semantics>{X}<annotation-xml encoding="MathML-Content"><ci>x</ci></annotation-xml></semantics>': "x",
    f"<mfrac>{X}</mfrac>": r"\frac{x}{}",
    "<m:mfrac><m:mi>x</m:mi><m:mi>y</m:mi></m:mfrac>": r"\frac{x}{y}",
}


@pytest.mark.parametrize("mathml", CASES)
def test_each_element_has_its_latex(mathml: str) -> None:
    assert latex(mathml) == CASES[mathml]


def test_what_is_too_deep_is_its_text() -> None:
    found = latex("<msqrt>" * 400 + X)
    assert found is not None
    assert found.count(r"\sqrt") < 100
    assert "x" in found


def test_what_is_too_large_is_no_formula() -> None:
    assert latex(X * MAX_NODES) is None
