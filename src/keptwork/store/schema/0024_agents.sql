-- Agent jobs: the job that carries each out, what was chosen for it and why, what it cost, and the record of its end.

-- Of an agent job: its job, and the last move of that which it has followed; what was chosen when it was defined, and
-- why (JSON); the states it has left (JSON); how long it waits before its first retry; what its calls came to, and
-- the last of them.
ALTER TABLE agent_jobs ADD COLUMN job_id {key};

ALTER TABLE agent_jobs ADD COLUMN job_seq {int};

ALTER TABLE agent_jobs ADD COLUMN last_call {key};

ALTER TABLE agent_jobs ADD COLUMN retry_base_ms {int} NOT NULL DEFAULT 1000;

ALTER TABLE agent_jobs ADD COLUMN calls {int} NOT NULL DEFAULT 0;

ALTER TABLE agent_jobs ADD COLUMN cost_micros {time} NOT NULL DEFAULT 0;

ALTER TABLE agent_jobs ADD COLUMN input_tokens {time} NOT NULL DEFAULT 0;

ALTER TABLE agent_jobs ADD COLUMN output_tokens {time} NOT NULL DEFAULT 0;

ALTER TABLE agent_jobs ADD COLUMN skill text;

ALTER TABLE agent_jobs ADD COLUMN tier text;

ALTER TABLE agent_jobs ADD COLUMN provider text;

ALTER TABLE agent_jobs ADD COLUMN model text;

ALTER TABLE agent_jobs ADD COLUMN reasons text;

ALTER TABLE agent_jobs ADD COLUMN state_history text NOT NULL DEFAULT '[]';

ALTER TABLE agent_jobs ADD COLUMN llm_response text;

CREATE UNIQUE INDEX agent_jobs_of_job ON agent_jobs (job_id) WHERE job_id IS NOT NULL;

CREATE INDEX agent_jobs_of_tenant ON agent_jobs (tenant_id, id);

-- What is looked through for those that were left behind.
CREATE INDEX agent_jobs_unfinished ON agent_jobs (id) WHERE completed_at IS NULL;

-- One record for each agent job that has ended, written with its last move and never changed. `agent` is what was chosen
-- and why (JSON; none if it never came to that), `state_transitions` the states it has left, in order (JSON).
CREATE TABLE agent_audits (
    agent_id          {pk},
    job_id            {key},
    started_at        {time} NOT NULL,
    completed_at      {time} NOT NULL,
    cost_micros       {time} NOT NULL,
    input_tokens      {time} NOT NULL,
    output_tokens     {time} NOT NULL,
    tenant_id         {int} NOT NULL,
    calls             {int} NOT NULL,
    retry_count       {int} NOT NULL,
    max_retries       {int} NOT NULL,
    status            text NOT NULL,
    reason            text,
    description       text NOT NULL,
    state_transitions text NOT NULL,
    agent             text,
    llm_response      text
) {strict};

CREATE INDEX agent_audits_of_tenant ON agent_audits (tenant_id, agent_id);
