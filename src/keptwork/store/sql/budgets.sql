-- Statements about budgets, the ledger of calls, and token buckets of models, for both databases.

-- name: make_budget
-- Create a budget unless it exists.
INSERT INTO budgets (tenant_id, owner, created_at, updated_at, cap_micros, warn_percent, scope, subject, said_by)
VALUES (:tenant_id, :owner, {now}, {now}, :cap_micros, :warn_percent, :scope, :subject, :said_by)
ON CONFLICT (tenant_id, owner) DO NOTHING;

-- name: lock_budgets
-- Lock budgets until the transaction ends. All callers lock them in this order, so budgets that many share are locked
-- last and for the shortest time.
SELECT {budget_columns} FROM budgets WHERE tenant_id = :tenant_id AND owner IN {ids} ORDER BY owner DESC {for_change};

-- name: keep_budget
-- Store all fields of a budget except its sums.
UPDATE budgets SET cap_micros = :cap_micros, said_by = :said_by, warn_percent = :warn_percent, warned_at = :warned_at,
    wanted_micros = :wanted_micros, promised_micros = :promised_micros, let_go_at = :let_go_at, updated_at = {now}
WHERE tenant_id = :tenant_id AND owner = :owner;

-- name: count_money
-- Add to the reserved and spent sums of budgets, which are locked in the same order.
WITH locked AS MATERIALIZED (
    SELECT owner FROM budgets WHERE tenant_id = :tenant_id AND owner IN {ids} ORDER BY owner DESC {for_change})
UPDATE budgets SET reserved_micros = reserved_micros + CAST(:reserved AS {key}),
    spent_micros = spent_micros + CAST(:spent AS {key}), updated_at = {now}
WHERE tenant_id = :tenant_id AND owner IN (SELECT owner FROM locked) RETURNING {budget_columns};

-- name: forget_budgets
-- Delete budgets of deleted jobs and of days, created before a time. The ledger keeps what was spent.
DELETE FROM budgets WHERE (tenant_id, owner) IN (
    SELECT tenant_id, owner FROM budgets AS b
    WHERE scope IN ('job', 'day') AND created_at < :older_than AND reserved_micros = 0
        AND (scope = 'day' OR NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = b.owner))
    ORDER BY created_at LIMIT :limit {for_update_skip_locked})
RETURNING owner;

-- name: budget
-- Get a budget with the number of jobs it holds.
SELECT {budget_columns}, {held_by_budget} FROM budgets AS b WHERE tenant_id = :tenant_id AND owner = :owner;

-- name: budgets
-- List budgets with the number of jobs each holds: the tenant's, then those of days, then all others, newest first.
SELECT {budget_columns}, {held_by_budget}
FROM budgets AS b WHERE tenant_id = :tenant_id AND (CAST(:scope AS text) IS NULL OR scope = :scope)
    AND (CAST(:after_owner AS {key}) IS NULL OR (CASE scope WHEN 'tenant' THEN 0 WHEN 'day' THEN 1 ELSE 2 END, -owner)
        > (CASE CAST(:after_scope AS text) WHEN 'tenant' THEN 0 WHEN 'day' THEN 1 ELSE 2 END, -CAST(:after_owner AS {key})))
ORDER BY CASE scope WHEN 'tenant' THEN 0 WHEN 'day' THEN 1 ELSE 2 END, owner DESC LIMIT :limit;

-- name: next_hold
-- Get the next pair of tenant and hold: the same hold of the next tenant, otherwise the next hold. As one condition,
-- SQLite would read all jobs with the first hold.
SELECT tenant_id, held_by FROM (
    SELECT * FROM (SELECT 0 AS place, tenant_id, held_by FROM jobs
        WHERE held_by = CAST(:hold AS text) AND held_by <> 'limit' AND tenant_id > :tenant_id AND state = {job.queued}
        ORDER BY tenant_id LIMIT 1) AS same_name
    UNION ALL
    SELECT * FROM (SELECT 1 AS place, tenant_id, held_by FROM jobs
        WHERE held_by > CAST(:hold AS text) AND held_by <> 'limit' AND state = {job.queued}
        ORDER BY held_by, tenant_id LIMIT 1) AS next_name) AS found
ORDER BY place LIMIT 1;

-- name: open_charge
-- Record a call that is about to be made, unless the same call is in flight.
INSERT INTO ledger (id, created_at, job_id, tree_id, agent_id, ceiling_micros, taken, tenant_id, epoch, day, state, call,
    provider, model, step_id)
VALUES (:id, {now}, :job_id, :tree_id, :agent_id, :ceiling_micros, :taken, :tenant_id, :epoch, :day, {charge_open}, :call,
    :provider, :model, coalesce((SELECT step_id FROM jobs WHERE jobs.id = :job_id), (
        WITH RECURSIVE around (parent_id, step_id, asker_id) AS (
            SELECT parent_id, step_id, asker_id FROM crews WHERE id = (SELECT crew_id FROM jobs WHERE jobs.id = :job_id)
            UNION ALL SELECT c.parent_id, c.step_id, c.asker_id FROM crews AS c JOIN around AS a ON c.id = a.parent_id)
        SELECT max(coalesce(a.step_id, j.step_id)) FROM around AS a LEFT JOIN jobs AS j ON j.id = a.asker_id)))
ON CONFLICT (job_id, call) WHERE state = {charge_open} DO NOTHING RETURNING id;

-- name: charge
-- Get a call by its ID.
SELECT {charge_columns} FROM ledger WHERE id = :id;

-- name: charge_to_close
-- Get a call by its ID, and lock its job, so that the job cannot end before the transaction does.
WITH job AS MATERIALIZED (SELECT id FROM jobs WHERE id = (SELECT job_id FROM ledger WHERE id = :id) {for_share})
SELECT {charge_columns} FROM ledger WHERE id = :id AND (SELECT count(*) FROM job) >= 0;

-- name: open_charges
-- List a job's calls in flight.
SELECT {charge_columns} FROM ledger
WHERE job_id = :job_id AND (CAST(:call AS text) IS NULL OR call = :call) AND state = {charge_open} ORDER BY id;

-- name: charges_in_flight
-- List the calls in flight of several jobs.
SELECT {charge_columns} FROM ledger WHERE job_id IN {ids} AND state = {charge_open} ORDER BY id;

-- name: correct_charge
-- Record the outcome of a lost call, which was counted with its ceiling until now. Its reservation ended then.
UPDATE ledger SET state = :state, outcome = :outcome, cost_micros = :cost_micros,
    input_tokens = :input_tokens, output_tokens = :output_tokens, cache_read_tokens = :cache_read_tokens,
    cache_write_tokens = :cache_write_tokens
WHERE id = :id AND state = {charge_lost} RETURNING {charge_columns};

-- name: agent_totals
-- Set the sums of an agent job to those of its calls in the ledger.
UPDATE agent_jobs SET calls = t.calls, cost_micros = t.cost, input_tokens = t.tokens_in, output_tokens = t.tokens_out
FROM (SELECT count(*) AS calls, coalesce(sum(cost_micros), 0) AS cost, coalesce(sum(input_tokens), 0) AS tokens_in,
        coalesce(sum(output_tokens), 0) AS tokens_out
    FROM ledger WHERE job_id = :job_id AND state NOT IN ({charge_open}, {charge_released})) AS t
WHERE agent_jobs.job_id = :job_id;

-- name: totals_of_jobs
-- Sum the calls of some jobs and their costs.
SELECT job_id, count(*), CAST(sum(cost_micros) AS {key}), CAST(sum(input_tokens) AS {key}),
    CAST(sum(output_tokens) AS {key})
FROM ledger WHERE job_id IN {ids} AND state NOT IN ({charge_open}, {charge_released}) GROUP BY job_id;

-- name: close_charge
-- Record the outcome of a call in flight.
UPDATE ledger SET state = :state, outcome = :outcome, cost_micros = :cost_micros,
    ended_at = coalesce(CAST(:ended_at AS {time}), {now}), input_tokens = :input_tokens, output_tokens = :output_tokens,
    cache_read_tokens = :cache_read_tokens, cache_write_tokens = :cache_write_tokens
WHERE id = :id AND state = {charge_open} RETURNING {charge_columns};

-- name: charges
-- List calls, newest first.
SELECT {charge_columns} FROM ledger WHERE tenant_id = :tenant_id AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY id DESC LIMIT :limit;

-- name: charges_of_job
-- List the calls of one job, newest first.
SELECT {charge_columns} FROM ledger
WHERE job_id = :job_id AND tenant_id = :tenant_id AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY id DESC LIMIT :limit;

-- name: charges_of_tree
-- List the calls of one tree of flows, newest first.
SELECT {charge_columns} FROM ledger
WHERE tree_id = :tree_id AND tenant_id = :tenant_id AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY id DESC LIMIT :limit;

-- name: charges_of_day
-- List the calls of one day, newest first.
SELECT {charge_columns} FROM ledger
WHERE tenant_id = :tenant_id AND day = :day AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY id DESC LIMIT :limit;

-- name: uncertain
-- Sum what counts against a budget although its cost is unknown: calls in flight and lost calls.
SELECT state, count(*), CAST(sum(ceiling_micros) AS {key}), CAST(sum(cost_micros) AS {key}) FROM ledger
WHERE tenant_id = :tenant_id AND state IN ({charge_open}, {charge_lost})
    AND CASE CAST(:scope AS text) WHEN 'job' THEN job_id WHEN 'flow' THEN coalesce(tree_id, -1) WHEN 'day' THEN day ELSE 0 END
        = CAST(:owner AS {key})
GROUP BY state;

-- name: step_costs
-- Sum the costs of a flow's steps, with the flows inside them. Each call counts for the step of this flow that it was
-- made for, at any depth. A call for an item of a list also counts for the list.
WITH RECURSIVE around (leaf, step_id) AS (
    SELECT DISTINCT step_id, step_id FROM ledger WHERE tree_id = :tree_id AND step_id IS NOT NULL
    UNION ALL
    SELECT a.leaf, f.step_id FROM around AS a JOIN steps AS s ON s.id = a.step_id
        JOIN (SELECT id, step_id FROM runs UNION ALL SELECT id, step_id FROM workstreams) AS f ON f.id = s.flow_id
    WHERE s.flow_id <> :flow_id AND f.step_id IS NOT NULL),
own AS (
    SELECT l.*, s.id AS own_id, s.parent_id AS list_id
    FROM around AS a JOIN steps AS s ON s.id = a.step_id AND s.flow_id = :flow_id
        JOIN ledger AS l ON l.tree_id = :tree_id AND l.step_id = a.leaf
    WHERE l.state <> {charge_released})
SELECT subject, {call_sums}
FROM (SELECT own.*, own_id AS subject FROM own
    UNION ALL SELECT own.*, list_id FROM own WHERE list_id IS NOT NULL) AS counted
GROUP BY subject;

-- name: tree_costs
-- Sum the costs of a whole tree of flows.
SELECT tree_id, {call_sums} FROM ledger
WHERE tree_id = :tree_id AND tenant_id = :tenant_id AND state <> {charge_released} GROUP BY tree_id;

-- name: abandoned_charges
-- List calls that are recorded as in flight although their job has ended or was deleted.
SELECT {charge_columns} FROM ledger AS l WHERE l.state = {charge_open} AND NOT EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.id = l.job_id AND j.completed_at IS NULL)
ORDER BY l.id LIMIT :limit;

-- name: costs
-- Sum what was spent, by subject. Lost calls count as spent and are also shown separately.
SELECT subject, {call_sums}
FROM (SELECT l.*, CASE CAST(:by AS text) WHEN 'model' THEN provider || '/' || model WHEN 'day' THEN CAST(day AS text)
        WHEN 'tenant' THEN CAST(tenant_id AS text) ELSE CAST(coalesce(tree_id, 0) AS text) END AS subject
    FROM ledger AS l
    WHERE (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id) AND created_at >= :since
        AND state <> {charge_released}) AS counted
GROUP BY subject ORDER BY 4 DESC, subject LIMIT :limit;

-- name: make_bucket
-- Create the token bucket of a model unless it exists.
INSERT INTO token_buckets (provider, model) VALUES (:provider, :model) ON CONFLICT (provider, model) DO NOTHING;

-- name: lock_bucket
-- Get the token bucket of a model, and lock it against changes until the transaction ends.
SELECT {bucket_columns} FROM token_buckets WHERE provider = :provider AND model = :model {for_change};

-- name: bucket
-- Get the token bucket of a model.
SELECT {bucket_columns} FROM token_buckets WHERE provider = :provider AND model = :model;

-- name: keep_bucket
-- Store the state of a token bucket.
UPDATE token_buckets SET empty_at = :empty_at, blocked_until = :blocked_until, tokens_per_minute = :tokens_per_minute
WHERE provider = :provider AND model = :model;
