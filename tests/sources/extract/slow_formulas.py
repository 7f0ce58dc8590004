r"""Formulas of a page, as LaTeX: where they are, and what of the page is another picture of them.

    <math> with <annotation encoding="application/x-tex">     its text; KaTeX, MathJax 3, Wikipedia
    <math> without                                            converted (`mathml`)
    <script type="math/tex; mode=display">                    its text; MathJax 2, which draws spans before it
    <img class="latex" alt="x^2">                             its `alt`; Wikipedia, WordPress, Sphinx
    <span class="math">\(x^2\)</span>                         what the signs enclose; Sphinx, Pandoc

A formula covers the outermost of the elements that a renderer made around it, so that neither its drawing nor
its words for a screen reader are written beside it. Start tags of all of these have marks; most pages hold
none, and are searched for the marks alone. Formulas that a page writes as text, `$$x$$`, are text.
"""

from __future__ import annotations

import re
from html import unescape

import numpy as np

from sources.extract.slow_mathml import attributes_of, latex_of, read_element, words
from tokmill.kernels.htmlmarks import NO_FORMULAS, Formulas, marked_nodes
from tokmill.kernels.htmltree import TAGS, TEXT, WHITE, Tree, parse
from tokmill.kernels.jit import Bytes, frozen

MAX_LATEX = 20_000  # bytes: more is no formula
_MAX_ABOVE = 12  # elements around a formula that are looked at
_MAX_ANNOTATIONS = 8  # within one
_MAX_PARTS = 64  # nodes of a formula that is text
_MAX_TAG = 4096  # bytes of a tag that are read, but for `alt`

_MATH, _SCRIPT, _IMG, _ANNOTATION = (TAGS[name] for name in ["math", "script", "img", "annotation"])

# Classes of what renderers put around a formula.
_AROUND = words("""
    katex katex-display katex-mathml katex-block MathJax MathJax_Display MathJax_SVG MathJax_SVG_Display
    MathJax_CHTML MathJax_MathML MJXc-display MJX_Assistive_MathML mjx-chtml mjx-math mjx-full-width
    mwe-math-element mwe-math-mathml-inline mwe-math-mathml-display mwe-math-mathml-a11y
    mwe-math-element-inline mwe-math-element-block
""")
_DRAWN = words("""
    MathJax MathJax_Display MathJax_SVG MathJax_SVG_Display MathJax_CHTML MJXc-display mjx-chtml
""")
_DISPLAY = words("""
    katex-display MathJax_Display MathJax_SVG_Display MJXc-display mwe-math-mathml-display
    mwe-math-fallback-image-display mwe-math-element-block
""")
_IMAGES = words("""
    latex tex math mathjax mathtex latexit texrender math-image mwe-math-fallback-image-inline
    mwe-math-fallback-image-display
""")
_ENCLOSED = re.compile(r"\\\((?P<inline>.*)\\\)|\\\[(?P<display>.*)\\\]|\$\$(?P<dollars>.*)\$\$", re.DOTALL)
_SIGN = re.compile(r"\\[()\[\]]|\$\$")
_STYLED = re.compile(r"\{\\(displaystyle|textstyle|scriptstyle)\b\s*(.*)\}", re.DOTALL)
_COMMENT = re.compile(r"(?<!\\)%.*")


def find_formulas(data: Bytes, tree: Tree) -> Formulas:
    nodes = marked_nodes(data, tree)
    if not nodes.size:
        return NO_FORMULAS
    search = _Search(data, tree)
    for node in nodes.tolist():
        search.look_at(node)
    return search.formulas()


class _Search:
    def __init__(self, data: Bytes, tree: Tree) -> None:
        self._data, self._tree = data, tree
        self._until = 0  # nodes before it need no look
        self._after = 0  # formulas cover nodes before it
        self._rows: list[tuple[int, int, bytes, bool]] = []

    def formulas(self) -> Formulas:
        if not self._rows:
            return NO_FORMULAS
        nodes, untils, texts, are_display = zip(*self._rows, strict=True)
        return Formulas(
            frozen(np.array(nodes, np.int32), np.int32),
            frozen(np.array(untils, np.int32), np.int32),
            frozen(np.frombuffer(b"".join(texts), np.uint8), np.uint8),
            frozen(np.cumsum([0, *map(len, texts)], dtype=np.int64), np.int64),
            frozen(np.array(are_display, np.uint8), np.uint8),
        )

    def look_at(self, node: int) -> None:
        if node < self._until:
            return
        tag = self._tree.tag[node]
        if tag == _MATH:
            self._take_math(node)
        elif tag == _SCRIPT:
            self._take_script(node)
        elif tag == _IMG:
            self._take_image(node)
        else:
            self._take_other(node)

    def _take_math(self, node: int) -> None:
        attributes = self._attributes(node)
        is_display = attributes.get("display") == "block" or attributes.get("mode") == "display"
        latex = None
        self._until = last = int(self._tree.last[node])
        for k in (node + np.flatnonzero(self._tree.tag[node:last] == _ANNOTATION))[
            :_MAX_ANNOTATIONS
        ].tolist():
            if "tex" in self._attributes(k).get("encoding", "").lower():
                latex = self._text(k)
                break
        if latex is None:
            latex = attributes.get("alttext") if "ltx_Math" in attributes.get("class", "") else None
        if latex is None:
            element = read_element(self._data, self._tree, node)
            latex = latex_of(element) if element is not None else None
        if latex is not None:
            outermost, is_shown = self._outermost(node)
            self._take(outermost, latex, is_display=is_display or is_shown)

    def _take_script(self, node: int) -> None:
        kind = self._attributes(node).get("type", "").lower().replace(" ", "")
        is_display = "mode=display" in kind
        if kind.startswith("math/tex"):
            latex = "".join(
                self._slice(k)
                for k in range(node + 1, int(self._tree.last[node]))
                if self._tree.tag[k] == TEXT
            )
            self._take(node, latex, is_display=is_display)
        elif kind.startswith("math/mml") and self._tree.last[node] == node + 2:
            inner = np.frombuffer(self._slice(node + 1).encode(), np.uint8)
            tree = parse(inner)
            for k in np.flatnonzero(tree.tag == _MATH)[:1].tolist():
                element = read_element(inner, tree, k)
                if element is not None:
                    is_display |= element.attributes.get("display") == "block"
                    self._take(node, latex_of(element), is_display=is_display)

    def _take_image(self, node: int) -> None:
        attributes = self._attributes(node)
        classes = attributes.get("class", "").split()
        if _IMAGES.isdisjoint(classes) or not attributes.get("alt", "").strip():
            return
        above = int(self._tree.parent[node])
        around = self._attributes(above).get("class", "").split() if above > 0 else []
        outermost, is_shown = self._outermost(node)
        is_display = (
            is_shown or not _DISPLAY.isdisjoint(classes) or ("math" in around and self._is_div(above))
        )
        self._take(outermost, attributes["alt"], is_display=is_display)

    def _take_other(self, node: int) -> None:
        classes = self._attributes(node).get("class", "").split()
        if "MathJax_Preview" in classes:
            self._take(node, "", is_display=False)
        elif not _DRAWN.isdisjoint(classes):
            follower = int(self._tree.last[node])
            while follower < self._tree.tag.size and self._tree.flags[follower] & WHITE:
                follower += 1
            is_script = follower < self._tree.tag.size and self._tree.tag[follower] == _SCRIPT
            if is_script and self._attributes(follower).get("type", "").lower().startswith("math/"):
                self._take(node, "", is_display=False)
        elif "math" in classes:
            last = int(self._tree.last[node])
            size = int(self._tree.end[last - 1]) - int(self._tree.start[node])
            if last - node > _MAX_PARTS or size > MAX_LATEX:
                return
            if any(self._tree.tag[k] in (_MATH, _SCRIPT, _IMG) for k in range(node, last)):
                return
            match = _ENCLOSED.fullmatch(self._text(node).strip())
            if match is not None:
                latex = match[match.lastgroup or 0]
                if not _SIGN.search(latex.replace(r"\\", "")):
                    self._take(node, latex, is_display=match.lastgroup != "inline")

    def _take(self, node: int, latex: str, *, is_display: bool) -> None:
        text = _clean(latex, is_display=is_display).encode(errors="replace")
        if len(text) <= MAX_LATEX:
            self._until = self._after = int(self._tree.last[node])
            self._rows.append((node, self._until, text, is_display))

    def _outermost(self, node: int) -> tuple[int, bool]:
        """The last of the elements around it that a renderer made, and does one of them say that it is
        displayed?"""
        outermost, is_display = node, False
        above = int(self._tree.parent[node])
        for _ in range(_MAX_ABOVE):
            if above < max(self._after, 1):
                break
            attributes = self._attributes(above)
            classes = attributes.get("class", "").split()
            start = int(self._tree.start[above])
            is_mjx = self._data[start + 1 : start + 5].tobytes() == b"mjx-"
            if is_mjx or not _AROUND.isdisjoint(classes):
                outermost = above
                is_display |= not _DISPLAY.isdisjoint(classes) or (
                    is_mjx and attributes.get("display") == "true"
                )
            above = int(self._tree.parent[above])
        return outermost, is_display

    def _is_div(self, node: int) -> bool:
        return bool(self._tree.tag[node] == TAGS["div"])

    def _attributes(self, node: int) -> dict[str, str]:
        start, end = int(self._tree.start[node]), int(self._tree.end[node])
        room = MAX_LATEX if self._tree.tag[node] == _IMG else _MAX_TAG
        return attributes_of(self._data, start, min(end, start + room))

    def _slice(self, node: int) -> str:
        return self._data[self._tree.start[node] : self._tree.end[node]].tobytes().decode(errors="replace")

    def _text(self, node: int) -> str:
        """Of all texts in an element."""
        within = range(node + 1, int(self._tree.last[node]))
        return unescape("".join(self._slice(k) for k in within if self._tree.tag[k] == TEXT))


def _clean(latex: str, *, is_display: bool) -> str:
    """Without comments and empty lines, and on one line unless it is displayed."""
    latex = latex.strip().removeprefix("% <![CDATA[").removesuffix("%]]>").strip()
    styled = _STYLED.fullmatch(latex)
    if styled is not None and _is_balanced(styled[2]):
        latex = styled[2]
    enclosed = _ENCLOSED.fullmatch(latex)
    if enclosed is not None:
        latex = enclosed[enclosed.lastgroup or 0]
    elif len(latex) > 2 and latex[0] == latex[-1] == "$" and "$" not in latex[1:-1] and latex[-2] != "\\":
        latex = latex[1:-1]
    lines = [" ".join(_COMMENT.sub("", line).split()) for line in latex.split("\n")]
    return ("\n" if is_display else " ").join(line for line in lines if line)


def _is_balanced(latex: str) -> bool:
    depth = 0
    for character in re.sub(r"\\.", "", latex, flags=re.DOTALL):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0
