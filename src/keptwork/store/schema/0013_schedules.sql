-- What is enqueued again and again. A row moves on when its tick is fired, in the transaction that enqueues the job.

-- `rules` holds what the job is enqueued with beside its kind, queue and payload. A rule is a cron expression in a time
-- zone, or an interval.
CREATE TABLE schedules (
    tenant_id   {int} NOT NULL,
    every_us    {time},
    next_at     {time} NOT NULL,
    last_at     {time},
    paused_at   {time},
    created_at  {time} NOT NULL,
    updated_at  {time} NOT NULL,
    name        text NOT NULL,
    kind        text NOT NULL,
    queue       text NOT NULL,
    cron        text,
    tz          text NOT NULL,
    catch_up    text NOT NULL,
    declared_by text NOT NULL,
    rules       {json} NOT NULL,
    payload     {json} NOT NULL,
    PRIMARY KEY (tenant_id, name),
    CHECK ((cron IS NULL) <> (every_us IS NULL))
) {strict};

CREATE INDEX schedules_due ON schedules (next_at) WHERE paused_at IS NULL;
