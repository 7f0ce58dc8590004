"""Which language a file of code is in, by its ending."""

from __future__ import annotations

# Endings of which nobody doubts the language; others are told as they are.
_ENDINGS = {
    "python": "py pyi pyx",
    "javascript": "js mjs cjs jsx",
    "typescript": "ts tsx mts",
    "c": "c h",
    "c++": "cpp cc cxx hpp hh",
    "c#": "cs",
    "shell": "sh bash",
    "rust": "rs",
    "ruby": "rb",
    "kotlin": "kt kts",
    "haskell": "hs",
    "perl": "pl pm",
    "julia": "jl",
    "html": "html htm",
    "yaml": "yml yaml",
    "markdown": "md markdown",
    "jupyter": "ipynb",
} | {
    name: name
    for name in [
        "go",
        "java",
        "php",
        "swift",
        "scala",
        "lua",
        "r",
        "sql",
        "css",
        "json",
        "toml",
        "tex",
        "rst",
    ]
}
LANGUAGES = {ending: name for name, endings in _ENDINGS.items() for ending in endings.split()}


def language_of(ending: str) -> str:
    """The usual name of the language that files with this ending are in, or the ending itself."""
    return LANGUAGES.get(ending.lower(), f".{ending.lower()}")
