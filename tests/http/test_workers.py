"""Workers without a database: every call they make, on both kinds of database."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from keptwork.core.lifecycles import JOB, decide, insist
from keptwork.flows import commands as flows
from keptwork.handles_flow import flow_file
from keptwork.http.rate_limit import Limits
from keptwork.jobs import queries as job_service
from keptwork.store import NewJob, Store
from keptwork.workers import commands as worker_service
from keptwork.workers.remote import reports
from keptwork.workers.remote.claims import Claims
from tests.http.conftest import OURS, Keys, Running, serving, two_tenants
from tests.http.test_jobs import enqueued
from tests.http.wire import connected, head

Document = dict[str, Any]


def made(client: httpx.Client, **more: object) -> str:
    answer = client.post("/api/workers", json={"queues": ["default"], **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def claimed(client: httpx.Client, worker: str, **more: object) -> list[Document]:
    answer = client.post(f"/api/workers/{worker}/claim", json={"max": 10, **more})
    assert answer.status_code == 200, answer.text
    found: list[Document] = answer.json()["jobs"]
    return found


def one_claimed(client: httpx.Client, worker: str | None = None, **more: object) -> tuple[str, Document]:
    worker = worker or made(client)
    enqueued(client)
    (job,) = claimed(client, worker, **more)
    return worker, job


def say(client: httpx.Client, what: str, worker: str, job: Document, **more: object) -> httpx.Response:
    body = {"worker": worker, "epoch": job["epoch"], **more}
    return client.post(f"/api/jobs/{job['id']}/{what}", json=body)


def end_lease(running: Running, job: Document) -> None:
    """What becomes of a job when its worker is not heard of."""

    async def over(store: Store) -> None:
        row = await store.get(JOB, job_service.key_of(str(job["id"])), running.ours)
        assert row is not None
        await store.apply([insist(decide(JOB, row, "release", actor="reaper"))])

    running.do(over)


def moves(client: httpx.Client, job: Document) -> list[str]:
    return [event["trigger"] for event in client.get(f"/api/jobs/{job['id']}").json()["events"]]


# --- the worker


def test_a_worker_is_made_started_listed_shown_and_ended(client: httpx.Client) -> None:
    new = client.post("/api/workers", json={"workspace_id": "ws_test", "name": "gpu", "queues": ["a"], "kinds": ["k"]})
    worker = new.json()
    assert (new.status_code, worker["state"], worker["status"], worker["seen_at"]) == (201, "IDLE", "IDLE", None)
    assert (worker["workspace_id"], worker["queues"], worker["kinds"]) == ("ws_test", ["a"], ["k"])
    path = f"/api/workers/{worker['id']}"
    assert [client.post(f"{path}/start").json()["status"] for _ in range(2)] == ["RUNNING", "RUNNING"]
    assert [one["id"] for one in client.get("/api/workers").json()["workers"]] == [worker["id"]]
    assert client.post(f"{path}/end", json={"reason": "done"}).json()["state"] == "COMPLETED"
    assert client.post(f"{path}/end").json()["reason"] == "done"
    assert client.get("/api/workers").json()["workers"] == []
    assert len(client.get("/api/workers", params={"ended": "true"}).json()["workers"]) == 1
    told = client.get(path).json()
    assert [event["trigger"] for event in told["events"]] == ["register", "start_task", "complete_tasks"]
    refused = client.post(f"{path}/start")
    assert (refused.status_code, refused.json()["from"], refused.json()["allowed"]) == (409, "COMPLETED", ["terminate"])


def test_a_worker_that_fails_says_why(client: httpx.Client) -> None:
    idle, busy = made(client), made(client)
    client.post(f"/api/workers/{busy}/start")
    states = [client.post(f"/api/workers/{one}/end", json={"error": "disk"}).json() for one in (idle, busy)]
    assert [(one["state"], one["reason"]) for one in states] == [("TERMINATED", "disk"), ("FAILED", "disk")]


def test_a_worker_made_twice_under_one_key_is_one(client: httpx.Client) -> None:
    first, second = (client.post("/api/workers", json={"request_id": "w1"}) for _ in range(2))
    assert first.content == second.content


def test_its_first_claim_starts_a_worker_and_its_jobs(client: httpx.Client) -> None:
    worker, job = one_claimed(client)
    assert (job["state"], job["epoch"], job["attempt"], job["payload"]) == ("running", 0, 1, {"url": "x"})
    assert client.get(f"/api/workers/{worker}").json()["state"] == "RUNNING"
    assert moves(client, job) == ["enqueue", "claim", "start"]
    assert client.get(f"/api/workers/{worker}").json()["jobs"] == [{"id": job["id"], "kind": "fetch"}]


def test_a_job_may_be_claimed_first_and_started_later(client: httpx.Client) -> None:
    worker, job = one_claimed(client, start=False)
    assert job["state"] == "assigned"
    assert [say(client, "start", worker, job, lease=30).json()["state"] for _ in range(2)] == ["running"] * 2
    assert moves(client, job) == ["enqueue", "claim", "start"]


def test_a_job_that_fails_for_now_before_it_was_started_has_nothing_to_try_again(client: httpx.Client) -> None:
    worker, job = one_claimed(client, start=False)
    refused = say(client, "fail", worker, job)
    assert refused.status_code == 409, refused.text
    assert (refused.json()["from"], refused.json()["trigger"]) == ("assigned", "retry")
    assert moves(client, job) == ["enqueue", "claim"]
    assert say(client, "fail", worker, job, error={"kind": "permanent"}).json()["state"] == "failed"


def test_a_worker_is_given_only_the_queues_and_kinds_it_serves(client: httpx.Client) -> None:
    worker = made(client, queues=["a"], kinds=["yes"])
    enqueued(client, kind="no", queue="a")
    enqueued(client, kind="yes", queue="b")
    wanted = enqueued(client, kind="yes", queue="a")
    assert [job["id"] for job in claimed(client, worker)] == [wanted["id"]]
    assert claimed(client, worker) == []
    (other,) = client.get("/api/jobs", params={"queue": "a", "kind": "no"}).json()["jobs"]
    assert (other["state"], other["attempts"]) == ("queued", 0)
    assert "takes only: yes" in other["reason"]


def test_what_needs_the_database_is_no_kind_for_such_a_worker(client: httpx.Client, running: Running) -> None:
    refused = client.post("/api/workers", json={"kinds": ["keptwork.agent"]})
    assert (refused.status_code, "with the database" in refused.json()["detail"]) == (422, True)
    worker = made(client)
    tenant = running.ours
    running.do(
        lambda store: store.enqueue([NewJob("keptwork.tool", tenant_id=tenant)])
    )  # nobody can put one in by hand
    assert claimed(client, worker) == []


# --- the heartbeat


def test_a_heartbeat_renews_leases_and_tells_what_is_wanted(client: httpx.Client, running: Running) -> None:
    worker, job = one_claimed(client, lease=5)
    _, second = one_claimed(client, worker, lease=5)
    _, third = one_claimed(client, worker, lease=5)
    client.post(f"/api/jobs/{second['id']}/cancel")
    client.post(f"/api/jobs/{third['id']}/cancel", json={"hard": True})
    held = [{"job": one["id"], "epoch": one["epoch"]} for one in (job, second, third)]
    told = client.post(f"/api/workers/{worker}/heartbeat", json={"jobs": held, "lease": 600, "doing": {"n": 1}}).json()
    assert [(one["held"], one["cancel"]) for one in told["jobs"]] == [(True, None), (True, "soft"), (False, "hard")]
    assert (told["state"], told["paused"], told["end"]) == ("RUNNING", False, None)
    assert client.get(f"/api/jobs/{job['id']}").json()["lease_until"] > str(job["lease_until"])
    seen = client.get(f"/api/workers/{worker}").json()
    assert (seen["doing"], seen["seen_at"] is None) == ({"n": 1}, False)
    assert client.post(f"/api/workers/{worker}/heartbeat", json={"doing": {"a": "x" * 20_000}}).status_code == 422
    stale = [{"job": job["id"], "epoch": 7}, {"job": "job_nonsense", "epoch": 0}]
    told = client.post(f"/api/workers/{worker}/heartbeat", json={"jobs": stale}).json()
    assert [(one["held"], one["cancel"]) for one in told["jobs"]] == [(False, None), (False, None)]


def test_a_supervisor_pauses_and_ends_a_worker_that_hears_of_it(client: httpx.Client, running: Running) -> None:
    worker = made(client)
    client.post(f"/api/workers/{worker}/start")
    running.do(lambda store: worker_service.pause(store, running.ours, worker))
    told = client.post(f"/api/workers/{worker}/heartbeat").json()
    assert (told["state"], told["paused"], told["end"]) == ("PAUSED", True, None)
    job = enqueued(client)
    assert claimed(client, worker) == []
    running.do(lambda store: worker_service.resume(store, running.ours, worker))
    assert [one["id"] for one in claimed(client, worker)] == [job["id"]]
    wish = worker_service.Wish("ops", "it is late")
    running.do(lambda store: worker_service.drain(store, running.ours, worker, wish))
    asked = client.post(f"/api/workers/{worker}/claim", json={"wait": 20}).json()
    assert (asked["jobs"], asked["end"]["how"], asked["end"]["reason"]) == ([], "drain", "it is late")
    running.do(lambda store: worker_service.terminate(store, running.ours, worker, wish, hard=True))
    assert client.post(f"/api/workers/{worker}/heartbeat").json()["end"]["how"] == "hard"


# --- the long poll


@pytest.fixture
def only_the_bell(running: Running) -> Iterator[Claims]:
    """Claims that wait hear nothing but the bell: nobody looks by himself."""
    state = running.app.state
    shipped = state.claims

    async def made(store: Store) -> Claims:
        return Claims(store, state.stopping, look_seconds=60)

    state.claims = running.do(made)
    yield state.claims
    running.do(lambda store: state.claims.room.close())
    state.claims = shipped


def waited(client: httpx.Client, running: Running, seconds: float) -> tuple[list[Document], Document]:
    """What a claim that waits is given when a job comes, and that job."""
    worker = made(client)
    found: list[Document] = []
    waiting = threading.Thread(target=lambda: found.extend(claimed(client, worker, wait=seconds)))
    waiting.start()
    until(lambda: waits(running) == 1)
    with running.client() as other:
        job = enqueued(other)
    waiting.join(60)
    return found, job


@pytest.mark.usefixtures("only_the_bell")
def test_a_claim_that_waits_is_woken_by_the_bell_of_the_store(client: httpx.Client, running: Running) -> None:
    found, job = waited(client, running, 10)
    assert [one["id"] for one in found] == [job["id"]]


def test_a_room_that_is_deaf_to_the_bell_is_noticed(
    client: httpx.Client, running: Running, only_the_bell: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(only_the_bell.room, "_ring", lambda: None)
    assert waited(client, running, 1)[0] == []


@pytest.mark.acceptance
def test_a_job_that_comes_costs_a_claim_or_two_however_many_wait_for_it(
    client: httpx.Client, running: Running, only_the_bell: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert claims_for_one_job(client, running, only_the_bell, monkeypatch) <= 4


@pytest.mark.acceptance
def test_a_bell_that_calls_everyone_is_noticed(
    client: httpx.Client, running: Running, only_the_bell: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = only_the_bell.room

    def call_all(line: Any) -> None:
        for place in room._lines.get(line, ()):
            place.call()

    monkeypatch.setattr(room, "call_next", call_all)
    assert claims_for_one_job(client, running, only_the_bell, monkeypatch) >= 8


def claims_for_one_job(client: httpx.Client, running: Running, claims: Claims, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the database is asked because of one job, while ten workers wait."""
    asked: list[object] = []
    found: list[Document] = []
    shipped = claims._claimed

    async def counted(ask: Any, again: bool = False) -> Any:
        asked.append(ask)
        return await shipped(ask, again)

    async def everyone_leaves(store: Store) -> None:
        for place in claims.room._everyone():
            place.leave()

    def ask(worker: str) -> None:
        with running.client() as own:
            found.extend(claimed(own, worker, wait=20, max=1))

    threads = [threading.Thread(target=ask, args=(made(client),)) for _ in range(10)]
    for thread in threads:
        thread.start()
    until(lambda: waits(running) == 10)
    monkeypatch.setattr(claims, "_claimed", counted)
    enqueued(client)
    until(lambda: len(found) == 1)
    time.sleep(0.3)  # whoever else was called has asked by now
    running.do(everyone_leaves)
    for thread in threads:
        thread.join(60)
    assert len(found) == 1
    return len(asked)


def test_many_that_wait_share_what_comes_and_none_is_given_twice(client: httpx.Client, running: Running) -> None:
    workers, found = [made(client) for _ in range(6)], []

    def ask(worker: str) -> None:
        with running.client() as own:
            found.extend(claimed(own, worker, wait=5, max=1))

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    until(lambda: waits(running) == 6)
    jobs = {str(enqueued(client)["id"]) for _ in range(6)}
    for thread in threads:
        thread.join(60)
    assert sorted(one["id"] for one in found) == sorted(jobs)
    assert waits(running) == 0


def test_a_worker_that_was_paused_while_it_waits_keeps_no_job_from_the_next(
    client: httpx.Client, running: Running
) -> None:
    paused, ready, found = made(client), made(client), []
    client.post(f"/api/workers/{paused}/start")

    def ask(worker: str) -> None:
        with running.client() as own:
            found.append((worker, claimed(own, worker, wait=15)))

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in (paused, ready)]
    threads[0].start()
    until(lambda: waits(running) == 1)
    threads[1].start()
    until(lambda: waits(running) == 2)
    running.do(lambda store: worker_service.pause(store, running.ours, paused))
    job = enqueued(client)
    until(lambda: len(found) == 1)
    assert (found[0][0], [one["id"] for one in found[0][1]]) == (ready, [job["id"]])
    running.do(lambda store: worker_service.terminate(store, running.ours, paused))
    for thread in threads:
        thread.join(60)
    assert found[1] == (paused, [])


def test_a_wait_ends_empty_when_its_time_is_over(client: httpx.Client) -> None:
    assert claimed(client, made(client), wait=0.2) == []
    assert client.post(f"/api/workers/{made(client)}/claim", json={"wait": 31}).status_code == 422


def test_a_client_that_hangs_up_while_it_waits_loses_nothing(client: httpx.Client, running: Running) -> None:
    worker = made(client)
    body = json.dumps({"wait": 20}).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    with connected(running) as wire:
        wire.sendall(head("POST", f"/api/workers/{worker}/claim", *lines) + body)
        until(lambda: waits(running) == 1)
    until(lambda: waits(running) == 0)
    job = enqueued(client)
    assert client.get(f"/api/jobs/{job['id']}").json()["state"] == "queued"


def test_what_was_claimed_for_one_who_hung_up_goes_back(
    client: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is held up until its caller is gone."""
    worker, job = made(client), enqueued(client)
    gone = threading.Event()
    claims = running.app.state.claims
    shipped = claims._taken

    async def late(ask: Any) -> Any:
        await asyncio.to_thread(gone.wait, 10)
        await asyncio.sleep(0.1)  # so that the loop hears of it, too
        return await shipped(ask)

    monkeypatch.setattr(claims, "_taken", late)
    with connected(running) as wire:
        wire.sendall(head("POST", f"/api/workers/{worker}/claim"))
    gone.set()
    until(lambda: "hung up" in str(client.get(f"/api/jobs/{job['id']}").json()["reason"]))
    shown = client.get(f"/api/jobs/{job['id']}").json()
    assert (shown["state"], shown["attempts"], shown["epoch"]) == ("queued", 0, 1)


@pytest.mark.acceptance
def test_waits_end_when_the_server_does(tmp_path: Any) -> None:
    with serving(f"sqlite:///{tmp_path}/keptwork.db", Keys(), Limits(shutdown_seconds=20)) as started:
        two_tenants(started)
        with started.client() as client:
            worker, found = made(client), []
            waiting = threading.Thread(
                target=lambda: found.append(client.post(f"/api/workers/{worker}/claim", json={"wait": 30}))
            )
            waiting.start()
            until(lambda: waits(started) == 1)
            began = time.monotonic()
            started.stop()
            waiting.join(60)
            assert time.monotonic() - began < 8
            assert (found[0].status_code, found[0].json()["jobs"]) == (200, [])


# --- a claim whose answer was lost


def test_a_claim_sent_again_under_its_key_is_given_the_same_jobs(client: httpx.Client) -> None:
    worker = made(client)
    jobs = {enqueued(client)["id"] for _ in range(3)}
    first, again = (claimed(client, worker, request_id="c1", max=2) for _ in range(2))
    assert [one["id"] for one in first] == [one["id"] for one in again]
    assert len(first) == 2
    (other,) = claimed(client, worker, request_id="c2")
    assert {*(one["id"] for one in first), other["id"]} == jobs


# --- reports


ENDS: list[tuple[str, Document, str, str]] = [
    ("succeed", {"result": {"size": 4}}, "succeed", "succeeded"),
    ("fail", {"error": {"message": "no route", "type": "OSError"}}, "retry", "queued"),
    ("fail", {"error": {"message": "gone", "kind": "permanent"}}, "fail", "failed"),
    ("fail", {"error": {"message": "no url", "kind": "validation"}}, "dead_letter", "dead_lettered"),
    ("snooze", {"delay": "5m"}, "snooze", "queued"),
    ("snooze", {"until": "2030-01-01T00:00:00Z"}, "snooze", "queued"),
    ("release", {"reason": "it drains"}, "release", "queued"),
]


@pytest.mark.parametrize(("what", "more", "move", "state"), ENDS)
def test_what_came_of_a_job_is_written_once_however_often_it_is_said(
    client: httpx.Client, what: str, more: Document, move: str, state: str
) -> None:
    worker, job = one_claimed(client)
    answers = [say(client, what, worker, job, **more) for _ in range(3)]
    expected = {"job": job["id"], "epoch": 0, "move": move, "state": state}
    assert [(one.status_code, one.json()) for one in answers] == [(200, expected)] * 3
    assert moves(client, job) == ["enqueue", "claim", "start", move]
    shown = client.get(f"/api/jobs/{job['id']}").json()
    assert shown["state"] == state
    assert [event["actor"] for event in shown["events"]][1:] == [worker] * 3


def test_an_outcome_other_than_the_first_is_refused(client: httpx.Client) -> None:
    worker, job = one_claimed(client)
    assert say(client, "succeed", worker, job).status_code == 200
    refused = say(client, "fail", worker, job)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:keptwork:problem:lease-lost")


REPORTS: list[tuple[str, Document]] = [
    ("start", {}),
    ("checkpoint", {"name": "a", "value": 1}),
    ("progress", {"fraction": 0.5}),
    ("succeed", {"result": 1}),
    ("fail", {}),
    ("snooze", {}),
    ("release", {}),
]


@pytest.mark.parametrize(("what", "more"), REPORTS)
def test_a_stale_epoch_changes_nothing_and_is_told_so(
    client: httpx.Client, running: Running, what: str, more: Document
) -> None:
    worker, job = one_claimed(client)
    end_lease(running, job)
    other = made(client)
    (again,) = claimed(client, other)
    before = client.get(f"/api/jobs/{job['id']}").json()
    for speaker, epoch in ((worker, 0), (worker, again["epoch"]), (other, 0), (other, 9)):
        refused = say(client, what, speaker, {**job, "epoch": epoch}, **more)
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:keptwork:problem:lease-lost"), (
            speaker,
            epoch,
        )
        assert "has moved on" in refused.json()["detail"]
    assert client.get(f"/api/jobs/{job['id']}").json() == before
    assert say(client, "succeed", other, again).status_code == 200


@pytest.mark.acceptance
def test_a_lease_that_is_over_is_over_also_before_anybody_has_reaped_it(client: httpx.Client) -> None:
    worker, job = one_claimed(client, lease=1)
    time.sleep(1.1)  # the server's clock is the database's
    for what, more in REPORTS:
        assert say(client, what, worker, job, **more).status_code == 409, what
    assert client.get(f"/api/jobs/{job['id']}").json()["state"] == "running"
    held = {"jobs": [{"job": job["id"], "epoch": 0}]}
    assert client.post(f"/api/workers/{worker}/heartbeat", json=held).json()["jobs"][0]["held"] is False


def test_a_server_that_forgets_the_epoch_is_noticed(
    client: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin that takes a report of whoever sends it."""

    async def anyone(store: Store, claim: Any, worker: int) -> Any:
        return reports._job(await job_service.find(store, claim.tenant_id, claim.job))

    worker, job = one_claimed(client)
    end_lease(running, job)
    claimed(client, made(client))
    monkeypatch.setattr(reports, "_as_claimed", anyone)
    assert say(client, "succeed", worker, job).status_code == 200


def test_numbers_that_are_none_are_refused_everywhere(client: httpx.Client) -> None:
    worker, job = one_claimed(client)
    mine = f'"worker": "{worker}", "epoch": 0'
    settled = f'{{"jobs": [{{"job": "{job["id"]}", "epoch": 0, "outcome": "succeed", "result": NaN}}]}}'
    for path, body in (
        (f"/api/jobs/{job['id']}/succeed", f'{{{mine}, "result": NaN}}'),
        (f"/api/jobs/{job['id']}/checkpoint", f'{{{mine}, "name": "a", "value": [Infinity]}}'),
        (f"/api/jobs/{job['id']}/progress", f'{{{mine}, "fraction": NaN}}'),
        (f"/api/jobs/{job['id']}/fail", f'{{{mine}, "error": {{"retry_in": Infinity}}}}'),
        (f"/api/jobs/{job['id']}/snooze", f'{{{mine}, "delay": NaN}}'),
        (f"/api/workers/{worker}/heartbeat", '{"doing": {"a": NaN}}'),
        (f"/api/workers/{worker}/claim", '{"wait": NaN}'),
        (f"/api/workers/{worker}/claim", '{"lease": Infinity}'),
        (f"/api/workers/{worker}/settle", settled),
        ("/api/workers", '{"metadata": {"a": NaN}}'),
    ):
        refused = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert refused.status_code == 422, (path, refused.text)
    assert moves(client, job) == ["enqueue", "claim", "start"]


def test_checkpoints_outlive_their_worker_and_come_with_the_next_claim(client: httpx.Client, running: Running) -> None:
    worker, job = one_claimed(client)
    large = "x" * 20_000
    for name, value in (("charge", {"id": 7}), ("page", large)):
        assert say(client, "checkpoint", worker, job, name=name, value=value).json() == {
            "name": name,
            "kept": True,
            "value": value,
        }
    again = say(client, "checkpoint", worker, job, name="charge", value={"id": 8}).json()
    assert (again["kept"], again["value"]) == (False, {"id": 7})
    end_lease(running, job)
    (later,) = claimed(client, made(client))
    assert [(one["name"], one["value"], one["large"]) for one in later["checkpoints"]] == [
        ("charge", {"id": 7}, False),
        ("page", None, True),
    ]
    assert client.get(f"/api/jobs/{job['id']}/checkpoints/page").json()["value"] == large
    assert client.get(f"/api/jobs/{job['id']}/checkpoints/none").status_code == 404


def test_progress_and_artifacts_are_kept_while_the_job_is_held(client: httpx.Client) -> None:
    worker, job = one_claimed(client)
    assert say(client, "progress", worker, job, fraction=0.4, text="page 2").status_code == 200
    assert say(client, "progress", worker, job, fraction=1.4).status_code == 422
    path = f"/api/jobs/{job['id']}/artifacts/notes.txt"
    body = {"worker": worker, "epoch": 0, "content": base64.b64encode(b"hello").decode(), "media_type": "text/plain"}
    assert client.put(path, json=body).json()["size"] == 5
    assert client.put(path, json={**body, "content": "?"}).status_code == 422
    assert client.get(path).content == b"hello"
    shown = client.get(f"/api/jobs/{job['id']}").json()
    assert (shown["progress"]["fraction"], shown["progress"]["text"]) == (0.4, "page 2")
    say(client, "succeed", worker, job)
    assert client.put(path, json=body).status_code == 409


def test_several_outcomes_are_written_together_and_the_lost_one_is_told(client: httpx.Client, running: Running) -> None:
    worker = made(client)
    for _ in range(4):
        enqueued(client)
    jobs = claimed(client, worker)
    end_lease(running, jobs[3])
    outcomes: list[Document] = [
        {"outcome": "succeed", "result": 1},
        {"outcome": "cancel", "reason": "not wanted"},
        {"outcome": "release", "held_by": "version:fetch@2", "reason": "too old"},
        {"outcome": "succeed"},
    ]
    body = {"jobs": [{"job": j["id"], "epoch": j["epoch"], **o} for j, o in zip(jobs, outcomes, strict=True)]}
    body["jobs"].append({"job": "job_nonsense", "epoch": 0, "outcome": "succeed"})
    first, again = (client.post(f"/api/workers/{worker}/settle", json=body).json()["jobs"] for _ in range(2))
    assert [one and one["state"] for one in first] == ["succeeded", "cancelled", "queued", None, None]
    assert first == again
    assert client.get(f"/api/jobs/{jobs[2]['id']}").json()["held_by"] == "version:fetch@2"


def test_a_report_under_an_idempotency_key_is_answered_byte_for_byte(client: httpx.Client) -> None:
    worker, job = one_claimed(client)
    path, body = f"/api/jobs/{job['id']}/succeed", {"worker": worker, "epoch": 0, "result": 1}
    first, second = (client.post(path, json=body, headers={"Idempotency-Key": "s1"}) for _ in range(2))
    assert first.content == second.content
    assert second.headers["idempotency-replayed"] == "true"


def test_a_foreign_worker_speaks_of_no_job_and_is_answered_like_an_unknown_one(
    client: httpx.Client, running: Running
) -> None:
    _, job = one_claimed(client)
    with running.client("kw_theirs") as other:
        foreign = made(other)
    for what, more in REPORTS:
        told = {say(client, what, worker, job, **more).content for worker in (foreign, "w_nonsense", str(job["id"]))}
        assert len(told) == 1
        assert json.loads(told.pop())["status"] == 404
    assert client.get(f"/api/jobs/{job['id']}").json()["state"] == "running"


FLOW = {
    "name": "two",
    "kind": "workstream",
    "inputs": {"text": {"type": "string"}},
    "steps": [
        {"id": "first", "call": "shop:notes", "with": {"text": "${inputs.text}"}, "timeout": "10s"},
        {"id": "second", "call": "shop:ship", "with": {"notes": "${first.notes}"}, "depends_on": ["first"]},
    ],
}


def begun(running: Running) -> str:
    """A flow that has begun."""

    async def begin(store: Store) -> str:
        file = flow_file(FLOW)
        given = {"text": "hi"}
        return (await flows.start(store, file.flow, given, tenant_id=running.ours, library=file.library)).public_id

    return running.do(begin)


def test_steps_of_a_flow_are_carried_out_by_any_worker_and_a_lost_reply_moves_it_once(
    client: httpx.Client, running: Running
) -> None:
    flow, worker = begun(running), made(client, kinds=["keptwork.call"])
    (first,) = claimed(client, worker)
    assert first["step"] == {
        "flow": flow,
        "name": "first",
        "call": "shop:notes",
        "arguments": {"text": "hi"},
        "timeout": 10.0,
        "retry_in": None,
    }
    for _ in range(3):
        assert say(client, "succeed", worker, first, result={"notes": "short"}).json()["state"] == "succeeded"
    (second,) = claimed(client, worker, wait=5)
    assert second["step"]["arguments"] == {"notes": "short"}
    said = {"jobs": [{"job": second["id"], "epoch": 0, "outcome": "succeed", "result": {}}]}
    for _ in range(2):
        assert client.post(f"/api/workers/{worker}/settle", json=said).json()["jobs"][0]["move"] == "succeed"
    events = client.get("/api/events", params={"correlation_id": flow, "limit": 100}).json()["events"]
    told = [(one["entity"], one["trigger"]) for one in events]
    assert told.count(("workstream-step", "success")) == 2
    assert told.count(("workstream", "all_steps_succeed")) == 1


def test_a_step_whose_references_lead_nowhere_fails_before_it_is_given(client: httpx.Client, running: Running) -> None:
    flow, worker = begun(running), made(client, kinds=["keptwork.call"])
    (first,) = claimed(client, worker)
    say(client, "succeed", worker, first, result={"other": "short"})
    assert claimed(client, worker) == []
    events = client.get("/api/events", params={"correlation_id": flow, "limit": 100}).json()["events"]
    assert ("workstream-step", "failure") in [(one["entity"], one["trigger"]) for one in events]


def waits(running: Running) -> int:
    return len(running.app.state.claims.room)


def until(true: Callable[[], bool]) -> None:
    last = time.monotonic() + 10
    while not true():
        assert time.monotonic() < last, "it did not come to that"
        time.sleep(0.01)


def test_a_key_that_only_reads_takes_no_work(client: httpx.Client, running: Running) -> None:
    worker = made(client)
    with running.client("kw_reader") as reader:
        assert reader.get(f"/api/workers/{worker}").status_code == 200
        assert reader.post(f"/api/workers/{worker}/claim").status_code == 403
    assert OURS in running.keys.known
