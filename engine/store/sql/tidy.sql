-- Removal of what has had its time, in small batches.

-- name: delete_old_dead_letters
-- In order of dead_letters.age; one that is being tried again (waiting or running) stays.
DELETE FROM dead_letters WHERE died_at < :before_at AND state = 5 ORDER BY died_at LIMIT :rows_max

-- name: lock_ended_jobs
-- Through jobs.due: ended jobs have no next time. An active one is finished; a deleted one has had its last change.
SELECT partition_id, job_id, version, tenant_id, name FROM jobs FORCE INDEX (due)
WHERE partition_id IN (:partitions) AND priority IN (0, 1, 2, 3) AND next_run_at IS NULL AND updated_at < :before_at
  AND ((state = 1 AND COALESCE(last_run_at, updated_at) < :before_at) OR state = 4)
LIMIT :rows_max
FOR UPDATE SKIP LOCKED

-- name: delete_skips_of_jobs
DELETE s FROM (VALUES :rows) AS k (partition_id, job_id)
STRAIGHT_JOIN skips AS s ON s.partition_id = k.partition_id AND s.job_id = k.job_id

-- name: delete_versions_of_jobs
DELETE v FROM (VALUES :rows) AS k (partition_id, job_id)
STRAIGHT_JOIN job_versions AS v ON v.partition_id = k.partition_id AND v.job_id = k.job_id

-- name: delete_jobs
DELETE j FROM (VALUES :rows) AS k (partition_id, job_id)
STRAIGHT_JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id

-- name: ended_of_gone_days
-- What was retried of days that have gone, and ended long ago or is recorded again: only such runs are in the piece
-- day_start. Where runs are recorded, ended_before is before every time.
SELECT partition_id, scheduled_at, job_id, attempt FROM runs FORCE INDEX (PRIMARY)
WHERE partition_id IN (:partitions) AND scheduled_at < :gone_to AND state IN (4, 5, 6, 7, 8)
  AND (lease_until = 0 OR COALESCE(finished_at, 0) < :ended_before)
LIMIT :rows_max

-- name: lock_ended_runs
-- Which of these have not been retried once more meanwhile.
SELECT r.partition_id, r.scheduled_at, r.job_id
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state IN (4, 5, 6, 7, 8) AND r.attempt = k.attempt
FOR UPDATE

-- name: delete_attempts_of_runs
DELETE a FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN attempts AS a FORCE INDEX (PRIMARY)
  ON a.partition_id = k.partition_id AND a.scheduled_at = k.scheduled_at AND a.job_id = k.job_id
WHERE a.scheduled_at BETWEEN :from_at AND :to_at

-- name: delete_reports_of_runs
DELETE p FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN reports AS p FORCE INDEX (PRIMARY)
  ON p.partition_id = k.partition_id AND p.scheduled_at = k.scheduled_at AND p.job_id = k.job_id
WHERE p.scheduled_at BETWEEN :from_at AND :to_at

-- name: delete_runs
DELETE r FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at
