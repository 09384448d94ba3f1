-- Flows: definitions kept by version, what flows and their steps know, and what ties a job to the step it works for.

-- What was defined, never changed: a flow keeps the version it began with.
CREATE TABLE templates (
    id         {pk},
    created_at {time} NOT NULL,
    tenant_id  {int} NOT NULL,
    version    {int} NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('run', 'workstream')),
    name       text NOT NULL,
    hash       text NOT NULL,
    definition {json} NOT NULL
) {strict};

CREATE UNIQUE INDEX templates_by_version ON templates (tenant_id, name, version);

-- Of both kinds of flows: what it was started from and with; `tree_id` is the outermost flow, whose lock all changes of
-- the tree take; `step_id` the step of another flow that this one is; `held_at` since when nothing of it is let go;
-- `wake_at` when time will move it.
ALTER TABLE runs ADD COLUMN template_id {key};

ALTER TABLE runs ADD COLUMN tree_id {key};

ALTER TABLE runs ADD COLUMN step_id {key};

ALTER TABLE runs ADD COLUMN held_at {time};

ALTER TABLE runs ADD COLUMN wake_at {time};

ALTER TABLE runs ADD COLUMN name text;

ALTER TABLE runs ADD COLUMN inputs {json};

ALTER TABLE runs ADD COLUMN error text;

ALTER TABLE runs ADD COLUMN webhook {json};

ALTER TABLE workstreams ADD COLUMN template_id {key};

ALTER TABLE workstreams ADD COLUMN tree_id {key};

ALTER TABLE workstreams ADD COLUMN step_id {key};

ALTER TABLE workstreams ADD COLUMN held_at {time};

ALTER TABLE workstreams ADD COLUMN wake_at {time};

ALTER TABLE workstreams ADD COLUMN name text;

ALTER TABLE workstreams ADD COLUMN inputs {json};

ALTER TABLE workstreams ADD COLUMN error text;

ALTER TABLE workstreams ADD COLUMN webhook {json};

ALTER TABLE workstreams ADD COLUMN key text;

ALTER TABLE workstreams ADD COLUMN forked_from {key};

CREATE UNIQUE INDEX workstreams_by_key ON workstreams (tenant_id, key) WHERE key IS NOT NULL;

CREATE INDEX runs_to_wake ON runs (wake_at) WHERE wake_at IS NOT NULL;

CREATE INDEX workstreams_to_wake ON workstreams (wake_at) WHERE wake_at IS NOT NULL;

-- Of a step: the job that works on it, or did last, and its attempts; what it is an element of (`for_each`), which one,
-- and the element itself; what came of it, in the row or by its hash.
ALTER TABLE steps ADD COLUMN job_id {key};

ALTER TABLE steps ADD COLUMN parent_id {key};

ALTER TABLE steps ADD COLUMN cost_micros {key};

ALTER TABLE steps ADD COLUMN attempts {int} NOT NULL DEFAULT 0;

ALTER TABLE steps ADD COLUMN place {int};

ALTER TABLE steps ADD COLUMN output_hash text;

ALTER TABLE steps ADD COLUMN error text;

ALTER TABLE steps ADD COLUMN item {json};

ALTER TABLE steps ADD COLUMN output {json};

CREATE UNIQUE INDEX steps_by_name ON steps (flow_id, name) WHERE flow_id IS NOT NULL;

CREATE INDEX steps_unfinished ON steps (flow_id, state) WHERE flow_id IS NOT NULL AND completed_at IS NULL;

CREATE INDEX steps_of_step ON steps (parent_id, place) WHERE parent_id IS NOT NULL;

CREATE INDEX steps_of_blob ON steps (tenant_id, output_hash) WHERE output_hash IS NOT NULL;

-- What a job works for: a step, or a share of a crew; and the outermost flow of it.
ALTER TABLE jobs ADD COLUMN step_id {key};

ALTER TABLE jobs ADD COLUMN crew_id {key};

ALTER TABLE jobs ADD COLUMN tree_id {key};

CREATE INDEX jobs_of_tree ON jobs (tree_id) WHERE tree_id IS NOT NULL AND completed_at IS NULL;

-- A question may also be a step of its own: then no job asks it.
ALTER TABLE approvals ADD COLUMN step_id {key};

CREATE UNIQUE INDEX approvals_of_step ON approvals (step_id, id) WHERE step_id IS NOT NULL;

CREATE INDEX approvals_expiring ON approvals (expires_at) WHERE step_id IS NOT NULL AND decision IS NULL;
