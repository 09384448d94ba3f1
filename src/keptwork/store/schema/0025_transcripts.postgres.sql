-- Only PostgreSQL: transcripts go with their job, whoever deletes it; row-level security and grants.

CREATE FUNCTION keptwork_drop_transcripts() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM transcripts USING gone WHERE transcripts.job_id = gone.id;
    RETURN NULL;
END $$;

-- Once for a statement, so that pruning thousands of jobs asks but once.
CREATE TRIGGER jobs_drop_transcripts AFTER DELETE ON jobs REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION keptwork_drop_transcripts();

ALTER TABLE transcripts ENABLE ROW LEVEL SECURITY;

ALTER TABLE transcripts FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON transcripts TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON transcripts USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON transcripts TO keptwork_app;
    END IF;
END $$;
