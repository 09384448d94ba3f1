-- Money: what may be spent, what was, and one row for every call that was paid for. Amounts are millionths of a dollar.

-- A cap and what counts against it. `owner` is what it is for: the key of a job or of the outermost flow, the number of
-- a day since 1970, or 0 for all of the tenant; these never meet, because keys are far larger than days. `said_by` is who
-- gave the cap: the configuration, the flow's file, or somebody by name. `wanted_micros` is what the last call that was
-- refused may have cost: until that fits, no job that is held back is let go. `let_go_at` is when some last were, and
-- `promised_micros` what is kept free for them, for a moment, until they have reserved it.
CREATE TABLE budgets (
    tenant_id       {int} NOT NULL,
    owner           {key} NOT NULL,
    created_at      {time} NOT NULL,
    updated_at      {time} NOT NULL,
    cap_micros      {key} CHECK (cap_micros >= 0),
    spent_micros    {key} NOT NULL DEFAULT 0 CHECK (spent_micros >= 0),
    reserved_micros {key} NOT NULL DEFAULT 0 CHECK (reserved_micros >= 0),
    wanted_micros   {key},
    promised_micros {key} NOT NULL DEFAULT 0,
    let_go_at       {time},
    warned_at       {time},
    warn_percent    {int} NOT NULL,
    scope           text NOT NULL CHECK (scope IN ('job', 'flow', 'tenant', 'day')),
    subject         text NOT NULL,
    said_by         text NOT NULL,
    PRIMARY KEY (tenant_id, owner)
) {strict};

-- What retention looks at, the oldest first.
CREATE INDEX budgets_by_age ON budgets (created_at) WHERE scope IN ('job', 'day');

-- One call to a model. While it is open its ceiling is reserved; settled, its cost is spent; released, nothing was sent;
-- lost, nobody knows what came of it, and its ceiling counts as spent. `day` is that of the reservation, also if the
-- call ends on the next; `taken` is how many tokens were taken from the model's bucket for it.
CREATE TABLE ledger (
    id                 {pk},
    created_at         {time} NOT NULL,
    ended_at           {time},
    job_id             {key} NOT NULL,
    tree_id            {key},
    agent_id           {key},
    ceiling_micros     {key} NOT NULL CHECK (ceiling_micros >= 0),
    cost_micros        {key} NOT NULL DEFAULT 0 CHECK (cost_micros >= 0),
    taken              {key} NOT NULL DEFAULT 0,
    input_tokens       {key} NOT NULL DEFAULT 0,
    output_tokens      {key} NOT NULL DEFAULT 0,
    cache_read_tokens  {key} NOT NULL DEFAULT 0,
    cache_write_tokens {key} NOT NULL DEFAULT 0,
    tenant_id          {int} NOT NULL,
    epoch              {int} NOT NULL,
    day                {int} NOT NULL,
    state              text NOT NULL CHECK (state IN ('open', 'settled', 'released', 'lost')),
    outcome            text,
    call               text NOT NULL,
    provider           text NOT NULL,
    model              text NOT NULL
) {strict};

-- A call of a job is under way once.
CREATE UNIQUE INDEX ledger_open ON ledger (job_id, call) WHERE state = 'open';

CREATE INDEX ledger_of_tenant ON ledger (tenant_id, created_at);

CREATE INDEX ledger_of_job ON ledger (job_id, id);

CREATE INDEX ledger_of_tree ON ledger (tree_id, id) WHERE tree_id IS NOT NULL;

-- How many tokens a minute a model takes from the whole fleet: it is the provider's limit for an account, so that all
-- tenants share it. `empty_at` is when all that was taken has trickled away; until `blocked_until` the provider wants to
-- be left alone.
CREATE TABLE token_buckets (
    empty_at          {time} NOT NULL DEFAULT 0,
    blocked_until     {time} NOT NULL DEFAULT 0,
    tokens_per_minute {key},
    provider          text NOT NULL,
    model             text NOT NULL,
    PRIMARY KEY (provider, model)
) {strict};
