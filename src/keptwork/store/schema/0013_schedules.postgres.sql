-- Only PostgreSQL: row-level security as of every table with tenants in it, grants, storage.

ALTER TABLE schedules ENABLE ROW LEVEL SECURITY;

ALTER TABLE schedules FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON schedules TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON schedules USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON schedules TO keptwork_app;
    END IF;
END $$;

-- Few rows, each changed at every tick: its versions stay on its page.
ALTER TABLE schedules SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
