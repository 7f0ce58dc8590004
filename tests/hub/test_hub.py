from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tokmill.errors import InputError, MissingExtra
from tokmill.sources import hub as hub_source
from tokmill.sources import hubfile

TOKEN = "hf_loopbackSecret0123456789"
ROWS = [{"text": f"line {number} of a text"} for number in range(20_000)]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CARD = b"""---
configs:
- config_name: eng_Latn
  data_files:
  - split: train
    path: data/eng_Latn/train-*.jsonl
  - split: test
    path: data/eng_Latn/test.jsonl
- config_name: asm_Beng
  data_files: data/asm_Beng/*.jsonl
- config_name: 20231101.en
  data_files: data/wiki/*.jsonl
- config_name: srp-Latn-RS
  data_files: data/srp/*.jsonl
---
# Texts
"""
LANGUAGES = {
    "README.md": CARD,
    "data/eng_Latn/train-1.jsonl": JSONL,
    "data/eng_Latn/train-0 a#b.jsonl": b'{"text": "one"}\n',
    "data/eng_Latn/test.jsonl": b'{"text": "two"}\n',
    "data/asm_Beng/part.jsonl": b'{"text": "three"}\n',
    "data/wiki/part.jsonl": b'{"text": "four"}\n',
    "data/srp/part.jsonl": b'{"text": "five"}\n',
}


def parquet_bytes() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, row_group_size=5000)
    return sink.getvalue()


def zstd_bytes(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


# Configs


def test_a_language_matches_whole_tags_and_a_substring_only_with_a_warning(hub, client):
    hub.commit("org/texts", LANGUAGES)
    shown = client("""
        def names(**wanted):
            return hub.list_configs("org/texts", **wanted)

        show(all=names(), eng=names(lang="eng"), beng=names(script="Beng"), en=names(lang="en"),
             latin=names(script="Latn"), both=names(lang="srp", script="latn"))
        show(said_before=list(said), contains=names(contains="eng"), warning=hub.SUBSTRING_WARNING)
        show(none=told(names, lang="fra"), asm_latn=told(names, lang="asm", script="Latn"),
             script=told(names, lang="beng"), two_tags=told(names, lang="eng_Latn"),
             no_script=told(names, script="La"))
    """)
    assert shown["all"] == ["20231101.en", "asm_Beng", "eng_Latn", "srp-Latn-RS"]
    assert shown["eng"] == ["eng_Latn"]
    assert shown["beng"] == ["asm_Beng"]
    assert shown["en"] == ["20231101.en"]
    assert shown["latin"] == ["eng_Latn", "srp-Latn-RS"]
    assert shown["both"] == ["srp-Latn-RS"]
    assert shown["said_before"] == []
    assert shown["contains"] == ["asm_Beng", "eng_Latn"]
    assert shown["said"] == [f"! {shown['warning']}"]
    assert "asm_Beng" in shown["warning"]
    for refused in ("none", "asm_latn"):
        assert "none of 4 configs matches" in shown[refused][1]
        assert "choose among 20231101.en, asm_Beng" in shown[refused][1]
    assert "none of 4 configs matches: beng is a script, and no language" in shown["script"][1]
    assert "`--script Beng`" in shown["script"][1]
    assert "for eng_Latn give both" in shown["two_tags"][1]
    assert "not a script tag" in shown["no_script"][1]


# Names


def test_a_former_name_is_followed_to_the_present_one_and_one_that_leads_nowhere_wants_an_owner(hub, client):
    sha = hub.commit("org/texts", LANGUAGES)
    hub.moved["texts"] = "org/texts"
    shown = client("""
        sha = hub.resolve_revision("texts", None)
        files = hub.list_data_files("texts", "asm_Beng", "train", sha)
        show(sha=sha, files=[str(file) for file in files], text=files[0].open().read().decode(),
             configs=hub.list_configs("texts", lang="eng"), none=told(hub.resolve_revision, "wmt14", None))
    """)
    assert shown["sha"] == sha
    assert shown["files"] == [f"hf://datasets/org/texts@{sha}/data/asm_Beng/part.jsonl"]
    assert shown["text"] == '{"text": "three"}\n'
    assert shown["configs"] == ["eng_Latn"]
    assert "! texts is org/texts on the hub" in shown["said"]
    assert "give its owner too, as in wmt/wmt14 or openai/gsm8k" in shown["none"][1]


# Revisions


def test_a_branch_becomes_its_commit_and_a_commit_must_exist(hub, client):
    first = hub.commit("org/texts", {"a.txt": b"old\n"})
    other = hub.commit("org/texts", {"a.txt": b"side\n"}, branch="refs/convert/parquet")
    second = hub.commit("org/texts", {"a.txt": b"new\n"})
    shown = client(f"""
        resolve = hub.resolve_revision
        show(nothing=resolve("org/texts", None), main=resolve("org/texts", "main"),
             branch=resolve("org/texts", "refs/convert/parquet"),
             commit=resolve("org/texts", "{first}"))
        show(no_branch=told(resolve, "org/texts", "dev"), no_commit=told(resolve, "org/texts", "0" * 40),
             no_dataset=told(resolve, "org/nothing", None))
    """)
    assert shown["nothing"] == shown["main"] == second
    assert shown["branch"] == other
    assert shown["commit"] == first
    assert shown["no_branch"][:2] == [
        "InputError",
        "hf://datasets/org/texts@dev: no such revision\n  next: check the branch, tag or commit",
    ]
    assert "no such revision" in shown["no_commit"][1]
    assert "no such dataset, or it is private" in shown["no_dataset"][1]


def test_a_pin_is_told_from_a_branch_and_a_wrong_name_is_refused_without_a_request(hub, client):
    hub.commit("org/texts", {"a.txt": b"x\n"})
    shown = client("""
        revisions = (None, "main", "abc1234", "A" * 40, "0" * 41, "0" * 40)
        names = ("../etc", "a/b/c", "/tmp", "hf://x/y", "")
        show(pins=[hub.is_pinned(revision) for revision in revisions],
             names=[told(hub.resolve_revision, name, None) for name in names],
             moving=told(hub.list_data_files, "org/texts", None, "train", "main"))
    """)
    assert shown["pins"] == [False] * 5 + [True]
    assert all("is not the name of a dataset" in error[1] for error in shown["names"])
    assert "'main' is not a commit" in shown["moving"][1]
    assert hub.log == []


# Data files


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".parquet", parquet_bytes()),
        (".jsonl", JSONL),
        (".jsonl.gz", gzip.compress(JSONL)),
        (".jsonl.zst", zstd_bytes(JSONL)),
        (".txt", b"a\nb\n" * 9000),
    ],
)
def test_files_of_each_format_are_found_and_read_whole(hub, client, suffix, data):
    small = data[: len(data) // 2] if suffix == ".txt" else data
    hub.commit("org/texts", {f"train-1{suffix}": data, f"train-0{suffix}": small, f"test-0{suffix}": data})
    shown = client("""
        import hashlib
        import pyarrow.parquet as pq
        from tokmill.storage import blocks, codecs
        from tokmill.storage.records import Kind, Wanted

        sha = hub.resolve_revision("org/texts", None)
        files = hub.list_data_files("org/texts", None, "train", sha)
        file = pickle.loads(pickle.dumps(files[1]))
        with file.open() as raw:
            digest = hashlib.file_digest(raw, "sha256").hexdigest()
        with file.open() as raw:
            whole = raw.read()
        if file.suffix == ".parquet":
            with file.open() as raw:
                rows = pq.ParquetFile(raw).read().num_rows
        else:
            blocks.open_binary = HubFile.open
            wanted = [Wanted("text", "text", Kind.TEXT, True)]
            batches = codecs.read_batches(file, wanted, unit="line", max_record_bytes=1000)
            rows = sum(batch.table.num_rows for batch in batches)
        show(sha=sha, files=[list(file) for file in files], text=str(file), name=file.name,
             suffix=file.suffix, suffixes=file.suffixes, stat=file.stat().st_size, digest=digest,
             whole=len(whole), rows=rows, same=file == files[1],
             splits=told(hub.list_data_files, "org/texts", "default", "valid", sha),
             configs=told(hub.list_data_files, "org/texts", "other", "train", sha))
    """)
    sha256 = hashlib.sha256(data).hexdigest()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    assert [file[2] for file in shown["files"]] == [f"train-0{suffix}", f"train-1{suffix}"]
    assert shown["files"][1] == ["org/texts", shown["sha"], f"train-1{suffix}", len(data), blob, sha256]
    assert shown["text"] == f"hf://datasets/org/texts@{shown['sha']}/train-1{suffix}"
    assert (shown["name"], shown["suffix"]) == (f"train-1{suffix}", "." + suffix.rpartition(".")[2])
    assert "".join(shown["suffixes"]) == suffix
    assert shown["stat"] == shown["whole"] == len(data)
    assert shown["digest"] == sha256
    assert shown["rows"] == (18_000 if suffix == ".txt" else 20_000)
    assert shown["same"]
    assert "no split `valid`\n  next: choose among test, train" in shown["splits"][1]
    assert "no config `other`\n  next: choose among default" in shown["configs"][1]


def test_a_card_decides_configs_and_splits(hub, client):
    sha = hub.commit("org/texts", LANGUAGES)
    shown = client(f"""
        def paths(*arguments):
            return [file.path for file in hub.list_data_files("org/texts", *arguments, "{sha}")]

        show(train=paths("eng_Latn", "train"), test=paths("eng_Latn", "test"), asm=paths("asm_Beng", "train"),
             none=told(paths, None, "train"), no_config=told(paths, "deu_Latn", "train"),
             no_split=told(paths, "asm_Beng", "test"))
        odd = hub.list_data_files("org/texts", "eng_Latn", "train", "{sha}")[0]
        show(odd=odd.open().read().decode(), small=odd.sha256)
    """)
    assert shown["train"] == ["data/eng_Latn/train-0 a#b.jsonl", "data/eng_Latn/train-1.jsonl"]
    assert shown["test"] == ["data/eng_Latn/test.jsonl"]
    assert shown["asm"] == ["data/asm_Beng/part.jsonl"]
    known = "choose among 20231101.en, asm_Beng, eng_Latn, srp-Latn-RS"
    assert "several configs, and none is the default" in shown["none"][1]
    assert known in shown["none"][1]
    assert f"no config `deu_Latn`\n  next: {known}" in shown["no_config"][1]
    assert "no split `test`\n  next: choose among train" in shown["no_split"][1]
    assert shown["odd"] == LANGUAGES["data/eng_Latn/train-0 a#b.jsonl"].decode()
    assert shown["small"] is None


def test_a_commit_is_read_as_it_was(hub, client):
    old = hub.commit("org/texts", {"train.txt": b"old\n"})
    hub.commit("org/texts", {"train.txt": b"new\n", "train-2.txt": b"more\n"})
    shown = client(f"""
        files = hub.list_data_files("org/texts", None, "train", "{old}")
        show(paths=[file.path for file in files], text=files[0].open().read().decode())
    """)
    assert shown["paths"] == ["train.txt"]
    assert shown["text"] == "old\n"


def test_remote_code_other_formats_and_files_on_demand_are_refused(hub, client, tmp_path):
    (tmp_path / "private.jsonl").write_bytes(b'{"text": "of this machine"}\n')
    card = "---\nconfigs:\n- config_name: default\n  data_files: {}\n---\n"
    hub.commit("org/script", {"script.py": b"raise SystemExit('ran')\n", "train.jsonl": JSONL})
    hub.commit("org/tables", {"train.xml": b"<a>x</a>"})
    hub.commit("org/empty", {"README.md": b"# nothing\n"})
    hub.commit("org/local", {"README.md": card.format(tmp_path / "private.jsonl").encode()})
    other = hub.commit("org/other", {"train.jsonl": JSONL})
    address = f"hf://datasets/org/other@{other}/train.jsonl"
    hub.commit("org/elsewhere", {"README.md": card.format(address).encode()})
    hub.commit("org/unmatched", {"README.md": card.format("nothing/a.jsonl").encode(), "a.jsonl": JSONL})
    shown = client("""
        def files(name):
            return hub.list_data_files(name, None, "train", hub.resolve_revision(name, None))

        show(**{name: told(files, "org/" + name)
                for name in ("script", "tables", "empty", "local", "elsewhere", "unmatched")})
        show(configs=told(hub.list_configs, "org/script"))
    """)
    for refused in (shown["script"], shown["configs"]):
        assert refused[0] == "InputError"
        assert "its own script script.py; code from the hub is never run" in refused[1]
    assert "no reader for the suffix .xml" in shown["tables"][1]
    assert "known suffixes: .jsonl" in shown["tables"][1]
    for name in ("local", "elsewhere"):
        assert f"Data files don't belong to org/{name}" in shown[name][1]
    for name in ("empty", "local", "elsewhere", "unmatched"):
        assert "its files cannot be listed" in shown[name][1]
        assert "check the dataset's files and the `configs` of its card" in shown[name][1]
    assert "FileNotFoundError: Unable to find" in shown["unmatched"][1]
    assert hub.seen(containing="/script.py") == []


def test_an_address_that_is_not_of_the_pinned_repository_is_refused():
    pinned = f"hf://datasets/org/texts@{'0' * 40}"
    assert hub_source._path_inside(f"{pinned}/data/a.jsonl", pinned) == "data/a.jsonl"
    for address in (
        "/etc/a.jsonl",
        "https://example.org/a.jsonl",
        f"hf://datasets/org/texts@{'1' * 40}/a.jsonl",
    ):
        with pytest.raises(InputError, match="points outside its repository"):
            hub_source._path_inside(address, pinned)


def test_a_directory_with_the_name_of_a_dataset_is_not_read_instead(hub, client, tmp_path):
    (tmp_path / "org" / "texts").mkdir(parents=True)
    (tmp_path / "org" / "texts" / "train-local.jsonl").write_bytes(b'{"text": "local"}\n')
    hub.commit("org/texts", {"train.jsonl": JSONL})
    shown = client("""
        sha = hub.resolve_revision("org/texts", None)
        show(paths=[file.path for file in hub.list_data_files("org/texts", None, "train", sha)])
    """)
    assert shown["paths"] == ["train.jsonl"]


# Bytes


OPEN = """
    sha = hub.resolve_revision("org/texts", None)
    [file] = hub.list_data_files("org/texts", None, "train", sha)
"""


def test_reads_and_seeks_fetch_ranges_and_agree_with_the_file(hub, client):
    data = bytes(range(256)) * 4000  # 1,024,000 bytes
    hub.commit("org/texts", {"train.txt": data})
    shown = client(
        OPEN
        + """
    raw = file.open()
    show(begin=raw.read(3).hex(), tell=raw.tell(), again=raw.read(2).hex(),
         end=(raw.seek(-2, 2), raw.read(10).hex(), raw.read(1).hex()),
         middle=(raw.seek(500_000), len(raw.read(300_000)), raw.seek(5, 1)),
         past=(raw.seek(2_000_000), raw.read().hex()))
    raw.close()
    show(closed=raw.closed)
    """
    )
    assert shown["begin"] == "000102"
    assert (shown["tell"], shown["again"]) == (3, "0304")
    assert shown["end"] == [1_023_998, "feff", ""]
    assert shown["middle"] == [500_000, 300_000, 800_005]
    assert shown["past"] == [2_000_000, ""]
    assert shown["closed"]
    ranges = [request.headers["range"] for request in hub.seen("GET", "/resolve/")]
    assert ranges == ["bytes=0-65535", "bytes=1023998-1023999", "bytes=500000-799999"]


def test_a_dropped_connection_goes_on_from_the_byte_it_reached(hub, client):
    data = parquet_bytes() * 8
    hub.commit("org/texts", {"train.txt": data})
    hub.drop("train.txt", after_bytes=30_000, times=7)
    shown = client(
        OPEN
        + """
    import hashlib
    with file.open() as raw:
        show(digest=hashlib.sha256(raw.read()).hexdigest())
    """
    )
    assert shown["digest"] == hashlib.sha256(data).hexdigest()
    starts = [
        int(request.headers["range"].removeprefix("bytes=").split("-")[0])
        for request in hub.seen("GET", "/resolve/")
    ]
    assert starts == [30_000 * number for number in range(8)]
    assert len(shown["said"]) == 7
    assert "the connection broke" in shown["said"][0]
    assert shown["waits"] == [1.0] * 7  # each time there were new bytes


def test_a_connection_that_always_drops_is_given_up_with_a_clear_error(hub, client):
    hub.commit("org/texts", {"train.parquet": parquet_bytes()})
    hub.drop("train.parquet", after_bytes=0, times=None)
    shown = client(
        OPEN
        + """
    import pyarrow.parquet as pq
    show(read=told(lambda: file.open().read()), parquet=told(lambda: pq.ParquetFile(file.open())))
    """
    )
    for kind, text, _ in (shown["read"], shown["parquet"]):
        assert kind == "StorageError"
        assert "train.parquet: the hub cannot be reached or the connection broke" in text
        assert "(tried 6 times)" in text
        assert "check the network" in text
    assert len(shown["said"]) == 10
    assert shown["waits"] == [1.0, 2.0, 4.0, 8.0, 16.0] * 2


def test_a_rate_limit_is_waited_for_and_said(hub, client):
    hub.commit("org/texts", {"train.txt": JSONL})
    hub.rate_limit(2, retry_after="7", only="/api/datasets/org/texts")
    hub.rate_limit(1, retry_after="11", only="/train.txt")
    shown = client("""
        sha = hub.resolve_revision("org/texts", None)
        before = list(waits)
        [file] = hub.list_data_files("org/texts", None, "train", sha)
        show(before=before, size=len(file.open().read()))
    """)
    assert shown["before"] == [7.0, 7.0]
    assert shown["size"] == len(JSONL)
    assert shown["said"][0].removeprefix("! ") == (
        "hf://datasets/org/texts: the hub limits requests (429); trying again in 7 s (1)"
    )
    assert "trying again in 11 s" in shown["said"][-1]


def test_a_rate_limit_that_does_not_end_is_an_error(hub, client):
    hub.commit("org/texts", {"train.txt": JSONL})
    hub.rate_limit(6, retry_after="3")
    hub.rate_limit(1, retry_after="9000")
    shown = client("""
        show(six=told(hub.resolve_revision, "org/texts", None),
             long=told(hub.resolve_revision, "org/texts", None))
    """)
    assert "the hub limits requests (tried 6 times) and asks to wait 3 s" in shown["six"][1]
    assert "the hub limits requests and asks to wait 9,000 s" in shown["long"][1]
    assert "set HF_TOKEN" in shown["six"][1]
    assert shown["waits"] == [3.0] * 5


def test_a_card_that_cannot_be_fetched_at_first_still_decides(hub, client):
    """The client gives up after seven; `datasets` would take that for a missing file,
    and read other files."""
    sha = hub.commit("org/texts", LANGUAGES)
    hub.reject(7, 503, only="/README.md")
    shown = client(f"""
        files = hub.list_data_files("org/texts", "asm_Beng", "train", "{sha}")
        show(paths=[file.path for file in files])
    """)
    assert shown["paths"] == ["data/asm_Beng/part.jsonl"]
    assert shown["waits"] == [1, 2, 4, 8, 8, 1.0]  # five of the client, one of ours
    assert "the hub answers with an error (503)" in shown["said"][0]


# Access


def test_the_token_does_not_follow_a_redirect_to_another_host(hub, client):
    hub.commit("org/texts", {"train-0 a.txt": JSONL})
    hub.has_cdn = True
    shown = client(
        OPEN
        + """
    import hashlib
    show(digest=hashlib.sha256(file.open().read()).hexdigest())
    """,
        HF_TOKEN=TOKEN,
    )
    assert shown["digest"] == hashlib.sha256(JSONL).hexdigest()
    asked, given = hub.seen("GET", "/resolve/"), hub.seen("GET", "/cdn/")
    assert [request.headers["range"] for request in given] == [request.headers["range"] for request in asked]
    assert all("authorization" in request.headers for request in asked)
    assert not any("authorization" in request.headers for request in given)


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_dataset_says_how_to_get_access(hub, client, status):
    for name in ("org/plain", "org/card"):
        hub.commit(name, {"train.txt": JSONL} | ({"README.md": b"# x\n"} if name == "org/card" else {}))
        hub.gate(name, status)
    shown = client("""
        for name in ("plain", "card"):
            sha = hub.resolve_revision("org/" + name, None)
            file = HubFile("org/" + name, sha, "train.txt", 5, "0" * 40, None)
            files = told(hub.list_data_files, "org/" + name, None, "train", sha)
            show(**{name: [files, told(file.open().read)]})
    """)
    for kind, text, _ in (*shown["plain"], *shown["card"]):
        assert kind == "InputError"
        assert "the dataset is gated" in text
        assert "accept the conditions on the dataset's page" in text
        assert "set HF_TOKEN" in text
    assert shown["waits"] == []


def test_the_token_is_sent_and_is_in_no_message(hub, client):
    sha = hub.commit("org/texts", {"train.txt": JSONL})
    hub.commit("org/gated", {"train.txt": JSONL})
    hub.gate("org/gated", 403)
    hub.commit("org/cut", {"train.txt": JSONL})
    hub.drop("train.txt", after_bytes=100, times=1)
    shown = client(
        f"""
        [file] = hub.list_data_files("org/texts", None, "train", "{sha}")
        file.open().read()
        gated = hub.resolve_revision("org/gated", None)
        show(errors=[told(hub.list_data_files, "org/gated", None, "train", gated),
                     told(hub.resolve_revision, "org/none", None),
                     told(hub.resolve_revision, "org/texts", "dev"),
                     told(HubFile("org/texts", "{sha}", "absent.txt", 5, "0" * 40, None).open().read)],
             told=hubfile._scrubbed("a library quotes {TOKEN}"),
             file=repr(file) + str(file) + repr(file.open()),
             pickled={TOKEN!r}.encode() in pickle.dumps(file))
    """,
        HF_TOKEN=TOKEN,
    )
    assert hub.log
    assert all(request.headers.get("authorization") == f"Bearer {TOKEN}" for request in hub.log)
    assert shown["told"] == "a library quotes ***"
    assert all(shown["errors"])
    assert "no such file at this revision" in shown["errors"][3][1]
    assert shown["said"]
    assert not shown["pickled"]
    assert TOKEN not in shown["output"]


def test_a_token_that_cannot_be_sent_is_not_quoted(hub, client):
    """The error of the library holds the header that it refuses."""
    hub.commit("org/texts", {"train.txt": JSONL})
    shown = client('show(error=told(hub.resolve_revision, "org/texts", None))', HF_TOKEN=TOKEN + "é")
    assert "the token has a character that cannot be sent" in shown["error"][1]
    assert TOKEN not in shown["output"]


def test_offline_and_unreachable_are_told_apart(hub, client):
    offline = client(
        """
        file = HubFile("org/texts", "0" * 40, "train.txt", 5, "0" * 40, None)
        show(errors=[told(hub.resolve_revision, "org/texts", None),
                     told(hub.list_data_files, "org/texts", None, "train", "0" * 40), told(file.open().read)])
        """,
        HF_HUB_OFFLINE="1",
    )
    for _, text, _ in offline["errors"]:
        assert "the client is set to work offline" in text
        assert "unset HF_HUB_OFFLINE" in text
    assert (offline["waits"], hub.log) == ([], [])
    unreachable = client(
        'show(error=told(hub.resolve_revision, "org/texts", None))',
        HF_ENDPOINT="http://127.0.0.1:9",
    )
    assert unreachable["error"][0] == "StorageError"
    assert "the hub cannot be reached" in unreachable["error"][1]
    assert "(tried 6 times)" in unreachable["error"][1]
    assert len(unreachable["said"]) == 5


@pytest.mark.parametrize("package", ["datasets", "huggingface_hub"])
def test_a_missing_package_names_the_extra(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    load = hub_source._datasets if package == "datasets" else hubfile.hub_client
    with pytest.raises(MissingExtra, match=r"pip install '\.\[hub\]'"):
        load()
