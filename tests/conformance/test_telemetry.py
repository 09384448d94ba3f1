"""Telemetry: what is seen between moves, kept for a while and no part of the log."""

from __future__ import annotations

from keptwork.core.lifecycles import JOB, WORKER
from keptwork.store import Store
from keptwork.store.contract.records import Telemetry
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import log, worker
from tests.conformance.times import SECOND, SetClock


@keeps(
    Reader.telemetry,
    "Return the latest telemetry of an entity, newest first",
    "Another tenant's entity has none",
)
@keeps(
    Writer.record_telemetry,
    "Store telemetry of an entity until it expires",
    "This is not a move and writes no event",
)
async def test_what_is_seen_is_read_back_newest_first_and_is_in_no_log(timed: Store, clock: SetClock) -> None:
    id = await worker(timed)
    first = clock.now
    await timed.record_telemetry(WORKER, id, "beat", '{"n":1}', ttl_us=9 * SECOND)
    await clock.advance(SECOND)
    await timed.record_telemetry(WORKER, id, "beat", '{"n":2}', ttl_us=9 * SECOND)
    seen = [Telemetry("beat", first + SECOND, '{"n":2}'), Telemetry("beat", first, '{"n":1}')]
    assert await timed.telemetry(WORKER, id, 1) == seen
    assert await timed.telemetry(WORKER, id, 1, limit=1) == seen[:1]
    assert [await timed.telemetry(WORKER, id, 2), await timed.telemetry(JOB, id, 1)] == [[], []]
    assert [event.type for event in await log(timed, entity_id=id)] == ["worker_register"]


@keeps(Writer.forget_telemetry, "Delete at most `limit` expired telemetry rows, and return their number")
@keeps(Writer.record_telemetry, "Store telemetry of an entity until it expires")
async def test_telemetry_is_dropped_when_its_time_is_over_and_not_before(timed: Store, clock: SetClock) -> None:
    for place in range(3):
        await timed.record_telemetry(WORKER, 7, f"beat {place}", "{}", ttl_us=SECOND)
    await timed.record_telemetry(WORKER, 7, "later", "{}", ttl_us=SECOND + 1)
    assert await timed.forget_telemetry() == 0
    await clock.advance(SECOND)
    assert [await timed.forget_telemetry(limit=2) for _ in range(3)] == [2, 1, 0]
    assert [seen.kind for seen in await timed.telemetry(WORKER, 7, 1)] == ["later"]
