"""Scores by a transformer: a sequence classifier as the hub lays it out, on CPU or GPU.

    texts ─ the first characters ─ tokenizer.json ─ cut to max_tokens ─ batches of equal length ─ model ─┐
                                    score <─ rounded <─ value, logit or probability of the output <──────┘

Floats hang on the device, the library and the batch. So these scores are computed in a step of their own and
stored; whoever comes after reads them (docs/decisions/0027). Within that step:

- The rows of a batch have the same number of tokens: there is no padding that could be seen.
- Batches are cut from the texts of one shard, sorted by length, then by row. On a CPU one thread computes.
- A score is rounded, to 1/10,000 with float32 and 1/100 with bfloat16: far above what a batch changes.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.errors import CorruptFile, InputError, MissingExtra, RecipeError
from tokmill.schema import StringColumn
from tokmill.scores import Piece, ScoreKind
from tokmill.scores.transformerfile import (
    CONFIG,
    TOKENIZER,
    load_object,
    model_files,
    most_tokens,
    output_names,
)

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["float32", "bfloat16"]

_DECIMALS = {"float32": 4, "bfloat16": 2}
# Of a text at most so many characters for each token that the model takes are tokenized: a text of 37 MB is
# cut to the 512 tokens that are looked at before it is split into ten million.
_CHARS_PER_TOKEN = 64
_TOKENIZED_AT_ONCE = 2048  # texts
# Of a batch: 12 layers of 768 want 100 MB for 8,192 on a CPU; a GPU is busy with 65,536
_BATCH_TOKENS = {"cpu": 8192, "cuda": 65536}
_NEXT = "pip install 'tokmill[transformer]'"


class TransformerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    names: list[str]  # of the files, in the order of their digests
    label: str | None = None
    output: Literal["probability", "logit"] = "probability"
    device: Device = "auto"
    precision: Precision = "float32"
    max_tokens: int = 512


class TransformerScorer:
    """The model is on the CPU until something is scored: whoever only checks it takes no GPU."""

    def __init__(
        self, model: Any, tokenizer: Any, config: Json, limits: Json, options: TransformerOptions
    ) -> None:
        self._model, self._tokenizer, self._options = model, tokenizer, options
        self._names, self._config = output_names(config), config
        self._output = self._number_of(options.label)
        self._max_tokens = min(options.max_tokens, most_tokens(config, limits) or options.max_tokens)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._max_tokens)
        self._device: str | None = None

    def score(self, texts: StringColumn) -> NDArray[np.float64]:
        return self.values(texts).round(_DECIMALS[self._options.precision]) + 0.0  # minus zero is zero

    def values(self, texts: StringColumn) -> NDArray[np.float64]:
        """Scores before they are rounded: their last bits hang on the batch."""
        import torch

        self._move()
        ids = self.tokens(texts)
        lengths = np.array([len(row) for row in ids], np.int64)
        order = np.argsort(lengths, kind="stable")
        with torch.inference_mode(), _threads(torch, 1 if self._device == "cpu" else None):
            logits = [self._logits([ids[row] for row in rows]) for rows in self._batches(order, lengths)]
            found = torch.cat(logits).cpu().numpy().astype(np.float64) if logits else np.zeros((0, 1))
        values = np.empty(len(ids))
        values[order] = self._chosen(found)
        return values

    def explain(self, text: str) -> list[Piece]:
        """A transformer tells no reasons."""
        return []

    def describe(self) -> Json:
        """On what it computes, once it has begun to."""
        import tokenizers
        import torch
        import transformers

        name = torch.cuda.get_device_name() if self._device == "cuda" else "cpu"
        versions = {module.__name__: str(module.__version__) for module in (tokenizers, torch, transformers)}
        return {"device": name, "precision": self._options.precision, **versions}

    def _number_of(self, label: str | None) -> int:
        names = self._names
        if label is None and len(names) == 1:
            return 0
        if label in names:
            return names.index(label)
        if label is not None and label.isdecimal() and int(label) < len(names):
            return int(label)
        told = "has more than one output" if label is None else f"has no label {label!r}"
        raise RecipeError(
            f"the model {told}", where="scores", next=f"`label`: one of {', '.join(names)}, or its number"
        )

    def _move(self) -> None:
        if self._device is not None:
            return
        import torch

        asked = self._options.device
        if asked == "cuda" and not torch.cuda.is_available():
            raise InputError(
                "`device: cuda`, and there is no GPU that torch can use",
                where="scores",
                next="run it where there is one, or set `device: auto`",
            )
        device = "cuda" if asked == "cuda" or (asked == "auto" and torch.cuda.is_available()) else "cpu"
        self._model.to(device, dtype=getattr(torch, self._options.precision))
        self._device = device

    def tokens(self, texts: StringColumn) -> list[Sequence[int]]:
        """The ids that the model is given, of each text."""
        ids: list[Sequence[int]] = []
        most = self._max_tokens * _CHARS_PER_TOKEN
        data, ends = texts.data, texts.offsets.tolist()
        for first in range(0, len(ends) - 1, _TOKENIZED_AT_ONCE):
            # a character has at most four bytes; one that is cut is left out
            some = [
                data[start : min(end, start + 4 * most)].tobytes().decode("utf-8", "ignore")[:most]
                for start, end in zip(
                    ends[first : first + _TOKENIZED_AT_ONCE],
                    ends[first + 1 : first + 1 + _TOKENIZED_AT_ONCE],
                    strict=False,
                )
            ]
            ids += [one.ids or self._nothing() for one in self._tokenizer.encode_batch(some)]
        return ids

    def _nothing(self) -> list[int]:
        """A text without a token, for a model that adds none: the token that begins or ends texts."""
        keys = ("bos_token_id", "cls_token_id", "eos_token_id", "pad_token_id")
        known = (self._config.get(key) for key in keys)
        return [next((one for one in known if isinstance(one, int)), 0)]

    def _batches(self, order: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[list[int]]:
        """Rows of equal length, in order."""
        assert self._device is not None
        starts = np.flatnonzero(np.diff(lengths[order], prepend=-1))
        for start, end in pairwise([*starts.tolist(), len(order)]):
            step = max(_BATCH_TOKENS[self._device] // int(lengths[order[start]]), 1)
            for first in range(start, end, step):
                yield order[first : min(first + step, end)].tolist()

    def _logits(self, ids: list[Sequence[int]]) -> Any:
        import torch

        rows = torch.tensor(ids, dtype=torch.int64).to(self._device, non_blocking=True)
        return self._model(input_ids=rows).logits.float()

    def _chosen(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """One output is a value, and has no probability."""
        own = logits[:, self._output] if len(logits) else np.zeros(0)
        if len(self._names) == 1 or self._options.output == "logit" or not len(logits):
            return own
        if self._config.get("problem_type") == "multi_label_classification":
            return 1 / (1 + np.exp(-own))
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares: NDArray[np.float64] = powers[:, self._output] / powers.sum(axis=1)
        return shares


def open_transformer(options: TransformerOptions, files: Sequence[Path]) -> TransformerScorer:
    try:
        import tokenizers
        import torch
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    except ImportError as error:
        missing = f"a score by a transformer needs torch and transformers ({error})"
        raise MissingExtra(missing, where="scores", next=_NEXT) from None
    paths = dict(zip(options.names, files, strict=True))
    where = str(paths[CONFIG].parent)
    config = load_object(paths[CONFIG])
    limits = load_object(paths["tokenizer_config.json"]) if "tokenizer_config.json" in paths else {}
    kind = config.get("model_type")
    if kind not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        raise InputError(
            f"transformers {transformers.__version__} has no sequence classifier of the kind {kind!r}, and "
            "code that comes with a model is not run",
            where=where,
            next="take a model of a kind that it knows, or score with a `hook` of yours",
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(paths[TOKENIZER]))
    except Exception as error:  # noqa: BLE001  (the package raises nothing more special)
        raise CorruptFile(
            f"is no tokenizer ({error})", where=str(paths[TOKENIZER]), next="fetch the model again"
        ) from None
    with _beside_each_other(paths) as directory, _quiet(transformers):
        try:
            model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                directory,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                low_cpu_mem_usage=False,
                output_loading_info=True,
            )
        except Exception as error:  # noqa: BLE001  (safetensors, torch and transformers raise what they like)
            told = " ".join(str(error).replace(directory, where).split())[:300]
            raise CorruptFile(
                f"the model cannot be opened ({type(error).__name__}: {told})",
                where=where,
                next="fetch it again, or check it with transformers",
            ) from None
    _check(model, report, where)
    if model.config.pad_token_id is None:
        # such models look for the last token that is no padding, and refuse more than one row without it
        model.config.pad_token_id = -1
    return TransformerScorer(model.eval(), tokenizer, config, limits, options)


def _check(model: Any, report: Json, where: str) -> None:
    """Every weight was in the files, and is a number."""
    missing = sorted(str(key) for key in [*report["missing_keys"], *report.get("mismatched_keys", [])])
    if missing:
        raise CorruptFile(
            f"its weights have no {missing[0]}, or of another shape ({len(missing)} such)",
            where=where,
            next="take a model that was trained to classify, with all its weights",
        )
    for name, weights in model.state_dict().items():
        if weights.is_floating_point() and not bool(weights.isfinite().all()):
            raise CorruptFile(
                f"its weights {name} hold NaN or infinity", where=where, next="fetch or train it again"
            )


@contextlib.contextmanager
def _beside_each_other(paths: dict[str, Path]) -> Iterator[str]:
    """A directory of the files, by their names: on a node they may lie anywhere."""
    with tempfile.TemporaryDirectory(prefix="tokmill-model-") as directory:
        for name, path in paths.items():
            (Path(directory) / name).symlink_to(path.resolve())
        yield directory


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No bars, and no advice: what is wrong with a model is told by `_check`."""
    logging = transformers.utils.logging
    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _threads(torch: Any, count: int | None) -> Iterator[None]:
    """Sums of floats hang on how many threads share them. More workers use more cores."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


TRANSFORMER = ScoreKind(
    "transformer", TransformerOptions, open_transformer, list_files=model_files, is_stored=True
)
