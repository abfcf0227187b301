-- Notices: an outbox of what tenants are told. Written in the transaction of what they are about.

-- name: insert_notices
-- Late and skipped runs of one job and minute become one row with a count.
INSERT INTO notices (partition_id, job_id, kind, about_at, run_at, tenant_id, version, merged, due_at, written_at)
VALUES :tuples AS new
ON DUPLICATE KEY UPDATE merged = notices.merged + new.merged

-- name: lock_due_notices
-- In order of notices.due; what another keeper sends is left to it.
SELECT partition_id, job_id, kind, about_at, run_at, tenant_id, version, merged, tries, written_at
FROM notices FORCE INDEX (due)
WHERE due_at <= :now_ms
ORDER BY due_at
LIMIT :rows_max
FOR UPDATE SKIP LOCKED

-- name: take_notices
-- Each is this keeper's until due_at; should it die, another one sends it again.
UPDATE (VALUES :rows) AS k (partition_id, job_id, kind, about_at, tries, due_at)
STRAIGHT_JOIN notices AS n FORCE INDEX (PRIMARY)
  ON n.partition_id = k.partition_id AND n.job_id = k.job_id AND n.kind = k.kind AND n.about_at = k.about_at
SET n.tries = k.tries, n.due_at = k.due_at

-- name: noticed_runs
-- The run of each notice, with its job's name; none where the notice is about a range of skipped times.
SELECT k.partition_id, j.name, r.scheduled_at, r.job_id, r.version, r.state, r.trigger_kind, r.attempt, r.tries,
       r.reason, r.outcome, r.status_code, r.started_at, r.finished_at, r.demoted
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id
STRAIGHT_JOIN runs AS r FORCE INDEX (PRIMARY)
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at

-- name: noticed_skips
-- The range of skipped times of each notice that is about one, with its job's name.
SELECT k.partition_id, j.name, s.from_at, s.to_at, s.job_id, s.skipped, s.reason, s.version, s.written_at
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id
STRAIGHT_JOIN skips AS s FORCE INDEX (PRIMARY)
  ON s.partition_id = k.partition_id AND s.job_id = k.job_id AND s.from_at = k.scheduled_at

-- name: end_notices
-- Fenced by the try that was told or given up.
DELETE n FROM (VALUES :rows) AS k (partition_id, job_id, kind, about_at, tries)
STRAIGHT_JOIN notices AS n FORCE INDEX (PRIMARY)
  ON n.partition_id = k.partition_id AND n.job_id = k.job_id AND n.kind = k.kind AND n.about_at = k.about_at
WHERE n.tries = k.tries

-- name: postpone_notices
UPDATE (VALUES :rows) AS k (partition_id, job_id, kind, about_at, tries, due_at)
STRAIGHT_JOIN notices AS n FORCE INDEX (PRIMARY)
  ON n.partition_id = k.partition_id AND n.job_id = k.job_id AND n.kind = k.kind AND n.about_at = k.about_at
SET n.due_at = k.due_at
WHERE n.tries = k.tries
