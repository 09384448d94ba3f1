-- Moves that write more than the move itself. Each is stated for one record, and both databases run it for a whole
-- batch. {moves} has the assignments of every move, and {applies} the conditions that must still hold for the record.
-- Both come from the declaration. {moves_earlier} has the same assignments for a move that happened some time before it
-- is written. {held_back} holds a job that has a limit. A move that is not listed here sets nothing else.

-- name: job.start
-- Count the attempt, since it starts here.
UPDATE jobs SET {moves}, attempts = jobs.attempts + 1 {applies};

-- name: job.succeed
-- Store the result and end the lease.
UPDATE jobs SET {moves}, result = :result, lease_until = NULL {applies};

-- name: job.fail
-- End the lease. The owner stays on record as the last one.
UPDATE jobs SET {moves}, error = :error, lease_until = NULL {applies};

-- name: job.retry
-- Return the job to the queue, due after the backoff.
UPDATE jobs SET {moves}, error = :error, run_at = {now} + coalesce(:delay_us, 0), owner = NULL, claim_id = NULL,
    lease_until = NULL, waits_for = NULL, held_by = {held_back}
{applies};

-- name: job.expire
-- Return the job to the queue with its due time unchanged, since it has waited long enough.
UPDATE jobs SET {moves}, owner = NULL, claim_id = NULL, lease_until = NULL, waits_for = NULL,
    held_by = {held_back}
{applies};

-- name: job.release
-- Return the job to the queue and do not count an attempt that has started. Its hold, if any, comes with the move.
UPDATE jobs SET {moves}, run_at = {now} + coalesce(:delay_us, 0), owner = NULL, claim_id = NULL, lease_until = NULL,
    waits_for = NULL, held_by = coalesce(:held_by, {held_back}),
    attempts = jobs.attempts - CASE jobs.state WHEN {job.running} THEN 1 ELSE 0 END
{applies};

-- name: job.snooze
-- Return the job to the queue until a time or for a duration, as its handler requested, and do not count the attempt.
-- Its hold, if any, comes with the move.
UPDATE jobs SET {moves}, run_at = coalesce(:run_at, {now} + coalesce(:delay_us, 0)), owner = NULL, claim_id = NULL,
    lease_until = NULL, waits_for = :waits_for, attempts = jobs.attempts - 1,
    held_by = coalesce(:held_by, {held_back})
{applies};

-- name: job.cancel
-- End the lease.
UPDATE jobs SET {moves}, lease_until = NULL {applies};

-- name: job.dead_letter
-- Store the last error with the job and end the lease.
UPDATE jobs SET {moves}, error = :error, lease_until = NULL {applies};

-- name: crew.reject
-- Store the problem with the crew.
UPDATE crews SET {moves}, error = :error {applies};

-- name: crew.success
-- Store the results of the shares, in the row or by their hash.
UPDATE crews SET {moves}, result = :result, result_hash = :result_hash {applies};

-- name: crew.error
-- Store the error with the crew.
UPDATE crews SET {moves}, error = :error {applies};

-- name: job.override
-- End the lease. If the job is queued again, it is due immediately and waits only for its limit.
UPDATE jobs SET {moves}, run_at = {now}, lease_until = NULL, waits_for = NULL, held_by = {held_back} {applies};

-- name: run.succeed
-- Clear the wake time.
UPDATE runs SET {moves}, wake_at = NULL {applies};

-- name: run.fail
-- Store the error and clear the wake time.
UPDATE runs SET {moves}, error = :error, wake_at = NULL {applies};

-- name: run.cancel
-- Clear the wake time.
UPDATE runs SET {moves}, wake_at = NULL {applies};

-- name: run.override
-- Clear the wake time, since it might be wrong now.
UPDATE runs SET {moves}, wake_at = NULL {applies};

-- name: workstream.step_fails
-- Store the error, and set the time of the retry or abandonment.
UPDATE workstreams SET {moves}, error = :error, wake_at = :wake_at {applies};

-- name: workstream.retry_eligible
-- Count the retry when it is granted. It starts at the wake time.
UPDATE workstreams SET {moves}, retry_count = workstreams.retry_count + 1, wake_at = :wake_at {applies};

-- name: workstream.retry_attempt
-- Start a new round without the previous error.
UPDATE workstreams SET {moves}, error = NULL, wake_at = :wake_at {applies};

-- name: workstream.all_steps_succeed
-- Clear the error and the wake time.
UPDATE workstreams SET {moves}, error = NULL, wake_at = NULL {applies};

-- name: workstream.abandon
-- Clear the wake time.
UPDATE workstreams SET {moves}, wake_at = NULL {applies};

-- name: workstream.override
-- Clear the wake time, since it might be wrong now.
UPDATE workstreams SET {moves}, wake_at = NULL {applies};

-- name: run-step.succeed
-- Store the result, in the row or by its hash.
UPDATE steps SET {moves_earlier}, output = :output, output_hash = :output_hash, cost_micros = :cost_micros, error = NULL
{applies};

-- name: run-step.claim+succeed
-- Record a step that the job of another step ran along with its own.
UPDATE steps SET {moves_earlier}, job_id = :job_id, attempts = 1, output = :output, output_hash = :output_hash,
    cost_micros = :cost_micros, error = NULL
{applies};

-- name: run-step.approve
-- Store the decision and its author.
UPDATE steps SET {moves}, output = :output {applies};

-- name: run-step.retry
-- Store the error that requires another attempt.
UPDATE steps SET {moves}, error = :error {applies};

-- name: run-step.fail
-- Store the error with the step.
UPDATE steps SET {moves}, error = :error {applies};

-- name: run-step.reject
-- Store the reason with the step.
UPDATE steps SET {moves}, error = :error {applies};

-- name: run-step.expire
-- Store the reason with the step.
UPDATE steps SET {moves}, error = :error {applies};

-- name: workstream-step.success
-- Store the result, in the row or by its hash.
UPDATE steps SET {moves_earlier}, output = :output, output_hash = :output_hash, cost_micros = :cost_micros, error = NULL
{applies};

-- name: workstream-step.dependencies_met+success
-- Record a step that the job of another step ran along with its own.
UPDATE steps SET {moves_earlier}, job_id = :job_id, attempts = 1, output = :output, output_hash = :output_hash,
    cost_micros = :cost_micros, error = NULL
{applies};

-- name: workstream-step.failure
-- Store the error with the step.
UPDATE steps SET {moves}, error = :error {applies};

-- name: workstream-step.retry_eligible
-- Count the retry when it is granted.
UPDATE steps SET {moves}, retry_count = steps.retry_count + 1 {applies};

-- name: workstream-step.reset
-- Reset the retry count, so that an operator's retry has all retries again.
UPDATE steps SET {moves}, retry_count = 0, error = NULL {applies};

-- name: breaker.trip
-- Open the breaker for its cooldown. From now on, its held jobs need attention.
UPDATE breakers SET {moves}, failures = coalesce(:failures, breakers.failures), error = :error, successes = 0,
    opened_at = {now}, probe_at = {now} + breakers.cooldown_us, probe_job = NULL, probe_epoch = NULL, candidate = NULL,
    holds = 1
{applies};

-- name: breaker.probe
-- Record the claim that is the probe.
UPDATE breakers SET {moves}, probe_job = :probe_job, probe_epoch = :probe_epoch, candidate = NULL, holds = 1 {applies};

-- name: breaker.reopen
-- Start the cooldown after a failed probe. After a lost probe, the next one can start immediately.
UPDATE breakers SET {moves}, error = coalesce(:error, breakers.error), successes = 0,
    probe_at = {now} + coalesce(:delay_us, 0), probe_job = NULL, probe_epoch = NULL, candidate = NULL
{applies};

-- name: breaker.close
-- Reset the counts. The holds are lifted afterward.
UPDATE breakers SET {moves}, failures = 0, successes = 0, opened_at = NULL, probe_job = NULL, probe_epoch = NULL,
    candidate = NULL
{applies};

-- name: breaker.reset
-- Reset the counts at an operator's request.
UPDATE breakers SET {moves}, failures = 0, successes = 0, opened_at = NULL, probe_job = NULL, probe_epoch = NULL,
    candidate = NULL
{applies};

-- name: agent.success
-- Add the previous state to the history.
UPDATE agent_jobs SET {moves}, state_history = coalesce(:state_history, agent_jobs.state_history) {applies};

-- name: agent.retry
-- Count the retry, across all states. Store the move of the job that this move follows, so that it follows it only
-- once.
UPDATE agent_jobs SET {moves}, retry_count = agent_jobs.retry_count + 1, job_seq = coalesce(:job_seq, agent_jobs.job_seq),
    state_history = coalesce(:state_history, agent_jobs.state_history)
{applies};

-- name: agent.failure
-- Add the previous state to the history.
UPDATE agent_jobs SET {moves}, state_history = coalesce(:state_history, agent_jobs.state_history) {applies};
