-- Work: function runs in the hands of tenants' workers, held in the name of a door. Doors' ids are even.

-- name: work_ahead
-- When the first run of each lane and priority is due: a loose scan of deferred.due, one entry for each.
SELECT lane, priority, MIN(due_at) FROM deferred WHERE lane IN (:lanes) GROUP BY lane, priority

-- name: due_work
-- Of one lane and priority, in order of deferred.due, without locks: candidates only.
SELECT partition_id, scheduled_at, job_id, due_at FROM deferred FORCE INDEX (due)
WHERE lane = :lane AND priority = :priority AND due_at <= :now_ms
ORDER BY due_at LIMIT :rows_max

-- name: lock_work
-- The runs that workers speak of, whoever holds them now; whoever is not their holder is told why.
SELECT r.partition_id, r.scheduled_at, r.job_id, r.tenant_id, r.version, r.state, r.priority, r.trigger_kind,
       r.attempt, r.tries, r.worker_id, r.lease_until, r.cancel_requested, r.reason, r.outcome, r.status_code,
       r.started_at, r.finished_at, j.name
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
LEFT JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at
FOR UPDATE OF r

-- name: leases_over
-- Which of these no heartbeat has renewed meanwhile; their runs are locked.
SELECT d.partition_id, d.scheduled_at, d.job_id
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN deferred AS d FORCE INDEX (PRIMARY)
  ON d.partition_id = k.partition_id AND d.scheduled_at = k.scheduled_at AND d.job_id = k.job_id
WHERE d.due_at <= :now_ms
FOR UPDATE

-- name: lapsed_work
-- By deferred.due: runs in workers' hands whose lease is over. A worker's silence counts only while the doors were open; a
-- cancel and the end of a run's time count always.
SELECT r.partition_id, r.scheduled_at, r.job_id
FROM deferred AS d FORCE INDEX (due)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = d.partition_id AND r.scheduled_at = d.scheduled_at AND r.job_id = d.job_id
WHERE d.lane IN (:lanes) AND d.priority IN (0, 1, 2, 3) AND d.due_at <= :now_ms AND r.state = 2
  AND NOT r.worker_id & 1
  AND (:silence_counts OR r.cancel_requested OR r.lease_until <= :over_before)
LIMIT :rows_max

-- name: write_reports
-- What an earlier attempt said is forgotten.
INSERT INTO reports (partition_id, scheduled_at, job_id, attempt, reported_at, progress, note, result)
VALUES :tuples AS new
ON DUPLICATE KEY UPDATE
  progress = IF(new.attempt = reports.attempt, COALESCE(new.progress, reports.progress), new.progress),
  note = IF(new.attempt = reports.attempt, COALESCE(new.note, reports.note), new.note),
  result = new.result, attempt = new.attempt, reported_at = new.reported_at

-- name: report_of_run
SELECT attempt, progress, note, result FROM reports
WHERE partition_id = :partition_id AND scheduled_at = :scheduled_at AND job_id = :job_id

-- name: stand_at_door
-- A process that was silent for longer than the gap begins anew.
INSERT INTO doors (door_id, since_at, seen_at, claimed, ended, stale, waiting)
VALUES (:door_id, :now_ms, :now_ms, :claimed, :ended, :stale, :waiting) AS new
ON DUPLICATE KEY UPDATE
  since_at = IF(doors.seen_at < new.seen_at - :gap_ms, new.since_at, doors.since_at), seen_at = new.seen_at,
  claimed = new.claimed, ended = new.ended, stale = new.stale, waiting = new.waiting

-- name: open_doors
-- How long the longest-standing of the doors that are there has stood.
SELECT MIN(since_at) FROM doors WHERE seen_at >= :seen_from

-- name: leave_door
DELETE FROM doors WHERE door_id = :door_id

-- name: forget_doors
DELETE FROM doors WHERE seen_at < :before_at

-- name: note_asked
INSERT INTO functions (tenant_id, name, asked_at) VALUES :tuples AS new
ON DUPLICATE KEY UPDATE asked_at = GREATEST(functions.asked_at, new.asked_at)

-- name: function_asked
SELECT asked_at FROM functions WHERE tenant_id = :tenant_id AND name = :name

-- name: forget_functions
-- In order of functions.age.
DELETE FROM functions WHERE asked_at < :before_at ORDER BY asked_at LIMIT :rows_max

-- name: ready_work
-- Runs that workers may take now, counted up to a bound: a range of deferred.due over the lanes of all functions.
SELECT COUNT(*), MIN(s.due_at) FROM (
  SELECT due_at FROM deferred FORCE INDEX (due) WHERE lane >= :lanes_from AND due_at <= :now_ms LIMIT :rows_max
) AS s

-- name: doors_seen
SELECT door_id, claimed, ended, stale, waiting FROM doors WHERE seen_at >= :seen_from

-- name: waiting_lanes
-- The lanes of functions in which something waits: a loose scan of deferred.due, one entry for each and priority.
SELECT lane, priority, MIN(due_at) FROM deferred WHERE lane >= :lanes_from
GROUP BY lane, priority ORDER BY lane, priority LIMIT :rows_max

-- name: lane_owners
-- Whose lanes these are: the tenant of any run in each.
SELECT k.lane, j.tenant_id
FROM (VALUES :rows) AS k (lane, priority)
JOIN LATERAL (
  SELECT partition_id, job_id FROM deferred FORCE INDEX (due)
  WHERE lane = k.lane AND priority = k.priority LIMIT 1
) AS d
STRAIGHT_JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = d.partition_id AND j.job_id = d.job_id

-- name: aged_work
-- What has waited for long in one lane, in order of deferred.due, on from where the last look ended.
SELECT d.due_at, d.tenant_id, d.partition_id, d.scheduled_at, d.job_id, r.version
FROM deferred AS d FORCE INDEX (due)
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = d.partition_id AND r.scheduled_at = d.scheduled_at AND r.job_id = d.job_id
WHERE d.lane = :lane AND d.priority = :priority AND d.due_at >= :due_after AND d.due_at <= :aged_at
  AND (d.due_at > :due_after
       OR (d.tenant_id, d.partition_id, d.scheduled_at, d.job_id)
        > (:after_tenant, :after_partition, :after_scheduled_at, :after_job))
ORDER BY d.due_at, d.tenant_id, d.partition_id, d.scheduled_at, d.job_id LIMIT :rows_max
