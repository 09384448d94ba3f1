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

-- What one process does for all of them now and then; whoever takes a duty first moves its next time.
CREATE TABLE duties (
    name    text PRIMARY KEY,
    next_at {time} NOT NULL
) {strict};
