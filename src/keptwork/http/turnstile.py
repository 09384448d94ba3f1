"""The turnstile: how often a tenant comes in, how many of its requests are inside, and how many of its streams.

This process counts for itself: two servers let twice as much through. What a tenant has of its own is read from the
database now and then; while that is away, what was known holds on.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable

from keptwork.allowance import Allowance
from keptwork.errors import KeptworkError, TooManyAtOnce, TooManyRequests, TooManyStreams
from keptwork.http.buckets import Bucket

KNOWN_SECONDS = 5.0
MOST_KNOWN = 10_000
LATER_SECONDS = 1

logger = logging.getLogger("keptwork.http")

Own = Callable[[int], Awaitable[str | None]]
"""What a tenant has of its own."""


class Guest:
    """A tenant, as far as this server has to do with it."""

    __slots__ = ("allowance", "bucket", "in_flight", "known_until", "policy", "streams")

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.in_flight = self.streams = 0
        self.known_until = -math.inf
        self.allowance = allowance
        self.bucket = Bucket(allowance.burst, now)
        self.learn(allowance)

    def learn(self, allowance: Allowance) -> None:
        """What it may ask from now on; a larger bucket is no emptier for that."""
        self.bucket.level += max(0, allowance.burst - self.allowance.burst)
        self.allowance = allowance
        rate, burst = allowance.requests_per_second, allowance.burst
        self.policy = f'"tenant";q={burst};w={max(1, math.ceil(burst / rate))}' if rate and burst else ""

    def enter(self, now: float) -> None:
        """One more request, or a refusal. One that finds too many inside has come all the same."""
        may = self.allowance
        if self.policy and not self.bucket.take(may.requests_per_second, may.burst, now):
            wait = max(1, self.bucket.seconds_until(1, may.requests_per_second))
            raise TooManyRequests(rate=may.requests_per_second, seconds=wait)
        if may.max_in_flight and self.in_flight >= may.max_in_flight:
            raise TooManyAtOnce(most=may.max_in_flight, seconds=LATER_SECONDS)
        self.in_flight += 1

    def headers(self) -> list[tuple[bytes, bytes]]:
        """How it stands, as the IETF draft on RateLimit header fields has it, and as it goes out."""
        if not self.policy:
            return []
        full = self.bucket.seconds_until(self.allowance.burst, self.allowance.requests_per_second)
        left = f'"tenant";r={int(self.bucket.level)};t={full}'
        return [(b"ratelimit-policy", self.policy.encode()), (b"ratelimit", left.encode())]

    def idle(self) -> bool:
        """Whether nothing of it is inside."""
        return not self.in_flight and not self.streams


class Visit:
    """One request that was let in."""

    __slots__ = ("_guest", "_left", "_stays", "headers")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._stays = self._left = False
        self.headers = guest.headers()

    @property
    def allowance(self) -> Allowance:
        """What its tenant may ask."""
        return self._guest.allowance

    def stay(self) -> None:
        """It will wait for long and do little: from here on it counts among the streams."""
        guest, most = self._guest, self._guest.allowance.max_streams
        if self._stays or self._left:
            return
        if most and guest.streams >= most:
            raise TooManyStreams(most=most, seconds=LATER_SECONDS)
        self._stays = True
        guest.in_flight -= 1
        guest.streams += 1

    def leave(self) -> None:
        """It is done. Twice is as good as once."""
        if not self._left:
            self._left = True
            if self._stays:
                self._guest.streams -= 1
            else:
                self._guest.in_flight -= 1


class Turnstile:
    """For all tenants."""

    def __init__(self, usual: Allowance, own: Own, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._usual, self._own, self._monotonic = usual, own, monotonic
        self._guests: dict[int, Guest] = {}

    async def enter(self, tenant_id: int) -> Visit:
        """Lets a request of a tenant in, or refuses it."""
        guest = await self.guest(tenant_id)
        guest.enter(self._monotonic())
        return Visit(guest)

    async def guest(self, tenant_id: int) -> Guest:
        """A tenant as it stands here."""
        now = self._monotonic()
        guest = self._guests.get(tenant_id)
        if guest is None:
            self._make_room()
            guest = self._guests[tenant_id] = Guest(self._usual, now)
        if now >= guest.known_until:
            guest.known_until = now + KNOWN_SECONDS  # whoever comes meanwhile goes by what was known
            await self._learn(tenant_id, guest)
        return guest

    async def _learn(self, tenant_id: int, guest: Guest) -> None:
        """A database that is away, and a row that somebody spoilt by hand, lock nobody out."""
        try:
            guest.learn(self._usual.of_tenant(await self._own(tenant_id)))
        except (KeptworkError, ValueError, TypeError) as error:
            logger.warning("the limits of tenant %s cannot be read: %s", tenant_id, error)

    def _make_room(self) -> None:
        if len(self._guests) >= MOST_KNOWN:
            self._guests = {id: guest for id, guest in self._guests.items() if not guest.idle()}
