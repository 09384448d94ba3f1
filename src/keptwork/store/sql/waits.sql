-- Statements about jobs that wait for several things at a time.

-- name: open_waits
-- List the open waits of such a job, in the order in which its handler started them.
SELECT w.name, w.until FROM waits AS w JOIN jobs AS j ON j.id = w.job_id AND j.epoch = w.epoch
WHERE w.job_id = :job AND w.tenant_id = :tenant_id AND j.state = {job.queued} AND j.waits_for IS NOT NULL
ORDER BY w.number;
