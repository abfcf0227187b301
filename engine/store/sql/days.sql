-- Days of the tables that are cut by day.

-- name: days_of_table
-- Oldest first: the piece's name and the first millisecond beyond it.
SELECT PARTITION_NAME, PARTITION_DESCRIPTION FROM information_schema.PARTITIONS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = :table_name AND PARTITION_NAME IS NOT NULL
ORDER BY PARTITION_ORDINAL_POSITION

-- name: add_day_to_runs
ALTER TABLE runs ADD PARTITION (PARTITION :day VALUES LESS THAN (:until_at))

-- name: add_day_to_attempts
ALTER TABLE attempts ADD PARTITION (PARTITION :day VALUES LESS THAN (:until_at))
