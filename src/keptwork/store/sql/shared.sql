-- Statements both databases understand as they stand.

-- name: tenant_by_name
-- The key of a tenant.
SELECT id FROM tenants WHERE name = :name;

-- name: tenants
-- Every tenant, in the order they were made.
SELECT id, name, created_at, limits FROM tenants ORDER BY id;

-- name: add_tenant
-- A tenant under the next number; nothing if the name is taken, or if another was given the same number just now.
INSERT INTO tenants (id, name, created_at) SELECT coalesce(max(id), 0) + 1, :name, {now} FROM tenants WHERE true
ON CONFLICT DO NOTHING RETURNING id;

-- name: tenant_limits
-- What a tenant may ask of a server, where it has something of its own.
SELECT limits FROM tenants WHERE id = :tenant_id;

-- name: set_tenant_limits
-- From now on a tenant may ask that much.
UPDATE tenants SET limits = :limits WHERE id = :tenant_id RETURNING id;

-- name: waiting_in_queues
-- How many jobs of a tenant could be claimed now or later, of each queue no more than `most`. Each step from queue to queue
-- is one look into the index that claims read, and jobs of others are not read.
WITH RECURSIVE lines AS (
    SELECT (SELECT queue FROM jobs WHERE state = {job.queued} AND held_by IS NULL ORDER BY queue LIMIT 1) AS queue
    UNION ALL
    SELECT (SELECT j.queue FROM jobs AS j WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue > l.queue
        ORDER BY j.queue LIMIT 1)
    FROM lines AS l WHERE l.queue IS NOT NULL)
SELECT sum((SELECT count(*) FROM (SELECT 1 FROM jobs AS j
    WHERE j.queue = lines.queue AND j.tenant_id = :tenant_id AND j.state = {job.queued} AND j.held_by IS NULL
    LIMIT :most) AS waiting)) FROM lines;

-- name: waiting_and_held
-- The same of those that something holds back, but for limits.
WITH RECURSIVE holders AS (
    SELECT (SELECT held_by FROM jobs WHERE held_by <> 'limit' AND state = {job.queued} ORDER BY held_by LIMIT 1) AS held_by
    UNION ALL
    SELECT (SELECT j.held_by FROM jobs AS j WHERE j.held_by <> 'limit' AND j.state = {job.queued} AND j.held_by > h.held_by
        ORDER BY j.held_by LIMIT 1)
    FROM holders AS h WHERE h.held_by IS NOT NULL)
SELECT sum((SELECT count(*) FROM (SELECT 1 FROM jobs AS j
    WHERE j.held_by = holders.held_by AND j.held_by <> 'limit' AND j.tenant_id = :tenant_id AND j.state = {job.queued}
    LIMIT :most) AS waiting)) FROM holders;

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
-- A job that has not started becomes the job of the newest call, and waits once more, but not beyond its time.
UPDATE jobs SET payload = :payload, limit_key = :limit_key, held_by = :held_by, priority = :priority, queue = :queue,
    correlation_id = :correlation_id, trace_id = :trace_id,
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

-- name: worker_states
-- How many workers of a tenant are in which state.
SELECT state, count(*) FROM workers WHERE tenant_id = :tenant_id GROUP BY state ORDER BY state;

-- name: beat
-- A worker's process is alive. What it reads here was asked of it, and by whom its row was moved last.
UPDATE workers SET seen_at = {now} WHERE id = :worker RETURNING state, ending, actor, reason;

-- name: ask_to_end
-- How a worker is to come to an end.
UPDATE workers SET ending = :ending WHERE id = :worker AND tenant_id = :tenant_id RETURNING id;

-- name: queues
-- Each queue of a tenant: a row for every state its jobs are in, and one for what was ever said about it.
SELECT j.queue, j.state, count(*), min(CASE WHEN j.state = {job.queued} AND j.held_by IS NULL AND j.run_at <= clock.now
    THEN j.run_at END), CAST(NULL AS {time}), count(CASE WHEN j.state = {job.queued}
    AND j.held_by NOT IN ('limit', 'quota') THEN 1 END)
FROM jobs AS j, (SELECT {now} AS now) AS clock WHERE j.tenant_id = :tenant_id GROUP BY j.queue, j.state
UNION ALL
SELECT q.name, NULL, 0, NULL, q.paused_at, 0 FROM queues AS q WHERE q.tenant_id = :tenant_id;

-- name: unfinished_queues
-- The same without the jobs that have ended: what can be claimed, what is held back and what is leased has an index each,
-- so that however many have ended cost nothing.
SELECT j.queue, j.state, count(*), min(CASE WHEN j.run_at <= clock.now THEN j.run_at END), CAST(NULL AS {time}), 0
FROM jobs AS j, (SELECT {now} AS now) AS clock
WHERE j.tenant_id = :tenant_id AND j.state = {job.queued} AND j.held_by IS NULL GROUP BY j.queue, j.state
UNION ALL
SELECT j.queue, j.state, count(*), NULL, NULL, count(CASE WHEN j.held_by NOT IN ('limit', 'quota') THEN 1 END)
FROM jobs AS j
WHERE j.tenant_id = :tenant_id AND j.state = {job.queued} AND j.held_by IS NOT NULL GROUP BY j.queue, j.state
UNION ALL
SELECT j.queue, j.state, count(*), NULL, NULL, 0 FROM jobs AS j
WHERE j.tenant_id = :tenant_id AND j.state IN ({job.assigned}, {job.running}) GROUP BY j.queue, j.state
UNION ALL
SELECT q.name, NULL, 0, NULL, q.paused_at, 0 FROM queues AS q WHERE q.tenant_id = :tenant_id;

-- name: place
-- Where a job stands in its queue. What is due before it is counted no further than people count.
SELECT (SELECT q.paused_at FROM queues AS q WHERE q.tenant_id = j.tenant_id AND q.name = j.queue),
    (SELECT count(*) FROM (SELECT 1 FROM jobs AS a
        WHERE a.state = {job.queued} AND a.held_by IS NULL AND a.queue = j.queue AND a.tenant_id = j.tenant_id
            AND a.run_at <= {now} AND (a.priority > j.priority OR (a.priority = j.priority
                AND (a.run_at < j.run_at OR (a.run_at = j.run_at AND a.id < j.id)))) LIMIT 1000) AS ahead),
    (SELECT count(*) FROM jobs AS c WHERE c.parent_id = j.id AND c.completed_at IS NULL)
FROM jobs AS j WHERE j.id = :id AND j.tenant_id = :tenant_id;

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
        CASE p.entity WHEN 'job' THEN (SELECT j.kind FROM jobs AS j WHERE j.id = p.entity_id)
            WHEN 'breaker' THEN (SELECT b.name FROM breakers AS b WHERE b.id = p.entity_id) ELSE '' END AS kind,
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
-- The moves of a tenant's jobs since a point in time and before another, by trigger.
SELECT trigger, count(*) FROM events
WHERE ts >= :since AND ts < coalesce(CAST(:until AS {time}), 9223372036854775807) AND tenant_id = :tenant_id
    AND entity = 'job' GROUP BY trigger;

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
-- The first to come when a duty is due takes it, and the next time is set. A duty that is not due is only read: a conflict
-- would lock its row, and PostgreSQL writes a lock to its log.
INSERT INTO duties (name, next_at) SELECT CAST(:name AS text), {now} + CAST(:every_us AS {time})
WHERE NOT EXISTS (SELECT 1 FROM duties AS d WHERE d.name = :name AND d.next_at > {now})
ON CONFLICT (name) DO UPDATE SET next_at = excluded.next_at WHERE duties.next_at <= {now} RETURNING name;

-- name: schedules
-- The schedules of a tenant.
SELECT {schedule_columns} FROM schedules WHERE tenant_id = :tenant_id ORDER BY name;

-- name: schedule_due
-- How long it is until the next schedule of any tenant is due.
SELECT next_at - (SELECT {now}) FROM schedules WHERE paused_at IS NULL ORDER BY next_at LIMIT 1;

-- name: put_schedule
-- A schedule, or what is said anew about one. Its pause and how far it has got stay; a changed rule begins from now.
INSERT INTO schedules (tenant_id, name, kind, queue, payload, rules, cron, every_us, tz, catch_up, declared_by, next_at,
    created_at, updated_at)
VALUES (:tenant_id, :name, :kind, :queue, :payload, :rules, :cron, :every_us, :tz, :catch_up, :declared_by, :next_at,
    {now}, {now})
ON CONFLICT (tenant_id, name) DO UPDATE SET kind = excluded.kind, queue = excluded.queue, payload = excluded.payload,
    rules = excluded.rules, cron = excluded.cron, every_us = excluded.every_us, tz = excluded.tz,
    catch_up = excluded.catch_up, declared_by = excluded.declared_by, updated_at = excluded.updated_at,
    next_at = CASE WHEN schedules.cron IS NOT DISTINCT FROM excluded.cron AND schedules.tz = excluded.tz
        AND schedules.every_us IS NOT DISTINCT FROM excluded.every_us THEN schedules.next_at ELSE excluded.next_at END;

-- name: due_schedules
-- Those whose tick has come, the longest first. On PostgreSQL they are this transaction's; SQLite has one writer.
SELECT {schedule_columns} FROM schedules WHERE paused_at IS NULL AND next_at <= (SELECT {now})
ORDER BY next_at LIMIT :limit {for_update_skip_locked};

-- name: move_schedule
-- To its next tick, if it still stands where it was read.
UPDATE schedules SET next_at = :next_at, last_at = coalesce(:last_at, last_at)
WHERE tenant_id = :tenant_id AND name = :name AND next_at = :was AND paused_at IS NULL RETURNING name;

-- name: pause_schedule
-- From now on it is never due.
UPDATE schedules SET paused_at = coalesce(paused_at, {now}) WHERE tenant_id = :tenant_id AND name = :name RETURNING name;

-- name: resume_schedule
-- From its next tick on it is due again; those of its pause are over.
UPDATE schedules SET next_at = CASE WHEN paused_at IS NULL THEN next_at ELSE :next_at END, paused_at = NULL
WHERE tenant_id = :tenant_id AND name = :name RETURNING name;

-- name: drop_schedule
-- Jobs that it enqueued stay.
DELETE FROM schedules WHERE tenant_id = :tenant_id AND name = :name RETURNING name;

-- name: checkpoints
-- What a job's steps have left, in the order they did.
SELECT {checkpoint_columns} FROM checkpoints
WHERE tenant_id = :tenant_id AND job_id = :job_id ORDER BY created_at, name;

-- name: checkpoint_changed
-- A step whose result was made by other code than a worker has now.
UPDATE checkpoints SET changed_at = coalesce(changed_at, {now})
WHERE tenant_id = :tenant_id AND job_id = :job_id AND name = :name;

-- name: cancelled_parents
-- Cancelled jobs with children that have not ended. Of such children the index is read one parent at a time, however
-- many each has.
WITH RECURSIVE parents(id) AS (
    SELECT min(parent_id) FROM jobs WHERE parent_id IS NOT NULL AND completed_at IS NULL
    UNION ALL
    SELECT (SELECT min(j.parent_id) FROM jobs AS j WHERE j.parent_id > parents.id AND j.completed_at IS NULL)
    FROM parents WHERE parents.id IS NOT NULL)
SELECT p.tenant_id, p.id FROM parents JOIN jobs AS p ON p.id = parents.id WHERE p.state = {job.cancelled} LIMIT :limit;

-- name: stopped_waits
-- Jobs that wait although they were asked to end.
SELECT tenant_id, id FROM jobs
WHERE cancel_requested_at IS NOT NULL AND waits_for IS NOT NULL AND state = {job.queued} ORDER BY id LIMIT :limit;

-- name: next_signal
-- The first signal of a name after a position: of those for everyone, or of those for this job.
SELECT id, payload FROM (
    SELECT * FROM (SELECT id, payload FROM signals
        WHERE tenant_id = :tenant_id AND name = :name AND job_id = 0 AND id > :after ORDER BY id LIMIT 1) AS everyones
    UNION ALL
    SELECT * FROM (SELECT id, payload FROM signals
        WHERE tenant_id = :tenant_id AND name = :name AND job_id = :job_id AND id > :after ORDER BY id LIMIT 1) AS own
) AS next ORDER BY id LIMIT 1;

-- name: send_signal
-- The next signal of its name; nothing if its key was used before.
INSERT INTO signals (created_at, job_id, tenant_id, name, key, payload)
VALUES ({now}, :job_id, :tenant_id, :name, :key, :payload) ON CONFLICT (tenant_id, key) DO NOTHING RETURNING id;

-- name: signal_by_key
-- The signal a key has already sent.
SELECT id FROM signals WHERE tenant_id = :tenant_id AND key = :key;

-- name: forget_signals
-- Signals that were sent before then, the oldest first.
DELETE FROM signals WHERE id IN (
    SELECT id FROM signals WHERE created_at < :older_than ORDER BY created_at LIMIT :limit)
RETURNING id;

-- name: approval
-- A question by its key.
SELECT {approval_columns} FROM approvals WHERE id = :id AND tenant_id = :tenant_id;

-- name: approvals
-- Questions, the newest first: of one job or of all, open or of any kind.
SELECT {approval_columns} FROM approvals
WHERE tenant_id = :tenant_id AND (CAST(:job_id AS {key}) IS NULL OR job_id = :job_id)
    AND (CAST(:after AS {key}) IS NULL OR id < :after) ORDER BY id DESC LIMIT :limit;

-- name: open_approvals
-- The same, of those without a decision.
SELECT {approval_columns} FROM approvals
WHERE tenant_id = :tenant_id AND decision IS NULL AND (CAST(:job_id AS {key}) IS NULL OR job_id = :job_id)
    AND (CAST(:after AS {key}) IS NULL OR id < :after) ORDER BY id DESC LIMIT :limit;

-- name: still_held
-- Whether a claim of a job still holds it; PostgreSQL lets nobody take it away before this is committed.
SELECT 1 FROM jobs
WHERE id = :job_id AND epoch = :epoch AND owner = :owner AND state = {job.running} AND lease_until > {now} {for_share};

-- name: lock_jobs
-- Lock jobs in the one order that every session uses: the second session to lock them sees what the first has written.
SELECT id, epoch, completed_at FROM jobs WHERE id IN {ids} ORDER BY id {for_change};

-- name: approval_asked
-- The same question of the same job and place, if it was not withdrawn.
SELECT {approval_columns} FROM approvals
WHERE job_id = :job_id AND step = :step AND digest = :digest AND coalesce(decision, '') <> 'withdrawn';

-- name: withdraw_others
-- Other questions of the same job and place that are still open: what they ask about is no longer what would be done.
UPDATE approvals SET decision = 'withdrawn', decided_at = {now}
WHERE job_id = :job_id AND step = :step AND digest <> :digest AND decision IS NULL;

-- name: open_approval
-- A question, unless it was asked before.
INSERT INTO approvals (id, created_at, expires_at, job_id, tenant_id, step, question, details, digest, scope)
VALUES (:id, {now}, {now} + :expires_us, :job_id, :tenant_id, :step, :question, :details, :digest, :scope)
ON CONFLICT DO NOTHING RETURNING id;

-- name: lock_asker
-- The job that asks, so that nothing moves it before the decision is written.
SELECT id FROM jobs WHERE id = (SELECT job_id FROM approvals WHERE id = :id AND tenant_id = :tenant_id) {for_change};

-- name: decide_approval
-- One decision for ever: of what is open, while its job has not ended, and in time; or, once it is late, that it is late.
UPDATE approvals SET decision = :decision, decided_at = {now}, decided_by = :decided_by, comment = :comment
WHERE id = :id AND tenant_id = :tenant_id AND decision IS NULL
    AND (job_id IS NULL OR EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = approvals.job_id AND j.completed_at IS NULL))
    AND CASE WHEN :decision = 'expired' THEN expires_at <= {now}
        ELSE expires_at IS NULL OR expires_at > {now} END
RETURNING job_id;

-- name: wake_asker
-- The job that waits for this decision is due.
UPDATE jobs SET run_at = {now}, waits_for = NULL
WHERE id = :job_id AND state = {job.queued} AND waits_for IS NOT NULL AND (waits_for = :waits_for OR EXISTS (
    SELECT 1 FROM waits AS w WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name = :waits_for))
RETURNING id;

-- name: withdraw_approvals
-- Open questions of jobs that have ended, or are gone.
UPDATE approvals SET decision = 'withdrawn', decided_at = {now} WHERE id IN (
    SELECT a.id FROM approvals AS a WHERE {stale} LIMIT :limit)
    AND decision IS NULL RETURNING id;
