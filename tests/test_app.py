"""The application as a user meets it: declare, enqueue, work."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from keptwork import Cancel, Keptwork, KeptworkError, Snooze
from keptwork.audit import verify
from keptwork.context import Context
from keptwork.core.ids import key_of
from keptwork.core.lifecycles import JOB
from keptwork.core.validation import LARGEST_PAYLOAD
from keptwork.errors import BadInput
from tests.conformance.stage import eventually, undone
from tests.worker.scene import row, state, triggers


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    async with Keptwork(database_url) as opened:
        yield opened
        assert (await verify.verify(await opened.open())).clean


@pytest.fixture
async def memory() -> AsyncIterator[Keptwork]:
    async with Keptwork("sqlite:///:memory:") as opened:
        yield opened
        assert (await verify.verify(await opened.open())).clean


async def test_declare_enqueue_and_work(app: Keptwork) -> None:
    @app.job(queue="pages", max_attempts=4, lease="60s", on_exhausted="dead_letter")
    async def fetch(ctx: Context, url: str) -> dict[str, int] | Cancel:
        if ctx.cancel_requested:
            return Cancel("asked to stop")
        return {"size": len(url)}

    job = await fetch.enqueue(url="https://example.org", _key="order-17", _priority=5)
    many = await app.enqueue_many(fetch, [{"url": "x" * size} for size in range(3)])
    assert await app.work(until_idle=True) == 4
    results = [json.loads((await row(app, one))["result"]) for one in (job, *many)]
    assert [result["size"] for result in results] == [19, 0, 1, 2]
    assert key_of(job.id) == ("job", job.key)


async def test_a_key_makes_one_job_however_often_it_is_used(app: Keptwork) -> None:
    @app.job()
    async def once(ctx: Context, n: int) -> None: ...

    first, second, other = [await once.enqueue(n=n, _key=key) for n, key in [(1, "a"), (2, "a"), (3, "b")]]
    assert first.key == second.key != other.key
    assert json.loads((await row(app, first))["payload"]) == {"n": 1}
    assert await app.work(until_idle=True) == 2


async def test_a_delay_a_priority_a_queue_and_ids_reach_the_job(app: Keptwork) -> None:
    @app.job(queue="usual", priority=3)
    async def plain(ctx: Context) -> str:
        return ctx.correlation_id

    later = await plain.enqueue(_run_in="5m", _priority=0, _queue="other", _correlation_id="c-1", _trace_id="t-1")
    found, now = await row(app, later), await (await app.open()).now()
    assert 290_000_000 < found["run_at"] - now <= 300_000_000
    assert [found[name] for name in ("priority", "queue", "correlation_id", "trace_id")] == [0, "other", "c-1", "t-1"]
    usual = await plain.enqueue()
    found = await row(app, usual)
    assert (found["priority"], found["queue"]) == (3, "usual")
    assert await app.work(until_idle=True) == 1
    assert json.loads((await row(app, usual))["result"]) == usual.id
    assert await state(app, later) == "queued"


async def test_only_the_queues_asked_for_are_served(app: Keptwork) -> None:
    @app.job(queue="a")
    async def one(ctx: Context) -> None: ...

    @app.job(queue="b")
    async def two(ctx: Context) -> None: ...

    jobs = [await one.enqueue(), await two.enqueue()]
    await app.work(queues=["b"], until_idle=True)
    assert [await state(app, job) for job in jobs] == ["queued", "succeeded"]
    await app.work(until_idle=True)
    assert await state(app, jobs[0]) == "succeeded"


async def test_jobs_of_a_transaction_are_there_if_it_commits_and_never_were_if_not(app: Keptwork) -> None:
    @app.job()
    async def one(ctx: Context) -> None: ...

    async with app.transaction() as tx:
        kept = [await one.enqueue(_tx=tx), await one.enqueue(_tx=tx, _key="k")]
    async with undone(await app.open()) as tx:
        gone = await one.enqueue(_tx=tx)
    assert [await state(app, job) for job in kept] == ["queued"] * 2
    assert await (await app.open()).get(JOB, gone.key, None) is None
    assert await app.work(until_idle=True) == 2


async def test_many_are_enqueued_all_or_none(app: Keptwork) -> None:
    @app.job()
    async def takes(ctx: Context, n: int) -> None: ...

    with pytest.raises(BadInput, match="job takes: missing a required argument: 'n'"):
        await app.enqueue_many(takes, [{"n": 1}, {}])
    assert await app.work(until_idle=True) == 0
    assert await app.enqueue_many(takes, []) == []
    assert len(await app.enqueue_many(takes, ({"n": n} for n in range(3)))) == 3
    assert await app.work(until_idle=True) == 3


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("keptwork")}


async def test_first_uses_at_the_same_time_open_one_store(database_url: str) -> None:
    before = our_threads()
    app = Keptwork(database_url)
    stores = await asyncio.gather(*[app.open() for _ in range(5)])
    assert len(set(map(id, stores))) == 1
    await app.close()
    await app.close()
    assert our_threads() == before


async def test_two_workers_in_one_process_share_the_work_and_both_stop(app: Keptwork) -> None:
    met = threading.Barrier(2, timeout=10)

    @app.job()
    def meets(ctx: Context) -> None:
        met.wait()

    jobs = await app.enqueue_many(meets, [{}] * 2)
    works = [asyncio.create_task(app.work(concurrency=1, name=name)) for name in ("ann", "bob")]

    async def done() -> bool:
        return [await state(app, job) for job in jobs] == ["succeeded"] * 2

    await eventually(done)
    app.stop()
    assert await asyncio.wait_for(asyncio.gather(*works), 60) == [1, 1]


async def test_a_worker_that_is_asked_to_stop_while_it_starts_ends_at_once(app: Keptwork) -> None:
    @app.job()
    async def never(ctx: Context) -> None: ...

    job = await never.enqueue()
    await app.close()
    work = asyncio.create_task(app.work())
    await asyncio.sleep(0)  # it has begun to open the database
    app.stop()
    assert await asyncio.wait_for(work, 60) == 0
    async with app:
        row = await (await app.open()).get(JOB, job.key, None)
    assert row is not None
    assert row["state"] == "queued"


@pytest.mark.acceptance
async def test_no_connection_is_left_after_close(postgres_copy: str) -> None:
    app = Keptwork(postgres_copy)

    @app.job(lease="1s")
    async def long_enough_to_be_looked_at(ctx: Context) -> None:
        await asyncio.sleep(0.7)  # past half of its lease, so that the lease keeper connects

    await long_enough_to_be_looked_at.enqueue()
    watcher = await asyncpg.connect(postgres_copy)

    async def connections() -> int:
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        return int(await watcher.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {others}"))

    async def nobody() -> bool:
        return await connections() == 0

    await app.work(until_idle=True)
    assert await connections()
    await app.close()
    await eventually(nobody)
    await watcher.close()


# --- in memory


async def test_a_database_in_memory_works_like_any_other(memory: Keptwork) -> None:
    attempts: list[int] = []

    @memory.job(max_attempts=2, backoff=0)
    async def again(ctx: Context) -> Snooze | str:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise OSError
        return Snooze() if len(attempts) == 2 else "done"

    job = await again.enqueue()
    await memory.work(until_idle=True)
    assert (await state(memory, job), attempts) == ("succeeded", [1, 2, 2])


@pytest.mark.acceptance
@pytest.mark.parametrize("kind", ["blocks the loop", "waits", "in a thread"])
async def test_in_memory_a_handler_keeps_its_lease_for_longer_than_it_lasts(memory: Keptwork, kind: str) -> None:
    async def blocks(ctx: Context) -> None:
        time.sleep(1.2)  # noqa: ASYNC251 - the point of the test

    async def waits(ctx: Context) -> None:
        await asyncio.sleep(1.2)

    def sleeps(ctx: Context) -> None:
        time.sleep(1.2)

    handlers: dict[str, Callable[..., Any]] = {"blocks the loop": blocks, "waits": waits, "in a thread": sleeps}
    job = await memory.job(lease="500ms")(handlers[kind]).enqueue()
    assert await memory.work(until_idle=True) == 1
    assert await triggers(memory, job) == ["enqueue", "claim", "start", "succeed"]


@pytest.mark.acceptance
async def test_a_handler_that_changes_the_folder_keeps_its_lease_and_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEPTWORK_DB", "sqlite:///100%25 mine.db")
    async with Keptwork() as app:

        @app.job(lease="500ms")
        def wanders(ctx: Context) -> None:
            os.chdir(elsewhere)
            os.environ["KEPTWORK_DB"] = "sqlite:///other.db"
            time.sleep(1.2)

        job = await wanders.enqueue()
        assert await app.work(until_idle=True) == 1
        assert await triggers(app, job) == ["enqueue", "claim", "start", "succeed"]
    assert (tmp_path / "100% mine.db").exists()
    assert list(elsewhere.iterdir()) == []


# --- refusals, each one clear line


async def test_two_kinds_with_one_name_are_refused(memory: Keptwork) -> None:
    async def same(ctx: Context) -> None: ...

    await memory.job()(same).enqueue()
    with pytest.raises(BadInput, match="there are two kinds of jobs called 'same'; give one of them a name="):
        memory.job()(same)
    assert memory.job(name="another")(same).kind.name == "another"


def no_parameters() -> None: ...
def only_keywords(*, url: str) -> None: ...
def only_whatever(**arguments: object) -> None: ...


@pytest.mark.parametrize("handler", [no_parameters, only_keywords, only_whatever])
def test_a_handler_without_a_context_is_refused(handler: Callable[..., None]) -> None:
    with pytest.raises(BadInput, match=f"job {handler.__name__}: its first parameter must be the context"):
        Keptwork("sqlite:///:memory:").job()(handler)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"max_attempts": 0}, "job dig: max_attempts is 0; it must be at least 1"),
        ({"max_attempts": 1 << 31}, "at most 2147483647"),
        ({"priority": 1 << 31}, "job dig: 2147483648 is no priority; it is a whole number"),
        ({"priority": "high"}, "'high' is no priority"),
        ({"priority": True}, "True is no priority"),
        ({"queue": ""}, "'' is no queue; it must be printable text"),
        ({"queue": "q" * 201}, "a queue of 201 characters is over the limit of 200"),
        ({"name": "n" * 201}, "a kind of 201 characters is over the limit of 200"),
        ({"on_exhausted": "shrug"}, "on_exhausted is 'shrug'; say 'dead_letter' or 'fail'"),
        ({"lease": 0}, "a lease of no time at all"),
        ({"lease": "soon"}, "'soon' is no duration"),
        ({"backoff": -1}, "-1 is no duration"),
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, Any], message: str) -> None:
    def dig(ctx: Context) -> None: ...

    with pytest.raises(BadInput, match=message):
        Keptwork("sqlite:///:memory:").job(**rules)(dig)


async def test_payloads_that_cannot_be_kept_are_refused_before_anything_is_stored(memory: Keptwork) -> None:
    @memory.job()
    async def takes(ctx: Context, value: object = None) -> None: ...

    fits = LARGEST_PAYLOAD - len('{"value":""}')
    for value, message in [
        (object(), "job takes: Object of type object is not JSON serializable"),
        (float("nan"), "job takes: Out of range float values are not JSON compliant"),
        ("x" * (fits + 1), "job takes: a payload of 1,048,577 bytes is over the limit of 1 MiB"),
    ]:
        with pytest.raises(BadInput, match=message):
            await takes.enqueue(value=value)
    with pytest.raises(BadInput, match="job takes: got an unexpected keyword argument 'other'"):
        await takes.enqueue(other=1)
    await takes.enqueue(value="x" * fits)
    assert await memory.work(until_idle=True) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"_priority": -(1 << 31)}, "-2147483648 is no priority"),
        ({"_priority": 1.5}, "1.5 is no priority"),
        ({"_queue": "a\nb"}, "is no queue"),
        ({"_key": "k" * 501}, "a key of 501 characters is over the limit of 500"),
        ({"_key": 17}, "17 is no key"),
        ({"_correlation_id": "\0"}, "is no correlation"),
        ({"_run_in": "soon"}, "'soon' is no duration"),
    ],
)
async def test_what_is_said_of_one_job_is_checked_before_anything_is_stored(
    memory: Keptwork, given: dict[str, Any], message: str
) -> None:
    @memory.job()
    async def plain(ctx: Context) -> None: ...

    with pytest.raises(BadInput, match=message):
        await plain.enqueue(**given)
    assert await memory.work(until_idle=True) == 0


async def test_a_worker_without_slots_and_a_tenant_without_a_row_are_refused(sqlite_url: str) -> None:
    async with Keptwork(sqlite_url) as app:
        with pytest.raises(BadInput, match="a concurrency of 0 does nothing; it must be at least 1"):
            await app.work(concurrency=0)
    threads = our_threads()
    with pytest.raises(KeptworkError, match="No tenant nobody"):
        await Keptwork(sqlite_url, tenant="nobody").open()
    assert our_threads() == threads
