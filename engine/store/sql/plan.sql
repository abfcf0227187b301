-- Planning: due jobs become runs, most of them born claimed. One transaction per batch.

-- name: partitions_with_due_jobs
-- Which of my partitions have work before the horizon, of which priority and since when; a loose scan of jobs.due.
SELECT partition_id, priority, MIN(next_run_at) FROM jobs
WHERE partition_id IN (:partitions) AND next_run_at <= :horizon_at
GROUP BY partition_id, priority

-- name: large_seconds
-- The coming seconds with many jobs: a covering scan of jobs.due over the forecast's span.
SELECT next_run_at, COUNT(*) FROM jobs FORCE INDEX (due)
WHERE partition_id IN (:partitions) AND priority IN (0, 1, 2, 3) AND next_run_at > :from_at AND next_run_at <= :to_at
GROUP BY next_run_at HAVING COUNT(*) >= :jobs_min

-- name: share_planning_rows
-- Placement, mark and floor, held FOR SHARE until COMMIT: none of them moves under a plan.
SELECT p.partition_id, m.mark_at, f.floor_at, f.closed_to, f.gone_to
FROM partitions AS p JOIN marks AS m ON m.partition_id = p.partition_id JOIN floor AS f ON f.id = 1
WHERE p.partition_id IN (:partitions)
FOR SHARE

-- name: lock_due_jobs
-- Of one priority and one span, in order of jobs.due; what another planner holds is left to it.
SELECT partition_id, job_id, tenant_id, version, next_run_at, last_run_at
FROM jobs FORCE INDEX (due)
WHERE partition_id IN (:partitions) AND priority = :priority AND next_run_at > :due_after
  AND next_run_at <= :horizon_at
ORDER BY partition_id, next_run_at
LIMIT :rows_max
FOR UPDATE SKIP LOCKED

-- name: tenants_with_due_jobs
-- Whose jobs wait behind those of the loud ones: of each tenant the first places in jobs.due, by turns. The innermost
-- is a loose scan, one step for a second of a tenant in a partition, however many jobs are due in it.
SELECT partition_id, next_run_at, tenant_id
FROM (
  SELECT partition_id, next_run_at, tenant_id,
         ROW_NUMBER() OVER (PARTITION BY tenant_id ORDER BY next_run_at, partition_id) AS turn
  FROM (
    SELECT partition_id, next_run_at, tenant_id FROM jobs FORCE INDEX (due)
    WHERE partition_id IN (:partitions) AND priority = :priority AND next_run_at > :due_after
      AND next_run_at <= :horizon_at
    GROUP BY partition_id, priority, next_run_at, tenant_id
    LIMIT :places_max
  ) AS places
  WHERE tenant_id NOT IN (:loud)
) AS turns
ORDER BY turn, next_run_at
LIMIT :rows_max

-- name: lock_jobs_of_tenants
-- At most so many jobs of each of these places in jobs.due; what another planner holds is left to it.
SELECT j.partition_id, j.job_id, j.tenant_id, j.version, j.next_run_at, j.last_run_at
FROM (VALUES :rows) AS k (partition_id, next_run_at, tenant_id)
STRAIGHT_JOIN LATERAL (
  SELECT partition_id, job_id, tenant_id, version, next_run_at, last_run_at
  FROM jobs FORCE INDEX (due)
  WHERE partition_id = k.partition_id AND priority = :priority AND next_run_at = k.next_run_at
    AND tenant_id = k.tenant_id
  LIMIT :each_max
  FOR UPDATE SKIP LOCKED
) AS j

-- name: read_versions
-- Definitions by primary key, for jobs whose version is not cached.
SELECT v.partition_id, v.job_id, v.version, v.definition
FROM (VALUES :rows) AS k (partition_id, job_id, version)
STRAIGHT_JOIN job_versions AS v FORCE INDEX (PRIMARY)
  ON v.partition_id = k.partition_id AND v.job_id = k.job_id AND v.version = k.version

-- name: insert_runs
-- Sorted by primary key, one day in nearly every statement.
INSERT INTO runs (partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind,
                  attempt, worker_id, lease_until)
VALUES :tuples

-- name: lock_runs_of_keys
-- Exact keys within constant day bounds; used where a plan meets rows that are there already.
SELECT r.partition_id, r.scheduled_at, r.job_id, r.state, r.attempt
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at
FOR UPDATE

-- name: reopen_runs
-- A withdrawn run that is planned again: the next attempt, with the version of now.
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, version, state, priority, attempt, worker_id, lease_until)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.version = k.version, r.priority = k.priority, r.attempt = k.attempt, r.worker_id = k.worker_id,
    r.lease_until = k.lease_until, r.reason = NULL, r.cancel_requested = 0, r.state = k.state
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state = 8

-- name: insert_deferred
-- To the executors, whoever had it before: the default of the lane is the partition.
INSERT INTO deferred (partition_id, scheduled_at, job_id, due_at, reason, priority, tenant_id) VALUES :tuples AS new
ON DUPLICATE KEY UPDATE due_at = new.due_at, reason = new.reason, priority = new.priority, lane = deferred.partition_id,
  tenant_id = new.tenant_id

-- name: insert_into_lanes
INSERT INTO deferred (partition_id, scheduled_at, job_id, due_at, reason, priority, lane, tenant_id)
VALUES :tuples AS new
ON DUPLICATE KEY UPDATE due_at = new.due_at, reason = new.reason, priority = new.priority, lane = new.lane,
  tenant_id = new.tenant_id

-- name: insert_skips
INSERT INTO skips (partition_id, job_id, from_at, to_at, skipped, reason, version, written_at) VALUES :tuples AS new
ON DUPLICATE KEY UPDATE to_at = new.to_at, skipped = new.skipped

-- name: advance_jobs
-- The compare-and-set of promise 1, under the job's row lock: a count that differs rolls the batch back.
UPDATE (VALUES :rows) AS k (partition_id, job_id, version, was_next_run_at, next_run_at, last_run_at)
STRAIGHT_JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id
SET j.next_run_at = k.next_run_at, j.last_run_at = k.last_run_at
WHERE j.version = k.version AND j.next_run_at = k.was_next_run_at AND j.state = 1

-- name: quarantine_jobs
-- A job that cannot be evaluated delays no other: it is set aside, visible, until its owner edits it.
UPDATE (VALUES :rows) AS k (partition_id, job_id, version, resume_at)
STRAIGHT_JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id
SET j.state = 3, j.next_run_at = NULL, j.resume_at = k.resume_at, j.state_note = :note
WHERE j.version = k.version AND j.state = 1

-- name: my_planned_runs
-- After an unknown commit: which of these keys are mine with this attempt. FOR SHARE waits for a transaction whose
-- COMMIT is still on its way: looked up without it, such runs would be missing now and nobody's later.
SELECT r.partition_id, r.scheduled_at, r.job_id, r.attempt
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
  AND r.attempt = k.attempt
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.worker_id = :worker_id AND r.state = 2
FOR SHARE OF r
