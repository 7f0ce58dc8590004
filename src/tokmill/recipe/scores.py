"""Section for scores: models that judge documents, each a measure of its own.

scores   a name, one kind (fasttext, linear, train, importance, perplexity, transformer, hook, plugin),
         windows, percentile
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from tokmill.recipe.cleaning import Bound
from tokmill.recipe.section import Amount, Path_, Section, part_of, shortest_spelling
from tokmill.recipe.training import Train, training_mistakes
from tokmill.schema import PERCENTILE, SCORE

# A key of a section, and a part of names with dots: score.edu.percentile
ScoreName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)]

KINDS = ("fasttext", "linear", "train", "importance", "perplexity", "transformer", "hook", "plugin")


class FastText(Section):
    """A classifier of fastText as it is published, .bin or .ftz; the score is the chance of a label."""

    path: str = Field(description="of the model, relative to the recipe")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="of the file: others are refused")
    label: str = Field(description="whose chance is the score, with or without `__label__`")
    prepare: Literal["none", "dclm", "fineweb"] = Field(
        "none",
        description="line ends are spaces in any case; dclm: those of Unicode too, as by `str.splitlines`",
    )
    lower: bool = Field(False, description="texts in lower case")
    first_words: int | None = Field(None, ge=1, description="only so many words of a text are looked at")


class Linear(Section):
    """A classifier that `tokmill score train` made; the score is the chance of a label."""

    path: str = Field(description="of the model, relative to the recipe")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="of the file: others are refused")
    label: str | None = Field(None, description="whose chance is the score [default: the last of the model]")
    output: Literal["probability", "margin"] = Field(
        "probability", description="margin: before the sigmoid, where few texts are equal"
    )


class Importance(Section):
    """How much likelier a text is under a target than under raw data, by hashed n-grams (DSIR)."""

    path: str = Field(description="of the weights, relative to the recipe")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="of the file: others are refused")
    output: Literal["sum", "mean"] = Field("sum", description="of the log-ratios of a text's n-grams")


class Perplexity(Section):
    """Of a text under an n-gram model: an ARPA file, or one that was trained by tokmill."""

    path: str = Field(description="of the model, relative to the recipe")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="of the file: others are refused")
    output: Literal["perplexity", "log10"] = Field(
        "perplexity", description="log10: the mean log10 of the probability of a word"
    )


def _spelled(label: Any) -> Any:
    """A number of an output is written as one."""
    return str(label) if isinstance(label, int) and not isinstance(label, bool) else label


class Transformer(Section):
    """A sequence classifier as the hub lays it out, in a step of its own (docs/decisions/0027)."""

    path: str = Field(
        description="the directory with config.json, model.safetensors and tokenizer.json, relative to the "
        "recipe"
    )
    sha256: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        description="of the model: `sha256sum` of the lines of `sha256sum` of its files, by name; others are "
        "refused",
    )
    label: Annotated[str | None, BeforeValidator(_spelled)] = Field(
        None, description="the output that is the score, by name or number [default: the only one]"
    )
    output: Literal["probability", "logit"] = Field(
        "probability", description="the score of a model with one output is its value in any case"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: a GPU where there is one; scores that are stored are not computed again"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="scores are rounded to 4 decimals with float32, to 2 with bfloat16"
    )
    max_tokens: int = Field(
        512, ge=8, le=131_072, description="of a text or window: the rest is not looked at"
    )


class Windows(Section):
    """A document is scored in windows, so that a long one is not judged by its beginning alone."""

    words: int = Field(
        ge=10,
        le=1_000_000,
        description="at most, of a window; all are about equal. Words stand between white space of ASCII: a "
        "text without any, as of Chinese or Thai, is one window",
    )
    aggregate: Literal["mean", "max", "min", "share_above"] = Field(
        "mean", description="what the score of a document is, of those of its windows"
    )
    bound: Bound | None = Field(None, description="for share_above: the share of windows that score more")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        is_share = given.get("aggregate") == "share_above"
        if is_share and given.get("bound") is None:
            yield ("bound",), "is required: `share_above` is the share of windows that score more than it"
        if not is_share and given.get("bound") is not None:
            yield ("bound",), "belongs to `aggregate: share_above`"


def _percentiles(given: Any) -> Any:
    """Keys of YAML are numbers or text; 95 and "95" are one."""
    if not isinstance(given, dict):
        return given
    return {shortest_spelling(str(key)): value for key, value in given.items()}


Times = Annotated[int, Field(ge=0, le=1000)]


class Repeat(Section):
    """How often documents are built, by where their score stands; of training, not of what is held out."""

    by: str = Field(pattern=r"^score\.[a-z][a-z0-9_]*$", description="a score with `percentile`")
    percentiles: Annotated[dict[str, Times], BeforeValidator(_percentiles)] = Field(
        min_length=1, description="{95: 4, 80: 2, 40: 1, 0: 0}: from this percentile on, so many times"
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        steps = _percentiles(given.get("percentiles"))
        if not isinstance(steps, dict):
            return
        for key in steps:
            try:
                is_right = 0 <= float(key) <= 100
            except ValueError:
                is_right = False
            if not is_right:
                yield ("percentiles",), f"{key} is no percentile: 0 to 100"
                return
        if len(steps) < len(given["percentiles"]):
            yield ("percentiles",), "one number is given twice"
        if steps and "0" not in steps:
            yield ("percentiles",), "says nothing of the lowest: give 0, such as `0: 0`, or `0: 1`"
        if steps and not any(steps.values()):
            yield ("percentiles",), "would leave nothing"


class Select(Section):
    """Documents that are built, drawn by their score (Gumbel top-k): of training, not of what is held out."""

    by: str = Field(pattern=r"^score\.[a-z][a-z0-9_]*$", description="a score: the logarithm of a weight")
    tokens: Amount = Field(description="2B: of the selected documents together, at most")


class Score(Section):
    """A learned judgement of every document: the measure `score.<name>`."""

    LATER: ClassVar = KINDS

    name: ScoreName = Field(description="the measure is `score.<name>`")
    fasttext: FastText | None = Field(None, description="a classifier of fastText")
    linear: Linear | None = Field(None, description="a classifier that `tokmill score train` made")
    train: Train | None = Field(None, description="a classifier that a step of the run makes of examples")
    importance: Importance | None = Field(
        None, description="how much more a text is like a target than like the rest"
    )
    perplexity: Perplexity | None = Field(None, description="under an n-gram language model")
    transformer: Transformer | None = Field(None, description="a sequence classifier of the hub")
    hook: str | None = Field(None, description="a function of columns, as for measures: hooks.py:name")
    device: Literal["auto", "cpu", "cuda"] | None = Field(
        None,
        description="of a `hook` with a model: it is called with the columns and `cpu` or `cuda`, in a step "
        "of its own, and its scores are stored [default: it is called where measures are]",
    )
    plugin: str | None = Field(None, description="a kind of score of an installed package")
    options: dict[str, Any] = Field({}, description="for the `plugin`; `path` and `sha256` of its model")
    windows: Windows | None = Field(None, description="[default: a document is one]")
    percentile: Literal["domain", "language", "corpus"] | None = Field(
        None,
        description="also the measure `score.<name>.percentile`: of the documents that cleaning kept in the "
        "same domain or language, or of all, the share that scores less, in hundredths",
    )

    @property
    def kind(self) -> str:
        return next(key for key in KINDS if getattr(self, key) is not None)

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        kinds = [key for key in KINDS if given.get(key) is not None]
        if len(kinds) != 1:
            yield (), f"needs one of {', '.join(f'`{key}`' for key in KINDS)}"
        if given.get("options") and given.get("plugin") is None:
            yield ("options",), "belongs to `plugin`"
        if given.get("name") == PERCENTILE.removeprefix("."):
            yield ("name",), f"`{given['name']}` is what the measure of ranks is called: take another name"
        if given.get("windows") is not None and part_of(given.get("fasttext"), "first_words") is not None:
            yield (
                ("fasttext", "first_words"),
                "`first_words` would be of every window: leave it out, or `windows`",
            )
        if given.get("device") is not None and given.get("hook") is None:
            yield ("device",), "belongs to `hook`; a transformer has its own"
        if given.get("hook") is not None and given.get("windows") is not None:
            yield ("windows",), "a hook is given whole documents, and cuts them itself"


def score_mistakes(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """Names that two scores have; scores that rules, and sources that examples name, and nobody has."""
    yield from training_mistakes(given)
    listed = given.get("scores")
    scores = listed if isinstance(listed, list) else []
    first: dict[str, int] = {}
    for index, score in enumerate(scores):
        name = part_of(score, "name")
        if isinstance(name, str) and first.setdefault(name, index) != index:
            yield ("scores", index, "name"), f"scores[{first[name]}] is called {name} too"
    if not any(part_of(own, "language") is not None for _, own in _holders(given) if own is not None):
        for index, score in enumerate(scores):
            if part_of(score, "percentile") == "language":
                yield (
                    ("scores", index, "percentile"),
                    "ranks within a language, and no `language` says how documents have one",
                )
    ranked = {part_of(score, "name") for score in scores if part_of(score, "percentile") is not None}
    for place, measure in _named(given):
        told = unknown_score(measure, list(first), ranked)
        if told is not None:
            yield place, told


def unknown_score(measure: str, names: list[str], ranked: set[Any]) -> str | None:
    """What is wrong with `score.<name>` or `score.<name>.percentile`; None: nothing."""
    name = measure.removeprefix(SCORE).removesuffix(PERCENTILE)
    if name not in names:
        return f"no score is called {name}: `scores` has {', '.join(names) or 'none'}"
    if measure.endswith(PERCENTILE) and name not in ranked:
        return f"the score {name} has no percentiles: give it `percentile: corpus`, or domain, or language"
    return None


def _holders(given: dict[str, Any]) -> Iterator[tuple[Path_, Any]]:
    """Whoever says how documents are cleaned: the recipe, its domains, its sources."""
    domains, sources = given.get("domains"), given.get("sources")
    yield (), given
    for name, own in (domains if isinstance(domains, dict) else {}).items():
        yield ("domains", name), own
    for index, source in enumerate(sources if isinstance(sources, list) else []):
        yield ("sources", index, "clean"), part_of(source, "clean")


def _named(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """Every score that a rule of the recipe, a domain or a source names, or its mixture."""
    mixture = given.get("mixture")
    for key, suffix in (("repeat", PERCENTILE), ("select", "")):
        by = part_of(part_of(mixture, key), "by") if mixture is not None else None
        if isinstance(by, str):
            yield ("mixture", key, "by"), by + suffix
    stages = part_of(mixture, "stages") if mixture is not None else None
    for index, stage in enumerate(stages if isinstance(stages, list) else []):
        bounds = part_of(stage, "where")
        for number, bound in enumerate(bounds if isinstance(bounds, list) else []):
            by = part_of(bound, "by")
            if isinstance(by, str):
                yield ("mixture", "stages", index, "where", number, "by"), by
    for place, own in _holders(given):
        filters = part_of(own, "filters") if own is not None else None
        for index, rule in enumerate(filters if isinstance(filters, list) else []):
            measure = None if isinstance(rule, str) else part_of(rule, "measure")
            if isinstance(measure, str) and measure.startswith(SCORE):
                yield (*place, "filters", index, "measure"), measure
