-- Statements about webhook deliveries, for both databases.

-- name: put_delivery
-- Store the webhook delivery for a move. The same move again has no effect.
INSERT INTO outbox (id, created_at, next_at, entity_id, tenant_id, seq, most_attempts, state, entity, event, url,
    secret_env, body)
VALUES (:id, {now}, {now}, :entity_id, :tenant_id, :seq, :most_attempts, {pending}, :entity, :event, :url, :secret_env,
    :body)
ON CONFLICT (entity_id, seq, entity) DO NOTHING;

-- name: delivery
-- Get the webhook delivery for a move.
SELECT {outbox_columns} FROM outbox
WHERE entity_id = :entity_id AND seq = :seq AND entity = :entity AND tenant_id = :tenant_id;

-- name: deliveries
-- List webhook deliveries, newest first.
SELECT {outbox_columns} FROM outbox WHERE tenant_id = :tenant_id
    AND (CAST(:flow AS {key}) IS NULL OR entity_id = :flow) AND (CAST(:state AS text) IS NULL OR state = :state)
    AND (CAST(:after AS {key}) IS NULL OR id < :after)
ORDER BY id DESC LIMIT :limit;

-- name: next_delivery
-- Get the time until an attempt is due.
SELECT min(next_at) - {now} FROM outbox WHERE state = {pending};

-- name: take_deliveries
-- Take due webhook deliveries for one sender. Rows that another sender is taking are skipped.
WITH due AS MATERIALIZED (
    SELECT id FROM outbox WHERE state = {pending} AND next_at <= {now} ORDER BY next_at LIMIT :limit
    {for_update_skip_locked})
UPDATE outbox SET attempts = attempts + 1, next_at = {now} + CAST(:lease_us AS {time})
WHERE id IN (SELECT id FROM due) AND state = {pending} RETURNING {outbox_columns};

-- name: settle_delivery
-- Record the outcome of an attempt if it is the latest one.
UPDATE outbox SET state = :state, last_error = :error, next_at = {now} + CAST(:delay_us AS {time}),
    ended_at = CASE WHEN CAST(:state AS text) = {pending} THEN NULL ELSE {now} END
WHERE id = :id AND attempts = :attempts AND state = {pending} RETURNING id;

-- name: retry_delivery
-- Make a webhook delivery pending again with its initial number of further attempts. The attempt count continues.
UPDATE outbox SET state = {pending}, next_at = {now}, ended_at = NULL, most_attempts = attempts + :more
WHERE id = :id AND tenant_id = :tenant_id RETURNING id;

-- name: forget_deliveries
-- Delete webhook deliveries that ended before a time.
DELETE FROM outbox WHERE id IN (
    SELECT id FROM outbox WHERE ended_at < :older_than ORDER BY ended_at LIMIT :limit {for_update_skip_locked})
    AND ended_at < :older_than RETURNING id;
