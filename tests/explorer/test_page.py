"""The page of the explorer in a real browser, on a small run with everything in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from explorer.browsed import AXE, Counted, Explored, open_explored
from mill import write_problems
from reports.reported import HOSTILE, HOSTILE_ID, write_corpus
from tokmill import run

VIEWS = [
    "",
    "documents",
    "documents?f=verdict:dropped&sort=-chars",
    "document?id=mill-2",
    "threshold?rule=chars.min",
    "clusters",
    "rows?build=rows&split=train",
    "labels",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("explored")
    return run(write_corpus(directory), directory / "out", workers=1).out


@pytest.fixture(scope="module")
def counted(made: Path) -> Counted:
    return Counted(made)


@pytest.fixture(scope="module")
def explored(made: Path) -> Iterator[Explored]:
    with open_explored(
        made, labels=made.parent / "labels.jsonl", recipe=made.parent / "recipe.yaml"
    ) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _quiet(explored: Explored) -> Iterator[None]:
    """Whatever a test does, the page complains of nothing and asks nobody else."""
    explored.start()
    yield
    assert explored.page.complaints == []
    assert explored.leaks() == []


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_drawn_and_named(explored: Explored, view: str) -> None:
    explored.go(view)
    assert explored.page.run("document.querySelectorAll('main h1').length") == 1
    assert explored.page.run("document.querySelector('.fault') === null"), explored.text("main")
    assert "tokmill explore" in explored.page.run("document.title")


@pytest.mark.parametrize(
    ("view", "scheme"),
    [
        *((view, "light") for view in VIEWS),
        # the one with the most colours; and by `make recipes` the others
        *(
            pytest.param(
                view, "dark", marks=[] if view.startswith("document?") else [pytest.mark.slow_recipes]
            )
            for view in VIEWS
        ),
    ],
)
def test_axe_finds_nothing_serious(explored: Explored, view: str, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: `npm ci` in tests/explorer")
    explored.start(scheme=scheme)
    explored.go(view)
    assert explored.faults() == []


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_a_phone(explored: Explored, view: str) -> None:
    explored.start(width=390, height=780)
    explored.go(view)
    assert explored.page.run("document.documentElement.scrollWidth") <= 390


def test_the_table_has_the_documents_of_the_files_and_says_how_many(
    explored: Explored, counted: Counted
) -> None:
    explored.go("documents")
    assert explored.text("main h1") == f"{len(counted.documents)} documents"
    assert explored.column("id") == [one["id"] for one in counted.documents[:50]]
    explored.press(lambda: explored.page.press("n"))
    assert explored.column("id") == [one["id"] for one in counted.documents[50:100]]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        (["verdict:dropped"], {"verdict": "dropped"}),
        (["verdict:kept", "source:wild"], {"verdict": "kept", "source": "wild"}),
        (["reason:too_short"], {"reason": "too_short"}),
        (["reason:near_dup"], {"reason": "near_dup"}),
    ],
)
def test_a_filter_shows_as_many_as_the_files_have(
    explored: Explored, counted: Counted, filters: list[str], wanted: dict[str, Any]
) -> None:
    explored.go("documents?" + "&".join(f"f={one}" for one in filters))
    number = counted.count(**wanted)
    assert number
    assert explored.text("main h1").split()[0] == str(number)
    assert len(explored.texts(".chip")) == len(filters)


def test_a_chip_names_the_column_of_a_hook_whose_name_has_a_colon(explored: Explored) -> None:
    explored.go("documents")
    read = "import('/static/filters.js').then((file) => file.parseFilter(%s, %s))"
    names = json.dumps(["source", "hook.hooks.py:vow", "hook.hooks.py:vow:els"])
    asked = [("hook.hooks.py:vow", "0.2.."), ("hook.hooks.py:vow:els", "null"), ("source", "a:b")]
    for column, value in asked:
        found = explored.page.run(read % (json.dumps(f"!{column}:{value}"), names))
        assert (found["column"], found["not"]) == (column, True)
    assert found["values"] == ["a:b"]


def test_a_filter_is_added_by_hand_and_stands_in_the_address(explored: Explored, counted: Counted) -> None:
    explored.go("documents")
    page = explored.page
    page.press("f")
    page.run(
        "(() => { const column = document.querySelector('.adder select'); column.value = 'chars'; "
        "column.dispatchEvent(new Event('change')); })()"
    )
    page.type(".adder input[name=high]", "10")
    explored.press(lambda: page.run("document.querySelector('.adder form').requestSubmit()"))
    assert page.run("location.hash").endswith("f=chars%3A..10")
    lengths = [len(one["text"]) for one in counted.documents if one["measures"]["chars"] <= 10]
    assert explored.text("main h1").split()[0] == str(len(lengths))
    explored.press(lambda: page.run("document.querySelector('.chip .x').click()"))
    assert explored.text("main h1").split()[0] == str(len(counted.documents))


def test_a_filter_offers_the_values_of_its_column(explored: Explored, counted: Counted) -> None:
    explored.go("documents")
    explored.page.press("f")
    explored.page.run(
        "(() => { const column = document.querySelector('.adder select'); column.value = 'reason'; "
        "column.dispatchEvent(new Event('change')); })()"
    )
    explored.page.wait("document.querySelectorAll('.adder datalist option').length > 1")
    offered = explored.page.run(
        "[...document.querySelectorAll('.adder datalist option')].map((one) => [one.value, one.textContent])"
    )
    reasons = Counter(one["reasons"][0][1] for one in counted.documents if one["reasons"])
    assert {value: int(number) for value, number in offered} == reasons


def test_the_order_is_that_of_the_measure(explored: Explored, counted: Counted) -> None:
    explored.go("documents?columns=doc_id,words")
    explored.press(lambda: explored.page.run("document.querySelectorAll('th .sort')[1].click()"))
    words = sorted((one["measures"]["words"] for one in counted.documents), reverse=True)[:50]
    assert [int(text.replace(",", "")) for text in explored.column("words")] == words
    assert explored.page.run("document.querySelectorAll('th')[1].getAttribute('aria-sort')") == "descending"


def test_keys_choose_a_document_show_its_text_and_open_it(explored: Explored, counted: Counted) -> None:
    explored.go("documents?f=source:wild")
    page = explored.page
    page.press("j")
    page.press("j")
    page.wait("document.querySelector('.glance .text') !== null && !document.querySelector('.glance').hidden")
    page.wait("document.querySelector('.glance .text').textContent.startsWith('The mill by the river')")
    explored.press(lambda: page.press("Enter"))
    assert explored.text("main h1") == "mill-1"
    explored.press(lambda: page.press("j"))
    assert explored.text("main h1") == "mill-2"
    assert explored.text(".steps .faint") == "3 of 7"
    explored.press(lambda: page.press("k"))
    explored.press(lambda: page.press("k"))
    assert explored.text("main h1") == HOSTILE_ID


def test_a_hostile_document_is_only_read(explored: Explored) -> None:
    explored.go("documents?f=source:wild")
    explored.press(lambda: explored.page.run("document.querySelector('td.id a').click()"))
    assert explored.text("main h1") == HOSTILE_ID
    assert HOSTILE.split("\u202e")[0] in explored.text("#part-texts .text")
    assert explored.texts("#part-texts .glyph") == ["RLO", "PDF", "LS"]
    assert explored.page.run("window.pwned === undefined")
    assert explored.page.run("[...document.scripts].map((one) => one.getAttribute('src'))") == [
        "static/frame.js",
        "static/app.js",
    ]
    assert explored.page.run("document.querySelectorAll('img, iframe, object, embed, base').length") == 0


def test_a_document_shows_every_rule_with_its_margin(explored: Explored, counted: Counted) -> None:
    explored.go("document?id=fault-1")
    (row,) = explored.page.run(
        "[...document.querySelectorAll('#part-rules tbody tr.fails')].map((row) => "
        "[...row.cells].map((one) => one.textContent))"
    )
    (own,) = [one["measures"]["chars"] for one in counted.documents if one["id"] == "fault-1"]
    assert row[0].endswith("chars.min")
    assert row[1:4] == [str(own), "min 10", str(own - 10)]


def test_edits_are_marked_on_both_sides_and_the_rest_is_the_same(
    explored: Explored, counted: Counted
) -> None:
    explored.go("documents?f=edited:true&f=verdict:kept")
    explored.press(lambda: explored.page.run("document.querySelector('td.id a').click()"))
    deleted = explored.texts("[aria-label='text as received'] del")
    inserted = explored.texts(
        "[aria-label='text as trained on'] ins, [aria-label='text as trained on'] .gap.ins"
    )
    assert deleted or inserted
    remains = (
        "(() => {{ const box = document.querySelector(\"[aria-label='{}']\").cloneNode(true); "
        "box.querySelectorAll('{}, .gap').forEach((one) => one.remove()); return box.textContent; }})()"
    )
    left = explored.page.run(remains.format("text as received", "del"))
    right = explored.page.run(remains.format("text as trained on", "ins"))
    assert left == right


def test_tokens_of_a_document_make_its_text_again(explored: Explored, counted: Counted) -> None:
    """One with newlines, and without a character that two tokens share."""
    doc_id = next(one["id"] for one in counted.documents if one["text"].isascii() and "\n" in one["text"])
    explored.go(f"document?id={doc_id}")
    pieces = explored.page.run(
        "[...document.querySelectorAll('#part-tokens .token')].map((one) => [...one.childNodes].slice(0, -1)"
        ".map((part) => part.textContent.replaceAll('⏎', '\\n')).join(''))"
    )
    assert "".join(pieces) == explored.text("[aria-label='text as trained on']")
    assert len(pieces) > 10


def test_labels_are_given_by_keys_saved_and_taken_back(
    explored: Explored, counted: Counted, made: Path
) -> None:
    path = made.parent / "labels.jsonl"
    path.unlink(missing_ok=True)
    explored.go("labels")
    page = explored.page
    seen = []
    for key in "gbg":
        shown = page.run("document.querySelector('.card').dataset.id")
        seen.append((shown, {"g": "good", "b": "bad"}[key]))
        page.press(key)
        page.wait(f"document.querySelector('.card').dataset.id !== {json.dumps(shown)}")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["doc_id"], one["label"]) for one in lines] == seen
    texts = {(one["source"], one["id"]): one["text"] for one in counted.documents}
    for one in lines:
        assert one["sample"] == "random"
        assert one["when"].endswith("Z")
        if one["source"] == "problems":  # nothing of them is edited
            digest = hashlib.sha256(texts[one["source"], one["doc_id"]].encode()).hexdigest()
            assert one["text_sha256"] == digest
    page.press("u")
    page.wait(f"document.querySelector('.card').dataset.id === {json.dumps(seen[-1][0])}")
    page.wait("document.querySelector('#said').textContent.startsWith('Label taken back')")
    assert len(path.read_text().splitlines()) == 2


def test_precision_of_a_rule_is_that_of_the_labelled_documents_it_drops(
    explored: Explored, counted: Counted, made: Path
) -> None:
    path = made.parent / "labels.jsonl"
    short = [one for one in counted.documents if one["measures"]["chars"] < 10]
    long = [one for one in counted.documents if one["measures"]["chars"] >= 10][:5]
    words = ["bad"] * (len(short) - 1) + ["good"]
    said = [*zip(short, words, strict=True), *((one, "bad") for one in long)]
    path.write_text(
        "".join(
            json.dumps({"doc_id": one["id"], "source": one["source"], "label": word}) + "\n"
            for one, word in said
        )
    )
    explored.go("labels")
    row = "document.querySelector('tr[data-rule=\"chars.min\"]')"
    explored.page.wait(f"{row} && {row}.cells[1].textContent === '{len(short)}'")
    cells = explored.page.run(f"[...{row}.cells].map((one) => one.textContent)")
    assert cells[2] == str(len(short) - 1)
    assert cells[3] == f"{100 * (len(short) - 1) / len(short):.1f} %"
    assert cells[5:7] == ["0", "0"]


def test_what_was_drawn_at_random_has_figures_of_its_own(
    explored: Explored, counted: Counted, made: Path
) -> None:
    path = made.parent / "labels.jsonl"
    path.unlink(missing_ok=True)
    short = [one for one in counted.documents if one["measures"]["chars"] < 10]
    explored.go("labels?kind=random&rule=chars.min")
    page = explored.page
    shown = page.run("document.querySelector('.card').dataset.id")
    page.press("b")
    page.wait(f"document.querySelector('.card').dataset.id !== {json.dumps(shown)}")
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["sample"] == "random:chars.min"
    other = next(one for one in short if one["id"] != shown)
    with path.open("a") as file:
        file.write(json.dumps({"doc_id": other["id"], "source": other["source"], "label": "good"}) + "\n")
    explored.go("labels")
    row = "document.querySelector('tr[data-rule=\"chars.min\"]')"
    page.wait(f"{row} && {row}.cells[1].textContent === '2'")
    cells = page.run(f"[...{row}.cells].map((one) => one.textContent)")
    assert (cells[1:4], cells[5:8]) == (["2", "1", "50.0 %"], ["1", "1", "100.0 %"])
    path.unlink()


def test_help_lists_the_keys_and_the_theme_is_remembered(explored: Explored) -> None:
    page = explored.page
    page.press("?")
    page.wait("document.getElementById('help').open")
    assert {"/", "?"} <= set(explored.texts("#help kbd"))
    page.press("Escape")
    page.wait("!document.getElementById('help').open")
    page.run("document.getElementById('theme').click()")
    page.run("document.getElementById('theme').click()")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    explored.start()
    assert page.run("document.documentElement.dataset.theme") == "dark"
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 27)"
    page.run("document.getElementById('theme').click()")
    assert page.run("document.documentElement.dataset.theme === undefined")


def test_a_view_that_is_none_says_so(explored: Explored) -> None:
    explored.go("constructor")
    assert "There is no such view" in explored.text(".fault")


def test_a_ribbon_leads_to_as_many_documents_as_it_says(explored: Explored, counted: Counted) -> None:
    """Of every ribbon; and those that leave are all that the ledgers have."""
    explored.go("")
    ribbons = explored.page.run(
        "[...document.querySelectorAll('.flow a[data-documents]')].map((one) => "
        "[one.getAttribute('href'), Number(one.dataset.documents), one.getAttribute('aria-label')])"
    )
    assert len(ribbons) > 5
    left: Counter[str] = Counter()
    for address, documents, told in ribbons:
        explored.go(address.removeprefix("#/"))
        assert int(explored.text("main h1").split()[0].replace(",", "")) == documents, told
        if "reason:" in unquote(address):
            left[unquote(address).rpartition("reason:")[2]] += documents
    assert left == Counter(one["reasons"][0][1] for one in counted.documents if one["reasons"])


def test_a_ribbon_is_clicked(explored: Explored) -> None:
    explored.go("")
    explored.press(
        lambda: explored.page.run(
            "document.querySelector('.flow a[data-documents] path').dispatchEvent("
            "new MouseEvent('click', {bubbles: true}))"
        )
    )
    assert explored.page.run("location.hash").startswith("#/documents?f=")


def test_the_histogram_counts_every_document_once(explored: Explored, counted: Counted) -> None:
    explored.go("threshold?rule=words.min")
    tips = explored.page.run(
        "[...document.querySelectorAll('.histogram .mark')].map((one) => one.dataset.tip)"
    )
    bars = [re.fullmatch(r"(.*), .* to .*: ([0-9,]+) documents", tip) for tip in tips]
    by_source: Counter[str] = Counter()
    for bar in bars:
        assert bar is not None
        by_source[bar[1]] += int(bar[2].replace(",", ""))
    assert by_source == Counter(one["source"] for one in counted.documents)


def kept_at(counted: Counted, chars: int) -> int:
    """Documents whom no rule of cleaning would drop."""
    return sum(
        one["measures"]["chars"] >= chars and one["measures"]["words"] >= 1 for one in counted.documents
    )


@pytest.mark.parametrize("value", [5, 10, 200, 300])
def test_a_moved_threshold_says_who_would_change_sides(
    explored: Explored, counted: Counted, value: int
) -> None:
    explored.go(f"threshold?rule=chars.min&value={value}")
    assert explored.text("[data-now]").replace(",", "") == str(kept_at(counted, 10))
    assert explored.text("[data-then]").replace(",", "") == str(kept_at(counted, value))
    for side, wanted in (
        (
            "kept",
            sorted(
                one["measures"]["chars"] for one in counted.documents if one["measures"]["chars"] >= value
            ),
        ),
        (
            "dropped",
            sorted(
                (one["measures"]["chars"] for one in counted.documents if one["measures"]["chars"] < value),
                reverse=True,
            ),
        ),
    ):
        shown = explored.texts(f"[data-side={side}] .amount")
        assert [int(text.replace(",", "")) for text in shown] == wanted[:10]


def test_the_handle_is_dragged_and_moved_by_keys(explored: Explored, counted: Counted) -> None:
    explored.go("threshold?rule=chars.min")
    page = explored.page
    box = page.run(
        "(() => { const box = document.querySelector('.histogram').getBoundingClientRect(); "
        "return [box.left, box.top, box.width, box.height]; })()"
    )
    page.mouse("mousePressed", box[0] + box[2] / 2, box[1] + box[3] / 2)
    for step in range(5):
        page.mouse("mouseMoved", box[0] + box[2] * (0.5 + step / 20), box[1] + box[3] / 2)
    page.mouse("mouseReleased", box[0] + box[2] * 0.7, box[1] + box[3] / 2)
    page.wait("location.hash.includes('value=')")
    value = int(page.run("document.querySelector('.handle').getAttribute('aria-valuenow')"))
    assert value > 10
    page.wait(f"document.querySelector('[data-then]').dataset.then === '{kept_at(counted, value)}'")
    page.press("Home")
    page.press("ArrowRight")
    low = int(page.run("document.querySelector('.handle').getAttribute('aria-valuenow')"))
    assert low < value
    page.wait(f"document.querySelector('[data-then]').dataset.then === '{kept_at(counted, low)}'")


def test_the_documents_at_the_border_show_their_words(explored: Explored, counted: Counted) -> None:
    explored.go("threshold?rule=chars.min&value=10")
    explored.page.wait("document.querySelectorAll('[data-side=dropped] .excerpt').length > 1")
    shown = set(explored.texts("[data-side=dropped] .excerpt"))
    assert shown >= {
        one["text"] for one in counted.documents if one["id"].startswith("fault-") and one["reasons"]
    }


def test_a_cluster_shows_what_its_members_do_not_share(explored: Explored) -> None:
    explored.go("clusters")
    explored.page.run("document.querySelector('details.cluster').open = true")
    explored.page.wait("document.querySelectorAll('.members li').length >= 2")
    assert {"mill-1", "mill-2"} <= set(explored.texts(".members li > a"))
    assert "five" in explored.texts(".unshared ins")
    explored.page.run("document.querySelector('.members button').click()")
    explored.page.wait("document.querySelector('.difference .diff') !== null")
    assert explored.texts(".difference del") == ["five"]
    assert explored.texts(".difference ins") == ["four"]


def test_a_row_is_the_ids_of_the_file_with_the_places_of_its_documents(
    explored: Explored, made: Path
) -> None:
    ids = np.memmap(made / "build/rows/train/input_ids.mmap", np.int32, "r").reshape(-1, 64)
    explored.go("rows?build=rows&split=train&first=7")
    assert int(explored.text("main h1").split()[0].replace(",", "")) == len(ids)
    shown = explored.texts("#row-detail .token small")
    assert list(map(int, shown)) == ids[7].tolist()
    explored.page.press("j")
    explored.page.wait("document.querySelector('#row-detail h2').textContent === 'Row 8'")
    assert list(map(int, explored.texts("#row-detail .token small"))) == ids[8].tolist()


def test_a_threshold_is_written_to_the_recipe_after_its_diff_was_shown(
    explored: Explored, made: Path
) -> None:
    recipe = made.parent / "recipe.yaml"
    before = recipe.read_text()
    explored.go("threshold?rule=chars.min&value=7")
    page = explored.page
    page.press("w")
    page.wait("document.querySelector('.patch') !== null")
    assert explored.texts(".patch .minus") != []
    assert [line.split() for line in explored.texts(".patch .plus")] == [["+", '"min":', "7,"]]
    assert recipe.read_text() == before
    page.run("document.querySelector('.proposal button.main').click()")
    page.wait("document.querySelector('.done') !== null")
    assert json.loads(recipe.read_text())["filters"][0]["min"] == 7
    recipe.write_text(before)


def test_the_tutorial_changes_its_recipe_as_the_page_does(tmp_path: Path) -> None:
    """What the page writes is the recipe that stands in the tutorial after it, to the character."""
    tutorial = (Path(__file__).parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")
    *_, before, after = re.findall(r"^```yaml\n(# stories\.yaml\n.*?)^```$", tutorial, re.M | re.S)
    lines = re.search(r"^cat > data/mine\.jsonl <<'EOF'\n(.*?)^EOF$", tutorial, re.M | re.S)
    assert lines is not None
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine.jsonl").write_text(lines[1])
    write_problems(tmp_path / "data/own.jsonl", 300)
    recipe = tmp_path / "stories.yaml"
    recipe.write_text(before)
    out = run(recipe, tmp_path / "out", workers=1).out
    with open_explored(out, recipe=recipe) as explored:
        explored.go("threshold?rule=chars.min&value=9")
        assert explored.text("[data-gained]") == "+1"
        assert "note" in explored.texts("[data-side=kept] a")
        explored.page.press("w")
        explored.page.wait("document.querySelector('.proposal button.main') !== null")
        explored.page.run("document.querySelector('.proposal button.main').click()")
        explored.page.wait("document.querySelector('.done') !== null")
    assert recipe.read_text() == after


def test_a_document_is_found_by_its_id(explored: Explored) -> None:
    page = explored.page
    page.press("/")
    page.type("#q", "id:mill-2")
    explored.press(lambda: page.press("Enter"))
    assert explored.text("main h1") == "mill-2"


def test_a_search_shows_the_documents_that_have_the_words_and_marks_them(
    explored: Explored, counted: Counted
) -> None:
    page = explored.page
    page.press("/")
    page.type("#q", "five stones")
    explored.press(lambda: page.press("Enter"))
    page.wait("document.querySelector('table.documents') !== null")
    wanted = [one["id"] for one in counted.documents if "five stones" in one["text"]]
    assert explored.column("id") == wanted
    assert explored.text("main h1").split()[0] == str(len(wanted))
    explored.press(lambda: page.run("document.querySelector('td.id a').click()"))
    assert set(explored.texts("#part-texts mark")) == {"five stones"}


def test_the_first_edit_is_in_sight_and_a_key_leads_to_the_next(explored: Explored) -> None:
    explored.go("documents?f=edited:true&f=verdict:kept")
    explored.press(lambda: explored.page.run("document.querySelector('td.id a').click()"))
    in_sight = (
        "[...document.querySelectorAll('#part-texts .text')].every((pane) => { const box = "
        "pane.getBoundingClientRect(); return [...pane.querySelectorAll('del, ins, .gap')].some((one) => { "
        "const own = one.getBoundingClientRect(); "
        "return own.top >= box.top && own.bottom <= box.bottom; }); })"
    )
    assert explored.page.run(in_sight)
    explored.page.press("e")
    assert explored.page.run(in_sight)
