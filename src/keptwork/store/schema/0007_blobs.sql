-- What is too large for a row, and what handlers keep beside their result: each content once for a tenant, by its hash.

-- Content by its SHA-256. It stands last, so that what else there is can be read without it.
CREATE TABLE blobs (
    tenant_id  {int} NOT NULL,
    size       {int} NOT NULL,
    created_at {time} NOT NULL,
    hash       text NOT NULL,
    content    {bytes} NOT NULL,
    PRIMARY KEY (tenant_id, hash)
) {strict};

-- What is dropped when nothing refers to it any longer is looked for oldest first, without reading any content.
CREATE INDEX blobs_by_age ON blobs (created_at, tenant_id, hash);

-- What a job keeps beside its result, under which name, and by which claim of it.
CREATE TABLE artifacts (
    tenant_id  {int} NOT NULL,
    job_id     {key} NOT NULL,
    epoch      {int} NOT NULL,
    size       {int} NOT NULL,
    created_at {time} NOT NULL,
    name       text NOT NULL,
    hash       text NOT NULL,
    media_type text NOT NULL,
    PRIMARY KEY (tenant_id, job_id, name)
) {strict};

CREATE INDEX artifacts_of_blob ON artifacts (tenant_id, hash);

-- Where a result is that is too large for its row; `result` then only tells its hash and size. Few jobs have one, so
-- the index costs the rest of the queue nothing.
ALTER TABLE jobs ADD COLUMN result_hash text;

CREATE INDEX jobs_of_blob ON jobs (tenant_id, result_hash) WHERE result_hash IS NOT NULL;
