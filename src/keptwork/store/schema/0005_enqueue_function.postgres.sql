-- Only PostgreSQL: the queue's door for any driver, and for triggers on other tables.

-- A key as the public id that people see, to the letter as the product writes it: SELECT keptwork_id(id) FROM jobs. The last
-- 52 bits are a checksum, the finaliser of splitmix64; its products wrap around at 64 bits, which takes numeric.
CREATE FUNCTION keptwork_id(key bigint, prefix text DEFAULT 'job') RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    counter bigint := key & 4194303;
    high bigint := (((key >> 22) + 1704067200000) << 16) | 28672 | (counter >> 10);
    word numeric := 18446744073709551616;
    x numeric := mod(key + 11400714819323198485, word);
    bits bigint := (x - CASE WHEN x > 9223372036854775807 THEN word ELSE 0 END)::bigint;
BEGIN
    x := mod((bits # ((bits >> 30) & 17179869183)) * 13787848793156543929 + word * 13787848793156543929, word);
    bits := (x - CASE WHEN x > 9223372036854775807 THEN word ELSE 0 END)::bigint;
    x := mod((bits # ((bits >> 27) & 137438953471)) * 10723151780598845931 + word * 10723151780598845931, word);
    bits := (x - CASE WHEN x > 9223372036854775807 THEN word ELSE 0 END)::bigint;
    bits := ((bits # ((bits >> 31) & 8589934591)) >> 12) & 4503599627370495;
    bits := (-9223372036854775808) | ((counter & 1023) << 52) | bits;
    RETURN prefix || '_' || (lpad(to_hex(high), 16, '0') || lpad(to_hex(bits), 16, '0'))::uuid;
END $$;

-- Refuses what a job may not be given, with the SQLSTATE of a bad argument. The bounds are those of the Python side.
CREATE FUNCTION keptwork_check_text(what text, given text, longest int) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF given ~ '[[:cntrl:]]' OR given !~ '[^[:space:]]' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('keptwork: %L is no %s; it must be printable text',
                regexp_replace(left(given, 100), '[[:cntrl:]]', '?', 'g'), what);
    ELSIF length(given) > longest THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('keptwork: a %s of %s characters is over the limit of %s', what, length(given), longest);
    END IF;
END $$;

-- Whose job it is: the tenant named, else the session's own, else `default`. Row-level security hides all others.
CREATE FUNCTION keptwork_tenant(named text) RETURNS int LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    own int := nullif(current_setting('keptwork.tenant', true), '')::int;
    found_id int;
BEGIN
    SELECT t.id INTO found_id FROM tenants AS t
    WHERE CASE WHEN named IS NULL AND own IS NOT NULL THEN t.id = own ELSE t.name = coalesce(named, 'default') END;
    IF found_id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('keptwork: no tenant %s', coalesce(quote_literal(named), own::text, quote_literal('default'))),
            HINT = 'A role that sees one tenant only says which: SET keptwork.tenant = ''1''.';
    END IF;
    RETURN found_id;
END $$;

-- Puts a job into the queue, in the caller's own transaction, and returns its public id; a key used before returns the
-- first job's. The trigger writes its event, also where the session says that it logs by itself. It rings at commit.
CREATE FUNCTION keptwork_enqueue(
    kind           text,
    payload        jsonb DEFAULT '{}',
    queue          text DEFAULT 'default',
    priority       int DEFAULT 0,
    run_in         interval DEFAULT NULL,
    run_at         timestamptz DEFAULT NULL,
    key            text DEFAULT NULL,
    max_attempts   int DEFAULT 4,
    on_exhausted   text DEFAULT 'dead_letter',
    correlation_id text DEFAULT NULL,
    trace_id       text DEFAULT NULL,
    tenant         text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    payload_text text := keptwork_enqueue.payload::text;
    wanted_key text := keptwork_enqueue.key;
    logs_itself boolean := current_setting('keptwork.logs', true) IS NOT DISTINCT FROM 'self';
    owner_id int;
    now_us bigint := keptwork_now();
    delay_us numeric := coalesce(extract(epoch FROM keptwork_enqueue.run_in), 0) * 1000000;
    due_us numeric;
    made bigint;
    refused text;
BEGIN
    refused := CASE
        WHEN keptwork_enqueue.kind IS NULL THEN 'a job needs a kind: the name of a declared job'
        WHEN keptwork_enqueue.queue IS NULL THEN 'a job needs a queue to wait in'
        WHEN jsonb_typeof(keptwork_enqueue.payload) IS DISTINCT FROM 'object'
            THEN 'the payload must be a JSON object that names the arguments'
        WHEN octet_length(payload_text) > 1048576
            THEN format('a payload of %s bytes is over the limit of 1 MiB', octet_length(payload_text))
        WHEN keptwork_enqueue.priority IS NULL OR keptwork_enqueue.priority = -2147483648
            THEN format('%s is no priority; it is a whole number from -2147483647 to 2147483647',
                coalesce(keptwork_enqueue.priority::text, 'NULL'))
        WHEN keptwork_enqueue.max_attempts IS NULL OR keptwork_enqueue.max_attempts < 1
            THEN format('max_attempts is %s; it must be at least 1', coalesce(keptwork_enqueue.max_attempts::text, 'NULL'))
        WHEN keptwork_enqueue.on_exhausted IS NULL OR keptwork_enqueue.on_exhausted NOT IN ('dead_letter', 'fail')
            THEN format('on_exhausted is %L; say ''dead_letter'' or ''fail''', left(keptwork_enqueue.on_exhausted, 100))
        WHEN delay_us NOT BETWEEN 0 AND 3153600000000000
            THEN format('%s is no delay; it must be between 0 and a hundred years', keptwork_enqueue.run_in)
        WHEN NOT isfinite(keptwork_enqueue.run_at) THEN 'run_at is no point in time'
    END;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'keptwork: ' || refused;
    END IF;
    PERFORM keptwork_check_text('kind', keptwork_enqueue.kind, 200);
    PERFORM keptwork_check_text('queue', keptwork_enqueue.queue, 200);
    PERFORM keptwork_check_text('key', wanted_key, 500);
    PERFORM keptwork_check_text('correlation', keptwork_enqueue.correlation_id, 500);
    PERFORM keptwork_check_text('trace', keptwork_enqueue.trace_id, 500);
    due_us := greatest(now_us, coalesce(extract(epoch FROM keptwork_enqueue.run_at)::numeric * 1000000, now_us)) + delay_us;
    IF due_us > now_us + 3153600000000000 THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'keptwork: the job would be due later than in a hundred years';
    END IF;
    owner_id := keptwork_tenant(keptwork_enqueue.tenant);
    IF logs_itself THEN
        PERFORM set_config('keptwork.logs', 'trigger', true);
    END IF;
    LOOP
        INSERT INTO jobs (created_at, updated_at, run_at, tenant_id, state, move, actor, correlation_id, trace_id,
            priority, max_attempts, queue, kind, on_exhausted, key, payload)
        VALUES (now_us, now_us, due_us::bigint, owner_id, {job.queued}, {job.enqueue}, 'sql:' || session_user,
            keptwork_enqueue.correlation_id, keptwork_enqueue.trace_id, keptwork_enqueue.priority,
            keptwork_enqueue.max_attempts, keptwork_enqueue.queue, keptwork_enqueue.kind, keptwork_enqueue.on_exhausted,
            wanted_key, payload_text::json)
        ON CONFLICT (tenant_id, key) WHERE key IS NOT NULL DO NOTHING
        RETURNING id INTO made;
        EXIT WHEN made IS NOT NULL;
        -- Whoever had the key first may have been undone or deleted by now: then it is this one's turn again.
        SELECT j.id INTO made FROM jobs AS j WHERE j.tenant_id = owner_id AND j.key = wanted_key;
        EXIT WHEN made IS NOT NULL;
    END LOOP;
    IF logs_itself THEN
        PERFORM set_config('keptwork.logs', 'self', true);
    END IF;
    IF due_us <= now_us THEN
        PERFORM pg_notify('keptwork_jobs', '');
    END IF;
    RETURN keptwork_id(made);
END $$;

-- It runs with the rights of whoever calls it, so it gives nobody anything; but nobody finds it by accident either.
REVOKE EXECUTE ON FUNCTION keptwork_enqueue(text, jsonb, text, int, interval, timestamptz, text, int, text, text, text, text)
    FROM PUBLIC;

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT EXECUTE ON FUNCTION
            keptwork_enqueue(text, jsonb, text, int, interval, timestamptz, text, int, text, text, text, text) TO keptwork_app;
    END IF;
END $$;
