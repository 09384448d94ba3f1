-- What was said in the conversations of agents: each message once, by its hash, and a line for each place it is said at.

-- `round` is which try of the job it belongs to, `position` its place in the conversation of that try.
CREATE TABLE transcripts (
    job_id     {key} NOT NULL,
    created_at {time} NOT NULL,
    tenant_id  {int} NOT NULL,
    epoch      {int} NOT NULL,
    round      {int} NOT NULL,
    position   {int} NOT NULL,
    size       {int} NOT NULL,
    hash       text NOT NULL,
    PRIMARY KEY (job_id, round, position)
) {strict};

CREATE INDEX transcripts_of_blob ON transcripts (tenant_id, hash);
