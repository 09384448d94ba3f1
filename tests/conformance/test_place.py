"""Where a job stands in its queue."""

from __future__ import annotations

from keptwork.core.lifecycles import JOB
from keptwork.store import NewJob, Store
from keptwork.store.contract.records import Place
from keptwork.store.contract.store import Reader
from tests.conformance.promises import keeps
from tests.conformance.stage import moved, queued


@keeps(
    Reader.place,
    "Return the position of a job",
    "It has the time when the job's queue was paused, the number of due jobs ahead of the job, and the number "
    "of its unfinished children",
)
async def test_a_job_stands_behind_what_is_due_before_it(store: Store) -> None:
    (first, second) = await queued(store, 2)
    (urgent,) = await queued(store, priority=5)
    await queued(store, priority=9, delay_us=3_600_000_000)
    await queued(store, queue="elsewhere", priority=9)
    await queued(store, held_by="limit", priority=9)
    other = await store.add_tenant("other")
    await queued(store, tenant_id=other, priority=9)
    places = [await store.place(1, id) for id in (urgent, first, second)]
    assert places == [Place(None, 0, 0), Place(None, 1, 0), Place(None, 2, 0)]


async def test_it_tells_of_its_paused_queue_and_of_children_that_have_not_ended(store: Store) -> None:
    (id,) = await queued(store)
    ended, _ = await store.enqueue([NewJob("child", parent_id=id, queue="c")] * 2)
    await moved(store, JOB, ended, "cancel")
    await store.set_queue_paused("default", True)
    place = await store.place(1, id)
    assert place is not None
    assert place.paused_at is not None
    assert (place.ahead, place.children) == (0, 1)


@keeps(Reader.place, "Return None if the tenant has no such job")
async def test_another_tenants_job_stands_nowhere(store: Store) -> None:
    (id,) = await queued(store)
    assert await store.place(await store.add_tenant("other"), id) is None
    assert await store.place(1, id + 1) is None
