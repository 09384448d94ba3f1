-- Crews: what they know, what their shares are, and the quotas of their depths.

-- Of a crew: the outermost flow it belongs to (none: it is that itself); the job that made it and waits for it; the step
-- of a flow that it is; when its time is over; of which kind its shares are, and what they are given.
ALTER TABLE crews ADD COLUMN tree_id {key};

ALTER TABLE crews ADD COLUMN asker_id {key};

ALTER TABLE crews ADD COLUMN step_id {key};

ALTER TABLE crews ADD COLUMN deadline_at {time};

ALTER TABLE crews ADD COLUMN key text;

ALTER TABLE crews ADD COLUMN kind text;

ALTER TABLE crews ADD COLUMN result_hash text;

ALTER TABLE crews ADD COLUMN work {json};

CREATE UNIQUE INDEX crews_by_key ON crews (tenant_id, key) WHERE key IS NOT NULL;

CREATE INDEX crews_unfinished ON crews (tenant_id, id) WHERE completed_at IS NULL;

-- Those that wait for workers, in the order they were submitted.
CREATE INDEX crews_in_line ON crews (tenant_id, depth, id) WHERE state = {crew.PENDING};

CREATE INDEX crews_inside ON crews (parent_id, id) WHERE parent_id IS NOT NULL;

CREATE INDEX crews_of_step ON crews (step_id) WHERE step_id IS NOT NULL;

CREATE INDEX crews_of_asker ON crews (asker_id) WHERE asker_id IS NOT NULL;

CREATE INDEX crews_of_blob ON crews (tenant_id, result_hash) WHERE result_hash IS NOT NULL;

-- Shares. One that is held by its quota waits for a crew inside its own, or to be let go on; every other that has not
-- ended holds one worker of its depth. Other jobs pay nothing for these.
CREATE INDEX jobs_of_crew ON jobs (crew_id, id) WHERE crew_id IS NOT NULL;

CREATE INDEX jobs_holding_quota ON jobs (tenant_id, crew_id)
WHERE crew_id IS NOT NULL AND completed_at IS NULL AND coalesce(held_by, '') <> 'quota';

CREATE INDEX jobs_wanting_quota ON jobs (tenant_id, run_at, id) WHERE held_by = 'quota' AND completed_at IS NULL;

-- How many workers the crews of a depth may have at once; where there is no row, what the program says.
CREATE TABLE crew_quotas (
    tenant_id {int} NOT NULL,
    depth     {int} NOT NULL,
    most      {int} NOT NULL CHECK (most > 0),
    PRIMARY KEY (tenant_id, depth)
) {strict};
