-- A flow that ended without success is continued by a fork of it that keeps every step which succeeded: `resumes` tells such
-- a fork from those that somebody made to run steps anew. A failed flow has at most one for each step that it is.
ALTER TABLE runs ADD COLUMN forked_from {key};

ALTER TABLE runs ADD COLUMN resumes {int} NOT NULL DEFAULT 0;

ALTER TABLE workstreams ADD COLUMN resumes {int} NOT NULL DEFAULT 0;

CREATE UNIQUE INDEX runs_resumed ON runs (forked_from) WHERE resumes = 1;

CREATE UNIQUE INDEX workstreams_resumed ON workstreams (forked_from) WHERE resumes = 1;
