"""Models that judge texts, beside the libraries that they are compared with, in one run.

    python bench/score_models.py --peers .venv-peers/bin/python [--lmplz PATH] [--thorough] [--json FILE]

    classifier   ours and fastText, trained on the same texts: (a) five domains from 400 characters each;
                 (b) posts of StackExchange, score >= 3 against <= 0, in ten folds. Held-out area under the
                 curve, CPU seconds of training on one core, MB of text a CPU second, bytes of the model
    importance   ours and data-selection on the same texts: correlation of log-importance weights, speed
    perplexity   ours and kenlm on the same ARPA file, word by word; ours and lmplz on the same text

Seconds are CPU seconds, kernels compiled before. Without --peers only our own figures are told. `lmplz` is a
program of kenlm that no package brings; `.venv-peers` (make bench) has the three libraries.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import html
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console

from stages import SHARED
from tokmill.schema import StringColumn, string_column
from tokmill.scores.arpa import write_arpa
from tokmill.scores.evaluation import area_under_curve
from tokmill.scores.examples import identity_keys, join_examples, make_examples
from tokmill.scores.importance import Hash, ImportanceOptions, ImportanceScorer, count_texts, fit_importance
from tokmill.scores.kneserney import ONE
from tokmill.scores.linear import (
    LinearModel,
    LinearOptions,
    LinearScorer,
    Training,
    label_margins,
    train_linear,
    write_linear,
)
from tokmill.scores.perplexity import (
    LanguageModel,
    count_text_ngrams,
    count_words,
    load_language_model,
    make_vocabulary,
    train_language_model,
)
from tokmill.storage.disk import ZstdFile

DOMAINS = ("code", "math", "multilingual", "prose", "web")
CHARS = 400
FOLDS = 10
BIGRAMS: dict[str, Any] = {"wordNgrams": 2}  # what ours has, and all else as fastText has it by default
TUTORIAL: dict[str, Any] = {"wordNgrams": 2, "lr": 0.5, "epoch": 25}  # of its tutorial; few texts need it
PER_DOMAIN = 250  # texts that data-selection weighs: six seconds of it
REFERENCE = Path(__file__).parent / "score_models_reference.py"

console = Console(width=150)


class Labelled(NamedTuple):
    id: str
    text: str
    label: int


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--posts", type=Path, default=SHARED / "data/stackexchange")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("classifier", "importance", "perplexity"))
    parser.add_argument("--peers", type=Path, help="a python that has fasttext, data-selection and kenlm")
    parser.add_argument("--lmplz", type=Path)
    parser.add_argument(
        "--thorough", action="store_true", help="fastText's slower settings on the domains, too"
    )
    parser.add_argument("--json", type=Path, help="the figures, too")
    options = parser.parse_args()
    texts = {name: load_texts(options.texts / f"{name}.jsonl.zst") for name in DOMAINS}
    figures: dict[str, Any] = {}
    if options.only in (None, "classifier"):
        figures["classifier"] = classifier(texts, options)
    if options.only in (None, "importance"):
        figures["importance"] = importance(texts, options)
    if options.only in (None, "perplexity"):
        figures["perplexity"] = perplexity(texts, options)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


# --- classifier ---


def classifier(texts: dict[str, list[tuple[str, str]]], options: argparse.Namespace) -> dict[str, Any]:
    domains = shuffled(
        [Labelled(id, text[:CHARS], label) for label, name in enumerate(DOMAINS) for id, text in texts[name]]
    )
    cut = len(domains) * 4 // 5
    posts = shuffled(load_posts(options.posts))
    folds = [(list(posts), posts[fold::FOLDS]) for fold in range(FOLDS)]
    for fold, (train, _) in enumerate(folds):
        del train[fold::FOLDS]
    settings = [BIGRAMS, TUTORIAL] if options.thorough else [BIGRAMS]
    told: dict[str, Any] = {
        "domains": compare("domains", [(domains[:cut], domains[cut:])], len(DOMAINS), settings, options),
        "posts": compare("posts", folds, 2, [BIGRAMS, TUTORIAL], options),
    }
    every = column([text for name in DOMAINS for _, text in texts[name]])
    labels = [str(label) for label in range(2)]
    model = trained(posts, labels)
    scorer = LinearScorer(model, LinearOptions())
    seconds = median_seconds(lambda: scorer.score(every), options.rounds)
    told["scoring"] = size_of(every) / seconds
    console.print(f"scoring whole texts, one label: {told['scoring']:.0f} MB a CPU second")
    return told


def compare(
    name: str,
    folds: Sequence[tuple[Sequence[Labelled], Sequence[Labelled]]],
    labels: int,
    settings: Sequence[dict[str, Any]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    truth = np.concatenate([[row.label for row in test] for _, test in folds])
    names = [str(label) for label in range(labels)]
    trained(folds[0][0][:50] if labels == 2 else folds[0][0][:200], names)  # loads what is compiled
    training, found, model = 0.0, [], None
    for train, test in folds:
        began = time.process_time()
        model = trained(train, names)
        training += time.process_time() - began
        margins = label_margins(model, column([row.text for row in test]))
        found.append(margins if labels > 2 else np.concatenate([-margins, margins], axis=1))
    assert model is not None
    with tempfile.TemporaryDirectory() as folder:
        written = write_linear(Path(folder) / "model", model)
    ours: dict[str, Any] = {
        "auc": areas(np.concatenate(found), truth),
        "training": training,
        "bytes": written.bytes,
    }
    documents = sum(len(test) for _, test in folds)
    console.print(f"[bold]{name}[/bold]: {documents:,} documents held out, {labels} labels")
    show("tokmill", ours, f"model {written.bytes / 1e6:.1f} MB, sha256 {written.sha256[:12]}")
    told: dict[str, Any] = {"tokmill": ours}
    for arguments in settings if options.peers else []:
        asked = {
            "folds": [
                {"train": [row[1:] for row in train], "test": [row.text for row in test]}
                for train, test in folds
            ],
            "labels": labels,
            "arguments": arguments,
        }
        answer = ask(options.peers, "fasttext", asked)
        theirs: dict[str, Any] = {
            "auc": areas(np.concatenate([np.array(one) for one in answer["chances"]]), truth),
            "training": answer["training"],
        }
        margin = statistics.fmean(ours["auc"]) - statistics.fmean(theirs["auc"])
        ratio = training / theirs["training"]
        show(f"fastText {arguments}", theirs, f"ours: {margin:+.5f} of area, {ratio:.2f} of the time")
        told[f"fastText {json.dumps(arguments)}"] = theirs
    return told


def trained(rows: Sequence[Labelled], labels: list[str]) -> LinearModel:
    training = Training()
    keys = identity_keys([column([row.id for row in rows])], 0, "train")
    numbers = np.array([row.label for row in rows], np.int32)
    examples = make_examples(column([row.text for row in rows]), numbers, keys, training.shape)
    return train_linear(join_examples([examples]), labels, training)


def areas(scores: Any, truth: Any) -> list[float]:
    """Of each label against all others; of two labels, one number."""
    labels = range(scores.shape[1]) if scores.shape[1] > 2 else [1]
    return [area_under_curve(np.ascontiguousarray(scores[:, label]), truth == label) for label in labels]


def show(who: str, figures: dict[str, Any], more: str) -> None:
    each = " ".join(f"{area:.5f}" for area in figures["auc"])
    mean = statistics.fmean(figures["auc"])
    console.print(f"  {who:50} area {mean:.5f} ({each})  training {figures['training']:.2f} s  {more}")


# --- importance ---


def importance(texts: dict[str, list[tuple[str, str]]], options: argparse.Namespace) -> dict[str, Any]:
    raw = [text for name in DOMAINS for _, text in every_nth(texts[name], PER_DOMAIN, 0)]
    target = [text for _, text in every_nth(texts["prose"], PER_DOMAIN, 1)]
    megabytes = 2 * size_of(column(raw)) + size_of(column(target))
    asked = {"target": target, "raw": raw}
    told: dict[str, Any] = {}
    console.print(f"[bold]importance[/bold]: {len(raw):,} texts by {len(target):,}, {megabytes:.1f} MB read")
    hashes: tuple[Hash, ...] = ("fast", "sha256")
    theirs = {
        hash: ask(options.peers, "importance", asked | {"hash": hash}) for hash in hashes if options.peers
    }
    if theirs:
        told["data-selection"] = megabytes / theirs["sha256"]["seconds"]
        console.print(
            f"  data-selection {theirs['sha256']['version']}: {told['data-selection']:.2f} MB a CPU second"
        )
    for hash in hashes:
        weights = weighed(target, raw, hash)
        seconds = median_seconds(functools.partial(weighed, target, raw, hash), options.rounds)
        figures = {"speed": megabytes / seconds}
        line = f"  tokmill, hash {hash}: {figures['speed']:.0f} MB a CPU second"
        if theirs:
            figures["times"] = theirs["sha256"]["seconds"] / seconds
            for other in hashes:
                together = np.corrcoef(weights, theirs[other]["weights"])
                figures[f"correlation {other}"] = float(together[0, 1])
            line += (
                f", {figures['times']:.0f} times theirs; correlation {figures['correlation sha256']:.6f} "
                f"with them as they are, {figures['correlation fast']:.6f} with them by our fast hash"
            )
        console.print(line)
        told[hash] = figures
    return told


def weighed(target: list[str], raw: list[str], hash: Hash) -> Any:
    """Fitted and weighed."""
    of_raw = column(raw)
    model = fit_importance(count_texts(column(target), hash=hash), count_texts(of_raw, hash=hash))
    return ImportanceScorer(model, ImportanceOptions()).score(of_raw)


# --- perplexity ---


def perplexity(texts: dict[str, list[tuple[str, str]]], options: argparse.Namespace) -> dict[str, Any]:
    plain = [" ".join(re.sub(r"[\x00-\x1f]", " ", text).split()) for _, text in texts["prose"][:1500]]
    plain = [text for text in plain if text]
    learned, unseen = plain[:1000], plain[1000:]
    began = time.process_time()
    model = language_model(learned, 5)
    training = time.process_time() - began
    megabytes = size_of(column(learned))
    console.print(
        f"[bold]perplexity[/bold]: order 5, {megabytes:.1f} MB, {sum(model.nodes.sizes):,} n-grams, "
        f"trained in {training:.1f} CPU s"
    )
    told: dict[str, Any] = {"training": training, "megabytes": megabytes}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ours.arpa"
        write_arpa(path, model.words, model.nodes)
        read = load_language_model(path)
        of_unseen = column(unseen)
        ids, ends = read.ids(of_unseen)
        each = np.zeros(len(ids), np.int32)
        sums = read.sum_logs(ids, ends, each) / ONE
        seconds = median_seconds(lambda: read.sum_logs(*read.ids(of_unseen)), options.rounds)
        told["scoring"] = size_of(of_unseen) / seconds
        console.print(f"  tokmill scores {told['scoring']:.1f} MB a CPU second of unseen text")
        if options.peers:
            answer = ask(options.peers, "kenlm", {"arpa": str(path), "lines": unseen})
            told["kenlm"] = size_of(of_unseen) / answer["seconds"]
            words = np.concatenate([np.array(one) for one in answer["words"]])
            told["word_difference"] = float(np.abs(each / ONE - words).max())
            told["mean_difference"] = float((np.abs(sums - np.array(answer["sums"])) / np.diff(ends)).max())
            console.print(
                f"  kenlm {answer['version']} scores {told['kenlm']:.1f}; log10 p of a word differs by up to "
                f"{told['word_difference']:.1e}, the mean of a text by {told['mean_difference']:.1e}"
            )
        if options.lmplz:
            told |= against_lmplz(model, learned, options.lmplz, Path(folder))
    return told


def language_model(texts: list[str], order: int) -> LanguageModel:
    of_texts = column(texts)
    words = make_vocabulary([count_words(of_texts)])
    return train_language_model(count_text_ngrams(of_texts, words, order), words)


def against_lmplz(model: LanguageModel, texts: list[str], lmplz: Path, folder: Path) -> dict[str, Any]:
    path = folder / "theirs.arpa"
    with path.open("wb") as file:
        subprocess.run(
            [lmplz, "-o", "5", "--discount_fallback", "-S", "1G", "-T", str(folder)],
            input="".join(f"{text}\n" for text in texts).encode(),
            stdout=file,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    theirs = spelled(load_language_model(path))
    ours = spelled(model)
    assert ours.keys() == theirs.keys()
    most = max(abs(ours[gram][side] - theirs[gram][side]) for gram in ours for side in (0, 1))
    console.print(
        f"  lmplz: the same {len(ours):,} n-grams, log10 p and backoffs differ by at most {most:.1e}"
    )
    return {"lmplz_difference": most}


def spelled(model: LanguageModel) -> dict[bytes, tuple[float, float]]:
    nodes, grams = model.nodes, list(model.words)
    for node in range(nodes.sizes[0], sum(nodes.sizes)):
        grams.append(model.words[nodes.words[node]] + b" " + grams[nodes.parents[node]])
    logs = zip((nodes.probabilities / ONE).tolist(), (nodes.backoffs / ONE).tolist(), strict=True)
    return dict(zip(grams, logs, strict=True))


# --- texts, peers and time ---


def load_texts(path: Path) -> list[tuple[str, str]]:
    with ZstdFile(path) as file:
        records = [json.loads(line) for line in file.read().split(b"\n") if line]
    return [(record["id"], record["text"]) for record in records]


def load_posts(folder: Path) -> list[Labelled]:
    """Questions and answers; markup taken out, titles in front."""
    posts = []
    for path in sorted(folder.glob("*/Posts.xml")):
        for row in ElementTree.parse(path).getroot():
            score, kind = int(row.attrib["Score"]), row.attrib.get("PostTypeId")
            if kind not in ("1", "2") or 0 < score < 3:
                continue
            body = html.unescape(re.sub(r"<[^>]+>", " ", row.attrib["Body"]))
            title = row.attrib.get("Title")
            text = f"{title}\n{body}" if title else body
            posts.append(Labelled(f"{path.parent.name}/{row.attrib['Id']}", text, int(score >= 3)))
    return posts


def shuffled(rows: list[Labelled]) -> list[Labelled]:
    return sorted(rows, key=lambda row: hashlib.sha256(row.id.encode()).digest())


def every_nth(rows: list[Any], count: int, first: int) -> list[Any]:
    return rows[first :: max(len(rows) // count, 1)][:count]


def column(texts: list[str]) -> StringColumn:
    return string_column(pa.array(texts, pa.large_string()))


def size_of(texts: StringColumn) -> float:
    """Megabytes."""
    return int(texts.offsets[-1] - texts.offsets[0]) / 1e6


def ask(python: Path, act: str, asked: dict[str, Any]) -> Any:
    done = subprocess.run(
        [python, str(REFERENCE), act], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{act}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def median_seconds(act: Any, rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        act()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
