"""Keys to the API as servers meet them: whom they let in, for how long, and what is left of a secret."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from keptwork.access import api_keys, scopes
from keptwork.access.api_keys import KeyRing, Made, Principal
from keptwork.access.scopes import ApiKey, Scope
from keptwork.core import ids
from keptwork.errors import BadInput, KeyEnded, NotFound, StoreError
from keptwork.store import Store, open_store
from keptwork.store.contract.access import NewApiKey
from tests.support.at_rest import everything
from tests.support.broken_sql import leave_out
from tests.support.database_time import Timed

OURS = 1
SECOND = 1_000_000
REVOKED_WITHIN = 5.0


class Hand:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def made(store: Store, tenant_id: int = OURS, **how: Any) -> Made:
    return await api_keys.create(store, tenant_id, "ann", how.pop("scopes", ["read"]), by="test", **how)


def counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hashes that the database is asked for."""
    asked: list[str] = []
    shipped = store.live_api_key

    async def live_api_key(hash: str) -> Any:
        asked.append(hash)
        return await shipped(hash)

    monkeypatch.setattr(store, "live_api_key", live_api_key)
    return asked


async def test_a_key_tells_whose_it_is_and_what_for(store: Store, other_tenant: int) -> None:
    row, secret = await made(store, other_tenant, scopes=["write", "read"])
    found = await api_keys.authenticate(store, secret.value)
    assert found == Principal(other_tenant, frozenset({Scope.READ, Scope.WRITE}), row.id)
    assert found.actor == row.public_id == ids.public("key", row.id)
    ops = await api_keys.authenticate(store, (await made(store, scopes=["approve:ops", "read"])).secret.value)
    assert ops is not None
    assert ops.scopes == {"read", "approve:ops"}


async def test_a_scope_that_a_newer_program_gave_is_for_nothing_here(store: Store) -> None:
    secret = scopes.new()
    row = await store.put_api_key(NewApiKey(OURS, "ann", "read,dance", secret.hash, "test"))
    found = await api_keys.authenticate(store, secret.value)
    assert found == Principal(OURS, frozenset({Scope.READ}), row.id)
    assert found.scopes <= set(Scope)


async def test_no_other_text_lets_anybody_in(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    row, secret = await made(store)
    asked = counted(store, monkeypatch)
    for text in ("", "kw_", secret.value[:-1], secret.value.swapcase(), row.hash, row.public_id, f" {secret.value}"):
        assert await api_keys.authenticate(store, text) is None
        assert await KeyRing(store).authenticate(text) is None
    assert asked == []
    assert await api_keys.authenticate(store, scopes.new().value) is None
    assert len(asked) == 1


async def test_whatever_is_wrong_with_a_key_the_same_is_done(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    store, shipped = timed.store, ApiKey.matches
    revoked, expired = await made(store), await made(store, expires="1s")
    await api_keys.revoke(store, OURS, revoked.row.public_id, by="bob")
    await timed.advance(SECOND)
    asked, compared = counted(store, monkeypatch), list[int]()

    def matches(self: ApiKey, hash: str) -> bool:
        compared.append(len(hash))
        return shipped(self, hash)

    monkeypatch.setattr(ApiKey, "matches", matches)
    for secret in (revoked.secret, expired.secret, scopes.new()):
        assert await api_keys.authenticate(store, secret.value) is None
        assert await KeyRing(store).authenticate(secret.value) is None
    assert (len(asked), compared) == (6, [64] * 6)


# --- a key that merely begins like another


async def alike(store: Store) -> Principal | None:
    """Who is let in by a key whose hash begins like that of a key there is."""
    real = (await made(store)).row.hash
    while (guess := scopes.new()).hash[:2] != real[:2]:
        pass
    return await api_keys.authenticate(store, guess.value)


def finds_by_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch, "live_api_key", "hash = :hash", "substr(hash, 1, 2) = substr(CAST(:hash AS text), 1, 2)")


async def test_a_hash_that_begins_alike_lets_nobody_in(store: Store) -> None:
    assert await alike(store) is None


async def test_not_even_where_the_database_finds_by_the_beginning(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finds_by_beginning(monkeypatch)
    store = await open_store(database_url)
    try:
        assert await alike(store) is None
        monkeypatch.setattr(ApiKey, "matches", lambda self, hash: hash[:2] == self.hash[:2])
        assert await alike(store) is not None, "a comparison of beginnings goes unnoticed"
    finally:
        await store.close()


# --- revoked within five seconds


async def outlives(store: Store, ring: type[KeyRing]) -> list[float]:
    """For how long a revoked key is still let in by a server that has just seen it, and by one that saw it before."""
    late = []
    for pause in (0.0, 0.875):
        hand = Hand()
        server = ring(store, hand)
        row, secret = await made(store)
        assert await server.authenticate(secret.value) is not None
        hand.now += pause
        assert await server.authenticate(secret.value) is not None
        await api_keys.revoke(store, OURS, row.public_id, by="bob")
        since = hand.now
        while await server.authenticate(secret.value) is not None and hand.now - since < 60:
            hand.now += 0.125
        late.append(hand.now - since)
    return late


class NeverForgets(KeyRing):
    LIFE = 1e9


class Renews(KeyRing):
    """A ring that remembers for longer whatever it is asked for again."""

    async def authenticate(self, token: str) -> Principal | None:
        found = await super().authenticate(token)
        for hash, known in self._good.items():
            self._good[hash] = known._replace(until=self._monotonic() + self.LIFE)
        return found


async def test_a_revoked_key_is_dead_within_five_seconds(store: Store) -> None:
    assert max(await outlives(store, KeyRing)) <= KeyRing.LIFE < KeyRing.LIFE + KeyRing.PATIENCE <= REVOKED_WITHIN


@pytest.mark.parametrize("twin", [NeverForgets, Renews])
async def test_a_ring_that_remembers_for_too_long_is_caught(store: Store, twin: type[KeyRing]) -> None:
    assert max(await outlives(store, twin)) > REVOKED_WITHIN


async def test_what_was_read_before_a_revocation_and_came_late_is_not_remembered_from_then_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, (row, secret), shipped = Hand(), await made(store), store.live_api_key
    server = KeyRing(store, hand)

    async def slow(hash: str) -> Any:
        found = await shipped(hash)
        await api_keys.revoke(store, OURS, row.public_id, by="bob")
        hand.now += 2.5
        return found

    monkeypatch.setattr(store, "live_api_key", slow)
    assert await server.authenticate(secret.value) is not None
    assert await server.authenticate(secret.value) is None


async def test_a_database_that_does_not_answer_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(hash: str) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "live_api_key", never)
    monkeypatch.setattr(KeyRing, "PATIENCE", 0.01)
    with pytest.raises(StoreError, match="did not say within"):
        await KeyRing(store).authenticate(scopes.new().value)


# --- what a server remembers


async def test_a_server_asks_once_for_many_requests(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, hand = counted(store, monkeypatch), Hand()
    good, bad = (await made(store)).secret.value, scopes.new().value
    server = KeyRing(store, hand)
    for _ in range(3):
        found = await asyncio.gather(*[server.authenticate(text) for text in (good, bad) * 50])
        assert [one is not None for one in found] == [True, False] * 50
    assert len(asked) == 2
    hand.now += KeyRing.LIFE
    await server.authenticate(good)
    await server.authenticate(bad)
    assert len(asked) == 4


async def test_guesses_do_not_push_out_a_key_that_is_in_use(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyRing, "MOST", 20)
    asked, server = counted(store, monkeypatch), KeyRing(store, Hand())
    good = (await made(store)).secret.value
    await server.authenticate(good)
    for _ in range(50):
        assert await server.authenticate(scopes.new().value) is None
    assert len(asked) == 51
    assert await server.authenticate(good) is not None
    assert len(asked) == 51
    assert (len(server._good), len(server._bad), len(server._asked)) == (1, 20, 0)
    for _ in range(25):
        await server.authenticate((await made(store)).secret.value)
    assert len(server._good) == 20


async def test_a_request_that_is_given_up_leaves_the_others_their_answer(store: Store) -> None:
    server, text = KeyRing(store), (await made(store)).secret.value
    first, second = (asyncio.create_task(server.authenticate(text)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None
    assert first.cancelled()


async def test_what_failed_is_asked_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    server, text, shipped = KeyRing(store, Hand()), (await made(store)).secret.value, store.live_api_key

    async def failing(hash: str) -> Any:
        raise StoreError(url="here", detail="broken")

    monkeypatch.setattr(store, "live_api_key", failing)
    with pytest.raises(StoreError):
        await server.authenticate(text)
    monkeypatch.setattr(store, "live_api_key", shipped)
    assert await server.authenticate(text) is not None


async def test_a_ring_holds_no_secret(store: Store) -> None:
    server, text = KeyRing(store), (await made(store)).secret.value
    await server.authenticate(text)
    assert text not in repr(vars(server))
    assert scopes.parse(text).hash in repr(vars(server))  # type: ignore[union-attr]


# --- time


async def test_a_key_expires_to_the_second_on_every_server(timed: Timed) -> None:
    store, hand = timed.store, Hand()
    server, secret = KeyRing(store, hand), (await made(store, expires="1s")).secret.value
    lasting = (await made(store, expires=None)).secret.value
    await timed.advance(SECOND - 1000)
    assert await server.authenticate(secret) is not None
    await timed.advance(1000)
    hand.now += 0.001
    assert await server.authenticate(secret) is await api_keys.authenticate(store, secret) is None
    await timed.advance(1_000_000 * SECOND)
    assert await api_keys.authenticate(store, lasting) is not None


async def test_both_keys_live_while_they_overlap(timed: Timed) -> None:
    store = timed.store
    old = await made(store, scopes=["approve"], expires="10d")
    await timed.advance(24 * 3600 * SECOND)
    new = await api_keys.rotate(store, OURS, old.row.public_id, overlap="1h", by="bob")
    assert (new.row.name, new.row.scopes, new.row.created_by) == ("ann", "approve", "bob")
    assert new.row.expires_at == new.row.created_at + 10 * 24 * 3600 * SECOND
    assert [key.replaced_by for key in await api_keys.listed(store, OURS)] == [None, new.row.id]
    await timed.advance(3600 * SECOND - 1)
    assert [await api_keys.authenticate(store, one.secret.value) is not None for one in (old, new)] == [True, True]
    await timed.advance(1)
    assert [await api_keys.authenticate(store, one.secret.value) is not None for one in (old, new)] == [False, True]


async def test_use_is_noted_once_a_minute(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    store, hand, shipped = timed.store, Hand(), timed.store.touch_api_key
    row, secret = await made(store)
    written: list[bool] = []

    async def touch_api_key(*which: int) -> bool:
        written.append(await shipped(*which))
        return written[-1]

    monkeypatch.setattr(store, "touch_api_key", touch_api_key)
    servers = [KeyRing(store, hand), KeyRing(store, hand)]
    for _ in range(120):
        assert all([await server.authenticate(secret.value) for server in servers])
        await timed.advance(SECOND)
        hand.now += 1
    assert written == [True, True]
    found = await api_keys.find(store, OURS, row.public_id)
    assert found.last_used_at == row.created_at + 60 * SECOND


async def test_a_disk_that_is_full_shuts_nobody_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*which: int) -> bool:
        raise StoreError(url="here", detail="full")

    monkeypatch.setattr(store, "touch_api_key", full)
    secret = (await made(store)).secret.value
    assert await api_keys.authenticate(store, secret) is not None
    assert await KeyRing(store).authenticate(secret) is not None


# --- what is refused


@pytest.mark.parametrize(
    ("name", "scopes", "expires", "told"),
    [
        ("", ["read"], "1d", "it must be printable text"),
        ("a\nb", ["read"], "1d", "it must be printable text"),
        ("a" * 501, ["read"], "1d", "over the limit"),
        ("ann", ["root"], "1d", "'root' is no scope"),
        ("ann", [], "1d", "give it scopes"),
        ("ann", ["read"], "soon", "is no duration"),
        ("ann", ["read"], "0s", "opens nothing"),
        ("ann", ["read"], "101w999999d", "longer than a hundred years"),
    ],
)
async def test_what_cannot_be_a_key_is_refused(
    sqlite_url: str, name: str, scopes: list[str], expires: str, told: str
) -> None:
    store = await open_store(sqlite_url)
    with pytest.raises(BadInput, match=told):
        await api_keys.create(store, OURS, name, scopes, expires=expires, by="test")
    assert await api_keys.listed(store, OURS, ended=True) == []
    await store.close()


async def test_what_has_ended_is_not_rotated_and_says_why(timed: Timed) -> None:
    store = timed.store
    revoked, rotated, expired = await made(store), await made(store), await made(store, expires="1s")
    await api_keys.revoke(store, OURS, revoked.row.public_id, by="bob")
    new = await api_keys.rotate(store, OURS, rotated.row.public_id, by="bob")
    await timed.advance(SECOND)
    endings = {"was revoked": revoked, "has expired": expired, f"was rotated to {new.row.public_id}": rotated}
    for why, one in endings.items():
        with pytest.raises(KeyEnded, match=why):
            await api_keys.rotate(store, OURS, one.row.public_id, by="bob")
    with pytest.raises(BadInput, match="30d"):
        await api_keys.rotate(store, OURS, new.row.public_id, overlap="31d", by="bob")


async def test_another_tenants_key_is_like_one_that_does_not_exist(store: Store, other_tenant: int) -> None:
    row, secret = await made(store)
    unknown = ids.public("key", row.id + 1)
    uses: list[Callable[[str], Any]] = [
        lambda id: api_keys.find(store, other_tenant, id),
        lambda id: api_keys.revoke(store, other_tenant, id, by="eve"),
        lambda id: api_keys.rotate(store, other_tenant, id, by="eve"),
    ]
    for use in uses:
        told = []
        for id in (row.public_id, unknown):
            with pytest.raises(NotFound) as caught:
                await use(id)
            told.append(str(caught.value).replace(id, "ID"))
        assert told[0] == told[1]
    assert await api_keys.listed(store, other_tenant, ended=True) == []
    assert await api_keys.authenticate(store, secret.value) is not None


# --- no secret at rest


async def test_no_secret_is_in_the_database(database_url: str, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    first = await made(store)
    second = await api_keys.rotate(store, OURS, first.row.public_id, by="bob")
    for one in (first, second):
        assert await KeyRing(store).authenticate(one.secret.value) is not None
    await api_keys.revoke(store, OURS, second.row.public_id, by="bob")
    dump = await everything(database_url)
    shown = repr(api_keys.as_json(second.row, 0)) + repr(first) + repr(second) + caplog.text
    for one in (first, second):
        assert one.row.hash in dump, "the dump is not one of this database"
        for part in (one.secret.value, one.secret.value[3:19], one.secret.value[-20:]):
            assert part not in dump
            assert part not in shown
        assert one.row.hash not in repr(api_keys.as_json(one.row, 0))
