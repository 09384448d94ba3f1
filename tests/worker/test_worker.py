"""A worker on each kind of store: what handlers say becomes what the log says."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from keptwork import Cancel, Keptwork, PermanentError, Snooze, TransientError, ValidationError
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.handles import Handle
from keptwork.store import NewJob
from tests.conformance import stage
from tests.worker.scene import (
    eventually,
    last,
    only_worker,
    reaches,
    row,
    state,
    story,
    triggers,
    worker_story,
    working,
)

ONCE = ["enqueue", "claim", "start"]


# --- handlers


async def test_async_and_sync_handlers_get_their_arguments_and_leave_their_results(app: Keptwork) -> None:
    @app.job()
    async def add(ctx: Context, a: int, b: int = 1) -> int:
        return a + b

    @app.job()
    def name(ctx: Context, *, of: str) -> dict[str, Any]:
        return {"of": of, "thread": threading.current_thread().name, "attempt": ctx.attempt, "job": ctx.job_id}

    jobs = [
        await add.enqueue(a=1),
        await add.enqueue(a=1, b=2),
        await name.enqueue(of="æ\0"),
        await name.enqueue(of=""),
    ]
    assert await app.work(until_idle=True) == 4
    results = [json.loads((await row(app, job))["result"]) for job in jobs]
    assert results[:2] == [2, 3]
    assert (results[2]["of"], results[2]["attempt"], results[2]["job"]) == ("æ\0", 1, jobs[2].id)
    assert results[2]["thread"].startswith("keptwork-handler")
    assert await triggers(app, jobs[0]) == [*ONCE, "succeed"]


async def test_a_payload_that_does_not_fit_is_dead_lettered_before_the_handler_runs(app: Keptwork) -> None:
    calls: list[int] = []

    @app.job()
    async def takes(ctx: Context, a: int) -> None:
        calls.append(a)

    payloads = ['{"b":1}', '{"a":1,"c":2}', "[1]", "null", '"a"', "{}"]
    wrong = [Handle(key, app) for key in await (await app.open()).enqueue([NewJob("takes", text) for text in payloads])]
    right = await takes.enqueue(a=5)
    await app.work(until_idle=True)
    assert [await last(app, job) for job in wrong] == [("dead_letter", "validation_failed", "input")] * len(payloads)
    assert all(["does not fit takes(a: " in (await row(app, job))["error"] for job in wrong])
    assert (calls, await state(app, right)) == ([5], "succeeded")


async def test_a_kind_this_worker_does_not_know_goes_back_into_the_queue_and_says_why(app: Keptwork) -> None:
    @app.job()
    async def known(ctx: Context) -> None: ...

    store = await app.open()
    (id,) = await store.enqueue([NewJob("unknown")])
    await app.work(until_idle=True)
    found = await stage.entity(store, JOB, id)
    assert (found["state"], found["attempts"]) == ("queued", 0)
    assert found["run_at"] > found["created_at"]
    assert found["reason"] == "this worker has no handler for 'unknown'; it has: known"


async def test_two_workers_that_know_different_kinds_share_a_queue_and_get_everything_done(
    app: Keptwork, database_url: str
) -> None:
    done: list[str] = []
    async with Keptwork(database_url) as other:

        @app.job()
        async def bake(ctx: Context) -> None:
            done.append("bake")

        @other.job()
        async def brew(ctx: Context) -> None:
            done.append("brew")

        jobs = [*await app.enqueue_many(bake, [{}] * 10), *await other.enqueue_many(brew, [{}] * 10)]
        async with working(app, concurrency=4), working(other, concurrency=4):
            for job in jobs:
                await reaches(app, job, "succeeded")
    assert sorted(done) == ["bake"] * 10 + ["brew"] * 10
    assert {(await row(app, job))["attempts"] for job in jobs} == {1}


async def test_a_job_is_tried_until_it_succeeds_each_time_under_a_new_epoch(app: Keptwork) -> None:
    seen: list[tuple[int, str]] = []

    @app.job(max_attempts=3, backoff=0)
    async def third(ctx: Context) -> str:
        seen.append((ctx.attempt, ctx.idempotency_key("get")))
        if ctx.attempt < 3:
            raise TransientError(f"not yet, {ctx.attempt}")
        return "at last"

    job = await third.enqueue()
    await app.work(until_idle=True)
    found, events = await row(app, job), await story(app, job)
    assert [event.trigger for event in events] == [*ONCE, "retry", *ONCE[1:], "retry", *ONCE[1:], "succeed"]
    assert [event.epoch for event in events if event.trigger == "start"] == [0, 1, 2]
    assert [event.reason for event in events if event.trigger == "retry"] == [
        "TransientError: not yet, 1",
        "TransientError: not yet, 2",
    ]
    assert (found["state"], found["attempts"], found["epoch"]) == ("succeeded", 3, 2)
    assert seen == [(attempt, f"{job.id}:get") for attempt in (1, 2, 3)]


DEAD = ("dead_letter", "exhausted_retries", "exec")
RAISED: list[tuple[BaseException, tuple[str, str, str]]] = [
    (TransientError("busy"), DEAD),
    (ValidationError("no url"), ("dead_letter", "validation_failed", "input")),
    (PermanentError("gone\0"), ("fail", "PermanentError: gone\ufffd", "exec")),
    (SystemExit(3), DEAD),
    (StopIteration("odd"), DEAD),
    (asyncio.CancelledError("own"), DEAD),
]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_whatever_a_handler_raises_ends_the_job_and_not_the_worker(app: Keptwork, kind: str) -> None:
    def raises(ctx: Context, which: int) -> None:
        raise RAISED[which][0]

    async def raises_async(ctx: Context, which: int) -> None:
        raise RAISED[which][0]

    declared = app.job(max_attempts=1)(raises if kind == "sync" else raises_async)
    jobs = await app.enqueue_many(declared, [{"which": which} for which in range(len(RAISED))])
    assert await app.work(until_idle=True, concurrency=1) == len(RAISED)
    assert [await last(app, job) for job in jobs] == [ending for _, ending in RAISED]
    for job, (error, _) in zip(jobs, RAISED, strict=True):
        assert type(error).__name__ in (await row(app, job))["error"]


async def test_the_policy_fail_ends_as_failed(app: Keptwork) -> None:
    @app.job(max_attempts=1, on_exhausted="fail")
    async def fails(ctx: Context) -> None:
        raise OSError("no route")

    job = await fails.enqueue()
    await app.work(until_idle=True)
    assert await last(app, job) == ("fail", "OSError: no route", "exec")
    assert await state(app, job) == "failed"


async def test_an_outcome_that_makes_no_sense_fails_the_job_and_not_the_worker(app: Keptwork) -> None:
    @app.job()
    async def vague(ctx: Context) -> Snooze:
        return Snooze("soon")

    @app.job()
    async def strange(ctx: Context) -> object:
        return object()

    jobs = [await vague.enqueue(), await strange.enqueue()]
    await app.work(until_idle=True)
    assert [(await last(app, job))[::2] for job in jobs] == [("fail", "output")] * 2


async def test_a_snooze_costs_no_attempt(app: Keptwork) -> None:
    attempts: list[int] = []

    @app.job(max_attempts=1)
    async def sleepy(ctx: Context) -> Snooze | str:
        attempts.append(ctx.attempt)
        return Snooze() if len(attempts) < 4 else "awake"

    job = await sleepy.enqueue()
    await app.work(until_idle=True)
    found = await row(app, job)
    assert (found["state"], found["attempts"], found["epoch"]) == ("succeeded", 1, 3)
    assert attempts == [1, 1, 1, 1]
    assert (await triggers(app, job)).count("snooze") == 3


async def test_a_long_snooze_is_not_waited_for(app: Keptwork) -> None:
    @app.job()
    async def sleepy(ctx: Context) -> Snooze:
        return Snooze("1h")

    job = await sleepy.enqueue()
    await app.work(until_idle=True)
    found = await row(app, job)
    assert (found["state"], found["attempts"]) == ("queued", 0)
    assert 3_590_000_000 < found["run_at"] - await (await app.open()).now() <= 3_600_000_000


async def test_a_handler_can_cancel_its_job(app: Keptwork) -> None:
    @app.job()
    async def stops(ctx: Context) -> Cancel:
        return Cancel("nothing to do")

    job = await stops.enqueue()
    await app.work(until_idle=True)
    assert await last(app, job) == ("cancel", "nothing to do", None)
    assert await state(app, job) == "cancelled"


async def test_a_handler_over_its_time_is_stopped_and_its_job_tried_again(app: Keptwork) -> None:
    ended = threading.Event()

    @app.job(max_attempts=2, timeout="50ms", backoff=0)
    async def slow(ctx: Context) -> None:
        await asyncio.Event().wait()

    @app.job(max_attempts=1, timeout="50ms")
    def slow_thread(ctx: Context) -> None:
        while not ctx.cancel_requested:
            time.sleep(0.005)
        ended.set()

    jobs = [await slow.enqueue(), await slow_thread.enqueue()]
    await app.work(until_idle=True)
    assert [await last(app, job) for job in jobs] == [("dead_letter", "timeout", "exec")] * 2
    assert (await row(app, jobs[0]))["error"] == "TimeoutError: it took longer than 0.05 s"
    assert (await triggers(app, jobs[0])).count("retry") == 1
    assert await asyncio.to_thread(ended.wait, 5)


async def test_a_job_put_back_for_a_moment_is_due_then_and_not_when_the_worker_happens_to_look(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keptwork.workers.worker.POLL_SECONDS", 60.0)

    runs = []

    @app.job()
    async def nap(ctx: Context) -> int | Snooze:
        runs.append(time.monotonic())
        return len(runs) if len(runs) > 1 else Snooze("100ms")

    working = asyncio.create_task(app.work())
    assert await (await nap.enqueue()).result(timeout="30s") == 2
    assert runs[1] - runs[0] >= 0.1
    app.stop()
    await working


# --- how much, and in which order


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_concurrency_is_reached_and_never_exceeded(app: Keptwork, kind: str) -> None:
    lock, now, most = threading.Lock(), 0, 0
    three = threading.Barrier(3, timeout=10)

    def enter(step: int) -> None:
        nonlocal now, most
        with lock:
            now += step
            most = max(most, now)

    def sync_handler(ctx: Context) -> None:
        enter(1)
        three.wait()
        enter(-1)

    async def async_handler(ctx: Context) -> None:
        enter(1)
        await asyncio.to_thread(three.wait)
        enter(-1)

    declared = app.job()(sync_handler if kind == "sync" else async_handler)
    await app.enqueue_many(declared, [{}] * 60)
    assert await app.work(until_idle=True, concurrency=3) == 60
    assert most == 3


async def test_priorities_come_first_and_then_the_oldest(app: Keptwork) -> None:
    order: list[str] = []

    @app.job(priority=5)
    async def note(ctx: Context, text: str) -> None:
        order.append(text)

    for text, priority in [("b", None), ("c", 5), ("d", 0), ("a", 9), ("e", -1)]:
        await note.enqueue(text=text, _priority=priority)
    await app.work(until_idle=True, concurrency=1)
    assert "".join(order) == "abcde"


async def test_slow_handlers_leave_the_queue_to_others(app: Keptwork) -> None:
    """A worker whose two slots are busy takes two jobs, however fast its last writes were."""
    gate = asyncio.Event()
    begun: list[int] = []

    @app.job()
    async def slow(ctx: Context) -> None:
        begun.append(ctx.attempt)
        await asyncio.wait({asyncio.ensure_future(gate.wait())}, timeout=0.2 if len(begun) <= 2 else None)

    jobs = await app.enqueue_many(slow, [{}] * 40)
    async with working(app, concurrency=2):

        async def second_round() -> bool:
            return len(begun) == 4

        await eventually(second_round)
        states = [await state(app, job) for job in jobs]
        assert states.count("queued") >= 34
        gate.set()


async def test_until_idle_waits_for_what_its_own_jobs_make_due(app: Keptwork) -> None:
    @app.job()
    async def chain(ctx: Context, left: int) -> None:
        if left:
            await chain.enqueue(left=left - 1)

    await chain.enqueue(left=20)
    assert await app.work(until_idle=True) == 21


async def test_nothing_to_do_is_idle_at_once(app: Keptwork) -> None:
    assert await asyncio.wait_for(app.work(until_idle=True), 60) == 0
    assert await worker_story(app, await only_worker(app)) == ["IDLE", "TERMINATED"]
