"""What differs between two runs: asked for, made of, and made.

    recipe      key by key
    tokenizer   file, vocabulary, control tokens
    documents   that came, went, changed or moved, and why                tokmill.audit.diff_documents
    shares      of tokens, by domain, source, language and licence        before and after
    builds      documents, rows and tokens                                before and after

Runs may have other steps, and may have been cut short: what one of them lacks is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokmill.artifact import Artifact, open_artifact
from tokmill.audit.diff_documents import DocumentDiff, diff_documents
from tokmill.audit.places import RunPlaces, open_places
from tokmill.errors import RecipeError
from tokmill.manifest import Json, add_counts, explain_changes

_TOKENIZER_FACTS = (
    "kind",
    "file",
    "sha256",
    "encoding",
    "vocab_size",
    "padded_vocab_size",
    "eos_id",
    "controls",
)

CHECKS = ("recipe", "tokenizer", "documents", "tokens", "shares")


class Share(NamedTuple):
    """Of all tokens, before and after."""

    group: str  # domains, sources, languages, licenses
    name: str
    tokens: tuple[int, int]
    shares: tuple[float, float]

    @property
    def change(self) -> float:
        return self.shares[1] - self.shares[0]

    def as_json(self) -> Json:
        return {
            "group": self.group,
            "name": self.name,
            "tokens": list(self.tokens),
            "shares": list(self.shares),
        }


class Diff(NamedTuple):
    missing: tuple[list[str], list[str]]  # steps that each run does not have
    recipe: list[str] | None  # None: a run that was cut short does not say what it was asked for
    tokenizer: list[str]
    documents: DocumentDiff
    tokens: tuple[Json, Json]  # by split
    has_other_tokens: bool
    shares: list[Share]
    builds: list[Json]

    def as_json(self) -> Json:
        return {
            **self._asdict(),
            "missing": list(self.missing),
            "documents": self.documents.as_json(),
            "tokens": list(self.tokens),
            "shares": [share.as_json() for share in self.shares],
        }


def diff(a: str | Path, b: str | Path) -> Diff:
    before, after = open_places(a), open_places(b)
    tokens = tuple(_tokens(run) for run in (before, after))
    ids = [
        run.artifacts["tokens"].manifest.identity if "tokens" in run.artifacts else None
        for run in (before, after)
    ]
    return Diff(
        _missing(before, after),
        _recipe(Path(a), Path(b)),
        _tokenizer(before, after),
        diff_documents(before, after),
        (tokens[0], tokens[1]),
        ids[0] != ids[1],
        _shares(before, after),
        _builds(before, after),
    )


def check_names(checks: Sequence[str]) -> None:
    """Before runs are read: are these checks at all?"""
    for check in checks:
        name, _, bound = check.partition("=")
        if name not in CHECKS or (name == "shares") != _is_fraction(bound):
            raise RecipeError(
                f"{check} cannot be checked",
                where="--fail-on",
                next=f"one of: {', '.join(CHECKS[:-1])}, or a change of shares such as shares=0.01",
            )


def failures(found: Diff, checks: Sequence[str]) -> list[str]:
    """Which of the checks do not hold."""
    check_names(checks)
    differs = {
        "recipe": found.recipe != [],
        "tokenizer": bool(found.tokenizer),
        "documents": not found.documents.is_equal,
        "tokens": found.has_other_tokens,
    }
    largest = max((abs(share.change) for share in found.shares), default=0.0)
    return [
        check
        for check in checks
        if (largest > float(check.partition("=")[2]) if check.startswith("shares=") else differs[check])
    ]


def _is_fraction(bound: str) -> bool:
    try:
        return 0 <= float(bound) <= 1
    except ValueError:
        return False


def _missing(a: RunPlaces, b: RunPlaces) -> tuple[list[str], list[str]]:
    first = [*(step for step in b.artifacts if step not in a.artifacts), *a.missing]
    second = [*(step for step in a.artifacts if step not in b.artifacts), *b.missing]
    return list(dict.fromkeys(first)), list(dict.fromkeys(second))


def _recipe(a: Path, b: Path) -> list[str] | None:
    roots = [open_artifact(directory) for directory in (a, b)]
    if roots[0] is None or roots[1] is None:
        return None
    return explain_changes(roots[0].manifest.config, roots[1].manifest.config)


def _tokenizer(a: RunPlaces, b: RunPlaces) -> list[str]:
    facts = [_tokenizer_facts(run) for run in (a, b)]
    return explain_changes(facts[0], facts[1], "tokenizer")


def _tokenizer_facts(run: RunPlaces) -> Json:
    artifact = run.artifacts.get("tokenizer")
    facts = artifact.manifest.facts if artifact is not None else {}
    return {name: facts[name] for name in _TOKENIZER_FACTS if name in facts}


def _tokens(run: RunPlaces) -> Json:
    artifact = run.artifacts.get("tokens")
    found: Json = artifact.manifest.counts.get("tokens", {}) if artifact is not None else {}
    return found


def _shares(a: RunPlaces, b: RunPlaces) -> list[Share]:
    before, after = _token_groups(a), _token_groups(b)
    found = []
    for group in ("domains", "sources", "languages", "licenses"):
        totals = [sum(groups[group].values()) or 1 for groups in (before, after)]
        for name in sorted({*before[group], *after[group]}):
            tokens = before[group].get(name, 0), after[group].get(name, 0)
            found.append(Share(group, name, tokens, (tokens[0] / totals[0], tokens[1] / totals[1])))
    return found


def _token_groups(run: RunPlaces) -> dict[str, dict[str, int]]:
    """Tokens by domain, source, language and licence, from the counts of the tokens step."""
    groups: Json = {"domains": {}, "sources": {}, "languages": {}, "licenses": {}}
    artifact = run.artifacts.get("tokens")
    if artifact is None:
        return groups
    domain_of = {
        name.removeprefix("ingest/"): ingested.manifest.config["reading"]["domain"]
        for name, ingested in run.of_kind("ingest").items()
    }
    for source, by_license in artifact.manifest.counts.get("licenses", {}).items():
        tokens = {name: total["tokens"] for name, total in by_license.items()}
        whole = sum(tokens.values())
        groups["licenses"] = add_counts(groups["licenses"], tokens)
        groups["sources"] = add_counts(groups["sources"], {source: whole})
        groups["domains"] = add_counts(groups["domains"], {domain_of[source]: whole})
    languages = artifact.manifest.counts.get("languages", {})
    groups["languages"] = {name: total["tokens"] for name, total in languages.items()}
    return groups


def _builds(a: RunPlaces, b: RunPlaces) -> list[Json]:
    before, after = a.of_kind("build"), b.of_kind("build")
    found = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        told: Json = {"build": name, "before": _build_counts(old), "after": _build_counts(new)}
        told |= {"config": None, "is_same": False}
        if old is not None and new is not None:
            told["config"] = explain_changes(old.manifest.config, new.manifest.config)
            told["is_same"] = old.manifest.identity == new.manifest.identity
        found.append(told)
    return found


def _build_counts(build: Artifact | None) -> Json | None:
    if build is None:
        return None
    counts = build.manifest.counts
    return {
        "documents": counts["kept"],
        "rows": counts["rows"],
        "tokens": counts["tokens"]["written"],
        "padding": counts["tokens"]["padding"],
    }
