-- Statements about crews, for both databases. {ids} and {names} are lists of keys and of texts.

-- name: crew_by_key
-- The crew an idempotency key has already made.
SELECT id FROM crews WHERE tenant_id = :tenant_id AND key = :key;

-- name: listed_crews
-- Crews, the newest first.
SELECT id FROM crews WHERE tenant_id = :tenant_id AND (CAST(:after AS {key}) IS NULL OR id < :after)
    AND (CAST(:inside AS {int}) = 1 OR parent_id IS NULL) AND ({no_names} OR state IN {names})
ORDER BY id DESC LIMIT :limit;

-- name: shares
-- The jobs of crews, in order: all, or those that have not ended.
SELECT {job_columns} FROM jobs
WHERE crew_id IN {ids} AND (CAST(:unfinished AS {int}) = 0 OR completed_at IS NULL) ORDER BY crew_id, id;

-- name: subcrews
-- The crews directly inside others: all, or those that have not ended.
SELECT id FROM crews
WHERE parent_id IN {ids} AND (CAST(:unfinished AS {int}) = 0 OR completed_at IS NULL) ORDER BY id;

-- name: quotas
-- Of each depth that has any of it: its quota, if one was set, how many shares hold a worker of it, and whether somebody
-- is in line for one. Crews in line are asked for depth by depth: there may be many of them.
WITH RECURSIVE depths(depth) AS (
    SELECT min(depth) FROM crews WHERE tenant_id = :tenant_id AND state = {crew.PENDING}
    UNION ALL
    SELECT (SELECT min(c.depth) FROM crews AS c
        WHERE c.tenant_id = :tenant_id AND c.state = {crew.PENDING} AND c.depth > depths.depth)
    FROM depths WHERE depths.depth IS NOT NULL)
SELECT depth, max(most), CAST(sum(used) AS {int}), max(in_line) FROM (
    SELECT depth, most, 0 AS used, 0 AS in_line FROM crew_quotas WHERE tenant_id = :tenant_id
    UNION ALL
    SELECT c.depth, NULL, 1, 0 FROM jobs AS j JOIN crews AS c ON c.id = j.crew_id
    WHERE j.tenant_id = :tenant_id AND j.crew_id IS NOT NULL AND j.completed_at IS NULL
        AND coalesce(j.held_by, '') <> 'quota'
    UNION ALL
    SELECT c.depth, NULL, 0, 1 FROM jobs AS j JOIN crews AS c ON c.id = j.crew_id
    WHERE j.tenant_id = :tenant_id AND j.held_by = 'quota' AND j.completed_at IS NULL AND j.waits_for IS NULL
    UNION ALL
    SELECT depth, NULL, 0, 1 FROM depths WHERE depth IS NOT NULL) AS counted
GROUP BY depth ORDER BY depth;

-- name: set_quota
-- How many workers the crews of a depth may have at once from now on.
INSERT INTO crew_quotas (tenant_id, depth, most) VALUES (:tenant_id, :depth, :most)
ON CONFLICT (tenant_id, depth) DO UPDATE SET most = excluded.most;

-- name: shares_in_line
-- Shares of one depth that waited for a crew inside their own and could go on, the longest first.
SELECT j.id FROM jobs AS j JOIN crews AS c ON c.id = j.crew_id
WHERE j.tenant_id = :tenant_id AND j.held_by = 'quota' AND j.completed_at IS NULL AND j.waits_for IS NULL
    AND c.depth = :depth ORDER BY j.run_at, j.id LIMIT :limit;

-- name: crews_in_line
-- Crews of one depth that wait for workers, in the order they were submitted. One that needs more than there are at all, or
-- does not say what to do, is passed over: nobody waits behind it.
SELECT id, worker_count FROM crews
WHERE tenant_id = :tenant_id AND depth = :depth AND state = {crew.PENDING} AND work IS NOT NULL
    AND worker_count <= :most ORDER BY id LIMIT :limit;

-- name: go_on
-- These shares hold a worker again, and can be claimed as far as a limit of their own lets them.
UPDATE jobs SET held_by = {held_back} WHERE id IN {ids} AND held_by = 'quota' AND state = {job.queued}
RETURNING id, limit_key;

-- name: wake_for_crews
-- Those of these jobs that wait for one of these crews do so no longer.
UPDATE jobs SET run_at = {now}, waits_for = NULL
WHERE id IN {ids} AND state = {job.queued} AND waits_for IS NOT NULL AND (waits_for IN {names} OR EXISTS (
    SELECT 1 FROM waits AS w WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name IN {names}))
RETURNING id;

-- name: crews_of_step
-- The crews a step of a flow consists of, the newest first.
SELECT id FROM crews WHERE step_id = :step_id ORDER BY id DESC;

-- name: crew_tenants
-- Whose crews there are that have not ended.
SELECT DISTINCT tenant_id FROM crews WHERE completed_at IS NULL ORDER BY tenant_id;

-- name: crews_amiss
-- Crews that should have moved: their time is over, what they belong to has ended, a share of theirs has failed, or
-- nothing is left to be done.
SELECT c.tenant_id, c.id FROM crews AS c WHERE c.completed_at IS NULL AND (
    c.deadline_at <= (SELECT {now}) OR c.state = {crew.SUBMITTED}
    OR EXISTS (SELECT 1 FROM crews AS p WHERE p.id = c.parent_id AND p.completed_at IS NOT NULL)
    OR EXISTS (SELECT 1 FROM jobs AS a WHERE a.id = c.asker_id AND a.state = {job.cancelled})
    OR (c.state = {crew.RUNNING} AND (
        EXISTS (SELECT 1 FROM jobs AS j
            WHERE j.crew_id = c.id AND j.completed_at IS NOT NULL AND j.state <> {job.succeeded})
        OR (NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.crew_id = c.id AND j.completed_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM crews AS i WHERE i.parent_id = c.id AND i.completed_at IS NULL)))))
ORDER BY c.id LIMIT :limit;

-- name: outlived_crews
-- Crews that have ended although shares of theirs have not, with whose they are.
SELECT DISTINCT j.tenant_id, j.crew_id FROM jobs AS j JOIN crews AS c ON c.id = j.crew_id
WHERE j.crew_id IS NOT NULL AND j.completed_at IS NULL AND c.completed_at IS NOT NULL ORDER BY j.crew_id LIMIT :limit;

-- name: forgotten_askers
-- Jobs that wait for a crew although none that they made has still to end.
SELECT f.id, f.name FROM (
    SELECT j.id, j.waits_for AS name FROM jobs AS j
    WHERE j.tenant_id = :tenant_id AND j.waits_for LIKE 'crew %' AND j.state = {job.queued}
        AND NOT EXISTS (SELECT 1 FROM waits AS w WHERE w.job_id = j.id AND w.epoch = j.epoch)
    UNION ALL SELECT j.id, w.name FROM waits AS w JOIN jobs AS j ON j.id = w.job_id AND j.epoch = w.epoch
    WHERE w.tenant_id = :tenant_id AND w.name LIKE 'crew %' AND j.state = {job.queued} AND j.waits_for IS NOT NULL
) AS f
WHERE NOT EXISTS (SELECT 1 FROM crews AS c WHERE c.asker_id = f.id AND c.completed_at IS NULL)
ORDER BY f.id LIMIT :limit;
