"""Deliver the webhooks of flows. Every process can do it; one process at a time leases a delivery."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from keptwork.errors import BadInput, StoreError
from keptwork.maintenance.periodic import Outage
from keptwork.store import Store
from keptwork.store.contract.outbox import GIVEN_UP, Delivery
from keptwork.webhooks import outbox, sign
from keptwork.webhooks.address import addresses, endpoint
from keptwork.webhooks.http_post import SECOND, Answer, post, resolve, verdict

LONGEST_NAP = 1.0
MOST_AT_ONCE = 16
LEASE_US = 60 * SECOND  # far longer than an attempt can take; if the sender dies, another process takes over after it
END_SECONDS = 2.0
USER_AGENT = "keptwork-webhooks/1"

log = logging.getLogger("keptwork")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Courier:
    """Checks once per second whether a delivery is due. Usually, that costs one index lookup."""

    def __init__(
        self,
        store: Store,
        outage: Outage,
        chance: Callable[[], float] = random.random,
        resolve: Resolve = resolve,
    ) -> None:
        self._store = store
        self._outage = outage
        self._chance = chance
        self._resolve = resolve
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            while True:
                await self._nap(await self._look())
        finally:
            await self._end()

    async def run_once(self) -> int:
        """Make every attempt that is due now, wait for the outcomes, and return how many were made."""
        made = 0
        try:
            while (taken := await self._take()) or self._under_way:
                made += len(taken)
                await asyncio.wait(self._under_way)
        except StoreError as error:
            self._outage.note("deliver", error)
        return made

    async def _look(self) -> float:
        """Start the deliveries that are due, and return the seconds until the next check. If a delivery is due but
        another process has leased it, check again soon."""
        try:
            wait_us = await self._store.next_delivery()
            taken = wait_us is not None and wait_us <= 0 and await self._take()
            self._outage.over("deliver")
        except StoreError as error:
            self._outage.endure("deliver", error)
            return LONGEST_NAP
        if wait_us is None or wait_us > 0:
            return LONGEST_NAP if wait_us is None else min(wait_us / SECOND, LONGEST_NAP)
        return 0.0 if taken else LONGEST_NAP / 10

    async def _take(self) -> list[Delivery]:
        room = MOST_AT_ONCE - len(self._under_way)
        if not room:
            return []
        taken = await self._store.take_deliveries(room, LEASE_US)
        for delivery in taken:
            task = asyncio.create_task(self._attempt(delivery))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return taken

    async def _nap(self, seconds: float) -> None:
        """Wait until a delivery is due, or until there is room for another attempt."""
        if len(self._under_way) >= MOST_AT_ONCE:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds)

    async def _attempt(self, delivery: Delivery) -> None:
        """Send a delivery and store its outcome. If the outcome cannot be stored, another attempt follows with the same
        message ID."""
        said = verdict(delivery, await self._sent(delivery), self._chance)
        try:
            counted = await self._store.settle_delivery(delivery, *said)
        except StoreError as error:
            self._outage.note("deliver", error)
            return
        if counted and said.state == GIVEN_UP:
            name = outbox.name_of(delivery.entity, delivery.entity_id, delivery.seq)
            log.warning("webhook %s is given up after %d attempts: %s", name, delivery.attempts, said.error)

    async def _sent(self, delivery: Delivery) -> Answer:
        try:
            allowed, headers = outbox.allowed(), _headers(delivery, outbox.secret(delivery.secret_env))
        except BadInput as misconfigured:
            # the operator can correct it, or the settings can differ where another process sends
            return Answer(error=str(misconfigured))
        try:
            where = endpoint(delivery.url, allowed)
            found = addresses(where, await self._resolve(where.host, where.port), allowed)
        except BadInput as refused:
            return Answer(error=str(refused), refused=True)
        except (OSError, UnicodeError) as error:
            return Answer(error=f"its host cannot be resolved: {getattr(error, 'strerror', None) or 'no answer'}")
        return await post(where, found, headers, delivery.body.encode())

    async def _end(self) -> None:
        """Give running attempts a moment to finish. Another process repeats the rest after their leases expire."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=END_SECONDS)
        for task in self._under_way:
            task.cancel()


def _headers(delivery: Delivery, secret: bytes) -> dict[str, str]:
    """Return the headers. The timestamp is the database's time at which this attempt was leased."""
    timestamp = (delivery.next_at - LEASE_US) // SECOND
    return {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        "Keptwork-Event": delivery.event,
        "Keptwork-Delivery": outbox.name_of(delivery.entity, delivery.entity_id, delivery.seq),
        "Keptwork-Timestamp": str(timestamp),
        "Keptwork-Signature": sign(secret, timestamp, delivery.body.encode()),
    }
