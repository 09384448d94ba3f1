"""The courier: delivers what flows tell to the outside; every process has one, and each attempt is made by one."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from keptwork.address import addresses, endpoint
from keptwork.errors import BadInput, StoreError
from keptwork.service import webhooks
from keptwork.service.deliveries import Answer, verdict
from keptwork.signature import sign
from keptwork.store import Store
from keptwork.store.outbox import GIVEN_UP, Delivery
from keptwork.worker.outage import Outage
from keptwork.worker.post import SECOND, post, resolve

LONGEST_NAP = 1.0
MOST_AT_ONCE = 16
LEASE_US = 60 * SECOND  # far longer than an attempt may take; whoever dies over one is replaced after it
END_SECONDS = 2.0
USER_AGENT = "keptwork-webhooks/1"

log = logging.getLogger("keptwork")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Courier:
    """Looks once a second whether something is due, which is one step in an index while nothing is."""

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
        """Makes every attempt that is due now, and waits for what comes of them; returns how many."""
        made = 0
        try:
            while (taken := await self._take()) or self._under_way:
                made += len(taken)
                await asyncio.wait(self._under_way)
        except StoreError as error:
            self._outage.note("deliver", error)
        return made

    async def _look(self) -> float:
        """Begins what is due; returns for how many seconds nothing will be. What is due and yet another's to take is
        looked at again soon."""
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
        """Until something is due, or there is room for more of what is."""
        if len(self._under_way) >= MOST_AT_ONCE:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds)

    async def _attempt(self, delivery: Delivery) -> None:
        """A verdict that could not be written is that of the next attempt: the message has the same name then."""
        said = verdict(delivery, await self._sent(delivery), self._chance)
        try:
            counted = await self._store.settle_delivery(delivery, *said)
        except StoreError as error:
            self._outage.note("deliver", error)
            return
        if counted and said.state == GIVEN_UP:
            name = webhooks.name_of(delivery.entity, delivery.entity_id, delivery.seq)
            log.warning("webhook %s is given up after %d attempts: %s", name, delivery.attempts, said.error)

    async def _sent(self, delivery: Delivery) -> Answer:
        try:
            allowed, headers = webhooks.allowed(), _headers(delivery, webhooks.secret(delivery.secret_env))
        except BadInput as misconfigured:
            return Answer(error=str(misconfigured))  # that may be mended, or be otherwise where another courier runs
        try:
            where = endpoint(delivery.url, allowed)
            found = addresses(where, await self._resolve(where.host, where.port), allowed)
        except BadInput as refused:
            return Answer(error=str(refused), refused=True)
        except (OSError, UnicodeError) as error:
            return Answer(error=f"its host cannot be resolved: {getattr(error, 'strerror', None) or 'no answer'}")
        return await post(where, found, headers, delivery.body.encode())

    async def _end(self) -> None:
        """What is about to be answered is given a moment; what is not is made again by another, after its lease."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=END_SECONDS)
        for task in self._under_way:
            task.cancel()


def _headers(delivery: Delivery, secret: bytes) -> dict[str, str]:
    """The time is the database's, of the moment the attempt was taken."""
    timestamp = (delivery.next_at - LEASE_US) // SECOND
    return {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        "Keptwork-Event": delivery.event,
        "Keptwork-Delivery": webhooks.name_of(delivery.entity, delivery.entity_id, delivery.seq),
        "Keptwork-Timestamp": str(timestamp),
        "Keptwork-Signature": sign(secret, timestamp, delivery.body.encode()),
    }
