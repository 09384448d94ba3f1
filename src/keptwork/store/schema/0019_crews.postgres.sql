-- Only PostgreSQL: row-level security and grants.
ALTER TABLE crew_quotas ENABLE ROW LEVEL SECURITY;

ALTER TABLE crew_quotas FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON crew_quotas TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON crew_quotas USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON crew_quotas TO keptwork_app;
    END IF;
END $$;
