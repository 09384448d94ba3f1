-- Moves that write more than the move itself. Each stands once, for one record; both databases run it for a whole batch
-- at a time. {moves} is what every move sets, {applies} the clause that says what must still be true of the record: both
-- come from the declaration. {moves_earlier} sets the same for what was over a while before it is written. {held_back} puts
-- a job that has a limit back behind it. A move that is not listed here sets nothing else.

-- name: job.start
-- From here on the attempt counts.
UPDATE jobs SET {moves}, attempts = jobs.attempts + 1 {applies};

-- name: job.succeed
-- The result is kept; the lease is given back.
UPDATE jobs SET {moves}, result = :result, lease_until = NULL {applies};

-- name: job.fail
-- The owner stays on record as the last one.
UPDATE jobs SET {moves}, error = :error, lease_until = NULL {applies};

-- name: job.retry
-- Back into the queue, due after the backoff.
UPDATE jobs SET {moves}, error = :error, run_at = {now} + coalesce(:delay_us, 0), owner = NULL, claim_id = NULL,
    lease_until = NULL, waits_for = NULL, held_by = {held_back}
{applies};

-- name: job.expire
-- Back into the queue, where it keeps its place: it has waited long enough.
UPDATE jobs SET {moves}, owner = NULL, claim_id = NULL, lease_until = NULL, waits_for = NULL,
    held_by = {held_back}
{applies};

-- name: job.release
-- Back into the queue; an attempt that had begun is given back. What it is held by, if anything, is said with it.
UPDATE jobs SET {moves}, run_at = {now} + coalesce(:delay_us, 0), owner = NULL, claim_id = NULL, lease_until = NULL,
    waits_for = NULL, held_by = coalesce(:held_by, {held_back}),
    attempts = jobs.attempts - CASE jobs.state WHEN {job.running} THEN 1 ELSE 0 END
{applies};

-- name: job.snooze
-- Back into the queue as the handler asked, until a time or for a while; the attempt is given back. What it is held by,
-- if anything, is said with it.
UPDATE jobs SET {moves}, run_at = coalesce(:run_at, {now} + coalesce(:delay_us, 0)), owner = NULL, claim_id = NULL,
    lease_until = NULL, waits_for = :waits_for, attempts = jobs.attempts - 1,
    held_by = coalesce(:held_by, {held_back})
{applies};

-- name: job.cancel
-- Nobody holds it any longer.
UPDATE jobs SET {moves}, lease_until = NULL {applies};

-- name: job.dead_letter
-- The last error stays with the job.
UPDATE jobs SET {moves}, error = :error, lease_until = NULL {applies};

-- name: crew.reject
-- What is wrong with it stays with it.
UPDATE crews SET {moves}, error = :error {applies};

-- name: crew.success
-- What came of its shares is kept, in the row or by its hash.
UPDATE crews SET {moves}, result = :result, result_hash = :result_hash {applies};

-- name: crew.error
-- Why stays with it.
UPDATE crews SET {moves}, error = :error {applies};

-- name: job.override
-- Whoever held it holds it no longer; back in the queue it is due at once, and waits for nothing but its limit.
UPDATE jobs SET {moves}, run_at = {now}, lease_until = NULL, waits_for = NULL, held_by = {held_back} {applies};

-- name: run.succeed
-- Time has nothing to do with it any longer.
UPDATE runs SET {moves}, wake_at = NULL {applies};

-- name: run.fail
-- Why stays with it.
UPDATE runs SET {moves}, error = :error, wake_at = NULL {applies};

-- name: run.cancel
-- Time has nothing to do with it any longer.
UPDATE runs SET {moves}, wake_at = NULL {applies};

-- name: run.override
-- What time would have done to it before may be wrong now.
UPDATE runs SET {moves}, wake_at = NULL {applies};

-- name: workstream.step_fails
-- Why stays with it; in time it is tried again, or abandoned.
UPDATE workstreams SET {moves}, error = :error, wake_at = :wake_at {applies};

-- name: workstream.retry_eligible
-- The retry is counted when it is granted, and happens when its time has come.
UPDATE workstreams SET {moves}, retry_count = workstreams.retry_count + 1, wake_at = :wake_at {applies};

-- name: workstream.retry_attempt
-- A new round: what was wrong before no longer counts.
UPDATE workstreams SET {moves}, error = NULL, wake_at = :wake_at {applies};

-- name: workstream.all_steps_succeed
-- Time has nothing to do with it any longer.
UPDATE workstreams SET {moves}, error = NULL, wake_at = NULL {applies};

-- name: workstream.abandon
-- Time has nothing to do with it any longer.
UPDATE workstreams SET {moves}, wake_at = NULL {applies};

-- name: workstream.override
-- What time would have done to it before may be wrong now.
UPDATE workstreams SET {moves}, wake_at = NULL {applies};

-- name: run-step.succeed
-- What came of it is kept, in the row or by its hash.
UPDATE steps SET {moves_earlier}, output = :output, output_hash = :output_hash, cost_micros = :cost_micros, error = NULL
{applies};

-- name: run-step.claim+succeed
-- Carried out along with another step, by the job of that one.
UPDATE steps SET {moves_earlier}, job_id = :job_id, attempts = 1, output = :output, output_hash = :output_hash,
    cost_micros = :cost_micros, error = NULL
{applies};

-- name: run-step.approve
-- What was decided, and by whom.
UPDATE steps SET {moves}, output = :output {applies};

-- name: run-step.retry
-- Why it has to be tried again.
UPDATE steps SET {moves}, error = :error {applies};

-- name: run-step.fail
-- Why stays with it.
UPDATE steps SET {moves}, error = :error {applies};

-- name: run-step.reject
-- Why stays with it.
UPDATE steps SET {moves}, error = :error {applies};

-- name: run-step.expire
-- Why stays with it.
UPDATE steps SET {moves}, error = :error {applies};

-- name: workstream-step.success
-- What came of it is kept, in the row or by its hash.
UPDATE steps SET {moves_earlier}, output = :output, output_hash = :output_hash, cost_micros = :cost_micros, error = NULL
{applies};

-- name: workstream-step.dependencies_met+success
-- Carried out along with another step, by the job of that one.
UPDATE steps SET {moves_earlier}, job_id = :job_id, attempts = 1, output = :output, output_hash = :output_hash,
    cost_micros = :cost_micros, error = NULL
{applies};

-- name: workstream-step.failure
-- Why stays with it.
UPDATE steps SET {moves}, error = :error {applies};

-- name: workstream-step.retry_eligible
-- The retry is counted when it is granted.
UPDATE steps SET {moves}, retry_count = steps.retry_count + 1 {applies};

-- name: workstream-step.reset
-- An operator gives it all its retries back.
UPDATE steps SET {moves}, retry_count = 0, error = NULL {applies};

-- name: breaker.trip
-- It stays open for its cooldown; from now on somebody has to look after what it holds back.
UPDATE breakers SET {moves}, failures = coalesce(:failures, breakers.failures), error = :error, successes = 0,
    opened_at = {now}, probe_at = {now} + breakers.cooldown_us, probe_job = NULL, probe_epoch = NULL, candidate = NULL,
    holds = 1
{applies};

-- name: breaker.probe
-- The claim that tries it.
UPDATE breakers SET {moves}, probe_job = :probe_job, probe_epoch = :probe_epoch, candidate = NULL, holds = 1 {applies};

-- name: breaker.reopen
-- After a failure it cools down again; where its probe was lost, the next may go at once.
UPDATE breakers SET {moves}, error = coalesce(:error, breakers.error), successes = 0,
    probe_at = {now} + coalesce(:delay_us, 0), probe_job = NULL, probe_epoch = NULL, candidate = NULL
{applies};

-- name: breaker.close
-- It counts anew. What it holds back is let go after this.
UPDATE breakers SET {moves}, failures = 0, successes = 0, opened_at = NULL, probe_job = NULL, probe_epoch = NULL,
    candidate = NULL
{applies};

-- name: breaker.reset
-- The same, because somebody says so.
UPDATE breakers SET {moves}, failures = 0, successes = 0, opened_at = NULL, probe_job = NULL, probe_epoch = NULL,
    candidate = NULL
{applies};

-- name: agent.success
-- The state it leaves becomes part of its history.
UPDATE agent_jobs SET {moves}, state_history = coalesce(:state_history, agent_jobs.state_history) {applies};

-- name: agent.retry
-- Counted, and not reset between states. Which move of its job it follows is kept, so that it follows it once.
UPDATE agent_jobs SET {moves}, retry_count = agent_jobs.retry_count + 1, job_seq = coalesce(:job_seq, agent_jobs.job_seq),
    state_history = coalesce(:state_history, agent_jobs.state_history)
{applies};

-- name: agent.failure
-- The state it leaves becomes part of its history.
UPDATE agent_jobs SET {moves}, state_history = coalesce(:state_history, agent_jobs.state_history) {applies};
