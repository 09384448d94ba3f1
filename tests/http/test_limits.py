"""What a server refuses to be given: too much, too deep, too slowly, or in a language it does not speak."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from detent.http.limits import Limits
from tests.http.conftest import OURS, Keys, Running, serving, two_tenants

SHORT = Limits(body_seconds=0.5, header_seconds=0.5, header_bytes=4096, recheck_seconds=0.2)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server without patience."""
    with serving(f"sqlite:///{tmp_path_factory.mktemp('limits')}/detent.db", Keys(), SHORT) as started:
        two_tenants(started)
        yield started


def exchanged(running: Running, *parts: bytes, pause: float = 0.0) -> tuple[int, dict[str, object]]:
    """What a client that writes to the wire by itself is answered."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as wire:
        for part in parts:
            wire.sendall(part)
            time.sleep(pause)
        said = b""
        while chunk := wire.recv(65536):
            said += chunk
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def head(*more: str) -> bytes:
    lines = ["POST /api/jobs HTTP/1.1", "Host: x", f"Authorization: Bearer {OURS}", *more, "", ""]
    return "\r\n".join(lines).encode()


def test_ten_megabytes_are_too_large_by_length_and_in_chunks(strict: Running) -> None:
    body = json.dumps({"kind": "a", "payload": {"x": "y" * 10_000_000}}).encode()
    with strict.client() as client:
        json_type = {"Content-Type": "application/json"}
        known = client.post("/api/jobs", content=body, headers=json_type)
        pieces = (body[at : at + 65536] for at in range(0, len(body), 65536))
        chunked = client.post("/api/jobs", content=pieces, headers=json_type)
        assert client.get("/api/jobs").json()["jobs"] == []
    for answer in (known, chunked):
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:detent:problem:body-too-large")


def test_ten_thousand_brackets_are_too_deep_and_brackets_in_a_text_are_not(strict: Running) -> None:
    with strict.client() as client:
        json_type = {"Content-Type": "application/json"}
        deep = b'{"kind": "a", "payload": ' + b'{"x":' * 10_000 + b"1" + b"}" * 10_000 + b"}"
        answer = client.post("/api/jobs", content=deep, headers=json_type)
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:detent:problem:too-deep")
        text = client.post("/api/jobs", json={"kind": "a", "payload": {"x": "[{" * 10_000}})
        assert text.status_code == 201


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'{"kind": }', b"NULL"])
def test_what_is_no_json_is_a_problem(strict: Running, content: bytes) -> None:
    with strict.client() as client:
        answer = client.post("/api/jobs", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:detent:problem:not-json")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"]
)
def test_other_content_types_are_refused(strict: Running, kind: str) -> None:
    with strict.client() as client:
        answer = client.post("/api/jobs", content=b'{"kind": "a"}', headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["type"]) == (415, "urn:detent:problem:wrong-content-type")


def test_a_slow_body_and_slow_headers_are_given_up(strict: Running) -> None:
    body = head("Content-Type: application/json", "Content-Length: 100")
    assert exchanged(strict, body, b'{"kind"')[0] == 408
    status, problem = exchanged(strict, b"GET /healthz HTTP/1.1\r\nHost:")
    assert (status, problem["type"]) == (408, "urn:detent:problem:too-slow")
    assert exchanged(strict, b"")[0] == 408


def test_headers_that_are_too_large_or_never_end_are_refused(strict: Running) -> None:
    status, problem = exchanged(strict, head("X-Long: " + "y" * 5000))
    assert (status, problem["type"]) == (431, "urn:detent:problem:headers-too-large")
    assert exchanged(strict, b"GET / HTTP/1.1\r\nX-Endless: " + b"y" * 5000)[0] == 431


def test_what_is_no_http_is_a_problem(strict: Running) -> None:
    status, problem = exchanged(strict, b"HELO there\r\n\r\n")
    assert (status, problem["type"]) == (400, "urn:detent:problem:not-http")


def test_every_answer_has_an_id_and_the_headers_that_keep_browsers_from_guessing(strict: Running) -> None:
    with strict.client() as client:
        for path in ("/healthz", "/api/jobs", "/nowhere"):
            answer = client.get(path)
            assert len(answer.headers["x-request-id"]) == 32
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["cache-control"] == "no-store"
        assert client.get("/healthz", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
        odd = client.get("/healthz", headers={"X-Request-ID": "no spaces, please"}).headers["x-request-id"]
        assert len(odd) == 32


@pytest.mark.parametrize("limit", ["0", "1001", "x", "-1"])
def test_a_page_has_bounds(strict: Running, limit: str) -> None:
    with strict.client() as client:
        for path in ("/api/jobs", "/api/events", "/api/dead-letters"):
            answer = client.get(path, params={"limit": limit})
            assert (answer.status_code, answer.json()["type"]) == (422, "urn:detent:problem:invalid-request")
            assert answer.json()["errors"][0]["where"] == "query.limit"


def test_a_stream_ends_when_its_key_is_no_longer_good(strict: Running) -> None:
    with strict.client() as client, client.stream("GET", "/api/events/stream") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "retry: 1000"
        good = strict.keys.known.pop(OURS)
        assert "data" not in "".join(lines)  # it ends by itself
        strict.keys.known[OURS] = good
