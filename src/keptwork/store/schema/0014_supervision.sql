-- What a worker serves, under which supervisor, when it was last heard of, and how it was asked to end.

-- When its process last said that it is alive; none for one that never did, and has no heartbeat to miss.
ALTER TABLE workers ADD COLUMN seen_at {time};

-- Its queues, kinds, concurrency and version, as it registered.
ALTER TABLE workers ADD COLUMN serves {json};

ALTER TABLE workers ADD COLUMN supervisor text;

-- How it was asked to come to an end: drain, soft or hard, what becomes of its jobs, by whom and why.
ALTER TABLE workers ADD COLUMN ending {json};

-- Workers that have not ended: a few, however many there ever were.
CREATE INDEX workers_alive ON workers (tenant_id, id) WHERE state IN ({worker.IDLE}, {worker.RUNNING}, {worker.PAUSED});
