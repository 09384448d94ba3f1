-- Only PostgreSQL: the API's role closes the calls of a job that it ends.
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT UPDATE ON ledger TO keptwork_app;
    END IF;
END $$;
