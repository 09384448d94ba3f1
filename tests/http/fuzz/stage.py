"""One of each noun, in the states that routes ask for: made by the API itself, time and again, for they get used up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import requests

from tests.http.flow_stage import GRAPH, SIGNED, TWICE
from tests.http.fuzz.findings import problem
from tests.http.fuzz.things import ID, Things

KIND = "staged"
LEASE = 3600
LISTS = (
    *("lifecycles", "skills", "tools", "breakers", "queues", "templates", "schedules", "keys", "approvals", "webhooks"),
    *("dead-letters", "crews", "workers"),
)
HOOK = {"url": "https://hooks.example.com/ended"}
"""Nobody is there, and nothing is sent without a secret to sign it with."""

Answer = dict[str, Any]


class Stage:
    """Of one server and one key. What is refused is counted, and the rest goes on: the fuzzer may have been there."""

    def __init__(self, address: str, session: requests.Session, things: Things) -> None:
        self._address, self._session, self._things = address, session, things
        self._rounds = 0
        self.asked = 0
        self.refused: Counter[str] = Counter()
        self.broken: dict[str, str] = {}

    def set(self) -> None:
        """Makes one of each."""
        self._rounds += 1
        parts: tuple[Callable[[], object], ...] = (
            self._jobs,
            self._templates,
            self._runs,
            self._workstreams,
            self._workers,
            self._crews,
            self._agents,
            self._others,
            self._look,
        )
        for part in parts:
            part()

    # --- jobs, and who has them

    def _jobs(self) -> None:
        """Of every state: two wait, some are held, the others have ended, with what is kept beside a result."""
        queue = f"stage-{self._rounds}"
        worker = self._post("/api/workers", {"name": queue, "queues": [queue], "concurrency": 20})
        for _ in range(12):
            self._post("/api/jobs", {"kind": KIND, "queue": queue})
        held = self._claim(worker, max=8)
        self._claim(worker, max=2, start=False)
        for job, (way, said) in zip(held, ENDINGS, strict=False):
            mine = {"worker": worker.get("id"), "epoch": job["epoch"]}
            self._post(f"/api/jobs/{job['id']}/checkpoint", {**mine, "name": "fetched", "value": 1})
            self._ask("PUT", f"/api/jobs/{job['id']}/artifacts/report", {**mine, "content": "aGVsbG8="})
            if way:
                self._post(f"/api/jobs/{job['id']}/{way}", {**mine, **said})
            self._get(f"/api/jobs/{job['id']}")

    def _claim(self, worker: Answer, **how: Any) -> list[Answer]:
        claimed = self._post(f"/api/workers/{worker.get('id')}/claim", {"lease": LEASE, **how}, worker)
        found: list[Answer] = claimed.get("jobs", [])
        return found

    def _workers(self) -> None:
        """An idle one, one at work, and one that is paused."""
        for moves in ((), ("start",), ("start", "pause")):
            made = self._post("/api/supervisor/workers", {"name": "beside"})
            for move in moves:
                self._post(f"/api/supervisor/workers/{made.get('id')}/{move}", {})

    # --- flows

    def _templates(self) -> None:
        for kind, flow in (("run", SIGNED), ("run", TWICE), ("workstream", GRAPH)):
            self._post("/api/templates", {"definition": {"kind": kind, **flow}})

    def _runs(self) -> None:
        """Some that wait for an answer, one that is held, and one whose end was told to the outside."""
        for definition, end in ((SIGNED, False), (SIGNED, False), (TWICE, True)):
            id = self._post("/api/runs", {"definition": definition, "webhook": HOOK}).get("id")
            self._get(f"/api/runs/{id}")
            if end:
                self._post(f"/api/runs/{id}/cancel", {})
        self._post("/api/runs", {"definition": SIGNED, "hold": True})

    def _workstreams(self) -> None:
        """One that waits for an answer, one that is held, and some that failed."""
        self._post("/api/workstreams", {"definition": GRAPH, "hold": True})
        for answer in ("", *["reject"] * 4):
            id = self._post("/api/workstreams", {"definition": GRAPH}).get("id")
            whole = self._get(f"/api/workstreams/{id}")
            for question in whole.get("questions", ()) if answer else ():
                self._post(f"/api/approvals/{question['id']}/{answer}", {})
                self._get(f"/api/workstreams/{id}")

    # --- and the rest

    def _crews(self) -> None:
        """Of so many workers that some crew must wait for its share."""
        for workers in (1, 8, 8):
            self._post("/api/crews", {"kind": KIND, "task_description": "stand by", "worker_count": workers})

    def _agents(self) -> None:
        """One that waits for a worker, and one with the record of its end."""
        for end in (False, True):
            made = self._post("/api/agent-jobs", {"description": "write a test"})
            if end:
                self._post(f"/api/agent-jobs/{made.get('id')}/cancel", {})

    def _others(self) -> None:
        self._post("/api/queues/stage-paused/pause", {})
        for name in ("at-night", "at-noon"):
            self._post("/api/schedules", {"name": f"{name}-{self._rounds}", "kind": KIND, "cron": "0 3 * * *"})
        for _ in range(2):
            self._post("/api/keys", {"name": "staged", "scopes": ["read"]})
        for budget in ("tenant", "today"):
            self._post(f"/api/budgets/{budget}/set", {"usd": "1000.00"})
        for breaker in self._get("/api/breakers").get("breakers", ()):
            self._post("/api/overrides", {"id": breaker["id"], "to": "OPEN", "reason": "so that it can be reset"})

    def _look(self) -> None:
        """What lists tell of is known from then on."""
        for path in LISTS:
            self._get(f"/api/{path}")

    # --- how it asks

    def _get(self, path: str) -> Answer:
        return self._ask("GET", path)

    def _post(self, path: str, body: Answer, about: Answer | None = None) -> Answer:
        return self._ask("POST", path, body, about)

    def _ask(self, method: str, path: str, body: Answer | None = None, about: Answer | None = None) -> Answer:
        self.asked += 1
        answer = self._session.request(method, f"{self._address}{path}", json=body, timeout=60)
        if answer.status_code >= 500:
            self.broken[f"{method} {path}, to make something"] = answer.text
        if answer.status_code >= 400:
            self.refused[f"{method} {ID.sub('{id}', path)}: {answer.status_code} {problem(answer.text)}"] += 1
            return {}
        found: Answer = answer.json()
        self._things.told(path, about or {}, found)
        return found


ENDINGS: tuple[tuple[str, Answer], ...] = (
    ("succeed", {"result": 4}),
    ("fail", {"error": {"message": "it cannot be", "kind": "permanent"}}),
    ("fail", {"error": {"message": "not so", "kind": "validation"}}),
    ("fail", {"error": {"message": "not so", "kind": "validation"}}),
    ("", {}),
)
"""What becomes of jobs that were begun; the last is held on to."""
