"""Nothing green that is wrong: what needs a decision is a line of the run with number, cause and what to do,
and again at its end, in the report and in the review. Figures are counted again from the files, with json and
pyarrow alone."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tokmill as mill
from mill import tokmill

Json = dict[str, Any]

_NOUNS = [
    "river",
    "mill",
    "stone",
    "wheel",
    "field",
    "harvest",
    "market",
    "road",
    "bridge",
    "village",
    "winter",
    "summer",
    "child",
    "letter",
]
_VERBS = ["turns", "grinds", "carries", "holds", "follows", "watches", "crosses", "remembers"]


def english(number: int, sentences: int = 12) -> str:
    draw = random.Random(number)
    return " ".join(
        f"The {draw.choice(_NOUNS)} of the {draw.choice(_NOUNS)} {draw.choice(_VERBS)} the "
        f"{draw.choice(_NOUNS)} that you have with it, and number {draw.randrange(10**6)} is not far from "
        f"the {draw.choice(_NOUNS)}."
        for _ in range(sentences)
    )


def chinese(number: int, lines: int = 12) -> str:
    draw = random.Random(number)
    return "\n".join(
        "".join(chr(0x4E00 + draw.randrange(3000)) for _ in range(30)) + "。" for _ in range(lines)
    )


def russian(number: int) -> str:
    draw = random.Random(number)
    words = [
        "река",
        "мельница",
        "камень",
        "колесо",
        "поле",
        "урожай",
        "рынок",
        "дорога",
        "мост",
        "деревня",
        "зима",
        "лето",
    ]
    return " ".join(draw.choice(words) for _ in range(120)) + "."


def german(number: int) -> str:
    draw = random.Random(number)
    words = [
        "der",
        "die",
        "das",
        "und",
        "nicht",
        "mit",
        "von",
        "zu",
        "ist",
        "ein",
        "eine",
        "auf",
        "für",
        "Fluss",
        "Mühle",
        "Stein",
        "Rad",
        "Feld",
        "Ernte",
        "Markt",
    ]
    return " ".join(draw.choice(words) for _ in range(120)) + "."


def write(directory: Path, sources: dict[str, list[Json]], **sections: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    listed = []
    for name, records in sources.items():
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        own = sections.pop(name, {})
        listed.append({"name": name, "files": f"{name}.jsonl", "fields": {"id": "id"}, **own})
    recipe = {"name": "told", "seed": 3, "sources": listed, **sections}
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


def records(make: Any, count: int, **more: Any) -> list[Json]:
    return [{"id": f"d{number}", "text": make(number), **more} for number in range(count)]


class Ran:
    """What `tokmill run` said, and what its artifacts say."""

    def __init__(self, recipe: Path) -> None:
        done = tokmill("run", recipe)
        assert done.returncode == 0, done.stderr
        self.said, self.out = done.stderr, recipe.parent / "out" / "told"
        self.lines = [line for line in self.said.splitlines() if line.startswith("! ")]

    def line(self, pattern: str) -> str:
        """The one line of that kind: at once, the same at the end of the run, and in the report."""
        found = [line for line in self.lines if re.search(pattern, line)]
        assert len(found) == 2, (pattern, self.said)
        assert found[0] == found[1]
        where, _, what = found[0].removeprefix("! ").partition(": ")
        in_report = what.replace(f"tokmill why {self.out}", "tokmill why OUT")  # which may be read elsewhere
        assert {"where": where, "what": in_report} in self.report()["warnings"]
        return what

    def report(self) -> Json:
        mill.report(self.out)
        told: Json = json.loads((self.out / "report.json").read_text())
        return told

    def findings(self, check: str) -> list[Json]:
        told = mill.review(self.out).as_json()
        return [finding for finding in told["findings"] if finding["check"] == check]

    def ledger(self, step: str) -> list[Json]:
        return [
            row
            for path in sorted((self.out / step).glob("ledger-*"))
            for row in pq.read_table(path).to_pylist()
        ]


@pytest.mark.parametrize(
    ("end", "edit", "told"),
    [
        (".", "line_of_few_words", "lines of fewer than 3 words between spaces"),
        ("。", "line_without_terminal_punctuation", "lines that do not end in . ? ! or a quote"),
    ],
    ids=["words", "ends"],
)
def test_documents_that_line_edits_emptied_are_told_with_the_edit_and_the_pack(
    tmp_path: Path, end: str, edit: str, told: str
) -> None:
    texts = records(lambda number: chinese(number).replace("。", end), 40)
    # the rules judge what the edits left: without sentences a document would go for that
    pack = {"pack": "c4", "set": {"min_sentences": 0}}
    ran = Ran(write(tmp_path, {"zh": [*texts, {"id": "en", "text": english(1)}]}, filters=[pack]))
    empty = [row for row in ran.ledger("clean/zh") if row["reason"] == "empty"]
    assert len(empty) == 40
    assert {row["detail"] for row in empty} == {f"line edits left nothing: most went as {edit}"}
    what = ran.line(r"^! clean/zh: zh loses")
    assert what.startswith(
        f"zh loses 98 % of its documents (40 of 41) to empty (c4 takes out {told}); one of them is "
    )
    assert "give the source `filters` of its own" in what
    (finding,) = ran.findings("source_loss")
    assert (finding["severity"], finding["about"], finding["says"]) == ("high", "source zh", what)
    assert edit in tokmill("why", ran.out, empty[0]["doc_id"]).stdout


@pytest.mark.parametrize(
    ("make", "script"), [(chinese, "CJK"), (russian, "Cyrillic"), (german, "Latin")], ids=["zh", "ru", "de"]
)
def test_a_pack_made_for_english_that_meets_another_language_is_told(
    tmp_path: Path, make: Any, script: str
) -> None:
    sources = {"other": records(make, 30), "plain": records(english, 30)}
    ran = Ran(write(tmp_path, sources, filters=[{"pack": "gopher-quality"}]))
    what = ran.line("made for English")
    assert what.startswith("the pack gopher-quality was made for English, and 30 of 30 documents of other")
    assert f"(most in {script} letters)" in what
    (finding,) = ran.findings("run_warnings")
    assert (finding["severity"], finding["about"], finding["says"]) == ("high", "source other", what)


def test_english_of_which_only_english_is_kept_is_not_told(tmp_path: Path) -> None:
    mixed = records(english, 20) + [{"id": f"r{n}", "text": russian(n)} for n in range(60)]
    recipe = write(tmp_path, {"mixed": mixed}, filters=["gopher-quality"], language={"keep": ["en"]})
    assert "made for English" not in Ran(recipe).said


def test_a_rule_that_takes_nine_in_ten_of_what_reaches_it_is_told(tmp_path: Path) -> None:
    # nine in ten of the 40 % that an earlier rule left: too few for the loss of one reason
    short = [{"id": f"s{n}", "text": "too short to be kept"} for n in range(48)]
    long = [{"id": f"l{n}", "text": english(n, 30)} for n in range(40)]
    good = [{"id": f"g{n}", "text": english(n)} for n in range(12)]
    rules = [
        {"measure": "words", "min": 20, "reason": "too_few_words"},
        {"measure": "words", "max": 300, "reason": "too_many_words"},
    ]
    good = good[:2]
    ran = Ran(
        write(tmp_path, {"web": short + long + good}, filters=rules, clean={"warn_source_loss": "0.99"})
    )
    took = Counter(row["reason"] for row in ran.ledger("clean/web") if row["verdict"] == "drop")
    reached = 90 - took["too_few_words"]
    what = ran.line("takes")
    share = f"{100 * took['too_many_words'] / reached:.0f} %"
    assert what.startswith(
        f"too_many_words (words.max) takes {share} of the documents of web that reach it "
        f"({took['too_many_words']} of {reached})"
    )
    assert f"tokmill why {ran.out} --reason too_many_words" in what
    assert ran.findings("source_loss")[0]["says"] == what.replace(f"why {ran.out}", "why OUT")


def test_a_licence_that_is_not_listed_and_takes_a_whole_source_is_named(tmp_path: Path) -> None:
    sources = {"mdn": records(english, 30), "own": records(english, 5)}
    licenses = {"mdn": {"license": "CC-BY-SA-2.5"}, "own": {"license": "MIT"}}
    ran = Ran(write(tmp_path, sources, **licenses, license={"allow": ["MIT"]}, dedup={"exact": False}))
    what = ran.line("^! clean/mdn")
    assert what.startswith(
        "mdn loses 100 % of its documents (30 of 30) to license_not_allowed: the licence CC-BY-SA-2.5 is not"
    )
    assert "add it to `license.allow`" in what
    assert [finding["says"] for finding in ran.findings("source_loss")] == [what]


def test_documents_that_share_one_id_are_told_with_the_id_and_the_key(tmp_path: Path) -> None:
    same = [{"id": "index.html", "text": english(n)} for n in range(300)]
    ran = Ran(write(tmp_path, {"crawl": same + records(lambda n: english(1000 + n), 100)}))
    what = ran.line("^! split: ")
    assert what.startswith(
        "300 or more of 400 documents of crawl share their id with others, 300 of them index.html"
    )
    assert "`fields.id`" in what
    labels = pq.read_table(next((ran.out / "split").glob("labels-*"))).column("split").to_pylist()
    assert len(set(labels[:300])) == 1, "they are on one side, as the line says"
    (finding,) = ran.findings("run_warnings")
    assert (finding["severity"], finding["says"]) == ("high", what)


@pytest.mark.parametrize(
    "split",
    [
        {"method": "counts", "counts": {"valid": 100}},
        {"method": "formula"},
        {"method": "hash", "by": "cluster", "valid_fraction": "0.3"},
    ],
    ids=["counts", "formula", "cluster"],
)
def test_where_one_id_may_be_on_both_sides_the_warning_says_so(tmp_path: Path, split: Json) -> None:
    same = [{"id": "index.html", "text": english(n // 2) + " Again." * (n % 2)} for n in range(300)]
    sources = {"crawl": same + records(lambda n: english(1000 + n), 100)}
    dedup = {"exact": False, "near": {"policy": "report"}}
    ran = Ran(write(tmp_path, sources, split=split, dedup=dedup))
    labels = pq.read_table(next((ran.out / "split").glob("labels-*"))).column("split").to_pylist()
    what = ran.line("^! split: .*share their id")
    assert "may be on different sides" in what
    assert "`split: {method: hash, by: document}`" in what
    if split["method"] != "hash":
        assert len(set(labels[:300])) == 2


def losing(directory: Path, reason: str) -> Json:
    """A source that loses all or most of its documents to it, and the `dedup` that does it."""
    shared = english(0)
    if reason == "contaminated":
        (directory / "bench.jsonl").write_text(json.dumps({"q": shared[:200]}) + "\n")
        against = {"files": "bench.jsonl", "fields": ["q"]}
        return {"made": lambda n: f"{shared} {english(n + 1)}", "dedup": {"against": against}}
    if reason == "only_site_template":
        return {"made": lambda n: f"Home\nAbout\n{n} comments", "dedup": {"exact": False, "templates": True}}
    if reason == "window_dup":
        window = {"policy": "drop", "words": 20}
        return {"made": lambda n: f"{shared}\n{english(n)[:20]}", "dedup": {"exact": False, "window": window}}
    earlier = write(directory / "earlier", {"web": records(english, 40)}, dedup={"exact": True})
    near = {"near": {"threshold": "0.8"}} if reason == "reference_near_dup" else {}
    more = " And so on." if near else ""
    dedup = {"reference": [str(Ran(earlier).out)], **near}
    return {"made": lambda n: english(n) + more, "dedup": dedup}


@pytest.mark.parametrize(
    ("reason", "advice"),
    {
        "contaminated": ["`against.min_share`", "`against.ngram`", "--reason contaminated`"],
        "only_site_template": ["`templates.min_share`"],
        "window_dup": ["`window.max_share`", "`window.min_words`"],
        "reference_exact_dup": ["the earlier corpus"],
        "reference_near_dup": ["the earlier corpus", "`near.threshold`"],
    }.items(),
)
def test_the_advice_is_for_what_took_the_documents(tmp_path: Path, reason: str, advice: list[str]) -> None:
    told = losing(tmp_path, reason)
    web = {"fields": {"id": "id", "meta": ["url"]}}
    sources = {"web": [{**one, "url": f"a.com/{one['id']}"} for one in records(told["made"], 40)]}
    sources["own"] = [{**one, "url": None} for one in records(lambda n: english(9000 + n), 20)]
    ran = Ran(write(tmp_path, sources, web=web, dedup=told["dedup"]))
    what = ran.line(f"^! dedup: web loses .* to {reason}")
    assert "why OUT" not in what
    for words in [*advice, "`dedup.warn_source_loss`"]:
        assert words in what
    assert "copy of another source" not in what


def test_ids_of_their_own_are_not_told(tmp_path: Path) -> None:
    twice = records(english, 200)
    twice[1]["id"] = "d0"
    assert not Ran(write(tmp_path, {"web": twice})).lines


def test_a_vocabulary_smaller_than_asked_for_is_told(tmp_path: Path) -> None:
    tokenizer = {"train": {"model": "byte_bpe", "vocab_size": 50_000}, "eos": "<|endoftext|>"}
    ran = Ran(write(tmp_path, {"web": records(english, 40)}, tokenizer=tokenizer))
    made = len(json.loads((ran.out / "tokenizer/tokenizer.json").read_text())["model"]["vocab"])
    what = ran.line("^! tokenizer: ")
    (told,) = re.findall(r"the vocabulary has ([\d,]+) ids, and 50,000 were asked for", what)
    assert abs(int(told.replace(",", "")) - made) <= 1, "the control token may stand beside the model"
    assert "not enough different text" in what
    (finding,) = ran.findings("run_warnings")
    assert finding["says"] == what


def test_a_held_out_split_larger_than_training_is_told_by_the_split(tmp_path: Path) -> None:
    ran = Ran(write(tmp_path, {"web": records(english, 200)}, split={"valid_fraction": "0.8"}))
    labels = Counter(
        label
        for path in (ran.out / "split").glob("labels-*")
        for label in pq.read_table(path).column("split").to_pylist()
    )
    what = ran.line("^! split: ")
    assert what.startswith(
        f"valid has {labels[1]} documents and train {labels[0]}: more is held out than trained on"
    )
    assert "lower `split.valid_fraction`" in what
    assert any(finding["severity"] == "high" for finding in ran.findings("held_out"))


def test_a_run_that_is_up_to_date_says_its_warnings_again(tmp_path: Path) -> None:
    recipe = write(tmp_path, {"web": records(english, 200)}, split={"valid_fraction": "0.8"})
    first = Ran(recipe)
    again = tokmill("run", recipe)
    assert "nothing to do" in again.stdout
    assert f"{first.lines[-1]}\n" in again.stderr
    told = json.loads(tokmill("run", recipe, "--json").stdout)["warnings"]
    assert [f"! {one['where']}: {one['what']}" for one in told] == first.lines[-1:]


def test_a_source_over_max_source_loss_stops_the_run(tmp_path: Path) -> None:
    rule = {"measure": "words", "max": 300, "reason": "too_many_words"}
    texts = [{"id": f"l{n}", "text": english(n, 30)} for n in range(19)] + [{"id": "g", "text": english(1)}]
    sections: Json = {"filters": [rule], "clean": {"max_source_loss": "0.9"}}
    recipe = write(tmp_path, {"web": texts}, **sections)
    stopped = tokmill("run", recipe)
    assert stopped.returncode == 1
    assert re.search(
        r"CleanLimit source web: loses 19 of 20 documents \(95 %\), 19 of them to too_many_words: more than "
        r"`clean.max_source_loss` 0.9\n  next: ",
        stopped.stderr,
    ), stopped.stderr
    assert not (tmp_path / "out/told/clean/web/manifest.json").exists()
    assert not (tmp_path / "out/told/manifest.json").exists()
    write(tmp_path, {"web": texts}, **{**sections, "clean": {"max_source_loss": "0.95"}})
    assert tokmill("run", recipe).returncode == 0, "95 % is not more"
    write(tmp_path, {"web": texts}, **sections)
    late = tokmill("run", recipe)
    assert (late.returncode, "CleanLimit source web" in late.stderr) == (1, True), (
        "a limit that came later holds too"
    )


def test_limits_of_cleaning_change_no_byte(tmp_path: Path) -> None:
    rule = {"measure": "words", "max": 300, "reason": "too_many_words"}
    texts = [{"id": f"l{n}", "text": english(n, 1 + n)} for n in range(40)]
    recipe = write(tmp_path, {"web": texts}, filters=[rule])
    Ran(recipe)
    before = json.loads((tmp_path / "out/told/clean/web/manifest.json").read_text())
    write(
        tmp_path, {"web": texts}, filters=[rule], clean={"max_source_loss": "0.9", "warn_source_loss": "0.1"}
    )
    done = tokmill("run", recipe)
    assert "nothing to do" in done.stdout
    assert json.loads((tmp_path / "out/told/clean/web/manifest.json").read_text()) == before
    assert re.search("^! clean/web: web loses", done.stderr, re.M), "the bound of today is asked"


def test_routine_notes_are_folded_behind_warnings(tmp_path: Path) -> None:
    sources = {"web": records(english, 200), "math": records(lambda n: english(5000 + n), 20)}
    domains = {"web": {"domain": "web"}, "math": {"domain": "math"}}
    tokenizer = {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"}
    builds = [{"name": "rows", "format": "memmap"}]
    ran = Ran(write(tmp_path, sources, **domains, tokenizer=tokenizer, pack={"length": 64}, builds=builds))
    report = ran.report()
    assert not ran.lines
    assert [note["where"] for note in report["notes"] if "times the tokens of" in note["what"]] == [
        "build/rows"
    ]
    assert not [one for one in report["warnings"] if "times the tokens of" in one["what"]]
    page = (ran.out / "report.html").read_text()
    assert re.search(r"<details><summary>\d+ routine notes?</summary>", page)


def test_a_mixture_that_lacks_what_cleaning_took_names_the_loss_first(tmp_path: Path) -> None:
    """Three of 90 pages survive: more passes over those are no answer to it."""
    pages = records(lambda n: english(n, 12 if n < 3 else 1), 90)
    recipe = write(
        tmp_path,
        {"web": pages, "own": records(lambda n: english(n + 500), 30)},
        filters=[{"measure": "words", "min": 100, "reason": "too_few_words"}],
        split={"valid_fraction": 0},
        tokenizer={"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        mixture={"weights": {"pages": 0.9, "books": 0.1}, "tokens": 20_000, "exhausted": "repeat"},
        pack={"length": 64},
        builds=[{"name": "rows", "format": "memmap"}],
        web={"domain": "pages"},
        own={"domain": "books"},
    )  # fmt: skip
    done = tokmill("run", recipe)
    assert done.returncode == 1
    message = done.stderr[done.stderr.index("InputError") :]
    what, _, advice = message.partition("next: ")
    assert "mixture: web loses 97 % of its documents (87 of 90) to too_few_words" in what
    assert "so web is exhausted: it has " in what
    out = tmp_path / "out" / "told"
    first = f"read some with `tokmill why {out} --reason too_few_words`, change the rule; or, "
    assert advice.startswith(first + "if the loss is meant, raise `max_epochs`")
