"""What ships, counted again: report, page, card, Croissant,
ATTRIBUTION and review against the rows of the builds.

One run with all that makes "kept" another thing than "built": a source that repeats, one without weight, one
that is all copies, a build of some sources; two licences in one source, values to redact, benchmarks, near
duplicates across sources. What is in it is known by construction or read from the written files, by json,
pyarrow and Zstandard's own library.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import tokmill
from browser import open_page
from reviews.reviewed import WORDS
from tokmill.reports.page import Report
from written import load_lines, load_table

Json = dict[str, Any]

DOMAINS = {"web": "web", "wiki": "web", "math": "math", "spare": "spare", "copies": "web"}
WEIGHTS = {"web": "0.7", "math": "0.3", "spare": 0}
BUILDS = {"rows": list(DOMAINS), "some": ["web", "wiki"]}
MAIL, ADDRESS = "ann.lee@brook-mill.net", "81.2.69.142"
RNG = random.Random(5)


def prose(count: int, rng: random.Random = RNG) -> str:
    return " ".join(rng.choice(WORDS) + rng.choice(["", "", "", ".", ","]) for _ in range(count))


class Corpus(NamedTuple):
    records: dict[str, list[Json]]  # by source
    items: dict[str, list[str]]  # by benchmark file
    mails: Counter[str]  # planted in a document, by id
    addresses: Counter[str]
    holding: dict[str, set[str]]  # documents that hold words of an item, by benchmark file
    dropped: dict[str, set[str]]  # that hold enough of one

    def named(self, doc_id: str) -> Json:
        return next(
            record for records in self.records.values() for record in records if record["id"] == doc_id
        )


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    def records(source: str, count: int, words: int) -> list[Json]:
        return [
            {"id": f"{source}-{n:03d}", "text": prose(words), "license": "MIT", "lang": "en"}
            for n in range(count)
        ]

    found = {"web": records("web", 150, 60), "wiki": records("wiki", 60, 60), "math": records("math", 20, 60)}
    found["spare"] = records("spare", 10, 60)
    found["copies"] = [{**record, "id": f"copy-{n}"} for n, record in enumerate(found["web"][:8])]
    for record in found["web"][::3]:
        record["license"] = "CC-BY-4.0"
    for record in found["math"]:
        record["license"] = "Apache-2.0"
    for record in found["math"][:5]:
        record["lang"] = "de"
    found["math"].append({"id": "math-fr", "text": "Oui, le pain.", "license": None, "lang": "fr"})
    for record in found["spare"]:
        record["license"] = "ODC-By-1.0"

    def near(text: str) -> str:
        words = text.split()
        return " ".join([*words[:30], "entirely", *words[30:]])

    for number in range(5):  # near copies of the web in wiki, and of itself in the web
        found["wiki"].append(
            {**found["wiki"][0], "id": f"wiki-near-{number}", "text": near(found["web"][number]["text"])}
        )
    for number in range(3):
        found["web"].append(
            {**found["web"][0], "id": f"web-near-{number}", "text": near(found["web"][20 + number]["text"])}
        )
    mails, addresses = Counter[str](), Counter[str]()
    for source, number, many in (("web", 40, 1), ("web", 41, 3), ("wiki", 9, 2), ("math", 6, 2)):
        found[source][number]["text"] += f" write to {MAIL}" * many
        mails[found[source][number]["id"]] = many
    found["math"][7]["text"] += f" from {ADDRESS}"
    addresses[found["math"][7]["id"]] = 1
    found["web"].append({"id": "web-short", "text": f"ask {MAIL}", "license": "MIT", "lang": "en"})
    mails["web-short"] = 1
    items = {"a.jsonl": [prose(40), prose(30)], "b.jsonl": [prose(24), "too short"]}
    holding: dict[str, set[str]] = {name: set() for name in items}
    dropped: dict[str, set[str]] = {name: set() for name in items}
    for source, number, name, text in (
        ("web", 60, "a.jsonl", items["a.jsonl"][0]),
        ("web", 61, "a.jsonl", items["a.jsonl"][1]),
        ("wiki", 20, "b.jsonl", items["b.jsonl"][0]),
        ("math", 10, "a.jsonl", " ".join(items["a.jsonl"][0].split()[:15])),  # too little of it to be dropped
    ):
        record = found[source][number]
        record["text"] += f" {text}"
        holding[name].add(record["id"])
        if source != "math":
            dropped[name].add(record["id"])
    return Corpus(found, items, mails, addresses, holding, dropped)


@pytest.fixture(scope="module")
def out(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("built")
    for source, records in corpus.records.items():
        (directory / f"{source}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for name, items in corpus.items.items():
        (directory / name).write_text("".join(json.dumps({"question": item}) + "\n" for item in items))
    recipe: Json = {
        "name": "shipped",
        "seed": 3,
        "sources": [
            {
                "name": source,
                "domain": domain,
                "files": f"{source}.jsonl",
                "license": "CC0-1.0" if source == "web" else None,
                "fields": {"text": "text", "id": "id", "license": "license", "language": "lang"},
            }
            for source, domain in DOMAINS.items()
        ],
        "license": {"unknown": "keep"},
        "language": {"method": "field"},
        "filters": [{"measure": "words", "min": 3, "reason": "too_short"}],
        "redact": ["email", "ip"],
        "dedup": {
            "near": {"threshold": 0.7},
            "against": {"files": ["a.jsonl", "b.jsonl"], "fields": ["question"], "min_share": "0.5"},
            "warn_source_loss": 1,
        },
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "mixture": {"weights": WEIGHTS, "tokens": 40_000, "exhausted": "repeat"},
        "pack": {"length": 64},
        "builds": [
            {"name": "rows", "format": "memmap"},
            {"name": "some", "format": "megatron", "sources": BUILDS["some"]},
        ],
    }
    for source in recipe["sources"]:
        if source["license"] is None:
            del source["license"]
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return tokmill.run(path, directory / "out", workers=1).out


class Piece(NamedTuple):
    split: str
    source: str
    doc_id: str
    tokens: int


@pytest.fixture(scope="module")
def pieces(out: Path) -> dict[str, list[Piece]]:
    """Of each build, every piece of a document in a row."""
    return {build: list(_pieces(out / "build" / build)) for build in BUILDS}


def _pieces(build: Path) -> Iterator[Piece]:
    for path in sorted(build.glob("*/index.jsonl.zst")):
        for row in load_lines(path):
            for span in row["docs"]:
                yield Piece(path.parent.name, span["source"], span["doc_id"], span["end"] - span["start"])


@pytest.fixture(scope="module")
def made(out: Path) -> Report:
    return tokmill.report(out, cards=True)


@pytest.fixture(scope="module")
def facts(made: Report) -> Json:
    found: Json = json.loads(made.figures.read_bytes())
    return found


def license_of(corpus: Corpus, doc_id: str) -> str:
    return corpus.named(doc_id)["license"] or "unknown"


def all_ids(pieces: dict[str, list[Piece]]) -> set[str]:
    return {piece.doc_id for own in pieces.values() for piece in own}


# --- readers of what people read ---


def markdown_tables(text: str) -> list[list[list[str]]]:
    blocks = re.findall(r"(?:^\|.*\n?)+", text, re.M)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in b.strip().splitlines()]
        for b in blocks
    ]


class _Page(HTMLParser):
    """Cells of the tables, and the text, of each section."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[list[str]]]] = defaultdict(list)
        self.text: dict[str, str] = defaultdict(str)
        self._section = ""
        self._is_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self._section = str(dict(attrs)["id"])
        elif tag == "table":
            self.tables[self._section].append([])
        elif tag == "tr":
            self.tables[self._section][-1].append([])
        elif tag in ("td", "th"):
            self.tables[self._section][-1][-1].append("")
            self._is_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._is_cell = self._is_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text[self._section] += data
        if self._is_cell:
            self.tables[self._section][-1][-1][-1] += data


@pytest.fixture(scope="module")
def page(made: Report) -> _Page:
    found = _Page()
    found.feed(made.page.read_text())
    return found


def test_the_corpus_has_what_these_tests_are_about(
    out: Path, corpus: Corpus, pieces: dict[str, list[Piece]]
) -> None:
    built = Counter(piece.source for piece in pieces["rows"])
    assert set(built) == {"web", "wiki", "math"}
    assert len(all_ids(pieces)) < sum(len(records) for records in corpus.records.values()) - 18
    assert _turns(out, "train").most_common(1)[0][1] >= 2, "something repeats"


def _turns(out: Path, split: str) -> Counter[tuple[int, int]]:
    table = load_table(out / f"mixture/order-{split}.parquet")
    return Counter(zip(*(table.column(name).to_pylist() for name in ("shard", "sequence")), strict=True))


def _lengths(out: Path, split: str) -> dict[int, list[Json]]:
    return {
        int(path.stem.removeprefix("lengths-")): load_table(path).to_pylist()
        for path in sorted((out / "tokens" / split).glob("*/lengths-*.parquet"))
    }


def _doc_id(out: Path, shard: int, row: int) -> str:
    paths = [
        path for source in DOMAINS for path in sorted((out / "ingest" / source).glob("documents-*.parquet"))
    ]
    return str(load_table(paths[shard]).column("doc_id")[row].as_py())


def _source_of(out: Path) -> list[str]:
    """By the number of a shard."""
    return [
        source for source in DOMAINS for _ in sorted((out / "ingest" / source).glob("documents-*.parquet"))
    ]


# --- shares ---


def test_shares_of_a_build_are_those_of_its_rows_and_documents_count_once(
    facts: Json, corpus: Corpus, pieces: dict[str, list[Piece]]
) -> None:
    keys = {
        "source": lambda piece: piece.source,
        "domain": lambda piece: DOMAINS[piece.source],
        "split": lambda piece: piece.split,
        "language": lambda piece: corpus.named(piece.doc_id)["lang"],
        "license": lambda piece: license_of(corpus, piece.doc_id),
    }
    for build in facts["builds"]:
        own = pieces[build["name"]]
        whole = sum(piece.tokens for piece in own)
        for key, name_of in keys.items():
            tokens: Counter[str] = Counter()
            docs: dict[str, set[str]] = defaultdict(set)
            for piece in own:
                tokens[name_of(piece)] += piece.tokens
                docs[name_of(piece)].add(piece.doc_id)
            found = {row["name"]: (row["tokens"], row["docs"], row["share"]) for row in build["shares"][key]}
            assert found == {n: (tokens[n], len(docs[n]), round(tokens[n] / whole, 6)) for n in tokens}, key


def test_totals_are_of_what_is_in_rows(facts: Json, page: _Page, pieces: dict[str, list[Piece]]) -> None:
    totals = facts["totals"]
    assert totals["documents_built"] == {b: len({p.doc_id for p in own}) for b, own in pieces.items()}
    assert totals["documents_in_builds"] == len(all_ids(pieces))
    assert totals["tokens_written"] == {b: sum(p.tokens for p in own) for b, own in pieces.items()}
    assert f"{totals['documents_built']['rows']:,}documents in the build rows" in page.text[""]


# --- flow ---


def test_repeats_are_a_ribbon_of_their_own_and_the_flow_of_tokens_conserves(out: Path, facts: Json) -> None:
    flow = facts["flow"]["tokens"]
    links = Counter({(link["from"], link["to"]): link["value"] for link in flow["links"]})
    sources = _source_of(out)
    encoded: Counter[tuple[str, str]] = Counter()
    repeated: Counter[str] = Counter()
    unused = 0
    for split in ("train", "valid"):
        lengths, turns = _lengths(out, split), _turns(out, split)
        for shard, rows in lengths.items():
            for sequence, row in enumerate(rows):
                times = turns[shard, sequence]
                encoded[sources[shard], split] += row["tokens"]
                repeated[sources[shard]] += row["tokens"] * max(times - 1, 0)
                unused += row["tokens"] * (times == 0)
    for (source, split), tokens in encoded.items():
        assert links[f"source {source}", f"split {split}"] == tokens
    assert {source: links[f"source {source}", "repeats train"] for source in DOMAINS} == {
        source: repeated[source] for source in DOMAINS
    }
    assert links["repeats train", "split train"] == sum(repeated.values()) > 0
    assert links["split train", "drop unused"] + links["split valid", "drop unused"] == unused
    into: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for (start, end), value in links.items():
        left[start] += value
        into[end] += value
    assert all(into[node] == left[node] for node in into.keys() & left.keys())
    (math,) = (node for node in flow["nodes"] if node["id"] == "source math")
    assert (math["value"], math["repeated"]) == (left["source math"], repeated["math"])


def test_the_flow_of_documents_ends_in_rows(facts: Json, pieces: dict[str, list[Piece]]) -> None:
    links = {(link["from"], link["to"]): link["value"] for link in facts["flow"]["documents"]["links"]}
    for split in ("train", "valid"):
        built = {piece.doc_id for piece in pieces["rows"] if piece.split == split}
        assert links[f"mixed {split}", f"built {split}"] == len(built)


# --- the mixture ---


def test_a_mixture_of_domains_is_told_by_domain_as_it_was_asked(
    out: Path, facts: Json, page: _Page, pieces: dict[str, list[Piece]]
) -> None:
    train = next(split for split in facts["mixture"]["splits"] if split["split"] == "train")
    sources, lengths = _source_of(out), _lengths(out, "train")
    available: Counter[str] = Counter()
    for shard, rows in lengths.items():
        available[DOMAINS[sources[shard]]] += sum(row["tokens"] for row in rows)
    tokens: Counter[str] = Counter()
    for piece in pieces["rows"]:
        tokens[DOMAINS[piece.source]] += piece.tokens if piece.split == "train" else 0
    whole = sum(tokens.values())
    built = {(piece.source, piece.doc_id) for piece in pieces["rows"]}
    read: Counter[str] = Counter()  # whole documents, where some of each is in rows
    for (shard, sequence), times in _turns(out, "train").items():
        row = lengths[shard][sequence]
        assert (sources[shard], _doc_id(out, shard, row["row"])) in built
        read[DOMAINS[sources[shard]]] += row["tokens"] * times
    assert {domain["name"]: domain["wanted"] for domain in train["domains"]} == {
        name: float(weight) for name, weight in WEIGHTS.items() if weight
    }
    for domain in train["domains"]:
        name = domain["name"]
        assert (domain["tokens"], domain["available"]) == (tokens[name], available[name])
        assert domain["built"] == pytest.approx(tokens[name] / whole, abs=1e-8)
        assert domain["epochs"] == pytest.approx(read[name] / available[name], abs=1e-5)
    table = page.tables["mixture"][0]
    assert table[0] == ["Domain", "", "wanted", "built", "tokens", "available", "epochs"]
    math = next(row for row in table if row[0] == "math")
    assert math[2:] == [
        "30.0 %",
        f"{100 * tokens['math'] / whole:.1f} %",
        f"{tokens['math']:,}",
        f"{available['math']:,}",
        f"{read['math'] / available['math']:.2f}",
    ]
    assert [row[0] for row in table[1:]] == ["web", "web", "wiki", "math"]


# --- redactions, decontamination, duplicates ---


def test_redactions_are_counted_by_source_and_kind_in_what_was_kept_and_in_what_was_built(
    facts: Json, page: _Page, corpus: Corpus, pieces: dict[str, list[Piece]]
) -> None:
    built = all_ids(pieces)
    expected: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for kind, planted in (("email", corpus.mails), ("ip", corpus.addresses)):
        for doc_id, values in planted.items():
            if doc_id == "web-short":
                continue  # dropped by cleaning
            total = expected[doc_id.split("-")[0], kind]
            total.update(docs=1, values=values)
            total.update(built_docs=int(doc_id in built), built_values=values * (doc_id in built))
    found = {(row["source"], row["kind"]): row for row in facts["redactions"]}
    assert {key: {k: row[k] for k in expected[key]} for key, row in found.items()} == expected
    table = next(t for t in page.tables["drops"] if t[0][:2] == ["Source", "kind"])
    mail = expected["math", "email"]
    assert [
        "math",
        "email",
        *(f"{mail[k]}" for k in ("values", "docs", "built_values", "built_docs")),
    ] in table
    assert mail["built_values"] == 2, "all of math is built"


def test_decontamination_says_how_many_against_which_set_and_what_is_left(
    facts: Json, page: _Page, made: Report, corpus: Corpus, pieces: dict[str, list[Piece]]
) -> None:
    built = all_ids(pieces)
    expected = [
        [name, len(holding), len(dropped), len(holding & built)]
        for (name, holding), dropped in zip(corpus.holding.items(), corpus.dropped.values(), strict=True)
    ]
    found = facts["decontamination"]
    assert [
        [file["name"], file["docs"], file["dropped"], file["built"]] for file in found["files"]
    ] == expected
    assert [file["items"] for file in found["files"]] == [2, 1]
    assert (found["dropped"], found["built"], found["unused_items"]) == (3, 1, 1)
    table = next(t for t in page.tables["drops"] if t[0][0] == "Benchmark")
    assert [[row[0], *map(int, row[2:])] for row in table[1:]] == expected
    (card,) = (t for t in markdown_tables(made.cards[0].read_text()) if t[0][0] == "benchmark")
    assert [[row[0], *map(int, row[2:])] for row in card[2:]] == expected


def test_which_source_repeats_which_is_a_matrix(out: Path, facts: Json, page: _Page) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    for path in sorted((out / "dedup").glob("ledger-*.parquet")):
        for row in load_table(path).to_pylist():
            if row["match_shard"] is not None:
                expected[row["source"], row["match_shard"].split("/")[0]] += 1
    found = {(pair["source"], pair["kept_in"]): pair["docs"] for pair in facts["duplicates"]}
    assert found == expected == {("copies", "web"): 8, ("wiki", "web"): 5, ("web", "web"): 3}
    table = next(t for t in page.tables["clusters"] if t[0][0] == "Dropped from")
    assert table == [
        ["Dropped from", "kept in web", "in all"],
        ["copies", "8", "8"],
        ["wiki", "5", "5"],
        ["web", "3", "3"],
    ]


def test_the_recipe_stands_in_the_report_in_its_own_words(out: Path, facts: Json, page: _Page) -> None:
    asked = json.loads((out.parent / "recipe.yaml").read_text())
    told = yaml.safe_load(facts["recipe"])
    assert told["mixture"]["exhausted"] == "repeat"
    assert told["dedup"]["against"]["files"] == asked["dedup"]["against"]["files"]
    assert [source["name"] for source in told["sources"]] == list(DOMAINS)
    assert "normalize" not in told, "what is left to the defaults is left out"
    assert facts["recipe"].strip() in page.text["chain"]


# --- cards, attribution, review ---


def attributed(corpus: Corpus, pieces: dict[str, list[Piece]]) -> dict[tuple[str, str], list[int]]:
    """By licence and source: documents in any build, and the tokens of each build."""
    docs: dict[tuple[str, str], set[str]] = defaultdict(set)
    tokens: dict[str, Counter[tuple[str, str]]] = {build: Counter() for build in BUILDS}
    for build, own in pieces.items():
        for piece in own:
            key = license_of(corpus, piece.doc_id), piece.source
            docs[key].add(piece.doc_id)
            tokens[build][key] += piece.tokens
    return {key: [len(docs[key]), *(tokens[build][key] for build in BUILDS)] for key in docs}


def test_attribution_is_of_what_was_built(out: Path, corpus: Corpus, pieces: dict[str, list[Piece]]) -> None:
    text = (out / "ATTRIBUTION.md").read_text()
    expected = attributed(corpus, pieces)
    found = {}
    for section in text.split("\n## ")[1:]:
        license = section.splitlines()[0].replace("Unknown", "unknown")
        (table,) = markdown_tables(section)
        assert table[0] == ["source", "documents", "tokens in rows", "tokens in some"]
        for row in table[2:]:
            found[license, row[0]] = [int(cell.replace(",", "")) for cell in row[1:]]
    assert found == expected
    assert {license for license, _ in found} == {"MIT", "CC-BY-4.0", "Apache-2.0", "unknown"}
    assert "Nothing is from copies." in text
    assert "ODC-By" not in text, "a source of a domain without weight is not read"


def test_the_card_has_licences_languages_and_sources_of_what_was_built(
    facts: Json, made: Report, corpus: Corpus, pieces: dict[str, list[Piece]]
) -> None:
    text, croissant = (path.read_text() for path in made.cards)
    matter = yaml.safe_load(text.split("---\n")[1])
    languages: Counter[str] = Counter()
    for piece in pieces["rows"]:
        languages[corpus.named(piece.doc_id)["lang"]] += piece.tokens
    assert 0 < languages["fr"] <= 0.001 * languages.total() < languages["de"]
    assert set(matter["license"]) == {"mit", "cc-by-4.0", "apache-2.0"}
    assert matter["language"] == ["en", "de"]
    assert matter["size_categories"] == ["n<1K"]
    described = json.loads(croissant)
    assert described["inLanguage"] == ["en", "de"]
    assert sorted(url.rpartition("/")[2] for url in described["license"]) == [
        "Apache-2.0.html",
        "CC-BY-4.0.html",
        "MIT.html",
    ]
    tokens = {build: sum(piece.tokens for piece in own) for build, own in pieces.items()}
    summary = (
        f"{len(all_ids(pieces)):,} documents, {tokens['rows']:,} tokens in the build rows, "
        f"{tokens['some']:,} tokens in the build some, from 3 sources"
    )
    assert summary in described["description"]
    assert summary in text
    tables = markdown_tables(text)
    (sources,) = (table for table in tables if table[0][0] == "source")
    for row in sources[2:]:
        mine = {p.doc_id for own in pieces.values() for p in own if p.source == row[0]}
        written = [sum(p.tokens for p in pieces[build] if p.source == row[0]) for build in BUILDS]
        assert row[4:] == [f"{n:,}" for n in (len(mine), *written)]
    of_rows = next(table for table in tables if table[0][0] == "language")
    assert [row[0] for row in of_rows[2:]] == ["en", "de", "1 of at most 0.1 % each"]
    assert of_rows[2][1] == f"{languages['en']:,}"


def test_a_review_names_the_licences_of_the_documents_of_a_source(
    out: Path, corpus: Corpus, pieces: dict[str, list[Piece]]
) -> None:
    found = tokmill.review(out).as_json()
    answer = next(answer for answer in found["questions"] if "Which sources" in answer["question"])
    docs: Counter[str] = Counter()
    for doc_id in {piece.doc_id for piece in pieces["rows"] if piece.source == "web"}:
        docs[license_of(corpus, doc_id)] += 1
    assert answer["figures"]["web"]["licenses"] == docs
    (said,) = (line for line in answer["says"] if line.startswith("web ("))
    assert f"Licences, by documents: MIT {docs['MIT']:,}, CC-BY-4.0 {docs['CC-BY-4.0']:,}." in said
    assert "CC0" not in said, "what the recipe says is for documents that say nothing"


# --- in a browser ---


def test_on_a_phone_the_river_says_that_it_scrolls(made: Report) -> None:
    hint = "getComputedStyle(document.querySelector('#flow .hint')).display"
    hidden = (
        "(() => { const r = document.querySelector('#flow .wide'); return r.scrollWidth - r.clientWidth; })()"
    )
    shadow = "getComputedStyle(document.querySelector('#flow .wide')).backgroundAttachment"
    with open_page() as page:
        page.open(made.page, width=390)
        assert page.run(hidden) > 100
        assert page.run(hint) != "none"
        assert "local" in page.run(shadow)
        assert page.run("document.documentElement.scrollWidth") <= 390
        page.open(made.page, width=1280)
        assert page.run(hidden) == 0
        assert page.run(hint) == "none"
        assert page.complaints == []
