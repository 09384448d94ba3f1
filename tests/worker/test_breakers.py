"""Breakers of plain jobs, with a real worker: what needs something that fails waits, and runs when it works again."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork import Breaker, Cancel, Keptwork, PermanentError, Snooze, ValidationError
from keptwork.context import Context
from keptwork.handles import Handle
from keptwork.jobs.held_jobs import reset
from keptwork.jobs.outcome import Raised, Release, Suspend
from keptwork.maintenance import periodic
from keptwork.outcomes import TransientError
from keptwork.testing import Harness
from keptwork.workers.breaker_check import verdict
from tests.conformance.stage import log
from tests.worker.scene import eventually, last, reaches, row, triggers, working


@pytest.fixture(autouse=True)
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "BEAT_SECONDS", 0.1)


async def breaker(app: Keptwork, name: str = "api") -> dict[str, Any]:
    found = await (await app.open()).breaker(app.tenant_id, name)
    return found or {"state": None}


async def test_jobs_wait_while_what_they_need_fails_spend_no_attempt_and_all_run_in_the_end(app: Keptwork) -> None:
    """Those that opened it have failed once; of the others only one may have been tried in vain: the next, which the
    worker takes up while the failure that opens the breaker is being written."""
    works, ran = False, []

    @app.job(breaker=Breaker("api", failure_threshold=2, cooldown="300ms"), backoff="1ms")
    async def call(ctx: Context, n: int) -> int:
        ran.append((n, works))
        if not works:
            raise ConnectionError("refused")
        return n

    jobs = await app.enqueue_many(call, [{"n": n} for n in range(30)])
    async with working(app, concurrency=1):

        async def all_held() -> bool:
            found = await (await app.open()).breakers(app.tenant_id)
            return bool(found) and found[0].held == 30

        await eventually(all_held)
        works = True
        assert [await job.result("60s") for job in jobs] == list(range(30))
    failed = [n for n, worked in ran if not worked]
    rows = [await row(app, job) for job in jobs]
    assert [job["attempts"] for job in rows] == [1 + failed.count(n) for n in range(30)]
    assert (await breaker(app))["state"] == "CLOSED"
    moves = [event.trigger for event in await log(await app.open(), entity="breaker")]
    assert moves[:3] == ["create", "trip", "probe"]
    assert moves[-1] == "close"
    assert len(failed) - 2 - moves.count("reopen") in (0, 1)


async def test_others_are_not_asked_and_go_on_meanwhile(app: Keptwork) -> None:
    @app.job(breaker=Breaker("api", failure_threshold=1, cooldown="1h"), max_attempts=2, backoff="1ms")
    async def call(ctx: Context) -> None:
        raise ConnectionError("refused")

    @app.job()
    async def plain(ctx: Context) -> str:
        return "done"

    async with working(app):
        held = await call.enqueue()

        async def is_held() -> bool:
            return bool((await row(app, held))["held_by"] == "breaker:api")

        await eventually(is_held)
        assert await (await plain.enqueue()).result("60s") == "done"
        second = await call.enqueue()

        async def second_is_held() -> bool:
            found = await row(app, second)
            return bool(found["held_by"] == "breaker:api" and found["attempts"] == 0)

        await eventually(second_is_held)
        await reset(await app.open(), 1, "api", actor="test", reason="it works")
        await reaches(app, held, "dead_lettered")


async def test_a_job_that_is_to_fail_then_fails_at_once_and_says_why(app: Keptwork) -> None:
    @app.job(breaker=Breaker("api", failure_threshold=1, cooldown="1h", on_open="fail"), max_attempts=1)
    async def call(ctx: Context) -> None:
        raise ConnectionError("refused")

    first, second = await call.enqueue(), await call.enqueue()
    await app.work(until_idle=True, concurrency=1)
    assert await triggers(app, first) == ["enqueue", "claim", "start", "dead_letter"]
    trigger, reason, _ = await last(app, second)
    assert trigger == "fail"
    assert "the breaker api is OPEN, open since" in (reason or "")
    assert "ConnectionError: refused; the job is declared to fail then" in (reason or "")
    assert (await breaker(app))["failures"] == 1


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, True),
        ({"size": 1}, True),
        (Raised(ConnectionError("refused")), False),
        (Raised(TimeoutError("it took too long")), False),
        (Raised(TransientError("busy")), False),
        (Raised(SystemExit(3)), False),
        (Raised(ValidationError("no such field")), None),
        (Raised(PermanentError("no such customer")), None),
        (Raised(RuntimeError("its steps could not be read"), "fetch"), None),
        (Release("worker drains"), None),
        (Release("held", held_by="breaker:api"), None),
        (Suspend("sleep"), None),
        (Snooze("5m"), None),
        (Cancel("asked to"), None),
    ],
)
def test_only_what_was_tried_says_whether_it_works(said: Any, meant: bool | None) -> None:
    assert verdict(said) is meant


async def test_a_worker_that_ends_when_idle_first_lets_go_what_a_closed_breaker_held(app: Keptwork) -> None:
    works = False

    @app.job(breaker=Breaker("api", failure_threshold=1, cooldown="0s"), max_attempts=3, backoff="1ms")
    async def call(ctx: Context) -> bool:
        nonlocal works
        before, works = works, True
        if not before:
            raise ConnectionError("refused")
        return True

    jobs = await app.enqueue_many(call, [{}] * 5)
    await app.work(until_idle=True, concurrency=1)
    assert [(await row(app, job))["state"] for job in jobs] == ["succeeded"] * 5


async def test_the_harness_moves_time_on_to_the_next_probe() -> None:
    app, calls = Keptwork("sqlite:///:memory:"), []

    @app.job(breaker=Breaker("api", failure_threshold=2, cooldown="10m"), backoff="1ms")
    async def call(ctx: Context) -> None:
        calls.append(ctx)
        if len(calls) < 4:
            raise ConnectionError("refused")

    async with Harness(app) as harness:
        await call.enqueue()
        runs = [run.move for run in await harness.drain(within="9m")]
        assert runs.count("retry") == 2
        assert len(calls) == 2
        runs = [run.move for run in await harness.drain(within="21m")]
        assert (runs.count("retry"), runs.count("succeed")) == (1, 1)


async def test_a_job_behind_a_limit_and_a_breaker_goes_back_behind_its_limit(app: Keptwork) -> None:
    works, at_once, most = False, 0, 0

    @app.job(limit=1, breaker=Breaker("api", failure_threshold=1, cooldown="200ms"), backoff="1ms")
    async def call(ctx: Context) -> None:
        nonlocal at_once, most
        if not works:
            raise ConnectionError("refused")
        at_once += 1
        most = max(most, at_once)
        await ctx.step("pause", _nothing)
        at_once -= 1

    async with working(app):
        jobs: list[Handle] = await app.enqueue_many(call, [{}] * 5)

        async def is_open() -> bool:
            return bool((await breaker(app))["state"] == "OPEN")

        await eventually(is_open)
        works = True
        for job in jobs:
            await job.result("60s")
    assert most == 1


async def test_a_handler_asks_a_breaker_where_it_needs_it_and_can_tell_what_it_found(app: Keptwork) -> None:
    """A failure is laid on the breaker that was asked last, unless the handler says something else."""
    model = Breaker("model", failure_threshold=1, cooldown="1h")

    @app.job(breaker=Breaker("api", failure_threshold=1, cooldown="1h"), max_attempts=1)
    async def call(ctx: Context, how: str) -> str:
        await ctx.breaker(model)
        if how == "told":
            ctx.tell_breaker("model", False)
        if how == "fails":
            raise ConnectionError("no reply")
        return how

    async def states() -> list[Any]:
        return [(await breaker(app, name))["state"] for name in ("api", "model")]

    first = await call.enqueue(how="works")
    await app.work(until_idle=True)
    assert (await states(), await first.result("1s")) == (["CLOSED", "CLOSED"], "works")
    await call.enqueue(how="fails")
    await app.work(until_idle=True)
    assert await states() == ["CLOSED", "OPEN"]
    held = await call.enqueue(how="works")
    await app.work(until_idle=True)
    found = await row(app, held)
    assert (found["state"], found["held_by"], found["attempts"]) == ("queued", "breaker:model", 0)
    await reset(await app.open(), 1, "model", actor="test", reason="it works")
    await call.enqueue(how="told")
    await app.work(until_idle=True, concurrency=1)
    assert await states() == ["CLOSED", "OPEN"]
    assert await held.result("1s") == "works"


async def _nothing() -> None:
    return None
