-- Only PostgreSQL: artifacts go with their job, whoever deletes it; storage, row-level security, grants.

CREATE FUNCTION keptwork_drop_artifacts() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM artifacts USING gone WHERE artifacts.tenant_id = gone.tenant_id AND artifacts.job_id = gone.id;
    RETURN NULL;
END $$;

-- Once for a statement, so that pruning thousands of jobs asks but once.
CREATE TRIGGER jobs_drop_artifacts AFTER DELETE ON jobs REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION keptwork_drop_artifacts();

DO $$ DECLARE named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['blobs', 'artifacts'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', named);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', named);
        EXECUTE format('CREATE POLICY engine ON %I TO CURRENT_USER USING (true) WITH CHECK (true)', named);
        EXECUTE format('CREATE POLICY tenant ON %I USING (tenant_id = '
            'nullif(current_setting(''keptwork.tenant'', true), '''')::int)', named);
        IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO keptwork_app', named);
        END IF;
    END LOOP;
END $$;
