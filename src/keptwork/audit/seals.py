"""Seals: chained hashes over the event log that make edits of sealed events detectable.

The database rejects changes of events, and replaying the log finds contradictions to rows. An attacker who bypasses the
database's checks could still change an actor or a reason. Sealed events cannot be changed, moved, removed, or inserted
without breaking a seal. An attacker with full write access can still truncate the log with its seals, or seal a changed
log again. A seal that was stored elsewhere detects both, and with a secret in the environment only its owner can create
seals.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from keptwork.errors import BadInput, StoreError
from keptwork.store import EventFilter, Store
from keptwork.store.contract.events_seals import NewSeal, Seal
from keptwork.store.contract.records import Event
from keptwork.store.contract.store import Reader

VARIABLE = "KEPTWORK_SEAL_KEY"
"""Secrets, separated by commas. The first creates seals, and all of them verify seals."""

AT_ONCE, MOST = 1_000, 100_000
"""Events per seal: the default number, and the maximum when seals are verified."""

SEALS_AT_ONCE = 200

Tell = Callable[[str, str, str], None]
"""Receives a problem: the seal, what is wrong, and where."""


class Sealed(NamedTuple):
    """The number of seals, the number of events that they cover, and the newest seal."""

    seals: int = 0
    events: int = 0
    last: Seal | None = None


def known_keys() -> tuple[bytes, ...]:
    """Return the secrets of this environment."""
    return tuple(part.strip().encode() for part in os.environ.get(VARIABLE, "").split(",") if part.strip())


def name_of(key: bytes) -> str:
    """Return a name that identifies a secret without revealing it."""
    return hashlib.sha256(b"keptwork seal " + key).hexdigest()[:12]


def hash_over(before: str, events: Sequence[Event], key: bytes | None) -> str:
    """Return the hash of a seal over its events and the previous seal's hash.

    It covers every field of the events, in order.
    """
    text = json.dumps([before, *events], separators=(",", ":")).encode()
    return (hashlib.sha256(text) if key is None else hmac.new(key, text, hashlib.sha256)).hexdigest()


def next_seal(last: Seal | None, events: Sequence[Event], key: bytes | None) -> NewSeal:
    """Return the seal over the events that follow the last seal."""
    return NewSeal(
        number=1 if last is None else last.number + 1,
        events=len(events),
        total=len(events) + (0 if last is None else last.total),
        after=None if last is None else last.upto,
        upto=events[-1].cursor,
        hash=hash_over("" if last is None else last.hash, events, key),
        key=None if key is None else name_of(key),
    )


def may_follow(last: Seal | None) -> bool:
    """Return whether the next seal can be created here.

    After a seal with a secret, the next one needs a secret.
    """
    return last is None or last.key is None or bool(known_keys())


async def _no_rest() -> None:
    """Do not pause: the caller waits for the result."""


async def seal(store: Store, *, at_once: int = AT_ONCE, rest: Callable[[], Awaitable[None]] = _no_rest) -> int:
    """Seal the events that are not sealed yet, and return how many there were.

    It pauses between seals. If another process seals the log at the same time, this call stops.
    """
    key, sealed = next(iter(known_keys()), None), 0
    while True:
        last = await store.last_seal()
        if not may_follow(last):
            raise BadInput(what=f"the log is sealed with a secret, and there is none in {VARIABLE}")
        page = await store.events(EventFilter(), after=None if last is None else last.upto, limit=at_once)
        if not page or not await store.put_seal(await asyncio.to_thread(next_seal, last, page, key)):
            return sealed
        sealed += len(page)
        if len(page) < at_once:
            return sealed
        await rest()


async def check(log: Reader, tell: Tell, against: str | None = None) -> Sealed:
    """Compute every hash again and compare it. `against` is the hash of a seal that was stored elsewhere."""
    keys, so_far, found = {name_of(key): key for key in known_keys()}, Sealed(), against is None
    while page := await log.seals(after=so_far.last.number if so_far.last else 0, limit=SEALS_AT_ONCE):
        for one in page:
            if wrong := await _wrong(log, one, so_far.last, keys):
                tell(f"seal {one.number}", wrong, "seals")
            found = found or one.hash == against
            so_far = Sealed(so_far.seals + 1, so_far.events + one.events, one)
    if not found:
        tell("–", f"no seal is {against}: the log was cut or sealed anew since, or this is another database", "seals")
    return so_far


async def _wrong(log: Reader, one: Seal, before: Seal | None, keys: dict[str, bytes]) -> str | None:
    """Return what is wrong with a seal or its events, or None."""
    due = 1 if before is None else before.number + 1
    if one.number != due:
        return f"{one.number - due:,} before it are gone"
    follows = one.after == (None if before is None else before.upto)
    if not follows or one.total != one.events + (0 if before is None else before.total):
        return "it does not go on where the one before it ends"
    if one.key is None and before is not None and before.key is not None:
        return "it was made without a secret, though the one before it was made with one"
    if one.key is not None and one.key not in keys:
        return f"it was made with the secret {one.key}, which is not in {VARIABLE}: it cannot be checked"
    return await _broken(log, one, before, None if one.key is None else keys[one.key])


async def _broken(log: Reader, one: Seal, before: Seal | None, key: bytes | None) -> str | None:
    covered = f"the events after {one.after or 'the beginning'} up to {one.upto}"
    if not 0 < one.events <= MOST:
        return f"it says that {covered} are {one.events:,}"
    try:
        events = await log.events(EventFilter(), after=one.after, limit=one.events)
    except BadInput:
        return f"it covers {covered}, and there is no such place"
    if len(events) != one.events or events[-1].cursor != one.upto:
        return f"{covered} were {one.events:,} when they were sealed: some were deleted, put in or moved"
    if hash_over("" if before is None else before.hash, events, key) != one.hash:
        return f"{covered} are not what they were when they were sealed"
    return None


# Seal new events of the event log: every minute in one process for all, and in each process when it ends.


DUTY = "seal"
EVERY_US = 60_000_000
LOOK_SECONDS = 60.0
RESTS = 9  # multiple of the time of a batch: at most a tenth of one core, however fast the log grows
SHORTEST_REST = 0.01
LAST_SECONDS = 2.0

logger = logging.getLogger("keptwork")


class Sealer:
    """Checks whether there are events to seal. Every process can have one; the database gives the duty to one at a
    time.

    Without new events, nothing is written.
    """

    def __init__(self, store: Store, chance: Callable[[], float]) -> None:
        self._store = store
        self._chance = chance
        self._began = 0.0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS * (0.5 + self._chance()))
            with contextlib.suppress(StoreError):  # unreachable: the next check seals the rest
                await self.run_once()

    async def run_once(self) -> int:
        """Return how many events were sealed, 0 if another process has the duty."""
        last = await self._store.last_seal()
        if not may_follow(last):
            return 0  # a process that has the secret does it
        if not await self._store.events(EventFilter(), after=None if last is None else last.upto, limit=1):
            return 0
        if not await self._store.take_duty(DUTY, EVERY_US // 2):
            return 0
        self._began = time.monotonic()
        return await seal(self._store, rest=self._rest)

    async def run_last(self) -> None:
        """Seal once more when the process ends, whichever process has the duty, because it can be the last one for a
        long time. What fails or takes too long is left to the next process and does not delay this one."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                if may_follow(await self._store.last_seal()):
                    await seal(self._store)
        except (StoreError, TimeoutError):
            logger.debug("the newest events are not sealed yet; the next process seals them")
        except Exception as error:
            logger.warning("the newest events could not be sealed: %s; the next process tries again", error)

    async def _rest(self) -> None:
        await asyncio.sleep(max(RESTS * (time.monotonic() - self._began), SHORTEST_REST))
        self._began = time.monotonic()
