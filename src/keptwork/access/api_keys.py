"""Create, list, rotate, and revoke API keys, and authenticate requests by their keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from keptwork.access import scopes as api_key
from keptwork.access.scopes import ApiKey
from keptwork.core import ids
from keptwork.core.durations import Span, rfc3339, span_us
from keptwork.core.validation import check_name
from keptwork.errors import BadInput, KeyEnded, NotFound, StoreError
from keptwork.store import Store
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.access import PREFIX, ApiKeyRow, LiveApiKey, NewApiKey

MOST_AT_ONCE = 10_000
MINUTE_US = 60_000_000
USUAL_LIFE, USUAL_OVERLAP = "90d", "1h"
LONGEST_OVERLAP_US = 30 * 24 * 60 * MINUTE_US
NOBODYS = "0" * 64
"""A hash that no key has. It is compared if there is no key, which takes the same time."""


class Principal(NamedTuple):
    """The tenant, scopes, and key that a request is authenticated with."""

    tenant_id: int
    scopes: frozenset[str]
    key_id: int

    @property
    def actor(self) -> str:
        """The name of the principal in the event log."""
        return ids.public(PREFIX, self.key_id)


class Made(NamedTuple):
    """A new key. Its secret is available only here."""

    row: ApiKeyRow
    secret: ApiKey


# --- managing keys


async def create(
    store: Store, tenant_id: int, name: str, scopes: Iterable[str], *, expires: Span | None = USUAL_LIFE, by: str
) -> Made:
    """Create a key for a tenant. A key without expiry is valid until it is revoked."""
    check_name("name of a key", name)
    allowed = ",".join(api_key.scopes_of(scopes))
    secret = api_key.new()
    wanted = NewApiKey(tenant_id, name, allowed, secret.hash, by, None if expires is None else _life(expires))
    return Made(await store.put_api_key(wanted), secret)


async def find(store: Store, tenant_id: int, id: str) -> ApiKeyRow:
    """Return a key by its public ID. Raise `NotFound` for an unknown ID and for another tenant's ID."""
    if id.strip().startswith(api_key.PREFIX):  # a secret must not appear in a message
        raise BadInput(what="what was given is a secret, not the id of a key; find its id with: keptwork keys list")
    prefix, key = ids.key_of(id.strip()) or ("", 0)
    found = await store.api_key(tenant_id, key) if prefix == PREFIX else None
    if found is None:
        raise _unknown(id)
    return found


class Page(NamedTuple):
    """A page of keys, and the ID of its last key if there are more."""

    keys: list[ApiKeyRow]
    next: str | None


async def page(
    store: Store, tenant_id: int, *, ended: bool = False, after: str | None = None, limit: int = 100
) -> Page:
    """Return one page of a tenant's keys, newest first."""
    start = None if after is None else (ids.key_of(after) or ("", 0))[1]
    found = await listed(store, tenant_id, ended=ended, after=start, limit=limit + 1)
    return Page(found[:limit], found[limit - 1].public_id if len(found) > limit else None)


async def listed(
    store: Store, tenant_id: int, *, ended: bool = False, after: int | None = None, limit: int = 100
) -> list[ApiKeyRow]:
    """List the keys of a tenant, newest first: the live ones, or with `ended` also the others."""
    if not 1 <= limit <= MOST_AT_ONCE:
        raise BadInput(what=f"a list holds 1 to {MOST_AT_ONCE} keys, not {limit}")
    return await store.api_keys(tenant_id, ended=ended, after=after, limit=limit)


@acknowledged
async def revoke(store: Store, tenant_id: int, id: str, *, by: str) -> ApiKeyRow:
    """Revoke a key. Every `KeyRing` rejects it within 5 s. A repetition changes nothing."""
    found = await store.revoke_api_key(tenant_id, (await find(store, tenant_id, id)).id, by)
    if found is None:
        raise _unknown(id)
    return found


@acknowledged
async def rotate(store: Store, tenant_id: int, id: str, *, overlap: Span = USUAL_OVERLAP, by: str) -> Made:
    """Create a key like an old one, which stays valid for the overlap.

    The new key has the name, scopes, and lifetime of the old one.
    """
    overlap_us = span_us(overlap)
    if overlap_us > LONGEST_OVERLAP_US:
        raise BadInput(what=f"an overlap of {overlap} is over the limit of 30d; two keys for ever are two secrets")
    old, secret = await find(store, tenant_id, id), api_key.new()
    life = None if old.expires_at is None else old.expires_at - old.created_at
    wanted = NewApiKey(tenant_id, old.name, old.scopes, secret.hash, by, life)
    row = await store.rotate_api_key(old.id, wanted, overlap_us)
    if row is None:
        raise KeyEnded(id=old.public_id, how=_how(await find(store, tenant_id, id)))
    return Made(row, secret)


def _how(row: ApiKeyRow) -> str:
    if row.revoked_at is not None:
        return "was revoked"
    return "has expired" if row.replaced_by is None else f"was rotated to {ids.public(PREFIX, row.replaced_by)}"


def _life(expires: Span) -> int:
    if (life := span_us(expires)) == 0:
        raise BadInput(what="a key that expires at once opens nothing; give it a time like 90d")
    return life


def _unknown(id: str) -> NotFound:
    return NotFound(what="key", id=repr(id), listing="keptwork keys list")


def as_json(row: ApiKeyRow, now: int) -> dict[str, Any]:
    """Return a key in its public form, without its secret and hash."""
    times = ("created_at", "expires_at", "revoked_at", "last_used_at")
    return {
        "id": row.public_id,
        "name": row.name,
        "scopes": row.scopes.split(","),
        "state": state(row, now),
        "created_by": row.created_by,
        "revoked_by": row.revoked_by,
        "replaced_by": None if row.replaced_by is None else ids.public(PREFIX, row.replaced_by),
        **{name: None if (at := getattr(row, name)) is None else rfc3339(at) for name in times},
    }


def state(row: ApiKeyRow, now: int) -> str:
    """Return the state of a key at a time, as one word."""
    if row.is_live(now):
        return "live" if row.replaced_by is None else "replaced"
    return "expired" if row.revoked_at is None else "revoked"


# --- authentication


async def authenticate(store: Store, token: str) -> Principal | None:
    """Return the principal of a token, or None if the token is invalid, unknown, or ended.

    The three cases are indistinguishable for the caller.
    """
    key = api_key.parse(token)
    found = None if key is None else await _looked_up(store, key)
    if found is None:
        return None
    await _note_use(store, found)
    return _principal(found.key)


async def _looked_up(store: Store, key: ApiKey) -> LiveApiKey | None:
    """Look up a key and compare its hash again, in constant time, even if there is no key."""
    found = await store.live_api_key(key.hash)
    same = key.matches(NOBODYS if found is None else found.key.hash)
    return found if same else None


async def _note_use(store: Store, found: LiveApiKey) -> None:
    """Record the use of a key, at most once per minute across all servers. Storage problems are ignored."""
    row, last = found.key, found.key.last_used_at
    if last is None or last <= found.at - MINUTE_US:
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(1):
                await store.touch_api_key(row.tenant_id, row.id, MINUTE_US)


def _principal(row: ApiKeyRow) -> Principal:
    """Return the principal of a key, without scopes that this version does not know."""
    return Principal(row.tenant_id, frozenset(api_key.known_scopes(row.scopes.split(","))), row.id)


class _Known(NamedTuple):
    """A cached principal, and the time until which it is valid."""

    principal: Principal | None
    until: float


class KeyRing:
    """A cache of authentication results, for servers.

    A revoked key is rejected everywhere after `LIFE` seconds: no result is cached for longer, counted from before the
    query. If the database is slow, it takes up to `PATIENCE` seconds more, because no query waits longer.

    The cache contains hashes, not keys. Failures are cached separately, so that a flood of guesses cannot evict keys in
    use. Concurrent requests with the same key share one query.
    """

    LIFE = 2.0
    PATIENCE = 3.0
    MOST = 10_000

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._monotonic = store, monotonic
        self._good: dict[str, _Known] = {}
        self._bad: dict[str, _Known] = {}
        self._asked: dict[str, asyncio.Task[Principal | None]] = {}

    async def authenticate(self, token: str) -> Principal | None:
        """Authenticate a token as the function of this name does, from the cache if possible."""
        hash = api_key.hash_of(token)
        known = self._good.get(hash) or self._bad.get(hash)
        if known and self._monotonic() < known.until:
            return known.principal
        key = api_key.parse(token)
        return None if key is None else await self._ask(key, hash)

    async def _ask(self, key: ApiKey, hash: str) -> Principal | None:
        """Share one query between concurrent requests. A request that is cancelled does not cancel the query."""
        if (task := self._asked.get(hash)) is None:
            task = self._asked[hash] = asyncio.create_task(self._find_out(key, hash))
            task.add_done_callback(lambda done: self._answered(hash, done))
        return await asyncio.shield(task)

    def _answered(self, hash: str, task: asyncio.Task[Principal | None]) -> None:
        """Retrieve the exception of a query, so that asyncio does not report it as unhandled.

        All requests that waited for it might have been cancelled.
        """
        del self._asked[hash]
        if not task.cancelled():
            task.exception()

    async def _find_out(self, key: ApiKey, hash: str) -> Principal | None:
        asked_at, found = self._monotonic(), await self._look_up(key)
        self._good.pop(hash, None)
        self._bad.pop(hash, None)
        if found is None:
            return self._keep(self._bad, hash, _Known(None, asked_at + self.LIFE))
        principal = self._keep(self._good, hash, _Known(_principal(found.key), asked_at + self._life(found)))
        await _note_use(self._store, found)
        return principal

    async def _look_up(self, key: ApiKey) -> LiveApiKey | None:
        try:
            async with asyncio.timeout(self.PATIENCE):
                return await _looked_up(self._store, key)
        except TimeoutError:
            late = f"it did not say within {self.PATIENCE:g} s whose key that is"
            raise StoreError(url=self._store.url, detail=late) from None

    def _life(self, found: LiveApiKey) -> float:
        """Return how long to cache a key: not longer than it is valid."""
        ends = found.key.expires_at
        return self.LIFE if ends is None else min(self.LIFE, (ends - found.at) / 1_000_000)

    def _keep(self, kept: dict[str, _Known], hash: str, known: _Known) -> Principal | None:
        """Cache a result. The oldest result is evicted first."""
        while len(kept) >= self.MOST:
            del kept[next(iter(kept))]
        kept[hash] = known
        return known.principal
