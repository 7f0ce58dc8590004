from __future__ import annotations

import bz2
import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sources.ingested import ingest
from storage.scratch import blocks_of
from tokmill import Source
from tokmill.errors import CorruptFile, MissingExtra
from tokmill.sources import wikipedia, wikitext
from tokmill.sources.reading import RECORDS, Reading
from tokmill.storage.patterns import find_files
from tokmill.storage.records import WHOLE

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "wikiextractor"
REAL = sorted(DATA.glob("*/AA/wiki_*"))
needs_data = pytest.mark.skipif(not REAL, reason="the shared test data is not here")


class Everything:
    """All that a run takes from a file, as plain values."""

    def __init__(self, path: Path, limit: int = 1 << 27, **section: Any) -> None:
        found = ingest(path.parent, path.name, wikipedia=section, max_record_bytes=limit)
        self.rows, self.bad, self.dropped = found.documents, found.bad, found.dropped

    @property
    def texts(self) -> list[str]:
        return [row["text"] for row in self.rows]

    @property
    def count(self) -> int:
        return len(self.rows) + len(self.bad) + len(self.dropped)


def read_alone(path: Path) -> list[Any]:
    """By the reader itself, which a test that cuts a file at every byte can ask often."""
    reading = Reading("wiki", "default", None, "wikipedia", {"namespaces": [0]}, 1 << 27)
    batches = list(wikipedia.read(path, path.name, WHOLE, reading))
    assert all(batch.records.schema == RECORDS for batch in batches)
    return [batch.records for batch in batches]


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(bz2.compress(data) if path.suffix == ".bz2" else data)
    return path


# -- WikiExtractor ---------------------------------------------------------------------------------


def slow_blocks(content: str) -> list[tuple[str, str, str]]:
    """(id, title, text) of each block, by a regular expression over the whole file."""
    found = re.findall(r'<doc id="(.*?)" url=".*?" title="(.*?)">\n(.*?)\n</doc>\n', content, re.DOTALL)
    return [
        (id, html.unescape(title), html.unescape(body.removeprefix(title)).strip())
        for id, title, body in found
    ]


@needs_data
@pytest.mark.parametrize("path", REAL, ids=lambda path: "-".join(path.parts[-3:]))
def test_real_blocks_are_all_there(path, tmp_path):
    content = path.read_text(encoding="utf-8")
    got = Everything(path)
    assert got.count == content.count("<doc ") > 1000
    assert got.bad == []
    assert {drop.reason for drop in got.dropped} == {"empty_page"}
    expected = [(id, f"{title}\n\n{text}") for id, title, text in slow_blocks(content) if text]
    assert [(row["doc_id"], row["text"]) for row in got.rows] == expected
    assert not any("</doc>" in text or "<doc " in text or "&amp;" in text for text in got.texts)
    for drop in got.dropped[:20]:
        assert path.read_bytes()[drop.offset :].startswith(f'<doc id="{drop.doc_id}"'.encode())

    pages = re.findall(r'<doc id="(.*?)" url="(.*?)" title="(.*?)">\n(.*?)\n</doc>\n', content, re.DOTALL)
    lines = [
        json.dumps(
            {"id": id, "revid": "7", "url": url, "title": title, "text": body.removeprefix(title).strip()}
        )
        for id, url, title, body in pages
    ]
    as_lines = Everything(write(tmp_path / "wiki_00", "\n".join(lines)))
    assert as_lines.texts == got.texts
    assert [(drop.doc_id, drop.reason) for drop in as_lines.dropped] == [
        (d.doc_id, d.reason) for d in got.dropped
    ]
    with blocks_of(5000):
        assert Everything(path).rows == got.rows
        assert Everything(tmp_path / "wiki_00").dropped == as_lines.dropped


@needs_data
def test_chinese_text_is_intact():
    (path,) = DATA.glob("zh/AA/wiki_00")
    first = Everything(path).rows[0]
    assert first["doc_id"] == "4891097"
    assert first["text"].startswith("妄想女友\n\n《妄想女友》（）是2015年5月23日開始毎週六23:40")
    assert json.loads(first["meta"]) == {
        "title": "妄想女友",
        "url": "https://zh.wikipedia.org/wiki?curid=4891097",
    }
    assert (first["license_tag"], first["created_at"]) == (None, None)


BLOCKS = """<doc id="1" url="https://x/?curid=1" title="AT&amp;T &quot;Bell&quot;">
AT&amp;T &quot;Bell&quot;

AT&amp;T sells a &lt;b&gt; &amp;lt; b.

A second paragraph.

</doc>
<doc id="2" url="https://x/?curid=2" title="Nothing">
Nothing


</doc>
<doc id="3" revid="99" url="https://x/?curid=3" title="A "raw" title">
A "raw" title

<doc without an id> and </doc> inside a line, 1 < 2 &amp; 3
 </doc>
</doc>
<doc id="4" url="" title="Same">
Same
Same is no title here: no blank line follows.
</doc>
"""


@pytest.mark.parametrize("name", ["wiki_00", "wiki_00.bz2"])
@pytest.mark.parametrize("block_bytes", [3, 7, 64, 1 << 20])
def test_blocks_become_documents(tmp_path, name, block_bytes):
    path = write(tmp_path / name, BLOCKS)
    with blocks_of(block_bytes):
        got = Everything(path)
    assert got.texts == [
        'AT&T "Bell"\n\nAT&T sells a <b> &lt; b.\n\nA second paragraph.',
        'A "raw" title\n\n<doc without an id> and </doc> inside a line, 1 < 2 &amp; 3\n </doc>',
        "Same\n\nSame\nSame is no title here: no blank line follows.",
    ]
    assert [row["doc_id"] for row in got.rows] == ["1", "3", "4"]
    assert json.loads(got.rows[1]["meta"]) == {
        "title": 'A "raw" title',
        "url": "https://x/?curid=3",
        "revid": "99",
    }
    assert [drop[:5] for drop in got.dropped] == [
        (BLOCKS.index('<doc id="2"'), "2", "empty_page", None, None)
    ]
    assert got.bad == []


def test_windows_newlines_are_newlines(tmp_path):
    content = '<doc id="1" url="u" title="T">\r\nT\r\n\r\nText.\r\n</doc>\r\n'
    assert Everything(write(tmp_path / "wiki_00", content)).texts == ["T\n\nText."]


def test_a_file_that_ends_inside_a_block_is_corrupt_wherever_it_is_cut(tmp_path):
    data = BLOCKS.encode()
    whole_at = {match.end() + extra for match in re.finditer(rb"(?m)^</doc>$", data) for extra in (0, 1)}
    for length in range(1, len(data)):
        path = write(tmp_path / "wiki_00", data[:length])
        if length in whole_at:
            read_alone(path)
        else:
            with pytest.raises(CorruptFile) as caught:
                read_alone(path)
            assert caught.value.where == str(path)


@pytest.mark.parametrize("block_bytes", [5, 1 << 20])
def test_what_is_wrong_with_a_block_is_told(tmp_path, block_bytes):
    def block(id: int, body: bytes) -> bytes:
        return b'<doc id="%d" url="u" title="T">\nT\n\n%s\n</doc>\n' % (id, body)

    parts = [
        block(1, b"ok"),
        b"text between\nblocks\n</doc>\n",
        block(2, b"bad \xff"),
        block(3, b"x" * 3000),
        block(4, b"words\n" * 600),
        b'<doc id="5" url="u" title="T">\nT\n\nno end\n',
        block(6, b"ok too"),
        b"after\n",
    ]
    with blocks_of(block_bytes):
        got = Everything(write(tmp_path / "wiki_00", b"".join(parts)), limit=2000)
    starts = [sum(map(len, parts[:index])) for index in range(len(parts))]
    assert got.texts == ["T\n\nok", "T\n\nok too"]
    assert [(record.offset, record.reason) for record in got.bad] == [
        (starts[1], "outside_block"),
        (starts[2], "invalid_utf8"),
        (starts[3], "too_large"),
        (starts[4], "too_large"),
        (starts[5], "unclosed_block"),
        (starts[7], "outside_block"),
    ]


def test_lines_are_as_strict_as_any_jsonl(tmp_path):
    good = {"id": 12, "revid": "3", "url": "u", "title": "A &amp; B", "text": "A &amp; B\n\nx &lt; y"}
    lines = [
        json.dumps(good),
        '{"id": "1", "title": "T", "text": "a", "text": "b"}',
        json.dumps({**good, "text": " "}),
        '{"id": "1", "title": "T"}',
        "not json",
    ]
    got = Everything(write(tmp_path / "wiki_00", "\n".join(lines)))
    assert got.texts == ["A & B\n\nx < y"]
    assert json.loads(got.rows[0]["meta"]) == {"title": "A & B", "url": "u", "revid": "3"}
    starts = [sum(len(line) + 1 for line in lines[:index]) for index in range(5)]
    assert [(record.offset, record.reason) for record in got.bad] == [
        (starts[1], "duplicate_key"),
        (starts[3], "missing_field"),
        (starts[4], "invalid_json"),
    ]
    assert [drop[:5] for drop in got.dropped] == [(starts[2], "12", "empty_page", None, None)]


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_with_nothing_in_it_has_no_documents(tmp_path, content):
    write(tmp_path / "wiki_00", content)
    assert sum(records.num_rows for records in read_alone(tmp_path / "wiki_00")) == 0


def test_another_format_is_refused(tmp_path):
    with pytest.raises(CorruptFile, match="neither WikiExtractor output"):
        Everything(write(tmp_path / "wiki_00", "plain text\n"))


# -- MediaWiki dump --------------------------------------------------------------------------------


def dump_of(*pages: str) -> str:
    return f"""<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="nds">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <base>https://nds.wikipedia.org/wiki/Wikipedia:Hööftsiet</base>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Bildarchiv</namespace>
      <namespace key="14" case="first-letter">Schuuv</namespace>
    </namespaces>
  </siteinfo>
{"".join(pages)}</mediawiki>
"""


def page_of(id: int, title: str, text: str, ns: int = 0, extra: str = "", model: str = "wikitext") -> str:
    return f"""  <page>
    <title>{html.escape(title)}</title>
    <ns>{ns}</ns>
    <id>{id}</id>
    {extra}<revision>
      <id>{id}00</id>
      <parentid>1</parentid>
      <timestamp>2024-05-06T07:08:09Z</timestamp>
      <contributor><username>Somebody</username><id>77</id></contributor>
      <model>{model}</model>
      <text bytes="1" xml:space="preserve">{html.escape(text)}</text>
      <sha1>abc</sha1>
    </revision>
  </page>
"""


ARTICLE = """{{Infobox
| name = {{nested|{{deep}}}}
| image = [[File:x.jpg]]
}}
[[File:Map.png|thumb|A caption with a [[link]] in it]]<!-- a comment -->
'''Köln''' (''Cologne'') is a [[city]] on the [[Rhine|river ''Rhine'']].<ref name="a">Not {{cite}} this</ref> 1 &lt; 2 &amp; 3.<ref name="a" />
It''s <b>old</b>, see [https://example.org its site] [https://example.org] or https://example.org/x.

{| class="wikitable"
! a
|-
| b || {{c}}
|}


== History {{anchor|h}}==
* first [[Image:y.png]]
** second
# third
* {{only a template}}
; term : meaning
: indented

=== 名前 ===
Energy is <math>E = m c^2</math><br />and <nowiki>[[not a link]] &amp;</nowiki>. L''''été'' 🎉
__NOTOC__
[[Category:Cities]] [[Schuuv:Stadt]] [[Bildarchiv:z.jpg|thumb|x]] [[:Category:Cities|all cities]] [[:File:z.jpg]]
[[fr:Cologne]]
"""  # noqa: E501

ARTICLE_TEXT = """Köln & "Umland"

Köln (Cologne) is a city on the river Rhine. 1 < 2 & 3.
Its old, see its site or https://example.org/x.

History
- first
  - second
- third
term : meaning
indented

名前
Energy is E = m c^2
and [[not a link]] &. L'été 🎉

all cities File:z.jpg"""

PAGES = [
    page_of(12, 'Köln & "Umland"', ARTICLE),
    page_of(13, "Cologne", "#REDIRECT [[Köln]]", extra='<redirect title="Köln" />\n    '),
    page_of(14, "Talk:Köln", "A talk page.", ns=1),
    page_of(15, "Blank", "{{only}}\n<!-- nothing -->"),
    page_of(16, "MediaWiki style", "a { color: red }", model="css"),
    page_of(17, "Zwei", "Ein <text> mit &nbsp;&#xD800; Zeichen."),
]
DUMP = dump_of(*PAGES)


@pytest.mark.parametrize("name", ["dump.xml", "dump.xml.bz2", "dump"])
@pytest.mark.parametrize("block_bytes", [1, 13, 1 << 20])
def test_a_dump_becomes_documents(tmp_path, name, block_bytes):
    path = write(tmp_path / name, DUMP)
    with blocks_of(block_bytes):
        got = Everything(path)
    assert got.texts == [ARTICLE_TEXT, "Zwei\n\nEin <text> mit \xa0\ufffd Zeichen."]
    assert [(row["doc_id"], row["created_at"], row["license_tag"]) for row in got.rows] == [
        ("12", "2024-05-06T07:08:09Z", None),
        ("17", "2024-05-06T07:08:09Z", None),
    ]
    assert json.loads(got.rows[0]["meta"]) == {
        "title": 'Köln & "Umland"',
        "url": "https://nds.wikipedia.org/wiki/K%C3%B6ln_%26_%22Umland%22",
        "revid": "1200",
        "date": "2024-05-06T07:08:09Z",
    }
    at = [DUMP.encode().index(page.strip().encode()) for page in PAGES]
    assert [drop[:5] for drop in got.dropped] == [
        (at[1], "13", "redirect", None, None),
        (at[2], "14", "not_an_article", 1.0, None),
        (at[3], "15", "empty_page", None, None),
        (at[4], "16", "not_wikitext", None, None),
    ]
    assert got.bad == []


def test_namespaces_are_those_of_the_recipe(tmp_path):
    path = write(tmp_path / "dump.xml", DUMP)
    assert Everything(path, namespaces=[1]).texts == ["Talk:Köln\n\nA talk page."]


def test_of_many_revisions_the_last_one_counts(tmp_path):
    older = (
        "<revision><id>1</id><timestamp>2001-01-01T00:00:00Z</timestamp><text>Old.</text></revision>\n    "
    )
    got = Everything(write(tmp_path / "dump.xml", dump_of(page_of(1, "T", "New.", extra=older))))
    assert got.texts == ["T\n\nNew."]
    assert json.loads(got.rows[0]["meta"])["revid"] == "100"


def test_a_page_that_lacks_what_every_page_has_is_quarantined(tmp_path):
    broken = page_of(1, "T", "x").replace("<ns>0</ns>", "")
    got = Everything(write(tmp_path / "dump.xml", dump_of(broken, page_of(2, "U", "y"))))
    assert got.texts == ["U\n\ny"]
    assert [record.reason for record in got.bad] == ["missing_field"]


@pytest.mark.parametrize("block_bytes", [100, 1 << 20])
def test_a_page_over_the_limit_is_quarantined_with_its_size(tmp_path, block_bytes):
    pages = [page_of(1, "T", "é" * 1000), page_of(2, "U", "é" * 1001), page_of(3, "V", "z")]
    with blocks_of(block_bytes):
        got = Everything(write(tmp_path / "dump.xml", dump_of(*pages)), limit=2000)
    assert [row["doc_id"] for row in got.rows] == ["1", "3"]
    assert [tuple(record)[:3] for record in got.bad] == [
        (
            dump_of(*pages).encode().index(pages[1].strip().encode()),
            "too_large",
            "2,002 bytes in one page; max_record_bytes is 2,000",
        )
    ]


def test_one_line_of_five_megabytes_is_a_page_like_any(tmp_path):
    line = "word " * (1 << 20)
    got = Everything(write(tmp_path / "dump.xml", dump_of(page_of(1, "T", line))))
    assert got.texts == [f"T\n\n{line.strip()}"]


BILLION_LAUGHS = """<?xml version="1.0"?>
<!DOCTYPE mediawiki [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>
<mediawiki><page><title>&c;</title></page></mediawiki>"""  # noqa: E501


@pytest.mark.parametrize(
    "content", [BILLION_LAUGHS, '<!DOCTYPE mediawiki SYSTEM "file:///etc/passwd"><mediawiki/>']
)
def test_declarations_are_refused_at_once(tmp_path, content):
    path = write(tmp_path / "dump.xml", content)
    with pytest.raises(CorruptFile, match="declares a document type or entities") as caught:
        Everything(path)
    assert caught.value.where == str(path)


def test_a_cut_dump_is_corrupt_wherever_it_is_cut(tmp_path):
    data = DUMP.encode()
    for length in [0, *range(1, 60), *range(60, len(data) - 20, 97), len(data) - 3]:
        path = write(tmp_path / "dump.xml", data[:length])
        with pytest.raises(CorruptFile, match=r"at byte [0-9,]+") as caught:
            read_alone(path)
        assert caught.value.where == str(path)


def test_a_cut_archive_of_a_dump_is_corrupt(tmp_path):
    packed = bz2.compress(DUMP.encode())
    for length in range(0, len(packed), 53):
        path = tmp_path / "dump.xml.bz2"
        path.write_bytes(packed[:length])
        with pytest.raises(CorruptFile, match="truncated") as caught:
            read_alone(path)
        assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("<html><body/></html>", "no MediaWiki dump: it begins with <html>"),
        ("<mediawiki>" + "<a>" * 100, "nested deeper"),
        (f'<mediawiki><page a="{"x" * 9000}"', "longer than max_record_bytes"),
        (b"<mediawiki>\xff</mediawiki>", "the XML is damaged"),
        ("<mediawiki/><mediawiki/>", "the XML is damaged"),
    ],
    ids=["html", "deep", "long tag", "not utf-8", "two roots"],
)
def test_what_is_no_dump_is_refused(tmp_path, content, what):
    with blocks_of(1000), pytest.raises(CorruptFile, match=what):
        Everything(write(tmp_path / "dump.xml", content), limit=1024)


@pytest.mark.parametrize(
    "markup", ["{{", "[[", "{{a|", "[[a|", "<div>", "[http://a ", "<ref>", '<b a="', "{|\n|"]
)
def test_markup_nested_without_end_is_quarantined(tmp_path, markup):
    pages = [page_of(1, "T", markup * 20_000), page_of(2, "U", "fine")]
    got = Everything(write(tmp_path / "dump.xml", dump_of(*pages)))
    assert got.texts == ["U\n\nfine"]
    assert [(record.reason, "page 1" in record.detail) for record in got.bad] == [
        ("unparsable_wikitext", True)
    ]


@pytest.mark.parametrize("fault", [RecursionError("deep"), IndexError("bug"), ValueError("odd")])
def test_a_page_on_which_the_parser_fails_is_quarantined(tmp_path, monkeypatch, fault):
    import mwparserfromhell

    parse = mwparserfromhell.parse

    def failing(source: str, **options: Any) -> Any:
        if "trap" in source:
            raise fault
        return parse(source, **options)

    monkeypatch.setattr(mwparserfromhell, "parse", failing)
    got = Everything(write(tmp_path / "dump.xml", dump_of(page_of(1, "T", "trap"), page_of(2, "U", "fine"))))
    assert got.texts == ["U\n\nfine"]
    assert [record.reason for record in got.bad] == ["unparsable_wikitext"]


def test_an_open_comment_goes_on_to_the_end(tmp_path):
    text = "a <!-- b --> c <!-- d " + "<!--" * 20_000
    assert Everything(write(tmp_path / "dump.xml", dump_of(page_of(1, "T", text)))).texts == ["T\n\na c"]


def test_a_comment_that_opens_in_a_tag_with_content_of_its_own_ends_with_it(tmp_path):
    shown = ["nowiki", "pre", "syntaxhighlight", "source", "math", "chem", "ce", "NoWiki"]
    tags = [*shown, "ref", "gallery", "score", "timeline", "templatedata", "poem", "includeonly"]
    for end in ("end", "<!-- closed --> end"):
        text = f"A {{}} <{{}} id=1><!-- x</{{}} > mid {end}\n\n== Later ==\nRest <{{}} id=2/> of <!-- it"
        pages = [page_of(n, "T", text.format(n, *[tag] * 3)) for n, tag in enumerate(tags)]
        got = Everything(write(tmp_path / "dump.xml", dump_of(*pages))).texts
        assert [text.split() for text in got] == [
            ["T", "A", str(n), *(["<!--", "x"] if tag in shown else []), "mid", "end", "Later", "Rest", "of"]
            for n, tag in enumerate(tags)
        ]


def test_a_tag_in_a_comment_or_that_is_not_closed_hides_no_comment(tmp_path):
    comments = ["a <!-- <nowiki> --> b <!-- c </nowiki>", "a <pre> b <!-- c", "a <nowiki <!-- c"]
    texts = [*comments, "a <ref/> <!-- </ref>"]
    dump = dump_of(*(page_of(number, "T", text) for number, text in enumerate(texts, 1)))
    got = Everything(write(tmp_path / "dump.xml", dump)).texts
    assert [text.split()[1:] for text in got] == [["a", "b"], ["a", "<pre>", "b"], ["a", "<nowiki"], ["a"]]
    many = page_of(1, "T", "a <ref>" + "<!--" * 20_000 + "</ref> b" + "<ref><!--" * 20_000)
    assert Everything(write(tmp_path / "dump.xml", dump_of(many))).texts == ["T\n\na b<ref>"]


# -- the contract ----------------------------------------------------------------------------------


def resolve(base: Path, pattern: str, **section: Any) -> Any:
    source = Source.model_validate({"name": "s", "files": pattern, "wikipedia": section})
    return wikipedia.resolve(source, find_files(pattern, base))


def test_the_options_say_what_reads_wikitext_only_where_there_is_some(tmp_path):
    write(tmp_path / "wiki_00", BLOCKS)
    write(tmp_path / "dump.xml.bz2", DUMP)
    assert resolve(tmp_path, "wiki_*") == {"namespaces": [0], "wikitext": None}
    options = resolve(tmp_path, "*", namespaces=[4, 0, 4])
    assert options["namespaces"] == [0, 4]
    assert options["wikitext"].startswith("mwparserfromhell 0.")
    assert wikipedia.READER.split(tmp_path / "dump.xml.bz2", 1000, options, 10) == [WHOLE]


def test_without_the_parser_a_dump_is_an_error_before_the_run_and_blocks_are_not(tmp_path, monkeypatch):
    write(tmp_path / "wiki_00", BLOCKS)
    write(tmp_path / "dump.xml", DUMP)
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    wikitext._parser.cache_clear()
    assert resolve(tmp_path, "wiki_*")["wikitext"] is None
    assert len(Everything(tmp_path / "wiki_00").rows) == 3
    with pytest.raises(MissingExtra, match=r"'\.\[wikipedia\]'"):
        resolve(tmp_path, "*.xml")


def test_batches_are_bounded_and_in_file_order(tmp_path):
    content = "".join(f'<doc id="{n}" url="u" title="T">\nT\n\ntext {n}\n</doc>\n' for n in range(9000))
    path = write(tmp_path / "wiki_00", content)
    batches = read_alone(path)
    assert [batch.num_rows for batch in batches] == [4096, 4096, 808]
    in_order = [str(n) for n in range(9000)]
    assert [id for batch in batches for id in batch["id"].to_pylist()] == in_order
    assert [row["doc_id"] for row in Everything(path).rows] == in_order
