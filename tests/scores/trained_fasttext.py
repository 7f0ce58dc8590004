"""Classifiers of the fastText library, trained on the spot by a process of its own: it and fasttext-predict,
which the extra `language` brings, are modules of one name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from backports import zstd

from mill import SHARED

LIBRARY = Path(__file__).resolve().parents[2] / ".venv-fasttext"
DOMAINS = ("code", "math", "multilingual", "prose", "web")

needs_library = pytest.mark.skipif(
    not (LIBRARY / "fasttext").is_dir(), reason="needs the fastText library: make .venv-fasttext/.installed"
)


class Answers(NamedTuple):
    labels: list[str]
    scores: list[list[float]]  # of every text, label by label


@cache
def domain_texts(domain: str) -> list[str]:
    path = SHARED / "bench" / f"{domain}.jsonl.zst"
    with zstd.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def as_line(text: str) -> str:
    """As fastText takes a text: it cuts at line ends, and so does whoever trains it."""
    return text.replace("\n", " ")


def column(texts: list[str]) -> Any:
    return pa.array(texts, pa.large_string())


def write_training(
    path: Path, per_domain: int = 300, chars: int = 1000, domains: Any = DOMAINS, parts: int = 1
) -> Path:
    """`parts`: of each domain, so many labels."""
    lines = [
        f"__label__{domain}{index % parts or ''} {as_line(text[:chars])}"
        for index in range(per_domain)
        for domain in domains
        for text in [domain_texts(domain)[index]]
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path


def ask_library(
    directory: Path,
    model: Path,
    texts: list[str],
    train: Path | None = None,
    options: dict[str, Any] | None = None,
    quantize: dict[str, Any] | None = None,
) -> Answers:
    """What it makes of the texts; trained first, where there is something to train on."""
    lines, request, answers = (directory / f"{model.stem}.{name}" for name in ("lines", "json", "answers"))
    lines.write_text("".join(as_line(text) + "\n" for text in texts), encoding="utf-8", newline="\n")
    asked = {"model": str(model), "texts": str(lines), "answers": str(answers), "options": options or {}}
    asked |= {"train": str(train) if train else None, "quantize": quantize}
    request.write_text(json.dumps(asked))
    trainer = Path(__file__).parent / "fasttext_trainer.py"
    environment = {**os.environ, "PYTHONPATH": str(LIBRARY)}
    subprocess.run([sys.executable, str(trainer), str(request)], env=environment, check=True)
    return Answers(**json.loads(answers.read_text()))
