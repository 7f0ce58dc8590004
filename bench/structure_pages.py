"""Pages whose code, tables and formulas are known by construction: documentation out of Debian packages.

.venv-extractors/bin/python bench/structure_pages.py [--packages DIR] [--out FILE] [--only PACKAGE …]

    apt-get download ─ .deb ─ HTML files, by hash ─ the site's main element ─┬─ pre ─────> code
                                                                             ├─ table ───> rows of cells
                                                                             └─ LaTeX ───> formulas
    structure.jsonl.zst   id, host (the package: pages of a site are in one fold), package (with its version),
                          html, code, tables, formulas, text

Each site says once where its main text is (SITES). A table with rows inside rows, blocks in its cells or
cells across columns is layout, or more than Markdown can say: it is not gold. Formulas come in the dress of
the page: MathJax's delimiters or an image's alt. Of Sphinx's pages every other one is dressed anew, as KaTeX,
as MathJax scripts and as Wikipedia write formulas, because Debian's packages have none of those.
"""

from __future__ import annotations

import argparse
import copy
import functools
import hashlib
import heapq
import html as entities
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

HERE = Path(__file__).resolve().parent
MAX_PAGES = 10  # of a site: of 60 sites, some hundreds
MAX_TRIED = 60
MIN_BYTES, MAX_BYTES = 3_000, 300_000
MIN_CODE_CHARS = 8
MAX_CELL_CHARS = 300


class Site(NamedTuple):
    main: str  # the first that matches, of selectors between commas
    leave: str = ""  # what in it is furniture
    raw_math: bool = False  # \( and \) in text are MathJax's


_SPHINX = Site("div[role=main]")
_MATH = Site("div[role=main]", raw_math=True)
_DOCBOOK = Site("body", "div.navheader, div.navfooter")
_DOXYGEN = Site("div.contents")
_TEXINFO = Site("body", "div.header, div.nav-panel, table.header")
_GTK_DOC = Site("body", "table.navigation, div.footer")
_HADDOCK = Site("#content", "#table-of-contents, #synopsis")

SITES = {
    "apache2-doc": Site("#page-content", "div#preamble > .toplang, div#quickview, div.bottomlang"),
    "apt-doc": _DOCBOOK,
    "aptitude-doc-ru": _DOCBOOK,
    "asciidoctor-doc": Site("main"),
    "awesome-doc": Site("#content"),
    "borgbackup-doc": Site("div.body"),
    "bup-doc": Site("body"),
    "ceres-solver-doc": _MATH,
    "cmake-doc": _SPHINX,
    "cppreference-doc-en-html": Site("#mw-content-text", ".t-navbar, .editsection, #toc"),
    "crystal-doc": Site("div.main-content"),
    "debian-policy": _SPHINX,
    "debian-reference-de": _DOCBOOK,
    "debmake-doc": _DOCBOOK,
    "developers-reference-fr": _SPHINX,
    "docbook-xsl-doc-html": _DOCBOOK,
    "docutils-doc": Site("div.document"),
    "doxygen-doc": _DOXYGEN,
    "erlang-doc": Site("#content .innertube, #content"),
    "exim4-doc-html": Site("#content div.chapter"),
    "gap-doc": Site(
        "body", "div.chlinktop, div.chlinkbot, div.chlinkprevnexttop, div.chlinkprevnextbot", True
    ),
    "geographiclib-doc": Site("div.contents", raw_math=True),
    "ghc-doc": _HADDOCK,
    "git-doc": Site("#content"),
    "kicad-doc-fr": Site("#content", "#toc"),
    "libadwaita-1-doc": Site("section#main"),
    "libboost1.81-doc": Site("div.refentry, div.section, div.chapter", "div.spirit-nav"),
    "libcommons-math3-java-doc": Site("div.contentContainer"),
    "libeigen3-doc": Site("div.contents", raw_math=True),
    "libfftw3-doc": _TEXINFO,
    "libflint-doc": _MATH,
    "libghc-pandoc-doc": _HADDOCK,
    "libglib2.0-doc": _GTK_DOC,
    "libgtk-3-doc": _GTK_DOC,
    "libgtk-4-doc": Site("section#main"),
    "libitpp-doc": _DOXYGEN,
    "libjfreechart-java-doc": Site("main"),
    "libjs-mathjax-doc": _SPHINX,
    "libmongoc-doc": _SPHINX,
    "libsdl2-doc": _DOXYGEN,
    "libstdc++-12-doc": _DOXYGEN,
    "lilypond-doc-html-de": Site("div#main", ".nav_table, #languages, div.header"),
    "linux-doc-6.1": _SPHINX,
    "maint-guide-ja": _DOCBOOK,
    "maxima-doc": _TEXINFO,
    "mkdocs-doc": _SPHINX,
    "nim-doc": Site("#content, div.document"),
    "nodejs-doc": Site("#apicontent"),
    "octave-doc": _TEXINFO,
    "postgresql-doc-15": Site("#docContent", "div.navheader, div.navfooter"),
    "python-dipy-doc": _MATH,
    "python-django-doc": Site("div.yui-b, div.document", "div.nav, div.sphinxsidebar"),
    "python-djangorestframework-doc": Site("#main-content"),
    "python-flask-doc": _SPHINX,
    "python-markdown-doc": _SPHINX,
    "python-mpmath-doc": _MATH,
    "python-pandas-doc": Site("main article, main"),
    "python-sympy-doc": Site("article[role=main]", raw_math=True),
    "python3.11-doc": _SPHINX,
    "qtdeclarative5-doc-html": Site("div.mainContent", "div.sidebar"),
    "r-doc-html": _TEXINFO,
    "rust-doc": Site("#main-content, #content main"),
    "sqlite3-doc": Site("body", "div.nosearch"),
    "swi-prolog-doc": Site("body", "div.navigate"),
    "varnish-doc": _SPHINX,
    "xapian-doc": Site("div.contents, div.document"),
    "zsh-doc": _TEXINFO,
}
_NEVER = "script, style, noscript, template, a.headerlink, a.anchor-link, nav, td.linenos, button, h4.anchor"
_NOT_DATA = frozenset(
    re.findall(
        r"[\w-]+",
        "memname mlabels directory navigation field-list option-list docinfo footnote citation "
        "highlighttable nav_table t-dcl-begin info variablelist",
    )
)
_BLOCKS = "table, pre, p + p, ul, ol, dl, h1, h2, h3, h4, blockquote, div.fragment, input, select"
_RAW_MATH = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_MATH_SPANS = "span.math, div.math, span.formula"
_BREAKING = frozenset(
    re.findall(
        r"\w+", "p div li dt dd tr h1 h2 h3 h4 h5 h6 pre table ul ol dl blockquote section article br hr"
    )
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--packages", type=Path, default=HERE / "results/structure/packages")
    parser.add_argument("--out", type=Path, default=HERE / "results/structure/structure.jsonl.zst")
    parser.add_argument("--only", nargs="+", choices=sorted(SITES), default=sorted(SITES))
    options = parser.parse_args()
    options.packages.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in options.only:
        package = fetched(name, options.packages)
        if package is None:
            print(f"without {name}: apt-get download did not bring it", file=sys.stderr)
            continue
        rows = list(pages_of(name, package))
        lines += [json.dumps(row, ensure_ascii=False) for row in rows]
        counts = [sum(len(row[kind]) for row in rows) for kind in ("code", "tables", "formulas")]
        print(
            f"{name}: {len(rows)} pages, {counts[0]} code, {counts[1]} tables, {counts[2]} formulas",
            flush=True,
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(line + "\n" for line in lines).encode()
    options.out.write_bytes(zstandard.ZstdCompressor(level=10).compress(data))
    print(f"{options.out}: {len(lines)} pages, {len(data) / 1e6:.1f} MB")
    return 0


def fetched(name: str, folder: Path) -> Path | None:
    if not list(folder.glob(f"{name}_*.deb")):
        subprocess.run(["apt-get", "download", "-qq", name], cwd=folder, check=False)
    return next(iter(sorted(folder.glob(f"{name}_*.deb"))), None)


def pages_of(name: str, package: Path) -> Iterator[dict[str, Any]]:
    """The first pages that have something to measure, in the order of a hash of their names."""
    count = 0
    for member, data in html_files(package):
        row = page_of(SITES[name], member, data)
        if row is not None:
            yield {"id": f"{name}/{member}", "host": name, "package": package.name, **row}
            count += 1
        if count == MAX_PAGES:
            return


def html_files(package: Path) -> list[tuple[str, bytes]]:
    """Name and bytes of those with the smallest hashes."""
    process = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE)
    found: list[tuple[int, str, bytes]] = []
    with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
        for member in tar:
            if not (member.isfile() and member.name.endswith((".html", ".htm"))):
                continue
            if not MIN_BYTES <= member.size <= MAX_BYTES:
                continue
            rank = -int.from_bytes(hashlib.sha256(member.name.encode()).digest()[:8], "big")
            if len(found) < MAX_TRIED or rank > found[0][0]:
                file = tar.extractfile(member)
                entry = (
                    rank,
                    member.name.rsplit("/doc/", 1)[-1].removeprefix("./"),
                    file.read() if file else b"",
                )
                heapq.heappush(found, entry) if len(found) < MAX_TRIED else heapq.heapreplace(found, entry)
    process.wait()
    return [(name, data) for _, name, data in sorted(found, reverse=True)]


def page_of(site: Site, name: str, data: bytes) -> dict[str, Any] | None:
    from lxml import html  # type: ignore[import-untyped]

    page = decoded(data)
    if page is None:
        return None
    dress = dress_of(name)
    tree = html.document_fromstring(page.encode(), parser=html.HTMLParser(encoding="utf-8"))
    element = main_element(tree, site)
    if element is None:
        return None
    if dress and dress_formulas(element, dress):
        page = html.tostring(tree, encoding="unicode", doctype="<!DOCTYPE html>")
        tree = html.document_fromstring(page.encode(), parser=html.HTMLParser(encoding="utf-8"))
        element = main_element(tree, site)
    else:
        dress = ""
    main = copy.deepcopy(element)
    main.tail = None
    for furniture in select(main, _NEVER + (f", {site.leave}" if site.leave else "")):
        if furniture.get("type", "").startswith("math/tex"):
            continue
        furniture.drop_tree()
    formulas = formulas_of(main, site)
    tables = [cells for table in main.iter("table") if (cells := data_table(table)) is not None]
    code = [text for text in map(code_text, code_elements(main)) if len(text.strip()) >= MIN_CODE_CHARS]
    if not (code or tables or formulas):
        return None
    text = text_of(main)
    return {"html": page, "code": code, "tables": tables, "formulas": formulas, "text": text, "dress": dress}


def main_element(tree: Any, site: Site) -> Any:
    for selector in site.main.split(", "):
        found = select(tree, selector)
        if len(found) == 1:
            return found[0]
    return None


def decoded(data: bytes) -> str | None:
    declared = re.search(rb"charset=[\"']?([\w-]+)", data[:2000])
    for charset in ("utf-8", declared[1].decode() if declared else "latin-1"):
        try:
            page = data.decode(charset)
        except (UnicodeDecodeError, LookupError):
            continue
        return re.sub(r"^\s*<\?xml[^>]*\?>", "", page.removeprefix("\ufeff"))
    return None


def select(element: Any, selector: str) -> list[Any]:
    return list(compiled(selector)(element))


@functools.cache
def compiled(selector: str) -> Any:
    from lxml.cssselect import CSSSelector  # type: ignore[import-untyped]

    return CSSSelector(selector, translator="html")


# --- code and tables ---


def code_elements(main: Any) -> Iterator[Any]:
    """pre, and what Doxygen writes instead of it."""
    for element in main.iter("pre", "div"):
        if element.tag == "pre" or "fragment" in (element.get("class") or "").split():
            yield element


def code_text(element: Any) -> str:
    lines = select(element, "div.line") if element.tag == "div" else []
    if lines:
        return "\n".join(line.text_content() for line in lines)
    if any(child.tag == "br" for child in element.iter()):
        whole = copy.deepcopy(element)
        for line_break in whole.iter("br"):
            line_break.tail = "\n" + (line_break.tail or "")
        return str(whole.text_content())
    return str(element.text_content())


def data_table(table: Any) -> list[list[str]] | None:
    """Cells row by row; None is a table that is layout, or that GFM cannot write."""
    classes = f"{table.get('class') or ''} {table.getparent().get('class') or ''}"
    if _NOT_DATA & set(classes.split()) or (table.get("summary") or "").startswith("Navigation"):
        return None
    cells = select(table, "td, th")
    if any(int_of(cell.get("colspan")) > 1 or int_of(cell.get("rowspan")) > 1 for cell in cells):
        return None
    if any(select(cell, _BLOCKS) for cell in cells):
        return None
    rows = [[cell_text(cell) for cell in select(row, "td, th")] for row in table.iter("tr")]
    rows = [row for row in rows if any(row)]
    width = max(map(len, rows), default=0)
    has_head = any(cell.tag == "th" for cell in cells)
    full = sum(1 for row in rows if len(row) == width and sum(map(bool, row)) > width / 2)
    if len(rows) < 2 or width < 2 or (not has_head and full < 0.7 * len(rows)):
        return None
    if any(len(cell) > MAX_CELL_CHARS for row in rows for cell in row):
        return None
    return rows


def int_of(text: str | None) -> int:
    return int(text) if text and text.strip().isdigit() else 1


def cell_text(cell: Any) -> str:
    return " ".join(cell.text_content().split())


# --- formulas ---


def formulas_of(main: Any, site: Site) -> list[str]:
    """LaTeX of each formula, in the page's order; each is counted once."""
    found = []
    for element in main.iter():
        if callable(element.tag) or inside_code(element):
            continue
        is_annotation = element.tag == "annotation" and element.get("encoding") == "application/x-tex"
        if is_annotation or (element.tag == "script" and element.get("type", "").startswith("math/tex")):
            found.append(element.text_content())
        elif element.tag == "img" and is_formula_image(element):
            found.append(re.sub(r"^\{\\displaystyle (.*)\}$", r"\1", element.get("alt"), flags=re.DOTALL))
        elif site.raw_math:
            own = [element.text or "", *(child.tail or "" for child in element)]
            for text in own:
                found += [a or b for a, b in _RAW_MATH.findall(text)]
    return [" ".join(formula.split()) for formula in found if formula.strip()]


def is_formula_image(image: Any) -> bool:
    classes = set((image.get("class") or "").split())
    alt = image.get("alt") or ""
    is_math = {"formulaInl", "formulaDsp", "math", "mwe-math-fallback-image-inline"} & classes
    return bool(is_math and alt and ("\\" in alt or "$" in alt or "^" in alt or "_" in alt))


def inside_code(element: Any) -> bool:
    return element.tag in ("pre", "code", "tt") or any(
        parent.tag in ("pre", "code", "tt") for parent in element.iterancestors()
    )


def dress_of(name: str) -> str:
    """How a page's formulas are written: as they are on half of the pages."""
    chosen = hashlib.sha256(f"dress {name}".encode()).digest()[0] % 6
    return ("", "", "", "katex", "script", "wikipedia")[chosen]


def dress_formulas(main: Any, dress: str) -> int:
    """How many spans of Sphinx that hold one formula were written anew."""
    count = 0
    for span in select(main, _MATH_SPANS):
        whole = _RAW_MATH.fullmatch(span.text_content().strip())
        if whole is None or inside_code(span):
            continue
        latex, is_display = " ".join((whole[1] or whole[2]).split()), whole[2] is not None
        tail, tag = span.tail, span.tag
        span.clear()
        span.tag, span.tail = tag, tail
        for piece in dressed(latex, is_display, dress):
            span.append(piece)
        count += 1
    return count


def dressed(latex: str, is_display: bool, dress: str) -> list[Any]:
    from lxml import html

    quoted = entities.escape(latex)
    signs = [entities.escape(char) for char in re.sub(r"\\[a-zA-Z]+|[{}^_\\\s]", "", latex)]
    glyphs = "".join(f'<span class="mord">{sign}</span>' for sign in signs)
    row = "".join(f"<mi>{sign}</mi>" for sign in signs)
    if dress == "katex":
        text = (
            f'<span class="katex"><span class="katex-mathml"><math xmlns="http://www.w3.org/1998/Math/MathML">'
            f'<semantics><mrow>{row}</mrow><annotation encoding="application/x-tex">{quoted}</annotation>'
            f'</semantics></math></span><span class="katex-html" aria-hidden="true"><span class="base">'
            f"{glyphs}</span></span></span>"
        )
        if is_display:
            text = f'<span class="katex-display">{text}</span>'
    elif dress == "script":
        mode = "; mode=display" if is_display else ""
        script = html.Element("script", type=f"math/tex{mode}")
        script.text = latex
        return [html.fragment_fromstring('<span class="MathJax_Preview"></span>'), script]
    else:
        text = (
            f'<span class="mwe-math-element"><img src="https://wikimedia.org/api/rest_v1/media/math/render/svg/0"'
            f' class="mwe-math-fallback-image-inline" aria-hidden="true" alt="{{\\displaystyle {quoted}}}">'
            f"</span>"
        )
    return [html.fragment_fromstring(text)]


# --- text ---


def text_of(main: Any) -> str:
    """All text of an element, a line for each block; formulas as the LaTeX that the page has."""
    pieces: list[str] = []

    def walk(element: Any) -> None:
        if not callable(element.tag):
            if element.tag in _BREAKING:
                pieces.append("\n")
            elif element.tag in ("td", "th"):
                pieces.append(" ")
            if "katex-html" not in (element.get("class") or ""):
                pieces.append(element.text or "")
                for child in element:
                    walk(child)
            if element.tag in _BREAKING:
                pieces.append("\n")
        pieces.append(element.tail or "")

    walk(main)
    lines = (line.rstrip() for line in "".join(pieces).split("\n"))
    return "\n".join(line for line in lines if line.strip())


if __name__ == "__main__":
    raise SystemExit(main())
