"""After a takedown nothing of the documents is in any file of the run,
and the rest is what it would have been."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import tokmill as mill
from cleaned import prose, rows_of, write_documents
from forked import run_forked
from mill import write_recipe
from tokmill.cli import main
from tokmill.errors import InputError, RunLocked, StorageError
from tokmill.storage.lease import open_lease
from tokmill.takedown.forgetting import Forgetting
from written import MegatronFile, ZstdFile, load_manifest, load_table


def traced_documents(run: Any, doc_id: str, source: str | None = None) -> Any:
    return mill.trace(run, doc_id=doc_id, source=source).documents


BUILDS = [
    {"name": "rows", "format": "memmap", "pack": {"layout": "concat", "length": 64, "tail": "pad"}},
    {"name": "fit", "format": "npy", "pack": {"layout": "best_fit", "length": 512}},
    {"name": "table", "format": "parquet", "pack": {"layout": "document", "length": 256}},
    {"name": "lists", "format": "parquet", "pack": {"layout": "indexed"}},
    {"name": "mega", "format": "megatron", "dtype": "smallest"},
    {"name": "cache", "format": "token_cache"},
]


def marker(name: str) -> str:
    """A word that is in one document only: of letters, and spelled byte by byte in the vocabulary below."""
    digits = hashlib.sha256(name.encode()).hexdigest()[:14]
    return "zq" + digits.translate(str.maketrans("0123456789abcdef", "abcdefhijklmopqr"))


def text_of(name: str, seed: int) -> str:
    return f"{prose(seed, 4)} {marker(name)} {prose(seed + 1000, 2)}"


def make_corpus(directory: Path, without: frozenset[str] = frozenset()) -> None:
    web = [{"id": f"w{n}", "text": text_of(f"w{n}", n), "license": "MIT"} for n in range(12)]
    odd: list[dict[str, Any]] = [
        {"id": "short", "text": f"x {marker('short')}"},
        {"id": "edited", "text": text_of("edited", 40) + "\r\ncafe\u0301"},
        {"id": "first", "text": text_of("first", 50)},
        {"id": "second", "text": text_of("first", 50).replace("the", "The") + f" {marker('second')}"},
        {"id": "quoting", "text": prose(60, 3) + "\n\n" + text_of("first", 50)},
    ]
    books = [{"id": f"b{n}", "text": text_of(f"b{n}", 100 + n), "license": "GPL-3.0"} for n in range(4)]
    books += [{"id": f"b{n}", "text": text_of(f"b{n}", 100 + n), "license": "MIT"} for n in range(4, 8)]
    more = [{"id": f"m{n}", "text": text_of(f"m{n}", 200 + n)} for n in range(6)]
    for name, records in (("web-a", web), ("web-b", odd), ("books", books), ("more", more)):
        write_documents(directory / f"{name}.jsonl", [r for r in records if r["id"] not in without])


def make_recipe(directory: Path, **sections: Any) -> Path:
    tokens = [bytes([byte]) for byte in range(256)] + [b"the", b" the", b" with", b"ing"]
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    (directory / "ranks.tiktoken").write_bytes(lines)
    whole: dict[str, Any] = {
        "sources": [
            {"name": "web", "domain": "web", "files": "web-*.jsonl"},
            {"name": "books", "domain": "prose", "files": "books.jsonl"},
            {"name": "more", "domain": "prose", "files": "more.jsonl"},
        ],
        "license": {"unknown": "keep"},
        "filters": [{"measure": "words", "min": 5, "reason": "too_few_words"}],
        "normalize": {"unicode": "NFC", "newlines": "lf"},
        "dedup": {
            "exact": True,
            "near": {"threshold": "0.7"},
            "window": {"policy": "trim", "words": 20},
            "partitions": 2,
        },
        "split": {"valid_fraction": "0.25"},
        "tokenizer": {"path": "ranks.tiktoken", "encoding": "cl100k_base", "eos": "<|endoftext|>"},
        "builds": BUILDS,
    }
    whole.update(sections)
    return write_recipe(directory, **whole)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("forget")
    make_corpus(directory)
    return mill.run(make_recipe(directory), workers=1).out


@pytest.fixture
def run(pristine: Path, tmp_path: Path) -> Path:
    """By itself: what it was made from is not beside it."""
    return shutil.copytree(pristine, tmp_path / "alone" / "run")


def contents(run: Path) -> Iterator[tuple[str, bytes]]:
    """Every file as it is, decompressed, and every column of every table."""
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        name = path.relative_to(run).as_posix()
        yield name, path.read_bytes()
        if path.suffix == ".zst":
            with ZstdFile(path) as file:
                yield name, file.read()
        elif path.suffix == ".parquet":
            for column in pq.read_table(path).columns:
                yield name, _plain(column)


def _plain(column: Any) -> bytes:
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return np.asarray(column.combine_chunks().flatten()).astype("<i4").tobytes()
    return "\0".join(map(str, column.to_pylist())).encode()


def needles(name: str) -> list[bytes]:
    """The marker as text, and as the tokens that spell it: this vocabulary has bytes, and four words."""
    word = marker(name).encode()
    return [
        word,
        np.frombuffer(word, np.uint8).astype("<u2").tobytes(),
        np.frombuffer(word, np.uint8).astype("<i4").tobytes(),
    ]


def files_with(run: Path, name: str) -> set[str]:
    wanted = needles(name)
    return {path for path, data in contents(run) if any(needle in data for needle in wanted)}


def ids(*names: str, source: str | None = None) -> dict[str, Any]:
    return {"doc_ids": [(source, name) for name in names]}


def test_the_marker_of_a_document_is_found_everywhere_before(pristine: Path) -> None:
    """Otherwise not finding it afterwards would prove nothing."""
    found = files_with(pristine, "w3") | files_with(pristine, "w4") | files_with(pristine, "w5")
    kinds = {"/".join(path.split("/")[:2]) for path in found}
    assert kinds >= {"ingest/web", *(f"build/{build['name']}" for build in BUILDS)}
    assert any(path.startswith("tokens/") for path in found)
    assert any("examples-" in path for path in files_with(pristine, "short"))
    assert any("edits-" in path for path in files_with(pristine, "edited"))
    assert any("trims-" in path for path in files_with(pristine, "quoting")) or rows_of(
        pristine, "dedup", "trims"
    )


CASES = {
    "ids": (ids("w3", "short", "edited", "w5"), {"w3", "short", "edited", "w5"}),
    "source": ({"source": "books"}, {f"b{n}" for n in range(8)}),
    "license": ({"license": "gpl-3.0"}, {f"b{n}" for n in range(4)}),
    "license of a source": (
        {"source": "web", "license": "MIT"},
        {f"w{n}" for n in range(12)},
    ),
    "survivor": (ids("first"), {"first"}),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_them_is_in_any_file_and_the_rest_is_as_if_they_had_never_been(
    run: Path, tmp_path: Path, case: str
) -> None:
    selection, names = CASES[case]
    before = load_manifest(run)
    done = mill.forget(run, **selection, batch_size=4, workers=1)
    assert done.affected["documents"] == len(names)
    for name in sorted(names - {"first"}):
        assert files_with(run, name) == set()
    assert mill.verify(run).problems == []
    root = load_manifest(run)
    assert root.facts["forgotten"] == [{"parent": before.digest, "reason": "forgotten", "ids": len(names)}]
    for source in ("web", "books", "more"):
        old, new = (manifest.counts[f"ingest/{source}"] for manifest in (before, root))
        lost = old["kept"] - new["kept"]
        assert new["dropped"] == ({"forgotten": lost} if lost else {})
        assert new["in"] == old["in"] == new["kept"] + lost
    ledger = [row for source in ("web", "books") for row in rows_of(run, f"ingest/{source}", "ledger")]
    assert {(row["doc_id"], row["stage"], row["verdict"], row["reason"]) for row in ledger} == {
        (f"sha256:{hashlib.sha256(name.encode()).hexdigest()}", "ingest", "drop", "forgotten")
        for name in names
    }
    for name in names:
        (told,) = traced_documents(run, name)
        assert (told.outcome, told.history, told.builds) == ("forgotten", None, ())

    make_corpus(tmp_path, frozenset(names))
    if case == "source":
        (tmp_path / "books.jsonl").write_text('{"id": "nothing", "text": "-"}\n')  # a source needs a record
    fresh = mill.run(make_recipe(tmp_path), workers=1).out
    for build in BUILDS:
        for path in sorted((fresh / "build" / build["name"]).rglob("*")):
            if path.suffix in (".bin", ".idx", ".mmap", ".npy"):
                assert path.read_bytes() == (run / path.relative_to(fresh)).read_bytes(), path


def test_a_copy_of_a_forgotten_document_is_another_document_and_comes_back(run: Path) -> None:
    (before,) = traced_documents(run, "second")
    assert before.outcome == "dropped by dedup: near_dup"
    done = mill.forget(run, **ids("first"), workers=1)
    assert done.affected["copies"] == {
        "documents": 1,
        "examples": [{"source": "web", "doc_id": "second", "reason": "near_dup"}],
    }
    (after,) = traced_documents(run, "second")
    assert after.outcome.startswith("kept, ")


def test_tasks_of_other_shards_and_sources_keep_their_work(run: Path) -> None:
    before = {step: load_manifest(run / step) for step in ("ingest/web", "clean/web", "tokens")}
    done = mill.forget(run, **ids("w3"), workers=1)
    assert set(done.skipped) >= {"ingest/books", "clean/books", "ingest/more", "clean/more", "tokenizer"}
    kept = {}
    for step, manifest in before.items():
        old = {task["fingerprint"] for task in manifest.tasks}
        kept[step] = sum(task["fingerprint"] in old for task in load_manifest(run / step).tasks)
    assert kept["ingest/web"] == kept["clean/web"] == 1
    assert kept["tokens"] >= 2
    paths = [entry.path for entry in load_manifest(run / "ingest/web").entries("documents")]
    assert paths == ["documents-00000-000.r1.parquet", "documents-00001-000.parquet"]


def tree(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_a_dry_run_says_what_is_affected_and_changes_nothing(run: Path) -> None:
    before = tree(run)
    told = mill.forget(run, **ids("w3", "nobody"), batch_size=4, dry_run=True)
    assert tree(run) == before
    assert not told.is_done
    assert (told.affected["documents"], told.affected["not_found"]) == (1, 1)
    assert told.affected["sources"] == {"web": {"documents": 1, "shards": ["web/00000-000"]}}
    (traced,) = traced_documents(run, "w3")
    assert traced.tokens is not None
    assert told.affected["tokens"] == {traced.tokens["split"]: traced.tokens["tokens"]}
    for build, place in zip(told.affected["builds"], traced.builds, strict=True):
        (turn,) = place["turns"]
        rows = [row["row"] for row in turn["rows"]] if "rows" in turn else [turn["sequence"]]
        assert (build["build"], build["rows"], build["first_row"]) == (place["build"], len(rows), rows[0])
        assert build["steps"] == len({row // 4 for row in rows})
        assert build["tokens"] == traced.tokens["tokens"] - turn.get("cut_tokens", 0)


def test_running_the_recipe_again_never_brings_them_back(pristine: Path, tmp_path: Path) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path)
    out = shutil.copytree(pristine, tmp_path / "out/small")
    assert mill.run(recipe, out, workers=1).ran == []
    mill.forget(out, **ids("w3", "b2"), workers=1)
    assert mill.run(recipe, out, workers=1).ran == []
    digests = {path: data for path, data in tree(out / "build/mega").items() if path.endswith(".bin")}
    for source in ("web", "books"):
        shutil.rmtree(out / "ingest" / source)  # they are read anew
    mill.run(recipe, out, workers=1)
    assert mill.verify(out).problems == []
    assert files_with(out, "w3") == files_with(out, "b2") == set()
    assert {path: data for path, data in tree(out / "build/mega").items() if path.endswith(".bin")} == digests
    facts = load_manifest(out).facts
    assert facts["forgotten"][0]["ids"] == 2


def test_a_second_takedown_adds_to_the_first(run: Path) -> None:
    first = load_manifest(run).digest
    mill.forget(run, **ids("w3"), workers=1)
    second = load_manifest(run).digest
    mill.forget(run, **ids("w4", "w3"), workers=1)
    assert load_manifest(run).facts["forgotten"] == sorted(
        [
            {"parent": first, "reason": "forgotten", "ids": 1},
            {"parent": second, "reason": "forgotten", "ids": 1},
        ],
        key=lambda removal: str(removal["parent"]),
    )
    assert files_with(run, "w3") == files_with(run, "w4") == set()
    assert mill.verify(run).problems == []
    counts = load_manifest(run / "ingest/web").counts
    assert counts["dropped"] == {"forgotten": 2}
    before = tree(run)
    again = mill.forget(run, **ids("w3"), workers=1)
    assert (again.is_done, again.ran, again.affected["already"]) == (True, (), 1)
    assert tree(run) == before


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        (["--license", "GPL-3.0"], ["--license", "GLP-3.0"]),
        (["--source", "books"], ["--source", "books", "--license", "BSD"]),
        (["--source", "web", "--license", "mit"], ["--source", "books", "--license", "Apache-2.0"]),
    ],
)
def test_a_takedown_that_is_done_says_so_and_one_that_never_was_is_an_error(
    run: Path, arguments: list[str], others: list[str]
) -> None:
    def command(*options: str) -> Any:
        return CliRunner().invoke(main, ["forget", str(run), *options, "--workers", "1"])

    assert command(*arguments).exit_code == 0
    before = tree(run)
    for again in (arguments, [option.upper() if option == "mit" else option for option in arguments]):
        done = command(*again)
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (
            0,
            "nothing to do: they are forgotten already",
        )
        assert "nothing to do" in command(*again, "--dry-run").stdout
        told = json.loads(command(*again, "--json").stdout)
        assert (told["is_done"], told["ran"]) == (True, [])
    assert tree(run) == before
    never = command(*others)
    assert never.exit_code == 1
    assert "no document of the run is meant" in never.stderr
    assert tree(run) == before


def test_a_licence_that_comes_in_again_is_forgotten_again(pristine: Path, tmp_path: Path) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path)
    out = shutil.copytree(pristine, tmp_path / "out/small")
    mill.forget(out, license="GPL-3.0", workers=1)
    records = [{"id": f"n{n}", "text": text_of(f"n{n}", 300 + n), "license": "GPL-3.0"} for n in range(3)]
    write_documents(tmp_path / "web-c.jsonl", records)
    mill.run(recipe, out, workers=1)
    assert files_with(out, "n1")
    done = mill.forget(out, license="gpl-3.0", workers=1)
    assert done.affected["documents"] == 3
    assert files_with(out, "n1") == set()
    assert mill.verify(out).problems == []


def test_what_is_meant_is_chosen_while_nobody_else_works_in_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(run)
    with open_lease(run):
        held = tree(run)
        with pytest.raises(RunLocked):
            mill.forget(
                run, **ids("w3"), workers=1, tell=lambda affected: pytest.fail("chosen without the lock")
            )
        assert tree(run) == held
        mill.forget(run, **ids("w3"), dry_run=True)  # reads only, beside anybody
    assert tree(run) == before

    def others_are_refused(affected: dict[str, Any]) -> None:
        with pytest.raises(RunLocked), open_lease(run):
            pass
        heard.append(affected)

    heard: list[dict[str, Any]] = []
    done = mill.forget(run, **ids("w3"), workers=1, tell=others_are_refused)
    assert heard == [done.affected]
    assert files_with(run, "w3") == set()


def test_a_takedown_that_another_command_ended_in_between_is_not_begun_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the choice, which is on disk, and the work somebody else may work here, and ends it."""
    import tokmill.takedown.forgetting as forgetting

    whole, ended = forgetting._rebuild, []

    def late(out: Path, pending: Any, *rest: Any) -> Forgetting:
        if not ended:
            ended.append(whole(out, pending, *rest))
            ended.append(mill.verify(out).digest)
        return whole(out, pending, *rest)

    monkeypatch.setattr(forgetting, "_rebuild", late)
    with pytest.raises(InputError, match="another command ended the takedown"):
        mill.forget(run, **ids("w3"), workers=1)
    assert mill.verify(run).digest == ended[1]
    again = mill.forget(run, **ids("w3"), workers=1)
    assert (again.is_done, again.ran) == (True, ())


def test_a_tokenizer_that_learned_from_them_learns_again(tmp_path: Path) -> None:
    word = marker("w3")
    make_corpus(tmp_path)
    records = [{"id": "w3", "text": f"{prose(3, 4)} " + f"{word} " * 60}]
    records += [{"id": f"w{n}", "text": text_of(f"w{n}", n)} for n in range(4, 12)]
    write_documents(tmp_path / "web-a.jsonl", records)
    recipe = make_recipe(
        tmp_path,
        dedup={"exact": True},
        split={"valid_fraction": "0.01"},
        tokenizer={"train": {"model": "byte_bpe", "vocab_size": 400}, "eos": "<|endoftext|>"},
        mixture={
            "weights": {"web": "0.5", "prose": "0.5"},
            "exhausted": "repeat",
            "tokens": 9000,
            "max_epochs": 9,
        },
        builds=BUILDS,
    )
    out = mill.run(recipe, workers=1).out
    model = out / "tokenizer/tokenizer.json"
    assert word[:8] in model.read_text(), "the tokenizer must have learned it, or this proves nothing"
    for path in sorted(tmp_path.glob("*.jsonl")):
        path.unlink()
    mill.forget(out, **ids("w3"), workers=1)
    assert word[:8] not in model.read_text()
    assert files_with(out, "w3") == set()
    assert mill.verify(out).problems == []


def test_a_domain_that_would_lose_all_and_has_a_share_is_refused_before_anything_is_done(
    tmp_path: Path,
) -> None:
    make_corpus(tmp_path)
    mixture = {"weights": {"web": "0.5", "prose": "0.5"}}
    recipe = make_recipe(tmp_path, mixture=mixture, builds=BUILDS[:1])
    out = mill.run(recipe, workers=1).out
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="no document of the domain web would be left") as raised:
        mill.forget(out, source="web", workers=1)
    assert "renormalize" in (raised.value.next or "")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    make_recipe(tmp_path, mixture={**mixture, "exhausted": "renormalize", "tokens": 900}, builds=BUILDS[:1])
    mill.run(recipe, workers=1)
    mill.forget(out, source="web", workers=1)
    assert mill.verify(out).problems == []


def test_samples_limits_and_fallbacks_stay_what_they_were(tmp_path: Path) -> None:
    """Nothing is drawn, or read on, in place of what went."""
    make_corpus(tmp_path)
    recipe = make_recipe(
        tmp_path,
        dedup={"exact": True},
        sources=[
            {
                "name": "web",
                "domain": "web",
                "files": "web-a.jsonl",
                "sample": {"method": "reservoir", "k": 5},
            },
            {
                "name": "books",
                "domain": "prose",
                "files": "books.jsonl",
                "limit": {"docs": 4},
                "fallback": "more",
            },
            {"name": "more", "domain": "prose", "files": "more.jsonl", "limit": {"docs": 6}},
        ],
        builds=BUILDS[:1],
    )
    out = mill.run(recipe, workers=1).out
    before = {
        name: [row["doc_id"] for row in rows_of(out, f"ingest/{name}", "documents")]
        for name in ("web", "books", "more")
    }
    gone = {before["web"][1], before["books"][2]}
    mill.forget(out, **ids(*sorted(gone)), workers=1)
    left = {name: [id for id in found if id not in gone] for name, found in before.items()}
    for _ in range(2):
        assert mill.verify(out).problems == []
        found = {
            name: [row["doc_id"] for row in rows_of(out, f"ingest/{name}", "documents")]
            for name in left
            if left[name]
        }
        assert found == {name: ids for name, ids in left.items() if ids}
        assert load_manifest(out / "ingest/web").counts["in"] == 12
        shutil.rmtree(out / "ingest")
        mill.run(recipe, out, workers=1)


def test_a_document_that_comes_back_by_another_way_is_found_by_verify(run: Path, pristine: Path) -> None:
    mill.forget(run, **ids("w3"), workers=1)
    listed = run / "forgotten.parquet"
    whole = pq.read_table(listed).to_pylist()
    more = {"source": "web", "id_sha256": hashlib.sha256(b"w4").hexdigest(), "parent": "?"}
    pq.write_table(pa.Table.from_pylist([*whole, more]), listed)
    assert not mill.verify(run).ok
    # and with every manifest made to agree, by the ids alone
    from tokmill.artifacts.step import open_artifact
    from tokmill.audit.proofs import find_forgotten

    artifacts = {}
    for path in run.rglob("manifest.json"):
        artifact = open_artifact(path.parent)
        assert artifact is not None
        artifacts[path.parent.relative_to(run).as_posix()] = artifact
    found = {problem.where: problem.what for problem in find_forgotten(run, artifacts)}
    assert found.pop("ingest/web") == "was made with another list of what is forgotten"
    assert {where.rpartition("/")[2].partition("-")[0] for where in found} == {"documents", "ids", "lengths"}


def test_what_quotes_documents_goes_and_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    hook = "def shouting(columns):\n    import numpy as np\n    return np.zeros(len(columns['text']))\n"
    (tmp_path / "hooks.py").write_text(hook)
    (tmp_path / "bench.jsonl").write_text(
        '{"text": "a benchmark of its own with many words in it that nobody has"}\n'
    )
    recipe = make_recipe(
        tmp_path,
        filters=[{"measure": "hooks.py:shouting", "max": 1}],
        dedup={"exact": True, "against": {"files": ["bench.jsonl"], "fields": ["text"]}},
        builds=BUILDS[:1],
    )
    out = mill.run(recipe, workers=1).out
    moved = shutil.move(out, tmp_path / "elsewhere" / "deep" / "run")
    run = Path(moved)
    (run / "report.html").write_text(f"<p>{marker('w3')}</p>")
    before = tree(run)
    with pytest.raises(InputError, match="is not part of it") as refused:
        mill.forget(run, **ids("w3"), workers=1)
    assert "--base" in refused.value.next
    assert tree(run) == before
    done = mill.forget(run, **ids("w3"), base=tmp_path, workers=1)
    assert done.removed == ("report.html",)
    assert files_with(run, "w3") == set()
    assert mill.verify(run).problems == []
    (tmp_path / "bench.jsonl").write_text('{"text": "another"}\n')
    with pytest.raises(InputError, match="is not the file that the run was made with"):
        mill.forget(run, **ids("w4"), base=tmp_path, workers=1)


def test_what_cannot_be_forgotten_is_an_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no document of the run is meant"):
        mill.forget(run, **ids("nobody"), workers=1)
    with pytest.raises(InputError, match="no source is called webb"):
        mill.forget(run, source="webb", workers=1)
    with pytest.raises(InputError, match="no document of the run is meant"):
        mill.forget(run, **ids("w3", source="books"), workers=1)
    (run / "manifest.json").unlink()
    with pytest.raises(StorageError, match="not the directory of a finished run"):
        mill.forget(run, **ids("w3"), workers=1)
    with pytest.raises(StorageError, match="not the directory of a finished run"):
        mill.forget(tmp_path / "nowhere", **ids("w3"), workers=1)
    assert not (tmp_path / "nowhere").exists()


def test_the_command_says_what_is_affected_and_proves_it_done(run: Path, tmp_path: Path) -> None:
    listed = tmp_path / "takedown.txt"
    listed.write_text('w3\n{"source": "books", "doc_id": "b1"}\n\n')
    dry = CliRunner().invoke(
        main, ["forget", str(run), "--doc-ids", str(listed), "--batch-size", "2", "--dry-run"]
    )
    assert dry.exit_code == 0, dry.output
    assert "selected: 2 documents" in dry.stdout
    assert "nothing was changed" in dry.stdout
    done = CliRunner().invoke(
        main, ["forget", str(run), "--doc-ids", str(listed), "--workers", "1", "--json"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["ok"], told["is_done"], told["affected"]["documents"]) == (True, True, 2)
    assert set(told) == {"ok", *Forgetting._fields}
    assert CliRunner().invoke(main, ["verify", str(run)]).exit_code == 0
    shown = CliRunner().invoke(main, ["trace", str(run), "--doc-id", "w3"])
    assert "forgotten" in shown.stdout
    listed.write_text("")
    assert "lists no id" in CliRunner().invoke(main, ["forget", str(run), "--doc-ids", str(listed)]).stderr
    assert "needs --doc-id, --doc-ids" in CliRunner().invoke(main, ["forget", str(run)]).stderr


# Ends as if by SIGKILL, at once and wherever it is: nobody handles this signal.
FOR_A_TIME = """
import signal, sys
signal.setitimer(signal.ITIMER_REAL, float(sys.argv.pop(1)))
from tokmill.cli import main
main()
"""
KILLS = 4


def forget_for(seconds: float, run: Path) -> int:
    arguments = [str(seconds), "forget", str(run), "--source", "web", "--workers", "1", "--json"]
    return run_forked(arguments, os.environ, code=FOR_A_TIME).returncode


def test_a_takedown_killed_at_any_moment_goes_on_and_never_looks_done(run: Path, tmp_path: Path) -> None:
    quiet = shutil.copytree(run, tmp_path / "quiet")
    assert run_forked(["verify", str(quiet)], os.environ).returncode == 0
    began = time.monotonic()
    assert forget_for(600, quiet) == 0
    seconds = time.monotonic() - began
    expected = mill.verify(quiet).digest
    chance, kills, whole = random.Random(3), 0, 0
    rough = shutil.copytree(run, tmp_path / "rough-0")
    while kills < KILLS:
        status = forget_for(chance.uniform(0.01, seconds), rough)
        if status == 0:
            assert mill.verify(rough).digest == expected
            whole += 1
            rough = shutil.copytree(run, tmp_path / f"rough-{whole}")
            continue
        assert status == -signal.SIGALRM
        kills += 1
        if (rough / "manifest.json").is_file() and mill.verify(rough).ok:
            has_begun = (rough / "forgotten.parquet").is_file()
            assert files_with(rough, "w3") == set() if has_begun else files_with(rough, "w3")
    mill.forget(rough, source="web", workers=1)
    assert mill.verify(rough).problems == []
    assert mill.verify(rough).digest == expected
    assert files_with(rough, "w3") == set()
    assert not (rough / "forgetting.json").exists()


def test_a_takedown_cut_short_is_ended_before_another_and_by_the_recipe_too(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path)
    for name in ("forget", "recipe"):
        out = shutil.copytree(pristine, tmp_path / "out" / name)
        with monkeypatch.context() as patch:
            patch.setattr("tokmill.stages.registry.FUNCTIONS", _failing_at("dedup.verdicts"))
            with pytest.raises(RuntimeError, match="pulled the plug"):
                mill.forget(out, **ids("w3"), workers=1)
        problems = {problem.what for problem in mill.verify(out).problems}
        assert any("takedown was cut short" in what for what in problems)
        if name == "forget":
            mill.forget(out, **ids("w4"), workers=1)
            assert files_with(out, "w4") == set()
        else:
            mill.run(recipe, out, workers=1)
        assert files_with(out, "w3") == set()
        assert mill.verify(out).problems == []


def _failing_at(function: str) -> dict[str, Any]:
    from tokmill.stages.registry import FUNCTIONS

    def fail(task: Any) -> Any:
        raise RuntimeError("pulled the plug")

    return {**FUNCTIONS, function: replace(FUNCTIONS[function], perform=fail)}


def test_tokens_are_those_of_the_documents_that_are_left(run: Path) -> None:
    mill.forget(run, **ids("w3", "b0"), workers=1)
    sequences = MegatronFile(run / "build/mega/train/tokens")
    texts = {
        row["doc_id"]: row["text"]
        for s in ("web", "books", "more")
        for row in rows_of(run, f"ingest/{s}", "documents")
    }
    assert "w3" not in texts
    lengths = [load_table(path) for path in sorted(run.glob("tokens/train/*/lengths-*.parquet"))]
    assert sum(table.num_rows for table in lengths) == len(sequences)
    assert not {"w3", "b0"} & {id for table in lengths for id in table.column("doc_id").to_pylist()}


def test_ids_can_be_typed_one_by_one_and_beside_a_file(run: Path, pristine: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("w5\n")
    asked = ["--doc-id", "w3", "--doc-id", "short", "--doc-ids", str(tmp_path / "ids.txt")]
    command = ["forget", str(run), *asked, "--workers", "1"]
    foreseen = CliRunner().invoke(main, [*command, "--dry-run"])
    assert foreseen.stdout.startswith("selected: 3 documents\n  web: 3 documents in 2 shards\n")
    assert foreseen.stdout.endswith("nothing was changed\n")
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    for name in ("w3", "short", "w5"):
        assert files_with(pristine, name)
        assert files_with(run, name) == set()
    assert mill.forget(run, doc_id="w3", workers=1).affected["already"] == 1
    of_another = CliRunner().invoke(main, ["forget", str(run), "--doc-id", "w4", "--source", "books"])
    assert of_another.exit_code == 1
    assert "no document of the run is meant" in of_another.stderr


@pytest.mark.parametrize("asked", [[], ["--doc-id", "w3", "--license", "MIT"]])
def test_nothing_or_ids_beside_a_licence_are_refused(run: Path, asked: list[str]) -> None:
    before = tree(run)
    refused = CliRunner().invoke(main, ["forget", str(run), *asked])
    assert refused.exit_code == 1
    assert "needs --doc-id, --doc-ids, --source or --license, and no ids beside --license" in refused.stderr
    assert tree(run) == before


@pytest.mark.parametrize("source", [None, "web"])
def test_a_list_without_an_id_is_not_everything(run: Path, source: str | None) -> None:
    before = tree(run)
    with pytest.raises(InputError, match="lists no id"):
        mill.forget(run, doc_ids=[], source=source, workers=1)
    assert tree(run) == before


def small_run(directory: Path, **sections: Any) -> tuple[Path, Path]:
    """A run of one build, and its recipe."""
    make_corpus(directory)
    recipe = make_recipe(directory, **{"dedup": {"exact": True}, "builds": BUILDS[:1], **sections})
    return mill.run(recipe, workers=1).out, recipe


def test_a_run_that_was_made_anew_only_in_part_is_proven_after_a_takedown(tmp_path: Path) -> None:
    out, recipe = small_run(tmp_path, dedup={"exact": True, "near": {"threshold": "0.7"}})
    make_recipe(tmp_path, dedup={"exact": True}, builds=BUILDS[:1])
    mill.run(recipe, workers=1, until="dedup")
    mill.forget(out, **ids("w3"), workers=1)
    assert mill.verify(out).problems == []
    assert files_with(out, "w3") == set()
    listed = {Path(entry.path).parent for entry in load_manifest(out).files if entry.table == "manifest"}
    assert {path.parent.relative_to(out) for path in out.rglob("manifest.json")} == {Path(), *listed}


def test_no_kind_of_step_stays_behind_when_the_recipe_no_longer_has_it(tmp_path: Path) -> None:
    from tokmill.pipeline.run_manifest import _remove_former
    from tokmill.stages.registry import STAGES

    kinds = [kind for kind in STAGES if kind != "index"]  # that is never in the directory of a run
    for kind in kinds:
        for directory in (tmp_path / kind, tmp_path / kind / "one"):
            (directory / "receipts").mkdir(parents=True)
    _remove_former(tmp_path, [], keep=False)
    left = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("receipts")}
    assert {kind for kind in kinds if {kind, f"{kind}/one"} <= left} == set()


SITE = {"name": "site", "domain": "web", "files": "web-*.jsonl"}
BOOKS = {"name": "books", "domain": "prose", "files": "books.jsonl"}


def test_a_source_that_is_renamed_brings_nothing_back(tmp_path: Path) -> None:
    out, recipe = small_run(tmp_path)
    mill.forget(out, **ids("w3", "short"), workers=1)
    settings: dict[str, Any] = {"dedup": {"exact": True}, "builds": BUILDS[:1]}
    make_recipe(tmp_path, sources=[SITE, BOOKS], **settings)
    foreseen = list(mill.plan(recipe).steps)
    assert pq.read_table(out / "forgotten.parquet").column("source").to_pylist() == ["web", "web"]
    told = CliRunner().invoke(main, ["run", str(recipe), "--workers", "1"])
    assert told.exit_code == 0
    assert "site: 2 ids that were forgotten in web, which is no source any more, are left out" in told.stderr
    assert mill.plan(recipe).steps == {name: [] for name in foreseen}
    read = {row["doc_id"] for row in rows_of(out, "ingest/site", "documents")}
    assert read == {f"w{n}" for n in range(12)} - {"w3"} | {"edited", "first", "second", "quoting"}
    assert files_with(out, "w3") == files_with(out, "short") == set()
    assert mill.verify(out).problems == []
    assert {one.outcome for one in traced_documents(out, "w3")} == {"forgotten"}
    # again, from the sources, and under the old name: of one that was taken down under the new name too
    assert mill.run(recipe, workers=1).ran == []
    mill.forget(out, **ids("w5", source="site"), workers=1)
    make_recipe(tmp_path, sources=[BOOKS, {**SITE, "name": "web"}], **settings)
    shutil.rmtree(out / "ingest/site")
    mill.run(recipe, workers=1)
    assert files_with(out, "w3") == files_with(out, "w5") == set()
    assert mill.verify(out).problems == []
    assert mill.run(recipe, workers=1).ran == []


def test_a_source_that_goes_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    """Whoever really dropped it makes nothing again, and loses no document of a source that was there."""
    out, recipe = small_run(tmp_path)
    mill.forget(out, **ids("b3"), workers=1)
    web, more = {**SITE, "name": "web"}, {**BOOKS, "name": "more", "files": "more.jsonl"}
    make_recipe(tmp_path, sources=[web, more], dedup={"exact": True}, builds=BUILDS[:1])
    before = pq.read_table(out / "forgotten.parquet")
    done = mill.run(recipe, workers=1)
    assert [name for name in done.ran if name.startswith(("ingest/", "clean/"))] == []
    assert pq.read_table(out / "forgotten.parquet").equals(before)
    assert mill.verify(out).problems == []


def test_the_same_id_in_a_source_that_was_there_is_another_document(tmp_path: Path) -> None:
    """Ids that are numbers are in every source: when one goes, the others lose nothing."""
    out, recipe = small_run(tmp_path)
    mill.forget(out, **ids("b3"), workers=1)
    more = [json.loads(line) for line in (tmp_path / "more.jsonl").read_text().splitlines()]
    other = {
        **more[0],
        "id": "b3",
        "text": "Another text, which nobody asked to be taken down, of other words.",
    }
    write_documents(tmp_path / "more.jsonl", [*more, other])
    web, rest = {**SITE, "name": "web"}, {**BOOKS, "name": "more", "files": "more.jsonl"}
    make_recipe(tmp_path, sources=[web, rest], dedup={"exact": True}, builds=BUILDS[:1])
    mill.run(recipe, workers=1)
    assert mill.verify(out).problems == []
    assert any(b"nobody asked" in data for path, data in contents(out) if path.startswith("ingest/more"))


def test_a_dry_run_beside_another_takedown_that_is_not_done_tells_of_that_one(tmp_path: Path) -> None:
    out, recipe = small_run(tmp_path)
    kept = load_manifest(out / "dedup").counts["kept"]
    make_recipe(
        tmp_path,
        dedup={"exact": True},
        builds=BUILDS[:1],
        split={"method": "counts", "counts": {"train": kept - 6, "valid": 6}},
    )
    mill.run(recipe, workers=1)
    with pytest.raises(InputError):
        mill.forget(out, **ids("w3"), workers=1)
    same = mill.forget(out, **ids("w3"), dry_run=True, batch_size=4)
    assert (same.affected["documents"], list(same.affected["sources"])) == (1, ["web"])
    before = tree(out)
    for name in ("b1", "nobody"):
        with pytest.raises(InputError, match="another takedown is not done") as raised:
            mill.forget(out, **ids(name), dry_run=True)
        assert "1 document of web" in raised.value.what
    assert tree(out) == before


def test_an_id_is_forgotten_already_only_in_the_source_it_was_forgotten_in(run: Path) -> None:
    mill.forget(run, **ids("b0", source="books"), workers=1)
    with pytest.raises(InputError, match="no document of the run is meant"):
        mill.forget(run, **ids("b0", source="web"), workers=1)
    for asked, counts in (
        ([("books", "w3"), ("web", "w3")], (1, 1, 0)),
        ([("books", "b0"), ("web", "b0"), (None, "b0"), ("more", "m1")], (1, 1, 2)),
        ([(None, "w3"), ("web", "w3"), (None, "nobody")], (1, 1, 0)),
    ):
        told = mill.forget(run, doc_ids=asked, dry_run=True).affected
        assert (told["documents"], told["not_found"], told["already"]) == counts
    assert mill.forget(run, **ids("b0"), dry_run=True).is_done


def test_documents_of_builds_are_counted_once_however_often_they_are_repeated(tmp_path: Path) -> None:
    mixture = {
        "weights": {"web": "0.5", "prose": "0.5"},
        "exhausted": "repeat",
        "tokens": 30000,
        "max_epochs": 9,
    }
    out, _ = small_run(tmp_path, mixture=mixture, split={"valid_fraction": "0.01"})
    names = ("b0", "b1", "b2", "w3")
    tokens = (out / "build/rows/train/input_ids.mmap").read_bytes()
    copies = {name: max(tokens.count(needle) for needle in needles(name)) for name in names}
    assert max(copies.values()) > 1, "a document must be repeated, or this proves nothing"
    (told,) = mill.forget(out, **ids(*names), dry_run=True).affected["builds"]
    assert told["documents"] == len(names)
    assert told["turns"] >= sum(copies.values())


def test_the_words_of_the_texts_before_are_no_longer_in_the_cache_of_the_explorer(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokmill.audit.places import open_places
    from tokmill.explorer.text_index import build_index

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = tmp_path / "cache/tokmill/explore"
    kept.mkdir(parents=True)
    (kept / "another.trigrams").write_bytes(b"of another run")
    build_index(open_places(run), lambda share: None, lambda: False)
    (ours,) = {path.name for path in kept.iterdir()} - {"another.trigrams"}
    mill.forget(run, **ids("w3"), dry_run=True)
    assert (kept / ours).is_file()
    done = mill.forget(run, **ids("w3"), workers=1)
    assert [path.name for path in kept.iterdir()] == ["another.trigrams"]
    assert done.removed == (str(kept / ours),)
    assert mill.verify(run).problems == []


def test_keys_that_were_set_are_still_told_after_a_takedown(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path, dedup={"exact": True}, builds=BUILDS[:1])
    out = mill.run(recipe, workers=1, set={"split.valid_fraction": "0.3"}).out
    told = load_manifest(out).environment["set"]
    assert list(told) == ["split.valid_fraction"]
    mill.forget(out, **ids("w3"), workers=1)
    assert load_manifest(out).environment["set"] == told
