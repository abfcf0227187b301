-- What an operator looks at. Only reads, each bounded in time or by an index.

-- name: status_workers
-- Every worker this shard knows, with the partitions it holds here.
SELECT w.host, w.pid, w.started_at, w.heartbeat_at, w.lease_until, w.draining, COUNT(l.partition_id)
FROM workers AS w LEFT JOIN leases AS l ON l.worker_id = w.worker_id
GROUP BY w.worker_id

-- name: status_lags
-- Started runs of a short span by priority and milliseconds late: ranges of the primary key. Those that a limit of
-- their own held up (reason 6) are not late, nor is what was tried again.
SELECT priority, started_at - scheduled_at AS lag_ms, COUNT(*) FROM runs
WHERE partition_id IN (:partitions) AND scheduled_at BETWEEN :from_at AND :to_at AND started_at IS NOT NULL
  AND tries <= 1 AND NOT reason <=> 6
GROUP BY priority, lag_ms

-- name: status_in_flight
-- Claimed runs whose second has come: between its call and its settlement, or held up.
SELECT COUNT(*), MIN(IF(reason <=> 6, NULL, scheduled_at)) FROM runs
WHERE partition_id IN (:partitions) AND scheduled_at BETWEEN :from_at AND :to_at AND state = 2

-- name: status_waiting
-- By deferred.due: what waits for executors.
SELECT COUNT(*), MIN(due_at) FROM deferred
WHERE lane IN (:partitions) AND priority IN (0, 1, 2, 3) AND due_at <= :now_ms

-- name: status_held
-- By deferred.due: what a limit of its own holds up. It is looked at again all the time, and does not count as late.
SELECT COUNT(*), NULL FROM deferred
WHERE lane IN (:partitions) AND priority IN (0, 1, 2, 3) AND due_at > :now_ms AND due_at <= :held_until AND reason = 6

-- name: status_unplanned
-- By jobs.due: times that have come without being planned.
SELECT COUNT(*), MIN(next_run_at) FROM jobs
WHERE partition_id IN (:partitions) AND priority IN (0, 1, 2, 3) AND next_run_at <= :now_ms

-- name: status_planned
-- Planned runs of the coming minutes by second.
SELECT scheduled_at DIV 1000 * 1000 AS second_at, COUNT(*) FROM runs
WHERE partition_id IN (:partitions) AND scheduled_at > :from_at AND scheduled_at <= :to_at AND state IN (2, 3)
GROUP BY second_at

-- name: status_coming
-- Jobs whose next time, not yet planned, lies in the coming minutes, by that time: a covering range of jobs.due.
SELECT next_run_at, COUNT(*) FROM jobs
WHERE partition_id IN (:partitions) AND priority IN (0, 1, 2, 3) AND next_run_at > :from_at AND next_run_at <= :to_at
GROUP BY next_run_at

-- name: status_definitions
-- The same jobs with what they say of the times after that one.
SELECT j.next_run_at, v.definition
FROM jobs AS j
STRAIGHT_JOIN job_versions AS v
  ON v.partition_id = j.partition_id AND v.job_id = j.job_id AND v.version = j.version
WHERE j.partition_id IN (:partitions) AND j.priority IN (0, 1, 2, 3)
  AND j.next_run_at > :from_at AND j.next_run_at <= :to_at
LIMIT :rows_max
