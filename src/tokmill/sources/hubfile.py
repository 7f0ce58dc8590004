"""A file on the Hugging Face hub: its bytes over HTTP, with retries.

    HubFile.open() ─ read ─ range of bytes ─ GET ─┬ all there ─────────────────────────> bytes
          ↑                                       ├ transient ─ wait ─ again from the byte reached
    from_url(str(file))                           └ permanent ─────────────────────────> an error of ours

Transient errors (a broken connection, a rate limit, a busy server) are retried from the byte that was
reached, a bounded number of times, with a message. Any other request to the hub is retried in the same way.

The token in HF_TOKEN is sent by the client. It is in no message of ours,
and errors do not carry the client's own error with them, which may quote a request.
"""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar, cast

from tokmill.errors import InputChanged, InputError, MissingExtra, StorageError, TokmillError, install_hint
from tokmill.storage.location import RangedBytes, Stat

T = TypeVar("T")

LOG = logging.getLogger("tokmill.hub")

MAX_ATTEMPTS = (
    6  # in a row without a new byte; with waits of 1, 2, 4, 8, 16 s an outage of half a minute passes
)
MAX_WAIT_SECONDS = 300  # the hub counts requests in windows of five minutes
TIMEOUT_SECONDS = 30.0  # without a byte; the client's own session waits for ever

# One request fetches this much: little after a jump (a Parquet footer),
# twice as much each time reading goes on.
MAX_FETCH_BYTES = 32 << 20

# how `datasets` begins, of a dataset that is on the hub and cannot be used
_LOOKED_HERE_FIRST = re.compile(r"^Couldn't find any data file at .* on the Hugging Face Hub either: ")


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
        return f"{dataset_url(self.dataset, self.revision)}/{self.path}"

    def stat(self) -> Stat:
        return Stat(self.size)

    def open(self) -> io.RawIOBase:
        """The bytes, unbuffered as those of a local file are; each read returns all it was asked for."""
        return RangedBytes(self.size, lambda start, end: _fetch(self, start, end), MAX_FETCH_BYTES)


_URL = re.compile(r"^hf://datasets/(?P<dataset>[^@]+)@(?P<revision>[0-9a-f]{40})/(?P<path>.+)$")


def from_url(url: str, size: int) -> HubFile:
    """The file that `str(file)` names: how a task is told which one to read."""
    parts = _URL.match(url)
    assert parts is not None, f"{url} is not a file of the hub"
    return HubFile(parts["dataset"], parts["revision"], parts["path"], size, "", None)


# Bytes
# --------------------------------------------------------------------------------------------------


def _fetch(file: HubFile, start: int, end: int) -> bytearray:
    """A broken transfer goes on from the byte that it reached."""
    held = bytearray()
    patiently(lambda: _transfer(file, start, end, held), str(file), lambda: len(held))
    return held


def _transfer(file: HubFile, start: int, end: int, into: bytearray) -> None:
    """Append what is still missing of bytes [start, end)."""
    hub = hub_client()
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
                f"requested {expected}, the hub answers {given or 'without a range'}",
                where=str(file),
                next="check the endpoint or proxy (HF_ENDPOINT) and run again",
            )
        for piece in response.iter_bytes():
            into += piece[: end - start - len(into)]
    if start + len(into) < end:
        raise ConnectionError(f"the transfer ended {end - start - len(into):,} bytes early")


# Patience and errors
# -----------------------------------------------------------------------------------------------


def patiently(act: Callable[[], T], where: str, reached: Callable[[], int] = int) -> T:
    """Try again while the fault may pass by itself;
    each new byte that is reached gives a full set of attempts."""
    failures, last = 0, reached()
    while True:
        try:
            return act()
        except TokmillError:
            raise
        except Exception as raised:  # noqa: BLE001
            # the client's errors have no common base; all are told as ours
            error = _underlying(raised)
            now = reached()
            failures, last = (1 if now > last else failures + 1), now
            wait = _seconds_to_wait(error, failures)
            if wait is None or wait > MAX_WAIT_SECONDS or failures >= MAX_ATTEMPTS:
                told = _told(error, where, failures, wait)
            else:
                told = None
                LOG.info(_scrubbed(f"{where}: {_reason(error)}; trying again in {wait:g} s ({failures})"))
        if told is not None:
            raise told  # outside of the handler: without the client's error, which may quote a request
        time.sleep(cast(float, wait))


def _underlying(error: Exception) -> Exception:
    """The client says "not in the cache" of a file that it could not fetch; the reason is the cause."""
    is_wrapper = isinstance(error, hub_client().errors.LocalEntryNotFoundError)
    return error.__cause__ if is_wrapper and isinstance(error.__cause__, Exception) else error


def _seconds_to_wait(error: Exception, failures: int) -> float | None:
    """None: waiting does not help."""
    errors = hub_client().errors
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
    errors = hub_client().errors
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
            next=(
                "check the name; for a private dataset set HF_TOKEN"
                if "/" in dataset
                else "give its owner too, as in wmt/wmt14 or openai/gsm8k"
            ),
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
            next="check the network, the proxy and HF_ENDPOINT, then run again: it resumes",
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
    token = hub_client().get_token()
    return text.replace(token, "***") if token else text


# The client
# --------------------------------------------------------------------------------------------------------


def dataset_url(dataset: str, revision: str | None) -> str:
    return f"hf://datasets/{dataset}" + (f"@{revision}" if revision else "")


def hub_client() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise missing_package("huggingface_hub") from error
    return huggingface_hub


def missing_package(package: str) -> MissingExtra:
    return MissingExtra(f"reading from the hub needs the package {package}", next=install_hint("hub"))
