-- Rollups: the ended runs of an hour of one partition are counted by tenant and by busy job, over what was counted
-- before. A run keeps its row whatever becomes of it, so counting again leaves nothing behind that is no longer true.

-- name: begin_counting
-- A new fleet, or one that is older than its rollups: from the hour of the mark on.
INSERT IGNORE INTO counted (partition_id, counted_to, seen_to)
SELECT partition_id, mark_at DIV 3600000 * 3600000, mark_at DIV 3600000 * 3600000
FROM marks WHERE partition_id IN (:partitions)

-- name: hours_to_count
-- What the mark has passed as a whole.
SELECT c.partition_id, c.counted_to
FROM counted AS c
STRAIGHT_JOIN marks AS m ON m.partition_id = c.partition_id
WHERE c.partition_id IN (:partitions) AND m.mark_at >= c.counted_to + 3600000
ORDER BY c.counted_to LIMIT :rows_max

-- name: hours_to_see
-- The hour that is not over yet, where there is more of it to see.
SELECT c.partition_id, c.counted_to, m.mark_at
FROM counted AS c
STRAIGHT_JOIN marks AS m ON m.partition_id = c.partition_id
WHERE c.partition_id IN (:partitions) AND m.mark_at >= c.seen_to + :step_ms AND m.mark_at < c.counted_to + 3600000
ORDER BY c.seen_to LIMIT :rows_max

-- name: hours_to_recount
-- What is not counted as a whole yet will be. A day that is closed waits for nothing but its numbers.
SELECT r.partition_id, r.hour_at
FROM recounts AS r
JOIN counted AS c ON c.partition_id = r.partition_id AND r.hour_at < c.counted_to
JOIN floor AS f ON f.id = 1
WHERE r.partition_id IN (:partitions) AND (r.due_at <= :now_ms OR r.hour_at < f.closed_to) LIMIT :rows_max

-- name: lock_counted
-- Whoever counts a partition holds its row.
SELECT counted_to FROM counted WHERE partition_id = :partition_id FOR UPDATE NOWAIT

-- name: move_counted
UPDATE counted SET counted_to = :counted_to, seen_to = :seen_to WHERE partition_id = :partition_id

-- name: marks_of_recount
SELECT marks FROM recounts WHERE partition_id = :partition_id AND hour_at = :hour_at

-- name: open_below
-- Below the mark an open run has a row in deferred.
SELECT 1 FROM deferred
WHERE partition_id = :partition_id AND scheduled_at >= :from_at AND scheduled_at < :to_at LIMIT 1

-- name: note_recounts
INSERT INTO recounts (partition_id, hour_at, due_at, marks) VALUES :tuples AS new
ON DUPLICATE KEY UPDATE due_at = new.due_at, marks = recounts.marks + 1

-- name: delete_recount
-- What has been noted once more meanwhile stays.
DELETE FROM recounts WHERE partition_id = :partition_id AND hour_at = :hour_at AND marks = :marks

-- name: count_tenants
-- One range of the primary key, read without locks.
INSERT INTO tenant_hours (tenant_id, hour_at, partition_id, succeeded, failed, cancelled, skipped, called,
                          lag_sum_ms, lag_max_ms, duration_sum_ms, duration_max_ms)
SELECT * FROM (
  SELECT tenant_id, :hour_at AS hour_at, :partition_id AS partition_id,
         SUM(state = 4) AS succeeded, SUM(state = 5) AS failed, SUM(state = 6) AS cancelled, SUM(state = 7) AS skipped,
         SUM(state IN (4, 5, 6, 7) AND started_at IS NOT NULL) AS called,
         SUM(IF(state IN (4, 5, 6, 7) AND started_at IS NOT NULL, started_at - scheduled_at, 0)) AS lag_sum_ms,
         MAX(IF(state IN (4, 5, 6, 7) AND started_at IS NOT NULL, started_at - scheduled_at, 0)) AS lag_max_ms,
         SUM(IF(state IN (4, 5, 6, 7) AND started_at IS NOT NULL, finished_at - started_at, 0)) AS duration_sum_ms,
         MAX(IF(state IN (4, 5, 6, 7) AND started_at IS NOT NULL, finished_at - started_at, 0)) AS duration_max_ms
  FROM runs FORCE INDEX (PRIMARY)
  WHERE partition_id = :partition_id AND scheduled_at >= :from_at AND scheduled_at < :to_at
  GROUP BY tenant_id
) AS f
ON DUPLICATE KEY UPDATE
  succeeded = f.succeeded, failed = f.failed, cancelled = f.cancelled, skipped = f.skipped, called = f.called,
  lag_sum_ms = f.lag_sum_ms, lag_max_ms = f.lag_max_ms,
  duration_sum_ms = f.duration_sum_ms, duration_max_ms = f.duration_max_ms

-- name: count_busy_jobs
-- The same by job, for those with so many runs that they are not read one by one when somebody asks.
INSERT INTO job_hours (partition_id, hour_at, job_id, succeeded, failed, cancelled, skipped, called,
                       lag_sum_ms, lag_max_ms, duration_sum_ms, duration_max_ms)
SELECT * FROM (
  SELECT :partition_id AS partition_id, :hour_at AS hour_at, job_id,
         SUM(state = 4) AS succeeded, SUM(state = 5) AS failed, SUM(state = 6) AS cancelled, SUM(state = 7) AS skipped,
         SUM(state IN (4, 5, 6, 7) AND started_at IS NOT NULL) AS called,
         SUM(IF(state IN (4, 5, 6, 7) AND started_at IS NOT NULL, started_at - scheduled_at, 0)) AS lag_sum_ms,
         MAX(IF(state IN (4, 5, 6, 7) AND started_at IS NOT NULL, started_at - scheduled_at, 0)) AS lag_max_ms,
         SUM(IF(state IN (4, 5, 6, 7) AND started_at IS NOT NULL, finished_at - started_at, 0)) AS duration_sum_ms,
         MAX(IF(state IN (4, 5, 6, 7) AND started_at IS NOT NULL, finished_at - started_at, 0)) AS duration_max_ms
  FROM runs FORCE INDEX (PRIMARY)
  WHERE partition_id = :partition_id AND scheduled_at >= :from_at AND scheduled_at < :to_at
  GROUP BY job_id HAVING COUNT(*) >= :runs_min
) AS f
ON DUPLICATE KEY UPDATE
  succeeded = f.succeeded, failed = f.failed, cancelled = f.cancelled, skipped = f.skipped, called = f.called,
  lag_sum_ms = f.lag_sum_ms, lag_max_ms = f.lag_max_ms,
  duration_sum_ms = f.duration_sum_ms, duration_max_ms = f.duration_max_ms

-- name: counted_below
-- Where something is not counted yet, or is to be counted anew: what ended late must not go uncounted with its day.
(SELECT partition_id FROM counted WHERE partition_id IN (:partitions) AND counted_to < :until_at LIMIT 1)
UNION ALL
(SELECT partition_id FROM recounts WHERE partition_id IN (:partitions) AND hour_at < :until_at LIMIT 1)

-- name: counted_to
-- And below which time all runs stand in Cassandra, and may have left: 0 where the history is here.
SELECT c.counted_to, COALESCE(r.recorded_at, 0)
FROM counted AS c LEFT JOIN recorded AS r ON r.partition_id = c.partition_id
WHERE c.partition_id = :partition_id

-- name: seen_to
-- NULL where counting has not begun.
SELECT MIN(seen_to) FROM counted

-- name: busy_hours_of_job
-- One look-up by primary key for each hour.
SELECT hour_at, succeeded, failed, cancelled, skipped, called,
       lag_sum_ms, lag_max_ms, duration_sum_ms, duration_max_ms
FROM job_hours
WHERE partition_id = :partition_id AND hour_at IN (:hours) AND job_id = :job_id
ORDER BY hour_at

-- name: sum_runs_of_job
-- runs.of_job within constant bounds, at most rows_max of the newest.
SELECT COALESCE(SUM(state = 4), 0), COALESCE(SUM(state = 5), 0), COALESCE(SUM(state = 6), 0),
       COALESCE(SUM(state = 7), 0), COUNT(started_at),
       COALESCE(SUM(started_at - scheduled_at), 0), COALESCE(MAX(started_at - scheduled_at), 0),
       COALESCE(SUM(finished_at - started_at), 0), COALESCE(MAX(finished_at - started_at), 0), COUNT(*)
FROM (
  SELECT state, scheduled_at, started_at, finished_at FROM runs FORCE INDEX (of_job)
  WHERE partition_id = :partition_id AND job_id = :job_id AND scheduled_at >= :from_at AND scheduled_at < :to_at
    AND state IN (4, 5, 6, 7)
  ORDER BY scheduled_at DESC LIMIT :rows_max
) AS r

-- name: sum_tenant_hours
SELECT COALESCE(SUM(succeeded), 0), COALESCE(SUM(failed), 0), COALESCE(SUM(cancelled), 0), COALESCE(SUM(skipped), 0),
       COALESCE(SUM(called), 0), COALESCE(SUM(lag_sum_ms), 0), COALESCE(MAX(lag_max_ms), 0),
       COALESCE(SUM(duration_sum_ms), 0), COALESCE(MAX(duration_max_ms), 0)
FROM tenant_hours
WHERE tenant_id = :tenant_id AND hour_at >= :from_at AND hour_at < :to_at
