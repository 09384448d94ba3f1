"""Carries flows to their end without handlers: jobs are claimed and settled, questions answered, timers let run out."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from keptwork.core.lifecycles import JOB, RUN, WORKSTREAM, decide, insist
from keptwork.errors import AlreadyDecided, ApprovalChanged
from keptwork.flows import approvals
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.jobs import complete
from keptwork.store import Job, Store
from keptwork.store.contract.flows_steps import FlowFilter
from tests.conformance.stage import claim, worker

Failing = Callable[[str], bool]


def step(id: str, *after: str, **more: Any) -> dict[str, Any]:
    call = {} if {"approval", "crew", "flow"} & more.keys() else {"call": "platform:node"}
    return {"id": id, **call, **({"depends_on": list(after)} if after else {}), **more}


def flow(*steps: dict[str, Any], **more: Any) -> Flow:
    """A workstream, unless it says that it is a run."""
    said = [{key: value for key, value in one.items() if key != "depends_on"} for one in steps]
    return Flow.model_validate({"name": "test", "steps": said if more.get("kind") == "run" else list(steps), **more})


class Driver:
    """A worker that needs no handlers."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._worker: int | None = None

    async def start(self, limit: int = 100) -> list[Job]:
        """Claims and starts what is due."""
        if self._worker is None:
            self._worker = await worker(self.store)
        return await claim(self.store, self._worker, limit, start=True)

    async def settle(self, jobs: list[Job], failing: Failing = lambda _: False) -> None:
        """Every job succeeds, but those of steps that are to fail."""
        now = await self.store.now()
        for job in jobs:
            bad = failing(json.loads(job.payload).get("step", ""))
            said: dict[str, Any] = {"error": "on purpose"} if bad else {"result": "{}"}
            move = "fail" if bad else "succeed"
            how: dict[str, Any] = {"now": now, "token": job.token, "actor": "driver", "permanent": True, "values": said}
            await complete.applied(self.store, [insist(decide(JOB, job, move, **how))])

    async def once(self, failing: Failing = lambda _: False) -> bool:
        """Whether there was anything to do."""
        jobs = await self.start()
        await self.settle(jobs, failing)
        await flows.wake(self.store)  # a question whose time is over cannot be answered
        asked = await approvals.listed(self.store, 1)
        for one in asked:
            with suppress(ApprovalChanged, AlreadyDecided):  # then it is asked anew, or is over with its flow
                await approvals.decide(self.store, 1, one.public_id, approvals.APPROVED, by="ann")
        return bool(jobs or asked) or await self._let_time_pass()

    async def _let_time_pass(self) -> bool:
        moved = False
        for lifecycle in (RUN, WORKSTREAM):
            for row in await self.unfinished(lifecycle):
                if row["wake_at"] is not None:
                    await self.store.amend(lifecycle, [row["id"]], 1, wake_at=await self.store.now() - 1)
                    moved = True
        return moved and bool(await flows.wake(self.store))

    async def unfinished(self, lifecycle: Any) -> list[dict[str, Any]]:
        going = tuple(state.name for state in lifecycle.states if not state.final)
        return await self.store.flows(lifecycle, FlowFilter(1, going, inside=True), limit=1_000)

    async def to_the_end(self, failing: Failing = lambda _: False) -> None:
        """Until there is nothing more to do."""
        for _ in range(1_000):
            if not await self.once(failing):
                return
        raise AssertionError("there is no end to it")


async def states(store: Store, ref: flows.FlowRef) -> tuple[str, dict[str, str]]:
    (row,) = await store.rows(ref.kind.flow, [ref.id])
    return row["state"], {one["name"]: one["state"] for one in await store.steps(ref.id)}
