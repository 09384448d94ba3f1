-- What a job can wait for besides time and its children: signals that others send, and decisions of people.

-- A signal that was sent. Those of one tenant and name form a sequence in the order of `id`; `job_id` 0 is for every job.
CREATE TABLE signals (
    id         {position},
    created_at {time} NOT NULL,
    job_id     {key} NOT NULL,
    tenant_id  {int} NOT NULL,
    name       text NOT NULL,
    key        text NOT NULL,
    payload    {json} NOT NULL
) {strict};

CREATE UNIQUE INDEX signals_by_key ON signals (tenant_id, key);

CREATE INDEX signals_in_sequence ON signals (tenant_id, name, job_id, id);

CREATE INDEX signals_by_age ON signals (created_at);

-- A question to people. `digest` is that of what they are shown: what is decided is decided of exactly that. Without a
-- decision it is open; once there is one it never changes.
CREATE TABLE approvals (
    id         {pk},
    created_at {time} NOT NULL,
    expires_at {time},
    decided_at {time},
    job_id     {key},
    tenant_id  {int} NOT NULL,
    step       text NOT NULL,
    question   text NOT NULL,
    details    {json},
    digest     text NOT NULL,
    scope      text,
    decision   text CHECK (decision IN ('approved', 'rejected', 'expired', 'withdrawn')),
    decided_by text,
    comment    text
) {strict};

-- What is asked of a job at one place is asked once, as long as it is the same; withdrawn, it may be asked again.
CREATE UNIQUE INDEX approvals_of_job ON approvals (job_id, step, digest)
WHERE job_id IS NOT NULL AND coalesce(decision, '') <> 'withdrawn';

CREATE INDEX approvals_open ON approvals (tenant_id, id) WHERE decision IS NULL;

-- Jobs that wait for something with a name. Others pay nothing for it.
CREATE INDEX jobs_waiting ON jobs (tenant_id, waits_for) WHERE waits_for IS NOT NULL AND state = {job.queued};

-- Jobs that were asked to end, and began to wait before they heard of it.
CREATE INDEX jobs_stopped_waiting ON jobs (id)
WHERE cancel_requested_at IS NOT NULL AND waits_for IS NOT NULL AND state = {job.queued};
