-- The ground: tenants, entities with a lifecycle, the event log, idempotency.
--
-- Words in braces are filled in for each database: {key} {time} {int} {json} are types by meaning, {entity} is the set
-- of columns every entity with a lifecycle has (defined below), {strict} makes SQLite check types as PostgreSQL does.
-- Times are integer microseconds since 1970, UTC, in both.

--: define entity
    id             {pk},
    created_at     {time} NOT NULL,
    updated_at     {time} NOT NULL,
    started_at     {time},
    completed_at   {time},
    tenant_id      {int} NOT NULL,
    seq            {int} NOT NULL DEFAULT 1,
    epoch          {int} NOT NULL DEFAULT 0,
    state          text NOT NULL,
    move           text NOT NULL,
    actor          text,
    reason         text,
    cause          text,
    detail         {json},
    correlation_id text,
    trace_id       text
--: end

-- Who owns what; every other table carries tenant_id.
CREATE TABLE tenants (
    id         {pk_int},
    name       text NOT NULL UNIQUE,
    created_at {time} NOT NULL
) {strict};

INSERT INTO tenants (id, name, created_at) VALUES (1, 'default', 0);

-- One row per move of any entity; append-only. (entity_id, seq) is unique and gapless.
CREATE TABLE events (
    {event_position},
    entity_id      {key} NOT NULL,
    ts             {time} NOT NULL,
    tenant_id      {int} NOT NULL,
    seq            {int} NOT NULL,
    epoch          {int} NOT NULL,
    version        {int} NOT NULL DEFAULT 1,
    entity         text NOT NULL,
    type           text NOT NULL,
    trigger        text NOT NULL,
    from_state     text,
    to_state       text NOT NULL,
    actor          text,
    correlation_id text,
    trace_id       text,
    cause          text,
    reason         text,
    payload        {json}{event_key}
) {strict};

CREATE UNIQUE INDEX events_of_entity ON events (entity_id, seq, entity);

CREATE INDEX events_of_correlation ON events (correlation_id, seq) WHERE correlation_id IS NOT NULL;

-- The unit of dispatch.
CREATE TABLE jobs (
    {entity},
    run_at         {time} NOT NULL,
    lease_until    {time},
    owner          {key},
    claim_id       {key},
    priority       {int} NOT NULL DEFAULT 0,
    attempts       {int} NOT NULL DEFAULT 0,
    max_attempts   {int} NOT NULL DEFAULT 4,
    queue          text NOT NULL,
    kind           text NOT NULL,
    on_exhausted   text NOT NULL DEFAULT 'dead_letter' CHECK (on_exhausted IN ('dead_letter', 'fail')),
    hold_key       text,
    held_by        text,
    key            text,
    error          text,
    payload        {json} NOT NULL,
    result         {json}
) {strict};

-- What a claim reads: only what could be claimed, in the order it should be.
CREATE INDEX jobs_to_claim ON jobs (queue, priority DESC, run_at, id) WHERE state = {job.queued} AND held_by IS NULL;

-- What the reaper reads: only what is leased, oldest lease first.
CREATE INDEX jobs_leased ON jobs (lease_until) WHERE state IN ({job.assigned}, {job.running});

-- One job per key, for ever.
CREATE UNIQUE INDEX jobs_by_key ON jobs (tenant_id, key) WHERE key IS NOT NULL;

-- A queue has a row once something was said about it.
CREATE TABLE queues (
    tenant_id {int} NOT NULL,
    name      text NOT NULL,
    paused_at {time},
    PRIMARY KEY (tenant_id, name)
) {strict};

CREATE TABLE workers (
    {entity},
    name         text NOT NULL,
    incarnation  text NOT NULL,
    workspace_id text NOT NULL,
    host         text,
    pid          {int},
    metadata     {json}
) {strict};

CREATE TABLE crews (
    {entity},
    parent_id        {key},
    depth            {int} NOT NULL DEFAULT 0,
    worker_count     {int} NOT NULL DEFAULT 1,
    task_description text NOT NULL,
    result           {json},
    error            text
) {strict};

CREATE TABLE runs (
    {entity},
    key text
) {strict};

CREATE UNIQUE INDEX runs_by_key ON runs (tenant_id, key) WHERE key IS NOT NULL;

CREATE TABLE workstreams (
    {entity},
    retry_count {int} NOT NULL DEFAULT 0,
    max_retries {int} NOT NULL DEFAULT 0
) {strict};

-- Steps of runs and of workstreams: one table, two lifecycles.
CREATE TABLE steps (
    {entity},
    lifecycle   text NOT NULL CHECK (lifecycle IN ('run-step', 'workstream-step')),
    flow_id     {key},
    name        text NOT NULL,
    position    {int} NOT NULL DEFAULT 0,
    retry_count {int} NOT NULL DEFAULT 0,
    max_retries {int} NOT NULL DEFAULT 0
) {strict};

CREATE INDEX steps_of_flow ON steps (flow_id, position) WHERE flow_id IS NOT NULL;

CREATE TABLE breakers (
    {entity},
    probe_at          {time} NOT NULL DEFAULT 0,
    name              text NOT NULL,
    failures          {int} NOT NULL DEFAULT 0,
    successes         {int} NOT NULL DEFAULT 0,
    failure_threshold {int} NOT NULL DEFAULT 5,
    success_threshold {int} NOT NULL DEFAULT 1
) {strict};

CREATE UNIQUE INDEX breakers_by_name ON breakers (tenant_id, name);

CREATE TABLE agent_jobs (
    {entity},
    description text NOT NULL,
    retry_count {int} NOT NULL DEFAULT 0,
    max_retries {int} NOT NULL DEFAULT 3
) {strict};

-- Answers to requests that named an idempotency key, written in the request's own transaction.
CREATE TABLE idempotency_keys (
    tenant_id    {int} NOT NULL,
    endpoint     text NOT NULL,
    key          text NOT NULL,
    request_hash text NOT NULL,
    response     {json},
    created_at   {time} NOT NULL,
    expires_at   {time} NOT NULL,
    PRIMARY KEY (tenant_id, endpoint, key)
) {strict};

CREATE INDEX idempotency_keys_over ON idempotency_keys (expires_at);
