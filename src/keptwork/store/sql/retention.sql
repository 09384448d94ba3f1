-- Statements of retention, for both databases. {ids} is a list of keys; {flows} is the table of one kind of flows. What may
-- go is said in parts.sql, once for those who look and for those who delete.

-- name: prunable_jobs
-- The next jobs by id, which is by age: whether each is old enough to look further, and whether it may go.
SELECT id, state, created_at < :newest, {job_may_go} FROM jobs WHERE id > :after ORDER BY id LIMIT :limit;

-- name: prunable_workers
-- The next workers by id, as above.
SELECT id, state, created_at < :newest, {worker_may_go} FROM workers WHERE id > :after ORDER BY id LIMIT :limit;

-- name: prunable_agent_jobs
-- The next agent jobs by id, as above.
SELECT id, state, created_at < :newest, {agent_may_go} FROM agent_jobs WHERE id > :after ORDER BY id LIMIT :limit;

-- name: prunable_crews
-- The next crews by id, as above.
SELECT id, state, created_at < :newest, {crew_may_go} FROM crews WHERE id > :after ORDER BY id LIMIT :limit;

-- name: prunable
-- The next flows by id, as above.
SELECT id, state, created_at < :newest, {flow_may_go} FROM {flows} WHERE id > :after ORDER BY id LIMIT :limit;

-- name: may_go_crews
-- Those of these crews that may go, and the tree each belongs to.
SELECT id, coalesce(tree_id, id), tenant_id FROM crews WHERE id IN {ids} AND {crew_may_go} ORDER BY id;

-- name: may_go
-- Those of these flows that may go, and the tree each belongs to.
SELECT id, coalesce(tree_id, id), tenant_id FROM {flows} WHERE id IN {ids} AND {flow_may_go} ORDER BY id;

-- name: lock_free_trees
-- Those of these trees that nobody else is at work on; nobody will be, until the transaction is over.
{lock_free_trees};

-- name: steps_inside
-- The steps of flows, and whether each has still to end.
SELECT id, flow_id, completed_at IS NULL FROM steps WHERE flow_id IN {ids};

-- name: inside
-- The flows that steps consist of, as above.
SELECT id, step_id, completed_at IS NULL FROM {flows} WHERE step_id IN {ids};

-- name: crews_inside_steps
-- The crews that steps consist of, as above.
SELECT id, step_id, completed_at IS NULL FROM crews WHERE step_id IN {ids};

-- name: crews_inside_crews
-- The crews inside crews, as above.
SELECT id, parent_id, completed_at IS NULL FROM crews WHERE parent_id IN {ids};

-- name: take_jobs
-- Deletes those of these jobs that still may go; tells what is to be accounted for.
DELETE FROM jobs WHERE id IN {ids} AND {job_may_go} RETURNING tenant_id, 'job', state, completed_at;

-- name: take_workers
-- The same of workers.
DELETE FROM workers WHERE id IN {ids} AND {worker_may_go} RETURNING tenant_id, 'worker', state, completed_at;

-- name: take_agent_jobs
-- The same of agent jobs.
DELETE FROM agent_jobs WHERE id IN {ids} AND {agent_may_go} RETURNING tenant_id, 'agent', state, completed_at;

-- name: take_crews
-- Crews that go as a whole; that they may was seen before, under the lock of their tree.
DELETE FROM crews WHERE id IN {ids} RETURNING tenant_id, 'crew', state, completed_at;

-- name: take_steps
-- Steps of flows that go as a whole.
DELETE FROM steps WHERE id IN {ids} RETURNING tenant_id, lifecycle, state, completed_at;

-- name: take_runs
-- Runs that go as a whole.
DELETE FROM runs WHERE id IN {ids} RETURNING tenant_id, 'run', state, completed_at;

-- name: take_workstreams
-- Workstreams that go as a whole.
DELETE FROM workstreams WHERE id IN {ids} RETURNING tenant_id, 'workstream', state, completed_at;

-- name: drop_gates
-- What was asked at steps.
DELETE FROM approvals WHERE step_id IN {ids};

-- name: drop_deliveries
-- What was told to the outside of flows.
DELETE FROM outbox WHERE entity_id IN {ids};

-- name: drop_flow_budgets
-- The budgets of flows; the ledger keeps what was spent.
DELETE FROM budgets WHERE tenant_id = :tenant_id AND owner IN {ids} AND scope = 'flow' AND reserved_micros = 0;

-- name: account_for
-- So many rows of a state are gone, and all of them had ended before then.
INSERT INTO retention (tenant_id, entity, state, pruned, pruned_before)
VALUES (:tenant_id, :entity, :state, :rows, :before)
ON CONFLICT (tenant_id, entity, state) DO UPDATE SET pruned = retention.pruned + excluded.pruned,
    pruned_before = CASE WHEN retention.pruned_before > excluded.pruned_before THEN retention.pruned_before
        ELSE excluded.pruned_before END;

-- name: pruned
-- What retention has deleted so far.
SELECT tenant_id, entity, state, pruned, pruned_before FROM retention ORDER BY tenant_id, entity, state;
