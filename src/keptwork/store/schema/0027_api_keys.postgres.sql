-- Only PostgreSQL: row-level security and grants. Whose a key is, what it is for and what it is found by never change: the
-- API's role may end one and note that it was used, and that is all.
ALTER TABLE api_keys ENABLE ROW LEVEL SECURITY;

ALTER TABLE api_keys FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON api_keys TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON api_keys USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT, UPDATE (expires_at, revoked_at, revoked_by, last_used_at, replaced_by) ON api_keys TO keptwork_app;
    END IF;
END $$;
