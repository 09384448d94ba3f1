"""Another tenant's things are not there: every address answers a foreign id as it answers one that does not exist."""

from __future__ import annotations

import httpx
import pytest

from detent import ids
from detent.http import problems
from tests.http.conftest import NOBODY, READER, THEIRS, Running
from tests.http.test_jobs import enqueued

BY_ID = [
    ("GET", "/api/jobs/{}"),
    ("POST", "/api/jobs/{}/cancel"),
    ("POST", "/api/jobs/{}/retry"),
    ("GET", "/api/dead-letters/{}"),
    ("POST", "/api/dead-letters/{}/redrive"),
    ("GET", "/api/why/{}"),
    ("GET", "/api/jobs/{}/artifacts/{name}"),
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


def of_ours(client: httpx.Client, path: str) -> str:
    """The id of something of ours that an address asks for."""
    if "/workers/" in path:
        return str(client.post("/api/workers", json={}).json()["id"])
    return str(enqueued(client)["id"])


def body_for(other: httpx.Client, method: str, path: str) -> dict[str, object] | None:
    """What is sent with a request: where a worker is needed, one of the caller's own."""
    if path.endswith("/settle"):
        return {"jobs": [{"job": "job_x", "epoch": 0, "outcome": "succeed"}]}
    more = BODIES.get(f"{method} {path}")
    return None if more is None else {"worker": of_ours(other, "/workers/"), "epoch": 0, **more}


def told(answer: httpx.Response) -> tuple[object, ...]:
    """All of an answer but what is different in every one."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "date")}
    return answer.status_code, headers, answer.content


@pytest.mark.parametrize(("method", "path"), BY_ID)
def test_a_foreign_id_is_answered_byte_for_byte_like_an_unknown_one(
    client: httpx.Client, running: Running, method: str, path: str
) -> None:
    theirs = of_ours(client, path)
    prefix, key = ids.key_of(theirs) or ("", 0)
    with running.client(THEIRS) as other:
        body = body_for(other, method, path)
        foreign, missing, nonsense = (
            told(other.request(method, path.replace("{}", id), json=body))
            for id in (theirs, ids.public(prefix, key + 77), f"{prefix}_nonsense")
        )
    assert foreign == missing == nonsense
    assert foreign[0] == 404


def test_an_answer_that_tells_the_two_apart_is_noticed(
    client: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = str(enqueued(client)["id"])
    unknown = ids.public("job", (ids.key_of(theirs) or ("", 0))[1] + 77)
    monkeypatch.setattr(problems, "_detail", str)  # a twin that repeats the id
    with running.client(THEIRS) as other:
        assert told(other.get(f"/api/jobs/{theirs}")) != told(other.get(f"/api/jobs/{unknown}"))


def test_every_route_with_an_id_is_among_those(running: Running) -> None:
    taken = {
        (method.upper(), path.replace("{id}", "{}").replace(":path}", "}"))
        for path, methods in running.app.openapi()["paths"].items()
        for method in methods
        if "{id}" in path
    }
    assert taken == set(BY_ID)


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
        assert many["refused"][id]["type"] == "urn:detent:problem:not-found"
    assert client.get(f"/api/jobs/{id}").json()["state"] == "queued"


def test_every_route_but_health_needs_a_key_and_a_scope(running: Running) -> None:
    open_routes = {"/healthz", "/readyz"}
    with running.client(None) as nobody, running.client("dk_wrong") as wrong, running.client(NOBODY) as bare:
        for path, methods in running.app.openapi()["paths"].items():
            for method in methods:
                url = path.replace("{id}", "x").replace("{name}", "job")
                if path in open_routes:
                    assert nobody.request(method, url).status_code == 200
                    continue
                for caller in (nobody, wrong):
                    answer = caller.request(method, url)
                    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), url
                answer = bare.request(method, url)
                assert (answer.status_code, answer.json()["type"]) == (403, "urn:detent:problem:missing-scope"), url


def test_a_key_that_only_reads_changes_nothing(client: httpx.Client, running: Running) -> None:
    id = enqueued(client)["id"]
    with running.client(READER) as reader:
        assert reader.get(f"/api/jobs/{id}").status_code == 200
        assert reader.post(f"/api/jobs/{id}/cancel").status_code == 403
        assert reader.post("/api/queues/default/pause").status_code == 403
    assert client.get(f"/api/jobs/{id}").json()["state"] == "queued"
