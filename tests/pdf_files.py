"""PDFs written by hand, with text that is known: what a reader of them is tested with.

    %PDF-1.7
    1 0 obj << catalog >> endobj … n 0 obj << stream >> endobj       each object by its number
    xref  trailer << /Root /Info /Encrypt >>  startxref  %%EOF

Latin-1 text is in Helvetica with WinAnsiEncoding, any other in a font whose codes mean something only by its
ToUnicode CMap (ISO 32000-1, 9.10.3). `password` encrypts with RC4 of 40 bits (7.6, revision 2).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
_ID = bytes(range(16))


def make_pdf(
    pages: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    producer: str | None = None,
    created: str | None = None,
    password: str | None = None,
    compressed: bool = False,
) -> bytes:
    """`pages`: the lines of each; one without lines has a drawing and no text."""
    key = _key(password) if password is not None else None
    codes = _codes(pages)
    objects = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        4: b"<< /Type /Font /Subtype /Type0 /BaseFont /Made /Encoding /Identity-H "
        b"/DescendantFonts [5 0 R] /ToUnicode 7 0 R >>",
        5: b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Made /FontDescriptor 6 0 R /DW 500 "
        b"/CIDSystemInfo << /Registry <00> /Ordering <00> /Supplement 0 >> >>",
        6: b"<< /Type /FontDescriptor /FontName /Made /Flags 4 /FontBBox [0 0 1000 1000] /ItalicAngle 0 "
        b"/Ascent 800 /Descent -200 /CapHeight 700 /StemV 80 >>",
        7: _stream(_to_unicode(codes), key, 7, compressed),
    }
    kids = []
    for number, lines in enumerate(pages):
        page, content = 10 + 2 * number, 11 + 2 * number
        kids.append(f"{page} 0 R")
        objects[page] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {content} 0 R "
            "/Resources << /Font << /L 3 0 R /U 4 0 R >> >> >>"
        ).encode()
        objects[content] = _stream(_content(lines, codes), key, content, compressed)
    objects[2] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(pages)} >>".encode()
    told = {"Title": title, "Producer": producer, "CreationDate": created}
    facts = {name: _string(text, key, 8) for name, text in told.items() if text is not None}
    objects[8] = (
        b"<< " + b" ".join(b"/%b %b" % (name.encode(), text) for name, text in facts.items()) + b" >>"
    )
    trailer = b"/Root 1 0 R /Info 8 0 R"
    if key is not None:
        assert password is not None
        objects[9] = b"<< /Filter /Standard /V 1 /R 2 /Length 40 /P -4 /O <%b> /U <%b> >>" % (
            _owner(password).hex().encode(),
            _rc4(key, _PADDING).hex().encode(),
        )
        trailer += b" /Encrypt 9 0 R /ID [<%b> <%b>]" % ((_ID.hex().encode(),) * 2)
    return assemble(objects, trailer)


def assemble(objects: dict[int, bytes], trailer: bytes = b"/Root 1 0 R") -> bytes:
    """A file of these objects, with where each lies."""
    whole, places = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"), {}
    for number, body in sorted(objects.items()):
        places[number] = len(whole)
        whole += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    size, start = max(objects) + 1, len(whole)
    whole += b"xref\n0 %d\n" % size
    for number in range(size):
        at = places.get(number)
        whole += b"0000000000 65535 f \n" if at is None else b"%010d 00000 n \n" % at
    whole += b"trailer\n<< /Size %d %b >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, start)
    return bytes(whole)


def make_page(**objects: bytes) -> bytes:
    """A file of one page, some objects of which are others."""
    plain = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: b"<< /Type /Pages /Kids [10 0 R] /Count 1 >>",
        3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        10: b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 11 0 R "
        b"/Resources << /Font << /L 3 0 R >> /XObject << /X 20 0 R >> >> >>",
        11: packed_stream(b"BT /L 12 Tf 72 720 Td (hello) Tj ET"),
    }
    return assemble(plain | {int(name[1:]): body for name, body in objects.items()})


def packed_stream(data: bytes, more: bytes = b"", filters: bytes = b"/FlateDecode") -> bytes:
    packed = zlib.compress(data, 9)
    return b"<< /Length %d /Filter %b %b >>\nstream\n%b\nendstream" % (len(packed), filters, more, packed)


def nested_forms() -> bytes:
    """Drawings that draw each ten times another: 3 KB, and 10^13 words."""
    font = b"/Resources << /Font << /L 3 0 R >> /XObject << /X %d 0 R >> >>"
    form = b"/Type /XObject /Subtype /Form /BBox [0 0 600 700] "
    drawings = {f"o{20 + n}": packed_stream(b"/X Do " * 10, form + font % (21 + n)) for n in range(12)}
    drawings["o32"] = packed_stream(b"BT /L 12 Tf (ha) Tj ET", form + font % 3)
    return make_page(o11=packed_stream(b"/X Do " * 10), **drawings)


def giant_stream() -> bytes:
    """A gigabyte of spaces, deflated twice."""
    packer, spaces, checksum = zlib.compressobj(9, wbits=-15), b" " * (1 << 24), 1
    part = packer.compress(spaces) + packer.flush(zlib.Z_FULL_FLUSH)  # again and again the same
    for _ in range(64):
        checksum = zlib.adler32(spaces, checksum)
    once = b"\x78\xda" + 64 * part + packer.flush() + checksum.to_bytes(4, "big")
    assert zlib.decompressobj().decompress(once, 1 << 10) == b" " * (1 << 10)
    return make_page(o11=packed_stream(once, filters=b"[/FlateDecode /FlateDecode]"))


def _codes(pages: Sequence[Sequence[str]]) -> dict[str, int]:
    """Of each character that is not Latin-1: a number that means nothing by itself."""
    strange = sorted({c for lines in pages for line in lines for c in line if not _is_latin(line)})
    return {character: 0x21 + number for number, character in enumerate(strange)}


def _is_latin(line: str) -> bool:
    return all(ord(c) < 0x80 or 0xA0 <= ord(c) < 0x100 for c in line)


def _content(lines: Sequence[str], codes: dict[str, int]) -> bytes:
    if not lines:
        return b"0.5 g 100 100 200 200 re f\n"
    shown = [b"BT 72 720 Td 14 TL"]
    for line in lines:
        if _is_latin(line):
            escaped = line.encode("latin-1")
            for character in (b"\\", b"(", b")"):
                escaped = escaped.replace(character, b"\\" + character)
            shown.append(b"/L 12 Tf (%b) Tj T*" % escaped)
        else:
            spelled = "".join(f"{codes[c]:04x}" for c in line)
            shown.append(b"/U 12 Tf <%b> Tj T*" % spelled.encode())
    return b"\n".join([*shown, b"ET\n"])


def _to_unicode(codes: dict[str, int]) -> bytes:
    pairs = [f"<{code:04x}> <{character.encode('utf-16-be').hex()}>" for character, code in codes.items()]
    groups = [pairs[at : at + 100] for at in range(0, len(pairs), 100)]
    mapped = "".join(
        "{} beginbfchar\n{}\nendbfchar\n".format(len(group), "\n".join(group)) for group in groups
    )
    return (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /Made def /CMapType 2 def\n"
        f"1 begincodespacerange\n<0000> <ffff>\nendcodespacerange\n{mapped}"
        "endcmap CMapName currentdict /CMap defineresource pop end end\n"
    ).encode()


def _stream(data: bytes, key: bytes | None, number: int, compressed: bool) -> bytes:
    packed = b" /Filter /FlateDecode" if compressed else b""
    data = zlib.compress(data) if compressed else data
    data = _rc4(_object_key(key, number), data) if key is not None else data
    return b"<< /Length %d%b >>\nstream\n%b\nendstream" % (len(data), packed, data)


def _string(text: str, key: bytes | None, number: int) -> bytes:
    data = text.encode("ascii") if text.isascii() else b"\xfe\xff" + text.encode("utf-16-be")
    data = _rc4(_object_key(key, number), data) if key is not None else data
    return b"<%b>" % data.hex().encode()


def _rc4(key: bytes, data: bytes) -> bytes:
    state, j = list(range(256)), 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)


def _padded(password: str) -> bytes:
    return (password.encode("latin-1") + _PADDING)[:32]


def _owner(password: str) -> bytes:
    return _rc4(hashlib.md5(_padded("owner")).digest()[:5], _padded(password))


def _key(password: str) -> bytes:
    permissions = (-4 & 0xFFFFFFFF).to_bytes(4, "little")
    return hashlib.md5(_padded(password) + _owner(password) + permissions + _ID).digest()[:5]


def _object_key(key: bytes, number: int) -> bytes:
    return hashlib.md5(key + number.to_bytes(3, "little") + b"\0\0").digest()[:10]
