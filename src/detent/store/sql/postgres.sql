-- Statements written for PostgreSQL: a batch at a time, events in the statement that moves the rows.

-- name: take_pages
-- Pages of 64 keys each.
SELECT nextval('detent_pages') FROM generate_series(1, :count);

-- name: enqueue
-- Jobs enter the queue; one whose key is taken does not, and a repeated call changes nothing. Rings for whoever waits for
-- work, if it is time to.
WITH clock AS MATERIALIZED (SELECT detent_now() AS now, detent_tx() AS tx),
born AS (
    INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id, trace_id, cause,
        priority, max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from, key, payload)
    SELECT g.id, clock.now, clock.now, greatest(clock.now, g.run_at) + g.delay_us, g.tenant_id, {job.queued},
        {job.enqueue}, g.actor, g.correlation_id, g.trace_id, g.cause, g.priority, g.max_attempts, g.queue, g.kind,
        g.on_exhausted, g.hold_key, g.held_by, g.redriven_from, g.key, g.payload
    FROM clock, unnest(:id::bigint[], :run_at::bigint[], :delay_us::bigint[], :tenant_id::int[], :actor::text[],
        :correlation_id::text[], :trace_id::text[], :cause::text[], :priority::int[], :max_attempts::int[],
        :queue::text[], :kind::text[], :on_exhausted::text[], :hold_key::text[], :held_by::text[],
        :redriven_from::bigint[], :key::text[], :payload::json[]) AS g(id, run_at, delay_us, tenant_id, actor, correlation_id, trace_id, cause, priority,
        max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from, key, payload)
    ON CONFLICT DO NOTHING
    RETURNING id, created_at, tenant_id, actor, correlation_id, trace_id, cause),
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, to_state, actor, correlation_id,
        trace_id, cause)
    SELECT clock.tx, born.id, born.created_at, born.tenant_id, 1, 0, 'job', {event job.enqueue}, {job.enqueue},
        {job.queued}, born.actor, born.correlation_id, born.trace_id, born.cause FROM born, clock),
rung AS (SELECT pg_notify('detent_jobs', '') WHERE :ring)
SELECT id FROM born LEFT JOIN rung ON true;

-- name: jobs_by_key
-- The jobs that idempotency keys have already made.
SELECT j.tenant_id, j.key, j.id FROM jobs AS j
JOIN unnest(:tenant_id::int[], :key::text[]) AS g(tenant_id, key) ON j.tenant_id = g.tenant_id AND j.key = g.key;

-- name: claim
-- Takes the first jobs that are due, for a worker that may claim, out of queues that are not paused. Each queue
-- is read in the order of its index. `due` is materialised: with SKIP LOCKED the planner might otherwise run it twice and
-- take too many.
WITH clock AS MATERIALIZED (SELECT detent_now() AS now, detent_tx() AS tx),
claimer AS MATERIALIZED (
    SELECT id FROM workers WHERE id = :worker::bigint AND state IN ({worker.IDLE}, {worker.RUNNING}) FOR SHARE),
due AS MATERIALIZED (
    SELECT d.id FROM unnest(:queues::text[]) AS wanted(queue), claimer CROSS JOIN LATERAL (
        SELECT j.id, j.priority, j.run_at FROM jobs AS j
        WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = wanted.queue
            AND j.run_at <= (SELECT now FROM clock) AND (:tenant_id::int IS NULL OR j.tenant_id = :tenant_id::int)
            AND NOT EXISTS (SELECT 1 FROM queues AS q
                WHERE q.tenant_id = j.tenant_id AND q.name = j.queue AND q.paused_at IS NOT NULL)
        ORDER BY j.priority DESC, j.run_at, j.id LIMIT :limit::int
        FOR NO KEY UPDATE OF j SKIP LOCKED) AS d
    ORDER BY d.priority DESC, d.run_at, d.id LIMIT :limit::int),
moved AS (
    UPDATE jobs SET {moves}, owner = :worker::bigint, claim_id = :claim_id::bigint,
        lease_until = clock.now + :lease_us::bigint
    FROM due, clock WHERE jobs.id = due.id
    RETURNING jobs.*),
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor,
        correlation_id, trace_id)
    SELECT clock.tx, m.id, m.updated_at - e.behind, m.tenant_id, m.seq - e.behind, m.epoch, 'job', e.type, e.trigger,
        e.from_state, e.to_state, m.actor, m.correlation_id, m.trace_id
    FROM moved AS m, clock, (VALUES {claim_events}) AS e(behind, type, trigger, from_state, to_state))
SELECT {job_columns} FROM moved ORDER BY priority DESC, run_at, id;

-- name: claimed_before
-- The jobs of a claim whose answer was lost.
SELECT {job_columns} FROM jobs
WHERE claim_id = :claim_id::bigint AND owner = :worker::bigint AND state IN ({job.assigned}, {job.running})
ORDER BY priority DESC, run_at, id;

-- name: renew
-- The holders keep their leases a while longer; nobody else can.
UPDATE jobs SET lease_until = clock.now + :lease_us::bigint
FROM unnest(:id::bigint[], :epoch::int[]) AS g(id, epoch), (SELECT detent_now() AS now) AS clock
WHERE jobs.id = g.id AND jobs.epoch = g.epoch AND jobs.owner = :worker::bigint
    AND jobs.state IN ({job.assigned}, {job.running}) AND jobs.lease_until > clock.now
RETURNING jobs.id;

-- name: overdue
-- Jobs whose lease is over, the longest first.
SELECT {job_columns} FROM jobs
WHERE state IN ({job.assigned}, {job.running}) AND lease_until <= detent_now() ORDER BY lease_until LIMIT :limit::int;

-- name: applied_already
-- Which of these moves the log has under the same actor: a repeated call whose first answer was lost.
SELECT e.entity_id FROM events AS e
JOIN unnest(:id::bigint[], :seq::int[], :trigger::text[], :actor::text[], :entity::text[])
    AS g(id, seq, trigger, actor, entity)
    ON e.entity_id = g.id AND e.seq = g.seq + 1 AND e.entity = g.entity
WHERE e.trigger = g.trigger AND e.actor IS NOT DISTINCT FROM g.actor;

-- name: log_end
-- The end of the last transaction before the oldest that is still open: what commits later comes after it.
SELECT (detent_tx_horizon() - 1) || '-' || 9223372036854775807;

-- name: held
-- Which of these jobs a worker still holds, under which epoch, and which of them were asked to end.
SELECT id, epoch, cancel_requested_at IS NOT NULL FROM jobs
WHERE id = ANY(:ids::bigint[]) AND owner = :worker AND state = {job.running};

-- name: prune_job
-- Deletes those of these jobs that still may go, and accounts for them.
WITH gone AS (
    DELETE FROM jobs WHERE id = ANY(:ids::bigint[]) AND {job_may_go} RETURNING id, tenant_id, state, completed_at),
noted AS (
    INSERT INTO retention (tenant_id, entity, state, pruned, pruned_before)
    SELECT tenant_id, 'job', state, count(*), max(completed_at) + 1 FROM gone GROUP BY tenant_id, state
    ON CONFLICT (tenant_id, entity, state) DO UPDATE SET pruned = retention.pruned + excluded.pruned,
        pruned_before = greatest(retention.pruned_before, excluded.pruned_before))
SELECT id FROM gone;

-- name: prune_worker
-- Deletes those of these workers that still may go, and accounts for them.
WITH gone AS (
    DELETE FROM workers WHERE id = ANY(:ids::bigint[]) AND {worker_may_go} RETURNING id, tenant_id, state, completed_at),
noted AS (
    INSERT INTO retention (tenant_id, entity, state, pruned, pruned_before)
    SELECT tenant_id, 'worker', state, count(*), max(completed_at) + 1 FROM gone GROUP BY tenant_id, state
    ON CONFLICT (tenant_id, entity, state) DO UPDATE SET pruned = retention.pruned + excluded.pruned,
        pruned_before = greatest(retention.pruned_before, excluded.pruned_before))
SELECT id FROM gone;
