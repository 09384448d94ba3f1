-- Jobs that are held back, by what holds them: found at once when that is lifted. Other jobs pay nothing for it.
CREATE INDEX jobs_held ON jobs (held_by) WHERE held_by IS NOT NULL;
