-- How far the runs of each partition have been recorded in Cassandra.

-- name: recordable
-- What a recorder has to do of the days that are closed, the partition that is furthest behind first. A partition never
-- recorded begins below every time.
SELECT p.partition_id, f.closed_to, COALESCE(r.recorded_at, 0), COALESCE(r.job_id, 0), f.gone_to
FROM partitions AS p
JOIN floor AS f ON f.id = 1
LEFT JOIN recorded AS r ON r.partition_id = p.partition_id
WHERE COALESCE(r.recorded_at, 0) < f.closed_to
  AND (r.worker_id IS NULL OR r.worker_id = :worker_id OR r.lease_until < :now_ms)
ORDER BY COALESCE(r.recorded_at, 0), p.partition_id

-- name: make_recorded
INSERT IGNORE INTO recorded (partition_id, recorded_at, job_id, worker_id, lease_until)
VALUES (:partition_id, 0, 0, :worker_id, :lease_until)

-- name: take_recorded
-- Whoever takes a partition goes on where it stands.
UPDATE recorded SET worker_id = :worker_id, lease_until = :lease_until
WHERE partition_id = :partition_id AND recorded_at = :recorded_at AND job_id = :job_id
  AND (worker_id = :worker_id OR lease_until < :now_ms)

-- name: move_recorded
UPDATE recorded SET recorded_at = :recorded_at, job_id = :job_id, lease_until = :lease_until
WHERE partition_id = :partition_id AND worker_id = :worker_id

-- name: unrecorded_below
SELECT p.partition_id
FROM partitions AS p
LEFT JOIN recorded AS r ON r.partition_id = p.partition_id
WHERE COALESCE(r.recorded_at, 0) < :until_at LIMIT 1

-- name: finished_runs
-- The primary key onward from a run, in two ranges, above the days that have gone. What is open there, the recorder
-- refuses; a withdrawn run never was.
SELECT scheduled_at, job_id, version, state, trigger_kind, attempt, tries, reason, outcome, status_code, started_at,
       finished_at, demoted, tenant_id, priority
FROM runs FORCE INDEX (PRIMARY)
WHERE partition_id = :partition_id
  AND ((scheduled_at = :recorded_at AND job_id > :job_id) OR (scheduled_at > :recorded_at AND scheduled_at < :until_at))
  AND scheduled_at >= :gone_to
ORDER BY scheduled_at, job_id LIMIT :rows_max

-- name: retried_runs
-- What was retried of days that have gone, has ended since, and is not recorded again: only such runs are in the piece
-- day_start. The lease of one that is recorded is 0.
SELECT partition_id, scheduled_at, job_id, version, state, trigger_kind, attempt, tries, reason, outcome, status_code,
       started_at, finished_at, demoted, tenant_id, priority
FROM runs FORCE INDEX (PRIMARY)
WHERE partition_id IN (:partitions) AND scheduled_at < :gone_to AND state IN (4, 5, 6, 7, 8)
  AND COALESCE(lease_until, 1) <> 0
LIMIT :rows_max

-- name: note_recorded_again
-- But for what has been retried once more meanwhile.
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.lease_until = 0
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state IN (4, 5, 6, 7, 8) AND r.attempt = k.attempt

-- name: attempts_of_runs
SELECT a.partition_id, a.scheduled_at, a.job_id, a.attempt, a.outcome, a.status_code, a.started_at, a.finished_at,
       a.detail, a.answer
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN attempts AS a FORCE INDEX (PRIMARY)
  ON a.partition_id = k.partition_id AND a.scheduled_at = k.scheduled_at AND a.job_id = k.job_id
WHERE a.scheduled_at BETWEEN :from_at AND :to_at

-- name: reports_of_runs
SELECT p.partition_id, p.scheduled_at, p.job_id, p.attempt, p.progress, p.note, p.result
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN reports AS p FORCE INDEX (PRIMARY)
  ON p.partition_id = k.partition_id AND p.scheduled_at = k.scheduled_at AND p.job_id = k.job_id
WHERE p.scheduled_at BETWEEN :from_at AND :to_at

-- name: attempts_between
-- The failed attempts of those runs, from the first one's time to the last one's.
SELECT scheduled_at, job_id, attempt, outcome, status_code, started_at, finished_at, detail, answer
FROM attempts FORCE INDEX (PRIMARY)
WHERE partition_id = :partition_id
  AND ((scheduled_at = :recorded_at AND job_id > :job_id) OR (scheduled_at > :recorded_at AND scheduled_at <= :last_at))
ORDER BY scheduled_at, job_id, attempt LIMIT :rows_max

-- name: reports_between
-- What workers said of those runs.
SELECT scheduled_at, job_id, attempt, progress, note, result
FROM reports FORCE INDEX (PRIMARY)
WHERE partition_id = :partition_id
  AND ((scheduled_at = :recorded_at AND job_id > :job_id) OR (scheduled_at > :recorded_at AND scheduled_at <= :last_at))
ORDER BY scheduled_at, job_id LIMIT :rows_max

-- name: days_waiting
-- Days that are old enough to leave, with about how many runs they have. While a day is dropped that may be NULL.
SELECT CAST(PARTITION_DESCRIPTION AS SIGNED), COALESCE(TABLE_ROWS, 0) FROM information_schema.PARTITIONS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'runs' AND PARTITION_NAME <> 'day_start'
  AND CAST(PARTITION_DESCRIPTION AS SIGNED) BETWEEN 1 AND :until_at
ORDER BY PARTITION_ORDINAL_POSITION
