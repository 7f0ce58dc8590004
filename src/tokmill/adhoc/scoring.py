"""`score apply`: a model over the texts of files, without a recipe.

files ─ ingest, clean with one score and no rule, in a temporary directory ─ measures ─> {"doc_id": …,
                                                                          "source": …, "score": 0.93} in order

The same code as a run's, so the same numbers; nothing is dropped but what is empty, which has no score.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from tokmill.adhoc.reading import Files, files_source, one_source_recipe, told_without_recipe
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import Artifact, open_artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import shard_key
from tokmill.errors import RecipeError
from tokmill.pipeline.run import run
from tokmill.schema import SCORE, one_piece
from tokmill.storage.jsonl import write_jsonl_tables
from tokmill.storage.tables import load_table

_NAME = "asked"
_UNPREPARED: Json = {"prepare": "none", "lower": False, "first_words": None}


@short_repr
class Scored(NamedTuple):
    out: Path
    documents: int
    scored: int
    mean: float | None
    sha256: str  # of the model

    def as_json(self) -> Json:
        return {**self._asdict(), "out": str(self.out)}


def score_apply(
    files: Files,
    *,
    out: str | Path,
    fasttext: str | Path | None = None,
    linear: str | Path | None = None,
    importance: str | Path | None = None,
    perplexity: str | Path | None = None,
    label: str | None = None,
    prepare: Literal["none", "dclm", "fineweb"] = "none",
    lower: bool = False,
    first_words: int | None = None,
    window_words: int | None = None,
    aggregate: Literal["mean", "max", "min"] | None = None,
    text: str | None = None,
    replace: bool = False,
    workers: int | None = None,
) -> Scored:
    """The score of every document of `files` by one model: JSON lines, in their order."""
    target = Path(out)
    if target.exists() and not replace:
        raise RecipeError("is there already", where=str(out), next="give another name, or `--replace`")
    if aggregate is not None and window_words is None:
        raise RecipeError(
            "is of windows, and a text is scored as one piece",
            where="--aggregate",
            next="say how long a window is with `--window-words`, or leave it out",
        )
    if first_words is not None and window_words is not None:
        raise RecipeError(
            "would be of every window",
            where="--first-words",
            next="leave it out, or `--window-words`",
        )
    models = {"fasttext": fasttext, "linear": linear, "importance": importance, "perplexity": perplexity}
    preparing: Json = {"prepare": prepare, "lower": lower, "first_words": first_words}
    score: Json = {"name": _NAME, **_section(models, label, preparing)}
    if window_words is not None:
        score["windows"] = {"words": window_words, **({"aggregate": aggregate} if aggregate else {})}
    recipe = one_source_recipe(files_source(files, **({"text": text} if text else {})), scores=[score])
    with tempfile.TemporaryDirectory(prefix="tokmill-score-") as folder:
        with told_without_recipe():
            made = run(recipe, Path(folder) / "run", until="clean", workers=workers).out
        name = recipe.sources[0].name
        ingested, cleaned = (open_artifact(made / kind / name) for kind in ("ingest", "clean"))
        assert ingested is not None
        assert cleaned is not None
        counted: list[Any] = []
        write_jsonl_tables(target, _tables(ingested, cleaned, counted))
        (digest,) = {value for key, value in cleaned.manifest.inputs.items() if key.startswith("file score ")}
    values = pa.chunked_array(counted, pa.float64())
    scored = len(values) - values.null_count
    mean = sum(value for value in values.to_pylist() if value is not None) / scored if scored else None
    return Scored(target, len(values), scored, mean, digest)


def _section(models: dict[str, str | Path | None], label: str | None, preparing: Json) -> Json:
    """The one kind that is asked for; what belongs to another is refused."""
    asked = {kind: path for kind, path in models.items() if path is not None}
    if len(asked) != 1:
        raise RecipeError(
            f"names {len(asked)} models",
            where="the command line",
            next=f"give one of {', '.join(f'`--{kind}`' for kind in models)}",
        )
    ((kind, path),) = asked.items()
    section: Json = {"path": str(Path(path).resolve())}
    if label is None and kind == "fasttext":
        raise RecipeError("is missing", where="--label", next="say whose chance is the score")
    if label is not None:
        if kind not in ("fasttext", "linear"):
            raise RecipeError(f"is for classifiers, not for --{kind}", where="--label", next="leave it out")
        section["label"] = label
    if kind == "fasttext":
        return {kind: {**section, **{key: value for key, value in preparing.items() if value is not None}}}
    if preparing != _UNPREPARED:
        raise RecipeError(
            f"are for --fasttext, not for --{kind}",
            where="--prepare, --lower and --first-words",
            next="leave them out",
        )
    return {kind: section}


def _tables(ingested: Artifact, cleaned: Artifact, counted: list[Any]) -> Iterator[Any]:
    for entry in ingested.manifest.entries("documents"):
        documents = load_table(ingested.path(entry), ["doc_id", "source"])
        measures = load_table(cleaned.directory / f"measures-{shard_key(entry)}.parquet", [SCORE + _NAME])
        counted.append(one_piece(measures.column(0)).cast(pa.float64()))
        columns = {name: documents.column(name) for name in ("doc_id", "source")}
        yield pa.table({**columns, "score": counted[-1]})
