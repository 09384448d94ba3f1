-- Statements written for PostgreSQL: a batch at a time, events in the statement that moves the rows.

-- name: take_pages
-- Pages of 64 keys each.
SELECT nextval('keptwork_pages') FROM generate_series(1, :count);

-- name: enqueue
-- Jobs enter the queue; one whose key is taken does not, and a repeated call changes nothing. Rings for whoever waits for
-- work, if it is time to.
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
-- The jobs that idempotency keys have already made.
SELECT j.tenant_id, j.key, j.id FROM jobs AS j
JOIN unnest(:tenant_id::int[], :key::text[]) AS g(tenant_id, key) ON j.tenant_id = g.tenant_id AND j.key = g.key;

-- name: claim
-- Takes the jobs that are due, for a worker that may claim, out of queues that are not paused: tenants in turn, as the
-- function `keptwork_due` finds and locks them. `due` is materialised, so that it is called once. A row that is locked stays
-- where it is, so it is found again by its place. Starts that count against a rate or a queue are noted.
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
-- A job enters the queue and, if its queue is served without a limit and the worker may claim, is claimed and started in
-- the same row and the same moment: for a worker that asked and found nothing due, so that nobody is overtaken. A repeated
-- call changes nothing, and returns nothing.
WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx),
{born_started},
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor,
        correlation_id, trace_id, cause)
    {started_events})
SELECT {job_columns} FROM born;

-- name: hand_over
-- A job ends, and with it the step it worked for; the next step begins with a job that is born started: all of it in one
-- statement, or none. Nothing is touched unless nobody else is at the tree of flows. Rows that only matter must be as they
-- were read: locked, each is looked at as it is now, whatever this statement saw when it began.
WITH free AS MATERIALIZED (SELECT 1 WHERE pg_try_advisory_xact_lock(:tree_id::bigint)),
clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx FROM free),
{unmoved}{moved}{born_started},
logged AS (
    INSERT INTO events (tx, entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor,
        correlation_id, trace_id, cause, reason, payload)
    {moved_events}SELECT s.*, NULL::text, NULL::json FROM ({started_events}) AS s)
SELECT {job_columns} FROM born WHERE keptwork_insist(owner IS NOT NULL{all_found});

-- name: job
-- A job as a claim returns it.
SELECT {job_columns} FROM jobs WHERE id = :id::bigint;

-- name: claimed_before
-- The jobs of a claim whose answer was lost.
SELECT {job_columns} FROM jobs
WHERE claim_id = :claim_id::bigint AND owner = :worker::bigint AND state IN ({job.assigned}, {job.running})
ORDER BY priority DESC, run_at, id;

-- name: promote
-- Lets go what these keys hold back, as far as they allow.
SELECT keptwork_promote(:tenant_id::int[], :key::text[], :ring::boolean);

-- name: take_wakes
-- The keys of jobs that have become due while their limits held them back; those that somebody else has taken are left.
DELETE FROM limit_wakes WHERE id = ANY(ARRAY(
    SELECT id FROM limit_wakes WHERE at <= keptwork_now() ORDER BY at LIMIT :limit::int FOR UPDATE SKIP LOCKED))
RETURNING tenant_id, key;

-- name: keys_to_pump
-- The keys whose rates let the next jobs go, locked; those that somebody else looks after are left.
SELECT tenant_id, key FROM limits WHERE pump_at <= keptwork_now() ORDER BY pump_at LIMIT :limit::int
FOR UPDATE SKIP LOCKED;

-- name: look_at_limits_of
-- What limits hold back of these jobs may go now, as far as they allow.
INSERT INTO limit_wakes (at, tenant_id, key)
SELECT run_at, CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key FROM jobs
WHERE id = ANY(:ids::bigint[]) AND held_by = 'limit' AND state = {job.queued};

-- name: wake_later
-- Of these jobs, those that went back behind their limits and are due later.
INSERT INTO limit_wakes (at, tenant_id, key)
SELECT run_at, CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key FROM jobs
WHERE id = ANY(:ids::bigint[]) AND held_by = 'limit' AND state = {job.queued} AND run_at > keptwork_now()
    AND run_at < keptwork_now() + 315360000000000;

-- name: renew
-- The holders keep their leases a while longer; nobody else can.
UPDATE jobs SET lease_until = clock.now + :lease_us::bigint
FROM unnest(:id::bigint[], :epoch::int[]) AS g(id, epoch), (SELECT keptwork_now() AS now) AS clock
WHERE jobs.id = g.id AND jobs.epoch = g.epoch AND jobs.owner = :worker::bigint
    AND jobs.state IN ({job.assigned}, {job.running}) AND jobs.lease_until > clock.now
RETURNING jobs.id, jobs.epoch;

-- name: renew_free
-- The same for many leases, but only for rows that are not locked. A transaction that settles several jobs locks them in
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
-- Workers that should have been heard of, the longest silent first. One that is just being heard of, or ended by somebody
-- else, is left out; the others are kept from it until the transaction is over.
SELECT * FROM workers
WHERE state IN ({worker.IDLE}, {worker.RUNNING}, {worker.PAUSED}) AND seen_at <= keptwork_now() - :silent_us::bigint
ORDER BY seen_at LIMIT :limit::int FOR UPDATE SKIP LOCKED;

-- name: overdue
-- Jobs whose lease is over, the longest first.
SELECT {job_columns} FROM jobs
WHERE state IN ({job.assigned}, {job.running}) AND lease_until <= keptwork_now() ORDER BY lease_until LIMIT :limit::int;

-- name: applied_already
-- Which of these moves the log has under the same actor: a repeated call whose first answer was lost.
SELECT e.entity_id FROM events AS e
JOIN unnest(:id::bigint[], :seq::int[], :trigger::text[], :actor::text[], :entity::text[])
    AS g(id, seq, trigger, actor, entity)
    ON e.entity_id = g.id AND e.seq = g.seq AND e.entity = g.entity
WHERE e.trigger = g.trigger AND e.actor IS NOT DISTINCT FROM g.actor;

-- name: log_end
-- The end of the last transaction before the oldest that is still open: what commits later comes after it.
SELECT (keptwork_tx_horizon() - 1) || '-' || 9223372036854775807;

-- name: waiting_for_limits
-- How many jobs of a tenant limits hold back, key by key, of each no more than `most`.
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
-- Tables of tenants that this role may not read.
SELECT c.relname FROM pg_policy AS p JOIN pg_class AS c ON c.oid = p.polrelid
WHERE p.polname = 'tenant' AND NOT has_table_privilege(c.oid, 'SELECT')
    AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('jobs')) ORDER BY 1;

-- name: home
-- The schema that holds the tables, quoted.
SELECT quote_ident(n.nspname) FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid
WHERE c.oid = to_regclass('keptwork_migrations');

-- name: ring
-- Tells those who wait for work, and by whom they are told.
SELECT pg_notify('keptwork_jobs', :ring::text);

-- name: resume_queue
-- From the next claim on the queue is served again; rings, for what waits in it could be due. A queue that was never
-- paused has no row.
WITH served AS (UPDATE queues SET paused_at = NULL WHERE tenant_id = :tenant_id AND name = :name RETURNING name),
rung AS (SELECT pg_notify('keptwork_jobs', ''))
SELECT name FROM served LEFT JOIN rung ON true;

-- name: confirm
-- Writes a record to the log, so that the commit waits for the standbys as that of a write does.
SELECT pg_logical_emit_message(true, 'keptwork', '');

-- name: held
-- Which of these jobs a worker still holds, under which epoch, and which of them were asked to end.
SELECT id, epoch, cancel_requested_at IS NOT NULL FROM jobs
WHERE id = ANY(:ids::bigint[]) AND owner = :worker AND state = {job.running};

-- name: count
-- Adds to the counters.
INSERT INTO counters (tenant_id, name, labels, value)
SELECT * FROM unnest(:tenant_id::int[], :name::text[], :labels::text[], :value::bigint[])
ON CONFLICT (tenant_id, name, labels) DO UPDATE SET value = counters.value + excluded.value;

-- name: blobs_kept
-- Which content is there already. It stays until this transaction has ended, and need not be sent again.
SELECT b.tenant_id, b.hash FROM blobs AS b
JOIN unnest(:tenant_id::int[], :hash::text[]) AS g(tenant_id, hash) ON b.tenant_id = g.tenant_id AND b.hash = g.hash
ORDER BY b.tenant_id, b.hash FOR KEY SHARE OF b;

-- name: keep_blobs
-- Content is kept once. What somebody else has just kept is locked like our own, so that it stays.
INSERT INTO blobs (tenant_id, size, created_at, hash, content)
SELECT g.tenant_id, g.size, {now}, g.hash, g.content
FROM unnest(:tenant_id::int[], :hash::text[], :size::int[], :content::bytea[]) AS g(tenant_id, hash, size, content)
ON CONFLICT (tenant_id, hash) DO UPDATE SET size = excluded.size;

-- name: refer_to_blobs
-- Jobs whose results are blobs; the moves themselves were written just before, in the same transaction.
UPDATE jobs SET result_hash = g.hash FROM unnest(:id::bigint[], :tenant_id::int[], :hash::text[]) AS g(id, tenant_id, hash)
WHERE jobs.id = g.id AND jobs.tenant_id = g.tenant_id;

-- name: lock_blobs
-- Of what seemed unused, what nobody is about to use: whoever refers to a blob holds a lock on it until that commits.
SELECT b.tenant_id, b.hash FROM blobs AS b
JOIN unnest(:tenant_id::int[], :hash::text[]) AS g(tenant_id, hash) ON b.tenant_id = g.tenant_id AND b.hash = g.hash
FOR UPDATE OF b SKIP LOCKED;

-- name: drop_blobs
-- Those of them that nothing refers to now. They are locked, so this sees every reference there is.
DELETE FROM blobs USING unnest(:tenant_id::int[], :hash::text[]) AS g(tenant_id, hash)
WHERE blobs.tenant_id = g.tenant_id AND blobs.hash = g.hash AND {unused} RETURNING blobs.hash;

-- name: new_checkpoint
-- The result of a single step, if its job is still held and none of that name is there: as the next statement, which tells
-- more and takes longer.
INSERT INTO checkpoints (job_id, created_at, tenant_id, epoch, version, name, code, hash, result)
SELECT :job_id::bigint, keptwork_now(), j.tenant_id, :epoch::int, :version::int, :name::text, :code::text, :hash::text,
    :result::json
FROM (SELECT j.tenant_id, j.epoch, j.owner, j.state, j.lease_until FROM jobs AS j WHERE j.id = :job_id::bigint
    FOR SHARE OF j) AS j
WHERE j.epoch = :epoch::int AND j.owner = :owner::bigint AND j.state = {job.running} AND j.lease_until > keptwork_now()
ON CONFLICT (job_id, name) DO NOTHING
RETURNING true;

-- name: checkpoint
-- The results of steps whose jobs are still held; nobody can take a job away before this is committed. Tells which jobs
-- are held, and again which results are new: one of that name that is there already stands. Each job is found by its key
-- and locked before it is looked at: were the conditions in one place, the planner would search all that run for each.
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
-- How far jobs that are still held have come: the newest report of each is replaced.
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
-- What was held by one of these names can be claimed again, as far as its limit lets it.
UPDATE jobs SET held_by = {held_back}
WHERE held_by = ANY(:holds::text[]) AND state = {job.queued} RETURNING id, limit_key;

-- name: unfinished_children
-- The children of these jobs that have not ended.
SELECT id FROM jobs WHERE tenant_id = :tenant_id AND parent_id = ANY(:jobs::bigint[]) AND completed_at IS NULL ORDER BY id;

-- name: lock_signals
-- One at a time for a name, sender or waiter, until the transaction ends; in one order for everyone. Names share a few
-- hundred locks, for the server has room for some thousands.
SELECT pg_advisory_xact_lock(k.class, k.number) FROM (
    SELECT DISTINCT 1684370548 AS class, hashtext(name) & 255 AS number FROM unnest(:names::text[]) AS g(name)
    ORDER BY 2 OFFSET 0) AS k;

-- name: wake_parents
-- Jobs whose children were waited for: all of them, or any of more than there are now.
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
-- Jobs that began to wait for a signal that had been sent.
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
-- Jobs that began to wait for a decision that had been made.
UPDATE jobs SET run_at = least(jobs.run_at, {now}), waits_for = NULL
FROM unnest(:id::bigint[], :seen::bigint[]) AS g(id, seen)
WHERE jobs.id = g.id AND jobs.state = {job.queued} AND jobs.waits_for IS NOT NULL
    AND (jobs.waits_for LIKE {an_approval} || '%' OR EXISTS (
        SELECT 1 FROM waits AS w
        WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name LIKE {an_approval} || '%'))
    AND EXISTS (SELECT 1 FROM approvals AS a WHERE a.id = g.seen AND a.decision IS NOT NULL)
RETURNING jobs.id;

-- name: wake_for_signal
-- The jobs that wait for a signal of this name, in one order for everyone.
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
-- What these jobs waited for before.
DELETE FROM waits USING unnest(:job_id::bigint[], :epoch::int[]) AS g(job_id, epoch)
WHERE waits.job_id = g.job_id AND waits.epoch <= g.epoch;

-- name: note_waits
-- What these jobs wait for, as far as they have begun to.
INSERT INTO waits (job_id, tenant_id, epoch, number, name, until)
SELECT j.id, j.tenant_id, j.epoch, g.number, g.name, g.until
FROM unnest(:job_id::bigint[], :epoch::int[], :number::int[], :name::text[], :until::bigint[])
    AS g(job_id, epoch, number, name, until)
JOIN jobs AS j ON j.id = g.job_id AND j.epoch = g.epoch
WHERE j.state = {job.queued} AND j.waits_for IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: steps_by_name
-- Some steps of a flow, each by its name: otherwise the planner would look at all of the flow's.
SELECT {step_columns} FROM unnest(:names::text[]) AS wanted CROSS JOIN LATERAL (
    SELECT {step_columns} FROM steps WHERE flow_id = :flow_id::bigint AND name = wanted OFFSET 0) AS s;

-- name: scene
-- A flow and some of its steps, at one look.
SELECT f, s.* FROM {flows} AS f CROSS JOIN unnest(:names::text[]) AS wanted CROSS JOIN LATERAL (
    SELECT {step_columns} FROM steps WHERE flow_id = f.id AND name = wanted OFFSET 0) AS s
WHERE f.id = :id::bigint;
