-- A call in the ledger belongs to the step that it was made for, so that costs by step outlive the jobs of the step.
ALTER TABLE ledger ADD COLUMN step_id {key};

UPDATE ledger SET step_id = (SELECT step_id FROM jobs WHERE jobs.id = ledger.job_id) WHERE tree_id IS NOT NULL;

-- Every day lists the calls that count against it.
CREATE INDEX ledger_of_day ON ledger (tenant_id, day, id);

-- Calls whose cost nobody knows yet are few, and every budget lists its own.
CREATE INDEX ledger_uncertain ON ledger (tenant_id, id) WHERE state IN ('open', 'lost');
