"""Keys to the API in the store: found by hash while they live, and by nobody but their tenant otherwise."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from keptwork.errors import StoreError
from keptwork.store import Store
from keptwork.store.contract.access import ApiKeyRow, LiveApiKey, NewApiKey
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import undone
from tests.conformance.times import SECOND, SetClock

OURS = 1
HOUR = 3_600 * SECOND


def key(number: int, tenant_id: int = OURS, lasts: int | None = None) -> NewApiKey:
    return NewApiKey(tenant_id, f"key {number}", "read,write", f"{number:064x}", "ann", lasts)


async def lives(store: Store, number: int) -> bool:
    return await store.live_api_key(f"{number:064x}") is not None


@keeps(
    Writer.put_api_key,
    "Store a new API key by its hash",
    "The same key again returns the stored one",
)
@keeps(Reader.live_api_key, "Return the valid API key with this hash, of any tenant, and the current time")
@keeps(Reader.api_key, "Return an API key by its ID")
async def test_a_key_is_kept_once_and_found_by_its_hash(timed: Store, clock: SetClock, other_tenant: int) -> None:
    kept = await timed.put_api_key(key(1, lasts=HOUR))
    foreign = await timed.put_api_key(key(2, other_tenant))
    at = clock.now
    assert kept[1:] == (OURS, at, at + HOUR, None, None, None, f"{1:064x}", "key 1", "read,write", "ann", None)
    assert (foreign.tenant_id, foreign.expires_at) == (other_tenant, None)
    await clock.advance(SECOND)
    assert await timed.put_api_key(key(1, lasts=HOUR)) == kept
    assert await timed.live_api_key(kept.hash) == LiveApiKey(kept, at + SECOND)
    assert await timed.live_api_key(foreign.hash) == LiveApiKey(foreign, at + SECOND)
    assert await timed.api_key(OURS, kept.id) == kept


@keeps(Reader.live_api_key, "Return None if there is no such key, or if it is revoked or expired")
async def test_a_key_that_has_ended_is_not_found(timed: Store, clock: SetClock) -> None:
    first = await timed.put_api_key(key(1))
    await timed.put_api_key(key(2, lasts=HOUR))
    assert not await lives(timed, 3)
    for almost in ("", "0" * 63 + "%", f"{1:064x}"[:-1], f"{1:065x}", f"{1:064X} "):
        assert await timed.live_api_key(almost) is None
    await timed.revoke_api_key(OURS, first.id, "bob")
    assert not await lives(timed, 1)
    await clock.advance(HOUR - 1)
    assert await lives(timed, 2)
    await clock.advance(1)
    assert not await lives(timed, 2)


@keeps(Reader.api_key, "Return None for another tenant's key, as for one that does not exist")
@keeps(
    Reader.api_keys,
    "Return at most `limit` API keys of a tenant, newest first, with IDs below `after`",
    "Revoked and expired keys are included only with `ended`",
)
async def test_keys_are_listed_for_their_tenant(timed: Store, clock: SetClock, other_tenant: int) -> None:
    revoked, lasting, short = [await timed.put_api_key(key(n, lasts=HOUR if n == 3 else None)) for n in (1, 2, 3)]
    foreign = await timed.put_api_key(key(4, other_tenant))
    revoked = await _revoked(timed, revoked)
    await clock.advance(HOUR - 1)
    assert await timed.api_keys(OURS) == [short, lasting]
    await clock.advance(1)
    assert await timed.api_keys(OURS) == [lasting]
    assert await timed.api_keys(OURS, ended=True) == [short, lasting, revoked]
    assert await timed.api_keys(OURS, ended=True, limit=1) == [short]
    assert await timed.api_keys(OURS, ended=True, after=short.id, limit=1) == [lasting]
    assert await timed.api_keys(other_tenant, ended=True) == [foreign]
    assert await timed.api_key(OURS, foreign.id) is await timed.api_key(OURS, 12345) is None


async def _revoked(store: Store, row: ApiKeyRow) -> ApiKeyRow:
    found = await store.revoke_api_key(row.tenant_id, row.id, "bob")
    assert found is not None
    return found


@keeps(
    Writer.revoke_api_key,
    "Revoke an API key and return its row, or None if the tenant has no such key",
    "The first revocation wins",
)
async def test_a_key_is_revoked_once_and_by_its_tenant(timed: Store, clock: SetClock, other_tenant: int) -> None:
    kept = await timed.put_api_key(key(1))
    for tenant_id, id in ((other_tenant, kept.id), (OURS, 12345)):
        assert await timed.revoke_api_key(tenant_id, id, "eve") is None
    assert await lives(timed, 1)
    ended = await timed.revoke_api_key(OURS, kept.id, "bob")
    assert ended == kept._replace(revoked_at=clock.now, revoked_by="bob")
    await clock.advance(SECOND)
    assert await timed.revoke_api_key(OURS, kept.id, "carl") == ended == await timed.api_key(OURS, kept.id)
    assert not await lives(timed, 1)


@keeps(
    Writer.rotate_api_key,
    "Store a new API key that replaces one of the same tenant",
    "The old key then expires after the overlap at the latest",
    "The same key again returns the stored one",
)
async def test_a_rotated_key_lives_on_for_the_overlap(timed: Store, clock: SetClock) -> None:
    lasting, short = await timed.put_api_key(key(1)), await timed.put_api_key(key(2, lasts=SECOND))
    new = await timed.rotate_api_key(lasting.id, key(11, lasts=HOUR), 5 * SECOND)
    assert new is not None
    assert new[1:4] == (OURS, clock.now, clock.now + HOUR)
    assert await timed.rotate_api_key(lasting.id, key(11, lasts=HOUR), 5 * SECOND) == new
    assert await timed.rotate_api_key(short.id, key(12), 5 * SECOND) is not None
    replaced = lasting._replace(replaced_by=new.id, expires_at=clock.now + 5 * SECOND)
    assert await timed.api_key(OURS, lasting.id) == replaced
    await clock.advance(SECOND)
    assert [await lives(timed, n) for n in (1, 11, 2, 12)] == [True, True, False, True]
    await clock.advance(4 * SECOND)
    assert [await lives(timed, n) for n in (1, 11, 2, 12)] == [False, True, False, True]


@keeps(
    Writer.rotate_api_key,
    "Return None if the old key does not exist, is revoked or expired, or was rotated before",
    "In that case, nothing is stored",
)
async def test_what_has_ended_is_not_rotated(timed: Store, clock: SetClock, other_tenant: int) -> None:
    rotated, revoked, expired, foreign = [
        await timed.put_api_key(key(n, other_tenant if n == 4 else OURS, SECOND if n == 3 else None))
        for n in (1, 2, 3, 4)
    ]
    await timed.rotate_api_key(rotated.id, key(11), HOUR)
    await timed.revoke_api_key(OURS, revoked.id, "bob")
    await clock.advance(SECOND)
    before = await timed.api_keys(OURS, ended=True)
    for id in (rotated.id, revoked.id, expired.id, foreign.id, 12345):
        assert await timed.rotate_api_key(id, key(99), HOUR) is None
    assert await timed.api_keys(OURS, ended=True) == before
    assert await timed.api_key(other_tenant, foreign.id) == foreign
    assert not await lives(timed, 99)


async def test_of_several_who_rotate_a_key_one_does(store: Store) -> None:
    old = await store.put_api_key(key(1))
    made = await asyncio.gather(*[store.rotate_api_key(old.id, key(10 + n), HOUR) for n in range(8)])
    (new,) = [one for one in made if one is not None]
    assert {one.id for one in await store.api_keys(OURS)} == {old.id, new.id}


async def test_the_same_key_kept_by_several_at_once_is_one(store: Store) -> None:
    made = await asyncio.gather(*[store.put_api_key(key(1)) for _ in range(8)])
    assert len(set(made)) == 1
    assert await store.api_keys(OURS) == made[:1]


async def test_a_rotation_that_is_undone_leaves_the_old_key_as_it_was(store: Store) -> None:
    old = await store.put_api_key(key(1))
    async with undone(store) as transaction:
        assert await transaction.rotate_api_key(old.id, key(2), 0) is not None
    assert await store.api_keys(OURS, ended=True) == [old]


@keeps(
    Writer.touch_api_key,
    "Record the use of an API key, unless a use was recorded less than `every_us` ago",
    "Return whether it was recorded",
)
async def test_the_use_of_a_key_is_noted_now_and_then(timed: Store, clock: SetClock, other_tenant: int) -> None:
    kept = await timed.put_api_key(key(1))
    assert await timed.touch_api_key(other_tenant, kept.id, SECOND) is False
    assert await timed.touch_api_key(OURS, kept.id, SECOND) is True
    await clock.advance(SECOND - 1)
    assert await timed.touch_api_key(OURS, kept.id, SECOND) is False
    assert (await timed.api_keys(OURS))[0].last_used_at == clock.now - SECOND + 1
    await clock.advance(1)
    assert await timed.touch_api_key(OURS, kept.id, SECOND) is True
    assert (await timed.api_keys(OURS))[0].last_used_at == clock.now


# --- the second lock, on PostgreSQL only


async def test_a_tenants_transaction_sees_to_its_own_keys(postgres_store: Store) -> None:
    other = await postgres_store.add_tenant("other")
    async with postgres_store.transaction(tenant_id=other) as transaction:
        first = await transaction.put_api_key(key(1, other))
        second = await transaction.rotate_api_key(first.id, key(2, other), HOUR)
        assert second is not None
        assert await transaction.touch_api_key(other, second.id, SECOND) is True
        assert await transaction.revoke_api_key(other, first.id, "bob") is not None
        assert [one.id for one in await transaction.api_keys(other)] == [second.id]
    assert [await lives(postgres_store, n) for n in (1, 2)] == [False, True]


async def test_plain_sql_of_a_tenant_can_neither_see_foreign_keys_nor_widen_its_own(postgres_store: Store) -> None:
    other = await postgres_store.add_tenant("other")
    ours, theirs = await postgres_store.put_api_key(key(1)), await postgres_store.put_api_key(key(2, other))
    async with postgres_store.transaction(tenant_id=other) as transaction:
        assert await transaction.fetch("SELECT id FROM api_keys") == [{"id": theirs.id}]
        assert await transaction.execute("UPDATE api_keys SET revoked_at = 1 WHERE id = $1", ours.id) == 0
        assert await transaction.live_api_key(ours.hash) is None
        assert await transaction.revoke_api_key(OURS, ours.id, "eve") is None
        assert await transaction.rotate_api_key(ours.id, key(3, other), 0) is None
    for sql in (
        "UPDATE api_keys SET scopes = 'admin'",
        "UPDATE api_keys SET tenant_id = 1",
        f"UPDATE api_keys SET hash = '{ours.hash}'",
        "DELETE FROM api_keys",
        "INSERT INTO api_keys (id, created_at, tenant_id, hash, name, scopes, created_by) "
        f"VALUES (5, 0, 1, '{5:064x}', 'eve', 'admin', 'eve')",
    ):
        with pytest.raises((StoreError, asyncpg.PostgresError), match=r"permission denied|row-level security"):
            async with postgres_store.transaction(tenant_id=other) as transaction:
                await transaction.execute(sql)
    assert await postgres_store.api_keys(OURS) == [ours]
    assert await postgres_store.api_keys(other) == [theirs]
