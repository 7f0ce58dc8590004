"""N-grams of a text, character by character and in Python's numbers: the oracle of the kernel."""

from __future__ import annotations

from tokmill.kernels.ngrams import Shape

MASK = (1 << 64) - 1
JOIN_TWO, JOIN_THREE, CHARS_START = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9


def mixed(word: int) -> int:
    word = ((word ^ word >> 33) * 0xFF51AFD7ED558CCD) & MASK
    word = ((word ^ word >> 33) * 0xC4CEB9FE1A85EC53) & MASK
    return word ^ word >> 33


def fnv(data: bytes, start: int) -> int:
    for byte in data:
        start = ((start ^ byte) * 0x100000001B3) & MASK
    return start


def is_inside(character: str) -> bool:
    code = ord(character)
    if code < 0x80:
        return character.isalnum() or character == "_"
    return (0xC0 <= code < 0x2000 and not 0xE00 <= code < 0xF00) or 0xA000 <= code < 0xF000


def tokens_of(text: str) -> list[tuple[str, bool]]:
    """Each with whether it is a word."""
    tokens: list[tuple[str, bool]] = []
    word = ""
    for character in text + " ":
        if is_inside(character):
            word += chr(ord(character) + 32) if "A" <= character <= "Z" else character
            continue
        if word:
            tokens.append((word, True))
            word = ""
        if ord(character) > 0x20 and ord(character) != 0x7F:
            tokens.append((character, False))
    return tokens


def hash_of(words: tuple[str, ...]) -> int:
    hashes = [mixed(fnv(word.encode(), 0xCBF29CE484222325)) for word in words]
    if len(hashes) == 1:
        return hashes[0]
    joined = (hashes[0] * JOIN_TWO + hashes[1]) & MASK
    return mixed(joined if len(hashes) == 2 else (joined * JOIN_THREE + hashes[2]) & MASK)


def named_ngrams(text: str, shape: Shape) -> list[tuple[str, int]]:
    """Names as people see them, and buckets, in the order of the text."""
    down = 64 - shape.bits
    tokens = tokens_of(text)
    found: list[tuple[str, int]] = []
    for last, (token, is_word) in enumerate(tokens):
        for count in range(1, min(shape.words, last + 1) + 1):
            words = tuple(word for word, _ in tokens[last + 1 - count : last + 1])
            found.append((" ".join(words), hash_of(words) >> down))
        if is_word and shape.max_chars and len(token.encode()) <= 64:
            framed = f"<{token}>"
            for first in range(len(framed)):
                for size in range(shape.min_chars, min(shape.max_chars, len(framed) - first) + 1):
                    part = framed[first : first + size]
                    name = f"{'' if first == 0 else '~'}{part}{'' if first + size == len(framed) else '~'}"
                    found.append((name, mixed(fnv(part.encode(), CHARS_START)) >> down))
    return found
