"""Every check that a review makes, in the order in which they are told, and what to do about what each finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tokmill.reviews import copies, makeup, mixing, separability, sizing, sources, surface
from tokmill.reviews import copies as splits
from tokmill.reviews import makeup as integrity
from tokmill.reviews import mixing as packing
from tokmill.reviews import sources as licenses
from tokmill.reviews import surface as controls
from tokmill.reviews.evidence import Evidence
from tokmill.reviews.finding import Found


class Check(NamedTuple):
    name: str
    asks: str
    make: Callable[[Evidence], Found]
    advice: str


CHECKS: tuple[Check, ...] = (
    Check(
        "unpinned_revision",
        "Is every remote dataset at a commit, and the tokenizer at its sha256?",
        sources.unpinned_revision,
        "Write the commit that was read into `hub.revision`, and the tokenizer's sha256 into `tokenizer.sha256`.",
    ),
    Check(
        "remote_code",
        "Does anything ask for code that comes with the data?",
        sources.remote_code,
        "Take the key out, and export the dataset once to files that need no code; the mill runs none.",
    ),
    Check(
        "license_missing",
        "Has every document a licence?",
        licenses.license_missing,
        "Name the licence of the source (`license`), or the field that holds it (`fields.license`); drop the rest "
        "with `license: {unknown: drop}`.",
    ),
    Check(
        "license_outside_policy",
        "Is every licence one that the recipe's policy allows?",
        licenses.license_outside_policy,
        "Tighten the source's own `license` section, or widen the recipe's with the reason written down.",
    ),
    Check(
        "head_sampling",
        "Was a source cut off at its head?",
        sources.head_sampling,
        "Draw from the whole source: `sample: {method: reservoir, k: …}` or `hash`; `shuffle_buffer` if it cannot be "
        "read whole.",
    ),
    Check(
        "subsource_labels",
        "Do documents say where in their source they are from?",
        sources.subsource_labels,
        "Carry the label along with `fields: {meta: [repo, url, subset, …]}`.",
    ),
    Check(
        "exact_overlap",
        "Has another split a copy of what is held out?",
        splits.exact_overlap,
        "Set `dedup: {exact: true, scope: global}`, or split `by: cluster`.",
    ),
    Check(
        "near_overlap",
        "Has another split a near duplicate of what is held out?",
        splits.near_overlap,
        "Set `dedup.near`, and `split: {by: cluster}` so that versions of a text stay on one side.",
    ),
    Check(
        "split_after_packing",
        "Is a document on both sides of the split?",
        splits.split_after_packing,
        "Build again from the documents: the mill splits before it packs.",
    ),
    Check(
        "held_out",
        "Is enough held out, and not too much?",
        splits.held_out,
        "Set `split.valid_fraction` to 0.01 … 0.2, or `method: formula`, which adapts to the size of each domain.",
    ),
    Check(
        "held_out_noise",
        "Is a domain's held-out loss known well enough?",
        separability.held_out_noise,
        "Hold out more documents of the domain (a larger `split.valid_fraction`), and compare models document by document.",
    ),
    Check(
        "constant_prefix",
        "Do documents of a domain begin alike?",
        surface.constant_prefix,
        "Vary the template, or leave the constant part out: the domain is known by its first tokens, and they teach nothing.",
    ),
    Check(
        "first_character",
        "Does one character begin most documents of a domain?",
        surface.first_character,
        "Look at the beginnings (`tokmill peek`): headings, indentation or a marker may have to go.",
    ),
    Check(
        "hidden_characters",
        "Do texts begin with whitespace, or hide characters?",
        surface.hidden_characters,
        "Take them out where the source is written, before they mark a domain; or drop such documents with a filter "
        "(`{hook: hooks.py:function, max: 0}`): texts are not edited beyond `normalize`.",
    ),
    Check(
        "dataset_artefacts",
        "Have the datasets left marks in their texts?",
        surface.dataset_artefacts,
        "Read an edition without them (raw instead of tokenized, decoded as UTF-8), or drop such documents with a filter "
        "(`{hook: hooks.py:function, max: 0}`): a model learns to write what it reads.",
    ),
    Check(
        "surface_shortcut",
        "Do single tokens tell the domains apart?",
        separability.surface_shortcut,
        "Report routing and probes beside this baseline, and on rows whose markers are masked; take templates and marks out "
        "of the texts.",
    ),
    Check(
        "domain_imbalance",
        "Do domains have about as many tokens?",
        mixing.domain_imbalance,
        "Set `mixture.weights`, or `mixture: {balance: smallest}`; where the imbalance is meant, say why beside it.",
    ),
    Check(
        "built_mix",
        "Is the built mix the one that was asked for?",
        mixing.built_mix,
        "Lower the budget to what the smallest domain reaches, find more of it, or change the weights.",
    ),
    Check(
        "starved_build",
        "Does one domain keep most of the others out of the build?",
        mixing.starved_build,
        "Find more of it, lower its weight, or set a target with `exhausted: renormalize` or `repeat`; instead of "
        "`balance: smallest` give weights.",
    ),
    Check(
        "source_loss",
        "Does a source lose most of its documents to one rule?",
        sources.source_loss,
        "Read some (`tokmill why OUT --reason REASON`), and ask `tokmill whatif` what another bound would keep; set "
        "`dedup.warn_source_loss` higher where the loss is meant.",
    ),
    Check(
        "language_mixture",
        "Is the language of each domain known, and one?",
        makeup.language_mixture,
        "Set `language: {method: detect, keep: […]}`, or name the field that holds it; give code a language label.",
    ),
    Check(
        "source_repeats",
        "Is a source built more than once?",
        mixing.source_repeats,
        "Lower its weight or the budget: beyond four epochs repeated text is worth little.",
    ),
    Check(
        "budget_epochs",
        "Does the budget ask for more than there is?",
        mixing.budget_epochs,
        "Lower the budget, or find more text for the source.",
    ),
    Check(
        "tokens_per_parameter",
        "Is the model trained on enough tokens?",
        sizing.tokens_per_parameter,
        "Train a smaller model, or on more tokens: about 20 per parameter are compute-optimal.",
    ),
    Check(
        "plan_epochs",
        "Does training see its tokens too often?",
        sizing.plan_epochs,
        "Find more text, or train on less: up to four epochs repeats are nearly as good as new text, beyond that they are "
        "worth less and less.",
    ),
    Check(
        "drift",
        "Is the first half of the build like the last?",
        makeup.drift,
        "Give the run a `mixture` (its schedule keeps every stretch alike) with `order: shuffle`.",
    ),
    Check(
        "giant_document",
        "Is one document a large part of the build?",
        makeup.giant_document,
        "Cut it into parts before ingest, or bound it with a filter on `chars`.",
    ),
    Check(
        "tail_drop",
        "How much is lost after the last whole row?",
        packing.tail_drop,
        "Use `tail: pad`, a shorter `length`, or `layout: best_fit`.",
    ),
    Check(
        "padding",
        "How many columns hold nothing?",
        packing.padding,
        "Use `layout: best_fit` (`tokmill pack --compare` says what each costs).",
    ),
    Check(
        "truncation",
        "Were documents cut to the length of a row?",
        packing.truncation,
        "Use another layout than `pad`, or a `length` that holds the longest document.",
    ),
    Check(
        "missing_eos",
        "Does every document end in EOS?",
        packing.missing_eos,
        "Build again: without EOS documents run into each other, in training and in masks.",
    ),
    Check(
        "control_tokens",
        "Do texts hold literals of control tokens?",
        controls.control_tokens,
        "Keep them out of `tokenizer.control`, and escape or drop them if other tools will encode these texts.",
    ),
    Check(
        "giant_clusters",
        "Is a large part of the corpus one cluster of copies?",
        copies.giant_clusters,
        "Look at it (`tokmill clusters`): boilerplate calls for a filter, a mirrored source for leaving it out.",
    ),
    Check(
        "contamination",
        "Do kept documents hold benchmark items?",
        copies.contamination,
        "Set `dedup.against.policy: drop` (and `min_share: 0`), or report the affected benchmarks as seen.",
    ),
    Check(
        "counts_and_hashes",
        "Do counts and hashes match?",
        integrity.counts_and_hashes,
        "Run the recipe again: what is damaged is made anew, the rest is kept. `tokmill verify` lists every file.",
    ),
)
