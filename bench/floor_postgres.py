"""The floor under PostgreSQL: the SQL of a job's lifecycle, issued straight through the driver.

Uses nothing of the product: the statements stand here in full (a test holds them to the product's own), the database
was prepared beforehand. Usage: python -m bench.floor_postgres URL WORKER BATCH SECONDS. Prints jobs per second.
"""

import asyncio
import sys
import time

import asyncpg

TAKE_PAGES = "SELECT nextval('detent_pages') FROM generate_series(1, $1)"

ENQUEUE = """WITH clock AS MATERIALIZED (SELECT detent_now() AS now, detent_tx() AS tx),
born AS (
    INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id, trace_id,
        cause, priority, max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from, key,
        payload)
    SELECT g.id, clock.now, clock.now, greatest(clock.now, g.run_at) + g.delay_us, g.tenant_id, 'queued',
        'enqueue', g.actor, g.correlation_id, g.trace_id, g.cause, g.priority, g.max_attempts, g.queue, g.kind,
        g.on_exhausted, g.hold_key, g.held_by, g.redriven_from, g.key, g.payload
    FROM clock, unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::int[], $5::text[],
        $6::text[], $7::text[], $8::text[], $9::int[], $10::int[],
        $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
        $16::bigint[], $17::text[], $18::json[]) AS g(id, run_at, delay_us, tenant_id, actor, correlation_id,
        trace_id, cause, priority,
        max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from, key, payload)
    ON CONFLICT DO NOTHING
    RETURNING id, created_at, tenant_id, actor, correlation_id, trace_id, cause),
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, to_state, actor,
        correlation_id, trace_id, cause)
    SELECT clock.tx, born.id, born.created_at, born.tenant_id, 1, 0, 'job', 'job_enqueued', 'enqueue',
        'queued', born.actor, born.correlation_id, born.trace_id, born.cause FROM born, clock),
rung AS (SELECT pg_notify('detent_jobs', '') WHERE $19)
SELECT id FROM born LEFT JOIN rung ON true"""

CLAIM = """WITH clock AS MATERIALIZED (SELECT detent_now() AS now, detent_tx() AS tx),
claimer AS MATERIALIZED (
    SELECT id FROM workers WHERE id = $1::bigint AND state IN ('IDLE', 'RUNNING') FOR SHARE),
due AS MATERIALIZED (
    SELECT d.id FROM unnest($2::text[]) AS wanted(queue), claimer CROSS JOIN LATERAL (
        SELECT j.id, j.priority, j.run_at FROM jobs AS j
        WHERE j.state = 'queued' AND j.held_by IS NULL AND j.queue = wanted.queue
            AND j.run_at <= (SELECT now FROM clock) AND ($3::int IS NULL OR j.tenant_id = $3::int)
            AND NOT EXISTS (SELECT 1 FROM queues AS q
                WHERE q.tenant_id = j.tenant_id AND q.name = j.queue AND q.paused_at IS NOT NULL)
        ORDER BY j.priority DESC, j.run_at, j.id LIMIT $4::int
        FOR NO KEY UPDATE OF j SKIP LOCKED) AS d
    ORDER BY d.priority DESC, d.run_at, d.id LIMIT $4::int),
moved AS (
    UPDATE jobs SET state = 'assigned', seq = jobs.seq + 1, move = 'claim',
        updated_at = greatest(clock.now, jobs.updated_at + 1), actor = $5, reason = NULL, cause = NULL,
        detail = NULL, owner = $1::bigint, claim_id = $6::bigint, lease_until = clock.now + $7::bigint
    FROM due, clock WHERE jobs.id = due.id
    RETURNING jobs.*),
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor,
        correlation_id, trace_id)
    SELECT clock.tx, m.id, m.updated_at - e.behind, m.tenant_id, m.seq - e.behind, m.epoch, 'job', e.type, e.trigger,
        e.from_state, e.to_state, m.actor, m.correlation_id, m.trace_id
    FROM moved AS m, clock, (VALUES (0, 'job_claimed', 'claim', 'queued', 'assigned'))
        AS e(behind, type, trigger, from_state, to_state))
SELECT id, tenant_id, state, seq, epoch, queue, kind, payload, priority, run_at, attempts, max_attempts, on_exhausted,
    owner, lease_until, held_by, correlation_id, trace_id FROM moved ORDER BY priority DESC, run_at, id"""

START = """WITH clock AS MATERIALIZED (SELECT detent_now() AS now, detent_tx() AS tx),
given AS (SELECT * FROM unnest($1::text[], $2::text[], $3::json[], $4::int[], $5::text[], $6::bigint[], $7::bigint[],
    $8::text[], $9::int[], $10::int[])
    AS g(actor, cause, detail, epoch, from_state, id, owner, reason, seq, tenant_id)),
moved AS (UPDATE jobs SET state = 'running', seq = jobs.seq + 1, move = 'start',
    updated_at = greatest(clock.now, jobs.updated_at + 1), actor = g.actor, reason = g.reason, cause = g.cause,
    detail = g.detail, started_at = coalesce(jobs.started_at, greatest(clock.now, jobs.updated_at + 1)),
    attempts = jobs.attempts + 1
    FROM given AS g, clock WHERE jobs.id = g.id AND jobs.tenant_id = g.tenant_id AND jobs.seq = g.seq
    AND jobs.epoch = g.epoch AND jobs.state = g.from_state AND jobs.owner = g.owner AND jobs.lease_until > clock.now
    RETURNING jobs.id, jobs.updated_at, jobs.tenant_id, jobs.seq, jobs.epoch, g.from_state, jobs.actor,
    jobs.correlation_id, jobs.trace_id, jobs.cause, jobs.reason, jobs.detail),
logged AS (INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state,
    actor, correlation_id, trace_id, cause, reason, payload)
    SELECT clock.tx, m.id, m.updated_at, m.tenant_id, m.seq, m.epoch, 'job', 'job_started', 'start', m.from_state,
    'running', m.actor, m.correlation_id, m.trace_id, m.cause, m.reason, m.detail FROM moved AS m, clock)
SELECT id FROM moved"""

SUCCEED = """WITH clock AS MATERIALIZED (SELECT detent_now() AS now, detent_tx() AS tx),
given AS (SELECT * FROM unnest($1::text[], $2::text[], $3::json[], $4::int[], $5::text[], $6::bigint[], $7::bigint[],
    $8::text[], $9::int[], $10::int[], $11::json[])
    AS g(actor, cause, detail, epoch, from_state, id, owner, reason, seq, tenant_id, result)),
moved AS (UPDATE jobs SET state = 'succeeded', seq = jobs.seq + 1, move = 'succeed',
    updated_at = greatest(clock.now, jobs.updated_at + 1), actor = g.actor, reason = g.reason, cause = g.cause,
    detail = g.detail, completed_at = coalesce(jobs.completed_at, greatest(clock.now, jobs.updated_at + 1)),
    result = g.result, lease_until = NULL
    FROM given AS g, clock WHERE jobs.id = g.id AND jobs.tenant_id = g.tenant_id AND jobs.seq = g.seq
    AND jobs.epoch = g.epoch AND jobs.state = g.from_state AND jobs.owner = g.owner AND jobs.lease_until > clock.now
    RETURNING jobs.id, jobs.updated_at, jobs.tenant_id, jobs.seq, jobs.epoch, g.from_state, jobs.actor,
    jobs.correlation_id, jobs.trace_id, jobs.cause, jobs.reason, jobs.detail),
logged AS (INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state,
    actor, correlation_id, trace_id, cause, reason, payload)
    SELECT clock.tx, m.id, m.updated_at, m.tenant_id, m.seq, m.epoch, 'job', 'job_succeeded', 'succeed', m.from_state,
    'succeeded', m.actor, m.correlation_id, m.trace_id, m.cause, m.reason, m.detail FROM moved AS m, clock)
SELECT id FROM moved"""

SETTINGS = {
    "detent.logs": "self",
    "jit": "off",
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
    await connection.fetch(
        ENQUEUE,
        [first + offset for offset in offsets],
        none,
        [0] * batch,
        [1] * batch,
        none,
        none,
        none,
        none,
        [0] * batch,
        [4] * batch,
        ["default"] * batch,
        ["noop"] * batch,
        ["dead_letter"] * batch,
        none,
        none,
        none,
        none,
        ["{}"] * batch,
        False,
    )
    claimed = await connection.fetch(CLAIM, worker, ["default"], None, batch, actor, 1, LEASE_US)
    assert len(claimed) == batch
    ids, owners, tenants = [row[0] for row in claimed], [worker] * batch, [1] * batch
    epochs, actors = [row[4] for row in claimed], [actor] * batch
    for statement, state, step, extra in ((START, "assigned", 0, []), (SUCCEED, "running", 1, [none])):
        seqs = [row[3] + step for row in claimed]
        values = (actors, none, none, epochs, [state] * batch, ids, owners, none, seqs, tenants, *extra)
        assert len(await connection.fetch(statement, *values)) == batch


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
