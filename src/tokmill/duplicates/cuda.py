"""Fingerprints by PyTorch on an accelerator, bit for bit those of the CPU.

    folded bytes ─ characters ─ words (prefix sums of a polynomial) ─ n-grams ─ least hash per bin ─ empty bins borrow

Folding (NFKC, casefold) stays on the CPU. All arithmetic is 64-bit integers cut to 32 bits, whose overflow wraps on
every device, and minima and sums of integers do not depend on the order in which they are taken. Word shingles only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tokmill.duplicates.near import NearOptions, Signatures, signature_digests, signatures
from tokmill.duplicates.shingling import FoldedBatch, folded_batches, unit_kinds
from tokmill.kernels import shingles
from tokmill.kernels.minhash import EMPTY, SHINGLE_BASE, probe_tables

Device = Literal["auto", "cpu", "cuda"]
Tensor = Any  # torch.Tensor; torch is imported where it is first needed

_MASK = 0xFFFFFFFF
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # Linux, and Linux under Windows
# Some 40 arrays of 8 bytes per character are alive at once: 5 GB of device memory.
_BATCH_BYTES = 16 << 20


class Words(NamedTuple):
    units: Tensor
    counts: Tensor  # per row
    numbers: Tensor  # per row


def cuda_available() -> bool:
    if not any(Path(driver).exists() for driver in _DRIVERS):
        return False  # torch takes two seconds to import, only to say the same
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def choose_device(wanted: Device, shingle: str, say: Callable[[str], None]) -> Literal["cpu", "cuda"]:
    """Ask once per run: what is wanted and not there is said, and the CPU does it, with the same result."""
    if wanted == "cpu" or shingle != "word":
        if wanted == "cuda":
            say(f"fingerprints of {shingle} shingles are made on the CPU")
        return "cpu"
    if cuda_available():
        return "cuda"
    if wanted == "cuda":
        say("no CUDA device (or no torch: pip install 'tokmill[torch]'); fingerprints are made on the CPU")
    return "cpu"


def signatures_on(device: str, texts: Any, options: NearOptions) -> Signatures:
    """`device` as torch names it; "cpu" is the compiled kernel."""
    return signatures(texts, options) if device == "cpu" else torch_signatures(device, texts, options)


def torch_signatures(device: str, texts: Any, options: NearOptions) -> Signatures:
    import torch

    rows = len(texts)
    found = Signatures(
        np.empty((rows, options.positions), np.uint32), np.empty(rows, np.int64), np.empty(rows, np.uint64)
    )
    kinds = torch.from_numpy(unit_kinds().astype(np.int64)).to(device)
    order = torch.from_numpy(probe_tables(options.positions).order.astype(np.int64)).to(device)
    for batch in folded_batches(texts, _BATCH_BYTES):
        words = _words(torch, device, batch, kinds)
        values, counts = _sketch(torch, words, options, len(batch.offsets) - 1, order)
        rows_here = slice(batch.start, batch.start + len(batch.offsets) - 1)
        found.values[rows_here] = values.cpu().numpy()
        found.shingles[rows_here] = counts.cpu().numpy()
        numbers = words.numbers.cpu().numpy().astype(np.uint32)
        found.digests[rows_here] = signature_digests(found.values[rows_here], numbers)
    return found


def _words(torch: Any, device: str, batch: FoldedBatch, kinds: Tensor) -> Words:
    """What kernels.shingles does byte by byte, character by character at once."""
    _, data, offsets = batch
    rows = len(offsets) - 1
    first = int(offsets[0])
    # Three bytes more, so that every character has a second, third and fourth.
    data = np.concatenate([data[first : offsets[-1]], np.zeros(3, np.uint8)])
    bytes_ = torch.from_numpy(data).to(device)
    is_lead = (bytes_[:-3] & 0xC0) != 0x80
    leads = torch.nonzero(is_lead).squeeze(1)
    bounds = _before(torch, is_lead)[torch.from_numpy(offsets - first).to(device)]  # of rows, in characters
    row = torch.repeat_interleave(torch.arange(rows, device=device), bounds.diff())
    b0, b1, b2, b3 = (bytes_[leads + step].long() for step in range(4))
    b0 = torch.where((b0 >= 65) & (b0 <= 90), b0 + 32, b0)
    width = 1 + (b0 >= 0xC0).long() + (b0 >= 0xE0).long() + (b0 >= 0xF0).long()
    two = ((b0 & 0x1F) << 6) | (b1 & 0x3F)
    three = ((b0 & 0x0F) << 12) | ((b1 & 0x3F) << 6) | (b2 & 0x3F)
    four = ((b0 & 0x07) << 18) | ((b1 & 0x3F) << 12) | ((b2 & 0x3F) << 6) | (b3 & 0x3F)
    code = torch.where(width == 1, b0, torch.where(width == 2, two, torch.where(width == 3, three, four)))
    kind = kinds[code]
    is_digit = kind == shingles.DIGIT
    is_part = kind != shingles.SEPARATOR
    share, of = shingles.MAX_DIGIT_SHARE
    digits, chars = (_before(torch, flags)[bounds].diff() for flags in (is_digit, is_part))
    zeroed = is_digit & (digits * of <= chars * share)[row]

    # A word begins after a separator, with a letter that is a word, and after such a letter and its marks.
    is_same_row = torch.zeros_like(is_part)
    is_same_row[1:] = row[1:] == row[:-1]
    is_continued = torch.zeros_like(is_part)
    is_continued[1:] = is_part[:-1] & is_same_row[1:]
    # The last character before each that is no mark. A running maximum says the same, but took 80 ms of 100.
    is_solid = kind != shingles.MARK
    solid = torch.nonzero(torch.nn.functional.pad(is_solid, (1, 0), value=True)).squeeze(1) - 1
    before = solid[_before(torch, is_solid)[:-1]]
    after_whole = (before >= 0) & (kind[before] == shingles.WHOLE) & (row[before] == row)
    begins = is_part & (~is_continued | (kind == shingles.WHOLE) | (after_whole & (kind != shingles.MARK)))

    word_counts = _before(torch, begins)[bounds].diff()
    zeroed_counts = _before(torch, zeroed)[bounds].diff()
    chosen = torch.nonzero(is_part).squeeze(1)
    begins, code, width, zeroed = (column[chosen] for column in (begins, code, width, zeroed))
    width = torch.where(zeroed, 1, width)
    bytes_of = torch.stack([column[chosen] for column in (b0, b1, b2, b3)])
    base = shingles.UNIT_BASE
    value = torch.where(zeroed, 48, bytes_of[0])
    for step in range(1, 4):
        value = torch.where(width > step, (value * base + bytes_of[step]) & _MASK, value)
    starts = torch.nonzero(begins).squeeze(1)
    ends = torch.cat([starts[1:], torch.tensor([len(chosen)], device=device)]) - 1
    word = torch.cumsum(begins.long(), 0) - 1
    emitted = torch.cumsum(width, 0)
    if len(starts):
        terms = _scaled(torch, value, emitted[ends][word] - emitted)
        unit = _sums(torch, terms, starts, ends)
        marked = _sums(torch, zeroed.long(), starts, ends) > 0
    else:
        unit, marked = starts, starts > 0
    units = ((unit << 1) & _MASK) | marked.long()

    changed = torch.nonzero(zeroed).squeeze(1)
    changed_ends = torch.cumsum(zeroed_counts, 0)
    last = torch.repeat_interleave(changed_ends, zeroed_counts) - 1
    terms = _scaled(torch, code[changed], last - torch.arange(len(changed), device=device))
    numbers = _before(torch, terms)
    numbers = (numbers[changed_ends] - numbers[changed_ends - zeroed_counts]) & _MASK
    return Words(units, word_counts, numbers)


def _sketch(
    torch: Any, words: Words, options: NearOptions, rows: int, order: Tensor
) -> tuple[Tensor, Tensor]:
    """What kernels.minhash does: values and number of shingles per row."""
    n, positions, base = options.ngram, options.positions, SHINGLE_BASE
    device = words.units.device
    counts = words.counts
    ends = torch.cumsum(counts, 0)
    row = torch.repeat_interleave(torch.arange(rows, device=device), counts)
    padded = torch.cat([words.units, torch.zeros(n, dtype=torch.int64, device=device)])
    place = torch.arange(len(words.units), device=device)
    left = ends[row] - place  # units from here to the end of the row
    is_short = (counts < n)[row] & (left == counts[row])
    shingle, marked = torch.zeros_like(place), torch.zeros_like(place)
    for step in range(n):
        unit = padded[step : step + len(place)]
        is_in = left > step
        shingle = torch.where(is_in, (shingle * base + unit) & _MASK, shingle)
        marked |= torch.where(is_in, unit & 1, 0)
    length = (counts[row] * pow(base, n, 1 << 32)) & _MASK
    shingle = torch.where(is_short, (shingle + length) & _MASK, shingle)
    chosen = torch.nonzero((left >= n) | is_short).squeeze(1)
    value = ((_mixed(shingle[chosen]) & ~1) | marked[chosen]).clamp(max=EMPTY - 2)
    slot = row[chosen] * positions + ((value * positions) >> 32)
    own = torch.full((rows * positions,), EMPTY, dtype=torch.int64, device=device)
    own = own.scatter_reduce_(0, slot, value, "amin").view(rows, positions)
    values = own
    has_words = counts > 0
    for step in range(positions):
        values = torch.where(values == EMPTY, own[:, order[:, step]], values)
        if step % 8 == 7 and not bool(((values == EMPTY).any(1) & has_words).any()):
            break
    return values, torch.where(has_words, (counts - n + 1).clamp(min=1), 0)


def _mixed(word: Tensor) -> Tensor:
    word = ((word ^ (word >> 16)) * 0x85EBCA6B) & _MASK
    word = ((word ^ (word >> 13)) * 0xC2B2AE35) & _MASK
    return word ^ (word >> 16)


def _scaled(torch: Any, value: Tensor, exponent: Tensor) -> Tensor:
    """value * base^exponent mod 2^32. Exponents are as long as a word, so a table of powers is short."""
    highest = int(exponent.max()) if len(exponent) else 0
    powers = np.ones(highest + 1, np.uint64)
    np.multiply.accumulate(
        np.concatenate([[1], np.full(highest, shingles.UNIT_BASE)]).astype(np.uint64), out=powers
    )
    table = torch.from_numpy((powers & np.uint64(_MASK)).astype(np.int64)).to(value.device)
    return (value * table[exponent]) & _MASK


def _before(torch: Any, terms: Tensor) -> Tensor:
    """The sum of all terms before each place, and of all."""
    return torch.nn.functional.pad(torch.cumsum(terms, 0, dtype=torch.int64), (1, 0))


def _sums(torch: Any, terms: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Of terms[starts[i]] to terms[ends[i]], mod 2^32."""
    total = torch.cumsum(terms, 0)
    return (total[ends] - total[starts] + terms[starts]) & _MASK
