"""Every pair of options of a job is honoured or refused, whichever way the job comes into the queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import asyncpg
import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput
from keptwork.handles import Handle
from keptwork.job import DeclaredJob

HOUR, MINUTE = 3_600_000_000, 60_000_000


@dataclass(frozen=True)
class Option:
    """An option with a value, and what can be seen of it once it is honoured."""

    name: str
    call: dict[str, Any] = field(default_factory=dict)
    declared: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    filled: tuple[str, ...] = ()
    makes_one: bool = False
    delay_us: int = 0


OPTIONS = [
    Option("_key", {"_key": "k"}, makes_one=True),
    Option("_run_in", {"_run_in": "1h"}, delay_us=HOUR),
    Option("_priority", {"_priority": 7}, columns={"priority": 7}),
    Option("_queue", {"_queue": "called"}, columns={"queue": "called"}),
    Option("_correlation_id", {"_correlation_id": "cor"}, columns={"correlation_id": "cor"}),
    Option("_trace_id", {"_trace_id": "tra"}, columns={"trace_id": "tra"}),
    Option("_unique", {"_unique": "1h"}, makes_one=True),
    Option("_debounce", {"_debounce": "1m"}, makes_one=True, delay_us=MINUTE),
    Option("_debounce_most", {"_debounce": "2m", "_debounce_most": "1m"}, makes_one=True, delay_us=MINUTE),
    Option("unique", declared={"unique": "1h"}, makes_one=True),
    Option("limit", declared={"limit": 3}, filled=("limit_key",)),
    Option("rate", declared={"rate": "100/h"}, filled=("limit_key",)),
    Option("breaker", declared={"breaker": "shop"}, filled=("hold_key",)),
    Option("priority", declared={"priority": 3}, columns={"priority": 3}),
    Option("queue", declared={"queue": "declared"}, columns={"queue": "declared"}),
    Option("max_attempts", declared={"max_attempts": 9}, columns={"max_attempts": 9}),
    Option("on_exhausted", declared={"on_exhausted": "fail"}, columns={"on_exhausted": "fail"}),
]
DEBOUNCES = {"_debounce", "_debounce_most"}
WINDOWS = {"_unique", "unique", *DEBOUNCES}

Pair = tuple[Option, Option]
Enqueue = Callable[[DeclaredJob, dict[str, Any]], Awaitable[Handle]]


def pairs() -> list[Pair]:
    """Every two options; those of the call come after those of the declaration, which they override."""
    ordered = sorted(OPTIONS, key=lambda option: bool(option.call))
    return [pair for pair in combinations(ordered, 2) if {one.name for one in pair} != DEBOUNCES]


def is_refused(pair: Pair) -> bool:
    """A debounced job has its delay and its window from the debounce alone."""
    names = {one.name for one in pair}
    return bool(names & DEBOUNCES and names & {"_run_in", "_unique", "unique"})


def declared(app: Keptwork, pair: Pair) -> DeclaredJob:
    rules = {**pair[0].declared, **pair[1].declared}

    @app.job(name="-".join(one.name for one in pair), **rules)
    async def job(ctx: Context, n: int) -> None: ...

    return job


async def fault(app: Keptwork, pair: Pair, enqueue: Enqueue, *, sql_function: bool = False) -> str | None:
    """What is not as the table says; None if all is."""
    names = {one.name for one in pair}
    refused = is_refused(pair) or (sql_function and bool(names & WINDOWS))
    job, options = declared(app, pair), {**pair[0].call, **pair[1].call}
    if "_key" in options:
        options["_key"] = "-".join(sorted(names))
    try:
        first, second = await enqueue(job, options), await enqueue(job, options)
    except BadInput as error:
        told = all(name in str(error) for name in names - {"_debounce_most"} if refused and not sql_function)
        return None if refused and told else f"{sorted(names)}: refused with {error}"
    if refused:
        return f"{sorted(names)}: not refused"
    ((row,), (again,)) = [await (await app.open()).rows(JOB, [one.key]) for one in (first, second)]
    return _unlike(pair, row, one_job=row["id"] == again["id"], sql_function=sql_function)


def _unlike(pair: Pair, row: dict[str, Any], *, one_job: bool, sql_function: bool) -> str | None:
    wanted = {**pair[0].columns, **pair[1].columns, "one job": any(one.makes_one for one in pair)}
    found = {name: row.get(name) for name in wanted} | {"one job": one_job}
    # By SQL, the breaker is asked when the job starts; until then nothing is noted with the job.
    filled = [name for one in pair for name in one.filled if not (sql_function and name == "hold_key")]
    missing = [name for name in filled if row[name] is None]
    delay = max(one.delay_us for one in pair)
    late = not delay <= row["run_at"] - row["created_at"] < delay + 30_000_000
    names = [one.name for one in pair]
    return (
        f"{names}: {found} for {wanted}, without {missing}, late: {late}"
        if found != wanted or missing or late
        else None
    )


async def faults(app: Keptwork, enqueue: Enqueue, **how: Any) -> list[str]:
    return [told for pair in pairs() if (told := await fault(app, pair, enqueue, **how))]


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    async with Keptwork(database_url) as opened:
        yield opened


async def test_every_pair_of_options_is_honoured_or_refused(app: Keptwork) -> None:
    assert await faults(app, lambda job, options: job.enqueue(n=1, **options)) == []


async def test_every_pair_of_options_is_honoured_or_refused_in_a_transaction(app: Keptwork) -> None:
    async def enqueue(job: DeclaredJob, options: dict[str, Any]) -> Handle:
        async with app.transaction() as tx:
            return await job.enqueue(n=1, _tx=tx, **options)

    assert await faults(app, enqueue) == []


async def test_every_pair_of_options_is_honoured_or_refused_on_an_own_connection(postgres_copy: str) -> None:
    async with Keptwork(postgres_copy) as app, own_connection(postgres_copy) as connection:

        async def enqueue(job: DeclaredJob, options: dict[str, Any]) -> Handle:
            async with connection.transaction():
                return await job.enqueue(n=1, _tx=connection, **options)

        assert await faults(app, enqueue, sql_function=True) == []


@asynccontextmanager
async def own_connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


async def test_every_pair_of_options_is_honoured_or_refused_in_ordinary_code(app: Keptwork) -> None:
    async def enqueue(job: DeclaredJob, options: dict[str, Any]) -> Handle:
        return await asyncio.to_thread(lambda: app.sync.enqueue(job, n=1, **options))

    assert await faults(app, enqueue) == []


@pytest.fixture(params=["await", "transaction", "ordinary code"])
def many(request: pytest.FixtureRequest, app: Keptwork) -> Callable[..., Awaitable[list[Handle]]]:
    """The ways to enqueue many at once."""

    async def enqueue(job: DeclaredJob, sets: list[dict[str, Any]]) -> list[Handle]:
        if request.param == "await":
            return await app.enqueue_many(job, sets)
        if request.param == "ordinary code":
            return await asyncio.to_thread(app.sync.enqueue_many, job, sets)
        async with app.transaction() as tx:
            return await app.enqueue_many(job, sets, _tx=tx)

    return enqueue


async def test_every_pair_of_declared_options_is_honoured_by_enqueue_many(
    app: Keptwork, many: Callable[..., Awaitable[list[Handle]]]
) -> None:
    async def enqueue(job: DeclaredJob, options: dict[str, Any]) -> Handle:
        made = await many(job, [{"n": 1}, {"n": 2}, {"n": 1}])
        ids = {handle.id for handle in made}
        assert len(ids) == (2 if job.kind.unique_us else 3)
        return made[0]

    found = [pair for pair in pairs() if not any(one.call for one in pair)]
    assert [told for pair in found if (told := await fault(app, pair, enqueue))] == []


async def test_enqueue_many_makes_one_job_of_equal_arguments_of_a_unique_kind(
    app: Keptwork, many: Callable[..., Awaitable[list[Handle]]]
) -> None:
    @app.job(unique="10m")
    async def report(ctx: Context, day: str) -> None: ...

    earlier = await report.enqueue(day="mon")
    made = await many(report, [{"day": "mon"}, {"day": "tue"}, {"day": "mon"}, {"day": "tue"}])
    assert [handle.id for handle in made] == [earlier.id, made[1].id] * 2
    assert await many(report, []) == []
    assert await (await app.open()).counts(JOB) == (2, 0)
    with pytest.raises(BadInput, match="missing a required argument"):
        await many(report, [{"day": "wed"}, {}])
    assert await app.work(until_idle=True) == 2


async def test_debounced_job_takes_all_options_of_the_last_call(app: Keptwork) -> None:
    @app.job()
    async def index(ctx: Context, n: int) -> None: ...

    await index.enqueue(n=1, _debounce="1h", _priority=1, _queue="one", _correlation_id="c1", _trace_id="t1")
    last: dict[str, Any] = {"_priority": 2, "_queue": "two", "_correlation_id": "c2", "_trace_id": "t2"}
    made = await index.enqueue(n=2, _debounce="1ms", **last)
    ((row),) = await (await app.open()).rows(JOB, [made.key])
    found = [row[name] for name in ("priority", "queue", "correlation_id", "trace_id")]
    assert found == [2, "two", "c2", "t2"]
    assert await app.work(queues=["two"], until_idle=True) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"_debounce": "1s", "_run_in": "5s"}, "_run_in cannot be combined with _debounce"),
        ({"_debounce": "1s", "_unique": "5s"}, "_unique cannot be combined with _debounce"),
        ({"_debounce_most": "5s"}, "say _debounce= too"),
    ],
)
async def test_options_that_contradict_each_other_are_refused_before_anything_is_stored(
    app: Keptwork, options: dict[str, Any], message: str
) -> None:
    @app.job()
    async def index(ctx: Context) -> None: ...

    with pytest.raises(BadInput, match=message):
        await index.enqueue(**options)
    assert await (await app.open()).counts(JOB) == (0, 0)


async def test_unique_kind_is_refused_where_its_window_cannot_be_kept(app: Keptwork) -> None:
    @app.job(unique="10m")
    async def once(ctx: Context, task: str = "", share: int = 0, shares: int = 0) -> None: ...

    @app.job()
    async def parent(ctx: Context) -> None:
        await ctx.spawn(once)

    with pytest.raises(BadInput, match="job once: unique= does not apply to shares of a crew"):
        await app.crew(once, task="look")
    with pytest.raises(BadInput, match="schedule often: job once: unique= does not apply to schedules"):
        app.schedule(once, every="15m", name="often")
    made = await parent.enqueue()
    await app.work(until_idle=True)
    (row,) = await (await app.open()).rows(JOB, [made.key])
    assert "job once: unique= does not apply to ctx.spawn" in row["error"]
