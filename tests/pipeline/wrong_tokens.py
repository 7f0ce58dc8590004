"""Mistakes in what becomes of the documents: tokenizer, mixture, builds."""

from __future__ import annotations

from pipeline.mistaken import PATH, WEB, edit

TOKENS = {
    "a tokenizer that is not there": edit(
        PATH, "path: tk.json", "line 18: tokenizer.path", "no such tokenizer file", "relative to the recipe"
    ),
    "a directory for a tokenizer": edit(
        PATH, "path: web", "line 18: tokenizer.path", "a directory without a tokenizer", "it should hold"
    ),
    "another file than the pinned one": edit(
        PATH, "path: notes.txt", "line 19: tokenizer.sha256", "its sha256 is", "restore the pinned file"
    ),
    "an eos that is not in it": edit(
        "<|endoftext|>", "</s>", "line 20: tokenizer.eos", "no token '</s>'", "<|endoftext|>"
    ),
    "an eos outside of it": edit(
        '"<|endoftext|>"', "100000", "line 20: tokenizer.eos", "eos id 100000 is outside", "<|endoftext|>"
    ),
    "an eos that text spells": edit(
        "<|endoftext|>", "a", "line 20: tokenizer.eos", "could end in its middle", "set `eos` to one of"
    ),
    "a control token that is not in it": edit(
        '"<|endoftext|>"',
        '"<|endoftext|>"\n  control: ["<|user|>"]',
        "line 21: tokenizer.control[0]",
        "no control token '<|user|>'",
        "choose from <|endoftext|>",
    ),
    "a padded vocabulary that is too small": edit(
        '"<|endoftext|>"',
        '"<|endoftext|>"\n  padded_vocab_size: 64',
        "line 21: tokenizer.padded_vocab_size",
        "padded_vocab_size is 64",
        "or more, or leave it out",
    ),
    "an encoding for a file that has its own": edit(
        '"<|endoftext|>"',
        '"<|endoftext|>"\n  encoding: cl100k_base',
        "line 18: tokenizer.path",
        "is for tiktoken rank files",
        "leave encoding out",
    ),
    "ids that two bytes cannot hold": edit(
        '"<|endoftext|>"\n',
        '"<|endoftext|>"\n  padded_vocab_size: 70000\n',
        "line 25: builds[0].dtype",
        "vocab 70,000 does not fit uint16",
        "set `dtype: int32`",
    ),
    "a weight for nobody": edit(
        "weights: {web: 0.6,",
        "weights: {wbe: 0.6,",
        "line 21: mixture.weights.wbe",
        "no domain is called wbe",
        "did you mean web?",
    ),
    "a domain without a weight": edit(
        "{web: 0.6, prose: 0.4}",
        "{web: 1}",
        "line 21: mixture.weights",
        "no weight for the domain prose",
        "0 leaves it out",
    ),
    "weights of nothing": edit(
        "{web: 0.6, prose: 0.4}",
        "{web: 0, prose: 0}",
        "line 21: mixture.weights",
        "all weights are 0",
        "weight",
    ),
    "a weight of a source for nobody": edit(
        "tokens: 300",
        "tokens: 300, sources: {web: {wib: 1}}",
        "line 21: mixture.sources.web.wib",
        "no source is called wib",
        "did you mean web?",
    ),
    "a budget beyond all bytes": edit(
        "tokens: 300",
        "tokens: 200M",
        "line 21: mixture.tokens",
        "asks for 120,000,000 tokens of the domain web, which cannot give more than",
        "ask for less, add files, or set `exhausted: renormalize`",
    ),
    "a fallback of a source that is not read": edit(
        WEB,
        f"{WEB}\n    limit: {{docs: 5}}\n    fallback: notes",
        "line 9: sources[0].fallback",
        "web has a weight of 0 and is not read: how much of notes is needed is not known",
        "leave `fallback` out",
    ),
    "a build of a source that is not read": edit(
        "{web: 0.6, prose: 0.4}",
        "{web: 0, prose: 1}",
        "line 24: builds[0].sources",
        "web has a weight of 0 and is not read: the build rows would be empty",
        "give it a weight, or take its name out here",
    ),
    "a held-out source that is not read": edit(
        "{valid_fraction: 0.1}",
        "{method: field, field: source, values: {train: [notes], valid: [web]}}",
        "line 16: split.values.valid",
        "web has a weight of 0 and is not read: valid would be empty",
        "give it a weight, or take its name out here",
    ),
    "rows that cannot be balanced": edit(
        "{length: 16}",
        "{length: 16, mix_domains: true}",
        "line 22: pack.mix_domains",
        "balanced",
        "balance: none",
    ),
    "rows of a layout that has none": edit(
        "{length: 16}",
        "{length: 16, layout: indexed}",
        "line 24: builds[0]",
        "is made of rows",
        "another layout",
    ),
}

# what a case needs besides its own edit
BESIDES = {
    "a build of a source that is not read": ("format: memmap}", "format: memmap, sources: [web]}"),
    "a held-out source that is not read": ("{web: 0.6, prose: 0.4}", "{web: 0, prose: 1}"),
    "a fallback of a source that is not read": ("{web: 0.6, prose: 0.4}", "{web: 0, prose: 1}"),
    "ids that two bytes cannot hold": ("format: memmap}", "format: memmap, dtype: uint16}"),
    "rows that cannot be balanced": ("tokens: 300", "tokens: 300, balance: smallest"),
}
