"""Rate limits per tenant: requests per second, concurrent requests, and concurrent streams.

Each process counts for itself, so two servers admit twice as many requests. Limits of a tenant are read from the
database every 5 s. If the database is unreachable, the last known limits apply.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from keptwork.access.scopes import Allowance
from keptwork.errors import KeptworkError, QueueFull, TooManyAtOnce, TooManyRequests, TooManyStreams, TooManyWrongKeys

# Token buckets with a size and a refill rate. A caller takes one token, if there is one.


EMPTY_SOON = 1e-9


class Bucket:
    """A token bucket that starts full. Times are seconds of any monotonic clock."""

    __slots__ = ("at", "level")

    def __init__(self, size: float, now: float) -> None:
        self.level = float(size)
        self.at = now

    def take(self, rate: float, size: float, now: float) -> bool:
        """Take a token and return True, or return False if there is none.

        >>> bucket = Bucket(2, now=0.0)
        >>> [bucket.take(1, 2, now) for now in (0.0, 0.0, 0.0, 0.9, 1.0, 1.1)]
        [True, True, False, False, True, False]
        """
        self.fill(rate, size, now)
        if self.level < 1 - EMPTY_SOON:
            return False
        self.level -= 1
        return True

    def fill(self, rate: float, size: float, now: float) -> None:
        """Add the tokens of the time since the last call."""
        self.level = min(size, self.level + (now - self.at) * rate)
        self.at = now

    def seconds_until(self, level: float, rate: float) -> int:
        """Return the whole seconds until the bucket has this many tokens."""
        return max(0, math.ceil((level - self.level) / rate))


KNOWN_SECONDS = 5.0
MOST_KNOWN = 10_000
LATER_SECONDS = 1

logger = logging.getLogger("keptwork.http")

Own = Callable[[int], Awaitable[str | None]]
"""Returns the limits of a tenant in the database, or None."""


class Guest:
    """The requests and limits of one tenant in this process."""

    __slots__ = ("allowance", "bucket", "in_flight", "known_until", "policy", "streams")

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.in_flight = self.streams = 0
        self.known_until = -math.inf
        self.allowance = allowance
        self.bucket = Bucket(allowance.burst, now)
        self.learn(allowance)

    def learn(self, allowance: Allowance) -> None:
        """Set new limits. A larger bucket gets the additional tokens immediately."""
        self.bucket.level += max(0, allowance.burst - self.allowance.burst)
        self.allowance = allowance
        rate, burst = allowance.requests_per_second, allowance.burst
        self.policy = f'"tenant";q={burst};w={max(1, math.ceil(burst / rate))}' if rate and burst else ""

    def enter(self, now: float) -> None:
        """Count one more request, or raise an error. A request beyond `max_in_flight` spends a token too."""
        may = self.allowance
        if self.policy and not self.bucket.take(may.requests_per_second, may.burst, now):
            wait = max(1, self.bucket.seconds_until(1, may.requests_per_second))
            raise TooManyRequests(rate=may.requests_per_second, seconds=wait)
        if may.max_in_flight and self.in_flight >= may.max_in_flight:
            raise TooManyAtOnce(most=may.max_in_flight, seconds=LATER_SECONDS)
        self.in_flight += 1

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the RateLimit header fields, as defined by the IETF draft."""
        if not self.policy:
            return []
        full = self.bucket.seconds_until(self.allowance.burst, self.allowance.requests_per_second)
        left = f'"tenant";r={int(self.bucket.level)};t={full}'
        return [(b"ratelimit-policy", self.policy.encode()), (b"ratelimit", left.encode())]

    def idle(self) -> bool:
        """Return whether the tenant has no request and no stream in progress."""
        return not self.in_flight and not self.streams


class Visit:
    """One admitted request."""

    __slots__ = ("_guest", "_left", "_stays", "headers")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._stays = self._left = False
        self.headers = guest.headers()

    @property
    def allowance(self) -> Allowance:
        """The limits of its tenant."""
        return self._guest.allowance

    def stay(self) -> None:
        """Count the request as a stream from now on, because it waits long and does little."""
        guest, most = self._guest, self._guest.allowance.max_streams
        if self._stays or self._left:
            return
        if most and guest.streams >= most:
            raise TooManyStreams(most=most, seconds=LATER_SECONDS)
        self._stays = True
        guest.in_flight -= 1
        guest.streams += 1

    def leave(self) -> None:
        """End the request. Repeated calls have no effect."""
        if not self._left:
            self._left = True
            if self._stays:
                self._guest.streams -= 1
            else:
                self._guest.in_flight -= 1


class Turnstile:
    """The rate limits of all tenants."""

    def __init__(self, usual: Allowance, own: Own, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._usual, self._own, self._monotonic = usual, own, monotonic
        self._guests: dict[int, Guest] = {}

    async def enter(self, tenant_id: int) -> Visit:
        """Admit a request of a tenant, or raise an error."""
        guest = await self.guest(tenant_id)
        guest.enter(self._monotonic())
        return Visit(guest)

    async def guest(self, tenant_id: int) -> Guest:
        """Return a tenant, with its limits read from the database if they are old."""
        now = self._monotonic()
        guest = self._guests.get(tenant_id)
        if guest is None:
            self._make_room()
            guest = self._guests[tenant_id] = Guest(self._usual, now)
        if now >= guest.known_until:
            guest.known_until = now + KNOWN_SECONDS  # requests that come meanwhile use the known limits
            await self._learn(tenant_id, guest)
        return guest

    async def _learn(self, tenant_id: int, guest: Guest) -> None:
        """Read the limits of a tenant. An unreachable database or an invalid row locks no tenant out."""
        try:
            guest.learn(self._usual.of_tenant(await self._own(tenant_id)))
        except (KeptworkError, ValueError, TypeError) as error:
            logger.warning("the limits of tenant %s cannot be read: %s", tenant_id, error)

    def _make_room(self) -> None:
        if len(self._guests) >= MOST_KNOWN:
            self._guests = {id: guest for id, guest in self._guests.items() if not guest.idle()}


# Limit failed authentication by network.
#
# A network that keeps sending wrong keys must wait, and its keys are not looked up. A key that was valid here recently
# is always accepted, because all clients behind a proxy can have the same address. The stored data is bounded, and
# contains only hashes of keys.


K = TypeVar("K")
V = TypeVar("V")

MOST_ADDRESSES = 10_000
MOST_KEYS = 10_000


class Guesses:
    """Rate limiter for failed authentication, by network."""

    def __init__(self, per_minute: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._size, self._rate = per_minute, per_minute / 60
        self._monotonic = monotonic
        self._buckets: dict[str, Bucket] = {}
        self._good: dict[bytes, None] = {}

    def insist_few(self, address: str, token: str) -> None:
        """Reject an unknown key from a network with too many failures."""
        bucket = self._buckets.get(_network(address)) if self._size else None
        if bucket is None or _digest(token) in self._good:
            return
        bucket.fill(self._rate, self._size, self._monotonic())
        if bucket.level < 1:
            raise TooManyWrongKeys(seconds=max(1, bucket.seconds_until(1, self._rate)))

    def wrong(self, address: str) -> None:
        """Record a failed authentication."""
        if self._size:
            now, network = self._monotonic(), _network(address)
            bucket = self._buckets.pop(network, None) or Bucket(self._size, now)
            bucket.take(self._rate, self._size, now)
            _keep(self._buckets, network, bucket, MOST_ADDRESSES)

    def right(self, token: str) -> None:
        """Record a successful authentication."""
        digest = _digest(token)
        if digest not in self._good:
            _keep(self._good, digest, None, MOST_KEYS)


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Store a value. The oldest entry makes room."""
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _network(address: str) -> str:
    """Return the network of an address: its /64 for IPv6, because one client has all of its addresses.

    >>> _network("10.0.0.7"), _network("2001:db8::1") == _network("2001:db8::2")
    ('10.0.0.7', True)
    """
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


# Limit the queued jobs of a tenant.
#
# Queued jobs are counted in the database, but not for every request. After a count, half of the free places are
# granted, or fewer if the count gets old. The limit is therefore approximate: the next count finds jobs that other
# servers admitted at the same time, and jobs that were not enqueued through this API.


COUNT_SECONDS = 10.0
FULL_SECONDS = 1.0

Count = Callable[[int, int], Awaitable[int]]
"""Returns the number of queued jobs of a tenant, counted up to a limit."""


class _Tenant:
    """The known capacity of one tenant, and how long it is valid."""

    __slots__ = ("full_until", "left", "lock", "most", "until")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.left = self.most = 0
        self.until = self.full_until = 0.0

    def is_old(self, now: float, most: int, jobs: int) -> bool:
        """Return whether to count again before this many jobs. A full queue is not counted again immediately."""
        if most != self.most:
            return True
        return now >= self.full_until and (now >= self.until or self.left < jobs)


class Room:
    """The capacity of all tenants of a server."""

    def __init__(self, count: Count, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._count, self._monotonic = count, monotonic
        self._tenants: dict[int, _Tenant] = {}

    async def take(self, tenant_id: int, most: int, jobs: int = 1) -> None:
        """Admit about this many jobs, or raise `QueueFull`. A limit of 0 means unlimited."""
        if not most:
            return
        known = self._known(tenant_id)
        async with known.lock:
            now = self._monotonic()
            if known.is_old(now, most, jobs):
                await self._recount(tenant_id, known, most, now)
            if now < known.full_until:
                raise QueueFull(most=most, seconds=int(FULL_SECONDS))
            known.left -= jobs

    def _known(self, tenant_id: int) -> _Tenant:
        found = self._tenants.get(tenant_id)
        if found is None:
            if len(self._tenants) >= MOST_KNOWN:
                self._tenants.clear()  # forgotten tenants are counted again at their next request
            found = self._tenants[tenant_id] = _Tenant()
        return found

    async def _recount(self, tenant_id: int, known: _Tenant, most: int, now: float) -> None:
        free = most - await self._count(tenant_id, most)
        known.most, known.left, known.until = most, free // 2, now + COUNT_SECONDS
        known.full_until = 0.0 if free else now + FULL_SECONDS


# Limits of a server: the size, depth, and duration of requests, and their number.


LARGEST_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server. Times are in seconds. A body is slightly larger than the largest payload of a job."""

    body_bytes: int = 2 << 20
    body_seconds: float = 20.0
    header_bytes: int = 32 << 10
    header_seconds: float = 10.0
    write_seconds: float = 60.0
    json_depth: int = 64
    idle_seconds: int = 30
    shutdown_seconds: int = 30
    beat_seconds: float = 15.0
    """Interval of keepalive messages on a stream, so that proxies do not close it."""
    programs: bool = False
    """Whether flows that define programs are accepted from keys with the admin scope."""
    recheck_seconds: float = 2.0
    """Interval at which a stream checks its key. Cached keys can be equally old; a revoked key must fail within 5 s."""
    allowance: Allowance = field(default_factory=Allowance)
    """The limits of a tenant without limits of its own."""
    failed_keys_per_minute: int = 600
    """Failed authentications per network and minute; 0 means unlimited."""
    row_security: Literal["auto", "require", "off"] = "auto"
    """Use of PostgreSQL row security to separate tenants in requests: if possible, required, or not at all."""
