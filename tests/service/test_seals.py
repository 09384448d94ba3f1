"""Seals: what replaying the log cannot see is seen by them, and nobody breaks one by sealing on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from keptwork import Keptwork
from keptwork.audit import seals, verify
from keptwork.audit import seals as sealing
from keptwork.audit.seals import Sealer
from keptwork.errors import BadInput
from keptwork.maintenance.runner import keeping_house
from keptwork.store import Store, open_store
from keptwork.store.contract.records import EVENT_FIELDS
from tests.support.lives import live


async def all_sealed(store: Store, at_once: int = 20) -> None:
    """On a busy server the newest events are held back while any transaction is open: until then, again."""
    while (last := await store.last_seal()) is None or last.total < await store.event_count():
        await seals.seal(store, at_once=at_once)


async def problems(store: Store, against: str | None = None) -> dict[str, str]:
    return {problem.entity: problem.what for problem in (await verify.verify(store, against=against)).problems}


async def test_every_event_is_under_one_seal_and_each_goes_on_where_the_one_before_it_ends(store):
    lives = await live(store, 40)
    await all_sealed(store)
    made = await store.seals()
    assert sum(one.events for one in made) == made[-1].total == lives.total + 1
    assert [one.number for one in made] == list(range(1, len(made) + 1))
    assert [one.after for one in made] == [None, *(one.upto for one in made[:-1])]
    assert len(made) > 3
    verdict = await verify.verify(store)
    assert (verdict.problems, verdict.sealed) == ([], (len(made), lives.total + 1, made[-1]))
    assert await seals.seal(store) == 0


async def test_what_is_done_after_a_seal_breaks_none(store):
    await live(store, 5)
    await all_sealed(store)
    await live(store, 5, seed=2)
    assert await problems(store) == {}
    await all_sealed(store)
    assert await problems(store) == {}


STORIES = {
    "who did it": "actor = 'somebody else'",
    "why": "reason = 'no reason'",
    "what it said": "payload = '{\"a\": 1}'",
    "what it belongs to": "correlation_id = 'another'",
    "its trace": "trace_id = 'another'",
    "its cause": "cause = 'another'",
    "its version": "version = 9",
}


@pytest.mark.parametrize("edit", STORIES.values(), ids=STORIES.keys())
async def test_an_edit_that_leaves_a_consistent_story_is_seen_by_the_seals_and_by_nothing_else(store, tamper, edit):
    lives = await live(store, 20)
    sql = f"UPDATE events SET {edit} WHERE entity_id = {min(lives.moves)} AND seq = 1"
    await all_sealed(store)
    tamper(sql)
    (broken,) = (await problems(store)).items()
    assert broken[0].startswith("seal ")
    assert "are not what they were when they were sealed" in broken[1]
    tamper("DELETE FROM seals")
    assert await problems(store) == {}


async def test_every_field_of_an_event_is_sealed(store):
    await live(store, 3)
    await all_sealed(store)
    events = await store.events()
    whole = seals.hash_over("", events, None)
    for name in EVENT_FIELDS:
        changed = [events[0]._replace(**{name: "another"}), *events[1:]]
        assert seals.hash_over("", changed, None) != whole
    assert seals.hash_over("", [events[1], events[0], *events[2:]], None) != whole
    assert seals.hash_over("x", events, None) != whole != seals.hash_over("", events, b"secret")


async def test_a_job_that_is_gone_with_all_its_events_is_seen(store, tamper):
    lives = await live(store, 20)
    gone = min(lives.moves)
    await all_sealed(store)
    tamper(f"DELETE FROM events WHERE entity_id = {gone}", f"DELETE FROM jobs WHERE id = {gone}")
    found = await problems(store)
    assert found
    assert all("some were deleted, put in or moved" in what for what in found.values())


async def test_two_events_of_different_jobs_in_each_others_place_are_seen(store, tamper):
    await live(store, 20)
    await all_sealed(store)
    events = await store.events()
    first = events[3]
    second = next(one for one in events[4:] if one.entity_id != first.entity_id)
    swap = [(first.id, -1), (second.id, first.id), (-1, second.id)]
    tamper(*(f"UPDATE events SET id = {new} WHERE id = {old}" for old, new in swap))
    assert all(entity.startswith("seal ") for entity in await problems(store))
    assert await problems(store)


async def test_a_log_cut_off_with_its_rows_is_seen_by_the_seals_and_with_those_by_one_kept_elsewhere(store, tamper):
    await live(store, 20)
    await all_sealed(store)
    kept = len(await store.seals())
    late = await live(store, 3, seed=2)
    await all_sealed(store)
    newest = (await store.seals())[-1].hash
    (place,) = [one.upto for one in (await store.seals())[kept - 1 : kept]]
    cut = [f"DELETE FROM jobs WHERE id >= {min(late.moves)}", f"DELETE FROM workers WHERE id >= {min(late.moves)}"]
    cut += [f"DELETE FROM workers WHERE id IN (SELECT entity_id FROM events WHERE id > {place.rpartition('-')[2]})"]
    tamper(*cut, f"DELETE FROM events WHERE id > {place.rpartition('-')[2]}")
    assert {entity.partition(" ")[0] for entity in await problems(store)} == {"seal"}
    tamper(f"DELETE FROM seals WHERE number > {kept}")
    assert await problems(store) == {}
    assert f"no seal is {newest}" in (await problems(store, newest))["–"]


async def test_a_seal_that_is_gone_or_made_anew_is_seen(store, tamper):
    await live(store, 20)
    await all_sealed(store)
    second = (await store.seals())[1]
    forged = seals.hash_over("", await store.events(after=second.after, limit=second.events), None)
    tamper(f"UPDATE seals SET hash = '{forged}' WHERE number = 2")
    assert set(await problems(store)) == {"seal 2", "seal 3"}
    tamper("DELETE FROM seals WHERE number = 2")
    assert (await problems(store))["seal 3"] == "1 before it are gone"


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        ("upto = 'nowhere'", "were deleted, put in or moved"),
        ("after = 'nowhere'", "does not go on where the one before it ends"),
        ("events = 0, total = total - events", "are 0"),
        ("events = 1000000000", "does not go on"),
        ("total = 5", "does not go on"),
    ],
)
async def test_a_seal_with_impossible_numbers_is_a_problem_like_others(store, tamper, edit, what):
    await live(store, 20)
    await all_sealed(store)
    tamper(f"UPDATE seals SET {edit} WHERE number = 2")
    assert what in (await problems(store))["seal 2"]


async def test_with_a_secret_only_who_knows_it_can_seal_or_check(store, tamper, monkeypatch):
    monkeypatch.setenv(seals.VARIABLE, "first")
    await live(store, 5)
    await all_sealed(store)
    monkeypatch.setenv(seals.VARIABLE, "second, first")
    await live(store, 5, seed=2)
    await all_sealed(store)
    assert await problems(store) == {}
    made = await store.seals()
    assert {one.key for one in made} == {seals.name_of(b"first"), seals.name_of(b"second")}
    assert not any("first" in str(one) or "second" in str(one) for one in made)
    monkeypatch.delenv(seals.VARIABLE)
    assert all(f"is not in {seals.VARIABLE}" in what for what in (await problems(store)).values())
    with pytest.raises(BadInput, match=f"there is none in {seals.VARIABLE}"):
        await seals.seal(store)
    assert await Sealer(store, lambda: 0.5).run_once() == 0
    monkeypatch.setenv(seals.VARIABLE, "second,first")
    events = await store.events(after=made[-1].after, limit=made[-1].events)
    forged = seals.hash_over(made[-2].hash, events, None)
    tamper(f"UPDATE seals SET hash = '{forged}', key = NULL WHERE number = {made[-1].number}")
    assert await problems(store) == {
        f"seal {made[-1].number}": "it was made without a secret, though the one before it was made with one"
    }


async def test_several_who_seal_at_once_make_one_chain(store, database_url):
    await live(store, 60)
    others = [await open_store(database_url) for _ in range(3)]
    await asyncio.gather(*(all_sealed(one, at_once=7) for one in (store, *others)))
    assert await problems(store) == {}
    last = await store.last_seal()
    assert last is not None
    assert last.total == await store.event_count()
    for one in others:
        await one.close()


async def test_the_sealer_seals_what_is_new_once_in_a_while_and_writes_nothing_where_nothing_happens(timed):
    store, sealer = timed.store, Sealer(timed.store, lambda: 0.5)
    assert await sealer.run_once() == 0
    assert await store.take_duty("seal", 1)  # nobody has taken it: nothing was written
    await timed.advance(60_000_000)
    lives = await live(store, 10)
    sealed = 0
    while not sealed:  # on a busy server the newest events are held back while any transaction is open
        sealed = await sealer.run_once()
        await timed.advance(60_000_000)
    await all_sealed(store)
    await live(store, 2, seed=2)
    assert await sealer.run_once() > 0
    await live(store, 2, seed=3)
    assert await sealer.run_once() == 0  # its time has not come again
    assert lives.total > 0


# --- when a process ends


async def sealed_all(store: Store, work: Callable[[], Awaitable[object]]) -> bool:
    """Whether all that was done is sealed when a process has ended; on a busy server, when one more has."""
    before = await store.event_count()
    for _ in range(20):
        await work()
        last = await store.last_seal()
        if last is not None and last.total >= before:
            return True
    return False


async def worked(url: str) -> None:
    async with Keptwork(url) as app:
        await app.work(until_idle=True)


async def test_a_worker_seals_what_was_done_when_it_ends_whoever_has_the_duty(store, database_url):
    await live(store, 10)
    assert await store.take_duty("seal", 3_600_000_000)
    assert await sealed_all(store, lambda: worked(database_url))
    assert await problems(store) == {}


async def test_a_worker_seals_its_own_end_too(sqlite_url):
    await worked(sqlite_url)
    store = await open_store(sqlite_url)
    last = await store.last_seal()
    assert last is not None
    assert last.total == await store.event_count() > 1
    await store.close()


async def test_a_server_seals_what_was_done_when_it_ends(store):
    async def served() -> None:
        async with keeping_house(store):
            await asyncio.sleep(0)  # its duties begin

    await live(store, 10)
    assert await sealed_all(store, served)


async def test_a_worker_without_the_secret_leaves_sealing_to_those_who_have_it_when_it_ends(sqlite_url, monkeypatch):
    monkeypatch.setenv(seals.VARIABLE, "secret")
    await worked(sqlite_url)
    monkeypatch.delenv(seals.VARIABLE)
    await worked(sqlite_url)
    store = await open_store(sqlite_url)
    assert [one.key for one in await store.seals()] == [seals.name_of(b"secret")]
    await store.close()


class Stuck:
    """A database that does not answer."""

    async def last_seal(self) -> None:
        await asyncio.Event().wait()


async def test_a_database_that_fails_or_does_not_answer_keeps_no_process_from_ending(sqlite_url, monkeypatch):
    monkeypatch.setattr(sealing, "LAST_SECONDS", 0.05)
    store = await open_store(sqlite_url)
    await store.close()
    async with asyncio.timeout(60):
        await Sealer(store, lambda: 0.5).run_last()
        await Sealer(cast(Store, Stuck()), lambda: 0.5).run_last()
