"""`tokmill normalize` and `tokmill filter`: JSONL.zst in, JSONL.zst out, every document accounted for."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cleaned import prose
from tokmill.cli import main
from written import ZstdFile

MAIL = "ann.lee@brook-mill.net"
TEXTS = {
    "good": prose(1),
    "short": "Too short.",
    "page": "Home\n" + prose(2) + "\nWe use cookies here.",
    "brace": prose(3) + " It is {curly}.",
    "mail": prose(4) + f" Ask {MAIL} now.",
    "empty": "",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """data/a.jsonl.zst and data/b.jsonl.zst, with the documents of TEXTS dealt to both."""
    for name, chosen in (("a", list(TEXTS)[::2]), ("b", list(TEXTS)[1::2])):
        lines = [
            json.dumps({"id": doc_id, "text": TEXTS[doc_id], "license": "mit", "meta": {"from": name}}) + "\n"
            for doc_id in chosen
        ]
        (tmp_path / "data").mkdir(exist_ok=True)
        with ZstdFile(tmp_path / f"data/{name}.jsonl.zst", "w") as file:
            file.write("".join(lines).encode())
    return tmp_path / "data"


def tokmill(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [*map(str, arguments), "--workers", "1"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def done(*arguments: str | Path) -> Any:
    result = tokmill(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def load_lines(path: Path) -> list[dict[str, Any]]:
    with ZstdFile(path) as file:
        return [json.loads(line) for line in file]


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def check(directory: Path, totals: dict[str, Any], *, seed: int, domain: str) -> list[dict[str, Any]]:
    """Manifests, shards and decisions must say the same; returns the kept documents."""
    assert not (directory / ".work").exists()
    manifests = [json.loads(path.read_bytes()) for path in sorted(directory.glob("*.manifest.json"))]
    names = {manifest["shard_path"] for manifest in manifests}
    written = {path.name for path in directory.iterdir()}
    expected = {f"files-{n:05d}" for n in range(len(manifests))}
    assert written == {"decisions.jsonl.zst", *names, *(f"{name}.manifest.json" for name in expected)}
    kept: list[dict[str, Any]] = []
    for manifest in manifests:
        assert {"shard_path", "domain", "source", "seed", "counts", "drops"} <= set(manifest)
        assert set(manifest["counts"]) == {"docs", "bytes", "est_tokens"}
        assert (manifest["domain"], manifest["source"], manifest["seed"]) == (domain, "files", seed)
        path = directory / manifest["shard_path"]
        assert manifest["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        documents = load_lines(path)
        assert manifest["counts"] == {
            "docs": len(documents),
            "bytes": sum(len(document["text"].encode()) for document in documents),
            "est_tokens": sum(-(-len(document["text"]) // 4) for document in documents),
        }
        kept += documents
    decisions = load_lines(directory / "decisions.jsonl.zst")
    assert [d["doc_id"] for d in decisions if d["keep"]] == [document["doc_id"] for document in kept]
    reasons = Counter(decision["reason"] for decision in decisions if not decision["keep"])
    drops: Counter[str] = Counter()
    for manifest in manifests:
        drops.update(manifest["drops"])
    assert reasons == drops == Counter(totals["drops"])
    assert (totals["docs_in"], totals["docs"], totals["shards"]) == (
        len(decisions),
        len(kept),
        len(manifests),
    )
    assert totals["bytes"] == sum(manifest["counts"]["bytes"] for manifest in manifests)
    return kept


FILTER = ("--pack", "web-en", "--rule", "chars>=20", "--domain", "web", "--seed", "5", "--license", "MIT")


def test_filter_keeps_edits_and_tells_and_is_the_same_for_any_way_to_name_the_files(
    data: Path, tmp_path: Path
) -> None:
    quoted = done("filter", str(data / "*.jsonl.zst"), *FILTER, "--out", tmp_path / "quoted")
    kept = check(tmp_path / "quoted", quoted, seed=5, domain="web")
    assert {document["doc_id"] for document in kept} == {"good", "page", "mail"}
    page = next(document for document in kept if document["doc_id"] == "page")
    assert page["text"].startswith("The")
    assert "cookies" not in page["text"]
    assert (page["source"], page["domain"], page["license_tag"]) == ("files", "web", "mit")
    decisions = {d["doc_id"]: d for d in load_lines(tmp_path / "quoted/decisions.jsonl.zst")}
    assert list(decisions) == ["good", "page", "mail", "short", "brace", "empty"], "in the order of the files"
    assert decisions["good"] == {"doc_id": "good", "source": "files", "domain": "web", "keep": True}
    assert decisions["brace"] == {
        "doc_id": "brace",
        "source": "files",
        "domain": "web",
        "keep": False,
        "verdict": "drop",
        "reason": "curly_bracket",
        "value": 1,
        "threshold": 0,
    }
    files = sorted(data.glob("*.jsonl.zst"))
    unquoted = done("filter", *files, *FILTER, "--out", tmp_path / "unquoted")
    assert {**unquoted, "directory": ""} == {**quoted, "directory": ""}
    assert digests(tmp_path / "unquoted") == digests(tmp_path / "quoted")


def test_a_smaller_result_in_the_same_place_leaves_nothing_of_the_larger_one(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert done("filter", data / "*.zst", "--rule", "chars>=1", "--out", out)["shards"] == 2
    (out / "files-00009.jsonl.zst").write_bytes(b"of somebody else")
    totals = done("filter", data / "a*.zst", "--rule", "chars >= 1", "--out", out, "--replace")
    (out / "files-00009.jsonl.zst").unlink()
    assert totals["shards"] == 1
    assert len(check(out, totals, seed=0, domain="default")) == 3


def test_packs_that_are_asked_for_by_name_judge_code_too(data: Path, tmp_path: Path) -> None:
    asked = ("--pack", "c4", "--domain", "code", "--out", tmp_path / "out")
    totals = done("filter", data / "*.zst", *asked)
    assert totals["drops"] == {"curly_bracket": 1, "empty": 1, "too_few_sentences": 1}


def test_filter_by_licence_counts_what_was_not_read_too(data: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"id": f"d{n}", "text": f"text {n}", "license": "gpl-3.0"}) for n in range(200)]
    lines[7] = "{not json"
    (data / "c.jsonl").write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    result = tokmill("filter", data / "c.jsonl", "--deny-license", "GPL-3.0", "--out", out)
    assert result.exit_code == 0
    assert result.stdout.startswith("0 of 199 documents · dropped 199 license_denied · not read 1 ")
    assert load_lines(out / "files-00000.jsonl.zst") == []


def test_normalize_edits_texts_and_redacts_when_asked(tmp_path: Path) -> None:
    texts = {
        "crlf": "one\r\ntwo\rthree",
        "nfc": "cafe\u0301",
        "nul": "a" * 3000 + "\0",
        "mail": f"ask {MAIL}!",
    }
    lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in texts.items()]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out"
    totals = done("normalize", tmp_path / "in.jsonl", "--redact", "email", "--out", out)
    kept = {d["doc_id"]: d["text"] for d in check(out, totals, seed=0, domain="default")}
    mail = kept.pop("mail")
    assert kept == {"crlf": "one\ntwo\nthree", "nfc": "caf\u00e9", "nul": "a" * 3000}
    assert (MAIL in mail, mail[:4], mail[-1]) == (False, "ask ", "!")
    (manifest,) = (json.loads(path.read_bytes()) for path in out.glob("*.manifest.json"))
    assert manifest["edits"] == {
        "newlines_to_lf": 1,
        "nul_stripped": 1,
        "redacted_email": 1,
        "unicode_nfc": 1,
    }


@pytest.mark.parametrize("verb", ["normalize", "filter", "dedup", "sample"])
def test_a_document_without_a_licence_says_so(tmp_path: Path, verb: str) -> None:
    records = [{"text": prose(1), "license": "MIT"}, {"text": prose(2)}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    more = {"filter": ["--rule", "chars>=1"], "sample": ["--k", "2"]}.get(verb, [])
    out = tmp_path / ("out.jsonl.zst" if verb == "sample" else "out")
    done(verb, tmp_path / "in.jsonl", *more, "--out", out)
    (path,) = (
        [out] if verb == "sample" else [p for p in out.glob("*.jsonl.zst") if p.name != "decisions.jsonl.zst"]
    )
    assert sorted(str(document["license_tag"]) for document in load_lines(path)) == ["MIT", "None"]
    assert all("created_at" not in document for document in load_lines(path))


def test_nuls_in_most_documents_are_refused_however_few_each_has(tmp_path: Path) -> None:
    def write(with_nul: int) -> Path:
        texts = [prose(n) * 10 + ("\0" if n < with_nul else "") for n in range(40)]
        (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return tmp_path / "in.jsonl"

    refused = tokmill("normalize", write(21), "--out", tmp_path / "out")
    assert refused.exit_code == 1
    assert "21 of 40 documents have a NUL: this is not plain text" in refused.stderr
    assert done("normalize", write(20), "--out", tmp_path / "out")["docs"] == 40


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "nothing to filter by"),
        (("--min-score", "0.5"), "no language to keep"),
        (("--rule", "chars<5"), "chars<5 is not a rule"),
        (("--rule", "charz<=5"), "`chars`"),
        (("--rule", "chars<=1.2.3"), "max"),
        (("--pack", "gopher"), "there is no filter pack 'gopher'"),
        (("--allow-license", "MITT"), "did you mean MIT"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_written(
    data: Path, tmp_path: Path, arguments: Any, told: str
) -> None:
    refused = tokmill("filter", data / "*.zst", *arguments, "--out", tmp_path / "out")
    assert refused.exit_code == 1
    assert told in refused.stderr
    assert not list((tmp_path / "out").rglob("*.zst"))


def test_a_glob_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    refused = tokmill("normalize", tmp_path / "*.zst", "--out", tmp_path / "out")
    assert refused.exit_code == 1
    assert "EmptyGlob" in refused.stderr
