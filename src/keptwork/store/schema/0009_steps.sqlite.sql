-- Only SQLite: checkpoints go with their job, whoever deletes it.
CREATE TRIGGER jobs_drop_checkpoints AFTER DELETE ON jobs BEGIN DELETE FROM checkpoints WHERE job_id = OLD.id; END;
