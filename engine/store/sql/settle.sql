-- Settling: outcomes become states. Every write names state, worker and attempt; a late result changes nothing.

-- name: settle_runs
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt, state, tries, reason, outcome, status_code,
                            started_at, finished_at, demoted)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.state = k.state, r.tries = k.tries, r.reason = k.reason, r.outcome = k.outcome, r.status_code = k.status_code,
    r.started_at = k.started_at, r.finished_at = k.finished_at, r.demoted = k.demoted
WHERE r.scheduled_at BETWEEN :from_at AND :to_at
  AND r.state = 2 AND r.worker_id = :worker_id AND r.attempt = k.attempt

-- name: complete_runs
-- The same for runs that were not locked before: of one that is to be cancelled, nothing is changed.
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt, state, tries, reason, outcome, status_code,
                            started_at, finished_at, demoted)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.state = k.state, r.tries = k.tries, r.reason = k.reason, r.outcome = k.outcome, r.status_code = k.status_code,
    r.started_at = k.started_at, r.finished_at = k.finished_at, r.demoted = k.demoted
WHERE r.scheduled_at BETWEEN :from_at AND :to_at
  AND r.state = 2 AND r.worker_id = :worker_id AND r.attempt = k.attempt AND r.cancel_requested = 0

-- name: lock_held_runs
-- Which of these are still mine, locked until COMMIT: only they may touch deferred, dead letters and attempts.
SELECT r.partition_id, r.scheduled_at, r.job_id, r.attempt, r.cancel_requested
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at
  AND r.state = 2 AND r.worker_id = :worker_id AND r.attempt = k.attempt
FOR UPDATE

-- name: insert_attempts
INSERT INTO attempts (partition_id, scheduled_at, job_id, attempt, worker_id, outcome, status_code, started_at,
                      finished_at, detail, answer)
VALUES :tuples AS new
ON DUPLICATE KEY UPDATE outcome = new.outcome

-- name: insert_dead_letters
-- The whole live row, as it stands after settling, with the job's name.
INSERT INTO dead_letters (partition_id, scheduled_at, job_id, tenant_id, name, version, state, priority, trigger_kind,
  attempt, tries, worker_id, lease_until, cancel_requested, demoted, reason, outcome, status_code, started_at,
  finished_at, died_at)
SELECT r.partition_id, r.scheduled_at, r.job_id, r.tenant_id, j.name, r.version, r.state, r.priority, r.trigger_kind,
  r.attempt, r.tries, r.worker_id, r.lease_until, r.cancel_requested, r.demoted, r.reason, r.outcome, r.status_code,
  r.started_at, r.finished_at, :now_ms
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
STRAIGHT_JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at
ON DUPLICATE KEY UPDATE attempt = r.attempt, tries = r.tries, outcome = r.outcome, status_code = r.status_code,
  started_at = r.started_at, finished_at = r.finished_at, died_at = :now_ms, state = r.state, reason = r.reason
