"""Several servers on one database, each a process of its own; and how one ends."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.http.processes import Served, new_key, served
from tests.http.wire import head
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.acceptance

JOB = b'{"kind": "late"}'


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    url = postgres_server.create_database(template=migrated_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="module")
def key(database: str) -> str:
    return new_key(database)


@pytest.fixture(scope="module")
def two(database: str, key: str) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of two servers, with one key."""
    headers, limits = {"Authorization": f"Bearer {key}"}, httpx.Limits(max_connections=64)
    with ExitStack() as closing:
        places = [closing.enter_context(served(database)) for _ in range(2)]
        yield tuple(  # type: ignore[misc]  # there are two
            closing.enter_context(httpx.Client(base_url=one.address, headers=headers, limits=limits, timeout=30))
            for one in places
        )


def test_a_request_is_done_once_whichever_servers_it_is_sent_to(two: tuple[httpx.Client, httpx.Client]) -> None:
    def send(number: int) -> httpx.Response:
        return two[number % 2].post("/api/jobs", json={"kind": "a"}, headers={"Idempotency-Key": "both"})

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(send, range(64)))
    assert {one.status_code for one in answers} <= {201, 409}
    assert len({one.content for one in answers if one.status_code == 201}) == 1
    assert len(two[0].get("/api/jobs", params={"kind": "a"}).json()["jobs"]) == 1
    other = two[1].post("/api/jobs", json={"kind": "b"}, headers={"Idempotency-Key": "both"})
    assert other.status_code == 422


def test_a_stream_tells_what_happened_at_another_server(two: tuple[httpx.Client, httpx.Client]) -> None:
    with two[0].stream("GET", "/api/events/stream", params={"entity": "job"}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 1000"
        made = two[1].post("/api/jobs", json={"kind": "told"}).json()["job"]["id"]
        assert any(made in line for line in lines)


def test_a_cursor_of_one_server_goes_on_at_another(two: tuple[httpx.Client, httpx.Client]) -> None:
    for number in range(4):
        two[number % 2].post("/api/jobs", json={"kind": "c"})
    first = two[0].get("/api/jobs", params={"kind": "c", "limit": 2}).json()
    second = two[1].get("/api/jobs", params={"kind": "c", "limit": 2, "after": first["next"]}).json()
    assert len({job["id"] for job in first["jobs"] + second["jobs"]}) == 4


def begun(place: Served, key: str) -> socket.socket:
    """A request whose body is yet to come, which the server has begun to read."""
    wire = socket.create_connection(("127.0.0.1", place.port), timeout=30)
    more = ("Content-Type: application/json", f"Content-Length: {len(JOB)}", "Expect: 100-continue")
    wire.sendall(head("POST", "/api/jobs", *more).replace(b"kw_ours", key.encode()))
    assert b"100 Continue" in wire.recv(65536)
    return wire


def test_a_server_that_is_told_to_end_finishes_requests_and_streams_first(
    database: str, key: str, two: tuple[httpx.Client, httpx.Client]
) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    with served(database) as place, begun(place, key) as wire:
        streaming, said = threading.Event(), list[str]()

        def follow() -> None:
            with httpx.stream("GET", f"{place.address}/api/events/stream", headers=headers, timeout=30) as stream:
                for line in stream.iter_lines():
                    said.append(line)
                    streaming.set()

        reader = threading.Thread(target=follow)
        reader.start()
        assert streaming.wait(60)
        place.process.send_signal(signal.SIGTERM)
        reader.join(60)  # the stream ends by itself, and as it should: a cut one would raise
        assert not reader.is_alive()
        assert said[0] == "retry: 1000"
        wire.sendall(JOB)
        answer = wire.recv(65536)
        assert b" 201 " in answer.partition(b"\r\n")[0] + b" "
        assert place.process.wait(60) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", place.port))
    assert len(two[0].get("/api/jobs", params={"kind": "late"}).json()["jobs"]) == 1


def test_a_server_that_is_killed_in_the_middle_of_a_request_has_done_nothing_and_it_can_be_sent_again(
    database: str, key: str, two: tuple[httpx.Client, httpx.Client]
) -> None:
    with served(database) as place, begun(place, key) as wire:
        wire.sendall(JOB[:5])
        place.process.kill()
        place.process.wait(60)
    sent = [one.post("/api/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "killed"}) for one in two]
    assert [one.status_code for one in sent] == [201, 201]
    assert sent[0].content == sent[1].content
