-- A call of `keptwork_enqueue` under a key that was used before writes a record to the write-ahead log, so that the caller's
-- commit waits for the synchronous standbys. Without it the caller would be acknowledged while the commit that made the job
-- still waits, and a failover would lose the job.

-- Puts a job into the queue, in the caller's own transaction, and returns its public id; a key used before returns the
-- first job's. The trigger writes its event, also where the session says that it logs by itself. It rings at commit.
CREATE OR REPLACE FUNCTION keptwork_enqueue(
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
        IF made IS NOT NULL THEN
            PERFORM pg_logical_emit_message(true, 'keptwork', '');
            EXIT;
        END IF;
    END LOOP;
    IF logs_itself THEN
        PERFORM set_config('keptwork.logs', 'self', true);
    END IF;
    IF due_us <= now_us THEN
        PERFORM pg_notify('keptwork_jobs', '');
    END IF;
    RETURN keptwork_id(made);
END $$;
