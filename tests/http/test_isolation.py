"""Another tenant's things are not there: every address answers a foreign id as it answers one that does not exist."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from keptwork.core import ids
from keptwork.http import problems
from tests.http.admin import admin
from tests.http.conftest import NOBODY, READER, THEIRS, Running
from tests.http.flow_stage import SIGNED, open_breaker, run, workstream
from tests.http.test_jobs import enqueued

BY_ID = [
    ("GET", "/api/jobs/{}"),
    ("POST", "/api/jobs/{}/cancel"),
    ("POST", "/api/jobs/{}/retry"),
    ("GET", "/api/dead-letters/{}"),
    ("POST", "/api/dead-letters/{}/redrive"),
    ("GET", "/api/why/{}"),
    ("GET", "/api/jobs/{}/artifacts/{name}"),
    ("GET", "/api/supervisor/workers/{}"),
    ("POST", "/api/supervisor/workers/{}/start"),
    ("POST", "/api/supervisor/workers/{}/pause"),
    ("POST", "/api/supervisor/workers/{}/resume"),
    ("POST", "/api/supervisor/workers/{}/drain"),
    ("POST", "/api/supervisor/workers/{}/terminate"),
    ("GET", "/api/agent-jobs/{}"),
    ("GET", "/api/agent-jobs/{}/audit"),
    ("GET", "/api/agent-jobs/{}/transcript"),
    ("POST", "/api/agent-jobs/{}/cancel"),
    ("GET", "/api/keys/{}"),
    ("POST", "/api/keys/{}/revoke"),
    ("POST", "/api/keys/{}/rotate"),
    *[
        ("GET", f"{flows}/{{}}{part}")
        for flows in ("/runs", "/api/runs", "/api/workstreams")
        for part in ("", "/steps", "/progress", "/cost", "/events", "/webhooks")
    ],
    *[
        ("POST", f"{runs}/{{}}/{deed}")
        for runs in ("/runs", "/api/runs")
        for deed in ("approve", "reject", "cancel", "hold", "release")
    ],
    *[("POST", f"/api/workstreams/{{}}/{deed}") for deed in ("retry", "resume", "abandon", "fork", "hold", "release")],
    ("GET", "/api/steps/{}"),
    ("GET", "/api/steps/{}/output"),
    ("POST", "/api/steps/{}/skip"),
    ("POST", "/api/steps/{}/reset"),
    ("GET", "/api/approvals/{}"),
    ("POST", "/api/approvals/{}/approve"),
    ("POST", "/api/approvals/{}/reject"),
    ("GET", "/api/crews/{}"),
    ("POST", "/api/crews/{}/cancel"),
    ("GET", "/api/webhooks/{}"),
    ("POST", "/api/webhooks/{}/retry"),
    ("PUT", "/api/jobs/{}/artifacts/{name}"),
    ("GET", "/api/jobs/{}/checkpoints/{name}"),
    ("POST", "/api/jobs/{}/start"),
    ("POST", "/api/jobs/{}/checkpoint"),
    ("POST", "/api/jobs/{}/progress"),
    ("POST", "/api/jobs/{}/succeed"),
    ("POST", "/api/jobs/{}/fail"),
    ("POST", "/api/jobs/{}/snooze"),
    ("POST", "/api/jobs/{}/release"),
    ("GET", "/api/workers/{}"),
    ("POST", "/api/workers/{}/start"),
    ("POST", "/api/workers/{}/claim"),
    ("POST", "/api/workers/{}/heartbeat"),
    ("POST", "/api/workers/{}/settle"),
    ("POST", "/api/workers/{}/end"),
]

BODIES: dict[str, dict[str, object]] = {
    "PUT /api/jobs/{}/artifacts/{name}": {"content": ""},
    "POST /api/jobs/{}/start": {},
    "POST /api/jobs/{}/checkpoint": {"name": "a"},
    "POST /api/jobs/{}/progress": {"fraction": 0.5},
    "POST /api/jobs/{}/succeed": {},
    "POST /api/jobs/{}/fail": {},
    "POST /api/jobs/{}/snooze": {},
    "POST /api/jobs/{}/release": {},
}
"""What a request needs that a worker makes of a job, beside its worker and the epoch."""


def made(client: httpx.Client, path: str) -> str:
    """The id of something of ours that there is at such an address."""
    if path.startswith("/api/keys"):
        return str(client.post("/api/keys", json={"name": "ci", "scopes": ["read"]}).json()["key"]["id"])
    if path.startswith("/api/agent-jobs"):
        id = str(client.post("/api/agent-jobs", json={"description": "Fix the typo"}).json()["id"])
        client.post(f"/api/agent-jobs/{id}/cancel", json={"hard": True})  # only what has ended has a record
        return id
    if "/workers/" in path:
        return str(client.post("/api/workers", json={}).json()["id"])
    if path.startswith("/api/workstreams"):
        return str(workstream(client)["id"])
    if path.startswith("/api/crews"):
        return str(client.post("/api/crews", json={"kind": "fetch", "task_description": "t"}).json()["id"])
    if path.startswith("/api/webhooks"):
        ended = run(client, webhook={"url": "https://hooks.example.com/"})["id"]
        client.post(f"/runs/{ended}/cancel")
        return str(client.get("/api/webhooks").json()["webhooks"][0]["id"])
    if path.startswith(("/runs", "/api/runs", "/api/steps", "/api/approvals")):
        whole = client.get(f"/runs/{run(client)['id']}").json()
        named = {"/api/steps": whole["steps"], "/api/approvals": whole["questions"]}
        found = [things[0]["id"] for start, things in named.items() if path.startswith(start)]
        return str(found[0] if found else whole["id"])
    return str(enqueued(client)["id"])


def unknown_like(id: str) -> str:
    """An id of the same kind that nothing has."""
    thing, sign, seq = id.partition(":")
    prefix, key = ids.key_of(thing) or ("", 0)
    return f"{ids.public(prefix, key + 77)}{sign}{seq}"


def body_for(other: httpx.Client, method: str, path: str) -> dict[str, object] | None:
    """What is sent with a request: where a worker is needed, one of the caller's own."""
    if path.endswith("/settle"):
        return {"jobs": [{"job": "job_x", "epoch": 0, "outcome": "succeed"}]}
    if path.endswith("/fork"):
        return {"from_step": "sign"}
    more = BODIES.get(f"{method} {path}")
    return None if more is None else {"worker": made(other, "/workers/"), "epoch": 0, **more}


def told(answer: httpx.Response) -> tuple[object, ...]:
    """All of an answer but what is different in every one."""
    headers = {
        name: value for name, value in answer.headers.items() if name not in ("x-request-id", "date", "ratelimit")
    }
    return answer.status_code, headers, answer.content


@pytest.mark.parametrize(("method", "path"), BY_ID)
def test_a_foreign_id_is_answered_byte_for_byte_like_an_unknown_one(running: Running, method: str, path: str) -> None:
    with admin(running) as ours:
        assert_told_nothing(ours, running, method, path)


def assert_told_nothing(client: httpx.Client, running: Running, method: str, path: str) -> None:
    theirs = made(client, path)
    tried = (theirs, unknown_like(theirs), "job_nonsense")
    with running.client(THEIRS) as other:
        body = body_for(other, method, path)
        foreign, missing, nonsense = (told(other.request(method, path.replace("{}", id), json=body)) for id in tried)
    assert foreign == missing == nonsense
    assert foreign[0] == 404
    if method == "GET" and "dead" not in path and "{name}" not in path:
        assert client.get(path.replace("{}", theirs)).status_code == 200  # it was there


def test_an_answer_that_tells_the_two_apart_is_noticed(
    client: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = str(enqueued(client)["id"])
    unknown = ids.public("job", (ids.key_of(theirs) or ("", 0))[1] + 77)
    monkeypatch.setattr(problems, "_detail", str)  # a twin that repeats the id
    with running.client(THEIRS) as other:
        assert told(other.get(f"/api/jobs/{theirs}")) != told(other.get(f"/api/jobs/{unknown}"))


NAMES = {"name", "tool"}
"""Parameters of paths that name something within the tenant, so that nobody can name anything foreign by them."""


def unshown(document: dict[str, Any]) -> set[tuple[str, str]]:
    """The routes to something by its id that are not among those above, or are there for nothing."""
    routes = {
        (method.upper(), path.replace(":path}", "}"))
        for path, methods in document["paths"].items()
        for method in methods
    }
    by_id = {(method, path) for method, path in routes if set(re.findall(r"{(\w+)}", path)) - NAMES}
    return by_id ^ {(method, path.replace("{}", "{id}")) for method, path in BY_ID}


def test_every_route_with_an_id_is_among_those(running: Running) -> None:
    assert unshown(running.app.openapi()) == set()


@pytest.mark.parametrize("path", ["/api/more/{id}", "/api/jobs/{id}/more/{name}", "/api/more/{job_id}/cancel"])
def test_a_route_with_an_id_that_is_not_among_those_is_noticed(running: Running, path: str) -> None:
    document = running.app.openapi()
    twin = {"paths": document["paths"] | {path: {"get": {}}}}
    assert unshown(twin) == {("GET", path)}
    less = {"paths": {known: one for known, one in document["paths"].items() if known != "/api/why/{id}"}}
    assert unshown(less) == {("GET", "/api/why/{id}")}


def test_lists_events_and_queues_show_only_ones_own(client: httpx.Client, running: Running) -> None:
    id = enqueued(client, queue="ours")["id"]
    with running.client(THEIRS) as other:
        assert other.get("/api/jobs").json()["jobs"] == []
        assert other.get("/api/events").json()["events"] == []
        assert other.get("/api/events", params={"id": str(id)}).json()["events"] == []
        assert other.get("/api/queues").json()["queues"] == []
        signals = [other.post("/api/signals", json={"name": "a", "job": job}) for job in (id, "job_none")]
        assert [one.status_code for one in signals] == [404, 404]
        assert signals[0].content == signals[1].content
        many = other.post("/api/jobs/cancel", json={"ids": [id]}).json()
        assert many["refused"][id]["type"] == "urn:keptwork:problem:not-found"
    assert client.get(f"/api/jobs/{id}").json()["state"] == "queued"


BY_NAME = [
    ("GET", "/api/templates/signed"),
    ("POST", "/api/templates/signed/start"),
    ("GET", "/api/schedules/nightly"),
    ("POST", "/api/schedules/nightly/pause"),
    ("POST", "/api/schedules/nightly/resume"),
    ("POST", "/api/schedules/nightly/run-now"),
    ("DELETE", "/api/schedules/nightly"),
    ("GET", "/api/breakers/tool:aider"),
    ("POST", "/api/breakers/tool:aider/reset"),
]


@pytest.mark.parametrize(("method", "path"), BY_NAME)
def test_a_name_of_another_tenant_is_answered_like_one_that_nobody_has(
    client: httpx.Client, running: Running, method: str, path: str
) -> None:
    assert client.post("/api/templates", json={"definition": SIGNED}).status_code == 201
    added = client.post("/api/schedules", json={"name": "nightly", "kind": "fetch", "every": "1h"})
    assert added.status_code == 201
    open_breaker(running)
    body = {"reason": "back"} if path.endswith("/reset") else None
    nobodys = path
    for name in ("signed", "nightly", "tool:aider"):
        nobodys = nobodys.replace(name, "nobodys")
    with running.client(THEIRS) as other:
        foreign, missing = (told(other.request(method, one, json=body)) for one in (path, nobodys))
    assert foreign == missing
    assert foreign[0] == 404
    assert client.request(method, path, json=body).status_code in (200, 201)


def test_lists_of_flows_and_what_belongs_to_them_show_only_ones_own(client: httpx.Client, running: Running) -> None:
    id = run(client)["id"]
    open_breaker(running)
    lists = ("runs", "workstreams", "approvals", "templates", "crews", "breakers", "schedules", "webhooks")
    with running.client(THEIRS) as other:
        for name in lists:
            assert other.get(f"/api/{name}").json() == {name: [], "next": None}
        assert other.get("/api/steps", params={"flow": id}).status_code == 404
        assert other.post("/runs", json={"template": "signed"}).status_code == 404
        assert other.post("/api/schedules", json={"name": "s", "template": "signed", "every": "1h"}).status_code == 404


def test_every_route_but_health_needs_a_key_and_a_scope(running: Running) -> None:
    open_routes = {"/healthz", "/readyz"}
    with running.client(None) as nobody, running.client("kw_wrong") as wrong, running.client(NOBODY) as bare:
        for path, methods in running.app.openapi()["paths"].items():
            for method in methods:
                url = path.replace("{id}", "x").replace("{name}", "job").replace("{tool}", "x")
                if path in open_routes:
                    assert nobody.request(method, url).status_code == 200
                    continue
                for caller in (nobody, wrong):
                    answer = caller.request(method, url)
                    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), url
                answer = bare.request(method, url)
                assert (answer.status_code, answer.json()["type"]) == (403, "urn:keptwork:problem:missing-scope"), url


def test_a_key_that_only_reads_changes_nothing(client: httpx.Client, running: Running) -> None:
    id = enqueued(client)["id"]
    with running.client(READER) as reader:
        assert reader.get(f"/api/jobs/{id}").status_code == 200
        assert reader.post(f"/api/jobs/{id}/cancel").status_code == 403
        assert reader.post("/api/queues/default/pause").status_code == 403
    assert client.get(f"/api/jobs/{id}").json()["state"] == "queued"
