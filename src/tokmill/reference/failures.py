"""Every error that a user can meet, and what a command's exit status says.

tokmill.errors ─ classes, and the tree in its docstring ─> reference/errors.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from tokmill import errors
from tokmill.errors import TokmillError
from tokmill.reference.markup import code, fenced, page, table, text

PATH = "reference/errors.md"

# What the tree in the docstring leaves to the name.
_MORE = {
    "TokmillError": "every error below is one",
    "DiskFull": "no room is left for a file; what was finished stays",
    "EosMissing": "the vocabulary has no such token to end documents with",
}

# Commands whose exit status 1 is an answer, not an error: file of the verb -> what it says.
ANSWERS = {
    "check": "`tokmill check`: the build would not train as it is",
    "demo": "`tokmill demo`: the run could not be proven",
    "diff": "`tokmill diff --fail-on CHECK`: that differs",
    "doctor": "`tokmill doctor`: something is missing, or the self-test failed",
    "review": "`tokmill review --fail-on SEVERITY`: there is such a finding",
    "run": "`tokmill run`: a build was given tokens and has no row of them; all steps are done",
    "status": "`tokmill status`: the run failed, or was ended from outside",
    "tokenizer": "`tokmill tokenizer guard`: the new tokenizer is worse than allowed",
    "verify": "`tokmill verify`: a file is missing, truncated, edited, or not what its manifest says",
}

_TREE_LINE = re.compile(r"[├└]── (\w+)\s{2,}(\S.*)")


def pages() -> dict[str, str]:
    return {
        PATH: page(
            "# Errors and exit status",
            "",
            "A message says what happened, where (file, key, directory), and what to do next:",
            fenced(
                "VocabTooLarge out/build: id 70,000 does not fit uint16\n  next: set dtype: int32", "text"
            ),
            "With `--json` the same comes on stdout:",
            fenced(
                '{"ok": false, "error": {"kind": "VocabTooLarge", "what": "…", "where": "…", "next": "…"}}',
                "json",
            ),
            "In Python every one of them is a `tokmill.errors.TokmillError` with `what`, `where` and `next`. "
            "Anything else that is raised is a bug of ours and keeps its traceback.",
            "",
            "## Errors",
            table(
                ("error", "is a", "when"),
                (
                    (code(kind.__name__), code(kind.__bases__[0].__name__), text(meaning(kind)))
                    for kind in error_classes()
                ),
            ),
            "## Exit status",
            table(
                ("status", "means"),
                (
                    ("0", "done, and as asked"),
                    (
                        "1",
                        "one of the errors above; or the answer of a command that checks something (below)",
                    ),
                    (
                        "2",
                        (
                            "the command line is wrong: an unknown option, a missing argument, a file that "
                            "is not there"
                        ),
                    ),
                    ("130", "interrupted (Ctrl-C); the same command resumes it"),
                ),
            ),
            "Status 1 without an error is an answer:",
            "",
            *(f"- {ANSWERS[name]}" for name in sorted(ANSWERS)),
        )
    }


def error_classes() -> list[type[TokmillError]]:
    """In the order of the file, parents before their children."""
    return [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, TokmillError)]


def meaning(kind: type[TokmillError]) -> str:
    told = {**dict(_tree()), **_MORE}
    if kind.__name__ in told:
        return told[kind.__name__]
    return inspect.cleandoc(kind.__dict__.get("__doc__") or "").split("\n")[0]


def _tree() -> Iterator[tuple[str, str]]:
    for line in (errors.__doc__ or "").split("\n"):
        found = _TREE_LINE.search(line)
        if found:
            yield found[1], found[2].strip()
