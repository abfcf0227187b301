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
