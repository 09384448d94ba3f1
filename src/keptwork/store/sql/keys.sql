-- Statements about the keys to the HTTP API, for both databases.

-- name: live_api_key
-- The key of that hash, whoever's it is, if it opens anything; and what time it is.
SELECT {api_key_columns}, {now} FROM api_keys
WHERE hash = :hash AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now});

-- name: api_key_by_hash
-- The key of that hash, live or not, among those of a tenant.
SELECT {api_key_columns} FROM api_keys WHERE hash = :hash AND tenant_id = :tenant_id;

-- name: api_key
-- One by its key.
SELECT {api_key_columns} FROM api_keys WHERE id = :id AND tenant_id = :tenant_id;

-- name: api_keys
-- Keys of a tenant, the newest first: those that open anything, or also those that no longer do.
SELECT {api_key_columns} FROM api_keys
WHERE tenant_id = :tenant_id AND (CAST(:after AS {key}) IS NULL OR id < :after)
    AND (CAST(:ended AS {int}) = 1 OR (revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now})))
ORDER BY id DESC LIMIT :limit;

-- name: put_api_key
-- A new key, unless it is there.
INSERT INTO api_keys (id, created_at, expires_at, tenant_id, hash, name, scopes, created_by)
VALUES (:id, {now}, {now} + CAST(:lasts_us AS {key}), :tenant_id, :hash, :name, :scopes, :created_by)
ON CONFLICT (hash) DO NOTHING RETURNING {api_key_columns};

-- name: replace_api_key
-- A key that opens something and was not rotated yet opens it for the overlap only, or until it ends if that is sooner.
UPDATE api_keys SET replaced_by = :replaced_by, expires_at = CASE
    WHEN expires_at < {now} + CAST(:overlap_us AS {key}) THEN expires_at ELSE {now} + CAST(:overlap_us AS {key}) END
WHERE id = :id AND tenant_id = :tenant_id AND replaced_by IS NULL AND revoked_at IS NULL
    AND (expires_at IS NULL OR expires_at > {now})
RETURNING id;

-- name: revoke_api_key
-- A key opens nothing any more. Who was first to say so stands.
UPDATE api_keys SET revoked_at = {now}, revoked_by = :by
WHERE id = :id AND tenant_id = :tenant_id AND revoked_at IS NULL;

-- name: touch_api_key
-- A key was used; noted now and then, because many requests come by one key.
UPDATE api_keys SET last_used_at = {now}
WHERE id = :id AND tenant_id = :tenant_id
    AND (last_used_at IS NULL OR last_used_at <= {now} - CAST(:every_us AS {key}))
RETURNING id;
