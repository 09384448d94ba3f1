-- Only PostgreSQL: row-level security and grants. Money is spent by workers alone: the API's role reads the ledger, and
-- gives caps. The buckets belong to no tenant, and it does not see them.
ALTER TABLE budgets ENABLE ROW LEVEL SECURITY;

ALTER TABLE budgets FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON budgets TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON budgets USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

ALTER TABLE ledger ENABLE ROW LEVEL SECURITY;

ALTER TABLE ledger FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON ledger TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON ledger USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

ALTER TABLE token_buckets ENABLE ROW LEVEL SECURITY;

ALTER TABLE token_buckets FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON token_buckets TO CURRENT_USER USING (true) WITH CHECK (true);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT, UPDATE ON budgets TO keptwork_app;
        GRANT SELECT ON ledger TO keptwork_app;
    END IF;
END $$;
