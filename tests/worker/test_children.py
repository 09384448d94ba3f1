"""Children on each kind of store: spawned once, joined without holding a slot, cancelled with their parent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from keptwork import Cancel, JobFailed, Keptwork, PermanentError
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.handles import Handle
from keptwork.jobs import commands_children, queries
from keptwork.maintenance.periodic import Outage
from keptwork.maintenance.reconciler import FollowUp
from tests.worker.scene import eventually, moved, reaches, row, state, story, triggers, working


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keptwork.maintenance.reconciler.BEAT_SECONDS", 0.1)


async def family(app: Keptwork, parent: Handle) -> list[dict[str, Any]]:
    return await commands_children.listed(await app.open(), 1, parent.key)


async def test_a_parent_joins_its_children_on_a_worker_with_one_slot(app: Keptwork) -> None:
    @app.job()
    async def double(ctx: Context, n: int) -> int:
        return 2 * n

    @app.job(max_attempts=1)
    async def parent(ctx: Context) -> Any:
        first = await ctx.spawn(double, n=1)
        others = await ctx.spawn_many("double", [{"n": n} for n in range(2, 5)])
        return [await ctx.join(first), await ctx.join(others), await ctx.join([])]

    job = await parent.enqueue()
    async with working(app, concurrency=1):
        assert await job.result("60s") == [2, [4, 6, 8], []]
    assert [(child["kind"], child["state"]) for child in await family(app, job)] == [("double", "succeeded")] * 4
    assert (await row(app, job))["attempts"] == 1


async def test_an_ordinary_function_spawns_and_joins_as_well(app: Keptwork) -> None:
    @app.job()
    def double(ctx: Context, n: int) -> int:
        return 2 * n

    @app.job()
    def parent(ctx: Context) -> Any:
        return ctx.join(ctx.spawn_many(double, [{"n": 3}, {"n": 4}]))

    job = await parent.enqueue()
    async with working(app, concurrency=1):
        assert await job.result("60s") == [6, 8]


async def test_two_thousand_children_are_joined_in_order(app: Keptwork) -> None:
    @app.job()
    async def same(ctx: Context, n: int) -> int:
        return n

    @app.job()
    async def parent(ctx: Context) -> Any:
        return await ctx.join(await ctx.spawn_many(same, [{"n": n} for n in range(2000)]))

    job = await parent.enqueue()
    async with working(app, concurrency=8):
        assert await job.result("60s") == list(range(2000))
    assert len(await family(app, job)) == 2000
    assert (await triggers(app, job)).count("snooze") <= 3


async def test_children_belong_to_what_their_parent_belongs_to(app: Keptwork) -> None:
    @app.job()
    async def child(ctx: Context) -> Any:
        return [ctx.correlation_id, ctx.trace_id]

    @app.job()
    async def parent(ctx: Context) -> Any:
        return await ctx.join(await ctx.spawn(child))

    told = await parent.enqueue(_correlation_id="order-17", _trace_id="trace-1")
    untold = await parent.enqueue()
    async with working(app, concurrency=1):
        assert await told.result("60s") == ["order-17", "trace-1"]
        assert await untold.result("60s") == [untold.id, None]
    (kid,) = await family(app, untold)
    stored, born = await row(app, Handle(kid["id"], app)), (await story(app, Handle(kid["id"], app)))[0]
    assert (stored["parent_id"], stored["tenant_id"], born.cause) == (untold.key, 1, untold.id)


async def test_a_child_that_failed_is_raised_at_the_join_or_comes_back_in_its_place(app: Keptwork) -> None:
    @app.job()
    async def picky(ctx: Context, n: int) -> int:
        if n == 1:
            raise PermanentError("not one")
        return n

    @app.job()
    async def strict(ctx: Context) -> Any:
        kids = await ctx.spawn_many(picky, [{"n": n} for n in range(3)])
        try:
            await ctx.join(kids)
        except JobFailed as error:
            return [error.state, str(error).startswith(f"The child {kids[1].id} ended failed")]

    @app.job()
    async def lenient(ctx: Context) -> Any:
        kids = await ctx.spawn_many(picky, [{"n": n} for n in range(3)])
        return [str(type(one).__name__) for one in await ctx.join(kids, return_exceptions=True)]

    @app.job()
    async def careless(ctx: Context) -> Any:
        await ctx.join(await ctx.spawn(picky, n=1))

    one, other, third = await strict.enqueue(), await lenient.enqueue(), await careless.enqueue()
    async with working(app, concurrency=1):
        assert await one.result("60s") == ["failed", True]
        assert await other.result("60s") == ["int", "ChildFailed", "int"]
        await reaches(app, third, "failed")  # at once: to try again would not help
    assert (await triggers(app, third)).count("retry") == 0


async def test_joining_some_of_the_children_does_not_wait_for_the_others(app: Keptwork) -> None:
    @app.job()
    async def quick(ctx: Context) -> str:
        return "done"

    @app.job()
    async def forever(ctx: Context) -> str:
        await ctx.wait_for_event("never")
        return "?"

    @app.job()
    async def parent(ctx: Context) -> Any:
        await ctx.spawn(forever)
        first, second = await ctx.spawn_many(quick, [{}, {}])
        return [await ctx.join(second), await ctx.join(first)]

    job = await parent.enqueue()
    async with working(app, concurrency=1):
        assert await job.result("60s") == ["done", "done"]


async def test_what_is_spawned_is_checked_and_named(app: Keptwork) -> None:
    @app.job()
    async def child(ctx: Context, n: int) -> None: ...

    @app.job()
    async def parent(ctx: Context, what: str) -> Any:
        if what == "unknown":
            await ctx.spawn("nobody")
        elif what == "arguments":
            await ctx.spawn(child, m=1)
        else:
            await ctx.join([type(await ctx.spawn(child, n=1))(key=1 << 40)])

    told = {}
    async with working(app, concurrency=1):
        for what in ("unknown", "arguments", "foreign"):
            job = await parent.enqueue(what=what)
            await reaches(app, job, "failed")
            told[what] = (await row(app, job))["error"]
    assert "no job called 'nobody'" in told["unknown"]
    assert "child, parent" in told["unknown"]
    assert "job child" in told["arguments"]
    assert "was deleted" in told["foreign"]


# --- cancelling


def generations(app: Keptwork) -> Any:
    @app.job()
    async def node(ctx: Context, depth: int) -> None:
        if depth:
            await ctx.join(await ctx.spawn_many(node, [{"depth": depth - 1}] * 2))
        await ctx.wait_for_event("never")

    return node


async def grown(app: Keptwork, root: Handle, count: int) -> list[dict[str, Any]]:
    store = await app.open()

    async def all_there() -> bool:
        rows = await store.jobs(limit=100)
        return (
            len(rows) == count
            and all(row["waits_for"] for row in rows if row["state"] == "queued")
            and not [row for row in rows if row["state"] in ("running", "assigned")]
        )

    await eventually(all_there)
    return await store.jobs(limit=100)


async def test_a_cancelled_parent_cancels_three_generations_at_once(app: Keptwork) -> None:
    node = generations(app)
    root = await node.enqueue(depth=3)
    async with working(app, concurrency=1):
        await grown(app, root, 15)
    # Nobody works any more: it is done by the call itself.
    store = await app.open()
    assert await queries.cancel(store, 1, root.id, reason="enough") == "cancelled"
    rows = await store.jobs(limit=100)
    assert {row["state"] for row in rows} == {"cancelled"}
    assert {row["reason"] for row in rows} == {"enough", commands_children.BECAUSE}


async def test_what_a_handler_or_a_crash_left_behind_is_cancelled_soon(app: Keptwork) -> None:
    node = generations(app)

    @app.job()
    async def leaver(ctx: Context) -> Any:
        await ctx.spawn(node, depth=1)
        return Cancel("changed my mind")

    root = await leaver.enqueue()
    async with working(app, concurrency=2):
        await reaches(app, root, "cancelled")

        async def all_cancelled() -> bool:
            return {row["state"] for row in await (await app.open()).jobs(limit=100)} == {"cancelled"}

        await eventually(all_cancelled)


async def test_a_running_child_is_asked_to_stop_and_with_hard_it_is_taken_away(app: Keptwork) -> None:
    @app.job()
    async def busy(ctx: Context) -> str:
        while not ctx.cancel_requested:  # noqa: ASYNC110 - as handlers do
            await asyncio.sleep(0.01)
        return "stopped by itself"

    @app.job()
    async def parent(ctx: Context) -> Any:
        await ctx.join(await ctx.spawn(busy))

    async with working(app, concurrency=2):
        for hard, end in ((False, "succeeded"), (True, "cancelled")):
            root = await parent.enqueue()
            await eventually(lambda root=root: running_child(app, root))  # type: ignore[misc]
            await queries.cancel(await app.open(), 1, root.id, hard=hard)
            (kid,) = await family(app, root)
            await reaches(app, Handle(kid["id"], app), end)
            assert await state(app, root) == "cancelled"


async def test_a_job_that_is_asked_to_stop_does_not_begin_to_wait(app: Keptwork) -> None:
    begun = asyncio.Event()

    @app.job()
    async def asked(ctx: Context) -> None:
        begun.set()
        while not ctx.cancel_requested:  # noqa: ASYNC110 - as handlers do
            await asyncio.sleep(0.01)
        await ctx.wait_for_event("never")

    job = await asked.enqueue()
    async with working(app, concurrency=1):
        await begun.wait()
        assert await queries.cancel(await app.open(), 1, job.id) == "asked to stop"
        await reaches(app, job, "cancelled")
    assert "snooze" not in await triggers(app, job)


async def test_a_job_that_began_to_wait_before_it_heard_of_the_stop_is_cancelled_with_its_children(
    app: Keptwork,
) -> None:
    node = generations(app)
    root = await node.enqueue(depth=1)
    async with working(app, concurrency=1):
        await grown(app, root, 3)
    store = await app.open()
    async with store.transaction() as tx:
        await tx.execute(f"UPDATE jobs SET cancel_requested_at = 1 WHERE id = {root.key}")
    follow_up = FollowUp(store, Outage())
    assert await follow_up.run_once() == 3
    assert {one["state"] for one in await store.jobs()} == {"cancelled"}
    assert (await row(app, root))["reason"] == commands_children.ASKED


async def running_child(app: Keptwork, root: Handle) -> bool:
    kids = await family(app, root)
    return bool(kids) and kids[0]["state"] == "running" and await state(app, root) == "queued"


async def test_the_follow_up_touches_only_children_of_the_cancelled(app: Keptwork) -> None:
    node = generations(app)
    kept, gone = await node.enqueue(depth=1), await node.enqueue(depth=1)
    async with working(app, concurrency=1):
        await grown(app, kept, 6)
    store = await app.open()
    await moved(store, JOB, gone.key, "cancel")  # and then it crashed
    follow_up = FollowUp(store, Outage())
    assert await follow_up.run_once() == 2
    assert await follow_up.run_once() == 0
    assert {kid["state"] for kid in await family(app, gone)} == {"cancelled"}
    assert {kid["state"] for kid in await family(app, kept)} == {"queued"}
    assert json.loads((await row(app, kept))["payload"]) == {"depth": 1}
