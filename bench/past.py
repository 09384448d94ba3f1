"""A past for a database: finished jobs with their whole logs, put in by bulk SQL as if workers had run them.

The guards are out of the way meanwhile, for a million jobs one by one would take longer than what is to be measured;
what lands in the tables is what the guards would have let pass (a test has the audit confirm it).
"""

from typing import Any

import apsw

from keptwork.core import ids
from keptwork.core.lifecycles import JOB
from keptwork.store import NewJob, open_store
from keptwork.store.trigger_rules import literal, literals
from tests.support.postgres_server import PostgresServer

DAY_US = 86_400_000_000
OLDEST_DAYS, NEWEST_DAYS = 10, 1
AT_ONCE = 5_000

# One finished job is four moves: when each was made, in microseconds after the job was.
_LIFE = {"enqueue": 0, "claim": 1_000, "start": 1_001, "succeed": 2_000}
_ACTOR = "'w:1'"
_COLUMNS = (
    "id, created_at, updated_at, started_at, completed_at, tenant_id, seq, state, move, actor, run_at, owner, "
    "claim_id, attempts, queue, kind, payload, result"
)
_EVENT_COLUMNS = "entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor"


def fill_sqlite(path: str, count: int, now_us: int) -> None:
    """That many finished jobs, and their events."""
    db = apsw.Connection(path)
    db.execute("PRAGMA synchronous = off; PRAGMA cache_size = -262144").fetchall()
    triggers: list[Any] = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    numbers = f"WITH RECURSIVE past(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM past LIMIT {count})"
    statements = [f"DROP TRIGGER {name}" for name, _ in triggers]
    statements += [f"{insert} {numbers} {rows}" for insert, rows in _fillings(count, now_us)]
    for statement in ["BEGIN IMMEDIATE", *statements, *(sql for _, sql in triggers), "COMMIT"]:
        db.execute(statement).fetchall()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()


def fill_postgres(server: PostgresServer, url: str, count: int, now_us: int) -> None:
    """That many finished jobs, and their events."""
    numbers = f"WITH past(n) AS (SELECT generate_series(CAST(0 AS bigint), {count - 1}))"
    statements = [f"{insert} {numbers} {rows}" for insert, rows in _fillings(count, now_us)]
    database = url.rpartition("/")[2]
    server.superuser_sql("; ".join(("SET session_replication_role = replica", *statements)), database)


async def queue_up(url: str, count: int) -> None:
    """Enqueues what is missing to that many queued jobs."""
    store = await open_store(url)
    waiting = sum(queue.jobs.get(JOB.initial.name, 0) for queue in await store.queues(1))
    for first in range(waiting, count, AT_ONCE):
        await store.enqueue([NewJob("noop")] * min(AT_ONCE, count - first))
    await store.close()


def _fillings(count: int, now_us: int) -> list[tuple[str, str]]:
    """(INSERT …, SELECT … FROM past) of the jobs, then of their events job by job."""
    step = (OLDEST_DAYS - NEWEST_DAYS) * DAY_US // count
    made = f"({now_us - OLDEST_DAYS * DAY_US + step // 2} + n * {step})"
    key = f"((({made} / 1000 - {ids.EPOCH_MS}) << {ids.COUNTER_BITS}) + n % {1 << ids.COUNTER_BITS})"
    end = JOB.move("succeed")
    job = (
        f"SELECT {key}, {made}, {made} + {_LIFE['succeed']}, {made} + {_LIFE['start']}, {made} + {_LIFE['succeed']}, "
        f"1, {len(_LIFE)}, {literals((end.target.name, end.trigger))}, {_ACTOR}, {made}, 1, 1, 1, 'default', 'noop', "
        "'{}', 'null' FROM past"
    )
    moves = ", ".join(_move(seq, trigger) for seq, trigger in enumerate(_LIFE, 1))
    names = ("seq", "at", "type", "trigger", "from_state", "to_state", "actor")
    columns = ", ".join(f"column{place} AS {name}" for place, name in enumerate(names, 1))
    life = f"(SELECT {columns} FROM (VALUES {moves}) AS v) AS life"
    event = (
        f"SELECT {key}, {made} + life.at, 1, life.seq, 0, {literal(JOB.name)}, life.type, life.trigger, "
        f"life.from_state, life.to_state, life.actor FROM past, {life} ORDER BY n, life.seq"
    )
    return [(f"INSERT INTO jobs ({_COLUMNS})", job), (f"INSERT INTO events ({_EVENT_COLUMNS})", event)]


def _move(seq: int, trigger: str) -> str:
    move = JOB.move(trigger)
    source = literal(move.sources[0].name) if move.sources else "NULL"
    who = _ACTOR if move.sources else "NULL"
    return f"({seq}, {_LIFE[trigger]}, {literals((move.event, trigger))}, {source}, {literal(move.target.name)}, {who})"
