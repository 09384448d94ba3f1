-- Parts that several statements share. `{NAME}` in a statement stands for the text of a part.

-- name: old_enough
-- The entity ended long enough ago for its state and belongs to the given tenant, if any.
completed_at < {ended_before} AND (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id);

-- name: key_may_go
-- The entity has no idempotency key, or ended so long ago that the key is no longer needed.
(key IS NULL OR completed_at < CAST(:keyed_before AS {time}));

-- name: job_may_go
-- A job with an idempotency key stays longer. A rerun stays while its original job does. Without the rerun, the
-- original would seem never to have been rerun. A share stays while its crew is unfinished, since its result is part of
-- the crew's.
{old_enough} AND {key_may_go} AND NOT EXISTS (SELECT 1 FROM jobs AS first WHERE first.id = jobs.redriven_from {by_itself})
    AND (crew_id IS NULL OR NOT EXISTS (SELECT 1 FROM crews AS own
        WHERE own.id = jobs.crew_id AND own.completed_at IS NULL {by_itself}));

-- name: must_stay
-- A job, the only table of its query, is not old enough.
(completed_at < {ended_before} AND {key_may_go}) IS NOT TRUE;

-- name: agent_may_go
-- An agent job stays while its job does, since the conversation belongs to the job.
{old_enough} AND NOT EXISTS (SELECT 1 FROM jobs AS own WHERE own.id = agent_jobs.job_id AND {must_stay} {by_itself});

-- name: crew_may_go
-- An outermost crew can be deleted with all crews inside. It stays while one of its shares must, and while the job that
-- created it can still ask for its result. A crew that belongs to a flow step is deleted with the flow.
{old_enough} AND {key_may_go}
    AND NOT EXISTS (SELECT 1 FROM crews AS around WHERE around.id = crews.parent_id {by_itself})
    AND NOT EXISTS (SELECT 1 FROM steps AS around WHERE around.id = crews.step_id {by_itself})
    AND NOT EXISTS (SELECT 1 FROM jobs AS asker WHERE asker.id = crews.asker_id AND asker.completed_at IS NULL
        {by_itself})
    AND NOT EXISTS (SELECT 1 FROM jobs AS own WHERE own.crew_id = crews.id AND {must_stay} {by_itself})
    AND NOT EXISTS (SELECT 1 FROM budgets AS paid
        WHERE paid.tenant_id = crews.tenant_id AND paid.owner = crews.id AND paid.reserved_micros > 0 {by_itself});

-- name: flow_may_go
-- An outermost flow can be deleted with everything inside. The key of a flow that a schedule started protects the flow
-- for a day, since only the job of that tick uses the key. A flow stays while a job works for it, a webhook delivery is
-- pending, or money is reserved for it.
{old_enough} AND ({key_may_go} OR (completed_at < {now} - 86400000000 AND EXISTS (SELECT 1 FROM events AS birth
        WHERE birth.entity_id = {flows}.id AND birth.seq = 1 AND birth.actor = {scheduler} {by_itself})))
    AND NOT EXISTS (SELECT 1 FROM steps AS around WHERE around.id = {flows}.step_id {by_itself})
    AND NOT EXISTS (SELECT 1 FROM jobs AS busy WHERE busy.tree_id = {flows}.id AND busy.completed_at IS NULL
        {by_itself})
    AND NOT EXISTS (SELECT 1 FROM outbox AS told WHERE told.entity_id = {flows}.id AND told.state = {pending}
        {by_itself})
    AND NOT EXISTS (SELECT 1 FROM budgets AS paid
        WHERE paid.tenant_id = {flows}.tenant_id AND paid.owner = {flows}.id AND paid.reserved_micros > 0 {by_itself});

-- name: stale
-- An open approval whose job has ended or was deleted.
a.decision IS NULL AND a.job_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = a.job_id AND j.completed_at IS NULL);

-- name: worker_may_go
-- No claimed job belongs to the worker.
{old_enough} AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.owner = workers.id AND jobs.state IN ({job.assigned}, {job.running})
        AND jobs.lease_until IS NOT NULL);

-- name: held_back
-- A job that returns to the queue does not count against its limit and waits for its turn.
CASE WHEN jobs.limit_key IS NOT NULL THEN 'limit' END;

-- name: born_started
-- PostgreSQL: insert a job, and start it if its worker may claim and its queue is served without a limit.
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
-- PostgreSQL: the job's events, one or three.
SELECT (SELECT tx FROM clock), b.id, b.created_at + e.seq - 1, b.tenant_id, e.seq, 0, 'job', e.type, e.trigger,
        e.from_state, e.to_state, CASE e.seq WHEN 1 THEN :actor::text ELSE b.actor END, b.correlation_id, b.trace_id,
        CASE e.seq WHEN 1 THEN :cause::text END
    FROM born AS b JOIN (VALUES (1, {event job.enqueue}, {job.enqueue}, NULL, {job.queued}),
        (2, {event job.claim}, {job.claim}, {job.queued}, {job.assigned}),
        (3, {event job.start}, {job.start}, {job.assigned}, {job.running})) AS e(seq, type, trigger, from_state, to_state)
        ON e.seq <= b.seq;

-- name: held_by_budget
-- The number of jobs that a budget holds.
(SELECT count(*) FROM jobs AS j
    WHERE j.held_by = 'budget:' || b.scope || ':' || b.subject AND j.held_by <> 'limit' AND j.tenant_id = b.tenant_id
        AND j.state = {job.queued})

-- name: call_sums
-- Sums of calls: number, number of lost calls, cost, cost of lost calls, reserved amount, and tokens.
CAST(count(*) AS {key}), CAST(sum(CASE WHEN state = {charge_lost} THEN 1 ELSE 0 END) AS {key}),
    CAST(sum(cost_micros) AS {key}), CAST(sum(CASE WHEN state = {charge_lost} THEN cost_micros ELSE 0 END) AS {key}),
    CAST(sum(CASE WHEN state = {charge_open} THEN ceiling_micros ELSE 0 END) AS {key}),
    CAST(sum(input_tokens) AS {key}), CAST(sum(output_tokens) AS {key}), CAST(sum(cache_read_tokens) AS {key}),
    CAST(sum(cache_write_tokens) AS {key})
