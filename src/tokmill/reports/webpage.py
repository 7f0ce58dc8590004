"""A web page, block by block, beside the text that is taken out of it: one HTML file.

    .html, .warc[.gz] ─ the page ─ blocks, verdicts ─┬─ explain ─> blocks, what decided each ─┐
                                                     └─ render ──> text, Markdown ────────────┴─> page

The page may say anything. Of its markup nothing is taken over: texts, paths and addresses are shown, escaped,
as those of documents are in a report; the file has no script, its content policy allows none, and nothing is
fetched. Blocks of one kind are chosen by buttons and style alone.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from tokmill.errors import InputError, plural
from tokmill.kernels.boosting import ONE
from tokmill.reports.charts import Section, count, shown, size
from tokmill.reports.page import frame, resource
from tokmill.reports.peeking import PeekedPage
from tokmill.sources import directory, warc
from tokmill.sources.extract.engines import Broken
from tokmill.sources.extract.page import find_blocks, judge, parse_page, render
from tokmill.sources.extract.reasons import Block, Explained, Reason, Verdict, explain
from tokmill.sources.reading import Reading
from tokmill.storage import codecs
from tokmill.storage.disk import commit_bytes
from tokmill.storage.location import read_whole
from tokmill.storage.records import WHOLE

_MAX_BYTES = 128 << 20  # of a page, as of any record
_MAX_TEXT = 400_000  # characters of a text that is shown
_ARCHIVES = (".warc", ".warc.gz")
_IDS_TOLD = 5
_HOVER_REASONS = 3
_INNERMOST = 2  # elements of a path; all of them are in its details

_LABELS: dict[Verdict, str] = {"kept": "kept", "left out": "left", "hidden": "hidden"}


def write_page(file: Path, id: str | None = None, out: str | Path | None = None) -> PeekedPage:
    """Of a web page, or of one of an archive: the first, or that of the id."""
    page = _destination(file, out)
    offset, own, url, html = _load_archived(file, id) if file.name.endswith(_ARCHIVES) else _load(file, id)
    found = find_blocks(*parse_page(html.encode()))
    verdicts = judge(found)
    text, markdown = (render(found, verdicts.keep, markup=markup) for markup in ("text", "markdown"))
    made = PeekedPage(page, file, offset, own, url, text, markdown, explain(found, verdicts))
    commit_bytes(page, render_page(made).encode())
    return made


# -- the web page ----------------------------------------------------------------------------------


def _destination(file: Path, out: str | Path | None) -> Path:
    stem = file.name
    for suffix in (*_ARCHIVES[::-1], *directory.HTML):
        stem = stem.removesuffix(suffix)
    page = Path(out) if out is not None else Path()
    page = page / f"{stem}.blocks.html" if page.is_dir() else page
    if page.exists() and file.exists() and page.samefile(file):
        raise InputError(
            "the page would replace the file it is of", where=str(page), next="give another `--out`"
        )
    return page


def _load(file: Path, id: str | None) -> tuple[None, None, None, str]:
    if not file.name.lower().endswith(directory.HTML):
        raise codecs.unknown_suffix(file, "web page", (*directory.HTML, *_ARCHIVES))
    if id is not None:
        raise InputError("a web page has no ids", where=str(file), next="give `--id` with a web archive only")
    data = read_whole(file, _MAX_BYTES)
    try:
        return None, None, None, directory.decode(data)
    except UnicodeDecodeError:
        pass
    try:
        return None, None, None, warc.decode(data, None, warc.Parsers(), is_html=True)[0]
    except Broken as error:
        raise InputError(str(error.args[1]), where=str(file), next="give the page in UTF-8") from error


def _load_archived(file: Path, id: str | None) -> warc.WebPage:
    options = {"main_text": True, "extract": {}}
    reading = Reading("pages", "web", None, "warc", options, _MAX_BYTES)
    for page in warc.read_pages(file, WHOLE, reading, is_known=True, id=id):
        if id is None or page.id == id:
            return page
    pages = warc.read_pages(file, WHOLE, reading, is_known=True)
    ids = [page.id for page in itertools.islice(pages, _IDS_TOLD) if page.id is not None]
    if id is None or not ids:
        raise InputError("holds no web page", where=str(file), next="give an archive with pages of HTML")
    raise InputError(
        f"no web page has the id {id}", where=str(file), next=f"its first pages: {', '.join(ids)}"
    )


# -- the page that is written ------------------------------------------------------------------------


def render_page(made: PeekedPage) -> str:
    name = made.url or made.file.name
    sections = [_blocks_section(made.explained), _text_section(made)]
    footer = "<p>Written by tokmill. Nothing of the web page's own markup is in this file.</p>"
    return frame(name, _header(made), sections, footer, kind="page", style=resource("webpage.css"))


def _header(made: PeekedPage) -> str:
    facts = {
        "file": made.file.name,
        "offset": None if made.offset is None else count(made.offset),
        "id": made.id,
        "threshold": _points(made.explained.threshold),
    }
    told = "".join(
        f"<div><dt>{key}</dt><dd>{shown(value)}</dd></div>" for key, value in facts.items() if value
    )
    figures = "".join(
        f'<div class="{_LABELS[verdict]}"><b>{count(tally.blocks)}</b><span>blocks {verdict}</span>'
        f"<small>{plural(tally.chars, 'character')}</small></div>"
        for verdict, tally in made.explained.tallies.items()
    )
    return (
        f'<header><div class="top"><p class="brand">tokmill page</p></div>'
        f'<h1>{shown(made.url or made.file.name)}</h1><dl class="facts">{told}</dl>'
        f'<div class="numbers">{figures}</div></header>'
    )


def _blocks_section(explained: Explained) -> Section:
    total = sum(tally.blocks for tally in explained.tallies.values())
    says = (
        "What the page says, in its order. A block is kept if its score is above the threshold; open one to "
        "see what decided it."
    )
    if total > len(explained.blocks):
        says += f" The first {len(explained.blocks):,} of {total:,} are shown."
    choices = "".join(
        f'<label><input type="radio" name="only" id="only-{key}"{" checked" if key == "all" else ""}> '
        f"{label}</label>"
        for key, label in (("all", "all"), *((key, verdict) for verdict, key in _LABELS.items()))
    )
    blocks = "\n".join(_block(block) for block in explained.blocks)
    body = f'<p class="choices">{choices}</p><ol class="blocks">{blocks}</ol>'
    return Section("blocks", "Blocks", says, body)


def _block(block: Block) -> str:
    heaviest = [one for one in block.reasons if one.feature != "others"][:_HOVER_REASONS]
    hover = "\n".join(f"{_points(one.points)} {one.words}" for one in heaviest)
    return (
        f'<li class="block {_LABELS[block.verdict]}" id="b{block.number}"><details>'
        f'<summary title="{shown(hover)}"><span class="mark">{block.verdict}</span>'
        f'<span class="score">{_points(block.score)}</span><code>{shown(_innermost(block.path))}</code>'
        f'<span class="words">{shown(block.text)}</span></summary>'
        f'<p class="meta">{shown(block.because)} · {plural(block.chars, "character")} · '
        f"<code>{shown(block.path)}</code></p>"
        f"{_reasons(block.bias, block.reasons, block.score)}"
        f'<p class="meta">The first judgement, which knew no scores of other blocks:</p>'
        f"{_reasons(block.first_bias, block.first_reasons, block.first)}</details></li>"
    )


def _innermost(path: str) -> str:
    names = path.split(" > ")
    return path if len(names) <= _INNERMOST else " > ".join(["…", *names[-_INNERMOST:]])


def _reasons(bias: int, reasons: tuple[Reason, ...], score: int) -> str:
    """All lines but the last add up to the last."""
    widest = max(1, *(abs(one.points) for one in reasons))
    rows = [("every block begins with", bias), *((one.words, one.points) for one in reasons)]
    told = "".join(
        f'<tr><td>{shown(words)}</td><td>{_bar(points, widest)}</td><td class="n">{_points(points)}</td></tr>'
        for words, points in rows
    )
    total = f'<tr class="sum"><td>score</td><td></td><td class="n">{_points(score)}</td></tr>'
    return f'<table class="reasons"><tbody>{told}{total}</tbody></table>'


def _bar(points: int, widest: int) -> str:
    wide = min(50 * abs(points) // widest, 50)
    side = f'x="{50 - wide}" class="less"' if points < 0 else 'x="50" class="more"'
    return (
        f'<svg class="points" viewBox="0 0 100 8" aria-hidden="true"><rect {side} y="0" width="{wide}" '
        'height="8"/></svg>'
    )


def _points(points: int) -> str:
    return f"{points / ONE:+.2f}"


def _text_section(made: PeekedPage) -> Section:
    says = "What is taken out of it: the blocks that are kept, as text and as Markdown."
    kinds = (("text", "Text", made.text), ("markdown", "Markdown", made.markdown))
    body = "".join(
        f'<details id="{key}"{" open" if key == "text" else ""}><summary>{label} '
        f'<small class="faint">{plural(len(text), "character")}, {size(len(text.encode()))}</small></summary>'
        f'<pre class="taken">{shown(text[:_MAX_TEXT])}</pre>{_cut(text)}</details>'
        for key, label, text in kinds
    )
    return Section("taken", "Text", says, body)


def _cut(text: str) -> str:
    more = len(text) - _MAX_TEXT
    return f'<p class="meta">and {plural(more, "character")} more</p>' if more > 0 else ""
