"""Manifests: every edit is seen, every change is explained, every document is accounted for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.artifacts.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    Receipt,
    add_counts,
    build_manifest,
    check_conservation,
    explain_changes,
    fingerprint_of,
    identity_of,
    load_manifest,
    load_receipts,
    step_fingerprint,
    sum_counts,
    write_manifest,
    write_receipt,
)
from tokmill.errors import ConservationBroken, ManifestDamaged, StorageError

ENTRY = FileEntry(
    path="marks-00000.parquet", table="marks", bytes=120, rows=3, sha256="5" * 64, content_sha256="c" * 64
)
COUNTS = {"in": 4, "kept": 3, "dropped": {"too_short": 1}, "quarantined": {}}


def receipt(key: str = "00000", **changes: Any) -> Receipt:
    made = Receipt(key=key, fingerprint=f"f-{key}", files=[ENTRY], counts=COUNTS, facts={"ids": "é\u2028"})
    return msgspec.structs.replace(made, **changes)


def manifest(**changes: Any) -> Manifest:
    given: dict[str, Any] = {
        "kind": "clean",
        "step": "clean/web",
        "config": {"unicode": "NFC", "filters": [{"min": 5}]},
        "inputs": {"step ingest/web": "1" * 64},
        "receipts": [receipt()],
        "counts": COUNTS,
        "facts": {},
        "experiment_id": "0123456789abcdef",
        "environment": {"created_at": "2026-01-01T00:00:00+00:00", "workers": 2},
    }
    return build_manifest(**{**given, **changes})


def written(directory: Path) -> bytes:
    write_manifest(directory, manifest())
    return (directory / MANIFEST).read_bytes()


def assert_refused(directory: Path, data: bytes) -> None:
    (directory / MANIFEST).write_bytes(data)
    with pytest.raises(ManifestDamaged) as caught:
        load_manifest(directory)
    assert caught.value.where == str(directory / MANIFEST)
    assert caught.value.next


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())
    assert load_manifest(tmp_path) == manifest()
    assert load_manifest(tmp_path).receipts() == [receipt()]
    assert load_manifest(tmp_path).entries("marks") == [ENTRY]
    assert load_manifest(tmp_path).entries("ledger") == []


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=5,
        ),
        max_size=4,
    )
)
def test_any_config_and_facts_survive_the_round_trip(tmp_path_factory: Any, tree: dict[str, Any]) -> None:
    directory = tmp_path_factory.mktemp("artifact")
    whole = manifest(config=tree, facts=tree, environment=tree)
    write_manifest(directory, whole)
    assert load_manifest(directory) == whole


def test_no_byte_of_a_manifest_can_be_changed(tmp_path: Path) -> None:
    data = written(tmp_path)
    for position, byte in enumerate(data):
        flipped = byte ^ (1 << position % 8)
        assert_refused(tmp_path, data[:position] + bytes([flipped]) + data[position + 1 :])


def test_no_space_of_a_manifest_can_become_another_kind_of_space(tmp_path: Path) -> None:
    data = written(tmp_path)
    for position, byte in enumerate(data):
        if byte in b" \n":
            assert_refused(tmp_path, data[:position] + b"\t" + data[position + 1 :])


def test_no_byte_of_a_manifest_can_be_left_out_or_added(tmp_path: Path) -> None:
    data = written(tmp_path)
    for position in range(0, len(data), 5):
        assert_refused(tmp_path, data[:position])
        assert_refused(tmp_path, data[:position] + data[position + 1 :])
        assert_refused(tmp_path, data[:position] + b" " + data[position:])
    assert_refused(tmp_path, data + b"\n")


def edited(data: bytes, change: Callable[[dict[str, Any]], object], **layout: Any) -> bytes:
    body = json.loads(data)
    change(body)
    return json.dumps(body, ensure_ascii=False, **{"indent": 1, **layout}).encode() + b"\n"


def test_a_manifest_is_laid_out_as_the_standard_library_does(tmp_path: Path) -> None:
    data = written(tmp_path)
    assert edited(data, lambda body: None) == data


def test_a_manifest_laid_out_in_another_way_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path)
    assert edited(data, lambda body: None) == data
    for layout in ({"indent": 2}, {"indent": None}, {"separators": (",", ":")}, {"sort_keys": True}):
        assert_refused(tmp_path, edited(data, lambda body: None, **layout))
    assert_refused(tmp_path, edited(data, lambda body: body.update(kind=body.pop("kind"))))
    assert_refused(
        tmp_path, edited(data, lambda body: body["counts"].update({"in": body["counts"].pop("in")}))
    )
    assert_refused(tmp_path, data.replace("é".encode(), b"\\u00e9"))
    assert_refused(tmp_path, data.replace(b"\n", b"\r\n"))
    assert_refused(tmp_path, b"\xef\xbb\xbf" + data)
    assert_refused(tmp_path, data.decode().encode("utf-16"))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["counts"].update(kept=2),
        lambda body: (body["counts"].update(kept=4), body["files"][0].update(rows=4, bytes=160)),
        lambda body: body["files"][0].update(bytes=121),
        lambda body: body["files"].append({**body["files"][0], "path": "other.parquet"}),
        lambda body: body["files"].clear(),
        lambda body: body["tasks"][0].update(fingerprint="other"),
        lambda body: body["config"].update(unicode="NFKC"),
        lambda body: body["environment"].update(workers=3),
        lambda body: body["environment"].clear(),
        lambda body: body.update(environment={}),
        lambda body: body.update(seal=body["digest"]),
        lambda body: body.update(note="harmless"),
        lambda body: body["files"][0].update(note="harmless"),
    ],
)
def test_an_edited_manifest_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    assert_refused(tmp_path, edited(written(tmp_path), change))


def test_files_that_were_swapped_are_seen_even_under_a_recomputed_digest_and_seal(tmp_path: Path) -> None:
    def forge(body: dict[str, Any]) -> None:
        body["files"][0]["content_sha256"] = "d" * 64
        rest = {key: body[key] for key in body if key not in ("digest", "seal", "environment")}
        body["digest"] = fingerprint_of(rest)
        body["seal"] = fingerprint_of({"digest": body["digest"], "environment": body["environment"]})

    assert_refused(tmp_path, edited(written(tmp_path), forge))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff" * 100,
        b"[" * 200_000,
        b'{"kind": "x", "config": {"a": ' + b"[" * 200_000,
        b'{"kind": "\\ud800"}',
    ],
)
def test_what_is_no_manifest_at_all_is_refused_in_words(tmp_path: Path, data: bytes) -> None:
    assert_refused(tmp_path, data)


def test_a_manifest_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        load_manifest(tmp_path)
    assert caught.value.where == str(tmp_path / MANIFEST)


def test_the_digest_covers_everything_but_the_environment(tmp_path: Path) -> None:
    one, other = manifest(), manifest(environment={"workers": 64})
    assert (one.digest, one.identity, one.fingerprint) == (other.digest, other.identity, other.fingerprint)
    assert one.seal != other.seal
    assert manifest(facts={"vocab_size": 1}).digest != one.digest
    assert manifest(experiment_id="other").digest != one.digest


def test_a_fingerprint_changes_with_kind_config_and_inputs_and_with_nothing_else() -> None:
    config, inputs = {"a": 1, "b": {"c": [1, 2], "d": None}}, {"x": "1", "y": "2"}
    fingerprint = step_fingerprint("clean", config, inputs)
    backwards = {"b": {"d": None, "c": [1, 2]}, "a": 1}
    assert step_fingerprint("clean", backwards, dict(reversed(inputs.items()))) == fingerprint
    others = [
        step_fingerprint("ingest", config, inputs),
        step_fingerprint("clean", {**config, "a": 2}, inputs),
        step_fingerprint("clean", {**config, "a": True}, inputs),
        step_fingerprint("clean", {**config, "e": None}, inputs),
        step_fingerprint("clean", {**config, "b": {"c": [2, 1], "d": None}}, inputs),
        step_fingerprint("clean", config, {**inputs, "x": "2"}),
        step_fingerprint("clean", config, {"x": "2", "y": "1"}),
        step_fingerprint("clean", config, {"x": "1"}),
        step_fingerprint("clean", inputs, config),
    ]
    assert len({fingerprint, *others}) == 1 + len(others)


def test_a_number_that_json_cannot_hold_has_no_fingerprint() -> None:
    with pytest.raises(ValueError):
        fingerprint_of({"share": float("nan")})


def test_identity_is_content_and_not_compressed_bytes() -> None:
    def identity(**changes: Any) -> str:
        return identity_of("clean", [msgspec.structs.replace(ENTRY, **changes)])

    assert identity(sha256="6" * 64) == identity()
    assert identity(bytes=7) == identity()
    others = [identity(content_sha256="d" * 64), identity(rows=4), identity(path="other")]
    others.append(identity_of("ingest", [ENTRY]))
    others.append(identity_of("clean", [ENTRY, msgspec.structs.replace(ENTRY, path="z")]))
    assert len({identity(), *others}) == 1 + len(others)


def test_identity_does_not_depend_on_the_order_in_which_files_are_listed() -> None:
    files = [msgspec.structs.replace(ENTRY, path=path) for path in "abc"]
    assert identity_of("clean", files) == identity_of("clean", files[::-1])


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({"near": {"bands": 14}}, {"near": {"bands": 20}}, ["`dedup.near.bands` changed 14 → 20"]),
        ({"a": 1}, {"a": 1, "b": "x"}, ["`dedup.b` added: x"]),
        ({"a": 1, "b": [1]}, {"a": 1}, ["`dedup.b` removed (was [1])"]),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ["`dedup.a[1].b` changed 2 → 3"]),
        ({"a": [1]}, {"a": [1, 2]}, ["`dedup.a[1]` added: 2"]),
        ({"a": {"b": 1}}, {"a": None}, ['`dedup.a` removed (was {"b": 1})']),
        ({"a": 1, "c": 3}, {"a": 2, "b": 0, "c": 3}, ["`dedup.a` changed 1 → 2", "`dedup.b` added: 0"]),
        ({"a": "x" * 99}, {"a": "short"}, [f"`dedup.a` changed {'x' * 57}… → short"]),
        ({"a": [{}, []]}, {"a": [{}, []]}, []),
    ],
)
def test_changes_are_explained_key_by_key(old: Any, new: Any, lines: list[str]) -> None:
    assert explain_changes(old, new, "dedup") == lines


def test_changes_at_the_top_have_plain_names() -> None:
    assert explain_changes({"seed": 1}, {"seed": 2}) == ["`seed` changed 1 → 2"]


TREES = st.recursive(
    st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=150)
@given(TREES, TREES)
def test_two_configs_are_equal_exactly_when_nothing_is_explained(old: Any, new: Any) -> None:
    assert (explain_changes(old, new, "x") == []) == (old == new)
    assert explain_changes(old, old, "x") == []


@pytest.mark.parametrize(
    "counts",
    [
        {"in": 0, "kept": 0},
        {"in": 3, "kept": 3, "dropped": {}, "quarantined": {}},
        {"in": 9, "kept": 3, "dropped": {"a": 2, "b": 1}, "quarantined": {"c": 3}},
    ],
)
def test_counts_that_add_up_pass(counts: dict[str, Any]) -> None:
    check_conservation(counts, where="clean")


@pytest.mark.parametrize(
    "counts",
    [
        {"in": 1, "kept": 0},
        {"in": 0, "kept": 1},
        {"in": 9, "kept": 3, "dropped": {"a": 2}, "quarantined": {"c": 3}},
        {"in": 3, "kept": 3, "dropped": {"a": 1}, "quarantined": {}},
    ],
)
def test_a_document_that_is_lost_or_made_up_stops_the_run(counts: dict[str, Any]) -> None:
    with pytest.raises(ConservationBroken) as caught:
        check_conservation(counts, where="clean/web")
    assert caught.value.where == "clean/web"
    assert f"{counts['in']} documents went in" in caught.value.what


def test_counts_add_up_branch_by_branch() -> None:
    total = {"in": 1, "dropped": {"a": 1}}
    assert add_counts(total, {"in": 2, "kept": 1, "dropped": {"a": 1, "b": 5}}) == {
        "in": 3,
        "kept": 1,
        "dropped": {"a": 2, "b": 5},
    }
    assert total == {"in": 1, "dropped": {"a": 1}}


COUNT_TREES = st.fixed_dictionaries(
    {"in": st.integers(0, 9)},
    optional={
        "dropped": st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
        "kept": st.integers(0, 9),
    },
)


@settings(deadline=None, max_examples=100)
@given(st.lists(COUNT_TREES, max_size=4), st.randoms(use_true_random=False))
def test_the_sum_of_receipts_does_not_depend_on_their_order(trees: list[Any], random: Any) -> None:
    shuffled = list(trees)
    random.shuffle(shuffled)
    total = sum_counts(receipt(counts=tree) for tree in trees)
    assert total == sum_counts(receipt(counts=tree) for tree in shuffled)
    assert total.get("in", 0) == sum(tree["in"] for tree in trees)


def test_receipts_come_back_sorted_and_one_that_cannot_be_read_is_absent(tmp_path: Path) -> None:
    assert load_receipts(tmp_path) == []
    for key in ("00002", "00000", "00001"):
        write_receipt(tmp_path, receipt(key))
    broken = tmp_path / "receipts" / "00001.json"
    for data in (broken.read_bytes()[:-9], b"", b"{}", b"\xff", b'{"counts": ' + b"[" * 200_000):
        broken.write_bytes(data)
        assert load_receipts(tmp_path) == [receipt("00000"), receipt("00002")]
