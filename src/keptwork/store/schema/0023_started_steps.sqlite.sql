-- Only SQLite: where a job starts, so does the step it works for, as before (0016), each row written once.
DROP TRIGGER jobs_start_step;

CREATE TRIGGER jobs_start_step AFTER UPDATE OF seq ON jobs
WHEN NEW.step_id IS NOT NULL AND NEW.move = {job.start} AND NEW.seq > OLD.seq
BEGIN
    UPDATE steps SET job_id = NEW.id, attempts = NEW.attempts WHERE id = NEW.step_id AND state NOT IN ({run-step.PENDING},
        {run-step.RUNNING}, {workstream-step.S_PENDING}, {workstream-step.S_RETRYING})
    ; UPDATE steps SET job_id = NEW.id, attempts = NEW.attempts, seq = seq + 1,
        updated_at = max(NEW.updated_at, updated_at + 1), actor = NEW.actor, reason = NULL,
        cause = NULL, detail = NULL, started_at = coalesce(started_at, max(NEW.updated_at, updated_at + 1)),
        move = CASE state WHEN {run-step.PENDING} THEN {run-step.claim} WHEN {run-step.RUNNING} THEN {run-step.reclaim}
            WHEN {workstream-step.S_PENDING} THEN {workstream-step.dependencies_met}
            ELSE {workstream-step.retry_attempt} END,
        state = CASE WHEN state IN ({run-step.PENDING}, {run-step.RUNNING}) THEN {run-step.RUNNING}
            ELSE {workstream-step.S_RUNNING} END
    WHERE id = NEW.step_id AND state IN ({run-step.PENDING}, {run-step.RUNNING}, {workstream-step.S_PENDING},
        {workstream-step.S_RETRYING}); END;
