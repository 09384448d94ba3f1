-- Statements about agent jobs, for both databases. {ids} and {names} are lists of keys and of texts.

-- name: agents_of_jobs
-- The agent jobs that these jobs carry out.
SELECT id FROM agent_jobs WHERE job_id IN {ids} ORDER BY id;

-- name: listed_agents
-- Agent jobs, the newest first.
SELECT id FROM agent_jobs WHERE tenant_id = :tenant_id AND (CAST(:after AS {key}) IS NULL OR id < :after)
    AND ({no_names} OR state IN {names})
ORDER BY id DESC LIMIT :limit;

-- name: agents_left_behind
-- Agent jobs that have not ended although their job has, or is gone.
SELECT a.id FROM agent_jobs AS a WHERE a.completed_at IS NULL AND a.job_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = a.job_id AND j.completed_at IS NULL)
ORDER BY a.id LIMIT :limit;

-- name: still_claimed
-- Whether a job is held as it was claimed; if so, nobody can take it away before the transaction is over.
SELECT 1 FROM jobs WHERE id = :id AND tenant_id = :tenant_id AND epoch = :epoch AND owner = :owner
    AND state = {job.running} AND lease_until > {now} {for_share};

-- name: note_call
-- The last answer to an agent job, and the call that it came with.
UPDATE agent_jobs SET last_call = :call, llm_response = :said WHERE job_id = :job_id;

-- name: put_agent_audit
-- The record of an agent job that has ended, once.
INSERT INTO agent_audits ({audit_columns})
VALUES (:agent_id, :tenant_id, :job_id, :description, :status, :reason, :state_transitions, :agent, :retry_count,
    :max_retries, :calls, :cost_micros, :input_tokens, :output_tokens, :llm_response, :started_at, :completed_at)
ON CONFLICT (agent_id) DO NOTHING;

-- name: agent_audits
-- Records of agent jobs that have ended, the newest first.
SELECT {audit_columns} FROM agent_audits WHERE tenant_id = :tenant_id
    AND (CAST(:agent_id AS {key}) IS NULL OR agent_id = :agent_id)
    AND (CAST(:after AS {key}) IS NULL OR agent_id < :after)
ORDER BY agent_id DESC LIMIT :limit;
