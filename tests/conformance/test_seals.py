"""Seals of the log as they are kept: one chain for all tenants, in the order they were made."""

from __future__ import annotations

from keptwork.store import Store
from keptwork.store.contract.events_seals import NewSeal, Seal
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.times import SetClock


def numbered(number: int, hash: str = "aa") -> NewSeal:
    return NewSeal(number, 5, 5 * number, f"{number - 1}" if number > 1 else None, f"{number}", hash, "name")


@keeps(
    Writer.put_seal,
    "Store the next seal of the log",
    "Return False and change nothing if a seal with its number exists",
)
@keeps(Reader.last_seal, "Return the newest seal, or None if nothing is sealed")
async def test_of_two_seals_with_one_number_the_first_stands(timed: Store, clock: SetClock) -> None:
    assert await timed.last_seal() is None
    assert await timed.put_seal(numbered(1))
    kept = Seal(*numbered(1), sealed_at=clock.now)
    await clock.advance(5)
    assert not await timed.put_seal(numbered(1, "bb"))
    assert await timed.last_seal() == kept
    assert await timed.put_seal(numbered(2))
    assert await timed.last_seal() == Seal(*numbered(2), sealed_at=clock.now)


@keeps(
    Reader.seals,
    "Return at most `limit` seals of the log, in the order of their numbers, after the given number",
    "They are of all tenants together",
)
async def test_seals_are_read_page_by_page_in_their_order(store: Store) -> None:
    for number in (1, 2, 3):
        await store.put_seal(numbered(number))
    assert [one.number for one in await store.seals()] == [1, 2, 3]
    assert [one.number for one in await store.seals(after=1, limit=1)] == [2]
    assert await store.seals(after=3) == []
