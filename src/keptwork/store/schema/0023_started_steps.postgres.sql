-- Only PostgreSQL: where a job starts, so does the step it works for, as before (0016), each row written once. In a session
-- that logs by itself the event is written here; in any other the triggers of the step do it.
CREATE OR REPLACE FUNCTION keptwork_start_step() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    step steps;
BEGIN
    UPDATE steps SET job_id = NEW.id, attempts = NEW.attempts, seq = seq + 1,
        updated_at = greatest(NEW.updated_at, updated_at + 1), actor = NEW.actor, reason = NULL,
        cause = NULL, detail = NULL, started_at = coalesce(started_at, greatest(NEW.updated_at, updated_at + 1)),
        move = CASE state WHEN {run-step.PENDING} THEN {run-step.claim} WHEN {run-step.RUNNING} THEN {run-step.reclaim}
            WHEN {workstream-step.S_PENDING} THEN {workstream-step.dependencies_met}
            ELSE {workstream-step.retry_attempt} END,
        state = CASE WHEN state IN ({run-step.PENDING}, {run-step.RUNNING}) THEN {run-step.RUNNING}
            ELSE {workstream-step.S_RUNNING} END
    WHERE id = NEW.step_id AND state IN ({run-step.PENDING}, {run-step.RUNNING}, {workstream-step.S_PENDING},
        {workstream-step.S_RETRYING})
    RETURNING * INTO step;
    IF NOT FOUND THEN
        UPDATE steps SET job_id = NEW.id, attempts = NEW.attempts WHERE id = NEW.step_id;
    ELSIF current_setting('keptwork.logs', true) = 'self' THEN
        INSERT INTO events (entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, actor,
            correlation_id, trace_id)
        SELECT step.id, step.updated_at, step.tenant_id, step.seq, step.epoch, step.lifecycle, e.type, step.move,
            e.from_state, step.state, step.actor, step.correlation_id, step.trace_id
        FROM (VALUES ({run-step.claim}, {event run-step.claim}, {run-step.PENDING}),
            ({run-step.reclaim}, {event run-step.reclaim}, {run-step.RUNNING}),
            ({workstream-step.dependencies_met}, {event workstream-step.dependencies_met}, {workstream-step.S_PENDING}),
            ({workstream-step.retry_attempt}, {event workstream-step.retry_attempt}, {workstream-step.S_RETRYING}))
            AS e(trigger, type, from_state) WHERE e.trigger = step.move;
    END IF;
    RETURN NULL;
END $$;

-- So does one whose job is born started. (On SQLite such a job is born queued, and moved in the same transaction.)
CREATE TRIGGER jobs_start_step_at_birth AFTER INSERT ON jobs FOR EACH ROW
    WHEN (NEW.step_id IS NOT NULL AND NEW.move = {job.start})
    EXECUTE FUNCTION keptwork_start_step();

-- Undoes the statement it stands in, unless everything in it has found what it was to find.
CREATE FUNCTION keptwork_insist(agreed boolean) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF agreed IS NOT TRUE THEN
        RAISE EXCEPTION 'it is not as it was' USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN true;
END $$;
