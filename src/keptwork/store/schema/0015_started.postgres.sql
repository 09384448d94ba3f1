-- Only PostgreSQL. A job enters the queue and, if its queue is served without a limit and the worker may claim, is claimed and started in
-- the same transaction: for a worker that asked and found nothing due, so that nobody is overtaken. Returns the row as it
-- is then. A call made again finds the row that is there, and changes nothing.
CREATE FUNCTION keptwork_enqueue_started(
    id bigint, tenant_id int, kind text, payload json, queue text, priority int, max_attempts int, on_exhausted text,
    actor text, cause text, correlation_id text, trace_id text, parent_id bigint, worker bigint, claim_id bigint,
    lease_us bigint
) RETURNS SETOF jobs LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    new_id bigint := keptwork_enqueue_started.id;
    by_worker text := 'w:' || keptwork_enqueue_started.worker;
    at bigint := keptwork_now();
BEGIN
    INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id, trace_id, cause,
        priority, max_attempts, queue, kind, on_exhausted, parent_id, payload)
    VALUES (new_id, at, at, at, keptwork_enqueue_started.tenant_id, {job.queued}, {job.enqueue},
        keptwork_enqueue_started.actor, keptwork_enqueue_started.correlation_id, keptwork_enqueue_started.trace_id,
        keptwork_enqueue_started.cause, keptwork_enqueue_started.priority, keptwork_enqueue_started.max_attempts,
        keptwork_enqueue_started.queue, keptwork_enqueue_started.kind, keptwork_enqueue_started.on_exhausted,
        keptwork_enqueue_started.parent_id, keptwork_enqueue_started.payload)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM jobs WHERE jobs.id = new_id;
        RETURN;
    END IF;
    INSERT INTO events (entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, to_state, actor, correlation_id,
        trace_id, cause)
    VALUES (new_id, at, keptwork_enqueue_started.tenant_id, 1, 0, 'job', {event job.enqueue}, {job.enqueue}, {job.queued},
        keptwork_enqueue_started.actor, keptwork_enqueue_started.correlation_id, keptwork_enqueue_started.trace_id,
        keptwork_enqueue_started.cause);
    PERFORM 1 FROM workers WHERE workers.id = keptwork_enqueue_started.worker
        AND state IN ({worker.IDLE}, {worker.RUNNING}) FOR SHARE;
    IF NOT FOUND OR EXISTS (SELECT 1 FROM queues WHERE queues.tenant_id = keptwork_enqueue_started.tenant_id
            AND queues.name = keptwork_enqueue_started.queue AND paused_at IS NOT NULL)
        OR EXISTS (SELECT 1 FROM limit_rules WHERE what = 'queue' AND name = keptwork_enqueue_started.queue) THEN
        RETURN QUERY SELECT * FROM jobs WHERE jobs.id = new_id;
        RETURN;
    END IF;
    RETURN QUERY UPDATE jobs SET state = {job.running}, seq = 3, move = {job.start}, updated_at = at + 2,
        started_at = at + 2, actor = by_worker, cause = NULL, attempts = 1, owner = keptwork_enqueue_started.worker,
        claim_id = keptwork_enqueue_started.claim_id, lease_until = at + keptwork_enqueue_started.lease_us
    WHERE jobs.id = new_id RETURNING *;
    INSERT INTO events (entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor,
        correlation_id, trace_id)
    VALUES (new_id, at + 1, keptwork_enqueue_started.tenant_id, 2, 0, 'job', {event job.claim}, {job.claim}, {job.queued},
            {job.assigned}, by_worker, keptwork_enqueue_started.correlation_id, keptwork_enqueue_started.trace_id),
        (new_id, at + 2, keptwork_enqueue_started.tenant_id, 3, 0, 'job', {event job.start}, {job.start}, {job.assigned},
            {job.running}, by_worker, keptwork_enqueue_started.correlation_id, keptwork_enqueue_started.trace_id);
END $$;
