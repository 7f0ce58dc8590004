"""Recipes over all sections and options, drawn at random, with the files that they read.

    draw_case(rng)        a recipe that its models take, a neighbour with one option changed, and files
    options(recipe)       what it says: {"dedup.keep=best", "pack.length", …}, for the table of pairs
    NOT_DRAWN             options that no case has, with the reason

Keys that cannot stand together are taken out one by one, as the models of the recipe name them.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import tokmill
from random_recipes import corpora
from tokmill.recipe.keys import key_paths

Json = dict[str, Any]

NOT_DRAWN = {
    "sources.hub": "needs a hub: tests/hub has one on loopback",
    "sources.corpus": "needs a snapshot that another verb makes",
    "sources.pdf.max_seconds": "depends on the machine",
    "sources.stackexchange.max_expansion": "is for archives that are bombs",
    "sources.max_record_bytes": "its least value is far from these texts",
    "scores.transformer": "takes torch, and seconds",
    "scores.plugin": "needs an installed package",
    "scores.options": "is for `plugin`",
    "scores.device": "depends on the machine",
    "sources.extract.engine=trafilatura": "is no package of the tests",
    "tokenizer.train.sample_megabytes": "is far more than these texts",
}
KINDS = {
    "jsonl": 10,
    "json": 1,
    "csv": 1,
    "tsv": 1,
    "parquet": 2,
    "arrow": 1,
    "feather": 1,
    "txt": 2,
    "chat": 3,
    "parallel": 1,
    "wikipedia": 1,
    "stackexchange": 1,
    "warc": 1,
    "wet": 1,
    "mbox": 1,
    "directory": 1.5,
    "webdataset": 1,
    "reader": 1,
    "pdf": 0.2,
}
OF_RECORDS = ("jsonl", "json", "csv", "tsv", "parquet", "arrow", "feather")
MEASURES = {
    "chars": [1, 20, 200, 2000],
    "words": [1, 5, 60],
    "digit_share": ["0.1", "0.3"],
    "lines": [1, 4],
    "mean_word_length": [3, 9],
    "upper_share": ["0.2"],
    "dup_5gram_share": ["0.1"],
    "longest_line": [100, 4000],
    "symbol_share": ["0.05", "0.2"],
    "hooks.py:exclamations": [0, 1],
    "hooks.py:vowels": ["0.1", "0.3"],
    "stop_words": [1, 2],
    "top_2gram_share": ["0.2"],
}
PACKS = ["gopher-quality", "gopher-repetition", "c4", "fineweb", "stage-a", "web-en", "code"]
DETECTORS = [*["fasttext"] * 6, "py3langid", "langdetect"]  # the last takes 30 ms for a text
ROWS = ["memmap", "npy", "parquet", "arrow", "mds", "litdata", "olmo", "levanter"]
DOCUMENTED = ["parquet", "arrow", "mds", "litdata", "olmo", "levanter"]  # also of documents
DOCUMENTS = ["megatron", "nanogpt", "llmc", "nanotron", "token_cache"]


@dataclass
class Case:
    recipe: Json
    files: dict[str, list[corpora.Record]] = field(default_factory=dict)
    neighbour: Json = field(default_factory=dict)  # the recipe with one option changed
    seed: int = 0  # of what is done with it

    def write(self, directory: Path) -> Path:
        """The recipe and its files, and the neighbour as neighbour.yaml; returns the recipe's path."""
        content = {path: corpora.render(path, records) for path, records in self.files.items()}
        mentioned = json.dumps([self.recipe, self.neighbour])
        content |= {path: corpora.made(path) for path in corpora.made_files(mentioned)}
        content["neighbour.yaml"] = json.dumps(self.neighbour or self.recipe).encode()
        content["recipe.yaml"] = json.dumps(self.recipe, indent=1).encode()  # JSON is YAML
        for path, data in content.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(data)
        return directory / "recipe.yaml"

    def as_json(self) -> Json:
        return {"recipe": self.recipe, "neighbour": self.neighbour, "files": self.files, "seed": self.seed}


class Draw:
    """What one recipe is drawn with: sections know of each other what they must."""

    def __init__(self, rng: random.Random, wanted: frozenset[str] = frozenset(), most: int = 100) -> None:
        self.rng, self.wanted, self.most = (
            rng,
            wanted,
            most,
        )  # words of options that shall be there; documents of a source
        self.files: dict[str, list[corpora.Record]] = {}
        self.earlier: list[corpora.Record] = []
        self.sources: list[Json] = []
        self.scores: list[str] = []
        self.ranked: list[str] = []
        self.has_masks = self.has_dates = self.has_fim = False
        self.has_chat = False

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def some(self, share: float, **choices: Any) -> Json:
        """Each key with that chance; of a list one item, of a function what it returns."""
        return {key: self.one(choice) for key, choice in choices.items() if self.wants(key, share)}

    def wants(self, key: str, share: float) -> bool:
        return self.chance(share) or key in self.wanted

    def one(self, choice: Any) -> Any:
        if callable(choice):
            return choice()
        liked = [item for item in choice if str(item).lower() in self.wanted]
        return self.rng.choice(liked if liked and self.chance(0.8) else choice)

    def few(self, choices: list[Any], most: int = 2) -> list[Any]:
        return self.rng.sample(choices, min(self.rng.randint(1, most), len(choices)))

    @property
    def names(self) -> list[str]:
        return [source["name"] for source in self.sources]

    @property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(source.get("domain", "default") for source in self.sources))

    # --- sources ---

    def add_source(self, number: int) -> None:
        rng, name = self.rng, f"{self.rng.choice(['web', 'books', 'Code.2', 'talk-'])}{number}"
        liked = [kind for kind in KINDS if kind in self.wanted]
        kind = liked[0] if liked and self.chance(0.6) else rng.choices(list(KINDS), list(KINDS.values()))[0]
        place = rng.choice([name, name, f"a b/{name}", f"two\nlines {name}", f"é{name}"])
        count = min(self.most, rng.choice([3, 6, 12, 20, 40] if number else [5, 12, 25, 60, 100]))
        source: Json = {"name": name, "max_bad_fraction": rng.choice(["1"] * 8 + ["0.5", "0.01"])}
        source |= self.some(0.7, domain=["web", "web", "code", "math"]) | self.some(
            0.4, license=["MIT", "cc by-sa 4.0", "who knows"]
        )
        source |= getattr(self, f"_of_{kind}", lambda *_: self._of_records(kind, place, count, name))(
            place, count, name
        )
        source |= self.some(
            0.06,
            limit=self._limit,
            sample=self._sample,
            clean=self.cleaning,
            on_bad_record=["quarantine", "fail"],
        )
        if source.get("sample", {}).get("method") == "weighted":
            if kind not in OF_RECORDS:
                source["sample"] = {"method": "head", "k": 6}
            else:
                source.setdefault("fields", {}).setdefault("meta", []).append("weight")
        self.sources.append(source)

    def _documents(self, count: int, tag: str) -> list[corpora.Record]:
        return corpora.draw_documents(self.rng, count, tag, self.earlier)

    def _spread(self, place: str, ending: str, records: list[corpora.Record]) -> Any:
        """Into one file, or several that a pattern or a list finds."""
        parts = self.rng.choice([1, 1, 2, 3])
        paths = [f"{place}/part {number}{ending}" for number in range(parts)]
        for number, path in enumerate(paths):
            self.files[path] = records[number::parts]
        return self.rng.choice([f"{place}/*{ending}", paths, paths[0] if parts == 1 else paths])

    def _packed(self, ending: str) -> str:
        return ending + self.rng.choice(["", "", "", ".gz", ".zst", ".bz2", ".xz", ".lz4"])

    def _of_records(self, kind: str, place: str, count: int, name: str) -> Json:
        ending = f".{kind}" if kind in ("parquet", "arrow", "feather") else self._packed(f".{kind}")
        records = self._documents(count, name)
        known = {key for record in records if isinstance(record, dict) for key in record}
        meta = [key for key in ("url", "part", "quality", "robots", "lang") if key in known]
        fields = {"meta": meta} if meta and self.wants("fields", 0.8) else {}
        named = self.some(
            0.3, id=["id"], license=["license"], text=["text"], created_at=["created_at"], language=["lang"]
        )
        fields |= {key: value for key, value in named.items() if value in known}
        self.has_dates |= "created_at" in known
        where = {"part": "train"} if self.wants("where", 0.05) else {}
        template = (
            {"template": "Title: {weight}\n\n{text}"}
            if "text" not in fields and self.wants("template", 0.1)
            else {}
        )
        files = self._spread(place, ending, records)
        return {
            "files": files,
            **template,
            **({"fields": fields} if fields else {}),
            **({"where": where} if where else {}),
        }

    def _of_txt(self, place: str, count: int, name: str) -> Json:
        ending = self._packed(self.rng.choice([".txt", ".md"]))
        return {
            "files": self._spread(place, ending, self._documents(count, name)),
            **self.some(0.7, unit=["paragraph", "line", "document"]),
        }

    def _of_chat(self, place: str, count: int, name: str) -> Json:
        role, content = self.rng.choice([("role", "content"), ("from", "value")])
        records = corpora.draw_conversations(self.rng, count, name, role, content)
        chat = self.some(
            0.5, messages=["messages"], template=["chatml", "chat_template.jinja"], loss=["assistant", "all"]
        )
        chat |= self.some(0.15, roles=[{"bot": "assistant"}], tools=["tools"])
        if role == "from":
            chat["names"] = {"role": role, "content": content}
        self.has_masks |= chat.get("loss") != "all"
        self.has_chat = True
        fields = {"meta": ["quality"]} if self.chance(0.5) else {}
        return {"files": self._spread(place, self._packed(".jsonl"), records), "chat": chat, "fields": fields}

    def _of_parallel(self, place: str, count: int, name: str) -> Json:
        options = self.some(
            0.3, source_key=["src_text", "tgt_text"], target_key=["tgt_text"], separator=["\n", " ||| "]
        )
        options |= self.some(0.3, min_chars=[1, 5], max_chars=[50, 1000])
        files = self._spread(place, self._packed(".jsonl"), corpora.draw_pairs(self.rng, count, name))
        return {"files": files, "parallel": options, **({"fields": {"id": "id"}} if self.chance(0.6) else {})}

    def _of_wikipedia(self, place: str, count: int, name: str) -> Json:
        self.files[f"{place}/AA/wiki_00"] = self._documents(count, name)
        return {"files": f"{place}/**/wiki_*", "wikipedia": self.some(0.3, namespaces=[[0], [0, 4]])}

    def _of_stackexchange(self, place: str, count: int, name: str) -> Json:
        self.files[f"{place}/mill.stackexchange.com/Posts.xml"] = self._documents(count, name)
        options = self.some(
            0.4, answers=["accepted", "best", "all"], max_answers=[1, 3], min_answer_score=[-1, 1]
        )
        return {
            "files": f"{place}/*/Posts.xml",
            "stackexchange": {**options, **self.some(0.4, min_question_score=[-5, 1])},
        }

    def _of_warc(self, place: str, count: int, name: str, ending: str = ".warc") -> Json:
        ending += self.rng.choice(["", ".gz"])
        options = self.some(
            0.3, main_text=[True, False], truncated=["error", "quarantine"], license=["source", "page"]
        )
        extract = self.some(
            0.4, engine=["tokmill", "resiliparse"], markup=["text", "markdown"], links=[True], comments=[True]
        )
        own = {"files": self._spread(place, ending, self._documents(min(count, 20), name)), "warc": options}
        return {**own, **({"extract": extract} if self.wants("extract", 0.4) else {})}

    def _of_wet(self, place: str, count: int, name: str) -> Json:
        return self._of_warc(place, count, name, ".wet")

    def _of_pdf(self, place: str, count: int, name: str) -> Json:
        return {
            "files": self._spread(place, ".pdf", self._documents(4, name)),
            "pdf": self.some(0.5, unit=["document", "page"]),
        }

    def _of_mbox(self, place: str, count: int, name: str) -> Json:
        options = self.some(0.4, headers=[["subject"], ["subject", "from", "date"]])
        return {
            "files": self._spread(place, self._packed(".mbox"), self._documents(count, name)),
            "mbox": options,
        }

    def _of_directory(self, place: str, count: int, name: str) -> Json:
        for number, record in enumerate(self._documents(min(count, 25), name)):
            ending = self.rng.choice([".txt", ".md", ".py", ".html", ".log"])
            self.files[f"{place}/{self.rng.choice(['', 'src/', 'a b/'])}{number}{ending}"] = [record]
        self.files[f"{place}/.gitignore"] = ["*.log\n1*.py\n"]
        options = self.some(
            0.4, suffixes=[[".txt", ".py"], [".md", ".html", ".log"]], gitignore=[True, False]
        )
        return {
            "directory": {"path": place, **options},
            **({"extract": {"markup": "markdown"}} if self.wants("extract", 0.3) else {}),
        }

    def _of_webdataset(self, place: str, count: int, name: str) -> Json:
        options = self.some(0.4, text=["txt", "json.quality", "json.url"], meta=["json", None])
        return {
            "files": self._spread(place, self._packed(".tar"), self._documents(count, name)),
            "webdataset": options,
        }

    def _of_reader(self, place: str, count: int, name: str) -> Json:
        options = {"options": {"separator": "%%"}} if self.wants("options", 0.4) else {}
        return {
            "files": self._spread(place, ".box", self._documents(count, name)),
            "reader": "hooks.py:read_box",
            **options,
        }

    def _limit(self) -> Json:
        return self.some(0.6, docs=[3, 15], chars=[4000, 9000], tokens=[900, 2000], megabytes=[1]) or {
            "docs": 7
        }

    def _sample(self) -> Json:
        method = self.rng.choice(["reservoir", "weighted", "hash", "head", "shuffle_buffer"])
        own = {
            "hash": {"fraction": "0.5"},
            "weighted": {"k": 6, "weight": "weight"},
            "shuffle_buffer": {"k": 6, "buffer": 9},
        }
        found = {"method": method, **own.get(method, {"k": self.rng.choice([2, 9])})}
        return found | (
            {"distinct": True} if method in ("reservoir", "weighted") and self.chance(0.3) else {}
        )

    # --- cleaning ---

    def cleaning(self, share: float = 0.2) -> Json:
        return self.some(
            share,
            normalize=self._normalize,
            transforms=lambda: self.few(["hooks.py:without_marks", "hooks.py:short_lines"]),
            license=self._license,
            urls=self._urls,
            robots=self._robots,
            language=self._language,
            filters=lambda: [self._filter() for _ in range(self.rng.randint(1, 3))],
            redact=lambda: self.few(["email", "ip", "phone", "secret"], 4),
        )

    def _normalize(self) -> Json:
        options = self.some(
            0.5, unicode=["none", "NFC", "NFKC"], nul=["strip", "keep"], newlines=["keep", "lf"]
        )
        most = {"max_nul_fraction": ["1", "0.5", "0.001"], "max_nul_documents": ["1", "0.5"]}
        return {**options, **{key: self.rng.choice(shares) for key, shares in most.items()}}

    def _license(self) -> Json:
        policies = [["MIT", "Apache-2.0"], ["MIT", "Apache-2.0", "CC-BY-*", "CC-BY-SA-4.0"]]
        return {
            **self.some(0.5, allow=policies, deny=[["GPL-3.0"], ["cc by-sa 4.0"]]),
            "unknown": self.one(["keep", "keep", "drop", "quarantine"]),
        }

    def _urls(self) -> Json:
        block = self.some(
            0.5,
            domains=[["flour.example"], ["mill.example"]],
            words=[["casino"], ["*asin*"]],
            lists=[["lists/hosts.txt"]],
        )
        return {
            "block": block or {"words": ["casino"]},
            **self.some(0.3, unknown=["keep", "drop"], field=["url"]),
        }

    def _robots(self) -> Json:
        return {"drop": self.few(["noai", "noindex", "nofollow"]), **self.some(0.3, field=["robots"])}

    def _language(self) -> Json:
        method = self.one(["field", "detect", "detect", "none"])
        if method != "detect":
            return {"method": method, **self.some(0.4, keep=[["en", "fr"]])}
        bound = self.some(0.4, min_score=["0", "0.3", "0.65"]) or self.some(0.3, recall=["0.99"])
        return {
            **self.some(0.5, method=["detect"], keep=[["en"], ["en", "de", "th"]], detector=DETECTORS),
            **bound,
        }

    def _filter(self) -> Any:
        if self.wants("pack", 0.25):
            packs = [p for p in PACKS if p not in ("c4", "fineweb", "web-en") or not self.has_chat]
            pack = self.one([p for p in packs if p != "code" or "code" in self.domains])
            bounds = {"gopher-quality": {"min_words": 5}, "fineweb": {"max_short_line_share": "0.9"}}.get(
                pack
            )
            return {"pack": pack, "set": bounds} if bounds and self.chance(0.7) else pack
        if self.scores and self.chance(0.4):
            name = f"score.{self.one(self.scores)}"
            measure, bound = (name + ".percentile", 30) if self.ranked and self.chance(0.6) else (name, "0.1")
        else:
            measure = self.one(list(MEASURES))
            bound = self.one(MEASURES[measure])
        side = self.one(["min", "min", "max"] if bound != 2000 else ["max"])
        return {"measure": measure, side: bound, **self.some(0.4, reason=["not_wanted", "too_odd"])}

    # --- scores ---

    def add_score(self, number: int) -> Json:
        name, kind = (
            f"s{number}",
            self.one(["fasttext", "linear", "train", "train", "importance", "perplexity", "hook"]),
        )
        score: Json = {"name": name, kind: getattr(self, f"_by_{kind}")()}
        if kind != "hook" and self.wants("windows", 0.2):
            windows = {
                "words": self.one([10, 50]),
                **self.some(0.6, aggregate=["mean", "max", "min", "share_above"]),
            }
            score["windows"] = {
                **windows,
                **({"bound": "0.5"} if windows.get("aggregate") == "share_above" else {}),
            }
        if self.wants("percentile", 0.6) or "repeat" in self.wanted:
            score["percentile"] = self.one(["domain", "corpus", "corpus", "language"])
            self.ranked.append(name)
        self.scores.append(name)
        return score

    def _by_fasttext(self) -> Json:
        return {
            "path": "models/good.bin",
            "label": self.one(["good", "__label__bad"]),
            **self.some(
                0.3,
                prepare=["none", "dclm", "fineweb"],
                lower=[True],
                first_words=[5, 100],
                sha256=lambda: sha256("models/good.bin"),
            ),
        }

    def _by_linear(self) -> Json:
        pinned = self.some(0.2, sha256=lambda: sha256("models/linear.model"))
        return {
            "path": "models/linear.model",
            **self.some(0.3, label=["positive", "negative"], output=["probability", "margin"]),
            **pinned,
        }

    def _by_importance(self) -> Json:
        pinned = self.some(0.2, sha256=lambda: sha256("models/weights.model"))
        return {"path": "models/weights.model", **self.some(0.5, output=["sum", "mean"]), **pinned}

    def _by_perplexity(self) -> Json:
        pinned = self.some(0.2, sha256=lambda: sha256("models/language.model"))
        return {"path": "models/language.model", **self.some(0.5, output=["perplexity", "log10"]), **pinned}

    def _by_hook(self) -> str:
        return str(self.one(["hooks.py:exclamations", "hooks.py:vowels"]))

    def _by_train(self) -> Json:
        options = self.some(
            0.2,
            output=["margin", "probability"],
            words=[0, 1, 3],
            epochs=[1, 3],
            rate=["0.5", 4],
            min_docs=[1, 3],
        )
        options |= self.some(0.2, max_docs=[5], valid_fraction=["0", "0.3"], seed=[5]) | (
            {"min_chars": 2, "max_chars": 4} if self.wants("min_chars", 0.2) else {}
        )
        if self.wants("labels", 0.15):
            labels = [
                {"doc_id": f"{name}-{n}", "label": self.one(["yes", "no"]), **self.some(0.5, source=[name])}
                for name in self.names
                for n in range(20)
            ]
            self.files["labels.jsonl"] = [dict(record) for record in labels]
            return {"labels": "labels.jsonl", **self.some(0.5, label=["yes"]), **options}
        sides = ["positive", "negative"] if self.chance(0.5) else ["negative", "positive"]
        return {**{side: [self._examples(side)] for side in sides}, **options}

    def _examples(self, side: str) -> Json:
        low = side == "negative"
        if (self.wants("text", 0.2) and self.chance(0.5)) or self.chance(0.1):
            self.files[f"{side}.jsonl"] = [{"body": text_for(side, n)} for n in range(12)]
            return {"files": f"{side}.jsonl", "text": "body"}
        has_quality = "quality" in self.sources[0 if low else -1].get("fields", {}).get("meta", ())
        rules: list[Json] = [
            {"measure": "chars", **({"max": 299} if low else {"min": 300})},
            {"field": "quality", **({"min": 0, "max": 4} if low else {"min": 5, "max": 9})},
            {"field": "quality", "values": ["0", "1", "2"] if low else ["7", "8"]},
        ]
        return {
            "source": self.names[0 if low else -1],
            "where": self.one([rules[0], [rules[0]], [rules[1]], rules[2]] if has_quality else rules[:1]),
        }

    # --- copies, splits ---

    def _dedup(self) -> Json:
        options = self.some(
            0.25,
            exact=[False, True],
            scope=["global", "per-source"],
            keep=["first", "longest", "best", *["newest"] * self.has_dates],
            priority=lambda: self.few(self.names),
            reference=lambda: [self.names[0]],
            partitions=[1, 7],
        )
        options |= self.some(
            0.4, near=self._near, window=self._window, url=lambda: self.one([True, {"field": "url"}, {}])
        )
        options |= self.some(0.2, templates=self._templates, against=self._against)
        return options | self.some(
            0.05, max_cluster=[2, 50], max_source_loss=["0.9"], warn_source_loss=["0.1"]
        )

    def _near(self) -> Json:
        bands = {"bands": self.one([10, 20]), "rows": self.one([4, 5])} if self.wants("bands", 0.2) else {}
        options = self.some(
            0.3,
            threshold=["0.5", "0.7", "0.9"],
            unit=["word", "char"],
            ngram=[1, 3, 8],
            verify=["exact", "signature"],
        )
        return {**options, **bands, **self.some(0.25, policy=["drop", "report", "report"])}

    def _window(self) -> Json:
        return self.some(
            0.5,
            words=[5, 12, 30],
            winnow=[1, 8],
            policy=["report", "drop", "trim", "trim"],
            max_share=["0.2", "0.9"],
            min_words=[0, 5],
        )

    def _templates(self) -> Any:
        options = self.some(
            0.7,
            min_pages=[2, 3],
            min_share=["0.1", "0.5"],
            min_host_pages=[2, 4],
            max_chars=[20, 300],
            field=["url"],
        )
        return options if self.chance(0.8) else True

    def _against(self) -> Json:
        options = self.some(0.4, ngram=[5, 8], min_words=[3, 5], min_share=["0.2"], policy=["report", "drop"])
        return {
            "files": "benchmark.jsonl",
            "fields": self.one([["question"], ["question", "answer"]]),
            **options,
        }

    def _split(self) -> Json:
        has_parts = any("part" in source.get("fields", {}).get("meta", ()) for source in self.sources)
        method = self.one(["hash", "hash", "counts", "formula", "field"])
        split: Json = {"method": method, **self.some(0.2, by=["document", "cluster", "cluster"])}
        if method == "hash":
            split |= self.some(0.7, valid_fraction=["0", "0.1", "0.3"], test_fraction=["0.1", "0.2"])
        if method == "counts":
            split["counts"] = {"valid": self.one([1, 2]), **self.some(0.3, train=[3], test=[1])}
        if method == "formula":
            split |= self.some(0.5, test=[True])
        if method == "field":
            values = {"train": [self.names[0]], "valid": self.names[1:2] or ["none"]}
            own = (
                {"field": "source", "values": values}
                if self.chance(0.3) or not has_parts
                else {"field": "part"}
            )
            split |= {**own, "unknown": self.one(["drop", "drop", "train", "train", "fail"])}
            if own == {"field": "part"} and self.chance(0.4):
                split["values"] = {
                    "train": ["train", "other"],
                    "valid": ["dev"],
                    **self.some(0.5, test=[["test"]]),
                }
        return split

    # --- tokens ---

    def _tokenizer(self) -> Json:
        eos = "<|endoftext|>"
        path = self.one(
            ["models/bpe.json"] * 4
            + [
                "models/unigram.model",
                "models/pieces.model",
                "models/ranks.tiktoken",
                "tok/",
                "plugin",
                *["train"] * 3,
            ]
        )
        rest = self.some(0.1, padded_vocab_size=[1 << 17])
        if path == "train":
            symbols = [*corpora.SPECIAL[1:]]
            model = self.one(["byte_bpe", "byte_bpe", "unigram", "bpe"])
            train: Json = {
                "model": model,
                "vocab_size": self.one([300, 350] if model == "byte_bpe" else [700, 900]),
                **self.some(0.6, control_symbols=[symbols]),
            }
            train |= self.some(0.1, weights=lambda: self.one(["mixture", {self.names[0]: 1}]))
            train |= (
                self.some(0.3, min_frequency=[1, 3])
                if model == "byte_bpe"
                else {"hard_vocab_limit": False}
                | self.some(
                    0.2,
                    character_coverage=["0.98", "1"],
                    byte_fallback=[False, True],
                    user_symbols=[["mill"]],
                    split_digits=[True],
                    normalization=["identity", "nfkc", "nmt_nfkc", "nfkc_cf"],
                    add_dummy_prefix=[False],
                    max_piece_length=[4],
                    remove_extra_whitespaces=[True],
                    whitespace_pieces=[False],
                )
            )
            self.has_fim = "control_symbols" in train
            return {"train": train, "eos": eos, **self.some(0.1, bos=["<|im_start|>"]), **rest}
        if path == "plugin":
            return {
                "plugin": "hooks.py:Letters",
                "eos": self.one([eos, 256]),
                **self.some(0.3, options=[{"end": eos}]),
                **rest,
            }
        if path.endswith(".model"):
            return {"path": path, "eos": self.one(["</s>", 2]), **self.some(0.2, bos=["<s>", 1]), **rest}
        if path.endswith(".tiktoken"):
            return {"path": path, "eos": eos, "encoding": "cl100k_base", **rest}
        pinned = self.some(0.5, sha256=lambda: sha256(path)) if path != "tok/" else {}
        self.has_fim = True
        controls = [["<|endoftext|>"], ["<|im_end|>", "<fim_middle>"]]
        eos_at = {} if path == "tok/" and self.chance(0.6) else {"eos": self.one([eos, eos, 0])}
        return {
            "path": path,
            **eos_at,
            **pinned,
            **self.some(0.15, bos=["<|im_start|>", 1], control=controls),
            **rest,
        }

    def _fim(self) -> Json:
        return {
            "domains": self.few(self.domains),
            **self.some(0.4, rate=["0.2", "1"], spm=["0", "1"]),
            **self.some(
                0.1, prefix=["<fim_prefix>", "<fim_middle>"], middle=["<fim_middle>"], suffix=["<fim_suffix>"]
            ),
        }

    def _weights(self, names: list[str]) -> Json:
        return {
            name: self.one(["1", "0.5", "0.3", "0"] if n else ["1", "0.7"]) for n, name in enumerate(names)
        }

    def _of_sources(self) -> Json:
        domain = self.one(self.domains)
        return {
            domain: self._weights([s["name"] for s in self.sources if s.get("domain", "default") == domain])
        }

    def _mixture(self) -> Json:
        mixture = self.some(
            0.4,
            weights=lambda: self._weights(self.domains),
            sources=self._of_sources,
            order=["shuffle", "corpus"],
        )
        mixture |= self.some(
            0.2, normalize=[True], held_out=["mixed", "whole", "whole"], max_epochs=[1, 2, 10]
        )
        if self.wants("stages", 0.25):
            stages = [self._stage(number) for number in range(self.rng.randint(1, 3))]
            return {**mixture, "held_out": "whole", "batch_tokens": 1024, "stages": stages}
        if self.chance(0.7) or self.wanted & {"tokens", "blocks", "documents", "megabytes", "exhausted"}:
            targets = {"tokens": [100, 500, "2k"], "blocks": [2, 10], "documents": [2, 9], "megabytes": [1]}
            unit = self.one([*["tokens", "blocks", "documents"] * 3, "megabytes"])
            mixture |= {
                unit: self.one(targets[unit]),
                **self.some(0.6, exhausted=["stop", "renormalize", "renormalize", "repeat", "repeat"]),
            }
        if self.ranked and self.wants("repeat", 0.4):
            mixture["repeat"] = {
                "by": f"score.{self.one(self.ranked)}",
                "percentiles": self.one([{"50": 2, "0": 1}, {"80": 3, "20": 1, "0": 0}]),
            }
        elif self.scores and self.wants("select", 0.4):
            mixture["select"] = {"by": f"score.{self.one(self.scores)}", "tokens": self.one([300, 3000])}
        return mixture | self.some(0.08, balance=["smallest"])

    def _stage(self, number: int) -> Json:
        size = {"tokens": self.one([300, 2000])} if self.chance(0.6) else {"steps": self.one([1, 3])}
        stage = {
            "name": f"stage{number}",
            **size,
            **self.some(0.4, length=[16, 32, 128], weights=lambda: self._weights(self.domains)),
        }
        stage |= self.some(0.2, sources=self._of_sources, min_tokens=[5, 40], max_tokens=[200, 2000])
        if self.ranked and self.wants("where", 0.5):
            where = [
                {
                    "by": f"score.{self.one(self.ranked)}.percentile",
                    **(self.some(0.5, min=[10], max=[90]) or {"min": 20}),
                }
            ]
            stage["where"] = where
        return stage

    def _pack(self, indexed: bool = False) -> Json:
        layout = self.some(0.7, layout=["concat", "document", "best_fit", "pad", *["indexed"] * indexed])
        return {
            **layout,
            "length": self.one([16, 32, 64, 64, 256]),
            **self.some(0.25, tail=["drop", "pad"], mix_domains=[True, False]),
        }

    def _build(self, number: int) -> Json:
        name = f"{self.one(['rows', 'b', 'Data_'])}{number}"
        sources = self.some(0.15, sources=lambda: self.few(self.names))
        if self.wants("measures", 0.2):
            return {
                "name": name,
                "content": "text",
                "format": self.one(["jsonl", "parquet", "webdataset"]),
                **self.some(0.4, measures=[True]),
                **sources,
            }
        kinds = ROWS[:3] if self.has_masks else [*ROWS, *ROWS[:5], *DOCUMENTS]
        build: Json = {"name": name, "format": self.one(kinds), **sources}
        if build["format"] in ("arrow", "npy", "parquet"):
            build |= self.some(0.4, rows_per_shard=[4, 50])
        if build["format"] == "parquet":
            build |= self.some(0.4, columns=["ids", "huggingface", "huggingface_documents"])
        if build["format"] in ("memmap", "megatron", "llmc", "olmo", "nanotron"):
            build |= self.some(0.4, dtype=["int32", "uint16", "smallest"])
        return build | (
            self.some(0.3, pack=lambda: self._pack(build["format"] in DOCUMENTED))
            if build["format"] in ROWS
            else {}
        )

    def recipe(self) -> Json:
        for number in range(self.one([1, 1, 2, 2, 3, 4])):
            self.add_source(number)
        if len(self.sources) > 1 and self.chance(0.1):
            self.sources[0] |= {"fallback": self.names[-1], "limit": self._limit()}
        recipe: Json = {
            "name": "r",
            "sources": self.sources,
            **self.some(0.5, seed=[1, 2**62]),
            **self.some(0.5, shards=[{"megabytes": 1}]),
        }
        if self.wants("scores", 0.3) or self.wanted & {"repeat", "select"}:
            recipe["scores"] = [self.add_score(number) for number in range(self.rng.randint(1, 2))]
        recipe |= {"normalize": {"max_nul_fraction": "1"}, **self.cleaning()}
        recipe |= self.some(0.15, domains=lambda: {self.one(self.domains): self.cleaning(0.3)}) | self.some(
            0.1, clean=lambda: self.some(0.5, max_source_loss=["1", "1", "0.5"], warn_source_loss=["0.05"])
        )
        recipe |= self.some(0.8, dedup=self._dedup) | self.some(0.7, split=self._split)
        if self.chance(0.85) or self.wanted & {"tokenizer", "mixture", "fim"}:
            recipe["tokenizer"] = self._tokenizer()
            recipe |= self.some(0.45, mixture=self._mixture) | self.some(0.2 * self.has_fim, fim=self._fim)
        recipe |= {"pack": self._pack(self.chance(0.05))} | self.some(
            0.85, builds=lambda: [self._build(n) for n in range(self.rng.randint(1, 3))]
        )
        return recipe | self.some(
            0.1, review=lambda: self.some(0.6, model_params=["124M"], train_tokens=["10k"])
        )


def sha256(path: str) -> str:
    import hashlib

    return hashlib.sha256(corpora.made(path)).hexdigest()


def text_for(side: str, number: int) -> str:
    return f"{side} {corpora.prose(number + len(side), 2)}"


def draw_case(rng: random.Random, wanted: frozenset[str] = frozenset()) -> Case | None:
    """With options of which these are words, as far as they can be.
    None: nothing is left of the recipe when what contradicts itself is taken out."""
    draw = Draw(rng, wanted)
    recipe = repaired(draw.recipe())
    if recipe is None:
        return None
    other = Draw(rng)  # sections of another recipe over the same sources
    other.sources, other.scores, other.ranked = draw.sources, draw.scores, draw.ranked
    neighbour = repaired(change_one(copy.deepcopy(recipe), other)) or recipe
    return Case(recipe, draw.files | other.files, neighbour, rng.getrandbits(32))


def change_one(recipe: Json, draw: Draw) -> Json:
    """One option taken out, drawn again or put in."""
    makers: dict[str, Callable[[], Any]] = {
        "dedup": draw._dedup,
        "split": draw._split,
        "pack": draw._pack,
        "mixture": draw._mixture,
        "tokenizer": draw._tokenizer,
        "normalize": draw._normalize,
        "language": draw._language,
        "license": draw._license,
        "builds": lambda: [draw._build(n) for n in (0, 1)],
        "filters": lambda: [*recipe.get("filters", []), draw._filter()],
        "seed": lambda: 99,
        "redact": lambda: ["email"],
    }
    leaves = [(section, key) for section, keys in recipe.items() if isinstance(keys, dict) for key in keys]
    kind = draw.rng.random()
    if kind < 0.35 and leaves:
        section, key = draw.rng.choice(leaves)
        del recipe[section][key]
    elif kind < 0.5 and len(recipe["sources"]) > 1:
        del recipe["sources"][draw.rng.randrange(len(recipe["sources"]))]
    elif kind < 0.6 and recipe.get("builds"):
        recipe["builds"][0]["name"] += "x"
    else:
        section = draw.rng.choice(list(makers))
        made = makers[section]()
        if section in recipe and isinstance(made, dict) and made and draw.chance(0.6):
            key = draw.rng.choice(list(made))
            recipe[section] = {**recipe[section], key: made[key]}
        else:
            recipe[section] = made
    return recipe


def repaired(recipe: Json) -> Json | None:
    """Without what cannot stand with the rest; None where a source or the name would have to go."""
    for _ in range(60):
        try:
            tokmill.Recipe.model_validate(copy.deepcopy(recipe))
            return recipe
        except ValidationError as error:
            place = max((fault["loc"] for fault in error.errors(include_url=False)), key=len)
            if not _take_out(recipe, place):
                return None
    return None


def _take_out(recipe: Any, place: tuple[Any, ...]) -> bool:
    """The deepest of what is there on the way to `place`."""
    holders, at = [], recipe
    for part in place:
        if (isinstance(at, list) and isinstance(part, int) and part < len(at)) or (
            isinstance(at, dict) and part in at
        ):
            holders.append((at, part))
            at = at[part]
    if (
        not holders
        or (holders[-1][0] is recipe and holders[-1][1] in ("sources", "name"))
        or holders[-1][0] is recipe.get("sources")
    ):
        return False
    holder, part = holders[-1]
    del holder[part]
    return True


# --- options, and pairs of them ---


def options(recipe: Json) -> set[str]:
    return set(_options(recipe, ()))


def _options(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    name = ".".join(path)
    if isinstance(value, list) and path and any(isinstance(item, dict) for item in value):
        for item in value:
            yield from _options(item, path)
    elif isinstance(value, dict) and (not path or path in key_paths()) and not FREE.fullmatch(name):
        yield from [name] if path else []
        for key, item in value.items():
            if path == ("domains",):
                yield from _options(item, path)
            else:
                yield from _options(item, (*path, str(key)))
    elif isinstance(value, bool) or (isinstance(value, str) and ".".join(path) in NAMED):
        yield from (name, f"{name}={value}".lower())
    else:
        yield name


# Mappings whose keys are names of the user's own.
FREE = re.compile(
    r"mixture(\.stages)?\.(weights|sources)|tokenizer\.(train\.weights|options)|sources\.(where|options|chat\.roles)"
    r"|(.*\.)?filters\.set|mixture\.repeat\.percentiles"
)
# Options whose values are each an option of its own in the table of pairs.
NAMED_IN_WORDS = """
    builds.format builds.content builds.columns builds.dtype builds.pack.layout pack.layout pack.tail
    dedup.keep dedup.scope dedup.near.policy dedup.near.unit dedup.near.verify dedup.window.policy
    dedup.against.policy language.method language.detector license.unknown mixture.exhausted
    mixture.held_out mixture.balance mixture.order normalize.unicode normalize.nul scores.percentile
    scores.windows.aggregate sources.chat.loss sources.sample.method sources.unit split.method split.by
    split.unknown tokenizer.train.model urls.unknown tokenizer.path
"""
NAMED = frozenset(NAMED_IN_WORDS.split())


def drawable() -> set[str]:
    """Every option that a recipe can have, but for those that are not drawn."""
    names = {".".join(path) for path in key_paths()}
    return {
        name
        for name in names
        if not any(name == left_out or name.startswith(left_out + ".") for left_out in NOT_DRAWN)
    }
