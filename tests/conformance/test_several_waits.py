"""Jobs that wait for several things at a time: each of them wakes, and their rows belong to one epoch."""

from __future__ import annotations

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import Job, Store
from keptwork.store.contract.store import Reader
from keptwork.store.contract.waits_signals import NewSignal
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, moved, queued, worker
from tests.conformance.waiting import LATER, due

OURS, THEIRS = 1, 2
SEVERAL = [("event a", LATER, 0), ("event b", None, 0), ("sleep", LATER + 1, 0)]


async def waiting(store: Store) -> Job:
    await queued(store)
    (job,) = await claim(store, await worker(store), 1, start=True)
    values = {"run_at": LATER, "waits_for": "event a, event b, sleep", "seen": 0, "waits": SEVERAL}
    await moved(store, JOB, job.id, "snooze", by="holder", values=values)
    return job


@keeps(
    Reader.open_waits,
    "Return the open waits of a job that waits for several things at a time, each with its deadline",
    "The list is empty for any other job, and after one of the waits has ended",
    "Another tenant's job has none",
)
@pytest.mark.parametrize("name", ["a", "b"])
async def test_each_of_several_waits_wakes_the_job_once(store: Store, name: str) -> None:
    job = await waiting(store)
    assert await store.open_waits(OURS, job.id) == [(name, until) for name, until, _ in SEVERAL]
    assert await store.open_waits(THEIRS, job.id) == []
    assert not await due(store, job)
    assert (await store.send_signal(NewSignal(OURS, "c", "1", "k0"))).woken == 0
    assert (await store.send_signal(NewSignal(OURS, name, "1", "k1"))).woken == 1
    assert await due(store, job)
    assert (await store.send_signal(NewSignal(OURS, name, "1", "k2"))).woken == 0
    assert await store.open_waits(OURS, job.id) == []


async def test_waits_of_an_earlier_epoch_wake_nobody(store: Store) -> None:
    job = await waiting(store)
    assert (await store.send_signal(NewSignal(OURS, "a", "1", "k1"))).woken == 1
    (again,) = await claim(store, await worker(store), 1, start=True)
    assert again.id == job.id
    values = {"run_at": LATER, "waits_for": "event c", "seen": 0}
    await moved(store, JOB, job.id, "snooze", by="holder", values=values)
    assert await store.open_waits(OURS, job.id) == []
    assert (await store.send_signal(NewSignal(OURS, "b", "1", "k2"))).woken == 0
    assert (await store.send_signal(NewSignal(OURS, "c", "1", "k3"))).woken == 1
