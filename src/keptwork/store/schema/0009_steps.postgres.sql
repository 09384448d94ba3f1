-- Only PostgreSQL: checkpoints go with their job, whoever deletes it; row-level security, grants, storage.

CREATE FUNCTION keptwork_drop_checkpoints() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM checkpoints USING gone WHERE checkpoints.job_id = gone.id;
    RETURN NULL;
END $$;

-- Once for a statement, so that pruning thousands of jobs asks but once.
CREATE TRIGGER jobs_drop_checkpoints AFTER DELETE ON jobs REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION keptwork_drop_checkpoints();

ALTER TABLE checkpoints ENABLE ROW LEVEL SECURITY;

ALTER TABLE checkpoints FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON checkpoints TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON checkpoints USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON checkpoints TO keptwork_app;
    END IF;
END $$;

-- Written once and read rarely: vacuumed as the log is.
ALTER TABLE checkpoints SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0);
