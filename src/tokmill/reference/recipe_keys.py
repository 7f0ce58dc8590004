"""Every key of a recipe, or of another file that is read by such models.

    tokmill.recipe.Recipe   ─ JSON schema ─ walk: a section, then the sections in it
                            ─> reference/recipe.md, one key

A section that stands in two places (`pack` of the recipe and of a build) is told once,
at the place nearest to the top.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tokmill.recipe import Recipe, Section
from tokmill.reference.markup import MARK, code, page, table, text

PATH = "reference/recipe.md"

Schema = dict[str, Any]

# Of keys whose model says nothing beyond their name, by "<model>.<key>". A test holds the list to those.
MORE = {
    "Recipe.name": "names the output directory, out/NAME",
    "Recipe.seed": "of shuffles and samples; each is drawn from it, its purpose and the document",
    "Recipe.sources": "where documents come from, in the order of the corpus",
    "Recipe.shards": "how large the working files are",
    "Recipe.normalize": "what becomes of the text itself",
    "Recipe.license": "which licences may enter; left out: all",
    "Recipe.urls": "which pages may enter, by their URLs; left out: all",
    "Recipe.robots": "which pages may enter, by what they tell robots; left out: all",
    "Recipe.language": "which languages may enter; left out: not looked at",
    "Recipe.filters": "packs and rules, in order; the first that a document breaks drops it",
    "Recipe.redact": "what is replaced by constants",
    "Recipe.clean": "how much a source may lose to cleaning",
    "Recipe.dedup": "which documents are copies",
    "Recipe.split": "which documents are held out",
    "Recipe.tokenizer": "left out: the run ends with documents",
    "Recipe.mixture": "how much of what is built; left out: everything",
    "Recipe.pack": "how documents are laid into rows",
    "Recipe.builds": "what is written for trainers",
    "Against.files": "glob or list of globs of the benchmark: .jsonl, .json, .csv, .tsv, .parquet, .txt",
    "Against.ngram": "words that must agree in a row",
    "Against.policy": (
        "drop: documents of sources under `reference` too; report: documents stay, and what was found is "
        "written down"
    ),
    "Build.name": "names the directory, build/NAME",
    "Build.format": (
        "rows: memmap, npy, and arrow, levanter, litdata, mds, olmo, parquet, which hold documents with "
        "`layout: indexed`; "
        "documents: llmc, megatron, nanogpt, nanotron, token_cache"
    ),
    "Cleaning.normalize": "in the place of the recipe's",
    "Cleaning.transforms": "in the place of the recipe's",
    "Cleaning.license": "in the place of the recipe's",
    "Cleaning.urls": "in the place of the recipe's",
    "Cleaning.robots": "in the place of the recipe's",
    "Cleaning.language": "in the place of the recipe's",
    "Cleaning.filters": "in the place of the recipe's",
    "Cleaning.redact": "in the place of the recipe's",
    "Corpus.manifest": "of a snapshot or of a selection",
    "Counts.valid": "documents",
    "Counts.test": "documents",
    "Dataset.name": "no two have the same",
    "Dataset.files": "or local files: glob or list of globs",
    "Dataset.license": "for documents that carry none of their own",
    "Dataset.id_field": "the key of the id",
    "Dataset.template": "builds the text, in the place of `text_field`",
    "Dataset.weight": "its share of the whole, or of its domain; 0: left out",
    "Dedup.near": "left out: not looked for",
    "Dedup.window": "left out: not looked for",
    "Dedup.against": "left out: not looked for",
    "Dedup.scope": "per-source: documents are compared within their source only",
    "Domain.weight": "its share of the whole; 0: left out",
    "Domain.sources": "what it is made of; their weights are shares of the domain",
    "Fields.id": "the key of the id; without one, ids come from the content",
    "Fields.created_at": "the key of the date",
    "Filter.min": "the least that is kept",
    "Filter.max": "the most that is kept",
    "Filter.reason": "in the ledger [default: made from the measure, e.g. too_few_words]",
    "Hub.dataset": "owner/name",
    "Hub.config": "of a dataset that has several",
    "Language.method": "none: not looked at",
    "Language.detector": "fasttext is the fastest; the page on language compares them",
    "License.deny": "these never, whatever `allow` says",
    "License.unknown": "what becomes of documents without a licence that is known",
    "Limit.docs": "documents",
    "Limit.chars": "code points",
    "Mixture.documents": "all splits together",
    "Mixture.exhausted": (
        "when a source runs out. stop: an error, or, without a target, the end of the build; renormalize: "
        "go on with the others; repeat: give it again"
    ),
    "MixtureFile.seed": "of what is drawn",
    "MixtureFile.datasets": "one level of weights",
    "MixtureFile.domains": "or two: domains, and sources within each",
    "Near.unit": "what n-grams are made of",
    "Near.ngram": "words, or characters",
    "Normalize.unicode": "the normalization form of texts",
    "Normalize.nul": "NUL characters",
    "Normalize.newlines": "lf: `\\r\\n` and `\\r` become `\\n`",
    "Pack.length": "tokens of a row",
    "Parallel.source_key": "key of one side; `translation.en` is a member of an object",
    "Parallel.target_key": "key of the other",
    "Parallel.separator": "stands between the sides",
    "Sample.method": (
        "reservoir, weighted: k of all; hash: a fraction of all; head, shuffle_buffer: from the beginning"
    ),
    "Source.name": "no two sources have the same",
    "Stage.name": "no two have the same; its builds are called BUILD-NAME",
    "Source.domain": "what mixtures weigh, and what rules may be for",
    "Source.hub": "or a dataset of the hub",
    "Source.corpus": "or a corpus that travelled",
    "Source.fields": "which key of a record holds what",
    "Source.on_bad_record": "fail: the first bad record stops the run",
    "Source.max_record_bytes": "a larger record is quarantined",
    "Source.limit": "take no more than this",
    "Source.sample": "take some of it",
    "Source.wikipedia": "the files are Wikipedia",
    "Source.stackexchange": "the files are Stack Exchange dumps",
    "Source.parallel": "records are pairs of sentences",
    "Source.warc": "the files are web archives",
    "Source.pdf": "the files are PDFs",
    "Source.mbox": "the files are mail folders",
    "Source.directory": "or a directory, one document per file",
    "Source.webdataset": "the files are tar archives of WebDataset",
    "Split.method": (
        "hash: by the id; counts: exact numbers; formula: by the size of each domain; field: the source "
        "says it"
    ),
    "Split.counts": "for counts",
    "StackExchange.min_question_score": "questions below are dropped",
    "StackExchange.min_answer_score": "answers below are dropped",
    "Tokenizer.path": (
        "a tiktoken rank file, a tokenizer.json, a SentencePiece .model, a tekken.json, or a directory with "
        "one of them"
    ),
    "Tokenizer.sha256": "of the file, or of the one in the directory; another file stops the run",
    "Tokenizer.train": "make one from the documents",
    "Training.model": "byte_bpe is for any text; unigram and bpe for those who want SentencePiece",
    "Training.vocab_size": "control tokens included",
    "Values.train": "of documents to train on",
    "Values.valid": "of documents to hold out",
    "Values.test": "of documents to hold out",
}


class Key(NamedTuple):
    """One key, in plain words; of a section, also the keys in it."""

    path: str
    takes: str
    what: str
    rows: list[tuple[str, str]]


class Place(NamedTuple):
    """A section and where it stands: `dedup.near`, `sources[]`, `domains.<name>`.
    Places sort in the order of keys."""

    order: tuple[int, ...]
    path: str
    model: str


def pages() -> dict[str, str]:
    return {
        PATH: page(
            "# Recipe",
            "",
            "One YAML file says everything that can change a byte. Paths are relative to the recipe. "
            "Workers, engines, memory and the output directory cannot change a byte: they are options of "
            "[`tokmill run`](commands/run.md), never keys. `name` and `sources` are required; every other "
            "section has a default that works.",
            "",
            "A key that is not listed here is refused, with the one that was probably meant. `tokmill recipe "
            "check` tells all mistakes at once, with `--explain` also every key with its value and where "
            "that comes from; `tokmill recipe schema` prints this page as a JSON schema for editors, "
            "`tokmill help KEY` what is said here of one key. Shares and weights are exact decimals: 0.1 is "
            "one tenth.",
            *sections(Recipe),
        ),
    }


def recipe_markdown() -> str:
    """The page of recipes for a reader of plain Markdown: its links lead nowhere outside of the site."""
    whole = re.sub(r" ?\{ #[^}]* \}", "", pages()[PATH]).replace(f"\n{MARK}\n", "")
    whole = re.sub(r"\[section\]\(#([^)]*)\)", r"section `\1`", whole)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", whole)


@functools.cache  # half of what looking up a word takes
def _schema() -> Schema:
    return Recipe.model_json_schema()


def key_names() -> list[str]:
    """Every key by its place, as anchors of the page have them."""
    schema = _schema()
    return [
        anchor(place.path, key)
        for place in _walk(Recipe.__name__, schema)
        for key in _properties(place.model, schema)
    ]


def find_keys(word: str) -> list[Key]:
    """By its whole path in a recipe, with or without places of lists; else by the end of its path."""
    schema = _schema()
    places = _walk(Recipe.__name__, schema)
    wanted = re.sub(r"\[\d*\]", "", word)
    exact = _follow(wanted.split("."), schema)
    if exact is not None:
        return [_found(wanted, *exact, schema, places)]
    return [
        _found(path, place.model, key, schema, places)
        for place in places
        for key in _properties(place.model, schema)
        if (path := anchor(place.path, key)).endswith(f".{wanted}")
    ]


def _follow(parts: Sequence[str], schema: Schema) -> tuple[str, str] | None:
    """The model that has the last key, and that key; names of domains and the like stand for themselves."""
    below: str | None = Recipe.__name__
    found, is_name = None, False
    for part in parts:
        if is_name:
            is_name = False
            continue
        if below is None or part not in _properties(below, schema):
            return None
        found, value = (below, part), _properties(below, schema)[part]
        _, below = next(_references(value), ("", None))
        is_name = any(inner.get("type") == "object" for inner in (value, *value.get("anyOf", [])))
    return found


def _found(path: str, model: str, key: str, schema: Schema, places: list[Place]) -> Key:
    value = _properties(model, schema)[key]
    rows = [
        (own, "; ".join(filter(None, (_takes(below, own, schema, places), describe(below, own, inner)))))
        for _, below in list(_references(value))[:1]
        for own, inner in _properties(below, schema).items()
    ]
    return Key(path, _takes(model, key, schema, places), describe(model, key, value), rows)


def _takes(model: str, key: str, schema: Schema, places: list[Place]) -> str:
    """Kind and default of a key."""
    value = _properties(model, schema)[key]
    if key in schema["$defs"].get(model, schema).get("required", []):
        return f"{_plain(_kind(value, places))}, required"
    default = _plain(_default(value))
    return _plain(_kind(value, places)) + (f", default {default}" if default else "")


def _plain(markdown: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("\\|", "|")


def sections(root: type[Section]) -> Iterator[str]:
    schema = root.model_json_schema()
    places = _walk(root.__name__, schema)
    for place in places:
        yield from _section(place, schema, places)


def anchor(path: str, key: str = "") -> str:
    """`dedup.near.threshold`, `sources.hub`: the place of a section or key on the page."""
    plain = path.replace("[]", "").replace("<name>", "name")
    return ".".join(part for part in (plain, key) if part)


def _walk(root: str, schema: Schema) -> list[Place]:
    """The file itself, then every section in the order of its keys, each before the sections in it."""
    found: dict[str, Place] = {}
    waiting = [Place((), "", root)]
    for place in waiting:  # level by level: it grows while it is read
        if place.model in found:
            continue
        found[place.model] = place
        for number, (key, value) in enumerate(_properties(place.model, schema).items()):
            for suffix, model in _references(value):
                path = f"{place.path}.{key}{suffix}" if place.path else f"{key}{suffix}"
                waiting.append(Place((*place.order, number), path, model))
    return sorted(found.values())


def _properties(model: str, schema: Schema) -> Schema:
    found: Schema = schema["$defs"].get(model, schema)["properties"]
    return found


def _references(value: Schema, suffix: str = "") -> Iterator[tuple[str, str]]:
    if "$ref" in value:
        yield suffix, value["$ref"].rpartition("/")[2]
    for inner in value.get("anyOf", []):
        yield from _references(inner, suffix)
    if "items" in value:
        yield from _references(value["items"], f"{suffix}[]")
    for inner in value.get("patternProperties", {}).values():
        yield from _references(inner, f"{suffix}.<name>")


def _section(place: Place, schema: Schema, places: list[Place]) -> list[str]:
    model = schema["$defs"].get(place.model, schema)
    lines = ["", f"## {code(place.path)} {{ #{anchor(place.path)} }}"] if place.path else []
    told = model.get("description", "")
    lines += ["", *(text(" ".join(paragraph.split("\n"))) + "\n" for paragraph in told.split("\n\n") if told)]
    required = model.get("required", [])
    headings = {anchor(other.path) for other in places}
    return lines + table(
        ("key", "value", "default", "what"),
        (
            (
                _key(place.path, key, headings),
                _kind(value, places),
                "**required**" if key in required else _default(value),
                text(describe(place.model, key, value)),
            )
            for key, value in _properties(place.model, schema).items()
        ),
    )


def _key(path: str, key: str, headings: set[str]) -> str:
    """The key, with an anchor, unless a section has it already."""
    mine = anchor(path, key)
    return code(key) if mine in headings else f"{code(key)}{{ #{mine} }}"


def describe(model: str, key: str, value: Schema) -> str:
    """What the model says of its key, or what is said for it here."""
    told = str(value.get("description") or MORE.get(f"{model}.{key}", ""))
    bounds = _bounds(value)
    return f"{told} ({bounds})" if told and bounds else told or bounds


def _kind(value: Schema, places: list[Place]) -> str:
    if "$ref" in value:
        model = value["$ref"].rpartition("/")[2]
        path = next(place.path for place in places if place.model == model)
        return f"[section](#{anchor(path)})"
    if "enum" in value:
        return " \\| ".join(code(str(choice)) for choice in value["enum"])
    if "const" in value:
        return code(str(value["const"]))
    if "anyOf" in value:
        kinds = [_kind(inner, places) for inner in value["anyOf"] if inner.get("type") != "null"]
        # a share is a number, and may be written as text; so may 200M
        if kinds[0] == "number" and kinds[1:] == ["text"]:
            return "number"
        return " or ".join(dict.fromkeys(kinds))
    if value.get("type") == "array":
        return f"list of {_kind(value['items'], places)}"
    if value.get("type") == "object":
        inner = value.get("additionalProperties") or next(iter(value.get("patternProperties", {}).values()))
        return f"mapping of names to {'anything' if inner is True else _kind(inner, places)}"
    names = {"string": "text", "integer": "whole number", "boolean": "`true` \\| `false`", "number": "number"}
    return names[value["type"]]


def _default(value: Schema) -> str:
    default = value.get("default")
    if default is None or "$ref" in value:
        return ""
    is_number = any(inner.get("type") == "number" for inner in value.get("anyOf", []))
    return code(str(default) if is_number else json.dumps(default, ensure_ascii=False).strip('"'))


_SIGNS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


def _bounds(value: Schema) -> str:
    """Those that are not plain from the kind: a share lies between 0 and 1 anyway."""
    one = next((inner for inner in value.get("anyOf", []) if inner.get("type") != "null"), value)
    if one.get("type") != "integer":
        return ""
    told = [f"{word} {_number(one[sign])}" for sign, word in _SIGNS.items() if one.get(sign, 0) not in (0, 1)]
    return ", ".join(told)


def _number(value: int) -> str:
    is_power = value >= 1 << 20 and value & (value - 1) == 0
    return f"2^{value.bit_length() - 1}" if is_power else f"{value:,}"
