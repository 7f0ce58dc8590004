"""The mistakes of a recipe, as they are found; and the files of its sources, as far as they are known."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tokmill.errors import RecipeError, TokmillError
from tokmill.recipe.file import Mistake, Written
from tokmill.recipe.section import Path_
from tokmill.storage.disk import system_error
from tokmill.storage.location import InputFile


class Files(NamedTuple):
    every: list[InputFile]
    fresh: list[InputFile]  # those that the last run has not read


NONE = Files([], [])
Sizes = dict[str, Files | None]  # None: not known here


class Found:
    """Mistakes so far."""

    def __init__(self, written: Written) -> None:
        self.written = written
        self.mistakes: list[Mistake] = list(written.mistakes)
        self._has_files = True

    def of_recipe_alone(self) -> Found:
        """The same list, to which only mistakes of the recipe are added, and none of files."""
        other = copy.copy(self)
        other._has_files = False
        return other

    def note(self, path: Path_, error: TokmillError) -> None:
        if not self._has_files and not isinstance(error, RecipeError):
            return
        self.mistakes.append(self.written.mistake(path, error))

    def holds(self, path: Path_, check: Callable[..., Any], *arguments: Any) -> bool:
        """What `check` refuses is a mistake there."""
        try:
            check(*arguments)
        except TokmillError as error:
            self.note(path, error)
        except OSError as error:
            self.note(path, system_error(error, ""))
        else:
            return True
        return False


def patterns_at(place: Path_, section: Any) -> Iterator[tuple[Path_, str]]:
    """A single one may be written without a list."""
    patterns: Sequence[str] = getattr(section, "files", None) or ()
    for number, pattern in enumerate(patterns):
        yield (*place, number) if len(patterns) > 1 else place, pattern
