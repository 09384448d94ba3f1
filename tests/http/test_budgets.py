"""Money over HTTP: budgets seen, set and raised, the jobs that then go on, and what was spent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from keptwork.core import ids
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.core.money import day_name, day_of
from keptwork.store import NewJob, Store
from keptwork.store.contract.budgets import Closing, NewBudget, NewCharge
from tests.http.admin import admin, refused_without
from tests.http.conftest import THEIRS, Running


@pytest.fixture
def boss(running: Running) -> Iterator[httpx.Client]:
    with admin(running) as opened:
        yield opened


def spent(running: Running, micros: int, model: str = "haiku", token: str | None = None) -> str:
    """A job whose call did cost that; returns its id."""
    tenant = running.ours if token is None else running.keys.known[token].tenant_id

    async def work(store: Store) -> str:
        day = day_of(await store.now())
        (job,) = await store.enqueue([NewJob("kind", "{}", f"spent-{tenant}", tenant)])
        id = public_id(JOB.name, job)
        subjects = {job: ("job", id), 0: ("tenant", "total"), day: ("day", day_name(day))}
        await store.make_budgets(
            [NewBudget(tenant, owner, *what, 1_000_000, 80, "config") for owner, what in subjects.items()]
        )
        call = await store.open_charge(NewCharge(tenant, job, None, "turn 1", "anthropic", model, micros, day))
        await store.close_charge(call, Closing("settled", micros, "answered", 10, 5))
        return id

    return running.do(work)


def held(running: Running, number: int) -> None:
    """So many jobs of ours that the budget of the tenant holds back."""

    async def work(store: Store) -> None:
        await store.enqueue([NewJob("kind", "{}", "q", running.ours, held_by="budget:tenant:total")] * number)

    running.do(work)


def test_budgets_are_listed_page_by_page_and_shown_with_their_calls(client: httpx.Client, running: Running) -> None:
    jobs = [spent(running, micros) for micros in (300, 40)]
    seen: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = client.get("/api/budgets", params={"limit": 1, **({"after": after} if after else {})}).json()
        seen += page["budgets"]
        after = page["next"]
        if after is None:
            break
    assert [(one["scope"], one["spent_micros"]) for one in seen] == [
        *(("tenant", 340), ("day", 340), ("job", 40), ("job", 300))
    ]
    assert [one["subject"] for one in seen[2:]] == jobs[::-1]
    assert [one["scope"] for one in client.get("/api/budgets", params={"scope": "day"}).json()["budgets"]] == ["day"]
    whole = client.get(f"/api/budgets/{jobs[0]}").json()
    assert (whole["left_micros"], whole["cap_micros"], whole["held"]) == (999_700, 1_000_000, 0)
    (call,) = whole["calls"]
    assert (call["job"], call["model"], call["cost_micros"], call["state"]) == (jobs[0], "haiku", 300, "settled")
    assert len(client.get("/api/budgets/tenant").json()["calls"]) == 2
    assert client.get("/api/budgets/today").json()["scope"] == "day"
    assert client.get("/api/budgets", params={"scope": "week"}).status_code == 422
    assert client.get("/api/budgets/nothing").status_code == 404


def test_a_cap_is_set_and_the_jobs_that_then_fit_go_on(boss: httpx.Client, running: Running) -> None:
    spent(running, 900_000)
    boss.post("/api/budgets/tenant/set", json={"usd": "0.90"})
    held(running, 3)
    assert boss.get("/api/budgets/tenant").json()["held"] == 3
    first, again = (
        boss.post("/api/budgets/tenant/set", json={"usd": None}, headers={"Idempotency-Key": "k"}) for _ in range(2)
    )
    assert (first.json()["cap_micros"], first.json()["let_go"], first.json()["said_by"]) == (None, 3, "key:admin")
    assert (again.content, again.headers["Idempotency-Replayed"]) == (first.content, "true")
    assert boss.post("/api/budgets/tenant/set", json={"usd": "1"}, headers={"Idempotency-Key": "k"}).status_code == 422
    assert boss.get("/api/budgets/tenant").json()["held"] == 0


def test_a_cap_is_raised_once_under_a_key_and_only_where_there_is_one(boss: httpx.Client, running: Running) -> None:
    job = spent(running, 100)
    answers = [
        boss.post(f"/api/budgets/{job}/raise", json={"usd": "0.50", "request_id": "more"}).json() for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert (answers[0]["cap_micros"], answers[0]["subject"]) == (1_500_000, job)
    assert boss.post(f"/api/budgets/{job}/raise", json={"usd": "1000000000"}).status_code == 422
    boss.post(f"/api/budgets/{job}/set", json={"usd": None})
    refused = boss.post(f"/api/budgets/{job}/raise", json={"usd": "1"})
    assert (refused.status_code, "no cap" in refused.json()["detail"]) == (422, True)
    for amount in ("much", "-1", "0.0000001", ""):
        assert boss.post(f"/api/budgets/{job}/set", json={"usd": amount}).status_code == 422
    assert boss.post(f"/api/budgets/{job}/set", json={}).status_code == 422


def test_a_budget_that_was_never_used_can_be_given_a_cap_but_not_one_of_nothing(
    boss: httpx.Client, running: Running
) -> None:
    assert boss.get("/api/budgets/tenant").status_code == 404
    assert boss.post("/api/budgets/tenant/set", json={"usd": "2.50"}).json()["cap_micros"] == 2_500_000
    assert boss.post("/api/budgets/nothing/set", json={"usd": "2.50"}).status_code == 404


@pytest.mark.parametrize("by", ["model", "tenant", "flow", "day"])
def test_costs_are_the_callers_own_whatever_its_scopes(
    client: httpx.Client, boss: httpx.Client, running: Running, by: str
) -> None:
    spent(running, 1_500)
    spent(running, 77, "opus", THEIRS)
    for caller in (client, boss):
        told = caller.get("/api/cost", params={"by": by, "since": "1h"}).json()
        assert (told["by"], told["total"]["cost_micros"], told["total"]["cost_usd"]) == (by, 1_500, "0.001500")
        (line,) = told["costs"]
        assert (line["cost_micros"], line["calls"], line["input_tokens"]) == (1_500, 1, 10)
    assert "opus" not in client.get("/api/cost").text


def test_costs_are_of_a_time_and_by_something(client: httpx.Client, running: Running) -> None:
    spent(running, 5)
    assert client.get("/api/cost", params={"since": "0s"}).json()["costs"] == []
    assert client.get("/api/cost", params={"by": "whim"}).status_code == 422
    assert client.get("/api/cost", params={"since": "soon"}).status_code == 422


def test_a_foreign_budget_is_answered_like_one_that_does_not_exist(boss: httpx.Client, running: Running) -> None:
    job = spent(running, 5)
    gone = public_id(JOB.name, (ids.key_of(job) or ("", 0))[1] + 77)
    with running.client(THEIRS) as theirs:
        for method, path in (("GET", ""), ("POST", "/set"), ("POST", "/raise")):
            body = {"usd": "1"} if method == "POST" else None
            foreign, unknown = (theirs.request(method, f"/api/budgets/{id}{path}", json=body) for id in (job, gone))
            assert (foreign.status_code, foreign.content) == (404, unknown.content)
        assert theirs.get("/api/budgets").json()["budgets"] == []
    refused_without(running, "admin", "POST", "/api/budgets/tenant/set", {"usd": "1"})
    refused_without(running, "admin", "POST", "/api/budgets/tenant/raise", {"usd": "1"})
    for path in ("/api/budgets", f"/api/budgets/{job}", "/api/cost"):
        refused_without(running, "read", "GET", path)
