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
-- Keys whose time is over.
DELETE FROM idempotency_keys WHERE expires_at <= {now} RETURNING key;

-- name: pause_queue
-- From the next claim on nothing is taken from the queue.
INSERT INTO queues (tenant_id, name, paused_at) VALUES (:tenant_id, :name, {now})
ON CONFLICT (tenant_id, name) DO UPDATE SET paused_at = coalesce(queues.paused_at, excluded.paused_at);

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
