"""Another tenant's things are not there: every address answers a foreign id as it answers one that does not exist."""

from __future__ import annotations

import re
from typing import Any

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
]


def told(answer: httpx.Response) -> tuple[object, ...]:
    """All of an answer but what is different in every one."""
    headers = {
        name: value for name, value in answer.headers.items() if name not in ("x-request-id", "date", "ratelimit")
    }
    return answer.status_code, headers, answer.content


@pytest.mark.parametrize(("method", "path"), BY_ID)
def test_a_foreign_id_is_answered_byte_for_byte_like_an_unknown_one(
    client: httpx.Client, running: Running, method: str, path: str
) -> None:
    theirs = str(enqueued(client)["id"])
    unknown = ids.public("job", (ids.key_of(theirs) or ("", 0))[1] + 77)
    with running.client(THEIRS) as other:
        foreign, missing, nonsense = (
            told(other.request(method, path.replace("{}", id))) for id in (theirs, unknown, "job_nonsense")
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


NAMES = {"name", "tool"}
"""Parameters of paths that name something within the tenant, so that nobody can name anything foreign by them."""


def unshown(document: dict[str, Any]) -> set[tuple[str, str]]:
    """The routes to something by its id that are not among those above, or are there for nothing."""
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
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
