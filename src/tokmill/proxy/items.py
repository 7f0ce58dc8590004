"""Questions with several answers, as lines of a file.

    {"prompt": "The capital of France is", "choices": [" Rome", " Paris"], "answer": 1}

`answer` is the number of the right choice, from 0, or the choice itself. What is scored of them is in
choices.py, which needs PyTorch; this does not.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokmill.errors import InputError
from tokmill.storage.location import read_whole

_MAX_BYTES = 1 << 30


class Item(msgspec.Struct, frozen=True):
    prompt: str
    choices: tuple[str, ...]
    answer: int | str


class Items(NamedTuple):
    name: str
    items: tuple[Item, ...]
    digest: str


def load_items(path: Path) -> Items:
    """Every line is looked at, and the first that is wrong is told with its number."""
    data = read_whole(path, _MAX_BYTES)
    items = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            items.append(_item(line, f"{path} line {number}"))
    if not items:
        raise InputError("has no items", where=str(path), next=_FORM)
    return Items(path.name, tuple(items), hashlib.sha256(data).hexdigest())


_FORM = 'write a line for each: {"prompt": "2 + 2 =", "choices": [" 3", " 4"], "answer": 1}'


def _item(line: bytes, where: str) -> Item:
    try:
        item = msgspec.json.decode(line, type=Item)
    except msgspec.MsgspecError as error:
        raise InputError(f"is no item ({error})", where=where, next=_FORM) from error
    if len(item.choices) < 2 or not all(item.choices):
        raise InputError("has fewer than two choices, or an empty one", where=where, next=_FORM)
    if len(set(item.choices)) < len(item.choices):
        raise InputError("has the same choice twice", where=where, next="leave one of them out")
    if isinstance(item.answer, str):
        if item.answer not in item.choices:
            raise InputError(
                f"its answer {item.answer!r} is none of its choices",
                where=where,
                next="spell it as the choice is spelled, or give its number, from 0",
            )
        return Item(item.prompt, item.choices, item.choices.index(item.answer))
    if not 0 <= item.answer < len(item.choices):
        raise InputError(
            f"its answer is number {item.answer}, and it has {len(item.choices)} choices",
            where=where,
            next="numbers of choices count from 0",
        )
    return item
