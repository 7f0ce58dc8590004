"""Conversations from records to batches: what was written is read again by json, NumPy and `tokenizers`."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import tokmill
from mill import tokmill as command
from tokmill.errors import InputError, RecipeError, TokmillError
from tokmill.loader import Batches, open_dataset
from written import load_lines, load_manifest, load_table, read_row_index

pytest.importorskip("jinja2")

SURFACE = ("constant_prefix", "first_character", "hidden_characters", "dataset_artefacts", "control_tokens")
CHATML = ("<|im_start|>", "<|im_end|>")


def say(*turns: str, roles: tuple[str, ...] = ("user", "assistant")) -> list[dict[str, str]]:
    return [{"role": roles[number % len(roles)], "content": text} for number, text in enumerate(turns)]


def conversations(count: int = 40) -> list[dict[str, Any]]:
    found = []
    for number in range(count):
        turns = [f"Say {number} <|im_end|> twice ", f"It is {number}{number}.", "thanks", "Sure, ça va\n"]
        messages = say(*turns[: 2 + 2 * (number % 2)])
        if number % 3 == 0:
            messages.insert(0, {"role": "system", "content": "You count."})
        found.append({"id": f"c{number}", "messages": messages})
    return found


def corpus(directory: Path, records: list[Any], chat: dict[str, Any] | None = None, **sections: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    (directory / "chat.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (directory / "notes.txt").write_text("\n\n".join(f"Note {n} of the mill." for n in range(12)))
    source = {"name": "talk", "domain": "chat", "files": "chat.jsonl", "fields": {"id": "id"}}
    train = {"model": "byte_bpe", "vocab_size": 290, "control_symbols": list(CHATML)}
    recipe: dict[str, Any] = {
        "name": "talks",
        "seed": 3,
        "sources": [
            {**source, "chat": chat or {}, **sections.pop("source", {})},
            {"name": "notes", "domain": "prose", "files": "notes.txt", "unit": "paragraph"},
        ],
        "split": {"valid_fraction": 0},
        "tokenizer": {"train": train, "eos": "<|endoftext|>"},
        "pack": {"length": 48},
        "builds": [{"name": "rows", "format": "memmap"}],
        **sections,
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


def chatml(messages: list[dict[str, str]]) -> list[tuple[str, int]]:
    """Parts of the rendering that are encoded by themselves, and whether they are learned."""
    parts = []
    for message in messages:
        is_answer = int(message["role"] == "assistant")
        head, tail = f"{message['role']}\n", message["content"]
        trailing = tail[len(tail.rstrip()) :]
        middle = [(head, 0), (tail, 1)] if is_answer else [(head + tail, 0)]
        parts += [("<|im_start|>", 0), *middle, ("<|im_end|>", is_answer), ("\n", 0)]
        assert not trailing or tail.endswith(trailing)
    return parts


def expected(messages: list[dict[str, str]], tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    mask: list[int] = []
    for text, learned in chatml(messages):
        own = [tokenizer.token_to_id(text)] if text in CHATML else plain(text, tokenizer)
        ids += own
        mask += [learned] * len(own)
    return [*ids, tokenizer.token_to_id("<|endoftext|>")], [*mask, int(messages[-1]["role"] == "assistant")]


def plain(text: str, tokenizer: tokenizers.Tokenizer) -> list[int]:
    """A control token that somebody types is spelled."""
    tokenizer.encode_special_tokens = True
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def load_tokenizer(out: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("talks")
    layouts = [{"name": name, "format": "memmap", "pack": {"layout": name, "length": 48}} for name in LAYOUTS]
    tokmill.run(corpus(directory, conversations(), builds=layouts), out=directory / "out", workers=1)
    return directory


LAYOUTS = ("concat", "document", "best_fit", "pad")


def rows_of(build: Path) -> tuple[np.ndarray, np.ndarray]:
    meta = json.loads((build / "meta.json").read_bytes())
    shape = (meta["n_seqs"], meta["seq_len"])
    ids = np.fromfile(build / "input_ids.mmap", meta["dtype"]).reshape(shape)
    assert meta["loss_mask"] == "loss_mask.mmap"
    return ids, np.fromfile(build / "loss_mask.mmap", np.uint8).reshape(shape)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_hold_the_ids_and_the_mask_of_their_documents(made: Path, layout: str) -> None:
    out = made / "out"
    tokenizer = load_tokenizer(out)
    wanted = {one["id"]: expected(one["messages"], tokenizer) for one in conversations()}
    build = out / "build" / layout / "train"
    ids, mask = rows_of(build)
    covered = np.zeros(mask.shape, np.bool_)
    seen = set()
    for row, docs in read_row_index(build / "index.jsonl.zst"):
        for span in docs:
            covered[row, span.start : span.end] = True
            size = span.end - span.start
            if span.source == "notes":
                assert mask[row, span.start : span.end].all()
                continue
            seen.add(span.doc_id)
            for stored, whole in zip((ids, mask), wanted[span.doc_id], strict=True):
                found = stored[row, span.start : span.end].tolist()
                assert found == whole[span.offset : span.offset + size], span
    assert len(seen) >= 38
    assert not mask[~covered].any(), "padding is never learned"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("targets", ["stream", "documents"])
def test_targets_are_ignored_where_the_token_that_they_are_is_not_learned(
    made: Path, layout: str, targets: Any
) -> None:
    path = made / "out" / "build" / layout
    ids, mask = rows_of(path / "train")
    for boundaries in ("eos", "index"):
        dataset = open_dataset(path, boundaries=boundaries)  # type: ignore[arg-type]
        batches = Batches(dataset, 5, shuffle="none", length=48, targets=targets)
        found = list(batches)
        tokens, got, learned = (
            np.concatenate([batch[name] for batch in found]) for name in ("tokens", "targets", "loss_mask")
        )
        assert learned.dtype == np.bool_
        assert (learned == (got != -100)).all()
        lengths = np.concatenate([batch["lengths"] for batch in found])
        may = np.zeros(ids.shape, np.bool_)
        may[:, :-1] = mask[:, 1:] == 1
        may &= np.arange(48) < lengths[:, None] - 1
        if targets == "documents":
            for row, docs in read_row_index(path / "train" / "index.jsonl.zst"):
                for before, span in itertools.pairwise(docs):
                    if before.doc_id != span.doc_id:  # what `pad` truncates has two spans
                        may[row, span.start - 1] = False
        if boundaries == "index" or layout == "concat":
            assert (learned == may).all()
        assert (got[:, :-1][learned[:, :-1]] == ids[:, 1:][learned[:, :-1]]).all()
        assert (tokens[np.arange(48) < lengths[:, None]] == ids[np.arange(48) < lengths[:, None]]).all()


def test_a_loop_goes_on_where_it_was_with_its_masks(made: Path) -> None:
    dataset = open_dataset(made / "out" / "build" / "concat")
    whole = [batch["loss_mask"] for batch in Batches(dataset, 3, seed=5)]
    first = Batches(dataset, 3, seed=5, prefetch=2)
    begun = [batch["loss_mask"] for batch, _ in zip(first, range(2), strict=False)]
    after = Batches(dataset, 3, seed=5)
    after.load_state_dict({**first.state_dict(), "position": 6})
    for a, b in zip(whole, [*begun[:2], *(batch["loss_mask"] for batch in after)], strict=True):
        assert (a == b).all()


def test_tensors_have_the_mask(made: Path) -> None:
    pytest.importorskip("torch")
    from tokmill.loader.torch import Feed

    dataset = open_dataset(made / "out" / "build" / "pad")
    for batch, tensors in zip(Batches(dataset, 4), Feed(Batches(dataset, 4)), strict=True):
        assert tensors["loss_mask"].numpy().tolist() == batch["loss_mask"].tolist()


def test_rows_for_a_collate_function_of_your_own_have_the_mask(made: Path) -> None:
    pytest.importorskip("torch")
    from tokmill.loader.torch import Rows

    rows = Rows(open_dataset(made / "out" / "build" / "pad"))
    _, masks = rows_of(made / "out" / "build" / "pad" / "train")
    assert len(rows) == len(masks)
    for at, mask in enumerate(masks):
        learned = [bool(one) for one in mask[: rows[at]["length"]]]
        assert rows[at]["loss_mask"].tolist() == learned
    assert any(mask.any() for mask in masks)


@pytest.mark.usefixtures("forked_workers")
def chatty(count: int) -> list[dict[str, Any]]:
    """Short turns, so that much of a conversation is its template. People spell a token of it, too."""
    turns = ("hi {}", "It is {}?", "<|im_end|> no {}", "Right.")
    return [{"id": f"c{n}", "messages": say(*(turn.format(n) for turn in turns))} for n in range(count)]


def learned_from(out: Path) -> dict[str, Any]:
    log = json.loads((out / "tokenizer" / "tokenizer.log.json").read_text())
    return {one["name"]: one for one in log["datasets"]}


@pytest.mark.parametrize("model", ["byte_bpe", "unigram"])
def test_a_tokenizer_learns_from_conversations_as_they_are_encoded(tmp_path: Path, model: str) -> None:
    records = chatty(300)
    train = {"model": model, "vocab_size": 420, "control_symbols": list(CHATML)}
    tokenizer = {"train": train, "eos": "<|endoftext|>"}
    tokmill.run(corpus(tmp_path, records, tokenizer=tokenizer), out=tmp_path / "out", workers=1)
    texts = [part for one in records for part, _ in chatml(one["messages"]) if part not in CHATML]
    found = learned_from(tmp_path / "out")["talk"]
    assert found["samples"] == len(records)
    assert found["bytes"] == found["wanted_bytes"] == sum(len(text.encode()) for text in texts)
    assert found["characters"] == sum(map(len, texts))
    if model == "byte_bpe":
        learned = set(load_tokenizer(tmp_path / "out").get_vocab()) - set(CHATML)
        assert any("end" in piece for piece in learned), "a token that somebody types is text"
        assert not any("start" in piece or "star" in piece for piece in learned)


def test_the_share_of_conversations_in_a_sample_is_of_the_texts_that_are_learned_from(tmp_path: Path) -> None:
    train = {"model": "byte_bpe", "vocab_size": 300, "control_symbols": list(CHATML), "sample_megabytes": 1}
    tokenizer = {"train": {**train, "weights": {"talk": 0.25, "notes": 0.75}}, "eos": "<|endoftext|>"}
    path = corpus(tmp_path, chatty(4000), tokenizer=tokenizer, dedup={"exact": False})
    tokmill.run(path, out=tmp_path / "out", workers=1, until="tokenizer")
    found = learned_from(tmp_path / "out")["talk"]
    assert found["bytes"] == found["wanted_bytes"] == 1 << 18
    assert found["samples"] < 4000
    assert "short_by_bytes" not in found


def test_other_workers_give_the_same_bytes(made: Path, tmp_path: Path) -> None:
    path = made / "recipe.yaml"
    tokmill.run(path, out=tmp_path / "out", workers=3)
    for step in ("tokens", "build/pad", "build/best_fit"):
        ours, theirs = (load_manifest(place / step) for place in (made / "out", tmp_path / "out"))
        assert ours.identity == theirs.identity, step


def test_the_run_is_proven_and_a_token_leads_to_its_characters(made: Path) -> None:
    out = made / "out"
    assert command("verify", out).returncode == 0
    checked = command("check", out / "build" / "pad", "--json")
    members = [one for one in json.loads(checked.stdout)["findings"] if one["check"] == "members"]
    assert [one["ok"] for one in members] == [True], members
    _, mask = rows_of(out / "build" / "pad" / "train")
    column = int(np.flatnonzero(mask[0])[0])
    traced = json.loads(command("trace", out / "build/pad", "--row", 0, "--column", column, "--json").stdout)
    told = json.dumps(traced, ensure_ascii=False)
    assert "\\ufdd" not in told.lower()
    assert not any("\ufdd0" <= c <= "\ufdef" for c in told)
    assert "assistant\\n" in told


def test_check_takes_the_end_token_within_conversations_for_what_it_is(tmp_path: Path) -> None:
    """It also ends what each speaker says; at the end of a document it is still demanded."""
    builds = [
        *({"name": name, "format": "memmap", "pack": {"layout": name, "length": 48}} for name in LAYOUTS),
        {"name": "lists", "format": "parquet", "pack": {"layout": "indexed"}},
    ]
    train = {"model": "byte_bpe", "vocab_size": 290, "control_symbols": list(CHATML)}
    sections: dict[str, Any] = {"builds": builds, "tokenizer": {"train": train, "eos": "<|im_end|>"}}
    recipe = corpus(tmp_path, conversations(), {"loss": "all"}, **sections)
    out = tokmill.run(recipe, out=tmp_path / "out", workers=1).out
    eos = load_tokenizer(out).token_to_id("<|im_end|>")
    for name in (*LAYOUTS, "lists"):
        found = [one for one in tokmill.check(out / "build" / name, steps=0).findings if not one.ok]
        assert found == [], name
    spoken = sum(len(one["messages"]) for one in conversations())
    (told,) = (
        one.detail for one in tokmill.check(out / "build/lists", steps=0).findings if one.check == "ends"
    )
    assert f"{spoken:,} times it stands inside one" in told
    split = out / "build" / "concat" / "train"
    ids, documents = rows_without_mask(split), list(read_row_index(split / "index.jsonl.zst"))
    lasts = {(row, span.end - 1) for row, docs in documents for span in docs}
    inside = sum((row, column) not in lasts for row, column in np.argwhere(ids == eos).tolist())
    found = [one for one in tokmill.check(split.parent, steps=0).findings if one.check == "ends"]
    assert f"{inside:,} times it stands inside one" in found[0].detail
    row, spans = next((row, docs) for row, docs in documents if len(docs) > 1)
    assert ids[row, spans[0].end - 1] == eos
    ids[row, spans[0].end - 1] = eos - 1
    ids.tofile(split / "input_ids.mmap")
    failed = [one.check for one in tokmill.check(split.parent, steps=0).findings if not one.ok]
    assert "ends" in failed


def test_a_review_counts_what_conversations_say_and_not_what_their_template_writes(tmp_path: Path) -> None:
    """Ten of forty spell the end of a turn themselves; every turn ends with one, and is no artefact."""
    subjects = ["mills", "rivers", "bridges", "barley", "harbours", "lanterns", "quarries", "timber"]
    records = [
        {
            "id": f"c{number}",
            "messages": say(
                f"{subjects[number % 8]} {number}{' <|im_end|>' * (number < 10)}?",
                f"{number} are {number * 7}",
            ),
        }
        for number in range(40)
    ]
    train = {"model": "byte_bpe", "vocab_size": 290, "control_symbols": list(CHATML)}
    eos = {"train": train, "eos": "<|im_end|>", "control": ["<|im_end|>"]}
    out = tokmill.run(corpus(tmp_path, records, tokenizer=eos), out=tmp_path / "out", workers=1).out
    found = tokmill.review(out).as_json()["findings"]
    surface = [one for one in found if one["check"] in SURFACE and one["about"].endswith((" talk", " chat"))]
    assert [(one["check"], one["severity"]) for one in surface] == [("control_tokens", "medium")], surface
    assert '"<|im_end|>" stands in 10 of 40 documents; it stays ordinary text here' in surface[0]["says"]
    alone = shutil.copytree(out / "build" / "rows", tmp_path / "alone")
    assert [
        one for one in tokmill.review(alone).as_json()["findings"] if one["check"] == "control_tokens"
    ] == []


def rows_without_mask(split: Path) -> np.ndarray:
    meta = json.loads((split / "meta.json").read_bytes())
    return np.fromfile(split / "input_ids.mmap", meta["dtype"]).reshape(meta["n_seqs"], meta["seq_len"])


def test_people_are_shown_no_marks(made: Path) -> None:
    tokmill.report(made / "out")
    for name in ("report.html", "report.json"):
        text = (made / "out" / name).read_text(encoding="utf-8")
        assert not any("\ufdd0" <= c <= "\ufdef" for c in text), name
        assert "U+FDD" not in text


def test_with_loss_all_there_is_no_mask_and_every_format_will_do(tmp_path: Path) -> None:
    builds = [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}]
    tokmill.run(
        corpus(tmp_path, conversations(), {"loss": "all"}, builds=builds), out=tmp_path / "o", workers=1
    )
    assert not list((tmp_path / "o").rglob("*loss*"))
    out, tokenizer = tmp_path / "o", load_tokenizer(tmp_path / "o")
    (batch,) = list(Batches(open_dataset(out / "build" / "rows"), 10_000))
    assert "loss_mask" not in batch
    (lengths,) = (load_table(path) for path in (out / "tokens" / "train" / "chat").glob("lengths-*"))
    ids = np.fromfile(next((out / "tokens/train/chat").glob("tokens-*.bin")), np.uint16)
    messages = {one["id"]: one["messages"] for one in conversations()}
    at = 0
    for doc_id, count in zip(
        *(lengths.column(name).to_pylist() for name in ("doc_id", "tokens")), strict=True
    ):
        whole = "".join(
            f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages[doc_id]
        )
        own = ids[at : at + count].tolist()
        at += count
        assert tokenizer.decode(own[:-1], skip_special_tokens=False) == whole
        assert own.count(tokenizer.token_to_id("<|im_end|>")) == len(messages[doc_id])


def test_npy_and_parquet_hold_the_same_masks(made: Path, tmp_path: Path) -> None:
    pack = {"layout": "best_fit", "length": 48}
    builds = [
        {"name": "npy", "format": "npy", "pack": pack, "rows_per_shard": 7},
        {"name": "parquet", "format": "parquet", "pack": pack, "rows_per_shard": 9},
        {"name": "documents", "format": "parquet", "pack": {"layout": "indexed"}},
    ]
    tokmill.run(corpus(tmp_path, conversations(), builds=builds), out=tmp_path / "out", workers=1)
    ids, mask = rows_of(made / "out" / "build" / "best_fit" / "train")
    build = tmp_path / "out" / "build"
    for stem, whole in (("shard", ids), ("loss_mask", mask)):
        shards = [np.load(path) for path in sorted((build / "npy" / "train").glob(f"{stem}_*.npy"))]
        assert np.concatenate(shards).tolist() == whole.tolist()
        assert all(len(shard) == 7 for shard in shards[:-1])
    tables = [load_table(path) for path in sorted((build / "parquet" / "train").glob("*.parquet"))]
    for name, whole in (("input_ids", ids), ("loss_mask", mask)):
        assert [row for table in tables for row in table.column(name).to_pylist()] == whole.tolist()
    by_name = {name: open_dataset(build / name) for name in ("npy", "parquet")}
    for dataset in by_name.values():
        found = np.concatenate([b["loss_mask"] for b in Batches(dataset, 4, shuffle="none", length=48)])
        ours = open_dataset(made / "out" / "build" / "best_fit")
        asked = np.concatenate([b["loss_mask"] for b in Batches(ours, 4, shuffle="none", length=48)])
        assert found.tolist() == asked.tolist()
    tokenizer = load_tokenizer(tmp_path / "out")
    wanted = {one["id"]: expected(one["messages"], tokenizer) for one in conversations()}
    dataset = open_dataset(build / "documents")
    seen = 0
    for example in dataset:
        if example["doc_id"] in wanted:
            whole = (example["ids"].tolist(), example["loss_mask"].tolist())
            assert whole == wanted[example["doc_id"]]
            seen += 1
    assert seen == len(wanted)
    (batch,) = Batches(dataset, 1000, shuffle="none")
    assert ((batch["targets"] != -100) == batch["loss_mask"]).all()
    assert command("verify", tmp_path / "out").returncode == 0


def test_a_split_without_a_conversation_has_the_columns_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or `datasets` does not load them together."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets = pytest.importorskip("datasets")
    builds: list[dict[str, Any]] = [
        {"name": "rows", "format": "parquet", "pack": {"length": 48, "tail": "pad"}},
        {"name": "lists", "format": "parquet", "pack": {"layout": "indexed"}, "columns": "huggingface"},
        {"name": "notes", "format": "parquet", "pack": {"layout": "indexed"}, "sources": ["notes"]},
        {"name": "flat", "format": "memmap", "pack": {"length": 48, "tail": "pad"}},
    ]
    held = {"split": {"valid_fraction": "0.4"}}
    recipe = corpus(tmp_path, [conversations()[5]], builds=builds, **held)
    out = tokmill.run(recipe, out=tmp_path / "out", workers=1).out
    for name in ("rows", "lists", "notes", "flat"):
        origins = {
            split: {
                span.source
                for _, docs in read_row_index(out / "build" / name / split / "index.jsonl.zst")
                for span in docs
            }
            for split in ("train", "valid")
        }
        both = {"notes"} if name == "notes" else {"talk", "notes"}
        assert origins == {"train": both, "valid": {"notes"}}
        if name == "flat":
            _, mask = rows_of(out / "build" / name / "valid")
            covered = np.zeros(mask.shape, np.uint8)
            for row, docs in read_row_index(out / "build" / name / "valid" / "index.jsonl.zst"):
                for span in docs:
                    covered[row, span.start : span.end] = 1
            assert (mask == covered).all()
            continue
        files = {split: str(out / "build" / name / split / "*.parquet") for split in origins}
        loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / name))
        assert loaded["train"].features == loaded["valid"].features
        assert ("loss_mask" in loaded["valid"].column_names) == (name != "notes")
        for split in origins if name != "notes" else ():
            meta = json.loads((out / "build" / name / split / "meta.json").read_bytes())
            shards = [load_table(out / "build" / name / split / one["file"]) for one in meta["shards"]]
            assert [digest_of(table) for table in shards] == [one["content_sha256"] for one in meta["shards"]]
        if name == "lists":
            assert all(all(mask) for mask in loaded["valid"]["loss_mask"])
            assert not all(all(mask) for mask in loaded["train"]["loss_mask"])
    assert command("verify", out).returncode == 0
    assert all(one.ok for one in tokmill.check(out / "build/lists", steps=0).findings)


def digest_of(table: Any) -> str:
    """As the page of formats says it is made."""
    ids = table.column("input_ids").to_pylist()
    content = np.array([len(row) for row in ids], "<i8").tobytes()
    content += np.array([id for row in ids for id in row], "<i4").tobytes()
    for doc_id in table.column("doc_id").to_pylist() if "doc_id" in table.column_names else ():
        content += np.array([len(doc_id.encode())], "<i8").tobytes() + doc_id.encode()
    for name, kind in (("loss_mask", "u1"), ("labels", "<i4"), ("attention_mask", "i1")):
        if name in table.column_names:
            lists = table.column(name).to_pylist()
            content += np.array([one for row in lists for one in row], kind).tobytes()
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("format", ["memmap", "npy", "parquet"])
def test_a_mask_that_is_cut_or_gone_is_told(made: Path, tmp_path: Path, format: str) -> None:
    build = {"name": "rows", "format": format}
    tokmill.run(corpus(tmp_path, conversations(), builds=[build]), out=tmp_path / "out", workers=1)
    split = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "out" / "build" / "rows" / "train", split)
    name = {"memmap": "loss_mask.mmap", "npy": "loss_mask_00000.npy", "parquet": "shard_00000.parquet"}[
        format
    ]
    whole = (split / name).read_bytes()
    for damaged in (whole[:-1], whole + b"\1", whole[: len(whole) // 2], b"", None):
        (split / name).unlink()
        if damaged is not None:
            (split / name).write_bytes(damaged)
        with pytest.raises(TokmillError):
            list(Batches(open_dataset(split), 4))
        (split / name).write_bytes(whole)
    meta = json.loads((split / "meta.json").read_bytes())
    if format == "memmap":
        (split / "meta.json").write_text(json.dumps({**meta, "loss_mask": "../../x"}))
        with pytest.raises(TokmillError, match="its loss mask is"):
            open_dataset(split)
    assert list(Batches(open_dataset(tmp_path / "out" / "build" / "rows"), 4))


BAD = {
    "no role": [{"content": "hm"}],
    "another role": [{"role": "judge", "content": "hm"}],
    "no text": [{"role": "user"}],
    "an image": [{"role": "user", "content": [{"type": "image", "url": "x"}]}],
    "not a list": {"role": "user"},
    "empty": [],
    "a string": "hm",
    "a number": [3],
}


def quarantined(out: Path) -> dict[str, int]:
    return dict(load_manifest(out / "ingest" / "talk").counts["quarantined"])


def test_bad_messages_are_quarantined_with_the_reason(tmp_path: Path) -> None:
    records = [*conversations(), *({"id": name, "messages": messages} for name, messages in BAD.items())]
    records.append({"id": "reserved", "messages": say("a \ufdd0 b", "hm")})
    records.append({"id": "none"})
    path = corpus(tmp_path, records, source={"max_bad_fraction": 1})
    tokmill.run(path, out=tmp_path / "out", workers=1, until="split")
    assert quarantined(tmp_path / "out") == {
        "bad_messages": len(BAD),
        "reserved_character": 1,
        "missing_field": 1,
    }
    (ledger,) = (
        load_table(path) for path in (tmp_path / "out" / "ingest" / "talk").glob("ledger-0*.parquet")
    )
    details = ledger.column("detail").to_pylist()
    assert "message 0 has no role" in details
    assert "message 0 has the role 'judge'" in details
    assert "message 0 has a part of the type 'image', and only text is read" in details
    assert "nothing where a list of messages is needed" not in details


def test_a_noncharacter_that_is_escaped_is_found_too(tmp_path: Path) -> None:
    line = json.dumps({"messages": say("a \ufdd3 b", "c")}, ensure_ascii=True)
    path = corpus(tmp_path, conversations(), source={"max_bad_fraction": 1, "fields": {}})
    (tmp_path / "chat.jsonl").write_text(line + "\n")
    tokmill.run(path, out=tmp_path / "out", workers=1, until="split")
    assert quarantined(tmp_path / "out") == {"reserved_character": 1}


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_calls_inside_of_each_other_are_quarantined_at_a_depth_that_is_the_same_everywhere(
    tmp_path: Path, opening: str, closing: str
) -> None:
    """Python would end at some 300 or 900, by how deep it is in itself. Lists that are spelled in a string
    are not looked into when the record is read."""
    path = corpus(tmp_path, [], source={"max_bad_fraction": 1, "fields": {}})
    lines = [
        f'[{{"role": "assistant", "content": "x", "tool_calls": {opening * depth}1{closing * depth}}}]'
        for depth in (50, 110, 450, 950)
    ]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps({"messages": line}) + "\n" for line in lines))
    tokmill.run(path, out=tmp_path / "out", workers=1, until="split")
    assert quarantined(tmp_path / "out") == {"too_deep": 3}


TEMPLATES = {
    "refuses": "{% if messages[0].role != 'system' %}{{ raise_exception('a system first') }}{% endif %}x",
    "loud": "{% for m in messages %}{{ m.role }}: {{ m.content | upper }}\n{% endfor %}",
    "first": "{% for m in messages %}{{ m.role }}: {{ m.content[:4] }}\n{% endfor %}",
}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("refuses", "template_error"), ("loud", "kept"), ("first", "template_rewrites_content")],
)
def test_what_a_template_does_not_show_as_it_is_is_quarantined(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "t.jinja").write_text(TEMPLATES[name])
    records = [{"id": "a", "messages": say("what is it", "what it is", "no", "yes it is")}]
    path = corpus(tmp_path, records, {"template": "t.jinja"}, source={"max_bad_fraction": 1})
    tokmill.run(path, out=tmp_path / "out", workers=1, until="split")
    # upper case of a mark is the mark: the text is another, and the regions are told all the same
    assert quarantined(tmp_path / "out") == ({} if reason == "kept" else {reason: 1})


LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}"
    "<|eot_id|>{% endfor %}{# <|not|> #}"
)


def said_by(result: Any) -> str:
    """On either stream, as one line."""
    return " ".join((result.stdout + result.stderr).split())


def test_control_tokens_that_a_tokenizer_lacks_are_said_before_the_run_and_kept(tmp_path: Path) -> None:
    """By `plan`, by `run` at once and at its end, in its JSON, in the report and in the review."""
    config = {"chat_template": LLAMA, "bos_token": "<|im_start|>", "eos_token": "<|never|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    path = corpus(tmp_path, conversations(), {"template": "."})
    lacking = '"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"'
    told = (
        "the chat template of talk writes `<|start_header_id|>`, `<|end_header_id|>`, `<|eot_id|>`, and the "
    )
    told += "tokenizer that is trained has no such special tokens"
    planned = command("plan", path)
    assert planned.returncode == 0
    assert f"! tokenizer: {told}" in said_by(planned)
    assert f"control_symbols: [{lacking}]" in said_by(planned)
    ran = command("run", path, "--json", "--workers", "1")
    assert ran.returncode == 0, ran.stderr
    out = tmp_path / "out" / "talks"
    (warning,) = [one for one in json.loads(ran.stdout)["warnings"] if "chat template" in one["what"]]
    assert warning["where"] == "tokenizer"
    assert warning["what"].startswith(told)
    assert told in " ".join(ran.stderr.split())
    before, _, after = command("run", path, "--workers", "1").stderr.partition("to decide about")
    assert told in " ".join(before.split())
    assert told in " ".join(after.split())
    reviewed = json.loads(command("review", out, "--json").stdout)
    assert any(told in json.dumps(finding, ensure_ascii=False) for finding in reviewed["findings"])
    assert command("report", out).returncode == 0
    assert told in (out / "report.json").read_text()

    tokenizer = load_tokenizer(out)
    missing = [
        token for token in ("<|start_header_id|>", "<|eot_id|>") if tokenizer.token_to_id(token) is None
    ]
    assert len(missing) == 2  # and the one that the template names is a token of it
    assert tokenizer.token_to_id("<|im_start|>") is not None


def test_a_tokenizer_file_that_lacks_them_is_named_and_one_that_has_them_is_not_warned_of(made: Path) -> None:
    had = made / "out" / "tokenizer" / "tokenizer.json"
    directory = made / "lacking"
    sections = {"tokenizer": {"path": "tok.json", "eos": "<|endoftext|>"}}
    path = corpus(directory, conversations(4), **sections)
    shutil.copy(had, directory / "tok.json")
    assert "chat template" not in said_by(command("plan", path))
    (directory / "tok.json").write_text(had.read_text().replace("<|im_end|>", "<|in_end|>"))
    said = said_by(command("plan", path))
    assert "talk writes `<|im_end|>`, and tok.json has no such special tokens" in said
    assert "use the tokenizer of the model whose template it is" in said


def test_sharegpt_names_and_roles(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "Hello.", "content": "", "role": "?"}]
    turns += [{"role": "user", "content": 7, "from": "observer", "value": "he waves"}]
    chat = {"messages": "conversations", "names": {"role": "from", "content": "value"}}
    path = corpus(tmp_path, [{"id": "s", "conversations": turns}], {**chat, "roles": {"observer": "user"}})
    tokmill.run(path, out=tmp_path / "out", workers=1, until="split")
    (table,) = (load_table(path) for path in (tmp_path / "out/ingest/talk").glob("documents-*.parquet"))
    shown = "".join(c for c in table.column("text")[0].as_py() if not "\ufdd0" <= c <= "\ufdef")
    assert shown == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nhe waves<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"dedup": {"window": {"policy": "trim"}}}, r"dedup\.window\.policy: .*talk has conversations"),
        (
            {"builds": [{"name": "m", "format": "megatron"}]},
            r"builds\[0\]\.format: megatron has no place for the loss mask of talk; use .*memmap",
        ),
        ({"source": {"template": "{x}"}}, r"sources\[0\]\.template: `chat\.template` says"),
        ({"source": {"fields": {"text": "x"}}}, r"sources\[0\]\.fields\.text: `chat\.messages` says"),
        ({"source": {"unit": "line"}}, r"sources\[0\]\.unit: is for \.txt files"),
        ({"source": {"parallel": {}}}, r"sources\[0\]\.chat: reads files of records, not `parallel`"),
        ({"filters": ["c4"]}, r"c4 takes lines out of texts, and talk has conversations"),
    ],
)
def test_what_cannot_go_with_conversations_is_told_at_its_key(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(RecipeError, match=told):
        tokmill.run(corpus(tmp_path, conversations(), **change), out=tmp_path / "out", workers=1)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("nowhere.jinja", None, "no such file"),
        ("bad.jinja", b"{% for m in messages %}", "is not Jinja"),
        ("latin.jinja", "é".encode("latin-1"), "cannot be read as text"),
        ("mark.jinja", "\ufdd0".encode(), "has a noncharacter"),
        ("big.jinja", b"x" * (1 << 20) + b"y", "no chat template is that large"),
        ("tokenizer_config.json", b"{", "is not JSON"),
        ("tokenizer_config.json", b"[]", "is no JSON object"),
        ("tokenizer_config.json", b"{}", "has no `chat_template`"),
        ("", None, "has neither chat_template.jinja nor tokenizer_config.json"),
    ],
)
def test_a_template_that_cannot_be_used_is_told(
    tmp_path: Path, name: str, content: bytes | None, told: str
) -> None:
    (tmp_path / "model").mkdir()
    if content is not None:
        (tmp_path / "model" / name).write_bytes(content)
    path = corpus(tmp_path, conversations(3), {"template": f"model/{name}"})
    with pytest.raises(TokmillError, match=told):
        tokmill.run(path, out=tmp_path / "out", workers=1)


def test_a_config_has_its_template_and_tokens_and_the_step_knows_them(tmp_path: Path) -> None:
    shown = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    config = {
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "chat_template": [{"name": "other", "template": "x"}, {"name": "default", "template": shown}],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    path = corpus(tmp_path, conversations(3), {"template": "."})
    tokmill.run(path, out=tmp_path / "out", workers=1, until="split")
    before = load_manifest(tmp_path / "out" / "ingest" / "talk")
    (table,) = (load_table(path) for path in (tmp_path / "out/ingest/talk").glob("documents-*.parquet"))
    assert table.column("text")[1].as_py().startswith("\ufdd0<|im_start|>user:")
    config["chat_template"] = shown.replace(":", ": ")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokmill.run(path, out=tmp_path / "out", workers=1, until="split")
    after = load_manifest(tmp_path / "out" / "ingest" / "talk")
    assert before.fingerprint != after.fingerprint
    assert before.identity != after.identity


def test_labels_texts_and_a_token_that_begins_documents_go_with_masks(tmp_path: Path) -> None:
    """Where conversations meet what other features write: Hugging Face columns, text builds, BOS."""
    train = {"model": "byte_bpe", "vocab_size": 290, "control_symbols": [*CHATML, "<s>"]}
    builds = [
        {"name": "rows", "format": "memmap"},
        {"name": "hf", "format": "parquet", "columns": "huggingface"},
        {"name": "texts", "format": "jsonl", "content": "text"},
    ]
    sections = {"tokenizer": {"train": train, "eos": "<|endoftext|>", "bos": "<s>"}, "builds": builds}
    out = Path(tokmill.run(corpus(tmp_path, conversations(), **sections), tmp_path / "out").out)

    rows = out / "build/rows/train"
    ids = np.fromfile(rows / "input_ids.mmap", "<i4").reshape(-1, 48)
    mask = np.fromfile(rows / "loss_mask.mmap", np.uint8).reshape(-1, 48)
    table = load_table(out / "build/hf/train/shard_00000.parquet")
    labels = np.array([row["labels"] for row in table.to_pylist()])
    assert 0 < mask.sum() < mask.size
    assert np.array_equal(labels, np.where(mask == 1, ids, -100))

    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer/tokenizer.json"))
    begin, end = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("<|endoftext|>")
    flat, learned = ids.reshape(-1), mask.reshape(-1)
    starts = np.flatnonzero(flat == begin)
    assert np.array_equal(starts[1:], np.flatnonzero(flat == end)[: len(starts) - 1] + 1)
    talks = [place for place in starts if flat[place + 1] == tokenizer.token_to_id("<|im_start|>")]
    assert len(talks) > 20
    assert not learned[talks].any()

    batch = next(iter(Batches(open_dataset(rows), 4, names="huggingface")))
    assert set(batch) == {"input_ids", "labels", "attention_mask"}  # a model takes no other
    assert np.array_equal(batch["labels"] != -100, mask_of(batch["input_ids"], ids, mask))

    texts = [row["text"] for row in load_lines(out / "texts/texts/train/texts-00000.jsonl.zst")]
    assert sum("<|im_start|>" in text for text in texts) == 40
    assert not any(0xFDD0 <= ord(char) <= 0xFDEF for text in texts for char in text)


def mask_of(batch: Any, ids: Any, mask: Any) -> Any:
    """Of the same rows, found by their ids; the first id of a row has a label that no loss reads."""
    found = np.stack([mask[np.flatnonzero((ids == row).all(axis=1))[0]] for row in batch]).astype(bool)
    found[:, 0] = True
    return found


TRANSFORMED = [
    {"id": "a", "messages": say("Say ümlaut.", "It is ümlaut.")},
    {"id": "b", "messages": say("Say it again.", "It is ümlaut, again.", "thanks", "Sure.")},
]


def transformed(directory: Path, body: str) -> Path:
    """A run of two conversations and some notes whose texts this function changes."""
    path = corpus(directory, TRANSFORMED, transforms=["hooks.py:change"])
    code = f"import re\ndef change(columns):\n    return [{body} for text in columns['text']]\n"
    (directory / "hooks.py").write_text(code)
    return tokmill.run(path, out=directory / "out", workers=1).out


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (r"re.sub(r'[^\x00-\x7f]', '', text)", "took marks of conversations out of 'a'"),
        (r"text.replace('\ufdd2', '\ufdd1')", "took marks of conversations out of 'a'"),
        ("text.replace('thanks', '\ufdd2thanks')", "put a mark of conversations into 'b'"),
        ("text.replace('thanks', '\ufdef')", "put a mark of conversations into 'b'"),
    ],
)
def test_a_transform_that_loses_or_adds_marks_is_refused(body: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        transformed(tmp_path, body)
    assert what in caught.value.what
    assert caught.value.where == f"{tmp_path / 'hooks.py'}:change"
    assert "U+FDD0" in caught.value.next


def test_a_transform_may_change_answers_and_leave_nothing_of_a_document(tmp_path: Path) -> None:
    out = transformed(tmp_path, "'' if 'thanks' in text else text.replace('ümlaut', 'umlauts, all')")
    tokenizer = load_tokenizer(out)
    ids, mask = rows_of(out / "build/rows/train")
    found = {
        span.doc_id: (ids[row, span.start : span.end].tolist(), mask[row, span.start : span.end].tolist())
        for row, docs in read_row_index(out / "build/rows/train/index.jsonl.zst")
        for span in docs
        if span.source == "talk" and not span.offset
    }
    changed = say("Say umlauts, all.", "It is umlauts, all.")
    for stored, whole in zip(found.pop("a"), expected(changed, tokenizer), strict=True):
        assert len(stored) > 10
        assert stored == whole[: len(stored)]
    assert not found


def test_a_transform_may_take_noncharacters_out_of_what_is_no_conversation(tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_text(json.dumps({"text": "a\ufdd0b c"}) + "\n")
    (tmp_path / "hooks.py").write_text(
        "def change(columns):\n    return [text.replace('\\ufdd0', '-') for text in columns['text']]\n"
    )
    (tmp_path / "recipe.yaml").write_text(
        json.dumps(
            {
                "name": "plain",
                "sources": [{"name": "p", "files": "plain.jsonl"}],
                "transforms": ["hooks.py:change"],
                "builds": [{"name": "out", "format": "jsonl", "content": "text"}],
            }
        )
    )
    out = tokmill.run(tmp_path / "recipe.yaml", out=tmp_path / "out", workers=1).out
    (path,) = (out / "texts/out").rglob("*.jsonl*")
    assert [line["text"] for line in load_lines(path)] == ["a-b c"]
