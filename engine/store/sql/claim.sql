-- Claiming: waiting runs are taken through their row in deferred, and through it alone.

-- name: due_deferred
-- Of one priority and one span, in order of deferred.due, without locks: candidates only. The executors' lanes are
-- their partitions.
SELECT partition_id, scheduled_at, job_id, tenant_id
FROM deferred FORCE INDEX (due)
WHERE lane IN (:partitions) AND priority = :priority AND due_at > :due_after AND due_at <= :due_at
ORDER BY lane, due_at
LIMIT :rows_max

-- name: due_deferred_of_others
-- What waits behind the loud ones: of each other tenant the first, by turns, without locks. The innermost reads
-- deferred.due alone, and no more of it than a bound.
SELECT partition_id, scheduled_at, job_id, tenant_id
FROM (
  SELECT partition_id, scheduled_at, job_id, tenant_id, due_at,
         ROW_NUMBER() OVER (PARTITION BY tenant_id ORDER BY due_at, partition_id) AS turn
  FROM (
    SELECT partition_id, scheduled_at, job_id, tenant_id, due_at FROM deferred FORCE INDEX (due)
    WHERE lane IN (:partitions) AND priority = :priority AND due_at > :due_after AND due_at <= :due_at
    LIMIT :places_max
  ) AS places
  WHERE tenant_id NOT IN (:loud)
) AS turns
ORDER BY turn, due_at
LIMIT :rows_max

-- name: share_placement
SELECT partition_id FROM partitions WHERE partition_id IN (:partitions) FOR SHARE

-- name: lock_deferred_runs
-- The candidates' runs with their deferred rows; what another claimer holds is left to it. The job's state is read
-- without a lock: a pause or delete that is not yet committed holds the runs that it has found.
SELECT r.partition_id, r.scheduled_at, r.job_id, r.tenant_id, r.version, r.state, r.priority, r.trigger_kind,
       r.attempt, r.tries, r.cancel_requested, d.due_at, d.reason, COALESCE(j.state, 4), j.name,
       d.lane
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
STRAIGHT_JOIN deferred AS d FORCE INDEX (PRIMARY)
  ON d.partition_id = k.partition_id AND d.scheduled_at = k.scheduled_at AND d.job_id = k.job_id
LEFT JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND d.due_at <= :due_at
FOR UPDATE OF r, d SKIP LOCKED

-- name: claim_runs
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt, lease_until)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.state = 2, r.worker_id = :worker_id, r.attempt = k.attempt, r.lease_until = k.lease_until,
    r.started_at = COALESCE(:started_at, r.started_at)
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state = 3 AND r.attempt = k.attempt - 1

-- name: set_deferred_due
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, due_at, reason)
STRAIGHT_JOIN deferred AS d FORCE INDEX (PRIMARY)
  ON d.partition_id = k.partition_id AND d.scheduled_at = k.scheduled_at AND d.job_id = k.job_id
SET d.due_at = k.due_at, d.reason = k.reason

-- name: take_deferred
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, due_at, reason, lane)
STRAIGHT_JOIN deferred AS d FORCE INDEX (PRIMARY)
  ON d.partition_id = k.partition_id AND d.scheduled_at = k.scheduled_at AND d.job_id = k.job_id
SET d.due_at = k.due_at, d.reason = k.reason, d.lane = k.lane

-- name: delete_deferred
DELETE d FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN deferred AS d FORCE INDEX (PRIMARY)
  ON d.partition_id = k.partition_id AND d.scheduled_at = k.scheduled_at AND d.job_id = k.job_id

-- name: read_active
SELECT a.partition_id, a.job_id, a.scheduled_at
FROM (VALUES :rows) AS k (partition_id, job_id)
STRAIGHT_JOIN active AS a FORCE INDEX (PRIMARY) ON a.partition_id = k.partition_id AND a.job_id = k.job_id
FOR UPDATE

-- name: insert_active
INSERT INTO active (partition_id, job_id, scheduled_at) VALUES :tuples

-- name: delete_active
DELETE a FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN active AS a FORCE INDEX (PRIMARY) ON a.partition_id = k.partition_id AND a.job_id = k.job_id
WHERE a.scheduled_at = k.scheduled_at

-- name: wake_overlap_waiters
-- What waited for an open run of its job is due now.
UPDATE (VALUES :rows) AS k (partition_id, job_id)
STRAIGHT_JOIN deferred AS d FORCE INDEX (of_job) ON d.partition_id = k.partition_id AND d.job_id = k.job_id
SET d.due_at = :now_ms
WHERE d.reason = 5 AND d.due_at > :now_ms

-- name: other_overlap_waiters
-- Deferred runs of these jobs that already wait for an open run to end.
SELECT d.partition_id, d.job_id, d.scheduled_at
FROM (VALUES :rows) AS k (partition_id, job_id)
STRAIGHT_JOIN deferred AS d FORCE INDEX (of_job) ON d.partition_id = k.partition_id AND d.job_id = k.job_id
WHERE d.reason = 5

-- name: end_waiting_runs
-- Waiting runs that end without a call: skipped or cancelled.
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt, state, reason, finished_at)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.state = k.state, r.reason = k.reason, r.finished_at = k.finished_at
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state = 3 AND r.attempt = k.attempt
