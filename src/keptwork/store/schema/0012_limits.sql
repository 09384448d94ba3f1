-- Fair claims, and limits on how many jobs run at once and how often they start.

-- What a claim reads: only what could be claimed, tenant by tenant, each in the order it should be.
DROP INDEX jobs_to_claim;

CREATE INDEX jobs_to_claim ON jobs (queue, tenant_id, priority DESC, run_at, id)
    WHERE state = {job.queued} AND held_by IS NULL;

-- What was declared: of a kind of jobs (`job`) or of a queue (`queue`), for the whole fleet and all tenants. `per` says
-- what of a kind is counted by itself: '*' all its jobs, 'tenant', or an argument within a tenant.
CREATE TABLE limit_rules (
    what      text NOT NULL CHECK (what IN ('job', 'queue')),
    name      text NOT NULL,
    most      {int},
    rate      {int},
    window_us {time},
    per       text NOT NULL DEFAULT '*',
    PRIMARY KEY (what, name)
) {strict};

-- A row for every key that is counted by itself: its lock, whose turn it is, and when the rate lets the next one go. A
-- key is PER:KIND, or PER:KIND:VALUE for an argument. Tenant 0 stands for all of them.
CREATE TABLE limits (
    tenant_id {int} NOT NULL,
    turn      {int} NOT NULL DEFAULT 0,
    pump_at   {time},
    key       text NOT NULL,
    PRIMARY KEY (tenant_id, key)
) {strict};

CREATE INDEX limits_to_pump ON limits (pump_at) WHERE pump_at IS NOT NULL;

-- That a job which a limit holds back is due: written with the job, and taken by whoever looks. Nobody waits for it.
CREATE TABLE limit_wakes (
    id        {wake_id},
    at        {time} NOT NULL,
    tenant_id {int} NOT NULL,
    key       text NOT NULL
) {strict};

CREATE INDEX limit_wakes_by_time ON limit_wakes (at);

-- Starts that count: against the rate of a key, and against what a queue may have running.
CREATE TABLE limit_uses (
    tenant_id {int} NOT NULL,
    epoch     {int} NOT NULL,
    used_at   {time} NOT NULL,
    job_id    {key} NOT NULL,
    key       text NOT NULL,
    PRIMARY KEY (tenant_id, key, used_at, job_id, epoch)
) {strict};

-- Jobs that count against their key, and those it holds back. Other jobs pay nothing for either.
CREATE INDEX jobs_counted ON jobs (limit_key, tenant_id)
    WHERE limit_key IS NOT NULL AND held_by IS NULL AND completed_at IS NULL;

CREATE INDEX jobs_held_back ON jobs (limit_key, tenant_id, priority DESC, run_at, id)
    WHERE held_by = 'limit' AND state = {job.queued};

-- The job that a unique window or a debounce is about, and until when.
CREATE TABLE recent_jobs (
    tenant_id {int} NOT NULL,
    job_id    {key},
    first_at  {time} NOT NULL,
    until     {time} NOT NULL,
    key       text NOT NULL,
    PRIMARY KEY (tenant_id, key)
) {strict};

CREATE INDEX recent_jobs_over ON recent_jobs (until);
