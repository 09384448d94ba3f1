"""Start agent jobs from Python, and follow them with a handle."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from keptwork.agents import commands as agents
from keptwork.core.durations import Span

if TYPE_CHECKING:
    from keptwork.app import Keptwork


class Ask(TypedDict, total=False):
    """Options of an agent job, besides its task."""

    skill: str | None
    tier: str | None
    schema: Mapping[str, Any] | None
    max_retries: int
    budget_usd: Decimal | float | str | None
    retry_base: Span
    queue: str
    priority: int
    key: str | None
    actor: str | None
    correlation_id: str | None
    trace_id: str | None


class AgentHandle:
    """The handle of an agent job: its public ID, and the ID of the job that runs it."""

    __slots__ = ("_app", "id", "job_id", "job_key", "key")

    def __init__(self, started: agents.Started, app: Keptwork) -> None:
        self.key, self.job_key = started
        self.id, self.job_id = started.id, started.job_id
        self._app = app

    async def result(self, timeout: Span | None = None) -> dict[str, Any]:  # noqa: ASYNC109 - as Handle.result has it
        """Wait until the agent job finishes and return its output.

        The output has `text`, `model`, `tier`, `skill`, the cost, and, if a schema was given, the answer as `json`. An
        unsuccessful job raises `JobFailed`. A job that has not finished after `timeout` raises `StillUnfinished`.
        """
        found: dict[str, Any] = await self._app.result(self.job_id, timeout)
        return found

    async def audit(self) -> dict[str, Any]:
        """Return the record of a finished agent job. Raise `NotFound` while it has not finished."""
        return agents.audit_as_json(await agents.audit(await self._app.open(), self._app.tenant_id, self.id))


async def start_agent(app: Keptwork, description: str, **how: Unpack[Ask]) -> AgentHandle:
    """Start an agent job; see `Keptwork.agent`."""
    store = await app.open()
    return AgentHandle(await agents.start(store, agents.new_agent(description, tenant_id=app.tenant_id, **how)), app)
