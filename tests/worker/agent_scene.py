"""What the tests of agent jobs need: models that say what they are told to, and workers that die."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from keptwork import Keptwork
from keptwork.agents import commands as agents
from keptwork.agents.conversation import Answer, Request, Stop, Tell, Usage
from keptwork.core.lifecycles import AGENT
from keptwork.handles_agent import AgentHandle
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.periodic import Outage
from keptwork.store import Event
from keptwork.store.contract.agents import AgentAudit
from keptwork.testing import _Dies, _Worker
from keptwork.workers.registration import Settings
from keptwork.workers.step_runner import StepKinds
from tests.conformance.stage import entity, log

Reply = Answer | Exception | str


class Scripted:
    """Answers by a script, the last line of it again and again; it costs nothing."""

    def __init__(self, *replies: Reply, name: str = "offline") -> None:
        self.name = name
        self._replies = list(replies) or ["fine"]
        self.asked: list[Request] = []

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        self.asked.append(request)
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, Exception):
            raise reply
        answer = reply if isinstance(reply, Answer) else said(reply, request.model)
        if tell is not None:
            tell(answer.text)
        return answer


class FailsOnceForEach(Scripted):
    """Of each job, the first call fails."""

    def __init__(self, failure: Callable[[], Exception]) -> None:
        super().__init__()
        self._failure = failure
        self._seen: set[str] = set()

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        if request.key not in self._seen:
            self._seen.add(request.key)
            self.asked.append(request)
            raise self._failure()
        return await super().answer(request, tell)


def said(text: str, model: str = "offline-haiku", stop: Stop = Stop.END) -> Answer:
    return Answer(text, model, Usage(10, 5), stop)


async def started(app: Keptwork, description: str = "Fix the typo", **how: Any) -> AgentHandle:
    return await app.agent(description, **{"retry_base": "1ms", **how})


async def row(app: Keptwork, agent: AgentHandle) -> dict[str, Any]:
    return await entity(await app.open(), AGENT, agent.key)


async def record(app: Keptwork, agent: AgentHandle) -> AgentAudit:
    return await agents.audit(await app.open(), app.tenant_id, agent.id)


async def moves(app: Keptwork, agent: AgentHandle) -> list[tuple[str, str]]:
    """Each move of an agent job but its first, and where it led."""
    return [(event.trigger, event.to_state) for event in (await story(app, agent))[1:]]


async def story(app: Keptwork, agent: AgentHandle) -> list[Event]:
    return await log(await app.open(), entity="agent", entity_id=agent.key)


# --- dying


class MortalContext:
    """A context that asks the store a number of times, and dies instead of asking once more, or of returning."""

    def __init__(self, ctx: Any, left: dict[str, int]) -> None:
        self._ctx = ctx
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    async def ask(self, question: Any) -> Any:
        self.die_if_it_is_time()
        if self.job_id in self._left:
            self._left[self.job_id] -= 1
        return await self._ctx.ask(question)

    def die_if_it_is_time(self) -> None:
        if self._left.get(self.job_id) == 0:
            raise _Dies


async def work_and_die(app: Keptwork, asks: dict[str, int]) -> None:
    """A worker that dies of each of these jobs after it has asked the store so often for it. Of those it says nothing:
    their leases end."""
    left = dict(asks)
    kinds = StepKinds(app.open, provider=app.provider).job_types()

    def mortal(function: Any) -> Any:
        async def handler(ctx: Any, **given: Any) -> Any:
            context = MortalContext(ctx, left)
            outcome = await function(context, **given)
            context.die_if_it_is_time()
            return outcome

        return handler

    handlers = {name: replace(kind, function=mortal(kind.function)) for name, kind in kinds.items()}
    settings = Settings(queues=["default"], concurrency=20, name="mortal", lease_us=60_000_000)
    await Reaper(await app.open(), lambda: None, Outage()).run_once()
    await _Worker(await app.open(), handlers, settings, app.leases_store).run(until_idle=True)


async def end_leases(app: Keptwork) -> None:
    """The leases of the dead are over: nobody has to wait for it."""
    async with (await app.open()).transaction() as tx:
        await tx.execute("UPDATE jobs SET lease_until = 1 WHERE lease_until IS NOT NULL")


def texts(requests: Iterable[Request]) -> list[list[str]]:
    """What was said in each request."""
    return [[message.text for message in request.messages] for request in requests]
