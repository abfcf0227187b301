-- Days of the tables that are cut by day.

-- name: days_of_table
-- Oldest first: the piece's name and the first millisecond beyond it.
SELECT PARTITION_NAME, PARTITION_DESCRIPTION FROM information_schema.PARTITIONS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = :table_name AND PARTITION_NAME IS NOT NULL
ORDER BY PARTITION_ORDINAL_POSITION

-- name: wait_briefly
-- While DDL waits for a table, all that comes to it waits behind: no longer than a second.
SET SESSION lock_wait_timeout = 1

-- name: wait_as_usual
SET SESSION lock_wait_timeout = 3

-- name: add_day_to_runs
ALTER TABLE runs ADD PARTITION (PARTITION :day VALUES LESS THAN (:until_at))

-- name: add_day_to_attempts
ALTER TABLE attempts ADD PARTITION (PARTITION :day VALUES LESS THAN (:until_at))

-- name: add_day_to_reports
ALTER TABLE reports ADD PARTITION (PARTITION :day VALUES LESS THAN (:until_at))

-- name: add_day_to_job_hours
ALTER TABLE job_hours ADD PARTITION (PARTITION :day VALUES LESS THAN (:until_at))

-- name: add_day_to_tenant_hours
ALTER TABLE tenant_hours ADD PARTITION (PARTITION :day VALUES LESS THAN (:until_at))

-- name: empty_day_of_runs
-- A day goes in two steps: what it holds at once, as by DROP; then its piece becomes a part of day_start, so that a later
-- row of it does not fall into the day above and go with that.
ALTER TABLE runs TRUNCATE PARTITION :day

-- name: merge_day_of_runs
ALTER TABLE runs REORGANIZE PARTITION day_start, :day INTO (PARTITION day_start VALUES LESS THAN (:until_at))

-- name: empty_day_of_attempts
ALTER TABLE attempts TRUNCATE PARTITION :day

-- name: merge_day_of_attempts
ALTER TABLE attempts REORGANIZE PARTITION day_start, :day INTO (PARTITION day_start VALUES LESS THAN (:until_at))

-- name: empty_day_of_reports
ALTER TABLE reports TRUNCATE PARTITION :day

-- name: merge_day_of_reports
ALTER TABLE reports REORGANIZE PARTITION day_start, :day INTO (PARTITION day_start VALUES LESS THAN (:until_at))

-- name: drop_day_of_job_hours
ALTER TABLE job_hours DROP PARTITION :day

-- name: drop_day_of_tenant_hours
ALTER TABLE tenant_hours DROP PARTITION :day

-- name: lock_floor
SELECT floor_at, closed_to, gone_to FROM floor WHERE id = 1 FOR UPDATE NOWAIT

-- name: raise_floor
UPDATE floor SET floor_at = :floor_at WHERE id = 1

-- name: close_days
UPDATE floor SET closed_to = :until_at WHERE id = 1 AND closed_to < :until_at

-- name: note_gone_days
UPDATE floor SET gone_to = :until_at WHERE id = 1 AND gone_to < :until_at

-- name: gone_days
SELECT gone_to FROM floor WHERE id = 1

-- name: deferred_below
-- Open runs below a time stand in deferred; one range of its primary key for each partition. Those of days that have gone
-- hold up no other.
SELECT partition_id FROM deferred
WHERE partition_id IN (:partitions) AND scheduled_at >= :gone_to AND scheduled_at < :until_at LIMIT 1

-- name: marks_below
SELECT partition_id FROM marks WHERE partition_id IN (:partitions) AND mark_at < :until_at LIMIT 1

-- name: long_holders
-- Transactions that hold the table for longer than age_s seconds: a DROP would wait for them, and others for it. Their
-- age is told in picoseconds; the time at which they began would be told in the server's time zone.
SELECT DISTINCT t.PROCESSLIST_ID
FROM performance_schema.metadata_locks AS m
JOIN performance_schema.threads AS t ON t.THREAD_ID = m.OWNER_THREAD_ID
JOIN performance_schema.events_transactions_current AS x ON x.THREAD_ID = m.OWNER_THREAD_ID AND x.STATE = 'ACTIVE'
WHERE m.OBJECT_TYPE = 'TABLE' AND m.OBJECT_SCHEMA = DATABASE() AND m.OBJECT_NAME = :table_name
  AND m.LOCK_STATUS = 'GRANTED' AND x.TIMER_WAIT >= :age_s * 1e12
