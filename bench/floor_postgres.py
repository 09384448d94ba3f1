"""The floor under PostgreSQL: the SQL of a job's lifecycle, issued straight through the driver.

Uses nothing of the product: the statements stand here in full (a test holds them to the product's own), the database
was prepared beforehand. Usage: python -m bench.floor_postgres URL WORKER BATCH SECONDS. Prints jobs per second.
"""

import asyncio
import sys
import time

import asyncpg

TAKE_PAGES = "SELECT nextval('keptwork_pages') FROM generate_series(1, $1)"

ENQUEUE = """WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx),
born AS (
    INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id,
        trace_id, cause,
        priority, max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from, parent_id, limit_key,
        step_id, crew_id, tree_id, key, payload)
    SELECT g.id, (SELECT now FROM clock), (SELECT now FROM clock), greatest((SELECT now FROM clock), $5::bigint)
        + $6::bigint,
        $3::int, 'queued', 'enqueue', $12::text, $14::text, $15::text, $13::text, $4::int, $7::int,
        $2::text, $1::text, $8::text, $10::text, $11::text, $16::bigint, $17::bigint, $18::text,
        $19::bigint, $20::bigint, $21::bigint, $9::text, g.payload
    FROM unnest($23::bigint[], $24::json[]) AS g(id, payload)
    ON CONFLICT DO NOTHING
    RETURNING id, created_at, tenant_id, actor, correlation_id, trace_id, cause),
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, to_state, actor,
        correlation_id,
        trace_id, cause)
    SELECT (SELECT tx FROM clock), id, created_at, tenant_id, 1, 0, 'job', 'job_enqueued', 'enqueue',
        'queued', actor, correlation_id, trace_id, cause FROM born),
rung AS (SELECT pg_notify('keptwork_jobs', $22::text) WHERE $22::text IS NOT NULL)
SELECT id FROM born LEFT JOIN rung ON true"""

CLAIM = """WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx),
due AS MATERIALIZED (
    SELECT d.place, d.rank, d.limited FROM clock CROSS JOIN LATERAL keptwork_due(
        $1::bigint, $2::text[], $3::int, $4::int, $5::int, $6::text[], clock.now) AS d),
moved AS (
    UPDATE jobs SET state = 'assigned', seq = jobs.seq + 1, move = 'claim', updated_at = greatest((SELECT now
        FROM clock), jobs.updated_at + 1), actor = $7, reason = NULL, cause = NULL, detail = NULL, owner =
        $1::bigint, claim_id = $8::bigint,
        lease_until = (SELECT now FROM clock) + $9::bigint
    FROM due WHERE jobs.ctid = due.place
    RETURNING jobs.id, jobs.tenant_id, jobs.state, jobs.seq, jobs.epoch, jobs.queue, jobs.kind, jobs.payload,
        jobs.priority, jobs.run_at, jobs.attempts, jobs.max_attempts, jobs.on_exhausted, jobs.owner,
        jobs.lease_until, jobs.held_by, jobs.correlation_id, jobs.trace_id, jobs.parent_id, jobs.limit_key,
        jobs.step_id, jobs.crew_id, jobs.tree_id,
        jobs.updated_at, due.rank, due.limited),
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state,
        actor,
        correlation_id, trace_id)
    SELECT (SELECT tx FROM clock), m.id, m.updated_at - e.behind, m.tenant_id, m.seq - e.behind, m.epoch, 'job',
        e.type,
        e.trigger, e.from_state, e.to_state, $7, m.correlation_id, m.trace_id
    FROM moved AS m, (VALUES (0, 'job_claimed', 'claim', 'queued', 'assigned')) AS e(behind, type, trigger,
        from_state, to_state)),
used AS (
    INSERT INTO limit_uses (tenant_id, key, used_at, job_id, epoch)
    SELECT u.tenant_id, u.key, m.updated_at, m.id, m.epoch
    FROM (SELECT * FROM moved WHERE limited OR limit_key IS NOT NULL OFFSET 0) AS m CROSS JOIN LATERAL (
        SELECT 0 AS tenant_id, 'queue:' || m.queue AS key WHERE m.limited
        UNION ALL
        SELECT CASE WHEN m.limit_key LIKE '*:%' THEN 0 ELSE m.tenant_id END, m.limit_key FROM limit_rules AS r
        WHERE m.limit_key IS NOT NULL AND r.what = 'job' AND r.name = m.kind AND r.rate IS NOT NULL) AS u)
SELECT id, tenant_id, state, seq, epoch, queue, kind, payload, priority, run_at, attempts, max_attempts,
    on_exhausted, owner, lease_until, held_by, correlation_id, trace_id, parent_id, limit_key, step_id,
    crew_id, tree_id FROM moved ORDER BY rank"""

START = """WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx),
moved AS (UPDATE jobs SET state = 'running', seq = jobs.seq + 1, move = 'start', updated_at = greatest(g.now,
    jobs.updated_at + 1), actor = g.actor, reason = g.reason, cause = g.cause, detail = g.detail, started_at =
    coalesce(jobs.started_at, greatest(g.now, jobs.updated_at + 1)), attempts = jobs.attempts + 1 FROM (SELECT a.*,
    $1::text AS actor, $2::text AS cause, $3::json AS detail, $4::text AS from_state, $5::bigint AS owner, $6::text
    AS reason, $7::int AS tenant_id, (SELECT now FROM clock) AS now FROM unnest($8::bigint[], $9::int[], $10::int[])
    AS a(id, seq, epoch) OFFSET 0) AS g WHERE jobs.id = g.id AND jobs.tenant_id = g.tenant_id AND jobs.seq = g.seq
    AND jobs.epoch = g.epoch AND jobs.state = g.from_state AND jobs.owner = g.owner AND jobs.lease_until > g.now
RETURNING jobs.id, jobs.updated_at, jobs.seq, jobs.epoch, jobs.correlation_id, jobs.trace_id),
logged AS (INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state,
    to_state, actor, correlation_id, trace_id, cause, reason, payload)
SELECT (SELECT tx FROM clock), m.id, m.updated_at, $7::int, m.seq, m.epoch, 'job', 'job_started', 'start', $4::text,
    'running', $1::text, m.correlation_id, m.trace_id, $2::text, $6::text, $3::json FROM moved AS m)
SELECT id FROM moved"""

SUCCEED = """WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx),
moved AS (UPDATE jobs SET state = 'succeeded', seq = jobs.seq + 1, move = 'succeed', updated_at = greatest(g.now,
    jobs.updated_at + 1), actor = g.actor, reason = g.reason, cause = g.cause, detail = g.detail, completed_at =
    coalesce(jobs.completed_at, greatest(g.now, jobs.updated_at + 1)), result = g.result, lease_until = NULL FROM
    (SELECT a.*, $1::text AS actor, $2::text AS cause, $3::json AS detail, $4::text AS from_state, $5::bigint AS
    owner, $6::text AS reason, $7::int AS tenant_id, (SELECT now FROM clock) AS now FROM unnest($8::bigint[],
    $9::int[], $10::int[], $11::json[]) AS a(id, seq, epoch, result) OFFSET 0) AS g WHERE jobs.id = g.id AND
    jobs.tenant_id = g.tenant_id AND jobs.seq = g.seq AND jobs.epoch = g.epoch AND jobs.state = g.from_state AND
    jobs.owner = g.owner AND jobs.lease_until > g.now
RETURNING jobs.id, jobs.updated_at, jobs.seq, jobs.epoch, jobs.correlation_id, jobs.trace_id),
logged AS (INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state,
    to_state, actor, correlation_id, trace_id, cause, reason, payload)
SELECT (SELECT tx FROM clock), m.id, m.updated_at, $7::int, m.seq, m.epoch, 'job', 'job_succeeded', 'succeed',
    $4::text, 'succeeded', $1::text, m.correlation_id, m.trace_id, $2::text, $6::text, $3::json FROM moved AS m)
SELECT id FROM moved"""

SETTINGS = {
    "keptwork.logs": "self",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
LEASE_US = 60_000_000
PAGE = 64


async def main(url: str, worker: int, batch: int, seconds: float) -> None:
    connection = await asyncpg.connect(url, server_settings=SETTINGS)
    done, began = 0, time.perf_counter()
    offsets: list[int] = []
    while time.perf_counter() - began < seconds:
        if len(offsets) < batch:
            pages = await connection.fetch(TAKE_PAGES, -(-batch // PAGE))
            offsets += [page[0] * PAGE + place for page in pages for place in range(PAGE)]
        await lifecycle(connection, worker, batch, offsets[:batch])
        del offsets[:batch]
        done += batch
    print(done / (time.perf_counter() - began))
    await connection.close()


async def lifecycle(connection: asyncpg.Connection, worker: int, batch: int, offsets: list[int]) -> None:
    actor, none = f"w:{worker}", [None] * batch
    first = (time.time_ns() // 1_000_000 - 1_704_067_200_000) << 22
    ids = [first + offset for offset in offsets]
    job = ("noop", "default", 1, 0, None, 0, 4, "dead_letter", *[None] * 13)
    await connection.fetch(ENQUEUE, *job, None, ids, ["{}"] * batch)
    claimed = await connection.fetch(CLAIM, worker, ["default"], batch, None, 0, None, actor, 1, LEASE_US)
    assert len(claimed) == batch
    ids, epochs = [row[0] for row in claimed], [row[4] for row in claimed]
    for statement, state, step, extra in ((START, "assigned", 0, []), (SUCCEED, "running", 1, [none])):
        seqs = [row[3] + step for row in claimed]
        alike = (actor, None, None, state, worker, None, 1)
        assert len(await connection.fetch(statement, *alike, ids, seqs, epochs, *extra)) == batch


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
