-- What waits is claimed by priority, and what is on time beside what is late: `due` leads with the priority.
ALTER TABLE deferred
  ADD COLUMN priority TINYINT UNSIGNED NOT NULL DEFAULT 2,
  DROP KEY due,
  ADD KEY due (partition_id, priority, due_at);

-- Rows that wait already have the priority of their run.
UPDATE deferred AS d STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = d.partition_id AND r.scheduled_at = d.scheduled_at AND r.job_id = d.job_id
SET d.priority = r.priority
WHERE r.priority <> 2;

ALTER TABLE deferred ALTER COLUMN priority DROP DEFAULT;
