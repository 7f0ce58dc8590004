"""Pages that may not enter, in runs: which go, for what reason, by which entry of which list."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tokmill
from cleaned import clean, fates_of, prose, rows_of, write_documents
from mill import tokmill as run_tokmill
from tokmill.errors import TokmillError
from written import load_manifest


def with_meta(*keys: str) -> dict[str, Any]:
    return {"fields": {"id": "id", "meta": [*keys]}}


# URL, and why the document goes
PAGES = {
    "http://shop.bad.com/x": "blocked_domain",
    "https://BAD.com": "blocked_domain",
    "http://notbad.com/": None,
    "http://bad.com.org/": None,
    "http://evil.org/": "blocked_domain",
    "http://münchen.example/": "blocked_domain",
    "http://blog.org/spam": "blocked_url",
    "http://www.blog.org/spam/2026/?p=1": "blocked_url",
    "http://blog.org/spammer": None,
    "http://a.blog.org/spam": None,
    "http://x.org/Casino-games": "blocked_word",
    "http://x.org/casinos": None,
    "http://x.org/online-pokerstars": "blocked_word",
    "http://mine.net/a": "blocked_domain",
    "mailto:a@b.c": None,
}


def lists(place: Path) -> Path:
    """As the University of Toulouse has them: a directory for each category."""
    for name in ("adult", "other"):
        (place / f"lists/{name}").mkdir(parents=True)
    (place / "lists/adult/domains").write_text(
        "# a comment\nbad.com\nwww.evil.org   # and another\n\n xn--mnchen-3ya.example\r\n", "utf-8"
    )
    (place / "lists/adult/urls.gz").write_bytes(gzip.compress(b"blog.org/spam\nhttp://unused.org/x\n"))
    (place / "lists/adult/expressions").write_text("(this|is)*a[pattern", "utf-8")
    (place / "lists/other/domains").write_text("unused.net\nbad.com\n", "utf-8")
    return place


def write_run(place: Path, records: list[dict[str, Any]], **sections: Any) -> dict[str, Any]:
    write_documents(place / "web.jsonl", records)
    return {
        "name": "web",
        "sources": [{"name": "web", "files": str(place / "web.jsonl"), **with_meta("url")}],
        "shards": {"megabytes": 1},
        **sections,
    }


@pytest.fixture(scope="module")
def blocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = lists(tmp_path_factory.mktemp("blocked"))
    records = [{"id": url, "text": prose(n), "url": url} for n, url in enumerate(PAGES)]
    records.append({"id": "none", "text": prose(999)})
    block = {"domains": ["mine.net"], "words": ["casino", "Poker*"], "lists": [str(place / "lists/*")]}
    recipe = write_run(place, records, urls={"block": block})
    return tokmill.run(recipe, place / "out", workers=1, until="clean").out


def test_pages_go_by_domain_url_and_word_and_others_stay(blocked: Path) -> None:
    assert fates_of(blocked, "web") == {**{url: why or "kept" for url, why in PAGES.items()}, "none": "kept"}


def test_every_drop_names_the_url_and_the_entry_that_it_was_found_by(blocked: Path) -> None:
    details = {row["doc_id"]: row["detail"] for row in rows_of(blocked, "clean/web", "ledger")}
    assert details["http://shop.bad.com/x"] == "https://shop.bad.com/x: bad.com of adult/domains"
    assert details["http://evil.org/"] == "https://evil.org/: evil.org of adult/domains"
    assert details["http://www.blog.org/spam/2026/?p=1"] == (
        "https://blog.org/spam/2026?p=1: blog.org/spam of adult/urls.gz"
    )
    assert details["http://mine.net/a"] == "https://mine.net/a: mine.net of urls.block.domains"
    assert details["http://x.org/Casino-games"] == "https://x.org/Casino-games: casino of urls.block.words"
    told = json.dumps(tokmill.why(blocked, "http://x.org/online-pokerstars").as_json())
    assert "poker* of urls.block.words" in told


def test_the_counts_of_the_manifest_are_those_of_the_ledger(blocked: Path) -> None:
    counts = load_manifest(blocked / "clean/web").counts
    recounted = Counter(row["reason"] for row in rows_of(blocked, "clean/web", "ledger"))
    assert counts["dropped"] == dict(recounted) == dict(Counter(why for why in PAGES.values() if why))
    assert counts["with_url"] == len(PAGES) - 1  # one says something, and it is no URL


def test_lists_are_inputs_and_a_changed_one_is_told(tmp_path: Path) -> None:
    place = lists(tmp_path)
    records = [{"id": url, "text": prose(n), "url": url} for n, url in enumerate(PAGES)]
    recipe = write_run(place, records, urls={"block": {"lists": [str(place / "lists/adult")]}})
    first = tokmill.run(recipe, place / "out", workers=1, until="clean")
    inputs = load_manifest(first.out / "clean/web").inputs
    assert {name for name in inputs if name.startswith("file ")} == {
        "file urls adult/domains",
        "file urls adult/urls.gz",
    }
    (place / "lists/adult/domains").write_text("notbad.com\n", "utf-8")
    tokmill.run(recipe, place / "out", workers=1, until="clean")
    fates = fates_of(place / "out", "web")
    assert (fates["http://notbad.com/"], fates["https://BAD.com"]) == ("blocked_domain", "kept")


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers_drops_the_same(tmp_path: Path) -> None:
    place = lists(tmp_path)
    records = [
        {"id": str(n), "text": prose(n, 300), "url": f"http://{'bad.com' if n % 3 == 0 else 'good.com'}/{n}"}
        for n in range(120)
    ]
    recipe = write_run(place, records, urls={"block": {"lists": [str(place / "lists/adult")]}})
    outs = [tokmill.run(recipe, place / f"out{n}", workers=n, until="clean").out for n in (1, 3)]
    manifests = [load_manifest(out / "clean/web") for out in outs]
    assert len(manifests[0].entries("marks")) > 1
    assert manifests[0].digest == manifests[1].digest
    assert manifests[0].counts["dropped"] == {"blocked_domain": 40}


def test_documents_without_a_url_go_only_where_that_is_asked_for() -> None:
    records: list[dict[str, Any]] = [{"text": prose(1), "url": "a.b/c"}, {"text": prose(2), "url": "x y"}]
    records += [{"text": prose(3)}]
    done = clean(records, with_meta("url"), urls={"unknown": "drop"})
    assert done.outcomes == {1: ("drop", "no_url"), 2: ("drop", "no_url")}


def test_blocked_pages_come_before_languages_and_rules_and_after_licences() -> None:
    records = [
        {"text": "short", "url": "bad.com", "license": "MIT"},
        {"text": "short", "url": "bad.com", "license": "GPL-3.0"},
        {"text": "short", "url": "good.com", "license": "MIT"},
    ]
    done = clean(
        records,
        {"fields": {"meta": ["url"], "license": "license"}},
        urls={"block": {"domains": ["bad.com"]}},
        license={"allow": ["MIT"]},
        filters=[{"measure": "words", "min": 5}],
    )
    assert [reason for _, reason in done.outcomes.values()] == [
        "blocked_domain",
        "license_not_allowed",
        "too_few_words",
    ]
    assert done.measures[0]["words"] is None  # no bound could bring it back


def test_no_threshold_brings_a_blocked_page_back(tmp_path: Path) -> None:
    records = [
        {"id": "short", "text": "two words", "url": "good.com"},
        {"id": "blocked", "text": "two words", "url": "bad.com"},
        {"id": "refused", "text": "two words", "url": "good.com", "robots": "noai"},
    ]
    recipe = write_run(
        tmp_path,
        records,
        urls={"block": {"domains": ["bad.com"]}},
        robots={"drop": ["noai"]},
        filters=[{"measure": "words", "min": 5}],
    )
    recipe["sources"][0]["fields"]["meta"].append("robots")
    out = tokmill.run(recipe, tmp_path / "out", workers=1, until="clean").out
    assert fates_of(out, "web") == {
        "short": "too_few_words",
        "blocked": "blocked_domain",
        "refused": "robots_noai",
    }
    told = json.dumps(tokmill.whatif(out, {"words.min": 1}).as_json())
    assert "short" in told
    assert "blocked" not in told
    assert "refused" not in told


ROBOTS = {
    "noindex, nofollow, noai, noimageai": "robots_noai",
    "NoAI": "robots_noai",
    "googlebot: noindex": "robots_noindex",
    "none": "robots_noindex",
    "noimageai": None,
    "all": None,
    "noindexing": None,
    "max-snippet:-1": None,
}


def test_pages_go_by_what_they_tell_robots() -> None:
    records = [{"text": prose(n), "robots": said} for n, said in enumerate(ROBOTS)]
    records += [{"text": prose(100), "robots": ["nofollow", "noai"]}, {"text": prose(101)}]
    done = clean(records, with_meta("robots"), robots={"drop": ["noai", "noindex"]})
    expected = [*ROBOTS.values(), "robots_noai", None]
    assert done.outcomes == {row: ("drop", why) for row, why in enumerate(expected) if why}
    assert done.faults[0]["detail"] == "noindex, nofollow, noai, noimageai"


def test_lists_that_judge_nothing_are_told(tmp_path: Path) -> None:
    write_documents(tmp_path / "web.jsonl", [{"id": "1", "text": prose(1)}])
    recipe = {
        "name": "web",
        "sources": [{"name": "web", "files": "web.jsonl"}],
        "urls": {"block": {"words": ["x"]}},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe), "utf-8")
    for _ in "ab":  # the second time all is up to date
        run = ("run", tmp_path / "recipe.yaml", "--until", "clean", "--out", tmp_path / "out", "--json")
        done = run_tokmill(*run)
        assert done.returncode == 0, done.stderr
        (told,) = json.loads(done.stdout)["warnings"]
        assert "none of 1 documents of web has a URL in `meta.url`, so nothing is blocked" in told["what"]
    (finding,) = [one for one in tokmill.review(tmp_path / "out").findings if "has a URL" in one.says]
    assert (finding.about, finding.severity) == ("source web", "high")


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ({}, "drops nothing"),
        ({"block": {"domains": ["example.com/x"]}}, "is no domain"),
        ({"block": {"lists": ["nowhere/*.txt"]}}, "matches no file"),
        ({"block": {"lists": ["empty"]}}, "has no file `domains` or `urls`"),
        ({"block": {"lists": ["a/adult", "b/adult"]}}, "two lists are called adult/domains"),
        ({"block": {"lists": ["s3://bucket/list"]}}, "has to be a file here"),
        ({"block": {"words": ["straße"]}}, "words"),
        ({"block": {"lists": ["html.txt"]}}, "lines are neither domains nor URLs"),
    ],
)
def test_mistakes_are_told_with_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, urls: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("a", "b"):
        (tmp_path / name / "adult").mkdir(parents=True)
        (tmp_path / name / "adult/domains").write_text("x.org\n", "utf-8")
    (tmp_path / "html.txt").write_text("<html>\n<p>no list</p>\n", "utf-8")
    recipe = write_run(tmp_path, [{"id": "1", "text": "x", "url": "a.b"}], urls=urls)
    with pytest.raises(tokmill.errors.TokmillError, match=said):
        tokmill.run(recipe, tmp_path / "out", workers=1, until="clean")


def test_a_recipe_without_these_keys_has_the_fingerprint_that_it_had() -> None:
    config = tokmill.Recipe.model_validate({"name": "a", "sources": [{"name": "s", "files": "x.jsonl"}]})
    written = json.dumps(config.model_dump(mode="json"))
    assert "robots" not in written
    assert "urls" not in written
    assert '"url"' not in written


def test_a_takedown_lets_no_blocked_page_back_in(tmp_path: Path) -> None:
    """The shard is cleaned anew without the document that goes, and by the same lists."""
    place = lists(tmp_path)
    records = [{"id": url, "text": prose(n), "url": url} for n, url in enumerate(PAGES)]
    records.append({"id": "none", "text": prose(999)})
    recipe = write_run(
        place, records, urls={"block": {"lists": [str(place / "lists/adult")]}}, dedup={"exact": True}
    )
    out = tokmill.run(recipe, place / "out", workers=1).out
    before = fates_of(out, "web")
    assert "blocked_domain" in before.values()
    tokmill.forget(out, doc_id=["none"], source="web", base=place, workers=1)
    assert fates_of(out, "web") == {url: why for url, why in before.items() if url != "none"}
    (place / "lists/adult/domains").write_text("notbad.com\n", "utf-8")
    some = next(url for url, why in before.items() if why == "kept" and url != "none")
    with pytest.raises(TokmillError, match=re.escape("adult/domains")):
        tokmill.forget(out, doc_id=[some], source="web", base=place, workers=1)
    assert some in fates_of(out, "web")
