"""Concurrency and rate limits on SQLite. PostgreSQL has the same in functions of its own.

The transaction is the only writer, so nothing needs a lock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from keptwork.core.decide import Change
from keptwork.store.contract.records import Job, LimitKey, LimitRule, NewJob
from keptwork.store.sqlite.claim import ABOVE_ALL, Run

FOREVER = 1 << 62


def note_enqueued(run: Run, jobs: Iterable[NewJob], now: int) -> None:
    """Record when the limits of these jobs must be checked."""
    wakes = {
        (max(now, job.run_at or 0) + job.delay_us, *LimitKey.of(job.tenant_id, job.limit_key))
        for job in jobs
        if job.limit_key is not None
    }
    for at, tenant_id, key in sorted(wakes):
        run("wake", at=at, tenant_id=tenant_id, key=key)


def note_started(run: Run, jobs: Iterable[Job], limited: frozenset[str]) -> None:
    """Record the starts that count against a rate or a queue."""
    rules = map(LimitRule._make, run("limit_rules"))
    rated = {rule.name for rule in rules if rule.what == "job" and rule.rate is not None}
    for job in jobs:
        if job.queue in limited:
            run("use", tenant_id=0, key=f"queue:{job.queue}", id=job.id)
        if job.limit_key is not None and job.kind in rated:
            run("use", **LimitKey.of(job.tenant_id, job.limit_key)._asdict(), id=job.id)


def settle(run: Run, changes: Sequence[Change], now: int) -> int:
    """Promote jobs after these moves. Jobs that returned to the queue are checked again at their due time."""
    run("wake_later", ids=json.dumps([change.id for change in changes if change.move.raises_epoch]))
    return promote(run, {LimitKey.of(c.tenant_id, c.limit_key) for c in changes if c.limit_key is not None}, now)


def pump(run: Run, limit: int, now: int) -> int:
    """Promote jobs for the keys that are due for a check."""
    keys = chain(run("take_wakes", limit=limit), run("keys_to_pump", limit=limit))
    return promote(run, {LimitKey(*row) for row in keys}, now)


def promote(run: Run, keys: Collection[LimitKey], now: int) -> int:
    """Promote due jobs that these keys hold, as far as their limits allow. Return the number of jobs."""
    rules = {rule.name: rule for rule in map(LimitRule._make, run("limit_rules")) if rule.what == "job"}
    numbers = {key: most for key in keys if (most := _most_of_tenant(key, rules.get(key.kind))) is not None}
    others = sorted(key for key in keys if key not in numbers)
    return _promote_by_number(run, numbers) + sum(_Key(run, key, rules.get(key.kind), now).promote() for key in others)


def _most_of_tenant(key: LimitKey, rule: LimitRule | None) -> int | None:
    """Return the maximum concurrent jobs of a key if counting them is enough. The key must belong to one tenant, and
    its rule must set no rate. Otherwise, return None."""
    return rule.most if rule is not None and rule.rate is None and key.tenant_id != 0 else None


def _promote_by_number(run: Run, numbers: dict[LimitKey, int]) -> int:
    """Promote jobs for many keys together. One statement counts for all of them, and another promotes the jobs."""
    let_go: list[int] = []
    rows = run("counted_of_tenants", keys=json.dumps(sorted(numbers))) if numbers else []
    for tenant_id, key, active, highest in rows:
        room, priority = numbers[LimitKey(tenant_id, key)] - active, highest
        while room > 0 and priority is not None:
            found = run("next_held", tenant_id=tenant_id, key=key, priority=priority, limit=room)
            let_go += [id for (id,) in found]
            room -= len(found)
            if room > 0:
                ((priority,),) = run("next_held_priority", tenant_id=tenant_id, key=key, below=priority)
    if let_go:
        run("let_all_go", ids=json.dumps(let_go))
    return len(let_go)


class _Key:
    """A key under its rule."""

    def __init__(self, run: Run, key: LimitKey, rule: LimitRule | None, now: int) -> None:
        self._run = run
        self._key = key._asdict()
        self._all = key.tenant_id == 0
        self._rule = rule or LimitRule("job", key.kind)
        self._now = now
        # Its row has the tenant whose turn it is, and when the rate allows the next job. Other keys need no row.
        self._remembers = self._all or self._rule.rate is not None
        self._turn = run("limit_row", **self._key)[0][0] if self._remembers else 0

    def promote(self) -> int:
        by_number, by_rate = self._room()
        room = let_go = min(by_number, by_rate)
        while room > 0:
            round = 0
            waiting = self._waiting() if self._all else [int(self._key["tenant_id"])]
            for tenant in waiting:
                taken = self._let_go(tenant, min(max(room // len(waiting), 1), room - round)) if room > round else 0
                round += taken
                self._turn = tenant if taken else self._turn
            room -= round
            if not round or not self._all:
                break
        let_go = max(let_go, 0) - max(room, 0)
        if self._remembers:
            self._run("pump_later", **self._key, pump_at=self._next(by_number, by_rate, let_go), turn=self._turn)
        return let_go

    def _room(self) -> tuple[int, int]:
        """Return the room by number and by rate. By number, promoted jobs count until they end. By rate, starts within
        the window count, and promoted jobs that have not started."""
        ((active, unstarted, self._highest),) = self._run("counted", **self._key)
        by_number = FOREVER if self._rule.most is None else self._rule.most - active
        if self._rule.rate is None or self._rule.window_us is None:
            return by_number, FOREVER
        self._run("uses_over", **self._key, window_us=self._rule.window_us)
        self._used = [row[0] for row in self._run("used", **self._key, window_us=self._rule.window_us)]
        return by_number, self._rule.rate - len(self._used) - unstarted

    def _waiting(self) -> list[int]:
        """Return the waiting tenants, starting after the one that was served last."""
        found: list[int] = []
        while True:
            after = found[-1] if found else -1
            ((tenant,),) = self._run("next_waiting_tenant", key=self._key["key"], after=after)
            if tenant is None:
                return sorted(found, key=lambda one: (one <= self._turn, one))
            found.append(tenant)

    def _let_go(self, tenant: int, limit: int) -> int:
        """Promote jobs of a tenant by highest priority, then by earliest due time."""
        values = {"key": self._key["key"], "tenant_id": tenant}
        taken, priority = 0, self._below(tenant, ABOVE_ALL) if self._all else self._highest
        while priority is not None and taken < limit:
            taken += len(self._run("let_go", **values, priority=priority, limit=limit - taken))
            if taken < limit:
                priority = self._below(tenant, priority)
        return taken

    def _below(self, tenant: int, priority: int) -> int | None:
        key = self._key["key"]
        found: int | None = self._run("next_held_priority", key=key, tenant_id=tenant, below=priority)[0][0]
        return found

    def _next(self, by_number: int, by_rate: int, let_go: int) -> int | None:
        """Return when the rate allows the next job, or None. A job that ends triggers its own check of the number."""
        if by_rate > let_go or by_number <= let_go or not self._run("still_waiting", **self._key):
            return None
        freed = self._used[let_go - by_rate] if let_go - by_rate < len(self._used) else self._now
        return freed + (self._rule.window_us or 0)
