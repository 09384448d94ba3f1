-- Only SQLite: what makes a job that is held back due earlier, tells whoever looks after its limit.
CREATE TRIGGER jobs_due_earlier AFTER UPDATE OF run_at ON jobs WHEN NEW.held_by = 'limit' AND NEW.run_at < OLD.run_at
BEGIN INSERT INTO limit_wakes (at, tenant_id, key)
    VALUES (NEW.run_at, CASE WHEN NEW.limit_key LIKE '*:%' THEN 0 ELSE NEW.tenant_id END, NEW.limit_key); END;
