-- Only PostgreSQL: approvals go with their job, whoever deletes it; row-level security and grants.

CREATE FUNCTION keptwork_drop_approvals() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM approvals USING gone WHERE approvals.job_id = gone.id;
    RETURN NULL;
END $$;

CREATE TRIGGER jobs_drop_approvals AFTER DELETE ON jobs REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION keptwork_drop_approvals();

DO $$ DECLARE named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['signals', 'approvals'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', named);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', named);
        EXECUTE format('CREATE POLICY engine ON %I TO CURRENT_USER USING (true) WITH CHECK (true)', named);
        EXECUTE format(
            'CREATE POLICY tenant ON %I USING (tenant_id = nullif(current_setting(''keptwork.tenant'', true), '''')::int)',
            named);
        IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO keptwork_app', named);
        END IF;
    END LOOP;
END $$;
