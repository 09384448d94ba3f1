-- Only PostgreSQL: waits go with their job, whoever deletes it; row-level security and grants.

CREATE FUNCTION keptwork_drop_waits() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM waits USING gone WHERE waits.job_id = gone.id;
    RETURN NULL;
END $$;

CREATE TRIGGER jobs_drop_waits AFTER DELETE ON jobs REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION keptwork_drop_waits();

ALTER TABLE waits ENABLE ROW LEVEL SECURITY;

ALTER TABLE waits FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON waits TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON waits USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON waits TO keptwork_app;
    END IF;
END $$;
