-- The waits of a job that waits for several things at a time, any one of which wakes it. They belong to one epoch of the
-- job, and count while its waits_for is set. A job with one wait has no row here: its waits_for says what that is.
CREATE TABLE waits (
    job_id    {key} NOT NULL,
    until     {time},
    tenant_id {int} NOT NULL,
    epoch     {int} NOT NULL,
    number    {int} NOT NULL,
    name      text NOT NULL,
    PRIMARY KEY (job_id, number)
) {strict};

CREATE INDEX waits_by_name ON waits (tenant_id, name);
