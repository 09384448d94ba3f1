"""Health, lifecycles, queues, dead letters and why over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from keptwork.core import render
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, LIFECYCLES
from keptwork.store import Blob, NewJob, Store
from tests.conformance.stage import claim, moved, worker
from tests.http.conftest import THEIRS, Running
from tests.http.test_jobs import enqueued


def dead(running: Running, number: int = 1) -> list[str]:
    """That many jobs of ours given up."""

    async def work(store: Store) -> list[str]:
        queue = f"dead-{running.ours}"
        owner = await worker(store)
        keys = await store.enqueue([NewJob("kind", '{"n":1}', queue, running.ours)] * number)
        await claim(store, owner, number, queue, start=True)
        for key in keys:
            detail = json.dumps({"stage": "exec"})
            how: dict[str, Any] = {"reason": "policy_violation", "reason_code": "policy_violation", "detail": detail}
            await moved(store, JOB, key, "dead_letter", by="holder", **how, values={"error": "broken"})
        return [public_id(JOB.name, key) for key in sorted(keys)]

    return running.do(work)


def test_the_server_lives_and_is_ready_and_says_nothing_more(running: Running) -> None:
    with running.client(None) as nobody:
        assert nobody.get("/healthz").json() == {"status": "ok"}
        assert nobody.get("/readyz").json() == {"status": "ready"}


def test_the_figures_are_those_of_the_callers_tenant(client: httpx.Client, running: Running) -> None:
    enqueued(client, queue="figures")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    assert any(sample.labels.get("queue") == "figures" for family in families for sample in family.samples)
    with running.client(THEIRS) as theirs:
        assert "figures" not in theirs.get("/metrics").text


@pytest.mark.parametrize("name", LIFECYCLES)
def test_a_lifecycle_is_shown_as_it_is_declared(client: httpx.Client, name: str) -> None:
    assert client.get(f"/api/lifecycles/{name}").json() == render.as_json(LIFECYCLES[name])


def test_all_lifecycles_are_listed_and_another_is_not_found(client: httpx.Client) -> None:
    assert [one["name"] for one in client.get("/api/lifecycles").json()["lifecycles"]] == list(LIFECYCLES)
    assert client.get("/api/lifecycles/none").status_code == 404


def test_a_queue_is_paused_and_resumed_and_says_why_a_job_waits(client: httpx.Client) -> None:
    id = enqueued(client, queue="mail")["id"]
    assert client.post("/api/queues/mail/pause").json() == {"name": "mail", "paused": True, "changed": True}
    assert client.post("/api/queues/mail/pause", json={}).json()["changed"] is False
    (queue,) = client.get("/api/queues").json()["queues"]
    assert (queue["name"], queue["jobs"]["queued"]) == ("mail", 1)
    assert queue["paused_at"] is not None
    why = client.get(f"/api/why/{id}").json()
    assert (why["id"], why["entity"], why["state"], why["status"]) == (id, "job", "queued", "queued")
    assert "queue_paused" in [one["cause"] for one in why["reasons"]]
    assert client.post("/api/queues/mail/resume").json() == {"name": "mail", "paused": False, "changed": True}
    assert client.get("/api/queues").json()["queues"][0]["paused_at"] is None


def test_dead_letters_are_listed_shown_counted_and_run_again(client: httpx.Client, running: Running) -> None:
    ids = dead(running, 3)
    page = client.get("/api/dead-letters", params={"limit": 2}).json()
    assert [one["id"] for one in page["dead_letters"]] == ids[:0:-1]
    rest = client.get("/api/dead-letters", params={"after": page["next"]}).json()
    assert [one["id"] for one in rest["dead_letters"]] == ids[:1]
    letter = client.get(f"/api/dead-letters/{ids[0]}").json()
    assert (letter["reason_code"], letter["stage"], letter["last_error"]) == ("policy_violation", "exec", "broken")
    assert letter["payload"] == {"n": 1}
    one = client.post(f"/api/dead-letters/{ids[0]}/redrive", json={"payload": {"n": 2}})
    assert one.status_code == 201
    assert client.get(f"/api/jobs/{one.json()['new']}").json()["payload"] == {"n": 2}
    twice = client.post(f"/api/dead-letters/{ids[0]}/redrive")
    assert (twice.status_code, twice.json()["type"]) == (409, "urn:keptwork:problem:run-again-before")
    counted = client.post("/api/dead-letters/redrive", json={"dry_run": True}).json()
    assert counted == {"count": 2, "redriven": [], "dry_run": True}
    done = client.post("/api/dead-letters/redrive", json={}, headers={"Idempotency-Key": "all"}).json()
    assert [one["old"] for one in done["redriven"]] == ids[1:]
    assert client.post("/api/dead-letters/redrive", json={}).json()["count"] == 0
    assert client.get("/api/dead-letters", params={"reason_code": "whim"}).status_code == 422
    assert client.get("/api/dead-letters", params={"since": "1h", "kind": "kind"}).json()["dead_letters"]


def test_an_artifact_comes_byte_for_byte_and_is_not_shown_by_a_browser(client: httpx.Client, running: Running) -> None:
    page = b"<script>alert(1)</script>\x00\xff"

    async def keep(store: Store) -> str:
        owner = await worker(store)
        (key,) = await store.enqueue([NewJob("kind", "{}", f"kept-{running.ours}", running.ours)])
        (job,) = await claim(store, owner, 1, f"kept-{running.ours}", start=True)
        await store.keep_artifact(job, "a b.html", Blob.of(page), "text/html")
        return public_id(JOB.name, key)

    id = running.do(keep)
    (listed,) = client.get(f"/api/jobs/{id}").json()["artifacts"]
    assert (listed["name"], listed["size"], listed["media_type"]) == ("a b.html", len(page), "text/html")
    answer = client.get(f"/api/jobs/{id}/artifacts/a b.html")
    assert answer.content == page
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20b.html"
    assert answer.headers["content-type"] == "text/html"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert client.get(f"/api/jobs/{id}/artifacts/other").status_code == 404


def test_a_signal_is_sent_once_under_its_key(client: httpx.Client) -> None:
    first, second = (client.post("/api/signals", json={"name": "paid", "key": "k"}).json() for _ in range(2))
    assert first == {"name": "paid", "sent": True, "woken": 0}
    assert second["sent"] is False


def test_an_illegal_move_says_from_where_by_what_and_what_is_allowed(client: httpx.Client) -> None:
    id = enqueued(client)["id"]
    client.post(f"/api/jobs/{id}/cancel")
    answer = client.post(f"/api/jobs/{id}/cancel")
    problem = answer.json()
    assert answer.status_code == problem["status"] == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["type"], problem["title"]) == ("urn:keptwork:problem:invalid-transition", "Invalid transition")
    assert (problem["from"], problem["trigger"], problem["allowed"]) == ("cancelled", "cancel", [])


def test_other_addresses_and_methods_are_problems(client: httpx.Client) -> None:
    nowhere, wrong = client.get("/api/nothing"), client.delete("/api/jobs")
    assert (nowhere.status_code, nowhere.json()["type"]) == (404, "urn:keptwork:problem:no-such-route")
    assert (wrong.status_code, wrong.json()["type"]) == (405, "urn:keptwork:problem:wrong-method")


def test_the_routes_are_listed_for_people_without_anything_from_elsewhere(
    client: httpx.Client, running: Running
) -> None:
    page = client.get("/docs").text
    assert "/api/jobs/{id}/cancel" in page
    assert "<script" not in page
    assert "//" not in page.replace("<!doctype", "")
    assert running.app.openapi()["components"]["schemas"]["Problem"]


@pytest.mark.parametrize("text", ["\ud800", "\0", "é", "𝄞", "</script>"])
def test_any_text_goes_in_and_comes_out_or_is_refused(client: httpx.Client, text: str) -> None:
    body = json.dumps({"kind": "a", "payload": {"x": text}})
    answer = client.post("/api/jobs", content=body.encode(), headers={"Content-Type": "application/json"})
    assert answer.status_code in (201, 422), answer.text
    if answer.status_code == 201:
        assert client.get(f"/api/jobs/{answer.json()['job']['id']}").json()["payload"] == {"x": text}


@pytest.mark.parametrize(
    "path",
    [
        *("/api/jobs?queue=%00", "/api/jobs?kind=%00", "/api/jobs?correlation_id=%00", "/api/jobs?ended_since=%00"),
        *("/api/events?type=%00", "/api/events?entity=%00", "/api/events?since=%00", "/api/events?correlation_id=%00"),
        *("/api/dead-letters?queue=%00", "/api/dead-letters?reason_code=%00", "/api/events/stream?type=%00"),
    ],
)
def test_a_nul_in_a_filter_is_the_callers_mistake(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 422


def test_a_nul_in_a_body_or_a_path_is_the_callers_mistake(client: httpx.Client) -> None:
    id = enqueued(client)["id"]
    assert client.post(f"/api/jobs/{id}/cancel", json={"reason": "\0"}).status_code == 422
    for field in ("queue", "kind", "correlation_id"):
        assert client.post("/api/jobs/cancel", json={"filter": {field: "\0"}}).status_code == 422
    assert client.post("/api/queues/%00/pause").status_code == 422
    assert client.get("/api/jobs/%00").status_code == 404
    assert client.get(f"/api/jobs/{id}/artifacts/%00").status_code == 404
    assert client.post("/api/signals", json={"name": "a", "key": "\0"}).status_code == 422
