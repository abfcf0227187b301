-- Whether there is anything to do: each answers with one row or none, from the first entry of its index that fits.

-- name: any_due_job
SELECT 1 FROM jobs FORCE INDEX (due)
WHERE partition_id IN (:partitions) AND priority IN (0, 1, 2, 3) AND next_run_at <= :horizon_at
LIMIT 1

-- name: any_due_deferred
SELECT 1 FROM deferred FORCE INDEX (due)
WHERE lane IN (:partitions) AND priority IN (0, 1, 2, 3) AND due_at <= :due_at
LIMIT 1

-- name: any_signal
SELECT 1 FROM signals WHERE worker_id = :worker_id LIMIT 1

-- name: any_due_notice
SELECT 1 FROM notices FORCE INDEX (due) WHERE due_at <= :now_ms LIMIT 1

-- name: first_unplanned
-- The first time of each partition and priority that is not planned yet: a loose scan of jobs.due.
SELECT partition_id, MIN(next_run_at) FROM jobs
WHERE partition_id IN (:partitions) AND next_run_at > 0
GROUP BY partition_id, priority

-- name: first_deferred
-- The same for waiting runs, by deferred.due.
SELECT lane, MIN(due_at) FROM deferred WHERE lane IN (:partitions) GROUP BY lane, priority
