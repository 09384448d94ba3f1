"""Jobs over HTTP."""

from __future__ import annotations

import httpx
import pytest


def enqueued(client: httpx.Client, **more: object) -> dict[str, object]:
    answer = client.post("/api/jobs", json={"kind": "fetch", "payload": {"url": "x"}, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, object] = answer.json()["job"]
    return found


def test_a_job_is_put_in_found_and_shown(client: httpx.Client) -> None:
    job = enqueued(client, queue="mail", priority=3, run_in="5m", correlation_id="order-17")
    assert (job["state"], job["status"], job["queue"], job["priority"]) == ("queued", "queued", "mail", 3)
    assert "tenant_id" not in job
    whole = client.get(f"/api/jobs/{job['id']}").json()
    assert whole["payload"] == {"url": "x"}
    assert [one["type"] for one in whole["events"]] == ["job_enqueued"]
    assert whole["events"][0]["actor"] == "key:k1"
    found = client.get("/api/jobs", params={"queue": "mail", "correlation_id": "order-17"}).json()
    assert [one["id"] for one in found["jobs"]] == [job["id"]]
    assert client.get("/api/jobs", params={"state": "running"}).json() == {"jobs": [], "next": None}


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", None),
        ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
        ("nonsense", None),
    ],
)
def test_a_job_belongs_to_the_trace_it_was_asked_for_in(client: httpx.Client, header: str, kept: str | None) -> None:
    made = client.post("/api/jobs", json={"kind": "fetch"}, headers={"traceparent": header}).json()["job"]
    assert made["trace_id"] == kept
    (event,) = client.get("/api/events", params={"id": made["id"]}).json()["events"]
    assert event["trace_id"] == kept


def test_pages_follow_one_another_and_none_comes_twice(client: httpx.Client) -> None:
    made = [enqueued(client, payload={"n": n})["id"] for n in range(5)]
    seen: list[str] = []
    after: str | None = None
    while True:
        page = client.get("/api/jobs", params={"limit": 2, **({"after": after} if after else {})}).json()
        seen += [one["id"] for one in page["jobs"]]
        after = page["next"]
        if after is None:
            break
    assert seen == made[::-1]


def test_a_key_makes_one_job_for_ever(client: httpx.Client) -> None:
    first, second = (client.post("/api/jobs", json={"kind": "fetch", "key": "k"}).json() for _ in range(2))
    assert first["job"]["id"] == second["job"]["id"]
    assert (first["created"], second["created"]) == (True, False)


def test_a_cancelled_job_is_run_again_as_a_new_one(client: httpx.Client) -> None:
    id = enqueued(client)["id"]
    done = client.post(f"/api/jobs/{id}/cancel", json={"reason": "not needed"}).json()
    assert (done["outcome"], done["job"]["state"]) == ("cancelled", "cancelled")
    again = client.post(f"/api/jobs/{id}/retry")
    assert again.status_code == 201
    assert again.json()["old"] == id
    new = client.get(f"/api/jobs/{again.json()['new']}").json()
    assert (new["state"], new["redriven_from"]) == ("queued", id)
    assert client.post(f"/api/jobs/{id}/retry").json()["type"] == "urn:keptwork:problem:run-again-before"


def test_many_are_counted_then_cancelled_then_run_again(client: httpx.Client) -> None:
    ids = [enqueued(client, queue="bulk")["id"] for _ in range(3)]
    asked = {"filter": {"queue": "bulk", "state": ["queued"]}}
    counted = client.post("/api/jobs/cancel", json={**asked, "dry_run": True}).json()
    assert (counted["count"], counted["done"], counted["dry_run"]) == (3, {}, True)
    two = client.post("/api/jobs/cancel", json={**asked, "limit": 2}).json()
    assert (two["done"], two["more"]) == (dict.fromkeys(ids[:2], "cancelled"), True)
    rest = client.post("/api/jobs/cancel", json={"ids": ids}).json()
    assert rest["done"] == {ids[2]: "cancelled"}
    assert [one["type"] for one in rest["refused"].values()] == ["urn:keptwork:problem:invalid-transition"] * 2
    again = client.post("/api/jobs/retry", json={"ids": ids}).json()
    assert list(again["done"]) == ids
    both = client.post("/api/jobs/retry", json={"ids": ids, "filter": {}})
    assert (both.status_code, both.json()["type"]) == (422, "urn:keptwork:problem:bad-input")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": ""},
        {"kind": "a", "payload": []},
        {"kind": "a", "priority": "high"},
        {"kind": "a", "priority": 1 << 40},
        {"kind": "a", "max_attempts": 0},
        {"kind": "a", "run_in": "soon"},
        {"kind": "a", "run_in": -1},
        {"kind": "a\0b"},
        {"kind": "a", "surprise": 1},
        {"kind": "a" * 201},
        [],
    ],
)
def test_what_is_no_job_is_a_problem_and_stores_nothing(client: httpx.Client, body: object) -> None:
    answer = client.post("/api/jobs", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert client.get("/api/jobs").json()["jobs"] == []
