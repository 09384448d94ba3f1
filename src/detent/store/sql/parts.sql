-- What several statements have in common: `{NAME}` in one of them stands for the text of a part.

-- name: job_may_go
-- It ended long enough ago for its state; with an idempotency key it stays longer. What runs another job again stays
-- while that one does: without it, that one would seem never to have been run again. A share stays while its crew is at
-- work: its result is part of what that comes to.
completed_at < {ended_before} AND (key IS NULL OR completed_at < CAST(:keyed_before AS {time}))
    AND (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id)
    AND NOT EXISTS (SELECT 1 FROM jobs AS first WHERE first.id = jobs.redriven_from)
    AND (crew_id IS NULL OR NOT EXISTS (SELECT 1 FROM crews AS own WHERE own.id = jobs.crew_id AND own.completed_at IS NULL));

-- name: stale
-- An open question whose job has ended, or is gone.
a.decision IS NULL AND a.job_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = a.job_id AND j.completed_at IS NULL);

-- name: worker_may_go
-- It ended long enough ago, and no job is left in its name.
completed_at < {ended_before} AND (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id)
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.owner = workers.id AND jobs.state IN ({job.assigned}, {job.running})
        AND jobs.lease_until IS NOT NULL);

-- name: held_back
-- Back in the queue, a job that has a limit does not count against it, and waits for its turn.
CASE WHEN jobs.limit_key IS NOT NULL THEN 'limit' END;

-- name: born_started
-- PostgreSQL: a job is born, and started where its worker may claim and its queue is served without a limit.
able AS MATERIALIZED (
    SELECT 1 FROM workers WHERE id = :worker::bigint AND state IN ({worker.IDLE}, {worker.RUNNING}) FOR SHARE),
way AS MATERIALIZED (
    SELECT now, CASE WHEN EXISTS (SELECT 1 FROM able)
        AND NOT EXISTS (SELECT 1 FROM queues
            WHERE tenant_id = :tenant_id::int AND name = :queue::text AND paused_at IS NOT NULL)
        AND NOT EXISTS (SELECT 1 FROM limit_rules WHERE what = 'queue' AND name = :queue::text)
        THEN :worker::bigint END AS owner FROM clock),
born AS (
    INSERT INTO jobs (id, created_at, run_at, tenant_id, correlation_id, trace_id, priority, max_attempts, queue, kind,
        on_exhausted, hold_key, redriven_from, parent_id, step_id, tree_id, payload, owner, updated_at, started_at,
        lease_until, claim_id, seq, attempts, state, move, actor, cause)
    SELECT :id::bigint, now, now, :tenant_id::int, :correlation_id::text, :trace_id::text, :priority::int,
        :max_attempts::int, :queue::text, :kind::text, :on_exhausted::text, :hold_key::text, :redriven_from::bigint,
        :parent_id::bigint, :step_id::bigint, :tree_id::bigint, :payload::json, owner, t.*
    FROM way CROSS JOIN LATERAL (
        SELECT now + 2, now + 2, now + :lease_us::bigint, :claim_id::bigint, 3, 1, {job.running}, {job.start},
            'w:' || owner, NULL WHERE owner IS NOT NULL
        UNION ALL
        SELECT now, NULL, NULL, NULL, 1, 0, {job.queued}, {job.enqueue}, :actor::text, :cause::text
        WHERE owner IS NULL) AS t
    ON CONFLICT DO NOTHING
    RETURNING {job_columns}, created_at, actor);

-- name: started_events
-- PostgreSQL: its events, one or three.
SELECT (SELECT tx FROM clock), b.id, b.created_at + e.seq - 1, b.tenant_id, e.seq, 0, 'job', e.type, e.trigger,
        e.from_state, e.to_state, CASE e.seq WHEN 1 THEN :actor::text ELSE b.actor END, b.correlation_id, b.trace_id,
        CASE e.seq WHEN 1 THEN :cause::text END
    FROM born AS b JOIN (VALUES (1, {event job.enqueue}, {job.enqueue}, NULL, {job.queued}),
        (2, {event job.claim}, {job.claim}, {job.queued}, {job.assigned}),
        (3, {event job.start}, {job.start}, {job.assigned}, {job.running})) AS e(seq, type, trigger, from_state, to_state)
        ON e.seq <= b.seq;

-- name: held_by_budget
-- How many jobs a budget holds back.
(SELECT count(*) FROM jobs AS j
    WHERE j.held_by = 'budget:' || b.scope || ':' || b.subject AND j.held_by <> 'limit' AND j.tenant_id = b.tenant_id
        AND j.state = {job.queued})
