"""The generated files: the same bytes everywhere, with the faults that rules are to find."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tokmill.demo.draw import Draw
from tokmill.demo.prose import generate_pairs, write_passage
from tokmill.demo.stand_in import write_stand_in

# Of the files that are neither compressed nor made from this Python.
GOLDEN = {
    "pairs.jsonl": "d6abdbb7e60711e326e4c17ae9baae0d5b479ba9b7d0ed8ead804ef2081b43ed",
    "wiki/AA/wiki_00": "61a3abfb322c171bba821f6b5a065f6845ba35d1a61669ca1bf6f2a1d80f045f",
    "qa/Posts.xml": "e6cccf84e7654e0cd621b7bed8a554945571ac2426a9f60c8502a8bd93c7740d",
    "problems.jsonl": "c9985370c5f64b3987592e2d0be04edbb3de6116128299727db1b13e85a85720",
    "competition.jsonl": "e63f569254727e2d55a0f00f07d632abb9e9f4acc77ff702d28b2fc91a08cc76",
    "books/book-0.txt": "52192c615984182b967d82414eb27e7f9125e1bac127968a53cc749a9b64575e",
}


def test_generated_files_are_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    write_stand_in(tmp_path)
    found = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in GOLDEN}
    assert found == GOLDEN


def test_files_that_are_missing_are_written_and_no_others(tmp_path: Path) -> None:
    first = write_stand_in(tmp_path)
    assert write_stand_in(tmp_path) == []
    first[3].unlink()
    assert write_stand_in(tmp_path) == [first[3]]


def test_no_pair_is_there_twice_and_all_of_them_can_be_had() -> None:
    pairs = generate_pairs(10_000, 1)
    assert len({pair["en"] for pair in pairs}) == len(pairs) == 8 * 20 * 19


@pytest.mark.parametrize("paragraphs", [1, 5])
def test_a_passage_has_its_paragraphs(paragraphs: int) -> None:
    assert len(write_passage(Draw("x"), paragraphs).split("\n\n")) == paragraphs
