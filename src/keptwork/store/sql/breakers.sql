-- Statements about breakers and the jobs they hold, for both databases.

-- name: breaker
-- Get a breaker by its name.
SELECT {breaker_columns} FROM breakers WHERE tenant_id = :tenant_id AND name = :name;

-- name: lock_breaker
-- Get a breaker by its name, and lock it against changes until the transaction ends.
SELECT {breaker_columns} FROM breakers WHERE tenant_id = :tenant_id AND name = :name {for_change};

-- name: breakers
-- List a tenant's breakers with the number of jobs each holds.
SELECT {breaker_columns}, (SELECT count(*) FROM jobs AS j
    WHERE j.held_by = 'breaker:' || b.name AND j.held_by <> 'limit' AND j.tenant_id = b.tenant_id AND j.state = {job.queued})
FROM breakers AS b WHERE tenant_id = :tenant_id AND (CAST(:name AS text) IS NULL OR name = :name) ORDER BY name;

-- name: breakers_that_hold
-- List breakers that need attention, with whether there are jobs to hold, whether there are held jobs, and whether the
-- probe is running.
SELECT {breaker_columns},
    EXISTS (SELECT 1 FROM jobs AS j WHERE j.hold_key = 'breaker:' || b.name AND j.hold_key IS NOT NULL
        AND j.held_by IS NULL AND j.tenant_id = b.tenant_id AND j.state = {job.queued}
        AND (b.candidate IS NULL OR j.id <> b.candidate)),
    EXISTS (SELECT 1 FROM jobs AS j WHERE j.held_by = 'breaker:' || b.name AND j.held_by <> 'limit'
        AND j.tenant_id = b.tenant_id AND j.state = {job.queued}),
    EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = b.probe_job AND j.epoch = b.probe_epoch
        AND j.state IN ({job.assigned}, {job.running}) AND j.lease_until > (SELECT {now}))
FROM breakers AS b WHERE holds = 1 AND id > :after ORDER BY id LIMIT :limit;

-- name: is_claimed
-- Check that the claim of a job is alive.
SELECT 1 FROM jobs WHERE id = :id AND epoch = :epoch AND state IN ({job.assigned}, {job.running}) AND lease_until > {now};

-- name: holds_any
-- Check whether a queued job has this hold.
SELECT 1 FROM jobs
WHERE held_by = :hold AND held_by <> 'limit' AND tenant_id = :tenant_id AND state = {job.queued} LIMIT 1;

-- name: hold_back
-- Hold some jobs that have this hold key and no hold yet. A job that is being claimed is skipped.
WITH next AS MATERIALIZED (
    SELECT id FROM jobs
    WHERE hold_key = CAST(:hold AS text) AND hold_key IS NOT NULL AND tenant_id = :tenant_id AND held_by IS NULL
        AND state = {job.queued} AND (CAST(:besides AS {key}) IS NULL OR id <> :besides)
    LIMIT :limit {for_update_skip_locked})
UPDATE jobs SET held_by = CAST(:hold AS text) WHERE id IN (SELECT id FROM next) RETURNING id, limit_key;

-- name: let_held_go
-- Lift a hold from some jobs. A job with a limit is then held by that limit.
WITH next AS MATERIALIZED (
    SELECT id FROM jobs
    WHERE held_by = CAST(:hold AS text) AND held_by <> 'limit' AND tenant_id = :tenant_id AND state = {job.queued}
    ORDER BY queue, priority DESC, run_at, id LIMIT :limit {for_update_skip_locked})
UPDATE jobs SET held_by = {held_back} WHERE id IN (SELECT id FROM next) RETURNING id, limit_key;

-- name: next_held_queue
-- Get the next queue by name that has jobs with this hold.
SELECT min(queue) FROM jobs WHERE held_by = :hold AND held_by <> 'limit' AND tenant_id = :tenant_id
    AND state = {job.queued} AND (CAST(:after AS text) IS NULL OR queue > :after);

-- name: let_one_held_go
-- Lift a hold from the first due job of a queue: the highest priority, then the earliest due time.
WITH next AS MATERIALIZED (
    SELECT id FROM jobs
    WHERE held_by = CAST(:hold AS text) AND held_by <> 'limit' AND tenant_id = :tenant_id AND queue = :queue
        AND state = {job.queued} AND run_at <= {now}
    ORDER BY priority DESC, run_at, id LIMIT 1 {for_update_skip_locked})
UPDATE jobs SET held_by = {held_back} WHERE id IN (SELECT id FROM next) RETURNING id, limit_key;

-- name: free_places
-- Check the limits of these jobs again, since the jobs have given up their places.
INSERT INTO limit_wakes (at, tenant_id, key)
SELECT DISTINCT run_at, CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key FROM jobs
WHERE id IN {ids} AND limit_key IS NOT NULL;
