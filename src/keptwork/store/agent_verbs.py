"""The store's verbs for agent jobs, written once for both databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keptwork.lifecycle import AGENT
from keptwork.store.agents import AgentAudit, Spent
from keptwork.store.flow_verbs import FlowReads, FlowVerbs
from keptwork.store.records import Job


class AgentReads(FlowReads):
    """The reads."""

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
        return [AgentAudit(*row) for row in found]


class AgentVerbs(AgentReads, FlowVerbs):
    """The writes."""

    async def still_claimed(self, job: Job) -> bool:
        return bool(await self._tell("still_claimed", **job.claim))

    async def note_call(self, job: int, spent: Spent) -> None:
        await self._tell("note_call", job_id=job, **spent._asdict())

    async def put_agent_audit(self, audit: AgentAudit) -> None:
        await self._tell("put_agent_audit", **audit._asdict())
