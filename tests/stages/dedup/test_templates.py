"""Templates of sites through whole runs: what is gone from which page, recounted with a Counter over the
written files, however the corpus is cut and worked on."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import tokmill as mill
from duplicates import slow_templates
from mill import tokmill, write_recipe
from plain import urls as plain_urls
from written import Json, load_manifest, load_table, load_tables

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]
SITES = {"large.com": 70, "middle.org": 40, "small.net": 19}


def prose(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words)).capitalize() + "."


def corpus() -> list[Json]:
    """Three sites with menus, counters and notices, a page that is nothing else, and documents of no site."""
    chance = random.Random(5)
    found = []
    for host, pages in SITES.items():
        for number in range(pages):
            lines = [f"Home | {host} | About", "", f"Article on {prose(chance, 3)}", ""]
            lines += [
                prose(chance, 12),
                f"{number} comments",
                "",
                "```",
                "import mill",
                "```",
                prose(chance, 9),
            ]
            lines += [f"Section {host}"] * (number % 7 == 0) + ["Read more\t here"] * (number % 3 == 0)
            lines += ["## See also", "", "", f"© {2000 + number} The Mill Ltd, 1-{number} River Rd"]
            text = "\n".join(lines) + "\n" * (number % 2)
            url = chance.choice(["http://www.{}/{}", "https://{}/{}?utm_source=x", "{}/{}/"])
            found.append({"id": f"{host}-{number}", "text": text, "url": url.format(host, number)})
    found.append({"id": "menu", "text": "Home | large.com | About\n\n3 comments\n", "url": "large.com/empty"})
    found += [
        {"id": f"none-{number}", "text": f"Home | large.com | About\n{prose(chance, 12)}", "url": url}
        for number, url in enumerate([None, "no url", 7] * 10)
    ]
    chance.shuffle(found)
    return found


RECORDS = corpus()
FIELDS = {"id": "id", "meta": ["url"]}


def run_templates(
    directory: Path,
    dedup: Json,
    parts: int = 1,
    sources: list[Json] | None = None,
    records: list[Json] | None = None,
    sections: Json | None = None,
    **options: Any,
) -> Path:
    directory.mkdir(parents=True)
    records = RECORDS if records is None else records
    size = -(-len(records) // parts)
    for part in range(parts):
        lines = [json.dumps(record) for record in records[part * size : (part + 1) * size]]
        (directory / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n")
    named = [{"fields": FIELDS, **source} for source in sources or [{"name": "all", "files": "part-*.jsonl"}]]
    without = {"tokenizer": None, "builds": None, "filters": None, "normalize": None}
    recipe = write_recipe(
        directory, sources=named, dedup={"exact": False, **dedup}, **{**without, **(sections or {})}
    )
    return mill.run(recipe, **{"workers": 1, **options}).out


def host_of(url: Any) -> str | None:
    normal = plain_urls.normalize_url(url) if isinstance(url, str) else None
    return normal.split("/")[2] if normal else None


def expected_texts(records: list[Json], **bounds: Any) -> dict[str, str]:
    texts, hosts = [record["text"] for record in records], [host_of(record["url"]) for record in records]
    left = slow_templates.strip_sites(texts, hosts, **bounds)
    return {record["id"]: text for record, text in zip(records, left, strict=True)}


def written(out: Path) -> dict[str, str]:
    """doc_id -> text of every document after deduplication, dropped ones as "", from the files alone;
    the spans cut out of the cleaned texts give the same."""
    found: dict[str, str] = {}
    for number, shard in enumerate(load_manifest(out / "dedup").facts["shards"]):
        source, _, key = shard.rpartition("/")
        rows = load_table(out / f"ingest/{source}/documents-{key}.parquet").to_pylist()
        kept = load_table(out / f"dedup/verdicts-{number:05d}.parquet").to_pylist()
        texts = [row["text"] for row in rows]
        by_span = [text.encode() for text in texts]
        spans, stripped = (out / f"dedup/{t}-{number:05d}.parquet" for t in ("template_spans", "stripped"))
        for span in reversed(load_table(spans).to_pylist() if spans.is_file() else []):
            text = by_span[span["row"]]
            by_span[span["row"]] = text[: span["start"]] + text[span["end"] :]
        for edit in load_table(stripped).to_pylist() if stripped.is_file() else []:
            assert edit["chars"] == len(texts[edit["row"]]) - len(edit["text"])
            texts[edit["row"]] = edit["text"]
        for row, text, other, verdict in zip(rows, texts, by_span, kept, strict=True):
            assert other.decode() == text or verdict["reason"] == "only_site_template"
            assert verdict["kept"] or not other.strip() or verdict["reason"] != "only_site_template"
            found[row["doc_id"]] = text if verdict["kept"] else ""
    return found


@pytest.mark.usefixtures("forked_workers")
def test_what_recurs_is_gone_and_nothing_else_for_any_cut_and_any_workers(tmp_path: Path) -> None:
    expected = {doc_id: text if text.strip() else "" for doc_id, text in expected_texts(RECORDS).items()}
    changed = [record for record in RECORDS if expected[record["id"]] != record["text"]]
    assert len(changed) == SITES["large.com"] + SITES["middle.org"] + 1
    one = run_templates(tmp_path / "one", {"templates": True})
    cut = run_templates(tmp_path / "cut", {"templates": True, "partitions": 3}, parts=5)
    three = run_templates(tmp_path / "three", {"templates": True, "partitions": 3}, parts=5, workers=3)
    for out in (one, cut, three):
        assert written(out) == expected
        assert mill.verify(out).ok
    assert load_manifest(cut).identity == load_manifest(three).identity
    assert load_manifest(cut / "dedup").digest == load_manifest(three / "dedup").digest
    large = expected["large.com-3"].split("\n")
    assert "```\nimport mill\n```" in expected["large.com-3"]
    assert "## See also" in large
    assert not {"3 comments", "Home | large.com | About", "Read more\t here"} & {*large}
    assert "Section large.com" in expected["large.com-7"]  # on a seventh of the pages


def test_no_line_that_recurs_is_left_and_no_other_is_missing(tmp_path: Path) -> None:
    """With nothing but a Counter of lines before and after."""
    out = run_templates(tmp_path / "run", {"templates": True})
    texts = written(out)
    pages = Counter(host_of(record["url"]) for record in RECORDS)
    before: Counter[tuple[str | None, str]] = Counter()
    after: Counter[tuple[str | None, str]] = Counter()
    for record in RECORDS:
        host = host_of(record["url"])
        before.update({(host, said) for said in slow_templates.blocks(record["text"]).values()})
        after.update({(host, said) for said in slow_templates.blocks(texts[record["id"]]).values()})
    assert {host for host, _ in before} == {None, *SITES}
    for (host, said), count in before.items():
        is_site = host is not None and pages[host] >= 20
        recurs = is_site and count >= 10 and 5 * count >= pages[host]
        assert after[host, said] == (0 if recurs else count), (host, said)


def test_the_figures_are_those_of_the_written_files(tmp_path: Path) -> None:
    out = run_templates(tmp_path / "run", {"templates": True}, parts=2)
    texts = written(out)
    original = {record["id"]: record["text"] for record in RECORDS}
    edited = {doc_id for doc_id, text in texts.items() if text and text != original[doc_id]}
    manifest = load_manifest(out / "dedup")
    assert manifest.counts["in"] == len(RECORDS)
    assert manifest.counts["dropped"] == {"only_site_template": 1}
    assert manifest.counts["edited"] == {"site_template": len(edited)}
    assert manifest.counts["kept"] == len(RECORDS) - 1
    ledger = [row for table in load_tables(out / "dedup", "ledger") for row in table.to_pylist()]
    told = {row["doc_id"]: row for row in ledger if row["verdict"] == "edit"}
    assert set(told) == edited
    assert len(ledger) == len(edited) + 1
    for doc_id, row in told.items():
        assert row["reason"] == "site_template"
        assert row["value"] == len(original[doc_id]) - len(texts[doc_id])
        assert row["detail"] == doc_id.rpartition("-")[0]
    pages = Counter(host_of(record["url"]) for record in RECORDS)
    spans = [row for table in load_tables(out / "dedup", "template_spans") for row in table.to_pylist()]
    facts = manifest.facts["templates"]
    assert facts["hosts"] == 2
    assert facts["bytes_cut"] == sum(span["end"] - span["start"] for span in spans)
    assert facts["lines_cut"] == sum(
        len(slow_templates.blocks(text)) - len(slow_templates.blocks(texts[doc_id]))
        for doc_id, text in original.items()
    )
    assert {span["host_pages"] for span in spans} == {pages["large.com"], pages["middle.org"]}
    # "Read more" is the rarest line that goes
    rare = Counter(host_of(r["url"]) for r in RECORDS if "Read more" in r["text"])
    assert min(span["pages"] for span in spans) == min(rare["large.com"], rare["middle.org"])
    figures = json.loads(Path(mill.report(out).as_json()["figures"]).read_bytes())
    drops = {drop["reason"]: drop["by_source"] for drop in figures["drops"]}
    assert drops == {"only_site_template": {"all": 1}}
    assert (
        f"dedup: edit {len(edited)} site_template" in tokmill("why", out, "--reason", "site_template").stdout
    )
    why = tokmill("why", out, "large.com-3").stdout
    assert "site_template" in why
    assert "large.com" in why
    assert "only_site_template" in tokmill("why", out, "menu").stdout


BOUNDS: list[tuple[Json, Json]] = [
    ({"min_host_pages": 19}, {"min_host_pages": 19}),
    ({"min_host_pages": 71}, {"min_host_pages": 71}),
    ({"min_host_pages": 72}, {"min_host_pages": 72}),
    ({"min_share": 0.1}, {"min_share": "0.1"}),
    ({"min_share": 1}, {"min_share": "1"}),
    ({"min_pages": 24}, {"min_pages": 24}),
    ({"min_pages": 25}, {"min_pages": 25}),
    ({"max_chars": 24}, {"max_chars": 24}),
    ({"max_chars": 23}, {"max_chars": 23}),
]


@pytest.mark.parametrize(("asked", "bounds"), BOUNDS)
def test_floors_and_shares(tmp_path: Path, asked: Json, bounds: Json) -> None:
    out = run_templates(tmp_path / "run", {"templates": asked})
    expected = expected_texts(RECORDS, **bounds)
    assert written(out) == {doc_id: text if text.strip() else "" for doc_id, text in expected.items()}


def test_every_bound_decides_something() -> None:
    """Those above are at the edge: one more or less is another result."""
    results = [expected_texts(RECORDS, **bounds) for _, bounds in [({}, {}), *BOUNDS]]
    pairs = [(1, 0), (2, 3), (4, 0), (5, 0), (6, 7), (8, 9)]
    assert all(results[one] != results[other] for one, other in pairs)


def test_copies_of_a_page_are_no_pages_of_its_site(tmp_path: Path) -> None:
    """Ten crawls of one page would make furniture of its prose."""
    chance = random.Random(1)
    page = {"text": "\n".join(prose(chance, 12) for _ in range(5))}
    others = [
        {"id": f"o{n}", "text": f"Menu\n{prose(chance, 12)}", "url": f"https://a.com/{n}"} for n in range(30)
    ]
    crawls = [{**page, "id": f"c{n}", "url": f"http://www.a.com/page?utm_source={n}"} for n in range(12)]
    records = [*others, *crawls]
    loose = run_templates(tmp_path / "loose", {"templates": True}, records=records)
    assert written(loose)["c0"] == ""
    for name, dedup in {"url": {"url": True}, "exact": {"exact": True}}.items():
        out = run_templates(tmp_path / name, {"templates": True, **dedup}, records=records)
        texts = written(out)
        assert texts["c0"] == page["text"]
        assert not any(texts[f"c{n}"] for n in range(1, 12))
        assert not any("Menu" in texts[f"o{n}"] for n in range(30))


def test_furniture_makes_no_near_duplicates_and_hides_none(tmp_path: Path) -> None:
    chance = random.Random(2)
    menu = [prose(chance, 12) for _ in range(20)]
    foot = [prose(chance, 12) for _ in range(20)]
    bodies = [prose(chance, 12) for _ in range(30)]
    records = [
        {"id": f"p{n}", "text": "\n".join([*menu, body]), "url": f"https://a.com/{n}"}
        for n, body in enumerate(bodies)
    ]
    records += [
        {"id": f"q{n}", "text": "\n".join([body, *foot]), "url": f"https://b.com/{n}"}
        for n, body in enumerate(bodies)
    ]
    near = {"near": {"threshold": 0.8}}
    plain = run_templates(tmp_path / "plain", near, records=records)
    assert load_manifest(plain / "dedup").counts["dropped"] == {"near_dup": 58}, "for their menus"
    out = run_templates(tmp_path / "out", {**near, "templates": True}, records=records)
    assert written(out) == {
        **{f"p{n}": body for n, body in enumerate(bodies)},
        **{f"q{n}": "" for n in range(30)},
    }, "for their bodies"
    assert load_manifest(out / "dedup").counts["dropped"] == {"near_dup": 30}
    assert load_manifest(out / "dedup").counts["edited"] == {"site_template": 60}
    # what is compared again is what was compared
    told = tokmill("whatif", out, "--set", "dedup.near.threshold=0.9").stdout
    assert "30 → 30" in told
    assert mill.verify(out).ok


def test_passages_are_cut_from_what_is_left_and_tokens_are_of_that(tmp_path: Path) -> None:
    chance = random.Random(4)
    passage = prose(chance, 70)
    records = [
        {
            "id": f"d{n}",
            "text": f"Menu of the mill\n{prose(chance, 60)}\n{passage if n < 3 else prose(chance, 20)}\nFoot",
            "url": f"https://a.com/{n}",
        }
        for n in range(24)
    ]
    sections = {"tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"}}
    sections["builds"] = [{"name": "rows", "format": "memmap"}]
    sections["split"] = None
    dedup = {"templates": True, "window": {"policy": "trim"}}
    out = run_templates(tmp_path / "run", dedup, records=records, sections=sections)
    body = {record["id"]: record["text"].split("\n")[1:3] for record in records}
    trims = load_table(out / "dedup/trims-00000.parquet").to_pylist()
    assert [row["row"] for row in trims] == [1, 2]
    assert [row["text"].strip() for row in trims] == [body[f"d{row['row']}"][0] for row in trims]
    assert load_manifest(out / "dedup").counts["edited"] == {"site_template": 24, "passages_trimmed": 2}
    expected = {doc_id: "\n".join(lines) for doc_id, lines in body.items()}
    expected |= {f"d{row['row']}": row["text"] for row in trims}
    encoder = Tokenizer.from_file(str(out / "tokenizer/tokenizer.json"))
    lengths = {
        row["doc_id"]: row["tokens"]
        for path in sorted((out / "tokens").rglob("lengths-*.parquet"))
        for row in load_table(path).to_pylist()
    }
    assert lengths == {doc_id: len(encoder.encode(text).ids) + 1 for doc_id, text in expected.items()}
    assert mill.verify(out).ok
    assert mill.check(out / "build/rows").ok
    for column in range(0, 64, 5):
        (traced,) = mill.trace(out / "build/rows", row=3, column=column).documents
        if not traced.ends_document:
            characters = slice(traced.stretch.start, traced.stretch.end)
            assert encoder.decode(list(traced.ids)) == expected[traced.doc_id][characters]


def test_sources_are_kept_apart_or_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(8)
    records = [{"id": f"d{n}", "text": f"Menu\n{prose(chance, 12)}", "url": f"a.com/{n}"} for n in range(30)]
    sources = [{"name": "a", "files": "part-0.jsonl"}, {"name": "b", "files": "part-1.jsonl"}]
    whole = run_templates(tmp_path / "whole", {"templates": True}, 2, sources, records)
    assert not any("Menu" in text for text in written(whole).values())
    apart = run_templates(tmp_path / "apart", {"templates": True, "scope": "per-source"}, 2, sources, records)
    assert written(apart) == {record["id"]: record["text"] for record in records}, "15 pages each"
    safe = run_templates(tmp_path / "safe", {"templates": True, "reference": ["b"]}, 2, sources, records)
    has_menu = {doc_id for doc_id, text in written(safe).items() if "Menu" in text}
    assert has_menu == {f"d{n}" for n in range(15, 30)}, "they count, and stay"


def test_another_key_one_that_nobody_has_and_none_asked_for(tmp_path: Path) -> None:
    original = {record["id"]: record["text"] for record in RECORDS}
    none = run_templates(tmp_path / "none", {"templates": {"field": "canonical_url"}})
    assert written(none) == original
    assert mill.verify(none).ok
    off = run_templates(tmp_path / "off", {"templates": False, "exact": True})
    assert "templates" not in load_manifest(off / "dedup").config


@pytest.mark.slow_faults
def test_a_cluster_gives_the_same_digest(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    local = run_templates(tmp_path / "local", {"templates": True}, parts=3)
    ray = run_templates(tmp_path / "ray", {"templates": True}, parts=3, engine="ray", workers=2)
    assert load_manifest(local).identity == load_manifest(ray).identity


def test_a_page_that_is_forgotten_is_in_no_table(tmp_path: Path) -> None:
    out = run_templates(tmp_path / "run", {"templates": True})
    (record,) = [record for record in RECORDS if record["id"] == "large.com-3"]
    sentence = record["text"].split("\n")[4]

    def tables_with() -> list[str]:
        paths = sorted(out.rglob("*.parquet"))
        return [path.name for path in paths if sentence in str(load_table(path).to_pylist())]

    assert "stripped-00000.parquet" in tables_with()
    assert tokmill("forget", out, "--doc-id", "large.com-3", "--workers", "1").returncode == 0
    assert tables_with() == []
    assert mill.verify(out).ok
    left = [other for other in RECORDS if other is not record]
    expected = expected_texts(left)
    assert written(out) == {
        **{doc_id: text if text.strip() else "" for doc_id, text in expected.items()},
        **{doc_id: text for doc_id, text in written(out).items() if doc_id not in expected},
    }


def test_conversations_are_no_pages_and_lose_no_line(tmp_path: Path) -> None:
    """`<|im_start|>assistant` is on all of them; and with them the host would have 43 pages."""
    pytest.importorskip("jinja2")
    chance = random.Random(3)
    (tmp_path / "chat.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "id": f"c{n}",
                    "url": f"https://a.com/{n}",
                    "messages": [
                        {"role": "user", "content": f"Hello\n{prose(chance, 9)}"},
                        {"role": "assistant", "content": f"Sure\n{prose(chance, 9)}"},
                    ],
                }
            )
            + "\n"
            for n in range(24)
        )
    )
    pages = [{"id": f"p{n}", "text": f"Menu\n{prose(chance, 9)}", "url": f"a.com/p{n}"} for n in range(19)]
    train = {"model": "byte_bpe", "vocab_size": 290, "control_symbols": ["<|im_start|>", "<|im_end|>"]}
    sections = {
        "tokenizer": {"train": train, "eos": "<|endoftext|>"},
        "builds": [{"name": "rows", "format": "memmap"}],
    }
    sources = [
        {"name": "talk", "files": str(tmp_path / "chat.jsonl"), "chat": {"template": "chatml"}},
        {"name": "web", "files": "part-0.jsonl"},
    ]
    plain = run_templates(tmp_path / "plain", {"url": True}, 1, sources, pages, sections)
    out = run_templates(tmp_path / "out", {"templates": True}, 1, sources, pages, sections)
    assert written(out) == written(plain)
    assert load_manifest(out / "dedup").counts["edited"] == {}
    built = [
        [path.read_bytes() for path in sorted((run / "build/rows").rglob("*.mmap"))] for run in (plain, out)
    ]
    assert built[0]
    assert built[0] == built[1]
    more = [*pages, {"id": "p19", "text": "Menu\nThe last one.", "url": "a.com/p19"}]
    out = run_templates(tmp_path / "more", {"templates": True}, 1, sources, more, sections)
    assert load_manifest(out / "dedup").counts["edited"] == {"site_template": 20}, "pages of the host alone"
    assert {text for doc_id, text in written(out).items() if doc_id[0] == "c"} == {
        text for doc_id, text in written(plain).items() if doc_id[0] == "c"
    }
