"""How a kernel is declared, and what arrays it takes:
compiled on first call, cached on disk, free of the GIL.

    kernel       may make arrays                inlined    a step of one
    raw_kernel   only takes arrays              raw_step   a step of one, always inlined

numba counts references to the owner of every array that it passes on, with atomic instructions, and prunes
only what it can prove useless. A kernel that makes no arrays needs none of it: with the runtime that counts
switched off, splitting text into words went from 44 to 87 MB/s.

numba's disk cache notices a change of the file that holds the kernel, and of no other, though constants and
steps that it imports are compiled into it. So the stamp that is compared is ours: the text of the file, and
of all files of this folder that it imports from. Of the whole folder would be simpler, but then one edited
kernel, or a release that touches one, compiles all of them: 40 s instead of one. The text, not the time of
the file: an installed copy, another clone or a new layer of an image has the same text, and what was compiled
from it still holds.

Nothing of numba is loaded before a kernel is called (`compiler.py`): the driver of workers calls none. And
before it looks into its cache numba loads what it compiles with: registries of functions and types, and
extensions of other packages, such as awkward, which comes with gigatoken. That takes 0.37 CPU seconds in
every process, and code that is compiled needs none of it: it is loaded when a kernel has to be compiled.

One flavour of array for every kernel, so that each is compiled once:

Arrow large_string        data     uint8[bytes]    h e l l o w o r l d
                          offsets  int64[n + 1]    0 5 5 10            row i = data[offsets[i]:offsets[i+1]]

numba compiles a new specialization (about a second) for each new combination of type, layout and
writability of the arguments. Arrow's buffers are read-only and contiguous, so read-only and contiguous is
what every kernel gets, whatever its caller had.

Steps that kernels of several files share: words of eight bytes and marks in them, UTF-8, hashes,
classes of characters.

In a word, byte k of the text is bits 8k to 8k + 7. A mark is 0x80 in each byte that has some property.
"""

from __future__ import annotations

import functools
import hashlib
import pkgutil
import re
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
# What a kernel counts with: one type to numba, two to the type checker.
Int = int | np.int64

_IMPORTED = re.compile(rf"^from ({re.escape(__package__)}\.\w+) import", re.MULTILINE)
_COMPILED_BY = (f"{__package__}.compiler", f"{__package__}.instructions")


def kernel(first_call: Callable[[], object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`first_call` calls the kernel through its wrapper, on next to nothing:
    `tokmill.kernels.warm` compiles it by that."""
    return lambda function: _Kernel(function, first_call)


def raw_kernel(first_call: Callable[[], object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    return lambda function: _Kernel(function, first_call, _nrt=False)


class _Kernel(Generic[P, R]):
    """Numba's from its first call on."""

    def __init__(self, function: Callable[P, R], first_call: Callable[[], object], **options: Any) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._options = {**options, "nogil": True, "error_model": "numpy"}
        self._made: Any = None
        self.first_call = first_call

    def __call__(self, *values: P.args, **named: P.kwargs) -> R:
        made = self._made or self._make()
        result: R = made(*values, **named)
        return result

    def _make(self) -> Any:
        from tokmill.kernels.compiler import make_kernel

        stamp = source_stamp(self._function.__module__)
        self._made = make_kernel(self._function, self._options, stamp, _declare_steps)
        return self._made

    @property
    def stats(self) -> Any:
        return (self._made or self._make()).stats

    @property
    def signatures(self) -> list[Any]:
        """That it is loaded for, or compiled."""
        return self._made.signatures if self._made is not None else []

    @property
    def _numba_type_(self) -> Any:
        """In another kernel."""
        return (self._made or self._make())._numba_type_


_undeclared: list[tuple[Callable[..., Any], dict[str, Any]]] = []  # code that is in the cache has its steps


def _declare_steps() -> None:
    from tokmill.kernels.compiler import declare_instruction, declare_step

    while _undeclared:
        step, options = _undeclared.pop(0)
        if isinstance(step, Instruction):
            declare_instruction(step, step.name)
        else:
            declare_step(step, options)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A step of the kernels of its own file: compiled into each of them, never on its own.

    Keep a step that takes an array to a few lines. LLVM calls a long one instead of inlining it, and such a
    call counts references on the array's owner: a walk with one call per byte ran at 47 MB/s. numba's
    inline="always" is no way out: measure_text fell from 3.9 to 1.7 GB/s with it, and SHA-256 took 3.3 s to
    compile instead of 1.2.
    """
    _undeclared.append((function, {}))
    return function


def raw_step(function: Callable[P, R]) -> Callable[P, R]:
    _undeclared.append((function, {"_nrt": False, "forceinline": True}))
    return function


def called_step(function: Callable[P, R]) -> Callable[P, R]:
    """Of a raw kernel, too long to be a part of each place that calls it."""
    _undeclared.append((function, {"_nrt": False}))
    return function


class Instruction:
    """A step of `instructions.py`, by its name there."""

    def __init__(self, name: str) -> None:
        self.name = name
        _undeclared.append((self, {}))

    def __call__(self, *values: Any) -> Any:
        raise NotImplementedError(f"{self.name} is for kernels")


@functools.cache  # as of the import: a file that is edited later is not what this process compiles
def source_stamp(module: str) -> str:
    """What changes when a kernel of `module` has to be compiled again;
    "" where there is no source to read."""
    own = (module, *_COMPILED_BY) if module == __name__ else (module,)
    try:
        source = b"".join(map(_source, own))
    except OSError:
        return ""
    stamps = [source_stamp(imported) for imported in sorted(set(_IMPORTED.findall(_source(module).decode())))]
    return hashlib.sha256(source + "".join(stamps).encode()).hexdigest()


def _source(module: str) -> bytes:
    package, _, name = module.rpartition(".")
    return pkgutil.get_data(package, f"{name}.py") or b""


# --- arrays ---


def frozen(values: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """A read-only, contiguous, aligned view of `values`; a copy only where it was not contiguous."""
    if values.dtype != dtype:
        raise TypeError(f"a kernel wants {np.dtype(dtype)}, got {values.dtype}")
    view = np.require(values, requirements=("C", "A")).view()
    view.flags.writeable = False
    return view


def frozen_text(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets, int]:
    """The two buffers of a text column, checked against each other, and its number of rows.

    Arrow lets an empty column have no offsets at all; it then gets the one offset it should have had.
    """
    if offsets.size == 0:
        offsets = np.zeros(1, np.int64)
    data, offsets = frozen(data, np.uint8), frozen(offsets, np.int64)
    if not 0 <= offsets[0] <= offsets[-1] <= data.size:
        raise ValueError(
            f"offsets {offsets[0]}..{offsets[-1]} lie outside the {data.size} bytes of their column"
        )
    return data, offsets, offsets.size - 1


# What first calls are made with: a text of one row, a row number, a hash.
TEXT = frozen_text(np.frombuffer(b"A\r\n b", np.uint8), np.array([0, 5]))[:2]
ROWS = np.zeros(1, np.int64)
HASHES = np.zeros(1, np.uint64)


# --- steps that kernels of several files share ---

U64 = np.uint64
LOW_BITS = U64(0x0101010101010101)
LOW_SEVEN = U64(0x7F7F7F7F7F7F7F7F)
HIGH_BITS = U64(0x8080808080808080)
CASE_BITS = U64(0x2020202020202020)
FROM_A = U64(0x1F1F1F1F1F1F1F1F)  # added to a or more, the high bit of its byte
AFTER_Z = U64(0x0505050505050505)
# The golden ratio in 64 bits: the high bits of key * SPREAD are a place in a table whatever bits of keys are
# alike.
SPREAD = U64(0x9E3779B97F4A7C15)
# Of the vectors that tell languages: their length is a multiple of it, filled up with zeros; lid.176 has 16.
LANES = 16


@raw_step
def load_word(data: Bytes, at: Int) -> np.uint64:
    """Eight bytes. LLVM makes one load of it, because an unsigned index cannot be negative and so needs no
    wrap-around."""
    i = U64(at)
    return (
        U64(data[i])
        | U64(data[i + U64(1)]) << U64(8)
        | U64(data[i + U64(2)]) << U64(16)
        | U64(data[i + U64(3)]) << U64(24)
        | U64(data[i + U64(4)]) << U64(32)
        | U64(data[i + U64(5)]) << U64(40)
        | U64(data[i + U64(6)]) << U64(48)
        | U64(data[i + U64(7)]) << U64(56)
    )


@raw_step
def load_rest(data: Bytes, at: Int) -> np.uint64:
    """The fewer than eight bytes up to the end of the buffer."""
    word = U64(0)
    for k in range(data.size - at):
        word |= U64(data[at + k]) << U64(8 * k)
    return word


@raw_step
def store_word(data: Bytes, at: Int, word: np.uint64) -> None:
    """LLVM makes one store of it; a copy byte by byte it must not join: 1.2 ns per byte of ASCII, not 0.2."""
    i = U64(at)
    data[i] = np.uint8(word)
    data[i + U64(1)] = np.uint8(word >> U64(8))
    data[i + U64(2)] = np.uint8(word >> U64(16))
    data[i + U64(3)] = np.uint8(word >> U64(24))
    data[i + U64(4)] = np.uint8(word >> U64(32))
    data[i + U64(5)] = np.uint8(word >> U64(40))
    data[i + U64(6)] = np.uint8(word >> U64(48))
    data[i + U64(7)] = np.uint8(word >> U64(56))


@raw_step
def zero_marks(word: np.uint64) -> np.uint64:
    """A mark in each byte that is zero, exactly (the shorter trick also marks a 1 above a 0)."""
    return ~(((word & LOW_SEVEN) + LOW_SEVEN) | word | LOW_SEVEN)


@raw_step
def first_zero(word: np.uint64) -> np.uint64:
    """A mark in the first byte that is zero, and in none before it;
    what it says of later ones may be wrong."""
    return (word - LOW_BITS) & ~word & HIGH_BITS


@raw_step
def letter_marks(word: np.uint64) -> np.uint64:
    """A mark in each byte that is a letter of ASCII."""
    low = (word | CASE_BITS) & LOW_SEVEN
    return (low + FROM_A) & ~(low + AFTER_Z) & ~word & HIGH_BITS


@raw_step
def bytes_before(marks: np.uint64) -> Int:
    """How many bytes stand before the first mark; 8 where there is none."""
    before = ((marks & (~marks + U64(1))) >> U64(7)) - U64(1)
    return np.int64(((before & LOW_BITS) * LOW_BITS) >> U64(56))


# --- UTF-8, which is valid ---


@raw_step
def code_at(data: Bytes, at: Int) -> tuple[Int, Int]:
    """The code point at `at`, and its bytes."""
    lead = np.int64(data[U64(at)])
    if lead < 0x80:
        return lead, np.int64(1)
    return decode(data, at)


@raw_step
def decode(data: Bytes, at: Int) -> tuple[Int, Int]:
    """The code point of two to four bytes, and how many they are."""
    i = U64(at)
    lead = np.int64(data[i])
    second = np.int64(data[i + U64(1)]) & 0x3F
    if lead < 0xE0:
        return ((lead & 0x1F) << 6) | second, np.int64(2)
    third = np.int64(data[i + U64(2)]) & 0x3F
    if lead < 0xF0:
        return ((lead & 0x0F) << 12) | (second << 6) | third, np.int64(3)
    fourth = np.int64(data[i + U64(3)]) & 0x3F
    return ((lead & 0x07) << 18) | (second << 12) | (third << 6) | fourth, np.int64(4)


@raw_step
def start_before(data: Bytes, at: Int) -> Int:
    """Where the character begins that ends at `at`."""
    at -= 1
    while data[U64(at)] & 0xC0 == 0x80:
        at -= 1
    return at


@raw_step
def put_code(data: Bytes, at: Int, code: Int) -> Int:
    """A code point written; where its bytes end."""
    i = U64(at)
    if code < 0x80:
        data[i] = code
        return at + 1
    if code < 0x800:
        data[i] = 0xC0 | code >> 6
        data[i + U64(1)] = 0x80 | code & 0x3F
        return at + 2
    if code < 0x10000:
        data[i] = 0xE0 | code >> 12
        data[i + U64(1)] = 0x80 | code >> 6 & 0x3F
        data[i + U64(2)] = 0x80 | code & 0x3F
        return at + 3
    data[i] = 0xF0 | code >> 18
    data[i + U64(1)] = 0x80 | code >> 12 & 0x3F
    data[i + U64(2)] = 0x80 | code >> 6 & 0x3F
    data[i + U64(3)] = 0x80 | code & 0x3F
    return at + 4


# --- hashes and tables ---


@raw_step
def mix64(word: np.uint64) -> np.uint64:
    """MurmurHash3's last step for 64 bits (public domain, Austin Appleby)."""
    word = (word ^ (word >> U64(33))) * U64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> U64(33))) * U64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> U64(33))


@raw_step
def slots_for(entries: Int) -> Int:
    """Of a hash table that is half empty: a power of two."""
    slots: Int = 16
    while slots < 2 * entries:
        slots *= 2
    return slots


@raw_step
def holds(values: NDArray[np.uint64], value: np.uint64) -> bool:
    """Whether `value` is among sorted values."""
    low, high = 0, values.size
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return bool(low < values.size and values[low] == value)


# --- classes of code points (tokmill.kernels.wordclasses fills the table) ---

LETTER = np.uint16(1 << 0)
UPPER = np.uint16(1 << 1)
DIGIT = np.uint16(1 << 2)  # decimal, of any script
SPACE = np.uint16(1 << 3)
CONTROL = np.uint16(1 << 4)  # and not a space
SYMBOL = np.uint16(1 << 5)  # punctuation or symbol
MARK = np.uint16(1 << 6)  # combines with the character before it
PUNCTUATION = np.uint16(1 << 7)
TERMINAL = np.uint16(1 << 8)  # ends a sentence
EDGE = np.uint16(1 << 9)  # at either end of a word it is a word of its own
OPENER = np.uint16(1 << 10)  # at the front only
MONEY = np.uint16(1 << 11)  # at the end too, after a digit
ICON = np.uint16(1 << 12)  # a word of its own wherever it stands
QUOTE = np.uint16(1 << 13)
SPACELESS = np.uint16(1 << 14)  # a letter of a script without spaces: a word, with its marks
CUTTER = np.uint16(1 << 15)  # may end a word and begin another in the middle of what stands between spaces
