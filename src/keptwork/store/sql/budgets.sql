-- Statements about budgets, the ledger of calls, and the tokens a model takes, for both databases.

-- name: make_budget
-- A budget, unless it is there.
INSERT INTO budgets (tenant_id, owner, created_at, updated_at, cap_micros, warn_percent, scope, subject, said_by)
VALUES (:tenant_id, :owner, {now}, {now}, :cap_micros, :warn_percent, :scope, :subject, :said_by)
ON CONFLICT (tenant_id, owner) DO NOTHING;

-- name: lock_budgets
-- Budgets that nobody else changes until the transaction is over. Everybody takes them in this order: what many share is
-- taken last, and held the shortest.
SELECT {budget_columns} FROM budgets WHERE tenant_id = :tenant_id AND owner IN {ids} ORDER BY owner DESC {for_change};

-- name: keep_budget
-- Everything about a budget that is no sum.
UPDATE budgets SET cap_micros = :cap_micros, said_by = :said_by, warn_percent = :warn_percent, warned_at = :warned_at,
    wanted_micros = :wanted_micros, promised_micros = :promised_micros, let_go_at = :let_go_at, updated_at = {now}
WHERE tenant_id = :tenant_id AND owner = :owner;

-- name: count_money
-- What is reserved and spent, here and there a little more or less. They are locked in the same order.
WITH locked AS MATERIALIZED (
    SELECT owner FROM budgets WHERE tenant_id = :tenant_id AND owner IN {ids} ORDER BY owner DESC {for_change})
UPDATE budgets SET reserved_micros = reserved_micros + CAST(:reserved AS {key}),
    spent_micros = spent_micros + CAST(:spent AS {key}), updated_at = {now}
WHERE tenant_id = :tenant_id AND owner IN (SELECT owner FROM locked) RETURNING {budget_columns};

-- name: forget_budgets
-- Budgets of jobs that are gone, and of days, made before then; the ledger keeps what was spent.
DELETE FROM budgets WHERE (tenant_id, owner) IN (
    SELECT tenant_id, owner FROM budgets AS b
    WHERE scope IN ('job', 'day') AND created_at < :older_than AND reserved_micros = 0
        AND (scope = 'day' OR NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = b.owner))
    ORDER BY created_at LIMIT :limit {for_update_skip_locked})
RETURNING owner;

-- name: budget
-- One budget, with how many jobs it holds back.
SELECT {budget_columns}, {held_by_budget} FROM budgets AS b WHERE tenant_id = :tenant_id AND owner = :owner;

-- name: budgets
-- Budgets with how many jobs each holds back: that of the tenant, those of days and then all others, the newest first.
SELECT {budget_columns}, {held_by_budget}
FROM budgets AS b WHERE tenant_id = :tenant_id AND (CAST(:scope AS text) IS NULL OR scope = :scope)
    AND (CAST(:after_owner AS {key}) IS NULL OR (CASE scope WHEN 'tenant' THEN 0 WHEN 'day' THEN 1 ELSE 2 END, -owner)
        > (CASE CAST(:after_scope AS text) WHEN 'tenant' THEN 0 WHEN 'day' THEN 1 ELSE 2 END, -CAST(:after_owner AS {key})))
ORDER BY CASE scope WHEN 'tenant' THEN 0 WHEN 'day' THEN 1 ELSE 2 END, owner DESC LIMIT :limit;

-- name: next_hold
-- Of the names that jobs are held by, and whose they are, the one after another: the same name of the next tenant, else the
-- next name. Asked as one, SQLite would read all that is held by the first.
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
-- A call that is about to be made; the same that is under way already is not made again.
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
-- One by its key.
SELECT {charge_columns} FROM ledger WHERE id = :id;

-- name: charge_to_close
-- One call by its key. Its job is locked, so that it cannot end before the transaction does.
WITH job AS MATERIALIZED (SELECT id FROM jobs WHERE id = (SELECT job_id FROM ledger WHERE id = :id) {for_share})
SELECT {charge_columns} FROM ledger WHERE id = :id AND (SELECT count(*) FROM job) >= 0;

-- name: open_charges
-- The calls of a job that are under way.
SELECT {charge_columns} FROM ledger
WHERE job_id = :job_id AND (CAST(:call AS text) IS NULL OR call = :call) AND state = {charge_open} ORDER BY id;

-- name: charges_in_flight
-- The calls of several jobs that are under way.
SELECT {charge_columns} FROM ledger WHERE job_id IN {ids} AND state = {charge_open} ORDER BY id;

-- name: correct_charge
-- The outcome of a call that was given up as lost, and counted with its ceiling until now. Its reservation ended then.
UPDATE ledger SET state = :state, outcome = :outcome, cost_micros = :cost_micros,
    input_tokens = :input_tokens, output_tokens = :output_tokens, cache_read_tokens = :cache_read_tokens,
    cache_write_tokens = :cache_write_tokens
WHERE id = :id AND state = {charge_lost} RETURNING {charge_columns};

-- name: agent_totals
-- The sums of an agent job are those of its calls in the ledger.
UPDATE agent_jobs SET calls = t.calls, cost_micros = t.cost, input_tokens = t.tokens_in, output_tokens = t.tokens_out
FROM (SELECT count(*) AS calls, coalesce(sum(cost_micros), 0) AS cost, coalesce(sum(input_tokens), 0) AS tokens_in,
        coalesce(sum(output_tokens), 0) AS tokens_out
    FROM ledger WHERE job_id = :job_id AND state NOT IN ({charge_open}, {charge_released})) AS t
WHERE agent_jobs.job_id = :job_id;

-- name: totals_of_jobs
-- What the calls of some jobs cost and how many there were.
SELECT job_id, count(*), CAST(sum(cost_micros) AS {key}), CAST(sum(input_tokens) AS {key}),
    CAST(sum(output_tokens) AS {key})
FROM ledger WHERE job_id IN {ids} AND state NOT IN ({charge_open}, {charge_released}) GROUP BY job_id;

-- name: close_charge
-- What came of a call that is under way.
UPDATE ledger SET state = :state, outcome = :outcome, cost_micros = :cost_micros,
    ended_at = coalesce(CAST(:ended_at AS {time}), {now}), input_tokens = :input_tokens, output_tokens = :output_tokens,
    cache_read_tokens = :cache_read_tokens, cache_write_tokens = :cache_write_tokens
WHERE id = :id AND state = {charge_open} RETURNING {charge_columns};

-- name: charges
-- Calls, the newest first.
SELECT {charge_columns} FROM ledger WHERE tenant_id = :tenant_id AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY id DESC LIMIT :limit;

-- name: charges_of_job
-- The same of one job.
SELECT {charge_columns} FROM ledger
WHERE job_id = :job_id AND tenant_id = :tenant_id AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY id DESC LIMIT :limit;

-- name: charges_of_tree
-- The same of one tree of flows.
SELECT {charge_columns} FROM ledger
WHERE tree_id = :tree_id AND tenant_id = :tenant_id AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY id DESC LIMIT :limit;

-- name: charges_of_day
-- The same of one day.
SELECT {charge_columns} FROM ledger
WHERE tenant_id = :tenant_id AND day = :day AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY id DESC LIMIT :limit;

-- name: uncertain
-- What counts against a budget although nobody knows its cost yet: calls in flight and lost calls.
SELECT state, count(*), CAST(sum(ceiling_micros) AS {key}), CAST(sum(cost_micros) AS {key}) FROM ledger
WHERE tenant_id = :tenant_id AND state IN ({charge_open}, {charge_lost})
    AND CASE CAST(:scope AS text) WHEN 'job' THEN job_id WHEN 'flow' THEN coalesce(tree_id, -1) WHEN 'day' THEN day ELSE 0 END
        = CAST(:owner AS {key})
GROUP BY state;

-- name: step_costs
-- What the steps of a flow cost, with the flows inside them: each call counts for the step of this flow that it was made
-- for, at whatever depth. For an item of a list it counts for the list, too.
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
-- What a whole tree of flows costs.
SELECT tree_id, {call_sums} FROM ledger
WHERE tree_id = :tree_id AND tenant_id = :tenant_id AND state <> {charge_released} GROUP BY tree_id;

-- name: abandoned_charges
-- Calls that are said to be under way though their job has ended, or is gone.
SELECT {charge_columns} FROM ledger AS l WHERE l.state = {charge_open} AND NOT EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.id = l.job_id AND j.completed_at IS NULL)
ORDER BY l.id LIMIT :limit;

-- name: costs
-- What was spent, by what it was spent on. What is lost counts as spent, and is told apart.
SELECT subject, {call_sums}
FROM (SELECT l.*, CASE CAST(:by AS text) WHEN 'model' THEN provider || '/' || model WHEN 'day' THEN CAST(day AS text)
        WHEN 'tenant' THEN CAST(tenant_id AS text) ELSE CAST(coalesce(tree_id, 0) AS text) END AS subject
    FROM ledger AS l
    WHERE (CAST(:tenant_id AS {int}) IS NULL OR tenant_id = :tenant_id) AND created_at >= :since
        AND state <> {charge_released}) AS counted
GROUP BY subject ORDER BY 4 DESC, subject LIMIT :limit;

-- name: make_bucket
-- The bucket of a model, unless it is there.
INSERT INTO token_buckets (provider, model) VALUES (:provider, :model) ON CONFLICT (provider, model) DO NOTHING;

-- name: lock_bucket
-- The bucket of a model, which nobody else changes until the transaction is over.
SELECT {bucket_columns} FROM token_buckets WHERE provider = :provider AND model = :model {for_change};

-- name: bucket
-- The same, only to be read.
SELECT {bucket_columns} FROM token_buckets WHERE provider = :provider AND model = :model;

-- name: keep_bucket
-- How a bucket stands.
UPDATE token_buckets SET empty_at = :empty_at, blocked_until = :blocked_until, tokens_per_minute = :tokens_per_minute
WHERE provider = :provider AND model = :model;
