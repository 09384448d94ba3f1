-- The queue at work: asking a running job to stop, dead letters as a view, and where a job came from.

-- When somebody asked the job to come to an end by itself.
ALTER TABLE jobs ADD COLUMN cancel_requested_at {time};

-- The dead letter a job is another try of.
ALTER TABLE jobs ADD COLUMN redriven_from {key};

CREATE INDEX jobs_of_state ON jobs (state, id) WHERE state IN ({job.failed}, {job.dead_lettered});

-- Everything an operator needs of a job that was given up, from the job itself: its last move says why and at which stage.
CREATE VIEW dead_letters AS
SELECT id, tenant_id, queue, kind, payload, attempts, correlation_id, trace_id,
    reason AS reason_code, {stage} AS stage, error AS last_error, owner AS last_owner,
    lease_until AS last_lease_expires_at, completed_at AS dead_lettered_at, redriven_from
FROM jobs WHERE state = {job.dead_lettered};
