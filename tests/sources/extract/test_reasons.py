"""Why blocks were kept or left out: points add up to scores, by trees walked a second way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sources.extract.pages_by_hand import PAGES, article, texts_of
from tokmill.kernels.boosting import ONE, Trees, check_trees, pack, score
from tokmill.kernels.htmlfeatures import CONTEXT_NAMES, NAMES
from tokmill.sources.extract import reasons
from tokmill.sources.extract.model import load_model
from tokmill.sources.extract.page import Page, Verdicts, find_blocks, judge, parse_page
from tokmill.sources.extract.phrases import group_of, phrases, say
from tokmill.sources.extract.reasons import Explained, attribute, block_texts, element_path, explain


def judged(html: str) -> tuple[Page, Verdicts]:
    page = find_blocks(*parse_page(html.encode()))
    return page, judge(page)


def explained(html: str, **options: Any) -> Explained:
    return explain(*judged(html), **options)


# -- points ----------------------------------------------------------------------------------------


@st.composite
def forests(draw: st.DrawFn) -> tuple[Trees, int]:
    """Trees of any shape, and how many features they ask for."""
    features = draw(st.integers(1, 5))
    words, nodes, values, leaves = [], [0], [], [0]
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 6))
        open_ends, children, leaf = [(0, 0), (0, 1)], [[0, 0] for _ in range(count)], 0
        for node in range(1, count):  # each hangs where one before it still has an open end
            at = draw(st.integers(0, len(open_ends) - 1))
            above, side = open_ends.pop(at)
            children[above][side] = node
            open_ends += [(node, 0), (node, 1)]
        for above, side in open_ends:
            children[above][side] = ~leaf
            leaf += 1
        asked = draw(st.lists(st.integers(0, features - 1), min_size=count, max_size=count))
        bounds = draw(st.lists(st.integers(-20, 20), min_size=count, max_size=count))
        yes, no = zip(*children, strict=True)
        words.append(pack(np.array(asked), np.array(bounds), np.array(yes), np.array(no)))
        values += draw(st.lists(st.integers(-(1 << 20), 1 << 20), min_size=leaf, max_size=leaf))
        nodes.append(nodes[-1] + count)
        leaves.append(leaves[-1] + leaf)
    trees = Trees(np.concatenate(words), np.array(nodes), np.array(values, np.int32), np.array(leaves))
    return check_trees(trees, features), features


def walked_by_hand(row: list[int], trees: Trees) -> tuple[int, list[int]]:
    """One row, tree by tree, each mean from the list of all leaves below."""
    bias, points = 0, [0] * len(row)
    for number in range(len(trees.nodes) - 1):
        base, leaf = int(trees.nodes[number]), int(trees.leaves[number])

        def parts(child: int, base: int = base) -> tuple[int, int, int, int]:
            word = int(trees.words[base + child]) & (1 << 64) - 1
            signed = [
                (word >> shift & 0xFFFF) - (1 << 16 if word >> shift & 0x8000 else 0)
                for shift in (16, 32, 48)
            ]
            return word & 0xFFFF, signed[0], signed[1], signed[2]

        def below(child: int, leaf: int = leaf, parts: Any = parts) -> list[int]:
            if child < 0:
                return [int(trees.values[leaf - 1 - child])]
            _, _, yes, no = parts(child)
            return below(yes) + below(no)

        def worth(child: int, below: Any = below) -> int:
            return sum(below(child)) // len(below(child))

        node = 0
        bias += worth(0)
        while node >= 0:
            feature, bound, yes, no = parts(node)
            child = yes if row[feature] <= bound else no
            points[feature] += worth(child) - worth(node)
            node = child
    return bias, points


@settings(deadline=None, max_examples=60)
@given(forests(), st.data())
def test_points_are_those_of_trees_walked_by_hand_and_add_up_to_the_score(
    forest: tuple[Trees, int], data: st.DataObject
) -> None:
    trees, features = forest
    row = st.lists(st.integers(-30, 30), min_size=features, max_size=features)
    rows = np.array(data.draw(st.lists(row, min_size=1, max_size=5)), np.int32)
    bias, points = attribute(rows, trees)
    for values, own in zip(rows.tolist(), points.tolist(), strict=True):
        assert (bias, own) == walked_by_hand(values, trees)
    assert (points.sum(axis=1) + bias).tolist() == score(rows, trees).tolist()


@settings(deadline=None, max_examples=40)
@given(PAGES)
def test_the_reasons_of_every_block_add_up_to_its_scores(html: str) -> None:
    page, verdicts = judged(html)
    found = explain(page, verdicts)
    assert len(found.blocks) == len(verdicts.second)
    for block in found.blocks:
        assert block.bias + sum(one.points for one in block.reasons) == verdicts.second[block.number]
        assert (
            block.first_bias + sum(one.points for one in block.first_reasons) == verdicts.first[block.number]
        )
        told = block.as_json()
        assert told["bias"] + sum(one["points"] for one in told["reasons"]) == told["score"]
        assert told["score"] * ONE == block.score


def test_neighbours_have_what_scores_of_other_blocks_add() -> None:
    page, verdicts = judged(article())
    model = load_model()
    features = np.concatenate((verdicts.features, verdicts.context), axis=1)
    _, points = attribute(features, model.second)
    others = [len(NAMES) + at for at, name in enumerate(CONTEXT_NAMES) if name != "score_score"]
    for block in explain(page, verdicts).blocks:
        told = [one.points for one in block.reasons if one.words == "neighbours and containers"]
        assert sum(told) == int(points[block.number, others].sum())


def test_every_feature_has_words_and_a_group() -> None:
    for name in (*NAMES, *CONTEXT_NAMES):
        words = phrases()[name].words
        assert words
        assert words != name.replace("_", " "), "it has its name in their place"
        assert "_" not in words
        assert "{" not in words
        assert group_of(name)
    assert len({one.words for one in phrases().values()}) == len(NAMES) + len(CONTEXT_NAMES)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("link_share", 823, "share of its characters in links: 82 %"),
        ("link_share", -1, "share of its characters in links: none"),
        ("chars", 4000, "characters of its text: 4,000 or more"),
        ("around_1", 1, "inside <article>: yes"),
        ("kind", 2, "its element: <p>"),
        ("kind_of_inline", 0, "the inline element that it begins with: none"),
        ("before_chars", -2, "characters of the block before it: none"),
        ("since_h1", 1004, "blocks since the main heading: none"),
        ("word_length", 44, "characters of a word: 4.4"),
        ("score_before", -4000, "score of the block before it: none"),
        ("score_before", 96, "score of the block before it: +0.19"),
        ("container_2_blocks", 7, "blocks in the second element around it: 7"),
    ],
)
def test_a_feature_is_told_with_its_value_as_people_say_it(name: str, value: int, told: str) -> None:
    assert say(name, value) == told


# -- texts, places, verdicts -----------------------------------------------------------------------


def test_texts_and_tallies_are_those_of_pythons_own_parser() -> None:
    html = article()
    found = explained(html)
    wanted = texts_of(html)
    assert [block.text for block in found.blocks] == wanted
    assert [block.chars for block in found.blocks] == [len(text) for text in wanted]
    for verdict, tally in found.tallies.items():
        own = [block for block in found.blocks if block.verdict == verdict]
        assert tally == (len(own), sum(block.chars for block in own))
    assert sum(tally.chars for tally in found.tallies.values()) == sum(map(len, wanted))
    by_text = {block.text: block for block in found.blocks}
    assert by_text["Words that nobody sees."].verdict == "hidden"
    assert by_text["Words that nobody sees."].because == "the page hides it"


def test_a_formula_is_in_the_text_as_latex() -> None:
    html = "<p>a <math class='ltx_Math' alttext='\\beta'><mi>b</mi></math> b"
    assert block_texts(judged(html)[0]) == ["a $\\beta$ b"]


def test_the_path_of_an_element_has_its_class_or_its_id() -> None:
    html = (
        '<html class=x><body class="skin"><main id="top"><div class="content wide" id=c><p>a</p></div>'
        "<x-card>b</x-card></main>c</body>"
    )
    page, _ = judged(html)
    paths = [element_path(page, int(node)) for node in page.blocks.element]
    assert paths == ["main#top > div.content > p", "main#top", "body"]
    deep, _ = judged("<div><ul><li><div><ul><li><div><p>a")
    assert element_path(deep, int(deep.blocks.element[0])) == "… > li > div > ul > li > div > p"


def test_without_main_text_all_that_is_shown_is_kept() -> None:
    found = explained(article(), main_text=False)
    assert {block.verdict for block in found.blocks} == {"kept", "hidden"}
    assert found.tallies["left out"] == (0, 0)


def test_verdicts_and_what_they_say_follow_the_threshold_and_what_is_hidden() -> None:
    page, verdicts = judged(article())
    model = load_model()
    for block in explain(page, verdicts).blocks:
        is_above = verdicts.second[block.number] > model.threshold
        if block.verdict == "left out":
            assert not is_above
            assert block.because == "not above the threshold"
        assert (block.verdict == "kept") == bool(verdicts.keep[block.number])
    # the same page with a threshold that no block reaches: the best of it is kept
    strict = model._replace(threshold=1 << 40)
    best = [block for block in explain(page, judge(page, strict), strict).blocks if block.verdict == "kept"]
    assert best
    assert {block.because for block in best} == {"below the threshold, and of the best that the page has"}


def test_a_page_of_nothing_has_no_blocks_and_long_pages_are_told_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert explained("").blocks == ()
    assert explained("<script>a</script>").tallies["kept"] == (0, 0)
    monkeypatch.setattr(reasons, "MAX_BLOCKS", 3)
    found = explained(article())
    assert len(found.blocks) == 3
    assert sum(tally.blocks for tally in found.tallies.values()) == len(texts_of(article()))


def test_a_long_text_is_shortened_and_its_length_is_not() -> None:
    found = explained(f"<p>{'word ' * 1000}</p>")
    (block,) = found.blocks
    assert block.chars == 4999
    assert block.text.endswith("…")
    assert len(block.text) < block.chars


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("title_share", "its text"),
        ("chars", "its text"),
        ("odds", "its element and classes"),
        ("container_2_odds", "its containers"),
        ("after_2_kind", "blocks next to it"),
        ("after_half", "the page, and its place there"),
        ("chars_after", "the page, and its place there"),
        ("score_before", "scores"),
    ],
)
def test_what_a_feature_is_of_is_told_by_the_longest_beginning_of_its_name(name: str, group: str) -> None:
    assert group_of(name) == group
