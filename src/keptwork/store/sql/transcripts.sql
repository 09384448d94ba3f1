-- Statements about the conversations of agents, for both databases.

-- name: transcript
-- List the messages of a job in order.
SELECT {line_columns} FROM transcripts
WHERE job_id = :job_id AND tenant_id = :tenant_id ORDER BY round, position;

-- name: may_say
-- Check that the claim still holds the job. On PostgreSQL, the claim cannot be lost before the commit. The row is found
-- by its key and locked before its values are checked.
SELECT j.id FROM (
    SELECT id, epoch, owner, state, lease_until FROM jobs WHERE id = :job_id AND tenant_id = :tenant_id {for_share}) AS j
WHERE j.epoch = :epoch AND j.owner = :owner AND j.state = {job.running} AND j.lease_until > {now};

-- name: say
-- Store a message at its position. An existing message stays.
INSERT INTO transcripts (job_id, created_at, tenant_id, epoch, round, position, size, hash)
VALUES (:job_id, {now}, :tenant_id, :epoch, :round, :position, :size, :hash)
ON CONFLICT (job_id, round, position) DO NOTHING;
