-- Only PostgreSQL: row-level security as of every table with tenants in it, and grants. A record is never changed.

ALTER TABLE agent_audits ENABLE ROW LEVEL SECURITY;

ALTER TABLE agent_audits FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON agent_audits TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON agent_audits USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT ON agent_audits TO keptwork_app;
    END IF;
END $$;
