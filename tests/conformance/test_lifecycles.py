"""Every lifecycle walked along every one of its moves, on a real database, against tables written by hand."""

from __future__ import annotations

from collections import deque

import pytest

from keptwork.core.lifecycles import JOB, LIFECYCLES
from keptwork.core.replay import replay
from keptwork.store import Event, Store
from tests.conformance.stage import LEASE, NEEDED, claim, entity, log, moved, queued, worker
from tests.conformance.times import SECOND, SetClock
from tests.lifecycle.expected import EXPECTED, JOB_EVENTS, Expected

Way = tuple[str, str, str]

# Moves that only the reaper may make; the other moves of a leased job are its holder's.
REAPED = {"expire"}


def way_to(expected: Expected, state: str) -> list[Way]:
    """The shortest row of moves from the initial state to another."""
    ways: dict[str, list[Way]] = {expected.initial: []}
    waiting = deque([expected.initial])
    while waiting:
        here = waiting.popleft()
        for move in expected.moves:
            if move[1] == here and move[2] not in ways:
                ways[move[2]] = [*ways[here], move]
                waiting.append(move[2])
    return ways[state]


def expected_log(expected: Expected, id: int, walk: list[Way]) -> list[tuple[object, ...]]:
    """(entity id, seq, epoch, trigger, event type, from, to) of an entity that was walked this way."""
    lines: list[tuple[object, ...]] = []
    epoch = 0
    for seq, (trigger, source, target) in enumerate([(expected.create, None, expected.initial), *walk], 1):
        epoch += trigger in expected.raises_epoch
        type = JOB_EVENTS[trigger] if expected.name == "job" else f"{expected.name.replace('-', '_')}_{trigger}"
        lines.append((id, seq, epoch, trigger, type, source, target))
    return lines


def line(event: Event) -> tuple[object, ...]:
    return (event.entity_id, event.seq, event.epoch, event.trigger, event.type, event.from_state, event.to_state)


async def born(store: Store, name: str, number: int) -> int:
    if name == "job":
        return (await queued(store, queue=str(number)))[0]
    named = {"name": f"n{number}"} if "name" in NEEDED[name] else {}
    return await store.create(LIFECYCLES[name], **{**NEEDED[name], **named})


async def step(store: Store, clock: SetClock, name: str, id: int, move: Way, owner: int, queue: str) -> None:
    await clock.advance(SECOND)
    trigger, source, _ = move
    if name != "job":
        await moved(store, LIFECYCLES[name], id, trigger)
    elif trigger == "claim":
        assert [job.id for job in await claim(store, owner, 1, queue)] == [id]
    elif trigger in REAPED:
        await clock.advance(2 * LEASE)
        await moved(store, JOB, id, trigger, by="reaper")
    else:
        await moved(store, JOB, id, trigger, by="operator" if source == "queued" else "holder")


@pytest.mark.parametrize("name", EXPECTED)
async def test_a_lifecycle_can_be_walked_along_all_of_its_moves_and_the_log_says_exactly_that(
    timed: Store, clock: SetClock, name: str
) -> None:
    expected, owner = EXPECTED[name], await worker(timed, name="walker")
    for number, move in enumerate(expected.moves):
        id = await born(timed, name, number)
        walk = [*way_to(expected, move[1]), move]
        for taken in walk:
            await step(timed, clock, name, id, taken, owner, str(number))
        events, row = await log(timed, entity_id=id), await entity(timed, LIFECYCLES[name], id)
        assert [line(event) for event in events] == expected_log(expected, id, walk)
        rebuilt = replay(LIFECYCLES[name], [event._asdict() for event in events])
        stamps = ("state", "seq", "epoch", "created_at", "updated_at", "started_at", "completed_at")
        assert rebuilt.problem is None
        assert {stamp: getattr(rebuilt, stamp) for stamp in stamps} == {stamp: row[stamp] for stamp in stamps}
