"""Test an application's jobs on a database in memory, with a clock that the test advances.

    async with Harness(app) as harness:
        await confirm.enqueue(order=17)
        await harness.assert_enqueued(confirm, arguments={"order": 17})
        await harness.drain()

Only the clock is replaced: the store is SQLite, and the worker is the one that runs in production. The harness needs no
plugin. It works with pytest, with `unittest.IsolatedAsyncioTestCase`, and with any other async test.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

from keptwork.app import Keptwork
from keptwork.core import ids
from keptwork.core.clock import ManualClock
from keptwork.core.durations import Span, moment_us, rfc3339, span_us
from keptwork.core.lifecycles import JOB
from keptwork.core.lifecycles.job import RUNNING
from keptwork.errors import BadInput
from keptwork.job import DeclaredJob, JobType
from keptwork.jobs import schedules
from keptwork.jobs.outcome import Suspend
from keptwork.maintenance import reconciler
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.periodic import Outage
from keptwork.process.resource_limits import Limits
from keptwork.store import Event, EventFilter, Job, JobFilter, Store
from keptwork.store.contract.checkpoints_blob_service import whole
from keptwork.workers.parked_waits import Suspended
from keptwork.workers.registration import Settings
from keptwork.workers.steps import Steps
from keptwork.workers.worker import Worker

__all__ = ["Enqueued", "Harness", "Settled"]

When = Literal["before", "unkept", "after"]
"""When a step crashes: before its function runs, after it ran but before its result is stored, or after that."""

START = "2026-01-01T00:00:00Z"
MEMORY = "sqlite:///:memory:"
PAGE = 1_000
_NEXT = """SELECT min(at) AS at FROM (
    SELECT coalesce(lease_until, run_at) AS at FROM jobs WHERE completed_at IS NULL AND held_by IS NULL
    UNION ALL SELECT deadline_at FROM crews WHERE completed_at IS NULL
    UNION ALL SELECT next_at FROM schedules WHERE paused_at IS NULL
    UNION ALL SELECT probe_at FROM breakers WHERE holds = 1) WHERE at > ?"""


class Enqueued(NamedTuple):
    """An enqueued job. `run_in` is in seconds."""

    id: str
    kind: str
    queue: str
    arguments: dict[str, Any]
    run_in: float
    key: str | None

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.kind}({given}) in {self.queue}" + (f", due in {self.run_in:g} s" if self.run_in else "")


class Settled(NamedTuple):
    """The outcome of one run of a job.

    `move` is the move that the run made (`succeed`, `retry`, `snooze`, `dead_letter`, …, or `expire` if its process
    died). `state` and `reason` are those after the move. `result` is set if the job succeeded.
    """

    id: str
    kind: str
    move: str
    state: str
    reason: str | None
    result: Any


class Harness:
    """An application under test.

    Inside the block, it uses a new database in memory in place of its declared one.

    >>> import asyncio
    >>> app = Keptwork()
    >>> @app.job()
    ... async def greet(ctx, name: str) -> str:
    ...     await ctx.sleep("3d")
    ...     return f"Hello {name}"
    >>> async def test():
    ...     async with Harness(app) as harness:
    ...         await greet.enqueue(name="Ann")
    ...         await harness.assert_enqueued(greet, count=1, arguments={"name": "Ann"})
    ...         return [(run.move, run.result) for run in await harness.drain(within="4d")]
    >>> asyncio.run(test())
    [('snooze', None), ('succeed', 'Hello Ann')]
    """

    def __init__(self, app: Keptwork, *, start: str = START) -> None:
        self.app = app
        self._clock = ManualClock(moment_us(start, 0))
        self._crashes: list[_Crash] = []

    async def __aenter__(self) -> Harness:
        self._before = self.app.lend(MEMORY, self._clock)
        await self.app.keep_schedules()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.app.close()
        self.app.lend(*self._before)
        if kind is None and self._crashes:
            raise AssertionError(f"nothing crashed at {self._crashes[0]}: no such step was reached")

    # --- time

    @property
    def now(self) -> datetime:
        """The time of the database, to the millisecond. Each move of a job takes one microsecond."""
        now = self._clock.now()
        return datetime.fromisoformat(rfc3339(now - now % 1_000))

    def advance(self, span: Span) -> None:
        """Advance the clock. Jobs that become due run at the next `drain`."""
        self._clock.advance(span_us(span))

    # --- work

    async def drain(self, within: Span | None = None, *, concurrency: int = 1) -> list[Settled]:
        """Run all due jobs, including those that become due by that, and return the outcome of each run, in order.

        With `within`, the clock advances from one due time to the next: delayed jobs, backoffs, sleeps, lease expiries,
        timeouts of crews, and ticks of schedules. It ends `within` after its start. Backoffs have their maximum length,
        so that a test is reproducible. Jobs run one after the other, or `concurrency` at a time.
        """
        store = await self.app.open()
        await self.app.keep_schedules()
        cursor, end = await store.log_end(), self._clock.now() + span_us(within or 0)
        await self._run_due(store, concurrency)
        while (due_at := await self._next_due(store)) is not None and due_at <= end:
            self._clock.advance(due_at - self._clock.now())
            await self._run_due(store, concurrency)
        self._clock.advance(max(0, end - self._clock.now()))
        return await self._settled_since(store, cursor)

    def crash_at(self, step: str, when: When = "after", *, job: DeclaredJob | str | None = None) -> None:
        """Crash the process at the next run of the step with that name.

        Nothing more is written for the job, and the job runs again when its lease expires, for example with
        `drain(within="5m")`. Each call causes one crash.

        `"before"` is before the step's function runs. `"unkept"` is after it ran but before its result is stored, so it
        will run again. `"after"` is after its result is stored, so it will not run again. A crash that has not happened
        by the end of the block raises `AssertionError`.
        """
        if when not in ("before", "unkept", "after"):
            raise BadInput(what=f"a step crashes 'before', 'unkept' or 'after', not {when!r}")
        self._crashes.append(_Crash(step, when, None if job is None else _name(job)))

    # --- assertions

    async def assert_enqueued(
        self,
        job: DeclaredJob | str,
        *,
        count: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        queue: str | None = None,
        run_in: Span | None = None,
        key: str | None = None,
    ) -> list[Enqueued]:
        """Assert that such jobs were enqueued in this test, and return them.

        `count` is their exact number. Default: at least one. They can have run since. `arguments` are some of their
        arguments. `run_in` is their delay, for jobs that have not run yet.
        """
        jobs = await self._enqueued(_name(job))
        found = [one for one in jobs if _fits(one, arguments, queue, run_in, key)]
        if not found if count is None else len(found) != count:
            wanted = "at least one" if count is None else str(count)
            said = _described(_name(job), arguments, queue, run_in, key)
            others = "\n".join(f"  {one}" for one in jobs) or "  none"
            raise AssertionError(f"expected {wanted} of {said}, found {len(found)}; of that kind there are:\n{others}")
        return found

    async def assert_not_enqueued(self, job: DeclaredJob | str, **which: Any) -> None:
        """Assert that no such job was enqueued in this test. It takes the arguments of `assert_enqueued`."""
        await self.assert_enqueued(job, **which, count=0)

    async def _enqueued(self, kind: str) -> list[Enqueued]:
        store = await self.app.open()
        columns = ("id", "kind", "queue", "payload", "run_at", "created_at", "key")
        rows = await store.jobs(JobFilter(kind=kind), limit=10 * PAGE, newest_first=False, columns=columns)
        return [
            Enqueued(
                ids.public(JOB.prefix, row["id"]),
                row["kind"],
                row["queue"],
                json.loads(row["payload"]),
                (row["run_at"] - row["created_at"]) / 1_000_000,
                row["key"],
            )
            for row in rows
        ]

    # --- internals

    async def _run_due(self, store: Store, concurrency: int) -> None:
        """Do once, in a fixed order, what the maintenance tasks of a worker do in production, and run the due jobs."""
        while await schedules.fire(store):
            continue
        await Reaper(store, lambda: None, Outage()).run_once()
        await reconciler.mend(store)
        kinds = {name: self._under_test(kind) for name, kind in self.app.kinds.items()}
        served: set[str] = set()
        while served < (queues := await self._queues(store)):  # a job can enqueue others into queues that did not exist
            settings, served = Settings(queues=sorted(queues), concurrency=concurrency, name="test"), queues
            await _Worker(store, kinds, settings, self.app.leases_store, chance=lambda: 1.0).run(until_idle=True)

    async def _queues(self, store: Store) -> set[str]:
        return {*self.app.queues, *(queue.name for queue in await store.queues(self.app.tenant_id))}

    def _under_test(self, kind: JobType) -> JobType:
        """Return the kind, run in this process and with steps that can crash."""

        def handle(ctx: Any, **arguments: Any) -> Any:
            ctx._steps = _MortalSteps(ctx._steps, kind.name, self._crashes)
            return kind.function(ctx, **arguments)

        return replace(kind, function=handle, isolated=None, limits=Limits())

    async def _next_due(self, store: Store) -> int | None:
        async with store.transaction() as transaction:
            (found,) = await transaction.fetch(_NEXT, self._clock.now())
        due_at: int | None = found["at"]
        return due_at

    async def _settled_since(self, store: Store, cursor: str) -> list[Settled]:
        settled: list[Settled] = []
        while page := await store.events(EventFilter(entity=JOB.name), after=cursor, limit=PAGE):
            settled += [await _settled(store, event) for event in page if event.from_state == RUNNING.name]
            cursor = page[-1].cursor
        return settled


async def _settled(store: Store, event: Event) -> Settled:
    (row,) = await store.rows(JOB, [event.entity_id])
    text = (await whole(store, row))["result"] if event.trigger == "succeed" else None
    result = None if text is None else json.loads(text)
    id = ids.public(JOB.prefix, event.entity_id)
    return Settled(id, row["kind"], event.trigger, event.to_state, event.reason, result)


# --- crashes


@dataclass(slots=True)
class _Crash:
    step: str
    when: When
    kind: str | None

    def __str__(self) -> str:
        return f"{self.step!r} ({self.when})" + (f" of {self.kind}" if self.kind else "")


class _Dead(Suspend):
    """The outcome of a handler whose process has died."""


class _Dies(Suspended):
    """The process dies here. In async code nothing catches it; on a thread, `except Exception` does not."""

    at_once = True

    def __init__(self) -> None:
        super().__init__(_Dead("nothing"))


class _MortalSteps:
    """The steps of a run, at one of which the process can crash."""

    def __init__(self, steps: Steps, kind: str, crashes: list[_Crash]) -> None:
        self._steps = steps
        self._kind = kind
        self._crashes = crashes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)

    def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        crash = next((one for one in self._crashes if one.step == name and one.kind in (None, self._kind)), None)
        if crash is None:
            return self._steps.step(name, function, args, kwargs)
        ran: list[None] = []
        result = self._steps.step(name, self._watched(function, crash, ran), args, kwargs)
        if inspect.isawaitable(result):
            return self._awaited(result, crash, "after", ran)
        if ran:
            with self._steps.parking.on_thread():
                self._die_if(crash, "after")
        return result

    def _watched(self, function: Callable[..., Any], crash: _Crash, ran: list[None]) -> Callable[..., Any]:
        """Return the function with a record that it ran. A step with a stored result neither runs nor crashes."""

        def begun() -> None:
            ran.append(None)
            self._die_if(crash, "before")

        @functools.wraps(function)
        async def in_loop(*args: Any, **kwargs: Any) -> Any:
            begun()
            value = await function(*args, **kwargs)
            self._die_if(crash, "unkept")
            return value

        @functools.wraps(function)
        def ordinary(*args: Any, **kwargs: Any) -> Any:
            begun()
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                return self._awaited(value, crash, "unkept")
            self._die_if(crash, "unkept")
            return value

        return in_loop if inspect.iscoroutinefunction(function) else ordinary

    async def _awaited(self, result: Any, crash: _Crash, when: When, ran: Sequence[None] = (None,)) -> Any:
        value = await result
        if ran:
            await self._steps.parking.operation(None, self._die_now_if, crash, when)
        return value

    async def _die_now_if(self, crash: _Crash, when: When) -> None:
        self._die_if(crash, when)

    def _die_if(self, crash: _Crash, when: When) -> None:
        if crash.when == when and crash in self._crashes:
            self._crashes.remove(crash)
            raise _Dies


class _Worker(Worker):
    """The production worker, except that it writes no outcome for jobs whose process has died."""

    async def _settle(self, batch: list[tuple[Job, Any]]) -> None:
        dead = [job for job, said in batch if isinstance(said, _Dead)]
        self._keeper.release([(job.id, job.epoch) for job in dead])
        alive = [(job, said) for job, said in batch if not isinstance(said, _Dead)]
        if alive:
            await super()._settle(alive)

    async def _may_inherit(self) -> bool:
        return False  # leases expire when the test advances the clock


# --- comparison


def _name(job: DeclaredJob | str) -> str:
    return job if isinstance(job, str) else job.kind.name


def _fits(
    job: Enqueued, arguments: Mapping[str, Any] | None, queue: str | None, run_in: Span | None, key: str | None
) -> bool:
    given = json.loads(json.dumps(dict(arguments or {})))
    return (
        all(name in job.arguments and job.arguments[name] == value for name, value in given.items())
        and queue in (None, job.queue)
        and key in (None, job.key)
        and (run_in is None or span_us(run_in) == round(job.run_in * 1_000_000))
    )


def _described(
    kind: str, arguments: Mapping[str, Any] | None, queue: str | None, run_in: Span | None, key: str | None
) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in (arguments or {}).items())
    details = (("in", queue), ("due in", run_in), ("under the key", key))
    return f"{kind}({given})" + "".join(f" {word} {value}" for word, value in details if value is not None)
