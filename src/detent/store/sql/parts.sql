-- What several statements have in common: `{NAME}` in one of them stands for the text of a part.

-- name: job_may_go
-- It ended long enough ago for its state; with an idempotency key it stays longer. What runs another job again stays
-- while that one does: without it, that one would seem never to have been run again. A share stays while its crew is at
-- work: its result is part of what that comes to.
completed_at < {ended_before} AND (key IS NULL OR completed_at < CAST(:keyed_before AS {time}))
    AND (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id)
    AND NOT EXISTS (SELECT 1 FROM jobs AS first WHERE first.id = jobs.redriven_from)
    AND (crew_id IS NULL OR NOT EXISTS (SELECT 1 FROM crews AS own WHERE own.id = jobs.crew_id AND own.completed_at IS NULL));

-- name: stale
-- An open question whose job has ended, or is gone.
a.decision IS NULL AND a.job_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = a.job_id AND j.completed_at IS NULL);

-- name: worker_may_go
-- It ended long enough ago, and no job is left in its name.
completed_at < {ended_before} AND (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id)
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.owner = workers.id AND jobs.state IN ({job.assigned}, {job.running})
        AND jobs.lease_until IS NOT NULL);

-- name: held_back
-- Back in the queue, a job that has a limit does not count against it, and waits for its turn.
CASE WHEN jobs.limit_key IS NOT NULL THEN 'limit' END;

-- name: held_by_budget
-- How many jobs a budget holds back.
(SELECT count(*) FROM jobs AS j
    WHERE j.held_by = 'budget:' || b.scope || ':' || b.subject AND j.held_by <> 'limit' AND j.tenant_id = b.tenant_id
        AND j.state = {job.queued})
