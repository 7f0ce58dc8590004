"""Every verb that writes, into a directory that is finished:
the same words, other words, and a killed attempt."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import sentencepiece

import tokmill as mill
from mill import small_corpus, tokmill, write_problems
from tokmill.adhoc.listings import read_listing, run_listing, tokenizer_section
from tokmill.errors import InputError
from written import MegatronFile, load_manifest


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    for name, count, seed in (("a", 80, 1), ("b", 60, 2)):
        lines = write_problems(directory / "raw.jsonl", count, seed).read_text().splitlines()
        rows = [{"id": f"{name}{n}", "text": json.loads(line)["question"]} for n, line in enumerate(lines)]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "mixture.yaml").write_text(
        "datasets:\n- {name: a, files: a.jsonl, id_field: id}\n- {name: b, files: b.jsonl, id_field: id}\n"
    )
    texts = [json.loads(line)["text"] for line in (directory / "a.jsonl").read_text().splitlines()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(directory / "spm"), vocab_size=200, minloglevel=2
    )
    return directory


def snapshot(directory: Path) -> dict[str, tuple[str, int]]:
    """Bytes, and when they were written, of every file."""
    return {
        path.relative_to(directory).as_posix(): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def words(verb: str, corpus: Path, out: Path) -> list[str | Path]:
    listing, model = corpus / "mixture.yaml", corpus / "spm.model"
    if verb == "encode":
        return ["encode", listing, "--tokenizer", model, "--out", out]
    if verb == "shard":
        return ["shard", listing, "--tokenizer", model, "--out", out, "--length", "32"]
    common = ["--manifest", listing, "--tokenizer", model, "--out", out]
    return (
        ["pack", *common, "--length", "32"]
        if verb == "pack"
        else ["build", "megatron", *common, "--tokens", "2k"]
    )


OTHER = {
    "encode": (["--unicode", "NFKC"], "`normalize.unicode` changed none → NFKC"),
    "shard": (["--length", "16"], "`pack.length` changed 32 → 16"),
    "pack": (["--length", "16"], "`pack.length` changed 32 → 16"),
    "build": (["--tokens", "1k"], "`mixture.tokens` changed 2000 → 1000"),
}


@pytest.mark.parametrize("verb", list(OTHER))
def test_other_words_are_refused_the_same_ones_do_nothing_and_replace_replaces(
    corpus: Path, tmp_path: Path, verb: str
) -> None:
    out = tmp_path / "out"
    first = tokmill(*words(verb, corpus, out))
    assert first.returncode == 0, first.stderr
    before = snapshot(out)
    again = tokmill(*words(verb, corpus, out))
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert snapshot(out) == before
    options, told = OTHER[verb]
    refused = tokmill(*words(verb, corpus, out), *options)
    assert refused.returncode != 0
    assert told in " ".join(refused.stderr.split())
    assert "--replace" in refused.stderr
    assert snapshot(out) == before
    done = tokmill(*words(verb, corpus, out), *options, "--replace")
    assert done.returncode == 0, done.stderr
    fresh = tokmill(*words(verb, corpus, tmp_path / "fresh"), *options)
    assert fresh.returncode == 0, fresh.stderr
    replaced, made = snapshot(out), snapshot(tmp_path / "fresh")
    assert replaced.keys() == made.keys()
    timed = {name for name in made if name.endswith((".json",))}  # a time stands in them
    assert {n: replaced[n][0] for n in made if n not in timed} == {
        n: made[n][0] for n in made if n not in timed
    }


def test_another_format_in_the_place_of_one_leaves_nothing_of_it(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tokmill(*words("pack", corpus, out), "--format", "npy").returncode == 0
    assert (out / "shard_00000.npy").is_file()
    assert tokmill(*words("pack", corpus, out), "--replace").returncode == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "index.jsonl.zst", "input_ids.mmap", "manifest.json", "meta.json", "places.npy", "tokenizer",
    ]  # fmt: skip
    assert mill.verify(out).ok
    assert tokmill(*words("build", corpus, out)).returncode != 0
    assert tokmill(*words("encode", corpus, out), "--replace").returncode == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "ENCODE.meta.json", "index.jsonl.zst", "token_cache", "tokenizer",
    ]  # fmt: skip


def test_texts_that_changed_since_are_other_words_too(corpus: Path, tmp_path: Path) -> None:
    here = shutil.copytree(corpus, tmp_path / "corpus")
    assert tokmill(*words("build", here, tmp_path / "out")).returncode == 0
    with (here / "b.jsonl").open("a") as file:
        file.write(json.dumps({"id": "new", "text": "A new one."}) + "\n")
    refused = tokmill(*words("build", here, tmp_path / "out"))
    assert refused.returncode != 0
    assert "`inputs.b.b.jsonl` changed" in " ".join(refused.stderr.split())


def test_a_file_that_is_missing_is_made_again_by_the_same_words(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tokmill(*words("build", corpus, out)).returncode == 0
    whole = MegatronFile(out / "train/tokens").ids.tolist()
    (out / "train/tokens.bin").unlink()
    assert tokmill(*words("build", corpus, out)).returncode == 0
    assert MegatronFile(out / "train/tokens").ids.tolist() == whole
    assert mill.verify(out).ok


def test_a_killed_attempt_goes_on(corpus: Path, tmp_path: Path) -> None:
    """A kill leaves the work so far, and no manifest: the same words, and others, may go on from there."""
    listing = read_listing(corpus / "mixture.yaml")
    sections = {"split": {"valid_fraction": 0}, "tokenizer": tokenizer_section(corpus / "spm.model")}
    for out in (tmp_path / "one", tmp_path / "two"):
        run_listing(listing, out, sections, workers=1)
        assert (out / ".work/tokens/manifest.json").is_file()
    for out in (tmp_path / "one", tmp_path / "fresh"):
        assert tokmill(*words("build", corpus, out)).returncode == 0
    assert load_manifest(tmp_path / "one").identity == load_manifest(tmp_path / "fresh").identity
    assert tokmill(*words("build", corpus, tmp_path / "two"), "--tokens", "1k").returncode == 0
    assert not (tmp_path / "two/.work").exists()


def test_the_directory_of_a_run_is_never_built_into(corpus: Path, tmp_path: Path) -> None:
    run = mill.run(small_corpus(tmp_path / "r"), workers=1).out
    before = snapshot(run)
    for place in (run, run / "build/rows"):
        refused = tokmill(*words("build", corpus, place), "--replace")
        assert refused.returncode != 0
        assert "of a recipe: its manifest.json would be lost" in " ".join(refused.stderr.split())
    assert snapshot(run) == before


def test_replace_is_said_in_python_too(corpus: Path, tmp_path: Path) -> None:
    encoded = {"tokenizer": corpus / "spm.model", "out": tmp_path / "cache", "workers": 1}
    mixture = corpus / "mixture.yaml"
    mill.encode(mixture, **encoded)
    with pytest.raises(InputError, match="replace=True"):
        mill.encode(mixture, unicode="NFKC", **encoded)
    mill.encode(mixture, unicode="NFKC", replace=True, **encoded)
    assert json.loads((tmp_path / "cache/ENCODE.meta.json").read_text())["normalization"]["unicode"] == "NFKC"


@pytest.mark.parametrize("verb", ["pack", "build"])
def test_another_seed_is_another_result_whatever_lists_the_texts(
    corpus: Path, tmp_path: Path, verb: str
) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    made = tokmill("materialize", "files", corpus / "a.jsonl", "--name", "a", "--out", root)
    assert made.returncode == 0, made.stderr
    (manifest,) = (root / "manifests").glob("*.json")
    asked = [manifest if word == corpus / "mixture.yaml" else word for word in words(verb, corpus, out)]
    assert tokmill(*asked).returncode == 0
    before = snapshot(out)
    refused = tokmill(*asked, "--seed", "7")
    assert refused.returncode == 1
    assert "seed" in refused.stderr
    assert snapshot(out) == before


_STEPS = {
    "normalize": (["normalize", "a.jsonl", "--out", "out"], ["--unicode", "NFKC"], "NFC → NFKC"),
    "filter": (
        ["filter", "a.jsonl", "--rule", "words>=3", "--out", "out"],
        ["--rule", "words>=30"],
        "filters",
    ),
    "filter to text": (
        ["filter", "a.jsonl", "--rule", "words>=3", "--out", "out/texts.txt"],
        ["--separator", "\\n\\n"],
        "separator",
    ),
    "dedup": (
        ["dedup", "a.jsonl", "--mode", "all", "--out", "out"],
        ["--mode", "exact"],
        "`dedup` removed",
    ),
    "tokenizer train": (
        ["tokenizer", "train", "--manifest", "mixture.yaml", "--vocab-size", "340", "--out", "out"],
        ["--split-digits"],
        "split_digits",
    ),
}


@pytest.mark.parametrize("verb", list(_STEPS))
def test_a_single_step_does_not_replace_what_was_made_with_other_options(
    corpus: Path, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl", "mixture.yaml"):
        shutil.copy(corpus / name, tmp_path)
    given, other, told = _STEPS[verb]
    assert tokmill(*given).returncode == 0
    before = {name: digest for name, (digest, _) in snapshot(tmp_path / "out").items()}
    again = tokmill(*given)
    assert again.returncode == 0, again.stderr
    assert {name: digest for name, (digest, _) in snapshot(tmp_path / "out").items()} == before
    refused = tokmill(*given, *other)
    assert refused.returncode != 0
    assert "made with other options" in refused.stderr
    assert told in " ".join(refused.stderr.split())
    assert {name: digest for name, (digest, _) in snapshot(tmp_path / "out").items()} == before

    assert tokmill(*given, *other, "--replace").returncode == 0
    replaced = {name: digest for name, (digest, _) in snapshot(tmp_path / "out").items()}
    shutil.rmtree(tmp_path / "out")
    assert tokmill(*given, *other).returncode == 0
    assert {name: digest for name, (digest, _) in snapshot(tmp_path / "out").items()} == replaced != before


def test_cleaning_one_source_again_in_a_directory_of_several_replaces_its_own_shards_alone(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        shutil.copy(corpus / name, tmp_path)
    assert tokmill("normalize", "a.jsonl", "--name", "a", "--out", "out").returncode == 0
    assert tokmill("normalize", "b.jsonl", "--name", "b", "--out", "out").returncode == 0
    before = snapshot(tmp_path / "out")
    given = ["normalize", "a.jsonl", "--name", "b", "--out", "out"]
    refused = tokmill(*given)
    assert refused.returncode != 0
    assert "made with other options" in refused.stderr
    assert snapshot(tmp_path / "out") == before
    assert tokmill(*given, "--replace").returncode == 0
    after = snapshot(tmp_path / "out")
    assert after.keys() == before.keys()
    changed = {Path(name).name for name in before if after[name] != before[name]}
    assert changed == {"b-00000.jsonl.zst", "b-00000.manifest.json", "b.decisions.jsonl.zst"}


def test_a_loss_is_counted_by_the_source_that_records_say_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file, three sources: gamma loses all but one of its documents, the file as a whole a quarter."""
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"{source} {n} and nothing else", "source": source} for source in "ab" for n in range(6)]
    rows += [{"text": "said before, and said again", "source": "gamma"} for _ in range(4)]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["dedup", "all.jsonl", "--mode", "exact", "--out", "out", "--max-source-loss"]
    refused = tokmill(*given, "0.5")
    assert refused.returncode != 0
    assert "gamma loses 3 of 4" in refused.stderr
    assert tokmill(*given, "0.75").returncode == 0


def test_another_log_does_not_let_a_tokenizer_be_replaced_and_a_log_of_another_kind_is_no_obstacle(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl", "mixture.yaml"):
        shutil.copy(corpus / name, tmp_path)
    Path("one.json").write_text("no JSON")
    given = ["tokenizer", "train", "--manifest", "mixture.yaml", "--vocab-size", "340", "--output-dir", "out"]
    assert tokmill(*given, "--stats", "one.json").returncode == 0
    before = snapshot(tmp_path / "out")
    refused = tokmill(*given, "--stats", "two.json", "--split-digits")
    assert refused.returncode != 0
    assert "spm_340_unigram.model" in refused.stderr
    assert snapshot(tmp_path / "out") == before


def test_steps_that_share_a_directory_do_not_lose_each_others_decisions_nor_what_they_read(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(corpus / "a.jsonl", tmp_path)
    assert tokmill("normalize", "a.jsonl", "--out", "out").returncode == 0
    before = snapshot(tmp_path / "out")
    refused = tokmill("dedup", "out/files-00000.jsonl.zst", "--out", "out")
    assert refused.returncode != 0
    assert snapshot(tmp_path / "out") == before
    given = ["normalize", "out/files-00000.jsonl.zst", "--name", "again", "--out", "out"]
    assert tokmill(*given, "--replace").returncode == 0
    assert snapshot(tmp_path / "out")["files-00000.jsonl.zst"] == before["files-00000.jsonl.zst"]


STEPS = {
    "normalize": (["normalize", "a.jsonl", "--out", "out"], ["files-00000.jsonl.zst", "decisions.jsonl.zst"]),
    "to text": (["normalize", "a.jsonl", "--out", "out/a.txt"], ["a.txt", "a.decisions.jsonl.zst"]),
    "dedup": (["dedup", "a.jsonl", "--out", "out"], ["deduped.jsonl.zst", "decisions.jsonl.zst"]),
    "pack": ([], ["tokenizer/spm.model", "index.jsonl.zst"]),
    "build": ([], ["tokenizer/spm.model", "train/tokens.bin"]),
    "shard": ([], ["a/shard_00000.npy", "b/tokenizer/spm.model"]),
    "encode": ([], ["tokenizer/spm.model", "index.jsonl.zst"]),
}


@pytest.mark.parametrize("step", STEPS)
def test_files_of_others_are_not_replaced_unless_that_is_asked_for(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(corpus / "a.jsonl", tmp_path)
    given, names = STEPS[step]
    given = given or words(step, corpus, Path("out"))
    for name in names:
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text("mine")
    beside = [tmp_path / "out" / name for name in ("NOTES.md", "shard_of_others.txt", "passages.jsonl.zst")]
    for path in beside:
        path.write_text("mine")
    refused = tokmill(*given)
    assert refused.returncode != 0
    for name in names:
        assert Path(name).name in refused.stderr
        assert (tmp_path / "out" / name).read_text() == "mine"
    replaced = tokmill(*given, "--replace")
    assert replaced.returncode == 0, replaced.stderr
    assert all((tmp_path / "out" / name).read_bytes() != b"mine" for name in names)
    assert all(path.read_text() == "mine" for path in beside)


@pytest.mark.parametrize("step", ["normalize", "to text", "build"])
def test_a_directory_of_others_that_has_the_name_of_a_workplace_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(corpus / "a.jsonl", tmp_path)
    given = STEPS[step][0] or words(step, corpus, Path("out"))
    mine = tmp_path / "out" / (".a.txt.work" if step == "to text" else ".work") / "ingest/main.c"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    refused = tokmill(*given, "--replace")
    assert refused.returncode != 0
    assert "main.c" in refused.stderr
    assert mine.read_text() == "mine"


def test_a_pattern_that_matches_a_former_result_of_the_same_command_leaves_it_out(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(corpus / "a.jsonl", tmp_path)
    for verb in ("normalize", "dedup"):
        results = [tokmill(verb, "*.jsonl*", "--out", ".", "--json") for _ in range(3)]
        assert [found.returncode for found in results] == [0, 0, 0], results[-1].stderr
        assert {json.loads(found.stdout)["docs_in"] for found in results} == {80}
        assert "wrote itself" in results[-1].stderr
        for path in tmp_path.glob("*.zst"):
            path.unlink()
        for path in tmp_path.glob("*.manifest.json"):
            path.unlink()
