-- Which job a job runs again. Both indexes hold a few rows only, so they cost the rest of the queue nothing.
ALTER TABLE jobs ADD COLUMN redriven_from {key};

CREATE INDEX jobs_redriven ON jobs (redriven_from) WHERE redriven_from IS NOT NULL;

CREATE INDEX jobs_dead_lettered ON jobs (tenant_id, id) WHERE state = {job.dead_lettered};
