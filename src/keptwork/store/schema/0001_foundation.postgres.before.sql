-- Only PostgreSQL, before the tables: their defaults call these functions.

-- The one clock. Tests replace this function; nothing else decides what time it is.
CREATE FUNCTION keptwork_now() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint
$$;

-- A point in time as people read it: SELECT keptwork_time(created_at) FROM jobs.
CREATE FUNCTION keptwork_time(at bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT to_timestamp(at / 1000000.0)
$$;

-- Pages of 64 keys. A page number comes back after 4 million keys; a process keeps a page for seconds only.
CREATE SEQUENCE keptwork_pages MINVALUE 0 MAXVALUE 65535 CYCLE;

-- A key for a row made outside the product: the time in milliseconds since 2024, then the page. It finds what it calls
-- whatever search_path the foreign session has.
CREATE FUNCTION keptwork_key() RETURNS bigint LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT ((keptwork_now() / 1000 - 1704067200000) << 22) | (nextval('keptwork_pages') * 64)
$$;

CREATE SEQUENCE keptwork_event_ids;

-- Where the transaction stands in the order of commits: readers of the log stop before the oldest one still open.
-- The number added is 0, or more in a database restored into a cluster whose transaction ids had not got as far.
CREATE FUNCTION keptwork_tx() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT pg_current_xact_id()::text::bigint + 0
$$;

CREATE FUNCTION keptwork_tx_horizon() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint + 0
$$;
