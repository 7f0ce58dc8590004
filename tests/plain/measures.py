"""Every measure of docs/measures.md, with strings, `re` and `unicodedata`, one document at a time."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from unicodedata import category

from plain.words import (
    ABBREVIATIONS,
    BOILERPLATE,
    GENERATED_MARKS,
    JAVASCRIPT,
    LOREM_IPSUM,
    POLICY_PHRASES,
    SPACELESS,
    STOP_WORDS,
    TERMINALS,
    UNITS,
    URL_STARTS,
)


def is_digit(c: str) -> bool:
    return category(c) == "Nd"


def is_upper(c: str) -> bool:
    return category(c) in ("Lu", "Lt")


def is_quote(c: str) -> bool:
    return category(c) in ("Pi", "Pf") or c in "'\"`´"


def is_edge(c: str) -> bool:
    if c.isascii():
        return c in "!\"#&'()*,:;<>?[]_`{}"
    return category(c)[0] == "P" or category(c) == "So" or c == "´"


def is_opener(c: str) -> bool:
    return c in "$%=§" or category(c) == "Sc"


def is_spaceless(c: str) -> bool:
    return c.isalpha() and any(first <= ord(c) <= last for first, last in SPACELESS)


def is_terminal(c: str) -> bool:
    return any(first <= ord(c) <= last for first, last in TERMINALS)


def is_symbol(c: str) -> bool:
    return category(c)[0] in "PS"


def is_control(c: str) -> bool:
    return category(c) == "Cc" and not c.isspace()


def split_words(text: str) -> list[str]:
    return [word for chunk in text.split() for word in split_chunk(chunk)]


def split_chunk(rest: str) -> list[str]:
    front: list[str] = []
    while piece := front_piece(rest):
        front.append(piece)
        rest = rest[len(piece) :]
    back: list[str] = []
    while piece := back_piece(rest):
        back.insert(0, piece)
        rest = rest[: -len(piece)]
    return front + split_core(rest) + back


def front_piece(rest: str) -> str:
    if dots := re.match(r"\.\.+", rest):
        return dots.group()
    if not rest or (rest[0] == "+" and len(rest) > 1 and is_digit(rest[1])):
        return ""
    return rest[0] if rest[0] == "+" or is_edge(rest[0]) or is_opener(rest[0]) else ""


def back_piece(rest: str) -> str:
    if not rest:
        return ""
    last, before = rest[-1], rest[-2:-1]
    if dots := re.search(r"\.\.+$", rest):
        return dots.group()
    if last == ".":
        if not before or rest in ABBREVIATIONS or re.fullmatch(r"[A-Za-z]\.", rest):
            return ""
        if is_upper(before):
            return "." if len(rest) > 2 and is_upper(rest[-3]) else ""
        return "." if before.isalpha() or is_digit(before) or is_edge(before) or before in "%-+²" else ""
    if is_edge(last):
        return last
    if before and before in "'’" and last in "sS":
        return rest[-2:]
    if before and is_digit(before) and (last == "+" or category(last) == "Sc"):
        return last
    unit = re.search(r"(?<=[0-9])[^0-9]{1,4}$", rest)
    return unit.group() if unit and unit.group() in UNITS else ""


def split_core(core: str) -> list[str]:
    can_be_address = not any(map(is_spaceless, core))
    found: list[str] = []
    start = at = 0
    while at < len(core):
        if is_spaceless(core[at]):
            size = 1
            while at + size < len(core) and category(core[at + size])[0] == "M":
                size += 1
        else:
            size = cut_size(core, at) if at else 0
            if size and can_be_address and is_address(core):
                return [core]
        if not size:
            at += 1
            continue
        found += [core[start:at], core[at : at + size]]
        start = at = at + size
    found += split_contraction(core[start:])
    return [word for word in found if word]


def cut_size(core: str, at: int) -> int:
    """How many characters from `at` on stand between two words."""
    c, before = core[at], core[at - 1]
    if category(c) == "So" or c == "…":
        return 1
    run = {".": r"\.+", "-": "-{1,3}"}.get(c, re.escape(c))
    size = len(re.compile(run).match(core, at).group())  # type: ignore[union-attr]
    if c == "." and size > 1:
        return size
    after = core[at + size : at + size + 1]
    if c in "-~–—:<>=/" and (before.isalpha() or is_digit(before)) and after.isalpha():
        return size
    if c == "," and before.isalpha() and after.isalpha():
        return 1
    if c == "." and after and ((before.isalpha() and not is_upper(before)) or is_quote(before)):
        return int(is_upper(after) or is_quote(after))
    following = core[at + 1 : at + 2]
    return int(
        c in "+-*^" and is_digit(before) and bool(following) and (following == "-" or is_digit(following))
    )


def is_address(core: str) -> bool:
    host_character = r"(?:[A-Za-z0-9._-]|[^\x00-\x7f])"
    scheme = re.match(rf"(?:{host_character}|\+)+(?=://)", core)
    if scheme and len(scheme.group().encode()) >= 2:
        core = core[scheme.end() + 3 :]
    core = core[core.rfind("@") + 1 :]
    match = re.match(rf"({host_character}+)(:[0-9]{{2,5}})?([/?#]|\Z)", core, re.DOTALL)
    if not match:
        return False
    *labels, top = match.group(1).split(".")
    if not labels or len(top.encode()) < 2 or not all(c.isalpha() and not is_upper(c) for c in top):
        return False
    return all(label and label[0] not in "-_" and label[-1] not in "-_" for label in labels)


def split_contraction(word: str) -> list[str]:
    if found := re.fullmatch(r"(.+)([nN]['’][tT])", word, re.DOTALL):
        return list(found.groups())
    found = re.fullmatch(r"(.+)(['’](?:[lL][lL]|[rRvV][eE]|[mMdD]))", word, re.DOTALL)
    return list(found.groups()) if found and found.group(1)[-1].isalpha() else [word]


def count_sentences(line: str) -> int:
    words = split_words(line)
    count, is_over = int(bool(words)), False
    for word in words:
        ends = len(word) == 1 and is_terminal(word)
        if is_over and not ends and not all(category(c)[0] == "P" for c in word):
            count += 1
            is_over = False
        is_over = is_over or ends
    return count


def top_gram_chars(words: list[str], n: int) -> int:
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    if not grams:
        return 0
    (gram, count), *_ = Counter(grams).most_common(1)
    return len(" ".join(gram)) * count


def dup_gram_chars(words: list[str], n: int) -> int:
    met, at, chars = set(), 0, 0
    while at + n <= len(words):
        gram = tuple(words[at : at + n])
        if gram in met:
            chars += len("".join(gram))
            at += n
        else:
            met.add(gram)
            at += 1
    return chars


def duplicates(items: list[str]) -> list[str]:
    met: set[str] = set()
    return [item for item in items if item in met or met.add(item)]  # type: ignore[func-returns-value]


def ascii_lower(text: str) -> str:
    return re.sub("[A-Z]", lambda letter: letter.group().lower(), text)


def places(text: str, phrases: tuple[str, ...]) -> int:
    return sum(len(re.findall(f"(?={re.escape(phrase)})", ascii_lower(text))) for phrase in phrases)


def share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def is_data(line: str) -> bool:
    visible = re.sub(r"[ \t\r]", "", line)
    is_row = re.fullmatch(r"[0-9a-fA-FxXuUL\\+\-'\"()\[\]{},.;:]+", visible)
    digits = len(re.findall(r"[0-9]", visible))
    is_numbers = is_row is not None and 5 * digits >= len(visible)
    has_base64 = re.search(r"[A-Za-z0-9+/=]{64}", line) is not None
    return len(line.strip(" \t\r").encode()) >= 40 and (is_numbers or has_base64)


def first_lines(text: str) -> list[str]:
    head = b"\n".join(text.encode().split(b"\n")[:5])[:4096]
    return ascii_lower(head.decode(errors="ignore")).split("\n")


def measure(text: str) -> dict[str, float]:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    filled = [line for line in lines if line.strip()]
    paragraphs = re.split(r"\n{2,}", text.strip()) if text.strip() else []
    dup_lines, dup_paragraphs = duplicates(filled), duplicates(paragraphs)
    dup_chars = len("".join(dup_lines))
    twice = sum(count for count in Counter(filled).values() if count > 1)
    words = split_words(text)
    plain = [w for w in words if not all(is_symbol(c) or is_control(c) for c in w)]
    furniture = sum(any(phrase in ascii_lower(line) for phrase in BOILERPLATE) for line in lines)
    ellipses = text.count("...") + text.count("…")
    runs = [len(list(run)) for c, run in itertools.groupby(text) if not c.isspace()]
    size = len(text)
    enough = len(filled) if len(filled) >= 6 else 0
    return {
        "bytes": len(text.encode()),
        "chars": size,
        "open_braces": text.count("{"),
        "ascii_share": share(sum(c.isascii() for c in text), size),
        "letter_share": share(sum(c.isalpha() for c in text), size),
        "alphanumeric_share": share(sum(c.isalpha() or is_digit(c) for c in text), size),
        "upper_share": share(sum(map(is_upper, text)), size),
        "digit_share": share(sum(map(is_digit, text)), size),
        "whitespace_share": share(sum(c.isspace() for c in text), size),
        "control_share": share(sum(map(is_control, text)), size),
        "symbol_share": share(sum(map(is_symbol, text)), size),
        "longest_char_run": max(runs, default=0),
        "lines": len(lines),
        "filled_lines": len(filled),
        "paragraphs": len(paragraphs),
        "bullet_line_share": share(sum(line.lstrip()[:1] in ("-", "•") for line in lines), len(lines)),
        "ellipsis_line_share": share(sum(line.rstrip().endswith(("...", "…")) for line in lines), len(lines)),
        "terminal_line_share": share(sum(is_terminal(line.rstrip()[-1]) for line in filled), len(filled)),
        "short_line_share": share(sum(len(line.rstrip()) <= 30 for line in filled), len(filled)),
        "dup_lines": len(dup_lines),
        "dup_paragraphs": len(dup_paragraphs),
        "dup_line_share": share(len(dup_lines), len(filled)),
        "dup_paragraph_share": share(len(dup_paragraphs), len(paragraphs)),
        "dup_line_char_share": share(dup_chars, size),
        "dup_line_body_share": share(dup_chars, size - text.count("\n")),
        "dup_paragraph_char_share": share(len("".join(dup_paragraphs)), size),
        "repeated_line_share": share(twice, enough),
        "words": len(words),
        "non_symbol_words": len(plain),
        "mean_word_length": share(sum(map(len, plain)), len(plain)),
        "median_word_length": statistics.median(map(len, plain)) if plain else 0,
        "longest_word": max(map(len, words), default=0),
        "alpha_word_share": share(sum(any(c.isalpha() for c in w) for w in words), len(words)),
        "stop_words": len(set(STOP_WORDS) & set(words)),
        "sentences": sum(map(count_sentences, lines)),
        "hash_word_ratio": share(text.count("#"), len(words)),
        "ellipsis_word_ratio": share(ellipses, len(words)),
        "newline_word_ratio": share(text.count("\n"), len(words)),
        **{f"top_{n}gram_share": share(top_gram_chars(words, n), size) for n in (2, 3, 4)},
        **{f"dup_{n}gram_share": share(dup_gram_chars(words, n), size) for n in range(5, 11)},
        "lorem_ipsum": places(text, LOREM_IPSUM),
        "javascript": places(text, JAVASCRIPT),
        "policy_phrases": places(text, POLICY_PHRASES),
        "urls": places(text, URL_STARTS),
        "boilerplate_lines": furniture,
        "boilerplate_line_share": share(furniture, enough),
        "longest_line": max(map(len, lines), default=0),
        "mean_line_length": share(sum(map(len, lines)), len(lines)),
        "data_line_share": share(sum(map(is_data, lines)), len(lines)),
        "generated_marks": sum(any(mark in line for mark in GENERATED_MARKS) for line in first_lines(text)),
    }
