-- Only PostgreSQL, after the tables: storage, roles, row-level security.

ALTER TABLE jobs ALTER COLUMN id SET DEFAULT keptwork_key(),
    ALTER COLUMN created_at SET DEFAULT keptwork_now(), ALTER COLUMN updated_at SET DEFAULT keptwork_now(),
    ALTER COLUMN run_at SET DEFAULT keptwork_now();

-- Rows of the log lie in the order they were written, so a block range index finds a time at no cost to the insert.
CREATE INDEX events_by_time ON events USING brin (ts) WITH (pages_per_range = 16);

-- Moved rows leave dead versions behind at the rate of the work itself.
ALTER TABLE jobs SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The API works under this role and sees one tenant; the owner of the tables is the engine and sees all. Where the
-- owner may not create roles, an administrator creates it and runs the grants below.
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        BEGIN
            CREATE ROLE keptwork_app NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
        END;
    END IF;
END $$;

DO $$ DECLARE named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['tenants', 'events', 'jobs', 'queues', 'workers', 'crews', 'runs', 'workstreams',
        'steps', 'breakers', 'agent_jobs', 'idempotency_keys'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', named);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', named);
        EXECUTE format('CREATE POLICY engine ON %I TO CURRENT_USER USING (true) WITH CHECK (true)', named);
        EXECUTE format(
            'CREATE POLICY tenant ON %I USING (%I = nullif(current_setting(''keptwork.tenant'', true), '''')::int)',
            named, CASE named WHEN 'tenants' THEN 'id' ELSE 'tenant_id' END);
        IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO keptwork_app', named);
        END IF;
    END LOOP;
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO keptwork_app', current_schema());
        GRANT USAGE ON SEQUENCE keptwork_pages, keptwork_event_ids TO keptwork_app;
        BEGIN
            EXECUTE format('GRANT keptwork_app TO %I', current_user);
        EXCEPTION WHEN insufficient_privilege THEN NULL;
        END;
    END IF;
END $$;
