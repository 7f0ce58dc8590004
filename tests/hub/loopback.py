"""A dataset hub on 127.0.0.1, for the unmodified client.

    hub = LoopbackHub()
    sha = hub.commit("org/texts", {"data/train.jsonl": b"…"})            on branch main
    with hub.serving():
        … a subprocess with HF_ENDPOINT=hub.endpoint …

    GET  /api/datasets/{id}[/revision/{rev}]            what a repository holds
    GET  /api/datasets/{id}/tree/{rev}[/{path}]         a folder of it
    POST /api/datasets/{id}/paths-info/{rev}            some of its paths
    GET  /api/datasets/{id}/refs                        its branches
    HEAD, GET /datasets/{id}/resolve/{rev}/{path}       a file, or a range of it (with `has_cdn`, elsewhere)

    POST /api/repos/create                              a repository, if there is none
    POST /api/validate-yaml                             of a card
    POST /api/datasets/{id}/preupload/{rev}             which files are large
    POST /datasets/{id}.git/info/lfs/objects/batch      where those are put
    PUT  /lfs/{sha256}                                  there
    POST /api/datasets/{id}/commit/{rev}                small files, the names of large ones, what goes

With a `token`, only who sends it may write.

Faults are declared before a request meets them: `drop`, `rate_limit`, `gate`, `reject`.
Every request is in `log`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

MAX_BODY_BYTES = 1 << 20
EPOCH = "2024-01-01T00:00:00.000Z"
LFS_BYTES = 10_000  # files from this size on are large ones, which have a sha256


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]  # names in lower case


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    gated: int | None = None  # the status that a file of a gated repository answers with


@dataclass
class Drop:
    after_bytes: int
    times: int | None  # None: always


class LoopbackHub:
    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}  # former names, which lead to the present ones
        self.log: list[Request] = []
        self.endpoint = ""
        self.token = ""  # that a writer must send
        self.objects: dict[str, bytes] = {}  # large files that were put, by sha256
        self.has_cdn = False  # True: the content of files comes from another host, as on the real hub
        self._drops: dict[str, Drop] = {}
        self._refusals: list[tuple[str, int, dict[str, str]]] = []
        self._lock = threading.Lock()

    def commit(self, dataset: str, files: dict[str, bytes], *, branch: str = "main") -> str:
        """A commit that holds exactly `files`, at the head of `branch`."""
        repository = self.repositories.setdefault(dataset, Repository())
        digest = hashlib.sha1(f"{dataset}\n{len(repository.commits)}".encode())
        for path, data in sorted(files.items()):
            digest.update(path.encode() + b"\0" + data)
        sha = digest.hexdigest()
        repository.commits[sha] = dict(files)
        repository.branches[branch] = sha
        return sha

    def drop(self, path: str, *, after_bytes: int, times: int | None = 1) -> None:
        """Cut the connection after so many bytes of a response with this file."""
        self._drops[path] = Drop(after_bytes, times)

    def rate_limit(self, times: int, *, retry_after: str = "0", only: str = "") -> None:
        """Answer 429 to the next `times` requests whose path contains `only`."""
        self._refusals += [(only, 429, {"Retry-After": retry_after})] * times

    def reject(self, times: int, status: int, *, only: str = "") -> None:
        self._refusals += [(only, status, {})] * times

    def gate(self, dataset: str, status: int = 403) -> None:
        self.repositories[dataset].gated = status

    @contextmanager
    def serving(self) -> Iterator[LoopbackHub]:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join(timeout=10)

    def seen(self, method: str = "", containing: str = "") -> list[Request]:
        return [request for request in self.log if method in request.method and containing in request.path]

    def refusal(self, path: str) -> tuple[int, dict[str, str]] | None:
        with self._lock:
            for index, (only, status, headers) in enumerate(self._refusals):
                if only in path:
                    del self._refusals[index]
                    return status, headers
        return None

    def bytes_before_drop(self, path: str) -> int | None:
        with self._lock:
            drop = self._drops.get(path)
            if drop is None or drop.times == 0:
                return None
            if drop.times is not None:
                drop.times -= 1
            return drop.after_bytes


class _Absent(Exception):
    def __init__(self, code: str, status: int = 404, commit: str = "") -> None:
        self.code, self.status, self.commit = code, status, commit


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or the body of an answer waits 40 ms until its head is acknowledged
    timeout = 30

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass  # the log is a list

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY_BYTES:
            self.close_connection = True
            self._send(413, b"", {})
            return
        body = self.rfile.read(length)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.hub.log.append(Request(self.command, self.path, headers))
        refusal = self.hub.refusal(self.path)
        try:
            if moved := self._moved_to():
                self._send(307, b"", {"Location": f"{self.hub.endpoint}{moved}"})
            elif refusal:
                self._send(refusal[0], b"", refusal[1])
            else:
                self._route(body)
        except _Absent as absent:
            told = {"X-Error-Code": absent.code, "X-Error-Message": absent.code}
            if absent.commit:
                told["X-Repo-Commit"] = absent.commit
            self._send(absent.status, b"", told)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _route(self, body: bytes) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        parts = [part for part in url.path.split("/") if part]
        if self._is_upload(parts):
            self._take(parts, body)
        elif parts[:2] == ["api", "datasets"]:
            dataset, repository, rest = self._repository(parts[2:])
            verb, arguments = (
                (rest[0], [unquote(part) for part in rest[1:]]) if rest else ("revision", ["main"])
            )
            if verb == "refs":
                self._json(_refs(repository))
                return
            if not arguments:
                raise _Absent("EntryNotFound")
            sha = self._sha(repository, arguments[0])
            files = repository.commits[sha]
            if verb == "revision":
                self._json(_info(dataset, repository, sha, blobs="blobs" in query))
            elif verb == "tree":
                recursive = query.get("recursive", "").lower() in ("true", "1")
                self._json(_tree(files, sha, "/".join(arguments[1:]), recursive))
            elif verb == "paths-info":
                entries = {entry["path"]: entry for entry in _entries(files)}
                self._json([entries[path] for path in _asked_paths(body) if path in entries])
            else:
                raise _Absent("EntryNotFound", commit=sha)
        elif parts[:1] == ["datasets"] and "resolve" in parts:
            _, repository, rest = self._repository(parts[1:])
            if repository.gated:
                raise _Absent("GatedRepo", repository.gated)
            sha = self._sha(repository, unquote(rest[1]))
            path = "/".join(unquote(part) for part in rest[2:])
            if path not in repository.commits[sha]:
                raise _Absent("EntryNotFound", commit=sha)
            if self.hub.has_cdn and self.command == "GET":
                port = self.hub.endpoint.rpartition(":")[2]
                where = f"http://localhost:{port}/cdn/{'/'.join([*parts[1 : -len(rest)], sha, *rest[2:]])}"
                self._send(302, b"", {"Location": where})
            else:
                self._file(path, repository.commits[sha][path], sha)
        elif parts[:1] == ["cdn"]:
            _, repository, rest = self._repository(parts[1:])
            path = "/".join(unquote(part) for part in rest[1:])
            self._file(path, repository.commits[rest[0]][path], rest[0])
        else:
            raise _Absent("RepoNotFound")  # models, spaces, …: there are none here

    def _is_upload(self, parts: list[str]) -> bool:
        if parts[:1] == ["lfs"] or parts[-2:] == ["objects", "batch"]:
            return True
        return parts[:2] in (["api", "repos"], ["api", "validate-yaml"]) or (
            parts[:2] == ["api", "datasets"] and parts[-2:-1] in (["preupload"], ["commit"])
        )

    def _take(self, parts: list[str], body: bytes) -> None:
        """What a client that uploads asks for."""
        hub = self.hub
        if hub.token and parts[0] != "lfs" and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._send(401, b'{"error": "Invalid credentials"}', {"Content-Type": "application/json"})
            return
        if parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            assert asked["type"] == "dataset"
            dataset = f"{asked['organization']}/{asked['name']}"
            url = {"url": f"{hub.endpoint}/datasets/{dataset}", "id": dataset}
            if dataset in hub.repositories:
                self._send(409, json.dumps(url).encode(), {"Content-Type": "application/json"})
            else:
                hub.commit(dataset, {})
                self._json(url)
        elif parts[:2] == ["api", "validate-yaml"]:
            self._json({"errors": [], "warnings": []})
        elif parts[0] == "lfs":
            assert hashlib.sha256(body).hexdigest() == parts[1]
            hub.objects[parts[1]] = body
            self._send(200, b"", {})
        elif parts[-1] == "batch":
            put = [
                {**one, "actions": {"upload": {"href": f"{hub.endpoint}/lfs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            self._json({"transfer": "basic", "objects": put})
        elif parts[-2] == "preupload":
            modes = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["size"] >= LFS_BYTES else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            self._json({"files": modes})
        else:
            dataset, repository, _ = self._repository(parts[2:])
            files = dict(repository.commits[repository.branches[unquote(parts[-1])]])
            for line in body.splitlines():
                item = json.loads(line)
                value = item["value"]
                match item["key"]:
                    case "file":
                        files[value["path"]] = base64.b64decode(value["content"])
                    case "lfsFile":
                        files[value["path"]] = hub.objects[value["oid"]]
                    case "deletedFile":
                        del files[value["path"]]
            sha = hub.commit(dataset, files)
            url = f"{hub.endpoint}/datasets/{dataset}/commit/{sha}"
            self._json({"commitUrl": url, "commitOid": sha, "success": True})

    def _moved_to(self) -> str:
        """The same path with the present name of the dataset; nothing where it has none other."""
        for former, name in self.hub.moved.items():
            for prefix in ("/api/datasets", "/datasets"):
                if f"{self.path}/".startswith(f"{prefix}/{former}/"):
                    return f"{prefix}/{name}{self.path[len(prefix) + len(former) + 1 :]}"
        return ""

    def _repository(self, parts: list[str]) -> tuple[str, Repository, list[str]]:
        for length in (2, 1):
            dataset = "/".join(unquote(part) for part in parts[:length])
            if dataset in self.hub.repositories:
                return dataset, self.hub.repositories[dataset], parts[length:]
        raise _Absent("RepoNotFound")

    def _sha(self, repository: Repository, revision: str) -> str:
        sha = repository.branches.get(revision, revision)
        if sha not in repository.commits:
            raise _Absent("RevisionNotFound")
        return sha

    def _file(self, path: str, data: bytes, sha: str) -> None:
        headers = {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        status, part = 200, data
        if asked and self.command == "GET":
            start, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            if start >= len(data):
                self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            status, part = 206, data[start : end + 1]
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        cut = self.hub.bytes_before_drop(path) if self.command == "GET" else None
        self._send(status, part, headers, cut=cut)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut is None or cut >= len(body):
            self.wfile.write(body)
        else:
            self.wfile.write(body[:cut])
            self.close_connection = True


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entries(files: dict[str, bytes]) -> list[dict[str, object]]:
    entries: dict[str, dict[str, object]] = {}
    for path, data in sorted(files.items()):
        parents = path.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            folder = "/".join(parents[:depth])
            entries[folder] = {
                "type": "directory",
                "oid": hashlib.sha1(folder.encode()).hexdigest(),
                "size": 0,
                "path": folder,
            }
        entries[path] = {"type": "file", "oid": _oid(data), "size": len(data), "path": path}
        if len(data) >= LFS_BYTES:
            sha256 = hashlib.sha256(data).hexdigest()
            entries[path]["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
    return list(entries.values())


def _tree(files: dict[str, bytes], sha: str, folder: str, recursive: bool) -> list[dict[str, object]]:
    entries = _entries(files)
    inside = f"{folder}/" if folder else ""
    if folder and not any(str(entry["path"]).startswith(inside) for entry in entries):
        raise _Absent("EntryNotFound", commit=sha)
    below = [entry for entry in entries if str(entry["path"]).startswith(inside)]
    return [entry for entry in below if recursive or "/" not in str(entry["path"]).removeprefix(inside)]


def _info(dataset: str, repository: Repository, sha: str, *, blobs: bool) -> dict[str, object]:
    siblings: list[dict[str, object]] = []
    for path, data in sorted(repository.commits[sha].items()):
        sibling: dict[str, object] = {"rfilename": path}
        siblings.append({**sibling, "size": len(data), "blobId": _oid(data)} if blobs else sibling)
    return {
        "id": dataset,
        "sha": sha,
        "siblings": siblings,
        "private": False,
        "gated": "manual" if repository.gated else False,
        "disabled": False,
        "tags": [],
        "downloads": 0,
        "likes": 0,
        "lastModified": EPOCH,
        "createdAt": EPOCH,
    }


def _refs(repository: Repository) -> dict[str, object]:
    branches = [
        {"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha}
        for name, sha in sorted(repository.branches.items())
    ]
    return {"branches": branches, "converts": [], "tags": [], "pullRequests": []}


def _asked_paths(body: bytes) -> list[str]:
    """The client sends a form or JSON, depending on its version."""
    try:
        paths = json.loads(body)["paths"]
    except ValueError:
        return parse_qs(body.decode()).get("paths", [])
    return [paths] if isinstance(paths, str) else list(paths)
