-- Statements about flows, for both databases. {ids} is a list of IDs, {names} a list of strings, and {flows} the table
-- of one kind of flow.

-- name: lock_tree
-- Lock a tree of flows. Every change of a tree takes this lock first, so that it sees all steps as they are.
{lock_tree};

-- name: put_template
-- Store a definition as a version of its own.
INSERT INTO templates (id, created_at, tenant_id, version, kind, name, hash, definition)
VALUES (:id, {now}, :tenant_id, :version, :kind, :name, :hash, :definition) RETURNING {template_columns};

-- name: template
-- Get a template by its ID.
SELECT {template_columns} FROM templates WHERE id = :id AND tenant_id = :tenant_id;

-- name: templates
-- List templates by name, newest version first.
SELECT {template_columns} FROM templates AS t
WHERE tenant_id = :tenant_id AND (CAST(:name AS text) IS NULL OR name = :name) AND (CAST(:newest AS {int}) = 0 OR
    version = (SELECT max(version) FROM templates AS n WHERE n.tenant_id = t.tenant_id AND n.name = t.name))
    AND (CAST(:after_name AS text) IS NULL OR name > :after_name OR (name = :after_name AND version < :after_version))
ORDER BY name, version DESC LIMIT :limit;

-- name: steps_of_flow
-- List all steps of a flow in order.
SELECT {step_columns} FROM steps WHERE flow_id = :flow_id ORDER BY position, place;

-- name: steps_by_key
-- List steps by ID, of any flow.
SELECT {step_columns} FROM steps WHERE id IN {ids};

-- name: steps_of_step
-- List the items of a step in order.
SELECT {step_columns} FROM steps WHERE flow_id = :flow_id AND parent_id = :parent_id ORDER BY place;

-- name: step_outputs
-- Get the results of some steps of a flow.
SELECT name, state, output, output_hash, item FROM steps WHERE flow_id = :flow_id AND name IN {names};

-- name: element_outputs
-- Get the results of a step's items in order.
SELECT name, state, output, output_hash, item FROM steps WHERE parent_id = :parent_id ORDER BY place;

-- name: elements_in
-- List the first items of a step that are in a state.
SELECT {step_columns} FROM steps WHERE parent_id = :parent_id AND state = :state ORDER BY place LIMIT :limit;

-- name: step_counts
-- Count the steps of a flow per state, without items.
SELECT state, count(*) FROM steps WHERE flow_id = :flow_id AND parent_id IS NULL GROUP BY state;

-- name: element_counts
-- Count the items of a step per state.
SELECT state, count(*) FROM steps WHERE parent_id = :parent_id GROUP BY state;

-- name: by_key
-- Get the flow that was created with an idempotency key.
SELECT id FROM {flows} WHERE tenant_id = :tenant_id AND key = :key;

-- name: any_unfinished
-- Check whether a flow has an unfinished step in other states than these. The order is that of the index that has only
-- unfinished steps.
SELECT 1 FROM steps
WHERE flow_id = :flow_id AND completed_at IS NULL AND parent_id IS NULL AND state NOT IN {names}
ORDER BY state LIMIT 1;

-- name: unfinished_jobs
-- List the unfinished jobs of a tree of flows.
SELECT {job_columns} FROM jobs WHERE tree_id = :tree_id AND completed_at IS NULL ORDER BY id;

-- name: subflows
-- List the flows that run for a step, newest first.
SELECT id FROM {flows} WHERE step_id = :step_id ORDER BY id DESC;

-- name: resumption
-- Get the fork that resumes an unsuccessful flow.
SELECT id FROM {flows} WHERE forked_from = :id AND resumes = 1;

-- name: forks
-- List the workstreams that were forked from one, newest first.
SELECT id FROM workstreams WHERE forked_from = :id ORDER BY id DESC;

-- name: ended_amiss
-- List finished flows with an unfinished step or job or an open approval, and flows in this state with a step in one of
-- these states. Unfinished rows have small indexes. Finished flows are scanned.
SELECT f.id FROM {flows} AS f WHERE f.completed_at IS NOT NULL AND f.id > :after AND (
    EXISTS (SELECT 1 FROM steps AS s WHERE s.flow_id = f.id AND s.completed_at IS NULL)
    OR EXISTS (SELECT 1 FROM jobs AS j JOIN steps AS s ON s.id = j.step_id
        WHERE j.tree_id = coalesce(f.tree_id, f.id) AND j.completed_at IS NULL AND s.flow_id = f.id)
    OR EXISTS (SELECT 1 FROM approvals AS a JOIN steps AS s ON s.id = a.step_id
        WHERE a.step_id IS NOT NULL AND a.decision IS NULL AND s.flow_id = f.id)
    OR (f.state = CAST(:state AS text) AND EXISTS (SELECT 1 FROM steps AS s
        WHERE s.flow_id = f.id AND s.parent_id IS NULL AND s.state IN {names})))
ORDER BY f.id LIMIT :limit;

-- name: lost_steps
-- List unfinished steps in these states whose job has ended or was deleted, and which no other job runs. Workers run
-- this often, so it reads only the index of unfinished steps.
SELECT s.id FROM steps AS s {by_unfinished_steps} LEFT JOIN jobs AS j ON j.id = s.job_id
WHERE s.flow_id IS NOT NULL AND s.completed_at IS NULL AND s.job_id IS NOT NULL AND s.state IN {names}
    AND (j.id IS NULL OR (j.completed_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM jobs AS o
        WHERE o.tree_id = j.tree_id AND o.completed_at IS NULL AND o.step_id = s.id)))
LIMIT :limit;

-- name: long_at_work
-- List jobs that have been in one of these claimed states since before a time, the longest first.
SELECT id FROM jobs WHERE state IN ({job.assigned}, {job.running}) AND state IN {names} AND updated_at <= :before
ORDER BY updated_at LIMIT :limit;

-- name: unleased
-- List jobs in a claimed state that have no lease.
SELECT id FROM jobs WHERE state IN ({job.assigned}, {job.running}) AND lease_until IS NULL ORDER BY id LIMIT :limit;

-- name: holds
-- Count held jobs per tenant and hold, without limits, with the time of the oldest.
SELECT tenant_id, held_by, count(*), min(updated_at) FROM jobs
WHERE state = {job.queued} AND held_by IS NOT NULL AND held_by <> 'limit'
GROUP BY tenant_id, held_by ORDER BY tenant_id, held_by;

-- name: unclosed_breakers
-- List breakers that are open or half-open.
SELECT id FROM breakers WHERE state IN ({breaker.OPEN}, {breaker.HALF_OPEN}) ORDER BY id LIMIT :limit;

-- name: listed
-- List flows, newest first.
SELECT id FROM {flows} WHERE (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id)
    AND (CAST(:after AS {key}) IS NULL OR id < :after) AND (CAST(:name AS text) IS NULL OR name = :name)
    AND (CAST(:inside AS {int}) = 1 OR step_id IS NULL) AND ({no_names} OR state IN {names})
    AND (CAST(:since AS {time}) IS NULL OR created_at >= :since)
    AND (CAST(:before AS {time}) IS NULL OR created_at < :before)
ORDER BY id DESC LIMIT :limit;

-- name: to_wake
-- List flows whose wake time has passed, earliest first.
SELECT id FROM {flows} WHERE wake_at <= {now} ORDER BY wake_at LIMIT :limit;

-- name: next_flow_wake
-- Get when time will next move a flow or expire its approval.
SELECT min(at) FROM (
    SELECT min(wake_at) AS at FROM runs WHERE wake_at IS NOT NULL
    UNION ALL SELECT min(wake_at) FROM workstreams WHERE wake_at IS NOT NULL
    UNION ALL SELECT min(expires_at) FROM approvals WHERE step_id IS NOT NULL AND decision IS NULL) AS times;

-- name: expired_gates
-- List open approvals of flow steps whose deadline has passed, earliest first.
SELECT {approval_columns} FROM approvals WHERE step_id IS NOT NULL AND decision IS NULL AND expires_at <= {now}
ORDER BY expires_at LIMIT :limit;

-- name: gate
-- Get the latest approval request of a step.
SELECT {approval_columns} FROM approvals WHERE step_id = :step_id AND tenant_id = :tenant_id ORDER BY id DESC LIMIT 1;

-- name: open_gate
-- Open the approval request of a flow step.
INSERT INTO approvals (id, created_at, expires_at, tenant_id, step_id, step, question, details, digest, scope)
VALUES (:id, {now}, {now} + CAST(:expires_us AS {time}), :tenant_id, :step_id, :step, :question, :details, :digest, :scope);

-- name: withdraw_gate
-- Withdraw the open approval of a step, since the action it describes has changed.
UPDATE approvals SET decision = 'withdrawn', decided_at = {now}
WHERE step_id = :step_id AND tenant_id = :tenant_id AND decision IS NULL RETURNING id;

-- name: close_gate
-- Decide the open approval of a step. The decision is `expired` only after the deadline, and anything else only before,
-- except `withdrawn`.
UPDATE approvals SET decision = CAST(:decision AS text), decided_at = {now}, decided_by = :decided_by, comment = :comment
WHERE step_id = :step_id AND tenant_id = :tenant_id AND decision IS NULL
    AND (CAST(:decision AS text) = 'withdrawn'
        OR (CAST(:decision AS text) = 'expired') = (expires_at IS NOT NULL AND expires_at <= {now}))
RETURNING {approval_columns};
