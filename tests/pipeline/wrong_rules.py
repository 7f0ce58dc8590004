"""Mistakes in rules, and in code of others."""

from __future__ import annotations

from pipeline.mistaken import WEB, edit

RULES = {
    "an unknown pack": edit(
        "filters:", "filters:\n  - gopher-qualty", "line 13: filters[0]", "no filter pack", "'gopher-quality'"
    ),
    "an unknown measure": edit(
        "measure: chars",
        "measure: charz",
        "line 13: filters[0]",
        "no measure `charz`",
        "did you mean `chars`",
    ),
    "a rule that the pack has not": edit(
        "filters:",
        "filters:\n  - {pack: gopher-quality, set: {min_wrds: 3}}",
        "line 13: filters[0]",
        "has no rule `min_wrds`",
        "did you mean `min_words`?",
    ),
    "two packs that edit lines": edit(
        "filters:",
        "filters:\n  - c4\n  - web-en",
        "line 12: filters",
        "two packs edit lines",
        "keep one of them",
    ),
    "a reason that is not the recipe's to give": edit(
        "reason: too_short",
        "reason: license_denied",
        "line 13: filters[0]",
        "`license_denied` is a reason of tokmill's own",
        "give the rule another",
    ),
    "an unknown licence": edit(
        "allow: [MIT,", "allow: [MITT,", "line 14: license.allow[0]", "'MITT' is not a known licence", "MIT"
    ),
    "a licence of a source with two letters exchanged": edit(
        "license: CC-BY-4.0",
        "license: MTI",
        "line 6: sources[0].license",
        "'MTI' is not a known licence",
        "did you mean MIT?",
    ),
    "an unknown licence of a domain": edit(
        "filters:",
        "domains: {web: {license: {deny: [Apachee-2.0]}}}\nfilters:",
        "line 12: domains.web.license.deny[0]",
        "'Apachee-2.0' is not a known licence",
        "Apache-2.0",
    ),
    "an unknown language": edit(
        "filters:", "language: {keep: [enn]}\nfilters:", "line 12: language.keep", "no language 'enn'", "en"
    ),
    "a hook that is not there": edit(
        "measure: chars",
        "measure: hoks.py:f",
        "line 13: filters[0]",
        "hoks.py:f: no such file",
        "relative to the recipe",
    ),
    "a function that the hook has not": edit(
        "measure: chars",
        "measure: hooks.py:f",
        "line 13: filters[0]",
        "there is no measure `f`",
        "after the colon",
    ),
    "a hook that raises": edit(
        "measure: chars",
        "measure: h.py:f",
        "line 13: filters[0]",
        "cannot be loaded (ZeroDivisionError: division by zero; line 2)",
        "fix the file",
        **{"h.py": b"\n1 / 0\n"},
    ),
    "a hook that is no Python": edit(
        "measure: chars",
        "measure: h.py:f",
        "line 13: filters[0]",
        "cannot be loaded (SyntaxError",
        "fix the file",
        **{"h.py": b"def f(:\n"},
    ),
    "a hook that is no function": edit(
        "measure: chars",
        "measure: hooks.py:not_a_function",
        "line 13: filters[0]",
        "is int 3, not a function",
        "name a function",
    ),
    "a transform that is not there": edit(
        "filters:",
        "transforms: [shout]\nfilters:",
        "line 12: transforms[0]",
        "no transform `shout`",
        "install",
    ),
    "a reader that is not there": edit(
        WEB, WEB + "\n    reader: epub", "line 8: sources[0].reader", "there is no reader `epub`", "install"
    ),
    "a format in a hook that is none": edit(
        "format: memmap",
        "format: 'hooks.py:not_a_function'",
        "line 24: builds[0].format",
        "is a int, not a tokmill.formats.Format",
        "name the record",
    ),
}
