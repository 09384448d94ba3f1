"""`keptwork demo`: run example jobs, then show their event log and its audit."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.audit import events, verify
from keptwork.cli import screen
from keptwork.cli.events import as_dict, drawn
from keptwork.core.lifecycles import JOB, WORKER, Token, decide, insist
from keptwork.errors import BadInput, LeaseLost, StoreError
from keptwork.store import EventFilter, Job, NewJob, Store
from keptwork.store.contract.records import Event
from keptwork.store.url import database_url

if TYPE_CHECKING:
    from rich.table import Table


# Runs SQL over a plain connection without Keptwork's settings, to show what the database itself rejects.


ACCEPTED = "its guards let an undeclared change pass"


async def refusal_of(statement: str, url: str | None = None) -> str:
    """Run the statement and return the database's refusal. Roll back a statement that the database accepts."""
    target = database_url(url)
    if target.dialect == "sqlite":
        return await asyncio.to_thread(_sqlite_refusal, statement, target.path)
    import asyncpg  # optional dependency

    connection = await asyncpg.connect(target.text)
    try:
        await connection.execute(f"BEGIN; {statement}; ROLLBACK")
    except asyncpg.PostgresError as refusal:
        return str(refusal)
    finally:
        await connection.close()
    raise StoreError(url=target.shown, detail=ACCEPTED)


def _sqlite_refusal(statement: str, path: str) -> str:
    import apsw

    db = apsw.Connection(path)
    try:
        db.execute(f"BEGIN; {statement}; ROLLBACK").fetchall()
    except apsw.ConstraintError as refusal:
        return str(refusal)
    finally:
        db.close()
    raise StoreError(url=path, detail=ACCEPTED)


# A demonstration on a real database: five jobs, two workers, and every outcome of a job.
#
# Nothing is simulated. The leases are short but real, the dead worker is one that stops renewing, and the same code and
# triggers as always reject invalid moves.


# ruff: noqa: S608 - the statement with the table's name and the job's key is one that the database must reject.


LEASE_US = 30_000_000
SHORT_LEASE_US = 1_200_000
BACKOFF_US = 500_000
LOOK_SECONDS = 0.05

INVOICE, REPORT, IMAGE, ORDERS, UPLOAD = "send-invoice", "fetch-report", "resize-image", "import-orders", "parse-upload"

Tell = Callable[[str, str], None]
"""Receives the job and its news, as they occur."""


@dataclass(slots=True)
class Demonstration:
    """The result: events, the names of their entities, and the rejected moves."""

    names: dict[int, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    refused_by_decide: str = ""
    statement: str = ""
    refused_by_database: str = ""


async def demonstrate(store: Store, url: str | None, tell: Tell) -> Demonstration:
    """Run the demonstration, and report each step through `tell`."""
    stage = await _Stage.set_up(store, tell)
    await stage.succeed_at_once()
    await stage.fail_and_retry()
    await stage.lose_a_worker()
    await stage.cancel()
    await stage.dead_letter()
    await stage.second_attempt()
    await stage.expire_and_reclaim()
    return await stage.results(url)


class _Stage:
    """The database, the two workers, and the five jobs."""

    def __init__(self, store: Store, tell: Tell) -> None:
        self._store = store
        self._tell = tell
        self._run = f"demo-{secrets.token_hex(4)}"  # its own queue, so that no real job is touched
        self._names: dict[int, str] = {}
        self._jobs: dict[str, int] = {}
        self._steady = self._doomed = 0
        self._abandoned: Job | None = None
        self._claims = 0

    @classmethod
    async def set_up(cls, store: Store, tell: Tell) -> _Stage:
        stage = cls(store, tell)
        stage._steady = await stage._worker("worker-1")
        stage._doomed = await stage._worker("worker-2")
        kinds = (INVOICE, REPORT, IMAGE, ORDERS, UPLOAD)
        keys = await store.enqueue(
            [NewJob(kind, queue=stage._run, correlation_id=stage._run, actor="demo") for kind in kinds]
        )
        stage._jobs = dict(zip(kinds, keys, strict=True))
        stage._names |= {key: kind for kind, key in stage._jobs.items()}
        tell("", "Two workers register. Five jobs enter the queue in one transaction: all of them, or none.")
        return stage

    async def _worker(self, name: str) -> int:
        columns: dict[str, Any] = {"name": name, "incarnation": self._run, "workspace_id": "demo"}
        key = await self._store.create(WORKER, actor="demo", correlation_id=self._run, **columns)
        self._names[key] = name
        return key

    async def succeed_at_once(self) -> None:
        await self._claim_and_start(self._steady)
        await self._move(INVOICE, "succeed", self._steady, values={"result": '{"sent": true}'})
        self._tell(INVOICE, "worker-1 claims it, starts it and succeeds: four moves, four events.")

    async def fail_and_retry(self) -> None:
        await self._claim_and_start(self._steady)
        values = {"error": "503 from the report server", "delay_us": BACKOFF_US}
        await self._move(REPORT, "retry", self._steady, reason="503 from the report server", values=values)
        self._tell(REPORT, "fails for now (503): back into the queue, due again in half a second, under a new epoch.")

    async def lose_a_worker(self) -> None:
        self._abandoned = await self._claim_and_start(self._doomed, SHORT_LEASE_US)
        self._tell(IMAGE, "worker-2 starts it under a lease of 1.2 s, and dies: nobody renews the lease.")

    async def cancel(self) -> None:
        await self._move(ORDERS, "cancel", actor="operator", reason="ordered twice")
        self._tell(ORDERS, "an operator cancels it while it waits.")

    async def dead_letter(self) -> None:
        await self._claim_and_start(self._steady)
        said = "line 1 is not JSON"
        facts = {"reason_code": "parse_error", "values": {"error": said}}
        await self._move(UPLOAD, "dead_letter", self._steady, reason=f"parse_error: {said}", **facts)
        self._tell(UPLOAD, "cannot be read and never will be: dead-lettered, kept for a human to look at.")

    async def second_attempt(self) -> None:
        await self._claim_and_start(self._steady)
        await self._move(REPORT, "succeed", self._steady, values={"result": "{}"})
        self._tell(REPORT, "the backoff is over: worker-1 claims it again and succeeds at the second attempt.")

    async def expire_and_reclaim(self) -> None:
        await self._lease_over(self._jobs[IMAGE])
        await self._move(IMAGE, "expire", lease_over=True, actor="reaper", reason="lease over")
        self._tell(IMAGE, "its lease is over: back into the queue, and whatever worker-2 held is void.")
        await self._claim_and_start(self._steady)
        await self._too_late()
        await self._move(IMAGE, "succeed", self._steady, values={"result": "{}"})
        self._tell(IMAGE, "worker-1 succeeds. The work was done once more, its result counted once.")

    async def _lease_over(self, key: int) -> None:
        """Wait until the database reports the lease as expired, as a reaper would see it."""
        while True:
            if key in [job.id for job in await self._store.overdue(1000)]:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _too_late(self) -> None:
        """Report success as the dead worker would, from its outdated knowledge."""
        stale = self._abandoned
        assert stale is not None  # noqa: S101 - the order of the story
        held = {"state": "running", "seq": stale.seq + 1, "lease_until": stale.lease_until}
        record = {name: held.get(name, stale[name]) for name in Job.__dataclass_fields__}
        before = (stale.lease_until or 0) - 1
        change = insist(decide(JOB, record, "succeed", now=before, token=stale.token, actor=f"w:{self._doomed}"))
        lost = await self._store.apply([change])
        said = "nothing changes, it lost its lease." if lost else "and it was believed, which must never happen!"
        self._tell(IMAGE, f"worker-1 has it; now worker-2 wakes up and reports success: {said}")

    async def results(self, url: str | None) -> Demonstration:
        orders = self._jobs[ORDERS]
        record = await self._record(ORDERS)
        statement = f"UPDATE {JOB.table} SET state = 'succeeded' WHERE id = {orders}"
        wanted = EventFilter(correlation_id=self._run)
        return Demonstration(
            self._names,
            (await self._store.events(wanted, limit=1000, newest_first=True))[::-1],
            str(decide(JOB, {**record, "id": ORDERS}, "succeed", now=await self._store.now())),
            statement,
            await refusal_of(statement, url),
        )

    async def _claim_and_start(self, worker: int, lease_us: int = LEASE_US) -> Job:
        """Claim and start the next due job."""
        while True:
            self._claims += 1
            jobs = await self._store.claim(worker, [self._run], 1, lease_us, claim_id=self._claims)
            if jobs:
                break
            await asyncio.sleep(LOOK_SECONDS)
        await self._move(jobs[0].kind, "start", worker)
        return jobs[0]

    async def _move(self, name: str, trigger: str, worker: int | None = None, **facts: Any) -> None:
        """Decide a move on the current row and write it."""
        record = await self._record(name)
        if worker is not None:
            facts |= {"token": Token(worker, record["epoch"]), "actor": f"w:{worker}"}
        change = insist(decide(JOB, record, trigger, now=await self._store.now(), **facts))
        if await self._store.apply([change]):
            raise LeaseLost(lifecycle=JOB.name, id=name, trigger=trigger)

    async def _record(self, name: str) -> dict[str, Any]:
        record = await self._store.get(JOB, self._jobs[name], None)
        assert record is not None  # noqa: S101 - nobody deletes a job that has not ended
        return record


WIDE_ENOUGH = 112

Where = Annotated[
    str | None, typer.Option("--db", metavar="URL", help="Database URL. Default: a temporary SQLite database.")
]


def demo(db: Where = None, as_json: screen.Json = False) -> None:
    """Run example jobs: success, retry, a dead worker, a cancellation, and a dead letter. Takes 2 s."""
    if db and ":memory:" in db:
        raise BadInput(what="the demo also looks from outside, which a database in memory does not allow; give a file")
    with _database(db) as (url, shown):
        story = _Story(f"Keptwork demo on {shown}", silent=as_json)
        shown_to, verdict, seconds = asyncio.run(_perform(url, story))
    value = {
        "story": story.told,
        "events": [events.as_json(event) for event in shown_to.events],
        "refused": {"by_decide": shown_to.refused_by_decide, "by_database": shown_to.refused_by_database},
        "audit": as_dict(verdict),
    }
    screen.emit(value, lambda: _epilogue(shown_to, verdict, seconds), as_json)
    if not verdict.clean:
        raise typer.Exit(1)


async def _perform(url: str, story: _Story) -> tuple[Demonstration, verify.Verdict, float]:
    from keptwork.store import open_store

    store = await open_store(url)
    try:
        shown = await demonstrate(store, url, story.tell)
        began = time.perf_counter()
        return shown, await verify.verify(store), time.perf_counter() - began
    finally:
        await store.close()


class _Story:
    """Print and record what happens. The title is printed before the first line."""

    def __init__(self, title: str, *, silent: bool) -> None:
        self._title = title
        self._silent = silent
        self._began = time.monotonic()
        self.told: list[dict[str, str]] = []

    def tell(self, job: str, what: str) -> None:
        first = not self.told
        self.told.append({"job": job, "what": what})
        if self._silent:
            return
        if first:
            screen.stdout().print(f"{self._title}\n", style="bold")
        screen.stdout().print(_told(time.monotonic() - self._began, job, what))


def _told(seconds: float, job: str, what: str) -> Table:
    from rich.table import Table

    line = Table.grid(padding=(0, 2))
    line.add_column(width=6, justify="right", style="dim")
    line.add_column(width=14, style="cyan")
    line.add_column()
    line.add_row(f"{seconds:.2f} s", job or "all", what)
    return line


def _epilogue(shown: Demonstration, verdict: verify.Verdict, seconds: float) -> Any:
    from rich.console import Group
    from rich.text import Text

    return Group(
        "",
        Text(f"The event log: one event for each move, {len(shown.events)} in all", style="bold"),
        "",
        _log(shown),
        "",
        Text("What was not declared cannot happen", style="bold"),
        "",
        "The program asks whether the cancelled import-orders may succeed, and is told:",
        f"  {shown.refused_by_decide}",
        "Somebody types into the database:",
        f"  {shown.statement}",
        "and the database itself refuses:",
        f"  {shown.refused_by_database}",
        "",
        Text("The audit replays the log and compares it with the rows", style="bold"),
        "",
        drawn(verdict, seconds),
    )


def _log(shown: Demonstration) -> Table:
    """Return the event log as a table. On a narrow terminal, omit the state and epoch columns."""
    wide = screen.stdout().width >= WIDE_ENOUGH
    names = ("time (UTC)", "entity", "event", "state", "epoch", "by", "reason")
    chosen = [place for place, name in enumerate(names) if wide or name not in ("state", "epoch")]
    table = screen.table(*(names[place] for place in chosen))
    for column in table.columns[:-1]:
        column.no_wrap = True
    for event in shown.events:
        cells = tuple(_cells(shown, event))
        table.add_row(*(cells[place] for place in chosen))
    return table


def _cells(shown: Demonstration, event: Event) -> Iterator[str]:
    yield screen.moment(event.ts)[11:-1]
    yield shown.names.get(event.entity_id, events.as_json(event)["entity_id"])
    yield event.type
    yield f"{event.from_state} → {event.to_state}" if event.from_state else event.to_state
    yield str(event.epoch)
    actor = event.actor or "–"
    yield shown.names.get(int(actor[2:]), actor) if actor.startswith("w:") else actor
    yield event.reason or ""


@contextmanager
def _database(db: str | None) -> Iterator[tuple[str, str]]:
    from keptwork.store.url import redacted

    if db:
        yield db, redacted(db)
        return
    with TemporaryDirectory(prefix="keptwork-demo-") as folder:
        yield f"sqlite:///{Path(folder) / 'demo.db'}", "a temporary SQLite database; --db URL takes another"
