-- Lists of one tenant's jobs and of one job's runs: keyset pages, bounded in what they read.

-- name: job_names
-- jobs.by_name in its order: at most scan_max rows are read, those that the filter admits are answered.
SELECT s.name, s.partition_id, s.job_id
FROM (
  SELECT name, partition_id, job_id, state, next_run_at, last_run_at
  FROM jobs FORCE INDEX (by_name)
  WHERE tenant_id = :tenant_id AND alive = 1 AND name > :after AND name >= :from_name AND name < :to_name
  ORDER BY name LIMIT :scan_max
) AS s
WHERE (:state IS NULL OR s.state = :state)
  AND (:finished IS NULL OR (s.next_run_at IS NULL AND COALESCE(s.last_run_at, 0) <= :now_ms) = :finished)
  AND (:next_before IS NULL OR (s.state = 1 AND (s.next_run_at < :next_before OR s.last_run_at > :now_ms)))
ORDER BY s.name LIMIT :rows_max

-- name: job_name_at
-- The last name that a full scan of job_names has read.
SELECT name FROM jobs FORCE INDEX (by_name)
WHERE tenant_id = :tenant_id AND alive = 1 AND name > :after AND name >= :from_name AND name < :to_name
ORDER BY name LIMIT 1 OFFSET :skipped

-- name: count_jobs
-- jobs.by_name alone: some 0.2 µs a job.
SELECT COUNT(*) FROM jobs FORCE INDEX (by_name) WHERE tenant_id = :tenant_id AND alive = 1

-- name: labelled_job_names
-- The same through the primary key of job_labels for one label, and through it again for each further one.
SELECT s.name, s.partition_id, s.job_id
FROM (
  SELECT name, partition_id, job_id
  FROM job_labels
  WHERE tenant_id = :tenant_id AND label = :label AND value = :label_value
    AND name > :after AND name >= :from_name AND name < :to_name
  ORDER BY name LIMIT :scan_max
) AS s
JOIN jobs AS j ON j.partition_id = s.partition_id AND j.job_id = s.job_id
WHERE (:state IS NULL OR j.state = :state)
  AND (:finished IS NULL OR (j.next_run_at IS NULL AND COALESCE(j.last_run_at, 0) <= :now_ms) = :finished)
  AND (:next_before IS NULL OR (j.state = 1 AND (j.next_run_at < :next_before OR j.last_run_at > :now_ms)))
  AND (:labels_more = 0 OR :labels_more = (
    SELECT COUNT(*) FROM job_labels AS l
    WHERE l.tenant_id = :tenant_id AND (l.label, l.value) IN (:more_labels) AND l.name = s.name))
ORDER BY s.name LIMIT :rows_max

-- name: labelled_job_name_at
SELECT name FROM job_labels
WHERE tenant_id = :tenant_id AND label = :label AND value = :label_value
  AND name > :after AND name >= :from_name AND name < :to_name
ORDER BY name LIMIT 1 OFFSET :skipped

-- name: runs_of_job
-- runs.of_job backwards within constant bounds: one descent for each day between them, and then only what is answered;
-- how many rows the days hold does not matter. Withdrawn runs never were.
SELECT scheduled_at, job_id, version, state, trigger_kind, attempt, tries, reason, outcome, status_code,
       started_at, finished_at, demoted
FROM runs FORCE INDEX (of_job)
WHERE partition_id = :partition_id AND job_id = :job_id AND scheduled_at BETWEEN :from_at AND :to_at
  AND state IN (:states)
ORDER BY scheduled_at DESC LIMIT :rows_max

-- name: run_by_key
SELECT scheduled_at, job_id, version, state, trigger_kind, attempt, tries, reason, outcome, status_code,
       started_at, finished_at, demoted
FROM runs
WHERE partition_id = :partition_id AND scheduled_at = :scheduled_at AND job_id IN (:job_ids) AND state <> 8
ORDER BY job_id DESC LIMIT 1

-- name: attempts_of_run
SELECT attempt, outcome, status_code, started_at, finished_at, detail, answer
FROM attempts
WHERE partition_id = :partition_id AND scheduled_at = :scheduled_at AND job_id = :job_id
ORDER BY attempt

-- name: skips_of_job
-- Ranges of skipped times by their last time; a job has few.
SELECT from_at, to_at, job_id, skipped, reason, version, written_at
FROM skips
WHERE partition_id = :partition_id AND job_id = :job_id AND to_at BETWEEN :from_at AND :to_at
ORDER BY to_at DESC LIMIT :rows_max

-- name: skips_over
-- Ranges around one time, the newest job's first.
SELECT from_at, to_at, job_id, skipped, reason, version, written_at
FROM skips
WHERE partition_id = :partition_id AND job_id IN (:job_ids) AND from_at <= :scheduled_at AND to_at >= :scheduled_at
ORDER BY job_id DESC LIMIT 1
