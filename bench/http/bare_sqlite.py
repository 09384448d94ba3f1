"""The bare server's SQLite: threads as FastAPI has them for drivers that block, with a connection each."""

import json
import threading
import time
from typing import Any

import apsw
from starlette.concurrency import run_in_threadpool

from bench.floor_sqlite import ENQUEUE, TAKE_KEYS, connect
from bench.http.bare import EVENT, LISTED, TENANT, NewJob, Row

LIMIT_RULES = "SELECT what, name, most, rate, window_us, per FROM limit_rules ORDER BY what, name"
JOB = "SELECT * FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
PAGE_OF_JOBS = f"SELECT {LISTED} FROM jobs WHERE tenant_id = ?1 ORDER BY id DESC LIMIT ?2"
EVENTS = (
    f"SELECT {EVENT}, 0 FROM events WHERE tenant_id = ?1 AND entity = ?2 AND entity_id = ?3 ORDER BY id DESC LIMIT ?4"
)
LATER = "SELECT id FROM jobs WHERE tenant_id = ?1 AND redriven_from IN (?2) ORDER BY id ASC LIMIT ?3"
ARTIFACTS = (
    "SELECT name, media_type, size, hash, epoch, created_at FROM artifacts "
    "WHERE tenant_id = ?1 AND job_id = ?2 ORDER BY name"
)
CHECKPOINTS = (
    "SELECT name, result, hash, code, version, epoch, created_at, changed_at FROM checkpoints "
    "WHERE tenant_id = ?1 AND job_id = ?2 ORDER BY created_at, name"
)
TELEMETRY = (
    "SELECT kind, ts, payload FROM telemetry "
    "WHERE entity_id = ?1 AND entity = ?2 AND tenant_id = ?3 ORDER BY ts DESC LIMIT ?4"
)


class Sqlite:
    """One connection writes, under a lock; each thread has one to read from."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._of_thread = threading.local()

    async def open(self) -> None:
        self._writer = connect(self._path)

    async def close(self) -> None:
        self._writer.close()

    async def enqueue(self, job: NewJob) -> Row:
        return await run_in_threadpool(self._enqueue, job)

    async def listed(self, limit: int) -> list[Row]:
        return await run_in_threadpool(self._fetch, PAGE_OF_JOBS, TENANT, limit)

    async def story(self, key: int) -> tuple[Row, list[Row], list[Row], list[Row], list[Row], list[Row]]:
        return await run_in_threadpool(self._story, key)

    def _enqueue(self, job: NewJob) -> Row:
        self._fetch(LIMIT_RULES)
        payload = json.dumps(job.payload)
        with self._turn:
            db = self._writer
            db.execute("BEGIN IMMEDIATE")
            now = time.time_ns() // 1000
            first = (now // 1000 - 1_704_067_200_000) << 22
            key = next(db.execute(TAKE_KEYS, (first, 1)))[0]
            values = (key, now, None, 0, TENANT, None, None, None, None, job.priority, job.max_attempts, job.queue)
            db.execute(ENQUEUE, (*values, job.kind, "dead_letter", *[None] * 8, job.key, payload))
            db.execute("COMMIT")
        return self._fetch(JOB, json.dumps([key]))[0]

    def _story(self, key: int) -> tuple[Row, list[Row], list[Row], list[Row], list[Row], list[Row]]:
        return (
            self._fetch(JOB, json.dumps([key]))[0],
            self._fetch(EVENTS, TENANT, "job", key, 1000),
            self._fetch(LATER, TENANT, key, 100),
            self._fetch(ARTIFACTS, TENANT, key),
            self._fetch(CHECKPOINTS, TENANT, key),
            self._fetch(TELEMETRY, key, "job", TENANT, 100),
        )

    def _fetch(self, sql: str, *values: Any) -> list[Row]:
        if not hasattr(self._of_thread, "db"):
            self._of_thread.db = connect(self._path)
        cursor: apsw.Cursor = self._of_thread.db.execute(sql, values)
        first = cursor.fetchone()
        if first is None:
            return []
        names = [column[0] for column in cursor.get_description()]
        return [dict(zip(names, row, strict=True)) for row in (first, *cursor)]
