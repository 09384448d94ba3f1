-- Statements about what was said in the conversations of agents, for both databases.

-- name: transcript
-- What was said in a job, in its order.
SELECT {line_columns} FROM transcripts
WHERE job_id = :job_id AND tenant_id = :tenant_id ORDER BY round, position;

-- name: may_say
-- Whether the job is still held; if so, nobody can take it away before this is committed. It is found by its key and
-- locked before it is looked at.
SELECT j.id FROM (
    SELECT id, epoch, owner, state, lease_until FROM jobs WHERE id = :job_id AND tenant_id = :tenant_id {for_share}) AS j
WHERE j.epoch = :epoch AND j.owner = :owner AND j.state = {job.running} AND j.lease_until > {now};

-- name: say
-- A message in its place. What was said there before stands.
INSERT INTO transcripts (job_id, created_at, tenant_id, epoch, round, position, size, hash)
VALUES (:job_id, {now}, :tenant_id, :epoch, :round, :position, :size, :hash)
ON CONFLICT (job_id, round, position) DO NOTHING;
