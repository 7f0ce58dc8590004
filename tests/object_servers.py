"""Real servers for object storage: moto's S3 as a process of its own,
and a proxy that misbehaves as it is told.

client ──> Proxy ──> moto
             │  before(request)  ─ None: pass on · a number: answer with that status · "reset": hang up
             │                     a number and a code: answer so, as S3 does
             │                     "lose": pass on, then hang up without the answer
             └  pretend: conditions are taken out of every request   edit(request, body): lies about an answer
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import http.server
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import boto3

KEY_ID, SECRET = "AKIAEXAMPLEKEYID", "wJalrXUtnFEMIexampleSECRETbPxRfiCY"
_CONDITIONS = ("if-match", "if-none-match")


class Request(NamedTuple):
    method: str
    path: str  # with its query
    headers: dict[str, str]
    body: bytes

    @property
    def is_write(self) -> bool:
        return self.method in ("PUT", "POST", "DELETE")


def environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "TOKMILL_WORKERS": "1",
    }


# Head and body of an answer are two writes: the second waits 40 ms until the first is acknowledged.
MOTO = """
import socketserver
socketserver.StreamRequestHandler.disable_nagle_algorithm = True
from moto.server import main
main()
"""


@contextlib.contextmanager
def open_moto() -> Iterator[str]:
    """The endpoint of a server that keeps its word. It ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-c", MOTO, "-H", "127.0.0.1", "-p", str(port)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean
    ) as process:
        try:
            _await_port(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise RuntimeError("moto's server did not start")


def make_bucket(endpoint: str, name: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()


@functools.cache
def _client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )


class Bucket(NamedTuple):
    """A bucket of moto's server, asked by Amazon's own client: none of ours stands between."""

    endpoint: str
    name: str

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Of every object whose key begins so, in the order of the keys."""
        listing = _client(self.endpoint).list_objects_v2(Bucket=self.name, Prefix=prefix)
        assert not listing["IsTruncated"]
        return {one["Key"]: one["Size"] for one in listing.get("Contents", ())}

    def load(self, key: str) -> bytes | None:
        client = _client(self.endpoint)
        try:
            data: bytes = client.get_object(Bucket=self.name, Key=key)["Body"].read()
        except client.exceptions.NoSuchKey:
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        _client(self.endpoint).put_object(Bucket=self.name, Key=key, Body=data)

    def delete(self, key: str) -> None:
        _client(self.endpoint).delete_object(Bucket=self.name, Key=key)


def open_uploads(endpoint: str, bucket: str) -> int:
    """Multipart uploads that were begun and neither ended nor aborted."""
    with urllib.request.urlopen(f"{endpoint}/{bucket}?uploads") as answer:
        return int(answer.read().count(b"<Upload>"))


class Proxy:
    def __init__(self, upstream: str) -> None:
        self.upstream = upstream.removeprefix("http://")
        self.seen: list[Request] = []
        self.pretend = False
        self.before: Callable[[Request], int | str | tuple[int, str] | None] = lambda request: None
        self.edit: Callable[[Request, bytes], bytes] = lambda request, body: body
        self.endpoint = ""
        self._at_work, self._changed = 0, threading.Condition()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        with self._changed:
            self._at_work += 1
        try:
            yield
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()

    def await_quiet(self) -> None:
        """Until every request that came has been dealt with: who asked may be dead long before."""
        with self._changed:
            self._changed.wait_for(lambda: self._at_work == 0)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as in MOTO
    proxy: Proxy

    def handle_any(self) -> None:
        with self.proxy.working():
            self._handle()

    def _handle(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, self.rfile.read(size))
        if len(request.body) < size:
            return self._hang_up()  # who asked died on the way
        self.proxy.seen.append(request)
        action = self.proxy.before(request)
        if action == "reset":
            return self._hang_up()
        if isinstance(action, int):
            return self._answer(action, {}, b"")
        if isinstance(action, tuple):
            status, code = action
            told = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>"
            return self._answer(status, {}, b"" if request.method == "HEAD" else told.encode())
        status, answered, body = self._pass_on(request)
        if action == "lose":
            return self._hang_up()
        return self._answer(status, answered, self.proxy.edit(request, body))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

    def _pass_on(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        dropped = {"connection", *(_CONDITIONS if self.proxy.pretend else ())}
        headers = {name: value for name, value in request.headers.items() if name not in dropped}
        with contextlib.closing(http.client.HTTPConnection(self.proxy.upstream)) as connection:
            connection.request(request.method, request.path, request.body, headers)
            response = connection.getresponse()
            answered = {name.lower(): value for name, value in response.getheaders()}
            return response.status, answered, response.read()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        with contextlib.suppress(OSError):  # who asked may be dead by now
            self.send_response_only(status)
            for name, value in headers.items():
                if name not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = headers.get("content-length", "0") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(body)

    def _hang_up(self) -> None:
        linger = struct.pack("ii", 1, 0)  # closing then resets the connection
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().handle()


@contextlib.contextmanager
def open_proxy(upstream: str) -> Iterator[Proxy]:
    proxy = Proxy(upstream)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield proxy
        finally:
            server.shutdown()
            serving.join()
