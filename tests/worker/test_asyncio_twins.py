"""Broken twins of the rules for waits and tasks: without its guard, each is caught by what the tests look at."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.testing import Harness
from keptwork.workers.parked_waits import Parking
from tests.worker.asyncio_scene import Scene, gather, gather_exceptions, moves, returned_beside, wait_for

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant of twins", default="nobody")


async def seen_by_two_jobs() -> list[Any]:
    app = Keptwork()

    @app.job()
    async def sets(ctx: Context, name: str) -> str:
        seen = tenant.get()
        tenant.set(name)
        return seen

    async with Harness(app) as harness:
        for name in ("a", "b"):
            await sets.enqueue(name=name)
        return [run.result for run in await harness.drain()]


async def test_slot_with_one_context_for_all_jobs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await seen_by_two_jobs() == ["nobody", "nobody"]
    shared = contextvars.copy_context()
    monkeypatch.setattr(
        "keptwork.workers.slot._started",
        lambda work, variables, name, loop: loop.create_task(work, name=name, context=shared),
    )
    assert await seen_by_two_jobs() == ["nobody", "a"]


async def first_move(scene: Scene) -> str:
    async with Harness(scene.app) as harness:
        return (await moves(harness, await scene.parent.enqueue()))[0]


async def test_waits_that_raise_instead_of_parking_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def raises(self: Parking, wait: Any, work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return await work(*arguments)

    scene = Scene("event", gather_exceptions)
    assert await first_move(scene) == "snooze"
    monkeypatch.setattr(Parking, "operation", raises)
    assert await first_move(Scene("event", gather_exceptions)) == "fail"  # a suspension is no result that JSON can hold


async def test_run_that_ends_with_steps_in_flight_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing(set[Any]):
        def add(self, one: Any) -> None: ...

    class Twin(Parking):
        def __init__(self, owner: Any) -> None:
            super().__init__(owner)
            self._in_flight = Nothing()

    scene = Scene("event", gather)
    assert await first_move(scene) == "snooze"
    assert scene.log == ["begins", "done"]
    monkeypatch.setattr("keptwork.workers.steps.Parking", Twin)
    scene = Scene("event", gather)
    scene.seconds = 5
    assert await first_move(scene) == "snooze"
    assert scene.log == ["begins", "cut off"]


async def test_clock_around_a_wait_that_nobody_looks_for_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await first_move(Scene("event", wait_for)) == "fail"
    monkeypatch.setattr("keptwork.workers.parked_waits.clock_around", lambda task: None)
    assert await first_move(Scene("event", wait_for)) == "snooze"


async def test_handler_that_may_return_beside_a_wait_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await first_move(Scene("event", returned_beside)) == "fail"
    monkeypatch.setattr(Parking, "has_waits", False)
    assert await first_move(Scene("event", returned_beside)) == "succeed"


async def test_job_that_remembers_its_first_wait_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def woken_by_second() -> list[str]:
        app = Keptwork()

        @app.job(name="both")
        async def both(ctx: Context) -> Any:
            return await asyncio.gather(ctx.wait_for_event("a"), ctx.wait_for_event("b"))

        async with Harness(app) as harness:
            job = await both.enqueue()
            found = await moves(harness, job)
            await app.send_event("b")
            return found + await moves(harness, job)

    assert await woken_by_second() == ["snooze", "snooze"]
    monkeypatch.setattr("keptwork.workers.parked_waits.all_of", lambda waits: waits[0])
    assert await woken_by_second() == ["snooze"]
