"""Routes of the application, and the server that answers on a socket of its own.

    GET /             static/index.html
    GET /static/…     files of the page, from the package
    GET /api/…        JSON; what each answers is in docs/reference/explorer.md

A handler is a plain function of the site and what was asked; it runs in a thread. An error that users meet is
JSON with what, where and next.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from tokmill import reports
from tokmill.errors import InputError, RecipeError, StorageError, TokmillError
from tokmill.explorer import label_routes
from tokmill.explorer.routes import Fields, Handler, Poster, StillSearching, make_handlers, make_posters
from tokmill.explorer.security import Gate, error_json
from tokmill.explorer.site import Site
from tokmill.explorer.warming import Warming

STATIC = Path(__file__).parent / "static"
REPORTS = Path(reports.__file__).parent
OF_REPORTS = ("colors.css", "frame.js")  # the same for both


def make_application(site: Site) -> Starlette:
    routes: list[BaseRoute] = [
        Route(f"/{name}", _endpoint(site, act), methods=["GET"]) for name, act in make_handlers(site).items()
    ]
    routes += [
        Route(f"/{name}", _receiver(act), methods=["POST"]) for name, act in make_posters(site).items()
    ]
    routes += label_routes.routes(site)
    return Starlette(
        routes=[
            Route("/", _index),
            Mount("/api", routes=routes),
            *(Route(f"/static/{name}", _of_reports(name)) for name in OF_REPORTS),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={TokmillError: _told, HTTPException: _http, Exception: _bug},
    )


def _endpoint(site: Site, act: Handler) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            with site.answering():
                return answer(act(Fields(request.query_params)))
        except StillSearching as searching:
            return answer({"indexing": searching.share}, 202)

    return endpoint


def _receiver(act: Poster) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return answer(await run_in_threadpool(act, await request.body()))

    return endpoint


def answer(told: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(told), status, media_type="application/json")


def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html")


def _of_reports(name: str) -> Callable[[Request], Response]:
    return lambda request: FileResponse(REPORTS / name)


def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, TokmillError)
    status = (
        400
        if isinstance(error, (InputError, RecipeError))
        else 404
        if isinstance(error, StorageError)
        else 500
    )
    body = error_json(error.what, error.where, error.next)
    return Response(body, status, media_type="application/json")


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = error_json(str(error.detail), request.url.path, "see the list of addresses in the reference")
    return Response(body, error.status_code, media_type="application/json")


def _bug(request: Request, error: Exception) -> Response:
    """Its traceback is in the terminal."""
    body = error_json(f"the explorer failed: {type(error).__name__}", request.url.path, "see the terminal")
    return Response(body, 500, media_type="application/json")


class Server:
    """An application behind its gate, on a socket that is bound before anything is read."""

    def __init__(self, site: Site, *, host: str, port: int, in_notebook: bool = False) -> None:
        self.token = secrets.token_urlsafe(32)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise StorageError(
                f"cannot listen there ({error.strerror or error})",
                where=f"{host}:{port}",
                next="choose another `--port`, or none: a free one is taken",
            ) from error
        self.port = int(self._socket.getsockname()[1])
        named = f"[{host}]" if ":" in host else host
        gate = Gate(
            make_application(site), token=self.token, hosts=(named,), port=self.port, in_notebook=in_notebook
        )
        self.address = f"http://{named}:{self.port}/"
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                gate,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                limit_concurrency=64,
                timeout_keep_alive=15,
                h11_max_incomplete_event_size=64 << 10,
            )
        )
        self._thread: threading.Thread | None = None
        self._site, self._warming = site, Warming(site)

    @property
    def url(self) -> str:
        return f"{self.address}?token={self.token}"

    def start(self) -> None:
        """In a thread; returns when it answers."""
        self._thread = threading.Thread(target=self._serve, name="tokmill-explore", daemon=True)
        self._thread.start()
        while not self._uvicorn.started and self._thread.is_alive():
            time.sleep(0.005)
        self._warming.start()

    def _serve(self) -> None:
        self._uvicorn.run(sockets=[self._socket])

    def wait(self) -> None:
        """Until it is stopped."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.5)

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._site.end()
        if self._thread is not None:
            self._thread.join(5)
        self._socket.close()
