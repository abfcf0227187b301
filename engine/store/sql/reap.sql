-- Reaping: what a dead worker held goes back, or fails when its tries are used up.

-- name: held_by_worker
-- Runs a worker holds, from the mark up: below it every open run stands in deferred.
SELECT r.partition_id, r.scheduled_at, r.job_id
FROM runs AS r FORCE INDEX (PRIMARY)
WHERE r.partition_id IN (:partitions) AND r.scheduled_at BETWEEN :from_at AND :to_at
  AND r.state = 2 AND r.worker_id = :worker_id
LIMIT :rows_max

-- name: deferred_held_by_worker
-- In the lanes of what executors have: what waits is not read, however much it is.
SELECT r.partition_id, r.scheduled_at, r.job_id
FROM deferred AS d FORCE INDEX (due)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = d.partition_id AND r.scheduled_at = d.scheduled_at AND r.job_id = d.job_id
WHERE d.lane IN (:lanes) AND d.priority IN (0, 1, 2, 3) AND r.state = 2 AND r.worker_id = :worker_id
LIMIT :rows_max

-- name: orphaned_runs
-- By deferred.due, in the lanes of what executors have: runs whose lease is over and whose worker is no longer there, or
-- is, but should have ended them long ago: it has lost them, for it may not fire a run whose lease is over.
SELECT r.worker_id, r.partition_id, r.scheduled_at, r.job_id
FROM deferred AS d FORCE INDEX (due)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = d.partition_id AND r.scheduled_at = d.scheduled_at AND r.job_id = d.job_id
LEFT JOIN workers AS w ON w.worker_id = r.worker_id
WHERE d.lane IN (:lanes) AND d.priority IN (0, 1, 2, 3) AND d.due_at <= :now_ms AND r.state = 2
  AND (w.worker_id IS NULL OR r.lease_until <= :lost_before)
LIMIT :rows_max

-- name: lock_dead_runs
SELECT r.partition_id, r.scheduled_at, r.job_id, r.tenant_id, r.version, r.attempt, r.tries, r.cancel_requested,
       r.lease_until, r.priority
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state = 2 AND r.worker_id = :worker_id
FOR UPDATE SKIP LOCKED

-- name: lowest_mark
SELECT MIN(mark_at) FROM marks WHERE partition_id IN (:partitions)

-- name: marks_behind
SELECT partition_id FROM marks WHERE partition_id IN (:partitions) AND mark_at < :mark_at ORDER BY partition_id

-- name: lock_mark
SELECT mark_at FROM marks WHERE partition_id = :partition_id FOR UPDATE NOWAIT

-- name: lock_open_runs
-- Open runs that the mark is about to pass. NOWAIT: the mark is held meanwhile, and planners wait for it.
SELECT r.partition_id, r.scheduled_at, r.job_id, r.state, r.lease_until, r.priority, r.tenant_id
FROM runs AS r FORCE INDEX (PRIMARY)
WHERE r.partition_id = :partition_id AND r.scheduled_at >= :from_at AND r.scheduled_at < :to_at
  AND r.state IN (2, 3)
FOR UPDATE NOWAIT

-- name: defer_swept
INSERT IGNORE INTO deferred (partition_id, scheduled_at, job_id, due_at, reason, priority, tenant_id, lane) VALUES :tuples

-- name: move_mark
UPDATE marks SET mark_at = :mark_at WHERE partition_id = :partition_id
