"""The bare server's PostgreSQL: a pool of connections, each statement on one of them."""

import json
import time
from typing import Any

import asyncpg

from bench.floor_postgres import PAGE, SETTINGS, TAKE_PAGES
from bench.http.bare import EVENT, LISTED, TENANT, NewJob, Row

LIMIT_RULES = "SELECT what, name, most, rate, window_us, per FROM limit_rules ORDER BY what, name"
JOB = "SELECT * FROM jobs WHERE id = ANY($1::bigint[])"
PAGE_OF_JOBS = f"SELECT {LISTED} FROM jobs WHERE tenant_id = $1 ORDER BY id DESC LIMIT $2"
EVENTS = (
    f"SELECT {EVENT}, tx FROM events WHERE tenant_id = $1 AND entity = $2 AND entity_id = $3 "
    "ORDER BY tx DESC, id DESC LIMIT $4"
)
LATER = "SELECT id FROM jobs WHERE tenant_id = $1 AND redriven_from IN ($2) ORDER BY id ASC LIMIT $3"
ARTIFACTS = (
    "SELECT name, media_type, size, hash, epoch, created_at FROM artifacts "
    "WHERE tenant_id = $1 AND job_id = $2 ORDER BY name"
)
CHECKPOINTS = (
    "SELECT name, result, hash, code, version, epoch, created_at, changed_at FROM checkpoints "
    "WHERE tenant_id = $1 AND job_id = $2 ORDER BY created_at, name"
)
TELEMETRY = (
    "SELECT kind, ts, payload FROM telemetry "
    "WHERE entity_id = $1 AND entity = $2 AND tenant_id = $3 ORDER BY ts DESC LIMIT $4"
)

ENQUEUE = """WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx),
born AS (
    INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id, trace_id,
        cause, priority, max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from, parent_id,
        limit_key, step_id, crew_id, tree_id, key, payload)
    SELECT $1::bigint, (SELECT now FROM clock), (SELECT now FROM clock),
        greatest((SELECT now FROM clock), $7::bigint) + $8::bigint,
        $5::int, 'queued', 'enqueue', $14::text, $16::text, $17::text, $15::text, $6::int, $9::int,
        $4::text, $2::text, $10::text, $12::text, $13::text, $18::bigint, $19::bigint, $20::text, $21::bigint,
        $22::bigint, $23::bigint, $11::text, $3::json
    FROM (SELECT) AS g
    ON CONFLICT DO NOTHING
    RETURNING id, created_at, tenant_id, actor, correlation_id, trace_id, cause),
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, to_state, actor,
        correlation_id, trace_id, cause)
    SELECT (SELECT tx FROM clock), id, created_at, tenant_id, 1, 0, 'job', 'job_enqueued', 'enqueue',
        'queued', actor, correlation_id, trace_id, cause FROM born),
rung AS (SELECT pg_notify('keptwork_jobs', $24::text) WHERE $24::text IS NOT NULL)
SELECT id FROM born LEFT JOIN rung ON true"""

CONNECTIONS = 10


class Postgres:
    """A pool of as many connections as the product's."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._offsets: list[int] = []

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(
            self._url, min_size=1, max_size=CONNECTIONS, server_settings=SETTINGS, reset=nothing
        )

    async def close(self) -> None:
        await self._pool.close()

    async def enqueue(self, job: NewJob) -> Row:
        values = (job.queue, TENANT, job.priority, None, 0, job.max_attempts, "dead_letter", job.key)
        async with self._pool.acquire() as connection:
            await rows(connection, LIMIT_RULES)
            key = await self._key(connection)
            await rows(connection, ENQUEUE, key, job.kind, json.dumps(job.payload), *values, *[None] * 13)
            return (await rows(connection, JOB, [key]))[0]

    async def listed(self, limit: int) -> list[Row]:
        async with self._pool.acquire() as connection:
            return await rows(connection, PAGE_OF_JOBS, TENANT, limit)

    async def story(self, key: int) -> tuple[Row, list[Row], list[Row], list[Row], list[Row], list[Row]]:
        async with self._pool.acquire() as connection:
            return (
                (await rows(connection, JOB, [key]))[0],
                await rows(connection, EVENTS, TENANT, "job", key, 1000),
                await rows(connection, LATER, TENANT, key, 100),
                await rows(connection, ARTIFACTS, TENANT, key),
                await rows(connection, CHECKPOINTS, TENANT, key),
                await rows(connection, TELEMETRY, key, "job", TENANT, 100),
            )

    async def _key(self, connection: asyncpg.Connection) -> int:
        """A page of keys at a time, as the product takes them."""
        if not self._offsets:
            page = (await rows(connection, TAKE_PAGES, 1))[0]["nextval"]
            self._offsets += [page * PAGE + place for place in range(PAGE)]
        return ((time.time_ns() // 1_000_000 - 1_704_067_200_000) << 22) + self._offsets.pop()


async def rows(connection: asyncpg.Connection, sql: str, *values: Any) -> list[Row]:
    return [dict(row) for row in await connection.fetch(sql, *values)]


async def nothing(connection: asyncpg.Connection) -> None:
    """Its usual reset between two uses is a trip to the server, which the product does without."""
