-- Only PostgreSQL: tenants are made and limited by the engine. The API's role reads its own, and changes nothing of it.
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        REVOKE INSERT, UPDATE, DELETE ON tenants FROM keptwork_app;
    END IF;
END $$;
