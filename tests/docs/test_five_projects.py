"""What five projects asked for, typed as the page says:
recipes and single commands, against a hub on this machine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from docs.pages import REPOSITORY, missing_lines, read_blocks, reader_environment, run_blocks
from hub.loopback import LoopbackHub
from mill import SHARED
from recipes.published import publish
from tokmill.demos.stand_in import write_stand_in
from tokmill.loader import open_dataset

PAGE = REPOSITORY / "docs/coming-from/five-projects.md"
RANKS = [SHARED / f"data/tokenizers/tiktoken/{name}_base.tiktoken" for name in ("o200k", "r50k")]
HAS_RANKS = all(path.is_file() for path in RANKS)

pytestmark = [
    pytest.mark.slow_recipes,
    pytest.mark.skipif(
        not (importlib.util.find_spec("datasets") and importlib.util.find_spec("huggingface_hub")),
        reason="the extra `hub` is not installed",
    ),
]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which somebody has typed all of the page."""
    home = tmp_path_factory.mktemp("home")
    directory = tmp_path_factory.mktemp("projects")
    (directory / "tok").mkdir()
    for path in RANKS if HAS_RANKS else []:
        (directory / "tok" / path.name).symlink_to(path)
    blocks = read_blocks(PAGE)
    if not HAS_RANKS:  # what needs a published vocabulary
        blocks = [
            block for block in blocks if "o200k" not in block.code and "three-domains" not in block.code
        ]
    hub = LoopbackHub()
    write_stand_in(home / "stand-in")
    publish(hub, home / "stand-in")
    with hub.serving():
        environment = reader_environment(
            home,
            HF_ENDPOINT=hub.endpoint,
            HF_HOME=str(home / "hf-home"),
            HF_HUB_DISABLE_TELEMETRY="1",
            HF_HUB_DISABLE_XET="1",
        )
        told = run_blocks(blocks, directory, environment)
    for number, block in enumerate(blocks):
        if block.language == "text":
            printed = "".join(text for at, text in told.outputs.items() if at < number)
            assert missing_lines(block.code, printed) == [], block.where
    return directory


def test_every_sentence_of_the_page_can_be_typed(followed: Path) -> None:
    assert json.loads((followed / "mini/MANIFEST.meta.json").read_text())["k"] == 120


def test_the_pairs_of_a_sample_are_in_their_splits_to_the_last_token(followed: Path) -> None:
    """By the labels of the sample and SentencePiece itself."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(followed / "mini/tok/spm_400_unigram.model"))
    pairs = [json.loads(line) for line in (followed / "mini/manifest.jsonl").read_text().splitlines()]
    for split, size in (("train", 96), ("valid", 12), ("test", 12)):
        rows = open_dataset(followed / "mini/cache", split)
        found = sorted(bytes(np.asarray(rows[row]["ids"], np.int32)) for row in range(len(rows)))
        texts = [f"{p['src_text']}\n{p['tgt_text']}" for p in pairs if p["split"] in (split, split[:3])]
        ids = [[*model.encode(text), model.eos_id()] for text in texts]
        assert len(rows) == size
        assert found == sorted(bytes(np.asarray(row, np.int32)) for row in ids)


def test_bare_shards_have_the_rows_that_were_counted(followed: Path) -> None:
    (stats,) = [
        row for row in json.loads((followed / "shards.json").read_text())["stats"] if row["name"] == "fineweb"
    ]
    shapes = [np.load(path, mmap_mode="r").shape for path in sorted((followed / "bare").glob("*.npy"))]
    assert sum(rows for rows, _ in shapes) == stats["sequences"]
    assert {width for _, width in shapes} == {512}


def test_a_report_and_decisions_lie_beside_what_was_done(followed: Path) -> None:
    assert (followed / "steps/report.html").is_file()
    assert (followed / "demo/report.html").is_file()
    assert list((followed / "demo").rglob("decisions*.jsonl.zst"))
