"""Limits, figures, the doctor, overrides and the export of the log over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.diagnostics.doctor import job_checks
from keptwork.jobs import limits
from keptwork.jobs.concurrency import Throttle
from keptwork.store import NewJob, Store
from tests.conformance.stage import claim, worker
from tests.http.admin import admin, refused_without
from tests.http.conftest import THEIRS, Running
from tests.http.test_isolation import told
from tests.http.test_jobs import enqueued


@pytest.fixture
def boss(running: Running) -> Iterator[httpx.Client]:
    with admin(running) as opened:
        yield opened


def left_alone(running: Running, token: str | None = None) -> str:
    """A job that is said to run although its lease is over, which nobody has noticed."""
    tenant = running.ours if token is None else running.keys.known[token].tenant_id

    async def work(store: Store) -> str:
        queue, owner = f"alone-{tenant}", await worker(store)
        (key,) = await store.enqueue([NewJob("kind", "{}", queue, tenant)])
        assert await claim(store, owner, 1, queue, lease_us=1, start=True)
        return public_id(JOB.name, key)

    return running.do(work)


# --- limits and figures


def test_limits_are_listed_page_by_page(client: httpx.Client, running: Running) -> None:
    kinds = [f"kind-{running.ours}-{number}" for number in range(3)]
    rules = [limits.rule("job", kind, Throttle.of(2, "10/min")) for kind in kinds]
    running.do(lambda store: limits.declare(store, rules))
    found = client.get("/api/limits", params={"limit": 1_000}).json()
    mine = [one for one in found["limits"] if one["key"].removeprefix("*:") in kinds]
    assert [(one["most"], one["rate"], one["running"], one["scope"]) for one in mine] == [(2, 10, 0, "all tenants")] * 3
    page = client.get("/api/limits", params={"limit": 2}).json()
    rest = client.get("/api/limits", params={"limit": 1_000, "after": page["next"]}).json()
    assert page["limits"] + rest["limits"] == found["limits"]
    refused_without(running, "read", "GET", "/api/limits")


def test_the_figures_come_as_json_and_are_the_tenants_own(client: httpx.Client, running: Running) -> None:
    enqueued(client, kind="counted", queue="figures")
    told = client.get("/api/stats").json()
    assert ([queue["name"] for queue in told["queues"]], told["last_minute"]) == (["figures"], {"enqueue": 1})
    assert [(one["from"], one["to"], one["count"]) for one in told["transitions"]] == [("", "queued", 1)]
    with running.client(THEIRS) as theirs:
        assert theirs.get("/api/stats").json()["transitions"] == []
    refused_without(running, "read", "GET", "/api/stats")


# --- the doctor


def test_the_doctor_finds_and_mends_only_what_is_the_tenants_own(
    boss: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_checks, "LEASE_PATIENCE_US", 0)
    ours, theirs = left_alone(running), left_alone(running, THEIRS)
    (finding,) = boss.get("/api/doctor").json()["findings"]
    assert (finding["check"], finding["id"], finding["entity"]) == ("orphaned_lease", ours, "job")
    first, again = (boss.post("/api/doctor/fix", headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert (first.content, again.headers["Idempotency-Replayed"]) == (again.content, "true")
    treated = first.json()
    assert [one["id"] for one in treated["repairs"]] == [one["id"] for one in treated["found"]] == [ours]
    assert treated["left"] == boss.get("/api/doctor").json()["findings"] == []
    assert boss.get(f"/api/jobs/{ours}").json()["state"] == "queued"
    with running.client(THEIRS) as other:
        assert [one["id"] for one in other.get("/api/doctor").json()["findings"]] == [theirs]
    assert boss.post("/api/doctor/fix", json={}).json() == {"found": [], "repairs": [], "left": []}


def test_what_counts_as_stuck_can_be_said_and_looking_needs_less_than_mending(
    boss: httpx.Client, running: Running
) -> None:
    spans = {"stuck_after": ["1h", "S_RUNNING=4h"]}
    assert boss.get("/api/doctor", params=spans).json() == {"findings": []}
    assert boss.post("/api/doctor/fix", json=spans).status_code == 200
    for wrong in ("soon", "ASLEEP=1h", ""):
        assert boss.get("/api/doctor", params={"stuck_after": wrong}).status_code == 422
        assert boss.post("/api/doctor/fix", json={"stuck_after": [wrong]}).status_code == 422
    refused_without(running, "read", "GET", "/api/doctor")
    refused_without(running, "admin", "POST", "/api/doctor/fix")


def test_of_several_who_mend_under_one_key_at_once_all_are_told_the_same(
    boss: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_checks, "LEASE_PATIENCE_US", 0)
    left_alone(running)

    def mend(_: int) -> httpx.Response:
        return boss.post("/api/doctor/fix", headers={"Idempotency-Key": "race"})

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(mend, range(4)))
    done = [one for one in answers if one.status_code == 200]
    assert {one.status_code for one in answers} <= {200, 409}
    assert len({one.content for one in done}) == 1
    assert sum("Idempotency-Replayed" not in one.headers for one in done) == 1


# --- overrides


def test_an_override_is_told_apart_in_the_history_and_names_who_and_why(boss: httpx.Client) -> None:
    id = str(enqueued(boss)["id"])
    asked = {"id": id, "to": "failed", "reason": "its machine is gone"}
    dry = boss.post("/api/overrides", json={**asked, "dry_run": True}).json()
    assert (dry["from"], dry["state"], dry["to"], dry["written"]) == ("queued", "queued", "failed", False)
    done, again = (boss.post("/api/overrides", json=asked, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert (done.status_code, done.content) == (200, again.content)
    assert (done.json()["state"], done.json()["entity"], done.json()["written"]) == ("failed", "job", True)
    (event,) = boss.get("/api/events", params={"id": id, "text": "machine"}).json()["events"]
    assert (event["trigger"], event["type"], event["actor"]) == ("override", "job_overridden", "key:admin")
    assert boss.get(f"/api/jobs/{id}").json()["state"] == "failed"
    assert boss.post("/api/overrides", json=asked).json()["written"] is False


def test_an_override_needs_an_administrator_a_reason_and_a_state(boss: httpx.Client, running: Running) -> None:
    id = str(enqueued(boss)["id"])
    good = {"id": id, "to": "failed", "reason": "because"}
    for wrong in ({"to": "asleep"}, {"reason": ""}, {"reason": " "}, {"reason": "x" * 4_001}, {"surprise": 1}):
        assert boss.post("/api/overrides", json={**good, **wrong}).status_code == 422, wrong
    refused_without(running, "admin", "POST", "/api/overrides", {**good, "dry_run": True})
    with running.client(THEIRS) as theirs:
        foreign, unknown = (told(theirs.post("/api/overrides", json={**good, "id": one})) for one in (id, "job_none"))
    assert foreign == unknown
    assert foreign[0] == 404
    assert boss.get(f"/api/jobs/{id}").json()["state"] == "queued"


# --- the log as a file


def test_the_log_is_exported_line_by_line_and_gone_on_with(boss: httpx.Client, running: Running) -> None:
    ids = [str(enqueued(boss)["id"]) for _ in range(3)]
    with running.client(THEIRS) as theirs:
        enqueued(theirs)
    answer = boss.get("/api/audit/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [one["entity_id"] for one in lines] == ids
    assert lines == boss.get("/api/events").json()["events"]
    rest = boss.get("/api/audit/export", params={"after": lines[0]["cursor"]})
    assert [json.loads(line) for line in rest.text.splitlines()] == lines[1:]
    assert boss.get("/api/audit/export", params={"after": lines[2]["cursor"]}).text == ""
    assert boss.get("/api/audit/export", params={"after": "nonsense"}).status_code == 400
    refused_without(running, "admin", "GET", "/api/audit/export")
