"""Mistakes in keys and values, and in YAML."""

from __future__ import annotations

from pipeline.mistaken import CHECK, WEB, edit

KEYS = {
    "a key with a typo": edit("filters:", "filtres:", "line 12: filtres", "did you mean `filters`?", CHECK),
    "a key of a source with a typo": edit(
        "license: CC", "licence: CC", "line 6: sources[0].licence", "did you mean `license`?", CHECK
    ),
    "a nested key with a typo": edit("length: 16", "legnth: 16", "line 22: pack.legnth", "`length`", CHECK),
    "a key of nowhere": edit("seed: 7", "qqqq: 7", "line 2: qqqq", "unknown key; known keys: builds", CHECK),
    "a choice with a typo": edit(
        "unit: paragraph", "unit: paragraphs", "line 11: sources[1].unit", "did you mean `paragraph`?", CHECK
    ),
    "a number in quotes": edit("seed: 7", 'seed: "7"', "line 2: seed", 'valid integer (got "7")', CHECK),
    "a number for a name": edit("name: small", "name: 12", "line 1: name", "put it in quotes", CHECK),
    "a negative seed": edit("seed: 7", "seed: -7", "line 2: seed", "greater than or equal to 0", CHECK),
    "a list for a section": edit("{length: 16}", "[16]", "line 22: pack", "(got a list)", CHECK),
    "a section for a list": edit(
        'allow: [MIT, "CC-BY-*"]', "allow: {MIT: 1}", "line 14: license.allow", "valid list", CHECK
    ),
    "yes for true": edit("exact: true", "exact: yes", "line 15: dedup.exact", "true, false or folded", CHECK),
    "a key twice": edit("seed: 7", "seed: 7\nseed: 8", "line 3: seed", "key occurs twice", CHECK),
    "no eos": edit('  eos: "<|endoftext|>"\n', "", "line 17: tokenizer.eos", "is required", CHECK),
    "no name": edit("name: small\n", "", "name", "is required", CHECK),
    "two sources of one name": edit(
        "name: notes", "name: web", "line 8: sources[1].name", "sources[0] is called web too", CHECK
    ),
    "two builds of one name": edit(
        "name: mega", "name: rows", "line 25: builds[1].name", "builds[0] is called rows too", CHECK
    ),
    "an unknown format": edit(
        "format: memmap", "format: memmapp", "line 24: builds[0].format", "did you mean `memmap`?", CHECK
    ),
    "a negative budget": edit("tokens: 300", "tokens: -3", "line 21: mixture.tokens", "an amount", CHECK),
    "no budget at all": edit("tokens: 300", "tokens: 0", "line 21: mixture.tokens", "an amount", CHECK),
    "a budget of no known unit": edit("tokens: 300", "tokens: 3X", "line 21: mixture.tokens", "200M", CHECK),
    "two budgets": edit(
        "tokens: 300", "tokens: 300, blocks: 3", "line 21: mixture.blocks", "keep one", CHECK
    ),
    "nothing left to train on": edit(
        "valid_fraction: 0.1",
        "valid_fraction: 0.5, test_fraction: 0.5",
        "line 16: split.test_fraction",
        "nothing is left to train on",
        CHECK,
    ),
    "a share above one": edit(
        "valid_fraction: 0.1", "valid_fraction: 10", "line 16: split.valid_fraction", "less than", CHECK
    ),
    "min above max": edit(
        "min: 5,", "min: 5, max: 3,", "line 13: filters[0].min", "nothing would be kept", CHECK
    ),
    "a rule without a bound": edit("min: 5, ", "", "line 13: filters[0]", "needs `min` or `max`", CHECK),
    "a sha256 that is none": edit('sha256: "', 'sha256: "xyz', "line 19: tokenizer.sha256", "match", CHECK),
    "a template with a lone brace": edit(
        WEB, WEB + '\n    template: "{text"', "line 8: sources[0].template", "for literal braces", CHECK
    ),
    "files and hub": edit(
        WEB, WEB + "\n    hub: {dataset: a/b}", "line 4: sources[0]", "either `files`, `hub`", CHECK
    ),
    "an empty limit": edit(WEB, WEB + "\n    limit: {}", "line 8: sources[0].limit", "needs `docs`", CHECK),
    "a name with a slash": edit("name: small", "name: a/b", "line 1: name", "match pattern", CHECK),
    "a domain that no source has": edit(
        "filters:", "domains: {wbe: {redact: [email]}}\nfilters:", "line 12: domains.wbe", "no source", CHECK
    ),
    "a redaction of nothing known": edit(
        "filters:", "redact: [emial]\nfilters:", "line 12: redact[0]", "did you mean `email`?", CHECK
    ),
    "a priority for nobody": edit(
        "{exact: true}", "{exact: true, priority: [wb]}", "line 15: dedup.priority", "called wb", CHECK
    ),
    "a build of a source that is not there": edit(
        "format: megatron", "format: megatron, sources: [nots]", "line 25: builds[1].sources", "nots", CHECK
    ),
    "repeat without an end": edit(
        "tokens: 300", "exhausted: repeat", "line 21: mixture.exhausted", "without a target", CHECK
    ),
}

YAML = {
    "a tab for an indent": edit(
        "    domain: web", "\tdomain: web", "line 5, column 1", "'\\t'", "indent with spaces, never with tabs"
    ),
    "a wrong indent": edit("    domain: web", "   domain: web", "line 5, column 4", "YAML", "indentation"),
    "an open bracket": edit("{length: 16}", "{length: 16", "line 23, column", "YAML", "brackets"),
    "an open quote": edit("name: small", 'name: "small', "column", "(it begins in line 1)", "quotes"),
    "a colon in a value": edit("name: small", "name: a: b", "line 1, column 8", "mapping values", "quotes"),
    "an alias": edit("seed: 7", "seed: *x", "line 2, column 7", "no aliases", "fix this place"),
    "a tag": edit("seed: 7", "seed: !!int 7", "line 2, column 7", "no tags", "fix this place"),
    "two documents": edit("seed: 7", "---\nseed: 7", "line 2, column 1", "YAML", "fix this place"),
    "no text in UTF-8": edit(
        "name: small", "name: sm\udce4ll", "line 1, column 9", "UTF-8", "fix this place"
    ),
}
