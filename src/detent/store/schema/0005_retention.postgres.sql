-- Only PostgreSQL: row-level security as of every table with tenants in it. Duties are the engine's own.
ALTER TABLE retention ENABLE ROW LEVEL SECURITY;

ALTER TABLE retention FORCE ROW LEVEL SECURITY;

DO $$ BEGIN
    EXECUTE 'CREATE POLICY engine ON retention TO CURRENT_USER USING (true) WITH CHECK (true)';
    EXECUTE 'CREATE POLICY tenant ON retention USING '
        '(tenant_id = nullif(current_setting(''detent.tenant'', true), '''')::int)';
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'detent_app') THEN
        GRANT SELECT, INSERT, UPDATE ON retention TO detent_app;
    END IF;
END $$;
