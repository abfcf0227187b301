-- How far the runs of each partition have been recorded in Cassandra.

-- name: recordable
-- What a recorder has to do below the floor, the partition that is furthest behind first. A partition never recorded
-- begins below every time.
SELECT p.partition_id, f.floor_at, COALESCE(r.recorded_at, 0), COALESCE(r.job_id, 0)
FROM partitions AS p
JOIN floor AS f ON f.id = 1
LEFT JOIN recorded AS r ON r.partition_id = p.partition_id
WHERE COALESCE(r.recorded_at, 0) < f.floor_at
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

-- name: let_go_recorded
UPDATE recorded SET lease_until = 0 WHERE partition_id = :partition_id AND worker_id = :worker_id

-- name: unrecorded_below
SELECT p.partition_id
FROM partitions AS p
LEFT JOIN recorded AS r ON r.partition_id = p.partition_id
WHERE COALESCE(r.recorded_at, 0) < :until_at LIMIT 1

-- name: finished_runs
-- The primary key onward from a run, in two ranges. What is open there, the recorder refuses; a withdrawn run never was.
SELECT scheduled_at, job_id, version, state, trigger_kind, attempt, tries, reason, outcome, status_code, started_at,
       finished_at, demoted, tenant_id, priority
FROM runs FORCE INDEX (PRIMARY)
WHERE partition_id = :partition_id
  AND ((scheduled_at = :recorded_at AND job_id > :job_id) OR (scheduled_at > :recorded_at AND scheduled_at < :until_at))
ORDER BY scheduled_at, job_id LIMIT :rows_max

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
-- Days that are old enough to leave, with about how many runs they have.
SELECT CAST(PARTITION_DESCRIPTION AS SIGNED), TABLE_ROWS FROM information_schema.PARTITIONS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'runs' AND PARTITION_NAME IS NOT NULL
  AND CAST(PARTITION_DESCRIPTION AS SIGNED) BETWEEN 1 AND :until_at
ORDER BY PARTITION_ORDINAL_POSITION
