-- The waits of jobs that wait for several things at a time.

-- name: open_waits
-- What such a job waits for, in the order in which its handler began to wait.
SELECT w.name, w.until FROM waits AS w JOIN jobs AS j ON j.id = w.job_id AND j.epoch = w.epoch
WHERE w.job_id = :job AND w.tenant_id = :tenant_id AND j.state = {job.queued} AND j.waits_for IS NOT NULL
ORDER BY w.number;
