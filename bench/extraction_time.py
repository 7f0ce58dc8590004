"""CPU time and memory of pages that are made to take long, a megabyte or more of each.

    python bench/extraction_time.py [NAME ...]

    page ─┬─ parse ─ head ─ formulas and blocks ─ judge ─ render ─> ms of each, ms per MB, best of five
          └─ once more in a process of its own ───────────────────> MB of memory per MB of page

Names that begin with "mixture" are of random pieces, the same for a seed.

The bar is 50 ms per MB of page: a web archive with nothing else in it is then read at 20 MB/s and core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import time
from collections.abc import Callable

from tokmill.kernels.htmltree import TAGS
from tokmill.sources.extract import page as pages
from tokmill.sources.extract.head import read_head

BAR_MS = 50
ROUNDS = 5
MEGABYTE = 1_000_000

_WORDS = "Some words of a text that goes on, as texts do. "
_JSON = "<script type=application/ld+json>"
_QUOTES, _ITEMS = "<blockquote>" * 12, "<ul><li>" * 12
_TAGS = [f"<{name}>" for name in sorted(TAGS)]
_PIECES = """
<p> <b> </b> <a> <a\thref=x> </a> <li> <ul> </ul> <ol> <td> <tr> <table> </table> <br> <h2> <pre> </pre>
<code> <blockquote> </blockquote> <div> </div> <dt> <dd> <hr> <q> <sub>2</sub> <span> <button> a & &lt; ` | $
"""
_CELLS = "<table> <tr> <td> <td\tcolspan=3> <td\trowspan=9> <th> a | </table> <b> <p>"
_FORMULAS = """
<math> </math> <mi>x</mi> <mrow> </mrow> <mo>(</mo> <mfrac> <msup> <span\tclass=math> \\( \\) </span> $$
<img\tclass=tex\talt=a> <annotation\tencoding=tex> </annotation> a
"""


def _mixture(pieces: list[str], seed: int) -> str:
    source = random.Random(seed)
    return "".join(source.choices(pieces, k=MEGABYTE * len(pieces) // len("".join(pieces))))


PAGES: dict[str, Callable[[], str]] = {
    "prose": lambda: f"<p>{_WORDS * 20}</p>\n" * 1100,
    "paragraphs": lambda: "<p>a" * 250_000,
    "nested div": lambda: "<div>" * 200_000,
    "nested div with text": lambda: "<div>a" * 200_000,
    "nested div, ended": lambda: "<div>a" * 100_000 + "</div>" * 100_000,
    "unclosed tags": lambda: "<b <i <u " * 120_000,
    "attributes": lambda: "<p " + "data-a='b' " * 900_000 + ">text",
    "attributes of many": lambda: f"<p {'data-a=b ' * 20}>text" * 10_000,
    "end tags": lambda: "<p>a" + "</x>" * 300_000,
    "end tags of formatting": lambda: "<b><div>" * 200 + "</b><b>" * 200_000,
    "cells": lambda: "<table>" + "<tr><td colspan=3 rowspan=2>a<td>b<td>c" * 100_000 + "</table>",
    "one row": lambda: "<table><tr>" + "<td colspan=1000>a" * 300_000 + "</table>",
    "rows that span": lambda: "<table>" + "<tr><td rowspan=60000>a" * 60_000 + "</table>",
    "line breaks": lambda: "<br>" * 250_000,
    "line breaks in text": lambda: "a<br>" * 200_000,
    "links": lambda: "<a>" * 350_000,
    "links with text": lambda: "<a href=x>a</a> " * 100_000,
    "links unclosed in blocks": lambda: "<a href=x><div>a" * 100_000,
    "entities": lambda: "&amp;&#x41;&nbsp;&eacute;&bogus;" * 40_000,
    "ampersands": lambda: "&" * 1_100_000,
    "comments": lambda: "<!-- a -->b" * 100_000,
    "a comment unclosed": lambda: "<p>a<!--" + " - -- <b>" * 130_000,
    "a script unclosed": lambda: "<p>a<script>" + "</scrip </s <" * 90_000,
    "raw text": lambda: "<textarea>a</textarea><style>b</style>" * 30_000,
    "less than": lambda: "a < b << c <3 " * 90_000,
    "nothing but less than": lambda: "<" * 1_100_000,
    "pre under a class": lambda: f"<div class='{'highlight ' * 40_000}'>" + "<pre>a</pre>" * 100_000,
    "pre with classes": lambda: "<pre class='language-a b c d'><code class=x>a</code></pre>" * 20_000,
    "code under a class": lambda: f"<pre class='{'lang ' * 80_000}'>" + "<code>a</code>" * 60_000,
    "formulas": lambda: "<span class=math>\\(a\\)</span>" * 40_000,
    "formulas without end": lambda: "<span class=math>" * 70_000,
    "formulas of MathML": lambda: "<math><mfrac><mi>a</mi><mn>2</mn></mfrac></math>" * 25_000,
    "MathML unclosed": lambda: "<math>" + "<mrow><mi>a" * 100_000,
    "scripts of formulas": lambda: "<script type=math/tex>a</script>" * 35_000,
    "pictures of formulas": lambda: "<img class=tex alt='a^2'>" * 45_000,
    "dollars": lambda: "$a$ " * 280_000,
    "nested tables": lambda: ("<table><tr><td>" * 500 + "a" + "</table>" * 500) * 60,
    "nested tables with text": lambda: "<table><tr><td>a" * 70_000,
    "nested lists": lambda: "<ul><li>a" * 120_000,
    "nested quotes": lambda: "<blockquote>a" * 90_000,
    "items": lambda: "<ul>" + "<li>a" * 220_000 + "</ul>",
    "options": lambda: "<select>" + "<option>a" * 120_000,
    "classes": lambda: f"<div class='{'a b c ' * 350_000}'><p>text",
    "a class of many words": lambda: "".join(f"<p class='w{n} x'>a" for n in range(60_000)),
    "a class of one word": lambda: f"<p class={'a' * MEGABYTE}>text",
    "styles": lambda: f"<p style='{'display: non; ' * 80_000}'>a",
    "a word": lambda: "<p>" + "a" * MEGABYTE,
    "another script": lambda: "<p>" + "漢字。" * 120_000,
    "white space": lambda: "<p>a" + " \n" * 600_000 + "b",
    "white space in pre": lambda: "<pre>a" + " \n" * 600_000 + "b",
    "titles": lambda: "<title>a b c</title>" * 60_000,
    "names of one's own": lambda: "".join(f"<x-{n}>a</x-{n}>" for n in range(60_000)),
    "headings": lambda: "<h1>a<h2>b" * 110_000,
    "emphasis": lambda: "<b>a</b><i>b</i>" * 70_000,
    "emphasis unclosed": lambda: "<b>a<i>b" * 140_000,
    "emphasis over blocks": lambda: "<b><i><u><em><p>a</p>" * 55_000,
    "definitions": lambda: "<dl>" + "<dt>a<dd>b" * 110_000,
    "drawings": lambda: "<svg><path d=x /></svg>" * 50_000,
    "NUL": lambda: "\0" * MEGABYTE + "<p>a",
    "buttons": lambda: "<button>a" * 120_000,
    "small tables": lambda: "<table><tr><th>a<th>b<tr><td>c<td>d</table>" * 25_000,
    "rows of two": lambda: "<table>" + "<tr><th>a<td>b" * 70_000,
    "spans of two": lambda: "<table>" + "<tr><td colspan=2>a<td>b" * 45_000,
    "pipes": lambda: "<table>" + "<tr><td>|||||||<td>|" * 45_000,
    "numbered": lambda: "<ol>" + "<li>a" * 200_000,
    "nested numbers": lambda: "<ol><li>a" * 110_000,
    "paragraphs of items": lambda: "<ul><li><p>a" * 80_000,
    "paragraphs in quotes": lambda: _QUOTES + "<p>a" * 250_000,
    "pre in quotes": lambda: _QUOTES + "<pre>" + "a\n" * 500_000,
    "empty lines in quotes": lambda: _QUOTES + "<pre>" + "a\n\n\n\n" * 200_000,
    "pre in items": lambda: _ITEMS + "<pre>" + "a\n" * 500_000,
    "line breaks in items": lambda: _ITEMS + "a<br>" * 200_000,
    "rules": lambda: "<hr>a" * 200_000,
    "links of a letter": lambda: "<a>a" * 250_000,
    "deep paragraphs": lambda: "<title>a b</title><h1>a b</h1>" + "<div>" * 500 + "<p>a" * 250_000,
    "deep emphasis": lambda: "<b>" * 500 + "<p>a" * 250_000,
    "deep inline": lambda: ("<b><i><u><s><code>" * 90 + "a" + "</code></s></u></i></b>" * 90) * 250,
    "backticks": lambda: "<pre>````</pre>" * 70_000,
    "a code of backticks": lambda: "<code>" + "`a" * 500_000,
    "entities in pre": lambda: "<pre>" + "&lt;&amp;&#x41;\n" * 70_000,
    "long entities": lambda: "&CounterClockwiseContourIntegral;&CounterClockwiseContourIntegra" * 16_000,
    "attributes of a letter": lambda: "<p " + "a " * 500_000 + ">text",
    "texts of many": lambda: "".join(f"<p>{n}" for n in range(110_000)),
    "meta": lambda: "<meta property=og:title content=x>" * 30_000,
    "links of a licence": lambda: "<a rel=license href=//creativecommons.org/licenses/by/4.0/>" * 17_000,
    "linked data": lambda: f'{_JSON}{{"@type":"Article","headline":"a"}}</script>' * 14_000,
    "a long list of linked data": lambda: f'{_JSON}["headline"{",{}" * 170_000}]</script>' * 2,
    "linked data with newlines": lambda: f'{_JSON}{{"headline":"{chr(10) * 500_000}"}}</script>' * 2,
    "formulas of a letter": lambda: "<math>x</math>" * 70_000,
    "formulas of an element": lambda: "<math><mi>x</mi></math>" * 43_000,
    "formulas in long classes": lambda: f"<div class='{'x ' * 2000}'>" * 12 + "<math>x</math>" * 70_000,
    "deep formulas": lambda: ("<math>" + "<mover>" * 60 + "x" * 9000 + "<mi>y</mover>" * 60) * 100,
    "scripts of a base": lambda: ("<math><mmultiscripts>" + "<mi>x</mi>" * 60 + "</math>") * 1600,
    "symbols": lambda: ("<math>" + "∑" * 2000 + "</math>") * 160,
    "MathML in scripts": lambda: "<script type=math/mml><math><mi>x</mi></math></script>" * 18_000,
    "signs in spans": lambda: (
        ("<span class=math>" * 60 + f"\\(x\\) \\({_WORDS * 80}\\)" + "</span>" * 60) * 180
    ),
    "drawings before white space": lambda: (
        ("<span class=MathJax>" * 500 + "</span>" * 500 + " <!---->" * 2000) * 28
    ),
    "mixture of all tags": lambda: _mixture([*_TAGS, *["a"] * 100], 1),
    "mixture of tags and ends": lambda: _mixture([*_TAGS, *(f"</{tag[1:]}" for tag in _TAGS), "a b"], 2),
    "mixture of blocks": lambda: _mixture(_PIECES.replace("\n", " ").split(" "), 3),
    "mixture of cells": lambda: _mixture(_CELLS.split(" "), 4),
    "mixture of formulas": lambda: _mixture(_FORMULAS.replace("\n", " ").split(" "), 5),
}


def timed(html: bytes) -> list[float]:
    """Seconds of each step, in plain text; the last is of Markdown with links."""
    seconds = []

    def step(act: Callable[[], object]) -> object:
        start = time.process_time()
        result = act()
        seconds.append(time.process_time() - start)
        return result

    parsed = step(lambda: pages.parse_page(html))
    step(lambda: read_head(*parsed, "https://example.org/"))  # type: ignore[misc]
    page = step(lambda: pages.find_blocks(*parsed))  # type: ignore[misc]
    verdicts = step(lambda: pages.judge(page))  # type: ignore[arg-type]
    everything = pages.in_sight(verdicts)  # type: ignore[arg-type]
    step(lambda: pages.render(page, everything))  # type: ignore[arg-type]
    step(lambda: pages.render(page, everything, markup="markdown", links=True))  # type: ignore[arg-type]
    return seconds


def _memory(html: bytes) -> int:
    """Kilobytes that a page takes beyond what the process has."""
    pages.extract(b"<p>a")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pages.extract(html)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="of pages; all by default")
    parser.add_argument("--no-memory", action="store_true", help="time alone")
    chosen = parser.parse_args()
    timed(b"<p>a")
    print(
        f"{'page':<28}{'MB':>6}{'parse':>8}{'head':>8}{'blocks':>8}{'judge':>8}{'text':>8}{'md':>8}{'ms/MB':>8}{'mem':>6}"
    )
    names = chosen.names or list(PAGES)
    best: dict[str, list[float]] = {}
    for _ in range(ROUNDS):  # over all pages: a bad moment of the machine then meets a round, not a page
        for name in names:
            steps = timed(PAGES[name]().encode())
            best[name] = [min(pair) for pair in zip(best.get(name, steps), steps, strict=True)]
    worst = []
    for name in names:
        html = PAGES[name]().encode()
        size = len(html) / MEGABYTE
        steps = [1000 * step for step in best[name]]
        per_megabyte = (sum(steps[:4]) + max(steps[4:])) / size
        memory = "-"
        if not chosen.no_memory:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                memory = f"{pool.apply(_memory, (html,)) * 1024 / len(html):.0f}x"
        worst.append((per_megabyte, name))
        mark = " <--" if per_megabyte > BAR_MS else ""
        print(
            f"{name:<28}{size:>6.1f}{''.join(f'{step:>8.1f}' for step in steps)}",
            f"{per_megabyte:>8.1f}{memory:>6}{mark}",
            sep="",
            flush=True,
        )
    print(f"worst: {max(worst)[0]:.1f} ms per MB, {max(worst)[1]}; the bar is {BAR_MS}")


if __name__ == "__main__":
    main()
