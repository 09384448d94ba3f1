-- Statements that both databases run in the same form.

-- name: tenant_by_name
-- Get the ID of a tenant.
SELECT id FROM tenants WHERE name = :name;

-- name: tenants
-- List all tenants in the order of their creation.
SELECT id, name, created_at, limits FROM tenants ORDER BY id;

-- name: add_tenant
-- Add a tenant under the next ID. Returns no row if the name is taken, or if another call has just used that ID.
INSERT INTO tenants (id, name, created_at) SELECT coalesce(max(id), 0) + 1, :name, {now} FROM tenants WHERE true
ON CONFLICT DO NOTHING RETURNING id;

-- name: tenant_limits
-- Get a tenant's own request limits.
SELECT limits FROM tenants WHERE id = :tenant_id;

-- name: set_tenant_limits
-- Set a tenant's own request limits.
UPDATE tenants SET limits = :limits WHERE id = :tenant_id RETURNING id;

-- name: waiting_in_queues
-- Count a tenant's queued jobs without a hold, in each queue at most `most`. Each step to the next queue is one lookup
-- in the index that claims use, and other tenants' jobs are not read.
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
-- Count a tenant's queued jobs with a hold other than a limit, for each hold at most `most`.
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
-- Get the request hash and the response of a remembered request key.
SELECT request_hash, response FROM idempotency_keys
WHERE tenant_id = :tenant_id AND endpoint = :endpoint AND key = :key;

-- name: forget_request
-- Delete a request key that has expired, so that it can be used again.
DELETE FROM idempotency_keys
WHERE tenant_id = :tenant_id AND endpoint = :endpoint AND key = :key AND expires_at <= {now};

-- name: remember_request
-- Insert the row of a key's first request. No other transaction can insert it until this one ends.
INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, created_at, expires_at)
VALUES (:tenant_id, :endpoint, :key, :request_hash, {now}, {now} + :ttl_us)
ON CONFLICT DO NOTHING RETURNING key;

-- name: answer_request
-- Store the response for repeated requests.
UPDATE idempotency_keys SET response = :response
WHERE tenant_id = :tenant_id AND endpoint = :endpoint AND key = :key;

-- name: forget_old_requests
-- Delete expired request keys, oldest first.
DELETE FROM idempotency_keys WHERE (tenant_id, endpoint, key) IN (
    SELECT tenant_id, endpoint, key FROM idempotency_keys WHERE expires_at <= {now} ORDER BY expires_at LIMIT :limit)
RETURNING key;

-- name: pause_queue
-- Pause a queue from the next claim on.
INSERT INTO queues (tenant_id, name, paused_at) VALUES (:tenant_id, :name, {now})
ON CONFLICT (tenant_id, name) DO UPDATE SET paused_at = coalesce(queues.paused_at, excluded.paused_at);

-- name: declare_limit
-- Set the limit of a kind of jobs or a queue. Returns a row only if it changed.
INSERT INTO limit_rules (what, name, most, rate, window_us, per)
VALUES (:what, :name, :most, :rate, :window_us, :per)
ON CONFLICT (what, name) DO UPDATE SET most = excluded.most, rate = excluded.rate, window_us = excluded.window_us,
    per = excluded.per
WHERE limit_rules.most IS DISTINCT FROM excluded.most OR limit_rules.rate IS DISTINCT FROM excluded.rate
    OR limit_rules.window_us IS DISTINCT FROM excluded.window_us OR limit_rules.per <> excluded.per
RETURNING name;

-- name: drop_limit
-- Delete the limit of a kind of jobs or a queue.
DELETE FROM limit_rules WHERE what = :what AND name = :name RETURNING name;

-- name: look_at_kind
-- Check all held jobs of a kind again, because its limit has changed.
INSERT INTO limit_wakes (at, tenant_id, key)
SELECT DISTINCT 0, CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key FROM jobs
WHERE state = {job.queued} AND held_by = 'limit' AND kind = :name;

-- name: limit_rules
-- List every declared limit.
SELECT what, name, most, rate, window_us, per FROM limit_rules ORDER BY what, name;

-- name: limit_uses
-- Count the running and held jobs per key, for the keys of one tenant and those of all tenants.
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
-- Get the job that earlier calls under a key created, and lock the key's row.
INSERT INTO recent_jobs (tenant_id, key, first_at, until) VALUES (:tenant_id, :key, {now}, 0)
ON CONFLICT (tenant_id, key) DO UPDATE SET key = excluded.key RETURNING job_id, first_at, until > {now};

-- name: job_made
-- Record that a call under a key created a job. Until the window ends, further calls get that job.
UPDATE recent_jobs SET job_id = :job_id, first_at = {now}, until = {now} + :window_us
WHERE tenant_id = :tenant_id AND key = :key;

-- name: push_back
-- Give a job that has not started the values of the newest call, and postpone it, but not beyond its latest time.
UPDATE jobs SET payload = :payload, limit_key = :limit_key, held_by = :held_by, priority = :priority, queue = :queue,
    correlation_id = :correlation_id, trace_id = :trace_id,
    run_at = CASE WHEN {now} + CAST(:wait_us AS {time}) < CAST(:latest AS {time}) THEN {now} + CAST(:wait_us AS {time})
        ELSE CAST(:latest AS {time}) END
WHERE id = :id AND tenant_id = :tenant_id AND state = {job.queued} AND epoch = 0 RETURNING id;

-- name: forget_recent_jobs
-- Delete keys whose windows have elapsed.
DELETE FROM recent_jobs WHERE (tenant_id, key) IN (
    SELECT tenant_id, key FROM recent_jobs WHERE until <= {now} ORDER BY until LIMIT :limit) RETURNING key;

-- name: forget_uses
-- Delete starts that are older than every rate window.
DELETE FROM limit_uses WHERE (tenant_id, key, used_at, job_id, epoch) IN (
    SELECT tenant_id, key, used_at, job_id, epoch FROM limit_uses WHERE key NOT LIKE 'queue:%'
        AND used_at <= {now} - coalesce((SELECT max(window_us) FROM limit_rules WHERE what = 'job'), 0) LIMIT :limit)
RETURNING key;

-- name: forget_limit_rows
-- Delete the rows of keys with no running and no held jobs.
DELETE FROM limits WHERE pump_at IS NULL AND (tenant_id, key) IN (
    SELECT l.tenant_id, l.key FROM limits AS l
    WHERE NOT EXISTS (SELECT 1 FROM jobs AS j
            WHERE j.limit_key = l.key AND j.limit_key IS NOT NULL AND j.held_by IS NULL AND j.completed_at IS NULL)
        AND NOT EXISTS (SELECT 1 FROM jobs AS j
            WHERE j.limit_key = l.key AND j.held_by = 'limit' AND j.state = {job.queued})
    LIMIT :limit)
RETURNING key;

-- name: next_pump
-- Get when a limit must be checked next: a job that it holds is due, or its rate allows a start.
SELECT min(at) FROM (SELECT min(at) AS at FROM limit_wakes
    UNION ALL SELECT min(pump_at) FROM limits WHERE pump_at IS NOT NULL) AS either;

-- name: event_count
-- Count the events of one tenant or of all.
SELECT count(*) FROM events WHERE (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id);

-- name: request_stop
-- Request cancellation of a running job.
UPDATE jobs SET cancel_requested_at = coalesce(cancel_requested_at, {now})
WHERE id = :id AND tenant_id = :tenant_id AND state = {job.running} RETURNING id;

-- name: worker_states
-- Count a tenant's workers per state.
SELECT state, count(*) FROM workers WHERE tenant_id = :tenant_id GROUP BY state ORDER BY state;

-- name: beat
-- Record a worker's heartbeat. Returns its state, its requested end, and the actor and reason of its last move.
UPDATE workers SET seen_at = {now} WHERE id = :worker RETURNING state, ending, actor, reason;

-- name: ask_to_end
-- Request that a worker ends, and how.
UPDATE workers SET ending = :ending WHERE id = :worker AND tenant_id = :tenant_id RETURNING id;

-- name: queues
-- Summarize each queue of a tenant: a row for each state of its jobs, and one with the time of its pause.
SELECT j.queue, j.state, count(*), min(CASE WHEN j.state = {job.queued} AND j.held_by IS NULL AND j.run_at <= clock.now
    THEN j.run_at END), CAST(NULL AS {time}), count(CASE WHEN j.state = {job.queued}
    AND j.held_by NOT IN ('limit', 'quota') THEN 1 END)
FROM jobs AS j, (SELECT {now} AS now) AS clock WHERE j.tenant_id = :tenant_id GROUP BY j.queue, j.state
UNION ALL
SELECT q.name, NULL, 0, NULL, q.paused_at, 0 FROM queues AS q WHERE q.tenant_id = :tenant_id;

-- name: unfinished_queues
-- Summarize each queue of a tenant without finished jobs. Claimable, held, and leased jobs have an index each, so
-- finished jobs cost nothing.
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
-- Get the position of a job in its queue. At most 1,000 due jobs ahead of it are counted.
SELECT (SELECT q.paused_at FROM queues AS q WHERE q.tenant_id = j.tenant_id AND q.name = j.queue),
    (SELECT count(*) FROM (SELECT 1 FROM jobs AS a
        WHERE a.state = {job.queued} AND a.held_by IS NULL AND a.queue = j.queue AND a.tenant_id = j.tenant_id
            AND a.run_at <= {now} AND (a.priority > j.priority OR (a.priority = j.priority
                AND (a.run_at < j.run_at OR (a.run_at = j.run_at AND a.id < j.id)))) LIMIT 1000) AS ahead),
    (SELECT count(*) FROM jobs AS c WHERE c.parent_id = j.id AND c.completed_at IS NULL)
FROM jobs AS j WHERE j.id = :id AND j.tenant_id = :tenant_id;

-- name: digest
-- Count the next events of the log in groups. An entity has been in the state it leaves since its last move. A claimed
-- job has waited since it entered the queue, or since it was due if that was later. Only the row has the due time, and
-- only until the job returns to the queue. Each lookup of a previous event is one step in an index, whatever the
-- planner expects of the tables.
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
-- Get the cursor that a reader of the log has reached.
SELECT cursor FROM log_positions WHERE reader = :reader;

-- name: move_on
-- Advance a reader if it is still at the cursor where it started to read.
INSERT INTO log_positions (reader, cursor) VALUES (:reader, :upto)
ON CONFLICT (reader) DO UPDATE SET cursor = excluded.cursor WHERE log_positions.cursor = :after
RETURNING reader;

-- name: counters
-- List the counters of a tenant.
SELECT tenant_id, name, labels, value FROM counters WHERE tenant_id = :tenant_id ORDER BY name, labels;

-- name: job_moves_since
-- Count the moves of a tenant's jobs between two times, by trigger.
SELECT trigger, count(*) FROM events
WHERE ts >= :since AND ts < coalesce(CAST(:until AS {time}), 9223372036854775807) AND tenant_id = :tenant_id
    AND entity = 'job' GROUP BY trigger;

-- name: blob
-- Get content by its hash.
SELECT content FROM blobs WHERE tenant_id = :tenant_id AND hash = :hash;

-- name: artifacts
-- List the artifacts of a job.
SELECT name, media_type, size, hash, epoch, created_at FROM artifacts
WHERE tenant_id = :tenant_id AND job_id = :job_id ORDER BY name;

-- name: keep_artifact
-- Store an artifact if the claim still holds the job. On PostgreSQL, the claim cannot be lost before the commit.
INSERT INTO artifacts (tenant_id, job_id, epoch, size, created_at, name, hash, media_type)
SELECT tenant_id, id, epoch, CAST(:size AS {int}), {now}, CAST(:name AS text), CAST(:hash AS text),
    CAST(:media_type AS text)
FROM jobs WHERE id = :id AND tenant_id = :tenant_id AND epoch = :epoch AND owner = :owner AND state = {job.running}
    AND lease_until > {now} {for_share}
ON CONFLICT (tenant_id, job_id, name) DO UPDATE SET epoch = excluded.epoch, size = excluded.size,
    created_at = excluded.created_at, hash = excluded.hash, media_type = excluded.media_type
RETURNING created_at;

-- name: unused_blobs
-- List blobs that nothing refers to, oldest first.
SELECT tenant_id, hash FROM blobs WHERE created_at < :older_than AND {unused} ORDER BY created_at LIMIT :limit;

-- name: record_telemetry
-- Store telemetry of an entity until it expires. Two rows of one kind in the same microsecond count as one.
INSERT INTO telemetry (tenant_id, entity, entity_id, kind, ts, expires_at, payload)
VALUES (:tenant_id, :entity, :entity_id, :kind, {now}, {now} + :ttl_us, :payload) ON CONFLICT DO NOTHING;

-- name: telemetry
-- List the latest telemetry of an entity, newest first.
SELECT kind, ts, payload FROM telemetry
WHERE entity_id = :entity_id AND entity = :entity AND tenant_id = :tenant_id ORDER BY ts DESC LIMIT :limit;

-- name: forget_telemetry
-- Delete expired telemetry, oldest first.
DELETE FROM telemetry WHERE (entity_id, ts, kind, entity) IN (
    SELECT entity_id, ts, kind, entity FROM telemetry WHERE expires_at <= {now} ORDER BY expires_at LIMIT :limit)
RETURNING entity_id;

-- name: take_duty
-- Take a duty that is due, and set its next time. Only the first caller gets a row. A duty that is not due is only
-- read, because a conflict would lock its row, and PostgreSQL writes locks to its write-ahead log.
INSERT INTO duties (name, next_at) SELECT CAST(:name AS text), {now} + CAST(:every_us AS {time})
WHERE NOT EXISTS (SELECT 1 FROM duties AS d WHERE d.name = :name AND d.next_at > {now})
ON CONFLICT (name) DO UPDATE SET next_at = excluded.next_at WHERE duties.next_at <= {now} RETURNING name;

-- name: schedules
-- List the schedules of a tenant.
SELECT {schedule_columns} FROM schedules WHERE tenant_id = :tenant_id ORDER BY name;

-- name: schedule_due
-- Get the time until the next schedule of any tenant is due.
SELECT next_at - (SELECT {now}) FROM schedules WHERE paused_at IS NULL ORDER BY next_at LIMIT 1;

-- name: put_schedule
-- Create a schedule or replace its definition. Its pause and its next tick stay, unless its rule changed.
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
-- List due schedules, longest overdue first. On PostgreSQL, this transaction locks them. SQLite has one writer.
SELECT {schedule_columns} FROM schedules WHERE paused_at IS NULL AND next_at <= (SELECT {now})
ORDER BY next_at LIMIT :limit {for_update_skip_locked};

-- name: move_schedule
-- Move a schedule to its next tick if it is still as it was read.
UPDATE schedules SET next_at = :next_at, last_at = coalesce(:last_at, last_at)
WHERE tenant_id = :tenant_id AND name = :name AND next_at = :was AND paused_at IS NULL RETURNING name;

-- name: pause_schedule
-- Pause a schedule.
UPDATE schedules SET paused_at = coalesce(paused_at, {now}) WHERE tenant_id = :tenant_id AND name = :name RETURNING name;

-- name: resume_schedule
-- Resume a schedule from its next tick. The ticks during its pause are skipped.
UPDATE schedules SET next_at = CASE WHEN paused_at IS NULL THEN next_at ELSE :next_at END, paused_at = NULL
WHERE tenant_id = :tenant_id AND name = :name RETURNING name;

-- name: drop_schedule
-- Delete a schedule. The jobs that it enqueued stay.
DELETE FROM schedules WHERE tenant_id = :tenant_id AND name = :name RETURNING name;

-- name: checkpoints
-- List the checkpoints of a job in the order in which its steps saved them.
SELECT {checkpoint_columns} FROM checkpoints
WHERE tenant_id = :tenant_id AND job_id = :job_id ORDER BY created_at, name;

-- name: checkpoint_changed
-- Record when a worker first had other code than the code that saved the checkpoint.
UPDATE checkpoints SET changed_at = coalesce(changed_at, {now})
WHERE tenant_id = :tenant_id AND job_id = :job_id AND name = :name;

-- name: cancelled_parents
-- List cancelled jobs with unfinished children. The index of such children is read one parent at a time, however many
-- children each has.
WITH RECURSIVE parents(id) AS (
    SELECT min(parent_id) FROM jobs WHERE parent_id IS NOT NULL AND completed_at IS NULL
    UNION ALL
    SELECT (SELECT min(j.parent_id) FROM jobs AS j WHERE j.parent_id > parents.id AND j.completed_at IS NULL)
    FROM parents WHERE parents.id IS NOT NULL)
SELECT p.tenant_id, p.id FROM parents JOIN jobs AS p ON p.id = parents.id WHERE p.state = {job.cancelled} LIMIT :limit;

-- name: stopped_waits
-- List jobs that wait although cancellation was requested.
SELECT tenant_id, id FROM jobs
WHERE cancel_requested_at IS NOT NULL AND waits_for IS NOT NULL AND state = {job.queued} ORDER BY id LIMIT :limit;

-- name: next_signal
-- Get the first signal of a name after a position, sent to all jobs or to this job.
SELECT id, payload FROM (
    SELECT * FROM (SELECT id, payload FROM signals
        WHERE tenant_id = :tenant_id AND name = :name AND job_id = 0 AND id > :after ORDER BY id LIMIT 1) AS everyones
    UNION ALL
    SELECT * FROM (SELECT id, payload FROM signals
        WHERE tenant_id = :tenant_id AND name = :name AND job_id = :job_id AND id > :after ORDER BY id LIMIT 1) AS own
) AS next ORDER BY id LIMIT 1;

-- name: send_signal
-- Send a signal at the next position of its name. Returns no row if its key was used before.
INSERT INTO signals (created_at, job_id, tenant_id, name, key, payload)
VALUES ({now}, :job_id, :tenant_id, :name, :key, :payload) ON CONFLICT (tenant_id, key) DO NOTHING RETURNING id;

-- name: signal_by_key
-- Get the signal that a key has already sent.
SELECT id FROM signals WHERE tenant_id = :tenant_id AND key = :key;

-- name: forget_signals
-- Delete signals sent before a time, oldest first.
DELETE FROM signals WHERE id IN (
    SELECT id FROM signals WHERE created_at < :older_than ORDER BY created_at LIMIT :limit)
RETURNING id;

-- name: approval
-- Get an approval by its ID.
SELECT {approval_columns} FROM approvals WHERE id = :id AND tenant_id = :tenant_id;

-- name: approvals
-- List approvals, newest first, of one job or of all, in any state.
SELECT {approval_columns} FROM approvals
WHERE tenant_id = :tenant_id AND (CAST(:job_id AS {key}) IS NULL OR job_id = :job_id)
    AND (CAST(:after AS {key}) IS NULL OR id < :after) ORDER BY id DESC LIMIT :limit;

-- name: open_approvals
-- List open approvals, newest first, of one job or of all.
SELECT {approval_columns} FROM approvals
WHERE tenant_id = :tenant_id AND decision IS NULL AND (CAST(:job_id AS {key}) IS NULL OR job_id = :job_id)
    AND (CAST(:after AS {key}) IS NULL OR id < :after) ORDER BY id DESC LIMIT :limit;

-- name: still_held
-- Check that the claim still holds the job. On PostgreSQL, the claim cannot be lost before the commit.
SELECT 1 FROM jobs
WHERE id = :job_id AND epoch = :epoch AND owner = :owner AND state = {job.running} AND lease_until > {now} {for_share};

-- name: lock_jobs
-- Lock jobs in the one order that every session uses: the second session to lock them sees what the first has written.
SELECT id, epoch, completed_at FROM jobs WHERE id IN {ids} ORDER BY id {for_change};

-- name: approval_asked
-- Get the same approval request of the same job and step if it was not withdrawn.
SELECT {approval_columns} FROM approvals
WHERE job_id = :job_id AND step = :step AND digest = :digest AND coalesce(decision, '') <> 'withdrawn';

-- name: withdraw_others
-- Withdraw other open approval requests of the same job and step, since the action they describe has changed.
UPDATE approvals SET decision = 'withdrawn', decided_at = {now}
WHERE job_id = :job_id AND step = :step AND digest <> :digest AND decision IS NULL;

-- name: open_approval
-- Open an approval request, unless the same one exists.
INSERT INTO approvals (id, created_at, expires_at, job_id, tenant_id, step, question, details, digest, scope)
VALUES (:id, {now}, {now} + :expires_us, :job_id, :tenant_id, :step, :question, :details, :digest, :scope)
ON CONFLICT DO NOTHING RETURNING id;

-- name: lock_asker
-- Lock the job that requested an approval, so that nothing moves it before the decision is written.
SELECT id FROM jobs WHERE id = (SELECT job_id FROM approvals WHERE id = :id AND tenant_id = :tenant_id) {for_change};

-- name: decide_approval
-- Decide an approval once. It must be open and its job unfinished. Before the deadline, the decision cannot be
-- `expired`. After the deadline, it can only be `expired`.
UPDATE approvals SET decision = :decision, decided_at = {now}, decided_by = :decided_by, comment = :comment
WHERE id = :id AND tenant_id = :tenant_id AND decision IS NULL
    AND (job_id IS NULL OR EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = approvals.job_id AND j.completed_at IS NULL))
    AND CASE WHEN :decision = 'expired' THEN expires_at <= {now}
        ELSE expires_at IS NULL OR expires_at > {now} END
RETURNING job_id;

-- name: wake_asker
-- Make the job due that waits for this decision.
UPDATE jobs SET run_at = {now}, waits_for = NULL
WHERE id = :job_id AND state = {job.queued} AND waits_for IS NOT NULL AND (waits_for = :waits_for OR EXISTS (
    SELECT 1 FROM waits AS w WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name = :waits_for))
RETURNING id;

-- name: withdraw_approvals
-- Withdraw open approvals whose jobs have ended or were deleted.
UPDATE approvals SET decision = 'withdrawn', decided_at = {now} WHERE id IN (
    SELECT a.id FROM approvals AS a WHERE {stale} LIMIT :limit)
    AND decision IS NULL RETURNING id;
