-- Statements of retention, for both databases. {ids} is a list of IDs, and {flows} the table of one kind of flow. The
-- conditions for deletion are in parts.sql, once for the search and for the deletion.

-- name: prunable_jobs
-- List the next jobs by ID, which is by age, with whether each is old enough to search further and whether it can be
-- deleted.
SELECT id, state, created_at < :newest, {job_may_go} FROM jobs WHERE id > :after ORDER BY id LIMIT :limit;

-- name: prunable_workers
-- List the next workers by ID, as above.
SELECT id, state, created_at < :newest, {worker_may_go} FROM workers WHERE id > :after ORDER BY id LIMIT :limit;

-- name: prunable_agent_jobs
-- List the next agent jobs by ID, as above.
SELECT id, state, created_at < :newest, {agent_may_go} FROM agent_jobs WHERE id > :after ORDER BY id LIMIT :limit;

-- name: prunable_crews
-- List the next crews by ID, as above.
SELECT id, state, created_at < :newest, {crew_may_go} FROM crews WHERE id > :after ORDER BY id LIMIT :limit;

-- name: prunable
-- List the next flows by ID, as above.
SELECT id, state, created_at < :newest, {flow_may_go} FROM {flows} WHERE id > :after ORDER BY id LIMIT :limit;

-- name: may_go_crews
-- List those of these crews that can be deleted, with their trees.
SELECT id, coalesce(tree_id, id), tenant_id FROM crews WHERE id IN {ids} AND {crew_may_go} ORDER BY id;

-- name: may_go
-- List those of these flows that can be deleted, with their trees.
SELECT id, coalesce(tree_id, id), tenant_id FROM {flows} WHERE id IN {ids} AND {flow_may_go} ORDER BY id;

-- name: lock_free_trees
-- Lock those of these trees that no other transaction works on, until the transaction ends.
{lock_free_trees};

-- name: steps_inside
-- List the steps of flows, with whether each is unfinished.
SELECT id, flow_id, completed_at IS NULL FROM steps WHERE flow_id IN {ids};

-- name: inside
-- List the flows that run for steps, with whether each is unfinished.
SELECT id, step_id, completed_at IS NULL FROM {flows} WHERE step_id IN {ids};

-- name: crews_inside_steps
-- List the crews that run for steps, with whether each is unfinished.
SELECT id, step_id, completed_at IS NULL FROM crews WHERE step_id IN {ids};

-- name: crews_inside_crews
-- List the crews inside crews, with whether each is unfinished.
SELECT id, parent_id, completed_at IS NULL FROM crews WHERE parent_id IN {ids};

-- name: take_jobs
-- Delete those of these jobs that can still be deleted, and return what to record.
DELETE FROM jobs WHERE id IN {ids} AND {job_may_go} RETURNING tenant_id, 'job', state, completed_at;

-- name: take_workers
-- Delete those of these workers that can still be deleted, and return what to record.
DELETE FROM workers WHERE id IN {ids} AND {worker_may_go} RETURNING tenant_id, 'worker', state, completed_at;

-- name: take_agent_jobs
-- Delete those of these agent jobs that can still be deleted, and return what to record.
DELETE FROM agent_jobs WHERE id IN {ids} AND {agent_may_go} RETURNING tenant_id, 'agent', state, completed_at;

-- name: take_crews
-- Delete whole crews, which were checked before under the lock of their tree.
DELETE FROM crews WHERE id IN {ids} RETURNING tenant_id, 'crew', state, completed_at;

-- name: take_steps
-- Delete the steps of whole flows.
DELETE FROM steps WHERE id IN {ids} RETURNING tenant_id, lifecycle, state, completed_at;

-- name: take_runs
-- Delete whole runs.
DELETE FROM runs WHERE id IN {ids} RETURNING tenant_id, 'run', state, completed_at;

-- name: take_workstreams
-- Delete whole workstreams.
DELETE FROM workstreams WHERE id IN {ids} RETURNING tenant_id, 'workstream', state, completed_at;

-- name: drop_gates
-- Delete the approvals of steps.
DELETE FROM approvals WHERE step_id IN {ids};

-- name: drop_deliveries
-- Delete the webhook deliveries of flows.
DELETE FROM outbox WHERE entity_id IN {ids};

-- name: drop_flow_budgets
-- Delete the budgets of flows. The ledger keeps what was spent.
DELETE FROM budgets WHERE tenant_id = :tenant_id AND owner IN {ids} AND scope = 'flow' AND reserved_micros = 0;

-- name: account_for
-- Record how many rows of a state were deleted, and the time before which all of them had ended.
INSERT INTO retention (tenant_id, entity, state, pruned, pruned_before)
VALUES (:tenant_id, :entity, :state, :rows, :before)
ON CONFLICT (tenant_id, entity, state) DO UPDATE SET pruned = retention.pruned + excluded.pruned,
    pruned_before = CASE WHEN retention.pruned_before > excluded.pruned_before THEN retention.pruned_before
        ELSE excluded.pruned_before END;

-- name: pruned
-- List what retention has deleted so far.
SELECT tenant_id, entity, state, pruned, pruned_before FROM retention ORDER BY tenant_id, entity, state;
