-- What retention has deleted: how many rows of a state, all of which had ended before a moment. The audit accepts that a
-- row is gone only as far as it is accounted for here.
CREATE TABLE retention (
    tenant_id     {int} NOT NULL,
    entity        text NOT NULL,
    state         text NOT NULL,
    pruned        {key} NOT NULL,
    pruned_before {time} NOT NULL,
    PRIMARY KEY (tenant_id, entity, state)
) {strict};

-- What is seen of an entity between its moves, such as a worker's heartbeat. Nothing is decided by it, and it goes when
-- its time is over.
CREATE TABLE telemetry (
    entity_id  {key} NOT NULL,
    ts         {time} NOT NULL,
    expires_at {time} NOT NULL,
    tenant_id  {int} NOT NULL,
    kind       text NOT NULL,
    entity     text NOT NULL,
    payload    {json} NOT NULL,
    PRIMARY KEY (entity_id, ts, kind, entity)
) {strict};

CREATE INDEX telemetry_over ON telemetry (expires_at);

-- What one process does for all of them now and then; whoever takes a duty first moves its next time.
CREATE TABLE duties (
    name    text PRIMARY KEY,
    next_at {time} NOT NULL
) {strict};
