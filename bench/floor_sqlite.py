"""The floor under SQLite: the SQL of a job's lifecycle, issued straight through the driver.

Uses nothing of the product: the statements stand here in full (a test holds them to the product's own), the database
was prepared beforehand. Usage: python -m bench.floor_sqlite PATH WORKER BATCH SECONDS. Prints jobs per second.
"""

import sys
import time
from typing import Any

import apsw

TAKE_KEYS = "UPDATE last_key SET key = max(key, ?1 - 1) + ?2 RETURNING key"

ENQUEUE = """INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id,
    trace_id, cause, priority, max_attempts, queue, kind, on_exhausted, hold_key, held_by, key, payload)
VALUES (?1, ?2, ?2, max(?2, coalesce(?3, 0)) + ?4, ?5, 'queued', 'enqueue', ?6, ?7,
    ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)"""

MAY_CLAIM = "SELECT 1 FROM workers WHERE id = ?1 AND state IN ('IDLE', 'RUNNING')"

DUE = """SELECT -priority, run_at, id FROM jobs
WHERE state = 'queued' AND held_by IS NULL AND queue = ?1 AND run_at <= ?2
    AND (?3 IS NULL OR tenant_id = ?3)
    AND NOT EXISTS (SELECT 1 FROM queues AS q
        WHERE q.tenant_id = jobs.tenant_id AND q.name = jobs.queue AND q.paused_at IS NOT NULL)
ORDER BY priority DESC, run_at, id LIMIT ?4"""

CLAIM = """UPDATE jobs SET state = 'assigned', seq = jobs.seq + 1, move = 'claim',
    updated_at = max(?1, jobs.updated_at + 1), actor = ?2, reason = NULL, cause = NULL, detail = NULL, owner = ?3,
    claim_id = ?4, lease_until = ?1 + ?5
WHERE id = ?6 RETURNING id, tenant_id, state, seq, epoch, queue, kind, payload, priority, run_at, attempts,
    max_attempts, on_exhausted, owner, lease_until, held_by, correlation_id, trace_id"""

START = """UPDATE jobs SET state = 'running', seq = jobs.seq + 1, move = 'start',
    updated_at = max(?11, jobs.updated_at + 1), actor = ?1, reason = ?8, cause = ?2, detail = ?3,
    started_at = coalesce(jobs.started_at, max(?11, jobs.updated_at + 1)), attempts = jobs.attempts + 1
WHERE jobs.id = ?6 AND jobs.tenant_id = ?10 AND jobs.seq = ?9 AND jobs.epoch = ?4 AND jobs.state = ?5
    AND jobs.owner = ?7 AND jobs.lease_until > ?11"""

SUCCEED = """UPDATE jobs SET state = 'succeeded', seq = jobs.seq + 1, move = 'succeed',
    updated_at = max(?11, jobs.updated_at + 1), actor = ?1, reason = ?8, cause = ?2, detail = ?3,
    completed_at = coalesce(jobs.completed_at, max(?11, jobs.updated_at + 1)), result = ?12, lease_until = NULL
WHERE jobs.id = ?6 AND jobs.tenant_id = ?10 AND jobs.seq = ?9 AND jobs.epoch = ?4 AND jobs.state = ?5
    AND jobs.owner = ?7 AND jobs.lease_until > ?11"""

LEASE_US = 60_000_000


def main(path: str, worker: int, batch: int, seconds: float) -> None:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX
    db = apsw.Connection(path, flags=flags, statementcachesize=200)
    db.set_busy_timeout(60_000)
    db.execute("PRAGMA synchronous = full; PRAGMA cell_size_check = on; PRAGMA cache_size = -8192").fetchall()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        lifecycle(db, worker, batch)
        done += batch
    print(done / (time.perf_counter() - began))


def lifecycle(db: apsw.Connection, worker: int, batch: int) -> None:
    actor = f"w:{worker}"
    db.execute("BEGIN IMMEDIATE")
    now = time.time_ns() // 1000
    last: Any = db.execute(TAKE_KEYS, ((now // 1000 - 1_704_067_200_000) << 22, batch)).fetchall()[0][0]
    for key in range(last - batch + 1, last + 1):
        job = (key, now, None, 0, 1, None, None, None, None, 0, 4, "default", "noop", "dead_letter", None, None)
        db.execute(ENQUEUE, (*job, None, "{}"))
    db.execute("COMMIT")

    db.execute("BEGIN IMMEDIATE")
    now = time.time_ns() // 1000
    db.execute(MAY_CLAIM, (worker,)).fetchall()
    due = db.execute(DUE, ("default", now, None, batch)).fetchall()
    claimed: list[Any] = [db.execute(CLAIM, (now, actor, worker, 1, LEASE_US, row[2])).fetchall()[0] for row in due]
    db.execute("COMMIT")
    assert len(claimed) == batch

    for statement, state, step, extra in ((START, "assigned", 0, ()), (SUCCEED, "running", 1, (None,))):
        db.execute("BEGIN IMMEDIATE")
        now = time.time_ns() // 1000
        for row in claimed:
            values = (actor, None, None, row[4], state, row[0], worker, None, row[3] + step, 1, now)
            db.execute(statement, (*values, *extra))
            assert db.changes() == 1
        db.execute("COMMIT")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
