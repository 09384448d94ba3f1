-- Only SQLite: waits go with their job, whoever deletes it.
CREATE TRIGGER jobs_drop_waits AFTER DELETE ON jobs BEGIN DELETE FROM waits WHERE job_id = OLD.id; END;
