"""How well single tokens tell the domains apart, by which tokens, and how noisy a domain's held-out loss is.

rows of a build ─ probe.py: naive Bayes, unigram losses ─┬─ checks: surface_shortcut, held_out_noise
                                                         └─ answers: separability, and the noise
                                                            of what is held out
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokmill.audit.membership import find_tokenizer
from tokmill.errors import TokmillError, plural
from tokmill.loader.dataset import open_dataset
from tokmill.reviews.evidence import RECIPE_ALONE, Answering, Evidence, check, named, place_of
from tokmill.reviews.finding import (
    Finding,
    Found,
    Measure,
    NotMeasured,
    percent,
    quoted,
    share,
    spelled,
)
from tokmill.reviews.probe import FIRST, MASKED, SHOWN, Probe, View
from tokmill.reviews.rows import Taken
from tokmill.reviews.subject import Build

MAX_NOISE = 0.05  # half of a 95 % interval, of a domain's held-out loss
SURFACE_LOW = 0.95  # of held-out rows that single tokens tell the domain of, each domain counted alike
# of these, lost when twenty markers of each domain are masked: a template, not a language
SURFACE_DROP = 0.10


WIDE = 1.96  # standard errors on either side: 95 %
CONFOUND = (
    "It is the confound of any analysis of routing: an expert that follows the domain may follow these "
    "tokens. Compare with it, and with what remains when they are masked."
)
_UNITS = {"row": "row", "row start": "row", "document start": "document"}
_WORDS = {
    "row": "all tokens of a row",
    "row start": f"the first {FIRST} tokens of a row",
    "document start": f"the first {FIRST} tokens of a document",
}


def probed_builds(evidence: Evidence) -> list[tuple[Build, Probe]]:
    """Of builds of the same documents the first that has an index tells for all, one of all sources if there
    is: rows or not, the tokens are the same."""
    if evidence.subject.kind == "recipe":
        raise NotMeasured(RECIPE_ALONE)
    reasons = []
    main = [build.name for build in evidence.main.builds] if evidence.main is not None else []
    for build in sorted(evidence.builds(), key=lambda build: build.name not in main):
        try:
            return [(build, evidence.probe(build))]
        except NotMeasured as reason:
            reasons.append(reason)
    raise reasons[0]


# --- checks ---


@check(
    "Report routing and probes beside this baseline, and on rows whose markers are masked; take templates "
    "and marks out of the texts."
)
def surface_shortcut(evidence: Evidence) -> Found:
    """Do single tokens tell the domains apart? That domains differ is no fault;
    that a few marks give them away is."""
    for build, found in probed_builds(evidence):
        if assumption := sampled(found):
            yield assumption
        rows = found.views[0]
        accuracy, remaining = rows.accuracy(), rows.accuracy(MASKED[0])
        if accuracy < SURFACE_LOW:
            continue
        drop = accuracy - remaining
        read_from = f"{place_of(build)}*/index.jsonl.zst and the rows"
        is_few = drop > SURFACE_DROP
        says = (
            f"{spelled(100 * accuracy)} % of held-out rows are told apart by single tokens (chance "
            f"{spelled(100 * rows.chance)} %)"
        )
        says += f"; without {MASKED[0]} markers of each {spelled(100 * remaining)} %"
        if is_few:
            lost = f"lost without {MASKED[0]} markers of each domain"
            bound = Measure(lost, 100 * SURFACE_DROP, "points", found.split)
        else:
            counted = f"{found.split}, each counted alike"
            bound = Measure("told apart", 100 * SURFACE_LOW, "% of held-out rows", counted)
        yield Finding(
            "medium" if is_few else "low",
            f"{found.word}s {', '.join(found.domains)}",
            says,
            tuple(
                Measure(
                    f"{_WORDS[view.name]}, {masked} markers of each masked" if masked else _WORDS[view.name],
                    100 * view.accuracy(masked),
                    f"% right, of {sum(view.asked):,} held out",
                    read_from,
                )
                for view in found.views
                for masked in (0, *MASKED)
            ),
            bound,
        )


@check(
    "Hold out more documents of the domain (a larger `split.valid_fraction`), and compare models document by "
    "document."
)
def held_out_noise(evidence: Evidence) -> Found:
    """Is a domain's held-out loss known well enough?"""
    for build, found in probed_builds(evidence):
        read_from = f"{place_of(build)}{found.split}/index.jsonl.zst and the rows"
        for domain, noise in zip(found.domains, found.noise, strict=True):
            if noise is None:
                yield f"{found.word} {domain} has fewer than two held-out documents: its loss has no error"
            elif WIDE * noise.error > MAX_NOISE * noise.loss:
                half, unit = "half of a 95 % interval", "% of the loss"
                documents = plural(noise.documents, "held-out document")
                yield Finding(
                    "medium",
                    f"{found.word} {domain}",
                    f"{documents}: its loss is known to ± {share(WIDE * noise.error, noise.loss)}",
                    (
                        Measure("held-out documents", noise.documents, "documents", read_from),
                        Measure("held-out tokens", noise.tokens, "tokens", read_from),
                        Measure("mean loss under a unigram model", noise.loss, "nats a token", read_from),
                        Measure("one standard error, by document", noise.error, "nats", read_from),
                        Measure(half, percent(WIDE * noise.error, noise.loss), unit, read_from),
                    ),
                    Measure(half, 100 * MAX_NOISE, unit, f"a {found.word} of {found.split}"),
                )


def sampled(found: Probe) -> str:
    def some(taken: Taken, of: str) -> str:
        return f"{taken.rows:,} of {taken.of_rows:,} {of} rows" if taken.rows < taken.of_rows else ""

    told = [one for one in (some(found.train, "training"), some(found.held_out, "held-out")) if one]
    return f"looked at {' and '.join(told)}, chosen by the hash of their numbers" if told else ""


# --- answers ---


def separability(evidence: Evidence, found: Answering) -> None:
    """How well are domains told apart by surface tokens alone?"""
    if evidence.subject.kind == "recipe":
        found.lack("which tokens tell the domains apart: a recipe alone has no rows")
        return
    for build, probe in probed_builds(evidence):
        if probe.word == "source":
            found.lack("domains: nothing here says which one a source is of, so sources are told apart")
        rows = probe.views[0]
        found.say(
            f"{named([build]).capitalize()}: naive Bayes on single tokens, taught by "
            f"{sum(rows.trained_on):,} training rows, asked about {sum(rows.asked):,} of {probe.split} "
            f"({', '.join(probe.domains)}; chance {spelled(100 * rows.chance)} %, each counted alike)."
        )
        for view in probe.views:
            found.say(_told_apart(view))
        names = token_names(build)
        for number, domain in enumerate(probe.domains):
            listed = ", ".join(names(token) for token in rows.markers[number][:SHOWN])
            starts = next((one for one in probe.views if one.name == "document start"), None)
            opening = ", ".join(names(token) for token in starts.markers[number][:4]) if starts else ""
            found.say(
                f"Markers of {domain}: {listed or 'none'}"
                + (f"; of its beginnings: {opening}." if opening else ".")
            )
        found.say(CONFOUND)
        if told := sampled(probe):
            found.lack(f"all rows: {told}")
        found.figures[build.name] = {
            "domains": list(probe.domains),
            "split": probe.split,
            "first_tokens": FIRST,
            "views": {view.name: _figures(probe, view, names) for view in probe.views},
        }
        found.base(f"{place_of(build)}*/index.jsonl.zst and the rows")


def _told_apart(view: View) -> str:
    """ "All tokens of a row: 100 % (66 of 66); 20 markers of each masked 98 %, 200 masked 95 %." """
    words = _WORDS[view.name]
    masked = ", ".join(f"{most} of each masked {spelled(100 * view.accuracy(most))} %" for most in MASKED)
    right = sum(view.right[0])
    return (
        f"{words[0].upper()}{words[1:]}: {spelled(100 * view.accuracy())} % right "
        f"({spelled(round(right, 1)) if right % 1 else f'{right:,.0f}'} of "
        f"{plural(sum(view.asked), _UNITS[view.name])}); markers: {masked}."
    )


def _figures(probe: Probe, view: View, names: Callable[[int], str]) -> dict[str, object]:
    return {
        "chance": round(view.chance, 6),
        "accuracy": round(view.accuracy(), 6),
        "accuracy_masked": {str(most): round(view.accuracy(most), 6) for most in MASKED},
        "masked_tokens": {str(most): list(view.masked_tokens[most]) for most in MASKED},
        "units": dict(zip(probe.domains, view.asked, strict=True)),
        "trained_on": dict(zip(probe.domains, view.trained_on, strict=True)),
        "right": {name: round(right, 6) for name, right in zip(probe.domains, view.right[0], strict=True)},
        "markers": {
            name: [{"id": token, "text": names(token)} for token in view.markers[number][: MASKED[0]]]
            for number, name in enumerate(probe.domains)
        },
    }


def noise_sentences(probe: Probe) -> list[str]:
    said = []
    for domain, noise in zip(probe.domains, probe.noise, strict=True):
        if noise is not None:
            times = noise.error / noise.error_of_tokens if noise.error_of_tokens else 1.0
            said.append(
                f"{domain}: {plural(noise.documents, 'document')}, {noise.tokens:,} tokens in rows of "
                f"{probe.split}; its mean loss is known to ± {share(WIDE * noise.error, noise.loss)} (95 %; "
                f"{spelled(times)} times what independent tokens would give)."
            )
    if said:
        said.append(
            f"Measured by document with a unigram model of the {probe.word}, which stands for one that is "
            "not trained yet: take it for the order of size. Two models on the same documents are better "
            "compared document by document."
        )
    return said


def token_names(build: Build) -> Callable[[int], str]:
    """What an id stands for, as people read it; its number where the tokenizer is not beside the build."""
    try:
        tokenizer = find_tokenizer(open_dataset(build.artifact.directory / build.splits[0]))
    except (TokmillError, OSError):
        return lambda token: f"id {token}"

    def name(token: int) -> str:
        text = tokenizer.decode(np.array([token], np.int64))
        return quoted(text) if text and "\ufffd" not in text else f"id {token} (part of a character)"

    return name
