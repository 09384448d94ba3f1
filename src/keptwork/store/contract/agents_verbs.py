"""The store's operations on agent jobs, written once for both databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keptwork.core.lifecycles import AGENT
from keptwork.store.contract.agents import AgentAudit
from keptwork.store.contract.flows import FlowReads, FlowVerbs
from keptwork.store.contract.records import Job


class AgentReads(FlowReads):
    """The read operations."""

    async def agents_of_jobs(self, jobs: Sequence[int]) -> list[dict[str, Any]]:
        return await self._in_order(AGENT, await self._ask("agents_of_jobs", ids=self._list(jobs)))

    async def agents(
        self, tenant_id: int, *, states: Sequence[str] | None = None, after: int | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        names = None if states is None else self._list(states)
        found = await self._ask("listed_agents", tenant_id=tenant_id, names=names, after=after, limit=limit)
        return await self._in_order(AGENT, found)

    async def agents_left_behind(self, limit: int) -> list[dict[str, Any]]:
        return await self._in_order(AGENT, await self._ask("agents_left_behind", limit=limit))

    async def agent_audits(
        self, tenant_id: int, *, agent: int | None = None, after: int | None = None, limit: int = 100
    ) -> list[AgentAudit]:
        found = await self._ask("agent_audits", tenant_id=tenant_id, agent_id=agent, after=after, limit=limit)
        return await self._with_totals([AgentAudit(*row) for row in found])

    async def _with_totals(self, audits: list[AgentAudit]) -> list[AgentAudit]:
        """Replace the costs in audit records by the ledger's. A late answer changes the ledger but not the record."""
        jobs = self._list([audit.job_id for audit in audits if audit.job_id is not None])
        totals = {row[0]: row[1:] for row in await self._ask("totals_of_jobs", ids=jobs)} if audits else {}
        names = ("calls", "cost_micros", "input_tokens", "output_tokens")
        return [
            audit._replace(**dict(zip(names, totals[audit.job_id], strict=True))) if audit.job_id in totals else audit
            for audit in audits
        ]


class AgentVerbs(AgentReads, FlowVerbs):
    """The write operations."""

    async def still_claimed(self, job: Job) -> bool:
        return bool(await self._tell("still_claimed", **job.claim))

    async def note_call(self, job: int, call: int, said: str) -> None:
        await self._tell("note_call", job_id=job, call=call, said=said)

    async def put_agent_audit(self, audit: AgentAudit) -> None:
        await self._tell("put_agent_audit", **audit._asdict())
