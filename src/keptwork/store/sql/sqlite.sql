-- Statements for SQLite: batches as JSON, events by trigger.

-- name: take_keys
-- Reserve IDs for new rows. They are higher than all earlier IDs and contain the time.
UPDATE last_key SET key = max(key, :first - 1) + :count RETURNING key;

-- name: job_by_key
-- Get the job that was created with an idempotency key.
SELECT id FROM jobs WHERE tenant_id = :tenant_id AND key = :key;

-- name: enqueue
-- Enqueue a job.
INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id, trace_id, cause,
    priority, max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from, parent_id, limit_key, step_id,
    crew_id, tree_id, key, payload)
VALUES (:id, {now}, {now}, max({now}, coalesce(:run_at, 0)) + :delay_us, :tenant_id, {job.queued}, {job.enqueue},
    :actor, :correlation_id, :trace_id, :cause, :priority, :max_attempts, :queue, :kind, :on_exhausted, :hold_key, :held_by,
    :redriven_from, :parent_id, :limit_key, :step_id, :crew_id, :tree_id, :key, :payload);

-- name: may_claim
-- Check that a worker may claim: it is not paused and has not ended.
SELECT 1 FROM workers WHERE id = :worker AND state IN ({worker.IDLE}, {worker.RUNNING});

-- name: is_served
-- Check that a tenant's queue is not paused and has no limit. With a limit, only claims take jobs from it.
SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM queues WHERE tenant_id = :tenant_id AND name = :queue AND paused_at IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM limit_rules WHERE what = 'queue' AND name = :queue);

-- name: job
-- Get a job as a claim returns it.
SELECT {job_columns} FROM jobs WHERE id = :id;

-- name: waiting_for_limits
-- Count a tenant's jobs that limits hold, key by key, for each key at most `most`. Without INDEXED BY, SQLite reads all
-- held jobs again for each key.
WITH RECURSIVE keys AS (
    SELECT (SELECT limit_key FROM jobs INDEXED BY jobs_held_back WHERE held_by = 'limit' AND state = {job.queued}
        ORDER BY limit_key LIMIT 1) AS limit_key, 1 AS number
    UNION ALL
    SELECT (SELECT j.limit_key FROM jobs AS j INDEXED BY jobs_held_back
        WHERE j.held_by = 'limit' AND j.state = {job.queued} AND j.limit_key > k.limit_key
        ORDER BY j.limit_key LIMIT 1), k.number + 1
    FROM keys AS k WHERE k.limit_key IS NOT NULL AND k.number < :most_keys)
SELECT sum((SELECT count(*) FROM (SELECT 1 FROM jobs AS j INDEXED BY jobs_held_back
    WHERE j.limit_key = keys.limit_key AND j.tenant_id = :tenant_id AND j.held_by = 'limit' AND j.state = {job.queued}
    LIMIT :most) AS waiting)) FROM keys;

-- name: queue_now
-- Get the first and the last tenant with jobs in a queue, whether any tenant has paused it, and whether it has a limit.
SELECT (SELECT min(tenant_id) FROM jobs WHERE state = {job.queued} AND held_by IS NULL AND queue = :queue),
    (SELECT max(tenant_id) FROM jobs WHERE state = {job.queued} AND held_by IS NULL AND queue = :queue),
    EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL),
    EXISTS (SELECT 1 FROM limit_rules WHERE what = 'queue' AND name = :queue);

-- name: paused_by
-- List the tenants that have paused a queue.
SELECT tenant_id FROM queues WHERE name = :queue AND paused_at IS NOT NULL;

-- name: next_tenant
-- Get the next tenant that has jobs in a queue.
SELECT min(tenant_id) FROM jobs
WHERE state = {job.queued} AND held_by IS NULL AND queue = :queue AND tenant_id > :after;

-- name: next_priority
-- Get the highest priority of a tenant's jobs in a queue, below a given one.
SELECT max(priority) FROM jobs
WHERE state = {job.queued} AND held_by IS NULL AND queue = :queue AND tenant_id = :tenant_id AND priority < :below;

-- name: due
-- List the first due jobs of one queue, tenant, and priority in the order of the index. Jobs that are due later are
-- never read, however many there are.
SELECT -priority, run_at, id FROM jobs
WHERE state = {job.queued} AND held_by IS NULL AND queue = :queue AND tenant_id = :tenant_id AND priority = :priority
    AND run_at <= {now} {known}
ORDER BY run_at, id LIMIT :limit;

-- name: queue_uses_over
-- Delete starts in a limited queue that no longer count.
DELETE FROM limit_uses WHERE tenant_id = 0 AND key = :key
    AND used_at <= {now} - coalesce((SELECT window_us FROM limit_rules WHERE what = 'queue' AND name = :queue), 0)
    AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = limit_uses.job_id AND j.epoch = limit_uses.epoch
        AND j.state IN ({job.assigned}, {job.running}));

-- name: queue_room
-- Get how many more jobs a limited queue may start, by its running jobs and by its rate.
SELECT (SELECT most FROM limit_rules WHERE what = 'queue' AND name = :queue) - count(j.id),
    (SELECT rate FROM limit_rules WHERE what = 'queue' AND name = :queue) - coalesce(sum(u.used_at > {now} -
        coalesce((SELECT window_us FROM limit_rules WHERE what = 'queue' AND name = :queue), 0)), 0)
FROM (SELECT 1) LEFT JOIN limit_uses AS u ON u.tenant_id = 0 AND u.key = :key
LEFT JOIN jobs AS j ON j.id = u.job_id AND j.epoch = u.epoch AND j.state IN ({job.assigned}, {job.running});

-- name: use
-- Record a start that counts against the rate of its key or against its queue.
INSERT INTO limit_uses (tenant_id, key, used_at, job_id, epoch)
SELECT :tenant_id, :key, updated_at, id, epoch FROM jobs WHERE id = :id;

-- name: limit_row
-- Get the row of a key, with the tenant that was served last. Create the row if needed.
INSERT INTO limits (tenant_id, key) VALUES (:tenant_id, :key) ON CONFLICT DO UPDATE SET turn = turn RETURNING turn;

-- name: uses_over
-- Delete starts that no longer count against a key.
DELETE FROM limit_uses WHERE tenant_id = :tenant_id AND key = :key AND used_at <= {now} - :window_us;

-- name: counted
-- Count the unfinished jobs of a key that its limit does not hold, and those of them that have not started. Also get
-- the highest priority of the jobs that it holds, if the key belongs to one tenant.
SELECT count(*), count(*) FILTER (WHERE state = {job.queued}),
    (SELECT max(priority) FROM jobs WHERE state = {job.queued} AND held_by = 'limit' AND limit_key = :key
        AND tenant_id = :tenant_id)
FROM jobs
WHERE limit_key = :key AND limit_key IS NOT NULL AND held_by IS NULL AND completed_at IS NULL
    AND (:tenant_id = 0 OR tenant_id = :tenant_id);

-- name: counted_of_tenants
-- For many keys, each of one tenant: count the unfinished jobs without a hold, and get the highest priority of the held
-- ones.
SELECT value ->> 0, value ->> 1, (SELECT count(*) FROM jobs
        WHERE limit_key = value ->> 1 AND limit_key IS NOT NULL AND held_by IS NULL AND completed_at IS NULL
            AND tenant_id = value ->> 0),
    (SELECT max(priority) FROM jobs WHERE state = {job.queued} AND held_by = 'limit' AND limit_key = value ->> 1
        AND tenant_id = value ->> 0)
FROM json_each(:keys);

-- name: next_held
-- List the first due jobs of one tenant and priority that a key holds.
SELECT id FROM jobs WHERE state = {job.queued} AND held_by = 'limit' AND limit_key = :key AND tenant_id = :tenant_id
    AND priority = :priority AND run_at <= {now} ORDER BY run_at, id LIMIT :limit;

-- name: let_all_go
-- Lift the holds of these jobs.
UPDATE jobs SET held_by = NULL WHERE id IN (SELECT value FROM json_each(:ids));

-- name: used
-- List the starts that count against the rate of a key, oldest first.
SELECT used_at FROM limit_uses WHERE tenant_id = :tenant_id AND key = :key AND used_at > {now} - :window_us
ORDER BY used_at;

-- name: next_waiting_tenant
-- Get the next tenant with jobs that a key holds.
SELECT min(tenant_id) FROM jobs
WHERE state = {job.queued} AND held_by = 'limit' AND limit_key = :key AND tenant_id > :after;

-- name: next_held_priority
-- Get the highest priority of a tenant's jobs that a key holds, below a given one.
SELECT max(priority) FROM jobs WHERE state = {job.queued} AND held_by = 'limit' AND limit_key = :key
    AND tenant_id = :tenant_id AND priority < :below;

-- name: let_go
-- Lift the holds of the first due jobs of one tenant and priority that a key holds.
UPDATE jobs SET held_by = NULL WHERE id IN (
    SELECT id FROM jobs WHERE state = {job.queued} AND held_by = 'limit' AND limit_key = :key AND tenant_id = :tenant_id
        AND priority = :priority AND run_at <= {now} ORDER BY run_at, id LIMIT :limit)
RETURNING id;

-- name: still_waiting
-- Check whether a key still holds a due job.
SELECT 1 FROM jobs WHERE state = {job.queued} AND held_by = 'limit' AND limit_key = :key
    AND (:tenant_id = 0 OR tenant_id = :tenant_id) AND run_at <= {now} LIMIT 1;

-- name: pump_later
-- Record when the rate of a key allows the next job, and the tenant that was served last.
UPDATE limits SET pump_at = :pump_at, turn = :turn WHERE tenant_id = :tenant_id AND key = :key;

-- name: wake
-- Record when a job that its limit holds is due.
INSERT INTO limit_wakes (at, tenant_id, key) VALUES (:at, :tenant_id, :key);

-- name: take_wakes
-- Take the keys of jobs that have become due while their limits held them.
DELETE FROM limit_wakes WHERE id IN (SELECT id FROM limit_wakes WHERE at <= {now} ORDER BY at LIMIT :limit)
RETURNING tenant_id, key;

-- name: keys_to_pump
-- List the keys whose rates allow the next jobs.
SELECT tenant_id, key FROM limits WHERE pump_at <= {now} ORDER BY pump_at LIMIT :limit;

-- name: look_at_limits_of
-- Check the limits that hold these jobs again.
INSERT INTO limit_wakes (at, tenant_id, key)
SELECT run_at, CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key FROM jobs
WHERE id IN (SELECT value FROM json_each(:ids)) AND held_by = 'limit' AND state = {job.queued};

-- name: wake_later
-- Record when those of these jobs are due that returned behind their limits.
INSERT INTO limit_wakes (at, tenant_id, key)
SELECT run_at, CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key FROM jobs
WHERE id IN (SELECT value FROM json_each(:ids)) AND held_by = 'limit' AND state = {job.queued} AND run_at > {now}
    AND run_at < {now} + 315360000000000;

-- name: claim
-- Claim these jobs. The transaction has been the only writer since they were found due.
UPDATE jobs SET {moves}, owner = :worker, claim_id = :claim_id, lease_until = {now} + :lease_us
WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING {job_columns};

-- name: claimed_before
-- List the jobs of a claim whose response was lost.
SELECT {job_columns} FROM jobs
WHERE claim_id = :claim_id AND owner = :worker AND state IN ({job.assigned}, {job.running})
ORDER BY priority DESC, run_at, id;

-- name: renew
-- Extend a lease for its holder.
UPDATE jobs SET lease_until = {now} + :lease_us
WHERE id = :id AND epoch = :epoch AND owner = :worker AND state IN ({job.assigned}, {job.running})
    AND lease_until > {now};

-- name: silent_workers
-- List workers whose heartbeat is overdue, the longest first.
SELECT id FROM workers
WHERE state IN ({worker.IDLE}, {worker.RUNNING}, {worker.PAUSED}) AND seen_at <= {now} - :silent_us
ORDER BY seen_at LIMIT :limit;

-- name: overdue
-- List jobs whose lease has expired, the earliest expiry first.
SELECT {job_columns} FROM jobs
WHERE state IN ({job.assigned}, {job.running}) AND lease_until <= {now} ORDER BY lease_until LIMIT :limit;

-- name: last_time
-- Get the latest time of an event, since time never goes back. (The last event written might describe something
-- earlier.)
SELECT ts FROM events ORDER BY ts DESC LIMIT 1;

-- name: log_end
-- Get the newest event, after which all later commits come.
SELECT coalesce(max(id), 0) FROM events;

-- name: resume_queue
-- Resume a queue from the next claim on.
UPDATE queues SET paused_at = NULL WHERE tenant_id = :tenant_id AND name = :name;

-- name: held
-- List those of these jobs that a worker holds, with their epochs and whether cancellation was requested.
SELECT id, epoch, cancel_requested_at IS NOT NULL FROM jobs
WHERE id IN (SELECT value FROM json_each(:ids)) AND owner = :worker AND state = {job.running};

-- name: count
-- Add to the counters.
INSERT INTO counters (tenant_id, name, labels, value)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:counted) WHERE true
ON CONFLICT (tenant_id, name, labels) DO UPDATE SET value = counters.value + excluded.value;

-- name: keep_blob
-- Store content once. There is only one writer, so content found here cannot be deleted meanwhile.
INSERT INTO blobs (tenant_id, size, created_at, hash, content) VALUES (:tenant_id, :size, {now}, :hash, :content)
ON CONFLICT DO NOTHING;

-- name: refer_to_blob
-- Set the blob of a job's result. The move itself was written just before, in the same transaction.
UPDATE jobs SET result_hash = :hash WHERE tenant_id = :tenant_id AND id = :id;

-- name: drop_blobs
-- Delete those of these blobs that nothing refers to now.
DELETE FROM blobs WHERE (tenant_id, hash) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:found)) AND {unused}
RETURNING hash;

-- name: checkpoint
-- Store the result of a step if the claim still holds the job and the name is new.
INSERT INTO checkpoints (job_id, created_at, tenant_id, epoch, version, name, code, hash, result)
SELECT id, {now}, tenant_id, epoch, :version, :name, :code, :hash, :result FROM jobs
WHERE id = :job_id AND epoch = :epoch AND owner = :owner AND state = {job.running} AND lease_until > {now}
ON CONFLICT (job_id, name) DO NOTHING RETURNING job_id;

-- name: replace_telemetry
-- Replace the newest telemetry of its kind of an entity.
UPDATE telemetry SET ts = {now}, expires_at = {now} + :ttl_us, payload = :payload
WHERE entity_id = :entity_id AND entity = :entity AND kind = :kind AND ts = (SELECT max(t.ts) FROM telemetry AS t
    WHERE t.entity_id = :entity_id AND t.entity = :entity AND t.kind = :kind)
RETURNING ts;

-- name: any_held
-- Check whether any queued job has one of these holds.
SELECT 1 FROM jobs WHERE held_by IN (SELECT value FROM json_each(:holds)) AND state = {job.queued} LIMIT 1;

-- name: lift_holds
-- Lift these holds from jobs. A job with a limit is then held by that limit.
UPDATE jobs SET held_by = {held_back}
WHERE held_by IN (SELECT value FROM json_each(:holds)) AND state = {job.queued} RETURNING id, limit_key;

-- name: unfinished_children
-- List the unfinished children of these jobs.
SELECT id FROM jobs WHERE tenant_id = :tenant_id AND parent_id IN (SELECT value FROM json_each(:jobs))
    AND completed_at IS NULL ORDER BY id;

-- name: wake_parents
-- Wake jobs that wait for children: for all of them, or for any of more than are unfinished now.
UPDATE jobs SET run_at = min(jobs.run_at, {now}), waits_for = NULL
FROM (SELECT value ->> 0 AS id, value ->> 1 AS seen FROM json_each(:given)) AS g
WHERE jobs.id = g.id AND jobs.state = {job.queued} AND jobs.waits_for IS NOT NULL AND (
    ((jobs.waits_for = {all_children} OR EXISTS (
            SELECT 1 FROM waits AS w WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name = {all_children}))
        AND NOT EXISTS (SELECT 1 FROM jobs AS c WHERE c.parent_id = jobs.id AND c.completed_at IS NULL))
    OR ((jobs.waits_for = {any_child} OR EXISTS (
            SELECT 1 FROM waits AS w WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name = {any_child}))
        AND g.seen > (SELECT count(*) FROM jobs AS c WHERE c.parent_id = jobs.id AND c.completed_at IS NULL)))
RETURNING jobs.id;

-- name: wake_listeners
-- Wake jobs that started to wait for a signal that was already sent.
UPDATE jobs SET run_at = min(jobs.run_at, {now}), waits_for = NULL
FROM (SELECT value ->> 0 AS id, value ->> 1 AS name, value ->> 2 AS seen FROM json_each(:given)) AS g
WHERE jobs.id = g.id AND jobs.state = {job.queued} AND jobs.waits_for IS NOT NULL
    AND (jobs.waits_for = {an_event} || g.name OR EXISTS (
        SELECT 1 FROM waits AS w WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name = {an_event} || g.name))
    AND EXISTS (
    SELECT 1 FROM signals AS s WHERE s.tenant_id = jobs.tenant_id AND s.name = g.name AND s.job_id IN (0, jobs.id)
        AND s.id > g.seen)
RETURNING jobs.id;

-- name: wake_askers
-- Wake jobs that started to wait for a decision that was already made.
UPDATE jobs SET run_at = min(jobs.run_at, {now}), waits_for = NULL
FROM (SELECT value ->> 0 AS id, value ->> 1 AS seen FROM json_each(:given)) AS g
WHERE jobs.id = g.id AND jobs.state = {job.queued} AND jobs.waits_for IS NOT NULL
    AND (jobs.waits_for LIKE {an_approval} || '%' OR EXISTS (
        SELECT 1 FROM waits AS w
        WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name LIKE {an_approval} || '%'))
    AND EXISTS (SELECT 1 FROM approvals AS a WHERE a.id = g.seen AND a.decision IS NOT NULL)
RETURNING jobs.id;

-- name: wake_for_signal
-- Wake the jobs that wait for a signal of this name.
UPDATE jobs SET run_at = min(run_at, {now}), waits_for = NULL
WHERE state = {job.queued} AND waits_for IS NOT NULL AND :job_id IN (0, id) AND id IN (
    SELECT j.id FROM jobs AS j
    WHERE j.tenant_id = :tenant_id AND j.waits_for = :waits_for AND j.state = {job.queued}
    UNION ALL SELECT w.job_id FROM waits AS w JOIN jobs AS k ON k.id = w.job_id AND k.epoch = w.epoch
    WHERE w.tenant_id = :tenant_id AND w.name = :waits_for)
RETURNING id;

-- name: drop_waits
-- Delete the previous waits of these jobs.
DELETE FROM waits WHERE job_id IN (SELECT value ->> 0 FROM json_each(:given))
    AND epoch <= (SELECT max(value ->> 1) FROM json_each(:given) WHERE value ->> 0 = waits.job_id);

-- name: note_waits
-- Store the waits of these jobs if they are now waiting.
INSERT INTO waits (job_id, tenant_id, epoch, number, name, until)
SELECT j.id, j.tenant_id, j.epoch, g.number, g.name, g.until
FROM (SELECT value ->> 0 AS job_id, value ->> 1 AS epoch, value ->> 2 AS number, value ->> 3 AS name,
        value ->> 4 AS until FROM json_each(:given)) AS g
JOIN jobs AS j ON j.id = g.job_id AND j.epoch = g.epoch
WHERE j.state = {job.queued} AND j.waits_for IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: stale_approvals
-- Check whether there is an open approval whose job has ended.
SELECT 1 FROM approvals AS a WHERE {stale} LIMIT 1;

-- name: steps_by_name
-- List steps of a flow by name, unsorted, since sorting two rows takes longer than finding them.
SELECT {step_columns} FROM steps WHERE flow_id = :flow_id AND name IN {names};
