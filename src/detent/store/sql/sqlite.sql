-- Statements written for SQLite: batches as JSON, events by trigger.

-- name: take_keys
-- Keys for the next rows: later than any given out before, and telling the time.
UPDATE last_key SET key = max(key, :first - 1) + :count RETURNING key;

-- name: job_by_key
-- The job an idempotency key has already made.
SELECT id FROM jobs WHERE tenant_id = :tenant_id AND key = :key;

-- name: enqueue
-- A job enters the queue.
INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id, trace_id, cause,
    priority, max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from, parent_id, limit_key,
    key, payload)
VALUES (:id, {now}, {now}, max({now}, coalesce(:run_at, 0)) + :delay_us, :tenant_id, {job.queued}, {job.enqueue},
    :actor, :correlation_id, :trace_id, :cause, :priority, :max_attempts, :queue, :kind, :on_exhausted, :hold_key, :held_by,
    :redriven_from, :parent_id, :limit_key, :key, :payload);

-- name: may_claim
-- A worker that is paused or has ended gets nothing.
SELECT 1 FROM workers WHERE id = :worker AND state IN ({worker.IDLE}, {worker.RUNNING});

-- name: is_served
-- Nothing if a tenant's queue is paused.
SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM queues WHERE tenant_id = :tenant_id AND name = :queue AND paused_at IS NOT NULL);

-- name: job
-- A job as a claim returns it.
SELECT {job_columns} FROM jobs WHERE id = :id;

-- name: next_priority
-- The highest priority of what waits in a queue, below one that was looked at.
SELECT max(priority) FROM jobs
WHERE state = {job.queued} AND held_by IS NULL AND queue = :queue AND priority < :below;

-- name: due
-- The first jobs of one queue and priority that are due, in the order of the index. What is due later, however much, is
-- never read.
SELECT -priority, run_at, id FROM jobs
WHERE state = {job.queued} AND held_by IS NULL AND queue = :queue AND priority = :priority AND run_at <= {now}
    AND (:tenant_id IS NULL OR tenant_id = :tenant_id)
    AND NOT EXISTS (SELECT 1 FROM queues AS q
        WHERE q.tenant_id = jobs.tenant_id AND q.name = jobs.queue AND q.paused_at IS NOT NULL) {known}
ORDER BY run_at, id LIMIT :limit;

-- name: claim
-- Takes them; the transaction has been the only writer since they were found due.
UPDATE jobs SET {moves}, owner = :worker, claim_id = :claim_id, lease_until = {now} + :lease_us
WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING {job_columns};

-- name: claimed_before
-- The jobs of a claim whose answer was lost.
SELECT {job_columns} FROM jobs
WHERE claim_id = :claim_id AND owner = :worker AND state IN ({job.assigned}, {job.running})
ORDER BY priority DESC, run_at, id;

-- name: renew
-- The holder keeps its lease a while longer; nobody else can.
UPDATE jobs SET lease_until = {now} + :lease_us
WHERE id = :id AND epoch = :epoch AND owner = :worker AND state IN ({job.assigned}, {job.running})
    AND lease_until > {now};

-- name: silent_workers
-- Workers that should have been heard of, the longest silent first.
SELECT id FROM workers
WHERE state IN ({worker.IDLE}, {worker.RUNNING}, {worker.PAUSED}) AND seen_at <= {now} - :silent_us
ORDER BY seen_at LIMIT :limit;

-- name: overdue
-- Jobs whose lease is over, the longest first.
SELECT {job_columns} FROM jobs
WHERE state IN ({job.assigned}, {job.running}) AND lease_until <= {now} ORDER BY lease_until LIMIT :limit;

-- name: last_time
-- The time of the newest event: time never goes back behind it.
SELECT ts FROM events ORDER BY id DESC LIMIT 1;

-- name: log_end
-- The newest event: what commits later comes after it.
SELECT coalesce(max(id), 0) FROM events;

-- name: resume_queue
-- From the next claim on the queue is served again.
UPDATE queues SET paused_at = NULL WHERE tenant_id = :tenant_id AND name = :name;

-- name: held
-- Which of these jobs a worker still holds, under which epoch, and which of them were asked to end.
SELECT id, epoch, cancel_requested_at IS NOT NULL FROM jobs
WHERE id IN (SELECT value FROM json_each(:ids)) AND owner = :worker AND state = {job.running};

-- name: count
-- Adds to the counters.
INSERT INTO counters (tenant_id, name, labels, value)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:counted) WHERE true
ON CONFLICT (tenant_id, name, labels) DO UPDATE SET value = counters.value + excluded.value;

-- name: keep_blob
-- Content is kept once; there is only one writer, so nobody can drop what is found here.
INSERT INTO blobs (tenant_id, size, created_at, hash, content) VALUES (:tenant_id, :size, {now}, :hash, :content)
ON CONFLICT DO NOTHING;

-- name: refer_to_blob
-- A job whose result is a blob; the move itself was written just before, in the same transaction.
UPDATE jobs SET result_hash = :hash WHERE tenant_id = :tenant_id AND id = :id;

-- name: drop_blobs
-- Those of them that nothing refers to now.
DELETE FROM blobs WHERE (tenant_id, hash) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:found)) AND {unused}
RETURNING hash;

-- name: note_pruned_job
-- Accounts for the jobs the next statement deletes; the transaction is the only writer.
INSERT INTO retention (tenant_id, entity, state, pruned, pruned_before)
SELECT tenant_id, 'job', state, count(*), max(completed_at) + 1 FROM jobs
WHERE id IN (SELECT value FROM json_each(:ids)) AND {job_may_go} GROUP BY tenant_id, state
ON CONFLICT (tenant_id, entity, state) DO UPDATE SET pruned = retention.pruned + excluded.pruned,
    pruned_before = max(retention.pruned_before, excluded.pruned_before);

-- name: prune_job
-- Deletes those of these jobs that still may go.
DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND {job_may_go} RETURNING id;

-- name: note_pruned_worker
-- Accounts for the workers the next statement deletes; the transaction is the only writer.
INSERT INTO retention (tenant_id, entity, state, pruned, pruned_before)
SELECT tenant_id, 'worker', state, count(*), max(completed_at) + 1 FROM workers
WHERE id IN (SELECT value FROM json_each(:ids)) AND {worker_may_go} GROUP BY tenant_id, state
ON CONFLICT (tenant_id, entity, state) DO UPDATE SET pruned = retention.pruned + excluded.pruned,
    pruned_before = max(retention.pruned_before, excluded.pruned_before);

-- name: prune_worker
-- Deletes those of these workers that still may go.
DELETE FROM workers WHERE id IN (SELECT value FROM json_each(:ids)) AND {worker_may_go} RETURNING id;

-- name: checkpoint
-- The result of a step whose job is still held; nothing if it is not, or if one of that name is there already.
INSERT INTO checkpoints (job_id, created_at, tenant_id, epoch, version, name, code, hash, result)
SELECT id, {now}, tenant_id, epoch, :version, :name, :code, :hash, :result FROM jobs
WHERE id = :job_id AND epoch = :epoch AND owner = :owner AND state = {job.running} AND lease_until > {now}
ON CONFLICT (job_id, name) DO NOTHING RETURNING job_id;

-- name: replace_telemetry
-- The newest of its kind that was seen of an entity is seen anew.
UPDATE telemetry SET ts = {now}, expires_at = {now} + :ttl_us, payload = :payload
WHERE entity_id = :entity_id AND entity = :entity AND kind = :kind AND ts = (SELECT max(t.ts) FROM telemetry AS t
    WHERE t.entity_id = :entity_id AND t.entity = :entity AND t.kind = :kind)
RETURNING ts;

-- name: any_held
-- Whether any job in the queue is held by one of these names.
SELECT 1 FROM jobs WHERE held_by IN (SELECT value FROM json_each(:holds)) AND state = {job.queued} LIMIT 1;

-- name: lift_holds
-- What was held by one of these names can be claimed again.
UPDATE jobs SET held_by = NULL WHERE held_by IN (SELECT value FROM json_each(:holds)) AND state = {job.queued} RETURNING id;

-- name: unfinished_children
-- The children of these jobs that have not ended.
SELECT id FROM jobs WHERE tenant_id = :tenant_id AND parent_id IN (SELECT value FROM json_each(:jobs))
    AND completed_at IS NULL ORDER BY id;

-- name: wake_parents
-- Jobs whose children were waited for: all of them, or any of more than there are now.
UPDATE jobs SET run_at = min(jobs.run_at, {now}), waits_for = NULL
FROM (SELECT value ->> 0 AS id, value ->> 1 AS seen FROM json_each(:given)) AS g
WHERE jobs.id = g.id AND jobs.state = {job.queued} AND CASE jobs.waits_for
    WHEN {all_children} THEN NOT EXISTS (SELECT 1 FROM jobs AS c WHERE c.parent_id = jobs.id AND c.completed_at IS NULL)
    WHEN {any_child} THEN g.seen > (SELECT count(*) FROM jobs AS c WHERE c.parent_id = jobs.id AND c.completed_at IS NULL)
    END
RETURNING jobs.id;

-- name: wake_listeners
-- Jobs that began to wait for a signal that had been sent.
UPDATE jobs SET run_at = min(jobs.run_at, {now}), waits_for = NULL
FROM (SELECT value ->> 0 AS id, value ->> 1 AS name, value ->> 2 AS seen FROM json_each(:given)) AS g
WHERE jobs.id = g.id AND jobs.state = {job.queued} AND jobs.waits_for = {an_event} || g.name AND EXISTS (
    SELECT 1 FROM signals AS s WHERE s.tenant_id = jobs.tenant_id AND s.name = g.name AND s.job_id IN (0, jobs.id)
        AND s.id > g.seen)
RETURNING jobs.id;

-- name: wake_askers
-- Jobs that began to wait for a decision that had been made.
UPDATE jobs SET run_at = min(jobs.run_at, {now}), waits_for = NULL
FROM (SELECT value ->> 0 AS id, value ->> 1 AS seen FROM json_each(:given)) AS g
WHERE jobs.id = g.id AND jobs.state = {job.queued} AND jobs.waits_for LIKE {an_approval} || '%'
    AND EXISTS (SELECT 1 FROM approvals AS a WHERE a.id = g.seen AND a.decision IS NOT NULL)
RETURNING jobs.id;

-- name: wake_for_signal
-- The jobs that wait for a signal of this name.
UPDATE jobs SET run_at = min(run_at, {now}), waits_for = NULL
WHERE tenant_id = :tenant_id AND waits_for = :waits_for AND state = {job.queued} AND :job_id IN (0, id) RETURNING id;

-- name: stale_approvals
-- Whether there is any open question whose job has ended.
SELECT 1 FROM approvals AS a WHERE {stale} LIMIT 1;
