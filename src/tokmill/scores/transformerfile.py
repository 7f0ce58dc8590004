"""A sequence classifier in a directory, as the hub lays it out: which files it is, and what is refused.

    config.json         the kind of model, its sizes and the names of its outputs
    model.safetensors   the weights; or model.safetensors.index.json and the parts that it names
    tokenizer.json      text to ids, as `tokenizers` writes it
    tokenizer_config.json   if there: the most tokens that the model takes

    digest   sha256 of the lines "<sha256>  <name>\\n", by name: `sha256sum FILE … | sha256sum`

Nothing of the directory is run. Weights in pickle (`.bin`, `.pt`) are refused, and so is a kind of model that
the installed `transformers` does not know itself: its code would lie in the directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tokmill.errors import CorruptFile, InputError
from tokmill.storage.location import read_whole

CONFIG, WEIGHTS, INDEX, TOKENIZER = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
)
_LIMITS = "tokenizer_config.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# kinds whose positions begin after the number of the padding token
_SHIFTED = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "data2vec-text", "longformer", "mpnet")
_MAX_BYTES = 64 << 20  # of a description; the weights are not read here


def model_files(directory: Path) -> list[str]:
    """Names of the files that the model is, sorted; an error where one is missing."""
    if not directory.is_dir():
        raise InputError(
            "no such directory",
            where=str(directory),
            next="give a directory that holds config.json, weights as safetensors and tokenizer.json",
        )
    for name in (CONFIG, TOKENIZER):
        if not (directory / name).is_file():
            raise InputError(
                f"the model has no {name}",
                where=str(directory),
                next="take all files of the model from the hub"
                if name == CONFIG
                else "save it with a fast tokenizer of transformers, which writes that file",
            )
    limits = [_LIMITS] if (directory / _LIMITS).is_file() else []
    return sorted([CONFIG, TOKENIZER, *limits, *_weight_files(directory)])


def _weight_files(directory: Path) -> list[str]:
    if (directory / WEIGHTS).is_file():
        return [WEIGHTS]
    if (directory / INDEX).is_file():
        parts = load_object(directory / INDEX).get("weight_map")
        names = sorted(set(parts.values())) if isinstance(parts, dict) else []
        if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
            raise CorruptFile(
                "names no files of weights", where=str(directory / INDEX), next="fetch the model again"
            )
        for name in names:
            if not (directory / name).is_file():
                raise InputError(
                    f"a part of the model, {name}, is missing", where=str(directory), next="fetch it"
                )
        return [INDEX, *names]
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        raise InputError(
            f"the weights are in {pickles[0]}, a pickle, which can run code when it is read: it is not",
            where=str(directory),
            next="load it where you trust it, and save it as safetensors",
        )
    raise InputError("the model has no model.safetensors", where=str(directory), next="fetch its weights")


def model_digest(names: Sequence[str], digests: Sequence[str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(zip(names, digests, strict=True)))
    return hashlib.sha256(lines.encode()).hexdigest()


def load_object(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = msgspec.json.decode(read_whole(path, _MAX_BYTES), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise CorruptFile(
            f"is no JSON object ({error})", where=str(path), next="fetch the model again"
        ) from None
    return found


def most_tokens(config: dict[str, Any], limits: dict[str, Any]) -> int | None:
    """That the model takes at once; None where it does not say."""
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and str(config.get("model_type")) in _SHIFTED:
        positions -= int(config.get("pad_token_id") or 0) + 1  # where its positions begin
    told = [positions, limits.get("model_max_length")]
    known = [int(one) for one in told if isinstance(one, int | float) and 0 < one < 1 << 24]
    return min(known, default=None)


def output_names(config: dict[str, Any]) -> list[str]:
    """Of the outputs, in order; one without a name has its number."""
    named = config.get("id2label")
    if isinstance(named, dict) and named:
        known = {str(key): str(value) for key, value in named.items()}
        return [known.get(str(number), str(number)) for number in range(len(known))]
    count = config.get("num_labels")
    return [f"LABEL_{number}" for number in range(count if isinstance(count, int) and count > 0 else 2)]
