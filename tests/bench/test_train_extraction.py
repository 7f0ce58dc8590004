"""Labels, odds and models of extraction, on pages small enough to know the answer."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from tokmill.kernels.boosting import check_trees, score
from tokmill.sources.extract.model import load_model
from tokmill.sources.extract.page import extract, find_blocks, judge, parse_page

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.append(str(BENCH))  # its scripts import each other by name

import extraction_labels as labels  # noqa: E402
import extraction_made as made_of  # noqa: E402
import extraction_odds as odds  # noqa: E402
import train_extraction as training  # noqa: E402

sys.path.remove(str(BENCH))  # some have the names of folders of tests

PAGE = (
    "<body><div class=menu><a>Home</a> <a>World news of today</a></div>"
    "<div class=teaser>Ships cross the strait again</div>"
    "<div class=story><h1>Strait</h1><p>Ships cross the strait again<br>after <b>long</b> repairs.</p></div>"
    "<div class=talk>I like all ships</div><div>Terms and rules of use</div></body>"
)


def test_an_article_is_aligned_and_chance_matches_are_none() -> None:
    words, label, weight = labels.label_page(
        "articles", PAGE, {"text": "Strait\nShips cross the strait again after long repairs. No news."}
    )
    assert words.tolist() == [5, 5, 1, 8, 4, 5]
    # the title is matched though it is one word, for it is all of its block; `news` is not
    assert label.tolist() == [0, 0, 1, 1, 0, 0]
    # 9 words belong, fewer than 50: (words + 2) / 50 * 7 + 0.03
    assert weight == pytest.approx([(n + 2) / 50 * 7 + 0.03 for n in (5, 5, 1, 8, 4, 5)])


def test_segments_by_hand_stand_above_what_peers_say() -> None:
    peers = dict.fromkeys(labels.OPINIONS, "")
    peers["trafilatura"] = "Strait Ships cross the strait again after long repairs. Terms and rules of use"
    gold = {
        "with": ["cross the  strait\nagain"],
        "without": ["World news of today"],
        "comments": ["I like all ships"],
    }
    _, label, weight = labels.label_page("segments", PAGE, gold, peers)
    # The teaser has the words of the story: peers say so of both, and the longer of them is meant. The last
    # block and the title are by one peer of 0.45.
    assert label == pytest.approx([0, 0.45, 0.45, 1, 0, 0.45])
    mean = 1 / 3  # of the three witnesses, one says yes
    words, belong = np.array([5, 5, 1, 8, 4, 5]), 50
    sure = np.abs(np.array([0, mean, mean, mean, 0, mean]) - 0.5) * 2
    by_hand = np.array([1, 0, 0, 1, 1, 0])
    assert weight == pytest.approx(
        ((words + 2) / belong * 1.5 + 0.01) * (0.2 + 0.8 * sure) + by_hand / 2, abs=1e-3
    )


def test_segments_without_peers_are_refused() -> None:
    with pytest.raises(ValueError, match="texts of peers"):
        labels.label_page("segments", PAGE, {"with": [], "without": []})


def test_tokens_of_highlighted_code_are_words_of_their_own() -> None:
    page = (
        "<pre><span>return</span><span>value</span> <span>plus</span> <span>one</span></pre><p>Next page</p>"
    )
    words, label, _ = labels.label_page("structure", page, {"text": "return value plus one"})
    assert (words.tolist(), label.tolist()) == ([4, 2], [1, 0])


GOLD = {"text": "Strait\nShips cross the strait again after long repairs."}


def put_in(html: str) -> str:
    """What was put into PAGE to make of it the page; where it begins may have been said twice."""
    added = len(html) - len(PAGE)
    assert added > 0
    places = [at for at in range(len(PAGE) + 1) if html[:at] + html[at + added :] == PAGE]
    assert places
    return min((html[at : at + added] for at in places), key=lambda part: not part.startswith("<"))


def test_a_page_with_teasers_says_all_that_it_said_and_labels_of_teasers_are_nought() -> None:
    _, label, _ = labels.label_page("articles", PAGE, GOLD)
    others = [made_of.Teaser(f"Title {n}", " ".join(f"other{n}x{at}" for at in range(60))) for n in range(20)]
    shapes = set()
    for number in range(40):
        made = made_of.with_teasers(PAGE, label.tolist(), str(number), others)
        assert made is not None
        assert made == made_of.with_teasers(PAGE, label.tolist(), str(number), others)
        shapes.add(put_in(made.html).split("<p>")[0].split(">")[0])
        texts = labels.Texts(made.html).texts
        is_teaser = [text.startswith(("other", "Title")) for text in texts]
        assert 2 <= sum(text.startswith("other") for text in texts) <= 7
        # what is before and after them has the labels that it had, as the words of the page say, too
        assert made.label == labels.label_page("articles", made.html, GOLD)[1].tolist()
        assert [share for share, new in zip(made.label, is_teaser, strict=True) if not new] == label.tolist()
        assert not any(share for share, new in zip(made.label, is_teaser, strict=True) if new)
    assert len(shapes) > 3
    assert made_of.with_teasers(PAGE, [0.0] * len(label), "0", others) is None
    assert made_of.with_teasers(PAGE, label.tolist(), "0", others[:3]) is None


def test_code_and_tables_put_into_a_text_belong_and_most_lie_behind_it() -> None:
    _, label, _ = labels.label_page("articles", PAGE, GOLD)
    gold = {
        "code": [f"part{n} = [1 < 2]" for n in range(10)],
        "tables": [[[f"part{n}", "b & c"], ["1", "2"]] for n in range(10)],
    }
    parts = made_of.parts_of(gold)
    assert len(parts) == 20
    assert parts[0] == "<pre>part0 = [1 &lt; 2]</pre>"
    assert parts[10] == (
        "<table><tr><td>part0</td><td>b &amp; c</td></tr><tr><td>1</td><td>2</td></tr></table>"
    )
    behind, shapes = [], set()
    for number in range(60):
        made = made_of.with_parts(PAGE, label.tolist(), str(number), parts)
        assert made is not None
        assert made == made_of.with_parts(PAGE, label.tolist(), str(number), parts)
        texts = labels.Texts(made.html).texts
        is_part = [text.startswith("part") or text in ("b & c", "1", "2") for text in texts]
        assert 1 <= sum(text.startswith("part") for text in texts) <= 3
        assert [share for share, new in zip(made.label, is_part, strict=True) if not new] == label.tolist()
        assert all(share == 1 for share, new in zip(made.label, is_part, strict=True) if new)
        prose = texts.index("Ships cross the strait again after long repairs.")
        behind += [at > prose for at, text in enumerate(texts) if text.startswith("part")]
        shapes |= {text.split()[0] for text in re.findall(r"<(?:pre><code|pre|table><tr><t.)", made.html)}
    assert len(behind) > 80
    assert 0.6 < np.mean(behind) < 1
    assert shapes == {"<pre", "<pre><code", "<table><tr><td", "<table><tr><th"}
    assert made_of.with_parts(PAGE, [0.0] * len(label), "0", parts) is None
    assert made_of.with_parts(PAGE, label.tolist(), "0", parts[:3]) is None
    long = {"code": ["x" * 2000], "tables": [[["x" * 9000]]]}
    assert made_of.parts_of(long) == []


def test_what_is_put_into_a_page_is_of_its_own_fold() -> None:
    def page(number: int) -> Any:
        html, text = article(number)
        own = [one.tolist() for one in labels.label_page("articles", html, {"text": text})]
        return labels.LabelledPage("articles", str(number), f"{number}.org", number % 2, html, *own)

    pages = [page(number) for number in range(24)]
    parts = {fold: [f"<pre>code {fold} of {n}</pre>" for n in range(9)] for fold in (0, 1)}
    made = training.made_pages(pages, parts)
    assert [(one.set, one.id, one.host) for one in made] == [
        (name, str(n), f"{n}.org") for n in range(24) for name in ("teasers", "parts", "both")
    ]
    assert {one.set for one in made} == set(training.MADE)
    for one in made:
        assert one.fold == int(one.id) % 2
        days = {int(day) for day in re.findall(r"On day (\d+) of", one.html)}
        assert int(one.id) in days
        assert (len(days) > 1) == (one.set != "parts")
        assert {day % 2 for day in days} == {one.fold}
        assert set(re.findall(r">code (\d) of", one.html)) == (
            set() if one.set == "teasers" else {str(one.fold)}
        )
        assert one.words == labels.Texts(one.html).counts.tolist()
        assert min(one.weight) > 0
    # too few others: no page is made
    assert training.made_pages(pages[:8], {}) == []


def test_labels_are_read_as_they_were_written(tmp_path: Path) -> None:
    page = labels.LabelledPage("articles", "a", "a.org", 3, "<p>é", [1], [1 / 3], [0.1])
    labels.write_labels(tmp_path / "labels.jsonl.zst", [page, page])
    assert labels.load_labels(tmp_path / "labels.jsonl.zst") == [page, page]
    assert [path.name for path in tmp_path.iterdir()] == ["labels.jsonl.zst"]


def test_a_host_has_one_voice_for_a_word() -> None:
    def tally(*pages: tuple[str, list[float]]) -> Any:
        made = odds.Tally({}, {})
        for html, label in pages:
            words, _, _ = labels.label_page("articles", html, {"text": ""})
            odds.add_page(made, labels.parse_blocks(html), words, np.array(label))
        return made

    story, menu = "<p class=story>alpha beta</p>", "<p class=menu>beta</p>"
    hosts = [
        tally((story + menu, [1, 0]), (story, [1]), (story, [1])),
        tally((story + menu, [1, 0])),
        tally((menu, [0])),
    ]
    found = odds.learn_odds(hosts, odds.MinHosts(2, 2))
    # votes of classes: story 1, 1; menu 0, 0, 0
    mean = 2 / 5

    def value(part: float, whole: int, mean: float, prior: float) -> int:
        yes, no = part + prior * mean, whole - part + prior * (1 - mean)
        return round(16 * math.log2(yes / no * (1 - mean) / mean))

    assert sorted(found.classes.values()) == sorted([value(2, 2, mean, 2), value(0, 3, mean, 2)])
    # votes of texts: alpha 1, 1; beta 3 of 4 blocks, 1 of 2, 0 of 1
    mean = (2 + 0.75 + 0.5) / 5
    assert sorted(found.texts.values()) == sorted([value(2, 2, mean, 3), value(1.25, 3, mean, 3)])
    assert odds.learn_odds(hosts, odds.MinHosts(4, 4)) == ({}, {})


MODEL_TEXT = """tree
version=v4

Tree=0
num_leaves=3
split_feature=1 0
threshold=3.5000000000000004 -7.4999999999999991
decision_type=2 2
left_child=1 -1
right_child=-3 -2
leaf_value=0.5 -0.25 1.00001

Tree=1
num_leaves=1
leaf_value=-0.125

end of trees
"""


def test_trees_of_lightgbm_become_whole_numbers() -> None:
    trees = check_trees(training.parse_trees([MODEL_TEXT]), 2)
    rows = np.array([[-8, 3], [-7, 3], [0, 4]], np.int32)
    assert score(rows, trees).tolist() == [0x6000, -0x6000, 0x10001 - 0x2000]


def test_trees_of_several_seeds_score_as_their_mean() -> None:
    other = MODEL_TEXT.replace("leaf_value=0.5 -0.25 1.00001", "leaf_value=0.25 0.75 -1")
    trees = check_trees(training.parse_trees([MODEL_TEXT, other]), 2)
    rows = np.array([[-8, 3], [-7, 3], [0, 4]], np.int32)
    expected = [(0.5 + 0.25) / 2 - 0.125, (-0.25 + 0.75) / 2 - 0.125, (1.00001 - 1) / 2 - 0.125]
    assert np.abs(score(rows, trees) / 65536 - expected).max() <= 4 / 2 / 65536  # half a step for each tree


def test_a_model_file_holds_no_time(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(training.npz_bytes({"a": np.arange(3), "b": np.array(7)}))
    with zipfile.ZipFile(path) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    with np.load(path) as arrays:
        assert (arrays["a"].tolist(), int(arrays["b"])) == ([0, 1, 2], 7)


# --- a model of twelve pages ---


def trainer() -> str:
    """An interpreter that has lightgbm: this one, or that of `make .venv-extractors/.installed`."""
    if importlib.util.find_spec("lightgbm"):
        return sys.executable
    other = ROOT / ".venv-extractors/bin/python"
    asked = [str(other), "-c", "import lightgbm, tokmill, rich, zstandard"]
    if not other.exists() or subprocess.run(asked, check=False, capture_output=True).returncode:
        pytest.skip("no interpreter has lightgbm")
    return str(other)


def article(number: int) -> tuple[str, str]:
    sentences = [
        f"On day {number} of week {week} the committee met, heard {number + week} reports, and adopted none. "
        "Its members left by the side door, and the minutes will follow in the spring of next year."
        for week in range(6)
    ]
    menu = "".join(f"<li><a href=/{name}>{name}</a></li>" for name in ("Home", "World", "Sports", "Money"))
    html = (
        f"<html lang=en><head><title>Session {number}</title></head>"
        f"<body><nav class=menu><ul>{menu}</ul></nav>"
        f"<article class=story>{''.join(f'<p>{one}</p>' for one in sentences)}</article>"
        f"<footer class=footer><p>Copyright {number}, all rights reserved</p><a href=/terms>Terms of use</a>"
        "</footer></body></html>"
    )
    return html, "\n".join(sentences)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two directories, of the same pages."""
    python, where = trainer(), tmp_path_factory.mktemp("training")
    rows = []
    for number in range(12):
        html, text = article(number)
        rows.append(
            {"id": str(number), "url": f"https://{number}.example{number}.org/", "html": html, "text": text}
        )
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    (where / "articles.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines))
    command = [python, str(BENCH / "train_extraction.py"), "--few", "--threads", "1"]
    pages = ["--pages", str(where), "--structure", str(where / "none")]
    kept = where / "labels.jsonl.zst"
    made = []
    # the second from a file of labels
    subprocess.run([*command, *pages, "--write-labels", str(kept)], check=True)
    for name, source in (("a", pages), ("b", ["--labels", str(kept)])):
        made.append(where / name)
        output = ["--models", str(where / name), "--ship", str(where / name / "all.npz"), "--folds", "0", "4"]
        subprocess.run([*command, *source, *output], check=True)
    return made[0], made[1]


def test_a_model_leaves_boilerplate_out_of_a_page_that_it_has_not_seen(trained: tuple[Path, Path]) -> None:
    html, text = article(99)
    for path in sorted(trained[0].iterdir()):
        model = load_model(path)
        verdicts = judge(find_blocks(*parse_page(html.encode())), model)
        assert verdicts.first.dtype == verdicts.second.dtype == np.int64
        found = extract(html.encode(), model=model)
        assert found.split() == text.split()
    with np.load(trained[0] / "all.npz") as arrays:
        assert all(arrays[name].dtype.kind in "iu" for name in arrays.files)


def test_the_same_pages_make_the_same_bytes(trained: tuple[Path, Path]) -> None:
    first, second = ({path.name: path.read_bytes() for path in made.iterdir()} for made in trained)
    assert sorted(first) == ["0.npz", "4.npz", "all.npz"]
    assert first == second
    assert len(set(first.values())) == 3


def test_few_pages_are_no_model_to_ship() -> None:
    command = [sys.executable, str(BENCH / "train_extraction.py"), "--few", "--ship"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "give --ship a file" in done.stderr
