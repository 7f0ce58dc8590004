"""S3, Google Cloud Storage and Azure, by obstore:
one client, one set of credentials, for reads and for commits.

Not s3fs, gcsfs and adlfs for the reads (docs/decisions/0008): none of them lets a caller say If-Match, they
take their credentials another way, and reading 300 MB by ranges of 16 MB took 0.55 s of CPU and 124 MB more
memory with s3fs, 0.17 s and 2 MB with obstore.

Credentials come from the environment as the clients take them; a profile of ~/.aws through boto3.
No error of a client is shown or kept: it may quote a request, and a request may be signed in its URL.

What a store tells of an object: without sending it, and with it.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tokmill.errors import InputChanged, MissingExtra, StorageError, TokmillError, install_hint


class Meta(NamedTuple):
    key: str
    size: int
    etag: str  # changes whenever the bytes do
    modified: str  # as text: nothing is computed from it


class Loaded(NamedTuple):
    data: bytes
    etag: str


def wrong_etag(scheme: str) -> str:
    """Of no object: a write or read on its condition must be refused."""
    return '"none"@1' if scheme == "gs" else '"none"'


T = TypeVar("T")

# Waits of 0.1, 0.2, … 12.8 s, less by chance: an outage of about 20 s passes.
MAX_RETRIES = 8
_RETRY_SECONDS = 120
# For one request: a part of 16 MiB at 100 kB/s takes less than three minutes.
_REQUEST_SECONDS, _CONNECT_SECONDS, _SILENT_SECONDS = 300, 10, 60

# An object in one piece up to here, in parts above. Two parts of each of four objects wait at a time:
# 128 MiB.
PART_BYTES = 16 << 20
_PARTS_AT_A_TIME = 2
_MAX_PARTS = 9_000  # S3 allows 10,000
_DELETED_AT_A_TIME = 1000  # that S3 allows

# 503 is how S3 says "slow down", 429 others.
_OVERLOADED = ("408", "429", "500", "502", "503", "504")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]+)</Code>")
# What S3 says of credentials in other ways than 401 and 403, or with them of something else.
_EXPIRED = "get new credentials, then run the same command again: it goes on where it stopped"
_CODES = {
    "ExpiredToken": ("the token of the credentials has expired", _EXPIRED),
    "InvalidToken": ("the token of the credentials is not valid", f"check AWS_SESSION_TOKEN, or {_EXPIRED}"),
    "RequestTimeTooSkewed": (
        "the clock of this machine differs too much from the store's",
        "set the clock, then run the same command again: it goes on where it stopped",
    ),
}
_STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class Transient(StorageError):
    """The connection broke, or the store has too much to do: what was asked may have been done."""

    def __reduce__(self) -> tuple[object, ...]:
        return StorageError(self.what, where=self.where, next=self.next).__reduce__()


class _Unreachable(Transient):
    """The connection broke."""


class CloudClient:
    def __init__(self, scheme: str, bucket: str, store: Any) -> None:
        self._scheme, self._bucket, self._store = scheme, bucket, store

    def head(self, key: str) -> Meta | None:
        return self._ask(key, lambda: _meta(self._store.head(key), self._scheme), absent=lambda: None)

    def load(self, key: str) -> Loaded | None:
        return self._ask(key, lambda: self._load(key), absent=lambda: None)

    def read(self, key: str, start: int, end: int, etag: str | None) -> bytes:
        options: dict[str, Any] = {"range": (start, end)}
        if etag is not None:
            options["if_match"] = _tag_and_version(etag, self._scheme)[0]
        data: bytes = self._ask(key, lambda: self._store.get(key, options=options).bytes().to_bytes())
        if len(data) != end - start:
            raise InputChanged(
                f"{len(data):,} bytes came of the {end - start:,} from {start:,} on",
                where=self._where(key),
                next="run again when nothing writes there any more",
            )
        return data

    def put_if(self, key: str, data: bytes, etag: str | None) -> str | None:
        """The client does not repeat such a write when the connection breaks;
        whoever calls this knows its own again."""
        if etag is None:
            return patiently(
                lambda: self._ask(key, lambda: self._put(key, data, mode="create"), refused=lambda: None),
                _Unreachable,
                MAX_RETRIES,
            )
        tag, version = _tag_and_version(etag, self._scheme)
        mode = {"e_tag": tag, "version": version} if version else {"e_tag": tag}
        return patiently(
            lambda: self._ask(
                key, lambda: self._put(key, data, mode=mode), refused=lambda: None, absent=lambda: None
            ),
            _Unreachable,
            MAX_RETRIES,
        )

    def upload(self, key: str, pieces: Iterable[bytes], size: int) -> str:
        if size <= PART_BYTES:
            data = b"".join(pieces)
            return self._ask(key, lambda: self._put(key, data))
        settings = {
            "use_multipart": True,
            "chunk_size": _part_bytes(size),
            "max_concurrency": _PARTS_AT_A_TIME,
        }
        faults: list[BaseException] = []
        try:
            return self._ask(key, lambda: self._put(key, _watched(pieces, faults), **settings))
        except StorageError:
            if faults:  # of who gives the pieces, not of the store
                raise faults[0] from None
            raise

    def copy(self, key: str, target: str) -> None:
        self._ask(key, lambda: self._store.copy(key, target))

    def list(self, prefix: str) -> Iterator[Meta]:
        """Object stores list by whole parts of a key, so what follows the last slash is looked at here."""
        folder = prefix.rpartition("/")[0]
        pages = self._ask(prefix, lambda: list(self._store.list(folder or None)))
        for page in pages:
            for found in page:
                if found["path"].startswith(prefix):
                    yield _meta(found, self._scheme)

    def delete(self, key: str) -> None:
        self._ask(key, lambda: self._store.delete(key), absent=lambda: None)

    def delete_all(self, keys: Sequence[str]) -> int:
        """S3 takes many at a time, and does not mind those that are not there."""
        at_a_time = _DELETED_AT_A_TIME if self._scheme == "s3" else 1
        for start in range(0, len(keys), at_a_time):
            some = list(keys[start : start + at_a_time])
            self._ask(some[0], lambda some=some: self._store.delete(some), absent=lambda: None)  # type: ignore[misc]
        return -(-len(keys) // at_a_time)

    def _load(self, key: str) -> Loaded:
        result = self._store.get(key)
        return Loaded(result.bytes().to_bytes(), _etag(result.meta, self._scheme))

    def _put(self, key: str, data: Any, **settings: Any) -> str:
        result = self._store.put(key, data, **{"use_multipart": False, **settings})
        return _etag(result, self._scheme)

    def _where(self, key: str) -> str:
        return f"{self._scheme}://{self._bucket}/{key}"

    def _ask(
        self,
        key: str,
        act: Callable[[], T],
        *,
        absent: Callable[[], T] | None = None,
        refused: Callable[[], T] | None = None,
    ) -> T:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        told: TokmillError
        try:
            return act()
        except TokmillError:
            raise
        except FileNotFoundError as error:
            if absent is not None:
                return absent()
            told = _told(error, self._scheme, self._where(key))
        except (AlreadyExistsError, PreconditionError):
            if refused is not None:
                return refused()
            told = InputChanged(
                "the object is another one by now",
                where=self._where(key),
                next="run again when nothing writes there any more",
            )
        except Exception as error:  # noqa: BLE001
            # the client's errors have no common base; all are told as ours
            told = _told(error, self._scheme, self._where(key))
        raise told  # outside of the handlers: without the client's error, which may quote a request


def patiently(act: Callable[[], T], faults: type[Transient] = Transient, retries: int = 3) -> T:
    """Again where the store could not be asked or had too much to do. The client repeats by itself what it
    can, for some 20 s: not a body that breaks off in the middle, nor a conditional write."""
    for attempt in itertools.count():
        try:
            return act()
        except faults:
            if attempt >= retries:
                raise
        time.sleep(0.1 * 2**attempt)
    raise AssertionError


def upload_requests(size: int) -> int:
    """Of an object of this size: one, or its parts, what begins them and what puts them together."""
    return 1 if size <= PART_BYTES else -(-size // _part_bytes(size)) + 2


def _part_bytes(size: int) -> int:
    return max(PART_BYTES, -(-size // _MAX_PARTS))


def open_cloud(scheme: str, bucket: str) -> CloudClient:
    try:
        import obstore.store
    except ImportError as error:
        raise MissingExtra(
            f"{scheme}:// needs the package obstore",
            where=f"{scheme}://{bucket}",
            next=install_hint(scheme),
        ) from error
    told: TokmillError | None = None
    try:
        store = getattr(obstore.store, _STORES[scheme])(bucket, **_settings(scheme))
    except TokmillError:
        raise
    except Exception as error:  # noqa: BLE001  see _ask
        told = _told(error, scheme, f"{scheme}://{bucket}")
    if told is not None:
        raise told
    return CloudClient(scheme, bucket, store)


def _settings(scheme: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "retry_config": {
            "max_retries": MAX_RETRIES,
            "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
        },
        "client_options": {
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "read_timeout": timedelta(seconds=_SILENT_SECONDS),
        },
    }
    if scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        if endpoint.startswith("http://"):  # a server of one's own, chosen on purpose
            settings["client_options"]["allow_http"] = True
        if _needs_profile():
            settings["credential_provider"] = _profile()
    return settings


def _needs_profile() -> bool:
    """Where the environment has no credentials, and ~/.aws may. obstore itself does not read it."""
    given = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
    if any(os.environ.get(name) for name in given):
        return False
    files = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
    return any(
        Path(os.environ.get(variable) or Path.home() / ".aws" / name).expanduser().is_file()
        for variable, name in files.items()
    )


def _profile() -> Any:
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingExtra(
            "a profile of ~/.aws needs the package boto3",
            where="AWS_PROFILE",
            next=install_hint("s3"),
        ) from error
    return Boto3CredentialProvider()


def _watched(pieces: Iterable[bytes], faults: list[BaseException]) -> Iterator[bytes]:
    try:
        yield from pieces
    except Exception as error:
        faults.append(error)
        raise


def _meta(found: Any, scheme: str) -> Meta:
    return Meta(found["path"], found["size"], _etag(found, scheme), found["last_modified"].isoformat())


def _etag(found: Any, scheme: str) -> str:
    """Google replaces by generation, not by etag: there both are one string."""
    tag = str(found["e_tag"] or "")
    return f"{tag}@{found['version']}" if scheme == "gs" and found.get("version") else tag


def _tag_and_version(etag: str, scheme: str) -> tuple[str, str]:
    if scheme != "gs" or "@" not in etag:
        return etag, ""
    tag, _, version = etag.rpartition("@")
    return tag, version


def _told(error: Exception, scheme: str, where: str) -> StorageError:
    """In our words alone: of what the client says only the status, its kind and codes of a list are taken."""
    text, kind = str(error), type(error).__name__
    found = _STATUS.search(text)
    status = found[1] if found else ""
    code = _CODE.search(text)
    if code is not None and code[1] in _CODES:
        what, next = _CODES[code[1]]
        return StorageError(what, where=where, next=next)
    if isinstance(error, FileNotFoundError) or status == "404":  # a bucket that is listed has no kind
        return StorageError("no such object, or no such bucket", where=where, next="check the URL")
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403"):
        return StorageError(
            f"the store refuses access{f' ({status})' if status else ''}",
            where=where,
            next=f"check the credentials ({_VARIABLES[scheme]}) and what they may do",
        )
    if kind in ("NotSupportedError", "NotImplementedError") or status == "501":
        return StorageError(
            "the store cannot do what was asked of it",
            where=where,
            next="`tokmill doctor --storage URL` tells what this store does",
        )
    if status == "400":  # where S3 is asked for no body it says no more than this of a token
        return StorageError(
            "the store does not understand what was asked, or the credentials have expired (400)",
            where=where,
            next=f"check the credentials ({_VARIABLES[scheme]}), then run the same command again",
        )
    if status:
        kind_of = Transient if status in _OVERLOADED else StorageError
        return kind_of(
            f"the store answers with an error ({status})",
            where=where,
            next="run the same command again later: it goes on where it stopped",
        )
    if "error sending request" in text or "HTTP error" in text or "timed out" in text:
        return _Unreachable(
            "the store cannot be reached, or the connection broke",
            where=where,
            next=(
                "check the network and the endpoint, then run the same command again: it goes on where it "
                "stopped"
            ),
        )
    return StorageError(
        f"the store cannot be used ({kind})",
        where=where,
        next=f"check the URL and the settings ({_VARIABLES[scheme]})",
    )
