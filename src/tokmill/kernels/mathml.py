r"""Presentation MathML as LaTeX.

    <mfrac><mi>a</mi><msqrt><mi>α</mi></msqrt></mfrac>     \frac{a}{\sqrt{\alpha}}

    nodes ─ one walk ─┬─ <mi>, <mn>, <mo>, … ─ characters ────────────────┐
                      └─ <mfrac>, <mrow>, … ── a frame: opened, ──────────┼─> bytes
                                               children, closed ──────────┘

All elements of MathML Core (https://www.w3.org/TR/mathml-core/), and of MathML 3 `mfenced`, `menclose` and
`maction`. Characters that LaTeX has no command for stay as they are. What lies deeper than MAX_DEPTH is
written as its text; a formula of more than MAX_NODES nodes or MAX_BYTES, or with more than MAX_SCRIPTS at one
base, is none.

What stands before its children is written when a frame is opened; what changes their order (indices of a
root, what is set above or below) is taken apart when it is closed: a byte moves at most MAX_DEPTH times.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlattributes import find_attribute
from tokmill.kernels.htmlentities import entity_at, space_width
from tokmill.kernels.htmltree import FNV, FNV_PRIME, TEXT, Tree, hash_name, is_space, name_hash
from tokmill.kernels.htmlwriter import Page, step
from tokmill.kernels.jit import Bytes, Int, code_at, frozen, holds, put_code, raw_step

MAX_DEPTH = 64
MAX_NODES = 5000
MAX_BYTES = 80_000
MAX_SCRIPTS = 64
ROOM = MAX_BYTES + 16_384  # a step writes no more than that beyond it
_MAX_NAME = 64
_MAX_SEPARATORS = 16
_MAX_NOTATIONS = 8
_MAX_LOOK = 512  # bytes of a text that is compared with a single character

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
_ROW, _MI, _MN, _MO, _MTEXT, _MS, _FRACTION, _ROOT, _SUB, _SUP, _SUBSUP, _UNDER, _OVER_KIND, _UNDEROVER = (
    range(1, 15)
)
_MULTI, _TABLE, _FENCED, _ENCLOSED, _SPACE, _PHANTOM, _SQRT, _FIRST, _NOTHING, _PRESCRIPTS = range(15, 25)
_TR, _LABELED, _GROUP = 25, 26, 27
_KINDS = {
    _MI: "mi",
    _MN: "mn",
    _MO: "mo",
    _MTEXT: "mtext",
    _MS: "ms",
    _FRACTION: "mfrac",
    _ROOT: "mroot",
    _SUB: "msub",
    _SUP: "msup",
    _SUBSUP: "msubsup",
    _UNDER: "munder",
    _OVER_KIND: "mover",
    _UNDEROVER: "munderover",
    _MULTI: "mmultiscripts",
    _TABLE: "mtable",
    _FENCED: "mfenced",
    _ENCLOSED: "menclose",
    _SPACE: "mspace",
    _PHANTOM: "mphantom",
    _SQRT: "msqrt",
    _FIRST: "semantics maction",
    _NOTHING: "annotation annotation-xml none maligngroup malignmark script style",
    _PRESCRIPTS: "mprescripts",
    _TR: "mtr",
    _LABELED: "mlabeledtr",
    _GROUP: "mrow mstyle",
}
_SLOTS = 128

# Pieces of LaTeX, by their place in the table.
_PIECES = [
    r"\frac{", r"\sqrt{", r"\sqrt[", r"\phantom{", r"\operatorname{", r"\text{", r"\begin{", r" \end{",
    r"\underset{", r"\overset{", r" \atop ", r" \\ ", r"\quad ", r"\underbrace", r"\overbrace",
    "matrix", "aligned", "cases", "pmatrix", "bmatrix", "vmatrix", "Bmatrix",
]  # fmt: skip
(
    _P_FRAC, _P_SQRT, _P_ROOT, _P_PHANTOM, _P_OPERATOR, _P_TEXT, _P_BEGIN, _P_END, _P_UNDERSET, _P_OVERSET,
    _P_ATOP, _P_NEWLINE, _P_QUAD, _P_UNDERBRACE, _P_OVERBRACE,
    _P_MATRIX, _P_ALIGNED, _P_CASES, _P_PMATRIX, _P_BMATRIX, _P_VMATRIX, _P_BRACES,
) = range(len(_PIECES))  # fmt: skip

_BEGINS, _ENDS = 1, 2  # with a letter; in a command


class Tables(NamedTuple):
    """Few arrays, for each of them is seven arguments of every call."""

    text: Bytes  # LaTeX that is copied
    # characters, 128 of ASCII and others in order: code, place, bytes, _BEGINS | _ENDS
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
        rows.append((ord(character), *place(piece), _BEGINS * begins | _ENDS * is_command))
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
    names, kinds = np.zeros(_SLOTS, np.uint64), np.zeros(_SLOTS, np.uint8)
    for kind, group in _KINDS.items():
        for name in group.split():
            slot = name_hash(name) >> 32 & _SLOTS - 1
            while kinds[slot]:
                slot = (slot + 1) & _SLOTS - 1
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
    (_, _PIECES_AT, _ACCENTS_AT, _NUMBERS_END),
    (_, _KINDS_AT, _FUNCTIONS_AT, _LIMITS_AT, _VARIANTS_AT, _NOTATIONS_AT, _HASHES_END),
) = _tables()
_OVERLINE = next(
    row[2] for row in TABLES.numbers[_ACCENTS_AT:_NUMBERS_END].tolist() if row[1] and row[0] == ord("‾")
)
_MATHVARIANT, _LINETHICKNESS, _COLUMNALIGN, _SEPARATORS, _OPEN, _CLOSE, _NOTATION, _LINEBREAK, _WIDTH = (
    U64(name_hash(name))
    for name in [
        "mathvariant", "linethickness", "columnalign", "separators", "open", "close", "notation", "linebreak",
        "width",
    ]
)  # fmt: skip
_NEWLINE, _NORMAL, _RIGHT, _LEFT = (U64(name_hash(name)) for name in ["newline", "normal", "right", "left"])

# Places of a frame.
_END, _AFTER, _MODE, _START, _CHILDREN, _PREVIOUS, _DEPTH, _CLOSERS, _MARKS, _COUNT = range(10)
_EXTRA, _CODE_1, _CODE_LAST, _FIRST_CHILD, _NODE = range(10, 15)
_FRAMES = 2 * MAX_DEPTH + 16
_ALL = 1 << 30
# Of a mark: what follows it stands before the base.
_BEFORE, _PLACE = -(1 << 62), (1 << 62) - 1


class Work(NamedTuple):
    """What a conversion needs beside the page."""

    kinds: Bytes  # of the formula's nodes
    frames: NDArray[np.int64]
    marks: NDArray[np.int64]  # where children begin
    out: Bytes
    spare: Bytes


def work() -> Work:
    return Work(
        np.empty(MAX_NODES + 1, np.uint8),
        np.empty((15, _FRAMES), np.int64),
        np.empty((MAX_SCRIPTS + 2) * _FRAMES, np.int64),
        np.empty(ROOM, np.uint8),
        np.empty(ROOM, np.uint8),
    )


# --- bytes ---


@step
def exact_hash(data: Bytes, at: Int, end: Int) -> np.uint64:
    """Of a name as it is."""
    value = FNV
    for k in range(at, end):
        value = (value ^ U64(data[k])) * FNV_PRIME
    return value


@raw_step
def _is_letter(byte: Int) -> bool:
    return bool((byte | 0x20) >= 0x61 and (byte | 0x20) <= 0x7A)


@step
def unescape(page: Page, at: Int, end: Int, out: Bytes, to: Int, limit: Int) -> Int:
    """Text with its entities decoded, up to so many bytes and a character."""
    data = page.data
    while at < end and to < limit:
        byte = data[at]
        if byte != 0x26:
            out[to] = byte
            to += 1
            at += 1
            continue
        word, width, at = entity_at(data, at, end, page.keys, page.values, page.controls, page.tables)
        for _ in range(width):
            out[to] = np.uint8(word)
            word >>= U64(8)
            to += 1
    return to


@step
def _collapse(out: Bytes, end: Int, keeps_edges: bool) -> Int:
    """White space of any kind as one space, in place; none at the edges unless they are kept."""
    to: Int = 0
    at: Int = 0
    is_space_before = False
    while at < end:
        width = space_width(out, at, end)
        if width:
            is_space_before = True
            at += width
            continue
        if is_space_before and (to > 0 or keeps_edges):
            out[to] = 0x20
            to += 1
        is_space_before = False
        out[to] = out[at]
        to += 1
        at += 1
    if is_space_before and keeps_edges:
        out[to] = 0x20
        to += 1
    return to


@step
def _texts(page: Page, tree: Tree, node: Int, out: Bytes, limit: Int) -> Int:
    """Of all that an element holds, one after the other."""
    to: Int = 0
    for k in range(node + 1, np.int64(tree.last[node])):
        if tree.tag[k] == TEXT:
            to = unescape(page, np.int64(tree.start[k]), np.int64(tree.end[k]), out, to, limit)
    return to


@step
def _copy(out: Bytes, to: Int, data: Bytes, at: Int, end: Int) -> Int:
    for k in range(end - at):
        out[to + k] = data[at + k]
    return to + (end - at)


@raw_step
def _put_piece(out: Bytes, to: Int, tables: Tables, piece: Int) -> Int:
    at = np.int64(tables.numbers[_PIECES_AT + piece, 0])
    return _copy(out, to, tables.text, at, at + np.int64(tables.numbers[_PIECES_AT + piece, 1]))


@raw_step
def _put_byte(out: Bytes, to: Int, byte: Int) -> Int:
    out[to] = byte
    return to + 1


@step
def _put_characters(
    out: Bytes, to: Int, text: Bytes, end: Int, commands: Bytes, characters: NDArray[np.int32]
) -> Int:
    """With commands for them, and a space where one would run into a letter."""
    at: Int = 0
    after_command = False
    while at < end and to < MAX_BYTES:
        code, width = code_at(text, at)
        row: Int = code
        if code >= 128:
            row = -1
            low: Int = 128
            high: Int = _PIECES_AT
            while low < high:
                middle = (low + high) >> 1
                if characters[middle, 0] < code:
                    low = middle + 1
                else:
                    high = middle
            if low < _PIECES_AT and characters[low, 0] == code:
                row = low
        if row < 0:
            to = _copy(out, to, text, at, at + width)
            after_command = False
        else:
            size = np.int64(characters[row, 2])
            flags = np.int64(characters[row, 3])
            if size:
                if after_command and flags & _BEGINS:
                    to = _put_byte(out, to, 0x20)
                first = np.int64(characters[row, 1])
                to = _copy(out, to, commands, first, first + size)
                after_command = flags & _ENDS != 0
        at += width
    return to


@step
def _put_in_text(out: Bytes, to: Int, text: Bytes, end: Int) -> Int:
    r"""Of \text{}."""
    for k in range(end):
        byte = np.int64(text[k])
        if byte == 0x5C:
            continue
        if (
            byte == 0x25
            or byte == 0x23
            or byte == 0x26
            or byte == 0x24
            or byte == 0x5F
            or byte == 0x7B
            or byte == 0x7D
        ):
            to = _put_byte(out, to, 0x5C)
        to = _put_byte(out, to, byte)
        if to >= MAX_BYTES:
            break
    return to


@step
def _insert(out: Bytes, at: Int, to: Int, byte: Int) -> Int:
    """A byte before what was written since."""
    for k in range(to - at):
        out[to - k] = out[to - 1 - k]
    out[at] = byte
    return to + 1


@step
def _join(frames: NDArray[np.int64], top: Int, out: Bytes, start: Int, to: Int) -> Int:
    """A part of a row that was written: a space before it where a command would run into its first letter."""
    if to == start:
        return to
    previous = frames[_PREVIOUS, top]
    if previous >= 0 and _is_letter(np.int64(out[start])):
        at = start - 1
        while at >= previous and _is_letter(np.int64(out[at])):
            at -= 1
        if at >= previous and at < start - 1 and out[at] == 0x5C:
            to = _insert(out, start, to, 0x20)
            start += 1
    frames[_PREVIOUS, top] = start
    return to


@step
def _is_base(text: Bytes, at: Int, end: Int) -> bool:
    """Can it be given an index: one character, a command with at most one plain argument, a plain group."""
    if at >= end:
        return False
    _, width = code_at(text, at)
    if at + width == end:
        return True
    if text[at] == 0x5C:
        at += 1
        first = at
        while at < end and _is_letter(np.int64(text[at])):
            at += 1
        if at == first:
            return False
        if at == end:
            return True
    if text[at] != 0x7B or text[end - 1] != 0x7D or at >= end - 1:
        return False
    at += 1
    while at < end - 1 and text[at] != 0x7B and text[at] != 0x7D:
        at += 1
    return bool(at == end - 1)


@step
def _put_script(out: Bytes, to: Int, text: Bytes, at: Int, end: Int, sign: Int) -> Int:
    """Primes stay as they are."""
    if at == end:
        return to
    is_prime = sign == 0x5E
    for k in range(at, end):
        is_prime = is_prime and text[k] == 0x27
    if is_prime:
        return _copy(out, to, text, at, end)
    return _put_group(out, to, text, at, end, sign)


@step
def _put_group(out: Bytes, to: Int, text: Bytes, at: Int, end: Int, sign: Int) -> Int:
    to = _put_byte(out, to, sign)
    to = _put_byte(out, to, 0x7B)
    to = _copy(out, to, text, at, end)
    return _put_byte(out, to, 0x7D)


@step
def _put_base(out: Bytes, to: Int, text: Bytes, at: Int, end: Int) -> Int:
    if _is_base(text, at, end):
        return _copy(out, to, text, at, end)
    to = _put_byte(out, to, 0x7B)
    to = _copy(out, to, text, at, end)
    return _put_byte(out, to, 0x7D)


# --- elements ---


@step
def _kind_of(data: Bytes, at: Int, end: Int, tables: Tables) -> Int:
    """By the name of a start tag, without its prefix."""
    at += 1
    end = min(end, at + _MAX_NAME)
    first = at
    while at < end and data[at] != 0x3E and data[at] != 0x2F and not is_space(data[at]):
        at += 1
        if data[at - 1] == 0x3A:
            first = at
    value = hash_name(data, first, at)
    slot = np.int64(value >> U64(32)) & (_SLOTS - 1)
    while tables.hashes[_KINDS_AT + slot]:
        if tables.hashes[slot] == value:
            return np.int64(tables.hashes[_KINDS_AT + slot])
        slot = (slot + 1) & (_SLOTS - 1)
    return np.int64(_ROW)


@step
def _attribute(data: Bytes, tree: Tree, node: Int, name: np.uint64) -> tuple[Int, Int]:
    return find_attribute(data, np.int64(tree.start[node]), np.int64(tree.end[node]), name)


@step
def _only_character(page: Page, tree: Tree, node: Int, spare: Bytes) -> Int:
    """Of an element's text; 0 where it has none, -1 where it has more."""
    end = _texts(page, tree, node, spare, np.int64(_MAX_LOOK))
    at: Int = 0
    only: Int = 0
    while at < end:
        width = space_width(spare, at, end)
        if width == 0:
            if only:
                return np.int64(-1)
            only, width = code_at(spare, at)
        at += width
    return only


@step
def _element_at(tree: Tree, node: Int, number: Int) -> Int:
    """A child that is an element; -1 where there are fewer."""
    k = node + 1
    while k < tree.last[node]:
        if tree.tag[k] != TEXT:
            if number == 0:
                return np.int64(k)
            number -= 1
        k = np.int64(tree.last[k])
    return np.int64(-1)


@step
def _matrix_of(opening: Int, closing: Int) -> Int:
    """The environment of a table between fences; -1 for any other."""
    if opening == 0x28 and closing == 0x29:
        return np.int64(_P_PMATRIX)
    if opening == 0x5B and closing == 0x5D:
        return np.int64(_P_BMATRIX)
    if opening == 0x7C and closing == 0x7C:
        return np.int64(_P_VMATRIX)
    if opening == 0x7B and closing == 0x7D:
        return np.int64(_P_BRACES)
    return np.int64(-1)


@step
def _fenced_table(page: Page, tree: Tree, node: Int, root: Int, work: Work) -> tuple[Int, Int]:
    """The table that a row is nothing but, between fences, and its environment; -1 where it is another."""
    first = _element_at(tree, node, 0)
    if first < 0 or work.kinds[first - root] != _MO:
        return np.int64(-1), np.int64(-1)
    second = _element_at(tree, node, 1)
    kind = work.kinds[second - root] if second >= 0 else 0
    third = _element_at(tree, node, 2)
    if (kind != _TABLE and kind != _GROUP) or (third >= 0 and _element_at(tree, node, 3) >= 0):
        return np.int64(-1), np.int64(-1)
    table = second
    while work.kinds[table - root] != _TABLE:
        inner = _element_at(tree, table, 0)
        if inner < 0 or _element_at(tree, table, 1) >= 0:
            return np.int64(-1), np.int64(-1)
        table = inner
    opening = _only_character(page, tree, first, work.spare)
    is_operator = third >= 0 and work.kinds[third - root] == _MO
    closing = _only_character(page, tree, third, work.spare) if is_operator else np.int64(0)
    if opening == 0x7B and closing == 0 and (third < 0 or is_operator):
        return table, np.int64(_P_CASES)
    environment = _matrix_of(opening, closing)
    return (table, environment) if environment >= 0 else (np.int64(-1), np.int64(-1))


@step
def _space_of(page: Page, tree: Tree, node: Int, out: Bytes, to: Int, tables: Tables) -> Int:
    """<mspace>: in em, ex (a half), px (a sixteenth) or pt (a twelfth)."""
    data = page.data
    at, end = _attribute(data, tree, node, _LINEBREAK)
    if at >= 0 and exact_hash(data, at, end) == _NEWLINE:
        to = _put_byte(out, to, 0x5C)
        to = _put_byte(out, to, 0x5C)
        return _put_byte(out, to, 0x20)
    at, end = _attribute(data, tree, node, _WIDTH)
    if at < 0:
        return to
    while at < end and is_space(data[at]):
        at += 1
    is_negative = at < end and data[at] == 0x2D
    at += is_negative
    value: Int = 0
    scale: Int = 1
    points = digits = 0
    while at < end and (data[at] == 0x2E or (data[at] >= 0x30 and data[at] <= 0x39)):
        if data[at] == 0x2E:
            points += 1
        else:
            digits += 1
            if scale < 10**9 and value < 10**9:
                value = 10 * value + np.int64(data[at] - 0x30)
                scale *= 10 if points else 1
        at += 1
    if digits == 0 or points > 1 or is_negative:
        return to
    while at < end and is_space(data[at]):
        at += 1
    unit: Int = 16
    if at + 1 < end:
        if data[at] == 0x65 and data[at + 1] == 0x6D:
            unit = 1
        elif data[at] == 0x65 and data[at + 1] == 0x78:
            unit = 2
        elif data[at] == 0x70 and data[at + 1] == 0x74:
            unit = 12
    if 10 * value >= 9 * unit * scale:
        return _put_piece(out, to, tables, np.int64(_P_QUAD))
    if value > 0:
        to = _put_byte(out, to, 0x5C)
        to = _put_byte(out, to, 0x3B if 4 * value >= unit * scale else 0x2C)
    return to


@step
def _token(page: Page, tree: Tree, node: Int, kind: Int, tables: Tables, work: Work, to: Int) -> Int:
    """<mi>, <mn>, <mo>, <mtext>, <ms>; of any other element its text."""
    data, out, spare = page.data, work.out, work.spare
    has_elements = kind == _MTEXT and _element_at(tree, node, 0) >= 0
    end = _texts(page, tree, node, spare, np.int64(MAX_BYTES))
    end = _collapse(spare, end, kind == _MTEXT and not has_elements)
    if kind == _MTEXT or kind == _MS:
        if kind == _MTEXT and (end == 0 or (end == 1 and spare[0] == 0x20)):
            if tree.last[node] > node + 1:
                to = _put_byte(out, to, 0x5C)
                to = _put_byte(out, to, 0x20)
            return to
        to = _put_piece(out, to, tables, np.int64(_P_TEXT))
        if kind == _MS:
            to = _put_byte(out, to, 0x22)
        to = _put_in_text(out, to, spare, end)
        if kind == _MS:
            to = _put_byte(out, to, 0x22)
        return _put_byte(out, to, 0x7D)
    if kind != _MI and kind != _MN and kind != _MO:
        return _put_characters(out, to, spare, end, tables.text, tables.numbers)
    is_word = is_ascii = True
    for k in range(end):
        is_word = is_word and _is_letter(np.int64(spare[k]))
        is_ascii = is_ascii and spare[k] < 0x80
    if (
        kind != _MN
        and is_word
        and end > 1
        and holds(tables.hashes[_FUNCTIONS_AT:_LIMITS_AT], exact_hash(spare, np.int64(0), end))
    ):
        to = _put_byte(out, to, 0x5C)
        return _copy(out, to, spare, np.int64(0), end)
    piece: Int = -1
    if kind != _MO:
        at, stop = _attribute(data, tree, node, _MATHVARIANT)
        if at >= 0:
            value = exact_hash(data, at, stop)
            for k in range(_VARIANTS_AT, _NOTATIONS_AT, 2):
                if tables.hashes[k] == value:
                    piece = np.int64(tables.hashes[k + 1])
            if value == _NORMAL and (kind == _MN or not is_ascii):
                piece = -1
    if piece < 0 and kind != _MN and is_word and end > 1:
        piece = _P_OPERATOR
    if piece >= 0:
        to = _put_piece(out, to, tables, piece)
    to = _put_characters(out, to, spare, end, tables.text, tables.numbers)
    if piece >= 0:
        to = _put_byte(out, to, 0x7D)
    return to


@raw_step
def _is_plain(data: Bytes, tree: Tree, node: Int, kind: Int) -> bool:
    """Is it <mi>, <mn> or <mo> without attributes and of one letter or digit, which stands for itself?"""
    if (kind != _MI and kind != _MN and kind != _MO) or tree.last[node] != node + 2:
        return False
    if tree.tag[node + 1] != TEXT or tree.end[node + 1] - tree.start[node + 1] != 1:
        return False
    byte = np.int64(data[tree.start[node + 1]])
    return bool(tree.end[node] - tree.start[node] == 4 and (_is_letter(byte) or 0x30 <= byte <= 0x39))


@step
def _accent(tables: Tables, code: Int, is_over: Int) -> Int:
    for k in range(_ACCENTS_AT, _NUMBERS_END):
        if tables.numbers[k, 0] == code and tables.numbers[k, 1] == is_over:
            return np.int64(tables.numbers[k, 2])
    return np.int64(-1)


@step
def _starts_with(text: Bytes, at: Int, end: Int, tables: Tables, piece: Int, size: Int) -> bool:
    first = np.int64(tables.numbers[_PIECES_AT + piece, 0])
    if end - at < size:
        return False
    is_same = True
    for k in range(size):
        is_same = is_same and text[at + k] == tables.text[first + k]
    return is_same


@step
def _close_limits(
    page: Page, tree: Tree, top: Int, tables: Tables, work: Work, ends: tuple[Int, Int, Int]
) -> Int:
    """<munder>, <mover> and <munderover>, whose parts lie in `spare` up to `ends`."""
    frames, out, spare = work.frames, work.out, work.spare
    to = frames[_START, top]
    mode = frames[_MODE, top]
    base, second, third = ends
    zero = np.int64(0)
    below, below_end = (base, second) if mode != _OVER_KIND else (zero, zero)
    above, above_end = (base, second) if mode == _OVER_KIND else (second, third)
    if mode == _UNDER:
        above, above_end = zero, zero
    is_operator = _starts_with(spare, zero, base, tables, np.int64(_P_OPERATOR), np.int64(13))
    if is_operator or (
        base > 0
        and base <= 16
        and holds(tables.hashes[_LIMITS_AT:_VARIANTS_AT], exact_hash(spare, zero, base))
    ):
        to = _put_base(out, to, spare, zero, base)
        to = _put_script(out, to, spare, below, below_end, np.int64(0x5F))
        return _put_script(out, to, spare, above, above_end, np.int64(0x5E))
    has_brace = _starts_with(
        spare, zero, base, tables, np.int64(_P_UNDERBRACE), np.int64(11)
    ) or _starts_with(spare, zero, base, tables, np.int64(_P_OVERBRACE), np.int64(10))
    under: Int = -1
    over: Int = -1
    if mode != _OVER_KIND:
        under = _accent(tables, frames[_CODE_1, top], np.int64(0))
    if mode != _UNDER:
        code = frames[_CODE_LAST, top]
        over = _accent(tables, code, np.int64(1))
        if code == 0xAF or code == 0x304:  # a bar over more than one character
            first = frames[_FIRST_CHILD, top]
            if first >= 0 and _only_character(page, tree, first, out[ROOM - 2 * _MAX_LOOK :]) < 0:
                over = _OVERLINE
    if over >= 0:
        to = _put_piece(out, to, tables, over)
    elif above_end > above and not has_brace:
        to = _put_piece(out, to, tables, np.int64(_P_OVERSET))
        to = _copy(out, to, spare, above, above_end)
        to = _put_byte(out, to, 0x7D)
        to = _put_byte(out, to, 0x7B)
    if under >= 0:
        to = _put_piece(out, to, tables, under)
    elif below_end > below and not has_brace:
        to = _put_piece(out, to, tables, np.int64(_P_UNDERSET))
        to = _copy(out, to, spare, below, below_end)
        to = _put_byte(out, to, 0x7D)
        to = _put_byte(out, to, 0x7B)
    to = _copy(out, to, spare, zero, base)
    if under >= 0 or (below_end > below and not has_brace):
        to = _put_byte(out, to, 0x7D)
    elif below_end > below:
        to = _put_group(out, to, spare, below, below_end, np.int64(0x5F))
    if over >= 0 or (above_end > above and not has_brace):
        to = _put_byte(out, to, 0x7D)
    elif above_end > above:
        to = _put_group(out, to, spare, above, above_end, np.int64(0x5E))
    return to


@step
def _close_scripts(top: Int, marks: Int, tables: Tables, work: Work, size: Int) -> Int:
    """<mmultiscripts>: pairs behind the base, and pairs before it from the last to the first; its children
    lie in `spare`."""
    frames, out, spare = work.frames, work.out, work.spare
    start = frames[_START, top]
    first = frames[_MARKS, top]
    children = marks - first
    to: Int = start
    if children == 0:
        return to
    divide = children
    for k in range(1, children):
        if work.marks[first + k] < 0 and divide == children:
            divide = k
    # -- behind: the base grows, to the left where a brace opens before it
    begin = start + divide // 2
    end = (work.marks[first + 1] & _PLACE) - start if children > 1 else size
    to = _copy(out, begin, spare, np.int64(0), end)
    k = 1
    while k < divide:
        if not _is_base(out, begin, to):
            begin -= 1
            out[begin] = 0x7B
            to = _put_byte(out, to, 0x7D)
        for sign in (0x5F, 0x5E):
            if k < divide:
                at = (work.marks[first + k] & _PLACE) - start
                end = (work.marks[first + k + 1] & _PLACE) - start if k + 1 < children else size
                to = _put_script(out, to, spare, at, end, np.int64(sign))
            k += 1
    to = _copy(out, start, out, begin, to)
    # -- before: written behind it, and then moved
    base_end = to
    count = 0
    for k in range(divide, children):
        count += work.marks[first + k] >= 0
    pair = (count + 1) // 2 - 1
    while pair >= 0:
        to = _put_byte(out, to, 0x7B)
        to = _put_byte(out, to, 0x7D)
        number = 0
        for k in range(divide, children):
            if work.marks[first + k] < 0:
                continue
            if number // 2 == pair:
                at = work.marks[first + k] - start
                end = (work.marks[first + k + 1] & _PLACE) - start if k + 1 < children else size
                to = _put_script(out, to, spare, at, end, np.int64(0x5E if number & 1 else 0x5F))
            number += 1
        pair -= 1
    if to > base_end:
        size = _copy(spare, np.int64(0), out, start, to)
        moved = _copy(out, start, spare, base_end - start, size)
        _copy(out, moved, spare, np.int64(0), base_end - start)
    return to


@step
def _close(page: Page, tree: Tree, top: Int, marks: Int, tables: Tables, work: Work, to: Int) -> Int:
    """What stands behind the children of a frame, or is made of them."""
    frames, out, spare = work.frames, work.out, work.spare
    mode, children = frames[_MODE, top], frames[_CHILDREN, top]
    start = frames[_START, top]
    if mode == _FRACTION:
        if children == 0 or children == 1:
            if frames[_EXTRA, top]:
                to = _put_piece(out, to, tables, np.int64(_P_ATOP))
            else:
                to = _put_byte(out, to, 0x7D)
                to = _put_byte(out, to, 0x7B)
        to = _put_byte(out, to, 0x7D)
    elif mode == _TABLE:
        to = _put_piece(out, to, tables, np.int64(_P_END))
        to = _put_piece(out, to, tables, frames[_EXTRA, top])
        to = _put_byte(out, to, 0x7D)
    elif mode == _FENCED:
        first = to
        at, end = _attribute(page.data, tree, frames[_NODE, top], _CLOSE)
        spare[0] = 0x29
        size = np.int64(1) if at < 0 else unescape(page, at, end, spare, np.int64(0), np.int64(MAX_BYTES))
        to = _put_characters(out, to, spare, size, tables.text, tables.numbers)
        to = _join(frames, top, out, first, to)
    elif mode == _MULTI:
        size = _copy(spare, np.int64(0), out, start, to)
        to = _close_scripts(top, marks, tables, work, size)
    elif mode >= _ROOT and mode <= _UNDEROVER:
        size = _copy(spare, np.int64(0), out, start, to)
        first = frames[_MARKS, top]
        base = work.marks[first + 1] - start if marks > first + 1 else size
        second = work.marks[first + 2] - start if marks > first + 2 else size
        if mode >= _UNDER:
            return _close_limits(page, tree, top, tables, work, (base, second, size))
        to = start
        if mode == _ROOT:
            to = _put_piece(out, to, tables, np.int64(_P_ROOT))
            to = _copy(out, to, spare, base, size)
            to = _put_byte(out, to, 0x5D)
            to = _put_byte(out, to, 0x7B)
            to = _copy(out, to, spare, np.int64(0), base)
            return _put_byte(out, to, 0x7D)
        to = _put_base(out, to, spare, np.int64(0), base)
        to = _put_script(out, to, spare, base, second, np.int64(0x5E if mode == _SUP else 0x5F))
        to = _put_script(out, to, spare, second, size, np.int64(0x5E))
    for _ in range(frames[_CLOSERS, top]):
        to = _put_byte(out, to, 0x7D)
    return to


@step
def write_latex(page: Page, tree: Tree, root: Int, tables: Tables, work: Work) -> Int:
    """The LaTeX of a <math> into `out`; its bytes, or -1 where it is too much."""
    data, tag, last = page.data, tree.tag, tree.last
    kinds, frames, places, out, spare = work.kinds, work.frames, work.marks, work.out, work.spare
    if last[root] - root > MAX_NODES:
        return np.int64(-1)
    for k in range(root, np.int64(last[root])):
        if tag[k] != TEXT:
            kinds[k - root] = _kind_of(data, np.int64(tree.start[k]), np.int64(tree.end[k]), tables)
    to: Int = 0
    top: Int = -1
    marks: Int = 0
    node: Int = root
    depth: Int = 0
    after = np.int64(last[root])
    position: Int = root
    while True:
        if to >= MAX_BYTES:
            return np.int64(-1)
        if top >= 0:
            mode = frames[_MODE, top]
            if position >= frames[_END, top]:
                start = frames[_START, top]
                if mode == _ROW or mode == _TR:  # a call takes as long as the rest of a small formula
                    for _ in range(frames[_CLOSERS, top]):
                        to = _put_byte(out, to, 0x7D)
                else:
                    to = _close(page, tree, top, marks, tables, work, to)
                position, marks = frames[_AFTER, top], frames[_MARKS, top]
                top -= 1
                if top < 0:
                    return to
                to = _end_child(frames, top, out, start, to)
                continue
            if tag[position] == TEXT:
                if mode == _ROW:
                    start = to
                    size = unescape(
                        page, np.int64(tree.start[position]), np.int64(tree.end[position]), spare,
                        np.int64(0), np.int64(MAX_BYTES),
                    )  # fmt: skip
                    to = _put_characters(out, to, spare, _strip(spare, size), tables.text, tables.numbers)
                    to = _join(frames, top, out, start, to)
                position += 1
                continue
            # -- the next child, and what stands before it
            node, after = position, np.int64(last[position])
            depth = frames[_DEPTH, top] + 1
            number = frames[_CHILDREN, top]
            if mode == _FRACTION:
                if number == 1:
                    if frames[_EXTRA, top]:
                        to = _put_piece(out, to, tables, np.int64(_P_ATOP))
                    else:
                        to = _put_byte(out, to, 0x7D)
                        to = _put_byte(out, to, 0x7B)
            elif mode == _TABLE:
                if number:
                    to = _put_piece(out, to, tables, np.int64(_P_NEWLINE))
                kind = kinds[node - root]
                if kind == _TR or kind == _LABELED:
                    top += 1
                    frames[_MODE, top], frames[_END, top], frames[_AFTER, top] = _TR, after, after
                    frames[_START, top], frames[_PREVIOUS, top], frames[_COUNT, top] = to, -1, _ALL
                    frames[_CHILDREN, top] = -1 if kind == _LABELED else 0
                    frames[_DEPTH, top], frames[_CLOSERS, top], frames[_MARKS, top] = depth, 0, marks
                    position += 1
                    continue
                depth += 1
            elif mode == _TR:
                if number < 0:  # the label of a row
                    frames[_CHILDREN, top] = 0
                    position = after
                    continue
                if number:
                    to = _put_byte(out, to, 0x20)
                    to = _put_byte(out, to, 0x26)
                    to = _put_byte(out, to, 0x20)
            elif mode == _FENCED:
                if number and frames[_EXTRA, top]:
                    start = to
                    place = frames[_MARKS, top] + min(number, frames[_EXTRA, top]) - 1
                    size = put_code(spare, np.int64(0), places[place])
                    to = _put_characters(out, to, spare, size, tables.text, tables.numbers)
                    to = _put_byte(out, to, 0x20)
                    to = _join(frames, top, out, start, to)
            elif mode == _MULTI:
                if marks - frames[_MARKS, top] > MAX_SCRIPTS:
                    return np.int64(-1)
                places[marks] = to | (_BEFORE if number and kinds[node - root] == _PRESCRIPTS else 0)
                marks += 1
            elif mode >= _ROOT and mode <= _UNDEROVER:
                if number < frames[_COUNT, top]:
                    places[marks] = to
                    marks += 1
                if mode >= _UNDER:
                    kind = kinds[node - root]
                    code: Int = 0
                    if kind == _MO or kind == _MI or kind == _MTEXT:
                        code = _only_character(page, tree, node, spare)
                    if number == 0:
                        frames[_FIRST_CHILD, top] = node
                    if number == 1:
                        frames[_CODE_1, top] = code
                    if number >= frames[_COUNT, top] - 1:
                        frames[_CODE_LAST, top] = code
        # -- an element: its text, or a frame
        start = to
        position = after
        kind = np.int64(kinds[node - root])
        while kind == _FIRST and depth <= MAX_DEPTH:
            node = _element_at(tree, node, np.int64(0))
            if node < 0:
                break
            depth += 1
            kind = np.int64(kinds[node - root])
        is_leaf = True
        if node < 0 or (depth <= MAX_DEPTH and (kind == _NOTHING or kind == _PRESCRIPTS)):
            pass
        elif depth > MAX_DEPTH:
            to = _token(page, tree, node, np.int64(_ROW), tables, work, to)
        elif _is_plain(data, tree, node, kind):  # most tokens; a call takes as long as all of it
            to = _put_byte(out, to, np.int64(data[tree.start[node + 1]]))
        elif kind <= _MS and kind >= _MI:
            to = _token(page, tree, node, kind, tables, work, to)
        elif kind == _SPACE:
            to = _space_of(page, tree, node, out, to, tables)
        else:
            is_leaf = False
        if is_leaf:
            if top < 0:
                return to
            to = _end_child(frames, top, out, start, to)
            continue
        top += 1
        frames[_NODE, top], frames[_END, top], frames[_AFTER, top] = node, last[node], after
        frames[_START, top], frames[_DEPTH, top], frames[_MARKS, top] = start, depth, marks
        frames[_CHILDREN, top], frames[_PREVIOUS, top], frames[_CLOSERS, top] = 0, -1, 0
        frames[_COUNT, top], frames[_EXTRA, top] = 0, 0
        frames[_CODE_1, top], frames[_CODE_LAST, top], frames[_FIRST_CHILD, top] = 0, 0, -1
        position = node + 1
        table: Int = -1
        environment: Int = _P_MATRIX
        if kind == _FRACTION:
            frames[_COUNT, top] = 2
            at, end = _attribute(data, tree, node, _LINETHICKNESS)
            frames[_EXTRA, top] = at >= 0 and _is_zero(data, at, end)
            if frames[_EXTRA, top]:
                to = _put_byte(out, to, 0x7B)
            else:
                to = _put_piece(out, to, tables, np.int64(_P_FRAC))
        elif kind >= _ROOT and kind <= _UNDEROVER:
            frames[_COUNT, top] = 3 if kind == _SUBSUP or kind == _UNDEROVER else 2
        elif kind == _MULTI:
            frames[_COUNT, top] = _ALL
        elif kind == _TABLE:
            table = node
            at, end = _attribute(data, tree, node, _COLUMNALIGN)
            if at >= 0 and _is_right_left(data, at, end):
                environment = _P_ALIGNED
        elif kind == _FENCED:
            table, environment, to = _open_fenced(page, tree, node, root, tables, work, top, marks, to)
            marks += frames[_EXTRA, top] if table < 0 else 0
        else:
            if kind == _SQRT or kind == _PHANTOM:
                to = _put_piece(out, to, tables, np.int64(_P_SQRT if kind == _SQRT else _P_PHANTOM))
                frames[_CLOSERS, top] = 1
            elif kind == _ENCLOSED:
                to = _open_enclosed(page, tree, node, tables, work, top, marks, to)
            kind = np.int64(_ROW)
            table, environment = _fenced_table(page, tree, node, root, work)
        frames[_MODE, top] = kind
        if table >= 0:
            frames[_MODE, top], frames[_END, top], frames[_COUNT, top] = _TABLE, last[table], _ALL
            frames[_EXTRA, top] = environment
            to = _put_piece(out, to, tables, np.int64(_P_BEGIN))
            to = _put_piece(out, to, tables, environment)
            to = _put_byte(out, to, 0x7D)
            to = _put_byte(out, to, 0x20)
            position = table + 1


@step
def _end_child(frames: NDArray[np.int64], top: Int, out: Bytes, start: Int, to: Int) -> Int:
    """A child that is written: those beyond the ones that have a place join the last."""
    if frames[_CHILDREN, top] >= frames[_COUNT, top]:
        to = _join(frames, top, out, start, to)
    else:
        frames[_PREVIOUS, top] = start if to > start else -1
    frames[_CHILDREN, top] += 1
    return to


@step
def _strip(text: Bytes, end: Int) -> Int:
    """Without white space at either end, in place."""
    first: Int = 0
    while first < end:
        width = space_width(text, first, end)
        if width == 0:
            break
        first += width
    behind = at = first
    while at < end:
        width = space_width(text, at, end)
        at += max(width, np.int64(1))
        behind = behind if width else at
    return _copy(text, np.int64(0), text, first, behind)


@step
def _is_zero(data: Bytes, at: Int, end: Int) -> bool:
    """A thickness: 0, 0.0pt."""
    first = at
    while at < end and data[at] == 0x30:
        at += 1
    if at == first:
        return False
    if at + 1 < end and data[at] == 0x2E and data[at + 1] == 0x30:
        at += 1
        while at < end and data[at] == 0x30:
            at += 1
    while at < end and is_space(data[at]):
        at += 1
    while at < end and ((data[at] >= 0x61 and data[at] <= 0x7A) or data[at] == 0x25):
        at += 1
    return bool(at == end)


@step
def _is_right_left(data: Bytes, at: Int, end: Int) -> bool:
    """Columns of `columnalign`: the first two."""
    if end - at < 10 or exact_hash(data, at, at + 5) != _RIGHT:
        return False
    at += 5
    first = at
    while at < end and is_space(data[at]):
        at += 1
    return bool(at > first and end - at >= 4 and exact_hash(data, at, at + 4) == _LEFT)


@step
def _open_fenced(
    page: Page,
    tree: Tree,
    node: Int,
    root: Int,
    tables: Tables,
    work: Work,
    top: Int,
    marks: Int,
    to: Int,
) -> tuple[Int, Int, Int]:
    """<mfenced>: the table and the environment that it is, or -1 and what opens it, written."""
    data, out, spare = page.data, work.out, work.spare
    zero = np.int64(0)
    at, end = _attribute(data, tree, node, _CLOSE)
    spare[0] = 0x29
    size = np.int64(1) if at < 0 else unescape(page, at, end, spare, zero, np.int64(MAX_BYTES))
    closing = np.int64(spare[0]) if size == 1 else zero
    at, end = _attribute(data, tree, node, _OPEN)
    spare[0] = 0x28
    size = np.int64(1) if at < 0 else unescape(page, at, end, spare, zero, np.int64(MAX_BYTES))
    opening = np.int64(spare[0]) if size == 1 else zero
    only = _element_at(tree, node, zero)
    if only >= 0 and work.kinds[only - root] == _TABLE and _element_at(tree, node, np.int64(1)) < 0:
        environment = _matrix_of(opening, closing)
        if environment >= 0:
            return only, environment, to
    first = to
    to = _put_characters(out, to, spare, size, tables.text, tables.numbers)
    to = _join(work.frames, top, out, first, to)
    at, end = _attribute(data, tree, node, _SEPARATORS)
    spare[0] = 0x2C
    size = np.int64(1) if at < 0 else unescape(page, at, end, spare, zero, np.int64(_MAX_LOOK))
    at, count = zero, zero
    while at < size and count < _MAX_SEPARATORS:
        code, width = code_at(spare, at)
        at += width
        if code != 0x20:
            work.marks[marks + count] = code
            count += 1
    work.frames[_EXTRA, top] = count
    return np.int64(-1), np.int64(-1), to


@step
def _open_enclosed(
    page: Page, tree: Tree, node: Int, tables: Tables, work: Work, top: Int, marks: Int, to: Int
) -> Int:
    """<menclose>: the last notation is the outermost."""
    data = page.data
    at, end = _attribute(data, tree, node, _NOTATION)
    count: Int = 0
    while at >= 0 and at < end and count < _MAX_NOTATIONS:
        while at < end and is_space(data[at]):
            at += 1
        first = at
        while at < end and not is_space(data[at]):
            at += 1
        value = exact_hash(data, first, at)
        for k in range(_NOTATIONS_AT, _HASHES_END, 2):
            if tables.hashes[k] == value and at > first:
                work.marks[marks + count] = np.int64(tables.hashes[k + 1])
                count += 1
    for k in range(count):
        to = _put_piece(work.out, to, tables, work.marks[marks + count - 1 - k])
    work.frames[_CLOSERS, top] = count
    return to
