"""Signals: a sequence for each name, and nobody who begins to wait misses one."""

from __future__ import annotations

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import Job, Store, open_store
from keptwork.store.contract.store import Reader, Writer
from keptwork.store.contract.waits_signals import EVERYONE, NewSignal, Sent, Signal
from tests.conformance.promises import keeps
from tests.conformance.stage import Verbs, claim, decided, moved, queued, undone, worker
from tests.conformance.times import SetClock
from tests.conformance.waiting import LATER, beside, due
from tests.support.broken_sql import leave_out

OURS = 1


async def running(store: Store) -> Job:
    await queued(store)
    (job,) = await claim(store, await worker(store), 1, start=True)
    return job


async def send(store: Verbs, name: str = "go", key: str | None = None, **more: int) -> Sent:
    return await store.send_signal(NewSignal(more.get("tenant_id", OURS), name, '{"n":1}', key or f"{name} {id(more)}"))


def waiting(name: str = "go", seen: int = 0) -> dict[str, object]:
    return {"run_at": LATER, "waits_for": f"event {name}", "seen": seen}


async def wait(store: Verbs, job: Job, name: str = "go", seen: int = 0) -> None:
    await moved(store, JOB, job.id, "snooze", by="holder", values=waiting(name, seen))


@keeps(
    Reader.next_signal,
    "Return the first signal of this name after a position, sent to this job or to all jobs",
    "Return None if there is none yet",
)
async def test_signals_of_a_name_are_read_one_after_the_other(store: Store, other_tenant: int) -> None:
    sent = [
        await store.send_signal(NewSignal(OURS, name, payload, payload, job))
        for name, payload, job in (("go", "1", 0), ("no", "2", 0), ("go", "3", 7), ("go", "4", 8), ("go", "5", 0))
    ]
    await store.send_signal(NewSignal(other_tenant, "go", "6", "6"))
    places = [one.id for one in sent]
    assert places == sorted(places)

    async def read(job: int, tenant_id: int = OURS) -> list[str]:
        found, after = [], 0
        while (signal := await store.next_signal(tenant_id, job, "go", after)) is not None:
            found.append(signal.payload)
            after = signal.id
        return found

    assert (await read(7), await read(8), await read(9)) == (["1", "3", "5"], ["1", "4", "5"], ["1", "5"])
    assert await read(7, other_tenant) == ["6"]
    assert await store.next_signal(OURS, 7, "never", 0) is None
    assert await store.next_signal(OURS, 7, "go", places[1]) == Signal(places[2], "3")


@keeps(Writer.send_signal, "Send a signal and make the jobs due that wait for it")
async def test_a_signal_makes_due_whoever_waits_for_it(store: Store, other_tenant: int) -> None:
    jobs = [await running(store) for _ in range(4)]
    for job, name in zip(jobs, ("go", "go", "no", "go"), strict=True):
        await wait(store, job, name)
    assert (await store.send_signal(NewSignal(other_tenant, "go", "1", "a"))).woken == 0
    assert (await store.send_signal(NewSignal(OURS, "go", "1", "b", jobs[3].id))).woken == 1
    assert [await due(store, job) for job in jobs] == [False, False, False, True]
    assert (await store.send_signal(NewSignal(OURS, "go", "1", "c", EVERYONE))).woken == 2
    assert [await due(store, job) for job in jobs] == [True, True, False, True]


@keeps(Writer.send_signal, "A signal whose key was used before is not sent again")
async def test_a_key_sends_one_signal(store: Store, other_tenant: int) -> None:
    first = await send(store, key="k")
    assert first == Sent(first.id, True, 0)
    job = await running(store)
    await wait(store, job, seen=first.id)
    assert await send(store, key="k") == Sent(first.id, False, 0)
    assert not await due(store, job)
    assert (await send(store, key="k", tenant_id=other_tenant)).new


async def test_a_signal_in_a_transaction_that_is_undone_was_never_sent(store: Store) -> None:
    job = await running(store)
    await wait(store, job)
    async with undone(store) as transaction:
        assert (await send(transaction)).woken == 1
    assert not await due(store, job)
    assert await store.next_signal(OURS, job.id, "go", 0) is None


@keeps(
    Writer.forget_signals, "Delete at most `limit` signals sent before this time, oldest first, and return their number"
)
async def test_old_signals_are_dropped_the_oldest_first(timed: Store, clock: SetClock) -> None:
    for number in range(4):
        await timed.send_signal(NewSignal(OURS, "go", str(number), str(number)))
        await clock.advance(1000)
    assert await timed.forget_signals(clock.now - 4000) == 0
    assert await timed.forget_signals(clock.now - 1000, 2) == 2
    left = await timed.next_signal(OURS, 1, "go", 0)
    assert left is not None
    assert left.payload == "2"
    assert await timed.forget_signals(clock.now - 1000) == 1
    assert await timed.forget_signals(clock.now + 1) == 1


async def test_a_tenants_transaction_sends_and_wakes_its_own(store: Store, other_tenant: int) -> None:
    await queued(store, tenant_id=other_tenant)
    (job,) = await claim(store, await worker(store), 1, start=True)
    await wait(store, job)
    async with store.transaction(tenant_id=other_tenant) as transaction:
        assert (await send(transaction, tenant_id=other_tenant)).woken == 1
    assert await due(store, job)


# --- races


async def sent_before_the_wait_is_written(store: Store) -> bool:
    job = await running(store)
    snooze = await decided(store, JOB, job.id, "snooze", by="holder", values=waiting())
    assert await beside(store, send, lambda: store.apply([snooze])) == []
    return await due(store, job)


async def sent_while_the_wait_is_written(store: Store) -> bool:
    job = await running(store)
    await beside(store, lambda transaction: wait(transaction, job), lambda: send(store))
    return await due(store, job)


@keeps(Writer.send_signal, "A job that starts to wait at the same time does not miss it")
@pytest.mark.parametrize("race", [sent_before_the_wait_is_written, sent_while_the_wait_is_written])
async def test_sender_and_waiter_that_come_at_once_do_not_miss_each_other(store: Store, race: object) -> None:
    assert await race(store)  # type: ignore[operator]


async def test_the_test_above_notices_a_store_without_the_lock(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, "lock_signals", r"pg_advisory_xact_lock\(k.class, k.number\)", "k.number")
    monkeypatch.setattr("tests.conformance.waiting.PATIENCE", 10)
    store = await open_store(emptied_database)
    try:
        assert not await sent_before_the_wait_is_written(store)
    finally:
        await store.close()
    store = await open_store(emptied_database)
    try:
        await store.forget_signals(1 << 60)
        assert not await sent_while_the_wait_is_written(store)
    finally:
        await store.close()


async def test_and_one_that_does_not_look_again(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keptwork.store.contract.waits._note_wait", lambda found, change: None)
    store = await open_store(database_url)
    try:
        assert not await sent_before_the_wait_is_written(store)
    finally:
        await store.close()
