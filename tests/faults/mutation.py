"""What can be wrong with bytes: damage that disks and networks do, and damage that somebody meant."""

from __future__ import annotations

import random
from collections.abc import Callable

# Where formats keep lengths and counts, these are the ones that hurt.
_NUMBERS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
_WORDS = (
    b"\0", b"\0\0\0\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf",
    b"\xff\xfe", b"\r", b"\n", b"\n\n", b"\xe2\x80\xa8", b"\x1a", b"\t", b'"', b"\\", b"\\ud800", b"\\u0000",
    b"{", b"}", b"[", b"]", b"<", b">", b"&", b"</",
    b"<!--", b"<![CDATA[", b"<!DOCTYPE x [<!ENTITY a \"b\">]>", b"&#0;", b"&#x110000;", b"NaN", b"Infinity",
    b"1e999", b"-1", b"null", b"true", b"9" * 400, b"[" * 2000, b'{"a":' * 500, b"../../../../etc/passwd",
    b"!!python/object/apply:os.system ['true']", b"&a *a", b"%s%n", b"{0.__class__}",
)  # fmt: skip


def flip(data: bytearray, chance: random.Random, other: bytes) -> None:
    for _ in range(chance.choice([1, 1, 2, 8])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random, other: bytes) -> None:
    del data[chance.randrange(len(data)) :]


def lose(data: bytearray, chance: random.Random, other: bytes) -> None:
    start = chance.randrange(len(data))
    del data[start : start + chance.choice([1, 4, 64, 512])]


def double(data: bytearray, chance: random.Random, other: bytes) -> None:
    start = chance.randrange(len(data))
    piece = data[start : start + chance.choice([1, 16, 256])]
    place = chance.randrange(len(data) + 1)
    data[place:place] = piece * chance.choice([1, 2, 300])


def splice(data: bytearray, chance: random.Random, other: bytes) -> None:
    """The beginning of one file and the end of another."""
    data[chance.randrange(len(data)) :] = other[chance.randrange(len(other)) :]


def insert(data: bytearray, chance: random.Random, other: bytes) -> None:
    place = chance.randrange(len(data) + 1)
    data[place:place] = chance.choice(_WORDS)


def overwrite(data: bytearray, chance: random.Random, other: bytes) -> None:
    word = chance.choice(_WORDS)
    place = chance.randrange(len(data))
    data[place : place + len(word)] = word


def renumber(data: bytearray, chance: random.Random, other: bytes) -> None:
    """A length or a count as it never should be, binary or spelled."""
    size = chance.choice([1, 2, 4, 8])
    place = chance.randrange(len(data))
    value = chance.choice(_NUMBERS) & ((1 << 8 * size) - 1)
    data[place : place + size] = value.to_bytes(size, chance.choice(["little", "big"]))  # type: ignore[arg-type]


def respell(data: bytearray, chance: random.Random, other: bytes) -> None:
    digits = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if digits:
        place = chance.choice(digits)
        data[place : place + 1] = str(chance.choice([*_NUMBERS, -1, 10**30])).encode()


def scramble(data: bytearray, chance: random.Random, other: bytes) -> None:
    start = chance.randrange(len(data))
    stop = min(len(data), start + chance.choice([8, 64, 1024]))
    data[start:stop] = chance.randbytes(stop - start)


_CHANGES: list[Callable[[bytearray, random.Random, bytes], None]] = [
    flip, cut, lose, double, splice, insert, overwrite, renumber, respell, scramble,
]  # fmt: skip


def mutate(data: bytes, chance: random.Random, other: bytes) -> bytes:
    """One to four changes; now and then nothing is left."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        if not changed:
            break
        chance.choice(_CHANGES)(changed, chance, other or b"\0")
    return bytes(changed)
