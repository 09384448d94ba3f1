"""Lists that are narrowed: by state, kind, queue, time and text; a search looks at so many rows and no more."""

from __future__ import annotations

import httpx
import pytest

from keptwork.store.contract import operations_search
from tests.http.conftest import Running
from tests.http.flow_stage import workstream
from tests.http.test_jobs import enqueued
from tests.http.test_other_routes import dead


def kinds(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one["kind"] for one in answer.json()["jobs"]]


def test_jobs_are_narrowed_by_state_queue_kind_and_when_they_were_made(client: httpx.Client) -> None:
    for kind in ("a", "b"):
        enqueued(client, kind=kind, queue="mail")
    made = enqueued(client, kind="c", queue="print")
    client.post(f"/api/jobs/{made['id']}/cancel")
    ask = lambda **params: kinds(client.get("/api/jobs", params=params))  # noqa: E731 - one line for each
    assert ask(queue="mail") == ["b", "a"]
    assert ask(kind="c", state="cancelled") == ["c"]
    assert ask(since=made["created_at"]) == ["c"]
    assert ask(until=made["created_at"]) == ["b", "a"]
    assert ask(since="1h", until="0s", oldest_first=True) == ["a", "b", "c"]
    assert ask(since="1h", ended_since="1h") == ["c"]
    assert client.get("/api/jobs", params={"since": "soon"}).status_code == 422


def test_jobs_are_searched_by_key_reason_names_and_error_in_any_case(client: httpx.Client) -> None:
    enqueued(client, kind="keyed", key="Order-17")
    enqueued(client, kind="correlated", correlation_id="order-18")
    gone = enqueued(client, kind="gone")
    client.post(f"/api/jobs/{gone['id']}/cancel", json={"reason": "the ORDER was withdrawn"})
    enqueued(client, kind="other", payload={"text": "order"})
    assert kinds(client.get("/api/jobs", params={"text": "oRdEr"})) == ["gone", "correlated", "keyed"]
    assert kinds(client.get("/api/jobs", params={"text": "order", "state": "queued"})) == ["correlated", "keyed"]
    assert kinds(client.get("/api/jobs", params={"text": "100%_'"})) == []
    for refused in ("", "x" * 201, "\0"):
        assert client.get("/api/jobs", params={"text": refused}).status_code == 422


def test_a_search_looks_at_so_many_and_says_where_to_go_on(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        enqueued(client, key=f"{'wanted' if number in (0, 4) else 'other'}-{number}")
    monkeypatch.setattr(operations_search, "MOST_LOOKED_AT", 2)
    monkeypatch.setattr(operations_search, "AT_ONCE", 2)
    pages: list[list[str]] = []
    after: str | None = None
    while True:
        page = client.get("/api/jobs", params={"text": "wanted", **({"after": after} if after else {})}).json()
        pages.append([one["key"] for one in page["jobs"]])
        after = page["next"]
        if after is None:
            break
    assert pages == [[], ["wanted-4"], [], ["wanted-0"]]


def test_a_page_of_a_search_ends_when_it_is_full(client: httpx.Client) -> None:
    for number in range(3):
        enqueued(client, key=f"wanted-{number}")
    first = client.get("/api/jobs", params={"text": "wanted", "limit": 2}).json()
    rest = client.get("/api/jobs", params={"text": "wanted", "limit": 2, "after": first["next"]}).json()
    assert [one["key"] for one in first["jobs"] + rest["jobs"]] == ["wanted-2", "wanted-1", "wanted-0"]
    assert rest["next"] is None


def test_flows_are_searched_and_bounded_by_when_they_were_made(client: httpx.Client) -> None:
    first, second = (workstream(client, key=key) for key in ("Order-1", "other"))
    client.post(f"/api/workstreams/{second['id']}/abandon", json={"reason": "the order was withdrawn"})
    ask = lambda **params: [  # noqa: E731 - one line for each
        one["id"] for one in client.get("/api/workstreams", params=params).json()["workstreams"]
    ]
    assert ask(text="ORDER") == [second["id"], first["id"]]
    assert ask(text="order", state="S_RUNNING") == [first["id"]]
    assert ask(text="nowhere") == []
    assert ask(since=second["created_at"]) == [second["id"]]
    assert ask(until=second["created_at"]) == [first["id"]]
    assert ask(since="1h", until="0s", name="graph") == [second["id"], first["id"]]
    assert client.get("/api/runs", params={"since": "1h", "text": "order"}).json()["runs"] == []
    assert client.get("/api/runs", params={"since": "soon"}).status_code == 422
    page = client.get("/api/workstreams", params={"text": "order", "limit": 1}).json()
    rest = client.get("/api/workstreams", params={"text": "order", "limit": 1, "after": page["next"]}).json()
    assert [one["id"] for one in rest["workstreams"]] == [first["id"]]


def test_dead_letters_are_searched_and_bounded_by_time(client: httpx.Client, running: Running) -> None:
    ids = dead(running, 2)
    ask = lambda **params: client.get("/api/dead-letters", params=params).json()["dead_letters"]  # noqa: E731
    assert [one["id"] for one in ask(text="BROKEN")] == ids[::-1]
    assert [one["id"] for one in ask(text="policy", since="1h", until="0s", kind="kind")] == ids[::-1]
    assert ask(text="healthy") == []
    assert ask(until="1h") == []


def test_events_are_searched_by_what_is_said_in_them(client: httpx.Client) -> None:
    job = enqueued(client, correlation_id="order-9")
    client.post(f"/api/jobs/{job['id']}/cancel", json={"reason": "Out of stock"})
    ask = lambda **params: client.get("/api/events", params=params).json()["events"]  # noqa: E731
    assert [one["type"] for one in ask(text="out of")] == ["job_cancelled"]
    assert [one["type"] for one in ask(text="order-9")] == ["job_enqueued", "job_cancelled"]
    assert [one["type"] for one in ask(text="order-9", newest_first=True)] == ["job_cancelled", "job_enqueued"]
    assert [one["type"] for one in ask(text="KEY:K1", type="job_enqueued", entity="job")] == ["job_enqueued"]
    assert ask(text="nowhere", since="1h") == []
