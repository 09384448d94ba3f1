-- Statements about flows, for both databases. {ids} and {names} are lists of keys and of texts; {flows} is the table of
-- one kind of flows.

-- name: lock_tree
-- Whoever changes a tree of flows locks it first, so that all its steps are seen as they are.
{lock_tree};

-- name: put_template
-- A definition, as a version of its own.
INSERT INTO templates (id, created_at, tenant_id, version, kind, name, hash, definition)
VALUES (:id, {now}, :tenant_id, :version, :kind, :name, :hash, :definition) RETURNING {template_columns};

-- name: template
-- A definition by its key.
SELECT {template_columns} FROM templates WHERE id = :id AND tenant_id = :tenant_id;

-- name: templates
-- Definitions by name, the newest version first.
SELECT {template_columns} FROM templates AS t
WHERE tenant_id = :tenant_id AND (CAST(:name AS text) IS NULL OR name = :name) AND (CAST(:newest AS {int}) = 0 OR
    version = (SELECT max(version) FROM templates AS n WHERE n.tenant_id = t.tenant_id AND n.name = t.name))
    AND (CAST(:after_name AS text) IS NULL OR name > :after_name OR (name = :after_name AND version < :after_version))
ORDER BY name, version DESC LIMIT :limit;

-- name: steps_of_flow
-- All steps of a flow, in order.
SELECT {step_columns} FROM steps WHERE flow_id = :flow_id ORDER BY position, place;

-- name: steps_by_key
-- Some steps, whatever flow they are of.
SELECT {step_columns} FROM steps WHERE id IN {ids};

-- name: steps_of_step
-- The elements of a step, in order.
SELECT {step_columns} FROM steps WHERE flow_id = :flow_id AND parent_id = :parent_id ORDER BY place;

-- name: step_outputs
-- What came of some steps of a flow.
SELECT name, state, output, output_hash, item FROM steps WHERE flow_id = :flow_id AND name IN {names};

-- name: element_outputs
-- What came of the elements of a step, in order.
SELECT name, state, output, output_hash, item FROM steps WHERE parent_id = :parent_id ORDER BY place;

-- name: elements_in
-- The first elements of a step that are in a state.
SELECT {step_columns} FROM steps WHERE parent_id = :parent_id AND state = :state ORDER BY place LIMIT :limit;

-- name: step_counts
-- The steps of a flow by state.
SELECT state, count(*) FROM steps WHERE flow_id = :flow_id AND parent_id IS NULL GROUP BY state;

-- name: element_counts
-- The elements of a step by state.
SELECT state, count(*) FROM steps WHERE parent_id = :parent_id GROUP BY state;

-- name: by_key
-- The flow an idempotency key has made.
SELECT id FROM {flows} WHERE tenant_id = :tenant_id AND key = :key;

-- name: any_unfinished
-- Whether any step has not ended, other than in these states. In the order of the index that has only those.
SELECT 1 FROM steps
WHERE flow_id = :flow_id AND completed_at IS NULL AND parent_id IS NULL AND state NOT IN {names}
ORDER BY state LIMIT 1;

-- name: unfinished_jobs
-- What still works for a tree of flows.
SELECT {job_columns} FROM jobs WHERE tree_id = :tree_id AND completed_at IS NULL ORDER BY id;

-- name: subflows
-- The flows a step consists of, the newest first.
SELECT id FROM {flows} WHERE step_id = :step_id ORDER BY id DESC;

-- name: resumption
-- The fork that continues a flow which ended without success.
SELECT id FROM {flows} WHERE forked_from = :id AND resumes = 1;

-- name: forks
-- The workstreams that were forked from one, the newest first.
SELECT id FROM workstreams WHERE forked_from = :id ORDER BY id DESC;

-- name: ended_amiss
-- Flows that have ended although a step or a job of theirs has not, or in that state although a step ended in one of
-- these. What has not ended has small indexes; what has is looked through.
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
-- Steps in these states whose job has ended or is gone, and for which no other works. Workers ask again and again, so only
-- the index of what has not ended is read.
SELECT s.id FROM steps AS s {by_unfinished_steps} LEFT JOIN jobs AS j ON j.id = s.job_id
WHERE s.flow_id IS NOT NULL AND s.completed_at IS NULL AND s.job_id IS NOT NULL AND s.state IN {names}
    AND (j.id IS NULL OR (j.completed_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM jobs AS o
        WHERE o.tree_id = j.tree_id AND o.completed_at IS NULL AND o.step_id = s.id)))
LIMIT :limit;

-- name: long_at_work
-- Jobs with workers that have been in one of these states since before then, the longest first.
SELECT id FROM jobs WHERE state IN ({job.assigned}, {job.running}) AND state IN {names} AND updated_at <= :before
ORDER BY updated_at LIMIT :limit;

-- name: unleased
-- Jobs that a worker is said to have, though none holds a lease on them.
SELECT id FROM jobs WHERE state IN ({job.assigned}, {job.running}) AND lease_until IS NULL ORDER BY id LIMIT :limit;

-- name: holds
-- What holds back jobs in queues, other than limits: how many, and since when at the longest.
SELECT tenant_id, held_by, count(*), min(updated_at) FROM jobs
WHERE state = {job.queued} AND held_by IS NOT NULL AND held_by <> 'limit'
GROUP BY tenant_id, held_by ORDER BY tenant_id, held_by;

-- name: unclosed_breakers
-- Breakers that are open, or were and are being tried.
SELECT id FROM breakers WHERE state IN ({breaker.OPEN}, {breaker.HALF_OPEN}) ORDER BY id LIMIT :limit;

-- name: listed
-- Flows, the newest first.
SELECT id FROM {flows} WHERE (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id)
    AND (CAST(:after AS {key}) IS NULL OR id < :after) AND (CAST(:name AS text) IS NULL OR name = :name)
    AND (CAST(:inside AS {int}) = 1 OR step_id IS NULL) AND ({no_names} OR state IN {names})
    AND (CAST(:since AS {time}) IS NULL OR created_at >= :since)
    AND (CAST(:before AS {time}) IS NULL OR created_at < :before)
ORDER BY id DESC LIMIT :limit;

-- name: to_wake
-- Flows whose time has come.
SELECT id FROM {flows} WHERE wake_at <= {now} ORDER BY wake_at LIMIT :limit;

-- name: next_flow_wake
-- When time will next move a flow.
SELECT min(at) FROM (
    SELECT min(wake_at) AS at FROM runs WHERE wake_at IS NOT NULL
    UNION ALL SELECT min(wake_at) FROM workstreams WHERE wake_at IS NOT NULL
    UNION ALL SELECT min(expires_at) FROM approvals WHERE step_id IS NOT NULL AND decision IS NULL) AS times;

-- name: expired_gates
-- Open questions of flows whose time is over.
SELECT {approval_columns} FROM approvals WHERE step_id IS NOT NULL AND decision IS NULL AND expires_at <= {now}
ORDER BY expires_at LIMIT :limit;

-- name: gate
-- The last question asked at a step.
SELECT {approval_columns} FROM approvals WHERE step_id = :step_id AND tenant_id = :tenant_id ORDER BY id DESC LIMIT 1;

-- name: open_gate
-- A question that is a step of its own.
INSERT INTO approvals (id, created_at, expires_at, tenant_id, step_id, step, question, details, digest, scope)
VALUES (:id, {now}, {now} + CAST(:expires_us AS {time}), :tenant_id, :step_id, :step, :question, :details, :digest, :scope);

-- name: withdraw_gate
-- What it asks about is no longer what would be done.
UPDATE approvals SET decision = 'withdrawn', decided_at = {now}
WHERE step_id = :step_id AND tenant_id = :tenant_id AND decision IS NULL RETURNING id;

-- name: close_gate
-- One decision, in time; that nobody decided, only when it is over.
UPDATE approvals SET decision = CAST(:decision AS text), decided_at = {now}, decided_by = :decided_by, comment = :comment
WHERE step_id = :step_id AND tenant_id = :tenant_id AND decision IS NULL
    AND (CAST(:decision AS text) = 'withdrawn'
        OR (CAST(:decision AS text) = 'expired') = (expires_at IS NOT NULL AND expires_at <= {now}))
RETURNING {approval_columns};
