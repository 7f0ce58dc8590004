"""Scores by a transformer: a sequence classifier as the hub lays it out, on CPU or GPU.

    texts ─ the first characters ─ tokenizer.json ─ cut to max_tokens ─ batches by length ─ model ───────┐
                                    score <─ rounded <─ value, logit or probability of the output <──────┘

Floats hang on the device, the library and the batch. So these scores are computed in a step of their own and
stored; whoever comes after reads them (docs/decisions/0027). Within that step:

- Batches are cut from the texts of one shard, sorted by length, then by row. On a CPU one thread computes.
- The rows of a batch have the same number of tokens: there is no padding that could be seen. A GPU wants few
  and large batches, so encoders, which know a mask, get there rows that are padded to the next 32 tokens.
- A score is rounded: to 1/10,000 with float32, far above what a batch changes, and to 1/100 with bfloat16, of
  which that is one step.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.errors import CorruptFile, InputError, MissingExtra, RecipeError, install_hint
from tokmill.schema import StringColumn
from tokmill.scores import Piece, ScoreKind
from tokmill.scores.device import Device, choose_device, device_name
from tokmill.scores.transformerfile import (
    CONFIG,
    TOKENIZER,
    load_object,
    model_files,
    most_tokens,
    output_names,
)

Precision = Literal["float32", "bfloat16"]

_DECIMALS = {"float32": 4, "bfloat16": 2}
# Of a text at most so many characters for each token that the model takes are tokenized: a text of 37 MB is
# cut to the 512 tokens that are looked at before it is split into ten million. Most texts show in the first
# piece that they have more tokens than are looked at, by more than a word could change.
_CHARS_PER_TOKEN = (8, 64)
_ENOUGH = 32  # tokens beyond those that are looked at
_TOKENIZED_AT_ONCE = 2048  # texts
_NEXT = install_hint("transformer")


@dataclass(frozen=True)
class Batching:
    """How texts are put together for a device."""

    tokens: int  # of a batch
    step: int  # rows of an encoder are padded to a multiple of it
    group: int | None  # texts that are computed while the next are tokenized; None: all are sorted together


# 12 layers of 768 want 100 MB for 8,192 tokens on a CPU; a GPU is busy with 65,536
BATCHING = {"cpu": Batching(8192, 1, None), "cuda": Batching(65536, 32, 1024)}


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
        self,
        model: Any,
        tokenizer: Any,
        config: Json,
        limits: Json,
        options: TransformerOptions,
        padding: int | None,
    ) -> None:
        self._model, self._tokenizer, self._options = model, tokenizer, options
        self._names, self._config = output_names(config), config
        self._output = self._number_of(options.label)
        self._max_tokens = min(options.max_tokens, most_tokens(config, limits) or options.max_tokens)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._max_tokens)
        self._padding: int | None = padding
        self._device: str | None = None

    def score(self, texts: StringColumn) -> NDArray[np.float64]:
        return self.values(texts).round(_DECIMALS[self._options.precision]) + 0.0  # minus zero is zero

    def values(self, texts: StringColumn) -> NDArray[np.float64]:
        """Scores before they are rounded: their last bits hang on the batch."""
        import torch

        self._move()
        count = len(texts.offsets) - 1
        size = self._batching.group or max(count, 1)
        groups = [(first, min(first + size, count)) for first in range(0, count, size)]
        rows, found = [], []
        with torch.inference_mode(), _threads(torch, 1 if self._device == "cpu" else None):
            for (first, _), ids in zip(groups, self._tokens_ahead(texts, groups), strict=True):
                lengths = np.array([len(row) for row in ids], np.int64)
                for batch in self._batches(lengths):
                    rows.append(first + batch)
                    found.append(self._logits([ids[row] for row in batch.tolist()]))
            logits = torch.cat(found).cpu().numpy().astype(np.float64) if found else np.zeros((0, 1))
        values = np.empty(count)
        values[np.concatenate([*rows, np.zeros(0, np.int64)])] = self._chosen(logits)
        return values

    def explain(self, text: str) -> list[Piece]:
        """A transformer tells no reasons."""
        return []

    def describe(self) -> Json:
        """On what it computes, once it has begun to."""
        import tokenizers
        import torch
        import transformers

        versions = {module.__name__: str(module.__version__) for module in (tokenizers, torch, transformers)}
        return {
            "device": device_name(self._device or "cpu"),
            "precision": self._options.precision,
            **versions,
        }

    @property
    def _batching(self) -> Batching:
        assert self._device is not None, "the model was not moved to a device"
        return BATCHING[self._device]

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

        device = choose_device(self._options.device)
        self._model.to(device, dtype=getattr(torch, self._options.precision))
        self._device = device

    def tokens(self, texts: StringColumn, first: int = 0, stop: int | None = None) -> list[Sequence[int]]:
        """The ids that the model is given, of each text, or of those from `first` to `stop`."""
        ids: list[Sequence[int]] = []
        stop = len(texts.offsets) - 1 if stop is None else stop
        for start in range(first, stop, _TOKENIZED_AT_ONCE):
            numbers = range(start, min(start + _TOKENIZED_AT_ONCE, stop))
            few, many = (self._max_tokens * chars for chars in _CHARS_PER_TOKEN)
            encoded = dict(zip(numbers, self._encode(texts, numbers, few), strict=True))
            again = [row for row in numbers if _is_cut(texts, row, few) and not _is_enough(encoded[row])]
            encoded.update(zip(again, self._encode(texts, again, many), strict=True))
            ids += [encoded[row].ids or self._nothing() for row in numbers]
        return ids

    def _encode(self, texts: StringColumn, rows: Sequence[int], chars: int) -> list[Any]:
        """Of the first characters of texts. One has at most four bytes; one that is cut is left out."""
        starts, ends = texts.offsets[:-1], texts.offsets[1:]
        some = [
            texts.data[starts[row] : min(ends[row], starts[row] + 4 * chars)]
            .tobytes()
            .decode("utf-8", "ignore")[:chars]
            for row in rows
        ]
        return list(self._tokenizer.encode_batch(some)) if some else []

    def _tokens_ahead(
        self, texts: StringColumn, groups: Sequence[tuple[int, int]]
    ) -> Iterator[list[Sequence[int]]]:
        """Of each group, the next being tokenized while the last is computed."""
        with ThreadPoolExecutor(1) as ahead:
            pending = [ahead.submit(self.tokens, texts, *group) for group in groups[:1]]
            for group in [*groups[1:], None]:
                if not pending:
                    return
                ids = pending.pop().result()
                if group is not None:
                    pending.append(ahead.submit(self.tokens, texts, *group))
                yield ids

    def _nothing(self) -> list[int]:
        """A text without a token, for a model that adds none: the token that begins or ends texts."""
        keys = ("bos_token_id", "cls_token_id", "eos_token_id", "pad_token_id")
        known = (self._config.get(key) for key in keys)
        return [next((one for one in known if isinstance(one, int)), 0)]

    def _batches(self, lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Rows of equal length, once they are padded; in order."""
        step = self._batching.step if self._padding is not None else 1
        order = np.argsort(lengths, kind="stable")
        padded = -(-lengths[order] // step) * step
        starts = np.flatnonzero(np.diff(padded, prepend=-1))
        for start, end in pairwise([*starts.tolist(), len(order)]):
            size = max(self._batching.tokens // int(padded[start]), 1)
            for first in range(start, end, size):
                yield order[first : min(first + size, end)]

    def _logits(self, ids: list[Sequence[int]]) -> Any:
        import torch

        longest = max(len(row) for row in ids)
        if all(len(row) == longest for row in ids):
            rows = torch.tensor(ids, dtype=torch.int64).to(self._device, non_blocking=True)
            return self._model(input_ids=rows).logits.float()
        width = min(-(-longest // self._batching.step) * self._batching.step, self._max_tokens)
        padded = np.full((len(ids), width), self._padding, np.int64)
        for row, own in zip(padded, ids, strict=True):
            row[: len(own)] = own
        is_text = np.arange(width) < np.array([[len(own)] for own in ids])
        rows = torch.from_numpy(padded).to(self._device, non_blocking=True)
        mask = torch.from_numpy(is_text.astype(np.int64)).to(self._device, non_blocking=True)
        return self._model(input_ids=rows, attention_mask=mask).logits.float()

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
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_MASKED_LM_MAPPING_NAMES,
            MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        )
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
    padding = model.config.pad_token_id
    if padding is None:
        # such models look for the last token that is no padding, and refuse more than one row without it
        model.config.pad_token_id = -1
    is_encoder = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not model.config.is_encoder_decoder
    return TransformerScorer(
        model.eval(), tokenizer, config, limits, options, padding if is_encoder else None
    )


def _is_cut(texts: StringColumn, row: int, chars: int) -> bool:
    """A text of so many bytes may have more characters than these."""
    return bool(texts.offsets[row + 1] - texts.offsets[row] > chars)


def _is_enough(encoded: Any) -> bool:
    """There are more tokens than are looked at, so many that the word that was cut is not among them."""
    return sum(len(beyond) for beyond in encoded.overflowing) >= _ENOUGH


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
