"""The hashes that decide who is drawn, held out and mixed where (docs/splits.md, docs/mixtures.md).

mix       MurmurHash3_x64_128's block function as a running state: documents' ids and texts, column by column
splitmix  the finalizer of splitmix64 (Steele et al. 2014): orders of documents and rows
"""

from __future__ import annotations

import hashlib
import struct

import mmh3

MASK = (1 << 64) - 1
_FACTORS = (0x87C37B91114253D5, 0x4CF5AD432745937F)

State = tuple[int, int]


def seeded(purpose: str) -> State:
    """The state that a purpose starts from: sha256's first 16 bytes, little-endian."""
    first, second = struct.unpack("<2Q", hashlib.sha256(purpose.encode()).digest()[:16])
    return first, second


def text_hash(text: str) -> State:
    """Of a text alone: the first 32 hex digits of it are the id of a record that has none."""
    return mix((0, 0), text)


def mix(state: State, value: str | None) -> State:
    """Stir a value into a state. A null is not an empty string, and "ab", "c" is not "a", "bc"."""
    if value is None:
        return _finished(_block(state, (2, 0)))
    data = value.encode()
    state = _block(state, (1, len(data)))
    return _finished(_block(state, mmh3.hash64(data, x64arch=True, signed=False)))


def _block(state: State, words: State) -> State:
    (first, second), (one, two), (c1, c2) = state, words, _FACTORS
    first ^= _rotated(one * c1, 31) * c2 & MASK
    first = ((_rotated(first, 27) + second) * 5 + 0x52DCE729) & MASK
    second ^= _rotated(two * c2, 33) * c1 & MASK
    second = ((_rotated(second, 31) + first) * 5 + 0x38495AB5) & MASK
    return first, second


def _finished(state: State) -> State:
    first, second = state
    first = (first + second) & MASK
    second = (second + first) & MASK
    first, second = murmur_end(first), murmur_end(second)
    first = (first + second) & MASK
    return first, (second + first) & MASK


def murmur_end(word: int) -> int:
    """MurmurHash3's finalizer of 64 bits."""
    word = ((word ^ word >> 33) * 0xFF51AFD7ED558CCD) & MASK
    word = ((word ^ word >> 33) * 0xC4CEB9FE1A85EC53) & MASK
    return word ^ word >> 33


def _rotated(word: int, bits: int) -> int:
    word &= MASK
    return (word << bits | word >> (64 - bits)) & MASK


def splitmix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def shuffled(identities: list[int], purpose: str) -> list[int]:
    """Places by a keyed hash of each identity without its last bits, and of equal ones as they stand."""
    key = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "big")
    bits = max(len(identities) - 1, 0).bit_length()
    marks = [splitmix(splitmix(identity) ^ key) >> bits for identity in identities]
    return sorted(range(len(identities)), key=lambda place: (marks[place], place))
