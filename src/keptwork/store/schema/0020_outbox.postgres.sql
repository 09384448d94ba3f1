-- Only PostgreSQL: row-level security as of every table with tenants in it, and grants.

ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;

ALTER TABLE outbox FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON outbox TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON outbox USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT, UPDATE ON outbox TO keptwork_app;
    END IF;
END $$;
