-- Breakers: how long they stay open, what opened them, which job tries them, and the jobs they hold back.

ALTER TABLE breakers ADD COLUMN cooldown_us {time} NOT NULL DEFAULT 60000000;

-- Since when it has not been closed, and the last failure it was told of.
ALTER TABLE breakers ADD COLUMN opened_at {time};

ALTER TABLE breakers ADD COLUMN error text;

-- The probe is a claim, that is a job and an epoch: it lasts as long as the lease of that job does.
ALTER TABLE breakers ADD COLUMN probe_job {key};

ALTER TABLE breakers ADD COLUMN probe_epoch {int};

-- The held job that was let go to be the next probe, from which queue, and when.
ALTER TABLE breakers ADD COLUMN candidate {key};

ALTER TABLE breakers ADD COLUMN candidate_queue text;

ALTER TABLE breakers ADD COLUMN candidate_at {time};

-- 1 from when it opens until it is closed and holds nothing any longer: only such breakers are looked after.
ALTER TABLE breakers ADD COLUMN holds {int} NOT NULL DEFAULT 0;

CREATE INDEX breakers_that_hold ON breakers (id) WHERE holds = 1;

-- Jobs to be held back when what they need opens. Others pay nothing for it.
CREATE INDEX jobs_to_hold ON jobs (hold_key, tenant_id)
    WHERE hold_key IS NOT NULL AND held_by IS NULL AND state = {job.queued};

-- Jobs that are held back, in the order they are let go. Those of limits have an index of their own.
CREATE INDEX jobs_held_in_order ON jobs (held_by, tenant_id, queue, priority DESC, run_at, id)
    WHERE held_by <> 'limit' AND state = {job.queued};
