-- What makes a job resume where it was: results of its steps, what it waits for, and what it belongs to.

-- The result of a step, written once, by whoever held the job under that epoch. `code` is a digest of the function that
-- made it, `changed_at` when a worker first met it with other code; the result stands all the same.
CREATE TABLE checkpoints (
    job_id     {key} NOT NULL,
    created_at {time} NOT NULL,
    changed_at {time},
    tenant_id  {int} NOT NULL,
    epoch      {int} NOT NULL,
    version    {int} NOT NULL,
    name       text NOT NULL,
    code       text,
    hash       text,
    result     {json},
    PRIMARY KEY (job_id, name)
) {strict};

CREATE INDEX checkpoints_of_blob ON checkpoints (tenant_id, hash) WHERE hash IS NOT NULL;

-- A job that waits is queued, and due when what it waits for sets run_at, or when its patience ends.
ALTER TABLE jobs ADD COLUMN waits_for text;

ALTER TABLE jobs ADD COLUMN parent_id {key};

-- Which limit it falls under; none for most jobs.
ALTER TABLE jobs ADD COLUMN limit_key text;

-- Children that have not ended. Other jobs pay nothing for it.
CREATE INDEX jobs_of_parent ON jobs (parent_id) WHERE parent_id IS NOT NULL AND completed_at IS NULL;
