-- Only PostgreSQL. A value changes in place: no index holds it, and its page keeps room for the next version.
ALTER TABLE counters SET (fillfactor = 50);

-- Tenants see what was counted for them. Positions in the log are the engine's alone.
ALTER TABLE counters ENABLE ROW LEVEL SECURITY;

ALTER TABLE counters FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON counters TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON counters USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON counters TO keptwork_app;
    END IF;
END $$;
