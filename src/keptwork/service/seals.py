"""Seals: hashes over the event log, each over that of the one before, so that no edit of what is sealed goes unseen.

The database refuses to change an event, and replaying the log finds what contradicts a row. Who gets round the first
could still change who did something, or why. Sealed events cannot be changed, moved, left out or put in without a seal
being broken. To cut the log and its seals off together, or to seal a changed log anew, stays possible for whoever may
write everything; a seal that was kept elsewhere tells, and with a secret in the environment nobody else can make one.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from keptwork.errors import BadInput
from keptwork.store import EventFilter, Store
from keptwork.store.protocol import Reader
from keptwork.store.records import Event
from keptwork.store.seals import NewSeal, Seal

VARIABLE = "KEPTWORK_SEAL_KEY"
"""Secrets, separated by commas: the first is sealed with, all of them are known when seals are checked."""

AT_ONCE, MOST = 1_000, 100_000
"""Events under one seal: so many are made at a time, and so many are read back at most."""

SEALS_AT_ONCE = 200

Tell = Callable[[str, str, str], None]
"""Is told of a seal what is wrong, and where."""


class Sealed(NamedTuple):
    """How many seals there are, how many events they cover, and the newest."""

    seals: int = 0
    events: int = 0
    last: Seal | None = None


def known_keys() -> tuple[bytes, ...]:
    """The secrets of this environment."""
    return tuple(part.strip().encode() for part in os.environ.get(VARIABLE, "").split(",") if part.strip())


def name_of(key: bytes) -> str:
    """What tells one secret from another, and nothing about it."""
    return hashlib.sha256(b"keptwork seal " + key).hexdigest()[:12]


def hash_over(before: str, events: Sequence[Event], key: bytes | None) -> str:
    """The hash of a seal: over every field of its events, in their order, and over the hash of the seal before."""
    text = json.dumps([before, *events], separators=(",", ":")).encode()
    return (hashlib.sha256(text) if key is None else hmac.new(key, text, hashlib.sha256)).hexdigest()


def next_seal(last: Seal | None, events: Sequence[Event], key: bytes | None) -> NewSeal:
    """The seal over the events that follow those of the last one."""
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
    """Whether the next seal may be made here: what was sealed with a secret is not gone on with without one."""
    return last is None or last.key is None or bool(known_keys())


async def _no_rest() -> None:
    """For whoever waits for it to be done."""


async def seal(store: Store, *, at_once: int = AT_ONCE, rest: Callable[[], Awaitable[None]] = _no_rest) -> int:
    """Seals the events that are not sealed yet, so many at a time with a rest in between; returns how many it was. If
    another process does it too, this one leaves it to that one."""
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
    """Makes every hash again and compares it; `against` is a seal's hash that was kept elsewhere."""
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
    """What is wrong with a seal or with the events it covers."""
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
