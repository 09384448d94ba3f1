"""What a claim on SQLite takes: tenants in turn, of each the highest priority first, then the oldest.

PostgreSQL has the same in its function `keptwork_due`. Each tenant gets an equal share, and unused shares go to the
others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple

Run = Callable[..., list[tuple[Any, ...]]]
"""Runs a named statement."""
Place = tuple[int, int, int]
"""A job by its place in the order of its tenant: priority (the highest first), when it is due, id."""

ABOVE_ALL = 1 << 31
"""Higher than any priority, and than any tenant."""
PAGE = 256
"""Once some tenants with due jobs were found, no more than so many are looked at."""


class Wanted(NamedTuple):
    """What a claim asks for."""

    limit: int
    tenant_id: int | None
    turn: int
    without: Sequence[str] = ()


class Found(NamedTuple):
    """The ids to claim, in the order they are to be worked on, and the queues among them that have limits."""

    ids: list[int]
    limited: frozenset[str]


def due(run: Run, queues: Sequence[str], wanted: Wanted) -> Found:
    """The jobs that are due in these queues."""
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
    """How many more jobs a limited queue may have started now."""
    run("queue_uses_over", queue=queue, key=f"queue:{queue}")
    ((by_number, by_rate),) = run("queue_room", queue=queue, key=f"queue:{queue}")
    return min(room for room in (by_number, by_rate, ABOVE_ALL) if room is not None)


def _lanes(run: Run, queue: str, ends: tuple[int, int], wanted: Wanted, resting: set[int], room: int) -> Iterable[int]:
    """The tenants to serve, in turn. Where there is but one, nobody asks whether anything of it is due."""
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
    """What each tenant gives: an equal share, and more where others have less."""
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
    """The first jobs of a tenant beyond those known already, one priority after the other until there are enough."""
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
    """Of each tenant the first job, then of each the second, and so on; of several queues as if they were one."""
    if len(found) == 1:
        of_tenant = list(found[0].values())
    else:
        tenants = sorted(set(chain.from_iterable(found)), key=lambda tenant: (tenant <= wanted.turn, tenant))
        of_tenant = [sorted(chain.from_iterable(one.get(tenant, []) for one in found)) for tenant in tenants]
    if len(of_tenant) == 1:
        return [id for _, _, id in of_tenant[0][: wanted.limit]]
    turns = chain.from_iterable(zip_longest(*of_tenant))
    return [place[2] for place in islice((place for place in turns if place is not None), wanted.limit)]
