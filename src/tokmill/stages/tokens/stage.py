"""Tokens: the kept texts of a shard, encoded once, EOS after each document, and BOS before it if asked for.

    texts of all splits ─ encode ─ check a sample ─ EOS
        ─> <split>/<domain>/tokens-<shard>.{bin,idx}   ids, one sequence per document
           <split>/<domain>/lengths-<shard>.parquet    row, doc_id, tokens, text_bytes
           <split>/<domain>/loss-<shard>.bin           of conversations: per token 1 where it is learned

Ids take the smallest dtype that holds the vocabulary; builds widen them where asked. Control tokens that the
recipe asks for are the only strings that become one; EOS and BOS are the tokenizer's, whatever the text says.
Of conversations those that the template writes are, and no others (tokmill.tokenizers.regions).
`shards_of_split` is the one way mixtures and builds find them again, `load_split_texts` the one way to read
documents as cleaning left them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from tokmill.artifacts.cache import cache_of
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import NO_DOCUMENTS, Json, Manifest, Receipt, add_counts, sum_counts
from tokmill.artifacts.step import (
    Conduct,
    Input,
    Outcome,
    Stage,
    Step,
    Task,
    TaskFunction,
    hook_inputs,
    table_input,
)
from tokmill.artifacts.upstream import Shard, domain_of, is_chat
from tokmill.formats import plugin_of
from tokmill.stages.tokens.encoded import cached_tasks
from tokmill.stages.tokens.encoding import FimOptions
from tokmill.stages.tokens.reading import labelled_shards
from tokmill.stages.tokens.shard import ShardTokensOptions, perform_tokens
from tokmill.tokenizers.fim import Fim
from tokmill.tokenizers.load import pinned_tokenizer
from tokmill.tokenizers.vocabulary import check_dtype, resolve_sentinels


class TokensOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fill in the middle; all else that can change a token is in the steps before."""

    fim: FimOptions | None = None


@dataclass(frozen=True)
class TokensExtra:
    # builds whose ids have two bytes, and the dtypes of their formats
    narrow: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def conduct(step: Step[TokensOptions, TokensExtra | None], upstream: Mapping[str, Artifact]) -> Conduct:
    tokenizer = upstream["tokenizer"]
    facts = tokenizer.manifest.facts
    splits = upstream["split"].manifest.facts["splits"]
    pinned = _pinned(tokenizer)
    fim = step.options.fim
    sentinels = _sentinels(fim, tokenizer, facts) if fim is not None else {}
    # before anything is encoded that could not be built
    for build, dtypes in (step.extra or TokensExtra()).narrow.items():
        check_dtype(facts["padded_vocab_size"], "uint16", f"build {build}", dtypes)
    labelled = labelled_shards(dict(upstream))
    tasks = [
        Task(
            function="tokens",
            key=f"{shard.number:05d}",
            options=ShardTokensOptions(
                source=shard.source,
                domain=shard.domain,
                eos_id=facts["eos_id"],
                encoding=facts["encoding"],
                controls=facts.get("controls", {}),
                splits=tuple(splits),
                dtype="uint16" if facts["vocab_size"] <= 1 << 16 else "int32",
                bos_id=facts.get("bos_id"),
                is_chat=is_chat(upstream[f"ingest/{shard.source}"]),
                **_fim_of(fim, sentinels, shard),
            ),
            inputs=[*pinned, *inputs],
            directory=str(step.directory),
        )
        for shard, inputs in labelled
    ]
    shards = [shard for shard, _ in labelled]
    tasks = cached_tasks(cache_of(step.directory.parent, step.name), tasks, shards)
    receipts = yield tasks
    told = {"fim": sentinels} if fim is not None else {}
    counts = add_counts({**NO_DOCUMENTS, "tokens": {}}, sum_counts(receipts))
    return Outcome(receipts, counts, {"tokenizer": facts, "splits": splits, **told})


def _sentinels(fim: FimOptions, tokenizer: Artifact, facts: Json) -> dict[str, int]:
    (entry,) = tokenizer.manifest.entries("tokenizer")
    loaded = pinned_tokenizer(str(tokenizer.path(entry)), entry.content_sha256, facts["encoding"])
    return resolve_sentinels(loaded, {key: getattr(fim, key) for key in ("prefix", "middle", "suffix")})


def fim_of(tokens: Artifact, source: str, domain: str) -> Fim | None:
    """How the documents of a source were reordered, as the step says."""
    fim = tokens.manifest.options(TokensOptions).fim
    is_wanted = fim is not None and domain in fim.domains
    return fim.of_source(source, tokens.manifest.facts["fim"]) if fim is not None and is_wanted else None


def _fim_of(fim: FimOptions | None, sentinels: dict[str, int], shard: Shard) -> dict[str, Any]:
    is_wanted = fim is not None and shard.domain in fim.domains
    return {"fim": fim, "sentinels": sentinels} if is_wanted else {}


def _environment(step: Step, receipts: Sequence[Receipt]) -> Json:
    """Libraries and versions that encoded, as their tasks say:
    part of the environment, never of the identity."""
    encoders = {receipt.facts["encoder"] for receipt in receipts if "encoder" in receipt.facts}
    return {"encoder": ", ".join(sorted(encoders))}


def _pinned(tokenizer: Artifact) -> list[Input]:
    """The file, and the code behind it where that lies beside the recipe."""
    (file,) = tokenizer.manifest.entries("tokenizer")
    plugin = plugin_of(tokenizer.manifest.config)
    pinned = Input("tokenizer", str(tokenizer.path(file)), file.content_sha256)
    return [pinned, *hook_inputs([plugin] if plugin else [])]


def _hand_on(manifest: Manifest, taker: str) -> Json:
    """The tokenizer's facts, and the names of the splits."""
    return {name: told for name, told in manifest.facts.items() if name != "warnings"}


STAGE = Stage(
    "tokens",
    TokensOptions,
    conduct,
    {"tokens": TaskFunction(ShardTokensOptions, perform_tokens)},
    _environment,
    hand_on=_hand_on,
)


class SplitShard(NamedTuple):
    """A working shard with documents in the split: ids, and a table with a row per sequence."""

    number: int
    source: str
    domain: str
    tokens: Input
    lengths: Input
    loss: Input | None = None  # None: all is learned


def shards_of_split(upstream: Mapping[str, Artifact], split: str) -> list[SplitShard]:
    """In shard order, which is the order of the corpus."""
    origins = [
        (name.removeprefix("ingest/"), domain_of(artifact))
        for name, artifact in upstream.items()
        if name.startswith("ingest/")
        for _ in artifact.manifest.entries("documents")
    ]
    tokens = upstream["tokens"]
    found = []
    for receipt in tokens.manifest.receipts():
        mine = {entry.table: entry for entry in receipt.files if entry.path.startswith(f"{split}/")}
        if mine:
            number = int(receipt.key)
            tables = [table for table in ("tokens", "lengths", "loss") if table in mine]
            inputs = (table_input(table, tokens.directory, mine[table]) for table in tables)
            found.append(SplitShard(number, *origins[number], *inputs))
    return found
