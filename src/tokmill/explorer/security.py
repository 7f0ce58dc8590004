"""Who may ask: a middleware in front of every route.

    Host      one of ours          a page of elsewhere whose name was made to point here has another
    Origin    our own, if any      a page of elsewhere that asks from the same browser
    token     cookie or bearer     another user of this machine; compared in constant time
    body      at most so many bytes, JSON only: a form of another page cannot send it

GET /?token=… gives the cookie and leads to /, so that the token does not stay in the address. Every answer,
refusals too, has the headers that keep a text from being anything else than text.
"""

from __future__ import annotations

import hmac
import urllib.parse
from http.cookies import CookieError, SimpleCookie
from typing import Any

import msgspec

from tokmill.artifacts.manifest import Json

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY_BYTES = 1 << 20
_NOTEBOOK = "http://localhost:* http://127.0.0.1:*"

Scope = Any
Receive = Any
Send = Any


def policy(ancestors: str) -> str:
    """What a page of ours may load: its own files and answers, and nothing from elsewhere."""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        f"base-uri 'none'; form-action 'none'; frame-ancestors {ancestors}"
    )


class Gate:
    """An ASGI application around another."""

    def __init__(
        self, app: Any, *, token: str, hosts: tuple[str, ...], port: int, in_notebook: bool = False
    ) -> None:
        self._app, self._token = app, token
        self._hosts = {host.lower() for host in (*LOOPBACK, *hosts)}
        self.cookie = f"tokmill-explore-{port}"  # cookies know no port: two explorers would share one
        own = [
            ("content-security-policy", policy(_NOTEBOOK if in_notebook else "'none'")),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
        ]
        if not in_notebook:
            own.append(("x-frame-options", "DENY"))
        self._headers = [(name.encode(), value.encode()) for name, value in own]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                taken = {name for name, _ in self._headers}
                kept = [pair for pair in message.get("headers", []) if pair[0].lower() not in taken]
                message = {**message, "headers": [*kept, *self._headers]}
            await send(message)

        if scope["type"] != "http":  # no socket of another kind
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        fault = self._fault(scope, headers)
        if fault is not None:
            await refuse(guarded, *fault)
            return
        if scope["path"] == "/" and self._given(scope) is not None:
            await self._welcome(guarded)
            return
        limited = _Limited(receive)
        await self._app(scope, limited, guarded)

    def _fault(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, str] | None:
        host = headers.get("host", "").lower()
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if name not in self._hosts:
            return 421, "the name of the host is none of this server's", "open the address that it printed"
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) != host:
            return 403, "asked by a page of another origin", "open the address that the server printed"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "only GET and POST are answered", ""
        given = self._given(scope) if scope["path"] == "/" else None
        if not self._is_known(headers, given):
            return 401, "the token is missing, or another one", "open the address that the server printed"
        if scope["path"] != "/" and headers.get("sec-fetch-site") == "cross-site":
            return 403, "asked by a page of another site", "open the address that the server printed"
        if scope["method"] == "POST":
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                return 415, "the body is not JSON", "send application/json"
            length = headers.get("content-length", "")
            if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
                return 413, f"the body has no length, or more than {MAX_BODY_BYTES:,} bytes", "send less"
        return None

    def _given(self, scope: Scope) -> str | None:
        fields = urllib.parse.parse_qs(scope["query_string"].decode("latin-1"))
        return fields["token"][0] if "token" in fields else None

    def _is_known(self, headers: dict[str, str], given: str | None) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        shown = [
            given,
            bearer if scheme.lower() == "bearer" else None,
            self._baked(headers.get("cookie", "")),
        ]
        return any(
            one is not None and hmac.compare_digest(one.encode(), self._token.encode()) for one in shown
        )

    def _baked(self, cookies: str) -> str | None:
        try:
            found = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return None
        return found.value if found is not None else None

    async def _welcome(self, send: Send) -> None:
        cookie = f"{self.cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _host_of(origin: str) -> str | None:
    """None: it is no address."""
    try:
        return urllib.parse.urlsplit(origin).netloc.lower()
    except ValueError:
        return None


class _Limited:
    """What is received, up to the most that a body may have: a header may lie."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._bytes = receive, 0

    async def __call__(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > MAX_BODY_BYTES:
                return {"type": "http.disconnect"}
        return message


def error_json(what: str, where: str = "", next: str = "") -> bytes:
    fault: Json = {"error": {"what": what, "where": where, "next": next}}
    return msgspec.json.encode(fault)


async def refuse(send: Send, status: int, what: str, next: str) -> None:
    body = error_json(what, "", next)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
