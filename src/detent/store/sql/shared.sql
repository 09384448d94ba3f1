-- Statements both databases understand as they stand.

-- name: tenant_by_name
-- The key of a tenant.
SELECT id FROM tenants WHERE name = :name;

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

-- name: resume_queue
-- From the next claim on the queue is served again.
UPDATE queues SET paused_at = NULL WHERE tenant_id = :tenant_id AND name = :name;

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
