"""The example recipes that come with tokmill: find one, and copy it to a file of one's own.

recipes/<name>.yaml            examples of real projects, against the hub: of a checkout, or of the package
recipes/offline/<name>.yaml    the same with other `sources`: files that write_stand_in makes beside it
recipes/README.md              a section `## <name>` for each

copy_recipe ─ the lines of its section as comments ─ the recipe ─> a file of one's own
"""

from __future__ import annotations

import difflib
from pathlib import Path

from tokmill.errors import RecipeError
from tokmill.storage.disk import commit_bytes

STAND_IN = "stand-in"  # beside an offline recipe; `tokmill.demos.stand_in` writes it
_README = "README.md"


def examples_directory() -> Path:
    """A wheel has the folder inside the package; a checkout at its root, where people look for it."""
    package = Path(__file__).parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def recipe_names() -> list[str]:
    return sorted(path.stem for path in examples_directory().glob("*.yaml"))


def find_recipe(name: str, *, offline: bool = False) -> Path:
    names = recipe_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise RecipeError(
            f"no recipe is called {name}",
            where=str(examples_directory()),
            next=(f"did you mean `{near[0]}`? " if near else "") + f"there are: {', '.join(names)}",
        )
    return (examples_directory() / "offline" if offline else examples_directory()) / f"{name}.yaml"


def copy_recipe(name: str, path: Path, *, offline: bool = False) -> None:
    """Write the recipe to `path`, below what the README says of it."""
    source = find_recipe(name, offline=offline)
    lines = [f"# {line}".rstrip() for line in about(name)]
    commit_bytes(path, "\n".join([*lines, "", source.read_text(encoding="utf-8")]).encode())


def about(name: str) -> list[str]:
    """The lines of its section in the README, without the heading."""
    lines = (examples_directory() / _README).read_text(encoding="utf-8").splitlines()
    start = lines.index(f"## {name}") + 1
    end = next((n for n in range(start, len(lines)) if lines[n].startswith("## ")), len(lines))
    return "\n".join(lines[start:end]).strip("\n").splitlines()
