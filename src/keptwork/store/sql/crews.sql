-- Statements about crews, for both databases. {ids} is a list of IDs, and {names} a list of strings.

-- name: crew_by_key
-- Get the crew that was created with an idempotency key.
SELECT id FROM crews WHERE tenant_id = :tenant_id AND key = :key;

-- name: listed_crews
-- List crews, newest first.
SELECT id FROM crews WHERE tenant_id = :tenant_id AND (CAST(:after AS {key}) IS NULL OR id < :after)
    AND (CAST(:inside AS {int}) = 1 OR parent_id IS NULL) AND ({no_names} OR state IN {names})
ORDER BY id DESC LIMIT :limit;

-- name: shares
-- List the jobs of crews in order, all or only the unfinished ones.
SELECT {job_columns} FROM jobs
WHERE crew_id IN {ids} AND (CAST(:unfinished AS {int}) = 0 OR completed_at IS NULL) ORDER BY crew_id, id;

-- name: subcrews
-- List the crews directly inside others, all or only the unfinished ones.
SELECT id FROM crews
WHERE parent_id IN {ids} AND (CAST(:unfinished AS {int}) = 0 OR completed_at IS NULL) ORDER BY id;

-- name: quotas
-- List, per depth, the quota if one is set, the number of shares that have a worker, and whether a share or crew is in
-- line. Pending crews are read depth by depth, because there can be many.
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
-- Set the maximum concurrent workers of a depth's crews.
INSERT INTO crew_quotas (tenant_id, depth, most) VALUES (:tenant_id, :depth, :most)
ON CONFLICT (tenant_id, depth) DO UPDATE SET most = excluded.most;

-- name: shares_in_line
-- List shares of one depth that their quota holds and that are otherwise ready, earliest first.
SELECT j.id FROM jobs AS j JOIN crews AS c ON c.id = j.crew_id
WHERE j.tenant_id = :tenant_id AND j.held_by = 'quota' AND j.completed_at IS NULL AND j.waits_for IS NULL
    AND c.depth = :depth ORDER BY j.run_at, j.id LIMIT :limit;

-- name: crews_in_line
-- List pending crews of one depth in the order of their submission. A crew that needs more than `most` workers, or has
-- no work, is passed over, so that it blocks no other crew.
SELECT id, worker_count FROM crews
WHERE tenant_id = :tenant_id AND depth = :depth AND state = {crew.PENDING} AND work IS NOT NULL
    AND worker_count <= :most ORDER BY id LIMIT :limit;

-- name: go_on
-- Lift the quota hold of shares. A share with a limit of its own is then held by that limit.
UPDATE jobs SET held_by = {held_back} WHERE id IN {ids} AND held_by = 'quota' AND state = {job.queued}
RETURNING id, limit_key;

-- name: wake_for_crews
-- Make those of these jobs due that wait for one of these crews.
UPDATE jobs SET run_at = {now}, waits_for = NULL
WHERE id IN {ids} AND state = {job.queued} AND waits_for IS NOT NULL AND (waits_for IN {names} OR EXISTS (
    SELECT 1 FROM waits AS w WHERE w.job_id = jobs.id AND w.epoch = jobs.epoch AND w.name IN {names}))
RETURNING id;

-- name: crews_of_step
-- List the crews that run for a step of a flow, newest first.
SELECT id FROM crews WHERE step_id = :step_id ORDER BY id DESC;

-- name: crew_tenants
-- List the tenants that have unfinished crews.
SELECT DISTINCT tenant_id FROM crews WHERE completed_at IS NULL ORDER BY tenant_id;

-- name: crews_amiss
-- List crews that should have moved: past their deadline, not validated, with an ended parent crew, a cancelled asker,
-- an unsuccessful share, or no unfinished work left.
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
-- List finished crews that have unfinished shares, with their tenants.
SELECT DISTINCT j.tenant_id, j.crew_id FROM jobs AS j JOIN crews AS c ON c.id = j.crew_id
WHERE j.crew_id IS NOT NULL AND j.completed_at IS NULL AND c.completed_at IS NOT NULL ORDER BY j.crew_id LIMIT :limit;

-- name: forgotten_askers
-- List jobs that wait for a crew although every crew that they created has ended.
SELECT f.id, f.name FROM (
    SELECT j.id, j.waits_for AS name FROM jobs AS j
    WHERE j.tenant_id = :tenant_id AND j.waits_for LIKE 'crew %' AND j.state = {job.queued}
        AND NOT EXISTS (SELECT 1 FROM waits AS w WHERE w.job_id = j.id AND w.epoch = j.epoch)
    UNION ALL SELECT j.id, w.name FROM waits AS w JOIN jobs AS j ON j.id = w.job_id AND j.epoch = w.epoch
    WHERE w.tenant_id = :tenant_id AND w.name LIKE 'crew %' AND j.state = {job.queued} AND j.waits_for IS NOT NULL
) AS f
WHERE NOT EXISTS (SELECT 1 FROM crews AS c WHERE c.asker_id = f.id AND c.completed_at IS NULL)
ORDER BY f.id LIMIT :limit;
