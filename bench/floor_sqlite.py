"""The floor under SQLite: the SQL of a job's lifecycle, issued straight through the driver.

Uses nothing of the product: the statements stand here in full (a test holds them to the product's own), the database
was prepared beforehand. Usage: python -m bench.floor_sqlite PATH WORKER BATCH SECONDS. Prints jobs per second.
"""

import json
import sys
import time
from typing import Any

import apsw

TAKE_KEYS = "UPDATE last_key SET key = max(key, ?1 - 1) + ?2 RETURNING key"

ENQUEUE = """INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id,
    trace_id, cause, priority, max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from,
    parent_id, limit_key, step_id, crew_id, tree_id, key, payload)
VALUES (?1, ?2, ?2, max(?2, coalesce(?3, 0)) + ?4, ?5, 'queued', 'enqueue', ?6, ?7,
    ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24)"""

ENQUEUE_BATCH = """INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id,
    trace_id, cause, priority, max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from,
    parent_id, limit_key, step_id, crew_id, tree_id, key, payload)
SELECT g.id, ?1, ?1, max(?1, coalesce(g.run_at, 0)) + g.delay_us, g.tenant_id, 'queued', 'enqueue', g.actor,
    g.correlation_id, g.trace_id, g.cause, g.priority, g.max_attempts, g.queue, g.kind, g.on_exhausted, g.hold_key,
    g.held_by, g.redriven_from, g.parent_id, g.limit_key, g.step_id, g.crew_id, g.tree_id, g.key, g.payload
FROM (SELECT value ->> 0 AS id, value ->> 1 AS run_at, value ->> 2 AS delay_us, value ->> 3 AS tenant_id,
    value ->> 4 AS actor, value ->> 5 AS correlation_id, value ->> 6 AS trace_id, value ->> 7 AS cause,
    value ->> 8 AS priority, value ->> 9 AS max_attempts, value ->> 10 AS queue, value ->> 11 AS kind,
    value ->> 12 AS on_exhausted, value ->> 13 AS hold_key, value ->> 14 AS held_by, value ->> 15 AS redriven_from,
    value ->> 16 AS parent_id, value ->> 17 AS limit_key, value ->> 18 AS step_id, value ->> 19 AS crew_id,
    value ->> 20 AS tree_id, value ->> 21 AS key, value ->> 22 AS payload FROM jsonb_each(?2)) AS g"""

MAY_CLAIM = "SELECT 1 FROM workers WHERE id = ?1 AND state IN ('IDLE', 'RUNNING')"

QUEUE_NOW = """SELECT (SELECT min(tenant_id) FROM jobs WHERE state = 'queued' AND held_by IS NULL AND queue = ?1),
    (SELECT max(tenant_id) FROM jobs WHERE state = 'queued' AND held_by IS NULL AND queue = ?1),
    EXISTS (SELECT 1 FROM queues WHERE name = ?1 AND paused_at IS NOT NULL),
    EXISTS (SELECT 1 FROM limit_rules WHERE what = 'queue' AND name = ?1)"""

NEXT_PRIORITY = """SELECT max(priority) FROM jobs
WHERE state = 'queued' AND held_by IS NULL AND queue = ?1 AND tenant_id = ?2 AND priority < ?3"""

DUE = """SELECT -priority, run_at, id FROM jobs
WHERE state = 'queued' AND held_by IS NULL AND queue = ?1 AND tenant_id = ?2 AND priority = ?3
    AND run_at <= ?4
ORDER BY run_at, id LIMIT ?5"""

CLAIM = """UPDATE jobs SET state = 'assigned', seq = jobs.seq + 1, move = 'claim',
    updated_at = max(?1, jobs.updated_at + 1), actor = ?2, reason = NULL, cause = NULL, detail = NULL, owner = ?3,
    claim_id = ?4, lease_until = ?1 + ?5
WHERE id IN (SELECT value FROM json_each(?6)) RETURNING id, tenant_id, state, seq, epoch, queue, kind, payload,
    priority, run_at, attempts, max_attempts, on_exhausted, owner, lease_until, held_by, correlation_id, trace_id,
    parent_id, limit_key, step_id, crew_id, tree_id"""

START = """WITH given AS MATERIALIZED (SELECT value ->> 0 AS epoch, value ->> 1 AS id, value ->> 2 AS seq,
    ?3 AS actor, ?4 AS cause, ?5 AS detail, ?6 AS from_state, ?7 AS owner, ?8 AS reason, ?9 AS tenant_id
    FROM jsonb_each(?1))
UPDATE jobs SET state = 'running', seq = jobs.seq + 1, move = 'start',
    updated_at = max(?2, jobs.updated_at + 1), actor = g.actor, reason = g.reason, cause = g.cause, detail = g.detail,
    started_at = coalesce(jobs.started_at, max(?2, jobs.updated_at + 1)), attempts = jobs.attempts + 1
FROM given AS g WHERE jobs.id = g.id AND jobs.tenant_id = g.tenant_id AND jobs.seq = g.seq AND jobs.epoch = g.epoch
    AND jobs.state = g.from_state AND jobs.owner = g.owner AND jobs.lease_until > ?2
RETURNING jobs.id"""

SUCCEED = """WITH given AS MATERIALIZED (SELECT value ->> 0 AS epoch, value ->> 1 AS id, value ->> 2 AS seq,
    value ->> 3 AS result, ?3 AS actor, ?4 AS cause, ?5 AS detail, ?6 AS from_state, ?7 AS owner, ?8 AS reason,
    ?9 AS tenant_id FROM jsonb_each(?1))
UPDATE jobs SET state = 'succeeded', seq = jobs.seq + 1, move = 'succeed',
    updated_at = max(?2, jobs.updated_at + 1), actor = g.actor, reason = g.reason, cause = g.cause, detail = g.detail,
    completed_at = coalesce(jobs.completed_at, max(?2, jobs.updated_at + 1)), result = g.result, lease_until = NULL
FROM given AS g WHERE jobs.id = g.id AND jobs.tenant_id = g.tenant_id AND jobs.seq = g.seq AND jobs.epoch = g.epoch
    AND jobs.state = g.from_state AND jobs.owner = g.owner AND jobs.lease_until > ?2
RETURNING jobs.id"""

LEASE_US = 60_000_000


def main(path: str, worker: int, batch: int, seconds: float) -> None:
    db = connect(path)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        lifecycle(db, worker, batch)
        done += batch
    print(done / (time.perf_counter() - began))


def connect(path: str) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX
    db = apsw.Connection(path, flags=flags, statementcachesize=200)
    db.set_busy_timeout(60_000)
    db.execute(
        "PRAGMA synchronous = full; PRAGMA cell_size_check = on; PRAGMA cache_size = -4096; PRAGMA temp_store = memory"
    ).fetchall()
    return db


def lifecycle(db: apsw.Connection, worker: int, batch: int) -> None:
    actor = f"w:{worker}"
    db.execute("BEGIN IMMEDIATE")
    now = time.time_ns() // 1000
    last: Any = db.execute(TAKE_KEYS, ((now // 1000 - 1_704_067_200_000) << 22, batch)).fetchall()[0][0]
    said = (None, 0, 1, None, None, None, None, 0, 4, "default", "noop", "dead_letter", *[None] * 9, "{}")
    db.execute(ENQUEUE_BATCH, (now, json.dumps([(key, *said) for key in range(last - batch + 1, last + 1)])))
    db.execute("COMMIT")

    db.execute("BEGIN IMMEDIATE")
    now = time.time_ns() // 1000
    db.execute(MAY_CLAIM, (worker,)).fetchall()
    ((tenant, _, _, _),) = db.execute(QUEUE_NOW, ("default",)).fetchall()
    ((priority,),) = db.execute(NEXT_PRIORITY, ("default", tenant, 1 << 31)).fetchall()
    due = db.execute(DUE, ("default", tenant, priority, now, batch)).fetchall()
    ids = json.dumps([row[2] for row in due])
    claimed: list[Any] = db.execute(CLAIM, (now, actor, worker, 1, LEASE_US, ids)).fetchall()
    db.execute("COMMIT")
    assert len(claimed) == batch

    for statement, state, step, extra in ((START, "assigned", 0, ()), (SUCCEED, "running", 1, (None,))):
        db.execute("BEGIN IMMEDIATE")
        now = time.time_ns() // 1000
        rows = json.dumps([(r[4], r[0], r[3] + step, *extra) for r in claimed])
        alike = (actor, None, None, state, worker, None, 1)
        assert len(db.execute(statement, (rows, now, *alike)).fetchall()) == batch
        db.execute("COMMIT")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
