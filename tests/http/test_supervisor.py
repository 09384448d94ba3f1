"""Supervision over HTTP: the workers a supervisor makes and commands, the moves it is refused, and the figures."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from keptwork.core.ids import resolve
from keptwork.core.lifecycles import WORKER
from keptwork.store import NewJob, Store
from tests.conformance.stage import claim, moved
from tests.http.admin import refused_without
from tests.http.conftest import THEIRS, Running
from tests.http.declared import route_of
from tests.http.test_isolation import told

WORKERS = "/api/supervisor/workers"
COMMANDS = ("start", "pause", "resume", "drain", "terminate")


def made(client: httpx.Client, **more: object) -> str:
    answer = client.post(WORKERS, json={"workspace_id": "ws_test", **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def in_state(client: httpx.Client, running: Running, state: str) -> str:
    """A worker of ours in that state, brought there by legal moves."""
    id = made(client)
    if state != "IDLE":
        client.post(f"{WORKERS}/{id}/start")
    if state == "PAUSED":
        client.post(f"{WORKERS}/{id}/pause")
    if state == "TERMINATED":
        client.post(f"{WORKERS}/{id}/terminate")
    own = {"COMPLETED": "complete_tasks", "FAILED": "error_unrecoverable"}  # what only the worker itself can say
    if state in own:
        running.do(lambda store: moved(store, WORKER, resolve(id).key, own[state]))
    assert client.get(f"{WORKERS}/{id}").json()["state"] == state
    return id


# --- the seed's own examples


@pytest.mark.parametrize("made_at", [path for path in ("/api/workers", WORKERS) if route_of("POST", path)])
def test_pause_running_worker(client: httpx.Client, made_at: str) -> None:
    response = client.post(made_at, json={"workspace_id": "ws_test"})
    worker_id = response.json()["id"]
    assert worker_id.startswith("w_")
    assert (response.json()["status"], response.json()["workspace_id"]) == ("IDLE", "ws_test")
    assert client.post(f"{made_at}/{worker_id}/start").json()["status"] == "RUNNING"
    response = client.post(f"/api/supervisor/workers/{worker_id}/pause", json={"reason": "Test pause"})
    assert response.status_code == 200
    assert response.json()["status"] == "PAUSED"
    assert (response.json()["from_state"], response.json()["to_state"]) == ("RUNNING", "PAUSED")


def test_idempotent_pause(client: httpx.Client, running: Running) -> None:
    def pause(worker_id: str) -> httpx.Response:
        return client.post(f"/api/supervisor/workers/{worker_id}/pause", json={"request_id": "req_abc123"})

    assert pause("w_test123").json() == pause("w_test123").json()
    worker_id = in_state(client, running, "RUNNING")
    response1, response2 = pause(worker_id), pause(worker_id)
    assert response1.json() == response2.json()
    assert response1.status_code == response2.status_code == 200
    assert response2.headers["Idempotency-Replayed"] == "true"
    again = client.post(f"/api/supervisor/workers/{worker_id}/pause")
    assert (again.status_code, again.json()["from"]) == (409, "PAUSED")
    events = client.get("/api/events", params={"id": worker_id}).json()["events"]
    assert [one["trigger"] for one in events] == ["register", "start_task", "pause"]


# --- what is forbidden


FORBIDDEN = {
    "IDLE": ("pause", "resume"),
    "RUNNING": ("start", "resume"),
    "PAUSED": ("pause", "start"),
    "COMPLETED": ("start", "resume", "pause", "drain"),
    "FAILED": ("start", "resume", "pause", "drain"),
    "TERMINATED": COMMANDS,
}


@pytest.mark.parametrize("state", FORBIDDEN)
def test_what_is_forbidden_is_a_conflict_that_says_what_is_allowed(
    client: httpx.Client, running: Running, state: str
) -> None:
    id = in_state(client, running, state)
    for command in FORBIDDEN[state]:
        answer = client.post(f"{WORKERS}/{id}/{command}", json={})
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (409, "urn:keptwork:problem:invalid-transition")
        assert (problem["from"], problem["trigger"]) == (state, {"start": "start_task"}.get(command, command))
        sources = {move.trigger: {source.name for source in move.sources} for move in WORKER.moves}
        assert set(problem["allowed"]) == {trigger for trigger, found in sources.items() if state in found}
    assert client.get(f"{WORKERS}/{id}").json()["state"] == state


def test_no_command_leads_an_idle_worker_to_completed(client: httpx.Client, running: Running) -> None:
    reached = set()
    for command in COMMANDS:
        id = in_state(client, running, "IDLE")
        client.post(f"{WORKERS}/{id}/{command}")
        reached.add(client.get(f"{WORKERS}/{id}").json()["state"])
    assert reached == {"RUNNING", "IDLE", "TERMINATED"}


def test_a_worker_is_terminated_from_every_state_but_that(client: httpx.Client, running: Running) -> None:
    for state in FORBIDDEN.keys() - {"TERMINATED"}:
        id = in_state(client, running, state)
        done = client.post(f"{WORKERS}/{id}/terminate", json={"reason": "over"}).json()
        assert (done["from_state"], done["status"], done["reason"]) == (state, "TERMINATED", "over")
        assert done["asked_to_end"] == {"how": "soft", "jobs": "release", "by": "key:k1", "reason": "over"}


# --- commands


def test_one_that_ends_softly_can_still_be_ended_hard_and_its_jobs_with_it(
    client: httpx.Client, running: Running
) -> None:
    id, queue = in_state(client, running, "RUNNING"), f"held-{running.ours}"

    async def hold(store: Store) -> None:
        await store.enqueue([NewJob("kind", "{}", queue, running.ours)])
        assert await claim(store, resolve(id).key, 1, queue, start=True)

    running.do(hold)
    (job,) = client.get(f"{WORKERS}/{id}").json()["jobs"]
    assert job["kind"] == "kind"
    assert [one["jobs_held"] for one in client.get(WORKERS).json()["workers"]] == [1]
    client.post(f"{WORKERS}/{id}/terminate")
    done = client.post(f"{WORKERS}/{id}/terminate", json={"hard": True, "cancel_jobs": True}).json()
    assert (done["from_state"], done["to_state"]) == ("TERMINATED", "TERMINATED")
    assert client.get(f"/api/jobs/{job['id']}").json()["state"] == "cancelled"


def test_a_worker_that_holds_the_job_of_another_tenant_does_not_show_it(client: httpx.Client, running: Running) -> None:
    id, queue = in_state(client, running, "RUNNING"), f"foreign-{running.ours}"

    async def hold(store: Store) -> None:
        await store.enqueue([NewJob("secret-kind", "{}", queue, running.keys.known[THEIRS].tenant_id)])
        assert await claim(store, resolve(id).key, 1, queue, start=True)

    running.do(hold)
    whole = client.get(f"{WORKERS}/{id}")
    assert whole.json()["jobs"] == []
    assert "secret-kind" not in whole.text


def test_a_worker_that_lives_is_asked_to_drain_and_one_that_never_did_ends_at_once(
    client: httpx.Client, running: Running
) -> None:
    never, lives = made(client), in_state(client, running, "RUNNING")
    running.do(lambda store: store.beat(resolve(lives).key))
    done = client.post(f"{WORKERS}/{never}/drain", json={"reason": "no need"}).json()
    assert (done["status"], done["reason"]) == ("TERMINATED", "drained: no need")
    asked = client.post(f"{WORKERS}/{lives}/drain").json()
    assert (asked["status"], asked["asked_to_end"]["how"]) == ("RUNNING", "drain")


def test_a_worker_is_made_once_under_a_key_with_all_that_is_said_of_it(client: httpx.Client) -> None:
    said: dict[str, Any] = {
        "workspace_id": "ws_1",
        "name": "gpu-1",
        "queues": ["a", "b"],
        "kinds": ["render"],
        "concurrency": 4,
        "version": "1.2",
        "metadata": {"rack": [4, "ü"]},
    }
    first, second = (client.post(WORKERS, json=said, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert (first.status_code, first.content) == (201, second.content)
    assert {name: first.json()[name] for name in said} == said
    assert (first.json()["seen_at"], first.json()["actor"]) == (None, "key:k1")
    assert len(client.get(WORKERS).json()["workers"]) == 1


def test_what_is_no_worker_is_a_problem_and_stores_nothing(client: httpx.Client) -> None:
    bodies: list[dict[str, Any]] = [
        *({"workspace_id": ""}, {"workspace_id": "a\0"}, {"name": "a\nb"}, {"version": "x" * 201}, {"surprise": 1}),
        *({"queues": [""]}, {"queues": ["a"] * 1_001}, {"kinds": "a"}, {"concurrency": 0}),
        *({"metadata": {"a": "x" * 17_000}}, {"metadata": []}),
    ]
    assert {client.post(WORKERS, json=body).status_code for body in bodies} == {422}
    assert client.get(WORKERS, params={"ended": True}).json()["workers"] == []


def test_workers_are_listed_page_by_page_by_state_and_those_that_have_ended_if_asked(
    client: httpx.Client, running: Running
) -> None:
    ids = [in_state(client, running, state) for state in ("IDLE", "RUNNING", "TERMINATED", "PAUSED")]
    page = client.get(WORKERS, params={"limit": 2}).json()
    rest = client.get(WORKERS, params={"limit": 2, "after": page["next"]}).json()
    assert [one["id"] for one in page["workers"] + rest["workers"]] == [ids[3], ids[1], ids[0]]
    assert rest["next"] is None
    assert len(client.get(WORKERS, params={"ended": True}).json()["workers"]) == 4
    only = client.get(WORKERS, params={"state": ["idle", "TERMINATED"]}).json()["workers"]
    assert [one["id"] for one in only] == [ids[2], ids[0]]
    assert client.get(WORKERS, params={"state": "asleep"}).status_code == 422
    assert client.get(WORKERS, params={"host": "elsewhere"}).json()["workers"] == []
    assert client.get(WORKERS, params={"after": "nonsense"}).status_code == 400


# --- figures


def test_the_figures_tell_moves_stays_refusals_and_repeated_requests(client: httpx.Client, running: Running) -> None:
    id = in_state(client, running, "RUNNING")
    for _ in range(2):
        client.post(f"{WORKERS}/{id}/pause", json={"request_id": "once"})
    client.post(f"{WORKERS}/{id}/pause")
    told = client.get("/api/supervisor/metrics").json()
    moves = {(one["from"], one["to"]): one["count"] for one in told["transitions"] if one["entity"] == "worker"}
    assert moves == {("", "IDLE"): 1, ("IDLE", "RUNNING"): 1, ("RUNNING", "PAUSED"): 1}
    assert {one["state"]: one["count"] for one in told["time_in_state"]} == {"IDLE": 1, "RUNNING": 1}
    assert told["failed_transitions"] == [{"entity": "worker", "from": "PAUSED", "trigger": "pause", "count": 1}]
    assert (told["idempotency"]["hit"], told["idempotency"]["miss"]) >= (1, 1)
    assert 0 < told["idempotency"]["hit_rate"] < 1
    assert told["workers"]["PAUSED"] == 1
    with running.client(THEIRS) as theirs:
        assert theirs.get("/api/supervisor/metrics").json()["transitions"] == []


# --- who may


def test_a_foreign_worker_is_answered_like_one_that_does_not_exist(client: httpx.Client, running: Running) -> None:
    id = in_state(client, running, "RUNNING")
    with running.client(THEIRS) as theirs:
        for method, path in [("GET", ""), *(("POST", f"/{command}") for command in COMMANDS)]:
            foreign, unknown = (told(theirs.request(method, f"{WORKERS}/{one}{path}")) for one in (id, "w_none"))
            assert foreign == unknown
            assert foreign[0] == 404
        assert theirs.get(WORKERS).json()["workers"] == []
    assert client.get(f"{WORKERS}/{id}").json()["state"] == "RUNNING"


def test_commands_need_the_scope_to_supervise_and_looking_that_to_read(client: httpx.Client, running: Running) -> None:
    id = made(client)
    refused_without(running, "supervise", "POST", WORKERS, {})
    for command in COMMANDS:
        refused_without(running, "supervise", "POST", f"{WORKERS}/{id}/{command}")
    for path in (WORKERS, f"{WORKERS}/{id}", "/api/supervisor/metrics"):
        refused_without(running, "read", "GET", path)
