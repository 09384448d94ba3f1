-- Only SQLite: approvals go with their job, whoever deletes it.
CREATE TRIGGER jobs_drop_approvals AFTER DELETE ON jobs BEGIN DELETE FROM approvals WHERE job_id = OLD.id; END;
