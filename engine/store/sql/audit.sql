-- Auditing: everything that is known of a page of one partition's jobs, in one snapshot.

-- name: audit_snapshot
-- For the next transaction alone: what it reads is of one moment.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ

-- name: audit_floor
SELECT floor_at FROM floor WHERE id = 1

-- name: audit_last_job
-- The end of a page: job_versions by primary key. NULL where nothing follows.
SELECT MAX(job_id) FROM (
  SELECT DISTINCT job_id FROM job_versions
  WHERE partition_id = :partition_id AND job_id > :after_id ORDER BY job_id LIMIT :rows_max
) AS page

-- name: audit_versions
-- Of a definition its schedule alone: bodies may be large. What is no JSON is NULL.
SELECT job_id, version, state, written_at, next_run_at,
       IF(JSON_VALID(CONVERT(definition USING utf8mb4)),
          CAST(JSON_EXTRACT(CONVERT(definition USING utf8mb4), '$.schedule') AS CHAR), NULL)
FROM job_versions
WHERE partition_id = :partition_id AND job_id > :after_id AND job_id <= :last_id
ORDER BY job_id, version

-- name: audit_jobs
SELECT job_id, tenant_id, name, state, next_run_at, resume_at FROM jobs
WHERE partition_id = :partition_id AND job_id > :after_id AND job_id <= :last_id

-- name: audit_runs
-- The primary key within constant bounds; withdrawn runs never were.
SELECT job_id, scheduled_at, version, state, trigger_kind, started_at FROM runs
WHERE partition_id = :partition_id AND scheduled_at BETWEEN :from_at AND :to_at
  AND job_id > :after_id AND job_id <= :last_id AND state <> 8

-- name: audit_dead_letters
-- What failed for good is kept longer than its day.
SELECT job_id, scheduled_at, version, state, trigger_kind, started_at FROM dead_letters
WHERE partition_id = :partition_id AND scheduled_at BETWEEN :from_at AND :to_at
  AND job_id > :after_id AND job_id <= :last_id

-- name: audit_skips
SELECT job_id, from_at, to_at, version, reason FROM skips
WHERE partition_id = :partition_id AND job_id > :after_id AND job_id <= :last_id
  AND from_at <= :to_at AND to_at >= :from_at
