"""The generated files: the same bytes everywhere, with the faults that rules are to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokmill import recipe_init
from tokmill.demos.corpus import generate_pairs, write_passage
from tokmill.demos.problems import Draw
from written import file_sha256

# Of the files that are neither compressed nor made from this Python.
GOLDEN = {
    "pairs.jsonl": "d6abdbb7e60711e326e4c17ae9baae0d5b479ba9b7d0ed8ead804ef2081b43ed",
    "wiki/AA/wiki_00": "61a3abfb322c171bba821f6b5a065f6845ba35d1a61669ca1bf6f2a1d80f045f",
    "qa/Posts.xml": "3ebef45b3afab466f84c1c2ff1f9be0f9319b22c8f6168085a3da9255a185767",
    "problems.jsonl": "6b336b25b23fb874c8231bd5807f56fcc578f992d81554b9f5ae3ad27956f441",
    "competition.jsonl": "0625abdb50dbd3797a51333fd249eaf8c8d140162e49f396f2d0a9dbd4c7efda",
    "books/book-0.txt": "52192c615984182b967d82414eb27e7f9125e1bac127968a53cc749a9b64575e",
}


def test_generated_files_are_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    recipe_init(tmp_path / "recipe.yaml", like="stage-a", offline=True)
    found = {name: file_sha256(tmp_path / "stand-in" / name) for name in GOLDEN}
    assert found == GOLDEN


def test_files_that_are_missing_are_written_and_no_others(tmp_path: Path) -> None:
    first = recipe_init(tmp_path / "a.yaml", like="stage-a", offline=True).files
    assert first
    assert recipe_init(tmp_path / "b.yaml", like="stage-a", offline=True).files == ()
    first[3].unlink()
    assert recipe_init(tmp_path / "c.yaml", like="stage-a", offline=True).files == (first[3],)


def test_no_pair_is_there_twice_and_all_of_them_can_be_had() -> None:
    pairs = generate_pairs(10_000, 1)
    assert len({pair["en"] for pair in pairs}) == len(pairs) == 8 * 20 * 19


@pytest.mark.parametrize("paragraphs", [1, 5])
def test_a_passage_has_its_paragraphs(paragraphs: int) -> None:
    assert len(write_passage(Draw("x"), paragraphs).split("\n\n")) == paragraphs
