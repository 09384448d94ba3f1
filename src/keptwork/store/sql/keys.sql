-- Statements about API keys, for both databases.

-- name: live_api_key
-- Get the valid API key with this hash, of any tenant, and the current time.
SELECT {api_key_columns}, {now} FROM api_keys
WHERE hash = :hash AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now});

-- name: api_key_by_hash
-- Get the API key with this hash among those of a tenant, valid or not.
SELECT {api_key_columns} FROM api_keys WHERE hash = :hash AND tenant_id = :tenant_id;

-- name: api_key
-- Get an API key by its ID.
SELECT {api_key_columns} FROM api_keys WHERE id = :id AND tenant_id = :tenant_id;

-- name: api_keys
-- List API keys of a tenant, newest first, all or only the valid ones.
SELECT {api_key_columns} FROM api_keys
WHERE tenant_id = :tenant_id AND (CAST(:after AS {key}) IS NULL OR id < :after)
    AND (CAST(:ended AS {int}) = 1 OR (revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now})))
ORDER BY id DESC LIMIT :limit;

-- name: put_api_key
-- Store a new API key unless it exists.
INSERT INTO api_keys (id, created_at, expires_at, tenant_id, hash, name, scopes, created_by)
VALUES (:id, {now}, {now} + CAST(:lasts_us AS {key}), :tenant_id, :hash, :name, :scopes, :created_by)
ON CONFLICT (hash) DO NOTHING RETURNING {api_key_columns};

-- name: replace_api_key
-- Limit a valid API key that was not rotated yet to the overlap, or to its own expiry if that is sooner.
UPDATE api_keys SET replaced_by = :replaced_by, expires_at = CASE
    WHEN expires_at < {now} + CAST(:overlap_us AS {key}) THEN expires_at ELSE {now} + CAST(:overlap_us AS {key}) END
WHERE id = :id AND tenant_id = :tenant_id AND replaced_by IS NULL AND revoked_at IS NULL
    AND (expires_at IS NULL OR expires_at > {now})
RETURNING id;

-- name: revoke_api_key
-- Revoke an API key. The first revocation wins.
UPDATE api_keys SET revoked_at = {now}, revoked_by = :by
WHERE id = :id AND tenant_id = :tenant_id AND revoked_at IS NULL;

-- name: touch_api_key
-- Record the use of an API key. This is limited to once per interval, because many requests use one key.
UPDATE api_keys SET last_used_at = {now}
WHERE id = :id AND tenant_id = :tenant_id
    AND (last_used_at IS NULL OR last_used_at <= {now} - CAST(:every_us AS {key}))
RETURNING id;
