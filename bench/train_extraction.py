"""Trains the model that judges the blocks of web pages (tokmill.sources.extract).

.venv-extractors/bin/python bench/train_extraction.py [--ship [FILE]] [--folds N …] [--threads 1]
        [--pages DIR] [--structure FILE] [--peers PYTHON] [--models DIR] [--few]
… --write-labels FILE       labels only: what another machine then trains from, without peers or pyarrow
… --labels FILE

    pages, peers' texts ─ extraction_labels ─> labels ─ extraction_made ─> those and of made pages
    labels ─┬─ without fold 0 … 4 ─> models/0.npz … 4.npz
            └─ all, with --ship ───> model.npz

    one model, of pages in some folds:

    tallies of hosts ─┬─ all hosts ─ odds ─────────────────────────────────────────────────┐
                      └─ hosts of the other folds ─ odds ─ features of each fold's pages ─┐│
    features, labels ─┬─ all pages ─ first trees ──────────────────────────────────────┐  ││
                      └─ the other folds ─ trees ─> scores of each fold ─ context ─┐   │  ││
    features, context, labels ─ second trees ──────────────────────────────────────┴───┴──┴┴─> whole numbers

Trees are those of several seeds, and a score is the mean of theirs: one training differs from the next by
more than we differ from the best peer.

What the second trees learn from is what the first say of pages that they have not seen, with odds learned
elsewhere: as it will be in use. A model that has not seen a fold is what bench/extraction.py measures.

The same labels and seed make the same bytes, with any number of threads. On cores that are busy with other
things two threads wait for one another: the same trees took 4.6 CPU seconds with one thread and 17 with two.
Models of folds can be trained side by side, by several calls with --labels and --folds.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extraction_labels import (
    OPINIONS,
    LabelledPage,
    label_page,
    load_labels,
    parse_blocks,
    weigh_made,
    write_labels,
)
from extraction_made import Made, Teaser, parts_of, teaser_of, with_parts, with_teasers
from extraction_odds import MinHosts, Tally, WordOdds, add_page, learn_odds
from tokmill.kernels.boosting import ONE, Trees, check_trees, pack, score
from tokmill.kernels.htmlblocks import Blocks
from tokmill.kernels.htmlclasses import Marks, mark
from tokmill.kernels.htmlcounts import count
from tokmill.kernels.htmlfeatures import CONTEXT_NAMES, NAMES, context, features
from tokmill.kernels.htmlodds import odds_table
from tokmill.kernels.htmltree import Tree
from tokmill.kernels.jit import Bytes

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[1] / "shared"
STRUCTURE = HERE / "results/structure/structure.jsonl.zst"
MODELS = HERE / "results/extraction/models"
SHIPPED = HERE.parent / "src/tokmill/sources/extract/model.npz"
PEERS = HERE.parent / ".venv-extractors/bin/python"

MADE = ("teasers", "parts", "both")  # pages of other pages: they count in no odds
FOLDS = range(5)  # of extraction_pages, which asks for pyarrow
# Of the second score, in log odds. From -0.4 to 0.2 the F1 of articles goes from 0.961 to 0.965, and that of
# segments from 0.946 to 0.944: a higher one is more precise. Below 0 short code and tables stay.
THRESHOLD = -0.2
# The first score as the second trees see it: 1/512, clipped. tokmill.sources.extract.page does the same.
_SCORE_STEPS, _MAX_SCORE = 512, 4000
_MAX_SPLIT = 1 << 15  # a threshold of a node has 16 bits

# Figures are F1 of articles and of segments on unseen hosts; docs/decisions/0016 has them all.
PARAMETERS = {
    "objective": "cross_entropy",  # labels are shares
    # 0.9664 and 0.943 by four seeds of 80 rounds; 63 leaves, 0.08 and 120 rounds by three: 0.9584 and 0.945
    "learning_rate": 0.11,
    "num_leaves": 31,
    "min_data_in_leaf": 30,
    "feature_fraction": 0.4,  # many features say nearly the same
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "deterministic": True,
    "force_col_wise": True,  # else LightGBM times both layouts; the same trees by rows take a third longer
    "verbose": -1,
}


class Settings(NamedTuple):
    seeds: tuple[int, ...]
    rounds: int
    min_hosts: MinHosts
    parameters: dict[str, Any]
    pages: int | None = None  # of each set


# One seed by itself: 0.957 to 0.964; any three of four: 0.9652 to 0.9667.
FULL = Settings((1, 2, 3), 80, MinHosts(3, 6), PARAMETERS)
# To see that all of it works: a few pages have few blocks, each of little weight, and each page its own host.
_FEW_PARAMETERS = {"num_leaves": 15, "min_data_in_leaf": 3, "learning_rate": 0.3, "lambda_l2": 0.0}
FEW = Settings((1, 2), 20, MinHosts(2, 2), {**PARAMETERS, **_FEW_PARAMETERS}, pages=20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--pages", type=Path, default=SHARED / "data/extraction", help="the sets by hand")
    parser.add_argument("--structure", type=Path, default=STRUCTURE, help="made by structure_pages.py")
    parser.add_argument("--peers", type=Path, default=PEERS, help="interpreter that has the other extractors")
    parser.add_argument("--labels", type=Path, help="take pages and labels from this file")
    parser.add_argument("--write-labels", type=Path, help="write pages and labels there, and no model")
    parser.add_argument("--models", type=Path, default=MODELS, help="where models of folds are written")
    parser.add_argument(
        "--folds", type=int, nargs="*", choices=FOLDS, default=FOLDS, help="models without these"
    )
    parser.add_argument("--ship", type=Path, nargs="?", const=SHIPPED, help="write the model of all pages")
    parser.add_argument("--threads", type=int, default=1, help="of LightGBM: more only where cores are idle")
    parser.add_argument("--few", action="store_true", help="few pages and small trees, to try the script")
    options = parser.parse_args()
    if options.few and options.ship == SHIPPED:
        parser.error("--few makes no model to ship: give --ship a file")
    settings = FEW if options.few else FULL
    labelled = load_labels(options.labels) if options.labels else make_labels(options, settings.pages)
    if not labelled:
        print(f"no pages in {options.pages}: give a directory with --pages", file=sys.stderr)
        return 2
    if options.write_labels:
        size = write_labels(options.write_labels, labelled)
        print(f"{options.write_labels}: {len(labelled)} pages, {size:,} bytes", file=sys.stderr)
        return 0
    pages = [PreparedPage(page) for page in labelled]
    wanted: list[tuple[int | None, Path]] = [(fold, options.models / f"{fold}.npz") for fold in options.folds]
    if options.ship:
        wanted.append((None, options.ship))
    for unseen, path in wanted:
        started = time.monotonic()
        seen = [page for page in pages if page.fold != unseen]
        digest = write_model(path, train(seen, settings, options.threads))
        seconds = time.monotonic() - started
        print(f"{path}: {len(seen)} pages, {seconds:.0f} s, sha256 {digest}", file=sys.stderr)
    return 0


def make_labels(options: argparse.Namespace, few: int | None) -> list[LabelledPage]:
    """Of the sets that are there. Peers are asked for pages with segments; what bench/extraction.py has
    already heard from them is not asked again."""
    # here, because a machine that trains from a file of labels may not have pyarrow
    from extraction import Answering
    from extraction_pages import load_pages

    paths = [options.pages / "articles.jsonl.zst", options.pages / "segments.jsonl.zst", options.structure]
    pages = [page for path in paths if path.exists() for page in load_pages(path)[:few]]
    with_segments = [page for page in pages if page.set == "segments"]
    texts: dict[str, dict[str, str]] = {}
    if with_segments:
        answer = Answering(argparse.Namespace(peers=str(options.peers), rounds=0, shipped=True))
        texts = {name: answer(name, with_segments) for name in OPINIONS}
    labelled = []
    for page in pages:
        peers = {name: texts[name][page.key] for name in OPINIONS} if page.set == "segments" else None
        labels = label_page(page.set, page.html, page.gold, peers)
        labelled.append(
            LabelledPage(
                page.set, page.id, page.host, page.fold, page.html, *(one.tolist() for one in labels)
            )
        )
    parts: dict[int, list[str]] = {}
    for page in pages:
        if page.set == "structure":
            parts.setdefault(page.fold, []).extend(parts_of(page.gold))
    return labelled + made_pages(labelled, parts)


def made_pages(labelled: Sequence[LabelledPage], parts: Mapping[int, Sequence[str]]) -> list[LabelledPage]:
    """Of every article one with teasers, one with code and tables, and one with both; where there are any in
    its fold to put in."""
    teasers: dict[int, list[Teaser]] = {}
    for page in labelled:
        teaser = teaser_of(page.html, page.label) if page.set != "structure" else None
        if teaser:
            teasers.setdefault(page.fold, []).append(teaser)
    made = []
    for page in labelled:
        if page.set != "articles":
            continue
        own_teasers, own_parts = teasers.get(page.fold, []), parts.get(page.fold, [])
        both: Made | None = with_parts(page.html, page.label, page.id, own_parts)
        pages = {
            "teasers": with_teasers(page.html, page.label, page.id, own_teasers),
            "parts": both,
            "both": with_teasers(*both, f"{page.id} both", own_teasers) if both else None,
        }
        for name, one in pages.items():
            if one:
                labels = weigh_made(name, one.html, one.label)
                made.append(
                    LabelledPage(
                        name, page.id, page.host, page.fold, one.html, *(each.tolist() for each in labels)
                    )
                )
    return made


# --- one model ---


class PreparedPage:
    """A labelled page as its tree and blocks."""

    def __init__(self, page: LabelledPage) -> None:
        self.host, self.fold, self.is_made = page.host, page.fold, page.set in MADE
        self.parsed: tuple[Bytes, Tree, Blocks] = parse_blocks(page.html)
        self.words = np.array(page.words, np.int64)
        self.label = np.array(page.label, np.float64)
        self.weight = np.array(page.weight, np.float64)
        if len(self.label) != len(self.parsed[2].element):
            raise SystemExit(
                f"{page.id}: {len(self.label)} labels for {len(self.parsed[2].element)} blocks; "
                "make the labels again with --write-labels"
            )


class Seen(NamedTuple):
    """What the first trees are asked of a page, and what context is made from."""

    features: NDArray[np.int32]
    counts: NDArray[np.int32]
    marks: Marks


class Trained(NamedTuple):
    odds: WordOdds
    first: Trees
    second: Trees


def train(pages: Sequence[PreparedPage], settings: Settings, threads: int) -> Trained:
    folds = sorted({page.fold for page in pages})
    if len(folds) < 2:
        raise SystemExit(
            f"{len(pages)} pages, all of fold {folds}: training takes pages of two folds or more"
        )
    tallies: dict[str, Tally] = {}
    for page in pages:
        if not page.is_made:  # what was made says nothing of a host's classes
            add_page(tallies.setdefault(page.host, Tally({}, {})), page.parsed, page.words, page.label)
    fold_of_host = {page.host: page.fold for page in pages}

    def odds_without(fold: int | None) -> WordOdds:
        others = (tally for host, tally in tallies.items() if fold_of_host[host] != fold)
        return learn_odds(others, settings.min_hosts)

    odds = {fold: odds_without(fold) for fold in folds}
    seen = [look(page, odds[page.fold]) for page in pages]
    own = np.concatenate([one.features for one in seen])
    label = np.concatenate([page.label for page in pages])
    weight = np.concatenate([page.weight for page in pages])
    fold_of_row = np.repeat([page.fold for page in pages], [len(page.label) for page in pages])

    def fit(rows: NDArray[Any], table: NDArray[np.int32], names: Sequence[str]) -> list[Any]:
        return boost(table[rows], label[rows], weight[rows], names, settings, threads)

    unseen_scores = np.zeros(len(label))
    for fold in folds:
        is_unseen = fold_of_row == fold
        unseen_scores[is_unseen] = predict(fit(~is_unseen, own, NAMES), own[is_unseen])
    steps = np.clip(np.round(unseen_scores * _SCORE_STEPS), -_MAX_SCORE, _MAX_SCORE).astype(np.int32)
    ends = np.cumsum([len(page.label) for page in pages])[:-1]
    around = [
        context(page.parsed[1], page.parsed[2], one.counts, one.marks, scores)
        for page, one, scores in zip(pages, seen, np.split(steps, ends), strict=True)
    ]
    both = np.concatenate((own, np.concatenate(around)), axis=1)
    every = np.ones(len(label), bool)
    return Trained(
        odds_without(None),
        whole_numbers(fit(every, own, NAMES), own),
        whole_numbers(fit(every, both, NAMES + CONTEXT_NAMES), both),
    )


def look(page: PreparedPage, odds: WordOdds) -> Seen:
    data, tree, blocks = page.parsed
    counts = count(data, tree, blocks, odds_table(odds.texts))
    marks = mark(data, tree, odds_table(odds.classes))
    return Seen(features(tree, blocks, counts, marks), counts, marks)


def boost(
    table: NDArray[np.int32],
    label: NDArray[np.float64],
    weight: NDArray[np.float64],
    names: Sequence[str],
    settings: Settings,
    threads: int,
) -> list[Any]:
    """One of each seed."""
    try:
        import lightgbm  # type: ignore[import-not-found]
    except ImportError as error:
        raise SystemExit(
            "training needs lightgbm: make .venv-extractors/.installed, and its python"
        ) from error
    data = lightgbm.Dataset(table, label, weight=weight, feature_name=list(names))
    parameters = {**settings.parameters, "num_threads": threads}
    return [lightgbm.train({**parameters, "seed": seed}, data, settings.rounds) for seed in settings.seeds]


def predict(boosters: Sequence[Any], table: NDArray[np.int32]) -> NDArray[np.float64]:
    """The mean of their scores, in log odds."""
    scores: NDArray[np.float64] = np.mean([one.predict(table, raw_score=True) for one in boosters], axis=0)
    return scores


# --- from LightGBM's text to whole numbers ---


def whole_numbers(boosters: Sequence[Any], table: NDArray[np.int32]) -> Trees:
    """The trees of all, each leaf divided by how many they are. Features are whole, so that `<= 3.5` is
    `<= 3`; leaves are rounded to 1/65536."""
    trees = check_trees(parse_trees([one.model_to_string() for one in boosters]), table.shape[1])
    rows = table[:10_000]
    error = np.abs(score(rows, trees) / ONE - predict(boosters, rows)).max(initial=0)
    # half a step for each tree
    assert error <= (len(trees.nodes) - 1) / 2 / ONE + 1e-9, f"whole numbers are off by {error}"
    return trees


def parse_trees(texts: Sequence[str]) -> Trees:
    feature: list[int] = []
    threshold: list[int] = []
    yes: list[int] = []
    no: list[int] = []
    values: list[int] = []
    nodes, leaves = [0], [0]
    for tree in (tree for text in texts for tree in text.split("\nTree=")[1:]):
        lines = dict(line.split("=", 1) for line in tree.splitlines() if "=" in line)
        if int(lines["num_leaves"]) == 1:  # nothing to ask: both ways end in the only leaf
            feature.append(0)
            threshold.append(0)
            yes.append(~0)
            no.append(~0)
            nodes.append(nodes[-1] + 1)
        else:
            assert all(int(kind) & 1 == 0 for kind in lines["decision_type"].split()), "a split by category"
            splits = [int(np.floor(float(number))) for number in lines["threshold"].split()]
            feature += map(int, lines["split_feature"].split())
            threshold += splits
            yes += map(int, lines["left_child"].split())
            no += map(int, lines["right_child"].split())
            nodes.append(nodes[-1] + len(splits))
        of_tree = [round(float(value) / len(texts) * ONE) for value in lines["leaf_value"].split()]
        values += of_tree
        leaves.append(leaves[-1] + len(of_tree))
    assert max(map(abs, threshold)) < _MAX_SPLIT, "a threshold that does not fit 16 bits"
    words = pack(np.array(feature), np.array(threshold), np.array(yes), np.array(no))
    return Trees(words, np.array(nodes), np.array(values, np.int32), np.array(leaves))


def write_model(path: Path, trained: Trained) -> str:
    """As tokmill.sources.extract.model reads it; the digest of the file."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, odds in (("class", trained.odds.classes), ("text", trained.odds.texts)):
        hashes = sorted(odds)
        arrays[f"{name}_hashes"] = np.array(hashes, np.uint64)
        arrays[f"{name}_odds"] = np.array([odds[value] for value in hashes], np.int8)
    for name, trees in (("first", trained.first), ("second", trained.second)):
        arrays |= {f"{name}_{part}": values for part, values in trees._asdict().items()}
    arrays["threshold"] = np.array(int(THRESHOLD * ONE))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    made = npz_bytes(arrays)
    unfinished.write_bytes(made)
    unfinished.replace(path)
    return hashlib.sha256(made).hexdigest()


def npz_bytes(arrays: dict[str, NDArray[Any]]) -> bytes:
    """The bytes of np.savez_compressed, with the date of every entry ours to say: always the first of zip."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as array:
                np.lib.format.write_array(array, values, allow_pickle=False)
    return file.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
