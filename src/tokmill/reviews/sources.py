"""Where documents come from: pins, code, how they were drawn, what was lost, labels and licences.

the recipe ────────────────────── what is asked for ──┐
manifests of ingest and clean ─── what was read ──────┼─ a check for each, and the answer:
texts.py, counts of tokens ────── labels, licences ───┘  what does each source give
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.plugins import is_hook
from tokmill.artifacts.upstream import UNKNOWN, domain_of
from tokmill.clean.license_policy import KEEP, LicensePolicy, judge_licenses, make_policy
from tokmill.errors import most_scanned, plural
from tokmill.recipe import Source
from tokmill.reviews.evidence import Answering, Evidence, check, named
from tokmill.reviews.finding import (
    Finding,
    Found,
    Measure,
    NotMeasured,
    Severity,
    Value,
    part,
    percent,
    share,
)
from tokmill.reviews.subject import remote_code_keys
from tokmill.stages.build.contents import Contents
from tokmill.stages.losses import MOST_OF_WHAT_IT_SAW
from tokmill.stages.warnings import loss_limit, losses_of_run, warnings_of_run

LITTLE_SCANNED = 0.10  # of a source: what its head says of the rest is a guess
MAX_UNLABELLED = 0.01  # of the documents of a source


_COMMIT = re.compile(r"[0-9a-f]{40}")


@check(
    "Write the commit that was read into `hub.revision`, and the tokenizer's sha256 into `tokenizer.sha256`."
)
def unpinned_revision(evidence: Evidence) -> Found:
    """Is every remote dataset at a commit, and the tokenizer at its sha256?
    Else there are other bytes tomorrow."""
    pinned = Measure("a commit", 40, "hex digits", "hub.revision")
    for source, hub, resolved, read_from in _asked_of_hub(evidence):
        revision = hub.get("revision")
        if revision is not None and _COMMIT.fullmatch(str(revision)):
            continue
        figures = [Measure("revision asked for", str(revision or "the default branch"), "", read_from)]
        if resolved is not None:
            figures.append(Measure("commit that was read", resolved, "", read_from))
        yield Finding(
            "medium" if resolved is not None else "high",
            f"source {source}",
            f"{hub.get('dataset')} at {revision or 'its default branch'}, not at a commit",
            tuple(figures),
            pinned,
            "other than",
        )
    tokenizer = evidence.recipe.tokenizer
    if tokenizer is not None and tokenizer.path is not None and tokenizer.sha256 is None:
        yield Finding(
            "low",
            "tokenizer",
            f"{tokenizer.path} is not pinned by its sha256",
            (Measure("sha256 in the recipe", 0, "hex digits", "tokenizer.sha256"),),
            Measure("a pinned file", 64, "hex digits", "tokenizer.sha256"),
            "other than",
        )


def _asked_of_hub(evidence: Evidence) -> Iterator[tuple[str, Json, str | None, str]]:
    """Source, what was asked for, the commit that was read, and where that is written."""
    ingested = evidence.subject.of_kind("ingest")
    for name, artifact in ingested.items():
        hub = artifact.manifest.config.get("hub")
        if hub:
            yield name, hub["asked"], hub["revision"], f"ingest/{name}/manifest.json"
    if evidence.subject.recipe is not None:
        for source in evidence.subject.recipe.sources:
            if source.hub is not None and source.name not in ingested:
                yield source.name, source.hub.model_dump(mode="json"), None, evidence.subject.recipe_file
    elif not ingested:
        evidence.ingested()


@check("Take the key out, and export the dataset once to files that need no code; the mill runs none.")
def remote_code(evidence: Evidence) -> Found:
    """Does anything ask for code that comes with the data?"""
    subject = evidence.subject
    places = remote_code_keys(subject.asked)
    for name, artifact in subject.of_kind("ingest").items():
        places += [(f"ingest/{name}: {key}", v) for key, v in remote_code_keys(artifact.manifest.config)]
    if not subject.asked and not subject.artifacts:
        raise NotMeasured("a published build does not say what was asked of its sources")
    for place, value in places:
        yield Finding(
            "high",
            place,
            "asks for code that comes with the data to be run",
            (Measure(place, value, "", subject.recipe_file or "manifest.json"),),
            Measure("keys that ask for remote code", 0, "", "recipe"),
        )
    hooks = sorted(set(_hooks(subject.asked)))
    if hooks:
        yield (
            f"{', '.join(hooks)}: code beside the recipe, which runs with it and is part of its identity; "
            "not reviewed here"
        )


def _hooks(asked: object) -> Iterator[str]:
    if isinstance(asked, str) and is_hook(asked):
        yield asked
    for value in asked.values() if isinstance(asked, dict) else asked if isinstance(asked, list) else ():
        yield from _hooks(value)


# --- sampling, losses, labels ---


@check(
    "Draw from the whole source: `sample: {method: reservoir, k: …}` or `hash`; `shuffle_buffer` if it "
    "cannot be read whole."
)
def head_sampling(evidence: Evidence) -> Found:
    """Was a source cut off at its head? A crawl or a dump is ordered by something."""
    bound = Measure("of the source unread by a head", 0, "%", "or a sample that looks at all of it")
    ingested = evidence.subject.of_kind("ingest")
    for name, artifact in ingested.items():
        sample: Json = artifact.manifest.config.get("sample") or {}
        scanned: Json = artifact.manifest.facts.get("scanned", {})
        if sample.get("method") not in (None, "head", "hash") or scanned.get("is_complete", True):
            continue
        read_from = f"ingest/{name}/manifest.json"
        fraction = float(scanned["fraction"])
        figures = [
            Measure("scanned", 100 * fraction, "% of the bytes, at most", read_from),
            Measure("records read", scanned["records"], "records", read_from),
        ]
        read = most_scanned(fraction, share(fraction, 1))
        told = f"reading stopped early, after {read} of its bytes, in their order"
        try:
            tally = evidence.texts.sources.get(name)
            if tally is not None and tally.docs and evidence.texts.is_complete:
                of = f"of {plural(tally.docs, 'document')}"
                run = f"longest run of one origin ({tally.longest_origin})"
                figures.append(Measure(run, tally.longest_run, of, f"ingest/{name}/documents-*.parquet"))
                told += f"; {tally.longest_run:,} {of} in one run of one origin"
        except NotMeasured as reason:
            yield f"source {name}: longest run of one origin not measured: {reason}"
        severity: Severity = "high" if fraction < LITTLE_SCANNED else "medium"
        yield Finding(severity, f"source {name}", told, tuple(figures), bound)
    if evidence.subject.recipe is None:
        if not ingested:
            evidence.ingested()
        return
    for source in evidence.recipe.sources:
        if source.name not in ingested and _takes_head(source):
            key = "sample.method: head" if source.sample is not None else "limit without sample"
            yield Finding(
                "medium",
                f"source {source.name}",
                f"{key} takes what comes first; the share that is read is not known before a run",
                (_in_recipe(evidence, source, "how it is drawn", key),),
                bound,
            )


def _takes_head(source: Source) -> bool:
    if source.sample is None:
        return source.limit is not None
    return source.sample.method == "head" or (source.sample.method == "hash" and source.limit is not None)


def _in_recipe(evidence: Evidence, source: Source, name: str, value: Value = 0) -> Measure:
    return Measure(name, value, "", f"{evidence.subject.recipe_file}: {source.name}")


@check(
    "Read some (`tokmill why OUT --reason REASON`), and ask `tokmill whatif` what another bound would keep; "
    "set `clean.warn_source_loss`, or that of `dedup`, higher where the loss is meant."
)
def source_loss(evidence: Evidence) -> Found:
    """Does a source lose most of its documents to one rule?
    What is left is hardly the source that was chosen."""
    if not evidence.subject.artifacts:
        evidence.artifact("clean")
    for step, loss in losses_of_run(evidence.subject.artifacts, evidence.subject.asked):
        section, read_from = step.partition("/")[0], f"{step}/manifest.json"
        limit = MOST_OF_WHAT_IT_SAW if loss.is_of_rule else loss_limit(evidence.subject.asked, section)
        bound = "lost to a rule" if loss.is_of_rule else "lost to one reason, or several together"
        key = "of what reaches it" if loss.is_of_rule else f"{section}.warn_source_loss"
        yield Finding(
            "high",
            f"source {loss.source}",
            str(loss),
            (
                Measure(f"lost to {loss.to}", loss.lost, "documents", read_from),
                Measure("came to it", loss.came, "documents", read_from),
                Measure("of what came", percent(loss.lost, loss.came), "%", read_from),
                Measure("one of them", loss.example, "", f"{step}/ledger-*.parquet"),
            ),
            Measure(bound, float(100 * limit), "%", key),
        )


@check("Do what the line says, or leave it where it is meant.")
def run_warnings(evidence: Evidence) -> Found:
    """What else did the run warn of: packs for another language, ids in common,
    a vocabulary that came short?"""
    if not evidence.subject.artifacts:
        evidence.artifact("clean")
    for step, warning in warnings_of_run(evidence.subject.artifacts):
        if warning.about != "split":  # that is `held_out`
            read_from = f"{step}/manifest.json"
            figures = [Measure(*figure, read_from) for figure in (warning.part, warning.whole)]
            is_less = warning.about == "tokenizer"
            yield Finding(
                "medium" if is_less else "high",
                warning.about,
                str(warning),
                tuple(figures),
                Measure(*warning.bound),
                "less than" if is_less else "more than",
            )


@check("Carry the label along with `fields: {meta: [repo, url, subset, …]}`.")
def subsource_labels(evidence: Evidence) -> Found:
    """Do documents say where in their source they are from?
    Without a label no share within it can be checked."""
    bound = Measure("documents without a label", 100 * MAX_UNLABELLED, "% of a source", "a string in `meta`")
    if evidence.subject.kind == "recipe":
        for source in evidence.recipe.sources:
            if not source.fields.meta and source.format == "records":
                yield Finding(
                    "low",
                    f"source {source.name}",
                    "carries no field along that says where in the source a document is from",
                    (_in_recipe(evidence, source, "fields carried along"),),
                    bound,
                )
        return
    for name, tally in evidence.texts.sources.items():
        missing = tally.docs - tally.labelled
        if tally.docs and missing > MAX_UNLABELLED * tally.docs:
            read_from = f"ingest/{name}/documents-*.parquet: meta"
            yield Finding(
                "low",
                f"source {name}",
                f"{missing:,} of {plural(tally.docs, 'document')} ({share(missing, tally.docs)}) have no "
                "label within the source",
                part("without a label", missing, "documents", "of the source", tally.docs, read_from),
                bound,
            )


# --- licences ---


def _licenses(evidence: Evidence) -> Iterator[tuple[str, Json, str]]:
    """Source, documents by licence, and where that was read: of what is trained on, as far as the run got."""
    if evidence.has("tokens"):
        counted: Json = evidence.artifact("tokens").manifest.counts.get("licenses", {})
        for source, totals in counted.items():
            yield source, totals, "tokens/manifest.json"
    elif evidence.subject.of_kind("clean"):
        for source, artifact in evidence.subject.of_kind("clean").items():
            yield source, artifact.manifest.counts.get("licenses", {}), f"clean/{source}/manifest.json"
    elif evidence.subject.kind == "build":
        for build in evidence.builds():
            yield "all sources", build.artifact.manifest.counts.get("licenses", {}), "manifest.json"


@check(
    "Name the licence of the source (`license`), or the field that holds it (`fields.license`); drop the "
    "rest with `license: {unknown: drop}`."
)
def license_missing(evidence: Evidence) -> Found:
    """Has every document a licence?"""
    counted = list(_licenses(evidence))
    for source, totals, read_from in counted:
        unknown = totals.get(UNKNOWN, {}).get("docs", 0)
        docs = sum(total["docs"] for total in totals.values())
        if unknown:
            of_documents, of_source = part(
                "without a licence", unknown, "documents", "of the source", docs, read_from
            )
            tokens = totals[UNKNOWN].get("tokens")
            of_them = () if tokens is None else (Measure("of them", tokens, "tokens", read_from),)
            spdx = "SPDX expression, or one that can be read as one"
            yield Finding(
                "medium",
                f"source {source}",
                f"{unknown:,} of {plural(docs, 'document')} ({share(unknown, docs)}) have no known licence",
                (of_documents, *of_them, of_source),
                Measure("documents without a licence", 0, "documents", spdx),
            )
    if counted or evidence.subject.recipe is None:
        return
    keys = "keys that name a licence"
    for asked in evidence.recipe.sources:
        if asked.license is None and asked.fields.license is None:
            yield Finding(
                "medium",
                f"source {asked.name}",
                "neither `license` nor `fields.license` says what its documents may be used for",
                (_in_recipe(evidence, asked, keys),),
                Measure(keys, 1, "", "or documents with a field `license` of their own"),
                "less than",
            )


@check("Tighten the source's own `license` section, or widen the recipe's with the reason written down.")
def license_outside_policy(evidence: Evidence) -> Found:
    """Is every licence one that the recipe's policy allows?
    A source or a domain may have a looser one of its own."""
    if evidence.recipe.license is None:
        raise NotMeasured("the recipe has no `license` policy, so nothing can be outside of it")
    asked = evidence.recipe.license
    policy = make_policy(asked.allow, asked.deny, "drop")
    allow, deny = (", ".join(names) or "(none)" for names in (policy.allow, policy.deny))
    rule = f"license: allow {allow}, deny {deny}"
    bound = Measure("documents outside the policy", 0, "documents", rule)
    counted = list(_licenses(evidence))
    for source, totals, read_from in counted:
        docs = sum(total["docs"] for total in totals.values())
        for name, total in totals.items():
            if name != UNKNOWN and not _passes(name, policy):  # without one: `license_missing`
                kept = f"kept with licence {name}"
                yield Finding(
                    "high",
                    f"source {source}",
                    f"{plural(total['docs'], 'document')} of licence {name}, which the recipe's policy "
                    "refuses",
                    part(kept, total["docs"], "documents", "of the source", docs, read_from),
                    bound,
                )
    for declared in evidence.recipe.sources if not counted else ():
        if declared.license is not None and not _passes(declared.license, policy):
            yield Finding(
                "high",
                f"source {declared.name}",
                f"declares {declared.license}, which the recipe's policy refuses",
                (_in_recipe(evidence, declared, "declared licence", declared.license),),
                bound,
            )


def _passes(license: str | None, policy: LicensePolicy) -> bool:
    judged = judge_licenses(pa.array([license], pa.string()), policy)
    return bool(judged.verdict[0] == KEEP)


# --- the answer ---


_READ = {"records": "in", "ingested": "kept", "text_bytes": "text_bytes"}


def source_choice(evidence: Evidence, found: Answering) -> None:
    """Which sources, and what does each give?"""
    ingested = evidence.subject.of_kind("ingest")
    if not ingested and evidence.subject.kind == "build":
        for build in found.attempt(evidence.builds) or []:
            counts = build.artifact.manifest.counts.get("sources", {})
            total = sum(told["tokens"] for told in counts.values())
            for name, told in counts.items():
                found.say(
                    f"{name}: {plural(told['docs'], 'document')}, {share(told['tokens'], total)} of the "
                    "tokens."
                )
                found.figures[name] = dict(told)
            found.base("manifest.json: counts.sources")
        return
    if not ingested:
        for source in evidence.recipe.sources:
            place = (
                source.hub.dataset
                if source.hub is not None
                else source.directory.path
                if source.directory is not None
                else ", ".join(source.files or ["a corpus manifest"])
            )
            found.say(f"{source.name} ({source.domain}): {place}, licence {source.license or 'not stated'}.")
            found.figures[source.name] = {"domain": source.domain, "license": source.license}
        found.base("the recipe").lack("documents, tokens and what each source loses: a recipe alone has none")
        return
    lengths = found.attempt(lambda: evidence.lengths)
    tokens = lengths.sums("tokens", "source") if lengths is not None else {}
    docs = lengths.sums("docs", "source") if lengths is not None else {}
    total = sum(tokens.values())
    contents = found.attempt(lambda: evidence.contents) if lengths and evidence.subject.builds else None
    main = evidence.main if contents is not None else None
    built = contents.totals("source") if contents is not None else {}
    licenses = _documents_by_license(evidence, contents)
    for name, artifact in ingested.items():
        counts = artifact.manifest.counts
        figures: Json = {key: counts[of] for key, of in _READ.items()}
        told = f"{name} ({domain_of(artifact)}): {plural(counts['in'], 'record')}"
        if name in tokens:
            figures |= {"documents": docs[name], "tokens": tokens[name]}
            told += f", {docs[name]:,} of them kept, {tokens[name]:,} tokens ({share(tokens[name], total)})"
        if main is not None:
            held = built.get(name)
            documents, written = (held.new_docs, held.tokens) if held is not None else (0, 0)
            figures |= {"built_documents": documents, "built_tokens": written}
            told += (
                f", {documents:,} of them built ({share(documents, counts['in'])}) with {written:,} tokens "
                f"in {named([main])}"
            )
        scanned = artifact.manifest.facts.get("scanned", {})
        if not scanned.get("is_complete", True):
            read = most_scanned(scanned["fraction"], share(scanned["fraction"], 1))
            told += f", {read} of the source read"
        figures["licenses"] = licenses.get(name, {})
        found.say(f"{told}.{_spelled_licenses(figures['licenses'])}")
        found.figures[name] = figures
    found.base("ingest/*/manifest.json", "tokens/*/lengths-*.parquet" if tokens else "")


def _documents_by_license(evidence: Evidence, contents: Contents | None) -> dict[str, dict[str, int]]:
    """By source, of what it has in the main build; before there is one, of what was encoded or cleaned.
    A licence belongs to a document: what the recipe says of the source is for those that say nothing."""
    found: dict[str, dict[str, int]] = {}
    if contents is not None:
        for (source, license), held in sorted(contents.totals("source", "license").items()):
            if held.new_docs:
                found.setdefault(source, {})[license] = held.new_docs
        return found
    return {
        source: {license: total["docs"] for license, total in totals.items()}
        for source, totals, _ in _licenses(evidence)
    }


def _spelled_licenses(docs: dict[str, int]) -> str:
    ranked = sorted(docs, key=lambda name: (-docs[name], name))
    if len(ranked) < 2:
        return "".join(f" Licence: {name}." for name in ranked)
    return f" Licences, by documents: {', '.join(f'{name} {docs[name]:,}' for name in ranked)}."
