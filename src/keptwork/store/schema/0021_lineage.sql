-- What belongs to a flow, found from its other end: the flows inside a step, and the forks of a workstream.

CREATE INDEX runs_inside ON runs (step_id) WHERE step_id IS NOT NULL;

CREATE INDEX workstreams_inside ON workstreams (step_id) WHERE step_id IS NOT NULL;

CREATE INDEX workstreams_forked ON workstreams (forked_from) WHERE forked_from IS NOT NULL;
