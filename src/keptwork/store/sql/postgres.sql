-- Statements for PostgreSQL: a batch at a time, with the events in the statement that moves the rows.

-- name: take_pages
-- Reserve pages of 64 IDs each.
SELECT nextval('keptwork_pages') FROM generate_series(1, :count);

-- name: enqueue
-- Enqueue jobs. A job whose key is taken is not inserted, and a repeated call has no effect. Notifies waiting workers
-- if `ring` is set.
WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx),
born AS (
    INSERT INTO jobs (id, created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id, trace_id, cause,
        priority, max_attempts, queue, kind, on_exhausted, hold_key, held_by, redriven_from, parent_id, limit_key, step_id,
        crew_id, tree_id, key, payload)
    SELECT :id, (SELECT now FROM clock), (SELECT now FROM clock), greatest((SELECT now FROM clock), :run_at) + :delay_us,
        :tenant_id, {job.queued}, {job.enqueue}, :actor, :correlation_id, :trace_id, :cause, :priority, :max_attempts,
        :queue, :kind, :on_exhausted, :hold_key, :held_by, :redriven_from, :parent_id, :limit_key, :step_id,
        :crew_id, :tree_id, :key, :payload
    FROM {given}
    ON CONFLICT DO NOTHING
    RETURNING id, created_at, tenant_id, actor, correlation_id, trace_id, cause{also_born}),
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, to_state, actor, correlation_id,
        trace_id, cause)
    SELECT (SELECT tx FROM clock), id, created_at, tenant_id, 1, 0, 'job', {event job.enqueue}, {job.enqueue},
        {job.queued}, actor, correlation_id, trace_id, cause FROM born),
{woken}rung AS (SELECT pg_notify('keptwork_jobs', :ring) WHERE :ring IS NOT NULL)
SELECT id FROM born LEFT JOIN rung ON true;

-- name: jobs_by_key
-- List the jobs that were created with idempotency keys.
SELECT j.tenant_id, j.key, j.id FROM jobs AS j
JOIN unnest(:tenant_id::int[], :key::text[]) AS g(tenant_id, key) ON j.tenant_id = g.tenant_id AND j.key = g.key;

-- name: claim
-- Claim due jobs for a worker that may claim, from queues that are not paused, with tenants in turn. The function
-- `keptwork_due` finds and locks the jobs. `due` is materialized, so that it is called once. A locked row does not
-- move, so it is found again by its place (ctid). Starts that count against a rate or a queue are recorded.
WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx),
due AS MATERIALIZED (
    SELECT d.place, d.rank, d.limited FROM clock CROSS JOIN LATERAL keptwork_due(
        :worker::bigint, :queues::text[], :limit::int, :tenant_id::int, :turn::int, :without::text[], clock.now) AS d),
moved AS (
    UPDATE jobs SET {moves}, owner = :worker::bigint, claim_id = :claim_id::bigint,
        lease_until = (SELECT now FROM clock) + :lease_us::bigint
    FROM due WHERE jobs.ctid = due.place
    RETURNING {jobs_columns}, jobs.updated_at, due.rank, due.limited),
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor,
        correlation_id, trace_id)
    SELECT (SELECT tx FROM clock), m.id, m.updated_at - e.behind, m.tenant_id, m.seq - e.behind, m.epoch, 'job', e.type,
        e.trigger, e.from_state, e.to_state, :actor, m.correlation_id, m.trace_id
    FROM moved AS m, (VALUES {claim_events}) AS e(behind, type, trigger, from_state, to_state)),
used AS (
    INSERT INTO limit_uses (tenant_id, key, used_at, job_id, epoch)
    SELECT u.tenant_id, u.key, m.updated_at, m.id, m.epoch
    FROM (SELECT * FROM moved WHERE limited OR limit_key IS NOT NULL OFFSET 0) AS m CROSS JOIN LATERAL (
        SELECT 0 AS tenant_id, 'queue:' || m.queue AS key WHERE m.limited
        UNION ALL
        SELECT CASE WHEN m.limit_key LIKE '*:%' THEN 0 ELSE m.tenant_id END, m.limit_key FROM limit_rules AS r
        WHERE m.limit_key IS NOT NULL AND r.what = 'job' AND r.name = m.kind AND r.rate IS NOT NULL) AS u)
SELECT {job_columns} FROM moved ORDER BY rank;

-- name: enqueue_started
-- Enqueue a job and, if its queue is served without a limit and the worker may claim, claim and start it in the same
-- row and moment. This is for a worker that has just found nothing due, so that the job overtakes no other. A repeated
-- call has no effect and returns no row.
WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx),
{born_started},
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor,
        correlation_id, trace_id, cause)
    {started_events})
SELECT {job_columns} FROM born;

-- name: hand_over
-- End a job and its step, and start the next step with a job that is inserted as started: all in one statement, or
-- nothing. It does nothing if another transaction works on the tree of flows. Rows that are only checked must be as
-- they were read. Each is locked, and so compared as it is now, even if it changed after this statement started.
WITH free AS MATERIALIZED (SELECT 1 WHERE pg_try_advisory_xact_lock(:tree_id::bigint)),
clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx FROM free),
{unmoved}{moved}{born_started},
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor,
        correlation_id, trace_id, cause, reason, payload)
    {moved_events}SELECT s.*, NULL::text, NULL::json FROM ({started_events}) AS s)
SELECT {job_columns} FROM born WHERE keptwork_insist(owner IS NOT NULL{all_found});

-- name: job
-- Get a job as a claim returns it.
SELECT {job_columns} FROM jobs WHERE id = :id::bigint;

-- name: claimed_before
-- List the jobs of a claim whose response was lost.
SELECT {job_columns} FROM jobs
WHERE claim_id = :claim_id::bigint AND owner = :worker::bigint AND state IN ({job.assigned}, {job.running})
ORDER BY priority DESC, run_at, id;

-- name: promote
-- Promote the jobs that these keys hold, as far as their limits allow.
SELECT keptwork_promote(:tenant_id::int[], :key::text[], :ring::boolean);

-- name: take_wakes
-- Take the keys of jobs that have become due while their limits held them. Rows that another transaction has locked are
-- skipped.
DELETE FROM limit_wakes WHERE id = ANY(ARRAY(
    SELECT id FROM limit_wakes WHERE at <= keptwork_now() ORDER BY at LIMIT :limit::int FOR UPDATE SKIP LOCKED))
RETURNING tenant_id, key;

-- name: keys_to_pump
-- List and lock the keys whose rates allow the next jobs. Rows that another transaction has locked are skipped.
SELECT tenant_id, key FROM limits WHERE pump_at <= keptwork_now() ORDER BY pump_at LIMIT :limit::int
FOR UPDATE SKIP LOCKED;

-- name: look_at_limits_of
-- Check the limits that hold these jobs again.
INSERT INTO limit_wakes (at, tenant_id, key)
SELECT run_at, CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key FROM jobs
WHERE id = ANY(:ids::bigint[]) AND held_by = 'limit' AND state = {job.queued};

-- name: wake_later
-- Record when those of these jobs are due that returned behind their limits.
INSERT INTO limit_wakes (at, tenant_id, key)
SELECT run_at, CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key FROM jobs
WHERE id = ANY(:ids::bigint[]) AND held_by = 'limit' AND state = {job.queued} AND run_at > keptwork_now()
    AND run_at < keptwork_now() + 315360000000000;

-- name: renew
-- Extend the leases of their holder.
UPDATE jobs SET lease_until = clock.now + :lease_us::bigint
FROM unnest(:id::bigint[], :epoch::int[]) AS g(id, epoch), (SELECT keptwork_now() AS now) AS clock
WHERE jobs.id = g.id AND jobs.epoch = g.epoch AND jobs.owner = :worker::bigint
    AND jobs.state IN ({job.assigned}, {job.running}) AND jobs.lease_until > clock.now
RETURNING jobs.id, jobs.epoch;

-- name: renew_free
-- Renew many leases, but only of rows that are not locked. A transaction that completes several jobs locks them in
-- its own order, so this statement must not wait for one row while it holds others.
WITH free AS MATERIALIZED (
    SELECT j.id FROM unnest(:id::bigint[]) AS g(id) CROSS JOIN LATERAL (
        SELECT j.id FROM jobs AS j WHERE j.id = g.id FOR NO KEY UPDATE OF j SKIP LOCKED) AS j)
UPDATE jobs SET lease_until = clock.now + :lease_us::bigint
FROM unnest(:id::bigint[], :epoch::int[]) AS g(id, epoch), (SELECT keptwork_now() AS now) AS clock
WHERE jobs.id = g.id AND jobs.epoch = g.epoch AND jobs.owner = :worker::bigint AND jobs.id IN (SELECT id FROM free)
    AND jobs.state IN ({job.assigned}, {job.running}) AND jobs.lease_until > clock.now
RETURNING jobs.id, jobs.epoch;

-- name: silent_workers
-- List and lock workers whose heartbeat is overdue, the longest first. Rows that another transaction has locked are
-- skipped. The other workers cannot send a heartbeat until the transaction ends.
SELECT * FROM workers
WHERE state IN ({worker.IDLE}, {worker.RUNNING}, {worker.PAUSED}) AND seen_at <= keptwork_now() - :silent_us::bigint
ORDER BY seen_at LIMIT :limit::int FOR UPDATE SKIP LOCKED;

-- name: overdue
-- List jobs whose lease has expired, the earliest expiry first.
SELECT {job_columns} FROM jobs
WHERE state IN ({job.assigned}, {job.running}) AND lease_until <= keptwork_now() ORDER BY lease_until LIMIT :limit::int;

-- name: applied_already
-- List those of these moves that the log has under the same actor, which means that a call was repeated after its
-- response was lost.
SELECT e.entity_id FROM events AS e
JOIN unnest(:id::bigint[], :seq::int[], :trigger::text[], :actor::text[], :entity::text[])
    AS g(id, seq, trigger, actor, entity)
    ON e.entity_id = g.id AND e.seq = g.seq AND e.entity = g.entity
WHERE e.trigger = g.trigger AND e.actor IS NOT DISTINCT FROM g.actor;

-- name: log_end
-- Get the end of the last transaction before the oldest open one, after which all later commits come.
SELECT (keptwork_tx_horizon() - 1) || '-' || 9223372036854775807;

-- name: waiting_for_limits
-- Count a tenant's jobs that limits hold, key by key, for each key at most `most`.
WITH RECURSIVE keys AS (
    SELECT (SELECT limit_key FROM jobs WHERE held_by = 'limit' AND state = {job.queued}
        ORDER BY limit_key LIMIT 1) AS limit_key, 1 AS number
    UNION ALL
    SELECT (SELECT j.limit_key FROM jobs AS j
        WHERE j.held_by = 'limit' AND j.state = {job.queued} AND j.limit_key > k.limit_key
        ORDER BY j.limit_key LIMIT 1), k.number + 1
    FROM keys AS k WHERE k.limit_key IS NOT NULL AND k.number < :most_keys)
SELECT sum((SELECT count(*) FROM (SELECT 1 FROM jobs AS j
    WHERE j.limit_key = keys.limit_key AND j.tenant_id = :tenant_id AND j.held_by = 'limit' AND j.state = {job.queued}
    LIMIT :most) AS waiting)) FROM keys;

-- name: unseen_tables
-- List the tables of tenants that this role may not read.
SELECT c.relname FROM pg_policy AS p JOIN pg_class AS c ON c.oid = p.polrelid
WHERE p.polname = 'tenant' AND NOT has_table_privilege(c.oid, 'SELECT')
    AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('jobs')) ORDER BY 1;

-- name: home
-- Get the schema of the tables, quoted.
SELECT quote_ident(n.nspname) FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid
WHERE c.oid = to_regclass('keptwork_migrations');

-- name: ring
-- Notify waiting workers, with the name of this process.
SELECT pg_notify('keptwork_jobs', :ring::text);

-- name: resume_queue
-- Resume a queue from the next claim on, and notify waiting workers, since its jobs might be due. A queue that was
-- never paused has no row.
WITH served AS (UPDATE queues SET paused_at = NULL WHERE tenant_id = :tenant_id AND name = :name RETURNING name),
rung AS (SELECT pg_notify('keptwork_jobs', ''))
SELECT name FROM served LEFT JOIN rung ON true;

-- name: confirm
-- Write a record to the write-ahead log, so that the commit waits for the standbys like the commit of a write.
SELECT pg_logical_emit_message(true, 'keptwork', '');

-- name: held
-- List those of these jobs that a worker holds, with their epochs and whether cancellation was requested.
SELECT id, epoch, cancel_requested_at IS NOT NULL FROM jobs
WHERE id = ANY(:ids::bigint[]) AND owner = :worker AND state = {job.running};

-- name: count
-- Add to the counters.
INSERT INTO counters (tenant_id, name, labels, value)
SELECT * FROM unnest(:tenant_id::int[], :name::text[], :labels::text[], :value::bigint[])
ON CONFLICT (tenant_id, name, labels) DO UPDATE SET value = counters.value + excluded.value;

-- name: blobs_kept
-- List and lock the content that exists. It stays until this transaction ends and need not be sent again.
SELECT b.tenant_id, b.hash FROM blobs AS b
JOIN unnest(:tenant_id::int[], :hash::text[]) AS g(tenant_id, hash) ON b.tenant_id = g.tenant_id AND b.hash = g.hash
ORDER BY b.tenant_id, b.hash FOR KEY SHARE OF b;

-- name: keep_blobs
-- Store content once. Content that another transaction has just stored is also locked, so that it stays.
INSERT INTO blobs (tenant_id, size, created_at, hash, content)
SELECT g.tenant_id, g.size, {now}, g.hash, g.content
FROM unnest(:tenant_id::int[], :hash::text[], :size::int[], :content::bytea[]) AS g(tenant_id, hash, size, content)
ON CONFLICT (tenant_id, hash) DO UPDATE SET size = excluded.size;

-- name: refer_to_blobs
-- Set the blobs of jobs' results. The moves themselves were written just before, in the same transaction.
UPDATE jobs SET result_hash = g.hash FROM unnest(:id::bigint[], :tenant_id::int[], :hash::text[]) AS g(id, tenant_id, hash)
WHERE jobs.id = g.id AND jobs.tenant_id = g.tenant_id;

-- name: lock_blobs
-- Lock those of the unused blobs that no other transaction is about to use. A transaction that refers to a blob holds a
-- lock on it until it commits.
SELECT b.tenant_id, b.hash FROM blobs AS b
JOIN unnest(:tenant_id::int[], :hash::text[]) AS g(tenant_id, hash) ON b.tenant_id = g.tenant_id AND b.hash = g.hash
FOR UPDATE OF b SKIP LOCKED;

-- name: drop_blobs
-- Delete those of these blobs that nothing refers to now. They are locked, so this sees every reference.
DELETE FROM blobs USING unnest(:tenant_id::int[], :hash::text[]) AS g(tenant_id, hash)
WHERE blobs.tenant_id = g.tenant_id AND blobs.hash = g.hash AND {unused} RETURNING blobs.hash;

-- name: new_checkpoint
-- Store the result of one step if the claim still holds the job and the name is new. The next statement reports more
-- and takes longer.
INSERT INTO checkpoints (job_id, created_at, tenant_id, epoch, version, name, code, hash, result)
SELECT :job_id::bigint, keptwork_now(), j.tenant_id, :epoch::int, :version::int, :name::text, :code::text, :hash::text,
    :result::json
FROM (SELECT j.tenant_id, j.epoch, j.owner, j.state, j.lease_until FROM jobs AS j WHERE j.id = :job_id::bigint
    FOR SHARE OF j) AS j
WHERE j.epoch = :epoch::int AND j.owner = :owner::bigint AND j.state = {job.running} AND j.lease_until > keptwork_now()
ON CONFLICT (job_id, name) DO NOTHING
RETURNING true;

-- name: checkpoint
-- Store the results of steps whose claims still hold their jobs. On PostgreSQL, the claims cannot be lost before the
-- commit. Returns the results whose jobs are held, and again those that are new. An existing result of the same name
-- stays. Each job is found by its key and locked before its values are checked. With all conditions in one place, the
-- planner would search all running jobs for each.
WITH held AS MATERIALIZED (
    SELECT g.*, j.tenant_id FROM unnest(:job_id::bigint[], :epoch::int[], :owner::bigint[], :name::text[],
        :result::json[], :hash::text[], :code::text[], :version::int[])
        AS g(job_id, epoch, owner, name, result, hash, code, version)
    CROSS JOIN LATERAL (
        SELECT j.tenant_id, j.epoch, j.owner, j.state, j.lease_until FROM jobs AS j WHERE j.id = g.job_id FOR SHARE OF j) AS j
    WHERE j.epoch = g.epoch AND j.owner = g.owner AND j.state = {job.running} AND j.lease_until > keptwork_now()),
kept AS (
    INSERT INTO checkpoints (job_id, created_at, tenant_id, epoch, version, name, code, hash, result)
    SELECT job_id, keptwork_now(), tenant_id, epoch, version, name, code, hash, result FROM held
    ON CONFLICT (job_id, name) DO NOTHING
    RETURNING job_id, name)
SELECT job_id, name, false FROM held UNION ALL SELECT job_id, name, true FROM kept;

-- name: note_progress
-- Store the progress of jobs whose claims still hold them, in place of their previous reports.
WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now),
told AS MATERIALIZED (
    SELECT j.id, j.tenant_id, g.payload, clock.now
    FROM unnest(:job_id::bigint[], :epoch::int[], :owner::bigint[], :payload::json[]) AS g(job_id, epoch, owner, payload)
    JOIN jobs AS j ON j.id = g.job_id AND j.epoch = g.epoch AND j.owner = g.owner AND j.state = {job.running}, clock
    WHERE j.lease_until > clock.now),
replaced AS (
    UPDATE telemetry AS t SET ts = told.now, expires_at = told.now + :ttl_us::bigint, payload = told.payload
    FROM told WHERE t.entity_id = told.id AND t.entity = 'job' AND t.kind = :kind AND t.ts = (SELECT max(newest.ts)
        FROM telemetry AS newest WHERE newest.entity_id = told.id AND newest.entity = 'job' AND newest.kind = :kind)
    RETURNING t.entity_id)
INSERT INTO telemetry (tenant_id, entity, entity_id, kind, ts, expires_at, payload)
SELECT tenant_id, 'job', id, :kind, now, now + :ttl_us::bigint, payload FROM told
WHERE id NOT IN (SELECT entity_id FROM replaced) ON CONFLICT DO NOTHING;

-- name: lift_holds
-- Lift these holds from jobs. A job with a limit is then held by that limit.
UPDATE jobs SET held_by = {held_back}
WHERE held_by = ANY(:holds::text[]) AND state = {job.queued} RETURNING id, limit_key;

-- name: unfinished_children
-- List the unfinished children of these jobs.
SELECT id FROM jobs WHERE tenant_id = :tenant_id AND parent_id = ANY(:jobs::bigint[]) AND completed_at IS NULL ORDER BY id;

-- name: lock_signals
-- Lock the names of signals until the transaction ends, in the order of all callers, so that only one sender or waiter
-- uses a name. Names share 256 locks, because the server has room for only some thousands.
SELECT pg_advisory_xact_lock(k.class, k.number) FROM (
    SELECT DISTINCT 1684370548 AS class, hashtext(name) & 255 AS number FROM unnest(:names::text[]) AS g(name)
    ORDER BY 2 OFFSET 0) AS k;

-- name: wake_parents
-- Wake jobs that wait for children: for all of them, or for any of more than are unfinished now.
UPDATE jobs SET run_at = least(jobs.run_at, {now}), waits_for = NULL
FROM unnest(:id::bigint[], :seen::bigint[]) AS g(id, seen)
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
UPDATE jobs SET run_at = least(jobs.run_at, {now}), waits_for = NULL
FROM unnest(:id::bigint[], :name::text[], :seen::bigint[]) AS g(id, name, seen)
WHERE jobs.id = g.id AND jobs.state = {job.queued} AND jobs.waits_for IS NOT NULL
    AND (jobs.waits_for = {an_event} || g.name OR EXISTS (
        SELECT 1 FROM waits AS w WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name = {an_event} || g.name))
    AND EXISTS (
    SELECT 1 FROM signals AS s WHERE s.tenant_id = jobs.tenant_id AND s.name = g.name AND s.job_id IN (0, jobs.id)
        AND s.id > g.seen)
RETURNING jobs.id;

-- name: wake_askers
-- Wake jobs that started to wait for a decision that was already made.
UPDATE jobs SET run_at = least(jobs.run_at, {now}), waits_for = NULL
FROM unnest(:id::bigint[], :seen::bigint[]) AS g(id, seen)
WHERE jobs.id = g.id AND jobs.state = {job.queued} AND jobs.waits_for IS NOT NULL
    AND (jobs.waits_for LIKE {an_approval} || '%' OR EXISTS (
        SELECT 1 FROM waits AS w
        WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name LIKE {an_approval} || '%'))
    AND EXISTS (SELECT 1 FROM approvals AS a WHERE a.id = g.seen AND a.decision IS NOT NULL)
RETURNING jobs.id;

-- name: wake_for_signal
-- Wake the jobs that wait for a signal of this name, locked in the order of all callers.
UPDATE jobs SET run_at = least(jobs.run_at, {now}), waits_for = NULL
FROM (SELECT j.id FROM jobs AS j WHERE j.state = {job.queued} AND j.waits_for IS NOT NULL
        AND :job_id::bigint IN (0, j.id) AND j.id IN (
            SELECT i.id FROM jobs AS i
            WHERE i.tenant_id = :tenant_id AND i.waits_for = :waits_for AND i.state = {job.queued}
            UNION ALL SELECT w.job_id FROM waits AS w JOIN jobs AS k ON k.id = w.job_id AND k.epoch = w.epoch
            WHERE w.tenant_id = :tenant_id AND w.name = :waits_for)
        ORDER BY j.id FOR NO KEY UPDATE) AS w
WHERE jobs.id = w.id RETURNING jobs.id;

-- name: drop_waits
-- Delete the previous waits of these jobs.
DELETE FROM waits USING unnest(:job_id::bigint[], :epoch::int[]) AS g(job_id, epoch)
WHERE waits.job_id = g.job_id AND waits.epoch <= g.epoch;

-- name: note_waits
-- Store the waits of these jobs if they are now waiting.
INSERT INTO waits (job_id, tenant_id, epoch, number, name, until)
SELECT j.id, j.tenant_id, j.epoch, g.number, g.name, g.until
FROM unnest(:job_id::bigint[], :epoch::int[], :number::int[], :name::text[], :until::bigint[])
    AS g(job_id, epoch, number, name, until)
JOIN jobs AS j ON j.id = g.job_id AND j.epoch = g.epoch
WHERE j.state = {job.queued} AND j.waits_for IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: steps_by_name
-- List steps of a flow, each by its own lookup. Otherwise, the planner would read all steps of the flow.
SELECT {step_columns} FROM unnest(:names::text[]) AS wanted CROSS JOIN LATERAL (
    SELECT {step_columns} FROM steps WHERE flow_id = :flow_id::bigint AND name = wanted OFFSET 0) AS s;

-- name: scene
-- Get a flow and some of its steps in one query.
SELECT f, s.* FROM {flows} AS f CROSS JOIN unnest(:names::text[]) AS wanted CROSS JOIN LATERAL (
    SELECT {step_columns} FROM steps WHERE flow_id = f.id AND name = wanted OFFSET 0) AS s
WHERE f.id = :id::bigint;
