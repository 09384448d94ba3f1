"""Every HTTP request that changes something: what it needs beforehand, and how it is sent, the first time and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import httpx

from tests.http.conftest import Running
from tests.http.flow_stage import GRAPH, SIGNED, failed_workstream, open_breaker, run, step_named, workstream

Body = dict[str, Any]

HOOK = {"url": "https://hooks.example.com/ended"}


class Sent(NamedTuple):
    """What is sent to a route."""

    path: str
    body: Body


class Scene:
    """A tenant of its own on a server, and somebody there who can do everything."""

    def __init__(self, client: httpx.Client, running: Running) -> None:
        self.client, self.running = client, running

    def post(self, path: str, body: Body | None = None) -> Any:
        answer = self.client.post(path, json=body or {})
        assert answer.is_success, answer.text
        return answer.json()

    def job(self, **more: Any) -> str:
        return str(self.post("/api/jobs", {"kind": "fetch", **more})["job"]["id"])

    def cancelled(self) -> str:
        id = self.job()
        self.post(f"/api/jobs/{id}/cancel")
        return id

    def held(self, start: bool = True) -> tuple[str, Body]:
        """The id of a job that a worker has, and what that worker says to prove it."""
        worker = self.post("/api/workers", {"queues": ["held"]})["id"]
        self.job(queue="held")
        (job,) = self.post(f"/api/workers/{worker}/claim", {"start": start, "lease": 3600})["jobs"]
        return str(job["id"]), {"worker": worker, "epoch": job["epoch"]}

    def dead(self) -> str:
        job, mine = self.held()
        self.post(f"/api/jobs/{job}/fail", {**mine, "error": {"message": "not so", "kind": "validation"}})
        return job

    def worker(self, *moves: str) -> str:
        id = str(self.post("/api/supervisor/workers", {"name": "beside"})["id"])
        for move in moves:
            self.post(f"/api/supervisor/workers/{id}/{move}")
        return id

    def run(self, at: str = "/api/runs", **more: Any) -> str:
        return str(run(self.client, at=at, **more)["id"])

    def question(self) -> str:
        (asked,) = self.client.get(f"/api/runs/{self.run()}").json()["questions"]
        return str(asked["id"])

    def workstream(self, **more: Any) -> str:
        return str(workstream(self.client, **more)["id"])

    def failed_step(self) -> str:
        return str(step_named(self.client, failed_workstream(self.client), "sign")["id"])

    def schedule(self) -> None:
        self.post("/api/schedules", {"name": "nightly", "kind": "fetch", "every": "1h"})

    def message(self) -> str:
        self.post(f"/runs/{self.run(webhook=HOOK)}/cancel")
        return str(self.client.get("/api/webhooks").json()["webhooks"][0]["id"])

    def key(self) -> str:
        return str(self.post("/api/keys", {"name": "ci", "scopes": ["read"]})["key"]["id"])


def _mine(deed: str, start: bool = True, **more: Any) -> Callable[[Scene], Sent]:
    """What a worker says of a job that it has."""

    def sent(on: Scene) -> Sent:
        job, mine = on.held(start)
        return Sent(f"/api/jobs/{job}/{deed}", {**mine, **more})

    return sent


def _heartbeat(on: Scene) -> Sent:
    job, mine = on.held()
    return Sent(f"/api/workers/{mine['worker']}/heartbeat", {"jobs": [{"job": job, "epoch": mine["epoch"]}]})


def _settle(on: Scene) -> Sent:
    job, mine = on.held()
    outcome = {"job": job, "epoch": mine["epoch"], "outcome": "succeed", "result": 4}
    return Sent(f"/api/workers/{mine['worker']}/settle", {"jobs": [outcome]})


def _claim(on: Scene) -> Sent:
    worker = on.post("/api/workers", {"queues": ["held"]})["id"]
    on.job(queue="held")
    return Sent(f"/api/workers/{worker}/claim", {"request_id": "claim-1", "lease": 3600})


def _redrive(on: Scene) -> Sent:
    on.dead()
    return Sent("/api/dead-letters/redrive", {})


def _template(on: Scene) -> Sent:
    on.post("/api/templates", {"definition": {"kind": "run", **SIGNED}})
    return Sent("/api/templates/signed/start", {"key": "release-1"})


def _breaker(on: Scene) -> Sent:
    open_breaker(on.running)
    return Sent("/api/breakers/tool:aider/reset", {"reason": "the service is back"})


def _raise(on: Scene) -> Sent:
    on.post("/api/budgets/tenant/set", {"usd": "2.50"})
    return Sent("/api/budgets/tenant/raise", {"usd": "1.00"})


def _schedule(deed: str) -> Callable[[Scene], Sent]:
    def sent(on: Scene) -> Sent:
        on.schedule()
        return Sent(f"/api/schedules/nightly{deed}", {})

    return sent


def _crew(on: Scene) -> Sent:
    crew = on.post("/api/crews", {"kind": "fetch", "task_description": "t"})["id"]
    return Sent(f"/api/crews/{crew}/cancel", {})


def _agent(on: Scene) -> Sent:
    agent = on.post("/api/agent-jobs", {"description": "Fix the typo"})["id"]
    return Sent(f"/api/agent-jobs/{agent}/cancel", {})


REQUESTS: dict[str, Callable[[Scene], Sent]] = {
    "POST /api/jobs": lambda on: Sent("/api/jobs", {"kind": "fetch", "key": "order-17"}),
    "POST /api/jobs/{id}/cancel": lambda on: Sent(f"/api/jobs/{on.job()}/cancel", {}),
    "POST /api/jobs/{id}/retry": lambda on: Sent(f"/api/jobs/{on.cancelled()}/retry", {}),
    "POST /api/jobs/cancel": lambda on: Sent("/api/jobs/cancel", {"ids": [on.job()]}),
    "POST /api/jobs/retry": lambda on: Sent("/api/jobs/retry", {"ids": [on.cancelled()]}),
    "POST /api/signals": lambda on: Sent("/api/signals", {"name": "paid", "key": "order-17-paid"}),
    "POST /api/dead-letters/{id}/redrive": lambda on: Sent(f"/api/dead-letters/{on.dead()}/redrive", {}),
    "POST /api/dead-letters/redrive": _redrive,
    "POST /api/queues/{name}/pause": lambda on: Sent("/api/queues/mail/pause", {}),
    "POST /api/queues/{name}/resume": lambda on: Sent("/api/queues/mail/resume", {}),
    "POST /api/supervisor/workers": lambda on: Sent("/api/supervisor/workers", {"name": "beside"}),
    **{
        f"POST /api/supervisor/workers/{{id}}/{deed}": (
            lambda on, deed=deed, before=before: Sent(f"/api/supervisor/workers/{on.worker(*before)}/{deed}", {})  # type: ignore[misc]
        )
        for deed, before in {
            "start": (),
            "pause": ("start",),
            "resume": ("start", "pause"),
            "drain": ("start",),
            "terminate": ("start",),
        }.items()
    },
    **{
        name: request
        for runs in ("/runs", "/api/runs")
        for name, request in {
            f"POST {runs}": lambda on, at=runs: Sent(at, {"definition": {"kind": "run", **SIGNED}, "key": "release-1"}),
            f"POST {runs}/{{id}}/hold": lambda on, at=runs: Sent(f"{at}/{on.run(at)}/hold", {}),
            f"POST {runs}/{{id}}/release": lambda on, at=runs: Sent(f"{at}/{on.run(at, hold=True)}/release", {}),
            f"POST {runs}/{{id}}/approve": lambda on, at=runs: Sent(f"{at}/{on.run(at)}/approve", {}),
            f"POST {runs}/{{id}}/reject": lambda on, at=runs: Sent(f"{at}/{on.run(at)}/reject", {}),
            f"POST {runs}/{{id}}/cancel": lambda on, at=runs: Sent(f"{at}/{on.run(at)}/cancel", {}),
        }.items()
    },
    "POST /api/workstreams": lambda on: Sent("/api/workstreams", {"definition": GRAPH, "key": "release-1"}),
    "POST /api/workstreams/{id}/hold": lambda on: Sent(f"/api/workstreams/{on.workstream()}/hold", {}),
    "POST /api/workstreams/{id}/release": lambda on: Sent(f"/api/workstreams/{on.workstream(hold=True)}/release", {}),
    "POST /api/workstreams/{id}/retry": lambda on: Sent(f"/api/workstreams/{failed_workstream(on.client)}/retry", {}),
    "POST /api/workstreams/{id}/resume": lambda on: Sent(f"/api/workstreams/{failed_workstream(on.client)}/resume", {}),
    "POST /api/workstreams/{id}/abandon": lambda on: Sent(f"/api/workstreams/{on.workstream()}/abandon", {}),
    "POST /api/workstreams/{id}/fork": lambda on: Sent(
        f"/api/workstreams/{failed_workstream(on.client)}/fork", {"from_step": "sign"}
    ),
    "POST /api/steps/{id}/skip": lambda on: Sent(f"/api/steps/{on.failed_step()}/skip", {}),
    "POST /api/steps/{id}/reset": lambda on: Sent(f"/api/steps/{on.failed_step()}/reset", {}),
    "POST /api/approvals/{id}/approve": lambda on: Sent(f"/api/approvals/{on.question()}/approve", {}),
    "POST /api/approvals/{id}/reject": lambda on: Sent(f"/api/approvals/{on.question()}/reject", {}),
    "POST /api/templates": lambda on: Sent("/api/templates", {"definition": {"kind": "run", **SIGNED}}),
    "POST /api/templates/{name}/start": _template,
    "POST /api/crews": lambda on: Sent("/api/crews", {"kind": "fetch", "task_description": "t", "key": "crew-1"}),
    "PUT /api/crews/quotas": lambda on: Sent("/api/crews/quotas", {"quotas": {"1": 8}}),
    "POST /api/crews/{id}/cancel": _crew,
    "POST /api/breakers/{tool}/reset": _breaker,
    "POST /api/schedules": lambda on: Sent("/api/schedules", {"name": "nightly", "kind": "fetch", "every": "1h"}),
    "POST /api/schedules/{name}/pause": _schedule("/pause"),
    "POST /api/schedules/{name}/resume": _schedule("/resume"),
    "POST /api/schedules/{name}/run-now": _schedule("/run-now"),
    "DELETE /api/schedules/{name}": _schedule(""),
    "POST /api/webhooks/{id}/retry": lambda on: Sent(f"/api/webhooks/{on.message()}/retry", {}),
    "POST /api/agent-jobs": lambda on: Sent("/api/agent-jobs", {"description": "Fix the typo", "key": "agent-1"}),
    "POST /api/agent-jobs/{id}/cancel": _agent,
    "POST /api/budgets/{name}/set": lambda on: Sent("/api/budgets/tenant/set", {"usd": "2.50"}),
    "POST /api/budgets/{name}/raise": _raise,
    "POST /api/keys": lambda on: Sent("/api/keys", {"name": "ci", "scopes": ["read"]}),
    "POST /api/keys/{id}/revoke": lambda on: Sent(f"/api/keys/{on.key()}/revoke", {}),
    "POST /api/keys/{id}/rotate": lambda on: Sent(f"/api/keys/{on.key()}/rotate", {}),
    "POST /api/doctor/fix": lambda on: Sent("/api/doctor/fix", {}),
    "POST /api/overrides": lambda on: Sent(
        "/api/overrides", {"id": on.job(), "to": "succeeded", "reason": "it ran elsewhere"}
    ),
    "POST /api/workers": lambda on: Sent("/api/workers", {}),
    "POST /api/workers/{id}/start": lambda on: Sent(f"/api/workers/{on.post('/api/workers')['id']}/start", {}),
    "POST /api/workers/{id}/claim": _claim,
    "POST /api/workers/{id}/heartbeat": _heartbeat,
    "POST /api/workers/{id}/settle": _settle,
    "POST /api/workers/{id}/end": lambda on: Sent(f"/api/workers/{on.post('/api/workers')['id']}/end", {}),
    "POST /api/jobs/{id}/start": _mine("start", start=False),
    "POST /api/jobs/{id}/checkpoint": _mine("checkpoint", name="fetched", value=1),
    "POST /api/jobs/{id}/progress": _mine("progress", fraction=0.5),
    "PUT /api/jobs/{id}/artifacts/{name}": _mine("artifacts/report", content="aGVsbG8="),
    "POST /api/jobs/{id}/succeed": _mine("succeed", result=4),
    "POST /api/jobs/{id}/fail": _mine("fail", error={"message": "not so", "kind": "permanent"}),
    "POST /api/jobs/{id}/snooze": _mine("snooze", delay="1h"),
    "POST /api/jobs/{id}/release": _mine("release", reason="it drains"),
}

WITHOUT_DATABASE = {
    "POST /api/flows/check": "It checks the definition in its body alone.",
    "POST /api/skills/route": "It answers from the configuration.",
}
"""Requests that rest on no row."""
