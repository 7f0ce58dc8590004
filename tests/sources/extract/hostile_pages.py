"""Pages that nobody wrote: mutations of written ones, the same for a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tokmill.kernels.htmltree import TAGS

_WORDS = b"A river is a stream of water, that flows to the sea; most begin as springs. "
SEEDS = (
    b"<html><head><title>Rivers</title></head><body><nav><a href=/>Home</a></nav><article class=post>"
    b"<h1>Rivers</h1><p>"
    + _WORDS * 4
    + b"</p><ul><li>one<li>two</ul></article><footer>&copy; 2024</footer></body></html>",
    b"<table><tr><th colspan=2>a<th>b<tr><td rowspan=3>"
    + _WORDS
    + b"<td>c</table><pre class=language-c>x;\n</pre>",
    (
        b"<div class=math>\\(a^2\\)</div><math><mfrac><mi>a</mi><mn>2</mn></mfrac></math>"
        b"<script type=math/tex>x</script>"
    ),
    b"<dl><dt>a<dd>b</dl><blockquote><p>c<br>d</blockquote><svg><path d=x /></svg><select><option>e</select>",
    "<p>日本語の文章。<b>é</b> &eacute;&#x41;&nbsp;<a href='x>y'>link</a><!-- c -->"
    "<textarea>f</textarea>".encode(),
)
_SLIPS = [b"<!--", b"<", b"'", b'"', b"&#", b"\0", b"\xff\xfe", b"]]>", b"--!>", b"="]
_NAMES = [name.encode() for name in sorted(TAGS)]


def hostile_pages(count: int, seed: int) -> Iterator[bytes]:
    source = random.Random(seed)
    for _ in range(count):
        page = bytearray(source.choice(SEEDS))
        for _ in range(source.randint(1, 8)):
            _mutate(page, source)
            del page[200_000:]
        yield bytes(page)


def _mutate(page: bytearray, source: random.Random) -> None:
    at = source.randrange(len(page) + 1)
    end = min(len(page), at + source.randint(0, 200))
    name = source.choice(_NAMES)
    act = source.randrange(9)
    if act == 0:
        del page[at:end]
    elif act == 1:
        page[at:at] = page[at:end] * source.randint(1, 50)
    elif act == 2:
        for _ in range(source.randint(1, 20)):
            if page:
                page[source.randrange(len(page))] ^= 1 << source.randrange(8)
    elif act == 3:
        page[at:at] = b"<" + name + b">"
    elif act == 4:
        page[at:at] = b"</" + name + b">"
    elif act == 5:
        page[at:at] = (b"<" + name + b">") * source.randint(1, 800)
    elif act == 6:
        page[at:at] = b"<" + name + b" class='" + b"a b-c math " * source.randint(1, 400) + b"'>"
    elif act == 7:
        page[at:at] = source.choice(_SLIPS)
    else:
        del page[at:]
