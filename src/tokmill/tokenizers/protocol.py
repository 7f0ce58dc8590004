"""What every tokenizer can do, whatever library is behind it:
text to ids, ids back to bytes, and where libraries differ.

texts ["ab c", "", "d"]  ──encode──▶  ids      int32  [ 7  3  9  4 ]       all documents, one after another
                                      lengths  int64  [ 3     0  1 ]       one per text

A text is always ordinary text: a literal `<|endoftext|>` or `</s>` in a document is spelled with ordinary
tokens and never becomes the control token. Nothing is added (no BOS, no EOS), truncated or padded. `encode`
is the reference: the library that the file belongs to. `encode_column` gives the same ids for an Arrow
column, through gigatoken where that can do it (tokmill.tokenizers.fast). Both keep one core busy, because a
run has one process per core.

    text      ça va          c3 a7 61 20 76 61           6 bytes, 5 characters
    tokens    [c3][a7 61][20 76 61]
    bounds    0   1      3         6                     n + 1: token i is bytes [bounds[i], bounds[i + 1])

`boundaries` have no gap: what a normalizer removed belongs to the token before it, at the start of a text to
the first. A token may be a part of a character. A character belongs to the token that has its first byte, so
the characters of all tokens, one after the other, are the text.

    tiktoken, byte-level BPE   by the bytes of each token, which are those of the text
    SentencePiece, others      by the offsets that the library gives; pieces for bytes get a byte each
    spelled_boundaries         from the tokenizer's file alone, without a library, in a tenth of its time to
                               load: base64 ranks, or the vocabulary of a byte-level BPE; ids that spell the
                               text are its ids

Libraries know different editions of Unicode, and may disagree about recent characters (`recent_classes`):

    U+33111 is unassigned in Unicode 16 and a letter in 17:    tiktoken   U+33111 \\n | space \\n
                                                               gigatoken  U+33111 | \\n space \\n

Splitting asks whether a character is a letter, a mark, a number or a space, and NFC asks for its combining
class. Both never change once a character is assigned, so libraries of different age disagree about later
characters alone. Measured: gigatoken 0.10 knows Unicode 17, tiktoken 0.14 splits by 16, and `tokenizers` 0.23
composes by 9. Recent is what Unicode 9 did not have. Not among them: symbols, punctuation, format characters,
and the blocks of pictographs. They are none of the four and compose with nothing, in any edition; new emoji
are common.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError
from tokmill.kernels.wordclasses import UNSAFE


class Encoded(NamedTuple):
    """The ids of many texts in one flat array, and how many belong to each."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]


class Boundaries(NamedTuple):
    """The ids of one text, and where each begins: token i is bytes [bounds[i], bounds[i + 1]) of it."""

    ids: NDArray[np.int32]
    bounds: NDArray[np.int64]


class Tokenizer(Protocol):
    """One tokenizer file, loaded."""

    @property
    def kind(self) -> str:
        """`huggingface`, `tiktoken`, `tekken`, `sentencepiece` or `plugin`."""

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str:
        """Of the file's bytes, as they were loaded."""

    @property
    def vocab_size(self) -> int:
        """Every id, special tokens included, is below this."""

    @property
    def specials(self) -> Mapping[str, int]:
        """Control tokens by their spelling: what text may spell and never becomes."""

    @property
    def engine(self) -> str:
        """Library and version behind `encode_column`."""

    @property
    def is_fast(self) -> bool:
        """Whether that is another library than the one behind `encode`."""

    def encode(self, texts: Sequence[str]) -> Encoded: ...

    def encode_column(self, texts: Any) -> Encoded:
        """The same ids for a large_string column, straight from its buffers."""

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of `ids`, control tokens spelled out."""

    def boundaries(self, text: str) -> Boundaries:
        """The ids that `encode` gives for `text`, and the bytes of it that each was read from."""

    def token_id(self, token: str) -> int | None:
        """The id of `token`, a special token or an ordinary piece as the file spells it."""


def encode_each(texts: Sequence[str], encode: Callable[[str], NDArray[np.integer]]) -> Encoded:
    """Encode text by text, and join.

    The three libraries' batch calls give threads, not speed: on one core they are within 5 % of this loop,
    and they hold every document's Python integers (36 bytes a token) until the batch ends.
    """
    pieces: list[NDArray[np.int32]] = []
    for number, text in enumerate(texts):
        try:
            pieces.append(encode(text).astype(np.int32, copy=False))
        except (TypeError, UnicodeEncodeError, RuntimeError):  # each library has its own for a lone surrogate
            _refuse_what_is_not_text(text, number)
            raise
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    return Encoded(np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32), lengths)


def _refuse_what_is_not_text(text: object, number: int) -> None:
    if not isinstance(text, str):
        raise InputError(
            f"text {number} is {type(text).__name__}, not str",
            next="pass a sequence of str (of an Arrow column: .to_pylist())",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"text {number} is not valid Unicode: lone surrogate U+{ord(text[error.start]):04X} "
            f"at character {error.start}",
            next="read the source again with tokmill, which quarantines such records",
        ) from None


# --- back to bytes ---


class Characters(NamedTuple):
    """Characters [start, end) of a text; cut: a token ends inside the one before `start` or `end`."""

    start: int
    end: int
    is_cut: bool


def boundaries(tokenizer: Tokenizer, text: str, controls: Mapping[str, int]) -> Boundaries:
    """As a build encodes the text: literals of `controls` are tokens of their own."""
    if not controls:
        return tokenizer.boundaries(text)
    # leftmost, then longest, as a build finds them
    literals = sorted(controls, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(literal) for literal in literals))
    ids: list[NDArray[np.int32]] = []
    starts: list[NDArray[np.int64]] = []
    at = byte = 0
    for found in [*pattern.finditer(text), None]:
        stop = found.start() if found is not None else len(text)
        part = tokenizer.boundaries(text[at:stop])
        ids.append(part.ids)
        starts.append(part.bounds[: len(part.ids)] + byte)
        byte += len(text[at:stop].encode())
        if found is not None:
            ids.append(np.array([controls[found.group()]], np.int32))
            starts.append(np.array([byte], np.int64))
            byte += len(found.group().encode())
            at = found.end()
    return Boundaries(np.concatenate(ids), tile(np.concatenate(starts), byte))


def tile(starts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Bounds of tokens that start there, in a text of `size` bytes."""
    bounds = np.append(np.minimum(starts, size), size)
    if len(starts):
        bounds[0] = 0
    return np.maximum.accumulate(bounds)


def by_bytes(ids: NDArray[np.int32], tokens: Sequence[bytes], text: bytes) -> Boundaries | None:
    """Where the tokens spell the text, a blank before it aside; None where they do not."""
    whole = b"".join(tokens)
    added = len(whole) - len(text)
    if whole != b" " * added + text or added not in (0, 1):
        return None
    ends = np.cumsum([len(token) for token in tokens], dtype=np.int64)
    return Boundaries(ids, tile(np.append(0, ends[:-1])[: len(ids)] - added, len(text)))


def by_offsets(
    ids: NDArray[np.int32], offsets: NDArray[np.int64], is_byte: NDArray[np.bool_], size: int
) -> Boundaries:
    """From (begin, end) in bytes. Byte pieces of one character share its place, or only the last has one."""
    starts = offsets[:, 0].copy()
    at = 0
    while at < len(ids):
        stop = at + 1
        if is_byte[at]:
            begin = starts[at]
            while stop < len(ids) and is_byte[stop] and starts[stop] == begin:
                stop += 1
            width = int(offsets[at:stop, 1].max()) - begin
            starts[at:stop] = begin + np.minimum(np.arange(stop - at), max(width - 1, 0))
        at = stop
    return Boundaries(ids, tile(starts, size))


def characters_between(text: bytes, first: int, stop: int) -> Characters:
    """The characters whose first byte is in [first, stop)."""
    return Characters(
        _firsts(text, first), _firsts(text, stop), _is_inside(text, first) or _is_inside(text, stop)
    )


def _firsts(text: bytes, stop: int) -> int:
    """Bytes before `stop` that begin a character."""
    part = np.frombuffer(text, np.uint8, stop) if stop else np.empty(0, np.uint8)
    return int(((part & 0xC0) != 0x80).sum())


def _is_inside(text: bytes, at: int) -> bool:
    return at < len(text) and (text[at] & 0xC0) == 0x80


# --- bytes from the file alone ---


def _byte_letters() -> dict[str, int]:
    """The letter that byte-level BPE writes for each byte:
    itself where that can be seen, else from U+0100 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + at): byte for at, byte in enumerate(unseen)}


BYTE_LETTERS: Final = _byte_letters()


def spelled_boundaries(
    path: Path, kind: str, ids: NDArray[np.integer], text: str, controls: Mapping[str, int]
) -> Boundaries | None:
    """Where each of the ids begins in the text; None where they do not spell it,
    or the file does not say how."""
    wanted = set(ids.tolist())
    tokens = {id: literal.encode() for literal, id in controls.items() if id in wanted}
    data = path.read_bytes()
    try:
        if kind == "tiktoken":
            tokens |= _ranks(data, wanted - set(tokens))
        elif kind == "tekken":
            tokens |= _tekken_tokens(data, wanted - set(tokens))
        elif kind == "huggingface":
            tokens |= _vocabulary(data, wanted - set(tokens))
    except (ValueError, KeyError, msgspec.MsgspecError, binascii.Error):
        return None
    if len(tokens) < len(wanted):
        return None
    return by_bytes(ids.astype(np.int32), [tokens[id] for id in ids.tolist()], text.encode())


def _ranks(data: bytes, wanted: set[int]) -> dict[int, bytes]:
    names = {b"%d" % id: id for id in wanted}
    found = {}
    for line in data.split(b"\n"):
        encoded, _, rank = line.partition(b" ")
        if rank in names:
            found[names[rank]] = base64.b64decode(encoded)
    return found


class _TekkenConfig(msgspec.Struct):
    default_num_special_tokens: int


class _TekkenToken(msgspec.Struct):
    token_bytes: str


class _TekkenFile(msgspec.Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]


def _tekken_tokens(data: bytes, wanted: set[int]) -> dict[int, bytes]:
    file = msgspec.json.decode(data, type=_TekkenFile)
    first = file.config.default_num_special_tokens
    return {
        id: base64.b64decode(file.vocab[id - first].token_bytes)
        for id in wanted
        if first <= id < first + len(file.vocab)
    }


class _Model(msgspec.Struct):
    vocab: Any
    type: str | None = None


class _File(msgspec.Struct):
    model: _Model


def _vocabulary(data: bytes, wanted: set[int]) -> dict[int, bytes]:
    model = msgspec.json.decode(data, type=_File).model
    if not isinstance(model.vocab, dict):
        return {}  # scores, not letters for bytes
    return {
        id: bytes(BYTE_LETTERS[letter] for letter in token)
        for token, id in model.vocab.items()
        if id in wanted
    }


# --- recent characters ---

_COUNT = 0x110000

# From Perl 5.36 (Unicode 14): neither \p{Present_In: 9.0} nor [\p{S}\p{P}\p{Cf}\p{Noncharacter_Code_Point}],
# without 1F000-1F0FF and 1F200-1FAFF. What is unassigned there is in the list.
_RECENT = """
378-379 380-383 38B 38D 3A2 530 557-558 560 588 58B-58C 590 5C8-5CF 5EB-5EF 5F5-5FF 70E 74B-74C 7B2-7BF
7FB-7FD 82E-82F 83F 85C-85D 85F-887 889-88F 892-89F 8B5 8BE-8D3 984 98D-98E 991-992 9A9 9B1 9B3-9B5
9BA-9BB 9C5-9C6 9C9-9CA 9CF-9D6 9D8-9DB 9DE 9E4-9E5 9FC 9FE-A00 A04 A0B-A0E A11-A12 A29 A31 A34 A37
A3A-A3B A3D A43-A46 A49-A4A A4E-A50 A52-A58 A5D A5F-A65 A77-A80 A84 A8E A92 AA9 AB1 AB4 ABA-ABB AC6 ACA
ACE-ACF AD1-ADF AE4-AE5 AF2-AF8 AFA-B00 B04 B0D-B0E B11-B12 B29 B31 B34 B3A-B3B B45-B46 B49-B4A B4E-B55
B58-B5B B5E B64-B65 B78-B81 B84 B8B-B8D B91 B96-B98 B9B B9D BA0-BA2 BA5-BA7 BAB-BAD BBA-BBD BC3-BC5 BC9
BCE-BCF BD1-BD6 BD8-BE5 BFB-BFF C04 C0D C11 C29 C3A-C3C C45 C49 C4E-C54 C57 C5B-C5F C64-C65 C70-C76 C8D
C91 CA9 CB4 CBA-CBB CC5 CC9 CCE-CD4 CD7-CDD CDF CE4-CE5 CF0 CF3-D00 D04 D0D D11 D3B-D3C D45 D49 D50-D53
D64-D65 D80-D81 D84 D97-D99 DB2 DBC DBE-DBF DC7-DC9 DCB-DCE DD5 DD7 DE0-DE5 DF0-DF1 DF5-E00 E3B-E3E
E5C-E80 E83 E85-E86 E89 E8B-E8C E8E-E93 E98 EA0 EA4 EA6 EA8-EA9 EAC EBA EBE-EBF EC5 EC7 ECE-ECF EDA-EDB
EE0-EFF F48 F6D-F70 F98 FBD FCD FDB-FFF 10C6 10C8-10CC 10CE-10CF 1249 124E-124F 1257 1259 125E-125F 1289
128E-128F 12B1 12B6-12B7 12BF 12C1 12C6-12C7 12D7 1311 1316-1317 135B-135C 137D-137F 139A-139F 13F6-13F7
13FE-13FF 169D-169F 16F9-16FF 170D 1715-171F 1737-173F 1754-175F 176D 1771 1774-177F 17DE-17DF 17EA-17EF
17FA-17FF 180F 181A-181F 1878-187F 18AB-18AF 18F6-18FF 191F 192C-192F 193C-193F 1941-1943 196E-196F
1975-197F 19AC-19AF 19CA-19CF 19DB-19DD 1A1C-1A1D 1A5F 1A7D-1A7E 1A8A-1A8F 1A9A-1A9F 1AAE-1AAF 1ABF-1AFF
1B4C-1B4F 1B7F 1BF4-1BFB 1C38-1C3A 1C4A-1C4C 1C89-1CBF 1CC8-1CCF 1CF7 1CFA-1CFF 1DF6-1DFA 1F16-1F17
1F1E-1F1F 1F46-1F47 1F4E-1F4F 1F58 1F5A 1F5C 1F5E 1F7E-1F7F 1FB5 1FC5 1FD4-1FD5 1FDC 1FF0-1FF1 1FF5 1FFF
2065 2072-2073 208F 209D-209F 20C1-20CF 20F1-20FF 218C-218F 2427-243F 244B-245F 2B74-2B75 2B96 2C2F 2C5F
2CF4-2CF8 2D26 2D28-2D2C 2D2E-2D2F 2D68-2D6E 2D71-2D7E 2D97-2D9F 2DA7 2DAF 2DB7 2DBF 2DC7 2DCF 2DD7 2DDF
2E5E-2E7F 2E9A 2EF4-2EFF 2FD6-2FEF 2FFC-2FFF 3040 3097-3098 3100-3104 312E-3130 318F 31BB-31BF 31E4-31EF
321F 4DB6-4DBF 9FD6-9FFF A48D-A48F A4C7-A4CF A62C-A63F A6F8-A6FF A7AF A7B8-A7F6 A82C-A82F A83A-A83F
A878-A87F A8C6-A8CD A8DA-A8DF A8FE-A8FF A954-A95E A97D-A97F A9CE A9DA-A9DD A9FF AA37-AA3F AA4E-AA4F
AA5A-AA5B AAC3-AADA AAF7-AB00 AB07-AB08 AB0F-AB10 AB17-AB1F AB27 AB2F AB66-AB69 AB6C-AB6F ABEE-ABEF ABFA-
ABFF D7A4-D7AF D7C7-D7CA D7FC-DFFF FA6E-FA6F FADA-FAFF FB07-FB12 FB18-FB1C FB37 FB3D FB3F FB42 FB45
FBC3-FBD2 FD90-FD91 FDC8-FDCE FE1A-FE1F FE53 FE67 FE6C-FE6F FE75 FEFD-FEFE FF00 FFBF-FFC1 FFC8-FFC9
FFD0-FFD1 FFD8-FFD9 FFDD-FFDF FFE7 FFEF-FFF8 1000C 10027 1003B 1003E 1004E-1004F 1005E-1007F 100FB-100FF
10103-10106 10134-10136 1018F 1019D-1019F 101A1-101CF 101FE-1027F 1029D-1029F 102D1-102DF 102FC-102FF
10324-1032F 1034B-1034F 1037B-1037F 1039E 103C4-103C7 103D6-103FF 1049E-1049F 104AA-104AF 104D4-104D7
104FC-104FF 10528-1052F 10564-1056E 10570-105FF 10737-1073F 10756-1075F 10768-107FF 10806-10807 10809
10836 10839-1083B 1083D-1083E 10856 1089F-108A6 108B0-108DF 108F3 108F6-108FA 1091C-1091E 1093A-1093E
10940-1097F 109B8-109BB 109D0-109D1 10A04 10A07-10A0B 10A14 10A18 10A34-10A37 10A3B-10A3E 10A48-10A4F
10A59-10A5F 10AA0-10ABF 10AE7-10AEA 10AF7-10AFF 10B36-10B38 10B56-10B57 10B73-10B77 10B92-10B98
10B9D-10BA8 10BB0-10BFF 10C49-10C7F 10CB3-10CBF 10CF3-10CF9 10D00-10E5F 10E7F-10EAC 10EAE-10F54
10F5A-10F85 10F8A-10FFF 1104E-11051 11070-1107E 110C2-110CC 110CE-110CF 110E9-110EF 110FA-110FF 11135
11144-1114F 11177-1117F 111CE-111CF 111E0 111F5-111FF 11212 1123F-1127F 11287 11289 1128E 1129E
112AA-112AF 112EB-112EF 112FA-112FF 11304 1130D-1130E 11311-11312 11329 11331 11334 1133A-1133B
11345-11346 11349-1134A 1134E-1134F 11351-11356 11358-1135C 11364-11365 1136D-1136F 11375-113FF 1145C
1145E-1147F 114C8-114CF 114DA-1157F 115B6-115B7 115DE-115FF 11645-1164F 1165A-1165F 1166D-1167F 116B8
116BA-116BF 116CA-116FF 1171A-1171C 1172C-1172F 11740-1183A 1183C-1189F 118F3-118FE 11900-11943
11947-119E1 119E3-11A3E 11A47-11A99 11A9D 11AA3-11ABF 11AF9-11BFF 11C09 11C37 11C46-11C4F 11C6D-11C6F
11C90-11C91 11CA8 11CB7-11EF6 11EF9-11FD4 11FF2-11FFE 1239A-123FF 1246F 12475-1247F 12544-12FF0
12FF3-12FFF 1342F 13439-143FF 14647-167FF 16A39-16A3F 16A5F 16A6A-16A6D 16A70-16ACF 16AEE-16AEF
16AF6-16AFF 16B46-16B4F 16B5A 16B62 16B78-16B7C 16B90-16E96 16E9B-16EFF 16F45-16F4F 16F7F-16F8E
16FA0-16FDF 16FE1 16FE3-16FFF 187ED-187FF 18AF3-1AFFF 1B002-1BBFF 1BC6B-1BC6F 1BC7D-1BC7F 1BC89-1BC8F
1BC9A-1BC9B 1BCA4-1CF4F 1CFC4-1CFFF 1D0F6-1D0FF 1D127-1D128 1D1EB-1D1FF 1D246-1D2FF 1D357-1D35F
1D372-1D3FF 1D455 1D49D 1D4A0-1D4A1 1D4A3-1D4A4 1D4A7-1D4A8 1D4AD 1D4BA 1D4BC 1D4C4 1D506 1D50B-1D50C
1D515 1D51D 1D53A 1D53F 1D545 1D547-1D549 1D551 1D6A6-1D6A7 1D7CC-1D7CD 1DA8C-1DA9A 1DAA0 1DAB0-1DFFF
1E007 1E019-1E01A 1E022 1E025 1E02B-1E14E 1E150-1E2FE 1E300-1E7FF 1E8C5-1E8C6 1E8D7-1E8FF 1E94B-1E94F
1E95A-1E95D 1E960-1ECAB 1ECAD-1ECAF 1ECB1-1ED2D 1ED2F-1EDFF 1EE04 1EE20 1EE23 1EE25-1EE26 1EE28 1EE33
1EE38 1EE3A 1EE3C-1EE41 1EE43-1EE46 1EE48 1EE4A 1EE4C 1EE50 1EE53 1EE55-1EE56 1EE58 1EE5A 1EE5C 1EE5E
1EE60 1EE63 1EE65-1EE66 1EE6B 1EE73 1EE78 1EE7D 1EE7F 1EE8A 1EE9C-1EEA0 1EEA4 1EEAA 1EEBC-1EEEF
1EEF2-1EFFF 1F1AE-1F1E5 1FB93 1FBCB-1FFFD 2A6D7-2A6FF 2B735-2B73F 2B81E-2B81F 2CEA2-2F7FF 2FA1E-2FFFD
30000-3FFFD 40000-4FFFD 50000-5FFFD 60000-6FFFD 70000-7FFFD 80000-8FFFD 90000-9FFFD A0000-AFFFD
B0000-BFFFD C0000-CFFFD D0000-DFFFD E0000 E0002-E001F E0080-E00FF E01F0-EFFFD
"""


@functools.cache
def recent_classes() -> NDArray[np.uint8]:
    """Per code point: UNSAFE for a recent character, else 0.
    What `kernels.wordclasses.suspects` looks for."""
    classes = np.zeros(_COUNT, np.uint8)
    for span in _RECENT.split():
        first, _, last = span.partition("-")
        classes[int(first, 16) : int(last or first, 16) + 1] = UNSAFE
    return classes
