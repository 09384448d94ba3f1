"""A job that holds one wait under one tool of asyncio, beside a step that takes a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from keptwork import Keptwork
from keptwork.agents.conversation import Answer, Request, Stop, Usage
from keptwork.agents.runner import AgentWork, Wish
from keptwork.agents.turn import Lineups
from keptwork.context import Context
from keptwork.handles import Handle
from keptwork.job import DeclaredJob
from keptwork.jobs.breaker import Breaker
from keptwork.outcomes import TransientError
from keptwork.settings import Config
from keptwork.store import Store
from keptwork.testing import _NEXT as NEXT_DUE
from keptwork.testing import Harness, Settled
from tests.conformance.by_hand import hand_on
from tests.conformance.times import DEFINITION, set_time
from tests.worker.agent_stage import Scripted
from tests.worker.scene import row

Call = Callable[[], Awaitable[Any]]
Tool = Callable[[Call, Call], Awaitable[Any]]

# --- the tools of asyncio: each is given a step and a wait to begin


async def gather(step: Call, wait: Call) -> Any:
    return (await asyncio.gather(step(), wait()))[1]


async def gather_exceptions(step: Call, wait: Call) -> Any:
    return (await asyncio.gather(step(), wait(), return_exceptions=True))[1]


async def task_group(step: Call, wait: Call) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(_awaited(step()))
        waiting = group.create_task(_awaited(wait()))
    return waiting.result()


async def wait_for_all(step: Call, wait: Call) -> Any:
    waiting = asyncio.ensure_future(wait())
    await asyncio.wait({asyncio.ensure_future(step()), waiting})
    return waiting.result()


async def shield(step: Call, wait: Call) -> Any:
    await step()
    return await asyncio.shield(wait())


async def as_completed(step: Call, wait: Call) -> Any:
    results = [await one for one in asyncio.as_completed([_named("step", step()), _named("wait", wait())])]
    return dict(results)["wait"]


async def swallowed(step: Call, wait: Call) -> Any:
    try:
        return await gather(step, wait)
    except BaseException:
        return "a wait that was given up"


async def first_wait_then_step(step: Call, wait: Call) -> Any:
    found = await wait()
    await step()
    return found


DURABLE: list[Tool] = [
    gather,
    gather_exceptions,
    task_group,
    wait_for_all,
    shield,
    as_completed,
    swallowed,
    first_wait_then_step,
]


async def wait_for(step: Call, wait: Call) -> Any:
    return await gather(step, lambda: asyncio.wait_for(wait(), 60))


async def wait_for_around_gather(step: Call, wait: Call) -> Any:
    return await asyncio.wait_for(gather(step, wait), 60)


async def timeout(step: Call, wait: Call) -> Any:
    await step()
    async with asyncio.timeout(60):
        return await wait()


async def timeout_around_task_group(step: Call, wait: Call) -> Any:
    async with asyncio.timeout(60):
        return await task_group(step, wait)


@asynccontextmanager
async def patience() -> AsyncIterator[None]:
    async with asyncio.timeout(60):
        yield


async def timeout_in_context_manager(step: Call, wait: Call) -> Any:
    async with patience():
        return await gather(step, wait)


async def wait_with_timeout(step: Call, wait: Call) -> Any:
    return await asyncio.wait({asyncio.ensure_future(step()), asyncio.ensure_future(wait())}, timeout=60)


async def wait_for_first(step: Call, wait: Call) -> Any:
    tasks = {asyncio.ensure_future(step()), asyncio.ensure_future(wait())}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return "the step was first"


async def as_completed_with_timeout(step: Call, wait: Call) -> Any:
    return [await one for one in asyncio.as_completed([step(), wait()], timeout=60)]


async def shield_with_timeout(step: Call, wait: Call) -> Any:
    return await gather(step, lambda: asyncio.wait_for(asyncio.shield(wait()), 60))


async def returned_beside(step: Call, wait: Call) -> Any:
    left.append(asyncio.ensure_future(wait()))
    await step()
    return "without having waited"


left: list[Any] = []

REFUSED: list[Tool] = [
    wait_for,
    wait_for_around_gather,
    timeout,
    timeout_around_task_group,
    timeout_in_context_manager,
    wait_with_timeout,
    wait_for_first,
    as_completed_with_timeout,
    shield_with_timeout,
    returned_beside,
]


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _named(name: str, awaitable: Awaitable[Any]) -> tuple[str, Any]:
    return name, await awaitable


# --- the waits

PRICES = {
    "models": {
        "haiku": "m",
        "max_tokens": 80,
        "prices": {"m": {"input_per_million_usd": 1, "output_per_million_usd": 100}},
    }
}


class Scene:
    """A job that holds one wait under one tool, in an application of its own or beside others."""

    def __init__(self, wait: str, tool: Tool | None, app: Keptwork | None = None, **rules: Any) -> None:
        self.app = app or Keptwork()
        self.log: list[str] = []
        self.healthy = False
        self.seconds = 0.01
        self._tool = tool
        self._waits: dict[str, Callable[[Context], Any]] = {
            "sleep": lambda ctx: ctx.sleep("1h"),
            "event": lambda ctx: ctx.wait_for_event("go"),
            "join": self._join,
            "crew": lambda ctx: ctx.crew("child", task="t", workers=2),
            "approval": self._approved,
            "breaker": lambda ctx: ctx.breaker(Breaker("shop", failure_threshold=1, cooldown="1h")),
            "budget": lambda ctx: self._agent(ctx, 1),
            "drain": lambda ctx: self._agent(ctx, None),
        }
        self.wait = self._waits[wait]

        if "child" not in self.app.kinds:
            _declare_others(self.app)

        @self.app.job(name="parent" if app is None else f"parent {name_of(tool)}", **rules)
        async def parent(ctx: Context) -> Any:
            assert self._tool is not None
            return await self._tool(lambda: ctx.step("pay", self._pay), lambda: self.wait(ctx))

        self.parent: DeclaredJob = parent

    async def _pay(self) -> str:
        self.log.append("begins")
        try:
            await asyncio.sleep(self.seconds)
        except BaseException:
            self.log.append("cut off")
            raise
        self.log.append("done")
        return "paid"

    async def _approved(self, ctx: Context) -> Any:
        return (await ctx.wait_for_approval("go?")).by

    async def _join(self, ctx: Context) -> Any:
        return await ctx.join(await ctx.spawn("child"))

    async def _agent(self, ctx: Context, budget: int | None) -> Any:
        def script(request: Request) -> Answer:
            if not self.healthy and budget is None:
                self.healthy = True
                ctx.request_stop()
                raise RuntimeError("the worker stops, and its tools with it")
            return Answer("went", request.model, Usage(1, 1), Stop.END)

        work = AgentWork(Lineups(lambda: Config.model_validate(PRICES), Scripted(script, name="anthropic")))
        cap = None if self.healthy else budget
        return (await work.carry_out(ctx, Wish("say hello", skill="testing", tier="haiku", budget_micros=cap)))["text"]


def _declare_others(app: Keptwork) -> None:
    @app.job(name="child")
    async def child(ctx: Context, **_: Any) -> str:
        return "went"

    @app.job(name="breaks", max_attempts=1)
    async def breaks(ctx: Context) -> None:
        await ctx.breaker(Breaker("shop", failure_threshold=1, cooldown="1h"))
        raise TransientError("down")


async def moves(harness: Harness, job: Handle, within: str = "0s") -> list[str]:
    return [run.move for run in await harness.drain(within=within) if run.id == job.id]


# --- many tools in one database


def name_of(tool: Any) -> str:
    return str(getattr(tool, "__name__", tool))


class Row:
    """One wait under several tools: a scene for each tool, in one application. Its answers are by tool."""

    def __init__(self, wait: str, tools: Sequence[Tool], **rules: Any) -> None:
        self.app = Keptwork()
        self.wait = wait
        self.scenes = {name_of(tool): Scene(wait, tool, self.app, **rules) for tool in tools}
        self.jobs: dict[str, Handle] = {}

    async def enqueue(self) -> None:
        self.jobs = {name: await scene.parent.enqueue() for name, scene in self.scenes.items()}

    async def runs(self, harness: Harness, within: str = "0s") -> dict[str, list[Settled]]:
        settled = await harness.drain(within=within)
        return {name: [run for run in settled if run.id == job.id] for name, job in self.jobs.items()}

    async def moves(self, harness: Harness, within: str = "0s") -> dict[str, list[str]]:
        return {name: [run.move for run in runs] for name, runs in (await self.runs(harness, within)).items()}

    def all(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.scenes, value)

    @property
    def logs(self) -> dict[str, list[str]]:
        return {name: scene.log for name, scene in self.scenes.items()}

    async def results(self) -> dict[str, Any]:
        return {name: await job.result("1s") for name, job in self.jobs.items()}

    async def held_by(self) -> dict[str, Any]:
        return {name: (await row(self.app, job))["held_by"] for name, job in self.jobs.items()}

    async def answer(self) -> None:
        if self.wait == "event":
            await self.app.send_event("go", "went")
        for question in await self.app.approvals():
            await self.app.approve(question.public_id, by="ann")


class ServerHarness(Harness):
    """A harness on a PostgreSQL database. The server's clock stands still until the next drain."""

    def __init__(self, app: Keptwork, url: str) -> None:
        super().__init__(app)
        self._url = url

    async def __aenter__(self) -> Harness:
        self._hand = await hand_on(self._url)
        ((self._original,),) = await self._hand.run(DEFINITION)
        await set_time(self._hand, self._clock.now())
        self._before = self.app.lend(self._url, None)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await super().__aexit__(kind, *rest)
        await self._hand.run(self._original)
        await self._hand.close()

    async def _run_due(self, store: Store, concurrency: int) -> None:
        await set_time(self._hand, self._clock.now())
        await super()._run_due(store, concurrency)

    async def _next_due(self, store: Store) -> int | None:
        async with store.transaction() as transaction:
            (found,) = await transaction.fetch(NEXT_DUE.replace("?", "$1"), self._clock.now())
        return found["at"]  # type: ignore[no-any-return]
