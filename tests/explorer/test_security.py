"""Who is refused, over a real socket, and what every answer says to a browser."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

import tokmill
from explored import Client
from tokmill.errors import StorageError
from tokmill.explorer.security import MAX_BODY_BYTES


def bearer(client: Client) -> dict[str, str]:
    return {"Authorization": f"Bearer {client.token}"}


@pytest.mark.parametrize("path", ["/", "/static/index.html", "/api/run", "/api/documents", "/nothing"])
def test_without_the_token_nothing_is_answered(client: Client, path: str) -> None:
    answer = client.ask(path)
    assert answer.status == 401
    assert set(answer.json["error"]) == {"what", "where", "next"}
    assert client.ask(path, {"Authorization": "Bearer wrong"}).status == 401
    assert client.ask(path, {"Authorization": f"Basic {client.token}"}).status == 401
    assert client.ask(path, {"Cookie": f"tokmill-explore-{client.port}=wrong"}).status == 401
    assert client.ask(path + "?token=wrong").status == 401


def test_a_token_in_the_address_counts_for_the_first_page_alone(client: Client) -> None:
    assert client.ask(f"/api/run?token={client.token}").status == 401


def test_the_printed_address_gives_a_cookie_that_scripts_cannot_read_and_leads_away_from_the_token(
    client: Client,
) -> None:
    answer = client.ask(f"/?token={client.token}")
    assert answer.status == 303
    assert answer.headers["location"] == "/"
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    assert client.ask("/api/run", {"Cookie": cookie}).status == 200
    assert client.ask("/", {"Cookie": cookie}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "127.0.0.2", "[::2]:80"]
)
def test_another_host_is_refused_though_the_token_is_right(client: Client, host: str) -> None:
    """A name that was made to point here (DNS rebinding)."""
    assert client.ask("/api/run", {**bearer(client), "Host": host}).status == 421


@pytest.mark.parametrize(
    "host", ["localhost:{}", "127.0.0.1:{}", "LOCALHOST:{}", "localhost:9000", "[::1]:{}"]
)
def test_names_of_loopback_are_ours_whatever_the_port_of_a_tunnel(client: Client, host: str) -> None:
    assert client.ask("/api/run", {**bearer(client), "Host": host.format(client.port)}).status == 200


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost:{}", "file://", "x", "http://["],
)
def test_a_foreign_origin_is_refused(client: Client, origin: str) -> None:
    headers = {**bearer(client), "Origin": origin.format(client.port)}
    answer = client.ask("/api/run", headers)
    assert answer.status == 403
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_our_own_origin_is_answered_and_a_request_across_sites_is_not(client: Client) -> None:
    own = {**bearer(client), "Origin": f"http://127.0.0.1:{client.port}"}
    assert client.ask("/api/run", own).status == 200
    assert client.ask("/api/run", {**bearer(client), "Sec-Fetch-Site": "cross-site"}).status == 403


def test_every_answer_has_the_headers_that_keep_text_text(client: Client) -> None:
    for answer in (
        client.ask("/", bearer(client)),
        client.ask("/api/run", bearer(client)),
        client.ask("/api/run"),
        client.ask("/nothing", bearer(client)),
        client.get("documents", f="nothing:1"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/%2e%2e/__init__.py",
        "/static//etc/passwd",
        "/static/..%5c..%5cserver.py",
        "/../../../../etc/passwd",
        "/api/../../etc/passwd",
        "/etc/passwd",
        "//etc/passwd",
    ],
)
def test_a_file_outside_of_the_page_is_refused(client: Client, path: str) -> None:
    answer = client.ask(path, bearer(client))
    assert answer.status in (400, 404)
    assert b"root:" not in answer.body
    assert b"import" not in answer.body


def test_other_methods_bodies_and_kinds_of_content_are_refused(client: Client) -> None:
    own = bearer(client)
    assert client.ask("/api/run", own, method="PUT", body=b"{}").status == 405
    assert client.ask("/api/run", own, method="DELETE").status == 405
    assert client.ask("/api/run", own, method="OPTIONS").status == 405
    form = {**own, "Content-Type": "application/x-www-form-urlencoded"}
    assert client.ask("/api/run", form, method="POST", body=b"a=b").status == 415
    plain = {**own, "Content-Type": "text/plain"}
    assert client.ask("/api/run", plain, method="POST", body=b"{}").status == 415
    large = {**own, "Content-Type": "application/json"}
    assert client.ask("/api/run", large, method="POST", body=b" " * (MAX_BODY_BYTES + 1)).status == 413


def test_a_request_line_without_an_end_is_given_up_in_bounded_memory(client: Client) -> None:
    with (
        socket.create_connection((client.host, client.port), timeout=30) as raw,
        contextlib.suppress(ConnectionError),  # it hangs up without hearing the end
    ):
        raw.sendall(b"GET /api/run?f=" + b"x" * (1 << 20))
        raw.sendall(b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = raw.recv(1 << 16)
        assert not answer or answer.split()[1] in (b"400", b"401", b"414", b"431")
    assert client.json("run")["name"]


def test_two_explorers_do_not_share_a_token_and_one_that_is_stopped_answers_no_more(
    client: Client, run: Path
) -> None:
    with tokmill.explore(run) as other:
        second = Client(other)
        assert second.token != client.token
        assert second.ask("/api/run", bearer(client)).status == 401
        assert second.json("run")["digest"] == client.json("run")["digest"]
    with pytest.raises(OSError, match="refused"):
        second.get("run")


def test_a_port_that_is_taken_is_told(client: Client, run: Path) -> None:
    with pytest.raises(StorageError, match="cannot listen there"):
        tokmill.explore(run, port=client.port)


def test_a_cell_of_a_notebook_may_frame_it_and_a_page_of_elsewhere_may_not() -> None:
    from tokmill.explorer.security import Gate

    gate = Gate(None, token="t", hosts=(), port=1, in_notebook=True)
    policy = dict(gate._headers)[b"content-security-policy"].decode()
    assert policy.endswith("frame-ancestors http://localhost:* http://127.0.0.1:*")
