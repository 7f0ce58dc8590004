"""Wikitext as plain text.

    [[page|text]]   -> text           == Heading ==   -> Heading         * a, # a, ** a  -> - a, - a,   - a
    '''bold''' &lt; -> bold <         <math>x</math>  -> x               <br>            -> a new line
    {{templates}} {| tables |} <ref> <!-- comments --> [[File:…]] [[Category:…]] [[fr:Interwiki]]  -> nothing

Nothing is expanded: what a template would have said is not there. A page that the parser cannot take is
`Unparsable`, never half a text.
"""

from __future__ import annotations

import functools
import html
import re
from typing import Any

from tokmill.errors import MissingExtra, install_hint

# fmt: off
# What large Wikipedias call the namespaces of files and categories; a dump adds its own names.
HIDDEN_PREFIXES = frozenset({
    "file", "image", "media", "category", "datei", "bild", "kategorie", "fichier", "catégorie", "archivo",
    "imagen", "categoría", "ficheiro", "arquivo", "imagem", "categoria", "immagine", "bestand",
    "afbeelding", "categorie", "plik", "grafika", "kategoria", "fil", "kategori", "tiedosto", "luokka",
    "soubor", "fájl", "kép", "kategória", "файл", "изображение", "категория", "зображення", "категорія",
    "dosya", "kategorija", "berkas", "gambar", "ファイル", "画像", "カテゴリ", "文件", "檔案", "档案", "图像",
    "圖像", "分类", "分類", "파일", "그림", "분류", "ملف", "صورة", "تصنيف", "پرونده", "رده", "קובץ", "תמונה",
    "קטגוריה", "चित्र", "श्रेणी",
})

_DROPPED_TAGS = frozenset({
    "ref", "references", "table", "gallery", "imagemap", "timeline", "score", "graph", "chart", "mapframe",
    "maplink", "hiero", "style", "script", "templatestyles", "templatedata", "categorytree", "inputbox",
    "includeonly", "section", "indicator",
})
# Of extensions: MediaWiki takes out what is in them before it looks for comments.
_TAGS_OF_EXTENSIONS = (
    "nowiki", "pre", "gallery", "indicator", "langconvert", "includeonly", "ref", "references", "math",
    "chem", "ce", "source", "syntaxhighlight", "poem", "score", "timeline", "graph", "chart", "mapframe",
    "maplink", "hiero", "templatestyles", "templatedata", "categorytree", "inputbox", "imagemap", "section",
    "phonos",
)
_UNPARSED_TAGS = frozenset({"math", "chem", "ce", "source", "syntaxhighlight"})
_BLOCK_TAGS = frozenset({
    "p", "div", "blockquote", "center", "pre", "poem", "ul", "ol", "dl", "li", "dd", "dt",
    "syntaxhighlight", "source",
})
# fmt: on

_COMMENT_OR_EXTENSION = re.compile(rf"<!--|<({'|'.join(_TAGS_OF_EXTENSIONS)})(?=\s|/?>)", re.IGNORECASE)
_CLOSING = {tag: re.compile(rf"</{tag}\s*>", re.IGNORECASE) for tag in _TAGS_OF_EXTENSIONS}
_QUOTES = re.compile(r"'{2,}")
_SWITCHES = re.compile(
    r"__(?:(?:NO|FORCE)?TOC|(?:NO)?INDEX|NOEDITSECTION|(?:NO)?NEWSECTIONLINK|HIDDENCAT|DISAMBIG|NOGALLERY"
    r"|NOTITLECONVERT|NOCONTENTCONVERT|NOTC|NOCC|STATICREDIRECT)__"
)
_INTERWIKI = re.compile(r"[a-z]{2,3}(?:-[a-z-]{2,12})?:(?! )")
_SPACES = re.compile(r"(?<=\S) {2,}")
_BLANK_LINES = re.compile(r"\n{3,}")

# For each piece of markup that is never closed the parser reads to the end of the page and back: 20,000 <div>
# in 100 kB take it 22 s, 1,500 <ref a=" in 12 kB take it 5 s. Nesting times characters is what that costs, so
# this is where a page costs between one second and fourteen; 100 tags left open in a page of half a megabyte.
_MAX_NESTING_WORK = 50_000_000
_NESTING = re.compile(
    r"[\[\]{}]|/>|</?(?!(?:br|hr|wbr|li|dt|dd|td|tr|th|img|meta|link)\b)[a-z]", re.IGNORECASE
)


class Unparsable(ValueError):
    """The parser cannot make sense of a page."""


# Of how its answer is read. 2: a comment that is open in a tag of an extension ends with it.
_VERSION = 2


def parser_version() -> str:
    """What the texts depend on beside the dump."""
    return f"mwparserfromhell {_parser().__version__}, {_VERSION}"


def plain_text(source: str, hidden_prefixes: frozenset[str] = HIDDEN_PREFIXES) -> str:
    """`hidden_prefixes`: namespaces, in lower case,
    that a link puts the page into instead of showing a text."""
    parser = _parser()
    source = _without_open_comments(source)
    _check_nesting(source)
    pieces: list[str] = []
    try:
        _write(parser.parse(source, skip_style_tags=True), pieces, hidden_prefixes)
    except (
        parser.parser.ParserError,
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise Unparsable(f"{type(error).__name__}: {error}"[:200]) from error
    return _tidy("".join(pieces))


@functools.cache
def _parser() -> Any:
    try:
        import mwparserfromhell
    except ImportError as error:
        raise MissingExtra(
            "a MediaWiki dump needs the package mwparserfromhell",
            next=install_hint("wikipedia"),
        ) from error
    return mwparserfromhell


def _without_open_comments(source: str) -> str:
    """A comment that is not closed goes on to the end of the page; one in a tag of an extension to the end of
    that, and where the tag is shown as it is written it is none."""
    if "<!--" not in source:
        return source
    pieces: list[str] = []
    done = at = 0
    never_closed: set[str] = set()
    while opening := _COMMENT_OR_EXTENSION.search(source, at):
        at = opening.end()
        if opening[1] is None:
            end = source.find("-->", at)
            if end < 0:
                return "".join([*pieces, source[done : opening.start()]])
            at = end + len("-->")
            continue
        tag = opening[1].lower()
        if tag in never_closed:
            continue
        inside = source.find(">", at) + 1
        if inside and source[inside - 2] == "/":
            at = inside
            continue
        closing = _CLOSING[tag].search(source, inside) if inside else None
        if closing is None:
            never_closed.add(tag)
            continue
        if _parser().definitions.is_parsable(tag):
            pieces += [source[done:inside], _without_open_comments(source[inside : closing.start()])]
            done = closing.start()
        at = closing.end()
    return "".join([*pieces, source[done:]])


def _check_nesting(source: str) -> None:
    brackets = braces = tags = deepest = 0
    for match in _NESTING.finditer(source):
        token = match[0]
        if token == "[":
            brackets += 1
        elif token == "]":
            brackets -= brackets > 0
        elif token == "{":
            braces += 1
        elif token == "}":
            braces -= braces > 0
        elif token[1] in "/>":
            tags -= tags > 0
        else:
            tags += 1
        deepest = max(deepest, brackets, braces, tags)
    if deepest * len(source) > _MAX_NESTING_WORK:
        raise Unparsable(f"markup nested {deepest:,} deep, or not closed, in {len(source):,} characters")


def _write(code: Any, out: list[str], hidden: frozenset[str]) -> None:
    markers = ""  # of a list item: each * # : ; is a node of its own
    is_silent = False  # the node before left nothing: a space after it at the start of a line is not meant
    for node in code.nodes:
        kind = type(node).__name__
        if kind == "Tag" and node.wiki_markup is not None and node.self_closing:
            markers += str(node.wiki_markup) if node.tag in ("li", "dt", "dd") else ""
            is_silent = True
            continue
        if markers:
            out.append(_bullet(markers, _at_line_start(out)))
        start = len(out)
        if kind == "Text":
            text = _SWITCHES.sub("", _QUOTES.sub(_apostrophes, node.value))
            out.append(text.lstrip(" ") if markers or (is_silent and _at_line_start(out)) else text)
        elif kind == "Wikilink":
            _write_link(node, out, hidden)
        elif kind == "ExternalLink":
            if node.title is not None:
                _write(node.title, out, hidden)
            elif not node.brackets:
                out.append(str(node.url))
        elif kind == "HTMLEntity":
            out.append(html.unescape(str(node)))  # a half of a surrogate pair becomes U+FFFD
        elif kind == "Heading":
            _write(node.title, out, hidden)
            out[start:] = ["".join(out[start:]).strip()]
        elif kind == "Tag":
            _write_tag(node, out, hidden)
        is_silent, markers = not any(out[start:]), ""


def _write_link(node: Any, out: list[str], hidden: frozenset[str]) -> None:
    title = str(node.title).strip()
    prefix, colon, _ = title.partition(":")
    if colon and prefix.strip().replace("_", " ").lower() in hidden:
        return
    if node.text is not None:
        _write(node.text, out, hidden)
    elif not _INTERWIKI.match(title):
        start = len(out)
        _write(node.title, out, hidden)
        out[start:] = ["".join(out[start:]).strip().removeprefix(":")]


def _write_tag(node: Any, out: list[str], hidden: frozenset[str]) -> None:
    name = str(node.tag).strip().lower()
    if name == "br":
        out.append("\n")
    elif name not in _DROPPED_TAGS and node.contents is not None:
        edge = "\n" if name in _BLOCK_TAGS else ""
        out.append(edge)
        if name in _UNPARSED_TAGS:
            out.append(str(node.contents))
        elif name in ("nowiki", "pre"):
            out.append(html.unescape(str(node.contents)))
        else:
            _write(node.contents, out, hidden)
        out.append(edge)


def _bullet(markers: str, at_line_start: bool) -> str:
    if not at_line_start:
        return ": "  # between a term and its definition
    return "  " * (len(markers) - 1) + "- " if markers[-1] in "*#" else ""


def _at_line_start(out: list[str]) -> bool:
    last = next((piece for piece in reversed(out) if piece), "\n")
    return last.endswith("\n")


def _apostrophes(match: re.Match[str]) -> str:
    """Two are italic, three bold, five both; those beyond are letters."""
    count = len(match[0])
    return "'" * (1 if count == 4 else max(count - 5, 0))


def _tidy(text: str) -> str:
    lines = (_SPACES.sub(" ", line.rstrip()) for line in text.split("\n"))
    kept = (line for line in lines if line.lstrip(" ") != "-")  # items that held nothing but markup
    return _BLANK_LINES.sub("\n\n", "\n".join(kept)).strip()
