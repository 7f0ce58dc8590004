"""Every reason that the code can give for a drop, an edit or a quarantine is on the page of the ledger."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokmill
from mill import small_corpus, write_recipe
from mill import tokmill as run_tokmill
from tokmill.clean import language as language_policy
from tokmill.clean import license_policy, url_policy
from tokmill.kernels.redaction import KINDS
from tokmill.reference.ledger import known_reasons
from tokmill.stages.split import stage as split

REPOSITORY = Path(__file__).parents[2]
SOURCE = Path(tokmill.__file__).parent

# Calls that make a decision, and which argument is its reason.
_MAKERS = {
    "BadRecord": 1,
    "Broken": 0,
    "Change": 0,
    "Dropped": 2,
    "Edited": 1,
    "_Strings": 1,
    "_Unwanted": 0,
    "_bad": 1,
    "_resume": 2,
}
# Names that hold reasons: of a variable, or of a table of them.
_HOLDERS = ("reason", "reasons", "rules", "faults", "_faults", "empty", "trimmed")
# Read by other parts than those that decide about documents.
_ELSEWHERE = ("audit", "cli", "demo", "reference")

# Listed by a pattern: how such a reason begins.
_FAMILIES = {"other_<field>": "other_", "redacted_<kind>": "redacted_", "robots_<word>": "robots_"}


@pytest.fixture(scope="module")
def known() -> set[str]:
    return known_reasons()


def _is_known(reason: str, known: set[str]) -> bool:
    return reason in known or any(
        reason.startswith(start) for family, start in _FAMILIES.items() if family in known
    )


def test_every_reason_in_the_code_is_listed(known: set[str]) -> None:
    found = _reasons_in_code()
    assert len(found) > 50
    assert [reason for reason in sorted(found) if not _is_known(reason, known)] == []


def test_no_reason_is_listed_that_the_code_does_not_have(known: set[str]) -> None:
    literal = {
        node.value
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "reference"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    packs = "\n".join(path.read_text(encoding="utf-8") for path in (SOURCE / "clean/packs").glob("*.yaml"))
    made = {"unicode_nfc", "unicode_nfkc", *_FAMILIES}
    assert [r for r in sorted(known - made - literal) if f"reason: {r}}}" not in packs] == []


def _reasons_in_code() -> set[str]:
    found = {
        *(license_policy.DENIED, license_policy.NOT_ALLOWED, license_policy.UNKNOWN),
        *(language_policy.OTHER_LANGUAGE, language_policy.UNSURE_LANGUAGE),
        *(url_policy.BLOCKED_DOMAIN, url_policy.BLOCKED_URL, url_policy.BLOCKED_WORD, url_policy.NO_URL),
        *(split.NOT_COUNTED, split.UNKNOWN_SPLIT),
        *(f"redacted_{kind}" for kind in KINDS),
        *("unicode_nfc", "unicode_nfkc"),
    }
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in _ELSEWHERE:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                found.update(_reasons_of(node))
    return {reason for reason in found if reason and reason != "unicode_"}


def _reasons_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in _MAKERS and len(node.args) > _MAKERS[name]:
            yield from _first_strings(node.args[_MAKERS[name]])
        if name == "setdefault" and getattr(getattr(node.func, "value", None), "id", "") == "faults":
            yield from _first_strings(node.args[1])
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        holder = target.value if isinstance(target, ast.Subscript) else target
        if getattr(holder, "id", "").lower() in _HOLDERS:
            values = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
            for value in values:
                yield from _first_strings(value)
        if isinstance(target, ast.Subscript) and ast.unparse(holder).endswith("['dropped']"):
            yield from _first_strings(target.slice)
    elif isinstance(node, ast.FunctionDef) and "tuple[str, str]" in ast.unparse(node.returns or node.args):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Return) and isinstance(inner.value, ast.Tuple):
                yield from _first_strings(inner.value)


def _first_strings(node: ast.expr) -> Iterator[str]:
    """A string, either string of a choice, the first of a tuple, all values of a mapping."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        yield str(node.values[0].value)
    elif isinstance(node, ast.IfExp):
        yield from _first_strings(node.body)
        yield from _first_strings(node.orelse)
    elif isinstance(node, ast.Tuple) and node.elts:
        yield from _first_strings(node.elts[0])
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _first_strings(value)


_BAD_LINES = [
    b"not json",
    b'{"text": NaN}',
    b'{"text": "half \\ud800"}',
    b'{"text": "\xff"}',
    b'{"other": 1}',
    b'{"text": 7}',
    b'{"text": "a", "text": "b"}',
    b'{"text": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    b'{"text": "' + b"x" * 9000 + b'"}',
]


def test_reasons_of_a_run_over_bad_files_are_all_listed(tmp_path: Path, known: set[str]) -> None:
    small_corpus(tmp_path, problems=40)
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join(_BAD_LINES) + b"\n")
    sides = ("hello\tbonjour", "\tvide", "...\t!!!", "a\tb", f"{'long ' * 80}\tlongue", "no tab at all")
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\n" for line in sides), encoding="utf-8")
    texts = ("plain words here", " \r\n", "mail jane.doe@mozilla.org, caf\u0065\u0301", "nul \0 inside")
    rows = [{"text": text, "license": "GPL-3.0" if "plain" in text else "MIT", "kind": "x"} for text in texts]
    rows.append({"text": "of another kind", "license": "MIT", "kind": "y"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = write_recipe(
        tmp_path,
        sources=[
            {
                "name": "problems",
                "domain": "math",
                "license": "MIT",
                "files": "problems.jsonl",
                "template": "{question}\n{answer}",
                "sample": {"method": "reservoir", "k": 20},
            },
            {
                "name": "bad",
                "license": "MIT",
                "files": "bad.jsonl",
                "max_bad_fraction": "1",
                "max_record_bytes": 8192,
            },
            {
                "name": "pairs",
                "license": "MIT",
                "files": "pairs.tsv",
                "parallel": {},
                "max_bad_fraction": "1",
            },
            {
                "name": "rows",
                "files": "rows.jsonl",
                "fields": {"license": "license"},
                "where": {"kind": "x"},
            },
            {"name": "notes", "files": "notes.txt", "unit": "paragraph"},
        ],
        normalize={"unicode": "NFC", "newlines": "lf", "max_nul_fraction": "1"},
        license={"allow": ["MIT"], "unknown": "keep"},
        redact=["email"],
        filters=[{"measure": "chars", "min": 5}],
        mixture={"weights": {"math": "0.9", "default": "0.1"}, "tokens": 1000, "exhausted": "renormalize"},
    )
    done = run_tokmill("run", recipe, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    met = set().union(*(_reasons_counted(path) for path in (tmp_path / "out").rglob("manifest.json")))
    assert [reason for reason in sorted(met) if not _is_known(reason, known | {"too_few_chars"})] == []
    assert {
        "invalid_json",
        "lone_surrogate",
        "too_deep",
        "side_too_long",
        "not_sampled",
        "over_budget",
    } <= met
    assert {"license_not_allowed", "other_kind", "redacted_email", "unicode_nfc", "exact_dup"} <= met


def _reasons_counted(manifest: Path) -> set[str]:
    counts: dict[str, Any] = json.loads(manifest.read_bytes())["counts"]
    return {reason for key in ("dropped", "quarantined", "edited") for reason in counts.get(key, {})}
