-- Only PostgreSQL: who is due, what a limit lets go, and the door for any driver; row-level security and grants.

-- The tenants after one, up to another, that have something due in a queue and have not paused it. Once some are found,
-- no more than a page of tenants is looked at.
CREATE FUNCTION keptwork_lanes(served text, after int, upto int, paused int[], at bigint) RETURNS int[]
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    page constant int := 256;
    found int[];
    seen int;
    last int := after;
BEGIN
    LOOP
        WITH RECURSIVE walk(tenant_id, looked) AS (
            (SELECT j.tenant_id, 1 FROM jobs AS j
            WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = served AND j.tenant_id > last
            ORDER BY j.tenant_id LIMIT 1)
            UNION ALL
            SELECT (SELECT j.tenant_id FROM jobs AS j
                WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = served AND j.tenant_id > walk.tenant_id
                ORDER BY j.tenant_id LIMIT 1), walk.looked + 1
            FROM walk WHERE walk.tenant_id IS NOT NULL AND walk.looked < page)
        SELECT array_agg(w.tenant_id) FILTER (WHERE (w.tenant_id = ANY(paused)) IS NOT TRUE AND EXISTS (
                WITH RECURSIVE level(priority) AS (
                    (SELECT j.priority FROM jobs AS j
                    WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = served
                        AND j.tenant_id = w.tenant_id
                    ORDER BY j.priority DESC LIMIT 1)
                    UNION ALL
                    SELECT (SELECT j.priority FROM jobs AS j
                        WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = served
                            AND j.tenant_id = w.tenant_id AND j.priority < level.priority
                        ORDER BY j.priority DESC LIMIT 1)
                    FROM level WHERE level.priority IS NOT NULL)
                SELECT 1 FROM level CROSS JOIN LATERAL (
                    SELECT 1 FROM jobs AS j
                    WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = served
                        AND j.tenant_id = w.tenant_id AND j.priority = level.priority AND j.run_at <= at
                    LIMIT 1) AS one)),
            count(*), max(w.tenant_id)
        INTO found, seen, last FROM walk AS w WHERE w.tenant_id <= upto;
        IF found IS NOT NULL OR seen < page THEN
            RETURN coalesce(found, '{}');
        END IF;
    END LOOP;
END $$;

-- Where `enable_bitmapscan` is off: a plain index scan marks the dead entries it meets, of which these indexes have as
-- many as jobs have passed; a bitmap scan would read all of them, again and again.

-- How many more jobs a limited queue may have started now. Starts that count no longer are dropped. Its rule is locked.
CREATE FUNCTION keptwork_queue_room(served text, most int, rate int, window_us bigint, at bigint) RETURNS int
LANGUAGE plpgsql VOLATILE SET enable_bitmapscan = off SET search_path FROM CURRENT AS $$
DECLARE
    counted text := 'queue:' || served;
    active int;
    used int;
BEGIN
    DELETE FROM limit_uses AS u WHERE u.tenant_id = 0 AND u.key = counted AND u.used_at <= at - coalesce(window_us, 0)
        AND NOT EXISTS (SELECT 1 FROM jobs AS j
            WHERE j.id = u.job_id AND j.epoch = u.epoch AND j.state IN ({job.assigned}, {job.running}));
    SELECT count(j.id), count(*) FILTER (WHERE u.used_at > at - window_us) INTO active, used
    FROM limit_uses AS u LEFT JOIN jobs AS j
        ON j.id = u.job_id AND j.epoch = u.epoch AND j.state IN ({job.assigned}, {job.running})
    WHERE u.tenant_id = 0 AND u.key = counted;
    RETURN least(most - active, rate - used);
END $$;

-- The jobs to claim, in the order they are to be worked on: tenants in turn, beginning after `turn`; of each the
-- highest priority first, then the oldest. Each tenant gets an equal share, and what some do not use goes to the others.
-- What is due later is never read, however much; nor is what is paused. Rows are locked, those that others have locked
-- are passed over.
CREATE FUNCTION keptwork_due(
    claimer bigint, wanted text[], most int, whose int, turn int, without text[], at bigint
) RETURNS TABLE (place tid, rank bigint, limited boolean, tenant_id int, priority int, run_at bigint, id bigint)
LANGUAGE plpgsql VOLATILE ROWS 100 SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    served text := wanted[1];
    room int := most;
    rule limit_rules%ROWTYPE;
    paused int[];
    lanes int[] := '{}';
    got int[];
    hungry int;
    share int;
    taken int;
BEGIN
    IF cardinality(wanted) > 1 THEN
        -- Everyone locks in the same order. Then one queue after the other, and of each tenant the best of all.
        PERFORM 1 FROM limit_rules AS r WHERE r.what = 'queue' AND r.name = ANY(wanted) ORDER BY r.name FOR UPDATE;
        RETURN QUERY
        SELECT d.place, d.place_in_turn, d.limited, d.tenant_id, d.priority, d.run_at, d.id FROM (
            SELECT f.*, (row_number() OVER (PARTITION BY f.tenant_id ORDER BY f.priority DESC, f.run_at, f.id) << 32)
                | (f.tenant_id + CASE WHEN f.tenant_id > turn THEN 0 ELSE 2147483648 END) AS place_in_turn
            FROM unnest(wanted) AS w(queue)
            CROSS JOIN LATERAL keptwork_due(claimer, ARRAY[w.queue], most, whose, turn, without, at) AS f) AS d
        ORDER BY d.place_in_turn LIMIT most;
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM workers AS w WHERE w.id = claimer AND w.state IN ({worker.IDLE}, {worker.RUNNING})
            FOR SHARE) OR served IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO rule FROM limit_rules AS r WHERE r.what = 'queue' AND r.name = served FOR UPDATE;
    IF FOUND THEN
        room := least(most, keptwork_queue_room(served, rule.most, rule.rate, rule.window_us, at));
    END IF;
    IF room <= 0 THEN
        RETURN;
    END IF;
    SELECT array_agg(q.tenant_id) INTO paused FROM queues AS q WHERE q.name = served AND q.paused_at IS NOT NULL;
    IF whose IS NOT NULL THEN
        lanes := ARRAY[whose];
    ELSE
        lanes := ARRAY[
            (SELECT j.tenant_id FROM jobs AS j WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = served
            ORDER BY j.tenant_id LIMIT 1),
            (SELECT j.tenant_id FROM jobs AS j WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = served
            ORDER BY j.tenant_id DESC LIMIT 1)];
        IF lanes[1] IS NULL THEN
            RETURN;
        END IF;
        IF lanes[1] = lanes[2] THEN
            lanes := lanes[1:1];
        ELSE
            lanes := '{}';
        END IF;
    END IF;
    IF cardinality(lanes) = 1 AND lanes[1] = ANY(paused) THEN
        RETURN;
    END IF;
    IF cardinality(lanes) = 0 THEN
        lanes := keptwork_lanes(served, turn, 2147483647, paused, at);
        IF cardinality(lanes) < room THEN
            lanes := lanes || keptwork_lanes(served, -1, turn, paused, at);
        END IF;
        IF cardinality(lanes) = 0 THEN
            RETURN;
        END IF;
    END IF;
    lanes := lanes[1:room];
    got := array_fill(0, ARRAY[cardinality(lanes)]);
    hungry := cardinality(lanes);
    LOOP
        share := greatest(room / hungry, 1);
        hungry := 0;
        FOR lane IN 1..cardinality(lanes) LOOP
            EXIT WHEN room = 0;
            CONTINUE WHEN got[lane] IS NULL;
            RETURN QUERY
            SELECT f.place, ((got[lane] + row_number() OVER ()) << 32) | lane, rule.what IS NOT NULL,
                lanes[lane], f.priority, f.run_at, f.id FROM (
                WITH RECURSIVE level(priority) AS (
                    (SELECT j.priority FROM jobs AS j
                    WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = served
                        AND j.tenant_id = lanes[lane]
                    ORDER BY j.priority DESC LIMIT 1)
                    UNION ALL
                    SELECT (SELECT j.priority FROM jobs AS j
                        WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = served
                            AND j.tenant_id = lanes[lane] AND j.priority < level.priority
                        ORDER BY j.priority DESC LIMIT 1)
                    FROM level WHERE level.priority IS NOT NULL)
                SELECT first.* FROM level CROSS JOIN LATERAL (
                    SELECT j.ctid AS place, j.priority, j.run_at, j.id FROM jobs AS j
                    WHERE j.state = {job.queued} AND j.held_by IS NULL AND j.queue = served
                        AND j.tenant_id = lanes[lane] AND j.priority = level.priority AND j.run_at <= at
                        AND (without IS NULL OR j.kind <> ALL(without))
                    ORDER BY j.run_at, j.id LIMIT share + got[lane]
                    FOR NO KEY UPDATE OF j SKIP LOCKED) AS first
                LIMIT share OFFSET got[lane]) AS f;
            GET DIAGNOSTICS taken = ROW_COUNT;
            room := room - taken;
            IF taken < share THEN
                got[lane] := NULL;
            ELSE
                got[lane] := got[lane] + taken;
                hungry := hungry + 1;
            END IF;
        END LOOP;
        EXIT WHEN room = 0 OR hungry = 0;
    END LOOP;
END $$;

-- Lets go what limits hold back, as far as they allow; returns how many jobs. Whoever gives back what counts against a
-- key calls it for that key, in the same transaction; no key comes twice. The keys are locked first, in an order that
-- everyone keeps to: what is read after that is read as it then is. It runs as the engine, for a limit may count the jobs
-- of all tenants.
CREATE FUNCTION keptwork_promote(whose int[], keys text[], ring boolean) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET enable_bitmapscan = off SET search_path FROM CURRENT AS $$
DECLARE
    now_us bigint;
    wanted bigint;
    let_go int;
    shared text;
    again boolean;
    rated boolean := EXISTS (SELECT 1 FROM limit_rules AS r WHERE r.what = 'job' AND r.rate IS NOT NULL);
BEGIN
    -- Rows that are there are locked without a new version of each; those of new keys are made, and so locked.
    IF (SELECT count(*) FROM unnest(whose, keys) AS g(tenant_id, key)
            JOIN limits AS l ON l.tenant_id = g.tenant_id AND l.key = g.key) = cardinality(keys) THEN
        SELECT bool_or(l.pump_at IS NOT NULL) INTO again FROM (
            SELECT l.pump_at FROM limits AS l JOIN unnest(whose, keys) AS g(tenant_id, key)
                ON l.tenant_id = g.tenant_id AND l.key = g.key
            ORDER BY l.tenant_id, l.key FOR UPDATE OF l) AS l;
    ELSE
        INSERT INTO limits AS l (tenant_id, key)
        SELECT g.tenant_id, g.key FROM unnest(whose, keys) AS g(tenant_id, key) ORDER BY g.tenant_id, g.key
        ON CONFLICT (tenant_id, key) DO UPDATE SET turn = l.turn;
        again := true;
    END IF;
    now_us := keptwork_now();
    IF rated THEN
        DELETE FROM limit_uses AS u USING unnest(whose, keys) AS g(tenant_id, key), limit_rules AS r
        WHERE u.tenant_id = g.tenant_id AND u.key = g.key AND r.what = 'job' AND r.name = split_part(g.key, ':', 2)
            AND u.used_at <= now_us - r.window_us;
    END IF;
    -- Of the keys of one tenant all at once: as `keptwork_limit_room` and `keptwork_held_back` have it, without their calls.
    WITH rooms AS MATERIALIZED (
        SELECT g.tenant_id, g.key, greatest(least(r.most - c.active, r.rate - u.used - c.unstarted, 2147483647), 0) AS room
        FROM unnest(whose, keys) AS g(tenant_id, key)
        LEFT JOIN limit_rules AS r ON r.what = 'job' AND r.name = split_part(g.key, ':', 2)
        CROSS JOIN LATERAL (
            SELECT count(*) AS active, count(*) FILTER (WHERE j.state = {job.queued}) AS unstarted FROM jobs AS j
            WHERE j.limit_key = g.key AND j.tenant_id = g.tenant_id AND j.held_by IS NULL
                AND j.completed_at IS NULL) AS c
        CROSS JOIN LATERAL (
            SELECT count(*) AS used FROM limit_uses AS u WHERE r.rate IS NOT NULL AND u.tenant_id = g.tenant_id
                AND u.key = g.key AND u.used_at > now_us - r.window_us) AS u
        WHERE g.tenant_id <> 0),
    next AS MATERIALIZED (
        SELECT w.place FROM rooms AS g CROSS JOIN LATERAL (
            WITH RECURSIVE level(priority) AS (
                (SELECT j.priority FROM jobs AS j
                WHERE j.state = {job.queued} AND j.held_by = 'limit' AND j.limit_key = g.key
                    AND j.tenant_id = g.tenant_id
                ORDER BY j.priority DESC LIMIT 1)
                UNION ALL
                SELECT (SELECT j.priority FROM jobs AS j
                    WHERE j.state = {job.queued} AND j.held_by = 'limit' AND j.limit_key = g.key
                        AND j.tenant_id = g.tenant_id AND j.priority < level.priority
                    ORDER BY j.priority DESC LIMIT 1)
                FROM level WHERE level.priority IS NOT NULL)
            SELECT first.place FROM level CROSS JOIN LATERAL (
                SELECT j.ctid AS place FROM jobs AS j
                WHERE j.state = {job.queued} AND j.held_by = 'limit' AND j.limit_key = g.key
                    AND j.tenant_id = g.tenant_id AND j.priority = level.priority AND j.run_at <= now_us
                ORDER BY j.run_at, j.id LIMIT g.room
                FOR NO KEY UPDATE OF j SKIP LOCKED) AS first
            LIMIT g.room) AS w
        WHERE g.room > 0),
    moved AS (UPDATE jobs SET held_by = NULL FROM next WHERE jobs.ctid = next.place RETURNING 1)
    SELECT (SELECT coalesce(sum(room), 0) FROM rooms), (SELECT count(*) FROM moved) INTO wanted, let_go;
    again := again OR rated OR wanted > let_go OR 0 = ANY(whose);
    -- Of those that all tenants share, tenants in turn.
    FOR shared IN SELECT g.key FROM unnest(whose, keys) AS g(tenant_id, key) WHERE g.tenant_id = 0 LOOP
        let_go := let_go + keptwork_promote_in_turn(shared, now_us);
    END LOOP;
    -- Where every place was taken, nothing is to be looked at again by itself.
    IF again THEN
    UPDATE limits AS l SET pump_at = n.pump_at
    FROM (SELECT g.tenant_id, g.key, keptwork_next_pump(g.tenant_id, g.key, now_us) AS pump_at
        FROM unnest(whose, keys) AS g(tenant_id, key)
        JOIN limits AS k ON k.tenant_id = g.tenant_id AND k.key = g.key
        LEFT JOIN limit_rules AS r ON r.what = 'job' AND r.name = split_part(g.key, ':', 2)
        WHERE k.pump_at IS NOT NULL OR r.rate IS NOT NULL
            -- There is room left although something waits: it was locked.
            OR EXISTS (SELECT 1 FROM jobs AS j WHERE j.state = {job.queued} AND j.held_by = 'limit'
                    AND j.limit_key = g.key AND (g.tenant_id = 0 OR j.tenant_id = g.tenant_id))
                AND r.most > (SELECT count(*) FROM (SELECT 1 FROM jobs AS j WHERE j.limit_key = g.key
                    AND (g.tenant_id = 0 OR j.tenant_id = g.tenant_id) AND j.held_by IS NULL AND j.completed_at IS NULL
                    LIMIT r.most) AS active)
        OFFSET 0) AS n
    WHERE l.tenant_id = n.tenant_id AND l.key = n.key AND l.pump_at IS DISTINCT FROM n.pump_at;
    END IF;
    IF let_go > 0 AND ring THEN
        PERFORM pg_notify('keptwork_jobs', '');
    END IF;
    RETURN let_go;
END $$;

-- How many more jobs of a key may go. What counts against it is what was let go and has not ended; against its rate,
-- what was started in the window, and what was let go but has not started.
CREATE FUNCTION keptwork_limit_room(whose int, counted text, at bigint) RETURNS int
LANGUAGE plpgsql VOLATILE SET enable_bitmapscan = off SET search_path FROM CURRENT AS $$
DECLARE
    rule limit_rules%ROWTYPE;
    active int;
    unstarted int;
    used int := 0;
BEGIN
    SELECT * INTO rule FROM limit_rules AS r WHERE r.what = 'job' AND r.name = split_part(counted, ':', 2);
    IF NOT FOUND THEN
        RETURN 2147483647;
    END IF;
    SELECT count(*), count(*) FILTER (WHERE j.state = {job.queued}) INTO active, unstarted FROM jobs AS j
    WHERE j.limit_key = counted AND j.held_by IS NULL AND j.completed_at IS NULL AND (whose = 0 OR j.tenant_id = whose);
    IF rule.rate IS NOT NULL THEN
        SELECT count(*) INTO used FROM limit_uses AS u
        WHERE u.tenant_id = whose AND u.key = counted AND u.used_at > at - rule.window_us;
    END IF;
    RETURN least(rule.most - active, rule.rate - used - unstarted);
END $$;

-- The next jobs of a tenant that a key holds back and that are due: the highest priority first, then the oldest.
CREATE FUNCTION keptwork_held_back(whose int, counted text, room int, at bigint) RETURNS TABLE (place tid)
LANGUAGE sql VOLATILE ROWS 10 SET enable_bitmapscan = off SET search_path FROM CURRENT AS $$
    WITH RECURSIVE level(priority) AS (
        (SELECT j.priority FROM jobs AS j
        WHERE j.state = {job.queued} AND j.held_by = 'limit' AND j.limit_key = counted AND j.tenant_id = whose
        ORDER BY j.priority DESC LIMIT 1)
        UNION ALL
        SELECT (SELECT j.priority FROM jobs AS j
            WHERE j.state = {job.queued} AND j.held_by = 'limit' AND j.limit_key = counted AND j.tenant_id = whose
                AND j.priority < level.priority
            ORDER BY j.priority DESC LIMIT 1)
        FROM level WHERE level.priority IS NOT NULL)
    SELECT first.place FROM level CROSS JOIN LATERAL (
        SELECT j.ctid AS place FROM jobs AS j
        WHERE j.state = {job.queued} AND j.held_by = 'limit' AND j.limit_key = counted AND j.tenant_id = whose
            AND j.priority = level.priority AND j.run_at <= at
        ORDER BY j.run_at, j.id LIMIT room
        FOR NO KEY UPDATE OF j SKIP LOCKED) AS first
    LIMIT room
$$;

-- Lets jobs of a key go that all tenants share: each tenant that waits gets an equal share, beginning after the one that
-- was served last.
CREATE FUNCTION keptwork_promote_in_turn(counted text, at bigint) RETURNS int
LANGUAGE plpgsql VOLATILE SET enable_bitmapscan = off SET search_path FROM CURRENT AS $$
DECLARE
    room int := keptwork_limit_room(0, counted, at);
    last int := (SELECT l.turn FROM limits AS l WHERE l.tenant_id = 0 AND l.key = counted);
    let_go int := 0;
    share int;
    waiting int[];
    whose int;
    taken int;
    round int;
BEGIN
    WHILE room > 0 LOOP
        WITH RECURSIVE walk(tenant_id) AS (
            (SELECT j.tenant_id FROM jobs AS j
            WHERE j.state = {job.queued} AND j.held_by = 'limit' AND j.limit_key = counted
            ORDER BY j.tenant_id LIMIT 1)
            UNION ALL
            SELECT (SELECT j.tenant_id FROM jobs AS j
                WHERE j.state = {job.queued} AND j.held_by = 'limit' AND j.limit_key = counted
                    AND j.tenant_id > walk.tenant_id
                ORDER BY j.tenant_id LIMIT 1)
            FROM walk WHERE walk.tenant_id IS NOT NULL)
        SELECT array_agg(w.tenant_id ORDER BY w.tenant_id <= last, w.tenant_id) INTO waiting
        FROM walk AS w WHERE w.tenant_id IS NOT NULL;
        EXIT WHEN waiting IS NULL;
        round := 0;
        share := greatest(room / cardinality(waiting), 1);
        FOREACH whose IN ARRAY waiting LOOP
            EXIT WHEN room = 0;
            WITH next AS MATERIALIZED (
                SELECT h.place FROM keptwork_held_back(whose, counted, least(share, room), at) AS h)
            UPDATE jobs SET held_by = NULL FROM next WHERE jobs.ctid = next.place;
            GET DIAGNOSTICS taken = ROW_COUNT;
            round := round + taken;
            room := room - taken;
            last := CASE WHEN taken > 0 THEN whose ELSE last END;
        END LOOP;
        let_go := let_go + round;
        EXIT WHEN round = 0;
    END LOOP;
    UPDATE limits AS l SET turn = last WHERE l.tenant_id = 0 AND l.key = counted AND l.turn <> last;
    RETURN let_go;
END $$;

-- When to look at a key again by itself: when its rate lets the next one go, or soon, if somebody had locked what could
-- have gone. None if nothing that waits is due, for that has a wake of its own; nor if what runs holds it back, for
-- whoever ends that looks.
CREATE FUNCTION keptwork_next_pump(whose int, counted text, at bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_bitmapscan = off SET search_path FROM CURRENT AS $$
DECLARE
    rule limit_rules%ROWTYPE;
    active int;
    unstarted int;
    used int;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM jobs AS j
        WHERE j.state = {job.queued} AND j.held_by = 'limit' AND j.limit_key = counted
            AND (whose = 0 OR j.tenant_id = whose) AND j.run_at <= at) THEN
        RETURN NULL;
    END IF;
    SELECT * INTO rule FROM limit_rules AS r WHERE r.what = 'job' AND r.name = split_part(counted, ':', 2);
    SELECT count(*), count(*) FILTER (WHERE j.state = {job.queued}) INTO active, unstarted FROM jobs AS j
    WHERE j.limit_key = counted AND j.held_by IS NULL AND j.completed_at IS NULL AND (whose = 0 OR j.tenant_id = whose);
    IF rule.most <= active THEN
        RETURN NULL;
    END IF;
    IF rule.rate IS NOT NULL THEN
        SELECT count(*) INTO used FROM limit_uses AS u
        WHERE u.tenant_id = whose AND u.key = counted AND u.used_at > at - rule.window_us;
        IF used + unstarted >= rule.rate THEN
            RETURN coalesce((SELECT u.used_at FROM limit_uses AS u
                WHERE u.tenant_id = whose AND u.key = counted AND u.used_at > at - rule.window_us
                ORDER BY u.used_at OFFSET used + unstarted - rule.rate LIMIT 1), at) + rule.window_us;
        END IF;
    END IF;
    RETURN at + 100000;
END $$;

-- The key that a job of this kind is counted by: none if the kind has no limit.
CREATE FUNCTION keptwork_limit_key(of_kind text, payload jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT r.per || ':' || r.name || CASE WHEN r.per IN ('*', 'tenant') THEN ''
        WHEN length(v.text) > 64 THEN ':' || encode(sha256(convert_to(v.text, 'UTF8')), 'hex')
        ELSE ':' || v.text END
    FROM limit_rules AS r, LATERAL (SELECT coalesce(payload ->> r.per, 'null') AS text) AS v
    WHERE r.what = 'job' AND r.name = of_kind
$$;

-- What makes a job that is held back due earlier, tells whoever looks after its limit.
CREATE FUNCTION keptwork_wake_limit() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO limit_wakes (at, tenant_id, key)
    VALUES (NEW.run_at, CASE WHEN NEW.limit_key LIKE '*:%' THEN 0 ELSE NEW.tenant_id END, NEW.limit_key);
    RETURN NULL;
END $$;

CREATE TRIGGER jobs_due_earlier AFTER UPDATE OF run_at ON jobs FOR EACH ROW
    WHEN (NEW.held_by = 'limit' AND NEW.run_at < OLD.run_at) EXECUTE FUNCTION keptwork_wake_limit();

-- Jobs that come in by the function `keptwork_enqueue`, or by hand: they fall under the limit of their kind all the same.
CREATE FUNCTION keptwork_hold_back() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    NEW.limit_key := keptwork_limit_key(NEW.kind, NEW.payload::jsonb);
    IF NEW.limit_key IS NOT NULL THEN
        NEW.held_by := coalesce(NEW.held_by, 'limit');
        INSERT INTO limit_wakes (at, tenant_id, key)
        VALUES (NEW.run_at, CASE WHEN NEW.limit_key LIKE '*:%' THEN 0 ELSE NEW.tenant_id END, NEW.limit_key);
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER jobs_hold_back BEFORE INSERT ON jobs FOR EACH ROW
    WHEN (NEW.limit_key IS NULL AND current_setting('keptwork.logs', true) IS DISTINCT FROM 'self')
    EXECUTE FUNCTION keptwork_hold_back();

DO $$ DECLARE named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['limit_rules', 'limits', 'limit_wakes', 'limit_uses', 'recent_jobs'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', named);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', named);
        EXECUTE format('CREATE POLICY engine ON %I TO CURRENT_USER USING (true) WITH CHECK (true)', named);
        IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO keptwork_app', named);
        END IF;
    END LOOP;
    -- Rules hold for all tenants; keys that all tenants share belong to none.
    CREATE POLICY tenant ON limit_rules FOR SELECT USING (true);
    FOREACH named IN ARRAY ARRAY['limits', 'limit_wakes', 'limit_uses', 'recent_jobs'] LOOP
        EXECUTE format('CREATE POLICY tenant ON %I USING '
            '(tenant_id IN (0, nullif(current_setting(''keptwork.tenant'', true), '''')::int))', named);
    END LOOP;
END $$;

-- Keys come and go with the work.
ALTER TABLE limits SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

ALTER TABLE limit_wakes SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

ALTER TABLE limit_uses SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
