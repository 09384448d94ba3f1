"""Broken twins: the shipped store with one guard taken out, to show that a check would notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from keptwork.agents import budget_rules, budgets
from keptwork.core.lifecycles import WORKER, Change
from keptwork.errors import LeaseLost
from keptwork.jobs import breakers
from keptwork.jobs.outcome import LEASE_ENDED
from keptwork.maintenance import expired_leases
from keptwork.maintenance.expired_leases import Reaper
from keptwork.store import EventFilter, Job, JobFilter, Store
from keptwork.store.contract.checkpoints import Checkpoint, Save
from keptwork.store.contract.queues import Planner, Schedule, planned
from keptwork.store.dialect import POSTGRES, SQLITE, Dialect
from keptwork.store.postgres.operations import PostgresVerbs
from keptwork.store.sqlite import file
from keptwork.store.sqlite.claim import Wanted, due
from keptwork.store.sqlite.operations import SqliteVerbs
from keptwork.store.sqlite.session import Session
from keptwork.store.sqlite.writer import Writer
from keptwork.store.statements import Catalogue
from keptwork.workers.checkpoint_writer import Journal
from keptwork.workers.registration import Registration
from keptwork.workers.worker import Worker

LONG_ENOUGH = 0.03
"""For another scheduler to read the same in between, on a machine that is quick."""

FOUND_AND_LOCKED = """SELECT d.place, d.rank, d.limited FROM clock CROSS JOIN LATERAL keptwork_due(
        :worker::bigint, :queues::text[], :limit::int, :tenant_id::int, :turn::int, :without::text[], clock.now) AS d"""
ONLY_FOUND = """SELECT j.id AS place, 1::bigint AS rank, false AS limited FROM jobs AS j
    WHERE j.state = {job.queued} AND j.queue = ANY(:queues::text[]) ORDER BY j.run_at, j.id LIMIT :limit::int"""


def break_store(twin: str) -> None:
    """Takes a guard out of this process's store or worker."""
    {
        "no-lock": _claims_without_lock,
        "no-fence": _moves_without_fence,
        "no-reaper": _nobody_reaps,
        "loses-place": _recovered_jobs_go_last,
        "same-name": _same_name_same_owner,
        "impatient": _writes_out_of_turn,
        "no-again": _claims_are_never_repeated,
        "forgiving": _attempts_are_never_used_up,
        "forgets-steps": _steps_are_forgotten,
        "keeps-later": _steps_are_kept_later,
        "fires-blindly": _fires_what_it_read_before,
        "two-probes": _asks_without_lock,
        "immortal-probe": _probes_never_end,
        "no-budget-lock": _reserves_without_lock,
        "no-promises": _promises_are_forgotten,
    }[twin]()


def _claims_without_lock() -> None:
    """Claims that neither lock nor skip what they are about to take: on SQLite it is found before the lock is taken."""
    # What another has moved meanwhile is no longer found by its place; by its id it is.
    _patch("claim", FOUND_AND_LOCKED, ONLY_FOUND, POSTGRES)
    _patch("claim", "jobs.ctid = due.place", "jobs.id = due.place", POSTGRES)

    async def claim(
        self: SqliteVerbs, worker: int, queues: Sequence[str], limit: int, lease_us: int, *, claim_id: int, **_: Any
    ) -> list[Job]:
        found = await self._read(lambda session: due(session._run, queues, Wanted(limit, None, 0)))
        given = {"ids": json.dumps(found.ids), "worker": worker, "actor": f"w:{worker}"}
        given |= {"claim_id": claim_id, "lease_us": lease_us}

        def take(session: Session) -> list[Job]:
            return [Job(*row) for row in session._run("claim", **given)]

        return await self._write(take, limit)

    SqliteVerbs.claim = claim  # type: ignore[method-assign]


def _nobody_reaps() -> None:
    """Workers that leave what the dead held where it is."""

    async def run_once(self: Reaper) -> int:
        return 0

    Reaper.run_once = run_once  # type: ignore[method-assign]


def _attempts_are_never_used_up() -> None:
    """Reapers that give a job back however often it has been tried."""
    shipped = expired_leases.reaped

    def reaped(job: Job, now: int, why: str = LEASE_ENDED) -> Change:
        return shipped(replace(job, max_attempts=job.attempts + 1), now, why)

    expired_leases.reaped = reaped


def _steps_are_forgotten() -> None:
    """A journal that recalls nothing of what it has kept."""

    async def recall(self: Journal, job: Job) -> list[Checkpoint]:
        return []

    Journal.recall = recall  # type: ignore[method-assign]


def _steps_are_kept_later() -> None:
    """A journal that answers before it has kept anything."""
    shipped, writing = Journal.save, set()

    async def later(self: Journal, save: Save) -> None:
        await asyncio.sleep(0.05)
        with contextlib.suppress(LeaseLost):
            await shipped(self, save)

    async def at_once(self: Journal, save: Save) -> str:
        writing.add(asyncio.create_task(later(self, save)))
        return save.result

    Journal.save = at_once  # type: ignore[method-assign]


def _fires_what_it_read_before() -> None:
    """Schedulers that read what is due without a lock, and move it on without a look at where it stands by then."""
    for dialect in (SQLITE, POSTGRES):
        _patch("move_schedule", "AND next_at = :was", "", dialect)
    _patch("due_schedules", "{for_update_skip_locked}", "", POSTGRES)
    shipped = PostgresVerbs._due_schedules

    async def due_schedules(self: PostgresVerbs, limit: int) -> list[Schedule]:
        found = await shipped(self, limit)
        await asyncio.sleep(LONG_ENOUGH)
        return found

    async def fire_schedules(self: SqliteVerbs, plan: Planner, limit: int, most_jobs: int) -> int:
        found = await self._read(lambda session: session.due_schedules(limit))
        await asyncio.sleep(LONG_ENOUGH)

        def fire(session: Session) -> int:
            for schedule, what in planned(found, plan, session.now, most_jobs):
                session.move_schedule(schedule, what)
                session.enqueue(what.jobs)
            return len(found)

        return await self._write(fire, most_jobs)

    SqliteVerbs.fire_schedules = fire_schedules  # type: ignore[method-assign]
    PostgresVerbs._due_schedules = due_schedules  # type: ignore[method-assign]


def _recovered_jobs_go_last() -> None:
    """What is recovered waits behind all that is queued."""
    _patch_move("job.expire", "owner = NULL", "run_at = {now}, owner = NULL")


def _same_name_same_owner() -> None:
    """A worker that takes the place of the last one of its name, and keeps alive whatever that place holds."""
    shipped = Registration.register

    async def register(cls: type[Registration], store: Store, name: str, **facts: Any) -> Registration:
        log = await store.events(EventFilter(entity=WORKER.name), limit=10_000, newest_first=True)
        rows = await store.rows(WORKER, [event.entity_id for event in log], ("id", "name"))
        mine = [row["id"] for row in rows if row["name"] == name]
        place = cls(mine[0]) if mine else await shipped(store, name, **facts)
        place.heart = asyncio.create_task(_beat_for_all(store, place.id))  # type: ignore[attr-defined]
        return place

    Registration.register = classmethod(register)  # type: ignore[arg-type,assignment,method-assign]


def _claims_are_never_repeated() -> None:
    """Workers that claim anew when the answer of a claim was lost."""
    shipped = Worker._claim_under

    async def claim_under(self: Worker, number: int, limit: int, again: bool) -> list[Job]:
        return await shipped(self, secrets.randbits(62), limit, False)

    Worker._claim_under = claim_under  # type: ignore[method-assign]


async def _beat_for_all(store: Store, worker: int) -> None:
    """A heartbeat of the worker instead of its leases; long enough for a process to start between two of them."""
    while True:
        rows = await store.jobs(JobFilter(states=("running",)), limit=1000, columns=("id", "owner", "epoch"))
        await store.renew(worker, [(row["id"], row["epoch"]) for row in rows if row["owner"] == worker], 4_000_000)
        await asyncio.sleep(0.2)


def _moves_without_fence() -> None:
    """Moves that look neither at who holds the job nor at what has become of it since."""
    from pytest import MonkeyPatch  # noqa: PT013 - here, so that workers which are no twins start without it

    from tests.support.broken_sql import ignore_columns

    ignore_columns(MonkeyPatch(), "seq", "epoch", "state", "owner", "lease_until")


class Stale:
    """A transaction in which one verb is answered by somebody else."""

    def __init__(self, tx: Any, verb: str, answer: Callable[..., Awaitable[Any]]) -> None:
        self._tx, self._verb, self._answer = tx, verb, answer

    def __getattr__(self, name: str) -> Any:
        return self._answer if name == self._verb else getattr(self._tx, name)


def _asks_without_lock() -> None:
    """Askers that decide on a breaker as they read it before, and write without comparing."""
    _moves_without_fence()

    async def admit(store: Store, job: Job, breaker: Any) -> Any:
        row = await store.breaker(job.tenant_id, breaker.name)

        async def as_it_was(*_: Any) -> Any:
            return row

        return await store.atomically(lambda tx: breakers._admitted(Stale(tx, "lock_breaker", as_it_was), job, breaker))

    breakers.admit = admit


def _reserves_without_lock() -> None:
    """Spenders that look whether a call fits into the tenant's and the day's budgets as they read them before."""
    shipped = budgets._reserved

    async def stale(store: Store, wish: budgets.Wish) -> Any:
        before = [one.budget for scope in ("day", "tenant") for one in await store.budgets(1, scope=scope)]

        def answered(tx: Any) -> Any:
            async def lock_budgets(tenant_id: int, owners: Sequence[int]) -> Any:
                return before if 0 in owners else await tx.lock_budgets(tenant_id, owners)

            return shipped(Stale(tx, "lock_budgets", lock_budgets), wish)

        return await store.atomically(answered)

    budgets._ask_once = stale


def _probes_never_end() -> None:
    """Breakers that take a claim for alive for ever."""
    _patch("is_claimed", "AND lease_until > {now}", "", POSTGRES)
    _patch("is_claimed", "AND lease_until > {now}", "", SQLITE)
    _nobody_reaps()


def _writes_out_of_turn() -> None:
    """SQLite connections that do not wait for a locked file, in processes that do not take turns."""
    file.BUSY_SECONDS = 0

    def at_once(self: Writer, *, wait: bool) -> bool:
        return True

    Writer._take_turn = at_once  # type: ignore[method-assign]  # that is what a twin is


def _patch(name: str, old: str, new: str, where: Dialect) -> None:
    original = Catalogue.__init__

    def patched(self: Catalogue, dialect: Dialect) -> None:
        original(self, dialect)
        if dialect is where:
            self._raw = _replaced(self._raw, name, old, new)

    Catalogue.__init__ = patched  # type: ignore[method-assign]  # that is what a twin is


def _patch_move(name: str, old: str, new: str) -> None:
    original = Catalogue.__init__

    def patched(self: Catalogue, dialect: Dialect) -> None:
        original(self, dialect)
        self._raw_moves = _replaced(self._raw_moves, name, old, new)

    Catalogue.__init__ = patched  # type: ignore[method-assign]  # that is what a twin is


def _replaced(statements: dict[str, str], name: str, old: str, new: str) -> dict[str, str]:
    assert old in statements[name], "what is to be taken out is not there"
    return {**statements, name: statements[name].replace(old, new)}


def _promises_are_forgotten() -> None:
    """Only what was paid counts against a cap, not what is being spent at this moment."""
    right = budget_rules.refusing
    budget_rules.refusing = lambda budgets, ceiling: right(
        [one._replace(reserved_micros=0) for one in budgets], ceiling
    )
