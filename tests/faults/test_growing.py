"""A corpus that grows, shrinks and changes: after every edit the run is that of a fresh one, to the byte.

    edit ─ run ─┬─ killed, some of the time ─ run ─> manifests of every step
                └─ a fresh run of the same recipe ─> manifests of every step      equal, but for `environment`

After a takedown the fresh run has the list of what was taken down.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

import tokmill as mill
from forked import MAIN, fork_workers, start_forked
from mill import differences, steps_of
from tokmill.errors import InputError, TokmillError

QUICK, WHOLE, PARTS = 3, 320, 40
BESIDE = ".cache"

WORDS = [
    f"{part}{end}" for part in ("mil", "riv", "ston", "whe", "grai", "flo") for end in ("a", "el", "or", "un")
]


def text_of(number: int) -> str:
    """Families of five: a text, a copy, two near copies, and one that quotes a passage of it."""
    family, variant = divmod(number, 5)
    draw = random.Random(f"family {family}")
    words = [draw.choice(WORDS) + (f"{family}x{n}" if n % 7 == 0 else "") for n in range(90)]
    if variant in (2, 3):
        words[20 * variant] = f"other{number}"
    if variant == 4:
        own = random.Random(f"own {number}")
        words = [own.choice(WORDS) + str(n) for n in range(60)] + words[:40]
    return " ".join(words)


class Corpus:
    """Sources of files of records, a recipe, and the edits that somebody makes to them."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home, self.draw = home, random.Random(seed)
        self.sources: dict[str, dict[str, list[int]]] = {}
        self.named = 0
        self.forgotten = 0
        self.min_chars = {"web": 20, "books": 20}
        self.dedup = self._choose_dedup()
        self.split = self.draw.choice(
            [
                {"valid_fraction": "0.2"},
                {"method": "counts", "counts": {"valid": 3}},
                {"method": "hash", "valid_fraction": "0.2", "by": "cluster"},
            ]
        )
        self.lists_files = self.draw.choice([True, False])  # or names them by a pattern, in their order
        for _ in range(3):
            self.add_source()
        tokens = [bytes([byte]) for byte in range(256)] + [b"er", b"th", b" m", b"the"]
        lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
        (home / "ranks.tiktoken").write_bytes(lines)
        (home / "benchmark.jsonl").write_text(json.dumps({"text": text_of(7)[:200]}) + "\n")

    def _choose_dedup(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {
            "keep": self.draw.choice(["first", "longest", "newest", "best"]),
            "scope": self.draw.choice(["global", "global", "per-source"]),
            "near": {"threshold": "0.8"},
            "partitions": self.draw.choice([1, 3]),
        }
        window = self.draw.choice([None, "trim", "drop", "report"])
        if window:
            chosen["window"] = {"words": 12, "winnow": 4, "policy": window, "min_words": 5}
        if self.draw.random() < 0.3:
            chosen["url"] = {}
        if self.draw.random() < 0.3:
            chosen["against"] = {"files": ["benchmark.jsonl"], "ngram": 8}
        return chosen

    def _records(self, count: int) -> list[int]:
        return [self.draw.randrange(80) for _ in range(count)]

    # --- edits ---

    def add_source(self) -> None:
        self.named += 1
        files = {f"part-{n}.jsonl": self._records(6) for n in range(self.draw.choice([1, 2]))}
        place = self.draw.randrange(len(self.sources) + 1)
        named = list(self.sources.items())
        named.insert(place, (f"s{self.named}", files))
        self.sources = dict(named)

    def drop_source(self) -> None:
        if len(self.sources) > 2:
            del self.sources[self.draw.choice(list(self.sources))]

    def reorder(self) -> None:
        names = list(self.sources)
        self.draw.shuffle(names)
        self.sources = {name: self.sources[name] for name in names}

    def reorder_files(self) -> None:
        files = self._any_source()
        names = list(files)
        self.draw.shuffle(names)
        for name in names:
            files[name] = files.pop(name)

    def add_file(self) -> None:
        files = self._any_source()
        files[f"part-{self.draw.randrange(10)}.jsonl"] = self._records(5)

    def drop_file(self) -> None:
        files = self._any_source()
        if len(files) > 1:
            del files[self.draw.choice(list(files))]

    def change_record(self) -> None:
        records = self._any_file()
        records[self.draw.randrange(len(records))] = self.draw.randrange(80)

    def add_record(self) -> None:
        self._any_file().insert(0, self.draw.randrange(80))

    def remove_record(self) -> None:
        records = self._any_file()
        if len(records) > 2:
            records.pop(self.draw.randrange(len(records)))

    def move_rule(self) -> None:
        self.min_chars[self.draw.choice(list(self.min_chars))] = self.draw.choice([20, 520, 530, 560])

    def move_threshold(self) -> None:
        self.dedup["near"] = {"threshold": self.draw.choice(["0.7", "0.8", "0.95"])}

    def change_policy(self) -> None:
        self.dedup["keep"] = self.draw.choice(["first", "longest", "newest", "best"])

    def _any_source(self) -> dict[str, list[int]]:
        return self.sources[self.draw.choice(list(self.sources))]

    def _any_file(self) -> list[int]:
        files = self._any_source()
        return files[self.draw.choice(list(files))]

    # --- what the mill is given ---

    def write(self) -> Path:
        for name, files in self.sources.items():
            folder = self.home / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for file, numbers in files.items():
                lines = [json.dumps(record(n, name, place)) for place, n in enumerate(numbers)]
                (folder / file).write_text("\n".join(lines) + "\n")
        sources = [
            {
                "name": name,
                "domain": "books" if int(name[1:]) % 2 else "web",
                "files": [f"{name}/{file}" for file in files] if self.lists_files else f"{name}/*.jsonl",
                "fields": {"id": "id", "created_at": "date", "meta": ["url"]},
            }
            for name, files in self.sources.items()
        ]
        recipe = {
            "name": "grown",
            "seed": 7,
            "sources": sources,
            "domains": {
                domain: {"filters": [{"measure": "chars", "min": least, "reason": "too_short"}]}
                for domain, least in self.min_chars.items()
            },
            "dedup": self.dedup,
            "split": self.split,
            "tokenizer": {"path": "ranks.tiktoken", "encoding": "cl100k_base", "eos": "<|endoftext|>"},
            "pack": {"length": 64},
            "builds": [{"name": "rows", "format": "memmap"}],
        }
        path = self.home / "recipe.yaml"
        path.write_text(json.dumps(recipe, indent=1))  # JSON is YAML
        return path


def record(number: int, source: str, place: int) -> dict[str, Any]:
    month = 1 + number * 7 % 12
    url = f"https://example.org/{number % 40}"
    return {
        "id": f"{source}-{number}-{place}",
        "text": text_of(number),
        "date": f"2024-{month:02d}",
        "url": url,
    }


EDITS = {
    edit.__name__: edit
    for edit in (
        Corpus.add_source, Corpus.drop_source, Corpus.reorder, Corpus.reorder_files, Corpus.add_file,
        Corpus.drop_file, Corpus.change_record, Corpus.add_record, Corpus.remove_record, Corpus.move_rule,
        Corpus.move_threshold, Corpus.change_policy,
    )
}  # fmt: skip
# of the run that follows: killed and run again, without a cache, with one that is damaged, with two workers
MANNERS = ("plain", "plain", "killed", "lean", "damaged", "two workers")


class Edit(NamedTuple):
    what: str  # of EDITS, or "forget"
    manner: str  # of MANNERS


edits = st.lists(
    st.builds(Edit, st.sampled_from([*EDITS, "forget"]), st.sampled_from(MANNERS)), min_size=2, max_size=4
)
corpora = st.integers(0, 10**6)


def run_once(recipe: Path, out: Path, **options: Any) -> str:
    """How it ended."""
    try:
        mill.run(recipe, out, **{"workers": 1, **options})
    except TokmillError as error:
        return f"{type(error).__name__}: {error.what}"
    return "finished"


def run_killed(recipe: Path, out: Path, draw: random.Random) -> None:
    with Path(os.devnull).open("wb") as nowhere:
        arguments = ["run", str(recipe), "--out", str(out), "--workers", "1"]
        driver = start_forked([MAIN, *arguments], os.environ, Path.cwd(), nowhere.fileno(), nowhere.fileno())
    time.sleep(draw.uniform(0.02, 0.6))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def damage(cache: Path, draw: random.Random) -> None:
    """Some files are cut short, some have another byte, some are gone."""
    for path in sorted(path for path in cache.rglob("*") if path.is_file() and path.stat().st_nlink == 1):
        data = bytearray(path.read_bytes())
        how = draw.choice(["sound", "short", "flipped", "gone"])
        if how == "short":
            path.write_bytes(data[: draw.randrange(len(data))])
        elif how == "flipped":
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
        elif how == "gone":
            path.unlink()


def run_after(edit: Edit, recipe: Path, out: Path, draw: random.Random) -> str:
    if edit.manner == "killed":
        run_killed(recipe, out, draw)
    elif edit.manner == "damaged":
        damage(out.with_name(out.name + BESIDE), draw)
    elif edit.manner == "two workers":
        with fork_workers():
            return run_once(recipe, out, workers=2)
    return run_once(recipe, out, lean=edit.manner == "lean")


def forget_one(corpus: Corpus, out: Path) -> None:
    name = corpus.draw.choice(list(corpus.sources))
    file = corpus.draw.choice(list(corpus.sources[name]))
    place = corpus.draw.randrange(len(corpus.sources[name][file]))
    doc_id = record(corpus.sources[name][file][place], name, place)["id"]
    with contextlib.suppress(InputError):  # forgotten before, or the last of its domain
        mill.forget(out, doc_id=doc_id, source=name, base=corpus.home, workers=1)


def fresh_run(recipe: Path, out: Path, known: Path) -> str:
    """`known`: a run from which documents may have been taken down."""
    if (known / "forgotten.parquet").exists():
        out.mkdir()
        shutil.copy(known / "forgotten.parquet", out)
    return run_once(recipe, out, lean=True)


def follow(seed: int, chosen: list[Edit]) -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as folder:
        home = Path(folder)
        corpus, out = Corpus(home, seed), home / "out" / "grown"
        run_once(corpus.write(), out)
        for number, edit in enumerate(chosen):
            if edit.what == "forget":
                if (out / "manifest.json").exists():
                    forget_one(corpus, out)
            else:
                EDITS[edit.what](corpus)
            recipe = corpus.write()
            ended = run_after(edit, recipe, out, corpus.draw)
            fresh = home / "out" / f"fresh-{number}"
            assert fresh_run(recipe, fresh, out) == ended, (number, edit)
            if ended == "finished":
                assert differences(steps_of(fresh), steps_of(out)) == [], (number, edit)
                assert mill.verify(out).ok
            shutil.rmtree(fresh, ignore_errors=True)  # of a mistake in the recipe there is none


@settings(max_examples=QUICK, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(seed=corpora, chosen=edits)
def test_an_edited_run_is_a_fresh_one(seed: int, chosen: list[Edit]) -> None:
    follow(seed, chosen)


@pytest.mark.slow_faults
@pytest.mark.parametrize("part", range(PARTS))
def test_many_edited_runs_are_fresh_ones(part: int) -> None:
    @hypothesis.seed(part)
    @settings(max_examples=WHOLE // PARTS, deadline=None, database=None, phases=[Phase.generate])
    @given(seed=corpora, chosen=edits)
    def edited(seed: int, chosen: list[Edit]) -> None:
        follow(seed, chosen)

    edited()
