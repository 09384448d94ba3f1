"""Selects the jobs of a claim on SQLite: tenants in turn, each by highest priority, then by earliest due time.

PostgreSQL has the same in its function `keptwork_due`. Each tenant gets an equal share, and unused shares go to the
others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple

Run = Callable[..., list[tuple[Any, ...]]]
"""A function that runs a named statement."""
Place = tuple[int, int, int]
"""The position of a job in the order of its tenant: priority (negated, so that the highest is first), due time, and
ID."""

ABOVE_ALL = 1 << 31
"""Higher than any priority, and than any tenant ID."""
PAGE = 256
"""The maximum number of tenants to check once some with due jobs were found."""


class Wanted(NamedTuple):
    """The parameters of a claim."""

    limit: int
    tenant_id: int | None
    turn: int
    without: Sequence[str] = ()


class Found(NamedTuple):
    """The IDs to claim in working order, and the queues among them that have limits."""

    ids: list[int]
    limited: frozenset[str]


def due(run: Run, queues: Sequence[str], wanted: Wanted) -> Found:
    """Return the due jobs of these queues."""
    limited = set()
    found: list[dict[int, list[Place]]] = []
    for queue in queues:
        first, last, paused, has_limit = run("queue_now", queue=queue)[0]
        if has_limit:
            limited.add(queue)
        room = min(wanted.limit, _room(run, queue)) if has_limit else wanted.limit
        if first is not None and room > 0:
            resting = {row[0] for row in run("paused_by", queue=queue)} if paused else set()
            lanes = _lanes(run, queue, (first, last), wanted, resting, room)
            found.append(_shares(run, queue, lanes, wanted, room))
    return Found(_in_turn(found, wanted), frozenset(limited))


def _room(run: Run, queue: str) -> int:
    """Return how many more jobs a limited queue may start now."""
    run("queue_uses_over", queue=queue, key=f"queue:{queue}")
    ((by_number, by_rate),) = run("queue_room", queue=queue, key=f"queue:{queue}")
    return min(room for room in (by_number, by_rate, ABOVE_ALL) if room is not None)


def _lanes(run: Run, queue: str, ends: tuple[int, int], wanted: Wanted, resting: set[int], room: int) -> Iterable[int]:
    """Yield the tenants to serve, in turn. If there is only one, whether it has due jobs is not checked here."""
    first, last = ends
    if wanted.tenant_id is not None or first == last:
        only = first if wanted.tenant_id is None else wanted.tenant_id
        return [] if only in resting else [only]
    laps = ((wanted.turn, ABOVE_ALL), (-1, wanted.turn))
    return islice(chain.from_iterable(_lap(run, queue, lap, resting) for lap in laps), room)


def _lap(run: Run, queue: str, lap: tuple[int, int], resting: set[int]) -> Iterable[int]:
    (after, upto), looked, some = lap, 0, False
    while not (some and looked >= PAGE):
        ((tenant,),) = run("next_tenant", queue=queue, after=after)
        if tenant is None or tenant > upto:
            return
        if tenant not in resting and next(iter(_places(run, queue, tenant, 1, 0, ())), None):
            some = True
            yield tenant
        after, looked = tenant, looked + 1


def _shares(run: Run, queue: str, lanes: Iterable[int], wanted: Wanted, room: int) -> dict[int, list[Place]]:
    """Return the jobs of each tenant: an equal share, and more where others have fewer."""
    found: dict[int, list[Place]] = {tenant: [] for tenant in lanes}
    hungry = list(found)
    while hungry and room:
        share, still = max(room // len(hungry), 1), []
        for tenant in hungry[:room]:
            more = _places(run, queue, tenant, share, len(found[tenant]), wanted.without)
            found[tenant] += more
            room -= len(more)
            if len(more) == share:
                still.append(tenant)
            if not room:
                break
        hungry = still
    return found


def _places(run: Run, queue: str, tenant: int, limit: int, offset: int, without: Sequence[str]) -> list[Place]:
    """Return the first jobs of a tenant after those already known. The priorities are read one after another until
    there are enough jobs."""
    named, values = "due", {"queue": queue, "tenant_id": tenant}
    if without:
        named, values["without"] = "due_known", json.dumps(list(without))
    found: list[Any] = []
    below = ABOVE_ALL
    while len(found) < offset + limit:
        ((priority,),) = run("next_priority", queue=queue, tenant_id=tenant, below=below)
        if priority is None:
            break
        found += run(named, **values, priority=priority, limit=offset + limit - len(found))
        below = priority
    return found[offset:]


def _in_turn(found: list[dict[int, list[Place]]], wanted: Wanted) -> list[int]:
    """Return the first job of each tenant, then the second of each, and so on, across all queues."""
    if len(found) == 1:
        of_tenant = list(found[0].values())
    else:
        tenants = sorted(set(chain.from_iterable(found)), key=lambda tenant: (tenant <= wanted.turn, tenant))
        of_tenant = [sorted(chain.from_iterable(one.get(tenant, []) for one in found)) for tenant in tenants]
    if len(of_tenant) == 1:
        return [id for _, _, id in of_tenant[0][: wanted.limit]]
    turns = chain.from_iterable(zip_longest(*of_tenant))
    return [place[2] for place in islice((place for place in turns if place is not None), wanted.limit)]
