-- Changes of a job under its row lock: the runs they reach, the signals to those who hold them.

-- name: lock_open_runs_of_job
-- runs.of_job, one range; ordered as it is stored.
SELECT partition_id, scheduled_at, job_id, state, attempt, tries, worker_id, trigger_kind, version, priority, reason,
       tenant_id
FROM runs FORCE INDEX (of_job)
WHERE partition_id = :partition_id AND job_id = :job_id AND scheduled_at BETWEEN :from_at AND :to_at
  AND state IN (2, 3)
ORDER BY scheduled_at
FOR UPDATE

-- name: lock_open_runs_by_key
SELECT r.partition_id, r.scheduled_at, r.job_id, r.state, r.attempt, r.tries, r.worker_id, r.trigger_kind, r.version,
       r.priority, r.reason, r.tenant_id
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state IN (2, 3)
FOR UPDATE

-- name: deferred_of_job
SELECT scheduled_at FROM deferred FORCE INDEX (of_job)
WHERE partition_id = :partition_id AND job_id = :job_id
ORDER BY scheduled_at

-- name: withdraw_runs
-- The attempt grows, so that a stale holder's fence never matches a run that is planned again.
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.state = 8, r.attempt = k.attempt + 1, r.worker_id = NULL, r.lease_until = NULL
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state IN (2, 3) AND r.attempt = k.attempt

-- name: end_open_runs
-- Runs that end without a call: skipped or cancelled.
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.state = :state, r.reason = :reason, r.finished_at = :now_ms, r.attempt = k.attempt + 1, r.worker_id = NULL,
    r.lease_until = NULL
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state IN (2, 3) AND r.attempt = k.attempt

-- name: reopen_waiting_runs
-- Withdrawn runs that are wanted after all, with the version of now.
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, version, priority, trigger_kind)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.state = 3, r.attempt = r.attempt + 1, r.version = k.version, r.priority = k.priority,
    r.trigger_kind = k.trigger_kind, r.reason = NULL, r.cancel_requested = 0
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state = 8

-- name: release_held
-- Resumed: what waited is due now, but never before its second.
UPDATE deferred SET due_at = GREATEST(:now_ms, scheduled_at)
WHERE partition_id = :partition_id AND job_id = :job_id AND reason = 6

-- name: insert_signals
INSERT INTO signals (worker_id, kind, partition_id, scheduled_at, job_id, attempt, written_at) VALUES :tuples

-- name: last_insert_id
SELECT LAST_INSERT_ID()

-- name: signals_left
SELECT COUNT(*) FROM signals FORCE INDEX (sequence) WHERE signal_id BETWEEN :first_id AND :last_id

-- name: run_times_of_job
-- Times already taken within a second, whatever became of them.
SELECT scheduled_at FROM runs FORCE INDEX (of_job)
WHERE partition_id = :partition_id AND job_id = :job_id AND scheduled_at BETWEEN :from_at AND :to_at

-- name: standing_times_of_job
SELECT scheduled_at FROM runs FORCE INDEX (of_job)
WHERE partition_id = :partition_id AND job_id = :job_id AND scheduled_at BETWEEN :from_at AND :to_at AND state <> 8
ORDER BY scheduled_at

-- name: lock_run
SELECT partition_id, scheduled_at, job_id, state, attempt, tries, worker_id, trigger_kind, version, priority, reason,
       tenant_id
FROM runs
WHERE partition_id = :partition_id AND scheduled_at = :scheduled_at AND job_id = :job_id
FOR UPDATE

-- name: request_cancel
UPDATE runs SET cancel_requested = 1
WHERE partition_id = :partition_id AND scheduled_at = :scheduled_at AND job_id = :job_id AND attempt = :attempt

-- name: end_lease_soon
-- Of a run whose worker is told by its next heartbeat: it has until then.
UPDATE deferred SET due_at = LEAST(due_at, :until)
WHERE partition_id = :partition_id AND scheduled_at = :scheduled_at AND job_id = :job_id

-- name: lock_job_states
-- Before their runs, as everywhere.
SELECT j.partition_id, j.job_id, j.state, j.version
FROM (VALUES :rows) AS k (partition_id, job_id)
STRAIGHT_JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id
FOR UPDATE

-- name: lock_unstarted_runs
-- Which of these the worker still holds under this attempt.
SELECT r.partition_id, r.scheduled_at, r.job_id, r.state, r.attempt, r.tries, r.worker_id, r.trigger_kind, r.version,
       r.priority, r.reason, r.tenant_id
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at
  AND r.state = 2 AND r.worker_id = :worker_id AND r.attempt = k.attempt
FOR UPDATE

-- name: let_runs_wait
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.state = 3, r.worker_id = NULL, r.lease_until = NULL
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state = 2 AND r.attempt = k.attempt

-- name: resume_earlier
-- A paused job is planned again from the earliest of its runs that never started.
UPDATE (VALUES :rows) AS k (partition_id, job_id, resume_at)
STRAIGHT_JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id
SET j.resume_at = LEAST(COALESCE(j.resume_at, k.resume_at), k.resume_at)
WHERE j.state = 2
