"""Charsets by the names that pages and mails call them, read as browsers read them.

    label ─ the table of the WHATWG Encoding Standard ─> Python's codec with most of its characters
    bytes ─ decode ─┬─> text, and how many characters are replaced
                    └─> Undecodable: more than one in a thousand

A label is used for more than it says: what is called iso-8859-1 is Windows-1252, gb2312 is GB 18030, and what
is called shift_jis or euc-kr has the characters that Windows added. What Python's codecs lack, or have
otherwise than the standard, is in the tables here; but for some 200 rare characters of Big5, one of
JIS X 0212, and the single byte 0x80 of GB 18030.
"""

from __future__ import annotations

import codecs
import functools

# fmt: off
# The labels of each of Python's codecs, without those that browsers refuse and x-user-defined.
_LABELS = {
    "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8",
    "cp866": "866 cp866 csibm866 ibm866",
    "iso8859-2": "csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2",
    "iso8859-3": "csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3",
    "iso8859-4": "csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4",
    "iso8859-5": (
        "csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988"),
    "iso8859-6": (
        "arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e "
        "iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987"),
    "iso8859-7": (
        "csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 "
        "iso_8859-7 iso_8859-7:1987 sun_eu_greek"),
    "iso8859-8": (
        "csiso88598e csiso88598i csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-8859-8-i iso-ir-138 "
        "iso8859-8 iso88598 iso_8859-8 iso_8859-8:1988 logical visual"),
    "iso8859-10": "csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6",
    "iso8859-13": "iso-8859-13 iso8859-13 iso885913",
    "iso8859-14": "iso-8859-14 iso8859-14 iso885914",
    "iso8859-15": "csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9",
    "iso8859-16": "iso-8859-16",
    "koi8-r": "cskoi8r koi koi8 koi8-r koi8_r",
    "koi8-u": "koi8-ru koi8-u",
    "mac-roman": "csmacintosh mac macintosh x-mac-roman",
    "cp874": "dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874",
    "cp1250": "cp1250 windows-1250 x-cp1250",
    "cp1251": "cp1251 windows-1251 x-cp1251",
    "cp1252": (
        "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591 "
        "iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252"),
    "cp1253": "cp1253 windows-1253 x-cp1253",
    "cp1254": (
        "cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5 "
        "windows-1254 x-cp1254"),
    "cp1255": "cp1255 windows-1255 x-cp1255",
    "cp1256": "cp1256 windows-1256 x-cp1256",
    "cp1257": "cp1257 windows-1257 x-cp1257",
    "cp1258": "cp1258 windows-1258 x-cp1258",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "gb18030": "chinese csgb2312 csiso58gb231280 gb18030 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk",
    "big5hkscs": "big5 big5-hkscs cn-big5 csbig5 x-x-big5",
    "euc_jp": "cseucpkdfmtjapanese euc-jp x-euc-jp",
    "iso2022_jp_ext": "csiso2022jp iso-2022-jp",
    "cp932": "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis",
    "cp949": (
        "cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 "
        "windows-949"),
    "utf-16-be": "unicodefffe utf-16be",
    "utf-16-le": "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le",
}
# fmt: on
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

# A text with one bad byte is a text; one with more than this is in another charset than it says.
_MAX_REPLACED_FRACTION = 0.001

# Bytes that Python's codecs lack, or have otherwise. The standard leaves none of 0x80 to 0x9F out: what these
# codecs lack there is the control of the same number.
_BYTES: dict[str, dict[int, str]] = {
    "cp874": {},
    "cp1250": {},
    "cp1251": {},
    "cp1252": {},
    "cp1253": {},
    "cp1254": {},
    "cp1255": {0xCA: "\u05ba"},
    "cp1256": {},
    "cp1257": {},
    "cp1258": {},
    "koi8-u": {0xAE: "ў", 0xBE: "Ў"},
}

# Characters for which the standard has others: the wide signs ～ ∥ － ￠ ￡ ￢ of Windows, and those that
# GB 18030 had in the private use area at first.
_WIDE = dict(zip("\u301c\u2016\u2212\xa2\xa3\xac", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2", strict=True))
_CHARACTERS = {
    "euc_jp": _WIDE,
    "iso2022_jp_ext": _WIDE,
    "gb18030": dict(
        zip(
            "\ue5e5\ue78d\ue78e\ue78f\ue790\ue791\ue792\ue793\ue794\ue795\ue796\ue7c7"
            "\ue81e\ue826\ue82b\ue82c\ue832\ue843\ue854\ue864",
            "\u3000\ufe10\ufe12\ufe11\ufe13\ufe14\ufe15\ufe16\ufe17\ufe18\ufe19\u1e3f"
            "\u9fb4\u9fb5\u9fb6\u9fb7\u9fb8\u9fb9\u9fba\u9fbb",
            strict=True,
        )
    ),
}

# What the Encoding Standard has in both, and Python has in cp932 alone: rows 13 and 89 to 92 of JIS X 0208.
_WITHOUT_WINDOWS = ("euc_jp", "iso2022_jp_ext")
_CELLS = 94  # of a row


class Undecodable(ValueError):
    """The bytes are not of the charset."""


def marked(body: bytes) -> str | None:
    """The codec that a byte order mark says, whatever else is said."""
    return next((codec for mark, codec in _MARKS if body.startswith(mark)), None)


@functools.lru_cache(maxsize=1024)
def codec_of(label: str) -> str | None:
    """By a label of the standard, or any name that Python has for the same charset; None for all others."""
    by_label, by_name = _tables()
    label = label.strip().lower()
    try:
        return by_label.get(label) or by_name.get(codecs.lookup(label).name)
    except (LookupError, ValueError):  # a NUL in its name
        return None


@functools.cache
def _tables() -> tuple[dict[str, str], dict[str, str]]:
    by_label = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}
    by_name = {codecs.lookup(codec).name: codec for codec in _LABELS}
    for label, codec in by_label.items():
        try:
            by_name[codecs.lookup(label).name] = codec
        except LookupError:
            continue
    return by_label, by_name


def decode(body: bytes, codec: str) -> tuple[str, int]:
    """The text, and how many characters of it stand for bytes that the charset does not have."""
    strict, replace = ("strict", "replace") if codec not in _WITHOUT_WINDOWS else _WINDOWS
    _register_handlers()
    try:
        return _decoded(body, codec, strict), 0
    except UnicodeDecodeError as error:
        text = _decoded(body, codec, replace)
        replaced = text.count("\ufffd")
        if replaced > _MAX_REPLACED_FRACTION * len(text):
            raise Undecodable(f"byte {error.start} is not {codec}: {error.reason}") from error
        return text, replaced


def _decoded(body: bytes, codec: str, errors: str) -> str:
    if codec in _BYTES:
        return codecs.charmap_decode(body, errors, _table_of(codec))[0]
    text = body.decode(codec, errors).removeprefix("\ufeff")
    for of_python, of_standard in _CHARACTERS.get(codec, {}).items():
        text = text.replace(of_python, of_standard)
    return text


@functools.cache
def _table_of(codec: str) -> str:
    """The character of each byte; U+FFFE where it has none."""
    chars = [bytes([byte]).decode(codec, "replace").replace("\ufffd", "\ufffe") for byte in range(256)]
    for byte in range(0x80, 0xA0):
        chars[byte] = chars[byte].replace("\ufffe", chr(byte))
    for byte, char in _BYTES[codec].items():
        chars[byte] = char
    return "".join(chars)


# What Python asks about bytes that a codec does not have.
_WINDOWS = ("tokmill-strict", "tokmill-replace")


@functools.cache
def _register_handlers() -> None:

    def strict(error: UnicodeError) -> tuple[str | bytes, int]:
        assert isinstance(error, UnicodeDecodeError), "it is asked by a decoder"
        found = _of_windows(error)
        if found is None:
            raise error
        return found, error.start + 2

    def replace(error: UnicodeError) -> tuple[str | bytes, int]:
        assert isinstance(error, UnicodeDecodeError), "it is asked by a decoder"
        found = _of_windows(error)
        return ("\ufffd", error.end) if found is None else (found, error.start + 2)

    for name, handler in zip(_WINDOWS, (strict, replace), strict=True):
        codecs.register_error(name, handler)


def _of_windows(error: UnicodeDecodeError) -> str | None:
    """The two bytes as the same row and cell of Shift_JIS, which has two rows for each first byte."""
    first = 0xA1 if error.encoding == "euc_jp" else 0x21
    row, cell = (byte - first for byte in (error.object[error.start : error.start + 2] + b"\0\0")[:2])
    if not (0 <= row < _CELLS and 0 <= cell < _CELLS):
        return None
    lead, trail = row // 2, cell + _CELLS * (row % 2)
    pair = bytes([lead + (0x81 if lead < 0x1F else 0xC1), trail + (0x40 if trail < 0x3F else 0x41)])
    try:
        return pair.decode("cp932")
    except UnicodeDecodeError:
        return None
