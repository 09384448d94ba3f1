"""Crews that a handler creates: once, whatever happens to the job, and joined without occupying a worker.

A share that waits for a crew of its own frees its worker slot in the outer crew, and gets a slot again before it
resumes. The crew and the checkpoint that names it are written in one transaction, under the job's lease. The outcome of
the crew is stored with the job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keptwork.core.durations import Span
from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import CREW, JOB
from keptwork.core.lifecycles.crew import COMPLETED
from keptwork.crews import commands as crews
from keptwork.crews.engine import lock_of
from keptwork.errors import BadInput, CrewFailed, LeaseLost
from keptwork.job import JobType
from keptwork.jobs.outcome import Suspend
from keptwork.observability import spans
from keptwork.outcomes import PermanentError
from keptwork.store import Job, Store, Transaction
from keptwork.store.contract.checkpoints_blob_service import whole
from keptwork.store.contract.crews import HELD_BY_QUOTA, waits_for_crew
from keptwork.workers.children import LOOKS_AGAIN_US, Ask, Spawnable, kind_named
from keptwork.workers.parked_waits import Suspended
from keptwork.workers.steps import Steps

GONE = "gone"


class Crews:
    """The crews of one job, in one run of its handler."""

    def __init__(self, job: Job, steps: Steps, ask: Ask, kinds: Mapping[str, JobType]) -> None:
        self._job = job
        self._steps = steps
        self._ask = ask
        self._kinds = kinds

    async def crew(
        self,
        name: str,
        job: Spawnable | str,
        task: str,
        workers: int,
        timeout: Span | None,  # noqa: ASYNC109 - a span of the crew's own life, which the database watches
        arguments: Mapping[str, Any],
    ) -> list[Any]:
        """Return the results of the shares, in their order. Raise `CrewFailed` if the crew was unsuccessful."""
        key = await self._submitted(name, kind_named(self._kinds, job), task, workers, timeout, arguments)
        outcome = await self._outcome(f"{name} result", key)
        if "result" not in outcome:
            raise CrewFailed(**outcome)
        found: list[Any] = outcome["result"]
        return found

    async def _submitted(
        self,
        name: str,
        kind: JobType,
        task: str,
        workers: int,
        timeout: Span | None,  # noqa: ASYNC109 - as above
        arguments: Mapping[str, Any],
    ) -> int:
        found = await self._steps.recall(name)
        if found is not None:
            return int(json.loads(found.result)["crew"])
        asker = self._job
        try:
            new = crews.new_crew(kind, arguments, asker.tenant_id, task=task, workers=workers, timeout=timeout)
        except BadInput as refusal:
            raise PermanentError(str(refusal)) from None
        correlation = asker.correlation_id or asker.public_id
        new = new._replace(actor=f"w:{asker.owner}", correlation_id=correlation, trace_id=spans.carried(asker.trace_id))

        async def submit(store: Store) -> int:
            return await store.atomically(lambda tx: self._submit(tx, name, new), 2 + workers)

        key: int = await self._ask(asker, submit)
        return key

    async def _submit(self, tx: Transaction, name: str, new: crews.NewCrew) -> int:
        """Create the crew under its lock, so that it is created once. Raise `LeaseLost` if the job is no longer
        held."""
        asker = self._job
        await tx.lock_trees([*([] if asker.tree_id is None else [asker.tree_id]), lock_of(asker.tenant_id)])
        for kept in await tx.checkpoints(asker.tenant_id, asker.id):
            if kept.name == name:
                return int(json.loads(kept.result)["crew"])
        inside = crews.Inside(parent_id=asker.crew_id, tree_id=asker.tree_id, asker_id=asker.id)
        key = await crews.submit_in(tx, new, inside)
        (stands,) = await tx.checkpoint([self._steps.save(name, json.dumps({"crew": key}))])
        if stands is None:
            raise LeaseLost(lifecycle=JOB.name, id=asker.public_id, trigger="crew")
        return key

    async def _outcome(self, name: str, key: int) -> Any:
        found = await self._steps.recall(name)
        if found is not None:
            return json.loads(found.result)
        return await self._steps.keep(name, await self._read(key))

    async def _read(self, key: int) -> dict[str, Any]:
        """Return the outcome of a finished crew in its stored form; otherwise suspend the job. A share is also held
        until the quota of its outer crew gives it a worker again."""
        job = self._job
        row = await self._ask(job, lambda store: store.get(CREW, key, job.tenant_id))
        id = public_id(CREW.name, key)
        if row is None:
            return {"id": id, "state": GONE, "why": "it was deleted"}
        if row["completed_at"] is None:
            until = await self._ask(job, lambda store: store.now()) + LOOKS_AGAIN_US
            raise Suspended(Suspend(waits_for_crew(key), until, 0, None if job.crew_id is None else HELD_BY_QUOTA))
        if row["state"] != COMPLETED.name:
            return {name: crews.failure(row).facts[name] for name in ("id", "state", "why")}
        row = await self._ask(job, lambda store: whole(store, row))
        return {"id": id, "result": json.loads(row["result"])}
