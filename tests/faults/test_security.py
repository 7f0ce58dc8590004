"""What SECURITY.md says of the code, checked in the code."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import tokmill
from tokmill.artifacts.manifest import FileEntry, Receipt, build_manifest, load_manifest, write_manifest
from tokmill.artifacts.snapshot import SnapshotShard, build_snapshot, load_snapshot, write_snapshot
from tokmill.errors import TokmillError
from tokmill.formats.parquet import load_shards
from tokmill.formats.token_cache import TokenCache

SOURCE = Path(tokmill.__file__).parent
OUTSIDE = ["../secret", "/etc/passwd", "a/../../secret", "..", ""]

# Code that is made of text runs in one place: the user's own hook,
# a file beside the recipe whose sha256 is recorded.
RUNS_TEXT = {"artifacts/hooks.py"}
STARTS_PROCESSES = {
    "engines/forking.py",
    "artifacts/manifest.py",  # git rev-parse HEAD, with fixed arguments
    "kernels/warm.py",  # this Python, to compile kernels of ours
    "storage/relay.py",  # this Python, to read object stores for a forked process
    "engines/slurm_jobs.py",  # sbatch, squeue, scancel, scontrol, with the user's own options
    "sources/pdftext.py",  # this Python, to read PDFs where a crash does no harm
}
UNPICKLES: set[str] = set()


@functools.cache
def modules() -> list[tuple[str, ast.Module]]:
    paths = sorted(SOURCE.rglob("*.py"))
    return [(path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text("utf-8"))) for path in paths]


@functools.cache
def calls() -> list[tuple[str, set[str]]]:
    """Of each module, what it calls."""
    return [
        (module, {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)})
        for module, tree in modules()
    ]


def users_of(*names: str) -> set[str]:
    return {module for module, called in calls() if called & set(names)}


def importers_of(*names: str) -> set[str]:
    found = set()
    for module, tree in modules():
        for node in ast.walk(tree):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                imported = [node.module or ""]
            if any(name.partition(".")[0] in names for name in imported):
                found.add(module)
    return found


def test_nothing_is_unpickled() -> None:
    assert importers_of("pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal") == UNPICKLES
    assert users_of("np.load", "numpy.load", "torch.load", "pd.read_pickle") == set()


def test_no_text_is_run_but_the_users_own_hook() -> None:
    assert users_of("eval", "exec", "compile", "builtins.eval", "builtins.exec") == RUNS_TEXT


def test_no_process_is_started_from_input() -> None:
    assert importers_of("subprocess", "pty", "commands") <= STARTS_PROCESSES
    assert users_of("os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv") == set()
    for _, tree in modules():
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.keyword) and node.arg == "shell")


@pytest.mark.parametrize("has_object", [True, False])
def test_a_repository_runs_nothing_by_what_its_config_names(
    tmp_path: Path, has_object: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe that came with a `.git` of somebody else's."""
    place, marker, evil = tmp_path / "place", tmp_path / "marker", tmp_path / "evil.sh"
    place.mkdir()
    evil.write_text(f'#!/bin/sh\necho "$0 $*" >> {marker}\nexit 1\n')
    evil.chmod(0o755)
    for hook in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
        (tmp_path / "hooks" / hook).parent.mkdir(exist_ok=True)
        (tmp_path / "hooks" / hook).symlink_to(evil)
    (place / "git").symlink_to(evil)
    (place / "a.txt").write_text("text\n")
    (place / "recipe.yaml").write_text("name: a\nsources: [{name: s, files: a.txt}]\n")
    (place / ".gitattributes").write_text("* filter=e diff=e\n")
    git = ("git", "-C", place, "-c", "user.name=M", "-c", "user.email=m@e.org", "-c", "commit.gpgsign=false")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *command], check=True)
    (place / "a.txt").write_text("another text\n")
    if not has_object:
        (head,) = (place / ".git/refs/heads").iterdir()
        head.write_text(f"{'1' * 40}\n")
    settings = {
        "core.fsmonitor": evil,
        "core.pager": evil,
        "pager.rev-parse": "true",
        "core.editor": evil,
        "core.sshCommand": evil,
        "core.alternateRefsCommand": evil,
        "core.hooksPath": tmp_path / "hooks",
        "core.repositoryFormatVersion": 1,
        "filter.e.clean": evil,
        "filter.e.smudge": evil,
        "filter.e.process": evil,
        "diff.e.textconv": evil,
        "diff.external": evil,
        "alias.rev-parse": f"!{evil}",
        "extensions.partialClone": "e",
        "remote.e.promisor": "true",
        "remote.e.url": f"ext::{evil}",
        "protocol.ext.allow": "always",
    }
    for name, value in settings.items():
        subprocess.run(["git", "config", "-f", place / ".git/config", name, str(value)], check=True)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.environ['PATH']}")
    tokmill.run(place / "recipe.yaml", tmp_path / "out", workers=1, until="ingest")
    assert not marker.exists(), marker.read_text()
    subprocess.run([*git, "status"], check=False, capture_output=True, stdin=subprocess.DEVNULL)
    assert marker.exists()  # by these settings a command that looks at files does run something


def test_no_remote_code_is_asked_for() -> None:
    """It may be refused in so many words: without them transformers asks the user of a terminal."""
    for module, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert ast.unparse(node.value) == "False", module


def test_yaml_is_read_without_python_tags(tmp_path: Path) -> None:
    assert users_of("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all") == set()
    (tmp_path / "recipe.yaml").write_text("name: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(TokmillError, match=r"recipe\.yaml"):
        tokmill.load_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    "template", ["{a.__class__}", "{a[b]}", "{a!r}", "{a:>1000000000}", "{0.x}", "{a{b}}", "{}"]
)
def test_a_template_names_fields_and_nothing_else(template: str) -> None:
    with pytest.raises(ValueError, match="template"):
        tokmill.Source(name="s", files=["a.jsonl"], template=template)


def of_container(directory: Path, path: str) -> object:
    shard = SnapshotShard(path=path, bytes=1, rows=1, chars=1, tokens=1, sha256="0", content_sha256="0")
    write_snapshot(
        directory / "c.json", build_snapshot("container", "a", "b", {}, [shard], tokens_are_estimated=True)
    )
    return load_snapshot(directory / "c.json")


def of_manifest(directory: Path, path: str) -> object:
    entry = FileEntry(path=path, table="t", bytes=1, rows=1, sha256="0", content_sha256="0")
    receipt = Receipt(key="k", fingerprint="f", files=[entry], counts={})
    parts = {"config": {}, "inputs": {}, "counts": {}, "facts": {}, "environment": {}, "experiment_id": "e"}
    write_manifest(directory, build_manifest(kind="split", step="split", receipts=[receipt], **parts))  # type: ignore[arg-type]
    return load_manifest(directory)


def of_token_cache(directory: Path, path: str) -> object:
    part = {"file": path, "examples": 1, "tokens": 1, "sha256": "0"}
    meta = {"model": "m", "model_sha256": "0", "vocab_size": 9, "experiment_id": "e", "char_coverage": None,
            "byte_fallback": None, "normalization": {}, "eos_id": 0, "examples": 1, "tokens": 1,
            "parts": [part]}  # fmt: skip
    (directory / "ENCODE.meta.json").write_text(json.dumps(meta))
    return TokenCache(directory)


def of_parquet(directory: Path, path: str) -> object:
    shard = {"file": path, "rows": 1, "tokens": 1, "content_sha256": "0"}
    meta = {"n_seqs": 1, "n_tokens": 1, "rows_per_shard": 1, "shards": [shard]}
    (directory / "meta.json").write_text(json.dumps(meta))
    return load_shards(directory)


@pytest.mark.parametrize("read", [of_container, of_manifest, of_token_cache, of_parquet])
def test_a_listed_path_stays_in_its_directory(tmp_path: Path, read: Callable[[Path, str], object]) -> None:
    assert read(tmp_path, "within/a.bin")
    for path in OUTSIDE:
        with pytest.raises(TokmillError):
            read(tmp_path, path)
