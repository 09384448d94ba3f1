"""Rate limits per tenant: requests per second, concurrent requests, and concurrent streams.

Each process counts for itself, so two servers admit twice as many requests. Limits of a tenant are read from the
database every 5 s. If the database is unreachable, the last known limits apply.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable

from keptwork.access.scopes_allowance import Allowance
from keptwork.errors import KeptworkError, TooManyAtOnce, TooManyRequests, TooManyStreams
from keptwork.http.rate_limit_buckets import Bucket

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
