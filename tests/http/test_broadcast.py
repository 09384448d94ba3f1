"""One reader of the log tells many: none of them misses an event, and none hears one twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

import pytest

from keptwork.http import event_broadcast
from keptwork.http.event_broadcast import Broadcast, Listener
from keptwork.store import Event, EventFilter, NewJob, Store

BEFORE, LATER = 3, 2


class Interrupted(Broadcast):
    """Something happens between joining and reading what was missed, so that both ways tell of it."""

    async def _join(self, listener: Listener) -> None:
        await super()._join(listener)
        await self._store.enqueue([NewJob("between")])
        await listener.news.wait()


class Forgetful(Interrupted):
    """A twin that does not read what it has missed."""

    async def _missed(self, wanted: EventFilter, after: str) -> AsyncIterator[Event]:
        return
        yield


class Repeating(Interrupted):
    """A twin that does not know what it has read already."""

    async def _from(self, listener: Listener, after: str) -> AsyncGenerator[Event, None]:
        async for event in self._missed(listener.wanted, after):
            yield event
        while True:
            await listener.news.wait()
            for event in listener.take():
                yield event


async def heard(store: Store, kind: type[Broadcast], seconds: float = 10) -> tuple[list[str], list[str]]:
    """What a listener was told, and what there was to tell."""
    await store.enqueue([NewJob("first")])
    start = (await store.events())[0].cursor
    await store.enqueue([NewJob("before")] * BEFORE)
    told: list[str] = []
    enough = asyncio.Event()
    speaker = kind(store)

    async def listen() -> None:
        async with aclosing(speaker.follow(EventFilter(), start)) as events:
            async for event in events:
                told.append(event.cursor)
                if len(told) == 1:
                    await store.enqueue([NewJob("later")] * LATER)
                if len(told) == BEFORE + 1 + LATER:
                    enough.set()

    listening = asyncio.create_task(listen())
    with suppress(TimeoutError):
        await asyncio.wait_for(enough.wait(), seconds)
    await asyncio.sleep(0.2)  # what comes twice comes by now
    listening.cancel()
    await asyncio.wait([listening])
    await speaker.close()
    return told, [event.cursor for event in await store.events(after=start)]


async def test_a_listener_hears_everything_once_whenever_it_happened(store: Store) -> None:
    told, there = await heard(store, Interrupted)
    assert told == there
    assert len(told) == BEFORE + 1 + LATER


@pytest.mark.parametrize("twin", [Forgetful, Repeating])
async def test_a_broadcast_that_misses_or_repeats_is_noticed(store: Store, twin: type[Broadcast]) -> None:
    told, there = await heard(store, twin, seconds=0.5)
    assert told != there


async def test_one_who_is_overrun_reads_the_log_again_and_misses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_broadcast, "MOST_WAITING", 1)
    await store.enqueue([NewJob("first")])
    start = (await store.events())[0].cursor
    speaker = Broadcast(store)
    told: list[str] = []
    async with asyncio.timeout(60), aclosing(speaker.follow(EventFilter(), start)) as events:
        await store.enqueue([NewJob("one")])
        async for event in events:
            told.append(event.cursor)
            if len(told) % 10 == 1 and len(told) < 40:
                await store.enqueue([NewJob("many")] * 10)
                await asyncio.sleep(0.05)  # slow, while others are told
            if len(told) == 41:
                break
    await speaker.close()
    assert told == [event.cursor for event in await store.events(after=start)]


async def test_a_listener_is_told_only_what_it_wants(store: Store) -> None:
    other = await store.add_tenant("other")
    start = await store.log_end()
    speaker = Broadcast(store)
    async with asyncio.timeout(60), aclosing(speaker.follow(EventFilter(tenant_id=other), start)) as events:
        await store.enqueue([NewJob("ours"), NewJob("theirs", tenant_id=other)])
        first = await anext(events)
        await store.enqueue([NewJob("ours"), NewJob("theirs", tenant_id=other)])
        second = await anext(events)
    await speaker.close()
    assert [first.tenant_id, second.tenant_id] == [other, other]
    assert not speaker.listeners
