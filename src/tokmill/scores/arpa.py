"""ARPA files: n-gram models as text, which SRILM, kenlm and others write.

    \\data\\
    ngram 1=4                                      how many there are of each order
    ngram 2=2

    \\1-grams:
    -1.2<TAB>the<TAB>-0.3                          log10 of the probability, words, log10 of the backoff
    …
    \\end\\

As kenlm does, an unknown word has log10 p = -100 where the file has no <unk>. An n-gram whose later words are
not in the file as one is an error: SRILM can leave such holes when it prunes, and kenlm fills them.
A line that cannot be read, a number that is none, fewer or more lines than are told: CorruptFile.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.kernels.languagemodel import BEGIN, END, MAX_ORDER
from tokmill.scores.kneserney import ONE, Nodes, in_units
from tokmill.storage.disk import Written, load_bytes, open_commit

SPECIAL = (b"<unk>", b"<s>", b"</s>")
_NEVER = -100.0  # of an unknown word, where the file has no <unk>
_MOST = 500.0  # of a logarithm: beyond it nothing is a probability


def load_arpa(path: Path) -> tuple[list[bytes], Nodes]:
    """Words by id, the three special ones first, and the nodes."""
    read = _Reader(path)
    sizes = read.sizes()
    words = list(SPECIAL)
    ids = {word: number for number, word in enumerate(words)}
    found: list[tuple[NDArray[np.int64], list[float], list[float]]] = []
    for order, size in enumerate(sizes, 1):
        read.expect(b"\\%d-grams:" % order)
        grams, logs, backs = np.empty((size, order), np.int64), [], []
        for row in range(size):
            log, spelled, back = read.gram(order)
            if order == 1:
                if spelled[0] == b"<UNK>":
                    spelled = [b"<unk>"]
                number = ids.setdefault(spelled[0], len(words))
                if number == len(words):
                    words.append(spelled[0])
                grams[row, 0] = number
            else:
                try:
                    grams[row] = [ids[word] for word in spelled]
                except KeyError as error:
                    read.fail(f"{error.args[0].decode(errors='replace')!r} is not among the 1-grams")
            logs.append(log)
            backs.append(back)
        found.append((grams, logs, backs))
    read.expect(b"\\end\\")
    return words, _nodes(read, words, found)


def _nodes(
    read: _Reader, words: list[bytes], found: list[tuple[NDArray[np.int64], list[float], list[float]]]
) -> Nodes:
    vocabulary = len(words)
    grams, logs, backs = found[0]
    if len(np.unique(grams)) < len(grams):
        read.fail("a word is among the 1-grams twice")
    probabilities, backoffs = [np.full(vocabulary, _NEVER)], [np.zeros(vocabulary)]
    probabilities[0][grams[:, 0]] = logs
    backoffs[0][grams[:, 0]] = backs
    if not {BEGIN, END} <= set(grams[:, 0].tolist()):
        read.fail("there is no <s>, or no </s>")
    parents, firsts = [np.full(vocabulary, -1)], [np.arange(vocabulary)]
    keys: list[NDArray[np.int64]] = []  # of every order from the second on: (place of the rest, first word)
    base = 0
    for order, (grams, logs, backs) in enumerate(found[1:], 2):
        place = grams[:, -1]
        for shorter in range(2, order):
            wanted = place * vocabulary + grams[:, order - shorter]
            place = np.minimum(np.searchsorted(keys[shorter - 2], wanted), max(len(keys[shorter - 2]) - 1, 0))
            is_there = keys[shorter - 2][place] == wanted if len(keys[shorter - 2]) else wanted < 0
            if not is_there.all():
                row = grams[int(np.flatnonzero(~is_there)[0])]
                spelled = b" ".join(words[word] for word in row).decode(errors="replace")
                read.fail(
                    f"{spelled!r} is there, and its last {shorter} words are not an n-gram of their own"
                )
        key = place * vocabulary + grams[:, 0]
        turn = np.argsort(key, kind="stable")
        if (np.diff(key[turn]) == 0).any():
            read.fail(f"an n-gram of {order} words is there twice")
        keys.append(key[turn])
        parents.append(place[turn] + base)
        firsts.append(grams[turn, 0])
        probabilities.append(np.array(logs)[turn])
        backoffs.append(np.array(backs)[turn])
        base += len(firsts[-2])
    sizes = [len(one) for one in firsts]
    return Nodes(
        sizes,
        np.concatenate(parents).astype(np.int32),
        np.concatenate(firsts).astype(np.int32),
        in_units(np.concatenate(probabilities)),
        in_units(np.concatenate(backoffs)),
        [],
    )


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path, self._number = path, 0
        data = load_bytes(path)
        if data[:2] == b"\x1f\x8b":
            try:
                data = gzip.decompress(data)
            except (OSError, EOFError) as error:
                self.fail(f"the gzip stream is damaged ({error})")
        self._lines: Iterator[bytes] = iter(io.BytesIO(data))

    def fail(self, why: str) -> NoReturn:
        raise CorruptFile(
            f"not an ARPA file that can be used: {why}",
            where=f"{self._path}:{self._number}",
            next="copy or make it again",
        )

    def _line(self) -> bytes:
        """The next one that is not blank."""
        for line in self._lines:
            self._number += 1
            if stripped := line.strip(b" \t\r\n"):
                return stripped
        return self.fail("it ends too soon")

    def sizes(self) -> list[int]:
        self.expect(b"\\data\\")
        sizes: list[int] = []
        held = self._line()
        while held.startswith(b"ngram "):
            order, _, size = held[6:].partition(b"=")
            if not (order.strip().isdigit() and size.strip().isdigit()) or int(order) != len(sizes) + 1:
                self.fail(f"{held[:60].decode(errors='replace')!r}")
            sizes.append(int(size))
            held = self._line()
        if not 1 <= len(sizes) <= MAX_ORDER or sum(sizes) >= 1 << 31:
            self.fail(f"orders 1 to {len(sizes)}, with {sum(sizes):,} n-grams")
        self._lines = _pushed(held, self._lines)
        self._number -= 1
        return sizes

    def expect(self, wanted: bytes) -> None:
        if (line := self._line()) != wanted:
            self.fail(f"{line[:60].decode(errors='replace')!r} stands where {wanted.decode()!r} was awaited")

    def gram(self, order: int) -> tuple[float, list[bytes], float]:
        line = self._line()
        parts = line.split(b"\t")
        spelled = parts[1].split(b" ") if len(parts) in (2, 3) else []
        try:
            log, back = float(parts[0]), float(parts[2]) if len(parts) == 3 else 0.0
        except ValueError:
            spelled = []
        if len(spelled) != order or not all(spelled):
            # SRILM and others put spaces where kenlm puts tabs
            parts = line.split()
            if len(parts) not in (order + 1, order + 2):
                self.fail(f"{line[:60].decode(errors='replace')!r} is no n-gram of {order}")
            spelled = parts[1 : order + 1]
            try:
                log, back = float(parts[0]), float(parts[-1]) if len(parts) == order + 2 else 0.0
            except ValueError:
                self.fail(f"{line[:60].decode(errors='replace')!r} has no numbers")
        if not (-_MOST < log <= 0 and -_MOST < back < _MOST):
            self.fail(f"log10 p = {log} and a backoff of {back}")
        return log, spelled, back


def _pushed(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def write_arpa(path: Path, words: list[bytes], nodes: Nodes) -> Written:
    """In the order of nodes, with seven digits."""
    bases = np.cumsum([0, *nodes.sizes]).tolist()
    with open_commit(path) as file:
        sizes = "".join(f"ngram {order}={size}\n" for order, size in enumerate(nodes.sizes, 1))
        file.write(f"\\data\\\n{sizes}".encode())
        spelled: list[bytes] = list(words)
        for order in range(1, len(nodes.sizes) + 1):
            low, high = bases[order - 1], bases[order]
            if order > 1:
                own = zip(nodes.words[low:high].tolist(), nodes.parents[low:high].tolist(), strict=True)
                spelled = [words[word] + b" " + spelled[parent - bases[order - 2]] for word, parent in own]
            logs = (nodes.probabilities[low:high] / ONE).tolist()
            backs = (nodes.backoffs[low:high] / ONE).tolist()
            lines: list[Any] = [b"\n\\%d-grams:\n" % order]
            for log, gram, back in zip(logs, spelled, backs, strict=True):
                tail = b"\t%.7g" % back if order < len(nodes.sizes) else b""
                lines.append(b"%.7g\t%b%b\n" % (log, gram, tail))
            file.write(b"".join(lines))
        file.write(b"\n\\end\\\n")
    return file.written
