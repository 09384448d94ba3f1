-- Only PostgreSQL: where a job starts, so does the step it works for, whoever starts it; row-level security and grants.

-- A step that has begun already begins again where its lifecycle has a move for it. In a session that logs by itself the
-- event is written here; in any other the triggers of the step do it.
CREATE FUNCTION keptwork_start_step() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    was text;
    step steps;
BEGIN
    UPDATE steps SET job_id = NEW.id, attempts = NEW.attempts WHERE id = NEW.step_id RETURNING state INTO was;
    UPDATE steps SET seq = seq + 1, updated_at = greatest(NEW.updated_at, updated_at + 1), actor = NEW.actor, reason = NULL,
        cause = NULL, detail = NULL, started_at = coalesce(started_at, greatest(NEW.updated_at, updated_at + 1)),
        move = CASE state WHEN {run-step.PENDING} THEN {run-step.claim} WHEN {run-step.RUNNING} THEN {run-step.reclaim}
            WHEN {workstream-step.S_PENDING} THEN {workstream-step.dependencies_met}
            ELSE {workstream-step.retry_attempt} END,
        state = CASE WHEN state IN ({run-step.PENDING}, {run-step.RUNNING}) THEN {run-step.RUNNING}
            ELSE {workstream-step.S_RUNNING} END
    WHERE id = NEW.step_id AND state IN ({run-step.PENDING}, {run-step.RUNNING}, {workstream-step.S_PENDING},
        {workstream-step.S_RETRYING})
    RETURNING * INTO step;
    IF FOUND AND current_setting('keptwork.logs', true) = 'self' THEN
        INSERT INTO events (entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor,
            correlation_id, trace_id)
        VALUES (step.id, step.updated_at, step.tenant_id, step.seq, step.epoch, step.lifecycle,
            CASE step.move WHEN {run-step.claim} THEN {event run-step.claim}
                WHEN {run-step.reclaim} THEN {event run-step.reclaim}
                WHEN {workstream-step.dependencies_met} THEN {event workstream-step.dependencies_met}
                ELSE {event workstream-step.retry_attempt} END,
            step.move, was, step.state, step.actor, step.correlation_id, step.trace_id);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER jobs_start_step AFTER UPDATE OF seq ON jobs FOR EACH ROW
    WHEN (NEW.step_id IS NOT NULL AND NEW.move = {job.start} AND NEW.seq > OLD.seq)
    EXECUTE FUNCTION keptwork_start_step();

ALTER TABLE templates ENABLE ROW LEVEL SECURITY;

ALTER TABLE templates FORCE ROW LEVEL SECURITY;

CREATE POLICY engine ON templates TO CURRENT_USER USING (true) WITH CHECK (true);

CREATE POLICY tenant ON templates USING (tenant_id = nullif(current_setting('keptwork.tenant', true), '')::int);

DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'keptwork_app') THEN
        GRANT SELECT, INSERT ON templates TO keptwork_app;
    END IF;
END $$;
