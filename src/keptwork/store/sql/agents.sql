-- Statements about agent jobs, for both databases. {ids} is a list of IDs, and {names} a list of strings.

-- name: agents_of_jobs
-- List the agent jobs that these jobs run.
SELECT id FROM agent_jobs WHERE job_id IN {ids} ORDER BY id;

-- name: listed_agents
-- List agent jobs, newest first.
SELECT id FROM agent_jobs WHERE tenant_id = :tenant_id AND (CAST(:after AS {key}) IS NULL OR id < :after)
    AND ({no_names} OR state IN {names})
ORDER BY id DESC LIMIT :limit;

-- name: agents_left_behind
-- List unfinished agent jobs whose job has ended or was deleted.
SELECT a.id FROM agent_jobs AS a WHERE a.completed_at IS NULL AND a.job_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = a.job_id AND j.completed_at IS NULL)
ORDER BY a.id LIMIT :limit;

-- name: still_claimed
-- Check that the claim still holds the job. On PostgreSQL, the claim cannot be lost before the transaction ends.
SELECT 1 FROM jobs WHERE id = :id AND tenant_id = :tenant_id AND epoch = :epoch AND owner = :owner
    AND state = {job.running} AND lease_until > {now} {for_share};

-- name: note_call
-- Store the last answer of an agent job and the number of its call.
UPDATE agent_jobs SET last_call = :call, llm_response = :said WHERE job_id = :job_id;

-- name: put_agent_audit
-- Store the audit record of a finished agent job, once.
INSERT INTO agent_audits ({audit_columns})
VALUES (:agent_id, :tenant_id, :job_id, :description, :status, :reason, :state_transitions, :agent, :retry_count,
    :max_retries, :calls, :cost_micros, :input_tokens, :output_tokens, :llm_response, :started_at, :completed_at)
ON CONFLICT (agent_id) DO NOTHING;

-- name: agent_audits
-- List audit records of finished agent jobs, newest first.
SELECT {audit_columns} FROM agent_audits WHERE tenant_id = :tenant_id
    AND (CAST(:agent_id AS {key}) IS NULL OR agent_id = :agent_id)
    AND (CAST(:after AS {key}) IS NULL OR agent_id < :after)
ORDER BY agent_id DESC LIMIT :limit;
