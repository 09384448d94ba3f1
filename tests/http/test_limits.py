"""What a server refuses to be given: too much, too deep, too slowly, or in a language it does not speak."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest

from keptwork.http.server import listening_on
from keptwork.store import NewJob
from tests.http.conftest import OURS, Running
from tests.http.wire import connected, exchanged, head


def test_ten_megabytes_are_too_large_by_length_and_in_chunks(strict: Running) -> None:
    body = json.dumps({"kind": "a", "payload": {"x": "y" * 10_000_000}}).encode()
    with strict.client() as client:
        json_type = {"Content-Type": "application/json"}
        known = client.post("/api/jobs", content=body, headers=json_type)
        pieces = (body[at : at + 65536] for at in range(0, len(body), 65536))
        chunked = client.post("/api/jobs", content=pieces, headers=json_type)
        assert client.get("/api/jobs").json()["jobs"] == []
    for answer in (known, chunked):
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:keptwork:problem:body-too-large")


def test_ten_thousand_brackets_are_too_deep_and_brackets_in_a_text_are_not(strict: Running) -> None:
    with strict.client() as client:
        json_type = {"Content-Type": "application/json"}
        deep = b'{"kind": "a", "payload": ' + b'{"x":' * 10_000 + b"1" + b"}" * 10_000 + b"}"
        answer = client.post("/api/jobs", content=deep, headers=json_type)
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:keptwork:problem:too-deep")
        text = client.post("/api/jobs", json={"kind": "a", "payload": {"x": "[{" * 10_000}})
        assert text.status_code == 201


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'{"kind": }', b"NULL"])
def test_what_is_no_json_is_a_problem(strict: Running, content: bytes) -> None:
    with strict.client() as client:
        answer = client.post("/api/jobs", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:keptwork:problem:not-json")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"]
)
def test_other_content_types_are_refused(strict: Running, kind: str) -> None:
    with strict.client() as client:
        answer = client.post("/api/jobs", content=b'{"kind": "a"}', headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["type"]) == (415, "urn:keptwork:problem:wrong-content-type")


@pytest.mark.acceptance
def test_a_slow_body_and_slow_headers_are_given_up(strict: Running) -> None:
    body = head("POST", "/api/jobs", "Content-Type: application/json", "Content-Length: 100")
    assert exchanged(strict, body, b'{"kind"')[0] == 408
    status, problem = exchanged(strict, b"GET /healthz HTTP/1.1\r\nHost:")
    assert (status, problem["type"]) == (408, "urn:keptwork:problem:too-slow")
    assert exchanged(strict, b"")[0] == 408


def test_headers_that_are_too_large_or_never_end_are_refused(strict: Running) -> None:
    status, problem = exchanged(strict, head("GET", "/healthz", "X-Long: " + "y" * 5000))
    assert (status, problem["type"]) == (431, "urn:keptwork:problem:headers-too-large")
    assert exchanged(strict, b"GET / HTTP/1.1\r\nX-Endless: " + b"y" * 5000)[0] == 431


def test_what_is_no_http_is_a_problem(strict: Running) -> None:
    status, problem = exchanged(strict, b"HELO there\r\n\r\n")
    assert (status, problem["type"]) == (400, "urn:keptwork:problem:not-http")


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


def test_an_answer_does_not_wait_for_the_client_to_say_that_it_got_half_of_it() -> None:
    async def sends_at_once() -> bool:
        said = asyncio.get_running_loop().create_future()

        def came(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            made = writer.get_extra_info("socket")
            said.set_result(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)
            writer.close()

        with listening_on("127.0.0.1", 0) as listening:
            async with await asyncio.start_server(came, sock=listening.dup()):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                writer.close()
                return bool(await said)

    assert asyncio.run(sends_at_once())


def listeners_become(running: Running, number: int) -> bool:
    """Whether there are so many readers of the stream, soon."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        if len(running.app.state.broadcast.listeners) == number:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.acceptance
def test_a_client_that_reads_nothing_is_left(strict: Running) -> None:
    long = [NewJob("a", tenant_id=strict.ours, correlation_id="c" * 500)] * 300
    strict.do(lambda store: store.enqueue(long))
    with strict.client() as client:
        start = client.get("/api/events", params={"limit": 1}).json()["events"][0]["cursor"]
    with connected(strict, receive_buffer=2048) as wire:
        wire.sendall(head("GET", f"/api/events/stream?after={start}"))
        assert listeners_become(strict, 1)
        assert listeners_become(strict, 0)


@pytest.mark.parametrize("limit", ["0", "1001", "x", "-1"])
def test_a_page_has_bounds(strict: Running, limit: str) -> None:
    with strict.client() as client:
        for path in ("/api/jobs", "/api/events", "/api/dead-letters"):
            answer = client.get(path, params={"limit": limit})
            assert (answer.status_code, answer.json()["type"]) == (422, "urn:keptwork:problem:invalid-request")
            assert answer.json()["errors"][0]["where"] == "query.limit"


@pytest.mark.acceptance
def test_a_stream_ends_when_its_key_is_no_longer_good(strict: Running) -> None:
    with strict.client() as client, client.stream("GET", "/api/events/stream") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "retry: 1000"
        good = strict.keys.known.pop(OURS)
        assert "data" not in "".join(lines)  # it ends by itself
        strict.keys.known[OURS] = good
