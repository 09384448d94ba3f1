"""A worker hears from its own row what is wanted of it, and ends in the way that was asked."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import WORKER
from keptwork.errors import WorkerExhausted, WorkerTerminated
from keptwork.handles import Handle
from keptwork.workers import commands as service
from keptwork.workers.commands import Wish
from keptwork.workers.lease_renewer import Pulse
from tests.conformance import stage
from tests.conformance.stage import log
from tests.worker.scene import eventually, last, only_worker, reaches, row, state, worker_story, working

PROMPT = 60.0
"""Seconds; a quiet machine takes half of one."""


class Endless:
    """An application with a handler that waits, and a worker that runs it."""

    def __init__(self, app: Keptwork) -> None:
        self.app = app
        self.gate = asyncio.Event()
        self.ended: list[str] = []

        @app.job()
        async def endless(ctx: Context) -> str:
            try:
                await self.gate.wait()
            finally:
                self.ended.append("stopped" if ctx.cancel_requested else "by itself")
            return "done"

        self.kind = endless

    async def begin(self, **settings: object) -> tuple[asyncio.Task[int], Handle, str]:
        job = await self.kind.enqueue()
        task = asyncio.create_task(self.app.work(**settings))  # type: ignore[arg-type]
        await reaches(self.app, job, "running")

        async def at_work() -> bool:
            return (await worker_story(self.app, await only_worker(self.app)))[-1] == "RUNNING"

        await eventually(at_work)
        return task, job, public_id("worker", await only_worker(self.app))


async def heard(app: Keptwork) -> None:
    """The worker knows that it is to end."""

    async def knows() -> bool:
        return app._workers[0]._departure.asked

    await eventually(knows)


async def ends(task: asyncio.Task[int]) -> str:
    with pytest.raises(WorkerTerminated) as terminated:
        await asyncio.wait_for(task, PROMPT)
    assert terminated.value.exit_code == 3
    return str(terminated.value)


@pytest.mark.parametrize(("cancel", "outcome"), [(False, "queued"), (True, "cancelled")])
async def test_a_hard_end_stops_handlers_and_frees_their_jobs_as_asked(
    app: Keptwork, cancel: bool, outcome: str
) -> None:
    scene = Endless(app)
    task, job, id = await scene.begin()
    wish = Wish("cli:ann", "it is the wrong version")
    await service.terminate(await app.open(), 1, id, wish, hard=True, cancel_jobs=cancel)
    began = time.monotonic()
    said = await ends(task)
    print(f"\nhard end after {time.monotonic() - began:.2f} s")
    assert f"worker {id} was terminated by cli:ann: it is the wrong version" in said
    assert scene.ended == ["stopped"]
    found = await row(app, job)
    assert (found["state"], found["attempts"]) == (outcome, 1 if cancel else 0)


async def test_a_soft_end_lets_handlers_finish_and_claims_nothing_more(app: Keptwork) -> None:
    scene = Endless(app)
    task, job, id = await scene.begin()
    await service.terminate(await app.open(), 1, id)
    later = await scene.kind.enqueue()
    await heard(app)
    assert not task.done()
    assert await state(app, later) == "queued"
    scene.gate.set()
    await ends(task)
    assert (await state(app, job), await state(app, later)) == ("succeeded", "queued")
    assert (await worker_story(app, service.key_of(id)))[-1] == "TERMINATED"


async def test_after_its_grace_a_soft_end_is_a_hard_one(app: Keptwork) -> None:
    scene = Endless(app)
    task, job, id = await scene.begin(grace="300ms")
    await service.terminate(await app.open(), 1, id, cancel_jobs=True)
    await ends(task)
    assert (await last(app, job))[:2] == ("cancel", "its worker was terminated")


async def test_a_soft_end_made_hard_does_not_wait_for_the_grace(app: Keptwork) -> None:
    scene = Endless(app)
    task, job, id = await scene.begin(grace="10m")
    store = await app.open()
    await service.terminate(store, 1, id)
    await service.terminate(store, 1, id, hard=True)
    await ends(task)
    assert await state(app, job) == "queued"


async def test_a_drained_worker_finishes_what_it_has_however_long_it_takes(app: Keptwork) -> None:
    scene = Endless(app)
    task, job, id = await scene.begin(grace="10ms")
    await service.drain(await app.open(), 1, id, Wish("cli:ann", "new version"))
    await heard(app)
    later = await scene.kind.enqueue()
    assert not task.done()
    scene.gate.set()
    assert await asyncio.wait_for(task, PROMPT) == 1
    assert (await state(app, job), await state(app, later)) == ("succeeded", "queued")
    event = (await log(await app.open(), entity="worker", entity_id=service.key_of(id)))[-1]
    assert (event.to_state, event.reason) == ("COMPLETED", "drained: new version")


async def test_an_idle_worker_drains_at_once_and_is_terminated(app: Keptwork) -> None:
    Endless(app)
    task = asyncio.create_task(app.work())
    id = await only_worker(app)
    await service.drain(await app.open(), 1, public_id("worker", id))
    assert await asyncio.wait_for(task, PROMPT) == 0
    event = (await log(await app.open(), entity="worker", entity_id=id))[-1]
    assert (event.to_state, event.reason) == ("TERMINATED", "drained")


async def test_a_worker_that_was_given_up_finds_out_and_ends_with_its_job_released(app: Keptwork) -> None:
    scene = Endless(app)
    task, job, id = await scene.begin()
    assert await service.end_silent(await app.open(), 0, {service.key_of(id)}, "w:1") == [service.key_of(id)]
    assert await state(app, job) == "running"
    assert "supervisor_timeout" in await ends(task)
    assert await state(app, job) == "queued"


@pytest.mark.acceptance
async def test_a_worker_that_does_not_look_at_its_row_is_caught_by_the_same_check(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def looks_away(pulse: Pulse, _: object) -> None:
        pulse.look_at += 1.0

    monkeypatch.setattr(Pulse, "beat", looks_away)
    scene = Endless(app)
    task, job, id = await scene.begin()
    await service.terminate(await app.open(), 1, id, hard=True)
    await asyncio.sleep(1.0)
    assert not task.done()
    assert await state(app, job) == "running"
    scene.gate.set()
    app.stop()
    await asyncio.wait_for(task, PROMPT)


async def test_its_row_tells_what_it_serves_and_that_it_is_alive(app: Keptwork) -> None:
    Endless(app)
    async with working(app, queues=["mail", "default"], concurrency=3):
        id = await only_worker(app)
        store = await app.open()
        found = service.as_json(await stage.entity(store, WORKER, id))
        own = [kind for kind in found["kinds"] if not kind.startswith("keptwork.")]
        assert (found["queues"], own, found["concurrency"]) == (["mail", "default"], ["endless"], 3)
        assert found["version"]
        assert [one["id"] for one in await service.serving(store, "mail")] == [id]

        async def seen_again() -> bool:
            return bool(service.as_json(await stage.entity(store, WORKER, id))["seen_at"] > found["seen_at"])

        await eventually(seen_again)
        assert len(await log(store, entity="worker", entity_id=id)) == 1


async def test_a_duty_that_crashes_makes_the_worker_failed_with_the_error(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Endless(app)
    broken = threading.Event()

    async def overdue(*_: object) -> list[object]:
        if broken.is_set():
            raise ZeroDivisionError("a duty went wrong")
        return []

    store = await app.open()
    monkeypatch.setattr(type(store), "overdue", overdue)
    task, _, id = await scene.begin()
    broken.set()
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(task, PROMPT)
    event = (await log(store, entity="worker", entity_id=service.key_of(id)))[-1]
    assert (event.trigger, event.to_state) == ("error_unrecoverable", "FAILED")
    assert event.reason == "ZeroDivisionError: a duty went wrong"


async def test_a_worker_under_strain_pauses_itself_gives_back_what_waits_and_goes_on_when_it_is_better(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [10]
    monkeypatch.setattr("keptwork.workers.worker.memory_bytes", lambda: used[0])
    monkeypatch.setattr("keptwork.workers.heartbeat.Strain.__init__.__defaults__", (lambda: used[0],))
    monkeypatch.setattr("keptwork.workers.heartbeat.LOOK_SECONDS", 0.05)
    scene = Endless(app)
    task, job, id = await scene.begin(max_memory=100)

    async def stands(wanted: str) -> bool:
        return str((await service.find(await app.open(), 1, id))["state"]) == wanted

    used[0] = 101
    await eventually(lambda: stands("PAUSED"))
    assert str((await service.find(await app.open(), 1, id))["reason"]).startswith("resource_exhaustion: ")
    later = await scene.kind.enqueue()
    used[0] = 80
    await eventually(lambda: stands("RUNNING"))
    scene.gate.set()
    await reaches(app, job, "succeeded")
    await reaches(app, later, "succeeded")
    used[0] = 200
    with pytest.raises(WorkerExhausted, match="memory in use"):
        await asyncio.wait_for(task, PROMPT)
    event = (await log(await app.open(), entity="worker", entity_id=service.key_of(id)))[-1]
    assert event.to_state == "TERMINATED"
    assert (event.reason or "").startswith("resource_exhaustion: ")
