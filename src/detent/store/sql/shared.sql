-- Statements both databases understand as they stand.

-- name: tenant_by_name
-- The key of a tenant.
SELECT id FROM tenants WHERE name = :name;

-- name: tenants
-- Every tenant, in the order they were made.
SELECT id, name, created_at FROM tenants ORDER BY id;

-- name: add_tenant
-- A tenant under the next number; nothing if the name is taken, or if another was given the same number just now.
INSERT INTO tenants (id, name, created_at) SELECT coalesce(max(id), 0) + 1, :name, {now} FROM tenants WHERE true
ON CONFLICT DO NOTHING RETURNING id;

-- name: request_seen
-- What was answered to a request of this key, if it is still remembered.
SELECT request_hash, response FROM idempotency_keys
WHERE tenant_id = :tenant_id AND endpoint = :endpoint AND key = :key;

-- name: forget_request
-- A key whose time is over may be used again.
DELETE FROM idempotency_keys
WHERE tenant_id = :tenant_id AND endpoint = :endpoint AND key = :key AND expires_at <= {now};

-- name: remember_request
-- The first request of a key takes the row; nobody else can until its transaction ends.
INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, created_at, expires_at)
VALUES (:tenant_id, :endpoint, :key, :request_hash, {now}, {now} + :ttl_us)
ON CONFLICT DO NOTHING RETURNING key;

-- name: answer_request
-- The answer to repeat.
UPDATE idempotency_keys SET response = :response
WHERE tenant_id = :tenant_id AND endpoint = :endpoint AND key = :key;

-- name: forget_old_requests
-- Keys whose time is over, the oldest first.
DELETE FROM idempotency_keys WHERE (tenant_id, endpoint, key) IN (
    SELECT tenant_id, endpoint, key FROM idempotency_keys WHERE expires_at <= {now} ORDER BY expires_at LIMIT :limit)
RETURNING key;

-- name: pause_queue
-- From the next claim on nothing is taken from the queue.
INSERT INTO queues (tenant_id, name, paused_at) VALUES (:tenant_id, :name, {now})
ON CONFLICT (tenant_id, name) DO UPDATE SET paused_at = coalesce(queues.paused_at, excluded.paused_at);

-- name: declare_limit
-- What holds from now on for a kind of jobs or a queue.
INSERT INTO limit_rules (what, name, most, rate, window_us, per)
VALUES (:what, :name, :most, :rate, :window_us, :per)
ON CONFLICT (what, name) DO UPDATE SET most = excluded.most, rate = excluded.rate, window_us = excluded.window_us,
    per = excluded.per
WHERE limit_rules.most IS DISTINCT FROM excluded.most OR limit_rules.rate IS DISTINCT FROM excluded.rate
    OR limit_rules.window_us IS DISTINCT FROM excluded.window_us OR limit_rules.per <> excluded.per
RETURNING name;

-- name: drop_limit
-- From now on there is none.
DELETE FROM limit_rules WHERE what = :what AND name = :name RETURNING name;

-- name: look_at_kind
-- Its limit has changed: all that it holds back is looked at again.
INSERT INTO limit_wakes (at, tenant_id, key)
SELECT DISTINCT 0, CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key FROM jobs
WHERE state = {job.queued} AND held_by = 'limit' AND kind = :name;

-- name: limit_rules
-- Every limit that was declared.
SELECT what, name, most, rate, window_us, per FROM limit_rules ORDER BY what, name;

-- name: limit_uses
-- What counts against the keys of a tenant and those of all, and what they hold back.
SELECT tenant_id, key, CAST(sum(running) AS {int}), CAST(sum(waiting) AS {int}), min(next_at) FROM (
    SELECT CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END AS tenant_id, limit_key AS key, 1 AS running,
        0 AS waiting, CAST(NULL AS {time}) AS next_at
    FROM jobs WHERE limit_key IS NOT NULL AND held_by IS NULL AND completed_at IS NULL
    UNION ALL
    SELECT CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key, 0, 1, NULL
    FROM jobs WHERE held_by = 'limit' AND state = {job.queued}
    UNION ALL
    SELECT tenant_id, key, 0, 0, pump_at FROM limits WHERE pump_at IS NOT NULL
    UNION ALL
    SELECT u.tenant_id, u.key, 1, 0, NULL FROM limit_uses AS u
    JOIN jobs AS j ON j.id = u.job_id AND j.epoch = u.epoch AND j.state IN ({job.assigned}, {job.running})
    WHERE u.key LIKE 'queue:%') AS counted
WHERE tenant_id IN (0, :tenant_id) GROUP BY tenant_id, key ORDER BY tenant_id, key;

-- name: recent_job
-- The job that calls under a key have made, with its row locked.
INSERT INTO recent_jobs (tenant_id, key, first_at, until) VALUES (:tenant_id, :key, {now}, 0)
ON CONFLICT (tenant_id, key) DO UPDATE SET key = excluded.key RETURNING job_id, first_at, until > {now};

-- name: job_made
-- A call under a key has made a job; until then others fall to it.
UPDATE recent_jobs SET job_id = :job_id, first_at = {now}, until = {now} + :window_us
WHERE tenant_id = :tenant_id AND key = :key;

-- name: push_back
-- A job that has not started takes a new payload, and waits once more, but not beyond its time.
UPDATE jobs SET payload = :payload, limit_key = :limit_key, held_by = :held_by,
    run_at = CASE WHEN {now} + CAST(:wait_us AS {time}) < CAST(:latest AS {time}) THEN {now} + CAST(:wait_us AS {time})
        ELSE CAST(:latest AS {time}) END
WHERE id = :id AND tenant_id = :tenant_id AND state = {job.queued} AND epoch = 0 RETURNING id;

-- name: forget_recent_jobs
-- Keys whose windows are over.
DELETE FROM recent_jobs WHERE (tenant_id, key) IN (
    SELECT tenant_id, key FROM recent_jobs WHERE until <= {now} ORDER BY until LIMIT :limit) RETURNING key;

-- name: forget_uses
-- Starts that are older than every window there is.
DELETE FROM limit_uses WHERE (tenant_id, key, used_at, job_id, epoch) IN (
    SELECT tenant_id, key, used_at, job_id, epoch FROM limit_uses WHERE key NOT LIKE 'queue:%'
        AND used_at <= {now} - coalesce((SELECT max(window_us) FROM limit_rules WHERE what = 'job'), 0) LIMIT :limit)
RETURNING key;

-- name: forget_limit_rows
-- Keys that nothing counts against, and that hold nothing back.
DELETE FROM limits WHERE pump_at IS NULL AND (tenant_id, key) IN (
    SELECT l.tenant_id, l.key FROM limits AS l
    WHERE NOT EXISTS (SELECT 1 FROM jobs AS j
            WHERE j.limit_key = l.key AND j.limit_key IS NOT NULL AND j.held_by IS NULL AND j.completed_at IS NULL)
        AND NOT EXISTS (SELECT 1 FROM jobs AS j
            WHERE j.limit_key = l.key AND j.held_by = 'limit' AND j.state = {job.queued})
    LIMIT :limit)
RETURNING key;

-- name: next_pump
-- When a limit is to be looked at next: what waits behind it is due, or its rate lets something go.
SELECT min(at) FROM (SELECT min(at) AS at FROM limit_wakes
    UNION ALL SELECT min(pump_at) FROM limits WHERE pump_at IS NOT NULL) AS either;

-- name: event_count
-- How many events there are, of one tenant or of all.
SELECT count(*) FROM events WHERE (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id);

-- name: request_stop
-- Asks a running job to come to an end by itself.
UPDATE jobs SET cancel_requested_at = coalesce(cancel_requested_at, {now})
WHERE id = :id AND tenant_id = :tenant_id AND state = {job.running} RETURNING id;

-- name: queues
-- Each queue of a tenant: a row for every state its jobs are in, and one for what was ever said about it.
SELECT j.queue, j.state, count(*), min(CASE WHEN j.state = {job.queued} AND j.held_by IS NULL AND j.run_at <= clock.now
    THEN j.run_at END), CAST(NULL AS {time})
FROM jobs AS j, (SELECT {now} AS now) AS clock WHERE j.tenant_id = :tenant_id GROUP BY j.queue, j.state
UNION ALL
SELECT q.name, NULL, 0, NULL, q.paused_at FROM queues AS q WHERE q.tenant_id = :tenant_id;

-- name: digest
-- The next events of the log, counted by what is alike in them. An entity has been in the state it leaves since its last
-- move; a job that is claimed has waited since it came into the queue, or since it was due if that was later, which only
-- the row knows and only until the job is put back. Each look behind is one step in an index, whatever the planner
-- believes of the tables.
WITH page AS MATERIALIZED (
    SELECT {tx} AS tx, id, tenant_id, entity, entity_id, seq, epoch, trigger, ts, from_state, to_state,
        CASE trigger WHEN {job.dead_letter} THEN reason END AS reason
    FROM events WHERE {after_cursor} ORDER BY {commit_order} LIMIT :limit),
looked_up AS MATERIALIZED (
    SELECT p.*,
        (SELECT b.ts FROM events AS b WHERE b.entity_id = p.entity_id AND b.seq < p.seq AND b.entity = p.entity
            AND b.trigger NOT IN ({notes}) ORDER BY b.seq DESC LIMIT 1) AS since,
        CASE p.entity WHEN 'job' THEN (SELECT j.kind FROM jobs AS j WHERE j.id = p.entity_id) ELSE '' END AS kind,
        CASE WHEN p.entity = 'job' AND p.trigger = {job.claim}
            THEN (SELECT j.run_at FROM jobs AS j WHERE j.id = p.entity_id AND j.epoch = p.epoch) END AS due
    FROM page AS p),
measured AS MATERIALIZED (
    SELECT l.*, ts - since AS lasted,
        CASE WHEN due > ts THEN 0 WHEN due > since THEN ts - due WHEN due IS NOT NULL THEN ts - since END AS waited
    FROM looked_up AS l)
SELECT tenant_id, entity, kind, trigger, from_state, to_state, reason, {lasted_bucket}, {waited_bucket}, count(*),
    CAST(coalesce(sum(lasted), 0) AS {key}), CAST(coalesce(sum(waited), 0) AS {key}),
    (SELECT tx FROM page ORDER BY tx DESC, id DESC LIMIT 1), (SELECT id FROM page ORDER BY tx DESC, id DESC LIMIT 1)
FROM measured GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9;

-- name: log_position
-- How far a reader of the log has come.
SELECT cursor FROM log_positions WHERE reader = :reader;

-- name: move_on
-- A reader moves on, if it still stands where it began to read.
INSERT INTO log_positions (reader, cursor) VALUES (:reader, :upto)
ON CONFLICT (reader) DO UPDATE SET cursor = excluded.cursor WHERE log_positions.cursor = :after
RETURNING reader;

-- name: counters
-- What was counted for a tenant.
SELECT tenant_id, name, labels, value FROM counters WHERE tenant_id = :tenant_id ORDER BY name, labels;

-- name: job_moves_since
-- The moves of a tenant's jobs since a point in time, by trigger.
SELECT trigger, count(*) FROM events
WHERE ts >= :since AND tenant_id = :tenant_id AND entity = 'job' GROUP BY trigger;

-- name: blob
-- Content by its hash.
SELECT content FROM blobs WHERE tenant_id = :tenant_id AND hash = :hash;

-- name: artifacts
-- What a job keeps beside its result.
SELECT name, media_type, size, hash, epoch, created_at FROM artifacts
WHERE tenant_id = :tenant_id AND job_id = :job_id ORDER BY name;

-- name: keep_artifact
-- Only for whoever holds the job; PostgreSQL lets nobody take it away before this is committed.
INSERT INTO artifacts (tenant_id, job_id, epoch, size, created_at, name, hash, media_type)
SELECT tenant_id, id, epoch, CAST(:size AS {int}), {now}, CAST(:name AS text), CAST(:hash AS text),
    CAST(:media_type AS text)
FROM jobs WHERE id = :id AND tenant_id = :tenant_id AND epoch = :epoch AND owner = :owner AND state = {job.running}
    AND lease_until > {now} {for_share}
ON CONFLICT (tenant_id, job_id, name) DO UPDATE SET epoch = excluded.epoch, size = excluded.size,
    created_at = excluded.created_at, hash = excluded.hash, media_type = excluded.media_type
RETURNING created_at;

-- name: unused_blobs
-- Blobs that nothing refers to, the oldest first.
SELECT tenant_id, hash FROM blobs WHERE created_at < :older_than AND {unused} ORDER BY created_at LIMIT :limit;

-- name: prunable_job
-- The next jobs by id, which is by age: whether each is old enough to look further, and whether it may go.
SELECT id, state, created_at < :newest, {job_may_go} FROM jobs WHERE id > :after ORDER BY id LIMIT :limit;

-- name: prunable_worker
-- The next workers by id, as above.
SELECT id, state, created_at < :newest, {worker_may_go} FROM workers WHERE id > :after ORDER BY id LIMIT :limit;

-- name: pruned
-- What retention has deleted so far.
SELECT tenant_id, entity, state, pruned, pruned_before FROM retention ORDER BY tenant_id, entity, state;

-- name: record_telemetry
-- Something seen of an entity, worth keeping for a while. Two of a kind in one microsecond are one.
INSERT INTO telemetry (tenant_id, entity, entity_id, kind, ts, expires_at, payload)
VALUES (:tenant_id, :entity, :entity_id, :kind, {now}, {now} + :ttl_us, :payload) ON CONFLICT DO NOTHING;

-- name: telemetry
-- What was lately seen of an entity, the newest first.
SELECT kind, ts, payload FROM telemetry
WHERE entity_id = :entity_id AND entity = :entity AND tenant_id = :tenant_id ORDER BY ts DESC LIMIT :limit;

-- name: forget_telemetry
-- What was to be kept until now, the oldest first.
DELETE FROM telemetry WHERE (entity_id, ts, kind, entity) IN (
    SELECT entity_id, ts, kind, entity FROM telemetry WHERE expires_at <= {now} ORDER BY expires_at LIMIT :limit)
RETURNING entity_id;

-- name: take_duty
-- The first to come when a duty is due takes it, and the next time is set.
INSERT INTO duties (name, next_at) VALUES (:name, {now} + :every_us)
ON CONFLICT (name) DO UPDATE SET next_at = excluded.next_at WHERE duties.next_at <= {now} RETURNING name;

-- name: checkpoints
-- What a job's steps have left, in the order they did.
SELECT {checkpoint_columns} FROM checkpoints
WHERE tenant_id = :tenant_id AND job_id = :job_id ORDER BY created_at, name;

-- name: checkpoint_changed
-- A step whose result was made by other code than a worker has now.
UPDATE checkpoints SET changed_at = coalesce(changed_at, {now})
WHERE tenant_id = :tenant_id AND job_id = :job_id AND name = :name;
