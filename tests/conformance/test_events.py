"""Events: one page at a time, narrowed, in either direction, and entity by entity."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork.core.lifecycles import CREW, JOB, RUN
from keptwork.errors import BadInput
from keptwork.store import Event, EventFilter, NewJob, Store
from keptwork.store.contract.store import Reader
from tests.conformance.by_hand import Hand, PostgresHand
from tests.conformance.promises import keeps
from tests.conformance.stage import NEEDED, log, moved, queued, settled, worker
from tests.conformance.times import SECOND, SetClock


async def pages(store: Store, size: int, **how: Any) -> list[Event]:
    """The whole log, read page by page."""
    found: list[Event] = []
    after: str | None = None
    while page := await store.events(after=after, limit=size, **how):
        assert len(page) <= size
        found += page
        after = page[-1].cursor
    return found


@keeps(
    Reader.events,
    "Return one page of the log",
    "Reading on from the last cursor, oldest first, never skips or repeats an event",
)
async def test_read_on_from_the_last_cursor_no_event_is_missed_or_repeated(store: Store) -> None:
    ids = [id for _ in range(4) for id in await queued(store, 3)]
    for id in ids:
        await moved(store, JOB, id, "cancel")
    await settled(store)
    whole = await store.events(limit=100)
    assert [event.entity_id for event in whole] == ids * 2
    for size in (1, 5, 100):
        assert await pages(store, size) == whole


async def test_newest_first_is_the_same_log_from_its_other_end(store: Store) -> None:
    for _ in range(7):
        await queued(store)
    await settled(store)
    whole = await store.events(limit=100)
    for size in (1, 3, 100):
        assert (await pages(store, size, newest_first=True))[::-1] == whole


async def test_events_stand_in_the_order_of_commits(store: Store) -> None:
    id = await store.create(CREW, **NEEDED["crew"])
    (job,) = await queued(store)
    await moved(store, CREW, id, "validate")
    await moved(store, JOB, job, "cancel")
    await settled(store)
    assert [(event.entity_id, event.seq) for event in await store.events()] == [(id, 1), (job, 1), (id, 2), (job, 2)]


async def test_events_are_narrowed_by_every_field_of_the_filter(
    timed: Store, clock: SetClock, other_tenant: int
) -> None:
    start = clock.now
    crew = await timed.create(CREW, **NEEDED["crew"], correlation_id="c-1")
    await clock.advance(SECOND)
    (job,) = await timed.enqueue([NewJob("kind", tenant_id=other_tenant, correlation_id="c-2")])
    await clock.advance(SECOND)
    await moved(timed, CREW, crew, "validate")
    await settled(timed)
    for wanted, found in (
        (EventFilter(), [crew, job, crew]),
        (EventFilter(tenant_id=other_tenant), [job]),
        (EventFilter(tenant_id=3), []),
        (EventFilter(entity="crew"), [crew, crew]),
        (EventFilter(entity_id=job), [job]),
        (EventFilter(type="crew_validate"), [crew]),
        (EventFilter(correlation_id="c-2"), [job]),
        (EventFilter(since=start + SECOND), [job, crew]),
        (EventFilter(until=start + SECOND), [crew]),
        (EventFilter(since=start + 1, until=start + 2 * SECOND), [job]),
        (EventFilter(entity="crew", type="crew_submit", correlation_id="c-1", tenant_id=1), [crew]),
        (EventFilter(entity="crew", tenant_id=other_tenant), []),
    ):
        assert [event.entity_id for event in await timed.events(wanted)] == found, wanted
        newest = await timed.events(wanted, newest_first=True)
        assert [event.entity_id for event in newest] == found[::-1], wanted


async def test_a_narrowed_log_is_read_on_by_cursor_too(store: Store) -> None:
    crew = await store.create(CREW, **NEEDED["crew"])
    await queued(store, 3)
    await moved(store, CREW, crew, "validate")
    await settled(store)
    wanted = EventFilter(entity="crew")
    (first,) = await store.events(wanted, limit=1)
    assert [event.trigger for event in await store.events(wanted, after=first.cursor)] == ["validate"]


BAD_CURSORS = ["", "x", "1-x", "1-2-3", "-1", "1;", "1_0", "٣", "99999999999999999999", "1-99999999999999999999"]


async def test_a_cursor_that_is_none_of_ours_is_bad_input(store: Store) -> None:
    await queued(store)
    for cursor in BAD_CURSORS:
        for newest_first in (False, True):
            with pytest.raises(BadInput, match="no event cursor of this database"):
                await store.events(after=cursor, newest_first=newest_first)


async def test_a_cursor_of_the_other_kind_of_database_is_bad_input(store: Store, hand: Hand) -> None:
    with pytest.raises(BadInput):
        await store.events(after="7" if isinstance(hand, PostgresHand) else "7-7")


async def test_a_cursor_past_the_end_finds_nothing(store: Store) -> None:
    await queued(store)
    (event,) = await log(store)
    assert await store.events(after=event.cursor) == []


async def test_an_event_says_its_entity_by_its_public_id(store: Store) -> None:
    await store.create(RUN)
    (event,) = await log(store)
    assert event.entity_public_id.startswith("run_")


@keeps(Reader.event_count, "Return the number of events")
async def test_events_are_counted_all_or_one_tenants(store: Store, other_tenant: int) -> None:
    await queued(store, 3)
    await store.enqueue([NewJob("kind", tenant_id=other_tenant)])
    assert await store.event_count() == 4
    assert await store.event_count(other_tenant) == 1
    assert await store.event_count(3) == 0


@keeps(Reader.history, "Return one page of the log sorted by entity, starting after (entity ID, seq, entity)")
async def test_the_log_is_read_entity_by_entity(store: Store) -> None:
    ids = [await store.create(RUN), *await queued(store, 2)]
    for id in ids[1:]:
        await moved(store, JOB, id, "cancel")
    await moved(store, RUN, ids[0], "start")
    whole = [(id, seq) for id in sorted(ids) for seq in (1, 2)]
    found: list[tuple[int, int]] = []
    after: tuple[int, int, str] = (0, 0, "")
    while page := await store.history(after, 2):
        assert len(page) <= 2
        found += [(event.entity_id, event.seq) for event in page]
        after = (page[-1].entity_id, page[-1].seq, page[-1].entity)
    assert found == whole


@keeps(
    Reader.log_end,
    "Return a cursor after which every later commit's events appear",
    "A few events that already exist might appear after it, too",
)
async def test_every_event_that_commits_from_now_on_comes_after_the_end_of_the_log(store: Store) -> None:
    old = await queued(store, 3)
    await settled(store)
    end = await store.log_end()
    new = await queued(store, 2)
    await settled(store)
    found = [event.entity_id for event in await store.events(after=end)]
    assert found[-2:] == new
    assert set(found[:-2]) <= set(old)


async def test_an_empty_log_has_an_end_too(store: Store) -> None:
    end = await store.log_end()
    ids = await queued(store, 2)
    await settled(store)
    assert [event.entity_id for event in await store.events(after=end)] == ids


@keeps(Reader.faults, "Return the faults of the database itself, such as damaged storage and missing or changed guards")
async def test_a_missing_guard_is_a_fault_and_a_sound_database_has_none(store: Store, hand: Hand) -> None:
    await worker(store)
    assert await store.faults() == []
    if isinstance(hand, PostgresHand):
        await hand.run("ALTER TABLE jobs DISABLE TRIGGER keptwork_job_moves")
        faults = await store.faults()
        await hand.run("ALTER TABLE jobs ENABLE TRIGGER keptwork_job_moves")
    else:
        await hand.run("DROP TRIGGER keptwork_job_moves")
        faults = await store.faults()
    assert len(faults) == 1
    assert "keptwork_job_moves is missing" in faults[0]
