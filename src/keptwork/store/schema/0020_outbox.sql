-- What is to be told to the outside of a flow's end, written in the transaction that ends it.

-- Named after the move it tells of: (entity, entity_id, seq). `next_at` is when an attempt is due, or until when one is
-- under way; `secret_env` names the secret it is signed with, which is never kept.
CREATE TABLE outbox (
    id            {pk},
    created_at    {time} NOT NULL,
    next_at       {time} NOT NULL,
    ended_at      {time},
    entity_id     {key} NOT NULL,
    tenant_id     {int} NOT NULL,
    seq           {int} NOT NULL,
    attempts      {int} NOT NULL DEFAULT 0,
    most_attempts {int} NOT NULL,
    state         text NOT NULL CHECK (state IN ('pending', 'delivered', 'given_up')),
    entity        text NOT NULL,
    event         text NOT NULL,
    url           text NOT NULL,
    secret_env    text,
    last_error    text,
    body          text NOT NULL
) {strict};

CREATE UNIQUE INDEX outbox_of_move ON outbox (entity_id, seq, entity);

-- What couriers read: one step while nothing is to be delivered.
CREATE INDEX outbox_due ON outbox (next_at) WHERE state = 'pending';

CREATE INDEX outbox_of_tenant ON outbox (tenant_id, id);

CREATE INDEX outbox_ended ON outbox (ended_at) WHERE ended_at IS NOT NULL;
