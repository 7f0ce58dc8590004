r"""What MathML is in LaTeX: characters, accents, names of elements, in tables that compiled code looks up.

    ∑ ─ \sum          <mfrac> ─ FRACTION ─ \frac{          ‾ above ─ \overline{          bold ─ \mathbf{

All tables together are three arrays (`Tables`); where each begins in them is a number of this module.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmltree import name_hash
from tokmill.kernels.jit import Bytes, frozen

U64 = np.uint64

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
_FUNCTIONS = """
    arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim liminf limsup ln log
    max min Pr sec sin sinh sup tan tanh
"""
# Operators whose limits stand below and above them.
_LIMITS = r"""
    \sum \prod \coprod \int \iint \iiint \oint \bigcap \bigcup \bigsqcup \bigvee \bigwedge \bigodot
    \bigotimes \bigoplus \biguplus \lim \liminf \limsup \max \min \sup \inf \det \gcd \Pr
"""
_OVER_ACCENTS = {
    "^": "hat", "ˆ": "hat", "\u0302": "hat", "¯": "bar", "‾": "overline", "\u0304": "bar", "_": "overline",
    "―": "overline", "\u0305": "overline", "~": "tilde", "˜": "tilde", "∼": "tilde", "\u0303": "tilde",
    "→": "vec", "⃗": "vec", "⇀": "vec", "˙": "dot", ".": "dot", "\u0307": "dot", "¨": "ddot", "\u0308": "ddot",
    "ˇ": "check", "˘": "breve", "`": "grave", "´": "acute", "⏞": "overbrace", "⏜": "overparen",
    "←": "overleftarrow", "↔": "overleftrightarrow", "⃛": "dddot", "˚": "mathring",
}  # fmt: skip
_UNDER_ACCENTS = {
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

# What an element is; its name is looked for without a prefix and in any case.
ROW, MI, MN, MO, MTEXT, MS, FRACTION, ROOT, _SUB, SUP, SUBSUP, UNDER, OVER_KIND, UNDEROVER = range(1, 15)
MULTI, TABLE, FENCED, ENCLOSED, SPACE, PHANTOM, SQRT, FIRST, NOTHING, PRESCRIPTS = range(15, 25)
TR, LABELED, GROUP = 25, 26, 27
_KINDS = {
    MI: "mi",
    MN: "mn",
    MO: "mo",
    MTEXT: "mtext",
    MS: "ms",
    FRACTION: "mfrac",
    ROOT: "mroot",
    _SUB: "msub",
    SUP: "msup",
    SUBSUP: "msubsup",
    UNDER: "munder",
    OVER_KIND: "mover",
    UNDEROVER: "munderover",
    MULTI: "mmultiscripts",
    TABLE: "mtable",
    FENCED: "mfenced",
    ENCLOSED: "menclose",
    SPACE: "mspace",
    PHANTOM: "mphantom",
    SQRT: "msqrt",
    FIRST: "semantics maction",
    NOTHING: "annotation annotation-xml none maligngroup malignmark script style",
    PRESCRIPTS: "mprescripts",
    TR: "mtr",
    LABELED: "mlabeledtr",
    GROUP: "mrow mstyle",
}
SLOTS = 128

# Pieces of LaTeX, by their place in the table.
_PIECES = [
    r"\frac{", r"\sqrt{", r"\sqrt[", r"\phantom{", r"\operatorname{", r"\text{", r"\begin{", r" \end{",
    r"\underset{", r"\overset{", r" \atop ", r" \\ ", r"\quad ", r"\underbrace", r"\overbrace",
    "matrix", "aligned", "cases", "pmatrix", "bmatrix", "vmatrix", "Bmatrix",
]  # fmt: skip
(
    P_FRAC, P_SQRT, P_ROOT, P_PHANTOM, P_OPERATOR, P_TEXT, P_BEGIN, P_END, P_UNDERSET, P_OVERSET,
    P_ATOP, P_NEWLINE, P_QUAD, P_UNDERBRACE, P_OVERBRACE,
    P_MATRIX, P_ALIGNED, P_CASES, P_PMATRIX, P_BMATRIX, P_VMATRIX, P_BRACES,
) = range(len(_PIECES))  # fmt: skip

BEGINS, ENDS = 1, 2  # with a letter; in a command


class Tables(NamedTuple):
    """Few arrays, for each of them is seven arguments of every call."""

    text: Bytes  # LaTeX that is copied
    # characters, 128 of ASCII and others in order: code, place, bytes, BEGINS | ENDS
    # pieces: place, bytes                           accents: code, is it above, piece
    numbers: NDArray[np.int32]
    # names of elements, a table; their kinds; functions and limits in order; variants and notations, each
    # with its piece
    hashes: NDArray[np.uint64]


def _commands() -> dict[str, str]:
    words = (_GREEK + _SYMBOLS).split()
    return dict(zip(words[::2], (rf"\{word}" for word in words[1::2]), strict=True))


def _styled(character: str, commands: dict[str, str]) -> str:
    """Of the mathematical alphabets."""
    plain = unicodedata.normalize("NFKC", character)
    name = unicodedata.name(character, "").removeprefix("MATHEMATICAL ")
    if len(plain) != 1 or plain == character:
        return character
    base = commands.get(plain, plain)
    style = next((style for start, style in _STYLES.items() if name.startswith(start)), "")
    return rf"\{style}{{{base}}}" if style else base


def _tables() -> tuple[Tables, list[int], list[int]]:
    """And where the parts of its arrays begin."""
    commands = _commands()
    alphabets = [*map(chr, range(0x1D400, 0x1D800)), *map(chr, range(ord("ℊ"), ord("ℳ") + 1))]
    latex = {character: _styled(character, commands) for character in alphabets if character != "ℓ"}
    latex |= commands | _ESCAPED
    text = bytearray()

    def place(piece: str) -> tuple[int, int]:
        data = piece.encode()
        at = text.find(data)
        if at < 0:
            at = len(text)
            text.extend(data)
        return at, len(data)

    rows = []
    for character in [*map(chr, range(128)), *sorted(c for c in latex if ord(c) >= 128)]:
        piece = latex.get(character, character)
        is_command = piece.startswith("\\") and piece[1:].isascii() and piece[1:].isalpha()
        begins = piece[:1].isascii() and piece[:1].isalpha()
        rows.append((ord(character), *place(piece), BEGINS * begins | ENDS * is_command))
    pieces = [place(piece) for piece in _PIECES]

    def pairs(commands: dict[str, str]) -> list[int]:
        numbers: list[int] = []
        for name, command in commands.items():
            numbers += [name_hash(name), len(pieces)]
            pieces.append(place(rf"\{command}{{"))
        return numbers

    variants, notations = pairs(_VARIANTS), pairs(_ENCLOSURES)
    accents = []
    for is_over, of in enumerate((_UNDER_ACCENTS, _OVER_ACCENTS)):
        for character, command in of.items():
            accents.append((ord(character), is_over, len(pieces)))
            pieces.append(place(rf"\{command}{{"))
    names, kinds = np.zeros(SLOTS, np.uint64), np.zeros(SLOTS, np.uint8)
    for kind, group in _KINDS.items():
        for name in group.split():
            slot = name_hash(name) >> 32 & SLOTS - 1
            while kinds[slot]:
                slot = (slot + 1) & SLOTS - 1
            names[slot], kinds[slot] = name_hash(name), kind
    functions, limits = (sorted(name_hash(name) for name in of.split()) for of in (_FUNCTIONS, _LIMITS))
    parts = [names.tolist(), kinds.tolist(), functions, limits, variants, notations]
    numbers = [rows, [(*piece, 0, 0) for piece in pieces], [(*accent, 0) for accent in accents]]
    hashes = np.concatenate([np.array(part, np.uint64) for part in parts])
    return (
        Tables(
            frozen(np.frombuffer(bytes(text), np.uint8), np.uint8),
            frozen(np.array([row for part in numbers for row in part], np.int32), np.int32),
            frozen(hashes, np.uint64),
        ),
        np.cumsum([0, *map(len, numbers)]).tolist(),
        np.cumsum([0, *map(len, parts)]).tolist(),
    )


(
    TABLES,
    (_, PIECES_AT, ACCENTS_AT, NUMBERS_END),
    (_, KINDS_AT, FUNCTIONS_AT, LIMITS_AT, VARIANTS_AT, NOTATIONS_AT, HASHES_END),
) = _tables()
OVERLINE = next(
    row[2] for row in TABLES.numbers[ACCENTS_AT:NUMBERS_END].tolist() if row[1] and row[0] == ord("‾")
)
MATHVARIANT, LINETHICKNESS, COLUMNALIGN, SEPARATORS, OPEN, CLOSE, NOTATION, LINEBREAK, WIDTH = (
    U64(name_hash(name))
    for name in [
        "mathvariant", "linethickness", "columnalign", "separators", "open", "close", "notation", "linebreak",
        "width",
    ]
)  # fmt: skip
NEWLINE, NORMAL, RIGHT, LEFT = (U64(name_hash(name)) for name in ["newline", "normal", "right", "left"])
