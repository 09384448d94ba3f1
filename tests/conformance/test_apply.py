"""Apply: each move of a job writes what it says and nothing else, with one event."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from keptwork.core.decide import NOTHING
from keptwork.core.lifecycles import JOB, decide, insist
from keptwork.store import Store
from keptwork.store.contract.store import Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import LEASE, decided, entity, in_state, log, moved, queued, running, worker
from tests.conformance.times import SECOND, SetClock

NOW = object()  # stands for the time of the move
DELAY = 7 * SECOND

IN_QUEUE = {"state": "queued", "epoch": 1, "owner": None, "claim_id": None, "lease_until": None}
ENDED = {"lease_until": None, "completed_at": NOW}


class Case(NamedTuple):
    """A move from a state by a right, and every column it changes beside those that every move does."""

    trigger: str
    source: str
    by: str
    event: str
    changes: dict[str, Any]
    values: Mapping[str, Any] = NOTHING

    def __str__(self) -> str:
        return f"{self.trigger}-{self.source}-{self.by}"


JOB_MOVES = [
    Case("start", "assigned", "holder", "job_started", {"state": "running", "attempts": 1, "started_at": NOW}),
    Case(
        "succeed",
        "running",
        "holder",
        "job_succeeded",
        {"state": "succeeded", "result": '{"size": 3}', **ENDED},
        {"result": '{"size": 3}'},
    ),
    *[
        Case("fail", source, by, "job_failed", {"state": "failed", "error": "gone", **ENDED}, {"error": "gone"})
        for source in ("assigned", "running")
        for by in ("holder", "reaper")
    ],
    Case(
        "retry",
        "running",
        "holder",
        "job_retry_scheduled",
        {**IN_QUEUE, "error": "busy", "run_at": DELAY},
        {"error": "busy", "delay_us": DELAY},
    ),
    *[Case("expire", source, "reaper", "job_lease_expired", IN_QUEUE) for source in ("assigned", "running")],
    *[
        Case(
            "release",
            source,
            by,
            "job_released",
            {**IN_QUEUE, "run_at": DELAY, **({"attempts": 0} if source == "running" else {})},
            {"delay_us": DELAY},
        )
        for source in ("assigned", "running")
        for by in ("holder", "operator")
    ],
    Case(
        "snooze",
        "running",
        "holder",
        "job_snoozed",
        {**IN_QUEUE, "run_at": DELAY, "attempts": 0},
        {"delay_us": DELAY},
    ),
    Case("cancel", "queued", "operator", "job_cancelled", {"state": "cancelled", "completed_at": NOW}),
    *[
        Case("cancel", source, by, "job_cancelled", {"state": "cancelled", **ENDED})
        for source in ("assigned", "running")
        for by in ("holder", "operator")
    ],
    Case(
        "dead_letter",
        "queued",
        "operator",
        "job_dead_lettered",
        {"state": "dead_lettered", "error": "poison", "completed_at": NOW},
        {"error": "poison"},
    ),
    *[
        Case(
            "dead_letter",
            source,
            by,
            "job_dead_lettered",
            {"state": "dead_lettered", "error": "poison", **ENDED},
            {"error": "poison"},
        )
        for source in ("assigned", "running")
        for by in ("holder", "reaper", "operator")
    ],
]

SAID = {"actor": "ann", "reason": "because", "cause": "job_1", "detail": '{"n": 1}'}


@pytest.mark.parametrize("case", JOB_MOVES, ids=str)
@keeps(Writer.apply, "Write each change and its event if its record is still as it was when it was decided")
async def test_a_move_of_a_job_changes_what_it_says_and_writes_one_event(
    timed: Store, clock: SetClock, case: Case
) -> None:
    id = await in_state(timed, await worker(timed), case.source)
    await clock.advance(2 * LEASE if case.by == "reaper" else SECOND)
    before, events = await entity(timed, JOB, id), await log(timed)
    change = await decided(timed, JOB, id, case.trigger, by=case.by, values=case.values, **SAID)
    assert await timed.apply([change]) == []

    after, now = await entity(timed, JOB, id), clock.now
    times = {NOW: now, DELAY: now + DELAY}
    expected = {"seq": before["seq"] + 1, "move": case.trigger, "updated_at": now, **SAID, **case.changes}
    expected = {name: times.get(value, value) for name, value in expected.items()}
    assert {name: value for name, value in after.items() if value != before[name]} == expected

    (event,) = (await log(timed))[len(events) :]
    assert event._asdict() | {"id": 0, "cursor": ""} == {
        "id": 0,
        "cursor": "",
        "tenant_id": 1,
        "entity": "job",
        "entity_id": id,
        "seq": before["seq"] + 1,
        "epoch": after["epoch"],
        "type": case.event,
        "trigger": case.trigger,
        "ts": now,
        "actor": "ann",
        "correlation_id": None,
        "trace_id": None,
        "cause": "job_1",
        "reason": "because",
        "from_state": case.source,
        "to_state": after["state"],
        "payload": '{"n": 1}',
        "version": 1,
    }


def test_every_declared_move_of_a_job_has_a_case() -> None:
    declared = {(move.trigger, state.name) for move in JOB.moves for state in move.sources}
    assert {(case.trigger, case.source) for case in JOB_MOVES} | {("claim", "queued")} == declared


async def test_a_job_keeps_the_time_it_was_first_started_through_its_retries(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    (id,) = await running(timed, owner)
    first = (await entity(timed, JOB, id))["started_at"]
    await moved(timed, JOB, id, "retry", by="holder")
    await clock.advance(SECOND)
    await timed.claim(owner, ["default"], 1, LEASE, claim_id=5)
    await moved(timed, JOB, id, "start", by="holder")
    row = await entity(timed, JOB, id)
    assert (row["started_at"], row["attempts"], row["epoch"]) == (first, 2, 1)


@pytest.mark.parametrize("trigger", ["retry", "release", "snooze"])
async def test_a_job_that_goes_back_without_a_delay_is_due_at_once(timed: Store, clock: SetClock, trigger: str) -> None:
    (id,) = await running(timed, await worker(timed))
    await clock.advance(SECOND)
    await moved(timed, JOB, id, trigger, by="holder")
    assert (await entity(timed, JOB, id))["run_at"] == clock.now


async def test_what_was_said_of_one_move_is_not_said_of_the_next(store: Store) -> None:
    id = await in_state(store, await worker(store), "assigned")
    await moved(store, JOB, id, "start", by="holder", **SAID)
    await moved(store, JOB, id, "succeed", by="holder")
    event = (await log(store))[-1]
    assert (event.actor, event.reason, event.cause, event.payload) == (None, None, None, None)


async def test_nothing_to_apply_is_nothing_lost(store: Store) -> None:
    assert await store.apply([]) == []


async def test_crossing_batches_of_the_same_records_do_not_wait_for_each_other_in_a_circle(store: Store) -> None:
    ids = await queued(store, 200)
    rows = [await entity(store, JOB, id) for id in ids]
    cancels = [insist(decide(JOB, row, "cancel", actor=actor)) for row, actor in zip(rows, "ab" * 100, strict=True)]
    lost = await asyncio.gather(*[store.apply(batch) for batch in (cancels, cancels[::-1]) for _ in range(4)])
    assert lost == [[]] * 8
    assert len(await log(store, type="job_cancelled")) == 200
