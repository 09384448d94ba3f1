"""How far a handler says it has come: seen while it runs, written seldom, and never in its way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from keptwork import JobFailed, Keptwork, Snooze
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.handles import Handle
from keptwork.store.contract.checkpoints import Report
from keptwork.workers.checkpoint_writer import EVERY_SECONDS
from tests.process import step_jobs
from tests.worker.scene import eventually, moved, working


async def seen(app: Keptwork, job: Handle) -> dict[str, Any] | None:
    found = await (await app.open()).telemetry(JOB, job.key, 1)
    assert len(found) <= 1
    return json.loads(found[0].payload) if found else None


async def test_progress_is_seen_while_the_handler_runs_and_the_last_of_it_stays(app: Keptwork) -> None:
    go_on = asyncio.Event()

    @app.job()
    async def works(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter")
        await go_on.wait()
        for n in range(100):
            ctx.progress(n / 100)
        ctx.progress(1, "done")

    job = await works.enqueue()
    async with working(app):

        async def shown() -> bool:
            return await seen(app, job) == {"fraction": 0.25, "text": "a quarter"}

        await eventually(shown)
        go_on.set()
        await job.result("60s")
    assert await seen(app, job) == {"fraction": 1, "text": "done"}


@pytest.mark.acceptance
async def test_all_kinds_of_handlers_say_how_far_they_have_come(app: Keptwork) -> None:
    @app.job()
    def in_thread(ctx: Context) -> None:
        ctx.progress(0.5, "half")

    @app.job()
    async def waits(ctx: Context) -> Any:
        ctx.progress(0.5, "half")
        return Snooze("1h")

    isolated = app.job(isolation="process")(step_jobs.tells)
    jobs = [await kind.enqueue() for kind in (in_thread, waits, isolated)]
    await app.work(until_idle=True)
    assert [await seen(app, job) for job in jobs] == [{"fraction": 0.5, "text": "half"}] * 3


async def test_however_often_it_is_said_it_is_written_seldom(app: Keptwork, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await app.open()
    writes: list[int] = []
    shipped = store.note_progress

    async def counted(reports: Sequence[Report], ttl_us: int) -> None:
        writes.append(len(reports))
        await shipped(reports, ttl_us)

    monkeypatch.setattr(store, "note_progress", counted)

    @app.job()
    async def talks(ctx: Context) -> None:
        end = asyncio.get_running_loop().time() + EVERY_SECONDS * 1.5
        while asyncio.get_running_loop().time() < end:
            ctx.progress(0.5)
            await asyncio.sleep(0)

    @app.job()
    async def silent(ctx: Context) -> None:
        pass

    await app.enqueue_many(talks, [{}] * 10)
    await app.enqueue_many(silent, [{}] * 10)
    await app.work(until_idle=True)
    assert sum(writes) <= 10 * 4
    assert len(writes) < sum(writes)


@pytest.mark.parametrize("fraction", [-0.1, 1.01, 40, float("nan"), float("inf"), True, None, "half"])
async def test_what_is_no_fraction_is_refused_in_a_line(fraction: Any) -> None:
    async with Keptwork("sqlite:///:memory:") as app:

        @app.job()
        async def wrong(ctx: Context) -> None:
            ctx.progress(fraction)

        job = await wrong.enqueue()
        await app.work(until_idle=True)
        with pytest.raises(JobFailed, match="is no progress; it is a fraction of the whole, from 0 to 1"):
            await job.result()


async def test_a_lost_lease_is_no_error_and_its_words_are_not_kept(app: Keptwork) -> None:
    @app.job()
    async def slow(ctx: Context) -> None:
        await moved(await app.open(), JOB, job.key, "cancel")
        ctx.progress(1 + 1e-9, "x\0" * 1000)

    job = await slow.enqueue()
    await app.work(until_idle=True)
    assert await seen(app, job) is None


async def test_words_are_cut_to_what_a_line_holds() -> None:
    async with Keptwork("sqlite:///:memory:") as app:

        @app.job()
        async def talks(ctx: Context) -> None:
            ctx.progress(0, "x\0\ud800" * 1000)

        job = await talks.enqueue()
        await app.work(until_idle=True)
        found = await seen(app, job)
        assert found is not None
        assert len(found["text"]) == 200
