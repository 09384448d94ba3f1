"""The event log over HTTP: pages, and the stream that neither misses nor repeats."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from tests.http.conftest import OURS, THEIRS, Keys, Running, serving, two_tenants
from tests.http.test_jobs import enqueued


def frames(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream, as they come."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "data" in fields:
                yield {**json.loads(fields["data"]), "id": fields["id"]}
            fields = {}


def read(client: httpx.Client, count: int, last: str | None = None, **params: str) -> list[dict[str, Any]]:
    """So many events, after the last."""
    headers = {"Last-Event-ID": last} if last else {}
    with client.stream("GET", "/api/events/stream", headers=headers, params=params) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = frames(answer)
        return [next(stream) for _ in range(count)]


def test_the_log_is_read_page_by_page_with_filters(client: httpx.Client) -> None:
    ids = [enqueued(client, correlation_id=f"c{n % 2}")["id"] for n in range(4)]
    client.post(f"/api/jobs/{ids[0]}/cancel")
    seen: list[tuple[str, str]] = []
    after: str | None = None
    while True:
        page = client.get("/api/events", params={"limit": 2, **({"after": after} if after else {})}).json()
        seen += [(one["entity_id"], one["type"]) for one in page["events"]]
        if (after := page["next"]) is None:
            break
    assert seen == [*((id, "job_enqueued") for id in ids), (ids[0], "job_cancelled")]
    one = client.get("/api/events", params={"id": str(ids[0])}).json()["events"]
    assert [event["type"] for event in one] == ["job_enqueued", "job_cancelled"]
    assert len(client.get("/api/events", params={"correlation_id": "c1"}).json()["events"]) == 2
    assert len(client.get("/api/events", params={"type": "job_cancelled"}).json()["events"]) == 1
    assert client.get("/api/events", params={"entity": "worker"}).json()["events"] == []
    assert client.get("/api/events", params={"entity": "nothing"}).status_code == 422
    assert client.get("/api/events", params={"until": "1h"}).json()["events"] == []


def test_a_stream_cut_anywhere_and_taken_up_again_misses_nothing_and_repeats_nothing(
    client: httpx.Client, running: Running
) -> None:
    begin = client.get("/api/events", params={"limit": 1}).json()
    assert begin["events"] == []
    first = enqueued(client, payload={"n": -1})["id"]
    start = client.get("/api/events").json()["events"][-1]["cursor"]
    made: list[Any] = []

    def produce() -> None:
        with running.client(OURS) as other, running.client(THEIRS) as theirs:
            for n in range(40):
                made.append(enqueued(other, payload={"n": n})["id"])
                enqueued(theirs)

    producer = threading.Thread(target=produce)
    producer.start()
    seen: list[dict[str, Any]] = []
    last = start
    while len(seen) < 40:
        seen += read(client, min(7, 40 - len(seen)), last)
        last = seen[-1]["id"]
    producer.join()
    assert [one["entity_id"] for one in seen] == made
    assert first not in made


def test_without_a_last_id_a_stream_begins_now_and_is_told_what_comes(client: httpx.Client, running: Running) -> None:
    enqueued(client)
    with client.stream("GET", "/api/events/stream", params={"type": "job_enqueued"}) as answer:
        with running.client(OURS) as other:
            lines = answer.iter_lines()
            assert next(lines) == "retry: 1000"
            new = enqueued(other)["id"]
            fields = [next(lines) for _ in range(6)]
        assert any(str(new) in line for line in fields), fields


def test_a_server_that_ends_ends_its_streams(sqlite_url: str) -> None:
    with serving(sqlite_url, Keys()) as running:
        two_tenants(running)
        with running.client() as client, client.stream("GET", "/api/events/stream") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "retry: 1000"
            running.server.end()
            place, *others = lines
            assert place.startswith("id: ")  # whoever comes back goes on from here
            assert others == [""]


def test_a_cursor_that_is_none_is_refused_before_the_stream_begins(client: httpx.Client) -> None:
    for cursor in ("nonsense", "AAAA", client.get("/api/jobs").json()["next"] or "x"):
        answer = client.get("/api/events/stream", headers={"Last-Event-ID": cursor})
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:keptwork:problem:bad-cursor")
