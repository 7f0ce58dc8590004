"""Rules are thresholds on measured columns, packs are rules by name:
measuring never drops, deciding never reads text.

    filters of the recipe ─ compile_filters ─> CompiledFilters: rules in order, line edits,     driver
                                               versions
    columns {words, digit_share, …} ─ judge ─> for each document the first rule that it breaks  worker, whatif
    texts ─ edit_lines (one compiled pass) ─> LineEdits: what is left, and what was taken out of each row
          ─ edit_and_measure ─> the same, and what was measured before and after

    packs/*.yaml    gopher-quality, c4, web-en …    name, version, rules: measure, threshold, reason;
                                                    or other packs

A rule is a name, a column, one threshold and a reason. The column `digit_share` is measured on the normalized
text, `after.digit_share` on what the line edits of a pack left (those of C4: boilerplate of web pages),
`hook.<name>` is a measure of somebody else's, `score.<name>` one of a model. A pack's rules judge the text
after its own line edits, and those of packs before it. Changing a threshold or an edit in a file means a new
version.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
import yaml
from msgspec.structs import replace
from numpy.typing import NDArray

from tokmill.artifacts.plugins import find_plugin
from tokmill.clean.language import OTHER_LANGUAGE, UNSURE_LANGUAGE
from tokmill.clean.license_policy import DENIED, NOT_ALLOWED, UNKNOWN
from tokmill.clean.measures import MEASURES, KeptLines, measure_both
from tokmill.clean.url_policy import BLOCKED_DOMAIN, BLOCKED_URL, BLOCKED_WORD, NO_URL, ROBOTS
from tokmill.errors import RecipeError
from tokmill.kernels import lineedits
from tokmill.kernels.patterns import JAVASCRIPT, POLICY_PHRASES, PhraseTable, phrase_table
from tokmill.kernels.wordclasses import class_table
from tokmill.schema import PERCENTILE, SCORE, large_strings, string_column

if TYPE_CHECKING:
    from tokmill.recipe import Filter


class LineOptions(msgspec.Struct, frozen=True):
    """What is taken out. A word, here, is what stands between spaces."""

    min_words: int = 3
    max_word_chars: int = 1000
    javascript: bool = True
    policy_phrases: bool = True
    terminal_punctuation: bool = True  # keep only lines that end in . ? ! " '
    citations: bool = True  # [12] [edit] [citation needed]


class LineEdits(NamedTuple):
    """`texts` are all rows, `rows` those that changed;
    `removed` says per reason how often, row by row of `rows`."""

    texts: Any
    rows: NDArray[np.int64]
    removed: dict[str, NDArray[np.int64]]
    kept: KeptLines


class EditedMeasures(NamedTuple):
    edits: LineEdits
    before: dict[str, NDArray[Any]]
    after: dict[str, NDArray[Any]]


NOT_TERMINAL, FEW_WORDS = "line_without_terminal_punctuation", "line_of_few_words"
# In the order of kernels.lineedits; outer_whitespace counts lines, and the line end of the last one.
REASONS = (
    "blank_line",
    "outer_whitespace",
    "line_with_long_word",
    "citation",
    NOT_TERMINAL,
    FEW_WORDS,
    "line_with_javascript",
    "line_with_policy_phrase",
)
WHITESPACE = REASONS[:2]


def edit_and_measure(
    texts: Any, options: LineOptions, names: Collection[str], names_after: Collection[str]
) -> EditedMeasures:
    """`names` of the texts as they come, `names_after` of what the edits leave."""
    edits = edit_lines(texts, options)
    return EditedMeasures(edits, *measure_both(texts, names, edits.texts, names_after, edits.kept))


def edit_lines(texts: Any, options: LineOptions) -> LineEdits:
    column = string_column(texts)
    edited = lineedits.edit_lines(
        column.data,
        column.offsets,
        class_table(),
        _phrases(options.javascript, options.policy_phrases),
        min_words=options.min_words,
        max_word_chars=options.max_word_chars,
        terminal_only=options.terminal_punctuation,
        strip_citations=options.citations,
    )
    removed = dict(zip(REASONS, edited.removed, strict=True))
    cut = large_strings(edited.cut_data, edited.cut_offsets)
    kept = KeptLines(edited.line_offsets, edited.is_whole, cut)
    return LineEdits(large_strings(edited.data, edited.offsets), edited.rows, removed, kept)


@functools.cache
def _phrases(javascript: bool, policy: bool) -> PhraseTable:
    return phrase_table((JAVASCRIPT if javascript else (), POLICY_PHRASES if policy else ()))


_DIRECTORY = Path(__file__).parent / "packs"
# libyaml, where PyYAML has it: 3 ms for a pack of packs, not 25
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class PackRule(NamedTuple):
    """Drop what measures below `min` or above `max`; each rule has one of them."""

    name: str
    measure: str
    min: float | None
    max: float | None
    reason: str


Kind = Literal["prose", "code"]


class Pack(NamedTuple):
    name: str
    version: int
    judges: Kind
    line_edits: LineOptions | None
    rules: tuple[PackRule, ...]
    parts: tuple[Pack, ...] = ()  # of a pack made of packs, which has no rules of its own
    language: str | None = None  # whose text its thresholds were chosen on

    def simple(self) -> tuple[Pack, ...]:
        """The packs with rules that it stands for, in order: itself, unless it is made of packs."""
        return self.parts or (self,)


PACKS = ("c4", "code", "fineweb", "gopher-quality", "gopher-repetition", "stage-a", "web-en")


@functools.cache
def load_pack(name: str) -> Pack:
    if name not in PACKS:
        near = difflib.get_close_matches(name, PACKS, n=1, cutoff=0.4)
        raise RecipeError(
            f"there is no filter pack {name!r}",
            where="filters",
            next=f"did you mean {near[0]!r}?" if near else f"the packs are {', '.join(PACKS)}",
        )
    text = (_DIRECTORY / f"{name}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = _LOADER(text).get_single_data()
    edits = content.get("line_edits")
    return Pack(
        name,
        content["version"],
        content.get("judges", "prose"),
        None if edits is None else LineOptions(**edits),
        tuple(
            PackRule(rule["name"], rule["measure"], rule.get("min"), rule.get("max"), rule["reason"])
            for rule in content.get("rules", [])
        ),
        tuple(_part(**part) for part in content.get("packs", [])),
        content.get("language"),
    )


def _part(pack: str, line_edits: dict[str, Any] | None = None) -> Pack:
    whole = load_pack(pack)
    if line_edits is None or whole.line_edits is None:
        return whole
    return whole._replace(line_edits=replace(whole.line_edits, **line_edits))


Column = NDArray[Any]

EMPTY = "empty"
# A rule that gave one of these would be taken for it: by `whatif`, reports, and where causes are told.
_GIVEN = (
    *(EMPTY, OTHER_LANGUAGE, UNSURE_LANGUAGE, DENIED, NOT_ALLOWED, UNKNOWN),
    *(BLOCKED_DOMAIN, BLOCKED_URL, BLOCKED_WORD, NO_URL),
    *("contaminated", "reference_exact_dup", "reference_near_dup", "exact_dup", "url_dup"),
    *("only_site_template", "near_dup", "window_dup"),
)

AFTER, HOOK = "after.", "hook."

Bound = Literal["min", "max"]
BOUNDS: tuple[Bound, ...] = ("min", "max")


class Rule(msgspec.Struct, frozen=True):
    name: str  # "gopher-quality.min_words", "digit_share.max"
    column: str
    bound: Bound
    threshold: int | float
    reason: str

    def breaks(self, values: Column) -> Column:
        broken: Column = values < self.threshold if self.bound == "min" else values > self.threshold
        return broken

    def margins(self, values: Column) -> Column:
        """How far inside the threshold; below zero is outside."""
        inside: Column = values - self.threshold if self.bound == "min" else self.threshold - values
        return inside


class CompiledFilters(msgspec.Struct, frozen=True):
    """All that judges a source, in order."""

    rules: tuple[Rule, ...] = ()
    line_edits: LineOptions | None = None
    packs: dict[str, int] = {}  # versions
    skipped_packs: tuple[
        str, ...
    ] = ()  # packs of the recipe that judge prose where the source is code, or the other way
    hooks: dict[str, str] = {}  # measures of others, by name: the digest of their code

    def columns(self) -> list[str]:
        """Every column that a rule asks for, once, in order."""
        return list(dict.fromkeys(rule.column for rule in self.rules))

    def languages(self) -> dict[str, str]:
        """Of packs that were made for one."""
        made_for = {name: load_pack(name).language for name in self.packs if name in PACKS}
        return {name: language for name, language in made_for.items() if language is not None}


def compile_filters(
    filters: Sequence[Filter], base: Path, *, inherited_by: Kind | None = None
) -> CompiledFilters:
    """`inherited_by`: nobody asked for them by the source's name,
    so that packs made for the other kind of text are skipped."""
    rules: list[Rule] = []
    edits: LineOptions | None = None
    packs: dict[str, int] = {}
    skipped: list[str] = []
    hooks: dict[str, str] = {}
    for rule in filters:
        if rule.pack is not None:
            pack = load_pack(rule.pack)
            if inherited_by not in (None, pack.judges):
                skipped.append(rule.pack)
                continue
            packs[pack.name] = pack.version
            unused = set(rule.set)
            for part in pack.simple():
                if part.line_edits is not None:
                    if edits is not None:
                        raise RecipeError(
                            "two packs edit lines",
                            where=f"filters: {part.name}",
                            next="keep one of them; web-en holds c4 already",
                        )
                    edits = part.line_edits
                prefix = AFTER if edits is not None else ""
                known = {r.name: r for r in part.rules}
                unused -= set(known)
                rules += [_pack_rule(part.name, r, prefix, rule.set.get(r.name)) for r in part.rules]
            if unused:
                raise _no_such_rule(sorted(unused)[0], pack.simple(), rule.pack)
        elif str(rule.measure).startswith(SCORE):
            on_score = score_rules(rule)
            if not str(rule.measure).endswith(PERCENTILE):  # judged later, when all are scored
                rules += on_score
        else:
            rules += _own_rules(rule, AFTER if edits is not None else "")
            if (name := str(rule.measure)) not in MEASURES:
                hooks[name] = find_plugin("measures", name, base, "filters", MEASURES).digest
    return CompiledFilters(tuple(rules), edits, packs, tuple(skipped), hooks)


def _pack_rule(pack: str, rule: PackRule, prefix: str, other: float | None) -> Rule:
    bound: Bound = "min" if rule.min is not None else "max"
    threshold = rule.min if rule.min is not None else rule.max
    assert threshold is not None, f"{pack}.{rule.name} has no bound"
    return Rule(
        f"{pack}.{rule.name}",
        prefix + rule.measure,
        bound,
        threshold if other is None else other,
        rule.reason,
    )


def _own_rules(rule: Filter, prefix: str) -> list[Rule]:
    name = str(rule.measure)
    label, column = (name, prefix + name) if name in MEASURES else (name.rpartition(":")[2], HOOK + name)
    return _rules_on(rule, label, column)


def score_rules(rule: Filter) -> list[Rule]:
    """On a score, or on its percentile: the column has the name of the measure."""
    name = str(rule.measure)
    return _rules_on(rule, name, name)


def _rules_on(rule: Filter, label: str, column: str) -> list[Rule]:
    found = [
        Rule(f"{label}.{bound}", column, bound, threshold, rule.reason or fault_of(label, bound))
        for bound in BOUNDS
        if (threshold := getattr(rule, bound)) is not None
    ]
    for one in found:
        if one.reason in _GIVEN or one.reason.startswith(ROBOTS):
            raise RecipeError(
                f"`{one.reason}` is a reason of tokmill's own, for documents that no rule drops",
                where=f"filters: {one.name}",
                next="give the rule another `reason`",
            )
    return found


def fault_of(label: str, bound: Bound) -> str:
    """too_few_words, but digit_share_too_high and (of a hook) shouting_too_high."""
    is_count = label in MEASURES and MEASURES[label].unit == "count"
    count, size = ("few", "low") if bound == "min" else ("many", "high")
    return f"too_{count}_{label}" if is_count else f"{label.replace('.', '_')}_too_{size}"


def _no_such_rule(name: str, parts: Sequence[Any], pack: str) -> RecipeError:
    known = [rule.name for part in parts for rule in part.rules]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return RecipeError(
        f"the pack {pack} has no rule `{name}`",
        where="filters: set",
        next=f"did you mean `{near[0]}`?" if near else f"its rules are {', '.join(known)}",
    )


class Judged(NamedTuple):
    """Per document: the index of the first rule it breaks (the number of rules:
    none), value and threshold."""

    first: NDArray[np.int64]
    values: NDArray[np.float64]
    thresholds: NDArray[np.float64]


def columns_of(measures: Any) -> dict[str, Column]:
    """A table of measures as `judge` takes it. What was not measured is 0:
    such a document is out for good, and whoever reads this looks at others."""
    return {name: np.asarray(measures.column(name).fill_null(0)) for name in measures.column_names}


def judge(columns: Mapping[str, Column], rules: Sequence[Rule], count: int) -> Judged:
    first = np.full(count, len(rules), np.int64)
    values, thresholds = np.zeros(count), np.zeros(count)
    for index in range(len(rules) - 1, -1, -1):
        rule = rules[index]
        broken = rule.breaks(columns[rule.column])
        first[broken], thresholds[broken] = index, rule.threshold
        values[broken] = columns[rule.column][broken]
    return Judged(first, values, thresholds)
