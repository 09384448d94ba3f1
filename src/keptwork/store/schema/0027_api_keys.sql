-- Keys to the HTTP API. Of a key only its hash is kept, which does not lead back to it. `scopes` are names with commas
-- between them; `replaced_by` is the key it was rotated to, from when on it lives for the overlap only. A key that has ended
-- stays: it says who had access, and until when.
CREATE TABLE api_keys (
    id           {pk},
    created_at   {time} NOT NULL,
    expires_at   {time},
    revoked_at   {time},
    last_used_at {time},
    replaced_by  {key},
    tenant_id    {int} NOT NULL,
    hash         text NOT NULL CHECK (length(hash) = 64),
    name         text NOT NULL,
    scopes       text NOT NULL CHECK (length(scopes) > 0),
    created_by   text NOT NULL,
    revoked_by   text
) {strict};

-- How every request finds its key.
CREATE UNIQUE INDEX api_keys_by_hash ON api_keys (hash);

CREATE INDEX api_keys_of_tenant ON api_keys (tenant_id, id);
