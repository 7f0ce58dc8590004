"""What a step made and somebody has to decide about.
It is said at once, at the end of the run, by the report and the review.

    manifest: counts, facts, config ─┬─ losses of clean and dedup             (losses.py)
                                     ├─ packs that met another language       clean
                                     ├─ lists without URLs, fields that lack  clean
                                     ├─ documents that share one id           split
                                     ├─ a held-out split larger than training split, build
                                     ├─ a vocabulary smaller than asked for   tokenizer
                                     ├─ control tokens that it lacks          ingest, tokenizer
                                     └─ facts.warnings                        ingest, mixture, build

Nothing of it is in a fingerprint: bounds are read from the recipe of today,
and steps that are up to date are judged again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import NamedTuple

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import is_chat
from tokmill.clean.examine import CleanOptions
from tokmill.clean.language import ENGLISH
from tokmill.errors import TokmillError
from tokmill.recipe.names import WARN_SOURCE_LOSS
from tokmill.stages.losses import Loss, by_source, cleaning_losses, find_losses
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.regions import control_literals

_LOG = logging.getLogger("tokmill.warnings")

MAX_FOREIGN = 0.5  # of the documents that were looked at
FEWEST_LOOKED_AT = 10
MAX_SHARED_IDS = 0.01  # of the documents of a source
FEWEST_OF_ONE_ID = 10
_SHOWN_LITERALS = 6


class Warning(NamedTuple):
    about: str  # "source web", "tokenizer"
    says: str  # the number and the cause
    next: str
    part: tuple[str, int, str]  # what was counted, how much, unit
    whole: tuple[str, int, str]
    bound: tuple[str, float, str, str]  # … and where it is set

    def __str__(self) -> str:
        return f"{self.says}; {self.next}"


def tell(step: str, warnings: Iterable[Warning | Loss | str]) -> None:
    for warning in warnings:
        _LOG.warning("%s: %s", step, warning)


def cleaning_warnings(options: CleanOptions, counts: Json) -> Iterator[Warning]:
    """Of a source: what was to judge it, and cannot."""
    came = counts["in"]
    whole = ("of the source", came, "documents")
    language = options.language
    if came and language and language.asked.method == "field" and language.applied == "none":
        kept = f", and all of it is kept beside {', '.join(language.asked.keep)}"
        yield Warning(
            f"source {options.source}",
            f"the language of {options.source} is not known{kept if language.asked.keep else ''}",
            "say with `fields.language` which field holds it",
            ("of no known language", came, "documents"),
            whole,
            ("documents of no known language", 0, "documents", "fields.language"),
        )
    if came and options.urls and counts.get("with_url") == 0:
        field = options.urls.field
        yield Warning(
            f"source {options.source}",
            f"none of {came:,} documents of {options.source} has a URL in `meta.{field}`, so nothing is "
            "blocked",
            f"carry it along with `fields: {{meta: [{field}]}}`, or name another key with `urls.field`",
            ("without a URL", came, "documents"),
            whole,
            ("documents without a URL", came - 1, "documents", "urls.field"),
        )
    yield from _language_warnings(options, counts)


def _language_warnings(options: CleanOptions, counts: Json) -> Iterator[Warning]:
    """A pack that was made for English, and a source that is not."""
    packs, looks = options.sieve.languages(), counts.get("looks", {})
    looked = sum(looks.values())
    others = {look: number for look, number in looks.items() if look != ENGLISH}
    foreign = sum(others.values())
    if not packs or looked < FEWEST_LOOKED_AT or foreign <= MAX_FOREIGN * looked:
        return
    script = max(others, key=lambda look: (others[look], look))
    made, which = ("packs", "were") if len(packs) > 1 else ("pack", "was")
    yield Warning(
        f"source {options.source}",
        f"the {made} {', '.join(packs)} {which} made for English, and {foreign:,} of {looked:,} documents of "
        f"{options.source} that were looked at are not (most in {script} letters)",
        "give the source `filters` of its own, or keep English alone with `language: {keep: [en]}`",
        ("not English", foreign, "documents"),
        ("looked at", looked, "documents"),
        ("documents of another language", 100 * MAX_FOREIGN, "% of those looked at", "filters"),
    )


def split_warnings(config: Json, counts: Json, facts: Json) -> Iterator[Warning]:
    # keys of shuffles hold the text too, and a cluster goes by its first document
    by_id = config["method"] == "hash" and config["by"] == "document"
    sides = (
        "all of one id are on one side of the split"
        if by_id
        else "those of one id may be on different sides of the split"
    )
    for source, told in facts.get("shared_ids", {}).items():
        name, most = max(told["commonest"].items(), key=lambda item: (item[1], item[0]))
        docs, came = told["documents"], told["of"]
        if most >= FEWEST_OF_ONE_ID and docs > MAX_SHARED_IDS * came:
            yield Warning(
                f"source {source}",
                f"{docs:,} or more of {came:,} documents of {source} share their id with others, {most:,} of "
                f"them {name}: {sides}",
                "name the field that tells documents apart with `fields.id`"
                + ("" if by_id else "; `split: {method: hash, by: document}` holds one id together"),
                ("share an id", docs, "documents"),
                ("of the source", came, "documents"),
                ("documents that share an id", 100 * MAX_SHARED_IDS, "% of a source", "fields.id"),
            )
    train, *held_out = facts["splits"]
    for split in held_out:
        if counts.get(split, 0) > counts.get(train, 0):
            yield Warning(
                "split",
                f"{split} has {counts[split]:,} documents and {train} {counts[train]:,}: more is held out "
                "than trained on",
                f"lower `split.{split}_fraction`, or hold out fewer with `method: counts`",
                (split, counts[split], "documents"),
                (train, counts[train], "documents"),
                (f"documents of {split}", counts[train], "documents", f"those of {train}"),
            )


def vocabulary_warnings(train: Json | None, facts: Json) -> Iterator[Warning]:
    """Of a tokenizer that was trained."""
    asked, made = (train or {}).get("vocab_size", 0), facts["vocab_size"]
    if made < asked:
        yield Warning(
            "tokenizer",
            f"the vocabulary has {made:,} ids, and {asked:,} were asked for: there is not enough different "
            "text to make more",
            f"set `vocab_size: {made}`, or give it more text (`sample_megabytes`, more sources)",
            ("made", made, "ids"),
            ("asked for", asked, "ids"),
            ("ids", asked, "", "tokenizer.train.vocab_size"),
        )


def chat_warnings(source: str, chat: Json, specials: Collection[str], of: str) -> Iterator[Warning]:
    """A template whose control tokens the tokenizer does not have. `of` says which: its file, or none where
    it is trained."""
    written = control_literals(chat["template"], chat["bos_token"], chat["eos_token"])
    lacks = [literal for literal in written if literal not in specials]
    if not lacks:
        return
    spelled = ", ".join(f"`{literal}`" for literal in lacks[:_SHOWN_LITERALS])
    if len(lacks) > _SHOWN_LITERALS:
        spelled += f" and {len(lacks) - _SHOWN_LITERALS} more"
    add = (
        "use the tokenizer of the model whose template it is, or another that has them"
        if of
        else f"set `control_symbols: {json.dumps(lacks, ensure_ascii=False)}` in `tokenizer.train`"
    )
    yield Warning(
        f"source {source}",
        f"the chat template of {source} writes {spelled}, and {of or 'the tokenizer that is trained'} has no "
        "such special tokens: they are spelled as text, of ordinary tokens",
        f"{add}, or give another `chat.template`",
        ("not special tokens", len(lacks), "literals"),
        ("written by the template", len(written), "literals"),
        ("literals of the template that are no special tokens", 0, "", "the tokenizer"),
    )


def _chats_of_run(artifacts: Mapping[str, Artifact]) -> Iterator[tuple[str, Warning]]:
    """Every source of conversations against the tokenizer of the run, where that can be opened."""
    tokenizer = artifacts.get("tokenizer")
    chats = {
        artifact.manifest.config["reading"]["source"]: artifact.manifest.config["reading"]["options"]["chat"]
        for artifact in artifacts.values()
        if artifact.manifest.kind == "ingest" and is_chat(artifact)
    }
    if tokenizer is None or not chats or tokenizer.manifest.config.get("plugin"):
        return
    facts = tokenizer.manifest.facts
    try:
        specials = load_tokenizer(tokenizer.directory / facts["file"], encoding=facts["encoding"]).specials
    except TokmillError:  # `verify` tells it
        return
    of = "" if tokenizer.manifest.config.get("train") else facts["file"]
    for source, chat in chats.items():
        yield from (("tokenizer", warning) for warning in chat_warnings(source, chat, specials, of))


def loss_limit(recipe: Json, section: str) -> Decimal:
    """Of `clean` or `dedup`, as the run wrote its recipe down; the default where it did not come to that."""
    return Decimal(str((recipe.get(section) or {}).get("warn_source_loss", WARN_SOURCE_LOSS)))


def losses_of_run(artifacts: Mapping[str, Artifact], recipe: Json) -> Iterator[tuple[str, Loss]]:
    """With the step that dropped them."""
    for step, artifact in artifacts.items():
        kind = artifact.manifest.kind
        ledgers = [artifact.path(entry) for entry in artifact.manifest.entries("ledger")]
        if kind == "clean":
            options = artifact.manifest.options(CleanOptions)
            limit = loss_limit(recipe, kind)
            found = cleaning_losses(options, artifact.manifest.counts, limit, ledgers)
        elif kind == "dedup":
            sources = [
                name.removeprefix("ingest/")
                for name, ingested in artifacts.items()
                if ingested.manifest.kind == "ingest"
                for _ in ingested.manifest.entries("documents")
            ]
            verdicts = [receipt for receipt in artifact.manifest.receipts() if "in" in receipt.counts]
            counts = by_source((sources[int(receipt.key)], receipt.counts) for receipt in verdicts)
            found = find_losses(counts, loss_limit(recipe, kind), ledgers)
        else:
            continue
        yield from ((step, loss) for loss in found)


def warnings_of_run(artifacts: Mapping[str, Artifact]) -> Iterator[tuple[str, Warning]]:
    """Besides losses, and what mixtures and builds wrote down themselves."""
    for step, artifact in artifacts.items():
        manifest = artifact.manifest
        found: Iterable[Warning] = ()
        if manifest.kind == "clean":
            found = cleaning_warnings(manifest.options(CleanOptions), manifest.counts)
        elif manifest.kind == "split":
            found = split_warnings(manifest.config, manifest.counts, manifest.facts)
        elif manifest.kind == "tokenizer":
            found = vocabulary_warnings(manifest.config.get("train"), manifest.facts)
        yield from ((step, warning) for warning in found)
    yield from _chats_of_run(artifacts)


def told_by_run(artifacts: Mapping[str, Artifact], recipe: Json) -> list[tuple[str, str]]:
    """All that needs a decision, in the order of the steps."""
    told = [(step, str(loss)) for step, loss in losses_of_run(artifacts, recipe)]
    told += [(step, str(warning)) for step, warning in warnings_of_run(artifacts)]
    told += [
        (step, str(line))
        for step, artifact in artifacts.items()
        for line in artifact.manifest.facts.get("warnings", [])
    ]
    order = list(artifacts)
    return sorted(told, key=lambda item: order.index(item[0]))
