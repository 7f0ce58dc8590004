r"""Presentation MathML as LaTeX.

    <mfrac><mi>a</mi><msqrt><mi>α</mi></msqrt></mfrac>     \frac{a}{\sqrt{\alpha}}

All elements of MathML Core (https://www.w3.org/TR/mathml-core/), and of MathML 3 `mfenced`, `menclose` and
`maction`. Characters that LaTeX has no command for stay as they are. What lies deeper than MAX_DEPTH is
written as its text, and a formula of more than MAX_NODES nodes is none.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from html import unescape

from tokmill.kernels.htmltree import TEXT, Tree
from tokmill.kernels.jit import Bytes

MAX_DEPTH = 64
MAX_NODES = 5000

_NAME = re.compile(rb"<([^\s/>]+)")
_ATTRIBUTE = re.compile(
    rb"""([^\s/>=][^\s/>=]*+)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>"'][^\s>]*+)))?"""
)
_ENDS_IN_COMMAND = re.compile(r"\\[A-Za-z]+$")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_GREEK = """
α alpha β beta γ gamma δ delta ϵ epsilon ε varepsilon ζ zeta η eta θ theta ϑ vartheta ι iota κ kappa λ lambda
μ mu ν nu ξ xi π pi ϖ varpi ρ rho ϱ varrho σ sigma ς varsigma τ tau υ upsilon ϕ phi φ varphi χ chi ψ psi
ω omega Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Υ Upsilon Φ Phi Ψ Psi Ω Omega ϰ varkappa
"""
_SYMBOLS = """
× times ÷ div ± pm ∓ mp · cdot ⋅ cdot ∗ ast ∘ circ ∙ bullet ⊕ oplus ⊖ ominus ⊗ otimes ⊘ oslash ⊙ odot † dagger
‡ ddagger ⋆ star ⋄ diamond ∧ wedge ∨ vee ∩ cap ∪ cup ⊎ uplus ⊓ sqcap ⊔ sqcup ∖ setminus ≀ wr ≤ le ≥ ge ≠ ne
≡ equiv ≈ approx ≃ simeq ≅ cong ∼ sim ∝ propto ≪ ll ≫ gg ≺ prec ≻ succ ⪯ preceq ⪰ succeq ≼ preceq ≽ succeq
⩽ leqslant ⩾ geqslant ≲ lesssim ≳ gtrsim ≐ doteq ≜ triangleq ≔ coloneqq ∈ in ∉ notin ∋ ni ⊂ subset ⊃ supset
⊆ subseteq ⊇ supseteq ⊊ subsetneq ⊋ supsetneq ⊄ not\\subset ⊈ nsubseteq ⊏ sqsubset ⊑ sqsubseteq ⊒ sqsupseteq
⊢ vdash ⊣ dashv ⊨ models ⊤ top ⊥ perp ∥ parallel ∦ nparallel ∣ mid ∤ nmid ⌣ smile ⌢ frown ≍ asymp ⋈ bowtie
∀ forall ∃ exists ∄ nexists ¬ neg ∅ emptyset ∞ infty ∂ partial ∇ nabla ∆ Delta ℏ hbar ℓ ell ℘ wp ℜ Re ℑ Im
ℵ aleph ∠ angle ∡ measuredangle △ triangle □ square ◻ square ∎ blacksquare ■ blacksquare ♭ flat ♮ natural
♯ sharp ♣ clubsuit ♢ diamondsuit ♡ heartsuit ♠ spadesuit √ surd ∑ sum ∏ prod ∐ coprod ∫ int ∬ iint ∭ iiint
∮ oint ⋂ bigcap ⋃ bigcup ⨆ bigsqcup ⋁ bigvee ⋀ bigwedge ⨀ bigodot ⨂ bigotimes ⨁ bigoplus ⨄ biguplus
← leftarrow → rightarrow ↔ leftrightarrow ⇐ Leftarrow ⇒ Rightarrow ⇔ Leftrightarrow ↑ uparrow ↓ downarrow
↕ updownarrow ⇑ Uparrow ⇓ Downarrow ↦ mapsto ⟼ longmapsto ⟵ longleftarrow ⟶ longrightarrow
⟸ Longleftarrow ⟹ Longrightarrow ⟺ iff ⟷ longleftrightarrow ↪ hookrightarrow ↩ hookleftarrow ↗ nearrow
↘ searrow ↙ swarrow ↖ nwarrow ↠ twoheadrightarrow ⇀ rightharpoonup ⇁ rightharpoondown ↼ leftharpoonup
⇌ rightleftharpoons ⇝ leadsto ↾ upharpoonright … ldots ⋯ cdots ⋮ vdots ⋱ ddots ⟨ langle ⟩ rangle 〈 langle
〉 rangle ⌈ lceil ⌉ rceil ⌊ lfloor ⌋ rfloor ‖ | ∴ therefore ∵ because ℂ mathbb{C} ℕ mathbb{N} ℙ mathbb{P}
ℚ mathbb{Q} ℝ mathbb{R} ℤ mathbb{Z} ℍ mathbb{H} ⅅ mathrm{D} ⅆ mathrm{d} ⅇ mathrm{e} ⅈ mathrm{i} ◯ bigcirc
⊲ triangleleft ⊳ triangleright ⊴ trianglelefteq ⊵ trianglerighteq ≮ nless ≯ ngtr ≰ nleq ≱ ngeq ⊩ Vdash
⊻ veebar ⋉ ltimes ⋊ rtimes ⟂ perp ° circ
"""
_FUNCTIONS = words("""
    arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim liminf limsup ln log
    max min Pr sec sin sinh sup tan tanh
""")
# Operators whose limits stand below and above them.
_LIMITS = words(r"""
    \sum \prod \coprod \int \iint \iiint \oint \bigcap \bigcup \bigsqcup \bigvee \bigwedge \bigodot
    \bigotimes \bigoplus \biguplus \lim \liminf \limsup \max \min \sup \inf \det \gcd \Pr
""")
_OVER = {
    "^": "hat", "ˆ": "hat", "\u0302": "hat", "¯": "bar", "‾": "overline", "\u0304": "bar", "_": "overline",
    "―": "overline", "\u0305": "overline", "~": "tilde", "˜": "tilde", "∼": "tilde", "\u0303": "tilde",
    "→": "vec", "⃗": "vec", "⇀": "vec", "˙": "dot", ".": "dot", "\u0307": "dot", "¨": "ddot", "\u0308": "ddot",
    "ˇ": "check", "˘": "breve", "`": "grave", "´": "acute", "⏞": "overbrace", "⏜": "overparen",
    "←": "overleftarrow", "↔": "overleftrightarrow", "⃛": "dddot", "˚": "mathring",
}  # fmt: skip
_UNDER = {
    "_": "underline", "¯": "underline", "‾": "underline", "\u0332": "underline", "―": "underline",
    "⏟": "underbrace", "⏝": "underparen", "→": "underrightarrow", "←": "underleftarrow",
}  # fmt: skip
_ESCAPED = {
    "%": r"\%", "#": r"\#", "&": r"\&", "$": r"\$", "_": r"\_", "{": r"\{", "}": r"\}", "\\": r"\backslash ",
    "~": r"\sim ", "^": r"\hat{}",
    "\u2061": "", "\u2062": "", "\u2063": "", "\u2064": "", "\u200b": "", "\ufeff": "",
    "\u2212": "-", "\u2010": "-", "\u2011": "-", "\u2009": r"\,", "\u200a": r"\,", "\u2002": r"\;",
    "\u2003": r"\quad ", "\u2004": r"\:", "\u2005": r"\:", "\u2006": r"\,", "\u00a0": " ",
    "\u2032": "'", "\u2033": "''", "\u2034": "'''", "\u2215": "/", "\u2044": "/", "\u2236": ":",
}  # fmt: skip
_VARIANTS = {
    "bold": "mathbf", "normal": "mathrm", "double-struck": "mathbb", "script": "mathcal",
    "fraktur": "mathfrak",
    "sans-serif": "mathsf", "monospace": "mathtt", "bold-italic": "boldsymbol", "bold-script": "mathcal",
    "bold-fraktur": "mathfrak", "bold-sans-serif": "mathsf",
}  # fmt: skip
_STYLES = {
    "BOLD ITALIC": "boldsymbol", "BOLD SCRIPT": "mathcal", "BOLD FRAKTUR": "mathfrak", "BOLD": "mathbf",
    "SCRIPT": "mathcal", "FRAKTUR": "mathfrak", "DOUBLE-STRUCK": "mathbb", "SANS-SERIF": "mathsf",
    "MONOSPACE": "mathtt",
}  # fmt: skip
_ENCLOSURES = {
    "box": "boxed", "radical": "sqrt", "top": "overline", "bottom": "underline", "updiagonalstrike": "cancel",
    "downdiagonalstrike": "bcancel", "horizontalstrike": "sout", "roundedbox": "boxed", "circle": "boxed",
}  # fmt: skip
_MATRICES = {("(", ")"): "pmatrix", ("[", "]"): "bmatrix", ("|", "|"): "vmatrix", ("{", "}"): "Bmatrix"}
_BY_SPACE = re.compile(r"\s+")


class Element:
    """An element of a formula, whose children are elements or texts."""

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name = name
        self.attributes = attributes
        self.children: list[Element | str] = []

    @property
    def text(self) -> str:
        texts: list[str] = []
        waiting: list[Element | str] = [self]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                texts.append(one)
            else:
                waiting += reversed(one.children)
        return _BY_SPACE.sub(" ", "".join(texts)).strip()

    @property
    def elements(self) -> list[Element]:
        return [child for child in self.children if isinstance(child, Element)]


def attributes_of(data: Bytes, start: int, end: int) -> dict[str, str]:
    """Of a start tag, names in lower case; the first of a name counts."""
    tag = data[start:end].tobytes()
    name = _NAME.match(tag)
    attributes: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(tag, name.end() if name else 0):
        value = match[match.lastindex or 1] if (match.lastindex or 1) > 1 else b""
        key = match[1].decode(errors="replace").lower()
        attributes.setdefault(key, unescape(value.decode(errors="replace")))
    return attributes


def read_element(data: Bytes, tree: Tree, node: int) -> Element | None:
    """What `node` holds; None where that is too much."""
    last = int(tree.last[node])
    if last - node > MAX_NODES:
        return None
    by_node: dict[int, Element] = {}
    for k in range(node, last):
        start, end = int(tree.start[k]), int(tree.end[k])
        above = by_node.get(int(tree.parent[k]))
        if tree.tag[k] == TEXT:
            if above is not None:
                above.children.append(unescape(data[start:end].tobytes().decode(errors="replace")))
            continue
        match = _NAME.match(data[start : min(end, start + 64)].tobytes())
        name = match[1].decode(errors="replace").lower().rpartition(":")[2] if match else ""
        element = by_node[k] = Element(name, attributes_of(data, start, end))
        if above is not None:
            above.children.append(element)
    return by_node[node]


def latex_of(element: Element, depth: int = 0) -> str:
    if depth > MAX_DEPTH:
        return _characters(element.text)
    convert = _CONVERTERS.get(element.name, _row)
    return convert(element, depth)


# --- characters ---


@functools.cache
def _commands() -> dict[str, str]:
    words = (_GREEK + _SYMBOLS).split()
    return dict(zip(words[::2], (rf"\{word}" for word in words[1::2]), strict=True))


def _character(character: str) -> str:
    escaped = _ESCAPED.get(character)
    if escaped is not None:
        return escaped
    command = _commands().get(character)
    if command is not None:
        return command
    if "\U0001d400" <= character <= "\U0001d7ff" or (character != "ℓ" and "ℊ" <= character <= "ℳ"):
        plain = unicodedata.normalize("NFKC", character)
        name = unicodedata.name(character, "").removeprefix("MATHEMATICAL ")
        if len(plain) == 1 and plain != character:
            base = _commands().get(plain, plain)
            style = next((style for start, style in _STYLES.items() if name.startswith(start)), "")
            return rf"\{style}{{{base}}}" if style else base
    return character


def _characters(text: str) -> str:
    return _joined([_character(character) for character in text])


def _joined(parts: list[str]) -> str:
    """A space where a command would run into a letter."""
    pieces: list[str] = []
    for part in parts:
        if (
            part
            and pieces
            and (part[0].isalpha() and part[0].isascii())
            and _ENDS_IN_COMMAND.search(pieces[-1])
        ):
            pieces.append(" ")
        if part:
            pieces.append(part)
    return "".join(pieces)


def _in_text(text: str) -> str:
    return re.sub(r"[%#&$_{}]", lambda match: "\\" + match[0], text.replace("\\", "").replace("\u00a0", " "))


# --- elements ---


def _children(element: Element, depth: int) -> list[str]:
    return [latex_of(child, depth + 1) for child in element.elements]


def _row(element: Element, depth: int) -> str:
    elements = element.elements
    fences = [child.text if child.name == "mo" else "" for child in elements]
    if 2 <= len(elements) <= 3 and fences[0] and elements[1].name in ("mtable", "mrow", "mstyle"):
        table = elements[1]
        while table.name != "mtable" and len(table.elements) == 1:
            table = table.elements[0]
        if table.name == "mtable":
            closing = fences[2] if len(elements) == 3 else ""
            if fences[0] == "{" and not closing and (len(elements) == 2 or elements[2].name == "mo"):
                return _table(table, depth, "cases")
            if (fences[0], closing) in _MATRICES:
                return _table(table, depth, _MATRICES[fences[0], closing])
    return _joined([
        latex_of(child, depth + 1) if isinstance(child, Element) else _characters(child.strip())
        for child in element.children
    ])  # fmt: skip


def _identifier(element: Element, depth: int) -> str:
    text = element.text
    if text in _FUNCTIONS:
        return rf"\{text}"
    latex = _characters(text)
    variant = element.attributes.get("mathvariant", "")
    if variant in _VARIANTS and not (variant == "normal" and not text.isascii()):
        return rf"\{_VARIANTS[variant]}{{{latex}}}"
    if len(text) > 1 and text.isalpha() and text.isascii():
        return rf"\operatorname{{{latex}}}" if element.name == "mi" else rf"\mathrm{{{latex}}}"
    return latex


def _number(element: Element, depth: int) -> str:
    latex = _characters(element.text)
    variant = element.attributes.get("mathvariant", "")
    return rf"\{_VARIANTS[variant]}{{{latex}}}" if variant in _VARIANTS and variant != "normal" else latex


def _operator(element: Element, depth: int) -> str:
    text = element.text
    if text in _FUNCTIONS:
        return rf"\{text}"
    if len(text) > 1 and text.isascii() and text.isalpha():
        return rf"\operatorname{{{text}}}"
    return _characters(text)


def _text(element: Element, depth: int) -> str:
    text = _BY_SPACE.sub(" ", "".join(child for child in element.children if isinstance(child, str)))
    if element.elements:
        text = element.text
    if not text.strip():
        return r"\ " if text or element.children else ""
    return rf"\text{{{_in_text(text)}}}"


def _fraction(element: Element, depth: int) -> str:
    above, below = _exactly(element, depth, 2)
    thickness = element.attributes.get("linethickness", "")
    if thickness and re.fullmatch(r"0+(\.0+)?\s*[a-z%]*", thickness):
        return rf"{{{above} \atop {below}}}"
    return rf"\frac{{{above}}}{{{below}}}"


def _exactly(element: Element, depth: int, count: int) -> list[str]:
    """The first children; missing ones are empty, and what is too much joins the last."""
    children = _children(element, depth)
    children += [""] * (count - len(children))
    return [*children[: count - 1], _joined(children[count - 1 :])]


def _base(latex: str) -> str:
    """Something that can be given an index."""
    if len(latex) == 1 or re.fullmatch(r"\\[A-Za-z]+(\{[^{}]*\})?|\{[^{}]*\}", latex):
        return latex
    return f"{{{latex}}}"


def _scripts(element: Element, depth: int) -> str:
    count = 3 if element.name in ("msubsup", "munderover") else 2
    base, *scripts = _exactly(element, depth, count)
    below = scripts[0] if element.name in ("msub", "msubsup") else ""
    above = scripts[-1] if element.name in ("msup", "msubsup") else ""
    return _with_scripts(base, below, above)


def _with_scripts(base: str, below: str, above: str) -> str:
    latex = _base(base) if base else "{}"
    if below:
        latex += f"_{{{below}}}"
    if above and not above.strip("'"):
        return latex + above
    return latex + f"^{{{above}}}" if above else latex


def _limits(element: Element, depth: int) -> str:
    elements = element.elements
    count = 3 if element.name == "munderover" else 2
    base, *scripts = _exactly(element, depth, count)
    below = scripts[0] if element.name != "mover" else ""
    above = scripts[-1] if element.name != "munder" else ""
    if base in _LIMITS or base.startswith(r"\operatorname"):
        return _with_scripts(base, below, above)
    texts = [child.text if child.name in ("mo", "mi", "mtext") else "" for child in elements]
    texts += [""] * (count - len(texts))
    latex = base
    if element.name != "mover":
        command = _UNDER.get(texts[1], "")
        if command:
            latex = rf"\{command}{{{latex}}}"
        elif below:
            brace = base.startswith((r"\underbrace", r"\overbrace"))
            latex = f"{latex}_{{{below}}}" if brace else rf"\underset{{{below}}}{{{latex}}}"
    if element.name != "munder":
        command = _OVER.get(texts[-1], "")
        if command == "bar" and len(elements) and len(elements[0].text) > 1:
            command = "overline"
        if command:
            latex = rf"\{command}{{{latex}}}"
        elif above:
            brace = base.startswith((r"\underbrace", r"\overbrace"))
            latex = f"{latex}^{{{above}}}" if brace else rf"\overset{{{above}}}{{{latex}}}"
    return latex


def _multiscripts(element: Element, depth: int) -> str:
    children = element.elements
    if not children:
        return ""
    latex = latex_of(children[0], depth + 1)
    before: list[str] = []
    behind: list[str] = []
    side = behind
    for child in children[1:]:
        if child.name == "mprescripts":
            side = before
        else:
            side.append("" if child.name == "none" else latex_of(child, depth + 1))
    for k in range(0, len(behind), 2):
        latex = _with_scripts(latex, behind[k], "".join(behind[k + 1 : k + 2]))
    for k in range(0, len(before), 2):
        latex = _with_scripts("", before[k], "".join(before[k + 1 : k + 2])) + latex
    return latex


def _table(element: Element, depth: int, environment: str = "matrix") -> str:
    rows = []
    for row in element.elements:
        cells = row.elements if row.name in ("mtr", "mlabeledtr") else [row]
        if row.name == "mlabeledtr":
            cells = cells[1:]
        rows.append(" & ".join(latex_of(cell, depth + 2) for cell in cells))
    if environment == "matrix" and re.match(r"right\s+left", element.attributes.get("columnalign", "")):
        environment = "aligned"
    return rf"\begin{{{environment}}} " + r" \\ ".join(rows) + rf" \end{{{environment}}}"


def _fenced(element: Element, depth: int) -> str:
    separators = element.attributes.get("separators", ",").replace(" ", "")
    opening, closing = element.attributes.get("open", "("), element.attributes.get("close", ")")
    children = element.elements
    if len(children) == 1 and children[0].name == "mtable" and (opening, closing) in _MATRICES:
        return _table(children[0], depth, _MATRICES[opening, closing])
    parts = [_characters(opening)]
    for k, child in enumerate(children):
        if k and separators:
            parts.append(_characters(separators[min(k - 1, len(separators) - 1)]) + " ")
        parts.append(latex_of(child, depth + 1))
    return _joined([*parts, _characters(closing)])


def _enclosed(element: Element, depth: int) -> str:
    latex = _row(element, depth)
    for notation in element.attributes.get("notation", "longdiv").split():
        if notation in _ENCLOSURES:
            latex = rf"\{_ENCLOSURES[notation]}{{{latex}}}"
    return latex


def _space(element: Element, depth: int) -> str:
    if element.attributes.get("linebreak") == "newline":
        return r"\\ "
    width = re.match(r"\s*(-?[0-9.]+)\s*(em|ex|px|pt)?", element.attributes.get("width", ""))
    if width is None or width[1].count(".") > 1 or width[1] in ("", "-", "."):
        return ""
    size = float(width[1]) / {"em": 1, "ex": 2, "px": 16, "pt": 12}.get(width[2] or "px", 16)
    return r"\quad " if size >= 0.9 else r"\;" if size >= 0.25 else r"\," if size > 0 else ""


def _of(command: str) -> Callable[[Element, int], str]:
    return lambda element, depth: rf"\{command}{{{_row(element, depth)}}}"


def _first(element: Element, depth: int) -> str:
    children = element.elements
    return latex_of(children[0], depth + 1) if children else ""


def _root(element: Element, depth: int) -> str:
    base, index = _exactly(element, depth, 2)
    return rf"\sqrt[{index}]{{{base}}}"


def _nothing(element: Element, depth: int) -> str:
    return ""


_CONVERTERS: dict[str, Callable[[Element, int], str]] = {
    "mi": _identifier,
    "mn": _number,
    "mo": _operator,
    "mtext": _text,
    "ms": lambda element, depth: rf'\text{{"{_in_text(element.text)}"}}',
    "mfrac": _fraction,
    "msqrt": _of("sqrt"),
    "mroot": _root,
    "msub": _scripts,
    "msup": _scripts,
    "msubsup": _scripts,
    "munder": _limits,
    "mover": _limits,
    "munderover": _limits,
    "mmultiscripts": _multiscripts,
    "mtable": _table,
    "mfenced": _fenced,
    "menclose": _enclosed,
    "mspace": _space,
    "mphantom": _of("phantom"),
    "semantics": _first,
    "maction": _first,
    "annotation": _nothing,
    "annotation-xml": _nothing,
    "none": _nothing,
    "mprescripts": _nothing,
    "maligngroup": _nothing,
    "malignmark": _nothing,
    "script": _nothing,
    "style": _nothing,
}
