-- Only SQLite: transcripts go with their job, whoever deletes it.
CREATE TRIGGER jobs_drop_transcripts AFTER DELETE ON jobs BEGIN DELETE FROM transcripts WHERE job_id = OLD.id; END;
