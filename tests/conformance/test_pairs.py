"""Pairs: two moves of a record in one write, each with its number and its event."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import LIFECYCLES, Change, Verb, decide, insist
from keptwork.store import EventFilter, Store
from keptwork.store.contract.store import Writer
from tests.conformance.promises import keeps

BOTH = "A pair of moves has two events, one after the other"
IN_ORDER = "of several pairs those of the lower key come first"
AGAIN = "The same change by the same actor a second time counts as written"


async def steps(store: Store, kind: str, count: int) -> list[dict[str, Any]]:
    made = await store.create_many(LIFECYCLES[kind], [{"name": f"s{place}"} for place in range(count)])
    return sorted(await store.rows(LIFECYCLES[kind], made), key=lambda row: int(row["id"]))


def carried(kind: str, row: dict[str, Any], ago_us: int = 0, took_us: int = 1) -> Change:
    values = {"output": "{}", "job_id": 17, "ago_us": ago_us, "took_us": took_us, "cost_micros": 5}
    said: dict[str, Any] = {"values": values, "actor": "me", "reason": "it was", "dependencies_met": True}
    return insist(decide(LIFECYCLES[kind], row, Verb.START, then=Verb.SUCCEED, **said))


@pytest.mark.parametrize("kind", ["run-step", "workstream-step"])
@keeps(
    Writer.apply,
    "A combined move has two events in sequence",
    "Among several combined moves, the events of the lower ID come first",
)
async def test_a_pair_is_one_write_with_two_events_record_by_record(store: Store, kind: str) -> None:
    rows = await steps(store, kind, 3)
    begins, ends = LIFECYCLES[kind].pairs[0]
    assert await store.apply([carried(kind, row) for row in reversed(rows)]) == []
    log = (await store.events(EventFilter(entity=kind), limit=100))[len(rows) :]
    assert [(one.entity_id, one.seq, one.trigger) for one in log] == [
        (row["id"], *told) for row in rows for told in ((2, begins), (3, ends))
    ]
    assert [one.actor for one in log] == ["me"] * 6
    assert [one.reason for one in log] == [None, "it was"] * 3
    for row in await store.rows(LIFECYCLES[kind], [row["id"] for row in rows]):
        assert (row["seq"], row["job_id"], row["attempts"], row["cost_micros"]) == (3, 17, 1, 5)
        assert row["completed_at"] is not None
    assert list((await verify.verify(store)).problems) == []


@keeps(Writer.apply, "A combined move has two events in sequence")
async def test_a_pair_tells_when_it_was_and_how_long_it_took(store: Store) -> None:
    (row,) = await steps(store, "workstream-step", 1)
    assert await store.apply([carried("workstream-step", row, took_us=2_500)]) == []
    (after,) = await store.rows(LIFECYCLES["workstream-step"], [row["id"]])
    first, second = (await store.events(EventFilter(entity="workstream-step"), limit=9))[1:]
    assert (first.ts, second.ts) == (after["started_at"], after["completed_at"])
    assert second.ts - first.ts == 2_500
    assert first.ts > row["updated_at"]


@keeps(Writer.apply, "A combined move has two events in sequence")
async def test_what_was_over_a_while_ago_is_not_put_before_what_was_there_before(store: Store) -> None:
    (row,) = await steps(store, "workstream-step", 1)
    assert await store.apply([carried("workstream-step", row, ago_us=10**12, took_us=10)]) == []
    (after,) = await store.rows(LIFECYCLES["workstream-step"], [row["id"]])
    assert (after["started_at"], after["completed_at"]) == (row["updated_at"] + 1, row["updated_at"] + 11)


@keeps(Writer.apply, "A repeated change by the same actor counts as written")
async def test_a_pair_sent_again_counts_as_written_and_one_that_comes_too_late_changes_nothing(store: Store) -> None:
    (row,) = await steps(store, "run-step", 1)
    change = carried("run-step", row)
    assert await store.apply([change]) == []
    count = await store.event_count()
    assert await store.apply([change]) == []
    stranger = change._replace(actor="another")
    assert await store.apply([stranger]) == [stranger]
    assert await store.event_count() == count
