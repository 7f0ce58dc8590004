"""Datasets on the Hugging Face hub: a pinned commit, the files of one config and split, and their bytes.

    branch, tag or nothing ─ resolve_revision ─> 40 hex digits ─ list_data_files ─> HubFile, HubFile, …
                                                                   HubFile.open() ─> bytes, by ranges

Which files belong to a config and a split is decided by `datasets` itself, at that commit. Its answer is then
checked: each file must lie in the repository and have a format that we read. A dataset that comes with its own
loading script is refused. What may pass by itself (a broken connection, a rate limit, a busy server) is tried
again from the byte that was reached, a bounded number of times, and said aloud.

The token in HF_TOKEN is sent by the client. It is in no message of ours, and errors do not carry the client's own
error with them, which may quote a request.
"""

from __future__ import annotations

import io
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar, cast

from tokmill.errors import InputChanged, InputError, MissingExtra, StorageError, TokmillError
from tokmill.storage import codecs

Say = Callable[[str], None]
T = TypeVar("T")

SUBSTRING_WARNING = (
    "--contains compares letters, not languages: `eng` is also in `asm_Beng`, which is Assamese in Bengali script. "
    "Use --lang and --script to match whole tags."
)

MAX_ATTEMPTS = (
    6  # in a row without a new byte; with waits of 1, 2, 4, 8, 16 s an outage of half a minute passes
)
MAX_WAIT_SECONDS = 300  # the hub counts requests in windows of five minutes
TIMEOUT_SECONDS = 30.0  # without a byte; the client's own session waits for ever

# One request fetches this much: little after a jump (a Parquet footer), twice as much each time reading goes on.
MIN_FETCH_BYTES = 64 << 10
MAX_FETCH_BYTES = 32 << 20

_PIN = re.compile(r"[0-9a-f]{40}")
_DATASET = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_TAG_BORDER = re.compile(r"[_.-]")
_PATHS_AT_ONCE = 500
# how `datasets` begins, of a dataset that is on the hub and cannot be used
_LOOKED_HERE_FIRST = re.compile(r"^Couldn't find any data file at .* on the Hugging Face Hub either: ")
_CARDS = ("README.md", ".huggingface.yaml")  # where a repository declares its configs


class Stat(NamedTuple):
    st_size: int


class HubFile(NamedTuple):
    """A file of a dataset at a commit; for a reader, what a path is."""

    dataset: str
    revision: str
    path: str
    size: int
    oid: str  # of the git blob
    sha256: str | None  # of the content, where the hub knows it (large files)

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix

    @property
    def suffixes(self) -> list[str]:
        return PurePosixPath(self.path).suffixes

    def __str__(self) -> str:
        return f"{_where(self.dataset, self.revision)}/{self.path}"

    def stat(self) -> Stat:
        return Stat(self.size)

    def open(self, say: Say | None = None) -> io.RawIOBase:
        """The bytes, unbuffered as those of a local file are; each read returns all it was asked for."""
        return _RemoteBytes(self, say)


_URL = re.compile(r"^hf://datasets/(?P<dataset>[^@]+)@(?P<revision>[0-9a-f]{40})/(?P<path>.+)$")


def from_url(url: str, size: int) -> HubFile:
    """The file that `str(file)` names: how a task is told which one to read."""
    parts = _URL.match(url)
    assert parts is not None, f"{url} is not a file of the hub"
    return HubFile(parts["dataset"], parts["revision"], parts["path"], size, "", None)


def is_pinned(revision: str | None) -> bool:
    return revision is not None and _PIN.fullmatch(revision) is not None


def list_configs(
    dataset: str,
    *,
    lang: str | None = None,
    script: str | None = None,
    contains: str | None = None,
    revision: str | None = None,
    say: Say | None = None,
) -> list[str]:
    """Config names, sorted. `lang` and `script` match whole tags: `eng` is in eng_Latn and not in asm_Beng."""
    wanted = {_tag("lang", tag) for tag in [lang] if tag} | {_tag("script", tag) for tag in [script] if tag}
    if contains is not None and say is not None:
        say(SUBSTRING_WARNING)
    sha = resolve_revision(dataset, revision, say=say)
    names = _ask(dataset, sha, say, lambda client, scratch: _config_names(client, scratch, dataset, sha))
    matching = [
        name
        for name in names
        if wanted <= {part.lower() for part in _TAG_BORDER.split(name)}
        and (contains is None or contains in name)
    ]
    if not matching:
        raise InputError(
            f"none of the {len(names):,} configs matches",
            where=_where(dataset, sha),
            next=f"choose among {_some(names)}",
        )
    return matching


def resolve_revision(
    dataset: str, revision: str | None, *, require_pin: bool = False, say: Say | None = None
) -> str:
    """The commit that a branch, a tag or nothing (the main branch) stands for now; a commit must exist."""
    _check_name(dataset)
    is_pin = revision is not None and _PIN.fullmatch(revision) is not None
    if require_pin and not is_pin:
        raise InputError(
            f"the revision {revision!r} can move; a commit is required",
            where=_where(dataset, None),
            next="give the 40 hex digits of a commit (without the requirement, a branch is resolved and recorded)",
        )
    sha = str(_info(dataset, revision, say).sha)
    if not _PIN.fullmatch(sha) or (is_pin and sha != revision):
        raise InputError(
            f"the hub answers with commit {sha}", where=_where(dataset, revision), next="check the revision"
        )
    return sha


def list_data_files(
    dataset: str, config: str | None, split: str, revision: str, *, say: Say | None = None
) -> list[HubFile]:
    """The files of a split of a config at a commit, by path. No config: the only one, or the dataset's default."""
    _check_name(dataset)
    if not _PIN.fullmatch(revision):
        raise InputError(
            f"{revision!r} is not a commit", where=_where(dataset, None), next="resolve the revision first"
        )
    where = _where(dataset, revision)
    found = _ask(
        dataset, revision, say, lambda client, scratch: _splits(client, scratch, dataset, config, revision)
    )
    if isinstance(found, list):
        problem = "several configs, and none is the default" if config is None else f"no config `{config}`"
        raise InputError(problem, where=where, next=f"choose among {_some(found)}")
    if split not in found:
        raise InputError(f"no split `{split}`", where=where, next=f"choose among {_some(sorted(found))}")
    paths = sorted({_path_inside(url, where) for url in found[split]})
    files = _describe(dataset, revision, paths, say)
    for file in files:
        if not file.name.endswith(codecs.SUFFIXES):
            raise codecs.unknown_suffix(cast(Path, file))
    return files


# What the client is asked ------------------------------------------------------------------------------------------


def _info(dataset: str, revision: str | None, say: Say | None) -> Any:
    hub = _huggingface_hub()
    where = _where(dataset, revision)
    return _patiently(
        lambda: hub.HfApi().dataset_info(dataset, revision=revision, timeout=TIMEOUT_SECONDS), where, say
    )


def _ask(dataset: str, revision: str, say: Say | None, question: Callable[[Any, str], T]) -> T:
    """Put a question to `datasets`, once it is certain that it will run no code and see all that is declared.

    A card that cannot be fetched is for `datasets` a card that is not there, and other files would be read; so
    cards are fetched here first. The scratch directory keeps it from answering with what was once cached.
    """
    hub, client, where = _huggingface_hub(), _datasets(), _where(dataset, revision)
    siblings = {sibling.rfilename for sibling in _info(dataset, revision, say).siblings or []}
    script = f"{PurePosixPath(dataset).name}.py"
    if script in siblings:
        raise InputError(
            f"the dataset is loaded by its own script {script}; code from the hub is never run",
            where=where,
            next="use a revision or a copy of it that holds data files (many have a branch refs/convert/parquet)",
        )
    for card in _CARDS:
        if card in siblings:
            fetch = partial(hub.hf_hub_download, dataset, card, repo_type="dataset", revision=revision)
            _patiently(fetch, where, say)
    with tempfile.TemporaryDirectory(prefix="tokmill-hub-") as scratch:
        return _patiently(lambda: question(client, scratch), where, say)


def _config_names(client: Any, scratch: str, dataset: str, revision: str) -> list[str]:
    names = client.get_dataset_config_names(_remote(dataset), revision=revision, cache_dir=scratch)
    return sorted(map(str, names))


def _splits(
    client: Any, scratch: str, dataset: str, config: str | None, revision: str
) -> dict[str, list[str]] | list[str]:
    """Addresses by split; or, where there is no such config, the names of those that there are."""
    try:
        builder = client.load_dataset_builder(_remote(dataset), config, revision=revision, cache_dir=scratch)
    except ValueError:
        names = _config_names(client, scratch, dataset, revision)
        if config in names or (config is None and len(names) == 1):
            raise
        return names
    return {
        str(split): [str(url) for url in urls] for split, urls in (builder.config.data_files or {}).items()
    }


def _describe(dataset: str, revision: str, paths: list[str], say: Say | None) -> list[HubFile]:
    hub, where = _huggingface_hub(), _where(dataset, revision)
    known: dict[str, Any] = {}
    for first in range(0, len(paths), _PATHS_AT_ONCE):
        some = paths[first : first + _PATHS_AT_ONCE]
        ask = partial(hub.HfApi().get_paths_info, dataset, some, repo_type="dataset", revision=revision)
        known.update({entry.path: entry for entry in _patiently(ask, where, say)})
    absent = [path for path in paths if getattr(known.get(path), "blob_id", None) is None]
    if absent:
        raise StorageError(
            f"the hub lists {absent[0]} and does not describe it", where=where, next="run again"
        )
    return [
        HubFile(
            dataset=dataset,
            revision=revision,
            path=path,
            size=int(known[path].size),
            oid=str(known[path].blob_id),
            sha256=known[path].lfs.sha256 if known[path].lfs else None,
        )
        for path in paths
    ]


def _path_inside(url: str, where: str) -> str:
    """A card may name a file of another repository, of another host or of this machine; none is pinned."""
    if not url.startswith(f"{where}/"):
        raise InputError(
            f"the dataset's card points outside its repository: {url}",
            where=where,
            next="name the dataset that holds the file, or download it and read it as a local file",
        )
    return url.removeprefix(f"{where}/")


# Bytes -------------------------------------------------------------------------------------------------------------


class _RemoteBytes(io.RawIOBase):
    """A file read by ranges. A broken transfer goes on from the byte that it reached."""

    def __init__(self, file: HubFile, say: Say | None) -> None:
        super().__init__()
        self._file, self._say = file, say
        self._position = 0
        self._start, self._held = 0, bytearray()  # the range fetched last
        self._ahead = MIN_FETCH_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._refuse_if_closed()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        self._refuse_if_closed()
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view) and self._position < self._file.size:
            at = self._position - self._start
            if not 0 <= at < len(self._held):
                self._fetch(len(view) - filled)
                at = 0
            piece = memoryview(self._held)[at : at + len(view) - filled]
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._position += len(piece)
        return filled

    def readall(self) -> bytes:
        return self.read(max(self._file.size - self._position, 0)) or b""

    def close(self) -> None:
        self._held = bytearray()
        super().close()

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _fetch(self, wanted: int) -> None:
        goes_on = bool(self._held) and self._position == self._start + len(self._held)
        self._ahead = min(2 * self._ahead, MAX_FETCH_BYTES) if goes_on else MIN_FETCH_BYTES
        start = self._position
        end = min(start + max(wanted, self._ahead), self._file.size)
        held = bytearray()
        _patiently(
            lambda: _transfer(self._file, start, end, held), str(self._file), self._say, lambda: len(held)
        )
        self._start, self._held = start, held


def _transfer(file: HubFile, start: int, end: int, into: bytearray) -> None:
    """Append what is still missing of bytes [start, end)."""
    hub = _huggingface_hub()
    begin = start + len(into)
    if begin >= end:  # the connection broke after the last byte
        return
    headers = {
        **hub.utils.build_hf_headers(),
        "Range": f"bytes={begin}-{end - 1}",
        "Accept-Encoding": "identity",  # ranges count bytes of the file, not of a compressed transfer
    }
    url = hub.hf_hub_url(file.dataset, file.path, repo_type="dataset", revision=file.revision)
    with hub.get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_SECONDS) as response:
        hub.utils.hf_raise_for_status(response)
        expected = f"bytes {begin}-{end - 1}/{file.size}"
        given = response.headers.get("Content-Range", "")
        is_whole = response.status_code == 200 and (begin, end) == (0, file.size)
        if given != expected and not is_whole:
            raise InputChanged(
                f"asked for {expected}, the hub answers {given or 'without a range'}",
                where=str(file),
                next="check the endpoint or proxy (HF_ENDPOINT) and run again",
            )
        for piece in response.iter_bytes():
            into += piece[: end - start - len(into)]
    if start + len(into) < end:
        raise ConnectionError(f"the transfer ended {end - start - len(into):,} bytes early")


# Patience and errors -----------------------------------------------------------------------------------------------


def _patiently(act: Callable[[], T], where: str, say: Say | None, reached: Callable[[], int] = int) -> T:
    """Try again while the fault may pass by itself; each new byte that is reached gives a full set of attempts."""
    failures, last = 0, reached()
    while True:
        try:
            return act()
        except TokmillError:
            raise
        except Exception as raised:  # noqa: BLE001  the client's errors have no common base; all are told as ours
            error = _underlying(raised)
            now = reached()
            failures, last = (1 if now > last else failures + 1), now
            wait = _seconds_to_wait(error, failures)
            if wait is None or wait > MAX_WAIT_SECONDS or failures >= MAX_ATTEMPTS:
                told = _told(error, where, failures, wait)
            else:
                told = None
                if say is not None:
                    say(_scrubbed(f"{where}: {_reason(error)}; trying again in {wait:g} s ({failures})"))
        if told is not None:
            raise told  # outside of the handler: without the client's error, which may quote a request
        time.sleep(cast(float, wait))


def _underlying(error: Exception) -> Exception:
    """The client says "not in the cache" of a file that it could not fetch; the reason is the cause."""
    is_wrapper = isinstance(error, _huggingface_hub().errors.LocalEntryNotFoundError)
    return error.__cause__ if is_wrapper and isinstance(error.__cause__, Exception) else error


def _seconds_to_wait(error: Exception, failures: int) -> float | None:
    """None: waiting does not help."""
    errors = _huggingface_hub().errors
    backoff = float(2 ** (failures - 1))
    if isinstance(error, errors.OfflineModeIsEnabled):
        return None
    response = getattr(error, "response", None)
    if response is None:
        return backoff if isinstance(error, errors.HTTPError | ConnectionError | TimeoutError) else None
    if response.status_code == 429:
        asked = response.headers.get("Retry-After", "").strip()
        if not asked.isdigit():  # the hub also sends: RateLimit: "api";r=0;t=55
            found = re.search(r"\bt\s*=\s*(\d+)", response.headers.get("RateLimit", ""))
            asked = found[1] if found else ""
        return float(asked) if asked else backoff
    return backoff if response.status_code == 408 or response.status_code >= 500 else None


def _told(error: Exception, where: str, failures: int, wait: float | None) -> TokmillError:
    errors = _huggingface_hub().errors
    dataset = where.removeprefix("hf://datasets/").partition("@")[0]
    tried = f" (tried {failures} times)" if failures > 1 else ""
    status = getattr(getattr(error, "response", None), "status_code", None)
    is_lost = isinstance(error, errors.HTTPError | ConnectionError | TimeoutError)
    # `datasets` tells of a gate in words only
    if isinstance(error, errors.GatedRepoError) or "is a gated dataset" in str(error):
        return InputError(
            "the dataset is gated, and this account has no access",
            where=where,
            next=f"accept the conditions on the dataset's page (datasets/{dataset}) and set HF_TOKEN",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError("no such revision", where=where, next="check the branch, tag or commit")
    if isinstance(error, errors.RepositoryNotFoundError):
        return InputError(
            "no such dataset, or it is private",
            where=where,
            next="check the name; for a private dataset set HF_TOKEN",
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return InputError("no such file at this revision", where=where, next="list the files again")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return StorageError(
            "the hub is needed, and the client is set to work offline",
            where=where,
            next="unset HF_HUB_OFFLINE, or use what was already ingested",
        )
    if status == 429:
        return StorageError(
            f"the hub limits requests{tried}" + (f" and asks to wait {wait:,.0f} s" if wait else ""),
            where=where,
            next="run again later, with fewer workers, or set HF_TOKEN (the limits of an account are higher)",
        )
    if status in (401, 403):
        return InputError(
            f"the hub refuses access ({status})",
            where=where,
            next="check that HF_TOKEN is valid and may read this dataset",
        )
    if status is not None or is_lost:
        return StorageError(
            _scrubbed(f"{_reason(error)}{tried}"),
            where=where,
            next="check the network, the proxy and HF_ENDPOINT, then run again: it goes on where it stopped",
        )
    if isinstance(error, UnicodeEncodeError):  # names are checked to be ASCII, so it is the header
        return InputError(
            "the token has a character that cannot be sent", where=where, next="set HF_TOKEN again"
        )
    return InputError(
        _scrubbed(f"its files cannot be listed ({type(error).__name__}: {_first_line(error)})"),
        where=where,
        next="check the dataset's files and the `configs` of its card",
    )


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 429:
        return "the hub limits requests (429)"
    if status is not None:
        return f"the hub answers with an error ({status})"
    return f"the hub cannot be reached or the connection broke ({type(error).__name__}: {_first_line(error)})"


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    return _LOOKED_HERE_FIRST.sub("", line)[:300]


def _scrubbed(text: str) -> str:
    """Without the token, wherever a library may have put it."""
    token = _huggingface_hub().get_token()
    return text.replace(token, "***") if token else text


# Names -------------------------------------------------------------------------------------------------------------


def _where(dataset: str, revision: str | None) -> str:
    return f"hf://datasets/{dataset}" + (f"@{revision}" if revision else "")


def _remote(dataset: str) -> str:
    """So spelled, it is never a directory that happens to have the same name."""
    return f"hf://datasets/{dataset}"


def _check_name(dataset: str) -> None:
    if not _DATASET.fullmatch(dataset):
        raise InputError(
            f"{dataset!r} is not the name of a dataset on the hub",
            next="give owner/name, as in HuggingFaceFW/fineweb-2",
        )


def _tag(kind: str, tag: str) -> str:
    if not tag.isalpha() or (kind == "script" and len(tag) != 4):
        raise InputError(
            f"{tag!r} is not a {'script' if kind == 'script' else 'language'} tag",
            next="a language is a code like `en` or `eng`, a script one like `Latn`; for eng_Latn give both",
        )
    return tag.lower()


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown}, … ({len(names):,})" if len(names) > 20 else shown or "nothing: it is empty"


def _huggingface_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise _missing("huggingface_hub") from error
    return huggingface_hub


def _datasets() -> Any:
    try:
        import datasets  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise _missing("datasets") from error
    return datasets


def _missing(package: str) -> MissingExtra:
    return MissingExtra(
        f"reading from the hub needs the package {package}", next="pip install 'tokmill[hub]'"
    )


__all__ = ["SUBSTRING_WARNING", "HubFile", "list_configs", "list_data_files", "resolve_revision"]
